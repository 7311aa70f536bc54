"""FDD-EA for several objectives: what is selected, by whom, and who learns of it; real runs, made small."""

from __future__ import annotations

import csv
import re
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fne.config.load import load_config
from fne.core.errors import DataWarning, FneError, RunError, SettingError
from fne.core.messages import Header, Reply, Request, Round, Status
from fne.core.randomness import chosen_node
from fne.engines.local import LocalEngine
from fne.evolution import rvea
from fne.federation.node import Secrets
from fne.federation.rounds import Relaying
from fne.federation.worker import Worker
from fne.loop import run
from fne.privacy.policy import Policy
from fne.problems.space import FrontTask, Space, Variable
from fne.run.search_run import SearchRun, build_search
from fne.run.train import train
from fne.search.measurements import measure_points
from fne.secure.engine import SecureEngine
from fne.secure.node_tasks import secure_only
from fne.strategies.fdd_ea_mo import fdd_ea_mo
from fne.watch.history import read_history

pytestmark = pytest.mark.filterwarnings("ignore:strategy.infill = all:fne.core.errors.SettingWarning")
"""Interpolants of the same points are quick to fit; tests/surrogates/test_spread.py shows that all nodes agree."""
SMALL = {"rounds": 3, "initial": 20, "generations": 4, "population": 10, "points": 2, "finals": "literal"}
"""Without finals, in which all nodes measure what is published: these are in tests/search/test_finals.py."""
KINDS = ("cubic", "network")


def config(
    strategy: str = "fdd_ea_mo", *, secure: bool = False, problem: Any = None, **settings: Any
) -> dict[str, Any]:
    own = {"name": "dtlz", "number": 2, "objectives": 2, "dim": 5, "nodes": 4, **(problem or {})}
    return {
        "name": "front", "problem": own, "strategy": {"name": strategy, **SMALL, **settings}, "secure": secure,
        "watch": {"tensorboard": False, "checkpoint_every": 1},
    }  # fmt: skip


def measured_in(folder: Path) -> dict[str, Tensor]:
    """Return what each node has measured at the end of a run: points and values side by side, `[B, C, d + M]`."""
    state = torch.load(sorted((folder / "nodes").glob("step-*.pt"))[-1], weights_only=True)
    return {node: torch.cat([memory["points"], memory["measured"]], dim=2) for node, memory in state["nodes"].items()}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(first[name].nan_to_num(nan=-9), second[name].nan_to_num(nan=-9)) for name in first
    )


def started(given: dict[str, Any]) -> tuple[SearchRun, Relaying]:
    search = build_search(load_config(given))
    return search, Relaying(LocalEngine(search.worker))


# ------------------------------------------------------------------------------------------------ who measures
@pytest.mark.parametrize("surrogate", KINDS)
def test_secure_and_plain_select_and_measure_the_same(tmp_path: Path, surrogate: str) -> None:
    plain = train(config(infill="aggregator", surrogate=surrogate), out=tmp_path / "plain")
    secure = train(config("fdd_ea_dh", secure=True, surrogate=surrogate), out=tmp_path / "secure")
    assert same(measured_in(tmp_path / "plain"), measured_in(tmp_path / "secure"))
    assert (tmp_path / "plain/front.csv").read_bytes() == (tmp_path / "secure/front.csv").read_bytes()
    for key in ("evaluations", "steps", "front_size", "igd", "igd_exact"):
        assert plain[key] == secure[key]
    assert secure["evaluations"] == 20 + 3 * 2
    floating = train(config(infill="aggregator", surrogate=surrogate, arithmetic="float"), out=tmp_path / "float")
    # the fixed point is off by 2^-32: the first choices are the same, later ones need not be
    ours, theirs = (measured_in(tmp_path / name) for name in ("plain", "float"))
    first = chosen_node(0, 1, sorted(ours))
    assert torch.equal(ours[first][:, :22], theirs[first][:, :22])
    assert floating["evaluations"] == plain["evaluations"]


