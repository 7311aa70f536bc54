"""All nodes in this process, on one device: for research and for tests; every other engine gives the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from fne import wire
from fne.engines.presence import Presence
from fne.errors import CheckpointError
from fne.files import read_torch, torch_bytes, write_atomically
from fne.gather import gather
from fne.node import Worker
from fne.registry import Key, register
from fne.types import Reply, Request, Round, Status, Tensors

KEPT_STEPS = 2


@register("engine", "local")
class LocalEngine:
    """One process, one device, all nodes: they share a model and one pass where they can.

    Args:
        worker: hosts the nodes; `device` and `threads` were resolved (`resolve_device`) before it was made.
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
        self._worker, self._run, self._folder, self._quorum = worker, run, folder, quorum
        self._step = 0
        self._presence = Presence(sorted(worker.nodes), run, away=away, stretch=stretch, least=quorum)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes that are there as far as the server knows, sorted."""
        return self._presence.listed(self._step)

    def send(self, request: Request) -> Round:
        """Compute the request on the addressed nodes; replies are folded in the order of `request.nodes`.

        Raises:
            RunError: fewer valid replies than the quorum.
        """
        request = replace(request, header=replace(request.header, run=self._run))
        common, private = wire.request_frames(request)
        round_ = gather(request, self._replies(request), quorum=self._quorum, common=common, private=private)
        self._step = request.header.step + 1
        return round_

    def _replies(self, request: Request) -> Iterator[Reply]:
        there = self._presence.there(request.header.step)
        absent = [name for name in request.nodes if name in self._worker.nodes and name not in there]
        needed = max(0, min(self._quorum, len(request.nodes)) - (len(request.nodes) - len(absent)))
        there |= set(absent[:needed])  # they stay until the step is over: it would end the run
        answers = self._worker.run(replace(request, nodes=tuple(name for name in request.nodes if name in there)))
        for name in request.nodes:
            if name in there:
                yield next(answers)
            elif name in absent:
                yield Reply(request.header, name, Status.GONE, "the node has left")
        yield from answers  # to their end: it may tell that a task has gone wrong

    def inspect(self, node: str) -> Tensors:
        """Return a node's memory: a simulation may look at what the method hides, see `fne.watch.simulation`."""
        return self._worker.nodes[node].memory

    # -------------------------------------------------------------------------------------------- memory
    def save(self, step: int) -> None:
        """Write the nodes' memory and the worker's lineage to `nodes/` of the run folder; the last two steps are kept.

        Later steps are of a future that was abandoned by going back: they go, lest they push out good ones.
        """
        if self._folder is None:
            return
        folder = self._folder / "nodes"
        folder.mkdir(exist_ok=True)
        memory = {name: node.memory for name, node in self._worker.nodes.items() if node.memory}
        replica = self._worker.replica.state_dict() if self._worker.replica else {}
        path = folder / f"step-{step:09d}.pt"
        write_atomically(path, torch_bytes({"nodes": memory, "replica": replica}))
        held = sorted(folder.glob("step-*.pt"))
        kept = held[: held.index(path) + 1][-KEPT_STEPS:]
        for other in held:
            if other not in kept:
                other.unlink()

    def load(self, step: int) -> None:
        """Take the nodes' memory back to `step`.

        Raises:
            CheckpointError: that step is not held.
        """
        assert self._folder is not None
        path = self._folder / "nodes" / f"step-{step:09d}.pt"
        if not path.is_file():
            held = sorted(p.name for p in path.parent.glob("step-*.pt"))
            raise CheckpointError(f"{path}: the nodes' memory of step {step} is missing; held: {held}")
        held = read_torch(path)
        if not isinstance(held, dict) or held.keys() != {"nodes", "replica"}:
            raise CheckpointError(f"{path}: not what this version keeps of the nodes; start a new run")
        for name, node in self._worker.nodes.items():
            node.memory = dict(held["nodes"].get(name, {}))
        if self._worker.replica:
            self._worker.replica.load_state_dict(held["replica"])
        self._step = step

    def close(self) -> None:
        """Release nothing: the nodes are objects of this process."""
