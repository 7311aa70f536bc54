"""How long calls take, measured side by side; for the other scripts of this folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

Calls = Mapping[str, Callable[[], object]]


def milliseconds(calls: Calls, repeats: int) -> dict[str, float]:
    """Return the best time of each call, the calls interleaved."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            best[name] = min(best[name], (time.perf_counter() - start) * 1e3)
    return best
