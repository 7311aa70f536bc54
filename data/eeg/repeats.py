"""Repeated windows: sketches to look for them, comparison of signals, and what is left when each is there once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fne.core.dataset import Action, Finding

_PLACES = 16
"""Number of values of a window, and of changes from sample to sample, in a sketch."""
_NEAR = 0.05
"""Largest distance of equal signals in standard deviations: more than formats, filters and resampling cause."""
_NEAR_CHANGES = 0.5
"""Largest distance of the changes of equal signals, which rounding disturbs more; unlike signals have 1.4."""
_ALIKE = 0.9
"""Least correlation of equal spectra: formats, filters and resampling leave 0.97; unlike signals have 0.5."""
_STRONG = 0.8
"""Quantile of a spectrum's lines at which stronger lines are limited."""
_CLIP = 7.4
"""Distance from the median, in median deviations, at which values are clipped: 5 standard deviations of noise."""
_SHORTEST = 8
"""Least number of samples of windows that are compared; shorter ones may look alike by chance."""


def standard(x: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return signals `[..., times]` centred and in standard deviations; a signal that does not vary is 0.

    Extreme values are clipped first, so that an artefact does not hide the rest of the signal.
    """
    x = x.astype(np.float64)
    middle = np.median(x, axis=-1, keepdims=True)
    reach = _CLIP * np.median(np.abs(x - middle), axis=-1, keepdims=True)
    reach[reach == 0] = np.inf  # constant for most of the time
    x = np.clip(x - middle, -reach, reach)
    x -= x.mean(axis=-1, keepdims=True)
    spread = x.std(axis=-1, keepdims=True)
    varies = spread > 4 * np.finfo(np.float32).eps * np.abs(middle)
    result: NDArray[np.float64] = np.divide(x, spread, out=np.zeros_like(x), where=varies)
    return result


def sketch(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a few values of each window `[n, channels, times]`, by which repeats are searched: float32 `[n, 32]`.

    A sketch has values of single channels, spread over channels and time, and changes from the sample before, all
    without the channel's offset and scale. So different offsets or units of channels, or one loud channel, do not
    matter. Windows that do not vary or are too short have NaN.
    """
    _, channels, times = x.shape
    result = np.full((len(x), 2 * _PLACES), np.nan, np.float32)
    if times < _SHORTEST:
        return result
    which = np.linspace(0, channels - 1, _PLACES).round().astype(int)
    order = 7 * np.arange(_PLACES) % _PLACES  # neighbouring channels are distant in time
    when = ((times - 1) * (order + 0.5) / _PLACES).astype(int)
    place = np.arange(_PLACES), when
    for number, window in enumerate(x):
        own = window[which]
        values, changes = standard(own)[place], standard(np.diff(own))[place]
        if values.any():
            result[number] = np.concatenate([values, _NEAR / _NEAR_CHANGES * changes])
    return result


def equal(one: NDArray[np.float32], other: NDArray[np.float32]) -> bool:
    """Return whether two windows `[channels, times]` have the same signals, up to offset and scale of each channel.

    The signals and their changes from sample to sample must agree: a drift or an artefact may make unlike signals
    nearly equal, but not their changes. Mains hum may make even the changes nearly equal, so the spectra must agree as
    well after strong lines are limited. Each channel that varies has the same weight.
    """
    for a, b, near in ((one, other, _NEAR), (np.diff(one), np.diff(other), _NEAR_CHANGES)):
        first, second = standard(a), standard(b)
        varies = first.any(axis=-1) | second.any(axis=-1)
        if not varies.any() or np.square(first - second)[varies].mean() > near**2:
            return False
    return _correlation(_limited(one), _limited(other)) > _ALIKE


def _limited(x: NDArray[np.float32]) -> NDArray[np.complex128]:
    """Return spectra of signals `[..., times]` without the constant, with strong lines limited to a common size."""
    lines = np.fft.rfft(standard(x) * np.hanning(x.shape[-1]), axis=-1)[..., 1:]
    size = np.abs(lines)
    most = np.quantile(size, _STRONG, axis=-1, keepdims=True)
    result: NDArray[np.complex128] = lines * np.divide(most, size, out=np.ones_like(size), where=size > most)
    return result


def _correlation(one: NDArray[np.complex128], other: NDArray[np.complex128]) -> float:
    """Return the mean correlation of spectra `[channels, lines]` over the channels that vary in both."""
    power = np.sqrt(np.square(np.abs(one)).sum(axis=-1) * np.square(np.abs(other)).sum(axis=-1))
    both = (one * other.conj()).real.sum(axis=-1)
    return float((both[power > 0] / power[power > 0]).mean()) if power.any() else 0.0


def unrepeated(
    names: Sequence[str],
    subjects: Sequence[str],
    file: Tensor,
    sketches: NDArray[np.float32],
    y: Tensor,
    window: Callable[[int], NDArray[np.float32]],
) -> tuple[Tensor, list[Finding]]:
    """Return the indices `[N']` of the windows to keep so that each occurs once, and findings about the others.

    Args:
        names: names of the files.
        subjects: subjects of the files.
        file: index of each window's file `[N]`.
        sketches: sketches of the windows `[N, 32]`; windows with similar sketches are compared.
        y: classes `[N]`; equal windows of two classes are all left out.
        window: function that returns the window of an index, `[channels, times]`.
    """
    first = _firsts(sketches, window)
    torn = {int(first[n]) for n in np.flatnonzero(y.numpy() != y.numpy()[first])}
    ambiguous = [n for n, head in enumerate(first.tolist()) if head in torn]
    repeats = [n for n in np.flatnonzero(first != np.arange(len(first))).tolist() if int(first[n]) not in torn]
    findings = []
    between = Counter((int(file[n]), int(file[first[n]])) for n in repeats)
    for (again, there), count in between.items():
        same = subjects[again] == subjects[there]
        found = f"{count} windows of {names[again]} have the values of windows of {names[there]}, and are left out"
        whose = "" if same else f"One is not of the subject that it says ({subjects[again]}, {subjects[there]}). "
        action: Action = "repaired" if same else "problem"
        remedy = f"{whose}Leave one of the files out by data.pattern"
        findings.append(Finding("repeated", found, "each window once", remedy, action))
    for number, count in Counter(int(file[n]) for n in ambiguous).items():
        found = f"{count} windows of {names[number]} occur with two classes, and are left out"
        remedy = "Look for events at the same time in data.labels, or the same recording twice with other labels"
        findings.append(Finding("two classes", found, "one class a window", remedy, "problem"))
    out = {*repeats, *ambiguous}
    return torch.tensor([n for n in range(len(first)) if n not in out], dtype=torch.int64), findings


def _firsts(sketches: NDArray[np.float32], window: Callable[[int], NDArray[np.float32]]) -> NDArray[np.int64]:
    """Return for each window the index of the first equal window, which most often is itself `[N]`."""
    from scipy.spatial import cKDTree

    first = np.arange(len(sketches))
    valid = np.flatnonzero(np.isfinite(sketches).all(axis=1))
    if not len(valid):
        return first
    pairs = cKDTree(sketches[valid]).query_pairs(_NEAR * (2 * _PLACES) ** 0.5, output_type="ndarray")
    similar: dict[int, set[int]] = {}
    for one, other in valid[np.sort(pairs, axis=1)].tolist():
        similar.setdefault(other, set()).add(one)
    for other in sorted(similar):
        heads = sorted({int(first[one]) for one in similar[other]})
        first[other] = next((head for head in heads if equal(window(head), window(other))), other)
    return first
