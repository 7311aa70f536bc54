"""Fitness shaping: ranks, signs and weights from fitness, and weighted sums of perturbations.

Tied candidates get the same rank and weight, so that results do not depend on the order of candidates; where one bit
must decide, the caller draws it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fne.evolution.operators import order


# ------------------------------------------------------------------------------------------------ the nodes' answers
def ranks(fitness: Tensor) -> Tensor:
    """Return twice the rank of each candidate of `fitness [P]`, int64 `[P]` from 0 (best, lowest) to 2 P - 2.

    Ties get the mean of their places; doubled, the mean is a whole number.
    """
    ranked = fitness.sort().values
    better = torch.searchsorted(ranked, fitness)
    return better + torch.searchsorted(ranked, fitness, right=True) - 1


def small_ranks(fitness: Tensor) -> Tensor:
    """Return `ranks(fitness)` in the smallest integers that hold them."""
    return small(ranks(fitness), 2 * len(fitness) - 2)


def small(whole: Tensor, largest: int) -> Tensor:
    """Return non-negative integers in the smallest type that holds `largest`."""
    return whole.to(torch.uint8 if largest < 2**8 else torch.int16 if largest < 2**15 else torch.int32)


_LEVELS, _NONE = 254, 255


def levels(losses: Tensor) -> tuple[Tensor, Tensor]:
    """Return losses, float `[P]`, as levels uint8 `[P]` and the least and the largest loss, float32 `[2]`.

    A level is the nearest of 255 evenly spaced ones; 255 marks a non-finite loss. At least one loss must be finite.
    """
    finite = torch.isfinite(losses)
    low, high = losses[finite].min().double(), losses[finite].max().double()
    scaled = ((losses.double() - low) / (high - low).clamp_min(1e-300) * _LEVELS).round()
    return torch.where(finite, scaled, _NONE).to(torch.uint8), torch.stack([low, high]).float()


def losses_of(levels: Tensor, ends: Tensor) -> Tensor:
    """Return the losses, float64 `[P]`, behind `levels`, within half a level; +inf for non-finite losses."""
    low, high = ends.double()
    return torch.where(levels == _NONE, torch.inf, low + levels.double() / _LEVELS * (high - low))


def pair_signs(fitness: Tensor, ties: Tensor) -> Tensor:
    """Return whether the first of each pair (i, i + P/2) of `fitness [P]` is the better one, bool `[P/2]`.

    Args:
        fitness: minimised; P is even.
        ties: answers for pairs of equal fitness, bool `[P/2]`; each node draws its own, so that ties of many nodes
            cancel out instead of adding up.
    """
    first, second = fitness.chunk(2)
    return torch.where(first == second, ties, first < second)


def packed(bits: Tensor) -> Tensor:
    """Return bits, bool `[n]`, packed eight per byte, the first lowest: uint8 `[ceil(n / 8)]`."""
    padded = torch.nn.functional.pad(bits.to(torch.uint8), (0, -len(bits) % 8)).view(-1, 8)
    return (padded << torch.arange(8, dtype=torch.uint8)).sum(dim=1, dtype=torch.uint8)


def unpacked(data: Tensor, count: int) -> Tensor:
    """Return the first `count` of the bits in `data` from `packed`, bool `[count]`."""
    return ((data.unsqueeze(1) >> torch.arange(8, dtype=torch.uint8)) & 1).flatten()[:count].bool()


# ------------------------------------------------------------------------------------------------ weights
_COLUMNS = 2**12
_BITS = 26


def by_rank(weights: Tensor, fitness: Tensor) -> Tensor:
    """Return each individual's weight `[P]`, float64: `weights [P]` are best first, `fitness [P]` is minimised.

    Individuals of equal fitness, also of infinite fitness, get the mean of their places' weights.
    """
    ranked = order(fitness)
    _, place, count = torch.unique_consecutive(fitness[ranked], return_inverse=True, return_counts=True)
    total = torch.zeros(len(count), dtype=torch.float64).index_add_(0, place, weights.double())
    return torch.empty(len(fitness), dtype=torch.float64).index_copy_(0, ranked, (total / count)[place])


def centred_ranks(fitness: Tensor) -> Tensor:
    """Return weights `[P]` from 1/2 for the best down to -1/2 for the worst, evenly spaced (Salimans et al. 2017)."""
    return by_rank(torch.linspace(0.5, -0.5, len(fitness), dtype=torch.float64), fitness)


def utilities(fitness: Tensor) -> Tensor:
    """Return `max(0, ln(P/2 + 1) - ln k)` for rank k from 1, divided by their sum, minus 1/P (Schaul et al. 2011)."""
    count = len(fitness)
    raw = (math.log(count / 2 + 1) - torch.arange(1, count + 1, dtype=torch.float64).log()).clamp(min=0)
    return by_rank(raw / raw.sum() - 1 / count, fitness)


def weighted_sum(weights: Tensor, noise: Tensor, *, power: int = 1) -> Tensor:
    """Return `sum_i weights[i] * noise[i] ** power` over individuals, float64 `[D]`; the same bits in any order.

    Args:
        weights: float64 `[n]`; used as `rounded` returns them.
        noise: whole numbers int8 `[n, D]`, as returned by `Stream.noise`.
        power: 1 or 2.
    """
    short = rounded(weights)
    result = torch.empty(noise.shape[1], dtype=torch.float64)
    for left in range(0, len(result), _COLUMNS):  # float64 takes eight times the memory of int8
        part = noise[:, left : left + _COLUMNS].double()
        result[left : left + _COLUMNS] = short @ (part if power == 1 else part.square())
    return result


def rounded(weights: Tensor) -> Tensor:
    """Return weights `[n]`, float64, rounded to 26 bits below the largest.

    Multiplied by whole numbers of 11 bits, every term and every sum of 2**15 terms is a multiple of one power of two,
    which float64 holds exactly, whichever library adds the terms up, fused or not.
    """
    scale = 2.0 ** min(_BITS - math.frexp(float(weights.abs().max()))[1], 1000)
    return (weights * scale).round() / scale
