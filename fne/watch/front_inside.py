"""The front that nobody sees while the method runs, looked at where all nodes are in one process.

What nodes measure in `fdd_ea_mo` and `fdd_ea_dh` is known to nobody else; how far a search is can only be told in a
simulation. A real run ends with the fronts that owners publish.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fne.core.contracts import Metrics, Strategy
from fne.core.messages import Round
from fne.evolution.indicators import front_of, igd
from fne.search.measurements import ASKED, EXACT, POINTS


class FrontView:
    """Callback that adds to the metrics what all nodes' measurements without noise come to, together.

    `front_size` is the number of different points that no other dominates, and where the true front is known `igd` is
    their inverted generational distance. With several runs side by side these are means, and `igds` has that of each.

    Args:
        engine: with `inspect`, which is asked; without (nodes elsewhere) nothing is added.
        front: returns points `[n, M]` of the true front; `None` where it is not known.
    """

    def __init__(self, engine: Any, front: Callable[[], Tensor] | None) -> None:
        self._inspect = getattr(engine, "inspect", None)
        self._nodes: tuple[str, ...] = engine.nodes
        self._front = front
        self._asked = -1
        self._figures: Metrics = {}

    @property
    def figures(self) -> Metrics:
        """The figures of all that was measured so far; none where nobody can look."""
        self._look()
        return dict(self._figures)

    def __call__(self, strategy: Strategy, round_: Round, metrics: Metrics) -> None:
        """Look at all nodes, where anything was measured since the last time."""
        metrics.update(self.figures)

    def _look(self) -> None:
        if self._inspect is None:
            return
        memories = [memory for node in self._nodes if EXACT in (memory := self._inspect(node))]
        asked = sum(int(memory[ASKED].sum()) for memory in memories)
        if not memories or asked == self._asked:
            return
        self._asked = asked
        fronts = [
            front_of(*(torch.cat([memory[name][run] for memory in memories]) for name in (POINTS, EXACT)))[1]
            for run in range(len(memories[0][EXACT]))
        ]
        self._figures = {"front_size": sum(map(len, fronts)) / len(fronts)}
        if self._front is not None:
            distances = [igd(values, self._front()) for values in fronts]
            self._figures["igd"] = sum(distances) / len(distances)
            if len(distances) > 1:
                self._figures["igds"] = distances
