"""Node tasks of a search: measure points, build a surrogate of what was measured, tell the best.

A node keeps in its memory what it was asked, a row a run: `points [B, C, d]` of the cube, `measured [B, C]` (NaN where
it could not measure, or where nothing was asked), `exact [B, C]`, the same without noise, and `asked [B]`.
Run b of several side by side is the run of seed `header.seed + b`, and draws what that one draws, but for noise.

Requests hold `points`: common `[B, n, d]` for all runs, or private `[r, n, d]` for those in `runs [r]`; a node without
`runs` takes part in all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

import torch
from torch import Tensor

from fne import randomness
from fne.errors import RunError
from fne.node import Node, Worker, payload_of
from fne.objective import Objective, measured
from fne.registry import Key, register
from fne.surrogates import rbfn
from fne.surrogates.rbfn import Network
from fne.types import Header, Request, Tensors

POINTS, MEASURED, EXACT, ASKED = "points", "measured", "exact", "asked"
"""Names in a node's memory."""


@register("task", "measure")
def measure_task(
    worker: Worker,
    nodes: Sequence[Node],
    request: Request,
    *,
    recall: Annotated[bool, Key("answer from memory alone, nothing is measured anew")] = False,
) -> Iterator[Tensors]:
    """Measure points and tell the values: they can be added up, so nobody need see those of one node.

    Takes common `points [B, n, d]` and `runs`. Yields `value`, float64, and `count`, int64, both `[B, n]`: zeros where
    the node cannot measure, its measurement failed, or it takes no part in the run.
    """
    points = request.common["points"].double()
    if not recall:
        _measure(nodes, request)
    for node in nodes:
        runs = _runs(node, request)
        value = torch.zeros(points.shape[:2], dtype=torch.float64)
        count = torch.zeros(points.shape[:2], dtype=torch.int64)
        if POINTS in node.memory:
            value[runs], count[runs] = _recalled(node, runs, points[runs])
        yield {"value": value, "count": count}


@register("task", "surrogate")
def surrogate_task(
    worker: Worker,
    nodes: Sequence[Node],
    request: Request,
    *,
    centres: Annotated[int, Key("of a network", ge=1)],
    epochs: Annotated[int, Key("passes over the samples; E", unit="epochs", ge=1)],
    lr: Annotated[float, Key("of the descent; eta", gt=0)],
    reading: Annotated[Literal["workable", "literal"], Key("of width and synchronisation, see fdd_ea")] = "workable",
    starts: Annotated[int, Key("of k-means, of which the best is kept", ge=1)] = 3,
    most: Annotated[int, Key("train on so many of the best samples; 0: all", unit="samples", ge=0)] = 0,
) -> Iterator[Tensors]:
    """Measure points and train a network on all that the node has measured; the values stay here.

    Takes `points`, `runs`, and of the server's network common `weights [B, m]` and `bias [B]`, with reading = literal
    `centres [B, m, d]` and `widths [B, m]`, too, after the first time. Private `fit [f]`: the runs for which a network
    is wanted, if not all of `runs`. Yields the networks, float32: `centres [f, m, d]`, `widths`, `weights [f, m]`,
    `bias [f]`, and `samples [f]`, int64: a network of none is zeros.
    """
    _measure(nodes, request)
    wanted = [payload_of(request, node).get("fit", _runs(node, request)) for node in nodes]
    sizes = [len(runs) for runs in wanted]
    if not sum(sizes):
        yield from ({"samples": torch.zeros(0, dtype=torch.int64)} for _ in nodes)
        return
    network, counts = _networks(worker, nodes, request, wanted, centres, epochs, lr, reading, starts, most)
    told = {name: getattr(network, name).float().cpu() for name in ("centres", "widths", "weights", "bias")}
    told["samples"] = counts
    for rows in torch.arange(sum(sizes)).tensor_split(torch.tensor(sizes).cumsum(0)[:-1]):
        yield {name: values[rows] for name, values in told.items()}


@register("task", "release")
def release_task(worker: Worker, nodes: Sequence[Node], request: Request) -> Iterator[Tensors]:
    """Tell the best point that the node has measured, and its value: what an owner agrees to at a run's end.

    Yields `point [B, d]` of the cube and `value [B]`, NaN where nothing was measured.
    """
    for node in nodes:
        if POINTS not in node.memory:
            raise RunError("nothing was ever asked of this node")
        values = node.memory[MEASURED]
        best = torch.where(values.isnan(), torch.inf, values).argmin(dim=1)
        rows = torch.arange(len(best))
        yield {"point": node.memory[POINTS][rows, best], "value": values[rows, best]}


# ------------------------------------------------------------------------------------------------ archive
def _runs(node: Node, request: Request) -> Tensor:
    """Return the runs in which a node takes part, int64 `[r]`."""
    runs = request.private.get(node.name, {}).get("runs")
    return torch.arange(len(request.common["points"])) if runs is None else runs


def _measure(nodes: Sequence[Node], request: Request) -> None:
    """Let all nodes measure what they are asked, and keep it."""
    runs = [_runs(node, request) for node in nodes]
    points = [
        private["points"].double() if "points" in private else request.common["points"][own].double()
        for own, private in ((r, request.private.get(n.name, {})) for n, r in zip(nodes, runs, strict=True))
    ]
    rows = [node for node, own in zip(nodes, runs, strict=True) for _ in own]
    objectives = [_objective(node) for node in rows]
    seeds = request.header.seed + torch.cat(runs)
    values, exact = measured(
        objectives, torch.cat(points), seeds, [n.name for n in rows], _noise(nodes, runs, points, request.header)
    )
    count = len(request.common["points"])
    sizes = [len(own) for own in runs]
    found = zip(torch.split(values, sizes), torch.split(exact, sizes), strict=True)
    for node, own, asked, (value, truth) in zip(nodes, runs, points, found, strict=True):
        if POINTS not in node.memory:
            node.memory.update(_empty(_objective(node), count, asked.shape[-1]))
        _keep(node, own, asked, value, truth)


