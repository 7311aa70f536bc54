"""The engine of sums that a chosen node opens: dropouts and lies by name, nothing seen, nothing else answered."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fne.core.errors import DeclinedError, RunError, SettingError
from fne.core.hidden import ProtocolError
from fne.core.messages import Header, Relay, Request, Round, Tensors
from fne.core.randomness import chosen_node
from fne.federation.node import Node
from fne.federation.payloads import PayloadSpec
from fne.federation.rounds import Relaying
from fne.federation.worker import Worker
from fne.secure import encoding, keys
from fne.secure.encoding import vector_words
from fne.secure.protocol import CHECKS, Errand, threshold
from fne.secure.rules import check_secure
from tests.secure.relay_parts import TASKS, Lab, relayed

pytestmark = pytest.mark.usefixtures("relay_tasks")

# ------------------------------------------------------------------------------------------------ the engine
KEYS_OF_A_RUN, A_SUM = ["keys", "peers", "confirm"], ["offer", "deal", "vector", "shares", "receive"]


@pytest.mark.parametrize("nodes", [4, 10, 40])
def test_the_receiver_is_given_what_a_plain_relay_gives(nodes: int) -> None:
    own = torch.tensor([7], dtype=torch.int32)
    rounds, held = [], []
    for secured in (False, True):
        lab = Lab(nodes, only=secured)
        engine = lab.secured if secured else Relaying(lab.tap.engine)
        made = []
        for step, turn in enumerate((0, 0, 1)):
            private = {lab.chosen(turn): {"own": own}}
            made.append(engine.send(lab.ask(step, turn, private=private, header=Header(4, step, attempt=9))))
        rounds.append([[(r.node, r.header, r.payload["best"].tolist()) for r in round_.replies] for round_ in made])
        assert [round_.failures for round_ in made] == [()] * 3
        held.append((Lab.given, Lab.drawn))
    assert rounds[0] == rounds[1]
    assert held[0][1] == held[1][1]
    for plain_, secure_ in zip(held[0][0], held[1][0], strict=True):
        assert set(plain_) == set(secure_) == {"given.x", "given.n", "own"}
        assert torch.equal(plain_["given.n"], secure_["given.n"])
        assert {name: value.dtype for name, value in plain_.items()} == {n: v.dtype for n, v in secure_.items()}
        assert float((plain_["given.x"] - secure_["given.x"]).abs().max()) <= nodes * 2**-33 + 1e-12
        assert plain_["given.n"].tolist() == [3 * nodes, nodes * (nodes - 1) // 2]


def test_a_sum_takes_five_exchanges_and_its_bytes_are_as_the_docs_say() -> None:
    lab, n = Lab(7), 7
    lab.secured.send(lab.ask())
    metrics: dict[str, Any] = {}
    lab.secured.observe(None, None, metrics)  # type: ignore[arg-type]
    assert metrics == {"participants": 7}
    round_ = lab.secured.send(lab.ask(1))
    assert lab.tap.tasks == [*KEYS_OF_A_RUN, *A_SUM * 2]
    form = PayloadSpec((("n", False, (2,)), ("x", True, (6,))))
    words, described, candidates = vector_words(form, n), len(form.to_bytes()), 8
    for name in lab.names:
        receives = name == lab.chosen()
        up = 179 * n - 50 + 2 if receives else 211 * n - 75 + 33 * threshold(n) + 8 * words
        down = 147 * n - 131 + (8 * (words + CHECKS) if receives else 0)
        assert round_.traffic.payload_up[name] == up + described, name
        assert round_.traffic.payload_down[name] == down + candidates, name


@pytest.mark.parametrize("task", ["keys", "peers", "confirm", "offer", "deal", "shares", "receive"])
def test_a_receiver_that_drops_out_is_named_and_nobody_opens_the_sum(task: str) -> None:
    lab = Lab(6)
    first, turn = lab.chosen(), next(turn for turn in range(99) if lab.chosen(turn) != lab.chosen())
    lab.tap.lost = {f"secure_{task}": {first}}
    round_ = lab.secured.send(lab.ask())
    assert (round_.replies, [f.node for f in round_.failures], Lab.given) == ((), [first], [])
    assert "no answer" in round_.failures[0].reason
    metrics: dict[str, Any] = {}
    lab.secured.observe(None, round_, metrics)  # type: ignore[arg-type]
    assert metrics == {}
    lab.tap.lost = {}
    names = tuple(n for n in lab.names if n != first) if task in KEYS_OF_A_RUN else lab.names
    another = chosen_node(4, turn, names)
    (reply,) = lab.secured.send(lab.ask(1, turn, to=another, nodes=names)).replies
    assert (reply.node, len(Lab.given)) == (another, 1)


def test_a_receiver_whose_task_fails_answers_nothing_and_its_reason_is_told() -> None:
    lab = Lab()
    lab.worker.nodes[lab.chosen()].memory["refuses"] = torch.ones(1)
    round_ = lab.secured.send(lab.ask())
    assert round_.replies == ()
    assert [f.node for f in round_.failures] == [lab.chosen()]
    assert "does not look" in round_.failures[0].reason
    assert lab.worker.nodes[lab.chosen()].secrets.session._exchange is None  # type: ignore[union-attr]


def lying(lab: Lab, task: str, node: str, name: str, *which: int) -> None:
    """Change some rows of an entry of a node's answers."""
    real = lab.tap.send

    def send(request: Request) -> Round:
        round_ = real(request)
        replies = []
        for reply in round_.replies:
            if request.task == f"secure_{task}" and reply.node == node:
                changed = reply.payload[name].clone()
                changed[list(which)] ^= 1
                reply = replace(reply, payload={**reply.payload, name: changed})
            replies.append(reply)
        return replace(round_, replies=tuple(replies))

    lab.tap.send = send  # type: ignore[method-assign]


