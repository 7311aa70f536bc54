"""DTLZ and WFG against their formulas written out point by point, and their fronts against what can be attained."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Sequence

import moocore
import numpy as np
import pytest
import torch
from torch import Tensor

from fne.core.errors import FneError, SettingError
from fne.problems import dtlz_wfg as suites
from fne.problems.dtlz_wfg import front, wfg3_line
from fne.problems.space import Problem

PI = math.pi
ALL = [("dtlz", number) for number in range(1, 8)] + [("wfg", number) for number in range(1, 10)]
SMALL = 2000


def made(suite: str, number: int, objectives: int) -> Problem:
    dim = 21 if suite == "wfg" and number in (2, 3) and objectives == 10 else 20
    problem = getattr(suites, suite)(number=number, objectives=objectives, dim=dim)
    assert isinstance(problem, Problem)
    return problem


def measured(problem: Problem, users: Tensor) -> Tensor:
    """Measure points `[n, d]` that are given in the user's units."""
    return problem.measure(problem.space.to_cube(users).unsqueeze(0), torch.zeros(1, dtype=torch.int64), ["a"])[0]


def cloud(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


# ------------------------------------------------------------------------------------------------ formulas
def dtlz_textbook(number: int, x: Sequence[float], M: int) -> list[float]:
    place, rest = list(x[: M - 1]), x[M - 1 :]
    if number in (1, 3):
        g = 100 * (len(rest) + sum((v - 0.5) ** 2 - math.cos(20 * PI * (v - 0.5)) for v in rest))
    elif number == 6:
        g = sum(v**0.1 for v in rest)
    elif number == 7:
        g = 1 + 9 / len(rest) * sum(rest)
    else:
        g = sum((v - 0.5) ** 2 for v in rest)
    if number == 7:
        h = M - sum(v / (1 + g) * (1 + math.sin(3 * PI * v)) for v in place)
        return [*place, (1 + g) * h]
    if number == 1:
        up, down = place, [1 - v for v in place]
    else:
        if number == 4:
            place = [v**100 for v in place]
        if number in (5, 6):
            place[1:] = [(1 + 2 * g * v) / (2 * (1 + g)) for v in place[1:]]
        up, down = [math.cos(v * PI / 2) for v in place], [math.sin(v * PI / 2) for v in place]
    scale = 0.5 * (1 + g) if number == 1 else 1 + g
    return [scale * math.prod(up[: M - 1])] + [scale * math.prod(up[: M - m]) * down[M - m] for m in range(2, M + 1)]


def s_linear(y: float) -> float:
    return abs(y - 0.35) / abs(math.floor(0.35 - y) + 0.35)


def b_flat(y: float, A: float = 0.8, B: float = 0.75, C: float = 0.85) -> float:
    below = min(0, math.floor(y - B)) * A * (B - y) / B
    return A + below - min(0, math.floor(C - y)) * (1 - A) * (y - C) / (1 - C)


def b_param(y: float, u: float) -> float:
    A, B, C = 0.98 / 49.98, 0.02, 50
    return y ** (B + (C - B) * (A - (1 - 2 * u) * abs(math.floor(0.5 - u) + A)))


def s_multi(y: float, A: float, B: float, C: float = 0.35) -> float:
    away = abs(y - C) / (2 * (math.floor(C - y) + C))
    return (1 + math.cos((4 * A + 2) * PI * (0.5 - away)) + 4 * B * away**2) / (B + 2)


def s_decept(y: float, A: float = 0.35, B: float = 0.001, C: float = 0.05) -> float:
    left = math.floor(y - A + B) * (1 - C + (A - B) / B) / (A - B)
    right = math.floor(A + B - y) * (1 - C + (1 - A - B) / B) / (1 - A - B)
    return 1 + (abs(y - A) - B) * (left + right + 1 / B)


def mean(y: Sequence[float]) -> float:
    return sum(y) / len(y)


def r_nonsep(y: Sequence[float], A: int) -> float:
    n = len(y)
    total = sum(y[j] + sum(abs(y[j] - y[(j + k + 1) % n]) for k in range(A - 1)) for j in range(n))
    half = math.ceil(A / 2)
    return total / (n / A * half * (1 + 2 * A - 2 * half))


def wfg_textbook(number: int, z: Sequence[float], M: int, k: int) -> list[float]:
    """Huband et al. (2006), tables XI to XIV."""
    n = len(z)
    y = [v / (2 * i) for i, v in enumerate(z, start=1)]
    if number in (7, 9):
        y = [b_param(y[i], mean(y[i + 1 :])) if i < (k if number == 7 else n - 1) else y[i] for i in range(n)]
    if number == 8:
        y = [y[i] if i < k else b_param(y[i], mean(y[:i])) for i in range(n)]
    if number == 4:
        y = [s_multi(v, 30, 10) for v in y]
    elif number == 5:
        y = [s_decept(v) for v in y]
    elif number == 9:
        y = [s_decept(v) for v in y[:k]] + [s_multi(v, 30, 95) for v in y[k:]]
    else:
        y = y[:k] + [s_linear(v) for v in y[k:]]
    if number == 1:
        y = [v**0.02 for v in y[:k] + [b_flat(v) for v in y[k:]]]
    if number in (2, 3):
        y = y[:k] + [r_nonsep(y[i : i + 2], 2) for i in range(k, n, 2)]
    groups = [list(range(i * k // (M - 1), (i + 1) * k // (M - 1))) for i in range(M - 1)] + [list(range(k, len(y)))]
    if number == 1:
        t = [sum(2 * (i + 1) * y[i] for i in g) / sum(2 * (i + 1) for i in g) for g in groups]
    elif number in (6, 9):
        t = [r_nonsep([y[i] for i in g], len(g)) for g in groups]
    else:
        t = [mean([y[i] for i in g]) for g in groups]
    degenerate = [1 if number != 3 or i == 0 else 0 for i in range(M - 1)]
    x = [max(t[-1], a) * (v - 0.5) + 0.5 for v, a in zip(t[:-1], degenerate, strict=True)]
    shapes: dict[int, tuple[Callable[[float], float], Callable[[float], float]]] = {
        0: (lambda v: math.sin(v * PI / 2), lambda v: math.cos(v * PI / 2)),
        1: (lambda v: 1 - math.cos(v * PI / 2), lambda v: 1 - math.sin(v * PI / 2)),
        3: (lambda v: v, lambda v: 1 - v),
    }
    up, down = shapes[1 if number == 2 else number if number in (1, 3) else 0]
    h = [math.prod(map(up, x))] + [math.prod(map(up, x[: M - m])) * down(x[M - m]) for m in range(2, M + 1)]
    if number == 1:
        h[-1] = 1 - x[0] - math.cos(10 * PI * x[0] + PI / 2) / (10 * PI)
    if number == 2:
        h[-1] = 1 - x[0] * math.cos(5 * PI * x[0]) ** 2
    return [t[-1] + 2 * (m + 1) * v for m, v in enumerate(h)]


@pytest.mark.parametrize("objectives", [2, 3, 5, 10])
@pytest.mark.parametrize(("suite", "number"), ALL)
def test_values_are_those_of_the_formulas(suite: str, number: int, objectives: int) -> None:
    problem = made(suite, number, objectives)
    points = 2 * cloud(3, 8, len(problem.space)) - 1
    values = problem.measure(points, torch.arange(3), ["a"] * 3)
    assert values.dtype == torch.float64
    assert values.shape == (3, 8, objectives)
    assert problem.objectives == tuple(f"f{m}" for m in range(1, objectives + 1))
    position = {2: 4, 3: 4, 5: 4, 10: 9}[objectives]
    users = problem.space.to_user(points)
    assert users.amax(dim=(0, 1))[-1] <= (2 * len(problem.space) if suite == "wfg" else 1)
    for row, value in zip(users.flatten(0, 1).tolist(), values.flatten(0, 1).tolist(), strict=True):
        textbook = dtlz_textbook(number, row, objectives)
        wanted = textbook if suite == "dtlz" else wfg_textbook(number, row, objectives, position)
        np.testing.assert_allclose(value, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("suite", "number"), ALL)
def test_corners_and_what_is_a_rounding_error_outside_of_them_have_values(suite: str, number: int) -> None:
    problem = made(suite, number, 3)
    corners = torch.tensor(list(itertools.product([-1.0, 1.0, -0.3], repeat=4))).repeat(1, 5).double()[None]
    values = problem.measure(corners, torch.zeros(1), ["a"])
    assert values.isfinite().all()
    outside = torch.where(corners.abs() == 1, corners * (1 + 1e-9), corners)
    assert torch.equal(problem.measure(outside, torch.zeros(1), ["b"]), values)
    for i in range(0, 81, 16):
        row = problem.space.to_user(corners[0, i]).tolist()
        wanted = dtlz_textbook(number, row, 3) if suite == "dtlz" else wfg_textbook(number, row, 3, 4)
        # WFG1 raises to 0.02: what is 0 and what is a rounding error are 0.5 apart
        np.testing.assert_allclose(values[0, i], wanted, rtol=1e-9, atol=1e-9 if (suite, number) != ("wfg", 1) else 1.1)


# ------------------------------------------------------------------------------------------------ settings
@pytest.mark.parametrize(
    ("suite", "settings", "text"),
    [
        ("wfg", {"number": 2, "objectives": 10}, "problem.dim = 20: must be 19 or 21"),
        ("wfg", {"number": 3, "objectives": 10, "dim": 12}, "problem.dim = 12: must be 13"),
        ("wfg", {"number": 2, "dim": 5}, "problem.dim = 5: must be at least 6 with 4 variables for position"),
        ("wfg", {"number": 4, "dim": 4}, "problem.dim = 4: must be at least 5"),
        ("wfg", {"number": 4, "objectives": 5, "position": 6}, "problem.position = 6: must be a multiple of 4"),
        ("wfg", {"number": 4, "objectives": 2, "position": 3}, "problem.position = 3: must be a multiple of 1"),
        ("dtlz", {"number": 1, "objectives": 5, "dim": 4}, "problem.dim = 4: must be at least 5"),
    ],
)
def test_variables_that_do_not_fit_are_said_with_what_would(suite: str, settings: dict[str, int], text: str) -> None:
    with pytest.raises(SettingError, match=text):
        getattr(suites, suite)(**settings)


@pytest.mark.parametrize(("number", "objectives"), list(itertools.product([1, 2, 3], [2, 3, 4, 5, 10, 20])))
def test_the_dims_that_errors_name_work(number: int, objectives: int) -> None:
    position = next(k for k in range(4, 40) if k % (objectives - 1) == 0)
    for dim in range(position - 1, position + 6):
        fits = dim > position and (number not in (2, 3) or (dim - position) % 2 == 0)
        if fits:
            assert len(suites.wfg(number=number, objectives=objectives, dim=dim).space) == dim
            continue
        with pytest.raises(SettingError) as caught:
            suites.wfg(number=number, objectives=objectives, dim=dim)
        for near in caught.value.allowed.split(":")[0].split(" with")[0].removeprefix("at least ").split(" or "):
            suites.wfg(number=number, objectives=objectives, dim=int(near))


def test_a_position_of_ones_own_is_used() -> None:
    problem = suites.wfg(number=6, objectives=3, dim=10, position=8)
    users = problem.space.to_user(2 * cloud(4, 10) - 1)
    wanted = [wfg_textbook(6, row, 3, 8) for row in users.tolist()]
    np.testing.assert_allclose(measured(problem, users), wanted, rtol=1e-12)


@pytest.mark.parametrize("suite", ["dtlz", "wfg"])
def test_without_the_library_one_line_names_the_extra(suite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, f"pymoo.problems.many.{suite}", None)
    with pytest.raises(FneError, match=r"needs pymoo: pip install -e '\.\[moo\]' in the clone"):
        getattr(suites, suite)(number=2)


# ------------------------------------------------------------------------------------------------ fronts
def optimal(suite: str, number: int, problem: Problem, rows: int) -> Tensor:
    """Return points in the user's units whose distance variables are at their optimum, places drawn."""
    dim, objectives = len(problem.space), len(problem.objectives)
    if suite == "dtlz":
        users = cloud(rows, dim)
        users[:, objectives - 1 :] = 0.0 if number in (6, 7) else 0.5
        return users
    k = -(-4 // (objectives - 1)) * (objectives - 1)
    y = cloud(rows, dim) ** (50 if number == 1 else 1)
    y[:, k:] = 0.35
    A = 0.98 / 49.98
    exponent = np.vectorize(lambda u: 1 / (0.02 + 49.98 * (A - (1 - 2 * u) * abs(math.floor(0.5 - u) + A))))
    if number == 8:  # what b_param makes 0.35 of
        for i in range(k, dim):
            y[:, i] = torch.from_numpy(0.35 ** exponent(y[:, :i].mean(dim=1)))
    if number == 9:
        for i in range(dim - 2, k - 1, -1):
            y[:, i] = torch.from_numpy(0.35 ** exponent(y[:, i + 1 :].mean(dim=1)))
    return y * torch.tensor([v.high for v in problem.space.variables])


@pytest.mark.parametrize("objectives", [2, 3, 5])
@pytest.mark.parametrize(("suite", "number"), ALL)
def test_points_of_optimal_distance_are_on_the_surface_of_the_front(suite: str, number: int, objectives: int) -> None:
    problem = made(suite, number, objectives)
    f = measured(problem, optimal(suite, number, problem, 300))
    points = front(suite, number, objectives, size=SMALL)
    scales = 2 * torch.arange(1, objectives + 1)
    on: dict[tuple[str, int], Callable[[Tensor], Tensor]] = {
        ("dtlz", 1): lambda v: v.sum(dim=1) - 0.5,
        ("dtlz", 7): lambda v: v[:, -1] - 2 * objectives + (v[:, :-1] * (1 + (3 * PI * v[:, :-1]).sin())).sum(dim=1),
        **{("dtlz", i): lambda v: v.norm(dim=1) - 1 for i in range(2, 7)},
        **{("wfg", i): lambda v: (v / scales).norm(dim=1) - 1 for i in range(4, 10)},
    }
    if (suite, number) in on:
        assert on[suite, number](f).abs().max() < 1e-9
        assert on[suite, number](points).abs().max() < 1e-12
    if number in (5, 6) and suite == "dtlz" and objectives > 2:  # one angle is free: f_1 = f_2, f_3 = sqrt(2) f_1, ..
        for v in (f, points):
            wanted = [v[:, 0] * 2 ** (max(0, m - 1) / 2) for m in range(objectives - 1)]
            torch.testing.assert_close(v[:, :-1], torch.stack(wanted, dim=1), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("objectives", [2, 3, 5, 10])
@pytest.mark.parametrize(("suite", "number"), ALL)
def test_fronts_are_seeded_and_hold_no_dominated_points(suite: str, number: int, objectives: int) -> None:
    points = front(suite, number, objectives, size=SMALL)
    assert points.shape == (SMALL, objectives)
    assert points.dtype == torch.float64
    assert moocore.is_nondominated(points.numpy(), keep_weakly=True).all()
    assert points is front(suite, number, objectives, size=SMALL)
    if objectives == 3:
        assert torch.equal(points, front.__wrapped__(suite, number, objectives, size=SMALL))
        on_a_grid = suite == "dtlz" and number in (5, 6)
        assert torch.equal(points, front(suite, number, objectives, size=SMALL, seed=1)) == on_a_grid


@pytest.mark.parametrize("objectives", [2, 3, 5])
@pytest.mark.parametrize(("suite", "number"), ALL)
def test_nothing_that_can_be_measured_dominates_a_front(suite: str, number: int, objectives: int) -> None:
    problem, points = made(suite, number, objectives), front(suite, number, objectives, size=SMALL)
    anywhere = problem.space.to_user(2 * cloud(1000, len(problem.space)) - 1)
    near = optimal(suite, number, problem, 1000)
    values = measured(problem, torch.cat([anywhere, near, 0.99 * near + 0.01 * anywhere]))
    better = torch.cat([(some.unsqueeze(1) - values).amin(dim=-1).amax(dim=1) for some in points.split(200)])
    assert better.max() <= 1e-9


@pytest.mark.parametrize(("suite", "number"), [item for item in ALL if item != ("wfg", 3)])
def test_all_optimal_points_have_one_of_the_front_near(suite: str, number: int) -> None:
    problem, points = made(suite, number, 3), front(suite, number, 3, size=SMALL)
    users = optimal(suite, number, problem, 3000)
    values = measured(problem, users)
    if (suite, number) == ("wfg", 1):  # what 0.35 is off by a rounding is half a unit to the power of 0.02, for all
        users[:, :4] = 0
        values -= measured(problem, users)[:, :1]
    values = values[torch.from_numpy(moocore.is_nondominated(torch.cat([values, points]).numpy()))[: len(values)]]
    assert len(values) > 100
    assert torch.cdist(values, points).amin(dim=1).max() < (0.5 if suite == "wfg" else 0.2)


@pytest.mark.parametrize("objectives", [3, 4])
def test_the_front_of_wfg3_has_its_line_and_the_part_that_is_none(objectives: int) -> None:
    """Against what is left of 200,000 points that the problem measured, for all of its M underlying parameters."""
    problem = suites.wfg(number=3, objectives=objectives, dim=10)
    k = {3: 4, 4: 6}[objectives]
    t = cloud(200_000, objectives)
    t[:, 1:-1] = (3 * t[:, 1:-1] - 1).clamp(0, 1)
    t[:1000, -1] = 0
    y = t[:, :-1].repeat_interleave(k // (objectives - 1), dim=1)
    distance = torch.stack([0.35 + 0.65 * t[:, -1], torch.full_like(t[:, -1], 0.35)], dim=1)
    users = torch.cat([y, distance.repeat(1, (10 - k) // 2)], dim=1) * 2 * torch.arange(1, 11)
    values = measured(problem, users)
    values = values[torch.from_numpy(moocore.is_nondominated(values.numpy()))]
    points = front("wfg", 3, objectives)
    joined = torch.cat([values, points])
    kept = torch.from_numpy(moocore.is_nondominated(joined.numpy()))
    assert kept[len(values) :].all()
    left = values[kept[: len(values)]][::20]
    assert len(left) > 1000
    assert torch.cdist(left, points).amin(dim=1).mean() < 0.06
    scales = 2 * torch.arange(1, objectives + 1)
    line = (points / scales).sum(dim=1) < 1 + 1e-9
    assert 0 < line.double().mean() < 0.1
    assert (points[line, 0] - points[line, 1] / 2).abs().max() < 1e-9


def test_the_bands_of_dtlz7_are_those_of_the_literature() -> None:
    first = front("dtlz", 7, 3)[:, :-1]
    low, high = first < 0.4, first > 0.4
    for part, (start, end) in ((low, (0, 0.251412)), (high, (0.631627, 0.859401))):
        assert first[part].min() == pytest.approx(start, abs=2e-4)
        assert first[part].max() == pytest.approx(end, abs=2e-4)
    regions = (first > 0.4).long() @ torch.tensor([1, 2])
    assert regions.bincount().min() > 2000


@pytest.mark.parametrize("number", [1, 2, 3])
def test_thinned_fronts_are_more_even_than_drawn_ones(number: int) -> None:
    def spacing(points: Tensor) -> float:
        nearest = torch.cdist(points, points).fill_diagonal_(math.inf).amin(dim=1)
        return float(nearest.quantile(0.05) / nearest.median())

    assert spacing(front("wfg", number, 3, size=SMALL)) > 1.2 * spacing(front("dtlz", 2, 3, size=SMALL))


def test_uniform_fronts_are_uniform() -> None:
    sphere, simplex = front("dtlz", 2, 5), front("dtlz", 1, 5)
    torch.testing.assert_close(sphere.square().mean(dim=0), torch.full((5,), 0.2).double(), atol=0.01, rtol=0)
    torch.testing.assert_close(simplex.mean(dim=0), torch.full((5,), 0.1).double(), atol=5 * 0.0817 / 100, rtol=0)
    # a Dirichlet's variance: (1/5)(4/5)/6, halved lengths
    torch.testing.assert_close(simplex.var(dim=0), torch.full((5,), 0.25 * 0.16 / 6).double(), atol=3e-4, rtol=0)


@pytest.mark.parametrize("wrong", [("zdt", 1, 2), ("dtlz", 8, 3), ("wfg", 0, 3), ("wfg", 1, 1)])
def test_a_front_that_is_none_is_an_error(wrong: tuple[str, int, int]) -> None:
    with pytest.raises(FneError, match="no front of"):
        front(*wrong)


def test_a_problem_knows_its_front() -> None:
    problem = made("wfg", 4, 3)
    assert problem.front is not None
    assert problem.front() is front("wfg", 4, 3)


@pytest.mark.parametrize("objectives", [2, 3, 5])
def test_the_line_of_wfg3_goes_between_two_ends_on_its_front(objectives: int) -> None:
    line = wfg3_line(objectives, 101)
    ends = {2: [2, 0], 3: [1, 2, 0], 5: [0.25, 0.5, 1.5, 4, 0]}
    assert line[0].tolist() == [0] * (objectives - 1) + [2 * objectives]
    assert line[-1].tolist() == ends[objectives]
    straight = line[0] + torch.linspace(0, 1, 101, dtype=torch.float64).unsqueeze(1) * (line[-1] - line[0])
    torch.testing.assert_close(line, straight)
    whole = front("wfg", 3, objectives)
    assert not bool((whole.unsqueeze(0) < line.unsqueeze(1) - 1e-9).all(dim=2).any())
    assert float(torch.cdist(line, whole).amin(dim=1).max()) < 0.25
