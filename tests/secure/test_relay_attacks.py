"""Attacks on sums that a chosen node opens: each fails, and succeeds once its defence is off."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fne.config import registry
from fne.core.errors import RunError
from fne.core.hidden import ProtocolError
from fne.core.messages import Header, Request, Round
from fne.core.randomness import chosen_node
from fne.secure import keys, protocol, shares
from fne.secure import node_tasks as secure_tasks
from fne.secure.protocol import CHECKS, Tag
from fne.secure.session import Exchange, Session
from tests.secure.parts import agree, plain
from tests.secure.relay_parts import Lab, known, literal_signs, relayed

pytestmark = pytest.mark.usefixtures("relay_tasks")

Off = Callable[[pytest.MonkeyPatch], None]


# Each returns whether it succeeds. It must fail, and succeed where its own defence is off, which is only possible here.
def server_reads_the_sum() -> bool:
    sum_ = relayed(4).offer().mask().tell()
    return np.array_equal(sum_.rest()[:-CHECKS], sum_.others())


def permuted_survivors_show() -> bool:
    """Survivors that come back at other places: the difference of two rests is that of their values."""
    sessions, order = agree(4), np.random.default_rng(1).permutation(30)
    first = relayed(4, 30, sessions=sessions).offer().mask().tell()
    second = replace(relayed(4, 30, sessions=sessions, step=1), values=[v[order] for v in first.values])
    difference = second.offer().mask().tell().rest() - first.rest()
    return np.array_equal(difference[:-CHECKS], first.others()[order] - first.others())


def one_salt(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Tag, "context", lambda self, members: bytes(32))
    patch.setattr(protocol, "pair_key", lambda key, binding: key)


def receiver_is_said_to_have_dropped() -> bool:
    """The others tell shares of the receiver's r, which opens the box with the masks that hide the rest."""
    sum_ = relayed(5).offer().mask()
    try:
        told = {i: sum_.sessions[i].revealed(sum_.tag, [0, 1, 2, 3]) for i in range(4)}
        rest = sum(sum_.vectors.values(), np.zeros(6 + CHECKS, dtype=np.uint64))
        context = sum_.tag.context([s.name for s in sum_.sessions])
        box = keys.unseal(shares.joined({1: told[0][4]}), sum_.offers[4].box, context, "")
    except (ProtocolError, IndexError):
        return False
    for i in range(4):
        rest -= protocol.own_mask(known(sum_, i, told), sum_.nonce, len(rest))
        key = protocol.pair_key(box[32 * i : 32 * i + 32], sum_.offers[4].commitment)
        rest -= protocol.pair_mask(i, 4, key, sum_.nonce, len(rest)) if key else rest
    return np.array_equal(rest[:-CHECKS], sum_.others())


def unchecked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("fne.secure.session.check_receiver", lambda *_: None)


def like_any_node(patch: pytest.MonkeyPatch) -> None:
    """The receiver's keys are shared and told like everybody's."""
    unchecked(patch)
    patch.setattr(protocol, "boxed", lambda members, owner, receiver: [m for m in members if m != owner])
    real = Session.revealed

    def revealed(self: Session, tag: Tag, survivors: Sequence[int]) -> list[bytes]:
        assert self._exchange is not None
        self._exchange.errand = None
        return real(self, tag, survivors)

    patch.setattr(Session, "revealed", revealed)


def receiver_is_left_out(dealt: int = 4) -> bool:
    """The others mask without the receiver, so the server takes off all masks: the sum is its own."""
    sum_ = relayed(5).offer()
    try:
        for i in range(4):
            sum_.sessions[i].dealt(sum_.tag, sum_.members[:dealt], sum_.told(i))
            sum_.vectors[i] = sum_.sessions[i].masked(sum_.tag, [0, 1, 2, 3])
        told = {i: sum_.sessions[i].revealed(sum_.tag, [0, 1, 2, 3]) for i in range(4)}
    except (ProtocolError, KeyError):
        return False
    total = sum(sum_.vectors.values(), np.zeros(6 + CHECKS, dtype=np.uint64))
    for i in range(4):
        total -= protocol.own_mask(known(sum_, i, told), protocol.nonce_of([0, 1, 2, 3]), len(total))
    return np.array_equal(total[:-CHECKS], sum_.others())


