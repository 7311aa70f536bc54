"""The five test functions, and what moving the optimum and turning the axes does to them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fne.problems import test_functions as problems
from fne.problems.space import Measure, Problem
from fne.problems.test_functions import Landscape

NAMES = ("ellipsoid", "rosenbrock", "ackley", "rastrigin", "griewank")
BOUNDS = {"ellipsoid": 5.12, "rosenbrock": 2.048, "ackley": 32.768, "rastrigin": 5, "griewank": 600}


def made(name: str, **settings: Any) -> Problem:
    problem = getattr(problems, name)(**settings)
    assert isinstance(problem, Problem)
    return problem


def landscape(name: str, **settings: Any) -> Landscape:
    measure = made(name, **settings).measure
    assert isinstance(measure, Landscape)
    return measure


def measured(measure: Measure, points: Tensor, runs: Tensor) -> Tensor:
    """Return the values `[L, n]` of points, of the one objective that there is."""
    values = measure(points, runs, [f"node-{row}" for row in range(len(points))])
    assert values.dtype == torch.float64
    assert values.shape == (*points.shape[:2], 1)
    return values[..., 0]


def cloud(rows: int, points: int, dim: int) -> Tensor:
    draw = torch.Generator().manual_seed(3)
    return 2 * torch.rand(rows, points, dim, generator=draw, dtype=torch.float64) - 1


def seeds(*values: int) -> Tensor:
    return torch.tensor(values)


# ------------------------------------------------------------------------------------------------ formulas
@pytest.mark.parametrize(
    ("formula", "point", "value"),
    [
        (problems.ellipsoid_formula, (1.0, -2.0, 3.0), 1 + 2 * 4 + 3 * 9),
        (problems.rosenbrock_formula, (2.0, 3.0, -1.0), 100 * 1 + 1 + 100 * 100 + 4),
        (problems.ackley_formula, (3.0, -3.0), 20 - 20 * math.exp(-0.6)),
        (problems.rastrigin_formula, (0.5, 2.0), 0.25 + 20 + 4),
        (problems.griewank_formula, (math.pi, 0.0), 2 + math.pi**2 / 4000),
    ],
)
def test_values_worked_out_by_hand(formula: Callable[[Tensor], Tensor], point: tuple[float, ...], value: float) -> None:
    assert float(formula(torch.tensor(point, dtype=torch.float64))) == pytest.approx(value, rel=1e-13)


TEXTBOOK: dict[str, Callable[[np.ndarray], float]] = {
    "ellipsoid": lambda x: sum((i + 1) * x[i] ** 2 for i in range(len(x))),
    "rosenbrock": lambda x: sum(100 * (x[i + 1] - x[i] ** 2) ** 2 + (1 - x[i]) ** 2 for i in range(len(x) - 1)),
    "ackley": lambda x: (
        -20 * np.exp(-0.2 * np.sqrt(np.mean(x**2))) - np.exp(np.mean(np.cos(2 * np.pi * x))) + 20 + np.e
    ),
    "rastrigin": lambda x: 10 * len(x) + np.sum(x**2 - 10 * np.cos(2 * np.pi * x)),
    "griewank": lambda x: 1 + np.sum(x**2) / 4000 - np.prod([np.cos(x[i] / np.sqrt(i + 1)) for i in range(len(x))]),
}


@pytest.mark.parametrize("name", NAMES)
def test_unmoved_it_is_the_function_of_the_textbook_in_the_units_of_its_bounds(name: str) -> None:
    problem, points = made(name, dim=7), cloud(2, 5, 7)
    values = measured(problem.measure, points, seeds(0, 1))
    users = problem.space.to_user(points).numpy()
    wanted = [[TEXTBOOK[name](x) for x in row] for row in users]
    np.testing.assert_allclose(values.numpy(), wanted, rtol=1e-12)
    assert [(v.low, v.high) for v in problem.space.variables] == [(-BOUNDS[name], BOUNDS[name])] * 7
    best = torch.full((1, 1, 7), (name == "rosenbrock") / BOUNDS[name], dtype=torch.float64)
    assert measured(problem.measure, best, seeds(0)).item() == pytest.approx(0, abs=1e-25)
    assert problem.optimum == 0
    assert problem.objectives == ("value",)


# ------------------------------------------------------------------------------------------------ moved, turned
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("shift", "rotate"), [(0.3, False), (0.0, True), (0.3, True)])
def test_the_optimum_is_at_the_place_of_the_run(name: str, shift: float, rotate: bool) -> None:
    measure, runs = landscape(name, dim=5, shift=shift, rotate=rotate), range(40)
    places = torch.stack([measure.place(run) for run in runs])
    values = measured(measure, places.unsqueeze(1), seeds(*runs))
    assert values.abs().max() < 1e-25
    near = measured(measure, places.unsqueeze(1) + 0.01 * cloud(40, 3, 5), seeds(*runs))
    assert near.min() > 0
    if not shift:
        assert (places == (name == "rosenbrock") / BOUNDS[name]).all()
        return
    assert 0.25 < places.abs().max() <= 0.3  # of 200 numbers
    assert places.square().mean() == pytest.approx(0.3**2 / 3, rel=0.15)
    assert torch.equal(places, torch.stack([landscape("ackley", dim=5, shift=shift).place(run) for run in runs]))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("shift", "rotate"), [(0.3, False), (0.0, True), (0.3, True)])
def test_a_run_alone_has_the_landscape_it_has_in_a_batch(name: str, shift: float, rotate: bool) -> None:
    points, runs = cloud(4, 6, 5), seeds(8, 3, 11, 3)
    together = landscape(name, dim=5, shift=shift, rotate=rotate)(points, runs)
    for i in range(4):
        alone = landscape(name, dim=5, shift=shift, rotate=rotate)(points[i : i + 1], runs[i : i + 1])
        torch.testing.assert_close(alone[0], together[i], rtol=1e-12, atol=0)
    same = landscape(name, dim=5, shift=shift, rotate=rotate)(points[:1].expand(2, -1, -1), runs[:2])
    assert not torch.allclose(same[0], same[1], rtol=1e-3)


@pytest.mark.parametrize("shift", [0.0, 0.3])
def test_a_rotation_is_orthogonal_about_the_optimum_and_keeps_what_depends_on_distance_alone(shift: float) -> None:
    def sphere(x: Tensor) -> Tensor:
        return (x - 1).square().sum(dim=-1)

    points, runs = cloud(3, 20, 6), seeds(0, 1, 2)
    still, turned = (Landscape(sphere, 2.0, 6, optimum=1.0, shift=shift, rotate=rotate) for rotate in (False, True))
    torch.testing.assert_close(still(points, runs), turned(points, runs), rtol=1e-12, atol=0)
    axes = [Landscape(lambda x, i=i: x[..., i], 1.0, 6, rotate=True) for i in range(6)]  # type: ignore[misc]
    images = torch.cat([axis(torch.eye(6).expand(2, 6, 6), seeds(4, 5)) for axis in axes], dim=-1)
    torch.testing.assert_close(images @ images.mT, torch.eye(6, dtype=torch.float64).expand(2, 6, 6))


def test_rotations_are_uniform() -> None:
    axis = Landscape(lambda x: x[..., 0], 1.0, 3, rotate=True)
    images = axis(torch.eye(3).expand(600, 3, 3), torch.arange(600))[..., 0]  # a uniform unit vector each
    assert images.mean(dim=0).abs().max() < 0.1
    assert (images.square().mean(dim=0) - 1 / 3).abs().max() < 0.05


@pytest.mark.parametrize("shift", [0.0, 0.4])
def test_ellipsoid_is_quadratic_with_curvatures_1_to_d_however_turned(shift: float) -> None:
    dim, step = 4, 0.5
    measure = landscape("ellipsoid", dim=dim, shift=shift, rotate=True)
    steps = step * torch.eye(dim, dtype=torch.float64)
    pairs = measure.place(7) + (steps[:, None] + steps).reshape(-1, dim)
    singles = measure.place(7) + steps
    values = measured(measure, torch.cat([pairs, singles])[None], seeds(7))[0]
    ones = values[-dim:]
    hessian = (values[:-dim].view(dim, dim) - ones[:, None] - ones) / (2 * step**2 * 5.12**2)
    wanted = torch.arange(1, dim + 1, dtype=torch.float64)
    torch.testing.assert_close(torch.linalg.eigvalsh(hessian), wanted, rtol=1e-9, atol=1e-9)
    assert hessian.fill_diagonal_(0).abs().max() > 0.1  # not separable any more
