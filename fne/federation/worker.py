"""Workers: a worker is a process with a device and hosts one node (a hospital) or many nodes (a simulation).

A node task is a registered generator function `task(worker, nodes, request, *, option, ...)` that yields one payload
for each node, in order. It is called once for each worker, so that all hosted nodes can share one pass. Its
keyword-only parameters are the options that a request may set; they are checked like a config's settings before the
task runs.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from fne.config import registry
from fne.core.errors import DeclinedError, FneError, RefusedError, RunError, WriteError
from fne.core.messages import PROTOCOL_VERSION, Reply, Request, Status
from fne.evolution.evaluate import Evaluator
from fne.federation import wire
from fne.federation.lineage import BehindError, Replica
from fne.federation.node import Node, task_of


class Worker:
    """Host of nodes on one device, with one model to evaluate and train for them, or without a model in a search."""

    def __init__(
        self,
        nodes: Mapping[str, Node],
        evaluator: Evaluator | None = None,
        *,
        joined: bool = False,
        replica: Replica | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.nodes = dict(nodes)
        self.joined = joined
        self.replica = replica
        self.pinned: Mapping[str, bytes] = {}
        """Public signing keys of the run's nodes, by which secure sums recognise the owner of a key."""
        self.only: Callable[[str], bool] | None = None
        """Returns whether a task is answered in a run with secure sums; `None`: the run has no secure sums."""
        self._evaluator = evaluator
        self._device = device or torch.device("cpu")

    @property
    def evaluator(self) -> Evaluator:
        """Evaluator of the worker's model; raises `RunError` where the worker has no model."""
        if self._evaluator is None:
            raise RunError("this worker has no model: its nodes measure points of a problem")
        return self._evaluator

    @property
    def module(self) -> nn.Module:
        """The worker's module; a task that trains first loads weights into the module."""
        return self.evaluator.module

    @property
    def device(self) -> torch.device:
        """Device that holds data and module, and computes surrogates."""
        return self._device if self._evaluator is None else self._evaluator.device

    def apart(self) -> dict[str, Worker]:
        """Return a worker for each node, as on separate sites: the workers share the model alone."""
        workers = {}
        for name, node in self.nodes.items():
            replica = None if self.replica is None else self.replica.anew()
            workers[name] = Worker({name: node}, self._evaluator, replica=replica, device=self._device)
            workers[name].pinned, workers[name].only = self.pinned, self.only
        return workers

    def run(self, request: Request) -> Iterator[Reply]:
        """Yield one reply for each addressed node that this worker hosts, in the request's order.

        A node whose task raises gets a reply `failed` with the reason; the other nodes go on.
        """
        hosted = [self.nodes[name] for name in request.nodes if name in self.nodes]
        if request.header.protocol != PROTOCOL_VERSION:
            reason = f"protocol {request.header.protocol}, this node speaks {PROTOCOL_VERSION}"
            yield from (Reply(request.header, n.name, Status.REFUSED, reason) for n in hosted)
            return
        if self.only is not None and not self.only(request.task):
            reason = f"this node answers secure sums and releases only, not {request.task!r}"
            yield from (Reply(request.header, n.name, Status.REFUSED, reason) for n in hosted)
            return
        if self.replica is not None:
            try:
                request = self.replica.follow(request)
            except Exception as error:
                status = Status.REFUSED if isinstance(error, FneError) else _status(error)
                yield from (Reply(request.header, n.name, status, _reason(error, tell=True)) for n in hosted)
                return
        yield from self._run(hosted, request)

    def _run(self, nodes: Sequence[Node], request: Request) -> Iterator[Reply]:
        """Yield the nodes' answers; nodes whose policy refuses the request are left out of the task."""
        refused: dict[str, Reply] = {}
        for node in nodes:
            try:
                self._allow(node, request)
            except Exception as error:  # a request may be anything
                status = Status.REFUSED if isinstance(error, FneError) else _status(error)
                reason = _reason(error, tell=node.secrets.simulated)
                refused[node.name] = Reply(request.header, node.name, status, reason)
        answers = self._answers([node for node in nodes if node.name not in refused], request)
        for node in nodes:
            yield refused.get(node.name) or next(answers)
        yield from answers  # run the task to its end, where it may still raise an error

    def _allow(self, node: Node, request: Request) -> None:
        if not registry.traits("task", request.task).get("protocol"):
            node.allow(request)
        elif self.only is None and node.policy.tasks is not None:
            raise RefusedError(f"this node's policy allows no task {request.task!r}: the run has no secure sums")

    def _answers(self, nodes: Sequence[Node], request: Request) -> Iterator[Reply]:
        pending = list(nodes)
        asked = replace(request, nodes=())  # workers of other engines host other nodes: no task may depend on them
        try:
            task = task_of(request)
        except FneError as error:
            yield from (Reply(request.header, node.name, Status.REFUSED, str(error)[:300]) for node in nodes)
            return
        while pending:
            kept = [dict(node.memory) for node in pending]
            answered = 0
            try:
                payloads = iter(task(self, tuple(pending), asked))
                for node in pending:
                    payload = next(payloads, None)
                    if payload is None:
                        raise RunError(f"task {request.task!r} yields fewer payloads than it has nodes")
                    if not (isinstance(payload, Mapping) and all(map(wire.sendable, payload.values()))):
                        raise RunError(f"task {request.task!r} must yield tensors by name, not {payload!r:.60}")
                    yield Reply(request.header, node.name, payload=payload)
                    answered += 1
                if next(payloads, None) is None:
                    return
                raise RunError("it yields more payloads than it has nodes")
            except WriteError:  # the error concerns the run, not the node whose work raised it
                raise
            except Exception as error:
                for node, memory in zip(pending[answered:], kept[answered:], strict=True):
                    node.memory = memory
                if answered == len(pending):
                    raise RuntimeError(
                        f"task {request.task!r} breaks after its last reply: {_reason(error, tell=True)}"
                    ) from error
                if answered == 0 and len(pending) > 1:  # a shared pass failed: go node by node to find the culprit
                    for node in pending:
                        yield from self._answers([node], request)
                    return
                status = _status(error)
                culprit = pending[answered]
                yield Reply(request.header, culprit.name, status, _reason(error, tell=culprit.secrets.simulated))
                pending = pending[answered + 1 :]


def _status(error: Exception) -> Status:
    if isinstance(error, BehindError):
        return Status.NEEDS_SNAPSHOT
    if isinstance(error, DeclinedError):
        return Status.DECLINED
    return Status.REFUSED if isinstance(error, RefusedError) else Status.FAILED


def _reason(error: Exception, *, tell: bool) -> str:
    """Return a short reason: the error's type and place, and its text if that cannot quote a real node's data.

    Texts of the toolkit's own errors and refusals are meant to be sent; a real site sends no texts of other errors.
    """
    if isinstance(error, FneError | RefusedError | BehindError):
        return str(error)[:300]
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}{f': {error}' if tell else ''}{place}"[:300]
