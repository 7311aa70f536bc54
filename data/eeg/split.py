"""Split of the windows of all files into training, validation and test part: by subject, session, run or trial."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fne.core.dataset import Finding, Samples
from fne.core.errors import DataError, SettingError
from fne.core.randomness import generator
from fne.data.eeg.quality import some
from fne.data.eeg.recording import Source
from fne.data.eeg.repeats import unrepeated
from fne.data.sources import dealt, stratified_split

_FRACTION = 0.2
"""Fraction of the validation and of the test part where the settings name none."""


@dataclass(frozen=True)
class Split:
    """Settings of `eeg_files` that decide how windows are divided."""

    split: str
    split_seed: int
    folds: int | None
    fold: int | None
    validation: float | None
    test: float | None
    groups: str
    shuffle_labels: bool
    label_seed: int

    def check(self) -> None:
        """Raise `SettingError` for a setting that would have no effect or cannot work."""
        if self.split == "trial":
            for key in ("fold", "folds"):
                if getattr(self, key) is not None:
                    raise SettingError(
                        f"data.{key}", getattr(self, key), "null with data.split=trial, which has no folds"
                    )
            validation, test = self.fractions
            if validation + test >= 1:
                raise SettingError("data.validation", validation, f"below {1 - test:.4g}, what data.test leaves")
        elif self.test is not None:
            raise SettingError("data.test", self.test, f"null with data.split={self.split}, where data.folds decides")
        if self.folds is not None and self.fold is not None and self.fold >= self.folds:
            raise SettingError("data.fold", self.fold, f"below data.folds = {self.folds}")

    @property
    def fractions(self) -> tuple[float, float]:
        """Fractions of the validation and the test part with `split=trial`."""
        return (
            _FRACTION if self.validation is None else self.validation,
            _FRACTION if self.test is None else self.test,
        )


@dataclass(frozen=True)
class Recorded:
    """Windows of one file.

    Args:
        source: the file.
        y: classes of the windows `[n]`.
        sketch: sketches of the windows, see `fne.data.eeg.repeats` `[n, 32]`.
        overlap: whether some windows share values.
        values: function that opens the windows, `[n, channels, times]`.
    """

    source: Source
    y: NDArray[np.int64]
    sketch: NDArray[np.float32]
    overlap: bool
    values: Callable[[], NDArray[np.float32]]


@dataclass(frozen=True)
class Parts:
    """Training, validation and test windows, sorted by group, and a description of the split."""

    samples: tuple[Samples, Samples, Samples]
    group_names: tuple[str, ...]
    how: str
    fold: tuple[int, int] | None
    findings: tuple[Finding, ...]


def divide(files: Sequence[Recorded], classes: Sequence[str], split: Split) -> Parts:
    """Divide the windows of all files.

    Args:
        files: files in order; their values are opened one file at a time and copied once.
        classes: class names.
        split: settings of the split.

    Raises:
        DataError: there are too few subjects, sessions or runs.
        SettingError: the fold does not exist, or the files do not name the groups.
    """
    file = torch.repeat_interleave(torch.arange(len(files)), torch.tensor([len(one.y) for one in files]))
    y = torch.from_numpy(np.concatenate([one.y for one in files]))
    group_names, group = _numbered([_group(one.source, split.groups) for one in files])
    people, person = _numbered([one.source.subject for one in files])
    group, person = group[file], person[file]
    names, subjects = [one.source.name for one in files], [one.source.subject for one in files]
    sketches = np.concatenate([one.sketch for one in files])
    kept, findings = unrepeated(names, subjects, file, sketches, y, _opener(files, file))
    if split.shuffle_labels:
        y = _shuffled(y, person, generator("eeg_files", "labels", split.label_seed))

    draw = generator("eeg_files", "split", split.split_seed)
    strata = person * len(classes) + y
    fold = None
    if split.split == "trial":
        validation, test = split.fractions
        sizes = [_size("data." + key, share, len(kept)) for key, share in (("validation", validation), ("test", test))]
        index = [kept[i] for i in stratified_split(strata[kept], [len(kept) - sum(sizes), *sizes], draw)]
        shares = "/".join(f"{100 * share:.4g}" for share in (1 - validation - test, validation, test))
        how = f"trial-wise ({shares} within subjects, random)"
    else:
        if split.split == "subject":
            of, folds = _deal_people(people, person, y, split, draw)
        else:
            of, folds = _in_turn(files, split)
            of = of[file]
        fold = (split.fold or 0, folds)
        if fold[0] >= folds:
            raise SettingError("data.fold", split.fold, f"below {folds}, the number of folds there are")
        index, how = _by_fold(kept, of[kept], fold, strata, split, draw)
    if split.shuffle_labels:
        how += ", labels shuffled"
    train = index[0]
    findings += one_class(group_names, group[train], y[train], classes, split.groups)
    findings += lacking([y[part] for part in index], classes)
    trained, tested = ({subjects[f] for f in file[part].tolist()} for part in (train, index[2]))
    mixed = split.split == "trial" or split.validation is not None
    overlapping = [one.source.name for one in files if one.overlap]
    findings += shared(split.split, trained, tested, len(people), overlapping, mixed=mixed)
    # Sort by group, so that the training windows of a node are a view.
    order = [part[group[part].argsort(stable=True)] for part in (i.sort().values for i in index)]
    samples = [Samples(_gathered(files, file, part), y[part], group[part]) for part in order]
    return Parts((samples[0], samples[1], samples[2]), group_names, how, fold, tuple(findings))


# ------------------------------------------------------------------------------------------------ folds and groups
def _numbered(names: Sequence[str]) -> tuple[tuple[str, ...], Tensor]:
    known, inverse = np.unique(np.array(names, dtype=str), return_inverse=True)
    return tuple(known.tolist()), torch.from_numpy(inverse)


def _named(source: Source, what: str, key: str, instead: str) -> str:
    """Return the session, run (within its session) or site of a file.

    Raises:
        SettingError: the file's path does not name it.
    """
    name = str(getattr(source, what))
    if not name:
        hint = f"no path says the {what} of {source.name}; name it by a group (?P<{what}>...) in data.subject"
        raise SettingError(key, what, f"{instead}: {hint}")
    return f"{source.session}-{name}" if what == "run" and source.session else name


def _group(source: Source, groups: str) -> str:
    """Return the group of a file, whose windows share a node."""
    if groups == "subject":
        return source.subject
    name = _named(source, groups, "data.groups", "subject")
    return name if groups == "site" else f"{source.subject}-{name}"


def _in_order(name: str) -> list[tuple[int, str]]:
    """Return a key by which run 10 sorts after run 2."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _deal_people(
    people: Sequence[str], person: Tensor, y: Tensor, split: Split, draw: torch.Generator
) -> tuple[Tensor, int]:
    """Deal whole subjects to folds at random; return each window's fold `[N]` and the number of folds."""
    folds = split.folds or len(people)
    needed = 3 if split.validation is None else 2
    if not needed <= folds <= len(people):
        raise DataError(
            f"eeg_files: data.split=subject with data.folds = {split.folds or 'null'}, but there are {len(people)} "
            f"subjects ({some(people)}): it needs {needed} folds at least (2 with a fraction in "
            "data.validation), and a subject for each; set data.folds, or data: {split: run} for runs of one person"
        )
    most = torch.stack([y[person == number].mode().values for number in range(len(people))])
    return dealt(most, folds, draw)[person], folds