@pytest.mark.parametrize("task", ["offer", "deal"])
@pytest.mark.parametrize("others", [1, 2, 3, 4, 6])
def test_who_has_no_key_of_the_checks_is_left_out_and_of_most_it_is_the_receiver(others: int, task: str) -> None:
    """A receiver that seals nonsense for some, and a node that says so of every receiver."""
    lab = Lab(7)
    opener = lab.chosen()
    rest = [name for name in lab.names if name != opener]
    if task == "offer":
        lying(lab, "offer", opener, "sealed", *range(others))
    else:
        place = lab.names.index(opener)
        for name in rest[:others]:
            lying(lab, "deal", name, "receipts", place - (name < opener))
    round_ = lab.secured.send(lab.ask())
    told = {failure.node: failure.reason for failure in round_.failures}
    assert all(f"says that what {opener} sealed for it is of no use" in reason for reason in told.values())
    if others > 2:  # with 3, too few would be left
        assert (round_.replies, set(told), Lab.given) == ((), {opener}, [])
        return
    assert set(told) == {opener, *rest[:others]}
    (had,) = Lab.given
    assert had["given.n"].tolist()[0] == 3 * (7 - others)


def test_a_box_that_does_not_open_is_made_up_for_and_the_receiver_has_the_sum() -> None:
    lab = Lab(7)
    liar = next(name for name in lab.names if name != lab.chosen())
    lying(lab, "offer", liar, "box", 0)
    lab.tap.lost = {"secure_vector": {liar}}
    round_ = lab.secured.send(lab.ask())
    assert {failure.node for failure in round_.failures} == {liar}
    assert lab.tap.tasks == [*KEYS_OF_A_RUN, *A_SUM[:4], "rest", "receive"]
    (had,) = Lab.given
    left = [node for node in lab.names if node != liar]
    assert had["given.n"].tolist() == [3 * len(left), sum(int(node[1:]) for node in left)]


@pytest.mark.parametrize(("task", "name"), [("offer", "sealed"), ("offer", "proof"), ("shares", "shares")])
def test_another_node_that_lies_is_named_and_the_receiver_has_the_sum(task: str, name: str) -> None:
    lab = Lab(7)
    liar = next(name for name in lab.names if name != lab.chosen())
    lying(lab, task, liar, name, 0, 1, 2, 3, 4)
    round_ = lab.secured.send(lab.ask())
    assert [failure.node for failure in round_.failures] == [liar]
    (had,) = Lab.given
    left = [node for node in lab.names if node != liar or task == "shares"]
    assert had["given.n"].tolist() == [3 * len(left), sum(int(node[1:]) for node in left)]


@pytest.mark.parametrize("task", ["scores", "offer", "deal", "vector", "shares"])
def test_others_that_drop_out_are_left_out_by_name(task: str) -> None:
    lab = Lab(7, clip=True)
    gone = [name for name in lab.names if name != lab.chosen()][:2]
    if task == "scores":
        for name in gone:
            lab.worker.nodes[name].memory["absent"] = torch.ones(1)
    lab.tap.lost = {f"secure_{task}": set(gone)}
    round_ = lab.secured.send(lab.ask())
    assert [f.node for f in round_.failures] == gone
    there = lab.names if task == "shares" else [name for name in lab.names if name not in gone]
    wanted = torch.stack([lab.worker.nodes[name].data.x[0].double() for name in there]).sum(dim=0)
    (had,) = Lab.given
    assert float((had["given.x"] - wanted).abs().max()) < 1e-8
    assert had["given.n"].tolist() == [3 * len(there), sum(int(name[1:]) for name in there)]
    (reply,) = round_.replies
    assert reply.payload.keys() == {"best"}
    metrics: dict[str, Any] = {}
    lab.secured.observe(None, round_, metrics)  # type: ignore[arg-type]
    assert metrics == {"participants": len(there), "clipped": 0}


