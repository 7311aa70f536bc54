"""Every registered search strategy and problem keeps its contract; a new one is held to it by itself."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fne.config.load import load_config
from fne.config.registry import catalogue, entry, load
from fne.core.contracts import Engine, Strategy
from fne.core.errors import RunError
from fne.core.messages import AGGREGATE, Request
from fne.loop import run
from fne.problems.external import MeasurementWarning
from fne.problems.space import Problem
from fne.run.search_run import SearchRun, build_search
from fne.run.train import train
from fne.watch.history import read_history

SEARCHES = [name for name, found in catalogue("strategy").items() if found.task == "SearchTask"]
"""Those for one objective."""
PROBLEMS = [
    name
    for name, found in catalogue("problem").items()
    if not (found.module.startswith("fne_plugin_") or name in ("callable", "command"))
]
"""Test functions; a user's own are in tests/problems/test_functions.py and beside it."""
NUMBERED = {"dtlz": {"number": 2}, "wfg": {"number": 4}}
"""Problems of which there are several, with what says which."""
SMALL = {"population": 8, "generations": 4, "rounds": 5, "evaluations": 5, "refit_every": 3}
"""Of the settings that a strategy has, those that make it fast."""


def settings(name: str, **more: Any) -> dict[str, Any]:
    known = entry("strategy", name).settings
    small = {key: value for key, value in SMALL.items() if key in known}
    return {
        "name": "run", "problem": {"name": "rastrigin", "dim": 2, "nodes": 7, "shift": 0.2},
        "strategy": {"name": name, **small, **more.pop("strategy", {})}, "engine": {"threads": 1},
        "watch": {"tensorboard": False, "checkpoint_every": 3}, **more,
    }  # fmt: skip


def search(name: str, engine: str = "local", **more: Any) -> tuple[SearchRun, Engine]:
    config = load_config(settings(name, **more))
    made = build_search(config)  # type: ignore[arg-type]
    return made, load("engine", engine)(made.worker)


@pytest.mark.parametrize("engine_name", catalogue("engine"))
@pytest.mark.parametrize("name", SEARCHES)
def test_search_keeps_the_contract(name: str, engine_name: str) -> None:
    made, engine = search(name, engine_name, strategy={"runs": 2})
    strategy = made.strategy
    assert isinstance(strategy, Strategy)
    horizon = strategy.horizon
    while not strategy.done:
        step = strategy.step
        request = strategy.ask(engine.nodes)
        assert isinstance(request, Request)
        assert set(request.nodes) <= set(engine.nodes)
        assert len(set(request.nodes)) == len(request.nodes) > 0
        assert request.header.step == step
        again = strategy.ask(engine.nodes)  # asking decides nothing
        assert (again.nodes, again.options) == (request.nodes, request.options)
        for key, value in request.common.items():
            torch.testing.assert_close(again.common[key], value, rtol=0, atol=0, equal_nan=True)
        points = request.common.get("points")
        assert points is None or bool((points.nan_to_num().abs() <= 1).all())
        round_ = engine.send(again)
        assert round_.failures == (), "its nodes' answers have the form that the request implies"
        metrics = strategy.tell(round_)
        assert strategy.step == step + 1
        assert step - 4 <= metrics["round"] <= step  # beside the queries a start, values of old points, the finals
        assert metrics["evaluations"] > 0
        result = strategy.result()
        assert (result.kind, tuple(result.parameters.shape)) == ("point", (2, 2))
    assert strategy.step == horizon
    final = strategy.result()
    assert final.values is not None
    # what was found is what the problem says of the point, and no node has anything better
    value = made.problem.measure(final.parameters.unsqueeze(1), torch.tensor([0, 1]), ["a", "a"])[:, 0, 0]
    torch.testing.assert_close(final.values, value)
    values = [node.memory["measured"][..., 0] for node in made.worker.nodes.values()]
    best = torch.stack([of_node.nan_to_num(torch.inf).amin(dim=1) for of_node in values])
    torch.testing.assert_close(final.values, best.amin(dim=0))


