"""Secure sums by hand, and what the tests ask of the engine around a plain one."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fne.core.messages import Header, Reply, Request, Round, Status
from fne.engines.local import LocalEngine
from fne.privacy.keystream import Words, keystream
from fne.secure import encoding, keys, protocol, shares
from fne.secure.conflicts import passed_on
from fne.secure.keys import Identity
from fne.secure.protocol import Offer, Tag, threshold
from fne.secure.session import Session
from fne.secure.unmask import opened


@dataclass
class View:
    """All that the server sees of a sum."""

    tag: Tag
    names: list[str]
    members: list[int]
    offers: dict[int, Offer]
    vectors: dict[int, Words]
    answers: dict[int, list[bytes]]

    @property
    def survivors(self) -> list[int]:
        return sorted(self.vectors)

    def opened(self) -> Words:
        total = np.zeros_like(next(iter(self.vectors.values())))
        for vector in self.vectors.values():
            total = total + vector
        return opened(self.tag, self.names, self.offers, self.members, total, self.survivors, self.answers)[0]

    def key(self, node: int, answers: Mapping[int, Sequence[bytes]] | None = None) -> bytes:
        """Return what the shares that were told of a node give: b if it survived, else r."""
        told = answers or self.answers
        place = sorted(self.offers).index(node)
        used = sorted(told)[: threshold(len(self.members))]
        return shares.joined({self.members.index(i) + 1: told[i][place] for i in used})

    def peeled(self, node: int) -> Words:
        """Return a vector without the mask b, which the server knows once the sum is open."""
        vector = self.vectors[node]
        return vector - protocol.own_mask(self.key(node), protocol.nonce_of(sorted(self.offers)), len(vector))

    def unboxed(self, node: int, vector: Words, opener: bytes, offers: Mapping[int, Offer] | None = None) -> Words:
        """Return a node's vector without the masks of the pairs, by its key r."""
        box = keys.unseal(opener, (offers or self.offers)[node].box, self.tag.context(self.told()), "")
        nonce = protocol.nonce_of(sorted(self.offers))
        for number, other in enumerate(i for i in self.members if i != node):
            mask = keystream(box[32 * number : 32 * number + 32], nonce, len(vector))
            vector = vector - protocol.signed(node, other, mask)
        return vector

    def told(self) -> list[str]:
        return [self.names[i] for i in self.members]


def unlisted(count: int, run: str = "run", before: Sequence[Session] = ()) -> list[Session]:
    """Return the sessions of `count` nodes with new keys, of which they know their own."""
    names = [f"n{i:02d}" for i in range(count)]
    identities = [Identity(bytes([i]) * 32) for i in range(count)]
    pinned = {name: identity.public for name, identity in zip(names, identities, strict=True)}
    answered = [old._answered for old in before] or [{} for _ in names]
    return [Session(n, run, i, pinned, told) for n, i, told in zip(names, identities, answered, strict=True)]


def agree(count: int, run: str = "run", before: Sequence[Session] = ()) -> list[Session]:
    """Return the sessions of `count` nodes that have agreed on keys."""
    sessions = unlisted(count, run, before)
    names = [session.name for session in sessions]
    publics, signatures = zip(*(session.entry() for session in sessions), strict=True)
    echoes = [session.join(names, publics, signatures) for session in sessions]
    for session in sessions:
        session.confirm(range(count), echoes)
    return sessions


def play(
    sessions: Sequence[Session],
    values: Sequence[Words],
    step: int = 0,
    *,
    attempt: int = 0,
    late: Collection[int] = (),
    gone: Collection[int] = (),
    silent: Collection[int] = (),
) -> View:
    """Run a sum: nodes go before their vectors, or after (late: they make one that does not arrive), or at the end."""
    tag, members = Tag("run", step, attempt, "fitness"), list(range(len(sessions)))
    offers = {i: s.begin(tag, members, v) for i, (s, v) in enumerate(zip(sessions, values, strict=True))}

    told = passed_on(tag, [s.name for s in sessions], members, offers)
    for i in members:
        if i not in gone:
            sessions[i].dealt(tag, members, told[i])
    made = {i: sessions[i].masked(tag, members) for i in members if i not in gone}
    there = {i: vector for i, vector in made.items() if i not in late}
    answers = {i: sessions[i].revealed(tag, sorted(there)) for i in there if i not in silent}
    return View(tag, [s.name for s in sessions], members, offers, there, answers)


