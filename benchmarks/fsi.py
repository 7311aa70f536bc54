"""The FSI paper's Table 1 and Figures 7 to 10, both methods on housing, and what losses reveal.

    python benchmarks/fsi.py table1 --epochs 1000000 --out runs/fsi
    python benchmarks/fsi.py alpha --epochs 300000 --out runs/fsi
    python benchmarks/fsi.py housing --epochs 8000
    python benchmarks/fsi.py recover
    python benchmarks/fsi.py digits runs/bench/fsi/fsi_one_class-s*

All cells of a table and its seeds are the swarms of one strategy, `fsi_housing` with lists for settings, whose steps
are taken here without loop, messages and history: particles, moves and alpha are the strategy's own, and losses come
from the nodes' reduced samples, as with `exact_reduction`. A test holds this to the same particles as a run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fne.config.load import load_config
from fne.core.files import write_atomically
from fne.core.messages import Header, Request
from fne.engines.local import LocalEngine
from fne.evolution import reduction
from fne.evolution.losses import NO_ANSWER, answers
from fne.evolution.population import cleaned
from fne.evolution.swarm import Swarm, gains
from fne.run.learning_run import LearningRun, build, load_dataset
from fne.run.model_file import load_model
from fne.watch.history import read_history

BENCHMARK = 23.1956
"""Test MSE of least squares on all training data, the paper's benchmark."""
PAPER = {
    (0.0, 0.0): 24.7145, (0.0, 0.2): 33.1310, (0.0, 0.4): 38.0039, (0.0, 0.6): 32.6774, (0.0, 0.8): 39.5274,
    (0.0, 1.0): 23.1956, (0.2, 0.0): 32.4099, (0.2, 0.2): 39.0483, (0.2, 0.4): 41.0442, (0.2, 0.6): 36.5248,
    (0.2, 0.8): 23.1956, (0.4, 0.0): 24.5342, (0.4, 0.2): 40.3318, (0.4, 0.4): 34.2974, (0.4, 0.6): 23.1956,
    (0.6, 0.0): 40.7602, (0.6, 0.2): 40.9808, (0.6, 0.4): 83.6202, (0.8, 0.0): 28.9566, (0.8, 0.2): 149.6375,
    (1.0, 0.0): 22332.6867,
}  # fmt: skip
"""Table 1: (w1, w2) -> test MSE after 10^6 epochs."""
ALPHAS = (0.0005, 0.001, 0.005, 0.01, 0.05, 0.1)
"""Figure 8 names the first and the last of these."""
SHOWN = ((0.0, 0.0), (0.0, 0.6), (0.0, 1.0), (0.2, 0.8), (0.4, 0.0), (0.4, 0.6))
"""Cells of which the way is printed."""
RECORDED = 200
EPOCHS = {"table1": 1_000_000, "alpha": 300_000, "housing": 8000}
SHARED = "strategy=fsi_shared strategy.loss=mse strategy.exact_reduction=true strategy.validate_every=0"
METHODS = {"fsi": "", "fsi_shared": SHARED, "fsi_shared, one width": f"{SHARED} strategy.widths=0"}


def experiment(cells: Sequence[tuple[float, float]], swarms: int, seed: int = 0, **more: Any) -> LearningRun:
    """Return `fsi_housing` with a swarm for each pair of weights, `swarms` times."""
    w1, w2 = zip(*cells, strict=True)
    values = {"seed": seed, "strategy.w1": list(w1), "strategy.w2": list(w2), "strategy.swarms": swarms}
    return build(load_config("fsi_housing").with_values({**values, **more}))


def steps(made: LearningRun, epochs: int) -> Iterator[tuple[int, Tensor]]:
    """Take the strategy's steps on the nodes' reduced samples; yields the epoch and all particles' losses `[C, S]`.

    The swarm is as after that epoch of `fne train`, but that the nodes' triangles are reduced to a single one.
    """
    swarm: Swarm = made.strategy.lineage  # type: ignore[attr-defined]
    triangles = [reduction.reduced(made.evaluator, node.data) for node in made.worker.nodes.values()]
    pooled = torch.linalg.qr(torch.cat(triangles, dim=1), mode="r").R
    samples = sum(len(node.data) for node in made.worker.nodes.values())

    def losses(positions: Tensor) -> Tensor:
        means = reduction.squared_errors(pooled, positions.flatten(0, 1)) / samples
        return cleaned(means.view(positions.shape[:2]))[0]

    standing = losses(swarm.positions)
    swarm.best = standing.argmin(dim=1, keepdim=True)
    yield 0, standing
    for epoch in range(1, epochs + 1):
        trials = swarm.rule.trials(epoch, swarm.positions, swarm.leaders())
        found = losses(trials)
        better = (found < standing).unsqueeze(2)
        told = swarm.rule.decide(gains(found, standing).unsqueeze(2))
        swarm.positions = torch.where(better, trials, swarm.positions)
        standing = torch.minimum(standing, found)
        swarm.best = standing.argmin(dim=1, keepdim=True)
        swarm.rule.learn(better, swarm.best, told)
        yield epoch, standing