@pytest.mark.parametrize("engine_name", catalogue("engine"))
@pytest.mark.parametrize("name", SEARCHES)
def test_search_goes_on_from_its_checkpoint_bit_for_bit(name: str, engine_name: str, tmp_path: Path) -> None:
    config = settings(name, engine={"name": engine_name, "threads": 1})
    whole = train(config, out=tmp_path / "whole")
    steps = whole["steps"]
    if steps > 1:
        stopped = train(config, out=tmp_path / "part", stop_after=steps // 2)
        assert not stopped["finished"]
    resumed = train(None, resume=tmp_path / "part") if steps > 1 else train(config, out=tmp_path / "part")
    for key in ("best_value", "best_point", "best_values_exact", "evaluations", "bytes_up_per_node"):
        assert resumed[key] == whole[key]
    lines = [
        [{k: v for k, v in line.items() if k != "seconds"} for line in read_history(tmp_path / n)]
        for n in ("whole", "part")
    ]
    assert lines[0] == lines[1]
    solution = json.loads((tmp_path / "whole" / "solution.json").read_text())
    assert solution["best_value"] == whole["best_value"] == min(solution["best_values"])
    assert set(solution["best_point"]) == {"x1", "x2"}


@pytest.mark.parametrize("name", SEARCHES)
def test_runs_side_by_side_are_the_runs_of_their_seeds(name: str, tmp_path: Path) -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index] # noqa: NPY002
    together = train(settings(name, strategy={"runs": 3}, seed=4), out=tmp_path / "all")
    alone = [train(settings(name, seed=seed), out=tmp_path / str(seed)) for seed in (4, 5, 6)]
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])  # type: ignore[index] # noqa: NPY002
    expected = [summary["best_value"] for summary in alone]
    assert together["best_values_exact"] == pytest.approx(expected, rel=1e-5)
    assert together["best_value"] == pytest.approx(min(expected), rel=1e-5)
    assert len({round(value, 6) for value in expected}) == 3


@pytest.mark.parametrize("name", SEARCHES)
def test_search_with_integers_a_single_variable_and_failures(name: str, tmp_path: Path) -> None:
    plugin = Path(__file__).parents[1] / "plugins" / "odd_problem.py"
    config = settings(name, problem={"name": "odd", "nodes": 2}, plugins=[str(plugin)])
    summary = train(config, out=tmp_path / "run")
    assert isinstance(summary["best_point"]["n"], int)
    assert summary["best_value"] == (summary["best_point"]["n"] - 6) ** 2
    assert summary["best_value"] <= 1


@pytest.mark.parametrize("finals", ["mean", "literal"])
@pytest.mark.parametrize("name", SEARCHES)
def test_sums_are_asked_for_wherever_values_are_told(name: str, finals: str) -> None:
    """What a server may see: sums of values alone, and of `fdd_ea` with `finals = literal` the released ones."""
    made, engine = search(name, strategy={"finals": finals} if "finals" in entry("strategy", name).settings else {})
    seen: list[str] = []

    def look(strategy: Strategy, round_: Any, metrics: Any) -> None:
        seen.extend(key for reply in round_.replies for key in reply.payload if reply.node != AGGREGATE)

    run(made.strategy, engine, callbacks=[look])
    told = {"centres", "widths", "weights", "bias", "samples"}
    assert set(seen) - told <= {"point", "value"}
    released = (name, finals) == ("fdd_ea", "literal")
    assert seen.count("value") == len(engine.nodes) * released  # at the release, once a node


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_of_which_nothing_can_be_measured_ends_with_an_error(name: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def f(x):\n    return float('nan')\n")
    problem = {"name": "callable", "function": f"{tmp_path}/mine.py:f", "variables": {"x": [0, 1]}, "nodes": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MeasurementWarning)
        with pytest.raises(RunError, match="could measure any point"):
            train(settings(name, problem=problem), out=tmp_path / "run")


@pytest.mark.parametrize("name", PROBLEMS)
def test_problem_keeps_the_contract(name: str) -> None:
    known = entry("problem", name).settings
    for changed in ({}, {"dim": 6}, {"shift": 0.5}, {"shift": 0.5, "rotate": True}):
        if not set(changed) <= set(known):
            continue
        given = {**NUMBERED.get(name, {}), **changed}
        problem: Problem = load("problem", name)(**given)
        count = len(problem.objectives)
        assert count == len(set(problem.objectives)) > 0
        draw = torch.Generator().manual_seed(0)
        points = 2 * torch.rand(3, 6, len(problem.space), generator=draw, dtype=torch.float64) - 1
        seeds = torch.tensor([5, 7, 5])
        values = problem.measure(points, seeds, ["a", "b", "c"])
        assert (values.dtype, tuple(values.shape)) == (torch.float64, (3, 6, count))
        assert bool(values.isfinite().all())
        assert torch.equal(values, problem.measure(points, seeds, ["x", "y", "z"]))
        assert torch.equal(values[1:2], problem.measure(points[1:2], seeds[1:2], ["b"]))
        user = problem.space.to_user(points)
        torch.testing.assert_close(problem.space.to_cube(user), points)
        if problem.optimum is not None:
            assert count == 1
            assert bool((values >= problem.optimum).all())
        if problem.front is not None:  # none of its points is dominated by a point of the cube
            front = problem.front().double()
            assert front.shape[1:] == (count,)
            assert bool(front.isfinite().all())
            better = values.view(-1, 1, count) + 1e-6 < front
            assert not bool(better.all(dim=2).any())
