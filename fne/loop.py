"""The one loop: ask for work, let the nodes do it, tell the strategy what they answered."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fne.core.contracts import Callback, Engine, Metrics, Result, Strategy
    from fne.core.messages import Round


def run(strategy: Strategy, engine: Engine, *, callbacks: Sequence[Callback] = ()) -> Result:
    """Run a strategy on an engine until it is done or a callback says stop (after all of them were called)."""
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
    """Add what the loop knows to the strategy's metrics; bytes of the step as totals over its nodes and maxima."""
    traffic = round_.traffic
    metrics["step"], metrics["_nodes"] = strategy.step, nodes
    found = metrics.setdefault("_failed", {})  # what only the strategy could see
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
