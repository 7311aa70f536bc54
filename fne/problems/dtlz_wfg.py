"""Test problems with several objectives, DTLZ and WFG, computed by pymoo (the extra `moo`), and their known fronts.

Shapes: `L` rows of points (of runs side by side), `n` points in each, `d` variables, `M` objectives.

DTLZ: K. Deb, L. Thiele, M. Laumanns, E. Zitzler, "Scalable test problems for evolutionary multiobjective optimization",
2005. WFG: S. Huband, P. Hingston, L. Barone, L. While, "A review of multiobjective test problems and a scalable test
problem toolkit", IEEE Transactions on Evolutionary Computation 10(5), 2006.

The fronts are points `[n, M]` for indicators, seeded and made in memory. IGD depends on the number and the distribution
of the points, so a figure should come with both. Here a front has 10,000 points unless the caller gives another number,
and no attainable point dominates one of them:

| problem | points |
|---|---|
| DTLZ1 | uniform on the simplex, sum 0.5 |
| DTLZ2, 3, 4 | uniform on the unit sphere's positive part |
| DTLZ5, 6 | equal steps of the angle on the curve |
| DTLZ7 | f_1 .. f_(M-1) uniform in the bands where none dominates, all 2^(M-1) regions |
| WFG1, 2 | drawn densely on the surface, then thinned to one in each cell of a grid |
| WFG3 | M = 2: equal steps on the line; else drawn densely on all parts, then thinned |
| WFG4 to 9 | uniform on the unit sphere's positive part, then times (2, 4, .., 2M) |

Dominated points are left out by conditions, not by comparing samples, which lets too many stay:

- DTLZ7, WFG2: a place x along one variable is kept where its term is less than at every smaller x, since a smaller x is
  at least as good for all other objectives.
- WFG3: `_beaten` says which points are dominated, at 1,000 distances; a point missed between them is dominated by less
  than 1e-6.

Readings: DTLZ5 and 6 have the curve (all angles except the first are pi/4) for every M, as their authors give it.
Non-dominated points with g > 0 exist for M > 3; as in the literature they are no part of the front. WFG3 has,
for M > 2, a line and a part that is not degenerate, which its authors overlooked (Ishibuchi, Masuda, Nojima, 2016);
both belong to the front here.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from fne.config.registry import Key, register
from fne.core.errors import FneError, SettingError
from fne.core.randomness import generator
from fne.problems.space import Problem, Space, Variable


class LibraryFunction:
    """A problem of pymoo as a `fne.problems.space.Measure`, the same for all runs and nodes.

    Args:
        problem: pymoo's problem, with bounds [0, `xu`].
    """

    def __init__(self, problem: Any) -> None:
        self._problem, self._half = problem, torch.from_numpy(problem.xu / 2)

    def __call__(self, points: Tensor, seeds: Tensor, nodes: Sequence[str] = ()) -> Tensor:
        """Return the values of points of the cube `[L, n, d]`, float64 `[L, n, M]`; seeds and nodes are not used.

        Points are moved into the cube first: WFG1 is NaN for a point that is below its bounds by a rounding error.
        """
        users = (points.double().clamp(-1, 1) + 1) * self._half
        values = self._problem.evaluate(users.flatten(0, -2).numpy(), return_values_of=["F"])
        return torch.from_numpy(np.ascontiguousarray(values)).view(*points.shape[:-1], self._problem.n_obj)


Objectives = Annotated[int, Key("number of objectives", ge=2, le=20)]


def _problem(suite: str, number: int, objectives: int, dim: int, **settings: int) -> Problem:
    try:
        module = importlib.import_module(f"pymoo.problems.many.{suite}")
    except ImportError as error:
        raise FneError(f"problem {suite!r} needs pymoo: pip install -e '.[moo]' in the clone") from error
    made = getattr(module, f"{suite.upper()}{number}")(n_var=dim, n_obj=objectives, **settings)
    space = Space([Variable(f"x{i}", 0.0, float(high)) for i, high in enumerate(made.xu, start=1)])
    names = tuple(f"f{i}" for i in range(1, objectives + 1))
    points = functools.partial(front, suite, number, objectives)
    return Problem(space, LibraryFunction(made), objectives=names, front=points)


@register("problem", "dtlz")
def dtlz(
    *,
    number: Annotated[int, Key("number of the problem in the suite", ge=1, le=7)],
    objectives: Objectives = 3,
    dim: Annotated[
        int, Key("number of variables; all except objectives - 1 set the distance from the front", ge=2, le=100000)
    ] = 20,
) -> Problem:
    """DTLZ: scalable problems with known fronts, within [0, 1].

    The front of 1 is linear, of 2 to 4 spherical, of 5 and 6 a curve, of 7 in 2^(objectives - 1) pieces; 1 and 3 have
    very many local fronts, 4 crowds points at the rim, 6 is steep at its optimum.

    Raises:
        SettingError: fewer variables than objectives.
        FneError: the extra `moo` is not installed.
    """
    if dim < objectives:
        raise SettingError("problem.dim", dim, f"at least {objectives}, as many as problem.objectives")
    return _problem("dtlz", number, objectives, dim)


@register("problem", "wfg")
def wfg(
    *,
    number: Annotated[int, Key("number of the problem in the suite", ge=1, le=9)],
    objectives: Objectives = 3,
    dim: Annotated[int, Key("number of variables", ge=2, le=100000)] = 20,
    position: Annotated[
        int | None,
        Key("number of position variables, a multiple of objectives - 1; null: the least such number from 4 on", ge=4),
    ] = None,
) -> Problem:
    """WFG: scalable problems with known fronts of unlike ranges, variable i within [0, 2 i].

    The front of 1 is flat and biased, of 2 in pieces, of 3 a line and more; the others have an ellipsoid for a front: 4
    is multimodal, 5 deceptive, 6 not separable, and in 7 to 9 variables depend on others.

    Raises:
        SettingError: `position` is no multiple of objectives - 1, or `dim` does not fit.
        FneError: the extra `moo` is not installed.
    """
    share = objectives - 1
    if position is None:
        position = -(-4 // share) * share
    if position % share or position < 4:
        raise SettingError("problem.position", position, f"a multiple of {share} (objectives - 1), at least 4")
    pairs = number in (2, 3)
    if dim < position + 1 + pairs:
        raise SettingError(
            "problem.dim", dim, f"at least {position + 1 + pairs} with {position} variables for position"
        )
    if pairs and (dim - position) % 2:
        near = f"{dim - 1} or {dim + 1}" if dim > position + 3 else f"{dim + 1}"
        raise SettingError("problem.dim", dim, f"{near}: WFG{number} pairs all but the {position} for position")
    return _problem("wfg", number, objectives, dim, k=position)


_DENSE = 20
"""Number of points drawn for each point that thinning keeps."""


@functools.cache
def front(name: str, number: int, objectives: int, size: int = 10_000, seed: int = 0) -> Tensor:
    """Return `size` points of a Pareto front, float64 `[n, M]`; the tensor is shared between calls: do not change it.

    Args:
        name: `dtlz` or `wfg`.
        number: number of the problem in the suite.
        objectives: M, at least 2.
        size: number of points.
        seed: seed of the random points.

    Raises:
        FneError: no such problem exists.
    """
    if not (1 <= number <= {"dtlz": 7, "wfg": 9}.get(name, 0) and objectives >= 2):
        raise FneError(
            f"no front of {name!r} {number} with {objectives} objectives: dtlz 1 to 7, wfg 1 to 9, from 2 on"
        )
    draw = generator("front", name, number, objectives, seed)
    if name == "dtlz":
        return _dtlz(number, objectives, size, draw)
    values = _WFG.get(number, _sphere)(objectives, size, draw)
    return values * _scales(objectives) if number > 3 else values


def _scales(objectives: int) -> Tensor:
    return torch.arange(2, 2 * objectives + 1, 2, dtype=torch.float64)


def _uniform(rows: int, columns: int, draw: torch.Generator) -> Tensor:
    return torch.rand(rows, columns, generator=draw, dtype=torch.float64)


def _sphere(objectives: int, size: int, draw: torch.Generator) -> Tensor:
    normal = torch.randn(size, objectives, generator=draw, dtype=torch.float64).abs()
    return normal / normal.square().sum(dim=-1, keepdim=True).sqrt()


def _shape(up: Tensor, down: Tensor) -> Tensor:
    """Return h_1 .. h_M `[n, M]` of both suites' recursion: h_1 = up_1 .. up_(M-1), .., h_M = down_1."""
    lead = torch.cat([torch.ones_like(up[:, :1]), up], dim=-1).cumprod(dim=-1)
    return torch.cat([lead[:, -1:], (lead[:, :-1] * down).flip(-1)], dim=-1)


