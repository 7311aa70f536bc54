"""Tables II and III and figure 5 of the FDD-EA-DH paper, and what its security costs in bytes and milliseconds.

    python benchmarks/fdd_ea_dh.py run all dh big big_wo network --out runs/dh --runs 10
    python benchmarks/fdd_ea_dh.py table --out runs/dh
    python benchmarks/fdd_ea_dh.py fronts
    python benchmarks/fdd_ea_dh.py parity --out runs/dh
    python benchmarks/fdd_ea_dh.py cost
    python benchmarks/fdd_ea_dh.py traffic --out runs/dh
    python benchmarks/fdd_ea_dh.py figure5 --to docs/images

A cell is one `fne train` with `strategy.runs` seeds side by side; its folder keeps the resolved config, and is used
again only where that is what would be run now. Figures are the inverted generational distance of all that any node has
measured, the start included, as in the paper (a simulation may look). Columns:

    all      fdd_ea_mo, infill = all, with cubic interpolants: all nodes fit the same one, so the acquisition has no
             deviation. Beside it stands the paper's "FDD-EA", which has networks
    dh       fdd_ea_mo, infill = aggregator: what fdd_ea_dh selects, by the same fixed point without masks (`parity`; of
             runs side by side the first is that of a run alone, the others have other secrets in the choice of points)
    big      fdd_ea_dh, mode = literal, masks of size 10, with eq. (4): the paper's "DH-big"
    big_wo   the same without eq. (4): "DH-big-wo"
    network  as dh, with the paper's networks and their average in the place of cubic interpolants
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fne.config.load import load_config
from fne.core.messages import Header, Request, Round
from fne.engines.local import LocalEngine
from fne.evolution.indicators import igd, non_dominated
from fne.federation import wire
from fne.federation.rounds import Relaying, gather
from fne.problems.dtlz_wfg import front, wfg3_line
from fne.run.search_run import SearchRun, build_search
from fne.run.train import train
from fne.secure.engine import SecureEngine
from fne.secure.node_tasks import secure_only

# Liu et al., Tables II and III: FDD-EA, FDD-EA-DH, DH-big-wo, DH-big, each for M = 3, 5, 10.
PAPER: dict[tuple[str, int], tuple[tuple[float, float, float, float], ...]] = {
    ("dtlz", 1): ((350, 345, 354, 361), (257, 262, 271, 279), (147, 150, 158, 154)),
    ("dtlz", 2): ((0.275, 0.224, 0.732, 0.276), (0.403, 0.652, 0.825, 0.637), (0.760, 1.04, 1.04, 1.04)),
    ("dtlz", 3): ((998, 1070, 1060, 1040), (883, 872, 929, 923), (489, 496, 505, 515)),
    ("dtlz", 4): ((1.00, 0.971, 1.17, 0.992), (1.09, 1.12, 1.30, 1.13), (1.12, 1.15, 1.19, 1.17)),
    ("dtlz", 5): ((0.228, 0.168, 0.645, 0.234), (0.215, 0.229, 0.573, 0.227), (0.176, 0.379, 0.421, 0.371)),
    ("dtlz", 6): ((15.4, 15.4, 15.4, 15.4), (13.7, 13.7, 13.6, 13.6), (9.30, 9.30, 9.24, 9.21)),
    ("dtlz", 7): ((7.83, 7.86, 8.12, 7.91), (13.7, 13.1, 12.9, 13.3), (22.5, 25.3, 24.3, 23.8)),
    ("wfg", 1): ((2.47, 2.48, 2.46, 2.47), (2.65, 2.67, 2.65, 2.67), (3.44, 3.44, 3.44, 3.44)),
    ("wfg", 2): ((1.05, 0.984, 1.05, 0.978), (1.52, 1.46, 1.53, 1.52), (3.72, 3.63, 3.81, 3.57)),
    ("wfg", 3): ((0.638, 0.485, 0.690, 0.510), (0.849, 0.597, 0.953, 0.628), (1.37, 0.876, 1.50, 0.869)),
    ("wfg", 4): ((1.00, 0.949, 0.994, 0.980), (2.27, 2.20, 2.29, 2.28), (9.49, 9.37, 9.59, 9.55)),
    ("wfg", 5): ((0.903, 0.879, 0.896, 0.884), (1.69, 1.71, 1.68, 1.64), (6.67, 6.94, 7.08, 7.07)),
    ("wfg", 6): ((0.981, 0.952, 1.04, 0.960), (1.90, 1.82, 1.92, 1.88), (7.39, 7.64, 7.33, 7.38)),
    ("wfg", 7): ((0.813, 0.859, 0.873, 0.878), (1.81, 1.89, 1.83, 1.93), (7.84, 8.07, 8.06, 8.24)),
    ("wfg", 8): ((1.11, 1.04, 1.08, 1.04), (2.01, 1.99, 2.01, 1.99), (7.77, 7.74, 7.67, 7.74)),
    ("wfg", 9): ((0.801, 0.821, 0.961, 0.881), (1.75, 2.07, 2.09, 2.12), (7.33, 8.07, 7.81, 8.27)),
}
OBJECTIVES = (3, 5, 10)
BIG = 10.0
COLUMNS: dict[str, dict[str, Any]] = {
    "all": {"name": "fdd_ea_mo", "infill": "all"},
    "dh": {"name": "fdd_ea_mo", "infill": "aggregator"},
    "big_wo": {"name": "fdd_ea_dh", "mode": "literal", "noise_scale": BIG, "schedule": "constant", "normalise": False},
    "big": {"name": "fdd_ea_dh", "mode": "literal", "noise_scale": BIG, "schedule": "constant", "normalise": True},
    "network": {"name": "fdd_ea_mo", "infill": "aggregator", "surrogate": "network"},
}
LINE = "igds_to_the_line.json"
OF_PAPER = {"all": 0, "dh": 1, "big_wo": 2, "big": 3}


def instances() -> Iterator[tuple[str, int, int]]:
    """Yield suite, number and objectives of the 48 instances."""
    for suite, number in PAPER:
        for objectives in OBJECTIVES:
            yield suite, number, objectives


def problem(suite: str, number: int, objectives: int) -> dict[str, Any]:
    """Return the config's section: 20 variables, 21 where WFG2 and 3 cannot have 20."""
    odd = suite == "wfg" and number in (2, 3) and objectives == 10
    return {"name": suite, "number": number, "objectives": objectives, "dim": 21 if odd else 20, "nodes": 4}


