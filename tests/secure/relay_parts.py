"""Sums that a chosen node opens, by hand and by the engine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fne.config.registry import Key
from fne.core.dataset import Samples
from fne.core.errors import RefusedError, RunError
from fne.core.messages import Header, Relay, Reply, Request, Round, Status, Tensors
from fne.core.randomness import chosen_node
from fne.engines.local import LocalEngine
from fne.federation.node import Node, Secrets, payload_of
from fne.federation.payloads import PayloadSpec
from fne.federation.worker import Worker
from fne.privacy.keystream import Words
from fne.secure import protocol, shares
from fne.secure.conflicts import passed_on
from fne.secure.engine import SecureEngine
from fne.secure.node_tasks import secure_only
from fne.secure.protocol import Errand, Offer, Tag, threshold
from fne.secure.session import Session
from fne.secure.unmask import opened
from tests.secure.parts import agree, plain, some


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


def literal_signs(patch: pytest.MonkeyPatch) -> None:
    """As the paper prints eq. (3): every mask of a pair is 0."""
    patch.setattr(protocol, "signed", lambda own, other, mask: mask - mask)


def known(sum_: Relayed, node: int, answers: Mapping[int, Sequence[bytes]] | None = None) -> bytes:
    """Return the key that the shares which were told of a node give."""
    told, place = answers or sum_.answers, [i for i in sum_.members if i != sum_.receiver].index(node)
    used = sorted(told)[: threshold(len(sum_.members))]
    return shares.joined({i + 1: told[i][place] for i in used})


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
