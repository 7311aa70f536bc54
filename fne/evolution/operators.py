"""Selection, crossover and mutation: pure functions on tensors.

Selection draws from a generator that the caller passes. Crossover and mutation receive their random numbers and work on
the children in place. Each of their operations is rounded once, in the same way on every device: a single float32
product or sum, never a multiply-add, which one device fuses and another does not.

Source: Szegedi, Kiss, Horváth, "Evolutionary federated learning on EEG-data" (FNE), section 4, eqs. (2) to (4);
operators beyond it say so.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fne.evolution.genome import Layout
from fne.evolution.philox import LARGEST_NOISE, UNIT


# ------------------------------------------------------------------------------------------------ selection
def order(fitness: Tensor) -> Tensor:
    """Return the indices `[P]` of `fitness [P]` from best (lowest) to worst; ties keep their place."""
    return torch.argsort(fitness, stable=True)


def sound(fitness: Tensor) -> Tensor:
    """Return the indices of the individuals with finite fitness, best first; only they become parents.

    The NaNs of an individual with infinite fitness would spread to every child. At least one fitness must be finite.
    """
    return order(fitness)[: int(torch.isfinite(fitness).sum())]


def paper_pool(fitness: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Return `size` parents, or all sound ones if fewer: the `size - 1` fittest and one other (FNE, "Selection")."""
    ranked = sound(fitness)
    size = min(size, len(ranked))
    rest = ranked[size - 1 :]
    pick = torch.randint(len(rest), (1,), generator=generator)
    return torch.cat([ranked[: size - 1], rest[pick]])