def test_too_few_others_are_an_error_and_numbers_that_were_clipped_are_counted() -> None:
    lab = Lab(6, clip=True)
    others = [name for name in lab.names if name != lab.chosen()]
    lab.worker.nodes[others[0]].data.x[0, 2:4] = torch.tensor([-1e20, 1e20])
    (reply,) = lab.secured.send(lab.ask()).replies
    metrics: dict[str, Any] = {}
    lab.secured.observe(None, None, metrics)  # type: ignore[arg-type]
    assert (metrics, reply.payload["best"].tolist()) == ({"participants": 6, "clipped": 2}, [2])
    lab.tap.lost = {"secure_vector": set(others[:2])}
    with pytest.raises(RunError, match="scores of step 1, attempt 0: 4 nodes, and at least 5 must be in a secure sum"):
        lab.secured.send(lab.ask(1))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"relay": Relay(("n0", "n1"), "hold")}, "one of the nodes that add up 'scores' opens the sum, not n0, n1"),
        ({"relay": Relay((), "hold")}, "opens the sum, not nobody"),
        ({"to": "n9"}, "opens the sum, not n9"),
        ({"nodes": ("n1", "n2", "n3", "n4"), "to": "n0"}, "opens the sum, not n0"),
        ({"reduce": "none"}, "asks for single answers, and with secure sums there are none"),
    ],
)
def test_who_cannot_open_a_sum_is_told_before_anything_is_sent(changes: dict[str, Any], said: str) -> None:
    lab = Lab()
    with pytest.raises(RunError, match=said):
        lab.secured.send(lab.ask(**changes))
    assert lab.tap.log == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"then": "tell"}, "'tell' is not known to keep to itself what it is given"),
        ({"then": "release"}, "'release' is not known to keep to itself what it is given"),
        ({"task": "release"}, "'release' is no work whose results can be added"),
        ({"relay": None}, "'scores' is added up for a node to open, and not for the server"),
        ({"turn": -1}, "'hold' is given a sum in turn -1, must be a number from 0"),
        ({"options": {"turn": True}}, "in turn True, must be a number"),
        ({"options": {"turns": 1}}, "task 'hold': turns: unknown"),
        ({"options": {"all_of_it": "x"}}, "task 'hold': all_of_it: "),
    ],
)
def test_what_nodes_do_not_add_up_for_a_node(changes: dict[str, Any], said: str) -> None:
    lab = Lab()
    with pytest.raises(RunError, match=said):
        lab.secured.send(lab.ask(**changes))


@pytest.mark.parametrize(
    ("task", "change", "said"),
    [
        ("receive", {"secure.total": torch.zeros(3).long()}, "passes on 3 words, must be "),
        ("receive", {"secure.total": torch.zeros(30)}, r"sends torch.float32 \[30\] as secure.total, must be int64"),
        ("receive", {"secure.total": torch.zeros(30).long().view(5, 6)}, r"torch.int64 \[5, 6\] as secure.total"),
        ("receive", {}, "sends nothing as secure.total"),
    ],
)
def test_a_rest_of_another_form_is_refused(task: str, change: Tensors, said: str) -> None:
    lab = Lab()
    lab.tap.change = lambda request: replace(request, common=change) if request.task == f"secure_{task}" else request
    round_ = lab.secured.send(lab.ask())
    assert round_.replies == ()
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(round_.failures[0].reason)


def test_a_rest_of_another_sum_or_stage_is_refused() -> None:
    lab = Lab()
    lab.secured.send(lab.ask())
    late = Request(Header(4, 0), "secure_receive", (lab.chosen(),), {"secure.total": torch.zeros(1).long()},
                   options={"task": "scores"})  # fmt: skip
    with pytest.raises(RunError, match="this node is asked for scores of step 0, attempt 0; under way is none"):
        lab.tap.engine.send(late)
    sum_ = relayed(5).offer().mask()
    with pytest.raises(ProtocolError, match="this node has masked predict of step 0, attempt 0, and what it is asked"):
        sum_.received(sum_.vectors[0])
    begun = relayed(5, receiver=1).offer()
    for i in (1, 2):
        begun.sessions[i].dealt(begun.tag, begun.members, begun.told(i))
    with pytest.raises(ProtocolError, match="this node opens it"):
        begun.sessions[1].masked(begun.tag, begun.members)
    with pytest.raises(ProtocolError, match="this node does not open it"):
        begun.sessions[2].kept(begun.tag, begun.members)
    with pytest.raises(ProtocolError, match="the node that is to open it is not among the members"):
        relayed(5, receiver=1).sessions[0].begin(sum_.tag, [0, 2, 3, 4], sum_.values[0], b"", errand_of(1))


