"""Splits of the UCI EEG recordings: no subject on two sides, trials of a subject in proportion."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from fne.core.errors import DataError, DataWarning, SettingError
from fne.core.randomness import generator
from fne.data.eeg.uci import CLASSES, _folds, eeg_uci
from fne.data.eeg.uci_files import find, read_all
from tests.data.eeg.uci_parts import SUBJECTS, assert_disjoint, fill, made, names, parts, rows

pytestmark = pytest.mark.usefixtures("own_cache")


# ------------------------------------------------------------------------------------------------ subject-wise
@pytest.mark.parametrize("folds", range(3, 11))
@pytest.mark.parametrize("shuffled", [False, True])
def test_folds_test_every_subject_once_and_never_mix_them(small: str, folds: int, shuffled: bool) -> None:
    tested: list[str] = []
    validated: list[set[str]] = []
    for fold in range(folds):
        data = made(small, fold=fold, folds=folds, shuffle_labels=shuffled, label_seed=folds, standardise="none")
        assert data.fold == (fold, folds)
        held = [set(names(data, part)) for part in parts(data)]
        assert sum(map(len, held)) == len(held[0] | held[1] | held[2]) == 20
        assert all(set(part.y.tolist()) == {0, 1} for part in parts(data)), "both given labels everywhere"
        tested += held[2]
        assert not validated or validated[-1] == held[2], "the next fold is validation"
        validated.append(held[1])
    assert sorted(tested) == sorted(set.union(*validated)) == SUBJECTS


@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(
    pairs=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=60),
    folds=st.integers(3, 30),
    seed=st.integers(0, 2**40),
)
def test_folds_have_both_given_labels_or_are_refused(pairs: list[tuple[int, int]], folds: int, seed: int) -> None:
    given, true = torch.tensor(pairs).T
    few = min(int((given == label).sum()) for label in (0, 1))
    if folds > few or few < 3:
        with pytest.raises((DataError, SettingError), match=f"at most {few}," if few >= 3 else f"are of {len(pairs)} "):
            _folds(given, true, folds, generator(seed))
        return
    dealt = _folds(given, true, folds, generator(seed))
    for kind in (torch.zeros_like(true), given, 2 * given + true):
        for value in set(kind.tolist()):
            counts = torch.bincount(dealt[kind == value], minlength=folds)
            assert counts.max() - counts.min() <= 1
    assert all(set(given[dealt == fold].tolist()) == {0, 1} for fold in range(folds))


PLAIN = [0, 1, 2, 3, 2, 4, 3, 4, 0, 1, 2, 0, 4, 4, 1, 3, 2, 3, 0, 1]
SHUFFLED = [3, 0, 4, 3, 1, 1, 2, 4, 0, 2, 2, 2, 4, 1, 1, 4, 3, 0, 0, 3]


def test_five_folds_of_the_twenty_subjects_stay_what_they_are() -> None:
    """Figures that were published rest on them. By hand from the two draws: sorted by label, then dealt in turn."""
    true = torch.tensor([1] * 10 + [0] * 10)
    assert _folds(true, true, 5, generator("eeg_uci", "split", 0)).tolist() == PLAIN
    given = torch.tensor([1, 0] * 10)
    assert _folds(given, true, 5, generator("eeg_uci", "split", 0)).tolist() == SHUFFLED


def test_no_fold_is_the_first_fold(small: str) -> None:
    one, other = made(small), made(small, fold=0)
    assert (one.fold, one.split) == (other.fold, other.split) == ((0, 5), "subject-wise (whole subjects, stratified)")
    assert torch.equal(one.test.x, other.test.x)
    assert made(small, split="trial").fold is None


@pytest.mark.parametrize(
    ("subjects", "there"),
    [
        (SUBJECTS[:1], "1 subjects, 0 labelled control and 1 labelled alcoholic"),
        (SUBJECTS[:2], "2 subjects, 0 labelled control and 2 labelled alcoholic"),
        (SUBJECTS[:8], "8 subjects, 0 labelled control and 8 labelled alcoholic"),
        (SUBJECTS[8:14], "6 subjects, 4 labelled control and 2 labelled alcoholic"),
    ],
)
def test_too_few_subjects(tmp_path: Path, cache: Path, subjects: list[str], there: str) -> None:
    fill(tmp_path, subjects, 6)
    with pytest.raises(DataError) as caught:
        eeg_uci(seed=0, path=str(tmp_path))
    assert str(caught.value) == (
        f"eeg_uci: the trials are of {there}. data.split=subject needs 3 of each at least, for training, validation "
        "and test: get recordings of more subjects, or set data.split=trial"
    )


def test_shuffling_needs_two_subjects_of_a_class(tmp_path: Path, cache: Path) -> None:
    fill(tmp_path, SUBJECTS[9:13], 6)
    with pytest.raises(SettingError, match=r"data.shuffle_labels = true: must be false with fewer than two alcoholic"):
        eeg_uci(seed=0, path=str(tmp_path), split="trial", shuffle_labels=True)


def test_five_folds_of_twenty_subjects_are_balanced_exactly(small: str) -> None:
    for fold in range(5):
        plain = made(small, fold=fold)
        assert Counter(name[3] for name in set(names(plain, plain.test))) == {"a": 2, "c": 2}
        data = made(small, fold=fold, shuffle_labels=True)
        pairs = zip(names(data, data.test), data.test.y.tolist(), strict=True)
        assert Counter((name[3], given) for name, given in set(pairs)) == dict.fromkeys(
            [("a", 0), ("a", 1), ("c", 0), ("c", 1)], 1
        )


def test_labels_are_the_fourth_letter_and_shuffling_changes_half_of_each_class(small: str) -> None:
    def labels(**settings: Any) -> dict[str, int]:
        data = made(small, **settings)
        found: dict[str, set[int]] = {}
        for part in parts(data):
            for name, y in zip(names(data, part), part.y.tolist(), strict=True):
                found.setdefault(name, set()).add(y)
        assert all(len(there) == 1 for there in found.values())
        return {name: there.pop() for name, there in found.items()}

    true = labels()
    assert true == {name: int(name[3] == "a") for name in SUBJECTS}
    assert CLASSES[true[SUBJECTS[0]]] == "alcoholic"
    given = labels(shuffle_labels=True)
    assert Counter((true[name], given[name]) for name in SUBJECTS) == {(a, b): 5 for a in (0, 1) for b in (0, 1)}
    assert given == labels(shuffle_labels=True, fold=3, split_seed=4), "only label_seed decides the labels"
    assert given != labels(shuffle_labels=True, label_seed=1)


def test_the_split_depends_on_its_own_seed_only(small: str) -> None:
    one = eeg_uci(seed=1, path=small)
    assert torch.equal(one.train.x, eeg_uci(seed=2, path=small).train.x)
    assert set(names(one, one.test)) != set(names(one, eeg_uci(seed=1, path=small, split_seed=1).test))


# ------------------------------------------------------------------------------------------------ within subjects
@pytest.mark.parametrize(("validation", "test"), [(None, None), (0.1, 0.3)])
def test_trial_wise_each_subject_is_in_every_part_in_proportion(
    small: str, validation: float | None, test: float | None
) -> None:
    data = made(small, split="trial", standardise="none", validation=validation, test=test)
    assert_disjoint(data, 168)
    total = Counter(name for part in parts(data) for name in names(data, part))
    for part, share in ((data.validation, validation or 0.2), (data.test, test or 0.2)):
        assert len(part) == round(168 * share)
        count = Counter(names(data, part))
        assert all(abs(count[name] - share * total[name]) < 1 for name in SUBJECTS)
    assert data.fold is None


def test_uci_folders_keep_test_apart(small: str) -> None:
    data = made(small, split="uci", standardise="none")
    found = read_all(Path(small), find(Path(small)))
    assert_disjoint(data, 168)
    assert rows(data.test) == {row.tobytes() for row in found.values[found.origin == "test"]}
    assert len(data.validation) == 24
    assert set(Counter(names(data, data.validation)).values()) <= {1, 2}


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "subject-wise (whole subjects, stratified)"),
        ({"fold": 2}, "subject-wise (whole subjects, stratified)"),
        (
            {"shuffle_labels": True},
            "subject-wise (whole subjects, stratified), labels shuffled between subjects",
        ),
        (
            {"standardise": "subject"},
            "subject-wise (whole subjects, stratified), held-out subjects standardised by themselves",
        ),
        ({"split": "trial", "standardise": "subject"}, "trial-wise (60/20/20 within subjects, random)"),
        ({"split": "trial"}, "trial-wise (60/20/20 within subjects, random)"),
        ({"split": "trial", "test": 0.125}, "trial-wise (67.5/20/12.5 within subjects, random)"),
        ({"split": "uci"}, "UCI folders (TRAIN, TEST; the same subjects, 20 % of TRAIN for validation)"),
    ],
)
def test_the_split_is_named_beside_every_figure(small: str, settings: dict[str, Any], text: str) -> None:
    assert made(small, **settings).split == text


@pytest.mark.parametrize("split", ["trial", "uci"])
def test_a_split_with_the_same_subjects_warns_in_one_line(small: str, split: Any) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        eeg_uci(seed=0, path=small, split=split)
    (warning,) = caught
    assert warning.category is DataWarning
    assert warning.filename == __file__
    assert str(warning.message) == (
        f"eeg_uci: data.split={split} tests on the subjects of the training part; a model that only recognises "
        "people reaches such figures. Take data.split=subject for a claim about the disease"
    )
