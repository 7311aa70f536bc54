"""Nodes and workers: secrets that stay, generators that differ, tasks that fail one node at a time."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fne.config import registry
from fne.core.dataset import Samples
from fne.core.errors import RefusedError
from fne.core.messages import Header, Request, Status, Tensors
from fne.federation.node import Node, Secrets, payload_of
from fne.federation.worker import Worker
from fne.privacy.draws import Draws

HEADER = Header(seed=3, step=4, run="r")
Task = Callable[[Worker, Sequence[Node], Request], Iterator[Tensors]]


def node(name: str = "a", secret: bytes | None = None) -> Node:
    secrets = Secrets.simulate(3, name) if secret is None else Secrets(secret, simulated=False)
    return Node(name, Samples(torch.ones(2, 4), torch.tensor([0, 1])), secrets)


def numbers(drawn: torch.Generator | Draws) -> list[float]:
    values: list[float] = (drawn.uniform(4) if isinstance(drawn, Draws) else torch.rand(4, generator=drawn)).tolist()
    return values


# ------------------------------------------------------------------------------------------------ secrets
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_secrets_refuse_pickle(protocol: int) -> None:
    with pytest.raises(TypeError, match="stay with the node"):
        pickle.dumps(Secrets(b"k" * 32, simulated=False), protocol)
    with pytest.raises(TypeError, match="stay with the node"):
        pickle.dumps(node(), protocol)


@pytest.mark.parametrize("copying", [copy.copy, copy.deepcopy])
def test_secrets_refuse_to_be_copied(copying: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match="stay with the node"):
        copying(Secrets(b"k" * 32, simulated=False))


def test_secrets_do_not_leave_by_way_of_their_node() -> None:
    with pytest.raises(TypeError, match="stay with the node"):
        asdict(node())
    with pytest.raises(TypeError):
        json.dumps(Secrets(b"k" * 32, simulated=False))
    with pytest.raises(TypeError, match="stay with the node"):
        torch.save(node(), "/dev/null")


def test_secrets_are_not_printed() -> None:
    key = b"kkkkSECRETkkkkSECRETkkkkSECRETkk"
    secrets = Secrets(key, simulated=False)
    for text in (repr(secrets), str(secrets), f"{secrets!r:>40}", repr(node(secret=key))):
        assert "SECRET" not in text
        assert "hidden" in text
    with pytest.raises(TypeError):
        vars(secrets)


def test_simulated_secrets_say_so_and_are_repeatable() -> None:
    first, again, other = Secrets.simulate(1, "a"), Secrets.simulate(1, "a"), Secrets.simulate(1, "b")
    assert first.simulated
    assert not Secrets(b"k" * 32, simulated=False).simulated
    drawn = [numbers(secrets.draws(b"x", b"1")) for secrets in (first, again, other)]
    assert drawn[0] == drawn[1] != drawn[2]
    made = [first.draws(b"x", b"1"), first.draws(b"x", b"2"), first.draws(b"x1"), first.draws(b"", b"x1")]
    made.append(Secrets.simulate(2, "a").draws(b"x", b"1"))
    assert len({str(numbers(draw)) for draw in made}) == 5


# ------------------------------------------------------------------------------------------------ generators
def test_the_public_generator_depends_on_all_its_parts_and_on_nothing_else() -> None:
    wanted = numbers(node().generator(HEADER, "p"))
    assert numbers(node(secret=b"other key").generator(replace(HEADER, run="another"), "p")) == wanted
    changed = [
        node("b").generator(HEADER, "p"), node().generator(HEADER, "q"),
        *(node().generator(replace(HEADER, **{key: 9}), "p") for key in ("seed", "step", "attempt")),
    ]  # fmt: skip
    assert all(numbers(g) != wanted for g in changed)


def test_private_draws_differ_from_public_ones_from_other_nodes_and_for_every_address() -> None:
    key = bytes(range(32))
    wanted = numbers(node(secret=key).draws(HEADER, "p"))
    assert numbers(node(secret=key).draws(HEADER, "p")) == wanted
    others = [
        node(secret=key).generator(HEADER, "p"),
        node("b", secret=key).draws(HEADER, "p"),
        node().draws(HEADER, "p"),
    ]
    others += [node(secret=key).draws(HEADER, "q"), node("b").draws(HEADER, "p")]
    values = (torch.ones(2), torch.ones(1, 2), torch.ones(2).double(), torch.ones(2).nextafter(torch.zeros(2)))
    others += [node(secret=key).draws(HEADER, "p", value) for value in values]
    others.append(node(secret=key).draws(HEADER, "p", torch.ones(1), torch.ones(1)))
    for field, value in {"run": "s", "seed": 9, "step": 9, "attempt": 9, "protocol": 9}.items():
        others.append(node(secret=key).draws(replace(HEADER, **{field: value}), "p"))
    assert len({str(numbers(other)) for other in others} | {str(wanted)}) == len(others) + 1


def test_no_two_requests_are_answered_with_the_same_noise() -> None:
    """A server that sends another one under the same header must not be able to take the noise off by subtraction."""
    key, tensors = bytes(range(32)), {"x": torch.arange(6.0)}
    asked = Request(HEADER, "train", ("a", "b"), tensors, {"b": {"y": torch.ones(1)}}, {"lr": 0.1, "loss": "mse"})
    wanted = numbers(node(secret=key).answering(asked)("p"))
    others = [
        replace(asked, task="other"), replace(asked, options={"lr": 0.2, "loss": "mse"}),
        replace(asked, common={"x": torch.arange(6.0).nextafter(torch.tensor(9.0))}),
        replace(asked, common={"z": torch.arange(6.0)}), replace(asked, common={"x": torch.arange(6.0).view(2, 3)}),
        replace(asked, common={"x": torch.arange(6.0).view(torch.int32)}),
        *(replace(asked, header=replace(HEADER, **{name: 9})) for name in ("seed", "step", "attempt")),
        replace(asked, private={"a": {"y": torch.ones(1)}}),
    ]  # fmt: skip
    drawn = [numbers(node(secret=key).answering(other)("p")) for other in others]
    assert all(one != wanted for one in drawn)
    assert len({tuple(one) for one in drawn}) == len(drawn)
    assert numbers(node(secret=key).answering(asked)("q")) != wanted
    same = [
        replace(asked, options={"loss": "mse", "lr": 0.1}), replace(asked, nodes=("a",)),
        replace(asked, common={"x": torch.arange(12.0)[::2] / 2}),  # the same values, lying otherwise
        replace(asked, private={"b": {"y": torch.zeros(1)}}),  # another node's own
    ]  # fmt: skip
    assert all(numbers(node(secret=key).answering(other)("p")) == wanted for other in same)


def test_the_server_knows_everything_but_the_key() -> None:
    """One bit of the key changes all that is drawn: run, seed, step and name do not give it away."""
    key = bytearray(range(32))
    wanted = numbers(node(secret=bytes(key)).draws(HEADER, "noise"))
    key[31] ^= 1
    assert numbers(node(secret=bytes(key)).draws(HEADER, "noise")) != wanted


# ------------------------------------------------------------------------------------------------ workers
@pytest.fixture
def run(
    laboratory: Callable[..., SimpleNamespace],
    clouds: Callable[..., dict[str, Samples]],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Any]:
    """Return `run(task, request) -> replies` on a worker of nodes n0, n1, n2."""
    worker: Worker = laboratory(lambda: nn.Linear(4, 3), clouds(2, 2, 2)).worker

    def go(task: Task, nodes: tuple[str, ...] = ("n0", "n1", "n2"), header: Header = HEADER) -> Any:
        monkeypatch.setattr(registry, "load", lambda kind, name: task)
        replies = list(worker.run(Request(header, "mine", nodes)))
        return replies, worker

    return go


def answer(node: Node) -> dict[str, Tensor]:
    return {"index": torch.tensor(int(node.name[1:]))}


def test_nodes_answer_in_the_requests_order_and_strangers_are_left_to_others(run: Callable[..., Any]) -> None:
    def task(worker: Worker, nodes: Sequence[Node], request: Request) -> Iterator[Tensors]:
        for node in nodes:
            yield answer(node)

    replies, _ = run(task, ("n2", "elsewhere", "n0"))
    assert [(r.node, r.status, int(r.payload["index"])) for r in replies] == [("n2", "ok", 2), ("n0", "ok", 0)]
    assert all(r.header == HEADER for r in replies)


@pytest.mark.parametrize("bad", [("n0",), ("n1",), ("n2",), ("n0", "n2"), ("n0", "n1", "n2")])
def test_a_failing_node_is_named_and_the_others_go_on(run: Callable[..., Any], bad: tuple[str, ...]) -> None:
    def task(worker: Worker, nodes: Sequence[Node], request: Request) -> Iterator[Tensors]:
        for node in nodes:
            node.memory["seen"] = torch.tensor(1)
            if node.name in bad:
                raise RuntimeError("out of patience")
            yield answer(node)

    replies, worker = run(task)
    assert [r.node for r in replies] == ["n0", "n1", "n2"]
    for reply in replies:
        assert (reply.status is Status.FAILED) == (reply.node in bad)
        if reply.node in bad:
            assert reply.reason.startswith("RuntimeError: out of patience (task, line")
            assert reply.payload == {}
            assert worker.nodes[reply.node].memory == {}  # undone
        else:
            assert int(reply.payload["index"]) == int(reply.node[1:])
            assert worker.nodes[reply.node].memory == {"seen": torch.tensor(1)}


def test_a_shared_pass_that_breaks_is_repeated_one_by_one(run: Callable[..., Any]) -> None:
    calls = []

    def task(worker: Worker, nodes: Sequence[Node], request: Request) -> Iterator[Tensors]:
        calls.append([node.name for node in nodes])
        if "n1" in calls[-1]:
            raise ValueError("bad sample")
        yield from map(answer, nodes)

    replies, _ = run(task)
    assert calls == [["n0", "n1", "n2"], ["n0"], ["n1"], ["n2"]]
    assert [r.status for r in replies] == [Status.OK, Status.FAILED, Status.OK]
    assert replies[1].reason.startswith("ValueError: bad sample (task, line")


@pytest.mark.parametrize("answering", [(), ("n0",), ("n0", "n1")])
def test_nodes_for_which_a_task_yields_nothing_have_failed(run: Callable[..., Any], answering: tuple[str, ...]) -> None:
    def task(worker: Worker, nodes: Sequence[Node], request: Request) -> Iterator[Tensors]:
        yield from (answer(node) for node in nodes if node.name in answering)

    replies, _ = run(task)
    assert [r.node for r in replies] == ["n0", "n1", "n2"]
    for reply in replies:
        if reply.node in answering:
            assert (reply.status, int(reply.payload["index"])) == (Status.OK, int(reply.node[1:]))
        else:
            assert (reply.status, reply.payload) == (Status.FAILED, {})
            assert reply.reason == "task 'mine' yields fewer payloads than it has nodes"


@pytest.mark.parametrize("nodes", [("n0",), ("n0", "n1", "n2")])
def test_a_task_that_does_not_end_with_its_last_node_is_named(run: Callable[..., Any], nodes: tuple[str, ...]) -> None:
    def more(worker: Worker, nodes: Sequence[Node], request: Request) -> Iterator[Tensors]:
        yield from map(answer, [*nodes, nodes[0]])

    def late(worker: Worker, nodes: Sequence[Node], request: Request) -> Iterator[Tensors]:
        yield from map(answer, nodes)
        raise ValueError("too late")

    with pytest.raises(RuntimeError, match=r"task 'mine' .* more payloads than it has nodes"):
        run(more, nodes)
    with pytest.raises(RuntimeError, match="task 'mine' breaks after its last reply: ValueError: too late"):
        run(late, nodes)


def test_refusal_is_not_failure(run: Callable[..., Any]) -> None:
    def task(worker: Worker, nodes: Sequence[Node], request: Request) -> Iterator[Tensors]:
        for node in nodes:
            if node.name == "n1":
                raise RefusedError("budget spent")
            yield answer(node)

    replies, _ = run(task)
    assert [r.status for r in replies] == [Status.OK, Status.REFUSED, Status.OK]
    assert "budget spent" in replies[1].reason


def test_reasons_are_short(run: Callable[..., Any]) -> None:
    def task(worker: Worker, nodes: Sequence[Node], request: Request) -> Iterator[Tensors]:
        raise ValueError("x" * 10_000)
        yield {}

    replies, _ = run(task, ("n0",))
    assert len(replies[0].reason) == 300


def test_another_protocol_is_refused_by_every_node(run: Callable[..., Any]) -> None:
    def task(worker: Worker, nodes: Sequence[Node], request: Request) -> Iterator[Tensors]:
        raise AssertionError
        yield {}

    replies, _ = run(task, header=replace(HEADER, protocol=7))
    assert [(r.status, r.reason) for r in replies] == [(Status.REFUSED, "protocol 7, this node speaks 1")] * 3


def test_private_tensors_reach_their_node_only() -> None:
    request = Request(
        HEADER, "t", ("a", "b"), {"x": torch.tensor(0)}, {"a": {"x": torch.tensor(1), "y": torch.tensor(2)}}
    )
    assert {k: int(v) for k, v in payload_of(request, node("a")).items()} == {"x": 1, "y": 2}
    assert {k: int(v) for k, v in payload_of(request, node("b")).items()} == {"x": 0}


# ------------------------------------------------------------------------------------------------ options, reasons
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"lr": 0.1, "loss": "mse", "epochs": 0}, "task 'train': epochs: must be a whole number >= 1"),
        ({"lr": "fast", "loss": "mse"}, "task 'train': lr: must be a number >= 0"),
        ({"lr": 0.1, "loss": "mse", "epoch": 1}, "unknown key of task 'train' (did you mean 'epochs'?)"),
        ({"loss": "mse"}, "task 'train': lr: must be a number >= 0"),
    ],
)
def test_options_are_checked_before_a_task_runs(
    laboratory: Callable[..., SimpleNamespace],
    clouds: Callable[..., dict[str, Samples]],
    options: dict[str, Any],
    reason: str,
) -> None:
    worker: Worker = laboratory(lambda: nn.Linear(4, 3), clouds(2, 2)).worker
    replies = list(worker.run(Request(HEADER, "train", ("n0", "n1"), options=options)))
    assert [(r.node, r.status) for r in replies] == [("n0", Status.REFUSED), ("n1", Status.REFUSED)]
    assert all(reason in r.reason for r in replies)


def test_an_unknown_task_is_refused(
    laboratory: Callable[..., SimpleNamespace], clouds: Callable[..., dict[str, Samples]]
) -> None:
    worker: Worker = laboratory(lambda: nn.Linear(4, 3), clouds(2)).worker
    (reply,) = worker.run(Request(HEADER, "fitnes", ("n0",)))
    assert reply.status is Status.REFUSED
    assert reply.reason.startswith("unknown task 'fitnes', did you mean 'fitness'?")


@pytest.mark.parametrize("simulated", [True, False])
def test_a_real_node_sends_no_text_that_may_quote_its_data(
    laboratory: Callable[..., SimpleNamespace],
    clouds: Callable[..., dict[str, Samples]],
    monkeypatch: pytest.MonkeyPatch,
    simulated: bool,
) -> None:
    def task(worker: Worker, nodes: Sequence[Node], request: Request) -> Iterator[Tensors]:
        raise KeyError("patient 17")
        yield {}

    worker: Worker = laboratory(lambda: nn.Linear(4, 3), clouds(2)).worker
    worker.nodes["n0"].secrets = Secrets(b"k" * 32, simulated=simulated)
    monkeypatch.setattr(registry, "load", lambda kind, name: task)
    (reply,) = worker.run(Request(HEADER, "mine", ("n0",)))
    assert ("patient 17" in reply.reason) is simulated
    assert reply.reason.startswith("KeyError")


@pytest.mark.parametrize("payload", [3, {"x": 1.0}, {"x": torch.zeros(2, dtype=torch.complex64)}, [torch.zeros(1)]])
def test_a_payload_that_cannot_be_sent_fails_its_node(run: Callable[..., Any], payload: Any) -> None:
    def task(worker: Worker, nodes: Sequence[Node], request: Request) -> Iterator[Tensors]:
        for node in nodes:
            yield payload if node.name == "n1" else answer(node)

    replies, _ = run(task)
    assert [r.status for r in replies] == [Status.OK, Status.FAILED, Status.OK]
    assert replies[1].reason.startswith("task 'mine' must yield tensors by name, not ")


def test_an_option_that_is_no_scalar_is_refused(
    laboratory: Callable[..., SimpleNamespace], clouds: Callable[..., dict[str, Samples]]
) -> None:
    worker: Worker = laboratory(lambda: nn.Linear(4, 3), clouds(2)).worker
    (reply,) = worker.run(Request(HEADER, "fitness", ("n0",), options={"loss": ["mse"]}))  # type: ignore[dict-item]
    assert (reply.status, reply.reason) == (
        Status.REFUSED,
        "task 'fitness': loss: must be a number, text, or true or false",
    )


def test_a_generator_of_private_draws_is_seeded_in_its_whole_state() -> None:
    """`manual_seed` takes the lowest 32 bits: who tries them all could take noise off again."""
    assert numbers(torch.Generator().manual_seed(7)) == numbers(torch.Generator().manual_seed(7 + 2**40))
    made = node(secret=bytes(range(32))).draws(HEADER, "dropout").generator()
    words = made.get_state().numpy().view(np.uint64)[3:627]
    assert len({*words.tolist(), made.initial_seed()}) == 625
    assert made.initial_seed() >= 2**32
    assert int(words.max()) < 2**32
    # no word follows from the one before, as after manual_seed
    plain = torch.Generator().manual_seed(int(words[0])).get_state().numpy().view(np.uint64)[3:627]
    assert int((plain == words).sum()) == 1
    drawn = torch.randn(100_000, generator=made, dtype=torch.float64)
    assert abs(float(drawn.mean())) < 0.02
    assert float(drawn.std()) == pytest.approx(1, abs=0.01)
