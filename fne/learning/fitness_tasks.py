"""Node tasks that evaluate a population: `fitness` answers with sums of losses, `ranking` in a shorter form."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

import torch
from torch import Tensor

from fne.config.groups import Loss, Sampling
from fne.config.registry import Key, register
from fne.core.dataset import Samples
from fne.core.errors import RunError
from fne.core.messages import Request, Tensors
from fne.evolution import reduction, shaping
from fne.evolution.population import cleaned
from fne.evolution.rank_one import RankOne, individuals, received
from fne.federation.node import Node, payload_of
from fne.federation.payloads import COUNT, Entry, Payload
from fne.federation.worker import Worker
from fne.learning.augment import random_shift
from fne.learning.task import buffers_in

REDUCED = "reduced"


def fitness_payload(request: Request, node: str) -> Payload:
    """Return the payload of `fitness`: losses summed over the samples, and the number of samples."""
    outputs = None if request.options.get("per_output") else 1
    loss = Entry("float", (individuals(request.addressed(node)), outputs), finite="some")
    return {"loss": loss, "samples": COUNT}


@register("task", "fitness", payload=fitness_payload)
def fitness_task(
    worker: Worker,
    nodes: Sequence[Node],
    request: Request,
    *,
    loss: Annotated[Loss, Key("loss that is summed over the samples")],
    sampling: Sampling,
    per_output: Annotated[bool, Key("whether each of the model's outputs has its own loss")] = False,
    reduced: Annotated[
        bool, Key("whether nodes keep a reduction of their samples, exact for the squared errors of a linear model")
    ] = False,
) -> Iterator[Tensors]:
    """Evaluate a population on each node's samples, without gradients.

    The task takes `population [P, D]`, or in its place the tensors of `rank_one.RankOne` (common, or private where
    nodes have different candidates), and `buffer.*` where buffers differ from the model's initial ones. It yields
    `loss`, float32 `[P, 1]`, or `[P, outputs]` with `per_output`, summed over the samples in float64, and `samples`,
    int64 `[1]`. Samples of different nodes share a pass only with `evaluation.tiles=joined`. A non-finite sum is sent
    unchanged, even where all sums are non-finite (`ranking` fails there): the server judges individuals over all nodes.

    With `reduced` a node takes the squared errors from `reduction.reduced`, which it keeps in its memory, and `loss` is
    float64: the same up to rounding, at a cost that does not depend on the number of samples.

    Raises:
        RunError: `reduced` with another loss, with drawn or shifted samples, or with a model that is not linear.
        FneError: `per_output` with a loss that is not separable by outputs.
    """
    if reduced:
        yield from _reduced(worker, nodes, request, loss, sampling.samples, per_output)
        return
    for count, total in _summed(worker, nodes, request, loss, sampling, per_output):
        yield {"loss": total, "samples": torch.tensor([count])}


def _reduced(
    worker: Worker, nodes: Sequence[Node], request: Request, loss: str, samples: int, per_output: bool
) -> Iterator[Tensors]:
    """Yield the answers of `fitness` from each node's reduced samples."""
    if loss not in reduction.LOSSES or samples or any(node.shift for node in nodes):
        raise RunError(
            f"exact_reduction: needs loss mse or nmse (here {loss}) of all samples as they are (samples = {samples})"
        )
    for node in nodes:
        if REDUCED not in node.memory:
            if node.data.y.dtype == torch.int64:
                raise RunError("exact_reduction: targets are labels, but the reduction needs regression")
            node.memory[REDUCED] = reduction.reduced(worker.evaluator, node.data)
        population = payload_of(request, node)["population"].cpu()
        errors = reduction.squared_errors(node.memory[REDUCED], population)
        if not per_output:
            errors = errors.sum(dim=1, keepdim=True) / (errors.shape[1] if loss == "mse" else 1)
        yield {"loss": errors, "samples": torch.tensor([len(node.data)])}


def ranking_payload(request: Request, node: str) -> Payload:
    """Return the payload of `ranking` for the requested form of answer."""
    size = individuals(request.addressed(node))
    most = None if size is None else 2.0 * (size - 1)
    told: dict[str, dict[str, Entry]] = {
        "levels": {"levels": Entry("int", (size,), least=0), "ends": Entry("float", (2,), finite="all")},
        "ranks": {"ranks": Entry("int", (size,), least=0, most=most)},
        "sign": {"signs": Entry("bytes", (None if size is None else math.ceil(size / 16),))},
    }
    return {**told[str(request.options["answer"])], "samples": COUNT, "nonfinite": Entry("int", (1,), 0, size)}


