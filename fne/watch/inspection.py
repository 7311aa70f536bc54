"""Inspection of simulated nodes: measured values and fronts that the method hides from the server.

In `fdd_ea`, `fdd_ea_mo` and `fdd_ea_dh` no node reveals its measured values. Therefore the progress of such a search is
known only in a simulation, where all nodes are in one process. A real run ends with the points or fronts that owners
publish.
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


class SimulationView:
    """Callback that adds `best_value` to the metrics: the least value that any node has measured, without noise.

    With several runs side by side `best_value` is the best of all runs, and `best_values` has the best of each.

    Args:
        engine: its `inspect` returns the memory of a node; an engine without `inspect` (remote nodes) adds nothing.
    """

    def __init__(self, engine: Any) -> None:
        self._inspect = getattr(engine, "inspect", None)
        self._nodes: tuple[str, ...] = engine.nodes
        self._best: torch.Tensor | None = None

    @property
    def values(self) -> list[float | None] | None:
        """Best value of each run so far; `None` where the engine cannot inspect nodes."""
        self._look(self._nodes)
        return None if self._best is None else [v if v < float("inf") else None for v in self._best.tolist()]

    def __call__(self, strategy: Strategy, round_: Round, metrics: Metrics) -> None:
        """Inspect the nodes that have answered; at the first call, which may follow a resume, inspect all nodes."""
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


class FrontView:
    """Callback that adds the front of all nodes' measurements, without noise, to the metrics.

    `front_size` is the number of distinct points that no other point dominates. Where the true front is known, `igd` is
    the inverted generational distance of these points. With several runs side by side both are means, and `igds` has
    the distance of each run.

    Args:
        engine: its `inspect` returns the memory of a node; an engine without `inspect` (remote nodes) adds nothing.
        front: returns points `[n, M]` of the true front; `None` where the true front is unknown.
    """

    def __init__(self, engine: Any, front: Callable[[], Tensor] | None) -> None:
        self._inspect = getattr(engine, "inspect", None)
        self._nodes: tuple[str, ...] = engine.nodes
        self._front = front
        self._asked = -1
        self._figures: Metrics = {}

    @property
    def figures(self) -> Metrics:
        """Figures of all measurements so far; empty where the engine cannot inspect nodes."""
        self._look()
        return dict(self._figures)

    def __call__(self, strategy: Strategy, round_: Round, metrics: Metrics) -> None:
        """Add the figures, computed anew only after further measurements."""
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