def config(column: str, instance: tuple[str, int, int], runs: int) -> dict[str, Any]:
    """Return the config of a cell."""
    return {
        "name": f"{column}-{instance[0]}{instance[1]}-{instance[2]}",
        "problem": problem(*instance),
        "strategy": {**COLUMNS[column], "runs": runs, "finals": "literal"},  # evaluations are those of the paper
        "watch": {"tensorboard": False, "checkpoint_every": 10**6, "every": 52},
    }


# ------------------------------------------------------------------------------------------------ running
def done(column: str, instance: tuple[str, int, int], out: Path, runs: int) -> dict[str, Any] | None:
    """Return the summary of a cell if its folder has what would be run now."""
    wanted = load_config(config(column, instance, runs)).to_dict()
    folder = out / wanted["name"]
    if not (folder / "summary.json").exists():
        return None
    stored = load_config(folder / "config.yaml").to_dict()
    for tree in (stored, wanted):
        tree.pop("engine"), tree.pop("wire")
    return json.loads((folder / "summary.json").read_text()) if stored == wanted else None


def run(columns: Sequence[str], out: Path, runs: int, part: tuple[int, int]) -> None:
    """Run the cells that are not there; of several processes each takes a part of them."""
    torch.set_num_threads(1)
    todo = [(column, instance) for column in columns for instance in instances()]
    for column, instance in todo[part[0] :: part[1]]:
        if done(column, instance, out, runs) is not None:
            continue
        given = config(column, instance, runs)
        folder = out / given["name"]
        if folder.exists():
            raise SystemExit(f"{folder} holds something else; move it away, or give another --out")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            summary = train(given, out=folder)
        if instance[:2] == ("wfg", 3):
            (folder / LINE).write_text(json.dumps(_to_the_line(folder, instance[2])))
        for file in [*(folder / "nodes").glob("*"), folder / "checkpoint.pt"]:  # of 10 runs 100 megabytes
            file.unlink(missing_ok=True)
        print(f"{given['name']}: {shown(summary['igds_exact'])} {summary['cpu_seconds']:.0f} CPU-s", flush=True)


