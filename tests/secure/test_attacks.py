"""Attacks on secure sums: each fails, and succeeds once its defence is off."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import math
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fne.config import registry
from fne.core.dataset import Samples
from fne.core.errors import RunError
from fne.core.hidden import Hidden, ProtocolError
from fne.core.messages import Header, Request, Round, Tensors
from fne.engines.local import LocalEngine
from fne.federation.node import Node, Secrets, payload_of
from fne.federation.worker import Worker
from fne.privacy.keystream import Words
from fne.secure import dealing, encoding, keys, protocol, shares
from fne.secure import node_tasks as secure_tasks
from fne.secure.conflicts import passed_on
from fne.secure.engine import SecureEngine
from fne.secure.keys import Identity
from fne.secure.node_tasks import secure_only
from fne.secure.protocol import Tag, threshold
from fne.secure.session import Exchange, Link, Session
from tests.secure.parts import LIMIT, Tap, agree, chi2, plain, play, some, unlisted, words

Off = Callable[[pytest.MonkeyPatch], None]


# Each returns whether it succeeds. It must fail, and succeed where its own defence is off, which is only possible here.
def nothing_is_masked() -> bool:
    """The published eq. (3): both sums run over j < i, so the mask is zero; the server reads every vector."""
    values = some(4, 20)
    view = play(agree(4), values)
    return any(np.array_equal(view.peeled(i), values[i]) for i in range(4))


def literal_signs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(protocol, "signed", lambda own, other, mask: mask - mask)


def salt_is_reused() -> bool:
    """Equal positions of two generations share a mask, so permuted survivors give their pairwise differences."""
    draw, sessions = np.random.default_rng(1), agree(4)
    values = some(4, 30, 1)
    order = draw.permutation(30)
    first, second = play(sessions, values, 0), play(sessions, [v[order] for v in values], 1)
    return np.array_equal(second.peeled(1) - first.peeled(1), values[1][order] - values[1])


def one_salt(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Tag, "context", lambda self, members: bytes(32))


def stream_is_weak() -> bool:
    """Bytes of the messages are not even: keys folded to 32 bits, floats, or a counter in the place of a cipher."""
    return any(chi2(play(agree(4), [words(*[0] * 4000)] * 4).peeled(i)) > LIMIT for i in range(4))


def half_words(patch: pytest.MonkeyPatch) -> None:
    real = protocol.keystream
    patch.setattr(protocol, "keystream", lambda key, nonce, size: real(key, nonce, size) & np.uint64(2**32 - 1))


def late_vector_is_read() -> bool:
    """A node is taken for one that dropped out, its key r is told, and then its vector arrives."""
    values, sessions, kept = some(6, 8), agree(6), {}
    masked = Session.masked
    with pytest.MonkeyPatch.context() as listening:
        listening.setattr(Session, "masked", lambda self, *a: kept.setdefault(self.name, masked(self, *a)))
        view = play(sessions, values, late={5})
    return np.array_equal(view.unboxed(5, kept["n05"], view.key(5)), values[5])


def no_own_mask(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(protocol, "own_mask", lambda key, nonce, size: np.zeros(size, dtype=np.uint64))


def receipt_is_given_twice() -> bool:
    """For a second challenge of the server's choice: the shares that a node holds, put into another equation."""
    sessions, tag = agree(5), Tag("run", 0, 0, "fitness")
    offers = {i: s.begin(tag, range(5), v) for i, (s, v) in enumerate(zip(sessions, some(5, 3), strict=True))}
    told = passed_on(tag, [s.name for s in sessions], range(5), offers)[0]
    other = {by: text[: -dealing.DIGEST_BYTES] + bytes(dealing.DIGEST_BYTES) for by, text in told.items()}
    try:
        return sessions[0].dealt(tag, range(5), told) != sessions[0].dealt(tag, range(5), other)
    except ProtocolError:
        return False


def asked_at_any_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Session, "_at", lambda self, tag, stage: self._exchange)


