"""Five test functions with known minimum 0, as in the literature or with a shifted optimum and rotated axes.

Shapes: `L` rows of points (of runs side by side), `n` points in each, `d` variables. Points are in the cube [-1, 1]^d,
the affine image of a function's bounds.

In the literature the optimum of four of the five is the centre of the domain, and Rosenbrock's is near it, which
flatters every method that is drawn to the centre. Two settings therefore move the optimum and the axes:

- `shift` s > 0: the optimum is at a place drawn uniformly within +-s of the half range about the centre;
- `rotate`: the axes are rotated about the optimum by an orthogonal matrix drawn uniformly (Haar).

Each run has its own shift and rotation, drawn from its seed. Both apply to Rosenbrock as to the others: its optimum
(1, .., 1) is moved to that place, and the axes are rotated about it. With neither setting, each function is exactly
that of the textbook. With a setting, points may have arguments outside the function's bounds; the formula simply holds
there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fne.config.registry import Key, register
from fne.core.randomness import generator
from fne.problems.space import Problem, Space, Variable

Formula = Callable[[Tensor], Tensor]
"""Points `[..., d]` in the function's own units -> values `[...]`."""


class Landscape:
    """A function of points in the cube, shifted and rotated for each run; a `fne.problems.space.Measure`.

    The shift and rotation of a run depend on its seed alone, and are the same for all functions of as many variables.

    Args:
        formula: the function of the textbook.
        half: half the range of each variable; the bounds are +-half.
        dim: number of variables.
        optimum: where the formula's optimum is, the same in each variable.
        shift: how far from the centre optima may lie, as a share of the half range; 0: where the textbook has it.
        rotate: whether to rotate the axes.
    """

    def __init__(
        self, formula: Formula, half: float, dim: int, *, optimum: float = 0.0, shift: float = 0.0, rotate: bool = False
    ) -> None:
        self._formula, self._half, self._dim, self._optimum = formula, half, dim, optimum
        self._shift, self._rotate = shift, rotate
        self._drawn: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, points: Tensor, seeds: Tensor, nodes: Sequence[str] = ()) -> Tensor:
        """Return the values of `points [L, n, d]`, float64 `[L, n, 1]`; all nodes measure the same.

        Args:
            points: points in the cube.
            seeds: seeds of the runs, int64 `[L]`: row `i` is in the landscape of run `seeds[i]`.
            nodes: not used.
        """
        points = points.double()
        if not (self._shift or self._rotate):
            return self._formula(self._half * points).unsqueeze(-1)
        places, rotations = zip(*[self._of(seed) for seed in seeds.tolist()], strict=True)
        argument = points - torch.stack(places).to(points).unsqueeze(1)
        if self._rotate:
            argument = argument @ torch.stack(rotations).to(points).mT
        return self._formula(self._half * argument + self._optimum).unsqueeze(-1)

    def place(self, seed: int) -> Tensor:
        """Return the optimum of the run with this seed, a point of the cube, float64 `[d]`."""
        return self._of(seed)[0]

    def _of(self, seed: int) -> tuple[Tensor, Tensor]:
        """Return the place of the optimum `[d]` and the rotation `[d, d]` of the run with this seed."""
        if seed not in self._drawn:
            draw = generator(seed, "problem")
            place = self._shift * (2 * torch.rand(self._dim, generator=draw, dtype=torch.float64) - 1)
            if not self._shift:
                place = torch.full_like(place, self._optimum / self._half)
            q, r = torch.linalg.qr(torch.randn(self._dim, self._dim, generator=draw, dtype=torch.float64))
            self._drawn[seed] = place, q * r.diagonal().sign()  # uniform only with the sign
        return self._drawn[seed]


# ------------------------------------------------------------------------------------------------ formulas
def _numbers(x: Tensor) -> Tensor:
    """Return 1 .. d."""
    return torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)