def _to_the_line(folder: Path, objectives: int) -> list[float]:
    """Return the distances to the line that the literature takes for WFG3's front."""
    states = sorted((folder / "nodes").glob("step-*.pt"))
    nodes = torch.load(states[-1], weights_only=True)["nodes"].values()
    archives = torch.cat([memory["exact"] for memory in nodes], dim=1)
    return [igd(values, wfg3_line(objectives)) for values in archives]


# ------------------------------------------------------------------------------------------------ tables
def shown(values: Sequence[float]) -> str:
    """Return mean and standard deviation."""
    return f"{statistics.mean(values):.3g} ± {statistics.stdev(values):.2g}"


def sign(values: Sequence[float], of: Sequence[float]) -> str:
    """Return + where `values` are lower than `of` by Wilcoxon's rank sums at 0.05, - where higher, else =."""
    from scipy.stats import ranksums

    test = ranksums(values, of)
    return "=" if test.pvalue >= 0.05 else "+" if test.statistic < 0 else "-"


def table(out: Path, runs: int) -> None:
    """Print tables II and III with the paper's figures beside."""
    there = {
        (column, instance): summary
        for column in COLUMNS for instance in instances()
        if (summary := done(column, instance, out, runs)) is not None
    }  # fmt: skip
    columns = [column for column in COLUMNS if any(column == c for c, _ in there)]
    quoted = [column for column in columns if column in OF_PAPER]
    titles = [t for column in columns for t in ([f"paper: {column}"] if column in quoted else []) + [column]]
    print(f"| problem | M | {' | '.join(titles)} |\n|---|---:|{'---:|' * len(titles)}")
    reached: dict[str, list[bool]] = {}
    lines: dict[str, list[bool]] = {}
    signs: dict[str, list[str]] = {}
    against = {"dh": "all", "big": "big_wo", "network": "dh"}
    for instance in instances():
        suite, number, objectives = instance
        cells, along = [], []
        for column in columns:
            summary = there.get((column, instance))
            line = out / config(column, instance, runs)["name"] / LINE
            to_line = json.loads(line.read_text()) if line.exists() else None
            if column in quoted:
                theirs = PAPER[suite, number][OBJECTIVES.index(objectives)][OF_PAPER[column]]
                cells.append(f"{theirs:g}")
                along.append("")
            if summary is None:
                cells.append("-")
                along.append("-")
                continue
            values = summary["igds_exact"]
            text = shown(values)
            along.append(shown(to_line) if to_line else "-")
            if column in quoted:
                reached.setdefault(column, []).append(statistics.mean(values) <= theirs)
                lines.setdefault(column, []).append(statistics.mean(to_line or values) <= theirs)
            other = there.get((against.get(column, ""), instance))
            if other is not None:
                signs.setdefault(column, []).append(sign(values, other["igds_exact"]))
                text += f" {signs[column][-1]}"
            cells.append(text)
        print(f"| {suite.upper()}{number} | {objectives} | {' | '.join(cells)} |")
        if (suite, number) == ("wfg", 3):
            print(f"| WFG3, to its line | {objectives} | {' | '.join(along)} |")
    print()
    for column, which in reached.items():
        print(f"{column} at or below the mean of the paper's column: {sum(which)} of {len(which)}; with the line as "
              f"the front of WFG3 {sum(lines[column])}")  # fmt: skip
    for column, found in signs.items():
        count = "/".join(str(found.count(s)) for s in "+-=")
        print(f"{column} against {against[column]}, +/-/=: {count}")
    for column in columns:
        hours = sum(summary["cpu_seconds"] for (c, _), summary in there.items() if c == column) / 3600
        print(f"{column}: {hours:.2f} CPU-hours")
    at_start = [column for column in ("dh",) if column in columns]
    for column in at_start:
        lhs = {i: _start(out / config(column, i, runs)["name"]) for i in instances() if (column, i) in there}
        low = sum(statistics.mean(there[column, i]["igds_exact"]) < 0.95 * start for i, start in lhs.items())
        print(f"{column} more than 5 % below the initial points: {low} of {len(lhs)}")


