"""Test accuracy over subjects with 95 % intervals: subjects are drawn again with replacement (bootstrap), not trials.

    python benchmarks/intervals.py runs/bench/eeg_leak/control_trial-s* --name control_trial

All runs named are put together: a subject's accuracy is the mean over the runs that tested it, so that five folds give
each of the subjects once, and three seeds of a split by trials give each three times.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

DRAWS = 10_000


def by_subject(folders: list[Path]) -> dict[str, float]:
    """Return subject -> mean test accuracy over the runs that tested it."""
    found: dict[str, list[float]] = {}
    for folder in folders:
        summary = json.loads((folder / "summary.json").read_text())
        for subject, accuracy in summary["accuracy_test_by_subject"].items():
            found.setdefault(subject, []).append(accuracy)
    return {subject: float(np.mean(values)) for subject, values in sorted(found.items())}


def main() -> None:
    """Print one row of a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--name", default="")
    arguments = parser.parse_args()
    subjects = by_subject(arguments.folders)
    values = np.array(list(subjects.values()))
    draw = np.random.default_rng(0)
    means = values[draw.integers(len(values), size=(DRAWS, len(values)))].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    votes = float(np.mean(np.where(values == 0.5, 0.5, values > 0.5)))
    print(f"| {arguments.name or arguments.folders[0].name} | {len(arguments.folders)} runs, {len(values)} subjects | "
          f"{100 * values.mean():.1f} % | {100 * low:.1f} to {100 * high:.1f} % | {100 * values.min():.0f} to "
          f"{100 * values.max():.0f} % | {100 * votes:.0f} % |")  # fmt: skip


if __name__ == "__main__":
    main()
