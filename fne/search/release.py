"""The release at the end of a search: each owner publishes the best points of its node, or declines.

Nobody else knows what a node measures. These tasks are the only ones that reveal measurements of a single node, also
where sums are secure; a node whose owner declines refuses, which is no failure. In the finals (`fne.search.finals`)
owners publish points without values.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import torch
from torch import Tensor

from fne.config.registry import Key, register
from fne.core.contracts import Result
from fne.core.errors import DataWarning, DeclinedError, RunError
from fne.core.messages import Header, Request, Round, Scalar, Tensors
from fne.evolution.indicators import front_of
from fne.federation.node import Node
from fne.federation.payloads import Entry, Payload
from fne.federation.worker import Worker
from fne.search.measurements import CUBE, MEASURED, POINTS, objective_of, publish


def check_release(node: Node) -> None:
    """Raise the error of a node that has nothing to release.

    Raises:
        DeclinedError: its owner declines.
        RunError: nothing was ever asked of it.
    """
    if objective_of(node).declines:
        raise DeclinedError("its owner declines to release what it found")
    if POINTS not in node.memory:
        raise RunError("nothing was ever asked of this node")


# ------------------------------------------------------------------------------------------------ nodes
def release_payload(request: Request, node: str) -> Payload:
    """Return the payload of `release`: a point of each run, and its value if that is wanted."""
    entries = {"point": Entry("float", ("runs", "variables"), *CUBE, nan=True)}
    return entries | ({"value": Entry("float", ("runs",))} if request.options.get("values", True) else {})


def release_front_payload(request: Request, node: str) -> Payload:
    """Return the payload of `release_front`: points of each run, and their values if those are wanted."""
    entries = {"points": Entry("float", ("runs", "points", "variables"), *CUBE, nan=True)}
    values = {"values": Entry("float", ("runs", "points", "objectives"))}
    return entries | (values if request.options.get("values", True) else {})


@register("task", "release", payload=release_payload, declines=True)
def release_task(
    worker: Worker,
    nodes: Sequence[Node],
    request: Request,
    *,
    values: Annotated[bool, Key("publish the value, too; false: propose the point alone")] = True,
) -> Iterator[Tensors]:
    """Publish the best point that the node has measured, and its value, as its owner has agreed for a run's end.

    Yields `point [B, d]` of the cube and with `values` also `value [B]`, NaN where nothing was measured. An owner may
    decline.
    """
    for node in nodes:
        check_release(node)
        measured = node.memory[MEASURED][..., 0]
        best = torch.where(measured.isfinite(), measured, torch.inf).argmin(dim=1)
        rows = torch.arange(len(best))
        point, value = node.memory[POINTS][rows, best], measured[rows, best]
        answer = {"point": point.where(value.isfinite().unsqueeze(1), torch.nan)}
        publish(node, answer["point"].unsqueeze(1))
        yield {**answer, "value": value} if values else answer


@register("task", "release_front", payload=release_front_payload, declines=True)
def release_front_task(
    worker: Worker,
    nodes: Sequence[Node],
    request: Request,
    *,
    values: Annotated[bool, Key("publish the values, too; false: propose the points alone")] = True,
) -> Iterator[Tensors]:
    """Publish the node's non-dominated points, and their values.

    Yields `points [B, n, d]` of the cube and with `values` also `values [B, n, M]`, padded with NaN. An owner may
    decline.
    """
    for node in nodes:
        check_release(node)
        points, found = fronts(node.memory[POINTS], node.memory[MEASURED])
        publish(node, points)
        yield {"points": points, "values": found} if values else {"points": points}


# ------------------------------------------------------------------------------------------------ server
def release_request(
    seed: int, step: int, nodes: Sequence[str], task: str = "release", *, sizes: Mapping[str, int], values: bool = True
) -> Request:
    """Return the request that asks each node for its best points, by one of the tasks above.

    Args:
        seed, step, nodes: seed and step of the run, and the nodes to ask.
        task: `release` or `release_front`.
        sizes: the numbers of `runs`, `variables` and `objectives`.
        values: whether the nodes publish the values, too.
    """
    options: dict[str, Scalar] = {} if values else {"values": False}
    return Request(Header(seed, step), task, tuple(nodes), options=options, sizes=sizes)


class ReleaseWarning(DataWarning):
    """No owner releases its node's best points, or no finalist has a quorum."""


def released(round_: Round, before: Result) -> Result:
    """Return the best published point of each run; where no node published any, warn and return `before`."""
    if not round_.replies:
        return declined(round_, before)
    points = torch.stack([reply.payload["point"] for reply in round_.replies])
    values = torch.stack([reply.payload["value"] for reply in round_.replies])
    least, node = torch.where(values.isfinite(), values, torch.inf).min(dim=0)
    best = points[node, torch.arange(len(node))]
    return Result("point", best, values=torch.where(least < math.inf, least, torch.nan))


def released_fronts(round_: Round, before: Result) -> Result:
    """Return the non-dominated points of the fronts that owners published, for each run, padded with NaN.

    Args:
        round_: the round of the task `release_front`.
        before: the result where all decline.
    """
    if not round_.replies:
        return declined(round_, before)
    together = (torch.cat([reply.payload[name] for reply in round_.replies], dim=1) for name in ("points", "values"))
    points, values = fronts(*together)
    return Result("front", points, values=values)


def declined(round_: Round, before: Result) -> Result:
    """Return the result `before`, and warn that no node released anything."""
    reasons = "; ".join(f"{failure.node}: {failure.reason}" for failure in round_.failures[:3])
    warnings.warn(
        f"no node released what it found ({reasons}): the result is what the server knew before", ReleaseWarning,
        stacklevel=3,
    )  # fmt: skip
    return before


def fronts(points: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the fronts of `points [B, n, d]` with `values [B, n, M]`, padded with NaN to the largest."""
    found = [front_of(*of_run) for of_run in zip(points, values, strict=True)]
    most = max(len(front) for front, _ in found)
    padded = [
        torch.full((len(found), most, rows.shape[2]), torch.nan, dtype=torch.float64) for rows in (points, values)
    ]
    for run, front in enumerate(found):
        for whole, rows in zip(padded, front, strict=True):
            whole[run, : len(rows)] = rows
    return padded[0], padded[1]
