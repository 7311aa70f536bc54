"""FedMOEAC against NSGA-II on one budget: error, bytes, both figures of privacy, hypervolume over generations.

    python benchmarks/fed_moeac.py run mnist-cnn mnist-vgg cifar-cnn cifar-vgg --out runs/moeac --seeds 0-4
    python benchmarks/fed_moeac.py table mnist-cnn mnist-vgg cifar-cnn cifar-vgg --out runs/moeac
    python benchmarks/fed_moeac.py pictures mnist-cnn mnist-vgg cifar-cnn cifar-vgg --out runs/moeac --to docs/images

Groups: the paper's four pairs of data and model at sizes for a CPU (MNIST-5000, the CIFAR-10 subset, a VGG of three
blocks), and of the first one, `mnist-cnn-coordinate` (eq. (4) as printed: noise sigma Z on each weight) and
`mnist-cnn-fronts` (only the first fronts are clustered). `mnist-logistic` is so fast that many seeds can be run, by
which the open points of FedMOEAC were settled: its variants say what is changed. 10 nodes; models are chosen on
validation, `error` is on the test part, looked at once.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from fne.privacy.score import NOTE, SCORE
from fne.run.train import train
from fne.watch.history import read_history

Row = dict[str, float]
METHODS = ("fed_moeac", "nsga2")
_VGG = ["model=vgg", "model.blocks=[[8],[16],[32]]", "model.hidden=64", "model.residual=true"]
_CIFAR = ["data=cifar10", "data.nodes=10", "data.partition=iid"]
_SHORT = ["strategy.rounds_per_evaluation=3", "strategy.epochs=1", "strategy.lr=0.05"]
_SHORT_OF_CIFAR = [*_SHORT, "strategy.batch_size=32"]
_LOGISTIC = ["model=logistic", "strategy.rounds_per_evaluation=3", "strategy.epochs=1"]
GROUPS: dict[str, list[str]] = {
    "mnist-cnn": [],
    "mnist-vgg": [*_VGG, *_SHORT],
    "cifar-cnn": [*_CIFAR, *_SHORT_OF_CIFAR],
    "cifar-vgg": [*_CIFAR, *_VGG, *_SHORT_OF_CIFAR],
    "mnist-cnn-coordinate": ["strategy.noise=coordinate"],
    "mnist-cnn-fronts": ["strategy.fronts=true"],
    "mnist-logistic": _LOGISTIC,
    "mnist-logistic-fronts": [*_LOGISTIC, "strategy.fronts=true"],
    "mnist-logistic-sum": [*_LOGISTIC, "strategy.select=sum"],
    "mnist-logistic-range": [*_LOGISTIC, "strategy.scale=range"],
    "mnist-logistic-one": [*_LOGISTIC, "strategy.clusters=1"],
    "mnist-logistic-five": [*_LOGISTIC, "strategy.clusters=5"],
}
"""What is changed of `fed_moeac_quick`."""
# Xiao and Liu, Table 1: communication (%), error (%), "privacy budget".
PAPER = {
    ("mnist-cnn", "nsga2"): (54.19, 1.95, 0.4911), ("mnist-cnn", "fed_moeac"): (31.29, 1.65, 0.1123),
    ("mnist-vgg", "nsga2"): (50.28, 1.75, 0.1865), ("mnist-vgg", "fed_moeac"): (30.28, 1.72, 0.1121),
    ("cifar-cnn", "nsga2"): (60.27, 29.26, 0.1228), ("cifar-cnn", "fed_moeac"): (52.94, 27.95, 0.4203),
    ("cifar-vgg", "nsga2"): (46.37, 28.35, 0.0859), ("cifar-vgg", "fed_moeac"): (45.69, 27.75, 0.0441),
}  # fmt: skip


def methods_of(group: str) -> Sequence[str]:
    """Return the methods that a group has: settings of FedMOEAC alone make no other NSGA-II."""
    own = ("strategy.scale", "strategy.select", "strategy.clusters", "strategy.fronts")
    return METHODS[:1] if any(change.startswith(own) for change in GROUPS[group]) else METHODS


def base_of(group: str) -> str:
    """Return the group that has the NSGA-II runs which a group is compared with."""
    return group if "nsga2" in methods_of(group) else group.rpartition("-")[0]


def rounds_of(folder: Path) -> str:
    """Return T, the rounds of an evaluation."""
    return str(len(read_history(folder)) // len(volumes(folder)))


def name_of(group: str, method: str, seed: int) -> str:
    """Return the name of a run's folder."""
    return f"{group}-{method}-s{seed}"


def run(groups: Sequence[str], seeds: Sequence[int], out: Path, part: tuple[int, int]) -> None:
    """Run what is not there; of several processes each takes a part."""
    torch.set_num_threads(1)
    todo = [(g, seed, m) for g in groups for seed in seeds for m in METHODS if m in methods_of(g)]
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


