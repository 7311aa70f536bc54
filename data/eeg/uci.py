"""UCI EEG Database: one-second trials of alcoholic and control subjects who look at pictures (Begleiter, 1999).

Every trial of a subject has the same label, and subjects are easy to recognise. So the default split holds out whole
subjects.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fne.config.groups import SplitSeed
from fne.config.registry import Key, register
from fne.core.dataset import Dataset, Samples
from fne.core.errors import DataError, DataWarning, SettingError
from fne.core.randomness import generator
from fne.data import sources
from fne.data.eeg.uci_files import CHANNELS, SETS, Recordings, fetch_set, find, read_all
from fne.data.sources import check_dataset, dealt, locate, stratified_split, with_remedies
from fne.data.sources import standardise as standardised

CLASSES = ("control", "alcoholic")
NOT_SCALP = ("X", "Y", "nd")
_REMEDIES = (
    "set data.download=true: both archives of UCI are fetched into the cache folder",
    "unpack SMNI_CMI_TRAIN.tar.gz and SMNI_CMI_TEST.tar.gz of https://doi.org/10.24432/C5TS3D, or eeg_full.tar, "
    "and set data.path to a folder above the subjects' folders",
)
_FRACTION = 0.2
_CHUNK = 128
"""Number of trials that are converted to float64 at a time."""


@register("data", "eeg_uci")
def eeg_uci(
    *,
    seed: int,
    path: Annotated[str | None, Key("folder with the subjects' folders at any depth", path="file")] = None,
    download: Annotated[bool, Key("fetch missing files into the cache folder")] = False,
    recordings: Annotated[
        Literal["all", "train", "test"], Key("UCI's folders TRAIN and TEST as one pool, or one folder alone")
    ] = "all",
    split: Annotated[
        Literal["subject", "trial", "uci"],
        Key("subject: by whole subjects; trial: by trials of each subject; uci: TRAIN and TEST, which share subjects"),
    ] = "subject",
    split_seed: SplitSeed = 0,
    folds: Annotated[int, Key("split=subject: parts the subjects are dealt to", ge=3)] = 5,
    fold: Annotated[
        int | None, Key("split=subject: fold that is the test part, null: the first; the next fold is validation", ge=0)
    ] = None,
    validation: Annotated[
        float | None,
        Key("split=trial, uci: fraction of the server's own trials; null: 0.2 (of TRAIN for uci)", gt=0, lt=1),
    ] = None,
    test: Annotated[float | None, Key("split=trial: fraction of test trials; null: 0.2", gt=0, lt=1)] = None,
    shuffle_labels: Annotated[
        bool, Key("control for leaks: half of each class's subjects get the other label, so nothing is left to learn")
    ] = False,
    label_seed: Annotated[int, Key("seed by which shuffle_labels draws subjects", ge=0)] = 0,
    channels: Annotated[
        Literal["all", "scalp"], Key("all 64 channels, or those without X, Y (eyes) and nd (reference)")
    ] = "all",
    conditions: Annotated[
        tuple[Literal["S1 obj", "S2 match", "S2 nomatch"], ...],
        Key("conditions (what was shown) whose trials are used", min_length=1),
    ] = ("S1 obj", "S2 match", "S2 nomatch"),
    detrend: Annotated[
        Literal["none", "constant", "linear"],
        Key("subtract the mean or the line of least squares from each trial and channel"),
    ] = "none",
    standardise: Annotated[
        Literal["train", "subject", "none"],
        Key("mean 0, variance 1 per channel over the training part or each subject's own trials; none: microvolts"),
    ] = "train",
) -> Dataset:
    """Load the UCI EEG Database: `x` float32 `[N, channels, 256]` (one second at 256 Hz), groups are the subjects.

    `standardise=subject` uses the training trials of a subject, or all trials if the subject has no training trials,
    but never a label. A channel that does not vary is only centred. Byte-identical trials are kept once.

    Raises:
        DataError: files are missing, damaged or in another subject's folder, or there are too few subjects.
        SettingError: settings contradict each other, or there are more folds than a class has subjects.

    Warns:
        DataWarning: the split has the same subjects in training and test, files or trials were left out, or one of
            UCI's two folders is missing.
    """
    shares = _checked(path, download, split, recordings, folds, fold, validation, test, conditions)
    folder, everything = _load(path, download)
    kept = _selected(everything, folder, split, recordings, conditions)
    names, inverse = np.unique(kept.subject, return_inverse=True)
    groups = torch.from_numpy(inverse)
    true = torch.tensor([int(name[3] == "a") for name in names.tolist()])
    given = _shuffled(true, label_seed) if shuffle_labels else true

    draw = generator("eeg_uci", "split", split_seed)
    if split == "subject":
        fold = fold or 0
        part = _folds(given, true, folds, draw)[groups]
        of_test, of_validation = part == fold, part == (fold + 1) % folds
        index = [_where(part) for part in (~(of_test | of_validation), of_validation, of_test)]
        how = "subject-wise (whole subjects, stratified)"
    else:
        index, how = _within_subjects(kept, groups, *shares, split, draw)
        text = (
            f"eeg_uci: data.split={split} tests on the subjects of the training part; a model that only "
            "recognises people reaches such figures. Take data.split=subject for a claim about the disease"
        )
        warnings.warn(text, DataWarning, stacklevel=2)
    if shuffle_labels:
        how += ", labels shuffled between subjects"
    if split == standardise == "subject":
        how += ", held-out subjects standardised by themselves"

    x = _prepared(kept.values, channels, detrend)
    whole = Samples(x, given[groups], groups)
    parts = [whole.take(part) for part in index]
    if standardise != "none":
        standardised([part.x for part in parts], [groups[i] for i in index] if standardise == "subject" else None)
    source = f"UCI EEG Database (doi 10.24432/C5TS3D, CC BY 4.0), {len(kept)} trials of {len(names)} subjects"
    dataset = Dataset(
        "eeg_uci",
        parts[0],
        parts[1],
        parts[2],
        classes=CLASSES,
        split=how,
        source=source,
        group_names=tuple(names.tolist()),
        fold=None if fold is None else (fold, folds),
        rate=256.0,
    )
    return check_dataset(dataset)


def _checked(
    path: str | None, download: bool, split: str, recordings: str, folds: int, fold: int | None,
    validation: float | None, test: float | None, conditions: tuple[str, ...],
) -> tuple[float, float]:  # fmt: skip
    """Return the fractions of validation and test; refuse a setting that would have no effect or cannot work."""
    shares = (_FRACTION if validation is None else validation, _FRACTION if test is None else test)
    if path is not None and download:
        raise SettingError("data.download", True, "false beside data.path: downloads go to the cache folder")
    if not conditions:
        raise SettingError("data.conditions", [], "a list of at least one condition")
    if split == "uci" and recordings != "all":
        raise SettingError("data.recordings", recordings, "all with data.split=uci, which takes both folders")
    if split == "subject":
        if fold is not None and fold >= folds:
            raise SettingError("data.fold", fold, f"below data.folds = {folds}")
        for key, value in (("validation", validation), ("test", test)):
            if value is not None:
                raise SettingError(f"data.{key}", value, "null with data.split=subject, where data.folds decides")
    elif fold is not None:
        raise SettingError("data.fold", fold, f"null with data.split={split}, which has no folds")
    elif split == "uci" and test is not None:
        raise SettingError("data.test", test, "null with data.split=uci, where the TEST folder is the test part")
    elif split == "trial" and sum(shares) >= 1:
        raise SettingError("data.validation", shares[0], f"below {1 - shares[1]:.4g}, what data.test leaves")
    return shares


# ------------------------------------------------------------------------------------------------ trials
def _load(path: str | None, download: bool) -> tuple[Path, Recordings]:
    own = sources.cache_folder() / "eeg_uci"
    try:
        folder = locate("eeg_uci", ["eeg_uci/."], path, _REMEDIES)
        files = find(folder)
    except DataError:
        if not download:
            raise
        folder, files = own, []
    if download and (not files or folder == own):
        for name in SETS.values():
            if not (own / name).exists():
                fetch_set(name, own)
        folder, files = own, find(own)
    if not files:
        text = f"{folder}: no recordings such as co2a0000364/co2a0000364.rd.000.gz"
        raise DataError(with_remedies(text, _REMEDIES))
    return folder, read_all(folder, files)


def _selected(
    everything: Recordings, folder: Path, split: str, recordings: str, conditions: tuple[str, ...]
) -> Recordings:
    """Return the trials that the settings select, equal trials once; warn of trials and files that are left out."""
    for key, value, needed in (
        ("data.recordings", recordings, [recordings] if recordings != "all" else []),
        ("data.split", split, ["train", "test"] if split == "uci" else []),
    ):
        for name in needed:
            if not (everything.origin == name).any():
                instead = "all" if key == "data.recordings" else "subject or trial"
                raise SettingError(key, value, f"{instead}: there is no folder {SETS[name]} in {folder}")
    wanted = np.isin(everything.condition, conditions)
    if recordings != "all":
        wanted &= everything.origin == recordings
    index = wanted.nonzero()[0]
    if not len(index):
        raise DataError(f"{folder}: no trials of data.conditions {', '.join(conditions)}")
    first = np.sort(np.unique(everything.content[index], return_index=True)[1])
    notes = [
        f"{len(files)} {what} were left out, the first is {files[0]}"
        for files, what in ((everything.failed, "trials marked err"), (everything.empty, "empty files"))
        if len(files)
    ]
    if len(first) < len(index):
        notes.append(f"{len(index) - len(first)} trials that repeat another one byte for byte were left out")
    there = [name for name in SETS if (everything.origin == name).any()]
    if recordings == "all" and len(there) == 1:
        (other,) = set(SETS) - set(there)
        meant = f"data.recordings={there[0]} says that this is meant"
        notes.append(f"only {SETS[there[0]]} is there, no recording of {SETS[other]} was found; {meant}")
    if notes:
        warnings.warn(f"eeg_uci: {'; '.join(notes)}", DataWarning, stacklevel=3)
    if len(first) == len(everything):
        return everything
    return everything.take(index[first])


# ------------------------------------------------------------------------------------------------ subjects
def _shuffled(true: Tensor, seed: int) -> Tensor:
    """Return labels `[subjects]` of which half of each class are changed, so that they carry no information."""
    draw = generator("eeg_uci", "labels", seed)
    given = true.clone()
    for label in (0, 1):
        members = _where(true == label)
        if len(members) < 2:
            raise SettingError("data.shuffle_labels", True, f"false with fewer than two {CLASSES[label]} subjects")
        picked = torch.randperm(len(members), generator=draw)[: len(members) // 2]
        given[members[picked]] = 1 - label
    return given


def _folds(given: Tensor, true: Tensor, folds: int, draw: torch.Generator) -> Tensor:
    """Return each subject's fold `[subjects]`, from given and true labels `[subjects]`.

    Subjects are dealt out in turn, sorted by given label and then by true label. So folds differ by at most one subject
    in each given label and in each pair of labels, and every fold has both given labels.
    """
    counts = torch.bincount(given, minlength=len(CLASSES)).tolist()
    if min(counts) < 3:
        there = " and ".join(f"{count} labelled {name}" for count, name in zip(counts, CLASSES, strict=True))
        raise DataError(
            f"eeg_uci: the trials are of {len(given)} subjects, {there}. data.split=subject needs 3 of each at least, "
            "for training, validation and test: get recordings of more subjects, or set data.split=trial"
        )
    if folds > min(counts):
        allowed = f"at most {min(counts)}, the subjects of the smaller class: every fold needs both"
        raise SettingError("data.folds", folds, allowed)
    return dealt(2 * given + true, folds, draw)


def _within_subjects(
    kept: Recordings, groups: Tensor, validation: float, test: float, split: str, draw: torch.Generator
) -> tuple[list[Tensor], str]:
    """Return the indices of three parts that share their subjects, and the description of the split."""
    if split == "uci":
        pool = _where(torch.from_numpy(kept.origin == "train"))
        held_out = round(len(pool) * validation)
        drawn = stratified_split(groups[pool], [len(pool) - held_out, held_out], draw)
        index = [*(pool[part] for part in drawn), _where(torch.from_numpy(kept.origin == "test"))]
        return index, f"UCI folders (TRAIN, TEST; the same subjects, {_percent(validation)} % of TRAIN for validation)"
    sizes = [round(len(groups) * fraction) for fraction in (validation, test)]
    shares = "/".join(map(_percent, (1 - validation - test, validation, test)))
    index = stratified_split(groups, [len(groups) - sum(sizes), *sizes], draw)
    return index, f"trial-wise ({shares} within subjects, random)"


def _where(mask: Tensor) -> Tensor:
    return mask.nonzero()[:, 0]


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.4g}"


# ------------------------------------------------------------------------------------------------ values
def _prepared(values: NDArray[np.float32], channels: str, detrend: str) -> Tensor:
    """Return values in microvolts `[N, channels, T]`, which share memory with `values` if nothing is changed."""
    x = torch.from_numpy(values)
    if channels == "scalp":
        x = x[:, [number for number, name in enumerate(CHANNELS) if name not in NOT_SCALP]]
    if detrend == "none":
        return x
    time = torch.arange(x.shape[-1], dtype=torch.float64)
    time -= time.mean()
    out = torch.empty_like(x)
    for start in range(0, len(x), _CHUNK):
        level = x[start : start + _CHUNK].double()
        level -= level.mean(-1, keepdim=True)
        if detrend == "linear":
            level -= (level @ time / (time @ time))[..., None] * time
        out[start : start + _CHUNK] = level
    return out
