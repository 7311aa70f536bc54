"""One worker a node, reached by encoded frames alone: what sites on other machines would compute, in this process.

A request goes out as the bytes of its frames, each node's worker decodes them and answers with the bytes of a reply.
So nothing reaches a node but what is sent: a method that gives the same bits here as on `local` needs no more than its
messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from fne.config.registry import Key, register
from fne.core.messages import Reply, Request
from fne.engines.local import LocalEngine
from fne.federation import wire
from fne.federation.worker import Worker


class WorkerEach:
    """A worker for each node: every message is encoded and decoded, as between machines."""

    def __init__(self, worker: Worker) -> None:
        self._workers = worker.apart()

    def answers(self, request: Request, common: wire.Frame, private: Mapping[str, wire.Frame]) -> Iterator[Reply]:
        """Yield a reply of each addressee, made of the bytes of the request's frames."""
        sent = bytes(common)
        for name in request.nodes:
            own = {name: bytes(private[name])} if name in private else {}
            for reply in self._workers[name].run(wire.decode_request(sent, own, (name,))):
                yield wire.decode_reply(bytes(wire.reply_frame(reply)))

    def lineage(self) -> dict[str, Any]:
        """Return by node what each worker holds of the run's lineage."""
        return {name: own.replica.state_dict() for name, own in self._workers.items() if own.replica}

    def restore(self, lineage: Mapping[str, Any]) -> None:
        """Take over what `lineage` returned."""
        for name, own in self._workers.items():
            if own.replica:
                own.replica.load_state_dict(lineage[name])


@register("engine", "framed")
def framed(
    worker: Worker,
    run: str = "run",
    folder: Path | None = None,
    *,
    device: Annotated[Literal["auto", "cpu", "cuda"], Key("where nodes compute")] = "auto",
    threads: Annotated[
        int, Key("threads of torch; 0: all cores, which pays for large models on an idle machine", ge=0, le=1024)
    ] = 1,
    quorum: Annotated[int, Key("replies without which a round fails", unit="nodes", ge=1)] = 1,
    away: Annotated[float, Key("share of the time that a node is away; 0: all are always there", ge=0, lt=1)] = 0.0,
    stretch: Annotated[int, Key("length of the times that a node is there or away", unit="steps", ge=1)] = 5,
    timeout: Annotated[
        float | None, Key("that a node may take for its answer, else it has gone; null: any", unit="s", gt=0)
    ] = None,
) -> LocalEngine:
    """One process with a worker for each node, which encoded frames alone reach; slower, with the bits of `local`."""
    host = WorkerEach(worker)
    return LocalEngine(
        worker,
        run,
        folder,
        host,
        device=device,
        threads=threads,
        quorum=quorum,
        away=away,
        stretch=stretch,
        timeout=timeout,
    )
