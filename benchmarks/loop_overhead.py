"""What a step costs beside its work: 100,000 steps of a strategy and a task that do nothing, one thread.

    python benchmarks/loop_overhead.py

Everything is on: encoding of frames, traffic, history, progress, checkpoints, TensorBoard; `watch.every` thins what is
written. The aim is 200 microseconds a step.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import fne


def main() -> None:
    """Run and print microseconds a step for some thinnings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    arguments = parser.parse_args()
    print("| watch.every | steps | µs a step (CPU) | µs a step (wall) |\n|---|---|---|---|")
    for every, steps in ((100, arguments.steps), (10, arguments.steps), (1, arguments.steps // 10)):
        config = {
            "name": "overhead",
            "data": {"name": "toy", "nodes": 4, "problem": "linear", "features": 10, "classes": 3},
            "model": {"name": "logistic"},
            "strategy": {"name": "trivial", "rounds": steps},
            "engine": {"threads": 1},
            "watch": {"every": every, "checkpoint_every": 10_000},
            "plugins": [str(Path(__file__).with_name("trivial.py"))],
        }
        with tempfile.TemporaryDirectory() as folder:
            summary = fne.train(config, out=Path(folder) / "run", quiet=False)
        cpu, wall = (summary[k] / steps * 1e6 for k in ("cpu_seconds", "wall_seconds"))
        print(f"| {every} | {steps:,} | {cpu:.0f} | {wall:.0f} |", flush=True)


if __name__ == "__main__":
    main()
