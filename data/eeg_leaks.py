"""What windows of all files share that they should not: values, subjects, or a class that is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fne.data.eeg_checks import some
from fne.findings import Action, Finding

_PLACES = 16
"""Values of a window that a sketch keeps."""
_NEAR = 0.05
"""How far these may be apart in two sketches, in standard deviations: above what formats, filters and resampling do."""


def sketch(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return some values of each window, spread over channels and time, in its standard deviations: `[n, 16]`.

    So that a recording is known again in another format, another unit, or as an excerpt of a longer one, which differ
    by rounding and by what filters do at the ends. Of a window that does not vary: NaN.
    """
    flat = x.reshape(len(x), -1)
    places = np.linspace(0, flat.shape[1] - 1, _PLACES + 2)[1:-1].round().astype(int)
    spread = flat.std(axis=1, keepdims=True)
    result: NDArray[np.float32] = np.divide(
        flat[:, places], spread, out=np.full((len(x), _PLACES), np.nan, np.float32), where=spread > 0
    )
    return result


def unrepeated(
    names: Sequence[str], subjects: Sequence[str], file: Tensor, sketches: NDArray[np.float32], y: Tensor
) -> tuple[Tensor, list[Finding]]:
    """Return which windows `[N']` are left when each is there once, and what was left out.

    Args:
        names, subjects: of the files.
        file: each window's file `[N]`.
        sketches: as `sketch` makes them `[N, 16]`.
        y: classes `[N]`; equal windows of two classes are left out all.
    """
    from scipy.spatial import cKDTree

    valid = np.flatnonzero(np.isfinite(sketches).all(axis=1))
    pairs = cKDTree(sketches[valid]).query_pairs(_NEAR * _PLACES**0.5, output_type="ndarray") if len(valid) else []
    first = np.arange(len(sketches))
    for one, other in sorted(valid[np.sort(pair)].tolist() for pair in pairs):
        first[other] = min(first[other], first[one])
    torn = {int(first[n]) for n in np.flatnonzero(y.numpy() != y.numpy()[first])}
    repeats = [n for n in np.flatnonzero(first != np.arange(len(first))).tolist() if int(first[n]) not in torn]
    out = {*repeats, *(n for n, head in enumerate(first.tolist()) if head in torn)}
    findings = []
    between = Counter((int(file[n]), int(file[first[n]])) for n in repeats)
    for (again, there), count in between.items():
        same = subjects[again] == subjects[there]
        found = f"{count} windows of {names[again]} have the values of windows of {names[there]}, and are left out"
        whose = "" if same else f"One is not of the subject that it says ({subjects[again]}, {subjects[there]}). "
        action: Action = "repaired" if same else "problem"
        remedy = f"{whose}Leave one of the files out by data.pattern"
        findings.append(Finding("repeated", found, "each window once", remedy, action))
    for number, count in Counter(int(file[head]) for head in torn).items():
        found = f"{count} windows of {names[number]} have two classes each, and are left out"
        remedy = "Look for events at the same time in data.labels, or the same recording twice with other labels"
        findings.append(Finding("two classes", found, "one class a window", remedy, "problem"))
    return torch.tensor([n for n in range(len(first)) if n not in out], dtype=torch.int64), findings


def one_class(names: Sequence[str], group: Tensor, y: Tensor, classes: Sequence[str], what: str) -> list[Finding]:
    """Name the groups whose training windows are of one class, unless all are (then the class is theirs)."""
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
    """Name classes that training, or validation, has no window of; `parts`: classes of the three parts' windows."""
    counts = [np.bincount(part.numpy(), minlength=len(classes)) for part in parts]
    findings = []
    for title, own in (("training", counts[0]), ("validation", counts[1])):
        names = [name for name, count in zip(classes, own, strict=True) if not count]
        if names and own.sum():
            why = "nothing tells it" if title == "training" else "the model that never says it is the best there"
            found = f"the {title} part has no window of class {some(names)}: {why}"
            remedy = "Set other data.folds (fewer, so that a fold has subjects of each class), or another data.fold"
            findings.append(Finding("class", found, "windows of each class", remedy, "problem"))
    return findings


def shared(
    split: str, trained: set[str], tested: set[str], everybody: int, overlapping: Sequence[str], *, mixed: bool
) -> list[Finding]:
    """Name what is on both sides of the split.

    Args:
        split: its name.
        trained, tested: subjects of these parts.
        everybody: how many subjects there are.
        overlapping: files whose windows share values with each other.
        mixed: whether windows of one file are dealt to several parts.
    """
    findings = []
    both = sorted(trained & tested)
    if both:
        remedy = "Set data: {split: subject}" if everybody > 2 else "Get recordings of more people"
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