def receiver_is_left_out_late() -> bool:
    return receiver_is_left_out(dealt=5)


def without_receiver(patch: pytest.MonkeyPatch) -> None:
    unchecked(patch)
    patch.setattr(Exchange, "check_key", bytes(32))


def rest_is_changed() -> bool:
    """The server adds 1 to one number, and so finds out by the receiver's choice how it compares."""
    sum_ = relayed(4).offer().mask().tell()
    rest = sum_.rest()
    rest[2] += np.uint64(2**32)
    try:
        return not np.array_equal(sum_.received(rest), plain(sum_.values, range(4)))
    except ProtocolError:
        return False


def rest_is_an_old_one() -> bool:
    sessions = agree(4)
    first = relayed(4, sessions=sessions).offer().mask().tell()
    second = relayed(4, sessions=sessions, step=1, seed=1).offer().mask().tell()
    try:
        return not np.array_equal(second.received(first.rest()), plain(second.values, range(4)))
    except ProtocolError:
        return False


def uncertified(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Exchange, "is_intact", lambda *_: True)


def sum_is_opened_twice() -> bool:
    """Two answers to one sum, the second one changed so that it says more."""
    sum_ = relayed(4).offer().mask().tell()
    sum_.received()
    try:
        sum_.received()
    except ProtocolError:
        return False
    return True


def asked_twice(patch: pytest.MonkeyPatch) -> None:
    kept: dict[int, Any] = {}
    patch.setattr(Session, "_at", lambda self, tag, stage: kept.setdefault(id(self), self._exchange))


def checks_show_one_node() -> bool:
    """The receiver gives node 0 another key for its checks: what they are off by depends on its values alone."""
    sum_ = relayed(4, receiver=3).offer()
    exchange, false = sum_.sessions[3]._exchange, keys.fresh()
    assert exchange is not None
    text = protocol.seal_text(exchange.bound, "n03", "n00")
    sealed = keys.seal(exchange.links[0].out, false + bytes(1) + exchange.shares[3][1], text)
    sum_.offers[3] = replace(sum_.offers[3], sealed=(sealed, *sum_.offers[3].sealed[1:]))
    total = exchange.pairs(3, [0, 1, 2], sum_.mask().tell().rest())
    words, told = total[:-CHECKS], total[-CHECKS:]
    off = told - protocol.checks(exchange.mask, sum_.nonce, words)
    by_key = [protocol.checks(key, sum_.nonce, sum_.values[0]) for key in (false, exchange.mask)]
    return np.array_equal(off, by_key[0] - by_key[1])


