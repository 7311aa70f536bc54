"""The `fne` command from a clone: `python train.py` runs the quick comparison of FNE and FedAvg on MNIST."""

import sys

from fne.cli import main

if __name__ == "__main__":
    known = {"train", "compare", "report", "list", "show", "data", "--help", "--version"}
    arguments = sys.argv[1:]
    if not arguments:
        arguments = ["compare"]
    elif arguments[0] not in known:  # python train.py CONFIG strategy.rounds=10
        arguments = ["train", *arguments]
    sys.exit(main(arguments))