def front_of(folder: Path) -> list[Row]:
    """Return the rows of a run's front that no other one dominates."""
    with (folder / "front.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["on_front"] == "True"]
    return [{key: float(value) for key, value in row.items() if key != "on_front"} for row in rows]


def volumes(folder: Path, key: str = "hypervolume") -> list[float]:
    """Return the hypervolume of each generation, the first population's included."""
    return [line[key] for line in read_history(folder) if line.get(key) is not None]


def shown(values: Sequence[float], digits: int = 3) -> str:
    """Return mean and standard deviation."""
    spread = f" ± {statistics.stdev(values):.2g}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}g}{spread}"


def nearest(rows: Sequence[Row]) -> Row:
    """Return the one nearest to (0, 0, 0), scaled as for hypervolume."""
    return min(rows, key=lambda row: row["error"] ** 2 + row["communication"] ** 2 + (row["score"] / 10) ** 2)


def table(groups: Sequence[str], out: Path) -> None:
    """Print what the fronts come to, by two ways to choose one solution of each, and what the abstract claims."""
    for title, choose in (("least error", lambda rows: min(rows, key=lambda row: row["error"])), ("nearest", nearest)):
        _chosen(title, choose, groups, out)
    head = ("pair", "method", "T", "seeds", "first", "last", "of all evaluated", "front", "CPU (min)")
    print(f"| {' | '.join(head)} |\n|---|---|{'---:|' * (len(head) - 2)}")
    for group in groups:
        for method in METHODS:
            folders = loaded(out, group, method)
            if folders:
                summaries = [json.loads((folder / "summary.json").read_text()) for folder in folders]
                curves = [volumes(folder) for folder in folders]
                cells = [
                    group, f"`{method}`", rounds_of(folders[0]), str(len(folders)),
                    shown([curve[0] for curve in curves]),
                    shown([curve[-1] for curve in curves]),
                    shown([volumes(folder, "hypervolume_seen")[-1] for folder in folders]),
                    shown([s["front_size"] for s in summaries]), shown([s["cpu_seconds"] / 60 for s in summaries]),
                ]  # fmt: skip
                print(f"| {' | '.join(cells)} |")
    print()
    for group in groups:
        pairs = [
            (volumes(folder), volumes(other))
            for folder in loaded(out, group, "fed_moeac")
            if ((other := out / f"{base_of(group)}-nsga2-{folder.name.rpartition('-')[2]}") / "summary.json").exists()
        ]
        if pairs:
            above = sum(own[-1] >= other[-1] for own, other in pairs)
            apart = [own[-1] - other[-1] for own, other in pairs]
            error = statistics.stdev(apart) / len(apart) ** 0.5 if len(apart) > 1 else float("nan")
            reached = [_first(own, other[-1]) for own, other in pairs]
            back = [_first(other, own[-1]) for own, other in pairs]
            print(f"- {group}: last hypervolume of fed_moeac at or above nsga2's: {above} of {len(pairs)} seeds, mean "
                  f"difference {statistics.mean(apart):+.3f} (standard error {error:.3f}); first "
                  f"generation of fed_moeac with nsga2's last one: {told(reached)}; of nsga2 with fed_moeac's: "
                  f"{told(back)}")  # fmt: skip


def _chosen(title: str, choose: Callable[[Sequence[Row]], Row], groups: Sequence[str], out: Path) -> None:
    head = (
        f"{title}: pair", "method", "T", "communication (%)", "paper", "error, test (%)", "paper", SCORE, "paper",
        "epsilon, own training", "epsilon, whole search",
    )  # fmt: skip
    print(f"| {' | '.join(head)} |\n|---|---|{'---:|' * (len(head) - 2)}")
    notes = {}
    for group in groups:
        for method in METHODS:
            folders = loaded(out, group, method)
            if not folders:
                continue
            best = [choose(front_of(folder)) for folder in folders]
            privacy = [json.loads((folder / "summary.json").read_text())["privacy"] for folder in folders]
            notes |= {(group, p[NOTE]): None for p in privacy if p.get(NOTE)}
            theirs = [f"{value:g}" for value in PAPER.get((group, method), ())] or ["-"] * 3
            ours = [
                shown([100 * row["communication"] for row in best]), shown([100 * row["error_test"] for row in best]),
                shown([row["score"] for row in best]),
            ]  # fmt: skip
            cells = [cell for pair in zip(ours, theirs, strict=True) for cell in pair]
            cells += [shown([row["epsilon"] for row in best], 2), shown([p["epsilon"] for p in privacy], 2)]
            print(f"| {group} | `{method}` | {rounds_of(folders[0])} | {' | '.join(cells)} |")
    print("".join(f"\n{NOTE}, {group}: {text}" for group, text in notes), end="\n\n")


def _first(curve: Sequence[float], wanted: float) -> int | None:
    return next((i for i, value in enumerate(curve) if value >= wanted), None)


def told(generations: Sequence[int | None]) -> str:
    """Return generations as text, `-` for never."""
    return ", ".join("-" if generation is None else str(generation) for generation in generations)


def pictures(groups: Sequence[str], out: Path, to: Path) -> None:
    """Draw hypervolume over generations, and the last fronts of all seeds, in two and three objectives."""
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
        deep.set_ylabel(SCORE)
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