def test_the_chosen_node_alone_has_the_points_that_it_chose(tmp_path: Path) -> None:
    train(config(infill="aggregator", rounds=5), out=tmp_path / "run")
    found = measured_in(tmp_path / "run")
    turns = [chosen_node(0, turn, sorted(found)) for turn in range(1, 6)]
    assert len(set(turns)) > 1
    for node, rows in found.items():
        there = rows[0].isfinite().all(dim=1)
        assert int(there.sum()) == 20 + 2 * turns.count(node)
    own = [rows[0, 20:][rows[0, 20:].isfinite().all(dim=1)] for rows in found.values()]
    together = torch.cat(own)
    assert len(torch.unique(together, dim=0)) == len(together) == 10


def test_with_infill_all_everybody_measures_what_was_chosen(tmp_path: Path) -> None:
    train(config(infill="all"), out=tmp_path / "run")
    first, *others = measured_in(tmp_path / "run").values()
    assert first.shape[1] == 20 + 3 * 2
    assert all(torch.equal(first, other) for other in others)


def test_what_was_measured_before_is_not_chosen_again(tmp_path: Path) -> None:
    """Integers leave 6 points, of which 4 are measured at once: soon nothing is left to choose, and the run goes on."""
    path = tmp_path / "f.py"
    path.write_text("def f(a, b):\n    return a + b, (a - 1) ** 2 - b\n")
    own = {"name": "callable", "function": f"{path}:f", "variables": {"a": [0, 2], "b": [0, 1]}, "integer": ["a", "b"],
           "objectives": ["sum", "other"]}  # fmt: skip
    given = config(infill="aggregator", initial=4, points=3)
    given["problem"] = {"nodes": 4, **own}
    train(given, out=tmp_path / "run")
    for rows in measured_in(tmp_path / "run").values():
        there = rows[0][rows[0].isfinite().all(dim=1)]
        assert len(there) <= 4 + 6
        assert len(torch.unique((there[4:, :2] * 100).round(), dim=0)) == len(there) - 4  # nothing twice at a node
    with (tmp_path / "run/front.csv").open() as file:
        table = list(csv.DictReader(file))
    assert set(table[0]) == {"seed", "a", "b", "sum", "other"}
    assert all(row["a"] in {"0", "1", "2"} for row in table)
    assert all(float(row["sum"]) == int(row["a"]) + int(row["b"]) for row in table)


