"""FedMOEAC against NSGA-II on one budget: error, bytes, both figures of privacy, hypervolume over generations.

    python benchmarks/fed_moeac.py run --out runs/moeac --seeds 0-4
    python benchmarks/fed_moeac.py table --out runs/moeac
    python benchmarks/fed_moeac.py pictures --out runs/moeac --to docs/images

Groups: `total` (the default: all noise together is of size sigma Z), `coordinate` (sigma Z on each weight). MNIST-5000,
CNN, 10 nodes; models are chosen on validation, `error` is on the test part, looked at once.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fne.training import train
from fne.watch.history import read_history

METHODS = ("fed_moeac", "nsga2")
_VGG = ["model=vgg", "model.blocks=[[8],[16],[32]]", "model.hidden=64", "model.residual=true"]
_CIFAR = ["data=cifar10", "data.nodes=10", "data.partition=iid"]
_FOUR = ["strategy.rounds_per_evaluation=4", "strategy.lr=0.05"]
_FOUR_OF_CIFAR = [*_FOUR, "strategy.epochs=1", "strategy.batch_size=32"]
GROUPS: dict[str, list[str]] = {
    "mnist-cnn": [],
    "mnist-vgg": [*_VGG, *_FOUR],
    "cifar-cnn": [*_CIFAR, *_FOUR_OF_CIFAR],
    "cifar-vgg": [*_CIFAR, *_VGG, *_FOUR_OF_CIFAR],
    "mnist-cnn-coordinate": ["strategy.noise=coordinate"],
    "mnist-cnn-sum": ["strategy.select=sum"],
}
"""What is changed of `fed_moeac_quick`."""
# Xiao and Liu, Table 1: communication (%), error (%), "privacy budget".
PAPER = {
    ("mnist-cnn", "nsga2"): (54.19, 1.95, 0.4911), ("mnist-cnn", "fed_moeac"): (31.29, 1.65, 0.1123),
    ("mnist-vgg", "nsga2"): (50.28, 1.75, 0.1865), ("mnist-vgg", "fed_moeac"): (30.28, 1.72, 0.1121),
    ("cifar-cnn", "nsga2"): (60.27, 29.26, 0.1228), ("cifar-cnn", "fed_moeac"): (52.94, 27.95, 0.4203),
    ("cifar-vgg", "nsga2"): (46.37, 28.35, 0.0859), ("cifar-vgg", "fed_moeac"): (45.69, 27.75, 0.0441),
}  # fmt: skip


def name_of(group: str, method: str, seed: int) -> str:
    """Return the name of a run's folder."""
    return f"{group}-{method}-s{seed}"


def run(groups: Sequence[str], seeds: Sequence[int], out: Path, part: tuple[int, int]) -> None:
    """Run what is not there; of several processes each takes a part."""
    torch.set_num_threads(1)
    todo = [(g, seed, m) for g in groups for seed in seeds for m in METHODS if (g, m) != ("mnist-cnn-sum", "nsga2")]
    for group, seed, method in todo[part[0] :: part[1]]:
        folder = out / name_of(group, method, seed)
        if (folder / "summary.json").exists():
            continue
        overrides = [f"strategy={method}", f"seed={seed}", "watch.tensorboard=false", *GROUPS[group]]
        summary = train("fed_moeac_quick", overrides, out=folder)
        print(f"{folder.name}: {summary['cpu_seconds']:.0f} CPU-s", flush=True)


def loaded(out: Path, group: str, method: str) -> list[Path]:
    """Return the folders of a group's finished runs."""
    return sorted(folder.parent for folder in out.glob(f"{group}-{method}-s*/summary.json"))


