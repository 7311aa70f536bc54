"""Values of the UCI EEG recordings: which trials, standardised by what, and the real 1,056 trials."""

from __future__ import annotations

import gzip
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.signal
import torch

from fne.config.registry import catalogue, declared, load
from fne.core.dataset import Dataset
from fne.core.errors import DataError, DataWarning, SettingError
from fne.data.eeg.uci import NOT_SCALP, eeg_uci
from fne.data.eeg.uci_files import CHANNELS, CONDITIONS, TRAIN_CONTENT, digest, find, read_all
from tests.data.eeg.uci_parts import (
    LENGTH,
    SUBJECTS,
    Values,
    assert_disjoint,
    draw,
    fill,
    made,
    names,
    parts,
    rows,
    text,
    write,
)

pytestmark = pytest.mark.usefixtures("own_cache")
DATA = os.environ.get("FNE_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="FNE_DATA is not set: no EEG recordings")


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
