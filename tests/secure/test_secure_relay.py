"""Sums that a chosen node opens in the server's place: attacks with their defence on and off, dropouts, the engine."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from fne.config import registry
from fne.config.registry import Key
from fne.core.dataset import Samples
from fne.core.errors import DeclinedError, RefusedError, RunError, SettingError
from fne.core.hidden import ProtocolError
from fne.core.messages import Header, Relay, Reply, Request, Round, Status, Tensors
from fne.core.randomness import chosen_node
from fne.engines.local import LocalEngine
from fne.federation.node import Node, Secrets, payload_of
from fne.federation.payloads import PayloadSpec
from fne.federation.rounds import Relaying
from fne.federation.worker import Worker
from fne.privacy.keystream import Words
from fne.secure import encoding, keys, protocol, shares
from fne.secure import node_tasks as secure_tasks
from fne.secure.conflicts import passed_on
from fne.secure.encoding import vector_words
from fne.secure.engine import SecureEngine
from fne.secure.keys import Identity
from fne.secure.node_tasks import secure_only
from fne.secure.protocol import CHECKS, Errand, Offer, Tag, enough, threshold
from fne.secure.rules import check_secure
from fne.secure.session import Exchange, Session
from fne.secure.unmask import opened

Off = Callable[[pytest.MonkeyPatch], None]


# ------------------------------------------------------------------------------------------------ a sum by hand
def agree(count: int) -> list[Session]:
    """Return the sessions of `count` nodes that have agreed on keys."""
    names = [f"n{i:02d}" for i in range(count)]
    identities = [Identity(bytes([i]) * 32) for i in range(count)]
    pinned = {name: identity.public for name, identity in zip(names, identities, strict=True)}
    sessions = [Session(name, "run", own, pinned, {}) for name, own in zip(names, identities, strict=True)]
    publics, signatures = zip(*(session.entry() for session in sessions), strict=True)
    echoes = [session.join(names, publics, signatures) for session in sessions]
    for session in sessions:
        session.confirm(range(count), echoes)
    return sessions


@dataclass
class Relayed:
    """A sum that one node opens, stage by stage; all but `sessions` and `values` is what the server sees."""

    sessions: list[Session]
    values: list[Words]
    receiver: int
    step: int = 0
    offers: dict[int, Offer] = field(default_factory=dict)
    vectors: dict[int, Words] = field(default_factory=dict)
    answers: dict[int, list[bytes]] = field(default_factory=dict)

    @property
    def tag(self) -> Tag:
        return Tag("run", self.step, 0, "predict")

    @property
    def members(self) -> list[int]:
        return list(range(len(self.sessions)))

    @property
    def nonce(self) -> bytes:
        return protocol.nonce_of(self.members)

    def offer(self) -> Relayed:
        form = PayloadSpec((("x", False, self.values[0].shape),))
        errand = Errand(self.receiver, Request(Header(0, self.step), "hold", ()), form, len(self.sessions))
        for i, (session, value) in enumerate(zip(self.sessions, self.values, strict=True)):
            self.offers[i] = session.begin(self.tag, self.members, value, b"", errand)
        return self

    def told(self, to: int) -> dict[int, bytes]:
        return passed_on(self.tag, [s.name for s in self.sessions], self.members, self.offers)[to]

    def mask(self, gone: Collection[int] = ()) -> Relayed:
        for i in self.members:
            if i in gone:
                continue
            self.sessions[i].dealt(self.tag, self.members, self.told(i))
            if i == self.receiver:
                self.sessions[i].kept(self.tag, self.members)
            else:
                self.vectors[i] = self.sessions[i].masked(self.tag, self.members)
        return self

    def tell(self, silent: Collection[int] = ()) -> Relayed:
        there = sorted([*self.vectors, self.receiver])
        self.answers = {i: self.sessions[i].revealed(self.tag, there) for i in there if i not in silent}
        return self

    def rest(self) -> Words:
        """Return all that the server can make of it: what it passes on."""
        total = np.sum(np.stack(list(self.vectors.values())), axis=0, dtype=np.uint64)
        names, there = [s.name for s in self.sessions], sorted([*self.vectors, self.receiver])
        return opened(self.tag, names, self.offers, self.members, total, there, self.answers, self.receiver)[0]

    def received(self, rest: Words | None = None) -> Words:
        return self.sessions[self.receiver].received(self.tag, self.rest() if rest is None else rest)[0]

    def others(self) -> Words:
        return plain(self.values, self.vectors)


def relayed(nodes: int, size: int = 6, receiver: int = -1, seed: int = 0, **more: Any) -> Relayed:
    return Relayed(more.pop("sessions", None) or agree(nodes), some(nodes, size, seed), receiver % nodes, **more)


def some(count: int, size: int, seed: int = 0) -> list[Words]:
    draw = np.random.default_rng(seed)
    return [encoding.encode(draw.normal(size=size), count, "")[0] for _ in range(count)]


def plain(values: Sequence[Words], which: Collection[int]) -> Words:
    return np.sum(np.stack([values[i] for i in which]), axis=0, dtype=np.uint64)


@pytest.mark.parametrize("nodes", [4, 5, 7, 10, 13])
def test_the_receiver_has_the_sum_with_all_dropouts_that_it_can_take_and_no_more(nodes: int) -> None:
    sessions, most, step = agree(nodes), nodes - enough(nodes), 0
    for receiver in (0, 2, nodes - 1):
        for lost in {0, most}:
            gone = set([i for i in range(nodes) if i != receiver][:lost])
            sum_ = relayed(nodes, receiver=receiver, sessions=sessions, step=step).offer().mask(gone)
            sum_.tell(silent={*range(lost, nodes - threshold(nodes))} - {receiver})
            assert np.array_equal(sum_.received(), plain(sum_.values, {*range(nodes)} - gone))
            step += 1
    with pytest.raises(ProtocolError, match=f"and at least {enough(nodes)} must be in"):
        relayed(nodes, sessions=sessions, step=step).offer().mask(range(most + 1)).tell()


# ------------------------------------------------------------------------------------------------ nothing in it
def correlations(own: NDArray[Any], seen: NDArray[Any]) -> tuple[float, float]:
    """Return Pearson's and Spearman's."""
    ranks = [np.argsort(np.argsort(side)) for side in (own, seen)]
    return float(np.corrcoef(own, seen)[0, 1]), float(np.corrcoef(*ranks)[0, 1])


def literal_signs(patch: pytest.MonkeyPatch) -> None:
    """As the paper prints eq. (3): every mask of a pair is 0."""
    patch.setattr(protocol, "signed", lambda own, other, mask: mask - mask)


def test_what_the_server_makes_of_a_sum_says_nothing_of_it_or_of_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """All messages but the receiver's secrets, over 100 sums of ten values: of the others, of one of them, of all."""

    def found() -> list[float]:
        sessions, pairs = agree(4), []
        for step in range(100):
            sum_ = relayed(4, 10, receiver=step, seed=step, sessions=sessions, step=step).offer().mask().tell()
            one, *_ = sum_.vectors
            peeled = sum_.vectors[one] - protocol.own_mask(known(sum_, one), sum_.nonce, 10 + CHECKS)
            everything = plain(sum_.values, range(4))
            guess = sum_.rest()[:-CHECKS].view(np.int64)
            pairs.append((sum_.others(), guess, sum_.values[one], peeled[:-CHECKS].view(np.int64), everything, guess))
        columns = [np.concatenate(column).view(np.int64).astype(float) for column in zip(*pairs, strict=True)]
        return [abs(r) for i in (0, 2, 4) for r in correlations(columns[i], columns[i + 1])]

    assert max(found()) < 7 / math.sqrt(1000)
    literal_signs(monkeypatch)
    assert min(found()) > 0.8


