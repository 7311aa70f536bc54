"""The `fne` command from a clone: `python train.py` runs the quick comparison of FNE and FedAvg on MNIST."""

import sys

from fne.cli import main

COMMANDS = {"train", "compare", "report", "list", "show", "data", "--help", "--version"}

if __name__ == "__main__":
    arguments = sys.argv[1:]
    if all(word.startswith("-") for word in arguments) and not COMMANDS & set(arguments):
        arguments = ["compare", *arguments]
    elif arguments[0] not in COMMANDS:  # python train.py CONFIG strategy.rounds=10
        arguments = ["train", *arguments]
    sys.exit(main(arguments))