def rest_shows_the_masks_of_one() -> bool:
    """The server says of a node that its box does not open, and is told one by one what others share with it."""
    sessions = agree(6)
    view = play(sessions, some(6, 8), gone={5})
    link = sessions[0]._exchange.links[5].mask  # type: ignore[union-attr]
    told = sessions[0].rest(view.tag, [5])
    return np.array_equal(told, protocol.pair_mask(0, 5, link, protocol.nonce_of(range(6)), 8))


def told_in_clear(patch: pytest.MonkeyPatch) -> None:
    real = Exchange.pairs
    patch.setattr(
        Exchange,
        "pairs",
        lambda self, own, others, total, nonce=b"": total if nonce else real(self, own, others, total),
    )


def dropout_opens_the_past() -> bool:
    """What is told of a node that drops out opens its vector of an earlier sum, as its private key would."""
    values, sessions = some(6, 8), agree(6)
    early = play(sessions, values, 0)
    later = play(sessions, some(6, 8, 1), 1, gone={5})
    view = replace(early, tag=later.tag)
    return np.array_equal(view.unboxed(5, early.peeled(5), later.key(5), later.offers), values[5])


def second_set_is_answered() -> bool:
    """Node 5 drops out and returns: the sum is asked for again, with it, and the difference is its value."""
    values, sessions = some(6, 8), agree(6)
    without = play(sessions, values, gone={5}).opened()
    try:
        again = play(sessions, values, attempt=1).opened()
    except ProtocolError:
        return False
    return np.array_equal(again - without, values[5])


def renewed_set_is_answered() -> bool:
    """The same with new keys in between: the server begins the session again, as if the run was resumed."""
    values, sessions = some(6, 8), agree(6)
    without = play(sessions, values, gone={5}).opened()
    try:
        again = play(agree(6, before=sessions), values, attempt=1).opened()
    except ProtocolError:
        return False
    return np.array_equal(again - without, values[5])


def forgetful(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Session, "_check_new", lambda self, tag: None)


def both_shares_are_told() -> bool:
    """The server asks twice: once node 5 has sent its vector, once it has not. Both keys open it."""
    values, sessions = some(6, 8), agree(6)
    view = play(sessions, values)
    try:
        answers = {i: sessions[i].revealed(view.tag, [0, 1, 2, 3, 4]) for i in range(5)}
    except ProtocolError:
        return False
    return np.array_equal(view.unboxed(5, view.peeled(5), view.key(5, answers)), values[5])


def asked_twice(patch: pytest.MonkeyPatch) -> None:
    kept: dict[int, Any] = {}

    def at(self: Session, tag: Tag, stage: str) -> Any:
        return self._exchange or kept[id(self)] if kept.setdefault(id(self), self._exchange) else None

    patch.setattr(Session, "_at", at)
    patch.setattr(Exchange, "forget", lambda self: None)


def relay_is_in_the_middle() -> bool:
    """The server puts keys of its own in the place of all others': the sum is one node's value."""
    names = [f"n{i:02d}" for i in range(4)]
    honest, false = Identity(bytes([0]) * 32), [Identity(bytes([100 + i]) * 32) for i in range(3)]
    pinned = {name: Identity(bytes([i]) * 32).public for i, name in enumerate(names)}
    believed = {names[0]: honest.public, **{n: f.public for n, f in zip(names[1:], false, strict=True)}}
    sessions = [Session(names[0], "run", honest, pinned, {})]
    sessions += [Session(n, "run", f, believed, {}) for n, f in zip(names[1:], false, strict=True)]
    publics, signatures = zip(*(session.entry() for session in sessions), strict=True)
    values = [some(4, 5)[0], *[words(0, 0, 0, 0, 0)] * 3]
    try:
        echoes = [session.join(names, publics, signatures) for session in sessions]
        for session in sessions:
            session.confirm(range(4), echoes)
    except ProtocolError:
        return False
    return np.array_equal(play(sessions, values).opened(), values[0])


