"""Operators of real-coded genetic algorithms in the cube [-1, 1]^d: pure functions of points and uniform numbers.

Shapes: `...` any number of leading axes (runs), `P` individuals, `d` variables. All operators are equivariant under an
affine image of the cube: the caller maps points to its bounds. Uniform numbers lie in [0, 1).

Sources: McKay, Beckman, Conover (1979) for the Latin hypercube; Deb, Agrawal, "Simulated binary crossover for
continuous search space" (1995) and Deb, Goyal, "A combined genetic adaptive search" (1996), both in the later form that
never leaves the bounds.
"""

from __future__ import annotations

import torch
from torch import Tensor

LOW, HIGH = -1.0, 1.0
_CLOSE = 1e-14
"""Parents closer than this in a variable are not crossed there."""


def latin_hypercube(ranks: Tensor, u: Tensor) -> Tensor:
    """Return points of the cube `[..., P, d]`, one in each of P equal strata of every variable.

    Args:
        ranks: uniform numbers `[..., P, d]`; their order along P assigns the strata to the points.
        u: uniform numbers `[..., P, d]`: the place inside the stratum.
    """
    strata = ranks.argsort(dim=-2, stable=True)
    return LOW + (HIGH - LOW) * (strata + u) / ranks.shape[-2]


def binary_tournament(u: Tensor, size: int) -> Tensor:
    """Return the ranks `[...]` of the winners of tournaments of two among `size` ranked individuals, 0 the best.

    Args:
        u: uniform numbers `[..., 2]`: the entrants, drawn with replacement.
        size: size of the population.
    """
    return torch.minimum(*(u * size).long().clamp_(max=size - 1).unbind(-1))


def sbx(first: Tensor, second: Tensor, u: Tensor, *, eta: float, chance: float) -> Tensor:
    """Return two children of each pair by bounded simulated binary crossover, `[..., 2, P, d]`.

    The bound on each side of the parents' mean limits the spread there. One number decides everything for a variable:
    `u / chance` below 1 means a crossover, its half which child gets the lower value, the rest the distance.

    Args:
        first, second: parents `[..., P, d]`.
        u: uniform numbers `[..., P, d]`.
        eta: distribution index: the higher, the nearer to the parents.
        chance: probability that a variable is crossed, above 0.
    """
    half = u * (2 / chance)
    crossed = (half < 2) & ((first - second).abs() > _CLOSE)
    low, high = torch.minimum(first, second), torch.maximum(first, second)
    total, gap = low + high, (high - low).clamp_(min=_CLOSE)
    u = half.frac()
    lower = total - _spread(2 * (low - LOW) / gap, u, eta) * gap
    upper = total + _spread(2 * (HIGH - high) / gap, u, eta) * gap
    lower, upper, swapped = lower.mul_(0.5).clamp_(LOW, HIGH), upper.mul_(0.5).clamp_(LOW, HIGH), half >= 1
    one = _choose(first, _choose(lower, upper, swapped), crossed)
    two = _choose(second, _choose(upper, lower, swapped), crossed)
    return torch.stack([one, two], dim=-3)


def polynomial_mutation(points: Tensor, u: Tensor, *, eta: float, chance: float) -> Tensor:
    """Return points `[..., P, d]` after bounded polynomial mutation.

    One number decides everything for a variable: `u / chance` below 1 means a change, its half the direction, the rest
    the distance.

    Args:
        points: points of the cube, `[..., P, d]`.
        u: uniform numbers `[..., P, d]`.
        eta: distribution index: the higher, the smaller the steps.
        chance: probability that a variable changes, above 0.
    """
    signed = (u * (2 / chance) - 1).clamp_(max=1)
    size = signed.abs()
    reach = (1 + points.copysign(signed * points)) / (HIGH - LOW)  # from the bound behind, in widths of the cube
    step = 1 - (1 - size + size * reach ** (eta + 1)) ** (1 / (eta + 1))
    moved = (points + (HIGH - LOW) * step.copysign(signed)).clamp_(LOW, HIGH)
    return _choose(points, moved, signed < 1)


def truncate(points: Tensor, values: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the `size` best (lowest) `points [..., P, d]` and `values [..., P]`, best first; ties keep their order."""
    values, order = torch.sort(values, dim=-1, stable=True)
    return take(points, order[..., :size]), values[..., :size]


def take(points: Tensor, indices: Tensor) -> Tensor:
    """Return the rows `indices [..., n]` of `points [..., P, d]`."""
    count, d = points.shape[-2:]
    runs = torch.arange(indices.shape[:-1].numel(), device=points.device).view(*indices.shape[:-1], 1)
    picked = points.reshape(-1, d).index_select(0, (indices + count * runs).flatten())
    return picked.view(*indices.shape, d)


def _spread(room: Tensor, u: Tensor, eta: float) -> Tensor:
    """Return the spread factor for uniform `u` where the bound lies `room` half gaps outside the parents."""
    alpha = u * (2 - (1 + room) ** -(eta + 1))
    return (alpha.clamp(max=1) / (2 - alpha.clamp(min=1))) ** (1 / (eta + 1))


def _choose(no: Tensor, yes: Tensor, which: Tensor) -> Tensor:
    """Return `where(which, yes, no)` of finite numbers by interpolation: exact at both ends, and faster on the CPU."""
    return torch.lerp(no, yes, which.to(no.dtype))
