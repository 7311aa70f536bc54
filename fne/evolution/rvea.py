"""Reference-vector guided selection (RVEA) for many objectives and many runs at once: pure functions.

Shapes: `B` runs, `n` individuals, `M` objectives, `V` reference vectors, each of which keeps one individual at most.

Source: R. Cheng, Y. Jin, M. Olhofer, B. Sendhoff, "A reference vector guided evolutionary algorithm for many-objective
optimization", IEEE Transactions on Evolutionary Computation 20(5), 2016: "RVEA", its algorithms 2 and 3.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from fne.evolution.real_coded import polynomial_mutation, sbx, take

CROSSOVER_ETA, MUTATION_ETA, CROSSOVER_GENE = 30.0, 20.0, 0.5
"""Indices of crossover and mutation (Cheng et al., table II), and the share of the variables that are crossed."""
_TINY = 1e-12
"""Least length of a vector of objective values, since the ideal point itself has no direction."""


def lattice_size(objectives: int, most: int) -> tuple[int, int]:
    """Return the divisions of the outer and of the inner simplex lattice that together have at most `most` points.

    There is an inner lattice only where the outer one has no interior point: with fewer divisions than objectives.
    """
    outer, inner = 1, 0
    while _count(objectives, outer + 1) <= most:
        outer += 1
    if outer < objectives:
        while _count(objectives, outer) + _count(objectives, inner + 1) <= most:
            inner += 1
    return outer, inner


def reference_vectors(objectives: int, most: int) -> Tensor:
    """Return unit vectors `[V, M]`, float64, of even simplex lattices: at most `most` of them, but at least M.

    Source: I. Das, J. Dennis, "Normal-boundary intersection" (1998); the two layers follow Cheng et al.
    """
    outer, inner = lattice_size(objectives, most)
    points = _lattice(objectives, outer)
    if inner:
        points = torch.cat([points, (_lattice(objectives, inner) + 1 / objectives) / 2])
    return _unit(points)


def _unit(vectors: Tensor) -> Tensor:
    length: Tensor = vectors.norm(dim=-1, keepdim=True)
    return vectors / length


def _count(objectives: int, divisions: int) -> int:
    return math.comb(divisions + objectives - 1, objectives - 1)


def _lattice(objectives: int, divisions: int) -> Tensor:
    """Return all points of a simplex whose coordinates are multiples of 1 / divisions, `[n, M]`."""
    bars = itertools.combinations(range(divisions + objectives - 1), objectives - 1)
    places = torch.tensor(list(bars), dtype=torch.int64).view(-1, objectives - 1)
    edges = torch.cat(
        [torch.full((len(places), 1), -1), places, torch.full((len(places), 1), divisions + objectives - 1)], dim=1
    )
    return (edges.diff(dim=1) - 1).double() / divisions


def adapted(vectors: Tensor, values: Tensor, valid: Tensor) -> Tensor:
    """Return the reference vectors `[B, V, M]` stretched to the ranges of the objectives. Algorithm 3.

    Args:
        vectors: the even reference vectors, `[V, M]`.
        values: objectives of the survivors, `[B, n, M]`.
        valid: which rows of `values` hold a survivor, bool `[B, n]`.
    """
    inside = valid.unsqueeze(-1)
    low = values.where(inside, math.inf).amin(dim=1)
    high = values.where(inside, -math.inf).amax(dim=1)
    ranges = (high - low).clamp(min=_TINY).where(valid.any(dim=1, keepdim=True), 1.0)
    stretched = vectors * ranges.unsqueeze(1)
    return _unit(stretched)


def select(values: Tensor, valid: Tensor, vectors: Tensor, progress: float, *, alpha: float = 2.0) -> Tensor:
    """Return the survivor of each reference vector, int64 `[B, V]`; -1 for a vector without individuals. Algorithm 2.

    An individual belongs to the vector at the smallest angle. Of a vector's individuals, the one with the least
    angle-penalised distance survives, and the first among equals.

    Args:
        values: objectives `[B, n, M]`, minimised; rows that are not valid are never read.
        valid: bool `[B, n]`.
        vectors: unit vectors `[B, V, M]`.
        progress: share of the generations that are over, from 0 to 1.
        alpha: exponent of `progress`; the larger, the later the penalty sets in.
    """
    n, objectives = values.shape[1:]
    inside = valid.unsqueeze(-1)
    moved = values - values.where(inside, math.inf).amin(dim=1, keepdim=True)
    moved = moved.where(inside, 0.0)
    length = moved.norm(dim=2).clamp(min=_TINY)
    cosine, niche = (moved @ vectors.mT / length.unsqueeze(2)).max(dim=2)
    angle = cosine.clamp(-1, 1).arccos()  # rounding can exceed 1: NaN without the clamp
    between = (vectors @ vectors.mT).clamp(-1, 1)
    between.diagonal(dim1=1, dim2=2).fill_(-1)
    gap = between.amax(dim=2).arccos().clamp(min=_TINY).gather(1, niche)
    penalised = (1 + objectives * progress**alpha * angle / gap) * length  # eqs. (9) and (10)
    penalised = penalised.where(valid, math.inf)
    least = torch.full(vectors.shape[:2], math.inf, dtype=values.dtype, device=values.device)
    least.scatter_reduce_(1, niche, penalised, "amin")
    wins = valid & (penalised == least.gather(1, niche))
    places = torch.arange(n, device=values.device).expand_as(niche)
    first = torch.full_like(least, n, dtype=torch.int64)
    first.scatter_reduce_(1, niche, places.where(wins, n), "amin")
    return first.where(first < n, -1)


def children(points: Tensor, taken: Tensor, u: Tensor) -> Tensor:
    """Return children `[B, n, d]` of parents that are drawn uniformly among the survivors.

    Args:
        points: points of the cube, `[B, V, d]`.
        taken: bool `[B, V]`, which places have a survivor; at least one per run.
        u: uniform numbers `[B, n, 1 + 2 d]`, n even.
    """
    places, d = points.shape[1:]
    order = taken.int().argsort(dim=1, descending=True, stable=True)
    drawn = (u[..., 0] * taken.sum(dim=1, keepdim=True)).long().clamp(max=places - 1)
    first, second = take(points, order.gather(1, drawn)).chunk(2, dim=1)
    crossing, mutating = u[:, : first.shape[1], 1 : 1 + d], u[..., 1 + d :]
    made = sbx(first, second, crossing, eta=CROSSOVER_ETA, chance=CROSSOVER_GENE).flatten(1, 2)
    return polynomial_mutation(made, mutating, eta=MUTATION_ETA, chance=1 / d)


def filled(points: Tensor, taken: Tensor) -> Tensor:
    """Return `points [B, V, d]` with a survivor in each empty place; of duplicates only one survives."""
    some = points[torch.arange(len(points)), taken.int().argmax(dim=1)].unsqueeze(1)
    return points.where(taken.unsqueeze(2), some)
