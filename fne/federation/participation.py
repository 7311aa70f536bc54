"""Participation: which nodes evaluate a generation, as a function of the run's seed and the step alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fne.config.groups import NodeSelection
from fne.core.errors import SettingError
from fne.core.randomness import draw_nodes


@dataclass(frozen=True)
class NodeChoice:
    """Choice of the nodes that evaluate a generation (FNE, section 4.3), by the run's seed and the step alone.

    Args:
        seed: seed of the run.
        selection: settings for the number of nodes, their choice, and its duration.
    """

    seed: int
    selection: NodeSelection

    def __call__(self, step: int, nodes: Sequence[str]) -> tuple[tuple[str, ...], int]:
        """Return the nodes and the number of samples that each takes, 0 for all.

        If a later step has fewer nodes than requested, all of them take part.

        Raises:
            SettingError: more nodes are requested than exist at the first step.
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
