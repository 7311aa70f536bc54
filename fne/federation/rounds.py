"""Rounds: answers to a request are checked, folded in the request's order and counted; relays pass on their result.

Every engine answers through `gather`. A relay gives a result to nodes in the server's place; secure sums have their own
kind of relay.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fne.core.contracts import Engine
from fne.core.errors import RunError
from fne.core.messages import AGGREGATE, GIVEN, Header, Reply, Request, Round, Status, Traffic
from fne.federation import wire
from fne.federation.payloads import HELD, PayloadSpec, expecting, fault, lifeless, outvoted

SHOWN = ("samples", "loss", "nonfinite")
"""Entries of a node's answer that the history may show under the node's name, where they are single numbers."""
_THERE = {Status.NEEDS_SNAPSHOT, Status.DECLINED}
"""Statuses of nodes that are available although their answer holds no result."""


def gather(
    request: Request,
    replies: Iterable[Reply],
    *,
    quorum: int,
    common: wire.Frame,
    private: Mapping[str, wire.Frame],
    held: Mapping[str, int] | None = None,
    timeout: float | None = None,
) -> Round:
    """Return the round of the replies.

    A reply without the payload that the request implies is a failure of its node, and so is a reply that cannot be
    added to the others: the round goes on without the node.

    Args:
        request: the request as it was sent.
        replies: one reply for each of `request.nodes`, in order; taken one by one, so that a sum keeps none of them.
            Replies of other nodes and second replies are ignored; a node that does not answer has gone.
        quorum: valid replies that a round needs, or all of them with fewer addressees; a node that asks for a snapshot
            counts, since it is available, and so does a node whose owner declines.
        common, private: the frames that were sent, for the traffic.
        held: node -> number of its samples, where known: the node cannot count more.
        timeout: seconds that each reply may take after the reply before; a later reply counts as missing.

    Raises:
        RunError: below the quorum, with both numbers and the reasons.
    """
    request = expecting(request)
    down = dict.fromkeys(request.nodes, common.encoded)
    payload_down = dict.fromkeys(request.nodes, common.payload)
    for node, frame in private.items():
        down[node] += frame.encoded
        payload_down[node] += frame.payload
    up: dict[str, int] = {}
    payload_up: dict[str, int] = {}
    failures: list[Reply] = []
    kept: list[Reply] = []
    per_node: dict[str, dict[str, float]] = {}
    lifeless_ones: list[tuple[Reply, str]] = []
    folded = RunningSum(request.header) if request.reduce == "sum" else None

    def take(reply: Reply) -> None:
        per_node[reply.node] = {
            name: float(value) for name, value in reply.payload.items() if name in SHOWN and value.numel() == 1
        }
        if folded is None:
            kept.append(reply)
        else:
            folded.add(reply)

    for reply in _asked_for(request, replies if timeout is None else _in_time(replies, timeout)):
        silent = reply.status is Status.GONE
        frame = wire.reply_frame(reply)
        up[reply.node], payload_up[reply.node] = (0, 0) if silent else (frame.encoded, frame.payload)
        if reply.header != request.header:
            header = reply.header
            other = f"answers another request: step {header.step}, attempt {header.attempt} of run {header.run!r}"
            failures.append(failed(reply, other))
            continue
        if reply.status is not Status.OK:
            failures.append(reply)
            continue
        expected = {} if request.expected is None else request.expected(reply.node)
        if held and reply.node in held:
            expected = {name: entry.bound({HELD: held[reply.node]}) for name, entry in expected.items()}
        wrong = fault(reply.payload, expected) if request.expected is not None else ""
        if wrong:
            failures.append(failed(reply, wrong))
        elif wrong := lifeless(reply.payload, expected):
            lifeless_ones.append((reply, wrong))
        else:
            take(reply)
    sound = bool(per_node)
    for reply, wrong in lifeless_ones:
        if sound:  # other nodes have finite values: the fault lies with the node, not with the candidates
            failures.append(failed(reply, wrong))
        else:
            take(reply)
    for odd in folded.outvoted() if folded is not None else ():
        failures.append(odd)
        del per_node[odd.node]
    place = {node: number for number, node in enumerate(request.nodes)}
    failures.sort(key=lambda failure: place[failure.node])
    if len(per_node) + sum(failure.status in _THERE for failure in failures) < min(quorum, len(request.nodes)):
        raise RunError(
            f"step {request.header.step}: {len(per_node)} of {len(request.nodes)} nodes answered, "
            f"engine.quorum = {quorum}{_reasons(failures)}"
        )
    traffic = Traffic(payload_down, payload_up, down, up)
    answers = (folded.reply(),) if folded is not None and per_node else tuple(kept)
    return Round(answers, tuple(failures), traffic, per_node)


def _asked_for(request: Request, replies: Iterable[Reply]) -> Iterator[Reply]:
    """Yield one reply of each addressee, in order of arrival; a node without an answer gets a failure."""
    awaited = dict.fromkeys(request.nodes)
    for reply in replies:
        if reply.node in awaited:
            del awaited[reply.node]
            yield reply
    for node in awaited:
        yield Reply(request.header, node, Status.GONE, "no answer")


def _in_time(replies: Iterable[Reply], timeout: float) -> Iterator[Reply]:
    """Yield replies; a reply that took longer than `timeout` seconds becomes a missing one."""
    since = time.monotonic()
    for reply in replies:
        took = time.monotonic() - since
        late = f"no answer within engine.timeout = {timeout:g} seconds; it took {took:.3g}"
        yield Reply(reply.header, reply.node, Status.GONE, late) if took > timeout else reply
        since = time.monotonic()


def failed(reply: Reply, reason: str) -> Reply:
    """Return the failure of a node whose reply cannot be used."""
    return replace(reply, status=Status.FAILED, reason=reason, payload={})


def _reasons(failures: list[Reply]) -> str:
    """Return the failures by reason, each with the nodes that gave it."""
    nodes: dict[str, list[str]] = {}
    for failure in failures:
        nodes.setdefault(failure.reason, []).append(failure.node)
    return "".join(
        f"; {names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {reason}"
        for reason, names in list(nodes.items())[:3]
    )


class RunningSum:
    """Running sum of payloads in order of arrival, floats in float64, integers as int64: no reply is kept.

    Payloads of different forms cannot be added: each form has its own sum, and the sum of most nodes counts.
    """

    def __init__(self, header: Header) -> None:
        self._header = header
        self._totals: dict[PayloadSpec, dict[str, torch.Tensor]] = {}
        self._forms: dict[str, PayloadSpec] = {}

    def add(self, reply: Reply) -> None:
        """Add one reply's payload to the sum of its form."""
        wide = {n: v.double() if v.is_floating_point() else v.long() for n, v in reply.payload.items()}
        form = self._forms[reply.node] = PayloadSpec.of(reply.payload)
        if form not in self._totals:
            self._totals[form] = {name: value.clone() for name, value in wide.items()}
            return
        for name, value in wide.items():
            self._totals[form][name].add_(value)

    def outvoted(self) -> list[Reply]:
        """Return a failure for each node whose payload does not have the form of most nodes."""
        reasons = outvoted(self._forms)
        return [Reply(self._header, node, Status.FAILED, reason) for node, reason in reasons.items()]

    def reply(self) -> Reply:
        """Return the aggregate reply: the sum over the nodes that are not outvoted."""
        odd = outvoted(self._forms)
        usual = next(form for node, form in self._forms.items() if node not in odd)
        return Reply(self._header, AGGREGATE, payload=self._totals[usual])


