"""Node task of the multi-objective methods: train candidates, and send their updates clipped, noised and compressed."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

import torch
from torch import Tensor

from fne.config.groups import BatchTraining
from fne.config.registry import Key, register
from fne.core.errors import RunError
from fne.core.messages import Request, Tensors
from fne.federation.node import Node
from fne.federation.payloads import COUNT, Entry, Payload
from fne.federation.worker import Worker
from fne.learning.local_training import descend_together
from fne.privacy.accountant import WEIGHTS, Mechanism, multiplier
from fne.privacy.compression import prepare
from fne.privacy.policy import Release

UPDATE = "update."


def candidates_payload(request: Request, node: str) -> Payload:
    """Return the payload of `train_candidates`: an encoded update of each candidate, and the number of samples."""
    count = len(request.common["parameters"])
    updates = {f"{UPDATE}{i}": Entry("bytes", (None,)) for i in range(count)}
    return {**updates, "diverged": Entry("bytes", (count,), most=1), "samples": COUNT}


def candidates_charge(request: Request, node: str, parties: int) -> tuple[Release, ...]:
    """Return the releases of `train_candidates`: the noised update of each candidate, which the server sees."""
    clip, literal = float(request.options["clip"]), request.options["order"] == "literal"
    share = share_of(str(request.options["noise"]), request.common["parameters"].shape[1])
    if request.common["noises"].shape != request.common["parameters"].shape[:1]:
        raise RunError("every candidate needs its own noise")
    noises = [float(noise) * share if clip else 0.0 for noise in request.common["noises"].tolist()]
    clipped = WEIGHTS if literal else "update"
    return tuple(
        Release(noise, clip or math.inf, Mechanism(
            multiplier(noise, "replace_one"), clipped, clip or 1.0, adjacency="replace_one", adversary="uploads",
        )) for noise in noises
    )  # fmt: skip


def share_of(noise: str, size: int) -> float:
    """Return the share of the noise on each of `size` weights: 1, or 1 / sqrt(size) with "total"."""
    return 1.0 if noise == "coordinate" else 1 / math.sqrt(size)


@register("task", "train_candidates", payload=candidates_payload, charge=candidates_charge)
def train_candidates_task(
    worker: Worker,
    nodes: Sequence[Node],
    request: Request,
    *,
    training: BatchTraining,
    clip: Annotated[float, Key("largest L2 norm of an update, or of weights; 0: none", ge=0)],
    noise: Annotated[Literal["coordinate", "total"], Key("noise of one weight, or of all weights together, in clips")],
    pruning: Annotated[Literal["rate", "threshold"], Key("whether thresholds are pruned shares or sizes")],
    prune: Annotated[Literal["fc", "all"], Key("weights of fully connected layers, or all")],
    order: Annotated[Literal["proper", "literal"], Key("order of clipping, noise and compression")],
) -> Iterator[Tensors]:
    """Train each candidate from its weights on the node's samples, and send its update clipped, noised and compressed.

    The task takes `parameters [P, D]`, and for each candidate `thresholds`, `bits` (int64) and `noises`, `[P]`. The
    batches are the same for all candidates. It yields `update.i`, uint8, for each candidate
    (`fne.privacy.compression.decode`), and `samples [1]`, but no loss, which would carry no noise. A training that
    diverges sends an update of zeros. `diverged [P]` marks it only without noise, since beside noised updates the mark
    would reveal something about the data.
    """
    layout = worker.evaluator.layout
    common = request.common
    scale = share_of(noise, layout.size)
    for node in nodes:
        told: dict[str, Tensor] = {}
        starts = common["parameters"]
        changes = descend_together(worker, node, request.header, starts, training)
        draws = node.answering(request)
        diverged = changes.isnan().any(dim=1)
        for i, (start, delta) in enumerate(zip(starts, changes.nan_to_num(nan=0.0), strict=True)):
            sigma = float(common["noises"][i])
            sent = prepare(
                delta, layout.leaves, threshold=float(common["thresholds"][i]), pruning=pruning,
                bits=int(common["bits"][i]), clip=clip or None, noise=sigma * scale, prune=prune, order=order,
                draws=functools.partial(draws, f"noise {i}") if sigma else None, origin=start,
            )  # fmt: skip
            told[f"{UPDATE}{i}"] = sent.payload
        yield {
            **told,
            "diverged": (diverged & (common["noises"] == 0)).to(torch.uint8),
            "samples": torch.tensor([len(node.data)]),
        }
