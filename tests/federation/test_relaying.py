"""Results that are given to nodes in the server's place, without secure sums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import pytest
import torch

from fne.config import registry
from fne.config.registry import Key
from fne.core.dataset import Samples
from fne.core.errors import RefusedError, RunError
from fne.core.messages import Header, Relay, Request, Round, Tensors
from fne.core.randomness import chosen_node
from fne.engines.local import LocalEngine
from fne.federation.node import Node, Secrets, payload_of
from fne.federation.rounds import Relaying
from fne.federation.worker import Worker

NODES = ("n0", "n1", "n2", "n3")
SUM = {"x": [6.0, 10.0], "n": [14]}
"""Of all nodes: n0 answers 0.0 and 1.0, and 2, n1 1.0 and 2.0, and 3, and so on."""


def values(
    worker: Worker, nodes: Sequence[Node], request: Request, *,
    fail: Annotated[str, Key("nodes that do not answer")] = "", odd: Annotated[str, Key("who answers more")] = "",
) -> Iterator[Tensors]:  # fmt: skip
    for node in nodes:
        place = int(node.name[1:])
        if node.name in fail:
            raise RefusedError("no answer today")
        x = torch.arange(place, place + 2 + (node.name == odd)).float()
        yield {"x": x, "n": torch.tensor([place + 2], dtype=torch.int32)}


def look(
    worker: Worker, nodes: Sequence[Node], request: Request, *,
    fail: Annotated[str, Key("nodes that do not answer")] = "", turn: Annotated[int, Key("anything")] = 0,
) -> Iterator[Tensors]:  # fmt: skip
    """Answer with all that was given."""
    for node in nodes:
        if node.name in fail:
            raise RefusedError("cannot look")
        yield {"drawn": torch.rand(1, generator=node.generator(request.header, "look")), **payload_of(request, node)}


class Log:
    """An engine that keeps what goes through it."""

    def __init__(self, engine: LocalEngine) -> None:
        self.engine, self.nodes, self.log = engine, engine.nodes, list[tuple[Request, Round]]()
        self.save, self.load, self.close = engine.save, engine.load, engine.close

    def send(self, request: Request) -> Round:
        self.log.append((request, self.engine.send(request)))
        return self.log[-1][1]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Log:
    tasks = {"values": values, "look": look}
    load = registry.load
    monkeypatch.setattr("fne.config.registry.load", lambda kind, name: tasks.get(name) or load(kind, name))
    nothing = Samples(torch.zeros(1, 1), torch.zeros(1))
    return Log(LocalEngine(Worker({n: Node(n, nothing, Secrets.simulate(0, n)) for n in NODES}), "run", tmp_path))


def asked(relay: Relay | None, **changes: Any) -> Request:
    return Request(**{"header": Header(5, 7), "task": "values", "nodes": NODES, "relay": relay, **changes})


def given(reply: Any) -> dict[str, Any]:
    return {name: v.tolist() for name, v in reply.payload.items() if name.startswith("given.")}


def test_a_sum_goes_to_the_nodes_of_the_relay_whose_answers_come_back(log: Log) -> None:
    own = {"n3": {"more": torch.tensor([9])}}
    round_ = Relaying(log).send(asked(Relay(("n3", "n1"), "look", own, {"turn": 4}), reduce="sum"))
    assert [reply.node for reply in round_.replies] == ["n3", "n1"]
    assert [given(reply) for reply in round_.replies] == [{f"given.{name}": v for name, v in SUM.items()}] * 2
    assert [reply.payload["given.n"].dtype for reply in round_.replies] == [torch.int64] * 2
    assert ["more" in reply.payload for reply in round_.replies] == [True, False]
    (first, one), (second, two) = log.log
    assert (first.relay, first.reduce, second.task, second.nodes) == (None, "sum", "look", ("n3", "n1"))
    assert (second.options, second.header, second.reduce) == ({"turn": 4}, first.header, "none")
    for field in ("payload_down", "payload_up", "encoded_down", "encoded_up"):
        a, b = getattr(one.traffic, field), getattr(two.traffic, field)
        assert getattr(round_.traffic, field) == {node: a[node] + b.get(node, 0) for node in NODES}
    assert set(round_.per_node) == {"n3", "n1"}


def test_single_answers_are_stacked_in_the_order_of_the_nodes_without_those_that_failed(log: Log) -> None:
    order = ("n2", "n0", "n3", "n1")
    relay = Relay(("n0",), "look")
    round_ = Relaying(log).send(asked(relay, nodes=order, options={"fail": "n3"}))
    (reply,) = round_.replies
    assert given(reply) == {"given.x": [[2.0, 3.0], [0.0, 1.0], [1.0, 2.0]], "given.n": [[4], [2], [3]]}
    assert reply.payload["given.n"].dtype == torch.int32  # as they were answered
    assert [(f.node, f.reason) for f in round_.failures] == [("n3", "no answer today")]


def test_a_request_without_a_relay_is_the_engines(log: Log) -> None:
    round_ = Relaying(log).send(asked(None))
    assert round_ is log.log[0][1]
    assert [reply.node for reply in round_.replies] == list(NODES)


def test_without_a_result_nobody_is_asked_further(log: Log) -> None:
    log.engine._settings = replace(log.engine._settings, quorum=0)
    round_ = Relaying(log).send(asked(Relay(("n0",), "look"), options={"fail": " ".join(NODES)}))
    assert (round_.replies, len(round_.failures), len(log.log)) == ((), 4, 1)


def test_a_node_of_the_relay_that_fails_is_named_and_there_is_no_answer(log: Log) -> None:
    relay = Relay(("n2",), "look", options={"fail": "n2"})
    round_ = Relaying(log).send(asked(relay, options={"fail": "n3"}))
    assert round_.replies == ()
    (first, second) = round_.failures
    assert (first.node, second.node) == ("n3", "n2")
    assert "cannot look" in second.reason
    assert Relaying(log).send(asked(replace(relay, options={}))).replies


def test_a_relay_to_a_node_that_is_not_there_is_an_error(log: Log) -> None:
    with pytest.raises(RunError, match="step 7: the result of 'values' goes to 'n9': no such node"):
        Relaying(log).send(asked(Relay(("n1", "n9"), "look")))
    assert not log.log


def test_a_single_answer_of_another_form_is_left_out_of_what_is_passed_on(log: Log) -> None:
    """n2 alone answers three numbers: the others' are stacked, and n2 is named."""
    round_ = Relaying(log).send(asked(Relay(("n1",), "look"), options={"odd": "n2"}))
    (reply,) = round_.replies
    assert given(reply)["given.x"] == [[0.0, 1.0], [1.0, 2.0], [3.0, 4.0]]
    assert [(f.node, f.reason[:60]) for f in round_.failures] == [
        ("n2", "answers 'x' as float [3], 3 of 4 nodes as float [2]: a sum n")
    ]


def test_the_rest_of_an_engine_goes_through(log: Log) -> None:
    engine = Relaying(log)
    log.engine._worker.nodes["n1"].memory["kept"] = torch.tensor([1.5])
    engine.save(3)
    log.engine._worker.nodes["n1"].memory.clear()
    engine.load(3)
    engine.close()
    assert engine.nodes == NODES
    assert log.engine._worker.nodes["n1"].memory["kept"].tolist() == [1.5]


def test_the_chosen_node_depends_on_seed_turn_and_names_and_on_no_order() -> None:
    names = [f"n{i:02d}" for i in range(10)]
    assert chosen_node(3, 5, names) == chosen_node(3, 5, names[::-1])
    drawn = [[chosen_node(seed, turn, names) for turn in range(2000)] for seed in (0, 1)]
    counts = [drawn[0].count(name) for name in names]
    assert sum((count - 200) ** 2 / 200 for count in counts) < 27.9  # chi square, 9 degrees: 1 in 1000
    assert 100 < sum(a == b for a, b in zip(*drawn, strict=True)) < 300
