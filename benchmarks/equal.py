"""Compare two runs at equal rounds and at equal bytes, from their histories (validation accuracy).

    python benchmarks/equal.py runs/bench/mnist/fne_cnn-s0 runs/bench/mnist/fedavg_cnn-s0

Equal rounds: both at the last round of the shorter run. Equal bytes: both when all nodes' traffic, down and up, has
reached the total of the cheaper run; "best so far" is what early stopping on validation would have kept by then. With
a thinned history, a kept step stands for the thinned ones before it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fne.watch.history import read_history
from fne.watch.report import human_bytes


def with_totals(folder: Path) -> list[dict[str, Any]]:
    """Return the history with `total`, the bytes so far, and `best`, the best validation accuracy so far."""
    total, before, best, lines = 0, 0, 0.0, read_history(folder)
    for line in lines:
        total += (line["step"] - before) * (line["bytes_down"] + line["bytes_up"])
        before, best = line["step"], max(best, line["accuracy_validation"])
        line["total"], line["best"] = total, best
    return lines


def main() -> None:
    """Print one Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs=2, type=Path)
    runs = {folder.name: with_totals(folder) for folder in parser.parse_args().runs}
    print("| equal | run | rounds | bytes, all nodes | validation | best so far |\n|---|---|---:|---:|---:|---:|")
    for what, key in (("rounds", "round"), ("bytes", "total")):
        limit = min(lines[-1][key] for lines in runs.values())
        for name, lines in runs.items():
            within = [line for line in lines if line[key] <= limit]
            if not within:
                print(f"| {what} | {name} | 0 | over {human_bytes(limit)} after one round | - | - |")
                continue
            at = within[-1]
            print(f"| {what} | {name} | {at['round']} | {human_bytes(at['total'])} | "
                  f"{at['accuracy_validation']:.1%} | {at['best']:.1%} |")  # fmt: skip


if __name__ == "__main__":
    main()
