"""Milliseconds that private noise takes for a million weights, against torch's normal numbers, in one run.

Usage: python benchmarks/noise.py [--repeats N]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from fne.privacy.draws import Draws
from fne.privacy.noise import noised

WEIGHTS = 1_000_000


def milliseconds(work: Callable[[], object], repeats: int) -> list[float]:
    """Return how long each of some calls takes, in order of size."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - start))
    return sorted(times)


def main() -> None:
    """Print a line for each part of the work: least, median and most milliseconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    vector = torch.randn(WEIGHTS, generator=torch.Generator().manual_seed(0))
    vector /= vector.norm() * 1.01
    key = bytes(32)
    parts: dict[str, Callable[[], object]] = {
        "torch.randn, added in floating point": lambda: vector + torch.randn(WEIGHTS),
        "ChaCha20, 64 bits a weight": lambda: Draws(key).words(WEIGHTS),
        "discrete Gaussian, of 900 steps": lambda: Draws(key).gaussian(WEIGHTS, 900.0),
        "discrete Gaussian, of 2^20 steps": lambda: Draws(key).gaussian(WEIGHTS, 2.0**20),
        "noised: rounded to the grid, noise 1": lambda: noised(vector, 1.0, 1.0, lambda _: Draws(key)),
    }
    print(f"{WEIGHTS:,} weights, one thread, {repeats} repeats; milliseconds: least, median, most")
    for name, work in parts.items():
        work()
        times = milliseconds(work, repeats)
        print(f"{name:40}{times[0]:8.1f}{statistics.median(times):8.1f}{times[-1]:8.1f}")


if __name__ == "__main__":
    main()