class Relaying:
    """An engine that passes a request's result on to the nodes that the request's relay names.

    Args:
        engine: the engine that does the work; the server sees the result before it is passed on.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes, sorted."""
        return self._engine.nodes

    def send(self, request: Request) -> Round:
        """Return the engine's round; for a request with a `relay`, the answers of the nodes that got the result.

        Failures and traffic cover both exchanges. Without a result nothing is passed on, and there is no answer. Of
        single answers those with the form of most nodes are passed on; the others are failures.

        Raises:
            RunError: the engine raises it, or a node of the relay does not exist.
        """
        relay = request.relay
        if relay is None:
            return self._engine.send(request)
        step = request.header.step
        strangers = [node for node in relay.nodes if node not in self.nodes]
        if strangers:
            raise RunError(f"step {step}: the result of {request.task!r} goes to {strangers[0]!r}: no such node")
        first = self._engine.send(replace(request, relay=None))
        if not first.replies:
            return first
        result, odd = _result(request, first.replies)
        common = {GIVEN + name: value for name, value in result.items()}
        passed = Request(
            request.header, relay.task, relay.nodes, common, relay.private, relay.options, sizes=request.sizes
        )
        second = ask_few(self._engine, passed)
        bill = TrafficSum()
        bill.add(first.traffic)
        bill.add(second.traffic)
        return Round(second.replies, (*first.failures, *odd, *second.failures), bill.total(), second.per_node)

    def save(self, step: int) -> None:
        """Let the engine save the nodes' memory."""
        self._engine.save(step)

    def load(self, step: int) -> None:
        """Let the engine take the nodes back to `step`."""
        self._engine.load(step)

    def close(self) -> None:
        """Close the engine."""
        self._engine.close()


def ask_few(engine: Engine, request: Request) -> Round:
    """Return the round of a request to the nodes of a relay; too few answers are failures in the round, not an error.

    A run goes on without one node's answer: its strategy asks another node.
    """
    try:
        return engine.send(request)
    except RunError as error:
        failures = tuple(Reply(request.header, node, Status.FAILED, str(error)) for node in request.nodes)
        return Round((), failures, TrafficSum().total())


def _result(request: Request, replies: Sequence[Reply]) -> tuple[dict[str, Tensor], list[Reply]]:
    """Return the tensors to pass on (entries of the sum, or of all replies, stacked), and the unusable replies."""
    if request.reduce == "sum":
        return dict(replies[0].payload), []
    odd = outvoted({reply.node: PayloadSpec.of(reply.payload) for reply in replies})
    usual = [reply.payload for reply in replies if reply.node not in odd]
    stacked = {name: torch.stack([payload[name] for payload in usual]) for name in usual[0]}
    return stacked, [failed(reply, odd[reply.node]) for reply in replies if reply.node in odd]


class TrafficSum:
    """The total traffic of all exchanges of a step."""

    def __init__(self) -> None:
        self._sums: dict[str, Counter[str]] = {
            name: Counter() for name in ("payload_down", "payload_up", "encoded_down", "encoded_up", "catch_up")
        }
        self._snapshots = 0

    def add(self, traffic: Traffic) -> None:
        """Add the traffic of one exchange."""
        for name, by_node in self._sums.items():
            by_node.update(getattr(traffic, name))
        self._snapshots += traffic.snapshots

    def total(self) -> Traffic:
        """Return the sums by node."""
        payload_down, payload_up, encoded_down, encoded_up, catch_up = map(dict, self._sums.values())
        return Traffic(payload_down, payload_up, encoded_down, encoded_up, catch_up, self._snapshots)
