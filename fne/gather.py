"""Replies -> `Round`: checked, folded in the request's order, counted. Every engine answers through this."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from fne import wire
from fne.errors import RunError
from fne.types import AGGREGATE, Header, Reply, Request, Round, Status, Traffic


def gather(
    request: Request,
    replies: Iterable[Reply],
    *,
    quorum: int,
    common: wire.Frame,
    private: Mapping[str, wire.Frame],
) -> Round:
    """Return the round that the replies make.

    Args:
        request: as it was sent.
        replies: in the order of `request.nodes`, one for each; taken one by one, so that a sum keeps none of them.
        quorum: valid replies that a round needs; a node that asks for a snapshot counts, since it is there.
        common, private: the frames that went out, for the traffic.

    Raises:
        RunError: below the quorum, with both numbers and the first reasons.
    """
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
    folded = RunningSum(request.header) if request.reduce == "sum" else None
    for reply in replies:
        frame = wire.reply_frame(reply)
        up[reply.node], payload_up[reply.node] = frame.encoded, frame.payload
        if reply.status is not Status.OK:
            failures.append(reply)
            continue
        per_node[reply.node] = {
            name: float(value) for name, value in reply.payload.items() if value.numel() == 1 and "." not in name
        }
        if folded is None:
            kept.append(reply)
        else:
            folded.add(reply)
    waiting = sum(failure.status is Status.NEEDS_SNAPSHOT for failure in failures)
    if len(per_node) + waiting < quorum:
        why = "; ".join(f"{failure.node}: {failure.reason}" for failure in failures[:3])
        raise RunError(
            f"step {request.header.step}: {len(per_node)} of {len(request.nodes)} nodes answered, "
            f"engine.quorum = {quorum}: mend the nodes or lower it{f'. {why}' if why else ''}"
        )
    traffic = Traffic(payload_down, payload_up, down, up)
    answers = tuple(kept) if folded is None else (folded.reply(),)
    return Round(answers, tuple(failures), traffic, per_node)


class RunningSum:
    """Adds payloads in the order they come, floats in float64, integers as int64: no reply is kept."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self._totals: dict[str, torch.Tensor] = {}

    def add(self, reply: Reply) -> None:
        """Add one reply's payload."""
        for name, value in reply.payload.items():
            wide = value.double() if value.is_floating_point() else value.long()
            total = self._totals.get(name)
            if total is None:
                self._totals[name] = wide.clone()
            else:
                total.add_(wide)

    def reply(self) -> Reply:
        """Return the aggregate reply."""
        return Reply(self._header, AGGREGATE, payload=self._totals)