def _in_turn(files: Sequence[Recorded], split: Split) -> tuple[Tensor, int]:
    """Return each file's fold, which is the rank of its session or run within its subject, and the number of folds.

    The rank is used because each subject may name its sessions and runs differently: fold 0 has every subject's first.
    """
    names = [_named(one.source, split.split, "data.split", "subject or trial") for one in files]
    own: dict[str, list[str]] = {}
    for one, name in zip(files, names, strict=True):
        own.setdefault(one.source.subject, []).append(name)
    ranks = {subject: sorted(set(mine), key=_in_order) for subject, mine in own.items()}
    most = max(map(len, ranks.values()))
    folds = split.folds or most
    needed = 3 if split.validation is None else 2
    if not needed <= folds <= most:
        raise DataError(
            f"eeg_files: data.split={split.split} with data.folds = {split.folds or 'null'}, but no subject has more "
            f"than {most} {split.split}s: it needs {needed} folds at least (2 with a fraction in data.validation), and "
            f"a {split.split} for each; set data: {{folds: null}}, or data: {{split: trial}}"
        )
    each = [ranks[one.source.subject].index(name) % folds for one, name in zip(files, names, strict=True)]
    return torch.tensor(each), folds


def _size(key: str, share: float, total: int) -> int:
    """Return the number of windows that a fraction of `total` is; raise `SettingError` if that is none."""
    size = round(total * share)
    if not size:
        raise SettingError(key, share, f"larger: it selects none of {total} windows")
    return size


def _shuffled(y: Tensor, person: Tensor, draw: torch.Generator) -> Tensor:
    """Return shuffled labels `[N]`, from which nothing can be learned, as a control for leaks.

    Labels are shuffled among the windows of each subject or, if every subject has a single class, among subjects.
    """
    order = torch.randperm(len(y), generator=draw)
    members = [order[person[order] == number] for number in range(int(person.max()) + 1)]
    own = torch.stack([y[mine].mode().values for mine in members])
    if all(bool((y[mine] == label).all()) for mine, label in zip(members, own, strict=True)):
        return own[torch.randperm(len(own), generator=draw)][person]
    given = y.clone()
    for mine in members:
        given[mine.sort().values] = y[mine]
    return given