@register("task", "ranking", payload=ranking_payload)
def ranking_task(
    worker: Worker,
    nodes: Sequence[Node],
    request: Request,
    *,
    loss: Annotated[Loss, Key("loss that ranks the individuals")],
    answer: Annotated[
        Literal["levels", "ranks", "sign"],
        Key("each individual's loss in a byte, each individual's rank, or one bit for each pair (i, i + P/2)"),
    ],
    sampling: Sampling,
) -> Iterator[Tensors]:
    """Evaluate a population as `fitness` does, with shorter answers; with ranks and signs no loss leaves the node.

    The task yields `levels [P]` and `ends [2]` (`shaping.levels` of losses summed over the samples), `ranks [P]` (twice
    the rank from 0; ties share the mean of their places) or `signs`, uint8 `[ceil(P / 16)]` (a bit per pair, 1 where
    the first is better, drawn from the node's public generator where they tie), and `samples [1]`, `nonfinite [1]`;
    integers have the smallest type that holds them. An individual with a non-finite loss ranks behind all others.

    Raises:
        RunError: no individual has a finite loss on the node, so that ranks mean nothing; or `sign` with an odd `P`.
    """
    for node in nodes if answer == "sign" else ():
        size = len(_candidates(worker, payload_of(request, node)))
        if size % 2:
            raise RunError(f"answer = sign needs pairs (i, i + P/2), P is {size}; send an even number of individuals")
    summed = _summed(worker, nodes, request, loss, sampling)
    for node, (count, total) in zip(nodes, summed, strict=True):
        values, nonfinite = cleaned(total[:, 0])
        size = len(values)
        if nonfinite == size:
            raise RunError(
                f"all {size} individuals have a non-finite loss on this node; lower what perturbs them "
                "(strategy.sigma, strategy.lr, strategy.mutation_rate), or scale the data"
            )
        if answer == "levels":
            told = dict(zip(("levels", "ends"), shaping.levels(values), strict=True))
        elif answer == "ranks":
            told = {"ranks": shaping.small_ranks(values)}
        else:
            ties = torch.randint(2, (size // 2,), generator=node.generator(request.header, "ties")).bool()
            told = {"signs": shaping.packed(shaping.pair_signs(values, ties))}
        counts = {"samples": count, "nonfinite": nonfinite}
        yield told | {name: shaping.small(torch.tensor([n]), n) for name, n in counts.items()}


def _summed(
    worker: Worker,
    nodes: Sequence[Node],
    request: Request,
    loss: str,
    sampling: Sampling,
    per_output: bool = False,
) -> Iterator[tuple[int, Tensor]]:
    """Yield each node's number of samples and the individuals' losses summed over them, float32 `[P, M]`."""
    parts = [_drawn(node, request, sampling.samples) for node in nodes]
    batch = sampling.statistics == "batch"
    evaluate = functools.partial(
        worker.evaluator.sample_losses, loss=loss, buffers=buffers_in(request.common), batch_statistics=batch,
        per_output=per_output,
    )  # fmt: skip
    if worker.joined and len(nodes) > 1 and not (request.private or batch):
        joined = Samples(torch.cat([s.x for s in parts]), torch.cat([s.y for s in parts]))
        all_losses = evaluate(_candidates(worker, request.common), joined)
        per_node = iter(torch.split(all_losses, [len(s) for s in parts], dim=1))
    else:
        per_node = (
            evaluate(_candidates(worker, payload_of(request, node)), part)
            for node, part in zip(nodes, parts, strict=True)
        )
    for part, summed in zip(parts, per_node, strict=True):
        total = summed.sum(dim=1, dtype=torch.float64).float().cpu()
        yield len(part), total if per_output else total.unsqueeze(1)


def _candidates(worker: Worker, tensors: Tensors) -> Tensor | RankOne:
    return received(tensors, worker.evaluator.layout)


def _drawn(node: Node, request: Request, count: int) -> Samples:
    """Return `count` of a node's samples (0: all), drawn and shifted by its public generators."""
    part = node.data
    if 0 < count < len(part):
        picked = torch.randperm(len(part), generator=node.generator(request.header, "samples"))[:count]
        part = part.take(picked.to(part.x.device))
    if node.shift:
        part = Samples(random_shift(part.x, node.shift, node.generator(request.header, "shift")), part.y, part.groups)
    return part
