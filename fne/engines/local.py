"""Local engine: all nodes in one process on one device, for research and tests; other engines give the same bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from fne.config.groups import SimulatedNodes
from fne.config.registry import register
from fne.core.messages import Reply, Request, Round, Status, Tensors
from fne.engines.availability import LEFT, Availability
from fne.engines.memory import read_memory, write_memory
from fne.federation import wire
from fne.federation.rounds import gather
from fne.federation.worker import Worker


class Host(Protocol):
    """Host that answers for the nodes of an engine: one worker, or several."""

    def answers(self, request: Request, common: wire.Frame, private: Mapping[str, wire.Frame]) -> Iterator[Reply]:
        """Yield a reply of each addressee in order.

        Args:
            request: the request as it is sent; its addressees are available.
            common, private: frames of the request, the latter by node.
        """
        ...

    def lineage(self) -> dict[str, Any]:
        """Return what the workers hold of the run's lineage."""
        ...

    def restore(self, lineage: Mapping[str, Any]) -> None:
        """Restore what `lineage` returned."""
        ...


class OneWorker:
    """Host with one worker for all nodes, which share a model, and one pass where possible."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def answers(self, request: Request, common: wire.Frame, private: Mapping[str, wire.Frame]) -> Iterator[Reply]:
        """Yield a reply of each addressee; nothing is decoded."""
        return self._worker.run(request)

    def lineage(self) -> dict[str, Any]:
        """Return what the worker holds of the run's lineage."""
        return self._worker.replica.state_dict() if self._worker.replica else {}

    def restore(self, lineage: Mapping[str, Any]) -> None:
        """Restore what `lineage` returned."""
        if self._worker.replica:
            self._worker.replica.load_state_dict(dict(lineage))


@register("engine", "local")
class LocalEngine:
    """Engine with all nodes in one process on one device: they share a model, and one pass where possible.

    Args:
        worker: the worker that hosts the nodes; `device` and `threads` were resolved (`resolve_device`) before it was
            made.
        run: id of the run, stamped on every header.
        folder: folder of the run, for `save` and `load`; `None` saves nothing.
        host: the host that answers for the nodes; `None`: the worker.
        settings: client availability, and the quorum of a round.
    """

    def __init__(
        self,
        worker: Worker,
        run: str = "run",
        folder: Path | None = None,
        host: Host | None = None,
        *,
        settings: SimulatedNodes,
    ) -> None:
        self._worker, self._run, self._folder, self._settings = worker, run, folder, settings
        self._held = {name: len(node.data) for name, node in worker.nodes.items() if node.objective is None}
        self._host = host or OneWorker(worker)
        self._step = 0
        self._presence = Availability(
            sorted(worker.nodes), run, away=settings.away, stretch=settings.stretch, least=settings.quorum
        )

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes that are available as far as the server knows, sorted."""
        return self._presence.listed(self._step)

    def send(self, request: Request) -> Round:
        """Compute the request on the addressed nodes; replies are folded in the order of `request.nodes`.

        Raises:
            RunError: fewer valid replies than the quorum.
        """
        request = replace(request, header=replace(request.header, run=self._run))
        common, private = wire.request_frames(request)
        replies = self._replies(request, common, private)
        round_ = gather(
            request, replies, quorum=self._settings.quorum, common=common, private=private, held=self._held,
            timeout=self._settings.timeout,
        )  # fmt: skip
        self._step = request.header.step + 1
        return round_

    def _replies(self, request: Request, common: wire.Frame, private: Mapping[str, wire.Frame]) -> Iterator[Reply]:
        gone = self._presence.gone(request.header.step, request.nodes)
        there = tuple(name for name in request.nodes if name in self._worker.nodes and name not in gone)
        answers = self._host.answers(replace(request, nodes=there), common, private)
        for name in request.nodes:
            if name in gone:
                yield Reply(request.header, name, Status.GONE, LEFT)
            elif name in self._worker.nodes:
                yield next(answers)
        yield from answers  # run the task to its end, where it may still raise an error

    def inspect(self, node: str) -> Tensors:
        """Return a node's memory: a simulation may inspect what the method hides, see `fne.watch.inspection`."""
        return self._worker.nodes[node].memory

    # -------------------------------------------------------------------------------------------- memory
    def save(self, step: int) -> None:
        """Write the nodes' memory and the workers' lineage to `nodes/` of the run folder."""
        if self._folder is not None:
            write_memory(self._folder, step, self._worker.nodes, self._host.lineage())

    def load(self, step: int) -> None:
        """Take the nodes' memory back to `step`.

        Raises:
            CheckpointError: that step is not stored.
        """
        assert self._folder is not None
        self._host.restore(read_memory(self._folder, step, self._worker.nodes))
        self._step = step

    def close(self) -> None:
        """Release nothing: the nodes are objects of this process."""
