"""What methods without gradients share: who evaluates a generation, what is sent beside it, what the sums mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fne.config.groups import NodeSelection
from fne.core.errors import SettingError
from fne.core.randomness import draw_nodes
from fne.core.types import LearningTask, Reply, Scalar, Tensors
from fne.learning.node_tasks import BUFFER


@dataclass(frozen=True)
class NodeChoice:
    """Who evaluates a generation (FNE, section 4.3): a function of the run's seed and the step alone.

    Args:
        seed: of the run.
        selection: how many nodes, which, and for how long.
    """

    seed: int
    selection: NodeSelection

    def __call__(self, step: int, nodes: Sequence[str]) -> tuple[tuple[str, ...], int]:
        """Return the nodes and how many of their samples they take, 0 for all.

        Later on there may be fewer nodes than are asked for: then it is all of them.

        Raises:
            SettingError: more nodes are asked for than there are at the first step.
        """
        chosen = self.selection
        if chosen.full_every and (step + 1) % chosen.full_every == 0:
            return tuple(nodes), 0
        return self._part(step, nodes), 1 if chosen.nodes == "single_sample" else chosen.samples_per_node

    def _part(self, step: int, nodes: Sequence[str]) -> tuple[str, ...]:
        count, chosen = len(nodes), self.selection
        if chosen.nodes == "all":
            return tuple(nodes)
        if chosen.nodes == "moving_window":
            size = _at_most(count, step, "window_size", chosen.window_size)
            start = step // chosen.window_every
            return tuple(sorted(nodes[(start + i) % count] for i in range(size)))
        size = 1 if chosen.nodes == "single_sample" else _at_most(count, step, "subset_size", chosen.subset_size)
        return draw_nodes(nodes, size, self.seed, "nodes", step // chosen.subset_every)


def _at_most(count: int, step: int, key: str, value: int) -> int:
    if value > count and step == 0:
        raise SettingError(f"strategy.{key}", value, f"at most the number of nodes, {count}")
    return min(value, count)


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