# ------------------------------------------------------------------------------------------------ who learns what
class Tapped(LocalEngine):
    """Keeps what goes over the wire."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self.log: list[tuple[Request, Round]] = []

    def send(self, request: Request) -> Round:
        round_ = super().send(request)
        self.log.append((request, round_))
        return round_


def test_no_value_and_no_chosen_point_comes_to_the_server_before_the_release() -> None:
    search, _ = started(config(infill="aggregator", rounds=2, release=False))
    tapped = Tapped(search.worker)
    run(search.strategy, Relaying(tapped))
    answers = [
        (request.task, name, value)
        for request, round_ in tapped.log for reply in round_.replies for name, value in reply.payload.items()
    ]  # fmt: skip
    # sums of predictions pass through this server, which is not secure; else there are survivors and counts
    assert {(task, name) for task, name, _ in answers} == {
        ("front_fit", "samples"), ("front_predict", "first"), ("front_predict", "second"), ("front_predict", "count"),
        ("select", "survivors"),
    }  # fmt: skip
    last = [round_ for request, round_ in tapped.log if request.task == "select" and request.options["points"]]
    assert len(last) == 2
    assert all(dict(reply.payload) == {} for round_ in last for reply in round_.replies)


def test_the_server_cannot_repeat_the_choice() -> None:
    """Of the same run with other secrets at the nodes the survivors are the same, the first chosen points are not."""
    found = []
    for key in range(2):
        search, engine = started(
            config(infill="aggregator", rounds=1, population=60, generations=6, points=5, release=False)
        )
        if key:
            for node in search.worker.nodes.values():
                node.secrets = Secrets(bytes([7] * 32), simulated=True)
        run(search.strategy, engine)
        chosen = search.worker.nodes[chosen_node(0, 1, engine.nodes)]
        found.append((search.strategy.state_dict()["survivors"], chosen.memory["points"][0, 20:]))
    assert torch.equal(found[0][0], found[1][0])
    assert not torch.equal(found[0][1], found[1][1])


# ------------------------------------------------------------------------------------------------ resume
@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("stop", [1, 2, 4, 6, 7, 12])
def test_resumed_at_any_phase_it_ends_the_same(tmp_path: Path, stop: int, secure: bool) -> None:
    given = config("fdd_ea_dh" if secure else "fdd_ea_mo", secure=secure, infill="aggregator", surrogate="network")
    train(given, out=tmp_path / "whole")
    train(given, out=tmp_path / "parts", stop_after=stop)
    train(None, resume=tmp_path / "parts")
    assert same(measured_in(tmp_path / "whole"), measured_in(tmp_path / "parts"))
    whole, parts = (read_history(tmp_path / name) for name in ("whole", "parts"))
    keys = ("step", "round", "evaluations", "survivors", "igd", "front_size")
    assert [[line.get(k) for k in keys] for line in whole] == [[line.get(k) for k in keys] for line in parts]


# ------------------------------------------------------------------------------------------------ nodes that fail
class Failing(LocalEngine):
    """A node that cannot be reached for one task at one step."""

    def __init__(self, worker: Worker, task: str, step: int, node: str) -> None:
        super().__init__(worker)
        self.task, self.step, self.node = task, step, node

    def send(self, request: Request) -> Round:
        if request.task != self.task or request.header.step != self.step or self.node not in request.nodes:
            return super().send(request)
        if request.nodes == (self.node,):
            raise RunError("0 of 1 nodes answered")
        round_ = super().send(replace(request, nodes=tuple(n for n in request.nodes if n != self.node)))
        return replace(round_, failures=(Reply(request.header, self.node, Status.FAILED, "the line is dead"),))


def test_where_the_chosen_node_fails_another_one_goes_on_from_the_whole_population() -> None:
    given = config(infill="aggregator", rounds=1, release=False)
    names = tuple(f"node-{i:03d}" for i in range(4))
    first = chosen_node(0, 1, names)
    search = build_search(load_config(given))
    failing = Failing(search.worker, "select", 3, first)  # in the second generation
    seen: list[Request] = []
    engine = Relaying(failing)
    send = engine.send

    def kept(request: Request) -> Round:
        seen.append(request)
        return send(request)

    engine.send = kept  # type: ignore[method-assign]
    run(search.strategy, engine)
    relays = [request.relay for request in seen if request.relay is not None]
    others = [name for name in names if name != first]
    assert [relay.nodes[0] for relay in relays] == [first] * 3 + [chosen_node(0, 2, others)] * 2
    assert [relay.options["fresh"] for relay in relays] == [True, False, False, True, False]
    assert seen[4].nodes == tuple(others)
    assert seen[4].common["candidates"].shape[1] == 2 * seen[3].common["candidates"].shape[1]  # parents and children
    second = search.worker.nodes[chosen_node(0, 2, others)]
    assert second.memory["asked"].tolist() == [22]
    assert search.worker.nodes[first].memory["asked"].tolist() == [20]


class Lying(Worker):
    """A worker whose chosen node tells survivors that there are not, at one step."""

    survivors = torch.zeros(1, 1, dtype=torch.int16)

    def run(self, request: Request) -> Iterator[Reply]:
        for reply in super().run(request):
            lies = request.header.step == 3 and "survivors" in reply.payload
            yield replace(reply, payload={**reply.payload, "survivors": self.survivors}) if lies else reply


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize(
    ("survivors", "said"),
    [
        (torch.zeros(1, 1, dtype=torch.int16), r"answers 'survivors' as int \[1, 1\], must be int \[1, 10"),
        (torch.full((1, 10), 20, dtype=torch.int16), "answers 'survivors' = 20, must be at most 19"),
        (torch.full((1, 10), -2, dtype=torch.int16), "answers 'survivors' = -2, must be at least -1"),
    ],
)
def test_a_chosen_node_that_lies_is_named_and_another_one_goes_on(secure: bool, survivors: Tensor, said: str) -> None:
    """With 10 places, and as many candidates, the places of a second generation are 0 to 19."""
    strategy = "fdd_ea_dh" if secure else "fdd_ea_mo"
    given = config(
        strategy, infill="aggregator", rounds=1, release=False, population=10, secure=secure, problem={"nodes": 5}
    )
    search = build_search(load_config(given))
    worker = Lying(search.worker.nodes)
    worker.survivors = survivors
    if secure:
        secure_only(worker)
    plain = LocalEngine(worker)
    told: list[Reply] = []
    run(search.strategy, SecureEngine(plain, worker.pinned) if secure else Relaying(plain),
        callbacks=[lambda s, r, m: told.extend(r.failures)])  # fmt: skip
    (failure,) = told
    names = tuple(f"node-{i:03d}" for i in range(5))
    assert failure.node == chosen_node(0, 1, names)
    assert re.search(said, failure.reason)
    assert search.strategy.done


def test_a_node_that_cannot_fit_is_left_out_of_its_round() -> None:
    search = build_search(load_config(config(infill="aggregator", rounds=2, release=False)))
    failing = Failing(search.worker, "front_fit", 6, "node-001")
    counts: list[int] = []
    engine = Relaying(failing)
    send = engine.send

    def kept(request: Request) -> Round:
        counts.append(len(request.nodes))
        return send(request)

    engine.send = kept  # type: ignore[method-assign]
    run(search.strategy, engine)
    assert counts == [4] * 7 + [3] * 5


def test_where_nobody_is_left_it_says_so() -> None:
    search = build_search(load_config(config(infill="aggregator", rounds=1, problem={"nodes": 1})))
    engine = Relaying(Failing(search.worker, "select", 1, "node-000"))
    with pytest.raises(RunError, match="step 2: no node is left that takes part in round 1"):
        run(search.strategy, engine)


# ------------------------------------------------------------------------------------------------ problems' own
def test_regions_that_a_node_cannot_measure_and_noise(tmp_path: Path) -> None:
    given = config(infill="all", problem={"infeasible": 2, "noise": 0.1})
    train(given, out=tmp_path / "run")
    for number, rows in enumerate(measured_in(tmp_path / "run").values()):
        there = rows[0].isfinite().all(dim=1)
        assert not there.all()
        low, high = -1 + number * 0.5, min(1.0, -1 + (number + 2) * 0.5)
        assert not ((rows[0, there, 0] >= low) & (rows[0, there, 0] <= high)).any()


def test_values_out_of_the_rings_range_are_told_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "f.py"
    path.write_text("def f(a, b):\n    return 1e6 * a, 1e6 * b\n")
    given = config(infill="aggregator")
    variables = {"a": [0, 1], "b": [0, 1]}
    own = {"name": "callable", "function": f"{path}:f", "variables": variables, "objectives": ["f", "g"]}
    given["problem"] = {"nodes": 4, **own}
    with pytest.raises(
        RunError, match=r"objective 1 has values beyond 2\.32e\+04 in size, .* 4 nodes .*scale the objectives"
    ):
        train(given, out=tmp_path / "run")


def test_several_runs_side_by_side_have_their_own_starts_and_leaders(tmp_path: Path) -> None:
    summary = train(config(infill="aggregator", runs=3, rounds=4), out=tmp_path / "run")
    assert len(summary["igds_exact"]) == 3
    assert summary["igd_exact"] == pytest.approx(sum(summary["igds_exact"]) / 3)
    found = measured_in(tmp_path / "run")
    names = sorted(found)
    for b in range(3):
        turns = [chosen_node(b, turn, names) for turn in range(1, 5)]
        for node, rows in found.items():
            assert int(rows[b].isfinite().all(dim=1).sum()) == 20 + 2 * turns.count(node)
    alone = train(config(infill="aggregator", rounds=4) | {"seed": 1}, out=tmp_path / "alone")
    own = measured_in(tmp_path / "alone")
    assert all(torch.equal(found[node][1, :20], own[node][0, :20]) for node in names)
    assert alone["evaluations"] == summary["evaluations"]
    with (tmp_path / "run/front.csv").open() as file:
        assert {row["seed"] for row in csv.DictReader(file)} == {"0", "1", "2"}


def test_a_front_is_found_that_random_points_do_not_come_near(tmp_path: Path) -> None:
    given = config(infill="aggregator", rounds=8, generations=20, population=40, points=5)
    summary = train(given, out=tmp_path / "run")
    start = read_history(tmp_path / "run")[0]["igd"]
    assert summary["igd_exact"] < 0.35 * start
    last = read_history(tmp_path / "run")[-1]
    assert last["igd"] == summary["igd_exact"]
    assert summary["igd"] >= summary["igd_exact"] - 1e-12


# ------------------------------------------------------------------------------------------------ as printed
def test_masks_of_the_text_cancel_in_the_sum_and_are_in_single_answers() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        search, _ = started(config("fdd_ea_dh", mode="literal", noise_scale=3.0, schedule="constant"))
    tapped = Tapped(search.worker)
    strategy = search.strategy
    relaying = Relaying(tapped)
    for _ in range(2):
        strategy.tell(relaying.send(strategy.ask(relaying.nodes)))
    request, round_ = tapped.log[1]
    assert request.task == "front_predict"
    masked = torch.stack([reply.payload["masked"] for reply in round_.replies])
    clear = torch.stack([
        reply.payload["masked"]
        for reply in tapped.send(Request(request.header, request.task, request.nodes, request.common, {},
                                         {**request.options, "noise": 0.0})).replies
    ])  # fmt: skip
    torch.testing.assert_close(masked.mean(dim=0), clear.mean(dim=0), rtol=1e-9, atol=1e-9)
    noise = masked - clear
    assert noise.std() == pytest.approx(3.0 * 3**0.5, rel=0.2)  # three pairs each
    again = torch.stack([reply.payload["masked"] for reply in tapped.send(request).replies])
    assert torch.equal(again, masked)  # one salt for the run


def test_eq_3_as_printed_is_no_mask_at_all() -> None:
    """Both of its sums run over j < i, of keys that are symmetric."""
    keys = torch.randn(4, 4).double()
    keys = keys + keys.mT
    for i in range(4):
        printed = sum(keys[i, j] for j in range(i)) - sum(keys[j, i] for j in range(4) if i > j)
        assert float(printed) == 0.0
        meant = sum(keys[i, j] for j in range(i)) - sum(keys[j, i] for j in range(4) if j > i)
        assert float(meant) != 0.0


def test_the_literal_mode_warns_and_runs(tmp_path: Path) -> None:
    with pytest.warns(DataWarning, match=r"mode = literal: the protocol as its paper prints it.* it protects nothing"):
        summary = train(config("fdd_ea_dh", mode="literal", surrogate="network", runs=2), out=tmp_path / "run")
    assert summary["evaluations"] == 26


# ------------------------------------------------------------------------------------------------ mistakes
@pytest.mark.parametrize(
    ("given", "text"),
    [
        (config("fdd_ea_dh"), "secure = false: must be true with strategy.name = 'fdd_ea_dh'"),
        (config("fdd_ea_mo", secure=True), "secure = true: must be false with strategy.name = 'fdd_ea_mo'"),
        (config("fdd_ea_dh", secure=True, runs=2), "strategy.runs = 2: must be 1 with strategy.mode = secure"),
        (config("fdd_ea_dh", secure=True, problem={"nodes": 3}), "problem.nodes = 3: must be at least 4"),
        (config("fdd_ea_dh", secure=True, participation=0.5), "strategy.participation = 0.5: must be so large"),
        (config(problem={"name": "ellipsoid", "number": None}), "problem.number"),
        (config(population=1), "strategy.population = 1: must be a whole number >= 2"),
    ],
)
def test_mistakes_are_told_by_key(given: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(FneError) as caught:
        train(given, out=tmp_path / "run")
    assert text in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_the_literal_mode_and_secure_sums_exclude_each_other(tmp_path: Path) -> None:
    with (
        pytest.warns(DataWarning),
        pytest.raises(SettingError, match=r"secure = true: must be false with strategy.name"),
    ):
        train(config("fdd_ea_dh", secure=True, mode="literal"), out=tmp_path / "run")


@pytest.mark.parametrize(("objectives", "places"), [(2, 100), (3, 105), (5, 126), (10, 230), (20, 420)])
def test_the_population_is_that_of_the_papers(objectives: int, places: int) -> None:
    space = Space([Variable(f"x{i}", 0, 1) for i in range(20)])
    strategy = fdd_ea_mo(FrontTask(space, 4, "cpu", objectives), seed=0)
    assert strategy.state_dict()["survivors"].shape == (1, places, 20)
    assert strategy.horizon == 24 * 52 + 3  # and the finals
    assert strategy.ask(["a", "b", "c", "d"]).common["points"].shape == (1, 219, 20)


# ------------------------------------------------------------------------------------------------ a generation by hand
def test_a_generation_of_the_chosen_node_is_the_papers() -> None:
    """From sums whose deviations matter: F-LCB, selection, adapted vectors, and one point of each cluster."""
    draw = torch.Generator().manual_seed(4)
    search = build_search(load_config(config(infill="aggregator", release=False)))
    names = tuple(sorted(search.worker.nodes))
    (node,) = (search.worker.nodes[name] for name in names[:1])
    node.policy = Policy()  # the weight and sizes below are none of the search's
    x = 2 * torch.rand(1, 60, 5, generator=draw, dtype=torch.float64) - 1
    predictions = 3 * torch.rand(4, 1, 60, 2, generator=draw, dtype=torch.float64)
    node.memory = {"front.candidates": x}
    measure_points([node], [torch.tensor([0])], [torch.ones(1, 1, 5)], Header(0, 0), count=1)
    given = {
        "given.first": predictions.sum(dim=0), "given.second": predictions.square().sum(dim=0),
        "given.count": torch.tensor([4]),
    }  # fmt: skip
    options = {"turn": 1, "arithmetic": "float", "population": 12, "progress": 0.6, "fresh": True, "adapt": True,
               "weight": 1.5, "points": 0}  # fmt: skip
    request = Request(Header(0, 1), "select", names[:1], given, {}, options)
    (reply,) = search.worker.run(request)
    mean, deviation = predictions[:, 0].mean(dim=0), predictions[:, 0].std(dim=0, correction=0)
    bounds = mean - 1.5 * deviation
    even = rvea.reference_vectors(2, 12)
    everybody = torch.ones(1, 60, dtype=torch.bool)
    wanted = rvea.select(bounds[None], everybody, even[None], 0.6)[0]
    assert reply.payload["survivors"][0].tolist() == wanted.tolist()
    assert rvea.select(mean[None], everybody, even[None], 0.6)[0].tolist() != wanted.tolist()  # the weight matters
    assert rvea.select(bounds[None], everybody, even[None], 0.0)[0].tolist() != wanted.tolist()  # and the progress
    taken = wanted[wanted >= 0]
    spread = bounds[taken].amax(dim=0) - bounds[taken].amin(dim=0)
    stretched = even * spread / (even * spread).norm(dim=1, keepdim=True)
    torch.testing.assert_close(node.memory["front.vectors"][0], stretched)

    request = Request(Header(0, 2), "select", names[:1], given, {}, {**options, "points": 2, "population": 40})
    list(search.worker.run(request))
    chosen = node.memory["points"][0, 1:]
    kept = rvea.select(bounds[None], everybody, rvea.reference_vectors(2, 40)[None], 0.6)[0]
    front = bounds[kept[kept >= 0]]
    scaled = (front - front.amin(dim=0)) / (front.amax(dim=0) - front.amin(dim=0))
    where = torch.tensor([int((x[0] == point).all(dim=1).nonzero()) for point in chosen])
    picked = torch.tensor([int((kept[kept >= 0] == place).nonzero()) for place in where])
    assert len(picked) == 2
    # two clusters in one dimension of freedom: of each that one is picked which is nearest to the cluster's mean
    labels = torch.cdist(scaled, scaled[picked]).argmin(dim=1)
    for cluster, pick in enumerate(picked):
        members = scaled[labels == cluster]
        away = (members - members.mean(dim=0)).norm(dim=1)
        assert (
            float((scaled[pick] - members.mean(dim=0)).norm())
            <= float(away.sort().values[min(1, len(away) - 1)]) + 1e-9
        )


def test_a_node_that_has_measured_nothing_has_no_say(tmp_path: Path) -> None:
    blind = train(config(infill="aggregator", problem={"infeasible": 0}, rounds=2), out=tmp_path / "all")
    search, engine = started(config(infill="aggregator", rounds=2, release=False))
    search.worker.nodes["node-001"].objective = replace(
        search.worker.nodes["node-001"].objective,
        infeasible=(-1.0, 1.0),  # type: ignore[type-var]
    )
    tapped = Tapped(search.worker)
    strategy = search.strategy
    for _ in range(2):
        strategy.tell(Relaying(tapped).send(strategy.ask(engine.nodes)))
    request, round_ = tapped.log[1]
    assert request.task == "front_predict"
    assert int(round_.replies[0].payload["count"][0]) == 3
    others = [
        reply.payload["first"][0]
        for name in request.nodes if name != "node-001"
        for reply in tapped.send(replace(request, nodes=(name,), relay=None, reduce="none")).replies
    ]  # fmt: skip
    assert torch.equal(round_.replies[0].payload["first"][0], sum(others[1:], others[0]))
    assert blind["front_size"] > 0


def test_a_point_is_in_the_front_once_however_many_nodes_measured_it(tmp_path: Path) -> None:
    summary = train(config(infill="all", rounds=1), out=tmp_path / "run")
    with (tmp_path / "run/front.csv").open() as file:
        rows = list(csv.reader(file))[1:]
    assert len({tuple(row) for row in rows}) == len(rows) == summary["front_size"] == summary["front_size_exact"]


def test_a_last_generation_that_is_lost_is_not_counted() -> None:
    given = config(infill="aggregator", rounds=2, release=False)
    first = chosen_node(0, 1, tuple(f"node-{i:03d}" for i in range(4)))
    search = build_search(load_config(given))
    engine = Relaying(Failing(search.worker, "select", 5, first))
    metrics: list[dict[str, Any]] = []
    run(search.strategy, engine, callbacks=[lambda _, __, found: metrics.append(dict(found)) or False])
    assert [m["evaluations"] for m in metrics if m["step"] in (6, 12)] == [20, 22]
    assert sum(int(node.memory["asked"]) for node in search.worker.nodes.values()) == 4 * 20 + 2


def test_with_masks_of_the_text_copies_do_not_survive_beside_each_other() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        search, engine = started(config("fdd_ea_dh", mode="literal", noise_scale=5.0, rounds=1, release=False,
                                        generations=6, population=30))  # fmt: skip
    strategy = search.strategy
    while not strategy.done:
        strategy.tell(engine.send(strategy.ask(engine.nodes)))
        state = strategy.state_dict()
        survivors = state["survivors"][0][state["taken"][0]]
        assert len(torch.unique(survivors, dim=0)) == len(survivors)


def test_where_somebody_is_missing_masks_of_the_text_do_not_cancel_and_the_generation_is_lost() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        search, _ = started(config("fdd_ea_dh", mode="literal", rounds=1, release=False))
    engine = Relaying(Failing(search.worker, "front_predict", 3, "node-002"))
    sent = []
    strategy = search.strategy
    while not strategy.done:
        request = strategy.ask(engine.nodes)
        sent.append(request.nodes)
        strategy.tell(engine.send(request))
    assert [len(nodes) for nodes in sent] == [4, 4, 4, 4, 3, 3]
    with pytest.raises(SettingError, match=r"strategy.participation = 0.5: must be 1 with strategy.mode = literal"):
        fdd_ea_dh_of(participation=0.5, runs=2)


def fdd_ea_dh_of(**settings: Any) -> SearchRun:
    return build_search(load_config(config("fdd_ea_dh", mode="literal", **settings)))


def test_who_takes_part_is_drawn_among_those_that_are_left() -> None:
    search = build_search(load_config(config(infill="aggregator", participation=0.5, rounds=3, problem={"nodes": 8})))
    engine = Relaying(Failing(search.worker, "front_fit", 6, "node-003"))
    asked = []
    while search.strategy.step < 12:
        request = search.strategy.ask(engine.nodes)
        asked.append(request.nodes)
        search.strategy.tell(engine.send(request))
    assert all(len(nodes) == 4 for nodes in asked[1:6] + asked[7:])
    assert all("node-003" not in nodes for nodes in asked[7:])


def test_with_infill_all_secure_sums_select_as_plain_ones_do(tmp_path: Path) -> None:
    plain = train(config(infill="all"), out=tmp_path / "plain")
    secure = train(config("fdd_ea_dh", secure=True, infill="all"), out=tmp_path / "secure")
    assert same(measured_in(tmp_path / "plain"), measured_in(tmp_path / "secure"))
    assert plain["evaluations"] == secure["evaluations"] == 26
