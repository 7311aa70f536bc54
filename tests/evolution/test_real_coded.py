"""Real-coded operators against pymoo's on the same numbers, counted frequencies and numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from pymoo.operators.crossover.sbx import cross_sbx
from pymoo.operators.mutation.pm import mut_pm
from torch import Tensor

from fne.core.randomness import generator
from fne.evolution import real_coded

Array = npt.NDArray[np.float64]


def uniform(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(shape, generator=generator("real-coded", seed), dtype=dtype)


def cube(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    return uniform(*shape, seed=seed, dtype=dtype) * 2 - 1


class Given:
    """Hands out numbers that were made before, where pymoo asks its random state for some."""

    def __init__(self, *numbers: Array) -> None:
        self._numbers = iter(numbers)

    def random(self, size: object = None) -> Array:
        return next(self._numbers)


# ------------------------------------------------------------------------------------------------ start, selection
@pytest.mark.parametrize(("runs", "points", "d"), [((), 7, 3), ((4,), 100, 10), ((2, 3), 5, 1), ((1,), 1, 2)])
def test_latin_hypercube_has_one_point_in_each_stratum(runs: tuple[int, ...], points: int, d: int) -> None:
    u = uniform(*runs, points, d, seed=2)
    x = real_coded.latin_hypercube(uniform(*runs, points, d), u)
    place = (x + 1) / 2 * points
    everywhere = torch.arange(points).unsqueeze(-1).expand(*runs, points, d)
    assert torch.equal(place.floor().long().sort(dim=-2).values, everywhere)
    torch.testing.assert_close(place - place.floor(), u)


def test_latin_hypercube_pairs_the_strata_of_two_variables_evenly() -> None:
    strata = ((real_coded.latin_hypercube(uniform(20_000, 3, 2), uniform(20_000, 3, 2, seed=2)) + 1) * 1.5).long()
    counts = torch.bincount((strata[..., 0] * 3 + strata[..., 1]).flatten(), minlength=9) / 60_000
    torch.testing.assert_close(counts, torch.full((9,), 1 / 9), atol=0.005, rtol=0)


def test_the_better_of_two_wins_a_tournament() -> None:
    u = torch.tensor([[0.0, 0.99], [0.5, 0.3], [0.75, 0.75], [1 - 2**-24, 1.0]])
    assert real_coded.binary_tournament(u, 4).tolist() == [0, 1, 3, 3]
    share = torch.bincount(real_coded.binary_tournament(uniform(100_000, 2), 5), minlength=5) / 100_000
    expected = torch.tensor([9, 7, 5, 3, 1]) / 25  # P(rank r) = (2 (n - r) - 1) / n^2
    torch.testing.assert_close(share, expected, atol=0.006, rtol=0)


def test_truncation_keeps_the_best_in_order_ties_as_they_came_and_nan_last() -> None:
    values = torch.tensor([[3.0, 1.0, math.inf, 1.0, math.nan, 0.0], [0.0] * 6])
    points = torch.arange(24.0).view(2, 6, 2)
    best, kept = real_coded.truncate(points, values, 4)
    assert kept.tolist() == [[0, 1, 1, 3], [0, 0, 0, 0]]
    assert best[..., 0].tolist() == [[10, 2, 6, 0], [12, 14, 16, 18]]
    last = real_coded.truncate(points, values, 6)[0]
    assert last[0, :, 0].tolist() == [10, 2, 6, 0, 4, 8]


def test_rows_are_taken_along_any_axes() -> None:
    points, indices = cube(2, 3, 5, 4), torch.randint(5, (2, 3, 8), generator=generator("rows"))
    expected = torch.stack([points[i, j][indices[i, j]] for i in range(2) for j in range(3)]).view(2, 3, 8, 4)
    assert torch.equal(real_coded.take(points, indices), expected)
    assert torch.equal(real_coded.take(points.mT.contiguous().mT, indices), expected)
    assert torch.equal(real_coded.take(points[0, 0], indices[0, 0]), expected[0, 0])


# ------------------------------------------------------------------------------------------------ crossover
@pytest.mark.parametrize("eta", [0.0, 1.0, 2.0, 15.0, 30.0])
@pytest.mark.parametrize("chance", [0.5, 0.9, 1.0])
def test_crossover_is_pymoos_on_the_same_numbers(eta: float, chance: float) -> None:
    pairs, d = 200, 6
    first, second, u = cube(pairs, d), cube(pairs, d, seed=2), uniform(pairs, d, seed=3)
    second[:, 0] = first[:, 0]  # nothing to cross
    first[:50, 1], second[:50, 2] = -1, 1  # at the bounds
    half = 2 * (u / chance).numpy()  # what one number says: crossed, swapped, how far
    crossed = (half < 2) & ((first - second).abs().numpy() > 1e-14)
    given = Given(np.where(half < 2, 0, 1), half[crossed] % 1, np.where(half >= 1, 0, 1)[crossed])
    theirs = cross_sbx(
        np.stack([first.numpy(), second.numpy()]), -np.ones(d), np.ones(d), np.full((pairs, 1), eta), chance,
        np.full((pairs, 1), 0.5), random_state=given,
    )  # fmt: skip
    ours = real_coded.sbx(first, second, u, eta=eta, chance=chance)
    torch.testing.assert_close(ours, torch.from_numpy(theirs), atol=1e-12, rtol=0)


def test_children_of_a_crossover_by_hand() -> None:
    first, second = torch.tensor([[-0.5, 0.5, 0.5, 0.3]]), torch.tensor([[0.5, -0.5, -0.5, -0.2]])
    u = torch.tensor([[0.125, 0.375, 0.1875, 0.5]])  # 2 u / chance = 0.5, 1.5, 0.75, 2: the second is swapped
    # the bounds are half a gap outside: beta = 2, alpha = 2 - 2^-2; 0.5 alpha <= 1 and 0.75 alpha > 1
    near, far = math.sqrt(0.875) / 2, math.sqrt(1 / 0.6875) / 2
    one, two = real_coded.sbx(first, second, u, eta=1, chance=0.5).unbind(0)
    torch.testing.assert_close(one, torch.tensor([[-near, near, -far, 0.3]]))
    torch.testing.assert_close(two, torch.tensor([[near, -near, far, -0.2]]))


def test_share_of_variables_crossed_and_swapped() -> None:
    first, second = torch.full((40_000, 1), -0.4), torch.full((40_000, 1), 0.2)
    one, two = real_coded.sbx(first, second, uniform(40_000, 1, dtype=torch.float32), eta=1, chance=0.9).unbind(0)
    assert (one != first).float().mean() == pytest.approx(0.9, abs=0.01)
    assert (one > two).float().mean() == pytest.approx(0.45, abs=0.01)


# ------------------------------------------------------------------------------------------------ mutation
@pytest.mark.parametrize("eta", [0.0, 1.0, 20.0])
@pytest.mark.parametrize("chance", [0.1, 0.5, 1.0])
def test_mutation_is_pymoos_on_the_same_numbers(eta: float, chance: float) -> None:
    count, d = 300, 5
    points, u = cube(count, d), uniform(count, d, seed=3)
    points[:50], points[50:100] = -1, 1
    drawn = (u / chance).numpy()
    given = Given(np.where(drawn < 1, 0, 2), drawn[drawn < 1])
    theirs = mut_pm(points.numpy(), -np.ones(d), np.ones(d), np.full(count, eta), np.full(count, chance), False,
                    random_state=given)  # fmt: skip
    ours = real_coded.polynomial_mutation(points, u, eta=eta, chance=chance)
    torch.testing.assert_close(ours, torch.from_numpy(theirs), atol=1e-12, rtol=0)


def test_mutants_by_hand() -> None:
    points = torch.tensor([[0.0, 0.0, 0.5, 0.5]])
    u = torch.tensor([[0.0, 0.05, 0.025, 0.1]])
    # u / chance = 0, 1/2, 1/4, 1: to the bound, no step, down with rest 1/2, not mutated
    down = math.sqrt(0.5 + 0.5 * 0.25**2) - 1
    expected = torch.tensor([[-1.0, 0.0, 0.5 + 2 * down, 0.5]])
    torch.testing.assert_close(real_coded.polynomial_mutation(points, u, eta=1, chance=0.1), expected)


# ------------------------------------------------------------------------------------------------ both
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("eta", [0.0, 1.0, 2.5, 30.0])
def test_children_are_finite_and_in_the_cube_at_every_extreme(eta: float, dtype: torch.dtype) -> None:
    close = torch.finfo(dtype).eps
    values = torch.tensor([-1.0, -1 + close, -close, 0.0, 1e-30, 0.5, 1 - close, 1.0], dtype=dtype)
    numbers = torch.tensor([0.0, 1e-12, 0.25, 0.25 - close, 0.4999, 0.5, 0.75, 1 - close], dtype=dtype)
    first, second, u = torch.cartesian_prod(values, values, numbers).unbind(1)
    for chance in (0.5, 1.0):
        children = real_coded.sbx(first[:, None], second[:, None], u[:, None], eta=eta, chance=chance)
        mutants = real_coded.polynomial_mutation(first[:, None], u[:, None], eta=eta, chance=chance)
        for made in (children, mutants):
            assert made.isfinite().all()
            assert made.abs().max() <= 1


def test_runs_side_by_side_are_the_same_as_alone() -> None:
    first, second, u = cube(5, 20, 3), cube(5, 20, 3, seed=2), uniform(5, 20, 3)
    children = real_coded.sbx(first, second, u, eta=1, chance=0.5)
    mutants = real_coded.polynomial_mutation(first, u, eta=1, chance=0.3)
    for run in range(5):
        alone = real_coded.sbx(first[run], second[run], u[run], eta=1, chance=0.5)
        torch.testing.assert_close(children[run], alone, rtol=0, atol=1e-14)
        alone = real_coded.polynomial_mutation(first[run], u[run], eta=1, chance=0.3)
        torch.testing.assert_close(mutants[run], alone, rtol=0, atol=1e-14)
