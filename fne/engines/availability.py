"""Client availability in a simulation: nodes are away for whole stretches of steps, drawn by the run's name."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from fne.core.randomness import generator

LEFT = "the node has left"


class Availability:
    """Nodes that come and go: each is away for whole stretches of steps, drawn by the run's name, the same at any time.

    The server is not told that a node leaves: it still lists it in the step in which it has gone, and gets no answer.

    Args:
        nodes: all that ever are there, sorted.
        run: whose draws these are.
        away: share of the stretches that a node is away.
        stretch: steps; each node's begin at another one.
        least: nodes that are always there.
    """

    def __init__(self, nodes: Sequence[str], run: str, *, away: float, stretch: int, least: int) -> None:
        self._nodes, self._run, self._away, self._stretch, self._least = tuple(nodes), run, away, stretch, least
        self._offsets = {n: int(self._draw(n, "offset") * stretch) for n in nodes} if away else {}
        self.there = functools.lru_cache(maxsize=4)(self._there)
        """Names of those who answer at a step."""

    def listed(self, step: int) -> tuple[str, ...]:
        """Return those whom the server believes to be there, sorted: at first all; also who has left in this step."""
        if step == 0:
            return self._nodes
        known = self.there(step) | self.there(step - 1)
        return tuple(name for name in self._nodes if name in known)

    def gone(self, step: int, addressees: Sequence[str]) -> frozenset[str]:
        """Return the addressees that have left; as many stay as the quorum needs, for the run would end without."""
        there = self.there(step)
        absent = [name for name in addressees if name in self._nodes and name not in there]
        needed = max(0, min(self._least, len(addressees)) - (len(addressees) - len(absent)))
        return frozenset(absent[needed:])

    def _there(self, step: int) -> frozenset[str]:
        if not self._away:
            return frozenset(self._nodes)
        luck = {n: self._draw(n, (step + offset) // self._stretch) for n, offset in self._offsets.items()}
        ranked = sorted(luck, key=luck.__getitem__, reverse=True)
        return frozenset(ranked[: self._least]) | {name for name in ranked if luck[name] >= self._away}

    def _draw(self, *parts: int | str) -> float:
        return float(torch.rand((), generator=generator("presence", self._run, *parts), dtype=torch.float64))
