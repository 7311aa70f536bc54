"""What a run adds up to: traffic by node, processor time, last and best figures; it survives a resume."""

from __future__ import annotations

import time
from typing import Any

from fne.types import Metrics, Round, Strategy, Traffic

_DIRECTIONS = ("payload_down", "payload_up", "encoded_down", "encoded_up")


class Totals:
    """Callback that keeps the sums for `summary.json`.

    Args:
        begun: `time.process_time()` when the run began, loading included; now if `None`.
    """

    def __init__(self, begun: float | None = None) -> None:
        self._bytes: dict[str, dict[str, int]] = {direction: {} for direction in _DIRECTIONS}
        self._figures: dict[str, Any] = {"round": 0}
        self._snapshots = 0
        self._accuracy_best: float | None = None
        self._cpu, self._wall, self._cpu_total = 0.0, 0.0, 0.0
        self._begun = time.process_time() if begun is None else begun
        self._cpu_start, self._wall_start = time.process_time(), time.perf_counter()

    def start(self) -> None:
        """Start the clocks of the loop."""
        self._cpu_start, self._wall_start = time.process_time(), time.perf_counter()

    def __call__(self, strategy: Strategy, round_: Round, metrics: Metrics) -> None:
        """Add one step."""
        self._add(round_.traffic)
        for name in ("round", "evaluations", "accuracy_validation", "loss_best", "loss_validation"):
            self._figures[name] = metrics.get(name)
        accuracy = metrics.get("accuracy_validation")
        if accuracy is not None and (self._accuracy_best is None or accuracy > self._accuracy_best):
            self._accuracy_best = accuracy

    def _add(self, traffic: Traffic) -> None:
        self._snapshots += traffic.snapshots
        for direction in _DIRECTIONS:
            sums = self._bytes[direction]
            for node, size in getattr(traffic, direction).items():
                sums[node] = sums.get(node, 0) + size

    @property
    def cpu_seconds(self) -> float:
        """Processor seconds of the loop, validation included, over all resumed parts."""
        return self._cpu + time.process_time() - self._cpu_start

    @property
    def wall_seconds(self) -> float:
        """Seconds of the loop by the clock on the wall."""
        return self._wall + time.perf_counter() - self._wall_start

    @property
    def cpu_seconds_total(self) -> float:
        """Processor seconds since the run began, loading and the end included, over all resumed parts."""
        return self._cpu_total + time.process_time() - self._begun

    def has_reached(self, target: float | None) -> bool:
        """Return whether the last step's validation accuracy is at least the target; `None` is never reached."""
        accuracy = self._figures.get("accuracy_validation")
        return target is not None and accuracy is not None and accuracy >= target

    def summary(self, nodes: int, *, federated: bool = True) -> dict[str, Any]:
        """Return the figures of the run; bytes are totals of a node over the run, mean and maximum over `nodes`.

        A method that is not `federated` exchanges nothing: its bytes are `None`.
        """
        figures: dict[str, Any] = {
            "rounds": self._figures["round"],
            "evaluations": self._figures.get("evaluations"),
            "accuracy_last": self._figures.get("accuracy_validation"),
            "accuracy_best": self._accuracy_best,
            "loss_last": self._figures.get("loss_validation"),
        }
        for name, direction in (
            ("bytes_down_per_node", "encoded_down"),
            ("bytes_up_per_node", "encoded_up"),
            ("payload_down_per_node", "payload_down"),
            ("payload_up_per_node", "payload_up"),
        ):
            sums = self._bytes[direction]
            figures[name] = sum(sums.values()) / nodes if federated else None
            figures[f"{name}_max"] = max(sums.values(), default=0) if federated else None
        figures["snapshots"] = self._snapshots
        figures["cpu_seconds"], figures["wall_seconds"] = self.cpu_seconds, self.wall_seconds
        figures["cpu_seconds_total"] = self.cpu_seconds_total
        return figures

    def state_dict(self) -> dict[str, Any]:
        """Return the sums so far."""
        return {
            "bytes": self._bytes, "snapshots": self._snapshots, "figures": self._figures,
            "accuracy_best": self._accuracy_best,
            "cpu": self.cpu_seconds, "wall": self.wall_seconds, "cpu_total": self.cpu_seconds_total,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned; `start` the clocks afterwards."""
        self._bytes, self._figures = state["bytes"], state["figures"]
        self._accuracy_best, self._snapshots = state["accuracy_best"], state["snapshots"]
        self._cpu, self._wall, self._cpu_total = state["cpu"], state["wall"], state["cpu_total"]
