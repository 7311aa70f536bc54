"""`fne.Optimizer`: the search of `fne train`, asked and told by hand; several owners; what is no point or value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fne
from fne.core.errors import FneError
from fne.optimizer import Optimizer

FAST = {"strategy": "fdd_ea", "rounds": 3, "generations": 5, "population": 10}


def test_it_finds_what_a_run_of_the_same_search_finds(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def f(a, b):\n    return (a - 1) ** 2 + abs(b - 3)\n")
    problem = {
        "name": "callable", "function": f"{file}:f", "variables": {"a": [-4, 4], "b": [1, 9]}, "integer": ["b"],
        "nodes": 4,
    }  # fmt: skip
    settings = {"participation": 0.5, **{k: v for k, v in FAST.items() if k != "strategy"}}
    summary = fne.train({"problem": problem, "strategy": {"name": "fdd_ea", **settings}, "seed": 3}, out=tmp_path / "r")
    optimizer = Optimizer({"a": (-4, 4), "b": (1, 9)}, integer=["b"], nodes=4, seed=3, strategy="fdd_ea", **settings)
    asked = 0
    while not optimizer.done:
        x = optimizer.ask()
        assert isinstance(x, dict)
        assert isinstance(x["b"], int)
        asked += 1
        optimizer.tell(x, (x["a"] - 1) ** 2 + abs(x["b"] - 3))
    point, value = optimizer.best
    assert value == summary["best_value"]
    assert point == summary["best_point"]
    assert asked == summary["evaluations"]


def test_owners_tell_one_after_the_other_or_that_they_cannot() -> None:
    optimizer = Optimizer([(-1, 1)], nodes=2, participation=1, initial=3, **FAST)
    x = optimizer.ask()
    optimizer.tell(x, {"node-000": 1.0})
    assert np.array_equal(optimizer.ask(), x)  # node-001 has not told yet
    assert [len(points) for points in optimizer.waiting.values()] == [2, 3]
    with pytest.raises(FneError, match="'node-000' has told it before; still to be told: node-001"):
        optimizer.tell(x, {"node-000": 2.0})
    optimizer.tell(x, {"node-001": float("nan")})
    assert not np.array_equal(optimizer.ask(), x)
    with pytest.raises(FneError, match="was told before"):
        optimizer.tell(x, 1.0)
    while not optimizer.done:
        x = optimizer.ask()
        optimizer.tell(x, torch.tensor(float(x[0]) ** 2, requires_grad=True))  # type: ignore[arg-type,index]
    assert optimizer.best[1] < 0.5
    with pytest.raises(FneError, match="the budget is spent"):
        optimizer.ask()


@pytest.mark.parametrize(
    "y", ["good", [1.0, 2.0], np.zeros(2), [1, [2]], None, True, {"node-009": 1.0}, {"node-000": "x"}]
)
def test_a_value_that_is_none_is_refused_and_nothing_is_lost(y: Any) -> None:
    optimizer = Optimizer([(-1, 1)], **FAST)
    x = optimizer.ask()
    with pytest.raises(FneError, match=r"Optimizer\.tell"):
        optimizer.tell(x, y)
    optimizer.tell(x, 1)
    assert optimizer.best[1] == 1


@pytest.mark.parametrize("x", [[5.0], [0.0, 0.0], "here", {"x0": 0.0}, [0.123456], None, [[0.0]]])
def test_a_point_that_was_not_asked_is_refused(x: Any) -> None:
    optimizer = Optimizer([(-1, 1)], **FAST)
    with pytest.raises(FneError):
        optimizer.tell(x, 1.0)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"bounds": [(1, 0)]}, "bounds.x0 = [1.0, 0.0]: must be [low, high], finite, low below high"),
        ({"bounds": [(0, float("inf"))]}, "bounds.x0"),
        ({"bounds": [(-1e308, 1e308)]}, "bounds.x0 = [-1e+308, 1e+308]: must be closer together"),
        ({"bounds": [(0, 10**400)]}, "must be {name: (low, high)}, or a list of pairs of numbers"),
        ({"bounds": [(-(2**53), 0)], "integer": [0]}, "bounds.x0 = [-9007199254740992.0, 0.0]: must be below 2^53"),
        ({"bounds": (0, 1)}, "bounds = (0, 1): must be {name: (low, high)}, or a list of pairs"),
        ({"bounds": {"x": 3}}, "bounds = {'x': 3}: must be"),
        ({"bounds": [("a", "b")]}, "must be {name: (low, high)}"),
        ({"bounds": [(None, 1)]}, "must be {name: (low, high)}"),
        ({"bounds": {}}, "at least one is needed"),
        ({"integer": ["y"]}, "integer = 'y': must be names among the variables: x0"),
        ({"integer": 3}, "integer or log = 3: must be a list"),
        ({"log": [0]}, "bounds.x0 = [-1.0, 1.0]: must be above 0"),
        ({"nodes": 0}, "nodes = 0: must be a whole number >= 1"),
        ({"nodes": "2"}, "nodes = '2': must be"),
        ({"seed": -1}, "seed = -1: must be a whole number >= 0"),
        ({"strategy": "fne"}, "trains models"),
        ({"strategy": "fdd_eb"}, "did you mean 'fdd_ea'"),
        ({"rounds": 0}, "rounds = 0: must be a whole number >= 1"),
        ({"colour": 1}, "colour = 1: unknown key"),
        ({"runs": 2}, "runs = 2: must be 1"),
    ],
)
def test_mistakes_are_told(given: dict[str, Any], text: str) -> None:
    bounds = given.pop("bounds", [(-1, 1)])
    with pytest.raises(FneError) as caught:
        Optimizer(bounds, **{"strategy": "fdd_ea", **given})
    assert text in str(caught.value)


def test_nothing_told_has_no_best() -> None:
    with pytest.raises(FneError, match="no finite value was told yet"):
        _ = Optimizer([(-1, 1)], **FAST).best


@pytest.mark.parametrize("bounds", [(-8e307, 8e307), (0, 1e-300), (1e-320, 1e308)])
@pytest.mark.parametrize("log", [False, True])
def test_bounds_that_floats_can_just_hold_are_searched(bounds: tuple[float, float], log: bool) -> None:
    if bounds[0] > 0 and not log:
        bounds = (1e-300, bounds[1])
    optimizer = Optimizer({"x": bounds}, log=["x"] if log and bounds[0] > 0 else [], **FAST)
    for _ in range(3):
        x: Any = optimizer.ask()
        assert bounds[0] <= x["x"] <= bounds[1]
        optimizer.tell(x, 1.0)
