"""Framed engine: one worker for each node, reached by encoded frames alone, as for sites on other machines.

A request goes out as the bytes of its frames, each node's worker decodes them and answers with the bytes of a reply. So
a node gets only the bytes that are sent: a method with the same bits here as on `local` needs nothing but its messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fne.config.groups import SimulatedNodes
from fne.config.registry import register
from fne.core.messages import Reply, Request
from fne.engines.local import LocalEngine
from fne.federation import wire
from fne.federation.worker import Worker


class WorkerEach:
    """Host with a worker for each node: every message is encoded and decoded, as between machines."""

    def __init__(self, worker: Worker) -> None:
        self._workers = worker.apart()

    def answers(self, request: Request, common: wire.Frame, private: Mapping[str, wire.Frame]) -> Iterator[Reply]:
        """Yield a reply of each addressee, computed from the bytes of the request's frames."""
        sent = bytes(common)
        for name in request.nodes:
            own = {name: bytes(private[name])} if name in private else {}
            for reply in self._workers[name].run(wire.decode_request(sent, own, (name,))):
                yield wire.decode_reply(bytes(wire.reply_frame(reply)))

    def lineage(self) -> dict[str, Any]:
        """Return each worker's state of the run's lineage, by node."""
        return {name: own.replica.state_dict() for name, own in self._workers.items() if own.replica}

    def restore(self, lineage: Mapping[str, Any]) -> None:
        """Restore what `lineage` returned."""
        for name, own in self._workers.items():
            if own.replica:
                own.replica.load_state_dict(lineage[name])


@register("engine", "framed")
def framed(worker: Worker, run: str = "run", folder: Path | None = None, *, settings: SimulatedNodes) -> LocalEngine:
    """One process with a worker for each node, reached by encoded frames alone; slower, with the bits of `local`."""
    return LocalEngine(worker, run, folder, WorkerEach(worker), settings=settings)