def _by_fold(
    kept: Tensor, of: Tensor, fold: tuple[int, int], strata: Tensor, split: Split, draw: torch.Generator
) -> tuple[list[Tensor], str]:
    """Return the indices of the three parts for a test fold, and the description of the split."""
    number, folds = fold
    tested, rest = kept[of == number], kept[of != number]
    whole = {"subject": "whole subjects", "session": "whole sessions of the same subjects"}
    how = f"{split.split}-wise ({whole.get(split.split, 'whole runs of the same subjects')}"
    if split.validation is None:
        held_out = of == (number + 1) % folds
        return [kept[(of != number) & ~held_out], kept[held_out], tested], how + ")"
    size = _size("data.validation", split.validation, len(rest))
    parts = stratified_split(strata[rest], [len(rest) - size, size], draw)
    return [*(rest[part] for part in parts), tested], f"{how}; {100 * split.validation:.4g} % of the rest validate)"


def _opener(files: Sequence[Recorded], file: Tensor) -> Callable[[int], NDArray[np.float32]]:
    """Return a function that opens the window of an index; `file` has the index of each window's file `[N]`."""
    starts = torch.searchsorted(file, torch.arange(len(files))).tolist()
    opened = lru_cache(maxsize=8)(lambda number: files[number].values())
    return lambda n: opened(number := int(file[n]))[n - starts[number]]


def _gathered(files: Sequence[Recorded], file: Tensor, index: Tensor) -> Tensor:
    """Return the windows at `index`, which is sorted by file within groups; each window is copied once."""
    starts = torch.searchsorted(file, torch.arange(len(files))).tolist()
    of = file[index].numpy()
    edges = np.flatnonzero(np.diff(of, prepend=-1, append=-1)).tolist()  # where the file changes
    shape = files[0].values().shape[1:]
    out = np.empty((len(index), *shape), np.float32)
    for begin, end in pairwise(edges):
        number = int(of[begin])
        rows, values = index[begin:end].numpy() - starts[number], files[number].values()
        if rows[-1] - rows[0] == len(rows) - 1:  # in most cases these are all windows of the file
            out[begin:end] = values[rows[0] : rows[-1] + 1]
        else:
            np.take(values, rows, axis=0, out=out[begin:end], mode="clip")  # other modes copy first
    return torch.from_numpy(out)


# ------------------------------------------------------------------------------------------------ checks
def one_class(names: Sequence[str], group: Tensor, y: Tensor, classes: Sequence[str], what: str) -> list[Finding]:
    """Report groups whose training windows have one class, unless that holds for all groups, as in a diagnosis."""
    there = np.unique(group.numpy()).tolist()
    only = {n: own[0] for n in there if len(own := np.unique(y[group == n].numpy())) == 1}
    if not only or len(only) == len(there) > 1:
        return []
    told = some([f"{names[n]} ({classes[label]})" for n, label in only.items()])
    return [
        Finding(
            "one class",
            f"{len(only)} of {len(there)} {what}s have training windows of one class only: {told}",
            f"windows of {' and '.join(classes)} of each {what}",
            "Look at these recordings' events, or leave them out by data.pattern",
            "problem",
        )
    ]


def lacking(parts: Sequence[Tensor], classes: Sequence[str]) -> list[Finding]:
    """Report classes without a training or validation window; `parts` has the classes of the three parts' windows."""
    counts = [np.bincount(part.numpy(), minlength=len(classes)) for part in parts]
    findings = []
    for title, own in (("training", counts[0]), ("validation", counts[1])):
        names = [name for name, count in zip(classes, own, strict=True) if not count]
        if names and own.sum():
            why = "no model can learn it" if title == "training" else "a model that never predicts it scores best there"
            found = f"the {title} part has no window of class {some(names)}: {why}"
            remedy = "Set other data.folds (fewer, so that a fold has subjects of each class), or another data.fold"
            findings.append(Finding("class", found, "windows of each class", remedy, "problem"))
    return findings


def shared(
    split: str, trained: set[str], tested: set[str], everybody: int, overlapping: Sequence[str], *, mixed: bool
) -> list[Finding]:
    """Report what training and test part share.

    Args:
        split: name of the split.
        trained: subjects of the training part.
        tested: subjects of the test part.
        everybody: number of subjects in all.
        overlapping: files with windows that share values with each other.
        mixed: whether windows of one file are dealt to several parts.
    """
    findings = []
    both = sorted(trained & tested)
    if both:
        remedy = "Set data: {split: subject}" if everybody > 2 else "Record more people"
        found = f"data.split={split} has {len(both)} of {everybody} subjects in training and test: {some(both)}"
        expected = "other people in the test part, for a claim about new ones"
        findings.append(Finding("subjects on both sides", found, expected, remedy, "noted"))
    if split in ("session", "run") and len(tested) < everybody:
        found = f"this fold tests {len(tested)} of {everybody} subjects: the others have fewer {split}s"
        remedy = f"Set data.folds to the {split}s that all subjects have"
        findings.append(Finding("few subjects", found, "all subjects in each fold", remedy, "noted"))
    if overlapping and mixed:
        found = (
            f"windows of {len(overlapping)} files share values, the first is {overlapping[0]}, and are dealt at random "
            "to the parts"
        )
        remedy = "Set data.step to data.length, a shorter tmin to tmax, or data: {split: run, validation: null}"
        findings.append(Finding("overlap", found, "no value in two parts", remedy, "problem"))
    return findings
