"""How many random inputs the attacks try, and of which seed: `benchmarks/fuzz.py` asks for more, and for others."""

from __future__ import annotations

import os
import random

SEED = int(os.environ.get("FNE_FUZZ_SEED", "19"))
TIMES = int(os.environ.get("FNE_FUZZ_TIMES", "1"))


def luck(attack: str) -> random.Random:
    """Return the generator of an attack's random inputs."""
    return random.Random(f"{attack} {SEED}")