def _start(folder: Path) -> float:
    return float(json.loads((folder / "history.jsonl").read_text().splitlines()[0])["igd"])


def fronts() -> None:
    """Print how many points the reference fronts have, and k of WFG."""
    print("| problem | " + " | ".join(f"M = {m}" for m in OBJECTIVES) + " |\n|---|" + "---:|" * len(OBJECTIVES))
    for suite, number in PAPER:
        sizes = [str(len(front(suite, number, objectives))) for objectives in OBJECTIVES]
        print(f"| {suite.upper()}{number} | {' | '.join(sizes)} |")


# ------------------------------------------------------------------------------------------------ security
class Tapped(LocalEngine):
    """The local engine, with the masked vectors that single nodes have sent."""

    vectors: dict[str, torch.Tensor]

    def send(self, request: Request) -> Round:
        """Send, and look at what passes through the server."""
        if request.task != "secure_vector":
            return super().send(request)
        request = replace(request, header=replace(request.header, run=self._run))
        replies = list(self._worker.run(request))
        self.vectors = {reply.node: reply.payload["vector"] for reply in replies}
        common, private = wire.request_frames(request)
        return gather(request, replies, quorum=self._quorum, common=common, private=private)


def made(nodes: int, secure: bool, objectives: int = 3, **settings: Any) -> tuple[SearchRun, Any, Tapped]:
    """Return a search on DTLZ2, the engine that its requests go to, and the nodes' engine."""
    strategy = {"name": "fdd_ea_dh" if secure else "fdd_ea_mo", "infill": "aggregator", "finals": "literal", **settings}
    given = {
        "problem": {"name": "dtlz", "number": 2, "objectives": objectives, "nodes": nodes}, "strategy": strategy,
        "secure": secure,
    }  # fmt: skip
    search = build_search(load_config(given))
    local = Tapped(search.worker, "benchmark")
    if secure:
        secure_only(search.worker)
    return search, SecureEngine(local, search.worker.pinned) if secure else Relaying(local), local


def cost(generations: int) -> None:
    """Print milliseconds and bytes of a generation, plain and secure, for 4, 10 and 100 nodes."""
    torch.set_num_threads(1)
    head = (
        "nodes", "plain (ms)", "secure (ms)", "more (ms)", "node: down, plain (B)", "secure", "node: up, plain (B)",
        "secure", "chosen node: down, plain (B)", "secure",
    )  # fmt: skip
    print(f"| {' | '.join(head)} |\n|{'---:|' * len(head)}")
    for nodes in (4, 10, 100):
        figures: list[dict[str, float]] = []
        for secure in (False, True):
            search, engine, _ = made(nodes, secure)
            strategy, names = search.strategy, engine.nodes
            best = float("inf")
            for step in range(2 + generations):
                request = strategy.ask(names)
                start = time.perf_counter()
                round_ = engine.send(request)
                taken = (time.perf_counter() - start) * 1e3
                strategy.tell(round_)
                if step >= 2 and taken < best:
                    best, traffic, chosen = taken, round_.traffic, request.relay.nodes[0]  # type: ignore[union-attr]
            other = next(name for name in names if name != chosen)
            figures.append({
                "ms": best, "down": traffic.encoded_down[other], "up": traffic.encoded_up[other],
                "chosen": traffic.encoded_down[chosen],
            })  # fmt: skip
        plain, masked = figures
        cells = [
            str(nodes), f"{plain['ms']:.2f}", f"{masked['ms']:.2f}", f"{masked['ms'] - plain['ms']:.2f}",
            *(f"{f[key]:,.0f}" for key in ("down", "up", "chosen") for f in figures),
        ]  # fmt: skip
        print(f"| {' | '.join(cells)} |", flush=True)