def known(sum_: Relayed, node: int, answers: Mapping[int, Sequence[bytes]] | None = None) -> bytes:
    """Return the key that the shares which were told of a node give."""
    told, place = answers or sum_.answers, [i for i in sum_.members if i != sum_.receiver].index(node)
    used = sorted(told)[: threshold(len(sum_.members))]
    return shares.joined({i + 1: told[i][place] for i in used})


def test_equal_values_in_two_steps_leave_rests_of_which_even_the_difference_is_even() -> None:
    sessions = agree(4)
    first, second = (
        replace(relayed(4, 4000, sessions=sessions, step=step), values=[np.full(4000, 7, dtype=np.uint64)] * 4)
        .offer().mask().tell().rest() for step in (0, 1)
    )  # fmt: skip
    for words in (first, second, second - first):
        counts = [np.bincount(column, minlength=256) for column in words.view(np.uint8).reshape(-1, 8).T]
        assert max(((c - c.mean()) ** 2 / c.mean()).sum() for c in counts) < 255 + 10 * math.sqrt(2 * 255)


def test_two_worlds_of_one_sum_look_the_same_to_the_receiver(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same randomness of everybody all that it sees is equal bit for bit, so it is of one distribution."""

    def view(values: list[Words]) -> tuple[Any, ...]:
        counter = iter(range(10**9))

        def drawn(size: int) -> bytes:
            return hashlib.shake_256(str(next(counter)).encode()).digest(size)

        with monkeypatch.context() as patch:
            patch.setattr(os, "urandom", drawn)
            sum_ = replace(relayed(4, receiver=2), values=values).offer().mask()
            own = sum_.sessions[2]._exchange
            assert own is not None
            seen = (sum_.told(2), own.mask, {i: link.mask for i, link in own.links.items()}, own.shares)
            rest = sum_.tell().rest()
            return seen, rest.tobytes(), sum_.received(rest).tobytes()

    a, shift = some(4, 6), some(2, 6, seed=9)
    b = [a[0] + shift[0], a[1] - shift[0] + shift[1], a[2], a[3] - shift[1]]
    other = [a[0] + shift[0], *a[1:]]
    assert view(a) == view(b)
    assert view(a)[0] == view(other)[0]
    assert view(a)[1:] != view(other)[1:]


def in_span(nodes: int, of: str, *, receiver_tells: bool) -> bool:
    """Return whether one value, or the sum of all but the receiver's, follows from the server's equations.

    Every value and every keystream is an unknown of its own. The server knows all masks b; the receiver, where it
    tells, its own value and its masks with the others.
    """
    columns: dict[bytes, int] = {}
    size = nodes + nodes * (nodes - 1) // 2

    def one_hot(key: bytes, nonce: bytes, words: int) -> Words:
        unit = np.zeros(words, dtype=np.uint64)
        unit[nodes + columns.setdefault(key, len(columns))] = 1
        return unit

    sum_ = replace(relayed(nodes), values=[np.eye(size, dtype=np.uint64)[i] for i in range(nodes)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "keystream", one_hot)
        patch.setattr(protocol, "own_mask", lambda key, nonce, words: np.zeros(words, dtype=np.uint64))
        patch.setattr(protocol, "checks", lambda key, nonce, words: words[:0])
        sum_.offer().mask()
    own = sum_.sessions[-1]._exchange
    assert own is not None
    binding = sum_.offers[nodes - 1].commitment
    told = {protocol.pair_key(link.mask, binding) for link in own.links.values()} if receiver_tells else set()
    hidden = [*range(nodes - 1), *(nodes + place for key, place in columns.items() if key not in told)]
    rows = np.stack(list(sum_.vectors.values())).view(np.int64)[:, hidden].astype(float)
    wanted = np.zeros(len(hidden))
    wanted[: 1 if of == "one" else nodes - 1] = 1
    return bool(np.linalg.matrix_rank(np.vstack([rows, wanted])) == np.linalg.matrix_rank(rows))


@pytest.mark.parametrize("nodes", [4, 5, 8])
def test_server_and_receiver_together_know_the_sum_of_the_others_and_no_more(nodes: int) -> None:
    assert in_span(nodes, "sum", receiver_tells=True)
    assert not in_span(nodes, "one", receiver_tells=True)
    assert not in_span(nodes, "sum", receiver_tells=False)
    assert not in_span(nodes, "one", receiver_tells=False)


# ------------------------------------------------------------------------------------------------ attacks by hand
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


# ------------------------------------------------------------------------------------------------ attacks in a run
def scores(worker: Worker, nodes: Sequence[Node], request: Request) -> Iterator[Tensors]:
    """Answer with what each node has, times the candidate, and a count."""
    for node in nodes:
        if "absent" in node.memory:
            raise RefusedError("does not score")
        x = node.data.x[0].double() * payload_of(request, node)["candidates"]
        yield {"x": x, "n": torch.tensor([3, int(node.name[1:])])}


def hold(
    worker: Worker, nodes: Sequence[Node], request: Request, *,
    turn: Annotated[int, Key("of the draw")] = 0, all_of_it: Annotated[bool, Key("tell the sum, too")] = False,
) -> Iterator[Tensors]:  # fmt: skip
    """Keep what is given where the test finds it, and answer with the place of the least."""
    for node in nodes:
        if "refuses" in node.memory:
            raise RefusedError("does not look")
        had = payload_of(request, node)
        Lab.given.append(dict(had))
        Lab.drawn.append(float(torch.rand(1, generator=node.generator(request.header, "hold"))))
        told = {"best": had["given.x"].argmin().view(1).short()}
        yield {**told, "x": had["given.x"]} if all_of_it else told


TASKS = {"scores": scores, "hold": hold, "tell": hold}


class Tap:
    """An engine through which a test looks at what goes to and fro, changes it, or loses it."""

    def __init__(self, engine: LocalEngine) -> None:
        self.engine, self.nodes = engine, engine.nodes
        self.log: list[tuple[Request, Round]] = []
        self.lost: dict[str, set[str]] = {}
        self.change: Callable[[Request], Request] = lambda request: request
        self.save, self.load, self.close = engine.save, engine.load, engine.close

    def send(self, request: Request) -> Round:
        asked = self.change(request)
        lost = self.lost.get(request.task, set())
        there = tuple(node for node in asked.nodes if node not in lost)
        private = {node: own for node, own in asked.private.items() if node in there}
        silent = tuple(Reply(request.header, n, Status.FAILED, "no answer") for n in request.nodes if n in lost)
        if not there:
            raise RunError("; ".join(f"{failure.node}: {failure.reason}" for failure in silent))
        round_ = self.engine.send(replace(asked, nodes=there, private=private))
        round_ = replace(round_, failures=(*round_.failures, *silent))
        self.log.append((request, round_))
        return round_

    @property
    def tasks(self) -> list[str]:
        return [request.task.removeprefix("secure_") for request, _ in self.log]


class Lab:
    """Nodes of a secure run with the tasks above, whose sums `hold` may be given."""

    given: list[dict[str, Tensor]] = []  # noqa: RUF012
    drawn: list[float] = []  # noqa: RUF012

    def __init__(self, nodes: int = 5, folder: Path | None = None, *, only: bool = True, **settings: Any) -> None:
        draw = torch.Generator().manual_seed(nodes)
        data = {f"n{i}": Samples(torch.randn(1, 6, generator=draw), torch.zeros(1)) for i in range(nodes)}
        self.worker = Worker({name: Node(name, own, Secrets.simulate(0, name)) for name, own in data.items()})
        self.tap = Tap(LocalEngine(self.worker, "run", folder))
        self.names, self.total = tuple(data), torch.cat([own.x.double() for own in data.values()]).sum(dim=0)
        if only:
            secure_only(self.worker)
        self.secured = SecureEngine(self.tap, self.worker.pinned, **settings)
        Lab.given, Lab.drawn = [], []

    def chosen(self, turn: int = 0) -> str:
        return chosen_node(4, turn, self.names)

    def ask(self, step: int = 0, turn: int = 0, to: str = "", task: str = "scores", **changes: Any) -> Request:
        then = changes.pop("then", "hold")
        options = {"turn": turn, **changes.pop("options", {})}
        relay = Relay((to or self.chosen(turn),), then, changes.pop("private", {}), options)
        common = {"candidates": torch.tensor([1.0], dtype=torch.float64)}
        fields = {"header": Header(4, step), "task": task, "nodes": self.names, "common": common, "reduce": "sum"}
        return Request(**{**fields, "relay": relay, **changes})


@pytest.fixture(autouse=True)
def _tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    load = registry.load
    monkeypatch.setattr(registry, "load", lambda kind, name: TASKS.get(name) or load(kind, name))
    monkeypatch.setattr(secure_tasks, "KEEPING", (*secure_tasks.KEEPING, "hold"))
    monkeypatch.setattr(secure_tasks, "WITHHELD", (*secure_tasks.WITHHELD, "scores"))


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
    patch.setattr(secure_tasks, "KEEPING", ("hold", "tell"))


def server_asks_for_itself() -> bool:
    lab = Lab()
    try:
        (reply,) = lab.secured.send(lab.ask(relay=None)).replies
    except RunError:
        return False
    return torch.allclose(reply.payload["x"], lab.total)


def nothing_withheld(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(secure_tasks, "WITHHELD", ())


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
        ({"then": "tell"}, "'tell' is not known to keep to itself what it is given, as select, hold"),
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
