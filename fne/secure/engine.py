"""Secure-sum engine, which wraps any engine: where a strategy asks for a sum, only the nodes see the summands.

`SecureEngine` sends node tasks of its own (`fne.secure.node_tasks`) in place of the strategy's, adds masked vectors,
has the nodes take the masks off the total, and returns the one aggregate reply that a plain sum would be. Its place is
below the lineage codec, `LineageCodec(SecureEngine(engine))`: so candidates are made from decisions before the work is
done, and a worker that needs a snapshot says so before anything is masked.

A sum with a relay is opened by the relay's node alone: the engine removes the masks that it can, passes on the rest,
and returns the node's answer about the sum.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from fne.config import registry
from fne.core.contracts import Engine, Metrics, Strategy
from fne.core.errors import RunError
from fne.core.hidden import ProtocolError
from fne.core.messages import AGGREGATE, GIVEN, Header, Reply, Request, Round, Scalar, Status
from fne.federation import lineage
from fne.federation.payloads import PayloadSpec, expecting, fault, outvoted
from fne.federation.rounds import TrafficSum, ask_few, failed
from fne.privacy.keystream import KEY_BYTES, Words
from fne.secure import dealing, keys
from fne.secure.conflicts import Conflict, conflicts, open_conflicts, passed_on, settled
from fne.secure.encoding import unflatten, vector_words
from fne.secure.protocol import (
    CHECKS,
    CLIPPED,
    DEALT,
    ECHOES,
    KEYS,
    LEAST,
    MEMBERS,
    PARTICIPANTS,
    SEALED_BYTES,
    SIGNATURES,
    TOTAL,
    Offer,
    Tag,
    boxed,
    check_count,
    echo_faults,
    enough,
    entry_faults,
    mark,
    rows,
    texts_of,
    threshold,
    transcript,
    words_tensor,
)
from fne.secure.shares import SHARE_BYTES
from fne.secure.unmask import opened

T = TypeVar("T")


class _FormError(RunError):
    """A reply to another request, or with an entry whose form differs from the one that its request implies."""


class SecureEngine:
    """An engine whose sums are secure; it answers only requests for sums and for what the nodes' owners publish.

    Args:
        engine: the engine that does the work; its nodes agree on keys at the first sum. Nodes that cannot are left out
            until the run is resumed.
        pinned: public signing keys of the nodes, the same that the nodes know each other by: entries that are not
            signed with these keys are left out before the nodes see them.
        clip: whether numbers beyond the ring's range are clipped and counted, instead of being errors of their node.
    """

    def __init__(self, engine: Engine, pinned: Mapping[str, bytes], *, clip: bool = False) -> None:
        self._engine, self._pinned, self._clip = engine, pinned, clip
        self._names: tuple[str, ...] = ()
        self._agreed = False
        self._left_out: dict[str, Reply] = {}
        self._run = ""
        self._last = (-1, -1)
        self._bill = TrafficSum()
        self._figures: Metrics = {}

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes, sorted."""
        return self._engine.nodes

    def send(self, request: Request) -> Round:
        """Return the sum that a plain engine would, up to the fixed point; no reply of a node is in the round.

        With a relay its node opens the sum, and the round has the node's answer, or none where the node drops out or
        fails at any time: then nobody opens the sum. Where nodes need a snapshot, the first round has no sum, so that
        the request can be sent again.

        Raises:
            RunError: the request is not for a sum; its relay is not one of the nodes; fewer nodes answer than a secure
                sum needs; or their answers are wrong.
        """
        request = expecting(request)
        step, relay = request.header.step, request.relay
        self._figures = {}
        if request.reduce == "none" and relay is None and registry.traits("task", request.task).get("declines"):
            return replace(self._engine.send(request), per_node={})
        if request.reduce != "sum":
            raise RunError(
                f"step {step}: {request.task!r} asks for single answers, and with secure sums there are none"
            )
        if relay is not None and not (len(relay.nodes) == 1 and relay.nodes[0] in request.nodes):
            raise RunError(
                f"step {step}: with secure sums one of the nodes that add up {request.task!r} opens the sum, not "
                f"{', '.join(relay.nodes) or 'nobody'}"
            )
        self._bill = TrafficSum()
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
        """Let all nodes agree on keys: each gets the same list, and knows that the others have got that list."""
        first = self._phase(Request(header, "secure_keys", self.nodes))
        self._run = first.replies[0].header.run if first.replies else ""
        entries, odd = self._each(
            first.replies, lambda r: [self._text(r, header, n, size) for n, size in _ENTRY.items()]
        )
        sent = [[entries[name][i] for name in sorted(entries)] for i in range(len(_ENTRY))]
        pinned = [self._pinned.get(name, b"") for name in sorted(entries)]
        wrong = entry_faults(self._run, sorted(entries), sent[0], sent[1], pinned)
        odd += [failed(reply, wrong[reply.node]) for reply in first.replies if reply.node in wrong]
        names = sorted(entries.keys() - wrong.keys())
        table = {name: rows([entries[n][i] for n in names]) for i, name in enumerate((KEYS, SIGNATURES))}
        options: dict[str, Scalar] = {"names": json.dumps(names)}
        second = self._phase(Request(header, "secure_peers", tuple(names), table, options=options))
        self._names = tuple(names)
        echoes, mute = self._each(second.replies, lambda r: self._text(r, header, "echo", keys.SIGNATURE_BYTES))
        listed = transcript(self._run, names, [entries[name][0] for name in names])
        wrong = echo_faults(listed, [(name, self._pinned[name], echo) for name, echo in echoes.items()])
        mute += [failed(reply, wrong[reply.node]) for reply in second.replies if reply.node in wrong]
        agreed = sorted(echoes.keys() - wrong.keys())
        common = {
            MEMBERS: _places([self._place(name) for name in agreed]),
            ECHOES: rows([echoes[name] for name in agreed]),
        }
        third = self._phase(Request(header, "secure_confirm", tuple(agreed), common))
        failures = [*first.failures, *odd, *second.failures, *mute, *third.failures]
        self._left_out = {failure.node: failure for failure in failures}
        self._agreed = True

    # ------------------------------------------------------------------------------------------------ a sum
    def _sum(self, request: Request, header: Header) -> Round:
        tag = Tag(self._run, header.step, header.attempt, request.task)
        opener = request.relay.nodes[0] if request.relay else ""
        failures = [
            replace(self._left_out[n], header=header, status=Status.REFUSED)
            for n in request.nodes if n in self._left_out
        ]  # fmt: skip
        if opener in self._left_out:
            return self._without(failures)
        members = sorted(self._place(name) for name in request.nodes if name not in self._left_out)
        self._check(len(members), LEAST, tag, failures)
        asked = self._phase(self._offer_request(request, header, members))
        failures += asked.failures
        if header.attempt == 0 and any(failure.status is Status.NEEDS_SNAPSHOT for failure in asked.failures):
            return self._without(failures)
        form, odd = self._usual_form(request, asked.replies, header)
        failures += odd
        left_out = {failure.node for failure in odd}
        receiver = self._place(opener) if opener else None
        usual = [reply for reply in asked.replies if reply.node not in left_out]
        offered, odd = self._each(usual, lambda reply: self._offer(reply, header, members, receiver))
        failures += odd
        read = {self._place(name): offer for name, offer in offered.items()}
        if receiver is not None and receiver not in read:
            return self._without(failures)
        self._check(len(read), enough(len(members)), tag, failures)
        participants, unknown, odd = self._dealt(header, tag, members, read, receiver)
        failures += odd
        if receiver is not None and receiver not in participants:
            return self._without(failures)
        self._check(len(participants), enough(len(members)), tag, failures)
        offers = {place: read[place] for place in participants}
        own = {opener: {PARTICIPANTS: _places(participants)}} if opener else {}
        options: dict[str, Scalar] = {"task": request.task}
        apart = 0 if receiver is None else 1
        words = vector_words(form, len(members)) + apart * CHECKS
        adding = tuple(self._names[place] for place in participants if place != receiver)
        common = {MEMBERS: _places(participants)}
        added = self._phase(
            Request(header, "secure_vector", adding, common, options=options, reduce="sum", sizes={"words": words})
        )
        failures += added.failures
        gone = {failure.node for failure in added.failures}
        survivors = [place for place in participants if self._names[place] not in gone]
        self._check(len(survivors), enough(len(members)), tag, failures)
        total = self._total(added, tag, words, len(survivors) - apart)
        names = tuple(self._names[place] for place in survivors)
        helped = self._phase(Request(header, "secure_shares", names, {MEMBERS: _places(survivors)}, own, options))
        count = len(participants) - apart
        shares, odd = self._each(helped.replies, lambda reply: self._texts(reply, header, "shares", count, SHARE_BYTES))
        silent = [*helped.failures, *odd]
        failures += silent
        if any(failure.node == opener for failure in silent):
            return self._without(failures)
        answers = {self._place(name): texts for name, texts in shares.items()}
        self._check(len(answers), threshold(len(members)), tag, silent)
        rest, faults, shut = opened(
            tag, self._names, offers, members, total.numpy().view("uint64"), survivors, answers, receiver, unknown
        )
        failures += [self._faulty(header, place, fault) for place, fault in faults.items()]
        if shut:
            helping = tuple(self._names[place] for place in survivors if place != receiver)
            rest = rest - self._masks(Request(
                header, "secure_rest", helping, {MEMBERS: _places(shut)}, options=options, reduce="sum",
                sizes={"words": words},
            ), failures)  # fmt: skip
        if request.relay is not None:
            return self._passed_on(request, header, rest, form, failures, len(survivors))
        payload, clipped = unflatten(rest, form, len(members))
        self._figures = {"participants": len(survivors), **({"clipped": clipped} if self._clip else {})}
        if "samples" in payload and payload["samples"].numel() == 1:
            self._figures["samples"] = int(payload["samples"])
        aggregate = Reply(replace(request.header, run=self._run), AGGREGATE, payload=payload)
        return Round((aggregate,), tuple(failures), self._bill.total())

    def _dealt(
        self, header: Header, tag: Tag, members: Sequence[int], offers: Mapping[int, Offer], receiver: int | None
    ) -> tuple[list[int], set[Conflict], list[Reply]]:
        """Pass on the sealed messages; returns the nodes that stay in the sum, the conflicts, and the failures."""
        participants, messages = sorted(offers), passed_on(tag, self._names, members, offers)
        private = {
            self._names[to]: {DEALT: rows([dealt[by] for by in sorted(dealt)])} for to, dealt in messages.items()
        }
        nodes, common = tuple(self._names[place] for place in participants), {MEMBERS: _places(participants)}
        done = self._phase(Request(header, "secure_deal", nodes, common, private, {"task": tag.kind}))
        count = len(participants) - 1
        read, odd = self._each(
            done.replies, lambda reply: self._texts(reply, header, "receipts", count, dealing.DIGEST_BYTES)
        )
        receipts = {self._place(name): texts for name, texts in read.items()}
        found = conflicts(members, offers, receipts)
        staying = settled(receipts, found, len(members), receiver)
        failures = [*done.failures, *odd]
        for place, pairs in open_conflicts(found, staying).items():
            out = "" if place in staying else "left out of the sum: "
            texts = [f"{self._names[a]} says that what {self._names[b]} sealed for it is of no use" for a, b in pairs]
            more = f" and {len(texts) - 3} more such" if len(texts) > 3 else ""
            failures.append(self._faulty(header, place, out + "; ".join(texts[:3]) + more))
        return staying, found, failures

    def _masks(self, request: Request, failures: Sequence[Reply]) -> Words:
        """Return the masks that survivors share with nodes that are gone; `RunError` unless all survivors answer."""
        answered = self._phase(request)
        if answered.failures:
            why = "".join(f"; {failure.node}: {failure.reason}" for failure in [*failures, *answered.failures][:4])
            raise RunError(f"step {request.header.step}: masks stay on the sum without the help of all{why}")
        masks: Words = answered.replies[0].payload["masks"].numpy().view("uint64")
        return masks

    def _faulty(self, header: Header, place: int, reason: str) -> Reply:
        return Reply(replace(header, run=self._run), self._names[place], Status.FAILED, reason)

    def _passed_on(
        self,
        request: Request,
        header: Header,
        words: Words,
        form: PayloadSpec,
        failures: Sequence[Reply],
        participants: int,
    ) -> Round:
        """Send a still masked sum to the node that opens it, and return the node's answer."""
        relay = request.relay
        assert relay is not None
        nodes, private = relay.nodes, relay.private
        own = {node: private[node] for node in nodes if node in private}
        asked = Request(header, "secure_receive", nodes, {TOTAL: words_tensor(words)}, own, {"task": request.task})
        done = ask_few(self._engine, asked)
        self._bill.add(done.traffic)
        if not done.replies:
            return self._without([*failures, *done.failures])
        (reply,) = done.replies
        try:
            self._check_header(reply, header)
        except _FormError as error:
            return self._without([*failures, failed(reply, str(error))])
        payload = dict(reply.payload)
        clipped = payload.pop(CLIPPED, None)
        given = {GIVEN + name: torch.empty(shape, device="meta") for name, _, shape in form.entries}
        work = expecting(Request(header, relay.task, nodes, given, private, relay.options, sizes=request.sizes))
        wrong = "" if work.expected is None else fault(payload, work.expected(reply.node))
        if wrong:
            return self._without([*failures, failed(reply, wrong)])
        self._figures = {"participants": participants, **({} if clipped is None else {"clipped": int(clipped)})}
        answer = Reply(replace(request.header, run=self._run), reply.node, payload=payload)
        return Round((answer,), tuple(failures), self._bill.total())

    def _without(self, failures: Sequence[Reply]) -> Round:
        return Round((), tuple(failures), self._bill.total())

    def _offer_request(self, request: Request, header: Header, members: Sequence[int]) -> Request:
        names = {self._names[place] for place in members}
        options: dict[str, Scalar] = {
            "task": request.task, "options": json.dumps(dict(request.options)), "attempt": request.header.attempt,
            "clip": self._clip,
        }  # fmt: skip
        if request.relay is not None:
            to = request.relay
            options["relay"] = json.dumps([*to.nodes, to.task, dict(to.options)])
        return replace(
            request, header=header, task="secure_offer", nodes=tuple(n for n in request.nodes if n in names),
            common={**request.common, MEMBERS: _places(members)},
            private={node: own for node, own in request.private.items() if node in names},
            options=options, reduce="none", relay=None, expected=None,
        )  # fmt: skip

    def _usual_form(
        self, request: Request, replies: Sequence[Reply], header: Header
    ) -> tuple[PayloadSpec, list[Reply]]:
        """Return the form of the added vectors, and a failure for each node whose vector has another form."""
        forms: dict[str, PayloadSpec] = {}
        reasons: dict[str, str] = {}
        for reply in replies:
            try:
                form = PayloadSpec.from_bytes(self._text(reply, header, "form"))
            except ValueError as error:  # the text is malformed, or the entry that holds it
                reasons[reply.node] = str(error)
                continue
            wrong = "" if request.expected is None else form.fault(request.expected(reply.node))
            if wrong:
                reasons[reply.node] = wrong
            else:
                forms[reply.node] = form
        reasons |= outvoted(forms)
        usual = next((form for node, form in forms.items() if node not in reasons), PayloadSpec(()))
        return usual, [failed(reply, reasons[reply.node]) for reply in replies if reply.node in reasons]

    def _each(self, replies: Sequence[Reply], read: Callable[[Reply], T]) -> tuple[dict[str, T], list[Reply]]:
        """Return each reply's content by node, and a failure for each reply of another form."""
        found: dict[str, T] = {}
        odd = []
        for reply in replies:
            try:
                found[reply.node] = read(reply)
            except _FormError as error:
                odd.append(failed(reply, str(error)))
        return found, odd

    def _offer(self, reply: Reply, header: Header, members: Sequence[int], receiver: int | None) -> Offer:
        sealed = self._texts(reply, header, "sealed", len(members) - 1, SEALED_BYTES)
        masks = len(boxed(members, self._place(reply.node), receiver))
        box = self._text(reply, header, "box", masks * KEY_BYTES + keys.TAG_BYTES)
        commitment = self._text(reply, header, "commitment", KEY_BYTES)
        count = dealing.DIGESTS * len(members)
        digests = self._texts(reply, header, "digests", count, dealing.DIGEST_BYTES)
        needed = 1 if self._place(reply.node) == receiver else threshold(len(members))
        proof = self._texts(reply, header, "proof", needed, SHARE_BYTES)
        return Offer(tuple(sealed), box, commitment, tuple(digests), tuple(proof))

    def _total(self, added: Round, tag: Tag, words: int, count: int) -> Tensor:
        """Return the sum of the masked vectors; raises `RunError` where a vector belongs to another sum."""
        payload = added.replies[0].payload
        if payload["mark"].tolist() != [mark(tag) * count]:
            raise RunError(f"{tag}: one of {count} vectors is of another sum; go on from the last checkpoint")
        vector = payload["vector"]
        if vector.dtype != torch.int64 or tuple(vector.shape) != (words,):
            raise RunError(f"{tag}: vectors are {vector.dtype} {list(vector.shape)}, must be int64 [{words}]")
        return vector

    # ------------------------------------------------------------------------------------------------ answers
    def _phase(self, request: Request) -> Round:
        """Send a part of the protocol; a node with a status that only other requests allow has failed.

        A node may ask for a snapshot where the request has work with candidates made from a lineage.
        """
        round_ = self._engine.send(request)
        self._bill.add(round_.traffic)
        known = {Status.REFUSED, Status.FAILED, Status.GONE}
        if request.task == "secure_offer" and lineage.DIGEST in request.common:
            known.add(Status.NEEDS_SNAPSHOT)
        failures = (
            f if f.status in known else failed(f, f"answers {f.status} to {request.task}: {f.reason or 'no reason'}")
            for f in round_.failures
        )
        return replace(round_, failures=tuple(failures))

    def _text(self, reply: Reply, header: Header, name: str, length: int = -1) -> bytes:
        return self._texts(reply, header, name, 1, length)[0]

    def _texts(self, reply: Reply, header: Header, name: str, count: int, length: int) -> list[bytes]:
        """Return the rows of an entry of a reply; `RunError` names a node whose entry has another form."""
        self._check_header(reply, header)
        value = reply.payload.get(name)
        right = value is not None and value.dtype == torch.uint8 and value.dim() == 2 and len(value) == count
        if value is None or not right or length not in (-1, value.shape[1]):
            found = "nothing" if value is None else f"{value.dtype} {list(value.shape)}"
            must = f"uint8 [{count}{'' if length < 0 else f', {length}'}]"
            raise _FormError(f"{reply.node} answers {found} as {name!r}, must be {must}")
        return texts_of(value)

    def _check_header(self, reply: Reply, header: Header) -> None:
        if reply.header != replace(header, run=self._run):
            raise _FormError(f"{reply.node} answers another request than this one: step {reply.header.step}, "
                             f"attempt {reply.header.attempt} of run {reply.header.run!r}")  # fmt: skip

    def _check(self, found: int, least: int, tag: Tag, failures: Sequence[Reply]) -> None:
        """Raise `RunError` where too few nodes are left, with the reasons of the missing ones."""
        try:
            check_count(found, least, tag)
        except ProtocolError as error:
            why = "".join(f"; {failure.node}: {failure.reason}" for failure in list(failures)[:3])
            raise RunError(f"{error}{why}") from None

    def _place(self, name: str) -> int:
        return self._names.index(name)

    # ------------------------------------------------------------------------------------------------ around
    def observe(self, strategy: Strategy, round_: Round, metrics: Metrics) -> None:
        """Add to a step's metrics the numbers of nodes and samples in its sum, and of clipped values.

        A sum of few samples says much about each of them. A callback, to be called before those that write.
        """
        metrics.update(self._figures)

    def save(self, step: int) -> None:
        """Let the engine save the nodes' memory; keys are saved nowhere."""
        self._engine.save(step)

    def load(self, step: int) -> None:
        """Let the engine take the nodes back to `step`; new keys are agreed on."""
        self._engine.load(step)
        self._agreed = False

    def close(self) -> None:
        """Close the engine."""
        self._engine.close()


_ENTRY = {"key": KEY_BYTES, "signature": keys.SIGNATURE_BYTES}


def _places(numbers: Sequence[int] | Mapping[int, Any]) -> Tensor:
    return torch.tensor(list(numbers), dtype=torch.int32)
