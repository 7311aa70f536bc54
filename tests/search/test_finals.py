"""The end of a search: finalists that all nodes measure; who proposes, who counts, and what decides."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fne.core.contracts import Result
from fne.core.messages import AGGREGATE, Header, Reply, Round, Status, Traffic
from fne.engines.local import LocalEngine
from fne.optimizer import Optimizer
from fne.problems.objective import Objective
from fne.run.search_run import worker_of
from fne.run.train import train
from fne.search.finals import MEASUREMENT, PROPOSAL, RECALL, Finals
from fne.search.release import ReleaseWarning
from fne.secure.engine import SecureEngine
from fne.secure.node_tasks import secure_only
from fne.watch.history import read_history

pytestmark = pytest.mark.filterwarnings("ignore:strategy.infill = all:fne.core.errors.SettingWarning")
NAN = math.nan
POINT = ("fdd_ea", "fdd_ea_plus")
SITES = 5
ONE = {"runs": 1, "variables": 1, "objectives": 1}
UNLIKE = '''
def loss(x, y, node):
    """Four sites agree; the fifth is kind to points far from the optimum of the mean."""
    value = (x - 1) ** 2 + (y + 1) ** 2
    return value - 4 if node == "node-003" and x < 0 else value
'''


def unlike(x: float, y: float) -> float:
    """The mean over the sites of `UNLIKE`."""
    return (x - 1) ** 2 + (y + 1) ** 2 - 4 / SITES * (x < 0)


def settings(name: str, problem: dict[str, Any] | None = None, **strategy: Any) -> dict[str, Any]:
    own = {"name": "ellipsoid", "dim": 3, "nodes": SITES, **(problem or {})}
    small = {"rounds": 6, "participation": 0.6, "generations": 10, "population": 20}
    return {
        "name": "finals", "problem": own, "strategy": {"name": name, **small, **strategy}, "engine": {"threads": 1},
        "watch": {"tensorboard": False, "checkpoint_every": 1},
    }  # fmt: skip


def fronts(
    name: str, problem: dict[str, Any] | None = None, *, secure: bool = False, **strategy: Any
) -> dict[str, Any]:
    own = {"name": "dtlz", "number": 2, "objectives": 2, "dim": 4, "nodes": SITES, **(problem or {})}
    small = {"rounds": 2, "initial": 15, "generations": 3, "population": 10, "points": 2, "participation": 1.0}
    return settings(name) | {"problem": own, "strategy": {"name": name, **small, **strategy}, "secure": secure}


def callable_at(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "sites.py").write_text(UNLIKE)
    variables = {"x": [-5, 5], "y": [-5, 5]}
    return {"name": "callable", "function": f"{tmp_path}/sites.py:loss", "variables": variables, "dim": None}


def memory_of(folder: Path) -> dict[str, dict[str, Tensor]]:
    state = torch.load(sorted((folder / "nodes").glob("step-*.pt"))[-1], weights_only=True)
    return dict(state["nodes"])


# ------------------------------------------------------------------------------------------------ luck
@pytest.mark.parametrize("name", POINT)
def test_at_unlike_sites_the_mean_of_all_decides_and_not_the_luckiest(name: str, tmp_path: Path) -> None:
    problem = {key: value for key, value in callable_at(tmp_path).items() if value is not None}
    given = settings(name, finals="literal", initial=12, participation=0.4)
    given |= {"problem": {**problem, "nodes": SITES}, "seed": 11}
    lucky = train(given, out=tmp_path / "literal")
    given["strategy"] |= {"finals": "mean", "finalists": 20}
    right = train(given, out=tmp_path / "mean")
    assert lucky["best_value"] < -0.5
    assert lucky["best_point"]["x"] < 0
    count = read_history(tmp_path / "mean")[-1]["finalists"]
    memories = memory_of(tmp_path / "mean")
    finalists = next(iter(memories.values()))["points"][0, -count:]
    for own in memories.values():
        assert torch.equal(own["points"][0][own["points"][0].abs().sum(dim=1) > 0][-count:], finalists)
    if name == "fdd_ea":  # the owners' bests, and each once
        bests = []
        for own in memories.values():
            number = int(own["asked"][0]) - count
            bests.append(tuple(own["points"][0, int(own["measured"][0, :number, 0].argmin())].tolist()))
        assert {tuple(point) for point in finalists.tolist()} == set(bests)
    means = [unlike(5 * x, 5 * y) for x, y in finalists.tolist()]
    best = int(np.argmin(means))
    assert right["best_value"] == pytest.approx(means[best])
    assert list(right["best_point"].values()) == pytest.approx((5 * finalists[best]).tolist())
    assert unlike(**right["best_point"]) < unlike(**lucky["best_point"])
    assert right["best_point"]["x"] > 0


@pytest.mark.parametrize("name", POINT)
def test_values_that_made_a_finalist_have_no_part_in_the_decision(name: str, tmp_path: Path) -> None:
    """Every node measures anew, with noise of its own: the answer is the mean of these values, not the least one."""
    summary = train(settings(name, {"noise": 20.0}), out=tmp_path / "run")
    count = read_history(tmp_path / "run")[-1]["finalists"]
    values = []
    for own in memory_of(tmp_path / "run").values():
        number = int(own["asked"][0])
        values.append(own["measured"][0, number - count : number, 0].numpy())
    means = np.mean(values, axis=0)
    assert summary["best_value"] == pytest.approx(means.min())
    assert np.std(values) > 5
    lucky = train(settings(name, {"noise": 20.0}, finals="literal"), out=tmp_path / "literal")
    assert lucky["best_value"] < summary["best_value"]


@pytest.fixture(scope="module")
def literal(tmp_path_factory: pytest.TempPathFactory) -> Callable[[dict[str, Any]], tuple[Path, int]]:
    """Return `go(settings) -> run folder, evaluations` of the run with literal finals, each run once."""
    known: dict[str, tuple[Path, int]] = {}

    def go(given: dict[str, Any]) -> tuple[Path, int]:
        key = json.dumps(given, sort_keys=True)
        if key not in known:
            folder = tmp_path_factory.mktemp("literal") / "run"
            summary = train({**given, "strategy": {**given["strategy"], "finals": "literal"}}, out=folder)
            known[key] = folder, summary["evaluations"]
        return known[key]

    return go


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("finalists", [1, 3, 50])
@pytest.mark.parametrize(
    ("name", "more"), [("fdd_ea", {}), ("fdd_ea", {"queries": "distinct", "rounds": 2}), ("fdd_ea_plus", {})]
)
def test_where_sites_are_alike_and_without_noise_the_decision_is_the_same(
    name: str, more: dict[str, Any], finalists: int, seed: int, literal: Any, tmp_path: Path
) -> None:
    given = settings(name, {"shift": 0.3}, runs=3, **more) | {"seed": seed}
    own = {"finals": "mean", "finalists": finalists}
    plain, evaluations = literal(given)
    found = train({**given, "strategy": {**given["strategy"], **own}}, out=tmp_path / "run")
    solutions = [json.loads((folder / "solution.json").read_text()) for folder in (tmp_path / "run", plain)]
    assert solutions[0]["best_points"] == solutions[1]["best_points"]
    assert solutions[0]["best_values"] == pytest.approx(solutions[1]["best_values"])
    assert solutions[0]["best_values_exact"] == solutions[1]["best_values_exact"]
    measured = read_history(tmp_path / "run")[-1]["finalists"]
    assert measured <= finalists
    assert found["evaluations"] == evaluations + measured


@pytest.mark.parametrize("infill", ["aggregator", "all"])
def test_fronts_of_alike_sites_are_the_same(infill: str, tmp_path: Path) -> None:
    rows = []
    for finals in ("mean", "literal"):
        train(fronts("fdd_ea_mo", infill=infill, finals=finals, finalists=200), out=tmp_path / finals)
        lines = (tmp_path / finals / "front.csv").read_text().splitlines()[1:]
        rows.append(np.array([[float(cell) for cell in line.split(",")] for line in lines]))
    assert rows[0].shape == rows[1].shape
    np.testing.assert_allclose(rows[0], rows[1], rtol=1e-7, atol=1e-8)


def test_a_front_is_that_of_the_means(tmp_path: Path) -> None:
    given = fronts("fdd_ea_mo", {"noise": 0.2}, infill="aggregator", finalists=12)
    train(given, out=tmp_path / "run")
    memories = memory_of(tmp_path / "run")
    count = read_history(tmp_path / "run")[-1]["finalists"]
    assert 1 < count <= 12
    last = [slice(int(own["asked"][0]) - count, int(own["asked"][0])) for own in memories.values()]
    values = np.mean([own["measured"][0, rows].numpy() for own, rows in zip(memories.values(), last, strict=True)], 0)
    front = [row for row in values if not any((other <= row).all() and (other < row).any() for other in values)]
    with (tmp_path / "run/front.csv").open() as file:
        told = [[float(row["f1"]), float(row["f2"])] for row in csv.DictReader(file)]
    np.testing.assert_allclose(sorted(told), sorted(row.tolist() for row in front), rtol=1e-6, atol=1e-8)


# ------------------------------------------------------------------------------------------------ secure sums
@pytest.mark.parametrize("more", [{}, {"infeasible": 1}, {"declines": ["node-001"]}])
def test_secure_sums_choose_what_plain_ones_do(more: dict[str, Any], tmp_path: Path) -> None:
    plain = train(fronts("fdd_ea_mo", more, infill="aggregator"), out=tmp_path / "plain")
    secure = train(fronts("fdd_ea_dh", more, secure=True), out=tmp_path / "secure")
    assert (tmp_path / "plain/front.csv").read_bytes() == (tmp_path / "secure/front.csv").read_bytes()
    for key in ("evaluations", "steps", "front_size", "igd", "igd_exact"):
        assert plain[key] == secure[key]


def parabolas(points: Tensor, seeds: Tensor, nodes: Any) -> Tensor:
    """A parabola a node, each with another bottom; the site c has low values everywhere."""
    where = {"a": 0.0, "b": 0.2, "c": -0.9, "d": 0.4, "e": 0.1}
    rows = [
        (own - where[node]).square().sum(dim=-1) - 3 * (node == "c") for own, node in zip(points, nodes, strict=True)
    ]
    return torch.stack(rows).unsqueeze(2)


@pytest.mark.parametrize("secure", [False, True])
def test_the_finals_step_by_step_over_plain_and_secure_sums(secure: bool) -> None:
    worker = worker_of({name: Objective(parabolas) for name in "abcde"}, seed=0)
    engine: Any = LocalEngine(worker)
    for place, node in enumerate(worker.nodes.values()):
        points = torch.tensor([[[-0.9], [0.0], [0.2], [0.4], [0.1], [0.14]][: place + 2]], dtype=torch.float64)
        values = parabolas(points, torch.zeros(1), [node.name])
        asked = torch.tensor([points.shape[1]])
        node.memory.update({"points": points, "measured": values, "exact": values, "asked": asked})
        node.memory["own"] = torch.zeros(points.shape[:2], dtype=torch.bool)
    if secure:
        secure_only(worker)
        engine = SecureEngine(engine, worker.pinned)
    finals = Finals("point", seed=0, sizes=ONE, most=2)
    result = Result("point", torch.zeros(1, 1, dtype=torch.float64))
    asked_for = []
    for step in (PROPOSAL, RECALL, MEASUREMENT):
        request = finals.ask(step, step, engine.nodes)
        asked_for.append([] if step == PROPOSAL else request.common["points"].flatten().tolist())
        result = finals.tell(step, step, engine.send(request), result)
    assert asked_for[1] == [0.0, 0.2, -0.9, 0.4, 0.1]  # the best of a to e, in order
    assert len(asked_for[2]) == 2
    bottoms = np.array([0.0, 0.2, -0.9, 0.4, 0.1])
    means = {x: float(np.mean((x - bottoms) ** 2)) - 0.6 for x in asked_for[2]}
    best = min(means, key=means.__getitem__)
    assert result.parameters.item() == best
    assert result.values is not None
    assert result.values.item() == pytest.approx(means[best], abs=1e-9)
    assert finals.over
    assert finals.figures == {"finalists": 2}


# ------------------------------------------------------------------------------------------------ who takes part
def test_only_points_and_sums_of_values_cross_the_wire(tmp_path: Path) -> None:
    worker = worker_of({name: Objective(parabolas, declines=name == "b") for name in "abcde"}, seed=0)
    engine = LocalEngine(worker)
    start = torch.linspace(-1, 1, 9, dtype=torch.float64).view(1, 9, 1)
    finals = Finals("point", seed=0, sizes=ONE, most=9)
    finals._points = start
    engine.send(finals.ask(MEASUREMENT, 0, engine.nodes))
    before = {name: int(node.memory["asked"][0]) for name, node in worker.nodes.items() if node.memory}
    assert before == dict.fromkeys("acde", 9)  # a declining owner's node measures nothing for the finals
    worker.nodes["b"].memory.update(worker.nodes["a"].memory)
    finals, result = Finals("point", seed=0, sizes=ONE, most=9), Result("point", torch.zeros(1, 1, dtype=torch.float64))
    proposed = engine.send(finals.ask(PROPOSAL, 1, engine.nodes))
    assert [set(reply.payload) for reply in proposed.replies] == [{"point"}] * 4
    assert [failure.node for failure in proposed.failures] == ["b"]
    result = finals.tell(PROPOSAL, 1, proposed, result)
    for place in (RECALL, MEASUREMENT):
        round_ = engine.send(finals.ask(place, place + 1, engine.nodes))
        assert [reply.node for reply in round_.replies] == [AGGREGATE]
        assert set(round_.replies[0].payload) == {"value", "count"}
        assert int(round_.replies[0].payload["count"].max()) == 4
        result = finals.tell(place, place + 1, round_, result)
    bottoms = np.array([0.0, -0.9, 0.4, 0.1])
    assert result.values is not None
    x = result.parameters.item()
    assert result.values.item() == pytest.approx(float(np.mean((x - bottoms) ** 2)) - 0.75)


def summed(values: list[list[float]], counts: list[list[int]]) -> Round:
    payload = {
        "value": (torch.tensor(values).double() * torch.tensor(counts)).unsqueeze(2), "count": torch.tensor(counts),
    }  # fmt: skip
    return Round((Reply(Header(0, 9), AGGREGATE, payload=payload),), (), Traffic({}, {}, {}, {}))


def ready(points: list[list[float]], nodes: str, refused: int = 0) -> Finals:
    """Return finals in which these points were proposed, and so many owners of `nodes` declined."""
    finals = Finals("point", seed=0, sizes=ONE | {"runs": len(points)}, most=9)
    finals.ask(PROPOSAL, 7, list(nodes))
    width = len(points[0])
    replies = tuple(
        Reply(Header(0, 7), f"n{i}", payload={"point": torch.tensor([[run[i]] for run in points]).double()})
        for i in range(width)
    )
    failures = tuple(Reply(Header(0, 7), f"m{i}", Status.DECLINED, "declines") for i in range(refused))
    before = Result("point", torch.zeros(len(points), 1))
    finals.tell(PROPOSAL, 7, Round(replies, failures, Traffic({}, {}, {}, {})), before)
    finals.ask(MEASUREMENT, 9, list(nodes))
    return finals


def test_a_finalist_needs_a_quorum_of_the_nodes_that_take_part() -> None:
    before = Result("point", torch.full((1, 1), 9.0, dtype=torch.float64))
    points = [[0.1, 0.2, 0.3]]
    for refused, wanted in ((0, 0.3), (1, 0.2)):  # of 5 nodes more than half is 3, of 4 it is 3; of 3 it is 2
        finals = ready(points, "abcde", 2 * refused)
        result = finals.tell(MEASUREMENT, 9, summed([[1.0, 2.0, 3.0]], [[1, 2, 3]]), before)
        assert result.parameters.item() == pytest.approx(wanted)
    with pytest.warns(ReleaseWarning, match=r"step 9: no finalist was measured by 3 nodes, .* could measure \(2\)"):
        result = ready(points, "abcde").tell(MEASUREMENT, 9, summed([[1.0, 2.0, 3.0]], [[1, 2, 2]]), before)
    assert result.parameters.item() == pytest.approx(0.2)
    with pytest.warns(ReleaseWarning, match="no finalist was measured"):
        result = ready(points, "abcde").tell(MEASUREMENT, 9, summed([[0.0, 0.0, 0.0]], [[0, 0, 0]]), before)
    assert result.parameters.item() == 9.0
    assert result.values is not None
    assert result.values.isnan().all()


def test_of_equal_means_the_first_on_the_shortlist_wins() -> None:
    before = Result("point", torch.zeros(1, 1, dtype=torch.float64))
    finals = ready([[0.1, 0.2, 0.3]], "abc")
    result = finals.tell(MEASUREMENT, 9, summed([[2.0, 1.0, 1.0]], [[3, 3, 3]]), before)
    assert result.parameters.item() == pytest.approx(0.2)


def test_a_point_that_two_owners_propose_is_one_finalist_and_runs_have_their_own() -> None:
    finals = ready([[0.1, 0.1, 0.3], [0.4, 0.5, NAN]], "abc")
    asked = finals.ask(RECALL, 8, "abc").common["points"][..., 0]
    torch.testing.assert_close(asked, torch.tensor([[0.1, 0.3], [0.4, 0.5]]).double(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("most", [1, 2, 3, 5, 9])
def test_a_shortlist_of_points_of_a_front_is_as_wide_as_it_can_be(most: int) -> None:
    finals = Finals("front", seed=0, sizes=ONE | {"objectives": 2}, most=most)
    values = torch.tensor([[[0.0, 10.0], [5.0, 5.0], [10.0, 0.0], [5.5, 4.5], [6.0, 6.0], [NAN, NAN]]]).double()
    points = torch.arange(6.0).double().view(1, 6, 1)
    finals.shortlist(points, values)
    chosen = finals.ask(MEASUREMENT, 0, "ab").common["points"].flatten().tolist()
    assert chosen == {1: [0], 2: [0, 2], 3: [0, 2, 1], 5: [0, 1, 2, 3, 4], 9: [0, 1, 2, 3, 4, 5]}[most]


# ------------------------------------------------------------------------------------------------ runs
@pytest.mark.parametrize(
    "given",
    [
        settings("fdd_ea", {"noise": 1.0}, rounds=2, runs=2),
        settings("fdd_ea_plus", {"noise": 1.0}, rounds=2, runs=2),
        fronts("fdd_ea_mo", {"noise": 0.1}, infill="all", rounds=1),
        fronts("fdd_ea_dh", secure=True, rounds=1),
    ],
    ids=lambda given: given["strategy"]["name"],
)
def test_a_run_that_is_killed_between_the_steps_of_the_finals_ends_the_same(
    given: dict[str, Any], tmp_path: Path
) -> None:
    whole = train(given, out=tmp_path / "whole")
    for stop in range(whole["steps"] - 3, whole["steps"]):
        train(given, out=tmp_path / f"{stop}", stop_after=stop)
        resumed = train(None, resume=tmp_path / f"{stop}")
        for key in ("best_value", "best_point", "evaluations", "steps", "front_size", "igd", "bytes_up_per_node"):
            if key != "bytes_up_per_node" or not given.get("secure"):  # keys are agreed on anew
                assert resumed.get(key) == whole.get(key)
        for name in ("solution.json", "front.csv"):
            if (tmp_path / "whole" / name).exists():
                assert (tmp_path / f"{stop}" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize("name", POINT)
def test_one_node_alone_has_no_finals(name: str, tmp_path: Path) -> None:
    found = [
        train(settings(name, {"nodes": 1}, finals=finals), out=tmp_path / finals) for finals in ("mean", "literal")
    ]
    for key in ("best_value", "best_point", "evaluations", "steps"):
        assert found[0][key] == found[1][key]


def test_where_all_decline_the_finals_end_at_once(tmp_path: Path) -> None:
    given = settings("fdd_ea", {"declines": [f"node-{i:03d}" for i in range(SITES)]})
    with pytest.warns(ReleaseWarning, match="no node released what it found"):
        summary = train(given, out=tmp_path / "run")
    assert summary["finished"]
    assert summary["best_value"] is None
    assert summary["steps"] == 1 + 6 + 1
    assert summary["evaluations"] == 15 + 6


def test_a_notebook_is_asked_for_the_finalists_and_told_the_mean() -> None:
    optimizer = Optimizer({"x": (-5.0, 5.0)}, strategy="fdd_ea", nodes=2, rounds=2, initial=6, participation=1,
                          generations=5, population=10)  # fmt: skip
    asked = []
    while not optimizer.done:
        x = optimizer.ask()
        assert isinstance(x, dict)
        asked.append(x["x"])
        lucky = -50.0 if asked.count(x["x"]) == 1 and x["x"] < 0 else 0.0  # once, and at one node alone
        optimizer.tell(x, {"node-000": (x["x"] - 1) ** 2, "node-001": (x["x"] - 2) ** 2 + lucky})
    finalists = [x for x in set(asked) if asked.count(x) > 1]
    assert finalists
    point, value = optimizer.best
    means = {x: ((x - 1) ** 2 + (x - 2) ** 2) / 2 for x in finalists}
    assert isinstance(point, dict)
    assert value == pytest.approx(min(means.values()))
    assert means[point["x"]] == pytest.approx(value)


def test_a_best_before_the_end_is_that_of_the_means_told_so_far() -> None:
    optimizer = Optimizer([(-1.0, 1.0)], strategy="fdd_ea", nodes=2, initial=3, participation=1)
    for values in ((5.0, 5.0), (0.0, 20.0), (6.0, 7.0)):
        optimizer.tell(optimizer.ask(), dict(zip(("node-000", "node-001"), values, strict=True)))
    assert optimizer.best[1] == 5.0
