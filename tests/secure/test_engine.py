"""The engine of secure sums: answers like a plain one, dropouts by name, answers changed on their way."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fne.config import registry
from fne.core.errors import RunError
from fne.core.messages import AGGREGATE, Header, Reply, Request, Round, Status, Tensors
from fne.federation.node import Node
from fne.federation.worker import Worker
from fne.secure import encoding
from fne.secure import engine as secure
from fne.secure import node_tasks as secure_tasks
from fne.secure.engine import SecureEngine
from fne.secure.node_tasks import secure_only
from tests.secure.parts import A_SUM, KEYS_OF_A_RUN, SIZES, assert_close, fitness


def bytes_of(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.uint8)


def test_the_engine_answers_like_a_plain_one_and_shows_no_node(lab: SimpleNamespace) -> None:
    for step in range(3):
        asked = fitness(step, header=Header(3, step, attempt=step))  # the work draws as it would
        (wanted,) = lab.engine.send(asked).replies
        before = len(lab.tap.log)
        round_ = lab.secured.send(asked)
        (total,) = round_.replies
        assert (total.node, total.header) == (AGGREGATE, replace(asked.header, run="test"))
        assert (round_.failures, round_.per_node) == ((), {})
        assert_close(total.payload, wanted.payload, 6)
        assert total.payload["samples"].tolist() == [18]
        for field in ("payload_down", "payload_up", "encoded_down", "encoded_up"):
            billed: Counter[str] = Counter()
            for _, sent in lab.tap.log[before:]:
                billed.update(getattr(sent.traffic, field))
            assert getattr(round_.traffic, field) == dict(billed)
    assert lab.tap.tasks == [*KEYS_OF_A_RUN, *A_SUM * 3]
    metrics: dict[str, Any] = {}
    lab.secured.observe(None, round_, metrics)
    assert metrics == {"participants": 6, "samples": 18}


def test_a_step_with_some_of_the_nodes_is_a_sum_of_these(lab: SimpleNamespace) -> None:
    nodes = ("n5", "n1", "n3", "n2")
    (wanted,) = lab.engine.send(fitness(nodes=nodes)).replies
    round_ = lab.secured.send(fitness(nodes=nodes))
    assert_close(round_.replies[0].payload, wanted.payload, 4)
    with pytest.raises(RunError, match="fitness of step 1, attempt 0: 3 nodes, and at least 4"):
        lab.secured.send(fitness(1, nodes=nodes[:3]))


def test_sums_over_changing_sets_show_counts_as_the_docs_say(lab: SimpleNamespace) -> None:
    """No fault of the protocol: what follows from exact sums is known. Six sets of five are six equations."""
    rows, totals = [], []
    for step in range(6):
        nodes = [f"n{i}" for i in range(6) if i != step]
        asked = fitness(step, nodes=nodes, options={"loss": "mse"})
        totals.append(int(lab.secured.send(asked).replies[0].payload["samples"]))
        rows.append([float(f"n{i}" in nodes) for i in range(6)])
    assert np.linalg.solve(rows, totals).round(6).tolist() == list(SIZES)


def test_nodes_of_a_secure_run_answer_nothing_in_clear(lab: SimpleNamespace) -> None:
    """A row of the matrix above: the server simply asks."""
    assert len(lab.engine.send(fitness(reduce="none")).replies) == 6
    secure_only(lab.worker)
    for reduce in ("none", "sum"):
        with pytest.raises(
            RunError, match=r"n2 and 5 more: this node answers secure sums and releases only, not 'fitness'"
        ):
            lab.engine.send(fitness(reduce=reduce))
    assert lab.secured.send(fitness()).replies


def test_what_asks_for_single_answers_gets_none(lab: SimpleNamespace) -> None:
    with pytest.raises(
        RunError, match="step 0: 'fitness' asks for single answers, and with secure sums there are none"
    ):
        lab.secured.send(fitness(reduce="none"))
    assert lab.tap.log == []


@pytest.mark.parametrize("task", ["keys", "peers", "confirm", "offer", "deal", "vector", "shares"])
def test_nodes_that_drop_out_at_any_time_are_left_out_by_name(lab: SimpleNamespace, task: str) -> None:
    lab.tap.lost = {f"secure_{task}": {"n3"}}
    round_ = lab.secured.send(fitness())
    assert [(f.node, f.reason) for f in round_.failures] == [("n3", "no answer")]
    nodes = [n for n in fitness().nodes if n != "n3" or task == "shares"]  # at the end, its values are in the sum
    (wanted,) = lab.engine.send(fitness(nodes=nodes)).replies
    assert_close(round_.replies[0].payload, wanted.payload, 6)
    lab.tap.lost = {}
    there = lab.secured.send(fitness(1))
    assert [f.node for f in there.failures] == (["n3"] if task in KEYS_OF_A_RUN else [])


@pytest.mark.parametrize(
    ("task", "lost", "said"),
    [
        ("keys", 3, "3 nodes, and at least 4 must be in a secure sum; n1: no answer; n2: no answer; n0: no answer"),
        ("offer", 2, "4 nodes, and at least 5 must be in a secure sum; n1: no answer; n0: no answer"),
        ("deal", 2, "4 nodes, and at least 5 must be in a secure sum; n0: no answer; n1: no answer"),
        ("vector", 2, "4 nodes, and at least 5 must be in a secure sum; n0: no answer; n1: no answer"),
        ("shares", 2, "4 nodes, and at least 5 must be in a secure sum; n0: no answer; n1: no answer"),
    ],
)
def test_too_many_that_drop_out_end_the_run_with_numbers_and_reasons(
    lab: SimpleNamespace, task: str, lost: int, said: str
) -> None:
    lab.tap.lost = {f"secure_{task}": {f"n{i}" for i in range(lost)}}
    with pytest.raises(RunError) as caught:
        lab.secured.send(fitness())
    assert str(caught.value).split(": ", 1)[1].split("; ")[0] == said.split("; ")[0]
    assert {*str(caught.value).split("; ")[1:]} == {*said.split("; ")[1:]}


def use(monkeypatch: pytest.MonkeyPatch, payload: Callable[[str], Tensors], named: str = "t") -> None:
    """Register a task whose payload depends on the node's name alone."""

    def task(worker: Worker, nodes: Sequence[Node], request: Request) -> Iterator[Tensors]:
        for node in nodes:
            yield payload(node.name)

    load = registry.load
    monkeypatch.setattr(registry, "load", lambda kind, name: task if name == named else load(kind, name))