def words(*numbers: int) -> Words:
    return np.array(numbers, dtype=np.int64).view(np.uint64)


def some(count: int, size: int, seed: int = 0) -> list[Words]:
    """Return vectors of small fixed-point numbers."""
    draw = np.random.default_rng(seed)
    return [encoding.encode(draw.normal(size=size), count, "")[0] for _ in range(count)]


def plain(values: Sequence[Words], which: Collection[int] | None = None) -> Words:
    chosen = [v for i, v in enumerate(values) if which is None or i in which]
    return np.sum(np.stack(chosen), axis=0, dtype=np.uint64)


def assert_close(got: Mapping[str, Tensor], wanted: Mapping[str, Tensor], nodes: int) -> None:
    assert set(got) == set(wanted)
    for name, value in wanted.items():
        assert (got[name].dtype, got[name].shape) == (value.dtype, value.shape)
        if value.dtype == torch.int64:
            assert torch.equal(got[name], value)
            continue
        finite = value.isfinite()
        assert torch.equal(torch.where(finite, 0, got[name]).nan_to_num(7), torch.where(finite, 0, value).nan_to_num(7))
        assert float((got[name] - value)[finite].abs().max() if finite.any() else 0) <= nodes * (2**-33 + 1e-9)


def chi2(values: NDArray[np.uint64]) -> float:
    """Return the largest statistic of the eight bytes of words `[n]`, each against evenness (255 degrees)."""
    counts = [np.bincount(column, minlength=256) for column in values.view(np.uint8).reshape(-1, 8).T]
    return max(float(((c - c.mean()) ** 2 / c.mean()).sum()) for c in counts)


LIMIT = 255 + 10 * math.sqrt(2 * 255)
"""Ten standard deviations: evenness stays below but once in 10^15."""


class Tap:
    """An engine through which a test looks at what goes to and fro, changes it, or loses it."""

    def __init__(self, engine: LocalEngine) -> None:
        self.engine, self.nodes = engine, engine.nodes
        self.log: list[tuple[Request, Round]] = []
        self.lost: dict[str, set[str]] = {}
        self.spoil: Callable[[Request, Round], Round] = lambda request, round_: round_
        self.save, self.load, self.close = engine.save, engine.load, engine.close

    def send(self, request: Request) -> Round:
        lost = self.lost.get(request.task, set())
        there = tuple(node for node in request.nodes if node not in lost)
        private = {node: own for node, own in request.private.items() if node in there}
        round_ = self.engine.send(replace(request, nodes=there, private=private))
        silent = (Reply(request.header, n, Status.FAILED, "no answer") for n in request.nodes if n in lost)
        round_ = self.spoil(request, replace(round_, failures=(*round_.failures, *silent)))
        self.log.append((request, round_))
        return round_

    @property
    def tasks(self) -> list[str]:
        return [request.task.removeprefix("secure_") for request, _ in self.log]


SIZES = (4, 6, 3, 8, 5, 7)


def fitness(step: int = 0, nodes: Sequence[str] = ("n2", "n0", "n1", "n5", "n3", "n4"), **changes: Any) -> Request:
    population = torch.linspace(-1, 1, 75).view(5, 15) * (1 + step)
    options = {"loss": "cross_entropy", "samples": 3}
    return Request(**{
        "header": Header(3, step), "task": "fitness", "nodes": tuple(nodes), "common": {"population": population},
        "options": options, "reduce": "sum", **changes,
    })  # fmt: skip


KEYS_OF_A_RUN, A_SUM = ["keys", "peers", "confirm"], ["offer", "deal", "vector", "shares"]
