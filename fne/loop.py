"""The one loop: ask for work, let the nodes do it, tell the strategy what they answered."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fne.types import Callback, Engine, Metrics, Result, Round, Strategy


def run(strategy: Strategy, engine: Engine, *, callbacks: Sequence[Callback] = ()) -> Result:
    """Run a strategy on an engine until it is done or a callback says stop (after all of them were called)."""
    while not strategy.done:
        start = time.perf_counter()
        request = strategy.ask(engine.nodes)
        round_ = engine.send(request)
        metrics = strategy.tell(round_)
        _observe(metrics, strategy, round_, time.perf_counter() - start)
        stops = [callback(strategy, round_, metrics) for callback in callbacks]
        if any(stops):
            break
    return strategy.result()


def _observe(metrics: Metrics, strategy: Strategy, round_: Round, seconds: float) -> None:
    """Add what the loop knows to the strategy's metrics; traffic in encoded bytes, totals over nodes and maxima."""
    down, up = round_.traffic.encoded_down, round_.traffic.encoded_up
    metrics["step"] = strategy.step
    metrics["failures"] = {failure.node: failure.reason for failure in round_.failures}
    metrics["bytes_down"], metrics["bytes_up"] = sum(down.values()), sum(up.values())
    metrics["bytes_down_max"], metrics["bytes_up_max"] = max(down.values()), max(up.values())
    metrics["per_node"] = round_.per_node
    metrics["seconds"] = seconds
