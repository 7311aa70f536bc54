"""Replies -> `Round`: checked, folded in the request's order, counted. Every engine answers through this."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import torch

from fne.core.errors import RunError
from fne.core.messages import AGGREGATE, Header, Reply, Request, Round, Status, Traffic
from fne.federation import wire
from fne.federation.payloads import HELD, Form, expecting, fault, lifeless, outvoted

OWNERS_CHOICE = ("release", "release_front")
"""Tasks by which nodes publish what they found; an owner may refuse, and that is an answer like another."""
SHOWN = ("samples", "loss", "nonfinite")
"""What of a node's answer the history may show under its name, where it is one number."""
_THERE = {Status.NEEDS_SNAPSHOT, Status.DECLINED}
"""Statuses of nodes that are there, though nothing of what they answer is of use."""


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
    """Return the round that the replies make.

    A reply that does not have the payload which the request implies is a failure of its node, and so is one that
    cannot be added to the others: the round goes on without the node.

    Args:
        request: as it was sent.
        replies: in the order of `request.nodes`, one for each; taken one by one, so that a sum keeps none of them. Who
            was not asked, and who answers twice, is not listened to; who does not answer has gone.
        quorum: valid replies that a round needs, of fewer addressees all of them; a node that asks for a snapshot
            counts, since it is there, and so does one whose owner declines.
        common, private: the frames that went out, for the traffic.
        held: node -> number of samples that it holds, where they are known: it cannot count more.
        timeout: seconds that each reply may take after the one before it; a later one is none.

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
            told = reply.header
            other = f"answers another request: step {told.step}, attempt {told.attempt} of run {told.run!r}"
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
        if sound:  # others have finite values: it is the node, and not what is evaluated
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
    """Yield a reply of each addressee, in whatever order they come: no other one's, no second one, a missing one."""
    awaited = dict.fromkeys(request.nodes)
    for reply in replies:
        if reply.node in awaited:
            del awaited[reply.node]
            yield reply
    for node in awaited:
        yield Reply(request.header, node, Status.GONE, "no answer")


def _in_time(replies: Iterable[Reply], timeout: float) -> Iterator[Reply]:
    """Yield replies, each that took longer than `timeout` seconds as one that did not come."""
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
    """Adds payloads in the order they come, floats in float64, integers as int64: no reply is kept.

    Payloads of different forms cannot be added: each form has a sum of its own, and the one of most nodes counts.
    """

    def __init__(self, header: Header) -> None:
        self._header = header
        self._totals: dict[Form, dict[str, torch.Tensor]] = {}
        self._forms: dict[str, Form] = {}

    def add(self, reply: Reply) -> None:
        """Add one reply's payload to the sum of its form."""
        wide = {n: v.double() if v.is_floating_point() else v.long() for n, v in reply.payload.items()}
        form = self._forms[reply.node] = Form.of(reply.payload)
        if form not in self._totals:
            self._totals[form] = {name: value.clone() for name, value in wide.items()}
            return
        for name, value in wide.items():
            self._totals[form][name].add_(value)

    def outvoted(self) -> list[Reply]:
        """Return a failure for each node whose payload has not the form of most nodes."""
        reasons = outvoted(self._forms)
        return [Reply(self._header, node, Status.FAILED, reason) for node, reason in reasons.items()]

    def reply(self) -> Reply:
        """Return the aggregate reply: the sum over the nodes that are not outvoted."""
        odd = outvoted(self._forms)
        usual = next(form for node, form in self._forms.items() if node not in odd)
        return Reply(self._header, AGGREGATE, payload=self._totals[usual])
