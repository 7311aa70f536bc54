"""Secure sums around any engine: where a strategy asks for a sum, nobody but the nodes sees what is added.

`SecureEngine` sends node tasks of its own (`fne.secure_tasks`) in the place of the strategy's, adds masked vectors, has
the nodes take the masks off the total, and returns the one aggregate reply that a plain sum would be. Between loop and
engine its place is below the lineage codec: `LineageCodec(SecureEngine(engine))`. So candidates are made from decisions
before the work is done, and a worker that needs a snapshot says so before anything is masked.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fne.errors import RunError
from fne.privacy import keys
from fne.privacy.hidden import ProtocolError
from fne.privacy.opening import opened
from fne.privacy.protocol import LEAST, SEALED_BYTES, Offer, Tag, check_count, enough, threshold
from fne.privacy.shares import SHARE_BYTES
from fne.privacy.vectors import Form, unflatten
from fne.secure_tasks import ECHOES, KEYS, MEMBERS, SEALED, SIGNATURES, mark, rows, texts_of
from fne.types import (
    AGGREGATE,
    Engine,
    Header,
    Metrics,
    Reply,
    Request,
    Round,
    Scalar,
    Status,
    Strategy,
    Tensors,
    Traffic,
)


class SecureEngine:
    """An engine whose sums are secure; it answers nothing but sums.

    Args:
        engine: does the work; its nodes agree on keys at the first sum. Those that cannot are left out until the run is
            resumed.
        clip: numbers that are out of the ring's range are clipped and counted, else they are errors of their node.
    """

    def __init__(self, engine: Engine, *, clip: bool = False) -> None:
        self._engine, self._clip = engine, clip
        self._names: tuple[str, ...] = ()
        self._agreed = False
        self._left_out: dict[str, Reply] = {}
        self._run = ""
        self._last = (-1, -1)
        self._bill = _Bill()
        self._figures: Metrics = {}

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes, sorted."""
        return self._engine.nodes

    def send(self, request: Request) -> Round:
        """Return the sum that a plain engine would, up to the fixed point; no reply of a node is in the round.

        Where nodes need a snapshot, the round comes back without a sum the first time, so that it can be sent again.

        Raises:
            RunError: the request is not for a sum, fewer nodes than a secure sum needs, or what they answer is wrong.
        """
        step = request.header.step
        if request.reduce != "sum":
            raise RunError(
                f"step {step}: {request.task!r} asks for single answers, and with secure sums there are none"
            )
        self._bill = _Bill()
        attempt = self._last[1] + 1 if self._last[0] == step else 0
        self._last = (step, attempt)
        header = replace(request.header, attempt=attempt)
        try:
            if not self._agreed:
                self._agree(header)
            return self._sum(request, header)
        except ProtocolError as error:
            raise RunError(str(error)) from error

    # ------------------------------------------------------------------------------------------------ keys
    def _agree(self, header: Header) -> None:
        """Let all nodes agree on keys: each gets the same list, and knows that the others got it."""
        first = self._phase(Request(header, "secure_keys", self.nodes))
        self._run = first.replies[0].header.run if first.replies else ""
        told = {r.node: [self._text(r, header, n, size) for n, size in _ENTRY.items()] for r in first.replies}
        names = sorted(told)
        table = {name: rows([told[n][i] for n in names]) for i, name in enumerate((KEYS, SIGNATURES))}
        options: dict[str, Scalar] = {"names": json.dumps(names)}
        second = self._phase(Request(header, "secure_peers", tuple(names), table, options=options))
        self._names = tuple(names)
        echoes = {
            self._place(r.node): self._text(r, header, "echo", keys.SIGNATURE_BYTES)
            for r in sorted(second.replies, key=lambda reply: reply.node)
        }
        members = _places(echoes)
        common = {MEMBERS: members, ECHOES: rows(list(echoes.values()))}
        third = self._phase(Request(header, "secure_confirm", tuple(self._names[p] for p in echoes), common))
        self._left_out = {failure.node: failure for round_ in (first, second, third) for failure in round_.failures}
        self._agreed = True

    # ------------------------------------------------------------------------------------------------ a sum
    def _sum(self, request: Request, header: Header) -> Round:
        tag = Tag(self._run, header.step, header.attempt, request.task)
        failures = [
            replace(self._left_out[n], header=header, status=Status.REFUSED)
            for n in request.nodes if n in self._left_out
        ]  # fmt: skip
        members = sorted(self._place(name) for name in request.nodes if name not in self._left_out)
        self._check(len(members), LEAST, tag, failures)
        asked = self._phase(self._offer_request(request, header, members))
        failures += asked.failures
        if header.attempt == 0 and any(failure.status is Status.NEEDS_SNAPSHOT for failure in failures):
            return Round((), tuple(failures), self._bill.total())
        offers = {self._place(reply.node): reply for reply in asked.replies}
        participants = sorted(offers)
        self._check(len(participants), enough(len(members)), tag, failures)
        form = self._form(offers, header)
        read = {place: self._offer(reply, header, len(members)) for place, reply in offers.items()}
        told: dict[str, Scalar] = {"task": request.task}
        added = self._phase(self._vector_request(header, members, read, told))
        failures += added.failures
        gone = {failure.node for failure in added.failures}
        survivors = [place for place in participants if self._names[place] not in gone]
        self._check(len(survivors), enough(len(members)), tag, failures)
        total = self._total(added, tag, form.words(len(members)), len(survivors))
        names = tuple(self._names[place] for place in survivors)
        helped = self._phase(Request(header, "secure_shares", names, {MEMBERS: _places(survivors)}, options=told))
        answers = {
            self._place(reply.node): self._texts(reply, header, "shares", len(participants), SHARE_BYTES)
            for reply in helped.replies
        }
        self._check(len(answers), threshold(len(members)), tag, helped.failures)
        words = opened(tag, self._names, read, members, total.numpy().view("uint64"), survivors, answers)
        payload, clipped = unflatten(words, form, len(members))
        self._figures = {"participants": len(survivors), **({"clipped": clipped} if self._clip else {})}
        if "samples" in payload and payload["samples"].numel() == 1:
            self._figures["samples"] = int(payload["samples"])
        aggregate = Reply(replace(request.header, run=self._run), AGGREGATE, payload=payload)
        return Round((aggregate,), tuple(failures), self._bill.total())

    def _offer_request(self, request: Request, header: Header, members: Sequence[int]) -> Request:
        names = {self._names[place] for place in members}
        options: dict[str, Scalar] = {
            "task": request.task, "options": json.dumps(dict(request.options)), "attempt": request.header.attempt,
            "clip": self._clip,
        }  # fmt: skip
        return replace(
            request, header=header, task="secure_offer", nodes=tuple(n for n in request.nodes if n in names),
            common={**request.common, MEMBERS: _places(members)},
            private={node: own for node, own in request.private.items() if node in names},
            options=options, reduce="none",
        )  # fmt: skip

    def _vector_request(
        self, header: Header, members: Sequence[int], offers: Mapping[int, Offer], told: Mapping[str, Scalar]
    ) -> Request:
        """Return the request for vectors: to each participant goes what the others sealed for it."""
        participants = sorted(offers)
        private: dict[str, Tensors] = {}
        for to in participants:
            place = members.index(to)
            sealed = [offers[by].sealed[place - (by < to)] for by in participants if by != to]
            private[self._names[to]] = {SEALED: rows(sealed)}
        common = {MEMBERS: _places(participants)}
        return Request(header, "secure_vector", tuple(private), common, private, told, reduce="sum")

    def _form(self, offers: Mapping[int, Reply], header: Header) -> Form:
        """Return the form of all vectors; raises `RunError` where one node's is another."""
        forms = {
            reply.node: Form.from_bytes(self._text(reply, header, "form"), reply.node) for reply in offers.values()
        }
        first, *others = forms
        for node in others:
            if forms[node] != forms[first]:
                odd = sorted({*forms[node].entries} ^ {*forms[first].entries})[0][0]
                raise RunError(
                    f"{node} answers {odd!r} in another form than {first}: a sum needs the same entries, shapes and "
                    "types of all nodes"
                )
        return forms[first]

    def _offer(self, reply: Reply, header: Header, members: int) -> Offer:
        sealed = self._texts(reply, header, "sealed", members - 1, SEALED_BYTES)
        box = self._text(reply, header, "box", (members - 1) * keys.KEY_BYTES + keys.TAG_BYTES)
        return Offer(tuple(sealed), box, self._text(reply, header, "commitment", keys.KEY_BYTES))

    def _total(self, added: Round, tag: Tag, words: int, count: int) -> Tensor:
        """Return the sum of the masked vectors; raises `RunError` where one of them is of another sum."""
        payload = added.replies[0].payload
        if payload["mark"].tolist() != [mark(tag) * count]:
            raise RunError(f"{tag}: one of {count} vectors is of another sum; go on from the last checkpoint")
        vector = payload["vector"]
        if vector.dtype != torch.int64 or tuple(vector.shape) != (words,):
            raise RunError(f"{tag}: vectors are {vector.dtype} {list(vector.shape)}, must be int64 [{words}]")
        return vector

    # ------------------------------------------------------------------------------------------------ answers
    def _phase(self, request: Request) -> Round:
        round_ = self._engine.send(request)
        self._bill.add(round_.traffic)
        return round_

    def _text(self, reply: Reply, header: Header, name: str, length: int = -1) -> bytes:
        return self._texts(reply, header, name, 1, length)[0]

    def _texts(self, reply: Reply, header: Header, name: str, count: int, length: int) -> list[bytes]:
        """Return the rows of an entry of a reply; `RunError` names the node where that is something else."""
        if reply.header != replace(header, run=self._run):
            raise RunError(f"{reply.node} answers another request than this one: step {reply.header.step}, "
                           f"attempt {reply.header.attempt} of run {reply.header.run!r}")  # fmt: skip
        value = reply.payload.get(name)
        right = value is not None and value.dtype == torch.uint8 and value.dim() == 2 and len(value) == count
        if value is None or not right or length not in (-1, value.shape[1]):
            found = "nothing" if value is None else f"{value.dtype} {list(value.shape)}"
            must = f"uint8 [{count}{'' if length < 0 else f', {length}'}]"
            raise RunError(f"{reply.node} answers {found} as {name!r}, must be {must}")
        return texts_of(value)

    def _check(self, found: int, least: int, tag: Tag, failures: Sequence[Reply]) -> None:
        """Raise `RunError` where too few nodes are left, with the reasons of those that are not there."""
        try:
            check_count(found, least, tag)
        except ProtocolError as error:
            why = "".join(f"; {failure.node}: {failure.reason}" for failure in list(failures)[:3])
            raise RunError(f"{error}{why}") from None

    def _place(self, name: str) -> int:
        return self._names.index(name)

    # ------------------------------------------------------------------------------------------------ around
    def observe(self, strategy: Strategy, round_: Round, metrics: Metrics) -> None:
        """Add to a step's metrics how many nodes and samples are in its sum, and how many numbers were clipped.

        A sum of few samples says much of each; a callback, before those that write.
        """
        metrics.update(self._figures)

    def save(self, step: int) -> None:
        """Let the engine keep the nodes' memory; keys are kept nowhere."""
        self._engine.save(step)

    def load(self, step: int) -> None:
        """Let the engine take the nodes back to `step`; new keys are agreed on."""
        self._engine.load(step)
        self._agreed = False

    def close(self) -> None:
        """Close the engine."""
        self._engine.close()


_ENTRY = {"key": keys.KEY_BYTES, "signature": keys.SIGNATURE_BYTES}


def _places(numbers: Sequence[int] | Mapping[int, Any]) -> Tensor:
    return torch.tensor(list(numbers), dtype=torch.int32)


class _Bill:
    """The traffic of all that a step takes."""

    def __init__(self) -> None:
        self._sums: dict[str, Counter[str]] = {
            name: Counter() for name in ("payload_down", "payload_up", "encoded_down", "encoded_up")
        }

    def add(self, traffic: Traffic) -> None:
        """Add what one exchange took."""
        for name, by_node in self._sums.items():
            by_node.update(getattr(traffic, name))

    def total(self) -> Traffic:
        """Return the sums by node."""
        payload_down, payload_up, encoded_down, encoded_up = map(dict, self._sums.values())
        return Traffic(payload_down, payload_up, encoded_down, encoded_up)