ONE = {"x": torch.tensor([0.25])}


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ({"x": torch.tensor([1e300], dtype=torch.float64)}, r"^x\[0\] is out of range: sums of 6 nodes take"),
        ({"x": torch.tensor([-5e8])}, r"^x\[0\] is out of range: .* scale the data, or take secure = clip"),
        ({"x": torch.tensor([2**62])}, r"^x\[0\] is out of range: sums of 6 nodes take up to"),
    ],
)
def test_a_number_out_of_range_is_its_nodes_failure(
    lab: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, odd: Tensors, said: str
) -> None:
    use(monkeypatch, lambda name: odd if name == "n3" else ONE)
    round_ = lab.secured.send(fitness(task="t", options={}))
    (failure,) = round_.failures
    assert (failure.node, failure.status) == ("n3", Status.REFUSED)
    assert re.search(said, failure.reason)
    assert round_.replies[0].payload["x"].tolist() == [5 * 0.25]


def test_what_to_do_about_weights_out_of_range_is_told(lab: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = {"delta": torch.tensor([1e300], dtype=torch.float64)}
    use(monkeypatch, lambda name: odd if name == "n3" else {"delta": torch.zeros(1)}, "train")
    monkeypatch.setitem(registry._traits, ("task", "train"), {"remedy": "lower strategy.lr, or scale the data"})
    (failure,) = lab.secured.send(fitness(task="train", options={})).failures
    assert re.search(r"^delta\[0\] is out of range: .*; lower strategy.lr, or scale the data$", failure.reason)


def test_nodes_that_may_not_answer_do_no_work(lab: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    worked: list[str] = []
    use(monkeypatch, lambda name: worked.append(name) or ONE)
    asked = fitness(task="t", options={})
    lab.secured.send(asked)
    assert len(worked) == 6
    with pytest.raises(RunError, match="n2 and 5 more: this node has answered t up to step 0"):
        lab.secured.send(asked)
    assert len(worked) == 6


PROTOCOL = [name for name, entry in registry.catalogue("task").items() if "protocol" in entry.traits]


@pytest.mark.parametrize("task", PROTOCOL)
def test_work_that_is_a_part_of_the_protocol_is_refused(lab: SimpleNamespace, task: str) -> None:
    with pytest.raises(RunError, match=f"n2 and 5 more: '{task}' is no work whose results can be added"):
        lab.secured.send(fitness(task=task, options={}))
    assert lab.secured.send(fitness(1)).replies


def test_the_parts_of_the_protocol_are_those_of_one_module() -> None:
    tasks = registry.catalogue("task").items()
    assert [name for name, entry in tasks if entry.module == "fne.secure.node_tasks"] == PROTOCOL
    assert len(PROTOCOL) == 9


SOME = {"secure.members": torch.arange(4, dtype=torch.int32)}


@pytest.mark.parametrize(
    ("task", "common", "options", "said"),
    [
        ("peers", {"secure.keys": torch.zeros(1)}, {"names": "[]"}, "sends torch.float32 .1. as secure.keys"),
        ("peers", {"secure.keys": bytes_of(0, 32), "secure.signatures": bytes_of(0, 64)}, {"names": "{"},
         "sends names of nodes that cannot be read"),
        ("peers", {"secure.keys": bytes_of(0, 32), "secure.signatures": bytes_of(0, 64)}, {"names": "[" * 9999},
         "sends names of nodes that cannot be read"),
        ("confirm", {"secure.echoes": bytes_of(0, 64)}, {}, "sends nothing as secure.members, must be int32"),
        ("confirm", {"secure.echoes": bytes_of(4, 64), "secure.members": torch.rand(4)}, {}, "sends torch.float32 .4."),
        ("confirm", {"secure.echoes": bytes_of(3, 64), **SOME}, {}, "3 digests of 4 members"),
        ("confirm", {"secure.echoes": bytes_of(4, 64), "secure.members": SOME["secure.members"] - 1}, {},
         "members must be some of those before, each once"),
        ("offer", SOME, {"task": "fitness", "options": "[]"}, "sends options that cannot be read"),
        ("vector", {}, {"task": "fitness"}, "sends nothing as secure.members"),
        ("deal", {}, {"task": "fitness"}, "sends nothing as secure.members"),
        ("deal", SOME, {"task": "fitness"}, "sends nothing as secure.dealt"),
        ("shares", {}, {"task": "fitness"}, "sends nothing as secure.members"),
    ],
)  # fmt: skip
def test_what_a_server_sends_wrongly_is_refused(
    lab: SimpleNamespace, task: str, common: Tensors, options: dict[str, Any], said: str
) -> None:
    lab.secured.send(fitness())
    asked = Request(Header(3, 1), f"secure_{task}", ("n0", "n1"), common, options=options)
    with pytest.raises(RunError, match=f"n0 and 1 more: .*{said}"):
        lab.engine.send(asked)


def test_a_declared_clip_is_counted(lab: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, lambda name: {"x": torch.tensor([5e8, -1e30 if name < "n2" else 1.0])})
    clipping = SecureEngine(lab.tap, lab.worker.pinned, clip=True)
    (total,) = clipping.send(fitness(task="t", options={})).replies
    most, metrics = encoding.largest(6), {}
    assert total.payload["x"].tolist() == pytest.approx([6 * most, 4 - 2 * most])
    clipping.observe(None, None, metrics)  # type: ignore[arg-type]
    assert metrics == {"participants": 6, "clipped": 8}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_comes_out_as_in_a_plain_sum(
    lab: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    use(monkeypatch, lambda name: {"x": torch.tensor([1.0, value if name == "n3" else 2.0, -math.inf, 0.5])})
    asked = fitness(task="t", options={})
    (total,), (wanted,) = lab.secured.send(asked).replies, lab.engine.send(asked).replies
    assert torch.equal(total.payload["x"].nan_to_num(7), wanted.payload["x"].nan_to_num(7))


def test_nodes_must_answer_in_one_form(lab: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, lambda name: ONE if name != "n4" else {"x": torch.ones(2)})
    round_ = lab.secured.send(fitness(task="t", options={}))
    (failure,) = round_.failures
    assert failure.node == "n4"
    assert failure.reason.startswith("answers 'x' as float [2], 5 of 6 nodes as float [")
    assert torch.equal(round_.replies[0].payload["x"], 5 * ONE["x"].double())


def changed(node: str, **payload: Tensor | None) -> Callable[[tuple[Reply, ...]], tuple[Reply, ...]]:
    def change(replies: tuple[Reply, ...]) -> tuple[Reply, ...]:
        return tuple(
            replace(r, payload={n: v for n, v in {**r.payload, **payload}.items() if v is not None})
            if r.node == node else r for r in replies
        )  # fmt: skip

    return change


def of_step(node: str, step: int) -> Callable[[tuple[Reply, ...]], tuple[Reply, ...]]:
    return lambda replies: tuple(
        replace(r, header=replace(r.header, step=step)) if r.node == node else r for r in replies
    )


@pytest.mark.parametrize(
    ("task", "change", "said"),
    [
        ("vector", changed(AGGREGATE, mark=torch.tensor([5])), "one of 6 vectors is of another sum"),
        (
            "vector",
            changed(AGGREGATE, vector=torch.zeros(3).long()),
            r"vectors are torch.int64 \[3\], must be int64 \[",
        ),
    ],
)
def test_answers_that_were_changed_on_their_way_are_errors(
    lab: SimpleNamespace, task: str, change: Callable[..., tuple[Reply, ...]], said: str
) -> None:
    spoil(lab, task, change)
    with pytest.raises(RunError, match=said):
        lab.secured.send(fitness(1))


@pytest.mark.parametrize(
    ("task", "entries", "said"),
    [
        ("keys", {"key": bytes_of(1, 31)}, "torch.uint8 [1, 31] as 'key', must be uint8 [1, 32]"),
        ("keys", {"signature": None}, "nothing as 'signature', must be uint8 [1, 64]"),
        ("peers", {"echo": bytes_of(64, 1)}, "torch.uint8 [64, 1] as 'echo', must be uint8 [1, 64]"),
        ("offer", {"form": None}, "nothing as 'form', must be uint8 [1]"),
        ("offer", {"form": bytes_of(1, 9)}, "what it says of its vector cannot be read"),
        ("offer", {"sealed": None}, "nothing as 'sealed', must be uint8 [5, 82]"),
        ("offer", {"sealed": torch.zeros(5, 82)}, "torch.float32 [5, 82] as 'sealed', must be uint8 [5, 82]"),
        ("offer", {"box": bytes_of(1, 9)}, "torch.uint8 [1, 9] as 'box', must be uint8 [1, 176]"),
        ("offer", {"digests": bytes_of(17, 16)}, "torch.uint8 [17, 16] as 'digests', must be uint8 [18, 16]"),
        ("offer", {"proof": None}, "nothing as 'proof', must be uint8 [5, 33]"),
        ("deal", {"receipts": bytes_of(5, 17)}, "torch.uint8 [5, 17] as 'receipts', must be uint8 [5, 16]"),
        ("deal", None, "another request than this one: step 9, attempt 0 of run 'test'"),
        ("offer", {"commitment": bytes_of(2, 32)}, "torch.uint8 [2, 32] as 'commitment', must be uint8 [1, 32]"),
        ("offer", None, "another request than this one: step 9, attempt 0 of run 'test'"),
        ("shares", None, "another request than this one: step 9, attempt 0 of run 'test'"),
        ("shares", {"shares": bytes_of(5, 33)}, "torch.uint8 [5, 33] as 'shares', must be uint8 [6, 33]"),
    ],
)
def test_answers_of_another_form_put_their_node_out_by_name(
    lab: SimpleNamespace, task: str, entries: dict[str, Tensor | None] | None, said: str
) -> None:
    spoil(lab, task, of_step("n1", 9) if entries is None else changed("n1", **entries))
    round_ = lab.secured.send(fitness(1))
    assert [(f.node, f.reason.removeprefix("n1 answers ")) for f in round_.failures] == [("n1", said)]
    nodes = [n for n in fitness().nodes if n != "n1" or task == "shares"]  # at the end, its values are in the sum
    (wanted,) = lab.engine.send(fitness(1, nodes=nodes)).replies
    assert_close(round_.replies[0].payload, wanted.payload, 6)


def spoil(lab: SimpleNamespace, task: str, change: Callable[..., tuple[Reply, ...]]) -> None:
    """Change the answers to one task of the protocol, after keys were agreed on if they are no part of it."""
    lab.secured.send(fitness()) if task not in KEYS_OF_A_RUN else None
    lab.tap.spoil = lambda request, round_: (
        replace(round_, replies=change(round_.replies)) if request.task == f"secure_{task}" else round_
    )


def test_a_vector_of_another_sum_is_noticed_and_is_not_without_its_mark(
    lab: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row of the matrix above, for which it takes an engine: an old total in the place of the new one."""
    old: list[Round] = []

    def spoil(request: Request, round_: Round) -> Round:
        if request.task != "secure_vector":
            return round_
        old.append(round_)
        return replace(round_, replies=old[0].replies)

    lab.tap.spoil = spoil
    lab.secured.send(fitness())
    with pytest.raises(RunError, match="fitness of step 1, attempt 0: one of 6 vectors is of another sum"):
        lab.secured.send(fitness(1))
    for module in (secure, secure_tasks):
        monkeypatch.setattr(module, "mark", lambda tag: 0)
    old.clear()
    lab.secured.send(fitness(2))
    wrong = lab.secured.send(fitness(3)).replies[0].payload["samples"]
    assert wrong.tolist() != [18]  # nonsense, and nobody says so


def test_after_going_back_there_are_new_keys(lab: SimpleNamespace, tmp_path: Path) -> None:
    lab.engine._folder = tmp_path
    lab.secured.save(0)
    lab.secured.send(fitness())
    lab.secured.load(0)
    with pytest.raises(
        RunError, match="n2 and 5 more: this node has answered fitness up to step 0: a second answer to step 0, with"
    ):
        lab.secured.send(fitness())
    assert lab.secured.send(fitness(1)).replies
    assert lab.tap.tasks == [*KEYS_OF_A_RUN, *A_SUM, *KEYS_OF_A_RUN, *A_SUM]
