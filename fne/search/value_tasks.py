"""Node tasks of a search for the minimum of one objective: measure points, and train a surrogate on them.

`fne.search.measurements` says what requests hold and what nodes keep.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

import torch
from torch import Tensor

from fne.config.groups import SurrogateTraining
from fne.config.registry import Key, register
from fne.core import randomness
from fne.core.messages import Header, Request, Tensors
from fne.evolution.real_coded import take
from fne.federation.node import Node, payload_of
from fne.federation.payloads import Entry, Kind, Payload
from fne.federation.worker import Worker
from fne.search.measurements import ASKED, MEASURED, OWN, POINTS, as_words, held, measure_asked, objective_of, runs_of
from fne.surrogates import rbfn
from fne.surrogates.rbfn import Network


def measure_payload(request: Request, node: str) -> Payload:
    """Return the payload of `measure`: values, and where the node has any."""
    size = tuple(request.common["points"].shape[:2])
    kind: Kind = "int" if request.options.get("arithmetic") == "fixed" else "float"
    return {"value": Entry(kind, (*size, "objectives"), finite="all"), "count": Entry("int", size, least=0, most=1)}


@register("task", "measure", payload=measure_payload)
def measure_task(
    worker: Worker,
    nodes: Sequence[Node],
    request: Request,
    *,
    recall: Annotated[bool, Key("answer from memory alone, nothing is measured anew")] = False,
    arithmetic: Annotated[Literal["float", "fixed"], Key("sum as float64, or as words of the ring Z_2^64")] = "float",
    parties: Annotated[int, Key("number of nodes whose values are added up", unit="nodes", ge=1)] = 1,
) -> Iterator[Tensors]:
    """Measure points and answer with values that can be added up, so that nobody needs to see those of one node.

    Takes common `points [B, n, d]` and `runs`. Yields `value [B, n, M]`, float64, or with `fixed` int64 words, and
    `count [B, n]`, int64: zeros where the node cannot measure, its measurement failed, it takes no part in the run, or
    its owner declines to release its values. For a point that the node has measured more than once, `recall` returns
    the first value; without `recall` the value measured now is returned. `recall` leaves out points that the node chose
    by itself, or that its owner knew, until they are published.

    Raises:
        RunError: a value is beyond the range of the ring.
    """
    points = request.common["points"].double()
    willing = [node for node in nodes if not objective_of(node).declines]
    if not recall and willing:
        measure_asked(willing, request)
    for node in nodes:
        runs = runs_of(node, request)
        value = torch.zeros(*points.shape[:2], objective_of(node).objectives, dtype=torch.float64)
        count = torch.zeros(points.shape[:2], dtype=torch.int64)
        if POINTS in node.memory and not objective_of(node).declines:
            found = _recalled(node, runs, points[runs]) if recall else _last(node, runs, points.shape[1])
            count[runs] = found.isfinite().all(dim=2).long()
            value[runs] = found.where(count[runs].bool().unsqueeze(2), 0.0)
        if arithmetic == "fixed":
            value = as_words(value, "value", parties, "scale the objectives")
        yield {"value": value, "count": count}


def surrogate_payload(request: Request, node: str) -> Payload:
    """Return the payload of `surrogate`: the networks of the runs for which one is wanted."""
    own, points = request.addressed(node), request.common["points"]
    runs = len(own.get("fit", own.get("runs", points)))
    entries = {"samples": Entry("int", (runs,), least=0)}
    if runs:
        size = runs, int(request.options["centres"])
        sizes = {"widths": size, "weights": size, "bias": (runs,), "centres": (*size, points.shape[-1])}
        entries |= {name: Entry("float", size, finite="usual") for name, size in sizes.items()}
    return entries


@register("task", "surrogate", payload=surrogate_payload)
def surrogate_task(
    worker: Worker,
    nodes: Sequence[Node],
    request: Request,
    *,
    training: SurrogateTraining,
) -> Iterator[Tensors]:
    """Measure points and train a network on all values that the node has measured; the values stay at the node.

    Takes `points`, `runs`, and the server's network: common `weights [B, m]` and `bias [B]`; with reading = literal
    also `centres [B, m, d]` and `widths [B, m]`, after the first time. Private `fit [f]` names the runs for which a
    network is wanted, if not all of `runs`. Yields the networks, float32: `centres [f, m, d]`, `widths`,
    `weights [f, m]`, `bias [f]`, and `samples [f]`, int64; without samples a network is zeros.
    """
    measure_asked(nodes, request)
    wanted = [payload_of(request, node).get("fit", runs_of(node, request)) for node in nodes]
    sizes = [len(runs) for runs in wanted]
    if not sum(sizes):
        yield from ({"samples": torch.zeros(0, dtype=torch.int64)} for _ in nodes)
        return
    network, counts = _networks(worker, nodes, request, wanted, training)
    answers = {name: getattr(network, name).float().cpu() for name in ("centres", "widths", "weights", "bias")}
    answers["samples"] = counts
    for rows in torch.arange(sum(sizes)).tensor_split(torch.tensor(sizes).cumsum(0)[:-1]):
        yield {name: values[rows] for name, values in answers.items() if len(rows) or name == "samples"}


def _recalled(node: Node, runs: Tensor, points: Tensor) -> Tensor:
    """Return the first values `[r, n, M]` that the node measured at points `[r, n, d]`, NaN where it measured nothing.

    Points of its own that are not published count as not measured: neither their values nor the fact is revealed.
    """
    kept, values = node.memory[POINTS][runs], node.memory[MEASURED][runs]
    valid = values.isfinite().all(dim=2) & ~node.memory[OWN][runs]
    same = (kept.unsqueeze(1) == points.unsqueeze(2)).all(dim=-1) & valid.unsqueeze(1)
    found = take(values, same.int().argmax(dim=2))
    return found.where(same.any(dim=2).unsqueeze(2), torch.nan)


def _last(node: Node, runs: Tensor, count: int) -> Tensor:
    """Return the values `[r, n, M]` of the last `count` points that the node was asked for."""
    places = node.memory[ASKED][runs].unsqueeze(1) - count + torch.arange(count)
    return take(node.memory[MEASURED][runs], places)


# ------------------------------------------------------------------------------------------------ networks
def _networks(
    worker: Worker,
    nodes: Sequence[Node],
    request: Request,
    wanted: Sequence[Tensor],
    training: SurrogateTraining,
) -> tuple[Network, Tensor]:
    """Return a network for each wanted pair of node and run, `[L]`, and its number of samples; one pass for all."""
    points, values = held(nodes, wanted)
    values = values[..., 0]
    valid = values.isfinite()
    order = torch.where(valid, values, torch.inf).argsort(dim=1, stable=True)
    if training.most:
        order = order[:, : training.most]
    values, valid = values.gather(1, order), valid.gather(1, order)
    points = points.gather(1, order.unsqueeze(2).expand(-1, -1, points.shape[2]))
    rows = torch.cat(list(wanted))
    size = training.starts, training.centres
    u = torch.stack([
        torch.rand(size, generator=_public(node, request.header, run), dtype=torch.float64)
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
        u.to(device), epochs=training.epochs, lr=training.lr, reading=training.reading, received=received,
    )  # fmt: skip
    return network, valid.sum(dim=1)


def _public(node: Node, header: Header, run: int) -> torch.Generator:
    return randomness.generator(header.seed + run, header.step, header.attempt, node.name, "centres")
