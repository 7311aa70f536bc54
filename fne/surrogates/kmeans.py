"""k-means of many small data sets at once: k-means++ starts, Lloyd's iterations, the best of several starts.

Shapes: `L` data sets, `n` rows in each, some of them padding, `d` variables, `S` starts, `m` centres, `R` pairs of data
set and start that still improve.

Sources: Lloyd, "Least squares quantization in PCM" (1982); Arthur, Vassilvitskii, "k-means++" (2007).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_ELEMENTS = 2**19
"""Number of distances held at a time, as many as fit in the processor's cache."""


def kmeans(x: Tensor, valid: Tensor, u: Tensor, *, iterations: int = 300) -> Tensor:
    """Return the centres `[L, m, d]` of the start that ends with the least sum of squared distances.

    With fewer distinct points than centres some centres are repeated; without any point all centres are zero.

    Args:
        x: points `[L, n, d]`; rows that are not valid are never read.
        valid: bool `[L, n]`.
        u: uniform numbers `[L, S, m]`, which choose the first centres.
        iterations: largest number of iterations; a start ends when its sum no longer falls.
    """
    size = max(1, _ELEMENTS // (u[0].numel() * x.shape[1]))
    parts = (slice(i, i + size) for i in range(0, len(x), size))
    return torch.cat([_cluster(x[part], valid[part], u[part], iterations) for part in parts])


def _cluster(x: Tensor, valid: Tensor, u: Tensor, iterations: int) -> Tensor:
    """Do what `kmeans` does, all data sets at once."""
    (sets, starts, m), d = u.shape, x.shape[-1]
    inside = valid.unsqueeze(-1)
    middle = x.where(inside, 0).sum(dim=1, keepdim=True) / valid.sum(dim=1).clamp(min=1)[:, None, None]
    points = (x - middle).where(inside, 0)  # differences of squares cancel least about the mean
    first = _first(points, valid, u).flatten(1).unsqueeze(-1)
    centres = points.gather(1, first.expand(-1, -1, d)).view(sets * starts, m, d)
    rows = torch.cat([points, valid.to(x.dtype).unsqueeze(-1)], dim=-1).repeat_interleave(starts, dim=0)
    sums = _lloyd(rows, centres, iterations)
    best = sums.view(sets, starts).argmin(dim=1) + starts * torch.arange(sets, device=x.device)
    return centres[best] + middle


def _first(points: Tensor, valid: Tensor, u: Tensor) -> Tensor:
    """Return the indices `[L, S, m]` of the first centres, each drawn by its squared distance to earlier centres."""
    squares = points.square().sum(dim=-1)
    apart = torch.baddbmm(squares.unsqueeze(1), points, points.mT, alpha=-2).add_(squares.unsqueeze(2)).clamp_(min=0)
    apart.diagonal(dim1=1, dim2=2).zero_()
    least = torch.finfo(points.dtype).tiny * 2.0**60  # where all points equal earlier centres, any point will do
    apart = apart.add_(least).where(valid.unsqueeze(1), 0)
    near = valid.to(points.dtype).unsqueeze(1).expand(-1, u.shape[1], -1)
    picks: list[Tensor] = []
    for drawn in torch.split(u.to(points.dtype), 1, dim=2):
        heap = near.cumsum(dim=-1)
        total = heap[..., -1:].contiguous()
        target = torch.minimum(drawn * total, total.nextafter(torch.zeros_like(total)))  # below the total: no padding
        picks.append(torch.searchsorted(heap, target, right=True).clamp_(max=heap.shape[-1] - 1))
        row = apart.gather(1, picks[-1].expand(-1, -1, apart.shape[-1]))
        near = torch.minimum(near, row) if len(picks) > 1 else row
    return torch.cat(picks, dim=-1)


def _lloyd(rows: Tensor, centres: Tensor, iterations: int) -> Tensor:
    """Improve `centres [R, m, d]` in place and return the sums of squared distances `[R]`, less a common term.

    Args:
        rows: `[R, n, d + 1]`, a point and a one, or zeros as padding.
        centres: the first centres.
        iterations: largest number of iterations.
    """
    sums = torch.full((len(rows),), math.inf, dtype=rows.dtype, device=rows.device)
    running, moving = torch.arange(len(rows), device=rows.device), centres.clone()
    for _ in range(iterations):
        squares = moving.square().sum(dim=-1, keepdim=True)
        nearest, label = torch.bmm(rows, torch.cat([-2 * moving, squares], dim=-1).mT).min(dim=-1)
        now = nearest.sum(dim=1)
        falls = now < sums[running]
        centres[running] = moving  # in the last step they are as good as before
        sums[running] = now
        if not falls.all():
            running, rows, moving, label = running[falls], rows[falls], moving[falls], label[falls]
        if not len(running):
            break
        moving = _means(rows, label, moving)
    return sums


def _means(rows: Tensor, label: Tensor, centres: Tensor) -> Tensor:
    """Return the means `[R, m, d]` of the points of each label `[R, n]`; a centre without points stays where it was."""
    count, m, d = centres.shape
    place = label + m * torch.arange(count, device=label.device).unsqueeze(1)
    total = torch.zeros(count * m, d + 1, dtype=rows.dtype, device=rows.device)
    total = total.index_add_(0, place.flatten(), rows.flatten(0, 1)).view(count, m, d + 1)
    number = total[..., d:]
    return torch.where(number > 0, total[..., :d] / number.clamp(min=1), centres)
