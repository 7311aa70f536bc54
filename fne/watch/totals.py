"""Totals of a run over all resumed parts: traffic by node, time, last and best validation figures."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from fne.config.members import member
from fne.core.contracts import Metrics, Strategy
from fne.core.messages import Round
from fne.watch.attendance import Attendance

_SIZES = {
    "bytes_down": "encoded_down", "bytes_up": "encoded_up", "payload_down": "payload_down", "payload_up": "payload_up",
    "catch_up": "catch_up",
}  # fmt: skip
"""Metric -> field of `Traffic` that is summed by node."""


class _Ledger:
    """Bytes of one kind by node, with sum and maximum; the time for a step depends on the nodes of the step alone."""

    def __init__(self, by_node: dict[str, int]) -> None:
        self.by_node, self.sum, self.max = by_node, sum(by_node.values()), max(by_node.values(), default=0)

    def add(self, sizes: Mapping[str, int]) -> None:
        by_node = self.by_node
        for node, size in sizes.items():
            by_node[node] = of_node = by_node.get(node, 0) + size
            self.sum += size
            if of_node > self.max:
                self.max = of_node


class Totals:
    """Callback that keeps the totals for `summary.json`, and adds the bytes so far to each step's metrics.

    Therefore the callback runs before the callbacks that write or show metrics.

    Args:
        begun: `time.process_time()` when the run began, loading included; `None`: now.
    """

    def __init__(self, begun: float | None = None) -> None:
        self._bytes = {name: _Ledger({}) for name in _SIZES}
        self._figures: dict[str, Any] = {"round": 0}
        self._snapshots = 0
        self._attendance = Attendance()
        self._accuracy_best: float | None = None
        self._cpu, self._wall, self._cpu_total = 0.0, 0.0, 0.0
        self._begun = time.process_time() if begun is None else begun
        self._cpu_start, self._wall_start = time.process_time(), time.perf_counter()

    def start(self) -> None:
        """Start the clocks of the loop."""
        self._cpu_start, self._wall_start = time.process_time(), time.perf_counter()

    def __call__(self, strategy: Strategy, round_: Round, metrics: Metrics) -> None:
        """Add one step; the metric `_nodes` is the number of all nodes, including nodes that received no request."""
        for name, ledger in self._bytes.items():
            ledger.add(getattr(round_.traffic, _SIZES[name]))
        self._snapshots += round_.traffic.snapshots
        self._attendance.add(round_, metrics.get("_failed", {}))
        metrics["snapshots_total"] = self._snapshots
        metrics.update(self._per_node(metrics["_nodes"], federated=not member(strategy, "pooled")))
        for name in ("round", "evaluations", "accuracy_validation", "loss_validation"):
            self._figures[name] = metrics.get(name)
        accuracy = self._sound_accuracy
        if accuracy is not None and (self._accuracy_best is None or accuracy > self._accuracy_best):
            self._accuracy_best = accuracy

    def _per_node(self, nodes: int, *, federated: bool) -> dict[str, float | None]:
        """Return mean and maximum over `nodes` of each kind of bytes so far; `None` without `federated`."""
        figures: dict[str, float | None] = {}
        for name, ledger in self._bytes.items():
            figures[f"{name}_per_node"] = ledger.sum / nodes if federated else None
            figures[f"{name}_per_node_max"] = ledger.max if federated else None
        return figures

    @property
    def cpu_seconds(self) -> float:
        """Processor seconds of the loop, validation included, over all resumed parts."""
        return self._cpu + time.process_time() - self._cpu_start

    @property
    def wall_seconds(self) -> float:
        """Wall time of the loop in seconds, over all resumed parts."""
        return self._wall + time.perf_counter() - self._wall_start

    @property
    def cpu_seconds_total(self) -> float:
        """Processor seconds since the run began, loading and the end included, over all resumed parts."""
        return self._cpu_total + time.process_time() - self._begun

    @property
    def _sound_accuracy(self) -> float | None:
        """Validation accuracy of the last step; `None` without validation, or where its loss is non-finite."""
        accuracy, loss = (self._figures.get(f"{name}_validation") for name in ("accuracy", "loss"))
        sound = accuracy is not None and math.isfinite(accuracy) and (loss is None or math.isfinite(loss))
        return accuracy if sound else None

    def has_reached(self, target: float | None) -> bool:
        """Return whether the last step's validation accuracy has reached the target; never if it is `None`.

        A model with a non-finite validation loss reaches no target.
        """
        accuracy = self._sound_accuracy
        return target is not None and accuracy is not None and accuracy >= target

    def summary(self, nodes: int, *, federated: bool = True) -> dict[str, Any]:
        """Return the totals for the summary; bytes are those of a node over the run, mean and maximum over `nodes`.

        A method that is not `federated` exchanges nothing, so its bytes are `None`.
        """
        figures: dict[str, Any] = {
            "rounds": self._figures["round"],
            "evaluations": self._figures.get("evaluations"),
            "accuracy_last": self._figures.get("accuracy_validation"),
            "accuracy_best": self._accuracy_best,
            "loss_last": self._figures.get("loss_validation"),
        }
        figures.update(self._per_node(nodes, federated=federated))
        figures["snapshots"] = self._snapshots
        figures["failures"] = self._attendance.failures()
        figures["cpu_seconds"], figures["wall_seconds"] = self.cpu_seconds, self.wall_seconds
        figures["cpu_seconds_total"] = self.cpu_seconds_total
        return figures

    def state_dict(self) -> dict[str, Any]:
        """Return the totals so far."""
        return {
            "bytes": {name: ledger.by_node for name, ledger in self._bytes.items()}, "snapshots": self._snapshots,
            "attendance": self._attendance.by_node, "figures": self._figures, "accuracy_best": self._accuracy_best,
            "cpu": self.cpu_seconds, "wall": self.wall_seconds, "cpu_total": self.cpu_seconds_total,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; call `start` afterwards."""
        self._bytes = {name: _Ledger(dict(state["bytes"][name])) for name in _SIZES}
        self._figures, self._snapshots = state["figures"], state["snapshots"]
        self._attendance = Attendance(state["attendance"])
        self._accuracy_best = state["accuracy_best"]
        self._cpu, self._wall, self._cpu_total = state["cpu"], state["wall"], state["cpu_total"]
