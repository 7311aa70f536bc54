"""What methods without gradients share: who evaluates a generation, what is sent beside it, what the sums mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from fne.core.messages import Reply, Scalar, Tensors
from fne.learning.node_tasks import BUFFER
from fne.learning.task import LearningTask


def fitness_options(task: LearningTask, loss: str) -> dict[str, Scalar]:
    """Return the options of node tasks that evaluate populations, but for `samples`."""
    return {"loss": loss, "statistics": "batch"} if task.batch_norm == "batch" else {"loss": loss}


def sent_buffers(task: LearningTask, buffers: Tensors) -> dict[str, Tensor]:
    """Return what nodes need beside the population: the statistics where they are the server's."""
    return {BUFFER + name: b for name, b in buffers.items()} if task.batch_norm == "server" else {}


def mean_losses(
    replies: Iterable[Reply], count: int, rows: Callable[[str], slice] | None = None
) -> tuple[Tensor, Tensor]:
    """Return the mean loss over samples and the samples of each individual, float64 `[P]` both.

    An individual that nobody evaluated gets +inf.

    Args:
        replies: of the node task `fitness`, or their sum.
        count: individuals, `P`.
        rows: node -> the individuals that it evaluated; all of them if `None`.
    """
    total = torch.zeros(count, dtype=torch.float64)
    samples = torch.zeros(count, dtype=torch.float64)
    for reply in replies:
        own = slice(0, count) if rows is None else rows(reply.node)
        total[own] += reply.payload["loss"][:, 0].double()
        samples[own] += float(reply.payload["samples"][0])
    return torch.where(samples > 0, total / samples, torch.inf), samples
