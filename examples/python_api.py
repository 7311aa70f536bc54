"""The Python API: train on the toy data, load the model of the run, predict. It takes seconds and downloads nothing.

python examples/python_api.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

import fne
from fne.config.load import load_config
from fne.evolution.losses import answers
from fne.run.learning_run import load_dataset


def main() -> None:
    """Run the bundled config `fne_toy` for 50 generations and use its model."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        summary = fne.train("fne_toy", ["strategy.rounds=50", "strategy.loss=cross_entropy"], out=out)
        print(f"test accuracy {summary['accuracy_test']:.3f} after {summary['evaluations']} evaluations")

        module = fne.load_model(out)  # on the CPU, in eval mode
        test = load_dataset(load_config(out / "config.yaml")).test
        with torch.inference_mode():
            predicted = answers(module(test.x))
        again = float((predicted == test.y).double().mean())
        print(f"the loaded model has test accuracy {again:.3f}; its first predictions are {predicted[:5].tolist()}")
        if again != summary["accuracy_test"]:
            raise SystemExit("the loaded model does not give the recorded accuracy again")


if __name__ == "__main__":
    main()