def parity(out: Path) -> None:
    """Run fdd_ea_dh and fdd_ea_mo under one seed and name: do nodes measure the same; and fixed point against floats.

    Nodes' secret draws are of the run's name, too.
    """
    torch.set_num_threads(1)
    for instance in (("dtlz", 2, 3), ("wfg", 4, 5), ("dtlz", 7, 10)):
        asked, igds = {}, {}
        for label, strategy in (
            ("secure", {"name": "fdd_ea_dh"}), ("plain", {"name": "fdd_ea_mo", "infill": "aggregator"}),
            ("float", {"name": "fdd_ea_mo", "infill": "aggregator", "arithmetic": "float"}),
        ):  # fmt: skip
            name = f"parity-{label}-{instance[0]}{instance[1]}-{instance[2]}"
            given = {
                "name": "parity", "problem": problem(*instance),
                "strategy": {**strategy, "runs": 1, "finals": "literal"},
                "secure": label == "secure", "watch": {"tensorboard": False, "every": 52},
            }  # fmt: skip
            summary = train(given, out=out / name)
            states = sorted((out / name / "nodes").glob("step-*.pt"))
            nodes = torch.load(states[-1], weights_only=True)["nodes"]
            asked[label] = {node: memory["points"] for node, memory in nodes.items()}
            igds[label] = summary["igd_exact"]
        same = {
            label: all(torch.equal(asked[label][node], points) for node, points in asked["plain"].items())
            for label in ("secure", "float")
        }
        print(f"{instance[0].upper()}{instance[1]}, M = {instance[2]}: secure selects the same points as plain: "
              f"{same['secure']}; float as fixed point: {same['float']}; IGD {igds['plain']:.4g} fixed, "
              f"{igds['float']:.4g} float", flush=True)  # fmt: skip


def traffic(out: Path) -> None:
    """Print the bytes of a whole secure run of 4 nodes beside the paper's formula."""
    name = "parity-secure-dtlz2-3"
    summary = json.loads((out / name / "summary.json").read_text())
    nodes, rounds, objectives, places = 4, 24, 3, 105
    fe = 51 * places
    formula = ((3 * nodes - 2) * fe * rounds + 4 * (nodes - 1)) * 8
    counted = nodes * (summary["bytes_down_per_node"] + summary["bytes_up_per_node"])
    print(f"counted, all messages of all nodes, up and down: {counted:,.0f} B")
    print(f"paper: (3 K - 2) fe N_r log2 p + 4 (K - 1) log2 p bits, p of 64 bits, fe = {fe}, N_r = {rounds}: "
          f"{formula:,} B for one objective, {formula * objectives:,} B for {objectives}")  # fmt: skip


