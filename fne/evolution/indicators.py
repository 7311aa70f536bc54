"""How good a set of points is for several objectives: what nothing dominates, IGD and hypervolume.

Shapes: `n` points of `M` values, smaller is better. Rows with a NaN or an infinity are no points. `a` dominates `b` if
it is nowhere worse and somewhere better, so equal points do not dominate each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fne.core.errors import FneError

EXACT = 6
"""Most objectives for which the hypervolume is computed exactly; with more its cost grows as points to the M - 2."""


def non_dominated(values: Tensor) -> Tensor:
    """Return which rows of `[n, M]` no other dominates, bool `[n]`; of equal rows all or none."""
    mask = values.isfinite().all(dim=-1)
    rows = values[mask]
    kept = []
    for some in torch.split(rows, 256):  # so that memory is that of 256 n comparisons
        nowhere_worse = torch.ones(len(some), len(rows), dtype=torch.bool, device=rows.device)
        somewhere_better = ~nowhere_worse
        for mine, other in zip(some.unbind(dim=-1), rows.unbind(dim=-1), strict=True):
            nowhere_worse &= other <= mine.unsqueeze(1)
            somewhere_better |= other < mine.unsqueeze(1)
        kept.append(~(nowhere_worse & somewhere_better).any(dim=-1))
    mask[mask.clone()] = torch.cat(kept)
    return mask


def front_of(points: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the different ones of points `[n, d]` with values `[n, M]` that no other dominates, in order."""
    there = values.isfinite().all(dim=1)
    rows = torch.cat([points[there], values[there]], dim=1).unique(dim=0)  # type: ignore[no-untyped-call]
    points, values = rows.split([points.shape[1], values.shape[1]], dim=1)
    best = non_dominated(values)
    return points[best], values[best]


def igd(values: Tensor, front: Tensor) -> float:
    """Return the inverted generational distance of `values [n, M]`.

    It is the mean over the front's points of the Euclidean distance to the nearest of the values that none dominates,
    not normalised; infinite if there is none. It depends on how many points a front has, and where.

    Args:
        values: of a set of points, dominated ones, too.
        front: points `[r, M]` of the Pareto front.
    """
    values = values.double()
    kept, front = values[non_dominated(values)], front.to(values)
    if not len(kept):
        return math.inf
    exact = "donot_use_mm_for_euclid_dist"  # the other way loses half the digits of small distances
    return float(
        torch.cat([torch.cdist(f, kept, compute_mode=exact).amin(dim=1) for f in torch.split(front, 2000)]).mean()
    )


def require_moocore() -> Any:
    """Return the library of hypervolumes; raises `FneError` that names the extra where it is not installed."""
    try:
        import moocore
    except ImportError as error:
        raise FneError("the hypervolume needs moocore: pip install -e '.[moo]' in the clone") from error
    return moocore


class Volume(NamedTuple):
    """A hypervolume, and whether it is exact or approximated."""

    value: float
    exact: bool


def hypervolume(values: Tensor, reference: Tensor | Sequence[float]) -> Volume:
    """Return the volume between `values [n, M]` and a reference point; points that are not below it add nothing.

    By moocore: exact for at most `EXACT` objectives, for more approximated along 262,144 directions, the same each
    time, in units of the range from the least values to the reference. Errors are below about 1e-3 of it.

    Args:
        values: of a set of points, dominated ones, too.
        reference: worst values of interest, M finite numbers.

    Raises:
        FneError: a reference of another length or not finite, or the extra `moo` is not installed.
    """
    moocore = require_moocore()
    corner = torch.as_tensor(reference, dtype=torch.float64)
    if corner.shape != values.shape[1:] or not corner.isfinite().all():
        raise FneError(
            f"reference = {corner.tolist()}: must be {values.shape[1]} finite numbers, one for each objective"
        )
    rows = values.double().cpu()
    rows = rows[(rows < corner).all(dim=-1) & rows.isfinite().all(dim=-1)]
    exact = len(corner) <= EXACT
    if not len(rows):
        return Volume(0.0, True)
    if exact:
        return Volume(float(moocore.hypervolume(rows.numpy(), ref=corner.numpy())), True)
    unit = corner - rows.amin(dim=0)
    share = moocore.hv_approx(((rows - corner) / unit).numpy(), ref=0.0)
    return Volume(float(share * unit.prod()), False)
