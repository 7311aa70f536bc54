"""What the method hides from everybody, looked at where all nodes are in one process: for pictures and tables.

The values that nodes measure never leave them in `fdd_ea`; how far a search is can only be told in a simulation.
"""

from __future__ import annotations

from typing import Any

import torch

from fne.core.contracts import Metrics, Strategy
from fne.core.messages import Round
from fne.search.measurements import EXACT


class SimulationView:
    """Callback that adds `best_value` to the metrics: the least that any node has measured, without the noise.

    With several runs side by side that is the best of all, and `best_values` has that of each.

    Args:
        engine: with `inspect`, which is asked; without (nodes elsewhere) nothing is added.
    """

    def __init__(self, engine: Any) -> None:
        self._inspect = getattr(engine, "inspect", None)
        self._nodes: tuple[str, ...] = engine.nodes
        self._best: torch.Tensor | None = None

    @property
    def values(self) -> list[float | None] | None:
        """The best of each run so far; `None` where nobody can look."""
        self._look(self._nodes)
        return None if self._best is None else [v if v < float("inf") else None for v in self._best.tolist()]

    def __call__(self, strategy: Strategy, round_: Round, metrics: Metrics) -> None:
        """Look at the nodes that have answered; at all of them the first time, which may be of a resumed run."""
        self._look(self._nodes if self._best is None else tuple(round_.per_node))
        if self._best is not None:
            metrics["best_value"] = float(self._best.min())
            if len(self._best) > 1:
                metrics["best_values"] = self._best.tolist()

    def _look(self, nodes: tuple[str, ...]) -> None:
        if self._inspect is None:
            return
        for node in nodes:
            exact = self._inspect(node).get(EXACT)
            if exact is not None and exact.numel():
                exact = exact[..., 0]
                least = torch.where(exact.isfinite(), exact, torch.inf).amin(dim=1)
                self._best = least if self._best is None else torch.minimum(self._best, least)
