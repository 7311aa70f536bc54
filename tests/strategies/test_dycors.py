"""The cubic surrogate against SciPy's, and the search that proposes points by it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.interpolate import RBFInterpolator
from torch import Tensor

from fne.core.randomness import generator
from fne.problems.space import Space, Variable
from fne.problems.test_functions import Landscape, ellipsoid_formula
from fne.surrogates import cubic
from fne.surrogates.cubic import RIDGE
from fne.surrogates.dycors import Dycors, compressed

NAN, INF = math.nan, math.inf


def cloud(*shape: int, seed: int = 0) -> Tensor:
    return 2 * torch.rand(shape, generator=generator("cloud", seed), dtype=torch.float64) - 1


def doubles(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def all_of(x: Tensor) -> Tensor:
    return torch.ones(x.shape[:2], dtype=torch.bool)


class Single:
    """The surrogate of one output."""

    def __init__(self, made: cubic.Cubic) -> None:
        self.made, self.weights = made, made.weights[..., 0]

    def predict(self, x: Tensor) -> Tensor:
        return self.made.predict(x)[..., 0]


def fit(x: Tensor, y: Tensor, valid: Tensor) -> Single:
    return Single(cubic.fit(x, y.unsqueeze(-1), valid))


def scipys(x: Tensor, y: Tensor, at: Tensor) -> np.ndarray:
    made = RBFInterpolator(x.numpy(), y.numpy(), kernel="cubic", degree=1, smoothing=RIDGE)
    return np.asarray(made(at.numpy()))


def draws(runs: int, purpose: str = "candidates") -> list[torch.Generator]:
    return [generator(purpose, run) for run in range(runs)]


# ------------------------------------------------------------------------------------------------ surrogate
@pytest.mark.parametrize(("dim", "count"), [(1, 2), (1, 9), (3, 20), (10, 110), (30, 200)])
def test_the_interpolant_is_that_of_scipy(dim: int, count: int) -> None:
    x, y, at = cloud(3, count, dim), 10 * cloud(3, count, seed=1), 1.5 * cloud(3, 40, dim, seed=2)
    surrogate = fit(x, y, all_of(x))
    got = surrogate.predict(at)
    for run in range(3):
        np.testing.assert_allclose(got[run].numpy(), scipys(x[run], y[run], at[run]), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(surrogate.predict(x), y, rtol=0, atol=1e-3)


def test_outputs_are_fitted_side_by_side() -> None:
    x, y, at = cloud(2, 30, 4), cloud(2, 30, 3, seed=1), cloud(2, 20, 4, seed=2)
    together = cubic.fit(x, y, all_of(x)).predict(at)
    assert together.shape == (2, 20, 3)
    for output in range(3):
        torch.testing.assert_close(together[..., output], fit(x, y[..., output], all_of(x)).predict(at))


def test_rows_that_are_not_valid_have_no_influence() -> None:
    x, y, at = cloud(2, 30, 4), cloud(2, 30, seed=1), cloud(2, 20, 4, seed=2)
    valid = torch.rand(2, 30, generator=generator("valid")) < 0.6
    wanted = [fit(x[i, v][None], y[i, v][None], v[v][None]).predict(at[i : i + 1])[0] for i, v in enumerate(valid)]
    for rubbish in (NAN, INF, 1e300):
        spoilt = fit(x.masked_fill(~valid[..., None], rubbish), y.masked_fill(~valid, rubbish), valid)
        torch.testing.assert_close(spoilt.predict(at), torch.stack(wanted), rtol=1e-10, atol=1e-10)
        assert (spoilt.weights[~valid] == 0).all()


def test_a_linear_function_is_found_exactly_and_goes_on_outside() -> None:
    x, slopes = cloud(2, 12, 5), doubles(3, -1, 0.5, 0, 2)
    surrogate = fit(x, 7 + x @ slopes, all_of(x))
    at = 10 * cloud(2, 9, 5, seed=3)
    torch.testing.assert_close(surrogate.predict(at), 7 + at @ slopes, rtol=1e-8, atol=1e-7)


def test_points_that_are_the_same_do_not_break_it() -> None:
    x, y, at = cloud(1, 20, 3), cloud(1, 20, seed=1), cloud(1, 50, 3, seed=2)
    once = fit(x, y, all_of(x)).predict(at)
    twice = fit(x.repeat(1, 2, 1), y.repeat(1, 2), all_of(x).repeat(1, 2)).predict(at)
    torch.testing.assert_close(twice, once, rtol=1e-4, atol=1e-4)
    noisy = fit(x.repeat(1, 2, 1), torch.cat([y + 0.5, y - 0.5], dim=1), all_of(x).repeat(1, 2)).predict(at)
    torch.testing.assert_close(noisy, once, rtol=1e-4, atol=1e-4)  # goes through the mean


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_fewer_points_than_the_tail_needs_are_enough(count: int) -> None:
    x, y = cloud(1, 3, 6), doubles(4, -2, 1)[None]
    valid = torch.arange(3)[None] < count
    surrogate = fit(x, y, valid)
    torch.testing.assert_close(surrogate.predict(x)[valid], y[valid], rtol=1e-5, atol=1e-5)
    assert surrogate.predict(cloud(1, 9, 6)).isfinite().all()
    if count == 0:
        assert (surrogate.predict(x) == 0).all()


# ------------------------------------------------------------------------------------------------ values
def test_values_are_compressed_by_the_distance_of_the_median_to_the_least() -> None:
    y = doubles(5, 2, NAN, 14, 3)[None]  # least 2, median 5 or 3 (of an even number the lower one): 3
    wanted = [math.log(1 + 3 / 3), 0, math.log(1 + 12 / 3), math.log(1 + 1 / 3)]
    known = y.isfinite()
    assert compressed(y, known)[known].tolist() == pytest.approx(wanted, rel=1e-14)
    torch.testing.assert_close(compressed(1e6 * y - 40, known)[known], compressed(y, known)[known])
    ties = doubles(1, 1, 1, 4)[None]
    assert compressed(ties, ties == ties).tolist() == [pytest.approx([0, 0, 0, math.log(4 / 3)])]
    assert compressed(ties, ties == 1)[0, :3].tolist() == [0, 0, 0]


# ------------------------------------------------------------------------------------------------ candidates
class Seen:
    """A `snap` that keeps what it is shown."""

    def __init__(self) -> None:
        self.candidates: list[Tensor] = []

    def __call__(self, points: Tensor) -> Tensor:
        self.candidates.append(points)
        return points


def after(search: Dycors, count: int) -> Dycors:
    """Let `count` points be successes and failures in turn, which leaves the step as it is."""
    for i in range(count):
        search.learn(torch.full_like(search.step, -(i % 2)), torch.zeros_like(search.step))
    return search


@pytest.mark.parametrize(("dim", "count"), [(1, 0), (4, 0), (4, 20), (10, 9), (40, 0), (40, 50), (40, 99), (60, 0)])
def test_candidates_change_ever_fewer_coordinates_of_the_best_point(dim: int, count: int) -> None:
    x, y, seen = 0.1 * cloud(1, 5, dim), doubles(3, 1, NAN, 2, 5)[None], Seen()
    after(Dycors(1, dim), count).propose(x, y, draws(1), 100, snap=seen)
    (candidates,) = seen.candidates
    assert candidates.shape == (min(100 * dim, 5000), dim)
    moves = candidates - x[0, 1]
    moved = moves != 0
    chance = max(min(20 / dim, 1) * (1 - math.log(count + 1) / math.log(100)), 1 / dim)
    share = chance + (1 - chance) ** dim / dim  # where none is drawn, one is taken
    assert moved.any(dim=1).all()
    assert moved.double().mean() == pytest.approx(share, abs=4 / math.sqrt(4 * moved.numel()))
    assert moves[moved].std() == pytest.approx(0.2, rel=4 / math.sqrt(2 * float(moved.sum())))


def test_candidates_are_reflected_at_the_bounds() -> None:
    x, seen = torch.full((1, 1, 2), 0.95, dtype=torch.float64), Seen()
    Dycors(1, 2).propose(x, doubles(0)[None], draws(1), 10, snap=seen)
    (candidates,) = seen.candidates
    assert candidates.max() <= 1
    inside, above = (candidates > 0.9).sum(), (candidates == 1).sum()
    assert above == 0
    # between 0.9 and 1 lies what moved by -0.05 to 0.05, and by 0.05 to 0.15 before it was reflected
    probability = 0.5 * (math.erf(0.15 / 0.2 / math.sqrt(2)) + math.erf(0.05 / 0.2 / math.sqrt(2)))
    assert float(inside) == pytest.approx(400 * probability, abs=40)


@pytest.mark.parametrize("count", range(6))
def test_the_proposal_has_the_best_score(count: int) -> None:
    x, y, seen = cloud(2, 25, 3), 5 + 5 * cloud(2, 25, seed=1), Seen()
    y[0, 4] = NAN
    points = after(Dycors(2, 3), count).propose(x, y, draws(2), 30, snap=seen)
    weight = (0.3, 0.5, 0.8, 0.95, 0.99, 0.3)[count]
    for run, candidates in enumerate(seen.candidates):
        known = y[run].isfinite()
        values = scipys(x[run, known], compressed(y[run, known][None], known[known][None])[0], candidates)
        gaps = candidates.numpy()[:, None] - x[run].numpy()  # also to the one that failed
        nearest = np.sqrt((gaps**2).sum(-1)).min(1)
        score = weight * (values - values.min()) / np.ptp(values)
        score += (1 - weight) * (nearest.max() - nearest) / np.ptp(nearest)
        assert torch.equal(points[run], candidates[int(score.argmin())])


# ------------------------------------------------------------------------------------------------ steps
G, N, B = 0.9, 0.9995, NAN  # good, not good enough, broken; the best is 1
HALF, QUARTER = 0.1, 0.05


@pytest.mark.parametrize(
    ("values", "step", "successes", "failures"),
    [
        ([G, G], 0.2, 2, 0),
        ([G, G, G], 0.2, 0, 0),
        ([N] * 4, 0.2, 0, 4),
        ([N, B, N, 3.0, INF], HALF, 0, 0),
        ([N] * 4 + [G], 0.2, 1, 0),
        ([N] * 11, QUARTER, 0, 1),
        ([N] * 10 + [G, G, G], HALF, 0, 0),
        ([N] * 10 + [G, G, N, G], QUARTER, 1, 0),
        ([N] * 100, 0.2 / 128, 0, 0),
    ],
)
def test_the_step_follows_successes_and_failures(
    values: list[float], step: float, successes: int, failures: int
) -> None:
    search = Dycors(2, 3)
    for number, value in enumerate(values):
        search.learn(doubles(value, -(10.0**number)), doubles(1, -(10.0**number) / 2))  # the second always succeeds
    assert search.step.tolist() == pytest.approx([step, 0.2], rel=1e-15)
    assert (search.successes.tolist()[0], search.failures.tolist()) == (successes, [failures, 0])
    assert search.count.tolist() == [len(values)] * 2


@pytest.mark.parametrize(
    ("value", "best", "success"),
    [
        (-1.0005, -1.0, False),
        (-1.002, -1.0, True),
        (-1e-9, 0.0, True),
        (0.0, 0.0, False),
        (7.0, INF, True),
        (NAN, INF, False),
    ],
)
def test_a_success_is_better_by_a_thousandth_of_the_best(value: float, best: float, success: bool) -> None:
    search = Dycors(1, 2)
    search.learn(doubles(value), doubles(best))
    assert search.successes.tolist() == [success]
    assert search.failures.tolist() == [not success]


# ------------------------------------------------------------------------------------------------ runs
def searched(runs: range, steps: int, stop: int | None = None) -> tuple[Tensor, Tensor]:
    """Search a shifted Ellipsoid from 8 points; after `stop` steps go on with the state in a new object."""
    measure, seeds, dim = Landscape(ellipsoid_formula, 5.12, 3, shift=0.5, rotate=True), torch.tensor([*runs]), 3
    x = torch.stack([cloud(8, dim, seed=run) for run in runs])
    y = measure(x, seeds)[..., 0]
    y[seeds == 1, 2] = NAN
    search, random = Dycors(len(runs), dim), [generator("run", run) for run in runs]
    for i in range(steps):
        if i == stop:
            search, state = Dycors(len(runs), dim), search.state_dict()
            search.load_state_dict(state)
        best = y.nan_to_num(nan=INF).amin(dim=1)
        point = search.propose(x, y, random, steps)
        value = measure(point[:, None], seeds)[..., 0]
        value[seeds == i % 4] = NAN if i % 3 == 0 else value[seeds == i % 4]
        search.learn(value[:, 0], best)
        x, y = torch.cat([x, point[:, None]], dim=1), torch.cat([y, value], dim=1)
    return x, y


def test_a_run_alone_does_what_it_does_in_a_batch_and_after_a_resume() -> None:
    x, y = searched(range(4), 12)
    for run in range(4):
        alone, values = searched(range(run, run + 1), 12)
        torch.testing.assert_close(alone[0], x[run], rtol=0, atol=1e-9)
        torch.testing.assert_close(values[0], y[run], rtol=1e-7, atol=1e-9, equal_nan=True)
    assert torch.equal(searched(range(4), 12, stop=5)[0], x)


@pytest.mark.parametrize("rows", [0, 3])
def test_where_nothing_is_known_points_are_anywhere(rows: int) -> None:
    x = cloud(30, rows, 2)
    points = Dycors(30, 2).propose(x, torch.full((30, rows), NAN, dtype=torch.float64), draws(30), 10)
    assert points.shape == (30, 2)
    assert points.abs().max() <= 1
    assert (points > 0).double().mean() == pytest.approx(0.5, abs=0.25)
    assert points.std() > 0.4


def test_integer_points_are_not_proposed_twice() -> None:
    space = Space([Variable("layers", 1, 3, integer=True), Variable("heads", 0, 3, integer=True)])
    x, y, search, random = space.snap(cloud(1, 1, 2)), doubles(1)[None], Dycors(1, 2), draws(1)
    for _ in range(11):
        point = search.propose(x, y, random, 11, snap=space.snap)
        search.learn(doubles(2), y.amin(dim=1))
        x, y = torch.cat([x, point[None]], dim=1), torch.cat([y, doubles(2)[None]], dim=1)
    users = {tuple(point) for point in space.to_user(x[0]).tolist()}
    assert users == {(a, b) for a in (1.0, 2.0, 3.0) for b in (0.0, 1.0, 2.0, 3.0)}
    again = search.propose(x, y, random, 11, snap=space.snap)  # none is left
    assert tuple(space.to_user(again)[0].tolist()) in users


def test_it_finds_what_random_points_do_not() -> None:
    _, values = searched(range(6), 30)
    wanted: Any = Landscape(ellipsoid_formula, 5.12, 3, shift=0.5, rotate=True)(
        cloud(6, 38, 3, seed=9), torch.arange(6)
    )[..., 0]
    assert values.nan_to_num(nan=INF).amin(dim=1).mean() < 0.02 * wanted.amin(dim=1).mean()
