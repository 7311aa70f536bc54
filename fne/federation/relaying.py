"""Relays: results that are given to nodes in the server's place; secure sums have a way of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fne.core.contracts import Engine
from fne.core.errors import RunError
from fne.core.messages import GIVEN, Reply, Request, Round, Status, Traffic
from fne.federation.gather import failed
from fne.federation.payloads import Form, outvoted


class Relaying:
    """An engine that passes on what a request yields, where the request says to whom.

    Args:
        engine: does the work; what it gathers goes out again, so nothing is hidden from the server.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes, sorted."""
        return self._engine.nodes

    def send(self, request: Request) -> Round:
        """Return what the engine does; of a request with a `relay` the answers of those who were given the result.

        Failures and traffic are of both. Without any result there is nothing to pass on, and no answer. Of single
        answers those are passed on that have the form of most nodes; the others are failures.

        Raises:
            RunError: as the engine does; or a node of the relay does not exist.
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
        bill = Bill()
        bill.add(first.traffic)
        bill.add(second.traffic)
        return Round(second.replies, (*first.failures, *odd, *second.failures), bill.total(), second.per_node)

    def save(self, step: int) -> None:
        """Let the engine keep the nodes' memory."""
        self._engine.save(step)

    def load(self, step: int) -> None:
        """Let the engine take the nodes back to `step`."""
        self._engine.load(step)

    def close(self) -> None:
        """Close the engine."""
        self._engine.close()


def ask_few(engine: Engine, request: Request) -> Round:
    """Return the round of a request to the nodes of a relay; where too few answer it has their failures, no error.

    A run goes on without what one node would have answered: its strategy asks another.
    """
    try:
        return engine.send(request)
    except RunError as error:
        failures = tuple(Reply(request.header, node, Status.FAILED, str(error)) for node in request.nodes)
        return Round((), failures, Bill().total())


def _result(request: Request, replies: Sequence[Reply]) -> tuple[dict[str, Tensor], list[Reply]]:
    """Return what is passed on, and the replies that cannot be: entries of the sum, or of all replies, stacked."""
    if request.reduce == "sum":
        return dict(replies[0].payload), []
    odd = outvoted({reply.node: Form.of(reply.payload) for reply in replies})
    usual = [reply.payload for reply in replies if reply.node not in odd]
    stacked = {name: torch.stack([payload[name] for payload in usual]) for name in usual[0]}
    return stacked, [failed(reply, odd[reply.node]) for reply in replies if reply.node in odd]


class Bill:
    """The traffic of all that a step takes."""

    def __init__(self) -> None:
        self._sums: dict[str, Counter[str]] = {
            name: Counter() for name in ("payload_down", "payload_up", "encoded_down", "encoded_up", "catch_up")
        }
        self._snapshots = 0

    def add(self, traffic: Traffic) -> None:
        """Add what one exchange took."""
        for name, by_node in self._sums.items():
            by_node.update(getattr(traffic, name))
        self._snapshots += traffic.snapshots

    def total(self) -> Traffic:
        """Return the sums by node."""
        payload_down, payload_up, encoded_down, encoded_up, catch_up = map(dict, self._sums.values())
        return Traffic(payload_down, payload_up, encoded_down, encoded_up, catch_up, self._snapshots)