def unsigned(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(keys, "verified", lambda public, signature, message: True)
    protocol.check_list.cache_clear()
    protocol.check_echoes.cache_clear()


def share_is_changed() -> bool:
    """A node tells a wrong share: the sum is another one, and nobody says so."""
    values = some(5, 8)
    view = play(agree(5), values)
    first = view.answers[0]
    view.answers[0] = [bytes([first[0][0] ^ 1]) + first[0][1:], *first[1:]]
    try:
        return not np.array_equal(view.opened(), plain(values))
    except ProtocolError:
        return False


def uncommitted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(protocol, "commitment", lambda context, mask: bytes(32))
    patch.setattr(dealing, "digest", lambda *_: bytes(dealing.DIGEST_BYTES))


def proof_gives_the_other_key() -> bool:
    """b, once it is opened, is taken off the proof that shares fit: is what remains r, by which a vector is read?"""
    values = some(5, 8)
    view = play(agree(5), values)
    mask, proof = view.key(1), view.offers[1].proof
    c = int.from_bytes(dealing.challenge(view.tag.context(view.told()), 2, view.offers[1].digests), "little")
    rest = (shares.number(proof[-1]) - c * int.from_bytes(mask, "little")) * pow(c * c, -1, shares.PRIME) % shares.PRIME
    try:
        return np.array_equal(view.unboxed(1, view.peeled(1), rest.to_bytes(33, "little")[:32]), values[1])
    except ProtocolError:
        return False


def without_blinding(patch: pytest.MonkeyPatch) -> None:
    real, turn = shares.polynomial, itertools.cycle([False, False, True])
    patch.setattr(
        shares, "polynomial", lambda secret, need: [0] * need if next(turn) else real(secret, need)
    )  # b, r, g


def sum_goes_round() -> bool:
    """Numbers that fit each, but not together: the total is another one, and nobody says so."""
    try:
        values = [encoding.encode(np.array([1.5e9]), 4, "loss")[0]] * 4
    except ProtocolError:
        return False
    return float(encoding.decode(play(agree(4), values).opened())[0]) != 6e9


def boundless(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(encoding, "largest", lambda nodes: 2.0**31 - 1)


def rest_is_one_node() -> bool:
    """The server and one node together take that node's value off a sum of two."""
    try:
        values = some(2, 8)
        view = play(agree(2), values)
    except ProtocolError:
        return False
    return np.array_equal(view.opened() - values[0], values[1])


def in_pairs(patch: pytest.MonkeyPatch) -> None:
    for module in ("fne.secure.protocol", "fne.secure.session"):
        patch.setattr(f"{module}.LEAST", 2)


def keys_are_cut() -> bool:
    """Two keys of equal first 64 bits give the same stream."""
    key = keys.fresh()
    masks = [protocol.own_mask(made, bytes(12), 8) for made in (key, key[:8] + keys.fresh()[8:])]
    return np.array_equal(*masks)


def eight_bytes(patch: pytest.MonkeyPatch) -> None:
    real = protocol.keystream
    patch.setattr(protocol, "keystream", lambda key, nonce, size: real(key[:8] * 4, nonce, size))


def secrets_are_copied() -> bool:
    """A session is copied, and with it what it agreed on."""
    sessions = agree(4)
    play(sessions, some(4, 2))
    try:
        return bool(copy.copy(sessions[0])._secrets == sessions[0]._secrets)
    except TypeError:
        return False


def copyable(patch: pytest.MonkeyPatch) -> None:
    patch.delattr(Hidden, "__reduce__")


def collusion_opens_one() -> bool:
    """The server and one node of as few as may be together: are their equations enough for another node's value?"""
    return in_span(protocol.LEAST, of="one")


def node_counts_twice() -> bool:
    """Places from the end: two nodes stand in a sum twice, so the masks that they share with the first one cancel.

    What it sealed for one of them comes back as from its other place, and tells its mask b: its vector is read alone.
    """
    sessions, members = unlisted(4), [-3, -2, 0, 1, 2]
    names, victim, (value, *_) = [session.name for session in sessions], sessions[0], some(4, 5)
    publics, signatures = zip(*(session.entry() for session in sessions), strict=True)
    echoes, tag = [session.join(names, publics, signatures) for session in sessions], Tag("run", 0, 0, "fitness")
    try:
        victim.confirm(members, [echoes[i] for i in members])
        offer = victim.begin(tag, members, value)
        sealed = dict(zip([-3, -2, 1, 2], offer.sealed, strict=True))
        rest = bytes(protocol.DEALT_BYTES - protocol.SEALED_BYTES)
        victim.dealt(tag, members, {by: sealed[of] + rest for by, of in {-3: 1, 1: -3, -2: 2, 2: -2}.items()})
        vector = victim.masked(tag, members)
        told = dict(zip([1, 2, 0, -3, -2], victim.revealed(tag, members), strict=True))
    except ProtocolError:
        return False
    mask = shares.joined({members.index(i) + 1: told[i] for i in members[: threshold(5)]})
    return np.array_equal(vector - protocol.own_mask(mask, protocol.nonce_of(members), 5), value)


def any_places(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(protocol, "check_places", lambda *_: None)


def by_sign(patch: pytest.MonkeyPatch) -> None:
    """Places are not looked at, and who seals what for whom is a matter of their order, not of names."""
    any_places(patch)
    patch.setattr(protocol, "seal_text", lambda context, sender, receiver: context)
    real = Session._link

    def link(self: Session, other: int, bound: bytes) -> Link:
        made = real(self, other, bound)
        ordered = (self.number < other) == (self.name < self._names[other])
        return made if ordered else Link(made.mask, made.into, made.out)

    patch.setattr(Session, "_link", link)


def second_list_is_taken_in() -> bool:
    """A list of keys that nobody has confirmed, in the place of one that all have."""
    sessions = unlisted(6)
    names = [session.name for session in sessions]
    publics, signatures = zip(*(session.entry() for session in sessions), strict=True)
    first, second = range(5), [0, 1, 2, 3, 5]
    try:
        echoes = [s.join(names[:5], publics[:5], signatures[:5]) for s in sessions[:5]]
        sessions[0].confirm(first, echoes)
        sessions[0].join(*([values[i] for i in second] for values in (names, publics, signatures)))
        sessions[0].begin(Tag("run", 0, 0, "fitness"), first, words(1))
    except ProtocolError:
        return False
    return True


def joined_again(patch: pytest.MonkeyPatch) -> None:
    real = Session.join

    def join(self: Session, *lists: Any) -> bytes:
        self._listed = {}
        return real(self, *lists)

    patch.setattr(Session, "join", join)


def finite_rest_is_read() -> bool:
    """Three of four have an infinite loss: the word of the total is the fourth one's."""
    payloads = [{"loss": torch.tensor([[1.0], [math.inf if i else 0.75]])} for i in range(4)]
    total = play(agree(4), [encoding.flatten(payload, 4) for payload in payloads]).opened()
    return float(encoding.decode(total)[1]) == 0.75


def zeros_instead(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(keys, "drawn", lambda size: np.zeros(size, dtype=np.uint64))


def scaled(worker: Worker, nodes: Sequence[Node], request: Request) -> Iterator[Tensors]:
    """A task: each node answers with its one target times the candidate."""
    for node in nodes:
        yield {"x": node.data.y * payload_of(request, node)["population"]}


@contextlib.contextmanager
def sites(task: str = "scaled") -> Iterator[Worker]:
    """Give five nodes of a secure run, whose targets are 1.5, 2.5 and so on, and the task above under a name."""
    held = {f"n{i}": Samples(torch.zeros(1, 1), torch.tensor([i + 1.5])) for i in range(5)}
    worker = Worker({name: Node(name, data, Secrets.simulate(0, name)) for name, data in held.items()})
    secure_only(worker)
    load = registry.load
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "load", lambda kind, name: scaled if name == task else load(kind, name))
        yield worker


def scaling(factor: float, step: int = 0, **changes: Any) -> Request:
    common = {"population": torch.tensor([factor])}
    return Request(**{
        "header": Header(0, step), "task": "scaled", "nodes": ("n0", "n1", "n2", "n3", "n4"), "common": common,
        "reduce": "sum", **changes,
    })  # fmt: skip


def another_run_makes_it_forget() -> bool:
    """Keys for a run of another name, then for the first again: is a step of it answered twice, once without n4?"""
    with sites() as worker:
        tap = Tap(LocalEngine(worker, "run"))
        tap.lost = {"secure_vector": {"n4"}}
        (without,) = SecureEngine(tap, worker.pinned).send(scaling(1.0, 3)).replies
        SecureEngine(LocalEngine(worker, "x"), worker.pinned).send(scaling(1.0))
        try:
            (again,) = SecureEngine(LocalEngine(worker, "run"), worker.pinned).send(scaling(1.0, 3)).replies
        except RunError:
            return False
    return float(again.payload["x"] - without.payload["x"]) == 5.5


def one_run_remembered(patch: pytest.MonkeyPatch) -> None:
    real = Session.__init__

    def init(self: Session, name: str, run: str, *given: Any) -> None:
        *_, answered, _ = given
        for key in [key for key in answered if key[0] != run]:
            del answered[key]
        real(self, name, run, *given)

    patch.setattr(Session, "__init__", init)


class Apart(Tap):
    """A server that gives all nodes but the first a candidate of which it knows what they answer."""

    def send(self, request: Request) -> Round:
        if request.task != "secure_offer":
            return super().send(request)
        known = {**request.common, "population": torch.zeros(1)}
        one = super().send(replace(request, nodes=request.nodes[:1]))
        rest = super().send(replace(request, nodes=request.nodes[1:], common=known))
        return replace(rest, replies=(*one.replies, *rest.replies))


def candidates_differ() -> bool:
    """What the others answer to a candidate is known (0 here): the total is the first one's value."""
    with sites() as worker:
        try:
            (total,) = SecureEngine(Apart(LocalEngine(worker)), worker.pinned).send(scaling(1.0)).replies
        except RunError:
            return False
    return total.payload["x"].tolist() == [1.5]


def work_unbound(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(secure_tasks, "digest_of", lambda work, *, clip: b"")


def candidate_is_for_one() -> bool:
    """The same with a tensor that goes to the first node alone, which stands in for what all got."""
    with sites() as worker:
        one = {"n0": {"population": torch.ones(1)}}
        try:
            (total,) = SecureEngine(LocalEngine(worker), worker.pinned).send(scaling(0.0, private=one)).replies
        except RunError:
            return False
    return total.payload["x"].tolist() == [1.5]


def asked_for_anything(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(secure_tasks, "check_asked", lambda task, own, relay: None)


def plugin_answers_in_clear() -> bool:
    """A plugin's task is named like those of secure sums."""
    with sites("secure_scaled") as worker:
        try:
            round_ = LocalEngine(worker).send(scaling(1.0, task="secure_scaled", reduce="none"))
        except RunError:
            return False
    return len(round_.replies) == 5


def by_prefix(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(secure_tasks, "is_answered", lambda task: task.startswith("secure_"))


MATRIX: list[tuple[Callable[[], bool], Off]] = [
    (nothing_is_masked, literal_signs),
    (salt_is_reused, one_salt),
    (stream_is_weak, half_words),
    (late_vector_is_read, no_own_mask),
    (receipt_is_given_twice, asked_at_any_time),
    (rest_shows_the_masks_of_one, told_in_clear),
    (dropout_opens_the_past, one_salt),
    (second_set_is_answered, forgetful),
    (renewed_set_is_answered, forgetful),
    (both_shares_are_told, asked_twice),
    (relay_is_in_the_middle, unsigned),
    (share_is_changed, uncommitted),
    (proof_gives_the_other_key, without_blinding),
    (sum_goes_round, boundless),
    (rest_is_one_node, in_pairs),
    (collusion_opens_one, in_pairs),
    (keys_are_cut, eight_bytes),
    (secrets_are_copied, copyable),
    (node_counts_twice, by_sign),
    (second_list_is_taken_in, joined_again),
    (finite_rest_is_read, zeros_instead),
    (another_run_makes_it_forget, one_run_remembered),
    (candidates_differ, work_unbound),
    (candidate_is_for_one, asked_for_anything),
    (plugin_answers_in_clear, by_prefix),
]


@pytest.fixture
def _nothing_cached() -> Iterator[None]:
    """Forget lists that were found good while nothing was checked."""
    yield
    protocol.check_list.cache_clear()
    protocol.check_echoes.cache_clear()


@pytest.mark.usefixtures("_nothing_cached")
@pytest.mark.parametrize(("attack", "off"), MATRIX, ids=lambda part: part.__name__)
def test_an_attack_fails_and_succeeds_without_its_defence(
    attack: Callable[[], bool], off: Off, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not attack()
    off(monkeypatch)
    assert attack()


def test_names_alone_stop_a_node_that_counts_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    any_places(monkeypatch)
    assert not node_counts_twice()


def in_span(nodes: int, of: str) -> bool:
    """Return whether one value, or the sum of all but the last node's, follows from what server and last node know.

    Every value and every keystream becomes an unknown of its own: a vector then holds the coefficients of an equation,
    as the real code makes it. The last node knows its value and its keys, the server all masks b that are told.
    """
    columns: dict[bytes, int] = {}

    def one_hot(key: bytes, nonce: bytes, size: int) -> Words:
        unit = np.zeros(size, dtype=np.uint64)
        unit[nodes + columns.setdefault(key, len(columns))] = 1
        return unit

    size = nodes + nodes * (nodes - 1) // 2
    values = [np.eye(size, dtype=np.uint64)[i] for i in range(nodes)]
    sessions = agree(nodes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "keystream", one_hot)
        patch.setattr(protocol, "own_mask", lambda key, nonce, size: np.zeros(size, dtype=np.uint64))
        tag, members = Tag("run", 0, 0, "fitness"), list(range(nodes))
        offers = [s.begin(tag, members, v) for s, v in zip(sessions, values, strict=True)]
        last = sessions[-1]._exchange
        assert last is not None
        known = {link.mask for link in last.links.values()}
        told = passed_on(tag, [s.name for s in sessions], members, dict(enumerate(offers)))
        for i, session in enumerate(sessions):
            session.dealt(tag, members, told[i])
        equations = np.stack([s.masked(tag, members) for s in sessions]).view(np.int64)
    hidden = [*range(nodes - 1), *(nodes + place for key, place in columns.items() if key not in known)]
    rows = equations[:, hidden].astype(float)
    wanted = np.zeros(len(hidden))
    wanted[: 1 if of == "one" else nodes - 1] = 1
    return bool(np.linalg.matrix_rank(np.vstack([rows, wanted])) == np.linalg.matrix_rank(rows))


@pytest.mark.parametrize("nodes", [4, 5, 8])
def test_server_and_a_node_know_the_sum_of_the_others_and_no_more(nodes: int) -> None:
    assert in_span(nodes, of="sum")
    assert not in_span(nodes, of="one")


def test_secrets_show_nothing() -> None:
    session = agree(4)[0]
    things = [session, session._identity, session._agreement]
    for thing in things:
        assert repr(thing) == str(thing) == f"{type(thing).__name__}(hidden)"
        for way in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="stay with the node"):
                way(thing)
        with pytest.raises(TypeError):
            vars(thing)
        with pytest.raises(TypeError):
            json.dumps(thing)
