"""The UCI EEG loader: files read exactly or refused in words, splits without a leak, and the real 1,056 trials."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import shutil
import tarfile
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import scipy.signal
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray

from fne.config.registry import catalogue, declared, load
from fne.core.errors import DataError, DataWarning, SettingError
from fne.core.randomness import generator
from fne.core.types import Dataset, Samples
from fne.data.eeg.uci import CLASSES, NOT_SCALP, _folds, eeg_uci
from fne.data.eeg.uci_files import (
    CHANNELS,
    CONDITIONS,
    FILE_LIMIT,
    SETS,
    SUBJECT_LIMIT,
    TRAIN_CONTENT,
    digest,
    fetch_set,
    find,
    parse,
    parse_all,
    read_all,
)
from fne.data.sources import download

DATA = os.environ.get("FNE_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="FNE_DATA is not set: no EEG recordings")
LENGTH = 8
SUBJECTS = [f"co2{letter}{number:07d}" for letter in "ac" for number in range(10)]
SUBJECT = SUBJECTS[0]
Values = NDArray[np.float64]


def text(
    values: Values, *, subject: str = SUBJECT, trial: int = 3, condition: str = "S1 obj ", order: Any = range(64)
) -> str:
    lines = [f"# {subject}.rd", "# 120 trials, 64 chans, 416 samples 368 post_stim samples", "# 3.906000 msecs uV"]
    lines.append(f"# {condition}, trial {trial}")
    for place, channel in enumerate(order):
        name = CHANNELS[channel]
        lines.append(f"# {name} chan {place}")
        lines += [f"{trial} {name} {sample} {value:.3f}" for sample, value in enumerate(values[channel])]
    return "\n".join(lines) + "\n"


def draw(seed: int, length: int = LENGTH) -> Values:
    return np.random.default_rng(seed).normal(0, 10, (64, length)).round(3)


def write(folder: Path, content: str, *, subject: str = SUBJECT, number: int = 3, packed: bool = False) -> Path:
    path = folder / subject / f"{subject}.rd.{number:03d}{'.gz' if packed else ''}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content.encode()) if packed else content.encode())
    return path


def fill(folder: Path, subjects: list[str], trials: int, first: int = 0) -> None:
    """Write `trials` trials a subject; the conditions take turns, every subject has a level and a strength."""
    for subject in subjects:
        place = SUBJECTS.index(subject)
        for number in range(first, first + trials):
            values = 3.0 * place + (1 + place) * draw(1000 * place + number)
            condition = ("S1 obj ", "S2 match ", "S2 nomatch")[number % 3]
            content = text(values, subject=subject, trial=number, condition=condition)
            write(folder, content, subject=subject, number=number)


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep all parsed files of this module in one folder of its own."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fne.data.sources.cache_folder", lambda: cache)
        yield cache


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own."""
    monkeypatch.setattr("fne.data.sources.cache_folder", lambda: tmp_path / "cache")
    monkeypatch.delenv("FNE_DATA", raising=False)
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    """20 subjects, 6 trials each in TRAIN; all but four of them have 3 more in TEST."""
    folder = tmp_path_factory.mktemp("data") / "set"
    fill(folder / "SMNI_CMI_TRAIN", SUBJECTS, 6)
    fill(folder / "SMNI_CMI_TEST", SUBJECTS[:8] + SUBJECTS[10:18], 3, first=6)
    return str(folder)


def made(path: str, **settings: Any) -> Dataset:
    """Load, with the warning that all but subject-wise splits must give."""
    leaking = settings.get("split", "subject") != "subject"
    with pytest.warns(DataWarning, match=r"Take data\.split=subject") if leaking else contextlib.nullcontext():
        return eeg_uci(seed=0, path=path, **settings)


def parts(data: Dataset) -> tuple[Samples, Samples, Samples]:
    return data.train, data.validation, data.test


def names(data: Dataset, part: Samples) -> list[str]:
    assert part.groups is not None
    return [data.group_names[group] for group in part.groups.tolist()]


def rows(part: Samples) -> set[bytes]:
    return {x.numpy().tobytes() for x in part.x}


def assert_disjoint(data: Dataset, total: int) -> None:
    kept = [rows(part) for part in parts(data)]
    assert sum(map(len, kept)) == len(kept[0] | kept[1] | kept[2]) == total