def _dtlz(number: int, objectives: int, size: int, draw: torch.Generator) -> Tensor:
    if number == 1:
        parts = -torch.log1p(-_uniform(size, objectives, draw))
        return parts / (2 * parts.sum(dim=-1, keepdim=True))
    if number <= 4:
        return _sphere(objectives, size, draw)
    if number <= 6:
        angles = torch.full((size, objectives - 1), math.pi / 4, dtype=torch.float64)
        angles[:, 0] = torch.linspace(0, math.pi / 2, size, dtype=torch.float64)
        return _shape(angles.cos(), angles.sin())

    def term(x: Tensor) -> Tensor:
        return 2 - x * (1 + (3 * math.pi * x).sin())

    places = _descending(term)
    first = places[torch.randint(len(places), (size, objectives - 1), generator=draw)]
    return torch.cat([first, 2 + term(first).sum(dim=-1, keepdim=True)], dim=-1)


# ------------------------------------------------------------------------------------------------ gaps
def _descending(term: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the places `[n]` of [0, 1], of 2^20, where a term is less than at all smaller places; exact to 1e-10."""
    places = torch.linspace(0, 1, 2**20 + 1, dtype=torch.float64)
    terms = term(places)
    before = torch.cat([torch.full_like(terms[:1], math.inf), terms.cummin(dim=0).values[:-1]])
    return places[terms < before]


# ------------------------------------------------------------------------------------------------ WFG1 to 3
def _wfg1(objectives: int, size: int, draw: torch.Generator) -> Tensor:
    x = _convex_positions(objectives, size, draw)
    points = _convex(x, 1 - x[:, :1] + (10 * math.pi * x[:, :1]).sin() / (10 * math.pi))
    return points[_spread(points, size, draw)]


def _wfg2(objectives: int, size: int, draw: torch.Generator) -> Tensor:
    def last(x: Tensor) -> Tensor:
        return 1 - x * (5 * math.pi * x).cos().square()

    places = _descending(last)
    x = _convex_positions(objectives, size, draw)
    x[:, 0] = places[(x[:, 0] * len(places)).long().clamp(max=len(places) - 1)]
    points = _convex(x, last(x[:, :1]))
    return points[_spread(points, size, draw)]


def _convex_positions(objectives: int, size: int, draw: torch.Generator) -> Tensor:
    """Draw positions `[n, M-1]`: half of them favour the wide parts of a front, the other half its tips."""
    power = 1 / torch.arange(objectives - 1, 0, -1, dtype=torch.float64)
    power = torch.stack([power, torch.ones_like(power)]).repeat(_DENSE * size // 2, 1)
    return (1 - _uniform(len(power), objectives - 1, draw) ** power).acos() * (2 / math.pi)


def _convex(x: Tensor, last: Tensor) -> Tensor:
    """Return points of the convex shape with another last objective `[n, 1]`."""
    angles = x * (math.pi / 2)
    h = _shape(1 - angles.cos(), 1 - angles.sin())
    return torch.cat([h[:, :-1], last], dim=-1) * _scales(h.shape[1])


def wfg3_line(objectives: int, size: int = 10_000) -> Tensor:
    """Return equal steps `[size, M]` on the line that WFG3's authors and the literature take as its front."""
    line = _line(objectives, size)
    return _shape(line, 1 - line) * _scales(objectives)


def _line(objectives: int, size: int) -> Tensor:
    line = torch.full((size, objectives - 1), 0.5, dtype=torch.float64)
    line[:, 0] = torch.linspace(0, 1, size, dtype=torch.float64)
    return line


def _wfg3(objectives: int, size: int, draw: torch.Generator) -> Tensor:
    scales, line = _scales(objectives), _line(objectives, size)
    if objectives == 2:
        return wfg3_line(objectives, size)
    # M parameters map to M objectives: away from the parameters' ends a point has a better one beside it. At a
    # non-dominated point one of x_2 .. x_(M-1) is at its upper end, see `_beaten`; the others may be anywhere, also at
    # their ends.
    t = _uniform(4 * _DENSE * size, objectives, draw)
    t[:, 1:-1] = (3 * t[:, 1:-1] - 1).clamp(0, 1)
    t = t[(t[:, 1:-1] == 1).any(dim=-1)][: _DENSE * size]
    distance = torch.cat([torch.zeros(size, 1, dtype=torch.float64), (1.2 * t[:, -1:]).clamp(max=1)])
    x = torch.cat([line, t[:, :-1]])
    x[size:, 1:] = 0.5 + distance[size:] * (x[size:, 1:] - 0.5)
    h = _shape(x, 1 - x)
    for steps, most in ((64, size + size // 20), (1000, size)):  # few points remain for the many steps
        for share in np.linspace(1, 0, steps, endpoint=False):
            kept = ~_beaten(h, distance, share * distance)
            h, distance = h[kept], distance[kept]
        picked = _spread(distance + h * scales, most, draw)
        h, distance = h[picked], distance[picked]
    return distance + h * scales


def _beaten(h: Tensor, distance: Tensor, step: Tensor) -> Tensor:
    """Return which points of WFG3 are dominated by a point whose distance variable is smaller by a step, bool `[n]`.

    A point is `f_m = t + 2m h_m`, h on the simplex, with `x_i = p_i / p_(i-1)` in `(1 -+ t)/2` for i > 1, where p_i is
    `h_1 + .. + h_(M-i)`. One of distance `t - step` dominates it if all its h_m are at most `h_m + step / 2m`. Least
    p_1, then least p_2 and so on leave the most room, so this chain exists if any does.

    Args:
        h: shares `[n, M]`.
        distance: t `[n, 1]`.
        step: at most t `[n, 1]`.
    """
    room = (h + step / _scales(h.shape[1])).flip(-1)  # of h_M .. h_1
    low = (1 - (distance - step)[:, 0]) / 2
    p = (1 - room[:, 0]).clamp(min=0)
    exists = torch.ones_like(p, dtype=torch.bool)
    for i in range(1, h.shape[1] - 1):
        exists &= low * p <= room[:, i]
        p = torch.maximum(low * p, p - room[:, i])
    return exists & (p <= room[:, -1]) & (step[:, 0] > 0)


_WFG = {1: _wfg1, 2: _wfg2, 3: _wfg3}


def _spread(points: Tensor, size: int, draw: torch.Generator) -> Tensor:
    """Return the rows of `size` evenly spread points: one in each occupied cell of a grid with that many such cells."""
    order = torch.randperm(len(points), generator=draw)
    factors = torch.randint(2**62, (points.shape[1],), generator=draw)  # cells are told apart by a hash

    def one_a_cell(edge: float) -> Tensor:
        cells = ((points[order] / edge).floor().long() * factors).sum(dim=-1)
        return order[torch.from_numpy(np.unique(cells.numpy(), return_index=True)[1])]

    low, high = 0.0, float(points.max())
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (middle, high) if len(one_a_cell(middle)) >= size else (low, middle)
    picked = one_a_cell(low) if low else order
    return picked[torch.randperm(len(picked), generator=draw)][:size]
