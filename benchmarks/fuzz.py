"""Random frames, configs and flipped bits, more of them than the test suite has time for.

    python benchmarks/fuzz.py --times 20 --seeds 3

Runs the tests marked `fuzz` in `tests/attacks/` with so many times their inputs, once for each seed from `--first` on,
and prints a row for each; the exit status is 1 where an attack has succeeded, and pytest has printed with what.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=20, help="inputs, in multiples of the suite's (default 20)")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default 3)")
    parser.add_argument("--first", type=int, default=100, help="the first seed (default 100)")
    given = parser.parse_args()
    root = Path(__file__).parents[1]
    broken = 0
    print("| seed | times | seconds | attacks that succeeded |\n|---:|---:|---:|---:|", flush=True)
    for seed in range(given.first, given.first + given.seeds):
        around = os.environ | {"FNE_FUZZ_TIMES": str(given.times), "FNE_FUZZ_SEED": str(seed)}
        command = [sys.executable, "-m", "pytest", "-q", "-m", "fuzz", "tests/attacks"]
        start = time.perf_counter()
        done = subprocess.run(command, cwd=root, env=around, text=True, capture_output=True, check=False)
        seconds = time.perf_counter() - start
        failed = done.stdout.count("\nFAILED ") + done.stdout.count("\nERROR ")
        print(f"| {seed} | {given.times} | {seconds:.0f} | {failed} |", flush=True)
        if done.returncode:
            print(done.stdout + done.stderr, file=sys.stderr, flush=True)
            broken = 1
    return broken


if __name__ == "__main__":
    raise SystemExit(main())
