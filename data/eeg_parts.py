"""Windows of all files -> training, validation and test part: whole subjects, sessions or runs apart, or trials."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fne.data.eeg_checks import some
from fne.data.eeg_recording import Source
from fne.data.sources import dealt, stratified_split
from fne.errors import DataError, SettingError
from fne.findings import Action, Finding
from fne.randomness import generator
from fne.types import Samples

_FRACTION = 0.2


@dataclass(frozen=True)
class Split:
    """How windows are divided; the settings of `eeg_files` by their names."""

    split: str
    split_seed: int
    folds: int | None
    fold: int | None
    validation: float | None
    test: float | None
    groups: str

    def check(self) -> None:
        """Raise `SettingError` for a setting that would be ignored or cannot work."""
        if self.split == "trial":
            for key in ("fold", "folds"):
                if getattr(self, key) is not None:
                    raise SettingError(f"data.{key}", getattr(self, key), "null with data.split=trial, without folds")
            validation, test = self.fractions
            if validation + test >= 1:
                raise SettingError("data.validation", validation, f"below {1 - test:.4g}, what data.test leaves")
        elif self.test is not None:
            raise SettingError("data.test", self.test, f"null with data.split={self.split}, where data.folds decides")
        if self.folds is not None and self.fold is not None and self.fold >= self.folds:
            raise SettingError("data.fold", self.fold, f"below data.folds = {self.folds}")

    @property
    def fractions(self) -> tuple[float, float]:
        """Validation and test of `split=trial`."""
        return (
            _FRACTION if self.validation is None else self.validation,
            _FRACTION if self.test is None else self.test,
        )


@dataclass(frozen=True)
class Recorded:
    """One file's windows.

    Args:
        source: the file.
        y: their classes `[n]`.
        content: a digest of each.
        overlap: whether some of them share values.
        values: opens them, `[n, channels, times]`.
    """

    source: Source
    y: NDArray[np.int64]
    content: Sequence[bytes]
    overlap: bool
    values: Callable[[], NDArray[np.float32]]


@dataclass(frozen=True)
class Parts:
    """Training, validation and test windows, those of a group side by side, and how they were divided."""

    samples: tuple[Samples, Samples, Samples]
    group_names: tuple[str, ...]
    how: str
    fold: tuple[int, int] | None
    findings: tuple[Finding, ...]


def divide(files: Sequence[Recorded], classes: Sequence[str], split: Split) -> Parts:
    """Divide the windows of all files.

    Args:
        files: in order; their values are opened one file at a time, and copied once.
        classes: class names.
        split: how.

    Raises:
        DataError: too few subjects, sessions or runs.
        SettingError: a fold that there is not, or groups that the files do not name.
    """
    file = torch.repeat_interleave(torch.arange(len(files)), torch.tensor([len(one.y) for one in files]))
    y = torch.from_numpy(np.concatenate([one.y for one in files]))
    group_names, group = _numbered([_group(one.source, split.groups) for one in files])
    people, person = _numbered([one.source.subject for one in files])
    group, person = group[file], person[file]
    kept, findings = _first_ones(files, file)
    findings += _one_class(people, person[kept], y[kept], classes)

    draw = generator("eeg_files", "split", split.split_seed)
    strata = person * len(classes) + y
    fold = None
    if split.split == "trial":
        validation, test = split.fractions
        sizes = [round(len(kept) * fraction) for fraction in (validation, test)]
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
    findings += _leaks(files, file, index, split)
    # Side by side by group, so that a node's training windows are a view.
    order = [part[group[part].argsort(stable=True)] for part in (i.sort().values for i in index)]
    samples = [Samples(_gathered(files, file, part), y[part], group[part]) for part in order]
    return Parts((samples[0], samples[1], samples[2]), group_names, how, fold, tuple(findings))


# ------------------------------------------------------------------------------------------------ who belongs where
def _numbered(names: Sequence[str]) -> tuple[tuple[str, ...], Tensor]:
    known, inverse = np.unique(np.array(names, dtype=str), return_inverse=True)
    return tuple(known.tolist()), torch.from_numpy(inverse)


def _named(source: Source, what: str, key: str, instead: str) -> str:
    """Return a file's session, run or site; raise `SettingError` where nothing says which it is."""
    name = str(getattr(source, what))
    if not name:
        hint = f"nothing says the {what} of {source.name}, unless data.subject does by (?P<{what}>...)"
        raise SettingError(key, what, f"{instead}: {hint}")
    return name


def _group(source: Source, groups: str) -> str:
    """Return what a file's windows are together with on a node."""
    if groups == "subject":
        return source.subject
    name = _named(source, groups, "data.groups", "subject")
    return name if groups == "site" else f"{source.subject}-{name}"


def _deal_people(
    people: Sequence[str], person: Tensor, y: Tensor, split: Split, draw: torch.Generator
) -> tuple[Tensor, int]:
    """Return each window's fold `[N]`, whole subjects dealt out at random, and the number of folds."""
    folds = split.folds or len(people)
    needed = 3 if split.validation is None else 2
    if not needed <= folds <= len(people):
        raise DataError(
            f"eeg_files: data.split=subject with data.folds = {split.folds or 'null'}, but there are {len(people)} "
            f"subjects ({some(people)}): it needs {needed} folds at least, and a subject for each; set data: "
            "{folds: null} for one subject a fold, or data: {split: run} for runs of the same subjects"
        )
    most = torch.stack([y[person == number].mode().values for number in range(len(people))])
    return dealt(most, folds, draw)[person], folds


