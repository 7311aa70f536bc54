"""Selection, crossover and mutation: pure functions on tensors that draw from the generator they are given.

Source: Szegedi, Kiss, Horváth, "Evolutionary federated learning on EEG-data" (FNE), section 4, eqs. (2) to (4);
operators beyond it say so.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fne.evolution.genome import Layout


# ------------------------------------------------------------------------------------------------ selection
def order(fitness: Tensor) -> Tensor:
    """Return the indices `[P]` of `fitness [P]` from best (lowest) to worst; ties keep their place."""
    return torch.argsort(fitness, stable=True)


def paper_pool(fitness: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Return `size` parents: the `size - 1` fittest and one drawn from the rest (FNE, "Selection").

    An individual of infinite fitness is never drawn: its NaNs would be in every child. Fewer finite ones make a smaller
    pool; one at least must be finite.
    """
    ranked = order(fitness)[: int(torch.isfinite(fitness).sum())]
    size = min(size, len(ranked))
    rest = ranked[size - 1 :]
    pick = torch.randint(len(rest), (1,), generator=generator)
    return torch.cat([ranked[: size - 1], rest[pick]])


def pairs_from_pool(pool: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return two index tensors `[count]`: for each child two different parents, uniformly from the pool."""
    n = len(pool)
    first = torch.randint(n, (count,), generator=generator)
    if n == 1:
        return pool[first], pool[first]
    second = torch.randint(n - 1, (count,), generator=generator)
    second = second + (second >= first)  # skips the first parent: two different ones, all pairs alike
    return pool[first], pool[second]


def tournament(fitness: Tensor, count: int, size: int, generator: torch.Generator) -> Tensor:
    """Return `count` winners of tournaments of `size`, drawn with replacement (Goldberg & Deb 1991)."""
    place = torch.empty_like(fitness, dtype=torch.long)
    place[order(fitness)] = torch.arange(len(fitness))
    entrants = torch.randint(len(fitness), (count, size), generator=generator)
    return entrants.gather(1, place[entrants].argmin(dim=1, keepdim=True)).squeeze(1)


# ------------------------------------------------------------------------------------------------ crossover
def halving(layout: Layout, a: Tensor, b: Tensor, generator: torch.Generator) -> Tensor:
    """Return children `[P, D]`: the first half of the genes from `a`, the rest from `b`. Eq. (2)."""
    half = layout.size // 2
    return torch.cat([a[:, :half], b[:, half:]], dim=1)


def interleave(layout: Layout, a: Tensor, b: Tensor, generator: torch.Generator) -> Tensor:
    """Return children `[P, D]`: genes of even place, counted from 1, from `a`, the others from `b`. Eq. (3)."""
    child = b.clone()
    child[:, 1::2] = a[:, 1::2]
    return child


def mean(layout: Layout, a: Tensor, b: Tensor, generator: torch.Generator) -> Tensor:
    """Return the parents' mean `[P, D]`. Eq. (4)."""
    return torch.lerp(a, b, 0.5)


def kernelwise(layout: Layout, a: Tensor, b: Tensor, generator: torch.Generator) -> Tensor:
    """Return children `[P, D]` that take each kernel whole from one parent, by a fair coin (FNE, "Kernelwise mix").

    A coin a kernel and child, broadcast over the kernel's genes: no gather over `[P, D]`.
    """
    child = a.clone()
    coins = {
        group: torch.rand(a.shape[0], kernels, generator=generator) < 0.5
        for group, kernels in layout.group_kernels.items()
    }
    for leaf in layout.leaves:
        target = leaf.kernel_view(child)
        coin = coins[leaf.group].view(*target.shape[:2], *[1] * (target.ndim - 2))
        target.copy_(torch.where(coin, leaf.kernel_view(b), target))
    return child


CROSSOVERS: dict[str, Callable[[Layout, Tensor, Tensor, torch.Generator], Tensor]] = {
    "halving": halving,
    "interleave": interleave,
    "mean": mean,
    "kernelwise": kernelwise,
}


# ------------------------------------------------------------------------------------------------ mutation
def multiply(population: Tensor, rate: float, chance: float, generator: torch.Generator) -> None:
    """Multiply each gene, with probability `chance`, by U[1 - rate, 1 + rate], in place (FNE, section 4.1).

    `rate` is a fraction (the paper's percentage / 100). A zero stays zero and, below 1, no sign changes.
    """
    factor, kept = _mutated(population, rate, chance, generator)
    population.mul_(factor.add_(1.0).masked_fill_(kept, 1.0))


def offset(population: Tensor, rate: float, chance: float, generator: torch.Generator) -> None:
    """Add U[-rate, rate] to each gene with probability `chance`, in place (FNE, section 4.1)."""
    shift, kept = _mutated(population, rate, chance, generator)
    population.add_(shift.masked_fill_(kept, 0.0))


def mixed(
    population: Tensor, rate: float, chance: float, generator: torch.Generator, *, additive: float, scales: Tensor
) -> None:
    """Multiply as `multiply` does and add N(0, (additive * scale)^2) to the same genes, in place (beyond the paper).

    `scales [D]` is each layer's initial standard deviation: a zero can come alive and a sign can change.
    """
    factor, kept = _mutated(population, rate, chance, generator)
    population.mul_(factor.add_(1.0).masked_fill_(kept, 1.0))
    noise = torch.empty_like(population).normal_(generator=generator)
    population.add_(noise.mul_(scales * additive).masked_fill_(kept, 0.0))


def lognormal(population: Tensor, rate: float, chance: float, generator: torch.Generator, *, sign_flip: float) -> None:
    """Multiply genes by exp(N(0, rate^2)), in place, and flip a sign with probability `sign_flip` (beyond the paper).

    Without drift: E[ln factor] = 0, where the uniform factor has about -rate^2 / 6 a mutation.
    """
    kept = torch.rand(population.shape, generator=generator) >= chance
    factor = torch.empty_like(population).normal_(generator=generator).mul_(rate).exp_()
    flips = torch.rand(population.shape, generator=generator) < sign_flip
    factor = torch.where(flips, -factor, factor)
    population.mul_(factor.masked_fill_(kept, 1.0))


def _mutated(population: Tensor, rate: float, chance: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return U[-rate, rate] `[P, D]` for the mutated genes and the mask of those kept.

    One draw serves both: where u < chance, u / chance is itself uniform in [0, 1).
    """
    u = torch.rand(population.shape, generator=generator)
    kept = u >= chance
    if chance > 0:
        u.mul_(2 * rate / chance).sub_(rate)
    return u, kept
