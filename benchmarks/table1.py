"""The four figures of the FNE paper's Table 1 from a run's history, and when validation first reached some levels.

    python benchmarks/table1.py runs/bench/eeg_long/fne_eeg_5000-s0

The paper's fitness values are taken for mean squared errors averaged over the outputs: NMSE, which sums over them, is
divided by their number. The maximum of the accuracy is over all generations, the other figures over those that the
history kept (`watch.every`).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from fne.watch.history import read_history

LEVELS = (0.75, 0.80, 0.85, 0.8528, 0.90, 0.95)


def main() -> None:
    """Print the table of one run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--outputs", type=int, default=2, help="outputs of the model")
    arguments = parser.parse_args()
    lines = read_history(arguments.folder)
    summary = json.loads((arguments.folder / "summary.json").read_text())
    scale = arguments.outputs if summary["loss"] == "nmse" else 1
    accuracies = [line["accuracy_validation"] for line in lines]
    errors = [line["loss_best"] / scale for line in lines]
    print("| Table 1 | validation accuracy, min. | max. | fitness (MSE), worst | best |\n|---|---:|---:|---:|---:|")
    print("| paper | 48.50 % | 85.28 % | 0.3297 | 0.0903 |")
    print(f"| {summary['name']}, seed {summary['seed']} | {min(accuracies):.2%} | {summary['accuracy_best']:.2%} "
          f"| {max(errors):.4f} | {min(errors):.4f} |".replace("%", " %"))  # fmt: skip
    first = {level: next((n["round"] for n in lines if n["accuracy_validation"] >= level), None) for level in LEVELS}
    print("\nfirst generation with validation of at least " + ", ".join(f"{k:.4g}: {v}" for k, v in first.items()))
    print(
        f"test accuracy of the returned model: {summary['accuracy_test']:.2%} (majority {summary['majority_test']:.2%})"
    )


if __name__ == "__main__":
    main()
