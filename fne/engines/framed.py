"""One worker a node, reached by encoded frames alone: what sites on other machines would compute, in this process.

A request goes out as the bytes of its frames, each node's worker decodes them and answers with the bytes of a reply.
So nothing reaches a node but what is sent: a method that gives the same bits here as on `local` needs no more than its
messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from fne import wire
from fne.engines.memory import read_memory, write_memory
from fne.engines.presence import LEFT, Presence
from fne.gather import gather
from fne.node import Worker
from fne.registry import Key, register
from fne.types import Reply, Request, Round, Status, Tensors


@register("engine", "framed")
class FramedEngine:
    """One process with a worker for each node: every message is encoded and decoded, as between machines.

    Args:
        worker: hosts the nodes; `device` and `threads` were resolved (`resolve_device`) before it was made. Its nodes
            are given a worker each.
        run: id of the run, stamped on every header.
        folder: of the run, for `save` and `load`; `None` keeps nothing.
        device, threads, quorum, away, stretch: settings.
    """

    def __init__(
        self,
        worker: Worker,
        run: str = "run",
        folder: Path | None = None,
        *,
        device: Annotated[Literal["auto", "cpu", "cuda"], Key("where nodes compute")] = "auto",
        threads: Annotated[
            int, Key("threads of torch; 0: all cores, which pays for large models on an idle machine", ge=0)
        ] = 1,
        quorum: Annotated[int, Key("replies without which a round fails", unit="nodes", ge=1)] = 1,
        away: Annotated[float, Key("share of the time that a node is away; 0: all are always there", ge=0, lt=1)] = 0.0,
        stretch: Annotated[int, Key("length of the times that a node is there or away", unit="steps", ge=1)] = 5,
    ) -> None:
        self._run, self._folder, self._quorum = run, folder, quorum
        self._nodes, self._workers = worker.nodes, worker.apart()
        self._step = 0
        self._presence = Presence(sorted(worker.nodes), run, away=away, stretch=stretch, least=quorum)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes that are there as far as the server knows, sorted."""
        return self._presence.listed(self._step)

    def send(self, request: Request) -> Round:
        """Send the request's frames to the addressed nodes; replies are folded in the order of `request.nodes`.

        Raises:
            RunError: fewer valid replies than the quorum.
        """
        request = replace(request, header=replace(request.header, run=self._run))
        common, private = wire.request_frames(request)
        answers = self._answers(request, bytes(common), {node: bytes(frame) for node, frame in private.items()})
        round_ = gather(request, answers, quorum=self._quorum, common=common, private=private)
        self._step = request.header.step + 1
        return round_

    def _answers(self, request: Request, common: bytes, private: Mapping[str, bytes]) -> Iterator[Reply]:
        gone = self._presence.gone(request.header.step, request.nodes)
        for name in request.nodes:
            if name in gone:
                yield Reply(request.header, name, Status.GONE, LEFT)
            elif name in self._workers:
                own = {name: private[name]} if name in private else {}
                for reply in self._workers[name].run(wire.decode_request(common, own, (name,))):
                    yield wire.decode_reply(bytes(wire.reply_frame(reply)))

    def inspect(self, node: str) -> Tensors:
        """Return a node's memory: a simulation may look at what the method hides, see `fne.watch.simulation`."""
        return self._nodes[node].memory

    # -------------------------------------------------------------------------------------------- memory
    def save(self, step: int) -> None:
        """Write the nodes' memory and each worker's lineage to `nodes/` of the run folder."""
        if self._folder is not None:
            replicas = {name: own.replica.state_dict() for name, own in self._workers.items() if own.replica}
            write_memory(self._folder, step, self._nodes, replicas)

    def load(self, step: int) -> None:
        """Take the nodes' memory back to `step`.

        Raises:
            CheckpointError: that step is not held.
        """
        assert self._folder is not None
        replicas = read_memory(self._folder, step, self._nodes)
        for name, own in self._workers.items():
            if own.replica:
                own.replica.load_state_dict(replicas[name])
        self._step = step

    def close(self) -> None:
        """Release nothing: the nodes are objects of this process."""