def ellipsoid_formula(x: Tensor) -> Tensor:
    """Return `sum i x_i^2`."""
    return (_numbers(x) * x.square()).sum(dim=-1)


def rosenbrock_formula(x: Tensor) -> Tensor:
    """Return `sum 100 (x_(i+1) - x_i^2)^2 + (1 - x_i)^2` over i < d."""
    return (100 * (x[..., 1:] - x[..., :-1].square()).square() + (1 - x[..., :-1]).square()).sum(dim=-1)


def ackley_formula(x: Tensor) -> Tensor:
    """Return `20 + e - 20 exp(-0.2 sqrt(mean x_i^2)) - exp(mean cos(2 pi x_i))`."""
    bowl = torch.expm1(-0.2 * x.square().mean(dim=-1).sqrt())  # the differences to 1, so that 0 is reached exactly
    waves = torch.expm1((2 * math.pi * x).cos().mean(dim=-1) - 1)
    return -20 * bowl - math.e * waves


def rastrigin_formula(x: Tensor) -> Tensor:
    """Return `sum x_i^2 + 10 (1 - cos(2 pi x_i))`."""
    return (x.square() + 10 * (1 - (2 * math.pi * x).cos())).sum(dim=-1)


def griewank_formula(x: Tensor) -> Tensor:
    """Return `1 + sum x_i^2 / 4000 - prod cos(x_i / sqrt(i))`."""
    return 1 + x.square().sum(dim=-1) / 4000 - (x / _numbers(x).sqrt()).cos().prod(dim=-1)


# ------------------------------------------------------------------------------------------------ problems
Dimension = Annotated[int, Key("number of variables", ge=1, le=100000)]


@dataclass(frozen=True, kw_only=True)
class Moved:
    """Settings of the shifted optimum, and of the axes rotated about it."""

    shift: Annotated[
        float, Key("largest distance of the optimum from the centre, in half ranges; 0: unmoved", ge=0, le=0.9)
    ] = 0.0
    rotate: Annotated[bool, Key("rotate the axes about the optimum")] = False


def _problem(formula: Formula, half: float, dim: int, moved: Moved, optimum: float = 0.0) -> Problem:
    space = Space([Variable(f"x{i}", -half, half) for i in range(1, dim + 1)])
    landscape = Landscape(formula, half, dim, optimum=optimum, shift=moved.shift, rotate=moved.rotate)
    return Problem(space, landscape, optimum=0.0)


@register("problem", "ellipsoid")
def ellipsoid(
    *,
    dim: Dimension = 10,
    moved: Moved,
) -> Problem:
    """Ellipsoid: unimodal, separable, within +-5.12."""
    return _problem(ellipsoid_formula, 5.12, dim, moved)


@register("problem", "rosenbrock")
def rosenbrock(
    *,
    dim: Annotated[int, Key("number of variables", ge=2, le=100000)] = 10,
    moved: Moved,
) -> Problem:
    """Rosenbrock: a narrow curved valley, within +-2.048; the optimum of the textbook is (1, .., 1)."""
    return _problem(rosenbrock_formula, 2.048, dim, moved, optimum=1.0)


@register("problem", "ackley")
def ackley(
    *,
    dim: Dimension = 10,
    moved: Moved,
) -> Problem:
    """Ackley: a narrow funnel in a nearly flat plain of many local optima, within +-32.768."""
    return _problem(ackley_formula, 32.768, dim, moved)


@register("problem", "rastrigin")
def rastrigin(
    *,
    dim: Dimension = 10,
    moved: Moved,
) -> Problem:
    """Rastrigin: a bowl with a regular grid of deep local optima, within +-5."""
    return _problem(rastrigin_formula, 5.0, dim, moved)


@register("problem", "griewank")
def griewank(
    *,
    dim: Dimension = 10,
    moved: Moved,
) -> Problem:
    """Griewank: a wide bowl with small ripples, within +-600."""
    return _problem(griewank_formula, 600.0, dim, moved)
