"""Mating and environmental selection of multi-objective populations: direction clusters (FedMOEAC) or NSGA-II fronts.

Shapes: `n` solutions, `M` objectives, `m` groups, `d` genes in the cube [-1, 1]^d. Objectives are minimised. Grouping
and clustering take values from `scaled`: at least 0, and not all zero.

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
"""FedMOEAC, section 5.1: probability and index of a crossover, then probability and index of a gene's mutation."""

Decode = Callable[[Tensor], Tensor]


def offspring(genes: Tensor, pairs: Tensor, draw: torch.Generator, decode: Decode = lambda genes: genes) -> Tensor:
    """Return one child `[n, d]` for each pair of parents `pairs [n, 2]`: the first of the two that a crossover makes.

    Where a crossover takes place, half of the genes are crossed. A child that decodes to the same as one of `genes` is
    replaced by its first parent with one mutated gene, drawn among the genes whose mutation changes the decoded values,
    so that no individual is evaluated twice.

    Args:
        genes: genes of all possible parents, `[N, d]`.
        pairs: places of the parents in `genes`, int64.
        draw: generator of all random numbers.
        decode: genes `[n, d]` -> decoded values `[n, k]`.
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
    """Return the places of the first fronts of `values [n, M]` that hold `count` solutions together, int64, sorted."""
    left, chosen = torch.arange(len(values)), torch.zeros(len(values), dtype=torch.bool)
    while len(left) and int(chosen.sum()) < count:
        best = non_dominated(values[left])
        chosen[left[best]] = True
        left = left[~best]
    return chosen.nonzero()[:, 0]


class ClusterSelection:
    """FedMOEAC: parents mate within groups of similar directions, and one solution of each cluster survives.

    Args:
        groups: number of mating groups, m.
        select: survivor of a cluster, by scaled objectives: the nearest to the ideal point, or the least sum.
        ranges: whether objectives are scaled to their ranges; otherwise they stay shares of their bounds.
        fronts: whether clustering is limited to the first fronts that fill the population, unlike in the paper.
    """

    def __init__(
        self, groups: int, select: Literal["distance", "sum"], *, ranges: bool = False, fronts: bool = False
    ) -> None:
        self._groups, self._select, self._ranges, self._fronts = groups, select, ranges, fronts

    def children(
        self, genes: Tensor, values: Tensor, count: int, draw: torch.Generator, decode: Decode = lambda genes: genes
    ) -> tuple[Tensor, Tensor]:
        """Return genes of `count` children and the first parent of each.

        Groups take turns; the member of a group of one mates with the whole population. Source: Xiao and Liu, section
        4.

        Args:
            genes: of the population, `[n, d]`.
            values: objectives of the population, `[n, M]`.
            count: number of children.
            draw: generator of all random numbers.
            decode: as for `offspring`.
        """
        u = torch.rand(self._groups, generator=draw, dtype=torch.float64)
        labels = direction_groups(scaled(values, ranges=self._ranges), self._groups, u)
        filled = [(labels == group).nonzero()[:, 0] for group in range(self._groups)]
        filled = [members for members in filled if len(members)]
        everybody = torch.arange(len(genes))
        pairs = []
        for i in range(count):
            members = filled[i % len(filled)]
            first = int(members[torch.randint(len(members), (1,), generator=draw)])
            mates = members if len(members) > 1 else everybody
            mates = mates[mates != first] if len(mates) > 1 else mates
            pairs.append([first, int(mates[torch.randint(len(mates), (1,), generator=draw)])])
        chosen = torch.tensor(pairs)
        return offspring(genes, chosen, draw, decode), chosen[:, 0]

    def survivors(self, values: Tensor, count: int) -> Tensor:
        """Return the place of the best solution of each of `count` clusters."""
        unit = scaled(values, ranges=self._ranges)
        candidates = first_fronts(unit, count) if self._fronts else torch.arange(len(unit))
        unit = unit[candidates]
        worth = unit.sum(dim=1) if self._select == "sum" else unit.norm(dim=1)
        best = [min(cluster, key=lambda i: float(worth[i])) for cluster in merged(unit, count)]
        return candidates[sorted(best)]


class FrontSelection:
    """NSGA-II: pymoo computes the ranks of non-dominated sorting and the crowding distances.

    Source: K. Deb, A. Pratap, S. Agarwal, T. Meyarivan, "A fast and elitist multiobjective genetic algorithm" (2002).

    Raises:
        FneError: pymoo is not installed.
    """

    def __init__(self) -> None:
        self._pymoo()

    def children(
        self, genes: Tensor, values: Tensor, count: int, draw: torch.Generator, decode: Decode = lambda genes: genes
    ) -> tuple[Tensor, Tensor]:
        """Return genes of `count` children and the first parent of each; parents win tournaments of two.

        Args:
            genes: of the population, `[n, d]`.
            values: objectives of the population, `[n, M]`.
            count: number of children.
            draw: generator of all random numbers.
            decode: as for `offspring`.
        """
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
        """Return the places of the `count` best by rank, and by crowding within the last front that still fits."""
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
            raise FneError("NSGA-II needs pymoo: pip install -e '.[moo]' in the clone") from None
        return sorting, crowding.get_crowding_function


_NOTHING = 1e-6
"""Offset of scaled values, since the ideal point itself has no direction."""


def scaled(values: Tensor, *, ranges: bool) -> Tensor:
    """Return minimised objectives `[n, M]` above 0: unchanged, or as parts of their ranges over the rows.

    A non-finite value becomes the worst value of the rows, and at least 1. With `ranges`, an objective that is equal in
    all rows gets the best value.
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
        values: scaled objectives, `[n, M]`.
        groups: number of groups, m.
        u: uniform numbers `[m]`, which choose the first centres; a centre far from the earlier ones is more likely.
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
    """Return `count` clusters of solutions, or one per solution if fewer, by merging the two most similar repeatedly.

    A cluster's centre is the mean of its solutions; the similarity of two clusters is the cosine of their centres.
    Among equally similar pairs the first one is merged.

    Args:
        values: scaled objectives, `[n, M]`.
        count: number of clusters to keep, at least 1.
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
    """Return the solutions that are the groups' first centres, int64 `[m]`."""
    picks = [int(float(u[0]) * len(directions))]
    for number in u[1:groups].tolist():
        apart = (1 - directions @ directions[picks].mT).amin(dim=1).clamp(min=0)
        heap = (apart + _NOTHING**2).cumsum(dim=0)
        picks.append(int(torch.searchsorted(heap, number * heap[-1]).clamp(max=len(directions) - 1)))
    return torch.tensor(picks)