def errand_of(receiver: int) -> Errand:
    return Errand(receiver, Request(Header(0, 0), "hold", ()), PayloadSpec(()), 5)


# ------------------------------------------------------------------------------------------------ what is seen
def test_neither_the_sum_nor_any_value_nor_key_is_in_a_message_a_file_or_a_text(tmp_path: Path) -> None:
    lab = Lab(5, tmp_path)
    secret: list[bytes] = []
    real = keys.fresh
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys, "fresh", lambda: secret.append(real()) or secret[-1])
        (reply,) = lab.secured.send(lab.ask()).replies
    lab.secured.save(1)
    (had,) = Lab.given
    sums = [*had["given.x"].tolist(), *lab.total.tolist(), *(v for n in lab.worker.nodes.values() for v in n.data.x[0])]
    secret += [np.float64(value).tobytes() for value in map(float, sums)]
    secret += [encoding.encode(np.array([float(value)]), 5, "")[0].tobytes() for value in sums]
    told = [tensor.numpy().tobytes() for sent, round_ in lab.tap.log for message in (
        sent.common, *sent.private.values(), *(answer.payload for answer in round_.replies)
    ) for tensor in message.values()]  # fmt: skip
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    everything = b"\0".join([*told, *files, repr(lab.secured).encode(), repr(lab.tap.log).encode()])
    assert (len(files), len(secret)) == (1, 5 + 3 * 5 + 2 * (6 + 6 + 30))
    assert reply.payload["best"].numpy().tobytes() in everything
    for value in secret:
        assert value not in everything
    sum_ = relayed(4).offer()
    exchange = sum_.sessions[0]._exchange
    assert repr(exchange) == str(exchange) == "Exchange(hidden)"
    with pytest.raises(TypeError, match="stay with the node"):
        torch.save(exchange, tmp_path / "x")


# ------------------------------------------------------------------------------------------------ settings, publishing
@pytest.mark.parametrize(
    ("secure", "own", "changes", "said"),
    [
        (True, {}, {}, ""),
        (True, {"secure": True}, {}, ""),
        (False, {"secure": False}, {"reduce": "none"}, ""),
        (False, {"secure": True}, {}, "secure = false: must be true with strategy.name = 'mine', which is nothing wit"),
        (True, {"secure": False}, {}, "secure = true: must be false with strategy.name = 'mine' as it is set: it is t"),
        (True, {}, {"reduce": "none"}, "secure = true: must be false with a strategy that needs each node's own answ"),
        (True, {}, {"nodes": ("n0", "n1", "n2")}, "secure = true: must be false with a strategy that asks fewer than"),
        (True, {"fewest": 3}, {}, "secure = true: must be false with a strategy that asks fewer than 4 nodes in a st"),
    ],
)
def test_a_request_with_a_relay_is_a_sum_like_others(
    secure: bool, own: dict[str, Any], changes: dict[str, Any], said: str
) -> None:
    lab = Lab(4)
    config: Any = SimpleNamespace(strategy=SimpleNamespace(settings={}, name="mine"), secure=secure)
    strategy: Any = SimpleNamespace(ask=lambda nodes: lab.ask(**changes), **own)
    with pytest.raises(SettingError, match=said) if said else contextlib.nullcontext():
        check_secure(config, strategy, lab.names)


def release(worker: Worker, nodes: Sequence[Node], request: Request) -> Iterator[Tensors]:
    for node in nodes:
        if node.name == "n2":
            raise DeclinedError("its owner declines")
        yield {"point": torch.zeros(1, 2), "value": torch.tensor([float(node.name[1:])])}


def test_owners_publish_or_decline_each_for_itself_and_nothing_else_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(TASKS, "release", release)
    lab = Lab(4)
    lab.secured.send(lab.ask())
    asked = lab.ask(1, relay=None, task="release", reduce="none", common={})
    round_ = lab.secured.send(asked)
    assert [(r.node, r.payload["value"].item()) for r in round_.replies] == [("n0", 0), ("n1", 1), ("n3", 3)]
    assert [(f.node, f.reason) for f in round_.failures] == [("n2", "its owner declines")]
    metrics: dict[str, Any] = {}
    lab.secured.observe(None, round_, metrics)  # type: ignore[arg-type]
    assert (round_.per_node, metrics) == ({}, {})
    for other in ({"relay": Relay((lab.chosen(),), "hold")}, {"reduce": "sum"}, {"task": "scores"}):
        with pytest.raises(RunError, match=r"single answers|no work whose results can be added"):
            lab.secured.send(replace(asked, header=Header(4, 2), **other))
    for task in ("scores", "hold", "releases", "secure_release"):
        with pytest.raises(RunError, match=f"this node answers .*, not '{task}'"):
            lab.tap.engine.send(replace(asked, task=task))
