"""Joint tuning of FedAvg by hospitals: FDD-EA finds learning rate and local epochs, each site on its own recordings.

python examples/tune_fedavg.py                  # two sites of toy data, seconds
python examples/tune_fedavg.py --eeg --to runs  # three sites of UCI's EEG recordings, minutes

A point is a pair (learning rate, local epochs). Each site measures a point by training with FedAvg among its own
subjects and answers, inside FDD-EA, with a small network; before the end no site shows its values to another site or to
the server.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from pathlib import Path
from typing import Any

import fne
from fne.core.errors import DataWarning

HERE = Path(__file__).resolve()


def fedavg_config(site: int, sites: int, eeg: bool, lr: float, epochs: int, seed: int) -> dict[str, Any]:
    """Return the config of one training: FedAvg among the subjects of a site."""
    strategy = {"name": "fedavg", "rounds": 10 if eeg else 3, "local_epochs": epochs, "batch_size": 16, "lr": lr}
    if eeg:
        data: dict[str, Any] = {"name": "of_site", "site": site, "sites": sites, "partition": "subject"}
        model: dict[str, Any] = {"name": "shallow_convnet", "filters": 8}
    else:
        data = {"name": "toy", "samples": 400, "nodes": 3}
        model = {"name": "mlp", "hidden": [8]}
    return {
        "name": "fedavg", "seed": 100 * seed + site, "data": data, "model": model, "strategy": strategy,
        "plugins": [str(HERE.with_name("eeg_site.py"))], "watch": {"tensorboard": False},
    }  # fmt: skip


def on_eeg(*, lr: float, epochs: int, node: str, seed: int) -> float:
    """Return the validation loss of a training at the site of this node, of three."""
    return _loss(fedavg_config(int(node.rpartition("-")[2]), 3, True, lr, epochs, seed))


def on_toy(*, lr: float, epochs: int, node: str, seed: int) -> float:
    """Return the validation loss of a training at the site of this node, of two."""
    return _loss(fedavg_config(int(node.rpartition("-")[2]), 2, False, lr, epochs, seed))


def _loss(config: dict[str, Any]) -> float:
    return float(trained(config)["loss_last"])


def trained(config: dict[str, Any]) -> dict[str, Any]:
    """Return the summary of a training; nothing else of the run is kept."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # a split by trials has the same subjects on both sides
        return fne.train(config, out=Path(folder) / "run")


def search_config(eeg: bool, rounds: int, seed: int) -> dict[str, Any]:
    """Return the config of the search: all sites take part in each round."""
    return {
        "name": "tune_fedavg", "seed": seed,
        "problem": {
            "name": "callable", "function": f"{HERE}:{'on_eeg' if eeg else 'on_toy'}", "nodes": 3 if eeg else 2,
            "variables": {"lr": [0.001, 1.0], "epochs": [1, 5]}, "log": ["lr"], "integer": ["epochs"],
        },
        "strategy": {"name": "fdd_ea", "participation": 1.0, "initial": 6, "rounds": rounds},
        "watch": {"tensorboard": False},
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    """Search, then compare trainings at each site with the tuned values and with those of the config `fedavg_eeg`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--eeg", action="store_true", help="UCI's recordings, three sites; minutes")
    parser.add_argument("--rounds", type=int, default=3, help="queries of the search (default 3)")
    parser.add_argument("--seeds", type=int, default=1, help="searches, from seed 0 on (default 1)")
    parser.add_argument("--to", type=Path, help="keep the searches' run folders there")
    given = parser.parse_args(arguments)
    sites = 3 if given.eeg else 2
    for seed in range(given.seeds):
        with tempfile.TemporaryDirectory() as scratch:
            out = (given.to or Path(scratch)) / f"tune_fedavg-s{seed}"
            found = fne.train(search_config(given.eeg, given.rounds, seed), out=out)
        best = found["best_point"]
        print(
            f"seed {seed}: lr {best['lr']:.4g}, {best['epochs']} local epochs after {found['evaluations']} evaluations"
        )
        for title, lr, epochs in (("tuned", best["lr"], best["epochs"]), ("lr 0.03, 1 epoch", 0.03, 1)):
            # other seeds than in the search
            runs = [trained(fedavg_config(site, sites, given.eeg, lr, epochs, 50 + seed)) for site in range(sites)]
            loss = sum(run["loss_last"] for run in runs) / sites
            accuracy = sum(run["accuracy_test"] for run in runs) / sites
            print(f"  {title}: validation loss {loss:.4f}, test accuracy {100 * accuracy:.1f} %, means over the sites")


if __name__ == "__main__":
    main()
