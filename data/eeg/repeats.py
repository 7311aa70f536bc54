"""Repeated windows: sketches to look for them, comparison of signals, and what is left when each is there once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fne.core.findings import Action, Finding

_PLACES = 16
"""Values of a window, and changes from sample to sample, that a sketch keeps."""
_NEAR = 0.05
"""Distance of equal signals, in standard deviations: above what formats, filters and resampling do."""
_NEAR_CHANGES = 0.5
"""Distance of their changes from sample to sample, which rounding disturbs more; of unlike signals it is 1.4."""
_ALIKE = 0.9
"""Least correlation of equal spectra, where formats, filters and resampling leave 0.97; of unlike signals it is 0.5."""
_STRONG = 0.8
"""Share of a spectrum's lines that are weaker than what each line counts at most."""
_CLIP = 7.4
"""Median deviations from the median, 5 standard deviations of noise, that a value counts at most."""
_SHORTEST = 8
"""Samples of a window, below which unlike ones may look alike."""


def standard(x: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return signals `[..., times]` without their offset and scale, in standard deviations; 0 if one does not vary.

    Extreme values are clipped first, so that an artefact does not hide all else.
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
    """Return some values of each window `[n, channels, times]` by which repeats are looked for: `[n, 32]`.

    These are values of single channels, which are spread over channels and time, and changes from the sample before,
    all without the channel's offset and scale. So unlike offsets or units of channels, or one loud channel, do not
    matter. NaN for windows that do not vary or are too short to tell.
    """
    _, channels, times = x.shape
    result = np.full((len(x), 2 * _PLACES), np.nan, np.float32)
    if times < _SHORTEST:
        return result
    which = np.linspace(0, channels - 1, _PLACES).round().astype(int)
    order = 7 * np.arange(_PLACES) % _PLACES  # so that neighbouring channels are apart in time
    when = ((times - 1) * (order + 0.5) / _PLACES).astype(int)
    place = np.arange(_PLACES), when
    for number, window in enumerate(x):
        own = window[which]
        values, changes = standard(own)[place], standard(np.diff(own))[place]
        if values.any():
            result[number] = np.concatenate([values, _NEAR / _NEAR_CHANGES * changes])
    return result


def equal(one: NDArray[np.float32], other: NDArray[np.float32]) -> bool:
    """Whether two windows `[channels, times]` hold the same signals, up to an offset and a scale of each channel.

    The signals and their changes from sample to sample must agree: a drift or an artefact may make unlike signals
    nearly equal, but not their changes. Mains hum may make even these nearly equal, so their spectra must agree, too,
    once strong lines are limited. Each channel that varies counts the same.
    """
    for a, b, near in ((one, other, _NEAR), (np.diff(one), np.diff(other), _NEAR_CHANGES)):
        first, second = standard(a), standard(b)
        varies = first.any(axis=-1) | second.any(axis=-1)
        if not varies.any() or np.square(first - second)[varies].mean() > near**2:
            return False
    return _correlation(_limited(one), _limited(other)) > _ALIKE


def _limited(x: NDArray[np.float32]) -> NDArray[np.complex128]:
    """Return spectra of signals `[..., times]`, the constant left out, in which no line is stronger than most are."""
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
    """Return which windows `[N']` are left when each is there once, and what was left out.

    Args:
        names, subjects: of the files.
        file: each window's file `[N]`.
        sketches: as `sketch` makes them `[N, 32]`; windows with similar ones are compared.
        y: classes `[N]`; equal windows of two classes are all left out.
        window: returns a window by its number, `[channels, times]`.
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
    """Return for each window the first one that is equal to it, most often itself `[N]`."""
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
