"""Groups of solutions by the direction of their objectives: for mating, and for deciding who survives.

Shapes: `n` solutions, `M` objectives, `m` groups. Values are those that `scaled` makes: at least 0, and not all zero.

Source: C. Xiao, S. Liu, "Clustering-based evolutionary federated multiobjective optimization and learning" (FedMOEAC),
section 4.
"""

from __future__ import annotations

import torch
from torch import Tensor

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