def _objective(node: Node) -> Objective:
    if node.objective is None:
        raise RunError("this node has no problem to measure")
    return node.objective


def _noise(nodes: Sequence[Node], runs: Sequence[Tensor], points: Sequence[Tensor], header: Header) -> Tensor:
    """Return standard normal numbers `[L, n]` that the server cannot repeat."""
    drawn = []
    for node, own, asked in zip(nodes, runs, points, strict=True):
        size = asked.shape[1]
        if not _objective(node).noise:
            drawn.append(torch.zeros(len(own), size, dtype=torch.float64))
            continue
        for run in own.tolist():
            draw = node.private_generator(header, f"noise {run}")
            drawn.append(torch.randn(1, size, generator=draw, dtype=torch.float64))
    return torch.cat(drawn)


def _empty(objective: Objective, runs: int, d: int) -> dict[str, Tensor]:
    """Return the memory of a node that was asked nothing yet: what it knows from the start, for each run."""
    points, values = objective.known or (torch.zeros(0, d, dtype=torch.float64), torch.zeros(0, dtype=torch.float64))
    repeated = values.repeat(runs, 1)
    return {
        POINTS: points.repeat(runs, 1, 1), MEASURED: repeated, EXACT: repeated,
        ASKED: torch.full((runs,), len(values), dtype=torch.int64),
    }  # fmt: skip


def _keep(node: Node, runs: Tensor, points: Tensor, values: Tensor, exact: Tensor) -> None:
    """Add points `[r, n, d]` and values `[r, n]` to the rows of these runs."""
    memory = node.memory
    places = memory[ASKED][runs].unsqueeze(1) + torch.arange(points.shape[1])
    width = max(memory[MEASURED].shape[1], int(places.max()) + 1 if places.numel() else 0)
    for name, new in ((POINTS, points), (MEASURED, values), (EXACT, exact)):
        kept = _padded(memory[name], width).clone()
        kept[runs.unsqueeze(1), places] = new
        memory[name] = kept
    asked = memory[ASKED].clone()
    asked[runs] += points.shape[1]
    memory[ASKED] = asked


def _recalled(node: Node, runs: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Return what the node measured at points `[r, n, d]`, 0 where nothing, and how often: 0 or 1; `[r, n]` both."""
    held, values = node.memory[POINTS][runs], node.memory[MEASURED][runs]
    same = (held.unsqueeze(1) == points.unsqueeze(2)).all(dim=-1) & values.isfinite().unsqueeze(1)
    there = same.any(dim=2)
    value = values.nan_to_num().gather(1, same.int().argmax(dim=2))
    return torch.where(there, value, 0.0), there.long()


# ------------------------------------------------------------------------------------------------ networks
def _networks(
    worker: Worker,
    nodes: Sequence[Node],
    request: Request,
    wanted: Sequence[Tensor],
    centres: int,
    epochs: int,
    lr: float,
    reading: rbfn.Reading,
    starts: int,
    most: int,
) -> tuple[Network, Tensor]:
    """Return a network for each node and run wanted, `[L]`, and the samples that it is of; one pass for all."""
    widest = max(node.memory[MEASURED].shape[1] for node in nodes)
    points, values = (
        torch.cat([_padded(node.memory[name][runs], widest) for node, runs in zip(nodes, wanted, strict=True)])
        for name in (POINTS, MEASURED)
    )
    valid = values.isfinite()
    order = torch.where(valid, values, torch.inf).argsort(dim=1, stable=True)
    if most:
        order = order[:, :most]
    values, valid = values.gather(1, order), valid.gather(1, order)
    points = points.gather(1, order.unsqueeze(2).expand(-1, -1, points.shape[2]))
    rows = torch.cat(list(wanted))
    u = torch.stack([
        torch.rand(starts, centres, generator=_public(node, request.header, run), dtype=torch.float64)
        for node, runs in zip(nodes, wanted, strict=True) for run in runs.tolist()
    ])  # fmt: skip
    device = worker.device

    def given(name: str) -> Tensor:
        return request.common[name][rows].double().to(device)

    received = None
    if "centres" in request.common:
        received = Network(given("centres"), given("widths"), given("weights"), given("bias"))
    network = rbfn.fit(
        points.to(device), values.nan_to_num().to(device), valid.to(device), given("weights"), given("bias"),
        u.to(device), epochs=epochs, lr=lr, reading=reading, received=received,
    )  # fmt: skip
    return network, valid.sum(dim=1)


def _padded(rows: Tensor, width: int) -> Tensor:
    """Return `[r, C, ...]` with C made `width`: zeros for points, NaN for values."""
    missing = width - rows.shape[1]
    if not missing:
        return rows
    fill = torch.nan if rows.dim() == 2 else 0.0
    return torch.cat([rows, rows.new_full((rows.shape[0], missing, *rows.shape[2:]), fill)], dim=1)


def _public(node: Node, header: Header, run: int) -> torch.Generator:
    return randomness.generator(header.seed + run, header.step, header.attempt, node.name, "centres")
