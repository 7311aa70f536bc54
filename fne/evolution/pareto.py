"""Mating and survival of populations of trade-offs: by clusters of directions (FedMOEAC), or by fronts (NSGA-II).

Shapes: `n` solutions, `M` objectives, `m` groups, `d` genes in the cube [-1, 1]^d. Objectives are minimised. Groups are
of the values that `scaled` makes: at least 0, and not all zero.

Source of the clusters: C. Xiao, S. Liu, "Clustering-based evolutionary federated multiobjective optimization and
learning" (FedMOEAC), section 4.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from fne.core.errors import FneError
from fne.evolution.indicators import non_dominated
from fne.evolution.real_coded import polynomial_mutation, sbx

CROSSOVER, CROSSOVER_ETA, MUTATION, MUTATION_ETA = 0.9, 2.0, 0.1, 20.0
"""Of FedMOEAC, section 5.1: probability of a crossover and its index, that of a gene's mutation and its index."""

Decode = Callable[[Tensor], Tensor]


def offspring(genes: Tensor, pairs: Tensor, draw: torch.Generator, decode: Decode = lambda genes: genes) -> Tensor:
    """Return a child of each pair of parents `pairs [n, 2]`, `[n, d]`: of two that they would have the first one's.

    Half of the genes are crossed, where there is a crossover at all. A child that means the same as one of `genes` is
    its first parent with one gene mutated, drawn among those in which that makes a difference: nobody is evaluated
    twice.

    Args:
        genes: of all who may mate, `[N, d]`.
        pairs: int64.
        draw: all random numbers are of it.
        decode: genes `[n, d]` -> what they mean, `[n, k]`.
    """
    count, d = len(pairs), genes.shape[1]
    first, second = genes[pairs[:, 0]], genes[pairs[:, 1]]
    u = torch.rand(count, 3 * d + 2, generator=draw, dtype=torch.float64)
    crossed = sbx(first, second, u[:, :d], eta=CROSSOVER_ETA, chance=0.5)[0]
    made = torch.where(u[:, -1:] < CROSSOVER, crossed, first)
    made = polynomial_mutation(made, u[:, d : 2 * d], eta=MUTATION_ETA, chance=MUTATION)
    changed = polynomial_mutation(first, u[:, 2 * d : 3 * d], eta=MUTATION_ETA, chance=1.0)
    single = torch.where(torch.eye(d, dtype=torch.bool), changed.unsqueeze(1), first.unsqueeze(1))  # [n, d, d]
    known = decode(first).unsqueeze(1)
    differs = (decode(single.flatten(0, 1)).view(count, d, -1) != known).any(dim=2)
    place = (differs.cumsum(dim=1) > (u[:, -2:-1] * differs.sum(dim=1, keepdim=True)).long()).int().argmax(dim=1)
    copies = (decode(made).unsqueeze(1) == decode(genes)).all(dim=2).any(dim=1, keepdim=True)
    return torch.where(copies, single[torch.arange(count), place], made)


def first_fronts(values: Tensor, count: int) -> Tensor:
    """Return who is in the first fronts of `values [n, M]` that have `count` together, int64, in order."""
    left, chosen = torch.arange(len(values)), torch.zeros(len(values), dtype=torch.bool)
    while len(left) and int(chosen.sum()) < count:
        best = non_dominated(values[left])
        chosen[left[best]] = True
        left = left[~best]
    return chosen.nonzero()[:, 0]


class ClusterSelection:
    """FedMOEAC: parents mate within groups of like directions, and of each cluster one survives.

    Args:
        groups: m, for mating.
        select: which one: the nearest to the ideal point, or that with the least sum, of scaled objectives.
        ranges: whether objectives are scaled to their ranges; else they are taken as they come, shares of their bounds.
        fronts: whether only so many fronts are clustered as are needed, which is not the paper's.
    """

    def __init__(
        self, groups: int, select: Literal["distance", "sum"], *, ranges: bool = False, fronts: bool = False
    ) -> None:
        self._groups, self._select, self._ranges, self._fronts = groups, select, ranges, fronts

    def children(
        self, genes: Tensor, values: Tensor, count: int, draw: torch.Generator, decode: Decode = lambda genes: genes
    ) -> tuple[Tensor, Tensor]:
        """Return genes of `count` children and the first parent of each; groups take turns, those of one mate with all.

        Source: Xiao and Liu, section 4.
        """
        u = torch.rand(self._groups, generator=draw, dtype=torch.float64)
        labels = direction_groups(scaled(values, ranges=self._ranges), self._groups, u)
        there = [(labels == group).nonzero()[:, 0] for group in range(self._groups)]
        there = [members for members in there if len(members)]
        everybody = torch.arange(len(genes))
        pairs = []
        for i in range(count):
            members = there[i % len(there)]
            first = int(members[torch.randint(len(members), (1,), generator=draw)])
            mates = members if len(members) > 1 else everybody
            mates = mates[mates != first] if len(mates) > 1 else mates
            pairs.append([first, int(mates[torch.randint(len(mates), (1,), generator=draw)])])
        chosen = torch.tensor(pairs)
        return offspring(genes, chosen, draw, decode), chosen[:, 0]

    def survivors(self, values: Tensor, count: int) -> Tensor:
        """Return of each of `count` clusters the best one."""
        unit = scaled(values, ranges=self._ranges)
        there = first_fronts(unit, count) if self._fronts else torch.arange(len(unit))
        unit = unit[there]
        worth = unit.sum(dim=1) if self._select == "sum" else unit.norm(dim=1)
        best = [min(cluster, key=lambda i: float(worth[i])) for cluster in merged(unit, count)]
        return there[sorted(best)]


