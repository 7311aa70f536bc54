"""Client availability in a simulation: nodes are unavailable for whole stretches of steps, drawn by the run's name."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from fne.core.randomness import generator

LEFT = "the node has left"


class Availability:
    """Nodes that come and go: each is unavailable for whole stretches of steps, a function of the run's name.

    The server is not informed when a node leaves: the node is still listed in the step in which it has gone, and gives
    no answer.

    Args:
        nodes: all nodes that are ever available, sorted.
        run: name of the run, which decides the draws.
        away: share of the stretches in which a node is unavailable.
        stretch: length of a stretch, in steps; the stretches of different nodes begin at different steps.
        least: number of nodes that are always available.
    """

    def __init__(self, nodes: Sequence[str], run: str, *, away: float, stretch: int, least: int) -> None:
        self._nodes, self._run, self._away, self._stretch, self._least = tuple(nodes), run, away, stretch, least
        self._offsets = {n: int(self._draw(n, "offset") * stretch) for n in nodes} if away else {}
        self.available = functools.lru_cache(maxsize=4)(self._available)
        """Names of the nodes that answer at a step."""

    def listed(self, step: int) -> tuple[str, ...]:
        """Return the nodes that the server lists, sorted: at first all; later also those that have just left."""
        if step == 0:
            return self._nodes
        known = self.available(step) | self.available(step - 1)
        return tuple(name for name in self._nodes if name in known)

    def gone(self, step: int, addressees: Sequence[str]) -> frozenset[str]:
        """Return the addressees that have left; as many as the quorum needs stay, else the run would end."""
        available = self.available(step)
        absent = [name for name in addressees if name in self._nodes and name not in available]
        needed = max(0, min(self._least, len(addressees)) - (len(addressees) - len(absent)))
        return frozenset(absent[needed:])

    def _available(self, step: int) -> frozenset[str]:
        if not self._away:
            return frozenset(self._nodes)
        luck = {n: self._draw(n, (step + offset) // self._stretch) for n, offset in self._offsets.items()}
        ranked = sorted(luck, key=luck.__getitem__, reverse=True)
        return frozenset(ranked[: self._least]) | {name for name in ranked if luck[name] >= self._away}

    def _draw(self, *parts: int | str) -> float:
        return float(torch.rand((), generator=generator("presence", self._run, *parts), dtype=torch.float64))
