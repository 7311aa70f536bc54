"""The local engine: measured traffic, sums in order, quorum, failures by name, the nodes' memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from fne.config import registry
from fne.core.dataset import Samples
from fne.core.errors import CheckpointError, RunError
from fne.core.messages import AGGREGATE, Header, Reply, Request, Status, Tensors
from fne.engines.local import LocalEngine
from fne.federation import wire
from fne.federation.node import Node, payload_of
from fne.federation.rounds import RunningSum
from fne.federation.worker import Worker
from fne.run.kinds import resolve_device

HEADER = Header(seed=3, step=4)


@pytest.fixture
def build(
    laboratory: Callable[..., SimpleNamespace], clouds: Callable[..., dict[str, Samples]]
) -> Callable[..., SimpleNamespace]:
    """Return `build(*sizes, **engine settings)` with a linear model."""
    return lambda *sizes, **settings: laboratory(lambda: nn.Linear(4, 3), clouds(*sizes), **settings)


def fitness(nodes: tuple[str, ...], count: int = 5, **changes: Any) -> Request:
    population = torch.linspace(-1, 1, count * 15).view(count, 15)
    options = {"loss": "cross_entropy"}
    return Request(**{
        "header": HEADER, "task": "fitness", "nodes": nodes, "common": {"population": population},
        "options": options, **changes,
    })  # fmt: skip


def use(monkeypatch: pytest.MonkeyPatch, task: Any) -> None:
    monkeypatch.setattr(registry, "load", lambda kind, name: task)


# ------------------------------------------------------------------------------------------------ sending
def test_nodes_are_sorted(build: Callable[..., SimpleNamespace]) -> None:
    worker = build(1, 1, 1).worker
    worker.nodes = dict(reversed(list(worker.nodes.items())))
    assert LocalEngine(worker).nodes == ("n0", "n1", "n2")


@pytest.mark.parametrize("reduce", ["none", "sum"])
def test_traffic_is_the_length_of_the_frames(build: Callable[..., SimpleNamespace], reduce: str) -> None:
    private = {"n2": {"note": torch.arange(7)}}
    request = fitness(("n2", "n0"), private=private, reduce=reduce)
    engine = build(4, 6, 3).engine
    round_ = engine.send(request)
    stamped = Request(
        Header(3, 4, run="test"), request.task, request.nodes, request.common, private, request.options, reduce
    )  # fmt: skip
    common, own = wire.request_frames(stamped)
    frame, extra = len(bytes(common)), len(bytes(own["n2"]))
    traffic = round_.traffic
    assert traffic.encoded_down == {"n2": frame + extra, "n0": frame}
    assert traffic.payload_down == {"n2": 5 * 15 * 4 + 7 * 8, "n0": 5 * 15 * 4}
    assert traffic.payload_up == {"n2": 5 * 4 + 8, "n0": 5 * 4 + 8}
    singles = engine.send(fitness(("n2", "n0"), private=private)).replies
    assert traffic.encoded_up == {r.node: len(bytes(wire.reply_frame(r))) for r in singles}


def test_replies_come_in_the_order_of_the_request_with_run_and_attempt(
    build: Callable[..., SimpleNamespace],
) -> None:
    round_ = build(4, 6, 3).engine.send(fitness(("n2", "n0", "n1")))
    assert [r.node for r in round_.replies] == ["n2", "n0", "n1"]
    assert {r.header for r in round_.replies} == {Header(3, 4, run="test")}
    assert [int(r.payload["samples"][0]) for r in round_.replies] == [3, 4, 6]
    assert round_.per_node["n1"] == {"samples": 6.0}


def test_a_sum_is_the_manual_sum_in_order(build: Callable[..., SimpleNamespace]) -> None:
    engine, nodes = build(4, 6, 3).engine, ("n2", "n0", "n1")
    singles = engine.send(fitness(nodes)).replies
    (total,) = engine.send(fitness(nodes, reduce="sum")).replies
    assert total.node == AGGREGATE
    wanted = torch.zeros(5, 1, dtype=torch.float64)
    for reply in singles:
        wanted = wanted + reply.payload["loss"].double()
    assert torch.equal(total.payload["loss"], wanted)
    assert total.payload["samples"].tolist() == [13]
    assert total.payload["samples"].dtype == torch.int64


def test_the_order_of_a_sum_matters_and_is_kept() -> None:
    values = [1e16, 1.0, -1e16]

    def folded(order: Sequence[int]) -> float:
        total = RunningSum(HEADER)
        for i in order:
            total.add(Reply(HEADER, str(i), payload={"x": torch.tensor([values[i]], dtype=torch.float64)}))
        return total.reply().payload["x"].item()

    assert folded((0, 1, 2)) == 0.0
    assert folded((0, 2, 1)) == 1.0


def test_a_sum_leaves_the_payloads_alone_and_keeps_integers_whole() -> None:
    total, payload = RunningSum(HEADER), {"x": torch.ones(2, dtype=torch.float64), "n": torch.tensor([2**53 + 1])}
    flags = {"b": torch.tensor([True]), "h": torch.tensor([0.5], dtype=torch.float16)}
    for _ in range(3):
        total.add(Reply(HEADER, "n", payload={**payload, **flags}))
    got = total.reply().payload
    assert payload["x"].tolist() == [1, 1]
    assert got["n"].tolist() == [3 * (2**53 + 1)]
    assert (got["b"].tolist(), got["b"].dtype) == ([3], torch.int64)
    assert (got["h"].tolist(), got["h"].dtype) == ([1.5], torch.float64)


def test_private_tensors_reach_one_node(build: Callable[..., SimpleNamespace], monkeypatch: pytest.MonkeyPatch) -> None:
    def echo(worker: Worker, nodes: Sequence[Node], request: Request) -> Iterator[Tensors]:
        for node in nodes:
            yield dict(payload_of(request, node))

    use(monkeypatch, echo)
    request = Request(
        HEADER, "echo", ("n0", "n1"), {"x": torch.tensor([1])}, {"n1": {"x": torch.tensor([2]), "y": torch.tensor([3])}}
    )
    first, second = build(1, 1).engine.send(request).replies
    assert {k: v.tolist() for k, v in first.payload.items()} == {"x": [1]}
    assert {k: v.tolist() for k, v in second.payload.items()} == {"x": [2], "y": [3]}


@pytest.mark.parametrize("reduce", ["none", "sum"])
def test_a_failing_node_is_named_and_left_out(
    build: Callable[..., SimpleNamespace], monkeypatch: pytest.MonkeyPatch, reduce: Any
) -> None:
    def task(worker: Worker, nodes: Sequence[Node], request: Request) -> Iterator[Tensors]:
        for node in nodes:
            if node.name == "n1":
                raise RuntimeError("disk on fire")
            yield {"samples": torch.tensor([len(node.data)])}

    use(monkeypatch, task)
    round_ = build(4, 6, 3).engine.send(Request(HEADER, "t", ("n0", "n1", "n2"), reduce=reduce))
    (failure,) = round_.failures
    assert (failure.node, failure.status) == ("n1", Status.FAILED)
    assert "disk on fire" in failure.reason
    assert sum(int(r.payload["samples"][0]) for r in round_.replies) == 7
    assert set(round_.per_node) == {"n0", "n2"}
    assert round_.traffic.payload_up == {"n0": 8, "n1": 0, "n2": 8}
    assert round_.traffic.encoded_up["n1"] == len(bytes(wire.reply_frame(failure)))  # its answer was sent, too


def test_below_the_quorum_the_error_has_both_numbers_and_the_reason(
    build: Callable[..., SimpleNamespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    def task(worker: Worker, nodes: Sequence[Node], request: Request) -> Iterator[Tensors]:
        for node in nodes:
            if node.name != "n0":
                raise RuntimeError("no battery")
            yield {}

    use(monkeypatch, task)
    request = Request(HEADER, "t", ("n0", "n1", "n2"))
    assert len(build(1, 1, 1, quorum=1).engine.send(request).replies) == 1
    with pytest.raises(
        RunError,
        match=r"step 4: 1 of 3 nodes answered, engine\.quorum = 2; n1 and 1 more: RuntimeError: no battery",
    ):
        build(1, 1, 1, quorum=2).engine.send(request)


def test_the_same_request_gives_the_same_bits(build: Callable[..., SimpleNamespace]) -> None:
    one = fitness(("n0", "n1"), options={"loss": "mse", "samples": 1})
    first, second = (build(4, 6).engine.send(one).replies for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a.payload["loss"], b.payload["loss"])
        assert a.payload["samples"].tolist() == [1]


def test_a_single_sample_is_one_of_the_nodes_own_and_changes_with_the_step(
    build: Callable[..., SimpleNamespace],
) -> None:
    lab = build(6)
    data = lab.worker.nodes["n0"].data
    each = [
        lab.evaluator.evaluate(fitness(("n0",)).common["population"], data.take(torch.tensor([i])), loss="mse")["loss"]
        for i in range(6)
    ]
    seen = set()
    for step in range(30):
        request = fitness(("n0",), header=Header(3, step), options={"loss": "mse", "samples": 1})
        got = lab.engine.send(request).replies[0].payload["loss"][:, 0].double()
        seen.add(min(range(6), key=lambda i: (each[i] - got).abs().max().item()))
        assert min((e - got).abs().max().item() for e in each) < 1e-6
    assert len(seen) >= 5


@pytest.mark.parametrize("joined", [False, True])
def test_some_samples_are_drawn_by_each_node_without_repetition(
    build: Callable[..., SimpleNamespace], joined: bool
) -> None:
    """Of inputs that are powers of two, a sum tells which they were; a node with fewer gives all that it has."""
    lab = build(6, 2, 9, joined=joined)
    for node in lab.worker.nodes.values():
        count = len(node.data)
        node.data = Samples(torch.eye(4)[:1] * 2.0 ** torch.arange(count)[:, None], torch.zeros(count, 3))
    weights = torch.zeros(1, 15)
    weights[0, 0] = 3.0**0.5  # logits [sqrt(3) x, 0, 0], so that the mse against zeros over three outputs is x ** 2
    lab.evaluator.output = "linear"
    seen: dict[str, set[int]] = {"n0": set(), "n2": set()}
    for step in range(20):
        request = fitness(
            ("n0", "n1", "n2"), common={"population": weights}, header=Header(3, step),
            options={"loss": "mse", "samples": 4},
        )  # fmt: skip
        replies = {reply.node: reply.payload for reply in lab.engine.send(request).replies}
        assert [int(p["samples"]) for p in replies.values()] == [4, 2, 4]
        assert replies["n1"]["loss"].item() == pytest.approx(1 + 4, rel=1e-6)
        for name, found in seen.items():
            bits = round(replies[name]["loss"].item())
            picked = {i for i in range(9) if bits >> 2 * i & 1}
            assert sum(4**i for i in picked) == bits
            assert len(picked) == 4
            found |= picked
    assert (seen["n0"], seen["n2"]) == (set(range(6)), set(range(9)))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"samples": -1}, "task 'fitness': samples: must be a whole number >= 0"),
        ({"statistics": "mine"}, "task 'fitness': statistics: must be 'given' or 'batch'"),
    ],
)
def test_options_that_no_task_has_are_refused_by_the_nodes(
    build: Callable[..., SimpleNamespace], options: dict[str, Any], reason: str
) -> None:
    request = fitness(("n0",), options={"loss": "mse", **options})
    (reply,) = build(3).worker.run(request)
    assert (reply.status, reply.reason) == (Status.REFUSED, reason)


# ------------------------------------------------------------------------------------------------ memory
def steps(folder: Path) -> list[int]:
    return [int(p.stem.removeprefix("step-")) for p in sorted((folder / "nodes").glob("step-*.pt"))]


def remember(worker: Worker, value: int) -> None:
    worker.nodes["n1"].memory = {"v": torch.tensor(value), "half": torch.ones(2, dtype=torch.float16)}


def test_memory_comes_back_and_the_last_two_steps_are_kept(
    build: Callable[..., SimpleNamespace], tmp_path: Path
) -> None:
    lab = build(1, 1, folder=tmp_path)
    for step in (5, 10, 15, 100):
        remember(lab.worker, step)
        lab.engine.save(step)
    assert steps(tmp_path) == [15, 100]
    assert [p.name for p in (tmp_path / "nodes").iterdir() if p.name.startswith(".")] == []
    fresh = build(1, 1, folder=tmp_path)
    fresh.worker.nodes["n0"].memory["stale"] = torch.ones(1)
    fresh.engine.load(15)
    assert fresh.worker.nodes["n0"].memory == {}
    memory = fresh.worker.nodes["n1"].memory
    assert int(memory["v"]) == 15
    assert memory["half"].dtype == torch.float16


def test_a_step_that_is_not_held_is_an_error_that_says_what_is(
    build: Callable[..., SimpleNamespace], tmp_path: Path
) -> None:
    lab = build(1, folder=tmp_path)
    with pytest.raises(CheckpointError, match=r"memory of step 7 is missing; held: \[\]"):
        lab.engine.load(7)
    lab.engine.save(3)
    with pytest.raises(CheckpointError, match=r"step 7 is missing; held: \['step-000000003\.pt'\]"):
        lab.engine.load(7)


def test_steps_of_an_abandoned_future_do_not_push_out_the_last_checkpoints(
    build: Callable[..., SimpleNamespace], tmp_path: Path
) -> None:
    """Killed between `save(100)` and its checkpoint, resumed at 50, stopped at 60: 50 must still be there."""
    lab = build(1, 1, folder=tmp_path)
    for step in (50, 100):
        remember(lab.worker, step)
        lab.engine.save(step)
    lab.engine.load(50)
    lab.engine.save(60)
    lab.engine.load(50)
    assert int(lab.worker.nodes["n1"].memory["v"]) == 50
    lab.engine.save(70)
    assert steps(tmp_path) == [60, 70]


def test_without_a_folder_nothing_is_kept(build: Callable[..., SimpleNamespace], tmp_path: Path) -> None:
    build(1).engine.save(1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("threads", "wanted"), [(3, 3), (1, 1)])
def test_devices_and_threads_are_resolved(threads: int, wanted: int) -> None:
    assert resolve_device({"device": "cpu", "threads": threads}) == (torch.device("cpu"), wanted)
    assert resolve_device({"device": "cpu", "threads": 0})[1] >= 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_that_is_not_there_is_an_error() -> None:
    with pytest.raises(RunError, match=r"engine\.device = 'cuda': torch sees no CUDA device"):
        resolve_device({"device": "cuda", "threads": 0})
    assert resolve_device({"device": "auto", "threads": 1})[0].type == "cpu"