def front_of(folder: Path) -> list[dict[str, float]]:
    """Return the rows of a run's front that no other one dominates."""
    with (folder / "front.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["on_front"] == "True"]
    return [{key: float(value) for key, value in row.items() if key != "on_front"} for row in rows]


def volumes(folder: Path) -> list[float]:
    """Return the hypervolume of each generation, the first population's included."""
    return [line["hypervolume"] for line in read_history(folder) if line.get("hypervolume") is not None]


def shown(values: Sequence[float], digits: int = 3) -> str:
    """Return mean and standard deviation."""
    spread = f" ± {statistics.stdev(values):.2g}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}g}{spread}"


def table(groups: Sequence[str], out: Path) -> None:
    """Print what the populations come to; of each run the individual with the least error on validation."""
    head = (
        "noise", "method", "T", "seeds", "communication (%)", "error, test (%)", "score (7)",
        "epsilon, own training", "epsilon, whole search", "hypervolume, first", "last", "front", "CPU (min)",
    )  # fmt: skip
    print(f"| {' | '.join(head)} |\n|---|---|{'---:|' * (len(head) - 2)}")
    for group in groups:
        for method in METHODS:
            folders = loaded(out, group, method)
            if not folders:
                continue
            best = [min(front_of(folder), key=lambda row: row["error"]) for folder in folders]
            summaries = [json.loads((folder / "summary.json").read_text()) for folder in folders]
            curves = [volumes(folder) for folder in folders]
            cells = [
                group, method, "10", str(len(folders)), shown([100 * row["communication"] for row in best]),
                shown([100 * row["error_test"] for row in best]), shown([row["score"] for row in best]),
                shown([row["epsilon"] for row in best]), shown([s["privacy"]["epsilon"] for s in summaries]),
                shown([curve[0] for curve in curves]), shown([curve[-1] for curve in curves]),
                shown([s["front_size"] for s in summaries]), shown([s["cpu_seconds"] / 60 for s in summaries]),
            ]  # fmt: skip
            print(f"| {' | '.join(cells)} |")
    print("\npaper, MNIST with the CNN (communication %, error %, score): " + "; ".join(
        f"{method} {', '.join(f'{value:g}' for value in row)}" for method, row in PAPER.items()
    ) + "\n")  # fmt: skip
    for group in groups:
        pairs = [
            (volumes(folder), volumes(out / name_of(group, "nsga2", int(folder.name.rpartition("s")[2]))))
            for folder in loaded(out, group, "fed_moeac")
            if (out / name_of(group, "nsga2", int(folder.name.rpartition("s")[2])) / "summary.json").exists()
        ]
        if not pairs:
            continue
        above = sum(own[-1] >= other[-1] for own, other in pairs)
        reached = [next((i for i, v in enumerate(own) if v >= other[-1]), None) for own, other in pairs]
        print(f"{group}: last hypervolume of fed_moeac at or above that of nsga2: {above} of {len(pairs)} seeds; "
              f"generation at which fed_moeac first has nsga2's last hypervolume: {reached}")  # fmt: skip


def pictures(groups: Sequence[str], out: Path, to: Path) -> None:
    """Draw hypervolume over generations, and the last populations of all seeds, in two and three objectives."""
    from matplotlib.figure import Figure

    to.mkdir(parents=True, exist_ok=True)
    for group in groups:
        figure = Figure(figsize=(13, 4), layout="constrained")
        axes = figure.add_subplot(1, 3, 1)
        flat = figure.add_subplot(1, 3, 2)
        deep: Any = figure.add_subplot(1, 3, 3, projection="3d")
        for method, colour in zip(METHODS, ("C0", "C3"), strict=True):
            folders = loaded(out, group, method)
            for folder in folders:
                axes.plot(volumes(folder), color=colour, alpha=0.25)
            curves = [volumes(folder) for folder in folders]
            axes.plot([statistics.mean(point) for point in zip(*curves, strict=True)], color=colour, label=method)
            rows = [row for folder in folders for row in front_of(folder)]
            error, sent, score = ([row[key] for row in rows] for key in ("error", "communication", "score"))
            flat.scatter(sent, error, color=colour, s=12, label=method)
            deep.scatter(sent, score, error, color=colour, s=8)
        axes.set_xlabel("generation")
        axes.set_ylabel("hypervolume")
        axes.legend()
        flat.set_xlabel("communication")
        flat.set_ylabel("error (validation)")
        deep.set_xlabel("communication")
        deep.set_ylabel("score")
        deep.set_zlabel("error")
        figure.savefig(to / f"fed_moeac_{group}.png", dpi=100)


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table", "pictures"))
    parser.add_argument("groups", nargs="*", help=f"of {', '.join(GROUPS)}; mnist-cnn if none is given")
    parser.add_argument("--out", type=Path, default=Path("runs/moeac"))
    parser.add_argument("--seeds", default="0-4")
    parser.add_argument("--part", default="0/1", help="i/n: the i-th of n parts, from 0")
    parser.add_argument("--to", type=Path, default=Path("docs/images"))
    arguments = parser.parse_args()
    groups = arguments.groups or ["mnist-cnn"]
    first, _, last = arguments.seeds.partition("-")
    number, _, count = arguments.part.partition("/")
    if arguments.what == "run":
        seeds = range(int(first), int(last or first) + 1)
        run(groups, seeds, arguments.out, (int(number), int(count)))
    elif arguments.what == "table":
        table(groups, arguments.out)
    else:
        pictures(groups, arguments.out, arguments.to)


if __name__ == "__main__":
    main()
