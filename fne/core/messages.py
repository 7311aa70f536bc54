"""Messages between server and nodes: frozen requests go out, replies come back, and a round holds the replies.

Data flow one way, `strategy.ask -> engine.send -> strategy.tell`, and nothing else crosses the wire. Therefore bytes
are counted, masked, logged and audited in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

    from fne.federation.payloads import Payload

PROTOCOL_VERSION = 1
AGGREGATE = "*"
"""Name of the one reply that stands for all nodes when a request says `reduce="sum"`."""
GIVEN = "given."
"""Prefix of the tensors that a relay passes to its task."""

Scalar = int | float | str | bool
Tensors = Mapping[str, "Tensor"]


class Status(StrEnum):
    """How a node answered; closed, so that every engine and strategy knows all cases."""

    OK = "ok"
    REFUSED = "refused"
    DECLINED = "declined"
    """The node's owner does not agree: a valid answer, and no failure."""
    FAILED = "failed"
    NEEDS_SNAPSHOT = "needs_snapshot"
    GONE = "gone"
    """Set by the engine for a node that gave no answer: the request may not even have reached the node."""


@dataclass(frozen=True)
class Header:
    """Header of every message. The engine sets `run`, and `attempt` where a step is tried again.

    A node's public generator is seeded from (seed, step, attempt, node, purpose).
    """

    seed: int
    step: int
    run: str = ""
    attempt: int = 0
    protocol: int = PROTOCOL_VERSION


@dataclass(frozen=True)
class Relay:
    """Relay of a request's result: these nodes get the result in the server's place, do a task with it, and answer.

    Args:
        nodes: the addressees of the task.
        task: name of the node task. Its common tensors include each entry of the sum, named `given.NAME`; with single
            answers (`reduce="none"`) the entries of all answers, stacked in the order of the request's nodes.
        private: further tensors for single addressees.
        options: options of the task.
    """

    nodes: tuple[str, ...]
    task: str
    private: Mapping[str, Tensors] = field(default_factory=dict)
    options: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    """What to compute, and where.

    Args:
        header: run, seed, step, attempt.
        task: registered name of the node task, such as `fitness`.
        nodes: addressees, in the order in which replies are folded. Frames do not name the addressees, and a node task
            does not see them: whatever a task needs to know about the other nodes is among its options or tensors.
        common: tensors for every addressee.
        private: further tensors for single addressees.
        options: small validated values that the task takes, such as the name of a loss.
        reduce: `sum` lets the engine answer with one aggregate reply (payloads added in the order of `nodes`).
        relay: nodes that get the result; the round then holds their answers.
        sizes: sizes of the answers by the names in the task's declaration, as far as the strategy knows them and the
            frames do not imply them; they stay at the server and are not sent.
        expected: addressee -> the payload that its reply must have; it stays at the server and is not sent. Engines
            fill it in from the declaration of the task, see `fne.federation.payloads.expecting`.
    """

    header: Header
    task: str
    nodes: tuple[str, ...]
    common: Tensors = field(default_factory=dict)
    private: Mapping[str, Tensors] = field(default_factory=dict)
    options: Mapping[str, Scalar] = field(default_factory=dict)
    reduce: Literal["none", "sum"] = "none"
    relay: Relay | None = None
    sizes: Mapping[str, int] = field(default_factory=dict, repr=False, compare=False)
    expected: Callable[[str], Payload] | None = field(default=None, repr=False, compare=False)

    def addressed(self, node: str) -> Tensors:
        """Return the tensors for one node: the common tensors and the private ones of this node."""
        private = self.private.get(node)
        return {**self.common, **private} if private else self.common


@dataclass(frozen=True)
class Reply:
    """A node's answer; the sample count is an ordinary payload entry."""

    header: Header
    node: str
    status: Status = Status.OK
    reason: str = ""
    payload: Tensors = field(default_factory=dict)


@dataclass(frozen=True)
class Traffic:
    """Bytes of one step by node: of the tensors alone (payload) and of the encoded frames.

    `catch_up` is the part of `encoded_down` that brought late nodes up to the step; `snapshots` counts the whole states
    in it.
    """

    payload_down: Mapping[str, int]
    payload_up: Mapping[str, int]
    encoded_down: Mapping[str, int]
    encoded_up: Mapping[str, int]
    catch_up: Mapping[str, int] = field(default_factory=dict)
    snapshots: int = 0


@dataclass(frozen=True)
class Round:
    """The result of a request: valid replies (or their sum), failures by name, measured traffic.

    `per_node` holds each participant's scalars for the history (empty where an engine hides them); strategies
    do not read it.
    """

    replies: tuple[Reply, ...]
    failures: tuple[Reply, ...]
    traffic: Traffic
    per_node: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
