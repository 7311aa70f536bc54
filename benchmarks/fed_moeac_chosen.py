"""What is done with trade-offs that FedMOEAC and NSGA-II found: trained on (Figure 4), on all of MNIST, beside others.

    python benchmarks/fed_moeac_chosen.py curves --found runs/moeac --out runs/moeac-chosen
    python benchmarks/fed_moeac_chosen.py full --found runs/moeac --out runs/moeac-chosen
    python benchmarks/fed_moeac_chosen.py others --out runs/moeac-chosen
    python benchmarks/fed_moeac_chosen.py churn --out runs/moeac-chosen
    python benchmarks/fed_moeac_chosen.py tables --found runs/moeac --out runs/moeac-chosen --to docs/images

curves: three of each front of `mnist-cnn` (fed_moeac.py), chosen on validation, for 100 rounds. full: that of the
least error on all of MNIST for 50 rounds. others: FedAvg, client-level and record-level differential privacy, and
compression alone, on the same nodes for ten rounds. churn: the search with labels dealt by Dirichlet(0.3) to nodes that
come and go.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from fed_moeac import METHODS, Row, front_of, loaded, nearest, shown, volumes

from fne.privacy.score import NOTE, SCORE
from fne.run.train import train
from fne.watch.history import read_history

FOUND = "mnist-cnn"
WIDE = "strategy.score_bounds=[0.001,10000]"
"""More rounds make another score of the same noise: bounds are for the search."""
CHOICES: dict[str, Callable[[Sequence[Row]], Row]] = {
    "least error": lambda rows: min(rows, key=lambda row: row["error"]),
    "nearest": nearest,
    "least score": lambda rows: min(
        (row for row in rows if row["error"] <= 2 * min(other["error"] for other in rows)), key=lambda row: row["score"]
    ),
}
"""Of a front: error on validation alone; nearest to (0, 0, 0) as hypervolume scales; least score of those whose error
is at most twice the least."""
AVERAGING = ["strategy.rounds=10", "strategy.fraction=0.4", "strategy.local_epochs=2"]
BATCHES = [*AVERAGING, "strategy.batch_size=64"]
PUBLIC = ["strategy.batch_size=64"]
"""What sums of gradients are divided by, which is near the rate times the samples of a node."""
CURVES = (0, 1, 2)
"""Seeds of the runs whose choices are trained on."""
ALONE = ["strategy.population=1", "strategy.generations=0", WIDE]
OTHERS: dict[str, list[str]] = {
    "FedAvg": ["strategy=fedavg", *BATCHES],
    "8 bits, 45 % pruned, neither clipped nor noised": [*ALONE, "strategy.clip=0", "strategy.start=[[0.45,8,0]]"],
    "the same, clipped to 1, noise 0.01 in all": [*ALONE, "strategy.start=[[0.45,8,0.01]]"],
    "`dp_fedavg`, noise 0.1": ["strategy=dp_fedavg", *BATCHES, "strategy.noise=0.1"],
    "`dp_fedavg`, noise 1": ["strategy=dp_fedavg", *BATCHES, "strategy.noise=1.0"],
    "`dp_sgd`, noise 0.5": ["strategy=dp_sgd", *AVERAGING, "strategy.rate=0.18", *PUBLIC, "strategy.noise=0.5"],
    "`dp_sgd`, noise 1": ["strategy=dp_sgd", *AVERAGING, "strategy.rate=0.18", *PUBLIC, "strategy.noise=1.0"],
}
CHURN = ["data.partition=dirichlet", "data.partition.alpha=0.3", "engine.away=0.3", "engine.stretch=5"]


def once(folder: Path, overrides: Sequence[str]) -> None:
    """Run what is not there."""
    if (folder / "summary.json").exists():
        return
    summary = train("fed_moeac_quick", ["watch.tensorboard=false", *overrides], out=folder)
    print(f"{folder.name}: {summary['cpu_seconds']:.0f} CPU-s", flush=True)


def alone(row: Row, rounds: int, seed: int) -> list[str]:
    """Return settings by which one individual is trained for so many rounds and looked at as it goes."""
    start = f"strategy.start=[[{row['threshold']!r},{int(row['bits'])},{row['noise']!r}]]"
    return [*ALONE, start, f"strategy.rounds_per_evaluation={rounds}", "strategy.validate_every=2", f"seed={seed}"]


def run(what: str, found: Path, out: Path) -> None:
    """Run one of the parts."""
    if what in ("curves", "full"):
        for method in METHODS:
            for folder in loaded(found, FOUND, method):
                seed, rows = int(folder.name.rpartition("s")[2]), front_of(folder)
                if what == "full":
                    full = [*alone(CHOICES["least error"](rows), 50, seed), "data.edition=full"]
                    if method == "fed_moeac" and seed in CURVES:
                        once(out / f"full-s{seed}", full)
                    continue
                for name, choose in CHOICES.items() if seed in CURVES else ():
                    once(out / f"curve-{method}-{name.replace(' ', '_')}-s{seed}", alone(choose(rows), 100, seed))
    elif what == "others":
        for i, overrides in enumerate(OTHERS.values()):
            for seed in range(5):
                once(out / f"other-{i}-s{seed}", [*overrides, f"seed={seed}"])
    else:
        for method in METHODS:
            once(out / f"churn-{method}-s0", [f"strategy={method}", *CHURN])


# ------------------------------------------------------------------------------------------------ tables
def ended(folder: Path) -> Row:
    """Return error and loss on test, bytes over floats, score and epsilon of a run of one model."""
    summary = json.loads((folder / "summary.json").read_text())
    privacy: dict[str, Any] = summary.get("privacy") or {}
    row = {"error": 1 - summary["accuracy_test"], "epsilon": float(privacy.get("epsilon") or "inf"), "sent": 1.0}
    if (folder / "front.csv").exists():
        (own,) = front_of(folder)
        row |= {"sent": own["communication"], "score": own["score"]}
    return row


def note_of(folder: Path) -> str:
    """Return what the score of a run leaves out; empty where nothing is said."""
    privacy = json.loads((folder / "summary.json").read_text()).get("privacy") or {}
    return privacy.get(NOTE) or ""


def curves_of(out: Path, method: str, name: str) -> list[Path]:
    """Return the folders of the finished trainings of a choice."""
    return [path.parent for path in sorted(out.glob(f"curve-{method}-{name.replace(' ', '_')}-s*/summary.json"))]


def tables(found: Path, out: Path, to: Path) -> None:
    """Print all tables, and draw the curves."""
    notes = set()
    print("| method | chosen | communication (%) | error, test, after ten rounds (%) | after 100 | "
          f"{SCORE}; T = 100 |")  # fmt: skip
    print("|---|---|---:|---:|---:|---:|")
    for method in METHODS:
        for name, choose in CHOICES.items():
            rows = [choose(front_of(folder)) for folder in loaded(found, FOUND, method)[: len(CURVES)]]
            long = [ended(folder) for folder in curves_of(out, method, name)]
            if not long:
                continue
            notes |= {note_of(folder) for folder in curves_of(out, method, name)}
            cells = [shown([100 * row["sent"] for row in long]), shown([100 * row["error_test"] for row in rows]),
                     shown([100 * row["error"] for row in long]), shown([row["score"] for row in long])]  # fmt: skip
            print(f"| `{method}` | {name} | {' | '.join(cells)} |")
    print("".join(f"\n{NOTE}: {text}" for text in sorted(notes) if text))
    rows = [ended(folder.parent) for folder in sorted(out.glob("full-s*/summary.json"))]
    if rows:
        best = 100 * (1 - min(row["error"] for row in rows))
        print(f"\nall of MNIST, fed_moeac's of least error, 50 rounds, {len(rows)} seeds: error on test "
              f"{shown([100 * row['error'] for row in rows])} %, best accuracy {best:.2f} %, communication "
              f"{shown([100 * row['sent'] for row in rows])} %, {SCORE} {shown([row['score'] for row in rows])}, "
              f"epsilon {shown([row['epsilon'] for row in rows])}")  # fmt: skip
    print("\n| ten rounds | error, test (%) | communication (%) | accounted epsilon | of a |\n|---|---:|---:|---:|---|")
    for i, name in enumerate(OTHERS):
        rows = [ended(folder.parent) for folder in sorted(out.glob(f"other-{i}-s*/summary.json"))]
        if rows:
            unit = "-" if rows[0]["epsilon"] == float("inf") else "record" if "sgd" in name else "client"
            cells = [shown([100 * row[key] for row in rows]) for key in ("error", "sent")]
            print(f"| {name} | {' | '.join(cells)} | {max(row['epsilon'] for row in rows):.3g} | {unit} |")
    print()
    for method in METHODS:
        folder = out / f"churn-{method}-s0"
        if not (folder / "summary.json").exists():
            continue
        lines, best = read_history(folder), CHOICES["least error"](front_of(folder))
        failures = sum(len(line["failures"]) for line in lines)
        asked = [len(line["per_node"]) + len(line["failures"]) for line in lines]
        print(f"churn, {method}: hypervolume {volumes(folder)[0]:.3f} -> {volumes(folder)[-1]:.3f}, error on test of "
              f"the best {100 * best['error_test']:.1f} %, communication {100 * best['communication']:.0f} %, "
              f"{min(asked)} to {max(asked)} nodes asked a round, {failures} left without an answer")  # fmt: skip
    _draw(out, to)


def _draw(out: Path, to: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4), layout="constrained")
    axes = figure.subplots(1, 2)
    for method, line in zip(METHODS, ("-", "--"), strict=True):
        for name, colour in zip(CHOICES, ("C0", "C1", "C2"), strict=True):
            folders = curves_of(out, method, name)
            for axis, key in zip(axes, ("accuracy_validation", "loss_validation"), strict=True):
                curves = [
                    [(entry["step"], entry[key]) for entry in read_history(folder) if entry.get(key) is not None]
                    for folder in folders
                ]
                if not curves:
                    continue
                values = torch.tensor([[value for _, value in curve] for curve in curves])
                axis.plot([step for step, _ in curves[0]], values.median(dim=0).values, line, color=colour,
                          label=f"{method}, {name}")  # fmt: skip
                axis.set_xlabel("round")
                axis.set_ylabel(key.replace("_", ", "))
    axes[1].set_yscale("log")
    if axes[0].lines:
        axes[0].legend(fontsize=8)
    to.mkdir(parents=True, exist_ok=True)
    figure.savefig(to / "fed_moeac_chosen.png", dpi=100)


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("curves", "full", "others", "churn", "tables"))
    parser.add_argument("--found", type=Path, default=Path("runs/moeac"))
    parser.add_argument("--out", type=Path, default=Path("runs/moeac-chosen"))
    parser.add_argument("--to", type=Path, default=Path("docs/images"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.what == "tables":
        tables(arguments.found, arguments.out, arguments.to)
    else:
        run(arguments.what, arguments.found, arguments.out)


if __name__ == "__main__":
    main()