def pairs_from_pool(pool: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return two index tensors `[count]`: for each child two different parents, drawn uniformly from the pool."""
    n = len(pool)
    first = torch.randint(n, (count,), generator=generator)
    if n == 1:
        return pool[first], pool[first]
    second = torch.randint(n - 1, (count,), generator=generator)
    second = second + (second >= first)  # skips the first parent: all pairs of different parents are equally likely
    return pool[first], pool[second]


def tournament(fitness: Tensor, count: int, size: int, generator: torch.Generator) -> Tensor:
    """Return `count` winners of tournaments of `size`, drawn with replacement (Goldberg & Deb 1991)."""
    ranked = sound(fitness)
    entrants = torch.randint(len(ranked), (count, size), generator=generator)  # by rank: the lowest wins
    return ranked[entrants.min(dim=1).values]


# ------------------------------------------------------------------------------------------------ crossover
def halving(layout: Layout, child: Tensor, other: Tensor, coins: Tensor) -> None:
    """Take the second half of the genes from the other parent. Eq. (2)."""
    half = layout.size // 2
    child[:, half:] = other[:, half:]


def interleave(layout: Layout, child: Tensor, other: Tensor, coins: Tensor) -> None:
    """Take the genes at odd places, counted from 1, from the other parent. Eq. (3)."""
    child[:, ::2] = other[:, ::2]


def mean(layout: Layout, child: Tensor, other: Tensor, coins: Tensor) -> None:
    """Take the mean of both parents. Eq. (4). `torch.lerp` is a multiply-add, this is a sum and an exact halving."""
    child.add_(other).mul_(0.5)


def kernelwise(layout: Layout, child: Tensor, other: Tensor, coins: Tensor) -> None:
    """Take each kernel whole from the other parent where its coin is true (FNE, "Kernelwise mix").

    Coins are broadcast over the kernels' genes: no gather over `[P, D]`.
    """
    parts = torch.split(coins, list(layout.group_kernels.values()), dim=1)
    tossed = dict(zip(layout.group_kernels, parts, strict=True))
    for leaf in layout.leaves:
        target = leaf.kernel_view(child)
        coin = tossed[leaf.group].view(*target.shape[:2], *[1] * (target.ndim - 2))
        torch.where(coin, leaf.kernel_view(other), target, out=target)


CROSSOVERS: dict[str, Callable[[Layout, Tensor, Tensor, Tensor], None]] = {
    "halving": halving,
    "interleave": interleave,
    "mean": mean,
    "kernelwise": kernelwise,
}
"""Crossovers by name. Each takes the layout, the children `[n, D]` as copies of one parent, the other parents `[n, D]`
and fair coins, bool `[n, kernels]`, with the kernels ordered by group."""


# ------------------------------------------------------------------------------------------------ mutation
_WHOLE = 2**24
"""A number of `Stream.uniform` is `v / 2**24`, v a whole number."""
_ONE = 2**23
"""Factors and offsets are whole numbers too, in units of `2**-23`."""


def multiply(children: Tensor, u: Tensor, chance: float, rate: float) -> None:
    """Multiply each gene, with probability `chance`, by U[1 - rate, 1 + rate), in place (FNE, section 4.1).

    A zero stays zero and, below a rate of 1, no sign changes.

    Args:
        children: float32 `[n, D]`.
        u: numbers of `Stream.uniform`, float32 `[n, D]`, which decide both which genes mutate and how.
        chance: probability; rounded to 24 bits.
        rate: a fraction, the paper's percentage / 100, at most 2; rounded to 23 bits after the binary point.
    """
    mutated, whole = _mutated(u, chance, round(rate * _ONE))
    factor = whole.add_(_ONE).float().mul_(1 / _ONE)
    torch.where(mutated, children * factor, children, out=children)


def offset(children: Tensor, u: Tensor, chance: float, rate: float) -> None:
    """Add U[-rate, rate) to each gene with probability `chance`, in place (FNE, section 4.1); see `multiply`."""
    mutated, whole = _mutated(u, chance, _ONE)
    shift = whole.float().mul_(rate / _ONE)
    torch.where(mutated, children + shift, children, out=children)


def mixed(children: Tensor, u: Tensor, noise: Tensor, chance: float, rate: float, deviations: Tensor) -> None:
    """Multiply as `multiply` does and add N(0, deviation^2) to the same genes, in place (beyond the paper).

    A zero can become non-zero, and a sign can change.

    Args:
        children, u, chance, rate: as for `multiply`.
        noise: integers of `Stream.noise`, int8 `[n, D]`.
        deviations: deviation of each gene, float32 `[D]`.
    """
    multiply(children, u, chance, rate)
    shift = noise.float().mul_(deviations * UNIT)
    torch.where(u < _share(chance), children + shift, children, out=children)


def lognormal(children: Tensor, u: Tensor, noise: Tensor, chance: float, rate: float, sign_flip: float) -> None:
    """Multiply genes by exp(N(0, rate^2)), in place, and flip a sign with probability `sign_flip` (beyond the paper).

    The factor has no drift: E[ln factor] = 0, where that of the uniform factor is about -rate^2 / 6 per mutation. The
    61 factors are computed in float64 on the CPU, since a float32 exponential differs between devices.

    Args:
        children, u, chance: as for `multiply`.
        noise: integers of `Stream.noise`, int8 `[n, D]`.
        rate: standard deviation of the factor's logarithm.
        sign_flip: probability that a mutated gene changes its sign.
    """
    values = [math.exp(rate * UNIT * k) for k in range(-LARGEST_NOISE, LARGEST_NOISE + 1)]
    table = torch.tensor(values, dtype=torch.float32, device=children.device)
    factor = table.index_select(0, (noise.flatten() + LARGEST_NOISE).int()).view_as(children)
    if sign_flip:
        factor = torch.where(u < _share(chance * sign_flip), -factor, factor)  # u < chance is uniform below it
    torch.where(u < _share(chance), children * factor, children, out=children)


def _share(chance: float) -> float:
    """Return a probability rounded to the 24 bits of `u`."""
    return round(chance * _WHOLE) / _WHOLE


def _mutated(u: Tensor, chance: float, largest: int) -> tuple[Tensor, Tensor]:
    """Return which genes mutate, bool, and for these a whole number in [-largest, largest), float64, both `[n, D]`.

    One number serves both: where v < T = chance * 2**24, v / T is itself uniform in [0, 1). The number is one product
    in float64, rounded down, so a device has nothing to fuse.
    """
    share = _share(chance)
    return u < share, (u.double() * (2 * largest / share if share else 0.0)).floor_().sub_(largest)
