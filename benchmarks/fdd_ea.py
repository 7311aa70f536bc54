"""The tables and figures of the FDD-EA paper, beside `fdd_ea_plus` and central baselines, on centred and moved optima.

    python benchmarks/fdd_ea.py run iid shifted rotated --out runs/fdd --runs 20
    python benchmarks/fdd_ea.py table iid shifted rotated --out runs/fdd
    python benchmarks/fdd_ea.py stats --out runs/fdd
    python benchmarks/fdd_ea.py pictures --out runs/fdd --to docs/images

A cell is one `fne train` with `strategy.runs` seeds side by side; its folder keeps the resolved config, and is used
again only where that is what would be run now. Moved optima are those of seeds 100 and on: settings of `dycors` were
chosen on those of seeds 0 to 39. Figures are of the best value without noise that any node has measured,
the start included, as in the paper.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fne.config.load import load_config
from fne.run.train import train
from fne.watch.history import read_history

FUNCTIONS = ("ellipsoid", "rosenbrock", "ackley", "rastrigin", "griewank")
DIMS = (10, 20, 30)
MOVED: dict[str, dict[str, Any]] = {
    "iid": {}, "shifted": {"shift": 0.3}, "rotated": {"shift": 0.3, "rotate": True},
}  # fmt: skip
FEDERATED = ("fdd_ea", "fdd_ea_plus")
CENTRAL = ("dycors", "gp_lcb", "rcga", "latin_hypercube")
WITH_CURVES = (*FEDERATED, "dycors", "gp_lcb", "rcga")
DEFAULTS = {"epochs": 20, "participation": 0.1, "lr": 0.12}

# Xu et al., Table III: mean and standard deviation of 20 runs; FDD-EA, CAL-SAPSO, GPEME, SHPSO, SSLPSO.
PAPER = {
    ("ellipsoid", 10): ((0.617, 0.313), (0.125, 0.184), (35.8, 21.1), (3.34, 1.92), (2.07, 2.02)),
    ("ellipsoid", 20): ((1.24, 0.464), (2.32, 0.114), (309, 114), (13.4, 4.79), (26.7, 7.87)),
    ("ellipsoid", 30): ((3.23, 0.418), (3.10, 2.09), (967, 221), (48.7, 17.6), (97.7, 27.5)),
    ("rosenbrock", 10): ((11.8, 1.69), (18.0, 6.33), (167, 93.0), (92.0, 59.9), (30.8, 10.1)),
    ("rosenbrock", 20): ((22.2, 1.18), (39.7, 9.36), (930, 419), (179, 73.5), (112, 28.2)),
    ("rosenbrock", 30): ((35.5, 1.05), (54.2, 12.6), (2040, 909), (212, 54.9), (246, 58.5)),
    ("ackley", 10): ((4.36, 0.336), (18.8, 0.753), (16.4, 2.88), (11.1, 2.08), (7.61, 1.24)),
    ("ackley", 20): ((3.59, 0.324), (17.2, 2.90), (18.0, 1.62), (11.2, 1.95), (10.4, 0.681)),
    ("ackley", 30): ((4.41, 0.370), (14.5, 0.262), (18.3, 1.16), (11.1, 0.936), (12.1, 0.755)),
    ("rastrigin", 10): ((21.5, 6.80), (79.8, 31.1), (59.9, 15.9), (84.4, 14.2), (68.5, 14.3)),
    ("rastrigin", 20): ((33.2, 6.56), (75.8, 20.7), (168, 37.1), (176, 20.7), (170, 12.6)),
    ("rastrigin", 30): ((74.2, 18.6), (82.8, 13.9), (261, 37.5), (276, 24.3), (271, 15.6)),
    ("griewank", 10): ((1.35, 0.194), (1.22, 0.164), (28.9, 22.5), (1.28, 0.436), (2.29, 0.495)),
    ("griewank", 20): ((1.35, 0.142), (1.37, 0.140), (119, 43.7), (1.15, 0.123), (8.07, 1.46)),
    ("griewank", 30): ((1.50, 0.182), (1.46, 0.165), (279, 64.6), (1.14, 0.0545), (18.4, 2.97)),
}
# Table IV: F-LCB, L-LCB, G-LCB.
ACQUISITIONS = {
    ("ellipsoid", 10): (0.62, 4.73, 1.07), ("ellipsoid", 20): (1.24, 18.44, 2.71),
    ("ellipsoid", 30): (3.23, 19.22, 5.97),
    ("rosenbrock", 10): (11.75, 44.32, 16.10), ("rosenbrock", 20): (22.22, 78.11, 28.60),
    ("rosenbrock", 30): (35.54, 73.30, 40.73), ("ackley", 10): (4.36, 7.41, 4.42), ("ackley", 20): (3.59, 6.80, 4.14),
    ("ackley", 30): (4.41, 6.60, 5.01), ("rastrigin", 10): (21.51, 59.14, 35.77),
    ("rastrigin", 20): (33.19, 138.68, 66.91), ("rastrigin", 30): (74.21, 199.77, 116.40),
    ("griewank", 10): (1.35, 2.36, 1.60), ("griewank", 20): (1.35, 1.76, 1.53), ("griewank", 30): (1.50, 1.94, 1.83),
}  # fmt: skip
# Table V: FDD-EA, SA-COSO.
HIGH = {
    ("ellipsoid", 50): ((21.4, 2.43), (220, 59.2)), ("ellipsoid", 100): ((695, 54.0), (1100, 189)),
    ("rosenbrock", 50): ((65.3, 1.69), (516, 77.8)), ("rosenbrock", 100): ((347, 19.1), (1200, 149)),
    ("ackley", 50): ((5.31, 0.191), (15.5, 0.593)), ("ackley", 100): ((9.14, 0.169), (15.9, 0.401)),
    ("rastrigin", 50): ((174, 17.9), (463, 35.6)), ("rastrigin", 100): ((863, 32.7), (983, 48.8)),
    ("griewank", 50): ((4.20, 0.405), (5.38, 1.76)), ("griewank", 100): ((47.2, 3.28), (15.5, 3.65)),
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One `fne train`: a function, its variables, a strategy, and what else is set."""

    group: str
    function: str
    dim: int
    strategy: str
    label: str = ""
    problem: tuple[tuple[str, Any], ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()
    most: int = 10**6
    """Runs at most: where one takes minutes."""

    @property
    def name(self) -> str:
        """Name of the folder."""
        return "-".join(filter(None, (self.group, self.function, str(self.dim), self.strategy, self.label))).replace(
            " ", "-"
        )

    def config(self, runs: int) -> dict[str, Any]:
        """Return the config of so many runs."""
        return {
            "name": self.name,
            "seed": 100 if dict(self.problem).get("shift") else 0,
            "problem": {"name": self.function, "dim": self.dim, "nodes": 100, **dict(self.problem)},
            "strategy": {
                "name": self.strategy,
                "runs": min(runs, self.most),
                **dict(self.settings),
                **({"finals": "literal"} if self.strategy in FEDERATED else {}),  # evaluations are those of the paper
            },
            "watch": {"tensorboard": False, "checkpoint_every": 10**6},
        }


def cells(group: str) -> Iterator[Cell]:
    """Yield the cells of a group."""
    instances = [(f, d) for d in DIMS for f in FUNCTIONS]
    if group in MOVED:
        moved = tuple(MOVED[group].items())
        for f, d in instances:
            for strategy in (*FEDERATED, *CENTRAL):
                yield Cell(group, f, d, strategy, "", moved, most=_most(group, strategy, d))
    elif group == "small_steps":
        for f, d in instances:
            yield Cell(group, f, d, "fdd_ea", "", (), (("epochs", 5), ("lr", 0.06)))
    elif group in ("acquisitions", "acquisitions_shifted"):
        moved = () if group == "acquisitions" else tuple(MOVED["shifted"].items())
        for f, d in instances:
            for kind in "lg":
                yield Cell(group, f, d, "fdd_ea", kind, moved, (("acquisition", kind),), most=10 if d == 30 else 20)
    elif group == "high":
        for f in FUNCTIONS:
            yield Cell(group, f, 50, "fdd_ea", most=3)
            yield Cell(group, f, 50, "fdd_ea", "300 generations", (), (("generations", 300),), most=2)
            steps = (("max_training_samples", 500), ("epochs", 5), ("lr", 0.06))  # at 0.12 networks diverge
            yield Cell(group, f, 100, "fdd_ea", "small steps", (), steps, most=1)
    elif group == "noise":
        for f, d in instances:
            for alpha in (0.5, 1.0):
                yield Cell(group, f, d, "fdd_ea", f"{alpha:g}", (("noise", alpha),), most=10)
    elif group == "tau":
        for f, d in instances:
            for tau in (20, 60):
                yield Cell(group, f, d, "fdd_ea", str(tau), (("infeasible", tau),), most=10)
    elif group == "sensitivity":
        sweeps = {
            "epochs": (5, 30, 40, 50), "participation": (0.05, 0.2, 0.3), "lr": (0.01, 0.05, 0.1, 0.15),
        }  # fmt: skip
        for d in DIMS:
            for key, values in sweeps.items():
                for value in values:
                    yield Cell(group, "ellipsoid", d, "fdd_ea", f"{key}-{value:g}", (), ((key, value),), most=5)
    else:
        raise SystemExit(f"no group {group!r}")


def _most(group: str, strategy: str, d: int) -> int:
    """Return how many runs at most: where one takes minutes, fewer."""
    if strategy == "gp_lcb":
        return {10: 5, 20: 3, 30: 1}[d]
    return 10 if group != "iid" and strategy == "fdd_ea" and d == 30 else 10**6


GROUPS = (*MOVED, "small_steps", "acquisitions", "acquisitions_shifted", "high", "noise", "tau", "sensitivity")


# ------------------------------------------------------------------------------------------------ running
def done(cell: Cell, out: Path, runs: int) -> dict[str, Any] | None:
    """Return the summary of a cell if its folder has what would be run now."""
    folder = out / cell.name
    if not (folder / "summary.json").exists():
        return None
    stored = load_config(folder / "config.yaml").to_dict()
    wanted = load_config(cell.config(runs)).to_dict()
    for tree in (stored, wanted):
        tree.pop("engine"), tree.pop("wire")
    return json.loads((folder / "summary.json").read_text()) if stored == wanted else None


def run(cell: Cell, out: Path, runs: int) -> None:
    """Run a cell if it is not there."""
    if done(cell, out, runs) is not None:
        return
    folder = out / cell.name
    if folder.exists():
        raise SystemExit(f"{folder} holds something else; move it away, or give another --out")
    summary = train(cell.config(runs), out=folder)
    for kept in (folder / "nodes", folder / "checkpoint.pt"):  # of 20 runs hundreds of megabytes
        if kept.is_dir():
            for file in kept.iterdir():
                file.unlink()
        elif kept.exists():
            kept.unlink()
    print(f"{cell.name}: {_shown(summary['best_values_exact'])} {summary['cpu_seconds']:.0f} CPU-s", flush=True)


# ------------------------------------------------------------------------------------------------ tables
def _shown(values: Sequence[float], runs: int = 0) -> str:
    """Return mean and standard deviation, and how many there are where that is not `runs`."""
    spread = f" ± {statistics.stdev(values):.3g}" if len(values) > 1 else ""
    count = f" (n = {len(values)})" if len(values) != runs else ""
    return f"{statistics.mean(values):.3g}{spread}{count}"


def _paper(pair: tuple[float, float]) -> str:
    return f"{pair[0]:.3g} ± {pair[1]:.3g}"


def _values(cell: Cell, out: Path, runs: int) -> list[float] | None:
    summary = done(cell, out, runs)
    return None if summary is None else summary["best_values_exact"]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print(f"| {' | '.join(header)} |\n| {' | '.join('---' if i == 0 else '---:' for i in range(len(header)))} |")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    print()


def table(group: str, out: Path, runs: int) -> None:
    """Print a group as Markdown."""
    there = {cell: values for cell in cells(group) if (values := _values(cell, out, runs)) is not None}
    seconds = sum(done(cell, out, runs)["cpu_seconds"] for cell in there)  # type: ignore[index]
    print(f"### {group}: {seconds / 60:.0f} CPU-minutes\n")
    columns = list(dict.fromkeys((cell.strategy, cell.label) for cell in there))
    instances = list(dict.fromkeys((cell.function, cell.dim) for cell in there))
    quoted: dict[Any, tuple[str, ...]] = {}
    if group == "iid":
        quoted = {key: (_paper(row[0]), f"{min(p[0] for p in row):.3g}") for key, row in PAPER.items()}
        titles: tuple[str, ...] = ("paper: FDD-EA", "paper: best of the row")
    elif group == "high":
        quoted, titles = {key: tuple(map(_paper, row)) for key, row in HIGH.items()}, ("paper: FDD-EA", "SA-COSO")
    elif group == "acquisitions":
        quoted = {key: tuple(f"{value:g}" for value in row) for key, row in ACQUISITIONS.items()}
        titles = ("paper: F", "L", "G")
    else:
        titles = ()
    base = {}
    if group not in MOVED and group != "high":  # beside fdd_ea as it is
        of = "shifted" if group.endswith("shifted") else "iid"
        base = {(c.function, c.dim): _values(c, out, runs) for c in cells(of) if c.strategy == "fdd_ea"}
    header = ["problem", *titles, *(["fdd_ea"] if base else []), *(label or strategy for strategy, label in columns)]
    rows = []
    for f, d in instances:
        row = [f"{f} {d}", *quoted.get((f, d), ())]
        if base:
            row.append(_shown(base[f, d], runs) if base.get((f, d)) else "-")
        for strategy, label in columns:
            values = next(
                (v for c, v in there.items() if (c.function, c.dim, c.strategy, c.label) == (f, d, strategy, label)),
                None,
            )
            row.append("-" if values is None else _shown(values, runs))
        rows.append(row)
    _table(header, rows)
    if group == "iid":
        _goals(there)
    if group in MOVED:
        means = {(c.function, c.dim, c.strategy): statistics.mean(v) for c, v in there.items()}
        both = [key for key in PAPER if all((*key, name) in means for name in FEDERATED)]
        lower = sum(means[(*key, "fdd_ea_plus")] < means[(*key, "fdd_ea")] for key in both)
        print(f"fdd_ea_plus below fdd_ea: {lower} of {len(both)}\n")
    if group.startswith("acquisitions"):
        means = {(c.function, c.dim, c.label): statistics.mean(v) for c, v in there.items()}
        whole = [key for key in base if base[key] and all((*key, kind) in means for kind in "lg")]
        for low, high in (("f", "g"), ("g", "l"), ("f", "l")):
            of = {"f": lambda key: statistics.mean(base[key])}  # type: ignore[arg-type]
            value = {k: of.get(k, lambda key, k=k: means[(*key, k)]) for k in (low, high)}
            count = sum(value[low](key) < value[high](key) for key in whole)
            print(f"{low.upper()}-LCB below {high.upper()}-LCB: {count} of {len(whole)}")
        print()


def _goals(there: dict[Cell, list[float]]) -> None:
    """Say on how many instances the paper's figures are reached."""
    means = {(c.function, c.dim, c.strategy): statistics.mean(v) for c, v in there.items()}
    own = {key: means.get((*key, "fdd_ea")) for key in PAPER}
    reached = [key for key, value in own.items() if value is not None and value <= sum(PAPER[key][0])]
    plus = {key: means.get((*key, "fdd_ea_plus")) for key in PAPER}
    below = [key for key, value in plus.items() if value is not None and value < min(p[0] for p in PAPER[key])]
    print(f"fdd_ea at or below the paper's mean + 1 std: {len(reached)} of {sum(v is not None for v in own.values())}")
    print(
        f"fdd_ea_plus below the best of the paper's row: {len(below)} of {sum(v is not None for v in plus.values())}\n"
    )


# ------------------------------------------------------------------------------------------------ tests
def stats(out: Path, runs: int) -> None:
    """Test our own methods against each other: Friedman over instances, Hommel, and Wilcoxon's rank sums."""
    for group in MOVED:
        found: dict[str, dict[tuple[str, int], list[float]]] = {}
        for cell in cells(group):
            values = _values(cell, out, runs)
            if values is not None:
                found.setdefault(cell.strategy, {})[cell.function, cell.dim] = values
        central = {name: rows for name, rows in found.items() if name != "gp_lcb"}
        enough = {k: v for k, v in found.get("gp_lcb", {}).items() if len(v) >= 3}  # else no test can tell
        for part in [central, {**central, "gp_lcb": enough}] if enough else [central]:
            _compare(group, part)


def _compare(group: str, found: dict[str, dict[tuple[str, int], list[float]]]) -> None:
    """Print mean ranks and tests of the methods on the instances that all have."""
    import numpy as np
    from scipy.stats import friedmanchisquare, norm, rankdata, ranksums
    from statsmodels.stats.multitest import multipletests

    control = "fdd_ea_plus"
    if control in found and len(found) >= 3:
        shared = sorted(set.intersection(*(set(rows) for rows in found.values())))
        names = list(found)
        means = np.array([[statistics.mean(found[name][key]) for name in names] for key in shared])
        ranks = np.apply_along_axis(rankdata, 1, means).mean(axis=0)
        statistic, p = friedmanchisquare(*means.T)
        k, n = len(names), len(shared)
        others = [name for name in names if name != control]
        z = [(ranks[names.index(o)] - ranks[names.index(control)]) / math.sqrt(k * (k + 1) / (6 * n)) for o in others]
        adjusted = multipletests([2 * norm.sf(abs(value)) for value in z], method="hommel")[1]
        print(f"### {group}: {n} instances, Friedman chi2 = {statistic:.1f}, p = {p:.2g}\n")
        rows = []
        for name in names:
            row = [name, f"{ranks[names.index(name)]:.2f}"]
            if name == control:
                rows.append([*row, "control", "-"])
                continue
            tests = [ranksums(found[control][key], found[name][key]) for key in shared]
            better = sum(t.pvalue < 0.05 and t.statistic < 0 for t in tests)
            worse = sum(t.pvalue < 0.05 and t.statistic > 0 for t in tests)
            rows.append([*row, f"{adjusted[others.index(name)]:.2g}", f"{better}/{worse}/{n - better - worse}"])
        _table(("method", "mean rank", "p (Hommel)", f"{control} better/worse/neither"), rows)


# ------------------------------------------------------------------------------------------------ pictures
def pictures(out: Path, to: Path, runs: int) -> None:
    """Draw the way of the best value over evaluations, mean and standard deviation of the logarithm.

    Of the methods on all instances (Figures 4 to 8), of the acquisitions (12), of the sensitivity (13 to 15).
    """
    plain = {(c.function, c.dim): c for c in cells("iid") if c.strategy == "fdd_ea"}
    for group in MOVED:
        columns = {f: [(c.strategy, c) for c in cells(group) if c.function == f and c.strategy in WITH_CURVES]
                   for f in FUNCTIONS}  # fmt: skip
        _draw(columns, out, to / f"fdd_ea_{group}.png", runs)
    kinds = {"f": "F-LCB", "l": "L-LCB", "g": "G-LCB"}
    columns = {f: [("F-LCB", plain[f, d]) for d in DIMS] for f in FUNCTIONS}
    for cell in cells("acquisitions"):
        columns[cell.function].append((kinds[cell.label], cell))
    _draw(columns, out, to / "fdd_ea_acquisitions.png", runs)
    columns = {}
    for cell in cells("sensitivity"):
        key, _, value = cell.label.rpartition("-")
        columns.setdefault(key, [(f"{DEFAULTS[key]:g}", plain["ellipsoid", d]) for d in DIMS]).append((value, cell))
    _draw(columns, out, to / "fdd_ea_sensitivity.png", runs, legends=True)


def _draw(
    columns: dict[str, list[tuple[str, Cell]]], out: Path, path: Path, runs: int, *, legends: bool = False
) -> None:
    """Draw a row for each number of variables; each cell is a curve by its label, of one colour in all axes."""
    import numpy as np
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.5 * len(columns), 7), layout="constrained")
    axes = figure.subplots(len(DIMS), len(columns), squeeze=False)
    colours: dict[tuple[str, str], str] = {}
    for column, (title, curves) in enumerate(columns.items()):
        for label, cell in curves:
            if _values(cell, out, runs) is None:
                continue
            lines = [line for line in read_history(out / cell.name) if line.get("best_value") is not None]
            values = np.array([line.get("best_values", [line["best_value"]]) for line in lines])
            logs = np.log(np.maximum(values, 1e-12))
            mean, deviation = logs.mean(axis=1), logs.std(axis=1)
            x = [line["evaluations"] for line in lines]
            group = title if legends else ""
            colour = colours.setdefault((group, label), f"C{sum(g == group for g, _ in colours)}")
            ax = axes[DIMS.index(cell.dim), column]
            ax.plot(x, mean, label=label, color=colour, linewidth=1)
            ax.fill_between(x, mean - deviation, mean + deviation, color=colour, alpha=0.15, linewidth=0)
        for row, d in enumerate(DIMS):
            axes[row, column].set_title(f"{title} {d}" if not legends else f"{title}, {d} variables", fontsize=9)
            axes[row, column].tick_params(labelsize=7)
            if legends:
                axes[row, column].legend(fontsize=6)
    if not colours:
        return
    if not legends:
        handles = {label: line for ax in axes.flat for line, label in zip(*ax.get_legend_handles_labels(), strict=True)}
        figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=6, fontsize=9)
    figure.supylabel("ln of the best value", fontsize=9)
    figure.supxlabel("evaluations", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=70)
    print(path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run groups, print tables, test, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table", "stats", "pictures"))
    parser.add_argument("groups", nargs="*", help=f"of {', '.join(GROUPS)}")
    parser.add_argument("--out", type=Path, default=Path("runs/fdd"))
    parser.add_argument("--to", type=Path, default=Path("docs/images"))
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument(
        "--only", default="", help="strategies, functions or dimensions, by commas; of each kind given, any"
    )
    given = parser.parse_intermixed_args(arguments)
    words = set(filter(None, given.only.split(",")))

    def wanted(cell: Cell) -> bool:
        kinds = [
            ({*FEDERATED, *CENTRAL}, cell.strategy),
            (set(FUNCTIONS), cell.function),
            (set(map(str, (*DIMS, 50, 100))), str(cell.dim)),
        ]
        return all(not (words & known) or value in words for known, value in kinds)

    if given.what == "run":
        for cell in [cell for group in given.groups for cell in cells(group) if wanted(cell)]:
            run(cell, given.out, given.runs)
    elif given.what == "table":
        for group in given.groups or GROUPS:
            table(group, given.out, given.runs)
    elif given.what == "stats":
        stats(given.out, given.runs)
    else:
        pictures(given.out, given.to, given.runs)


if __name__ == "__main__":
    sys.exit(main())