def test_errors(made: LearningRun) -> Tensor:
    """Return the test MSE of the best particle of each swarm, float64 `[C]`."""
    leaders: Tensor = made.strategy.lineage.leaders()  # type: ignore[attr-defined]
    return made.evaluator.evaluate(leaders, made.dataset.test, loss="mse")["loss"]


def alike(made: LearningRun, swarms: int) -> LearningRun:
    """Let the swarms of all cells begin where those of the first one do."""
    swarm: Swarm = made.strategy.lineage  # type: ignore[attr-defined]
    swarm.positions = swarm.positions[:swarms].repeat(len(swarm.positions) // swarms, 1, 1)
    return made


def identity(made: LearningRun) -> dict[str, Any]:
    """Return what a record is of: all settings, the seed and the cells among them, and where the particles begin."""
    positions: Tensor = made.strategy.lineage.positions  # type: ignore[attr-defined]
    return {
        "settings": made.config.to_dict(),
        "begins": hashlib.sha256(positions.numpy().tobytes()).hexdigest(),
    }


def recorded(made: LearningRun, epochs: int, path: Path) -> dict[str, Any]:
    """Run so many epochs; writes and returns when it was looked, all swarms' test errors then, processor seconds.

    A record that is there already is returned if it is of the same, and else written anew.
    """
    what: dict[str, Any] = json.loads(json.dumps(identity(made)))
    if path.exists():
        result: dict[str, Any] = json.loads(path.read_text())
        if result.get("of") == what and result["epochs"][-1:] == [epochs]:
            return result
    path.parent.mkdir(parents=True, exist_ok=True)
    wanted = {round(epochs ** (i / RECORDED)) for i in range(RECORDED + 1)}
    result = {"of": what, "epochs": [], "errors": []}
    begun = time.process_time()
    for epoch, _ in steps(made, epochs):
        if epoch in wanted:
            result["epochs"].append(epoch)
            result["errors"].append(test_errors(made).tolist())
            result["seconds"] = time.process_time() - begun
            write_atomically(path, json.dumps(result).encode())  # a run that is broken off leaves what it has
    return result


def draw(
    curves: dict[str, tuple[list[int], list[float]]], what: str, path: Path, *, x: str = "linear", y: str = "log"
) -> None:
    """Write curves over epochs to a PNG; `x` and `y` are the scales of the axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for name, (at, values) in curves.items():
        axes.plot(at, values, label=name)
    axes.set(xlabel="epoch", ylabel=what, xscale=x, yscale=y)
    axes.legend(ncols=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80)


def table1(epochs: int, swarms: int, seed: int, out: Path) -> None:
    """Print Table 1 beside the paper's, whether the benchmark is reached, and what Figure 7 shows."""
    made = experiment(list(PAPER), swarms, seed)
    run = recorded(made, epochs, out / f"table1-{epochs}.json")
    errors = torch.tensor(run["errors"], dtype=torch.float64).view(len(run["epochs"]), len(PAPER), swarms)
    print("| w1 | w2 | paper | mean ± s.d. | lowest | highest | within .001 of the benchmark |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for (w1, w2), row in zip(PAPER, errors[-1], strict=True):
        reached = int(((row - BENCHMARK).abs() < 1e-3).sum())
        spread = f"{row.mean():.4f} ± {row.std():.4f} | {row.min():.4f} | {row.max():.4f}"
        print(f"| {w1} | {w2} | {PAPER[w1, w2]:.4f} | {spread} | {reached} of {swarms} |")
    print("\n| epoch | " + " | ".join(map(str, SHOWN)) + " |\n|---:" + "|---:" * len(SHOWN) + "|")
    places = [list(PAPER).index(cell) for cell in SHOWN]
    for share in (0.1, 0.2, 0.4, 0.7, 1.0):
        k = min(range(len(run["epochs"])), key=lambda k: abs(run["epochs"][k] - share * epochs))
        print(f"| {run['epochs'][k]} | " + " | ".join(f"{errors[k, c].mean():.4f}" for c in places) + " |")
    late = [k for k, epoch in enumerate(run["epochs"]) if epoch >= epochs // 10]
    at = [run["epochs"][k] for k in late]
    curves = {f"w = {c}": (at, errors[late, p].mean(dim=1).tolist()) for c, p in zip(SHOWN, places, strict=True)}
    draw(curves, "test MSE", out / "figure7.png", y="linear")
    print(f"\n{run['seconds']:.0f} processor seconds for {len(PAPER) * swarms} swarms")


def alphas(epochs: int, swarms: int, seed: int, out: Path) -> None:
    """Print and draw Figure 8: alpha that is fixed, and the adaptive one, at w = (0, 0.6), from the same positions."""
    cells = [(0.0, 0.6)] * len(ALPHAS)
    still = {"strategy.adaptive": False, "strategy.alpha": list(ALPHAS)}
    fixed = recorded(alike(experiment(cells, swarms, seed, **still), swarms), epochs, out / f"fixed-{epochs}.json")
    adaptive = recorded(experiment(cells[:1], swarms, seed), epochs, out / f"adaptive-{epochs}.json")
    curves = {}
    print(
        "| alpha | "
        + " | ".join(f"epoch {round(epochs * share)}" for share in (0.01, 0.1, 1.0))
        + " |\n|---|---:|---:|---:|"
    )
    for name, run, row in [*((f"{a}", fixed, n) for n, a in enumerate(ALPHAS)), ("adaptive", adaptive, 0)]:
        shown = []
        errors = torch.tensor(run["errors"]).view(len(run["epochs"]), -1, swarms)[:, row]
        curves[f"alpha = {name}"] = run["epochs"], errors.mean(dim=1).tolist()
        for share in (0.01, 0.1, 1.0):
            k = min(range(len(run["epochs"])), key=lambda k: abs(run["epochs"][k] - share * epochs))
            shown.append(f"{errors[k].mean():.2f} ± {errors[k].std():.2f}")
        print(f"| {name} | " + " | ".join(shown) + " |")
    draw(curves, "test MSE", out / "figure8.png", x="log")
    print(f"\n{fixed['seconds'] + adaptive['seconds']:.0f} processor seconds")


def housing(epochs: int) -> None:
    """Print training loss and test MSE of both methods on the way, features as they are and standardised, seeds 0-2."""
    shown = [round(epochs * share) for share in (1 / 16, 1 / 4, 1)]
    print("| features | method | " + " | ".join(f"epoch {epoch}" for epoch in shown) + " | test MSE | CPU (s) |")
    print("|---|---|" + "---:|" * (len(shown) + 2))
    commands = {name: f"{words} strategy.rounds={epochs + 1}".strip() for name, words in METHODS.items()}
    for standardise in (False, True):
        for name, words in commands.items():
            losses, errors = [], []
            begun = time.process_time()
            for seed in range(3):
                more = [f"seed={seed}", f"data.standardise={str(standardise).lower()}"]
                made = build(load_config("fsi_housing", [*words.split(), *more]))
                way = {epoch: float(standing.min()) for epoch, standing in steps(made, epochs) if epoch in shown}
                losses.append([way[epoch] for epoch in shown])
                errors.append(test_errors(made))
            values = torch.cat([torch.tensor(losses), torch.stack(errors)], dim=1)
            cells = [f"{a:.3f} ± {b:.3f}" for a, b in zip(values.mean(dim=0), values.std(dim=0), strict=True)]
            seconds = (time.process_time() - begun) / 3
            print(
                f"| {'standardised' if standardise else 'raw'} | {name} | " + " | ".join(cells) + f" | {seconds:.1f} |"
            )
    print("\n" + "\n".join(f"- {name}: `fne train fsi_housing {words}`" for name, words in commands.items()))


def recover() -> None:
    """Ask the first node, then all, for 120 losses, and print what follows from nothing else."""
    made = experiment([(0.0, 1.0)], 1)
    engine = LocalEngine(made.worker)
    genes = made.task.layout.size
    i, j = torch.triu_indices(genes, genes, offset=1)
    unit = torch.eye(genes)
    queries = torch.cat([torch.zeros(1, genes), unit, -unit, unit[i] + unit[j]])
    for reduced in (True, False):
        for nodes in (engine.nodes[:1], engine.nodes):
            options = {"loss": "mse", "reduced": reduced}
            request = Request(Header(0, 0), "fitness", nodes, {"population": queries}, options=options, reduce="sum")
            (reply,) = engine.send(request).replies
            count = int(reply.payload["samples"][0])
            loss = reply.payload["loss"][:, 0].double() / count
            origin, plus, minus, both = loss.split([1, genes, genes, len(i)])
            slope = (plus - minus) / 2
            curvature = torch.diag(plus + minus - 2 * origin)
            curvature[i, j] = curvature[j, i] = both - plus[i] - plus[j] + origin
            found = -torch.linalg.solve(curvature, slope)
            samples = [made.nodes[name] for name in nodes]
            x = torch.cat([s.x for s in samples]).double()
            a, y = torch.cat([x, torch.ones(len(x), 1).double()], dim=1), torch.cat([s.y for s in samples]).double()
            exact = torch.linalg.lstsq(a, y, driver="gelsd").solution[:, 0]
            error = made.evaluator.evaluate(found.float().unsqueeze(0), made.dataset.test, loss="mse")["loss"]
            means = (curvature[:-1, -1] / curvature[-1, -1]) / x.mean(0) - 1
            print(
                f"{len(nodes)} node(s), {count} rows, {len(queries)} losses in {loss.dtype if reduced else 'float32'}: "
                f"coefficients off by {float((found - exact).abs().max()):.2g}, means of the features off by "
                f"{float(means.abs().max()):.2g} of their size, test MSE {float(error):.4f}"
            )


def digits(folders: Sequence[Path], out: Path) -> None:
    """Print of runs of fsi_mnist the confusion matrix, the accuracy per digit, and the ten losses on the way."""
    total = torch.zeros(10, 11, dtype=torch.int64)  # the last column: no answer
    curves: dict[int, list[list[float]]] = {}
    for folder in folders:
        test = load_dataset(load_config(folder / "config.yaml")).test
        with torch.inference_mode():
            told = answers(load_model(folder)(test.x))
        total += torch.bincount(test.y * 11 + told.where(told != NO_ANSWER, 10), minlength=110).view(10, 11)
        for line in read_history(folder):
            curves.setdefault(line["step"] - 1, []).append(line["losses"])
    print("| digit | " + " | ".join(map(str, range(10))) + " | right |\n|---" + "|---:" * 11 + "|")
    for digit, row in enumerate(total.tolist()):
        print(f"| {digit} | " + " | ".join(map(str, row[:10])) + f" | {100 * row[digit] / sum(row):.1f} % |")
    print("\n| epoch | " + " | ".join(f"model {m}" for m in range(10)) + " |\n|---:" + "|---:" * 10 + "|")
    means = {epoch: torch.tensor(curves[epoch]).mean(dim=0).tolist() for epoch in sorted(curves)}
    ways = {f"model {m}": (list(means), [row[m] for row in means.values()]) for m in range(10)}
    draw(ways, "training loss", out / "figure10.png")
    for epoch, row in means.items():
        if epoch in (0, 99, 249, 499, 999, 1500):
            print(f"| {epoch} | " + " | ".join(f"{value:.4f}" for value in row) + " |")


def main() -> None:
    """Run one experiment and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["table1", "alpha", "housing", "recover", "digits"])
    parser.add_argument("folders", nargs="*", type=Path, help="of digits: run folders of fsi_mnist")
    parser.add_argument("--epochs", type=int, help=", ".join(f"{what}: {count:,}" for what, count in EPOCHS.items()))
    parser.add_argument("--swarms", type=int, default=3, help="independent swarms of each cell")
    parser.add_argument("--seed", type=int, default=0, help="of the swarms of table1 and alpha")
    parser.add_argument("--out", type=Path, default=Path("runs/fsi"), help="what was recorded is kept there")
    arguments = parser.parse_args()
    epochs = arguments.epochs or EPOCHS.get(arguments.what, 0)
    if arguments.what == "recover":
        recover()
    elif arguments.what == "housing":
        housing(epochs)
    elif arguments.what == "digits":
        digits(arguments.folders, arguments.out)
    else:
        run = table1 if arguments.what == "table1" else alphas
        run(epochs, arguments.swarms, arguments.seed, arguments.out)


if __name__ == "__main__":
    main()
