"""The `fne` command from a clone: `python train.py` runs the quick comparison of FNE and FedAvg on MNIST."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise

from fne.cli.main import main

COMMANDS = {"train", "compare", "report", "list", "show", "data"}
VALUED = {"--out", "--seeds", "--folds", "--resume", "--stop-after"}
"""Options of `train` and `compare` that have a value."""


def with_command(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with `train` before a config (or a run to resume), or `compare` where there is neither."""
    words = [
        word for before, word in pairwise(["", *arguments])
        if not word.startswith("-") and "=" not in word and before not in VALUED
    ]  # fmt: skip
    if (words and words[0] in COMMANDS) or (not words and {"--help", "--version"} & set(arguments)):
        return list(arguments)
    train = words or any(word.startswith(("--resume", "--stop-after")) for word in arguments)
    return ["train" if train else "compare", *arguments]


if __name__ == "__main__":
    sys.exit(main(with_command(sys.argv[1:])))
