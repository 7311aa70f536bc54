"""Snapshots of the nodes' memory in the run folder, for engines that host all nodes in one process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fne.core.errors import CheckpointError
from fne.core.files import read_torch, torch_bytes, write_atomically
from fne.federation.node import Node

KEPT_STEPS = 2


def write_memory(run_folder: Path, step: int, nodes: Mapping[str, Node], replica: Mapping[str, Any]) -> None:
    """Write the nodes' memory and accounts and the workers' lineage to `nodes/`; two steps are kept.

    Snapshots after `step` belong to an abandoned branch: they are deleted, so that they do not displace valid ones.
    """
    folder = run_folder / "nodes"
    folder.mkdir(exist_ok=True)
    memory = {name: node.memory for name, node in nodes.items() if node.memory}
    path = folder / f"step-{step:09d}.pt"
    ledgers = {name: node.ledger.state_dict() for name, node in nodes.items() if len(node.ledger)}
    write_atomically(path, torch_bytes({"nodes": memory, "ledgers": ledgers, "replica": dict(replica)}))
    held = sorted(folder.glob("step-*.pt"))
    kept = held[: held.index(path) + 1][-KEPT_STEPS:]
    for other in held:
        if other not in kept:
            other.unlink()


def read_memory(run_folder: Path, step: int, nodes: Mapping[str, Node]) -> dict[str, Any]:
    """Take the nodes' memory back to `step`, and return the workers' lineage of that step.

    Releases of a node since then in this process are not taken back: the node's account keeps them.

    Raises:
        CheckpointError: that step is not stored, or its file is not in the form of this version.
    """
    path = run_folder / "nodes" / f"step-{step:09d}.pt"
    if not path.is_file():
        held = sorted(p.name for p in path.parent.glob("step-*.pt"))
        raise CheckpointError(f"{path}: the nodes' memory of step {step} is missing; held: {held}")
    snapshot = read_torch(path)
    if not isinstance(snapshot, dict) or snapshot.keys() != {"nodes", "ledgers", "replica"}:
        raise CheckpointError(f"{path}: not what this version keeps of the nodes; start a new run")
    for name, node in nodes.items():
        node.memory, node.floor = dict(snapshot["nodes"].get(name, {})), 0
        if name in snapshot["ledgers"]:
            node.ledger.load_state_dict(snapshot["ledgers"][name])
    replica: dict[str, Any] = snapshot["replica"]
    return replica