def unbound(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(protocol, "pair_key", lambda key, binding: key)


def answered(lab: Lab, request: Request) -> bool:
    """Return whether anybody answers."""
    try:
        return bool(lab.secured.send(request).replies)
    except RunError:
        return False


def to_some(lab: Lab, nodes: Collection[str], **wanted: Any) -> None:
    """Let the server say other things of the relay to these nodes."""
    real = lab.tap.send

    def send(request: Request) -> Round:
        if request.task != "secure_offer":
            return real(request)
        other = protocol.relay_of(str(request.options["relay"]))
        assert other is not None
        to, options = wanted.get("to", other.nodes[0]), {**other.options, **wanted.get("options", {})}
        text = json.dumps([to, other.task, options])
        theirs = real(replace(request, nodes=tuple(nodes), options={**request.options, "relay": text}))
        ours = real(replace(request, nodes=tuple(n for n in request.nodes if n not in nodes)))
        return replace(ours, replies=(*ours.replies, *theirs.replies))

    lab.tap.send = send  # type: ignore[method-assign]


def receiver_does_more_than_was_said() -> bool:
    lab = Lab()
    to_some(lab, [lab.chosen()], options={"all_of_it": True})
    try:
        (reply,) = lab.secured.send(lab.ask()).replies
    except (RunError, ValueError):
        return False
    return torch.allclose(reply.payload["x"], lab.total)


def receivers_differ() -> bool:
    """Some are told of one node, each in its turn, and some of another: do they send their vectors?"""
    lab = Lab()
    turn = next(turn for turn in range(99) if lab.chosen(turn) != lab.chosen())
    to_some(lab, [n for n in lab.names if n not in (lab.chosen(), lab.chosen(turn))][:1], to=lab.chosen(turn),
            options={"turn": turn})  # fmt: skip
    answered(lab, lab.ask())
    vectors = [len(r.traffic.payload_up) - len(r.failures) for q, r in lab.tap.log if q.task == "secure_vector"]
    return vectors == [len(lab.names) - 1]


def work_alone(patch: pytest.MonkeyPatch) -> None:
    real = protocol.digest_of
    patch.setattr(secure_tasks, "digest_of", lambda work, *, clip: real(replace(work, relay=None), clip=clip))


def receiver_is_not_drawn() -> bool:
    lab = Lab()
    return answered(lab, lab.ask(to=next(name for name in lab.names if name != lab.chosen())))


def any_node(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Session, "receiver", lambda self, seed, turn, name, members: self._names.index(name))


def turn_comes_again() -> bool:
    lab = Lab()
    return [answered(lab, lab.ask(step, turn)) for step, turn in enumerate((1, 2, 1))] == [True] * 3


def seed_is_another() -> bool:
    """Of many seeds one draws the accomplice."""
    lab = Lab()
    seed = next(seed for seed in range(5, 99) if chosen_node(seed, 0, lab.names) == lab.chosen())
    return [answered(lab, lab.ask(header=Header(s, step))) for step, s in enumerate((4, seed))] == [True] * 2


def forgetful(patch: pytest.MonkeyPatch) -> None:
    real = Session.receiver

    def receiver(self: Session, *args: Any) -> int:
        self._turn = None
        return real(self, *args)

    patch.setattr(Session, "receiver", receiver)


def another_task_is_given_the_sum() -> bool:
    lab = Lab()
    try:
        (reply,) = lab.secured.send(lab.ask(then="tell", options={"all_of_it": True})).replies
    except RunError:
        return False
    return torch.allclose(reply.payload["x"], lab.total)


def anything_keeps(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(registry._traits, ("task", "tell"), {"keeps": True})


def server_asks_for_itself() -> bool:
    lab = Lab()
    try:
        (reply,) = lab.secured.send(lab.ask(relay=None)).replies
    except RunError:
        return False
    return torch.allclose(reply.payload["x"], lab.total)


def nothing_withheld(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(registry._traits, ("task", "scores"), {})


def sum_is_made_up() -> bool:
    """Private tensors stand in for the sum, so that the answer says how the server's numbers compare with nobody's."""
    lab = Lab()
    false = torch.full((6,), 9.0, dtype=torch.float64)
    answered(lab, lab.ask(private={lab.chosen(): {"given.x": false}}))
    return bool(Lab.given) and torch.equal(Lab.given[0]["given.x"], false)


def any_name(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(secure_tasks, "OWN", ("?",))


MATRIX: list[tuple[Callable[[], bool], Off]] = [
    (server_reads_the_sum, literal_signs),
    (permuted_survivors_show, one_salt),
    (receiver_is_said_to_have_dropped, like_any_node),
    (receiver_is_left_out, without_receiver),
    (receiver_is_left_out_late, without_receiver),
    (rest_is_changed, uncertified),
    (rest_is_an_old_one, uncertified),
    (sum_is_opened_twice, asked_twice),
    (checks_show_one_node, unbound),
    (receiver_does_more_than_was_said, work_alone),
    (receivers_differ, work_alone),
    (receiver_is_not_drawn, any_node),
    (turn_comes_again, forgetful),
    (seed_is_another, forgetful),
    (another_task_is_given_the_sum, anything_keeps),
    (server_asks_for_itself, nothing_withheld),
    (sum_is_made_up, any_name),
]


@pytest.mark.parametrize(("attack", "off"), MATRIX, ids=lambda part: part.__name__)
def test_an_attack_fails_and_succeeds_without_its_defence(
    attack: Callable[[], bool], off: Off, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not attack()
    off(monkeypatch)
    assert attack()


@pytest.mark.parametrize("attack", [receiver_is_said_to_have_dropped, receiver_is_left_out])
def test_what_nodes_hold_does_not_open_the_rest_even_if_they_tell_it(
    attack: Callable[[], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No key of the masks with the receiver is in any box, and its own keys are told to nobody."""
    unchecked(monkeypatch)
    assert not attack()
