"""The main loop of all methods: the strategy asks, the nodes compute, the strategy takes in their answers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fne.core.contracts import Callback, Engine, Metrics, Result, Strategy
    from fne.core.messages import Round


def run(strategy: Strategy, engine: Engine, *, callbacks: Sequence[Callback] = ()) -> Result:
    """Run a strategy on an engine until the strategy is done or a callback stops the run; return the result.

    Args:
        strategy: the server half of the method.
        engine: the engine of the nodes.
        callbacks: called in order after each step; the loop ends after a step in which any of them returns true.
    """
    while not strategy.done:
        start = time.perf_counter()
        nodes = engine.nodes
        request = strategy.ask(nodes)
        round_ = engine.send(request)
        metrics = strategy.tell(round_)
        _observe(metrics, strategy, len(nodes), round_, time.perf_counter() - start)
        stops = [callback(strategy, round_, metrics) for callback in callbacks]
        if any(stops):
            break
    return strategy.result()


def _observe(metrics: Metrics, strategy: Strategy, nodes: int, round_: Round, seconds: float) -> None:
    """Add step, failures, bytes and seconds to the strategy's metrics; bytes as totals over the nodes and maxima."""
    traffic = round_.traffic
    metrics["step"], metrics["_nodes"] = strategy.step, nodes
    found = metrics.setdefault("_failed", {})  # failures that only the strategy could see
    metrics["failures"] = {failure.node: failure.reason for failure in round_.failures} | found
    for name, sizes in (
        ("bytes_down", traffic.encoded_down),
        ("bytes_up", traffic.encoded_up),
        ("payload_down", traffic.payload_down),
        ("payload_up", traffic.payload_up),
    ):
        metrics[name], metrics[f"{name}_max"] = sum(sizes.values()), max(sizes.values())
    metrics["catch_up"], metrics["snapshots"] = sum(traffic.catch_up.values()), traffic.snapshots
    metrics["per_node"] = round_.per_node
    metrics["seconds"] = seconds
