"""All nodes in this process, on one device: for research and for tests; every other engine gives the same bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from torch import Tensor

from fne import wire
from fne.errors import CheckpointError, RunError
from fne.files import read_torch, torch_bytes, write_atomically
from fne.node import Worker
from fne.registry import Key, register
from fne.types import AGGREGATE, Header, Reply, Request, Round, Status, Traffic

KEPT_STEPS = 2


@register("engine", "local")
class LocalEngine:
    """One process, one device, all nodes: they share a model and one pass where they can.

    Args:
        worker: hosts the nodes; `device` and `threads` were resolved (`resolve_device`) before it was made.
        run: id of the run, stamped on every header.
        folder: of the run, for `save` and `load`; `None` keeps nothing.
        device, threads, quorum: settings.
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
    ) -> None:
        self._worker, self._run, self._folder, self._quorum = worker, run, folder, quorum
        self._nodes = tuple(sorted(worker.nodes))

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes, sorted."""
        return self._nodes

    def send(self, request: Request) -> Round:
        """Compute the request on the addressed nodes; replies are folded in the order of `request.nodes`.

        Raises:
            RunError: fewer valid replies than the quorum.
        """
        request = replace(request, header=replace(request.header, run=self._run))
        common, private = wire.request_frames(request)
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
        for reply in self._worker.run(request):
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
        if len(per_node) < self._quorum:
            why = "; ".join(f"{f.node}: {f.reason}" for f in failures[:3])
            raise RunError(
                f"step {request.header.step}: {len(per_node)} of {len(request.nodes)} nodes answered, "
                f"engine.quorum = {self._quorum}. {why}"
            )
        traffic = Traffic(payload_down, payload_up, down, up)
        replies = tuple(kept) if folded is None else (folded.reply(),)
        return Round(replies, tuple(failures), traffic, per_node)

    # -------------------------------------------------------------------------------------------- memory
    def save(self, step: int) -> None:
        """Write the nodes' memory to `nodes/` of the run folder; the last two steps are kept.

        Later steps are of a future that was abandoned by going back: they go, lest they push out good ones.
        """
        if self._folder is None:
            return
        folder = self._folder / "nodes"
        folder.mkdir(exist_ok=True)
        memory = {name: node.memory for name, node in self._worker.nodes.items() if node.memory}
        path = folder / f"step-{step:09d}.pt"
        write_atomically(path, torch_bytes(memory))
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
        memory: Mapping[str, dict[str, Tensor]] = read_torch(path)
        for name, node in self._worker.nodes.items():
            node.memory = dict(memory.get(name, {}))

    def close(self) -> None:
        """Release nothing: the nodes are objects of this process."""


class RunningSum:
    """Adds payloads in the order they come, floats in float64, integers as int64: no reply is kept."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self._totals: dict[str, Tensor] = {}

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
