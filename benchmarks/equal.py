"""Compare two methods at equal rounds and at equal bytes, from their histories (validation accuracy).

    python benchmarks/equal.py runs/bench/mnist/fne_cnn runs/bench/mnist/fedavg_cnn --seeds 0-2

Equal rounds: both at the last round of the shorter run. Equal bytes: both when a node's traffic, down and up, mean over
all nodes, has come up to that of the cheaper run; "best so far" is what early stopping on validation would have kept by
then. Pairs of runs of one seed, means ± sample standard deviations over the seeds. Steps that were not validated, or
that the history does not hold, are passed over.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from fne.watch.history import bytes_so_far, read_history
from fne.watch.tables import human_bytes


def validated(folder: Path) -> list[dict[str, Any]]:
    """Return the validated steps with `total`, the bytes a node so far, and `best`, the best accuracy so far."""
    lines = [line for line in read_history(folder) if line["accuracy_validation"] is not None]
    best = 0.0
    for line in lines:
        best = max(best, line["accuracy_validation"])
        line["total"], line["best"] = bytes_so_far(line), best
    if not lines or lines[-1]["total"] is None:
        sys.exit(f"{folder}: no bytes a node or no validation accuracy in its history; give two federated runs")
    return lines


def percent(values: list[float]) -> str:
    """Return mean ± sample standard deviation."""
    spread = f" ± {100 * stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * mean(values):.1f}{spread} %"


def main() -> None:
    """Print one Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs=2, type=Path, help="run folders without their -sSEED")
    parser.add_argument("--seeds", default="0", help="first-last")
    arguments = parser.parse_args()
    first, _, last = arguments.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    pairs = [[validated(run.with_name(f"{run.name}-s{seed}")) for run in arguments.runs] for seed in seeds]
    print("| equal | run | rounds | bytes a node | validation | best so far |\n|---|---|---:|---:|---:|---:|")
    for what, key in (("rounds", "round"), ("bytes", "total")):
        for which, run in enumerate(arguments.runs):
            limits = [min(lines[-1][key] for lines in pair) for pair in pairs]
            within = [[x for x in pair[which] if x[key] <= limit] for pair, limit in zip(pairs, limits, strict=True)]
            if not all(within):
                print(f"| {what} | {run.name} | 0 | more after the first step validated | - | - |")
                continue
            at = [lines[-1] for lines in within]
            rounds, spent = mean(line["round"] for line in at), mean(line["total"] for line in at)
            accuracy, best = (percent([line[k] for line in at]) for k in ("accuracy_validation", "best"))
            print(f"| {what} | {run.name} | {rounds:.0f} | {human_bytes(spent)} | {accuracy} | {best} |")


if __name__ == "__main__":
    main()
