"""Indicators against pymoo's, moocore's, and numbers worked out by hand."""

from __future__ import annotations

import math
import sys

import moocore
import numpy as np
import pytest
import torch
from pymoo.indicators.hv import HV
from pymoo.indicators.igd import IGD

from fne.core.errors import FneError
from fne.evolution.indicators import Volume, hypervolume, igd, non_dominated
from fne.problems.dtlz_wfg import front

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        ([[1, 2], [2, 1], [2, 2]], [True, True, False]),
        ([[1, 1], [1, 1], [1, 2]], [True, True, False]),  # equal rows: all of them
        ([[1, 2], [1, 3], [1, 2]], [True, False, True]),
        ([[-1, 0], [0, -1], [-0.5, 0.5]], [True, True, False]),
        ([[NAN, 0], [1, 1]], [False, True]),  # and it dominates nothing
        ([[INF, 0], [-INF, 0], [1, 1]], [False, False, True]),
        ([[NAN, NAN]], [False]),
        ([[3.0], [2.0], [2.0]], [False, True, True]),
    ],
)
def test_what_is_dominated(rows: list[list[float]], wanted: list[bool]) -> None:
    assert non_dominated(torch.tensor(rows)).tolist() == wanted


@pytest.mark.parametrize(("n", "objectives"), [(0, 3), (1, 2), (300, 2), (700, 3), (300, 10)])
def test_non_dominated_is_moocores(n: int, objectives: int) -> None:
    draw = np.random.default_rng(n)
    for values in (draw.normal(size=(n, objectives)), draw.integers(0, 5, size=(n, objectives)).astype(float)):
        wanted = moocore.is_nondominated(values, keep_weakly=True) if n else []
        assert non_dominated(torch.from_numpy(values)).tolist() == list(wanted)


# ------------------------------------------------------------------------------------------------ IGD
def test_igd_by_hand() -> None:
    ideal = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    assert igd(torch.tensor([[3.0, 5.0]]), ideal) == pytest.approx((5 + math.sqrt(4 + 25)) / 2)
    assert igd(ideal, ideal) == 0
    assert igd(torch.tensor([[0.0, 1.0], [NAN, 0.0], [0.0, -INF]]), ideal) == pytest.approx(math.sqrt(2) / 2)
    # (1, 0.5) is nearer to (1, 0) than (0, 0) is, but is dominated by it
    assert igd(torch.tensor([[0.0, 0.0], [1.0, 0.5]]), ideal) == 1
    assert igd(torch.zeros(0, 2), ideal) == INF
    assert igd(torch.full((3, 2), NAN), ideal) == INF


def test_small_distances_keep_their_digits() -> None:
    ideal = torch.tensor([[1000.0, 0.0, 1.0]]).double().repeat(100, 1)
    assert igd(ideal[:30] + torch.tensor([0, 1e-9, 0]).double(), ideal) == pytest.approx(1e-9, rel=1e-6)


@pytest.mark.parametrize("objectives", [2, 3, 5, 10])
def test_igd_is_pymoos(objectives: int) -> None:
    ideal = front("wfg", 4, objectives, size=3000)
    values = np.random.default_rng(0).normal(size=(200, objectives)) * 2 + 3
    kept = values[moocore.is_nondominated(values)]
    assert igd(torch.from_numpy(values), ideal) == pytest.approx(IGD(ideal.numpy())(kept), rel=1e-12)


# ------------------------------------------------------------------------------------------------ hypervolume
@pytest.mark.parametrize(
    ("rows", "reference", "wanted"),
    [
        ([[5, 5], [4, 6], [2, 7], [7, 4]], [10, 10], 38),
        ([[1, 1], [1, 1]], [3, 2], 2),
        ([[1, 1], [2, 2], [NAN, 0], [-INF, 0]], [3, 2], 2),  # dominated, no points
        ([[-1, -1]], [0, 0], 1),
        ([[1, 1], [0, 3], [3, 0]], [3, 3], 4),  # on the reference's planes: nothing
        ([[4, 0]], [3, 3], 0),
        ([[0, 0, 0]], [1, 2, 3], 6),
        ([[2], [1]], [4], 3),
    ],
)
def test_hypervolume_by_hand(rows: list[list[float]], reference: list[float], wanted: float) -> None:
    assert hypervolume(torch.tensor(rows), reference) == Volume(pytest.approx(wanted), True)


def test_no_points_have_no_volume() -> None:
    assert hypervolume(torch.zeros(0, 3), [1, 1, 1]) == (0, True)


@pytest.mark.parametrize("objectives", [2, 3, 5, 6])
def test_hypervolume_is_pymoos(objectives: int) -> None:
    values = np.random.default_rng(1).normal(size=(60, objectives))
    value, exact = hypervolume(torch.from_numpy(values), [1.5] * objectives)
    inside = values[(values < 1.5).all(axis=1)]
    assert value == pytest.approx(HV(ref_point=np.full(objectives, 1.5))(inside), rel=1e-9)
    assert exact


@pytest.mark.parametrize("objectives", [7, 10])
def test_of_many_objectives_it_is_approximated_near_to_the_exact_value_in_any_units(objectives: int) -> None:
    points = front("wfg", 4, objectives, size=25)
    corner = 2.2 * torch.arange(1, objectives + 1).double()
    value, exact = hypervolume(points, corner)
    assert not exact
    assert value == pytest.approx(moocore.hypervolume(points.numpy(), ref=corner.numpy()), rel=2e-3)
    assert value == hypervolume(points, corner).value
    units = 10.0 ** torch.arange(objectives).double()
    moved = hypervolume(points * units - 7, corner * units - 7).value
    assert moved / float(units.prod()) == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("reference", [[1.0], [1, 1, 1], [1, NAN], [[1, 1]]])
def test_a_reference_that_does_not_fit_is_an_error(reference: list[float]) -> None:
    with pytest.raises(FneError, match="must be 2 finite numbers"):
        hypervolume(torch.zeros(1, 2), reference)


def test_without_the_library_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "moocore", None)
    with pytest.raises(FneError, match=r"needs moocore: pip install -e '\.\[moo\]' in the clone"):
        hypervolume(torch.zeros(1, 2), [1, 1])
