"""Measurements of a node: its memory of points and values, and the functions that add to it.

A node keeps the requested points in its memory, a row for each run: `points [B, C, d]` of the cube,
`measured [B, C, M]` (NaN where it could not measure, or where nothing was asked), `exact [B, C, M]`, the same without
noise, `asked [B]`, the number of points, and `own [B, C]`: whether no request named the point (the owner knew it or the
node chose it) and it is not published. Run b of several side by side is the run of seed `header.seed + b`, and has the
same draws as that run alone, except for noise.

Requests hold `points`: common `[B, n, d]` for all runs, or private `[r, n, d]` for the runs in `runs [r]`; a node
without `runs` takes part in all runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fne.core.errors import RunError
from fne.core.messages import Header, Request
from fne.federation.node import Node
from fne.problems.objective import Objective, measured
from fne.secure import encoding

POINTS, MEASURED, EXACT, ASKED, OWN = "points", "measured", "exact", "asked", "own"
"""Names in a node's memory."""
_NOTHING = {POINTS: 0.0, MEASURED: torch.nan, EXACT: torch.nan, OWN: 0.0}
"""Padding values where nothing was asked."""


def runs_of(node: Node, request: Request) -> Tensor:
    """Return the runs in which a node takes part, int64 `[r]`."""
    runs = request.private.get(node.name, {}).get("runs")
    return torch.arange(len(request.common["points"])) if runs is None else runs


CUBE = (-1 - 1e-9, 1 + 1e-9)
"""Bounds of a coordinate of a point, up to rounding."""


def as_words(values: Tensor, what: str, parties: int, remedy: str) -> Tensor:
    """Return values as words of the ring, int64 of the same shape: their sum is the same whether it is secure or not.

    Args:
        values: floats.
        what: name of the values, for the error.
        parties: number of nodes whose words are added up.
        remedy: what to do about values that are too large.

    Raises:
        RunError: `parties` nodes cannot add up values of this size.
    """
    try:
        words, _ = encoding.encode(values.numpy(), parties, what)
    except encoding.OutOfRangeError as error:
        raise RunError(f"{error}; {remedy}") from None
    return torch.from_numpy(words.view(np.int64)).view(values.shape)


def objective_of(node: Node) -> Objective:
    """Return a node's objective; raises `RunError` where the node has none."""
    if node.objective is None:
        raise RunError("this node has no problem to measure")
    return node.objective


# ------------------------------------------------------------------------------------------------ measuring
def measure_asked(nodes: Sequence[Node], request: Request) -> None:
    """Let all nodes measure the points of a request, and keep the values."""
    runs = [runs_of(node, request) for node in nodes]
    points = [
        private["points"] if "points" in private else request.common["points"][own]
        for own, private in ((r, request.private.get(n.name, {})) for n, r in zip(nodes, runs, strict=True))
    ]
    measure_points(nodes, runs, points, request.header, count=len(request.common["points"]))


def measure_points(
    nodes: Sequence[Node],
    runs: Sequence[Tensor],
    points: Sequence[Tensor],
    header: Header,
    *,
    count: int,
    own: bool = False,
) -> None:
    """Let nodes measure points, and keep the points with their values.

    The same points under the same header have the same noise again.

    Args:
        nodes: the nodes; points that share a function are measured in one call.
        runs: runs of each node, int64 `[r]`, all different.
        points: points of each node in the cube, `[r, n, d]`; n is the same for all.
        header: header of the request.
        count: number of runs side by side; B.
        own: whether the nodes chose these points by themselves.
    """
    points = [asked.double() for asked in points]
    rows = [node for node, its in zip(nodes, runs, strict=True) for _ in its]
    values, exact = measured(
        [objective_of(node) for node in rows],
        torch.cat(points),
        header.seed + torch.cat(list(runs)),
        [node.name for node in rows],
        _noise(nodes, runs, points, header),
    )
    sizes = [len(its) for its in runs]
    found = zip(torch.split(values, sizes), torch.split(exact, sizes), strict=True)
    for node, its, asked, (value, truth) in zip(nodes, runs, points, found, strict=True):
        if POINTS not in node.memory:
            node.memory.update(_empty(objective_of(node), count, asked.shape[-1]))
        hidden = torch.full(asked.shape[:2], own)
        _keep(node, its, {POINTS: asked, MEASURED: value, EXACT: truth, OWN: hidden})


def _noise(nodes: Sequence[Node], runs: Sequence[Tensor], points: Sequence[Tensor], header: Header) -> Tensor:
    """Return standard normal numbers `[L, n, M]` that the server cannot repeat; L counts pairs of node and run."""
    drawn = []
    for node, own, asked in zip(nodes, runs, points, strict=True):
        size = asked.shape[1], objective_of(node).objectives
        if not objective_of(node).noise:
            drawn.append(torch.zeros(len(own), *size, dtype=torch.float64))
            continue
        for row, run in enumerate(own.tolist()):
            drawn.append(node.draws(header, f"noise {run}", asked[row]).normal(1, *size))
    return torch.cat(drawn)


# ------------------------------------------------------------------------------------------------ memory
def _empty(objective: Objective, runs: int, d: int) -> dict[str, Tensor]:
    """Return the memory of a node before its first request: the points that it knows from the start, for each run."""
    none = torch.zeros(0, d, dtype=torch.float64), torch.zeros(0, objective.objectives, dtype=torch.float64)
    points, values = objective.known or none
    repeated = values.repeat(runs, 1, 1)
    return {
        POINTS: points.repeat(runs, 1, 1), MEASURED: repeated, EXACT: repeated,
        OWN: torch.ones(repeated.shape[:2], dtype=torch.bool),
        ASKED: torch.full((runs,), len(values), dtype=torch.int64),
    }  # fmt: skip


def _keep(node: Node, runs: Tensor, found: dict[str, Tensor]) -> None:
    """Add points `[r, n, d]` and their values `[r, n, M]` to the rows of these runs."""
    memory, count = node.memory, found[POINTS].shape[1]
    places = memory[ASKED][runs].unsqueeze(1) + torch.arange(count)
    width = max(memory[POINTS].shape[1], int(places.max()) + 1 if places.numel() else 0)
    for name, new in found.items():
        kept = _padded(memory[name], width, _NOTHING[name]).clone()
        kept[runs.unsqueeze(1), places] = new
        memory[name] = kept
    asked = memory[ASKED].clone()
    asked[runs] += count
    memory[ASKED] = asked


def publish(node: Node, points: Tensor) -> None:
    """Mark points `[B, n, d]` that the node has measured as published; rows of NaN stand for none."""
    same = (node.memory[POINTS].unsqueeze(2) == points.unsqueeze(1)).all(dim=-1).any(dim=2)
    node.memory[OWN] = node.memory[OWN] & ~same


def held(nodes: Sequence[Node], runs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the measurements of nodes in the given runs: points `[L, C, d]` and values `[L, C, M]`.

    There is a row for each node and run, in order, as wide as the widest node's; padded values are NaN.
    """
    widest = max(node.memory[POINTS].shape[1] for node in nodes)
    points, values = (
        torch.cat([
            _padded(node.memory[name][own], widest, _NOTHING[name]) for node, own in zip(nodes, runs, strict=True)
        ])
        for name in (POINTS, MEASURED)
    )  # fmt: skip
    return points, values


def _padded(rows: Tensor, width: int, fill: float) -> Tensor:
    """Return rows `[r, C, ..]` padded so that C is `width`."""
    missing = width - rows.shape[1]
    if not missing:
        return rows
    return torch.cat([rows, rows.new_full((rows.shape[0], missing, *rows.shape[2:]), fill)], dim=1)