# ------------------------------------------------------------------------------------------------ one file
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("written", "meant"), [("S1 obj ", "S1 obj"), ("S2 nomatch", "S2 nomatch"), ("S2 match ", "S2 match")]
)
def test_a_file_is_read_exactly_whatever_its_header_says(
    tmp_path: Path, packed: bool, written: str, meant: str
) -> None:
    values = draw(0)
    trial = parse(write(tmp_path, text(values, trial=17, condition=written), packed=packed))
    assert trial is not None
    assert (trial.number, trial.condition) == (17, meant)
    assert np.array_equal(trial.values, values.astype(np.float32))


def test_channels_are_ordered_by_name(tmp_path: Path) -> None:
    values = draw(0)
    order = np.random.default_rng(1).permutation(64)
    trial = parse(write(tmp_path, text(values, order=order)))
    assert trial is not None
    assert np.array_equal(trial.values, values.astype(np.float32))


GOOD = text(draw(0))
VALUE = GOOD.splitlines()[5].split()[-1]
DAMAGES: dict[str, tuple[Callable[[str], str], str]] = {
    "word": (lambda s: s.replace(f"3 FP1 0 {VALUE}", "3 FP1 0 x7"), "line 6, channel 'FP1': '3 FP1 0 x7' must be "),
    "nan": (lambda s: s.replace(f"3 FP1 0 {VALUE}", "3 FP1 0 nan"), "line 6, channel 'FP1': '3 FP1 0 nan'"),
    "infinite": (lambda s: s.replace(f"3 FP1 0 {VALUE}", "3 FP1 0 -inf"), "line 6, channel 'FP1'"),
    "too large": (lambda s: s.replace(f"3 FP1 0 {VALUE}", "3 FP1 0 1e39"), "line 6, channel 'FP1'"),
    "no value": (lambda s: s.replace(f"3 FP1 0 {VALUE}", "3 FP1 0"), "line 6, channel 'FP1'"),
    "sample number": (
        lambda s: s.replace("3 FP2 5 ", "3 FP2 6 "),
        "line 20, channel 'FP2': .* must be '3 FP2 5 VALUE'",
    ),
    "channel name": (lambda s: s.replace("3 FP2 5 ", "3 FP1 5 "), "line 20, channel 'FP2'"),
    "other trial": (lambda s: s.replace("3 FP2 5 ", "4 FP2 5 "), "line 20, channel 'FP2'"),
    "header's trial": (lambda s: s.replace("trial 3", "trial 4"), "line 6, channel 'FP1': .* must be '4 FP1 0 VALUE'"),
    "channel line": (lambda s: s.replace("# FP2 chan 1", "# FP2 kanal 1"), "line 14: '# FP2 kanal 1' must be such as"),
    "no samples": (lambda s: s.replace("# FP2 chan", "# nix chan 1\n# FP2 chan"), "channel 'nix' has no values"),
    "unknown channel": (lambda s: s.replace("FP2 ", "QQ2 "), "channel 'QQ2' is unknown"),
    "twice": (lambda s: s.replace("FP2 ", "FP1 "), "channel 'FP1' is there twice"),
    "missing": (lambda s: s[: s.index("# nd")], "2 channels are missing, the first is 'nd'"),
    "shorter channel": (lambda s: s[: s.index("3 Y 7")], "channel 'Y' has 7 samples, FP1 has 8"),
    "cut line": (lambda s: s[:-2], "ends in the middle of line 580"),
    "condition": (lambda s: s.replace("S1 obj", "S3 obj"), "line 4 has condition 'S3 obj'; known are S1 obj, S2 match"),
    "header": (lambda s: s.replace(", trial 3", ""), "line 4 must be such as '# S1 obj , trial 0'"),
    "something else": (lambda _: "<html>not found</html>", "line 4 must be such as"),
    "not ASCII": (lambda s: s + "é", "cannot be read"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused_by_name_and_place(tmp_path: Path, damage: str) -> None:
    change, message = DAMAGES[damage]
    assert change(GOOD) != GOOD
    path = write(tmp_path, change(GOOD))
    with pytest.raises(DataError, match=message) as caught:
        parse(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("cut", [5, 300, -4])
def test_a_packed_file_that_is_cut_off(tmp_path: Path, cut: int) -> None:
    path = write(tmp_path, GOOD, packed=True)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match=r"rd\.003\.gz: cannot be read .* again"):
        parse(path)


@pytest.mark.parametrize(
    ("folder", "named", "first_line", "where"),
    [
        (SUBJECTS[10], SUBJECT, SUBJECT, "its name"),
        (SUBJECTS[10], SUBJECT, SUBJECTS[10], "its name"),
        (SUBJECT, SUBJECT, SUBJECTS[10], "its first line"),
    ],
)
@pytest.mark.parametrize("content", [GOOD, GOOD.replace("S1 obj ", "S1 obj err"), GOOD[: GOOD.index("# FP1")]])
def test_a_file_of_another_subject_is_refused(
    tmp_path: Path, cache: Path, content: str, folder: str, named: str, first_line: str, where: str
) -> None:
    """Whether it has values, is marked err or is empty: a label would come from the wrong folder."""
    fill(tmp_path, SUBJECTS, 1)
    path = tmp_path / folder / f"{named}.rd.007"
    path.write_text(content.replace(SUBJECT, first_line))
    other = named if where == "its name" else first_line
    with pytest.raises(DataError) as caught:
        eeg_uci(seed=0, path=str(tmp_path))
    message = f"{path}: in the folder of {folder}, but by {where} a recording of {other}; move it to its own folder"
    assert str(caught.value).startswith(message)


# ------------------------------------------------------------------------------------------------ folders
def test_links_are_followed_and_may_go_in_circles(tmp_path: Path) -> None:
    fill(tmp_path / "elsewhere", SUBJECTS[:2], 2)
    there = tmp_path / "here" / "set"
    there.mkdir(parents=True)
    for subject in SUBJECTS[:2]:
        (there / subject).symlink_to(tmp_path / "elsewhere" / subject, target_is_directory=True)
    wanted = [there / subject / f"{subject}.rd.{number:03d}" for subject in SUBJECTS[:2] for number in range(2)]
    for number in range(30):  # without a memory, the number of paths would be without a bound
        (there / f"circle-{number}").symlink_to(tmp_path / "here", target_is_directory=True)
        (tmp_path / "elsewhere" / SUBJECT / f"circle-{number}").symlink_to(there, target_is_directory=True)
    assert find(tmp_path / "here") == wanted


def test_a_link_to_a_file_that_is_not_there(tmp_path: Path, cache: Path) -> None:
    fill(tmp_path, SUBJECTS, 1)
    path = tmp_path / SUBJECT / f"{SUBJECT}.rd.001.gz"
    path.symlink_to(tmp_path / ".git" / "annex" / "objects" / "x")
    with pytest.raises(DataError) as caught:
        eeg_uci(seed=0, path=str(tmp_path))
    assert str(caught.value) == (
        f"{path}: a link to a file that does not exist; with git-annex or DataLad get the content first (datalad get), "
        "else fetch or unpack it again"
    )


def test_only_files_named_as_recordings_in_folders_named_as_subjects_count(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    wanted = [write(deep, GOOD, number=number, packed=number > 0) for number in range(2)]
    for name in ("README", f"{SUBJECT}/README_ingber", f"{SUBJECT}/{SUBJECT}.rd.01", f"other/{SUBJECT}.rd.000"):
        (deep / name).parent.mkdir(exist_ok=True)
        (deep / name).write_text("no recording")
    write(deep / ".unfinished", GOOD)
    assert find(tmp_path) == wanted
    assert find(deep / SUBJECT) == wanted


def test_failed_trials_and_empty_files_are_left_out_with_one_warning(tmp_path: Path, cache: Path) -> None:
    fill(tmp_path / "set", SUBJECTS, 1)
    subject = SUBJECTS[4]
    for number in (5, 6):
        content = text(draw(number), subject=subject, condition="S2 match err")
        write(tmp_path / "set", content, subject=subject, number=number)
    write(tmp_path / "set", "", subject=subject, number=7, packed=True)
    write(tmp_path / "set", GOOD[: GOOD.index("# FP1")].replace(SUBJECT, subject), subject=subject, number=8)
    for _ in ("parsed", "from the cache"):
        with pytest.warns(DataWarning) as caught:
            data = eeg_uci(seed=0, path=str(tmp_path / "set"))
        assert [str(one.message) for one in caught] == [
            f"eeg_uci: 2 trials marked err were left out, the first is {subject}/{subject}.rd.005; "
            f"2 empty files were left out, the first is {subject}/{subject}.rd.007.gz"
        ]
        assert caught[0].filename == __file__
        assert sum(map(len, parts(data))) == 20


def test_trials_of_another_length_are_refused(tmp_path: Path, cache: Path) -> None:
    write(tmp_path, GOOD)
    odd = write(tmp_path, text(draw(0, length=LENGTH + 1)), number=4)
    with pytest.raises(DataError, match=rf"{odd}: 9 samples a channel, {SUBJECT}/{SUBJECT}.rd.003 has 8"):
        eeg_uci(seed=0, path=str(tmp_path))


@pytest.mark.parametrize("there", ["train", "test"])
def test_one_set_alone_warns_once_unless_asked_for(tmp_path: Path, cache: Path, there: Any) -> None:
    fill(tmp_path / SETS[there], SUBJECTS, 1)
    (other,) = {"train", "test"} - {there}
    with pytest.warns(DataWarning) as caught:
        eeg_uci(seed=0, path=str(tmp_path))
    assert [str(one.message) for one in caught] == [
        f"eeg_uci: only {SETS[there]} is there, no recording of {SETS[other]} was found; "
        f"data.recordings={there} says that this is meant"
    ]
    eeg_uci(seed=0, path=str(tmp_path), recordings=there)


def test_equal_trials_are_kept_once_the_one_of_train(tmp_path: Path, cache: Path) -> None:
    for folder, trials in (("SMNI_CMI_TRAIN", 2), ("SMNI_CMI_TEST", 3)):
        fill(tmp_path / folder, SUBJECTS, trials)
    with pytest.warns(DataWarning) as caught:
        data = eeg_uci(seed=0, path=str(tmp_path), split="uci", standardise="none", validation=0.5)
    assert str(caught[0].message) == "eeg_uci: 40 trials that repeat another one byte for byte were left out"
    assert_disjoint(data, 60)
    assert [len(part) for part in parts(data)] == [20, 20, 20]
    assert eeg_uci(seed=0, path=str(tmp_path), recordings="test").source.endswith("60 trials of 20 subjects")


def test_trials_are_sorted_by_set_subject_and_number(small: str) -> None:
    found = read_all(Path(small), find(Path(small)))
    keys = list(zip(found.origin.tolist(), found.subject.tolist(), found.trial.tolist(), strict=True))
    assert keys == sorted(keys, key=lambda key: (key[0] == "test", *key))
    assert Counter(found.origin.tolist()) == {"train": 120, "test": 48}
    number = keys.index(("test", SUBJECTS[11], 7))
    assert np.array_equal(found.values[number], (33 + 12 * draw(11007)).round(3).astype(np.float32))


def test_a_folder_without_recordings_says_how_to_get_them(tmp_path: Path, cache: Path) -> None:
    for path, message in (
        (str(tmp_path / "nowhere"), "no such file or folder"),
        (str(tmp_path), "no recordings such as co2a0000364"),
        (None, r"\$FNE_DATA \(not set\)"),
    ):
        with pytest.raises(DataError, match=message) as caught:
            eeg_uci(seed=0, path=path)
        assert "data.download=true" in str(caught.value)
        assert "10.24432/C5TS3D" in str(caught.value)


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


# ------------------------------------------------------------------------------------------------ values
@pytest.mark.parametrize("recordings", ["train", "test", "all"])
@pytest.mark.parametrize("conditions", [("S1 obj",), ("S2 nomatch", "S2 match"), CONDITIONS])
def test_sets_and_conditions_choose_trials(small: str, recordings: str, conditions: tuple[str, ...]) -> None:
    data = made(small, recordings=recordings, conditions=conditions, standardise="none")
    found = read_all(Path(small), find(Path(small)))
    wanted = np.isin(found.condition, conditions) & ((found.origin == recordings) | (recordings == "all"))
    assert set.union(*map(rows, parts(data))) == {row.tobytes() for row in found.values[wanted]}
    assert len(data.group_names) == (16 if recordings == "test" else 20)


def raw(small: str, data: Dataset) -> list[Values]:
    """Values in microvolts of the parts of `data`, made with the same split."""
    return [part.x.double().numpy() for part in parts(data)]


def test_standardising_by_the_training_part(small: str) -> None:
    train, *others = raw(small, made(small, standardise="none"))
    mean, deviation = train.mean((0, 2))[:, None], train.std((0, 2))[:, None]
    data = made(small)
    for part, values in zip(parts(data), (train, *others), strict=True):
        np.testing.assert_allclose(part.x.numpy(), (values - mean) / deviation, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("split", ["subject", "trial"])
def test_standardising_by_subject(small: str, split: str) -> None:
    plain, data = (made(small, split=split, standardise=how) for how in ("none", "subject"))
    everything = raw(small, plain)
    owners = [np.array(names(plain, part)) for part in parts(plain)]
    for part, values, owner in zip(parts(data), everything, owners, strict=True):
        for name in set(owner.tolist()):
            # Only training trials count where the subject has some; else (subject-wise) all are in this part.
            reference = everything[0][owners[0] == name] if name in owners[0] else values[owner == name]
            mean, deviation = reference.mean((0, 2))[:, None], reference.std((0, 2))[:, None]
            expected = (values[owner == name] - mean) / deviation
            np.testing.assert_allclose(part.x.numpy()[owner == name], expected, rtol=1e-5, atol=1e-5)


def test_a_channel_that_does_not_vary_is_only_centred(tmp_path: Path, cache: Path) -> None:
    for number, subject in enumerate(SUBJECTS[:3] + SUBJECTS[10:13]):
        values = draw(number)
        values[0], values[1] = 0, 5.1
        write(tmp_path, text(values, subject=subject), subject=subject)
    for how in ("train", "subject"):
        data = made(str(tmp_path), folds=3, standardise=how)
        for part in parts(data):
            assert part.x[:, :2].abs().max() < 1e-6
            assert part.x[:, 2:].abs().max() < 10


def test_channels_that_vary_in_held_out_subjects_only(tmp_path: Path, cache: Path) -> None:
    """Their deviation in training is zero or rounding error, by which nothing may be divided: only centred."""
    length = 255  # squares of float32 have 48 bits; the sum of these 510 does not fit the 53 of float64
    level = np.arange(100, 104, 0.1)[:, None]  # 40 of them, as it depends on the number what rounding leaves
    drawn = {subject: draw(number, length) for number, subject in enumerate(SUBJECTS[:3] + SUBJECTS[10:13])}
    for subject, values in drawn.items():
        values[:40] = level
        write(tmp_path, text(values, subject=subject), subject=subject)
    before = made(str(tmp_path), folds=3)
    for subject in set(names(before, before.test)):
        drawn[subject][:40] += np.arange(length)
        write(tmp_path, text(drawn[subject], subject=subject), subject=subject)
    data = made(str(tmp_path), folds=3)
    assert names(data, data.test) == names(before, before.test)
    assert data.train.x[:, :40].abs().max() < 1e-4
    np.testing.assert_allclose(data.test.x[:, :40], np.tile(np.arange(length), (2, 40, 1)), atol=1e-3)


def test_scalp_channels(small: str) -> None:
    everything, scalp = (made(small, standardise="none", channels=which) for which in ("all", "scalp"))
    kept = [number for number, name in enumerate(CHANNELS) if name not in NOT_SCALP]
    assert (everything.shape, scalp.shape) == ((64, LENGTH), (61, LENGTH))
    assert torch.equal(everything.train.x[:, kept], scalp.train.x)


@pytest.mark.parametrize("kind", ["constant", "linear"])
def test_detrending_agrees_with_scipy(small: str, kind: str) -> None:
    (plain, *_), (detrended, *_) = (raw(small, made(small, standardise="none", detrend=how)) for how in ("none", kind))
    np.testing.assert_allclose(detrended, scipy.signal.detrend(plain, type=kind), atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fold": 5}, "data.fold = 5: must be below data.folds = 5"),
        (
            {"folds": 11},
            "data.folds = 11: must be at most 10, the subjects of the smaller class: every fold needs both",
        ),
        ({"folds": 20, "shuffle_labels": True}, "data.folds = 20: must be at most 10, the subjects of the smaller"),
        ({"validation": 0.1}, "data.validation = 0.1: must be null with data.split=subject"),
        ({"test": 0.1}, "data.test = 0.1: must be null with data.split=subject"),
        ({"split": "trial", "fold": 1}, "data.fold = 1: must be null with data.split=trial, which has no folds"),
        ({"split": "uci", "fold": 0}, "data.fold = 0: must be null with data.split=uci, which has no folds"),
        ({"split": "trial", "validation": 0.9}, "data.validation = 0.9: must be below 0.8"),
        ({"split": "uci", "test": 0.1}, "data.test = 0.1: must be null with data.split=uci"),
        ({"split": "uci", "recordings": "train"}, "data.recordings = 'train': must be all with data.split=uci"),
        ({"conditions": ()}, "data.conditions = .*: must be a list of at least one condition"),
        ({"download": True}, "data.download = true: must be false beside data.path"),
    ],
)
def test_settings_that_cannot_work(small: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        eeg_uci(seed=0, path=small, **settings)


def test_subjects_without_ucis_folders_load_but_have_no_sets(tmp_path: Path, cache: Path) -> None:
    fill(tmp_path / "eeg_full", SUBJECTS, 2)
    assert made(str(tmp_path)).source.endswith("40 trials of 20 subjects")
    for settings, message in (
        ({"split": "uci"}, "data.split = 'uci': must be subject or trial: there is no folder SMNI_CMI_TRAIN"),
        ({"recordings": "test"}, "data.recordings = 'test': must be all: there is no folder SMNI_CMI_TEST"),
    ):
        with pytest.raises(SettingError, match=message):
            eeg_uci(seed=0, path=str(tmp_path), **settings)
    with pytest.raises(DataError, match=r"no trials of data.conditions S2 nomatch"):
        eeg_uci(seed=0, path=str(tmp_path), conditions=("S2 nomatch",))


def test_catalogue_reads_what_the_loader_declares() -> None:
    found = catalogue("data")["eeg_uci"]
    assert {k: v[1] for k, v in found.settings.items()} == {
        k: v[1] for k, v in declared(load("data", "eeg_uci")).items()
    }


# ------------------------------------------------------------------------------------------------ cache
def test_parsed_files_are_kept_until_one_changes(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path / "set", SUBJECTS[:3] + SUBJECTS[10:13], 1)

    def read() -> tuple[Dataset, bool]:
        data = made(str(tmp_path / "set"), folds=3, standardise="none")
        captured = capsys.readouterr()
        assert not captured.out
        assert captured.err in ("", f"eeg_uci: reading 6 files once, then kept in {cache / 'eeg_uci'}\n")
        return data, bool(captured.err)

    first, parsed = read()
    assert parsed
    again, parsed = read()
    assert not parsed
    assert all(torch.equal(a.x, b.x) and torch.equal(a.y, b.y) for a, b in zip(parts(first), parts(again), strict=True))

    (kept,) = (cache / "eeg_uci").iterdir()
    whole = kept.read_bytes()
    bit = whole.index(first.train.x[0].numpy().tobytes())
    for broken in (whole[:1000], b"", whole[:bit] + bytes([whole[bit] ^ 1]) + whole[bit + 1 :]):
        kept.write_bytes(broken)
        again, parsed = read()
        assert parsed
        assert torch.equal(first.train.x, again.train.x)
        assert kept.read_bytes() == whole

    values = draw(77)
    path = write(tmp_path / "set", text(values, subject=SUBJECTS[11], trial=0), subject=SUBJECTS[11], number=0)
    os.utime(path, ns=(1, 1))  # changed within the clock's resolution, perhaps
    again, parsed = read()
    assert parsed
    assert values.astype(np.float32).tobytes() in set.union(*map(rows, parts(again)))
    assert len(list((cache / "eeg_uci").iterdir())) == 1


def test_a_cache_that_cannot_be_written_only_warns(small: str, tmp_path: Path, cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.warns(DataWarning, match="parsed files cannot be kept .* each start parses them again") as caught:
        data = eeg_uci(seed=0, path=small)
    assert caught[0].filename == __file__
    assert sum(map(len, parts(data))) == 168


# ------------------------------------------------------------------------------------------------ download
@pytest.fixture
def server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[tuple[str, Path]]:
    """Address of a server on this host, and the folder it serves; with a parameter, to so many clients at once."""
    folder = tmp_path / "served"
    both = threading.Barrier(request.param, timeout=60) if hasattr(request, "param") else None
    folder.mkdir()
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            if both is not None:
                both.wait()
            super().do_GET()

        def end_headers(self) -> None:
            if "cut" in self.path:  # promise more than there is
                self._headers_buffer = [  # type: ignore[attr-defined,has-type]
                    b"Content-Length: 999\r\n" if line.startswith(b"Content-Length") else line
                    for line in self._headers_buffer  # type: ignore[has-type]
                ]
            super().end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder))) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        monkeypatch.setattr("fne.data.eeg.uci_files.ARCHIVES", f"http://127.0.0.1:{http.server_port}")
        yield f"http://127.0.0.1:{http.server_port}", folder
        http.shutdown()
        thread.join(10)


@pytest.mark.network
def test_download_is_whole_or_nothing(server: tuple[str, Path], tmp_path: Path) -> None:
    url, folder = server
    (folder / "file").write_bytes(b"abc")
    (folder / "cut").write_bytes(b"abc")
    known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, of "abc"
    target = tmp_path / "new" / "target"
    for name, sha256, message in (
        ("nothing", None, "nothing: the download into .* failed .*404.*set data.path"),
        ("cut", None, "cut: 3 of 999 bytes arrived"),
        ("file", "0" * 64, f"file: not the known file: its SHA-256 is {known}, expected was {'0' * 64}"),
    ):
        with pytest.raises(DataError, match=message):
            download(f"{url}/{name}", target, sha256=sha256, timeout=10)
        assert list(target.iterdir()) == []
    assert download(f"{url}/file", target, sha256=known).read_bytes() == b"abc"
    assert [path.name for path in target.iterdir()] == ["file"]


@pytest.mark.network
def test_download_without_a_server(server: tuple[str, Path], tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as http:
        port = http.server_port  # free again, and nobody listens, after this block
    with pytest.raises(DataError, match=rf"http://127.0.0.1:{port}/x: the download .* failed"):
        download(f"http://127.0.0.1:{port}/x", tmp_path, timeout=10)


def pack(source: Path, target: Path, *, nested: bool) -> None:
    """Write an archive like UCI's, with members that must not be followed."""
    with tarfile.open(target, "w:gz") as archive:
        for folder in sorted(source.iterdir()):
            if not nested:
                archive.add(folder, f"{source.name}/{folder.name}")
                continue
            inner = io.BytesIO()
            with tarfile.open(fileobj=inner, mode="w:gz") as within:
                within.add(folder, folder.name)
            member = tarfile.TarInfo(f"{source.name}/{folder.name}.tar.gz")
            member.size = len(inner.getvalue())
            archive.addfile(member, io.BytesIO(inner.getvalue()))
        for name in ("README", "../outside.txt", "/outside.txt"):
            archive.addfile(tarfile.TarInfo(name))
        link = tarfile.TarInfo(f"{source.name}/{SUBJECT}/{SUBJECT}.rd.999")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        archive.addfile(link)


@pytest.mark.network
@pytest.mark.parametrize("nested", [False, True])
def test_missing_sets_are_fetched_into_the_cache(
    small: str, server: tuple[str, Path], cache: Path, monkeypatch: pytest.MonkeyPatch, nested: bool
) -> None:
    sets = ("SMNI_CMI_TEST", "SMNI_CMI_TRAIN")
    for name in sets:
        pack(Path(small) / name, server[1] / f"{name}.tar.gz", nested=nested)

    with pytest.raises(DataError, match="eeg_uci: not found"):
        eeg_uci(seed=0)
    train = Path(small) / "SMNI_CMI_TRAIN"
    right = digest(parse_all(train, find(train)))
    with pytest.raises(DataError, match=f"not the known SMNI_CMI_TRAIN: .* is {right}, .* {TRAIN_CONTENT}"):
        eeg_uci(seed=0, download=True)
    assert list((cache / "eeg_uci").iterdir()) == []

    monkeypatch.setattr("fne.data.eeg.uci_files.TRAIN_CONTENT", right)
    fetched, given = eeg_uci(seed=0, download=True), eeg_uci(seed=0, path=small)
    assert torch.equal(fetched.train.x, given.train.x)
    assert find(cache) == [cache / "eeg_uci" / path.relative_to(small) for path in find(Path(small))]
    assert {p.name for p in (cache / "eeg_uci").iterdir() if p.is_dir()} == set(sets)
    assert not list(cache.parent.rglob("outside.txt"))

    for name in sets:  # nothing is fetched that is there
        (server[1] / f"{name}.tar.gz").unlink()
    assert torch.equal(eeg_uci(seed=0, download=True).train.x, given.train.x)
    shutil.rmtree(cache / "eeg_uci" / "SMNI_CMI_TEST")
    with pytest.raises(DataError, match=r"SMNI_CMI_TEST.tar.gz: the download"):
        eeg_uci(seed=0, download=True)


@pytest.mark.network
@pytest.mark.parametrize("server", [2], indirect=True)
def test_two_downloads_at_once(small: str, server: tuple[str, Path], cache: Path) -> None:
    """Both are served at the same time and unpack; the slower one takes what the faster one has put there."""
    pack(Path(small) / SETS["test"], server[1] / f"{SETS['test']}.tar.gz", nested=False)
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(fetch_set, SETS["test"], cache / "eeg_uci") for _ in range(2)]:
            done.result(60)
    assert [path.name for path in (cache / "eeg_uci").iterdir()] == [SETS["test"]]
    assert len(find(cache)) == len(find(Path(small) / SETS["test"]))


def member(name: str, content: bytes) -> tuple[tarfile.TarInfo, io.BytesIO]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    return info, io.BytesIO(content)


def archive(*members: tuple[tarfile.TarInfo, io.BytesIO]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as file:
        for info, content in members:
            file.addfile(info, content)
    return buffer.getvalue()


def header_alone(name: str, size: int) -> bytes:
    """Return an archive that promises `size` bytes and ends."""
    info = tarfile.TarInfo(name)
    info.size = size
    return gzip.compress(info.tobuf())


def long_names(number: int) -> bytes:
    """Return an archive of nothing but announcements of a long name."""
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 1
    return gzip.compress((info.tobuf(tarfile.GNU_FORMAT) + b"x".ljust(512, b"\0")) * number)


NESTED = f"{SUBJECT}.tar.gz"
FILE = f"{SUBJECT}.rd.000"


@pytest.mark.network
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<html>sorry</html>", "cannot be unpacked into"),
        (header_alone(FILE, FILE_LIMIT + 1), f"gz: {FILE} has 16777217 bytes, at most 16777216 are read; nothing was"),
        (header_alone(FILE, FILE_LIMIT), "cannot be unpacked into"),
        (
            header_alone(NESTED, SUBJECT_LIMIT + 1),
            f"gz: {NESTED} has 268435457 bytes, at most 268435456 are read; nothing",
        ),
        (
            archive(member(NESTED, header_alone(FILE, FILE_LIMIT + 1))),
            f"gz, {NESTED} in it: {FILE} has 16777217 bytes",
        ),
        (
            archive(member(NESTED, archive(member(NESTED, archive(member(FILE, GOOD.encode())))))),
            f"gz, {NESTED} in it: {NESTED} is an archive in an archive in an archive; nothing was kept",
        ),
        (long_names(3000), "cannot be unpacked into"),
    ],
    ids=[
        "a page",
        "a long file",
        "nothing of a file",
        "a long subject",
        "a long file within",
        "too deep",
        "long names",
    ],
)
def test_a_download_that_is_no_archive_of_recordings(
    server: tuple[str, Path], cache: Path, content: bytes, message: str
) -> None:
    (server[1] / "SMNI_CMI_TRAIN.tar.gz").write_bytes(content)
    with pytest.raises(DataError, match=rf"SMNI_CMI_TRAIN.tar.{message if message[:2] == 'gz' else 'gz: ' + message}"):
        eeg_uci(seed=0, download=True)
    assert list((cache / "eeg_uci").iterdir()) == []


# ------------------------------------------------------------------------------------------------ the real ones
@needs_data
def test_the_real_recordings() -> None:
    data = eeg_uci(seed=0, standardise="none")
    assert data.shape == (64, 256)
    assert data.source == "UCI EEG Database (doi 10.24432/C5TS3D, CC BY 4.0), 1056 trials of 20 subjects"
    assert_disjoint(data, 1056)
    assert Counter(y for part in parts(data) for y in part.y.tolist()) == {1: 533, 0: 523}
    number = Counter(f"{name[3]}{int(name[4:])}" for part in parts(data) for name in names(data, part))
    expected = dict.fromkeys(
        ["a364", "a369", "a370", "a371", "a372", "a375", "c338", "c341", "c342", "c344", "c345"], 60
    )
    expected |= {"a365": 59, "c339": 59, "c337": 55, "a368": 54, "c340": 49}
    assert number == expected | dict.fromkeys(["a377", "a378", "c346", "c347"], 30)
    assert max(float(part.x.abs().max()) for part in parts(data)) == pytest.approx(454, abs=1)


@needs_data
def test_a_real_file_value_by_value() -> None:
    folder = Path(str(DATA)) / "eeg_uci"
    found = read_all(folder, find(folder))
    path = folder / "SMNI_CMI_TRAIN" / "co2a0000364" / "co2a0000364.rd.000.gz"
    lines = [line.split() for line in gzip.decompress(path.read_bytes()).decode().splitlines()]
    assert tuple(words[1] for words in lines if words[2:3] == ["chan"]) == CHANNELS
    values = np.array([float(words[3]) for words in lines if words[0] == "0"]).reshape(64, 256)
    assert (found.subject[0], found.trial[0], found.condition[0]) == ("co2a0000364", 0, "S1 obj")
    assert found.values[0, 0, 0] == np.float32(-8.921)
    assert np.array_equal(found.values[0], values.astype(np.float32))
    assert Counter(found.condition[found.origin == "train"].tolist()) == dict.fromkeys(CONDITIONS, 200)


@needs_data
def test_the_known_content_of_train() -> None:
    folder = Path(str(DATA)) / "eeg_uci"
    found = read_all(folder, find(folder))
    assert digest(found.take((found.origin == "train").nonzero()[0])) == TRAIN_CONTENT


@needs_data
def test_the_real_splits() -> None:
    tested: list[str] = []
    for fold in range(5):
        data = eeg_uci(seed=0, fold=fold)
        tested += set(names(data, data.test))
    assert len(tested) == len(set(tested)) == 20
    with pytest.warns(DataWarning, match="only recognises people"):
        data = eeg_uci(seed=0, split="uci")
    assert [len(part) for part in parts(data)] == [480, 120, 456]
