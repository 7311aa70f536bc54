"""Quality indicators of multi-objective optimisation: non-dominated points, IGD and hypervolume.

Shapes: `n` points of `M` values, smaller is better. Rows with a NaN or an infinity are ignored. `a` dominates `b` if
`a` is nowhere worse and somewhere better, so equal points do not dominate each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fne.core.errors import FneError

EXACT = 6
"""Most objectives for which the hypervolume is exact; beyond, its cost grows with the points to the power of M - 2."""


def non_dominated(values: Tensor) -> Tensor:
    """Return which rows of `[n, M]` are non-dominated, bool `[n]`; equal rows are all in or all out."""
    mask = values.isfinite().all(dim=-1)
    rows = values[mask]
    kept = []
    for some in torch.split(rows, 256):  # bounds the memory to 256 n comparisons
        nowhere_worse = torch.ones(len(some), len(rows), dtype=torch.bool, device=rows.device)
        somewhere_better = ~nowhere_worse
        for mine, other in zip(some.unbind(dim=-1), rows.unbind(dim=-1), strict=True):
            nowhere_worse &= other <= mine.unsqueeze(1)
            somewhere_better |= other < mine.unsqueeze(1)
        kept.append(~(nowhere_worse & somewhere_better).any(dim=-1))
    mask[mask.clone()] = torch.cat(kept)
    return mask


def front_of(points: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct non-dominated points among `[n, d]` with their values `[n, M]`, sorted."""
    finite = values.isfinite().all(dim=1)
    rows = torch.cat([points[finite], values[finite]], dim=1).unique(dim=0)  # type: ignore[no-untyped-call]
    points, values = rows.split([points.shape[1], values.shape[1]], dim=1)
    best = non_dominated(values)
    return points[best], values[best]


def igd(values: Tensor, front: Tensor) -> float:
    """Return the inverted generational distance of `values [n, M]`.

    The distance is the mean, over the front's points, of the Euclidean distance to the nearest non-dominated value; it
    is not normalised, and infinite without any such value. It depends on the number and the places of the front's
    points.

    Args:
        values: objective values of a set of points, dominated points included.
        front: points `[r, M]` of the Pareto front.
    """
    values = values.double()
    kept, front = values[non_dominated(values)], front.to(values)
    if not len(kept):
        return math.inf
    exact = "donot_use_mm_for_euclid_dist"  # the matrix product loses half the digits of small distances
    return float(
        torch.cat([torch.cdist(f, kept, compute_mode=exact).amin(dim=1) for f in torch.split(front, 2000)]).mean()
    )


def require_moocore() -> Any:
    """Return the library moocore; where it is not installed, raise an `FneError` that names the extra."""
    try:
        import moocore
    except ImportError as error:
        raise FneError("the hypervolume needs moocore: pip install -e '.[moo]' in the clone") from error
    return moocore


class Volume(NamedTuple):
    """Value of a hypervolume, and whether the value is exact or approximated."""

    value: float
    exact: bool


def hypervolume(values: Tensor, reference: Tensor | Sequence[float]) -> Volume:
    """Return the volume between `values [n, M]` and a reference point; points not below the reference add nothing.

    The library moocore computes the volume: exactly for at most `EXACT` objectives; for more, approximately along
    262,144 fixed directions, in units of the range from the least values to the reference. The error is then below
    about 1e-3 of the volume.

    Args:
        values: objective values of a set of points, dominated points included.
        reference: worst values of interest, M finite numbers.

    Raises:
        FneError: the reference has another length or is not finite, or the extra `moo` is not installed.
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