def _in_turn(files: Sequence[Recorded], split: Split) -> tuple[Tensor, int]:
    """Return each file's fold: its session or run, counted within its subject, and the number of folds.

    Counted, because sessions and runs have names of their own with each subject: fold 0 has everybody's first.
    """
    names = [_named(one.source, split.split, "data.split", "subject or trial") for one in files]
    own: dict[str, list[str]] = {}
    for one, name in zip(files, names, strict=True):
        own.setdefault(one.source.subject, []).append(name)
    ranks = {subject: sorted(set(mine)) for subject, mine in own.items()}
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


def _by_fold(
    kept: Tensor, of: Tensor, fold: tuple[int, int], strata: Tensor, split: Split, draw: torch.Generator
) -> tuple[list[Tensor], str]:
    """Return the three parts for a test fold, and what to call that."""
    number, folds = fold
    tested, rest = kept[of == number], kept[of != number]
    whole = {"subject": "whole subjects", "session": "whole sessions of the same subjects"}
    how = f"{split.split}-wise ({whole.get(split.split, 'whole runs of the same subjects')}"
    if split.validation is None:
        held_out = of == (number + 1) % folds
        return [kept[(of != number) & ~held_out], kept[held_out], tested], how + ")"
    size = round(len(rest) * split.validation)
    parts = stratified_split(strata[rest], [len(rest) - size, size], draw)
    return [*(rest[part] for part in parts), tested], f"{how}; {100 * split.validation:.4g} % of the rest validate)"


# ------------------------------------------------------------------------------------------------ what is found
def _first_ones(files: Sequence[Recorded], file: Tensor) -> tuple[Tensor, list[Finding]]:
    """Return the windows `[N']` without those that repeat another one, and which files repeat which."""
    first: dict[bytes, int] = {}
    repeated: dict[tuple[int, int], int] = {}
    kept = []
    for number, digest in enumerate(digest for one in files for digest in one.content):
        if first.setdefault(digest, number) == number:
            kept.append(number)
        else:
            pair = (int(file[number]), int(file[first[digest]]))
            repeated[pair] = repeated.get(pair, 0) + 1
    findings = []
    for (again, there), count in repeated.items():
        one, other = files[again].source, files[there].source
        found = f"{count} windows of {one.name} are byte for byte those of {other.name}, and are left out"
        remedy = "Leave one of the files out by data.pattern"
        if one.subject != other.subject:
            remedy = f"One of them is not of the subject that it says ({one.subject}, {other.subject}). {remedy}"
        action: Action = "repaired" if one.subject == other.subject else "problem"
        findings.append(Finding("repeated", found, "each window once", remedy, action))
    return torch.tensor(kept), findings


def _one_class(people: Sequence[str], person: Tensor, y: Tensor, classes: Sequence[str]) -> list[Finding]:
    """Name the subjects with one class only, unless every subject has (then the class is the subject's)."""
    only = [int(n) for n in range(len(people)) if len(np.unique(y[person == n].numpy())) == 1]
    if not only or len(only) == len(people) > 1:
        return []
    names = some([f"{people[n]} ({classes[int(y[person == n][0])]})" for n in only])
    return [
        Finding(
            "one class",
            f"{len(only)} of {len(people)} subjects have windows of one class only: {names}",
            f"windows of {' and '.join(classes)} of each subject",
            "Look at these recordings' events, or leave them out by data.pattern",
            "problem",
        )
    ]


def _leaks(files: Sequence[Recorded], file: Tensor, index: Sequence[Tensor], split: Split) -> list[Finding]:
    """Name what training and test share."""
    findings = []
    trained, tested = ({files[f].source.subject for f in file[part].tolist()} for part in (index[0], index[2]))
    shared = sorted(trained & tested)
    if shared:
        findings.append(
            Finding(
                "subjects on both sides",
                f"data.split={split.split} has {len(shared)} subjects in training and test ({some(shared)})",
                "other subjects in the test part, for a claim about new people",
                "Set data: {split: subject}",
                "noted",
            )
        )
    overlapping = [one.source.name for one in files if one.overlap]
    if overlapping and split.split == "trial":
        findings.append(
            Finding(
                "overlap",
                f"windows of {len(overlapping)} files share values, the first is {overlapping[0]}, and are dealt at "
                "random to training and test",
                "no value in both",
                "Set data.step to data.length, a shorter tmin to tmax, or data: {split: run}",
                "problem",
            )
        )
    return findings


def _gathered(files: Sequence[Recorded], file: Tensor, index: Tensor) -> Tensor:
    """Return the windows at `index`, each copied once from where it lies."""
    starts = torch.searchsorted(file, torch.arange(len(files)))
    out: NDArray[np.float32] | None = None
    of = file[index]
    for number in np.unique(of.numpy()).tolist():
        values = files[number].values()
        if out is None:
            out = np.empty((len(index), *values.shape[1:]), np.float32)
        rows = (of == number).nonzero()[:, 0]
        out[rows.numpy()] = values[(index[rows] - starts[number]).numpy()]
    if out is None:  # a part of nothing: the command tells which
        out = np.empty((0, *files[0].values().shape[1:]), np.float32)
    return torch.from_numpy(out)
