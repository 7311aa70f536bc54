"""What the chosen node does at a round's end: it picks points of its population, spread over the front, and measures.

Shapes: `r` runs in which the node takes part, `V` places of the population, `M` objectives, `d` variables.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fne.core.messages import Header
from fne.federation.node import Node
from fne.search.measurements import held, measure_points
from fne.surrogates.kmeans import kmeans

_APART = 1e-6
"""Points of the cube nearer than this, in any measure, are the same one."""


def chosen_points(
    node: Node, header: Header, runs: Tensor, points: Tensor, bounds: Tensor, taken: Tensor, most: int
) -> list[Tensor]:
    """Return of each run those points `[q, d]` of its population that shall be measured: spread over the front.

    The population is put into as many clusters, in the space of the objectives scaled to their ranges, and of each
    cluster that one is taken which is nearest to its middle. What the node has measured before is left out, so there
    may be fewer.
    """
    known, values = held([node], [runs])
    near = torch.cdist(points, known).where(values.isfinite().all(dim=2).unsqueeze(1), torch.inf).amin(dim=2)
    new = taken & (near > _APART)
    low = bounds.where(new.unsqueeze(2), torch.inf).amin(dim=1, keepdim=True)
    high = bounds.where(new.unsqueeze(2), -torch.inf).amax(dim=1, keepdim=True)
    scaled = ((bounds - low) / (high - low).clamp(min=_APART)).where(new.unsqueeze(2), 0.0)
    u = torch.stack([
        node.draws(header, f"points {run}", points[row]).uniform(3, most)
        for row, run in enumerate(runs.tolist())
    ])  # fmt: skip
    away = torch.cdist(scaled, kmeans(scaled, new, u))
    nearest = away.argmin(dim=2)
    picked = []
    for run in range(len(runs)):
        places = []
        for cluster in sorted(set(nearest[run, new[run]].tolist())):
            inside = new[run] & (nearest[run] == cluster)
            places.append(int(away[run, :, cluster].where(inside, torch.inf).argmin()))
        picked.append(points[run, places])
    return picked


def padded(chosen: Sequence[Tensor], most: int) -> Tensor:
    """Return points of several runs as `[r, most, d]`: what is not there is NaN, which nobody measures."""
    padded = torch.full((len(chosen), most, chosen[0].shape[1]), torch.nan, dtype=torch.float64)
    for row, points in zip(padded, chosen, strict=True):
        row[: len(points)] = points
    return padded


def measure_chosen(node: Node, header: Header, runs: Tensor, chosen: Sequence[Tensor], count: int) -> None:
    """Let the node measure the chosen points of each run, those with the same number of points together."""
    for size in sorted({len(points) for points in chosen}):
        rows = [i for i, points in enumerate(chosen) if len(points) == size]
        measure_points([node], [runs[rows]], [torch.stack([chosen[i] for i in rows])], header, count=count, own=True)
