"""Test problems of several objectives with known fronts, DTLZ and WFG, as pymoo computes them (the extra `moo`).

Shapes: `L` rows of points (of the runs that go side by side), `n` points in each, `d` variables, `M` objectives.

DTLZ: K. Deb, L. Thiele, M. Laumanns, E. Zitzler, "Scalable test problems for evolutionary multiobjective optimization",
2005. WFG: S. Huband, P. Hingston, L. Barone, L. While, "A review of multiobjective test problems and a scalable test
problem toolkit", IEEE Transactions on Evolutionary Computation 10(5), 2006.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from fne.config.registry import Key, register
from fne.core.errors import FneError, SettingError
from fne.problems.known_fronts import front
from fne.problems.space import Problem, Space, Variable


class LibraryFunction:
    """A problem of pymoo as a `fne.problems.space.Measure`, the same for all runs and nodes.

    Args:
        problem: with bounds [0, `xu`].
    """

    def __init__(self, problem: Any) -> None:
        self._problem, self._half = problem, torch.from_numpy(problem.xu / 2)

    def __call__(self, points: Tensor, seeds: Tensor, nodes: Sequence[str] = ()) -> Tensor:
        """Return the values of points of the cube `[L, n, d]`, float64 `[L, n, M]`; seeds and nodes are of no matter.

        Points are moved into the cube first: WFG1 is NaN for what is below its bounds by a rounding error.
        """
        users = (points.double().clamp(-1, 1) + 1) * self._half
        values = self._problem.evaluate(users.flatten(0, -2).numpy(), return_values_of=["F"])
        return torch.from_numpy(np.ascontiguousarray(values)).view(*points.shape[:-1], self._problem.n_obj)


Objectives = Annotated[int, Key("values of a point", ge=2, le=20)]


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
    number: Annotated[int, Key("which of the suite", ge=1, le=7)],
    objectives: Objectives = 3,
    dim: Annotated[
        int, Key("variables; all but objectives - 1 are for the distance from the front", ge=2, le=100000)
    ] = 20,
) -> Problem:
    """DTLZ: scalable problems with known fronts, within [0, 1].

    1 has a linear front, 2 to 4 a sphere's, 5 and 6 a curve, 7 one in 2^(objectives - 1) pieces; 1 and 3 have very many
    local fronts, 4 crowds points at the rim, 6 is steep at its optimum.

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
    number: Annotated[int, Key("which of the suite", ge=1, le=9)],
    objectives: Objectives = 3,
    dim: Annotated[int, Key("variables", ge=2, le=100000)] = 20,
    position: Annotated[
        int | None,
        Key("variables for the place on the front, a multiple of objectives - 1; null: the least from 4 on", ge=4),
    ] = None,
) -> Problem:
    """WFG: scalable problems with known fronts of unlike ranges, variable i within [0, 2 i].

    1 is flat and biased, 2 in pieces, 3 has a line for a front and more; the others have an ellipsoid's: 4 is
    multimodal, 5 deceptive, 6 not separable, and in 7 to 9 variables depend on others.

    Raises:
        SettingError: positions that are no multiple, or variables that do not fit.
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