class FrontSelection:
    """NSGA-II: ranks of non-dominated sorting and crowding distances, by pymoo.

    Source: K. Deb, A. Pratap, S. Agarwal, T. Meyarivan, "A fast and elitist multiobjective genetic algorithm" (2002).

    Raises:
        FneError: pymoo is not there.
    """

    def __init__(self) -> None:
        self._pymoo()

    def children(
        self, genes: Tensor, values: Tensor, count: int, draw: torch.Generator, decode: Decode = lambda genes: genes
    ) -> tuple[Tensor, Tensor]:
        """Return genes of `count` children and the first parent of each, winners of tournaments of two others."""
        order = {int(individual): place for place, individual in enumerate(self._ordered(values, len(values)))}
        pairs = []
        for _ in range(count):
            first, *others = torch.randperm(len(genes), generator=draw)[:4].tolist()
            one = min([first, *others[:1]], key=order.__getitem__)
            rest = [other for other in (first, *others) if other != one]
            pairs.append([one, min(others[1:] or rest or [one], key=order.__getitem__)])
        chosen = torch.tensor(pairs)
        return offspring(genes, chosen, draw, decode), chosen[:, 0]

    def survivors(self, values: Tensor, count: int) -> Tensor:
        """Return the `count` best by rank, and by crowding within the last front that has a place."""
        return self._ordered(values, count).sort().values

    def _ordered(self, values: Tensor, count: int) -> Tensor:
        sorting, crowding = self._pymoo()
        finite = values.nan_to_num(nan=1e30, posinf=1e30).double().numpy()
        fronts = sorting().do(finite)
        order: list[int] = []
        for front in fronts:
            distances = crowding("cd").do(finite[front])
            order += [int(front[i]) for i in sorted(range(len(front)), key=lambda i: -distances[i])]
        return torch.tensor(order[:count])

    def _pymoo(self) -> tuple[Any, Any]:
        try:
            sorting = importlib.import_module("pymoo.util.nds.non_dominated_sorting").NonDominatedSorting
            crowding = importlib.import_module("pymoo.operators.survival.rank_and_crowding.metrics")
        except ModuleNotFoundError:
            raise FneError("NSGA-II is pymoo's, which is not installed: pip install -e '.[moo]' in the clone") from None
        return sorting, crowding.get_crowding_function


_NOTHING = 1e-6
"""What is added to scaled values: the ideal point itself has no direction."""


def scaled(values: Tensor, *, ranges: bool) -> Tensor:
    """Return objectives `[n, M]`, minimised, above 0: as they are, or as parts of their ranges over the rows.

    What is not finite is as bad as the worst of the rows, and at least 1. Of ranges, an objective that is the same for
    all is as good as it can be.
    """
    finite = values.isfinite()
    if ranges:
        low = values.where(finite, torch.inf).amin(dim=0)
        high = values.where(finite, -torch.inf).amax(dim=0)
        values = (values - low.where(low.isfinite(), 0.0)) / (high - low).where(high > low, 1.0)
    worst = values.where(finite, 1.0).amax(dim=0).clamp(min=1.0)
    return values.where(finite, worst).clamp(min=0) + _NOTHING


def direction_groups(values: Tensor, groups: int, u: Tensor, *, iterations: int = 50) -> Tensor:
    """Return the group of each solution, int64 `[n]`, by k-means on the cosine of their directions.

    A group may be empty.

    Args:
        values: scaled, `[n, M]`.
        groups: m.
        u: uniform numbers `[m]`, which choose the first centres: each farther from those before it the likelier.
        iterations: at most this many.
    """
    directions = _unit(values)
    centres = directions[_first(directions, groups, u)]
    labels = torch.full((len(values),), -1)
    for _ in range(iterations):
        new = (directions @ centres.mT).argmax(dim=1)
        if torch.equal(new, labels):
            break
        labels = new
        for group in range(groups):
            inside = labels == group
            if inside.any():
                centres[group] = _unit(directions[inside].sum(dim=0))
    return labels


def merged(values: Tensor, count: int) -> list[list[int]]:
    """Return `count` clusters of solutions: again and again the two with the most alike centres become one.

    A cluster's centre is the mean of its solutions; likeness is the cosine of two centres. Of equals the first are
    merged. There are as many as solutions at most.

    Args:
        values: scaled, `[n, M]`.
        count: how many clusters shall be left, at least 1.
    """
    clusters = [[i] for i in range(len(values))]
    centres = values.double().clone()
    while len(clusters) > count:
        directions = _unit(centres)
        likeness = directions @ directions.mT
        likeness = likeness.masked_fill(torch.ones_like(likeness, dtype=torch.bool).tril(), -2.0)
        first, second = divmod(int(likeness.argmax()), len(clusters))
        size, other = len(clusters[first]), len(clusters[second])
        centres[first] = (size * centres[first] + other * centres[second]) / (size + other)
        clusters[first] += clusters.pop(second)
        centres = torch.cat([centres[:second], centres[second + 1 :]])
    return clusters


def _unit(vectors: Tensor) -> Tensor:
    length: Tensor = vectors.norm(dim=-1, keepdim=True)
    return vectors / length


def _first(directions: Tensor, groups: int, u: Tensor) -> Tensor:
    """Return the solutions that the groups begin with, int64 `[m]`."""
    picks = [int(float(u[0]) * len(directions))]
    for number in u[1:groups].tolist():
        apart = (1 - directions @ directions[picks].mT).amin(dim=1).clamp(min=0)
        heap = (apart + _NOTHING**2).cumsum(dim=0)
        picks.append(int(torch.searchsorted(heap, number * heap[-1]).clamp(max=len(directions) - 1)))
    return torch.tensor(picks)