def figure5(to: Path) -> None:
    """Draw what the server sees of one node's predictions of a front, as printed with masks of three sizes, and secure.

    2-objective DTLZ2: after three rounds, those candidates of the chosen node's population that by the prediction of
    another node no other one dominates. Prints how many of them still are not dominated in what the server sees, and
    Spearman's rank correlation with the prediction, mean over objectives.
    """
    from matplotlib.figure import Figure
    from scipy.stats import spearmanr

    search, engine, _ = made(4, False, 2, rounds=3)
    strategy, names = search.strategy, engine.nodes
    while not strategy.done:
        request = strategy.ask(names)
        if request.relay is not None:
            chosen = request.relay.nodes[0]
        strategy.tell(engine.send(request))
    other = next(name for name in names if name != chosen)
    memory = search.worker.nodes[chosen].memory
    points = memory["front.points"][:, memory["front.taken"][0]].float()

    def seen(noise: float) -> torch.Tensor:
        options = {"surrogate": "cubic", "arithmetic": "masked", "noise": noise}
        asked = Request(Header(0, 0), "front_predict", names, {"candidates": points}, {}, options)
        return {reply.node: reply.payload["masked"][0] for reply in engine.send(asked).replies}[other]

    exact = seen(0.0)
    kept = non_dominated(exact)
    panels = {f"as printed, masks of size {noise:g}": seen(noise)[kept] for noise in (0.02, 0.2, 2.0)}
    secure, wrapped, tapped = made(4, True, 2, rounds=3)
    wrapped.send(secure.strategy.ask(names))
    secure.strategy.step = 1
    wrapped.send(replace(secure.strategy.ask(names), common={"candidates": points}))
    node = other if other in tapped.vectors else next(iter(tapped.vectors))
    words = tapped.vectors[node][1 : 1 + exact.numel()].numpy().view("uint64").astype(float) / 2**64
    panels["secure, as parts of the ring"] = torch.from_numpy(words).view(exact.shape)[kept]
    figure = Figure(figsize=(12, 3.4), layout="constrained")
    print("| what the server sees | still not dominated | rank correlation |\n|---|---:|---:|")
    for place, (title, values) in enumerate(panels.items(), 1):
        axes = figure.add_subplot(1, 4, place)
        if not title.startswith("secure"):
            axes.scatter(*exact[kept].T.tolist(), facecolors="none", edgecolors="C3", label="predicted")
        axes.scatter(*values.T.tolist(), marker="*", color="C0", label="seen")
        axes.set_title(title, fontsize="small")
        axes.legend(fontsize="x-small")
        ranks = [float(spearmanr(values[:, i], exact[kept][:, i]).statistic) for i in range(2)]
        left = int(non_dominated(values).sum())
        print(f"| {title} | {left} of {int(kept.sum())} | {sum(ranks) / 2:.2f} |")
    to.mkdir(parents=True, exist_ok=True)
    figure.savefig(to / "fdd_ea_dh_ranks.png", dpi=110)


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table", "fronts", "parity", "cost", "traffic", "figure5"))
    parser.add_argument("columns", nargs="*", help=f"of {', '.join(COLUMNS)}; all if none is given")
    parser.add_argument("--out", type=Path, default=Path("runs/dh"))
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--part", default="0/1", help="i/n: the i-th of n parts, from 0")
    parser.add_argument("--generations", type=int, default=20)
    parser.add_argument("--to", type=Path, default=Path("docs/images"))
    arguments = parser.parse_args()
    number, _, count = arguments.part.partition("/")
    unknown = sorted(set(arguments.columns) - set(COLUMNS))
    if unknown or arguments.runs < 2:
        parser.error(f"columns are {', '.join(COLUMNS)}, and --runs at least 2: {unknown or arguments.runs}")
    if arguments.what == "run":
        run(arguments.columns or list(COLUMNS), arguments.out, arguments.runs, (int(number), int(count)))
    elif arguments.what == "table":
        table(arguments.out, arguments.runs)
    elif arguments.what == "fronts":
        fronts()
    elif arguments.what == "parity":
        parity(arguments.out)
    elif arguments.what == "cost":
        cost(arguments.generations)
    elif arguments.what == "traffic":
        traffic(arguments.out)
    else:
        figure5(arguments.to)


if __name__ == "__main__":
    main()
