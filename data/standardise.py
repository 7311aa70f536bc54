"""Mean 0 and variance 1 per channel, by statistics that a learner may have: of training samples only."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_CHUNK = 128
"""Samples that are converted to float64 at a time."""


def standardise(parts: Sequence[Tensor], groups: Sequence[Tensor] | None = None) -> None:
    """Change recordings in place, by mean and deviation per channel of training samples.

    Args:
        parts: training, validation and test, each float32 `[N, channels, times]`.
        groups: each sample's subject by part, int64 `[N]`: statistics are of a subject's own training samples, and
            of one that has none of all its samples, never of a label. `None`: of all training samples.

    A channel that does not vary is only centred.
    """
    if groups is None:
        everything = [torch.arange(len(part)) for part in parts]
        _apply(parts, everything, _statistics(parts[:1], everything[:1]))
        return
    for group in sorted({number for of in groups for number in of.tolist()}):
        own = [(of == group).nonzero()[:, 0] for of in groups]
        reference = 1 if len(own[0]) else len(parts)
        _apply(parts, own, _statistics(parts[:reference], own[:reference]))


def standardise_each(x: Tensor) -> None:
    """Change recordings `[N, channels, times]` in place, each by its own mean and deviation per channel."""
    for start in range(0, len(x), _CHUNK):
        values = x[start : start + _CHUNK].double()
        deviation, mean = torch.std_mean(values, dim=2, correction=0, keepdim=True)
        x[start : start + _CHUNK] = (values - mean) / _divisor(deviation, mean)


def _statistics(parts: Sequence[Tensor], members: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return mean and divisor per channel, float32 `[channels, 1]`, of the named samples of each part."""
    total = torch.zeros(2, parts[0].shape[1], dtype=torch.float64)
    for part, index in zip(parts, members, strict=True):
        for some in torch.split(index, _CHUNK):
            values = part[some].double()
            total += torch.stack([values.sum((0, 2)), values.square().sum((0, 2))])
    mean, square = total / (sum(map(len, members)) * parts[0].shape[2])
    deviation = (square - mean.square()).clamp(min=0).sqrt()
    return mean.float()[:, None], _divisor(deviation, mean).float()[:, None]


def _divisor(deviation: Tensor, mean: Tensor) -> Tensor:
    # A channel that does not vary comes out as rounding error, and must not be divided by it.
    return torch.where(deviation > 1e-6 * mean.abs(), deviation, 1.0)


def _apply(parts: Sequence[Tensor], members: Sequence[Tensor], statistics: tuple[Tensor, Tensor]) -> None:
    mean, divisor = statistics
    for part, index in zip(parts, members, strict=True):
        for some in torch.split(index, _CHUNK):
            part[some] = (part[some] - mean) / divisor
