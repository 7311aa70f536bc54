"""How fast each path evaluates a population, as a ratio to the plain loop, measured in one run.

    python benchmarks/evaluate.py [--json] [--threads 1]

The plain loop copies one individual after the other into one module and calls it on the whole batch. Each figure is
the best of several interleaved repetitions, so that another program on the machine hits all paths alike. A model's own
form of a whole population is called `folded` where it folds layers together, else `stacked`. A second table holds what
`es` with `rank=1` sends, pairs around one centre, against that form for the same individuals.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

import torch
from timing import milliseconds
from torch import Tensor

from fne.config import registry
from fne.core.randomness import generator, seeded_initialisation
from fne.evolution import rank_one
from fne.evolution.evaluate import PATHS, Evaluator, resolve_plan
from fne.evolution.genome import Layout
from fne.evolution.philox import Perturbations

CASES = [  # model, settings, input shape, outputs, individuals, samples
    ("logistic", {}, (1, 28, 28), 10, 50, 512),
    ("mlp", {}, (1, 28, 28), 10, 32, 256),
    ("cnn", {}, (1, 28, 28), 10, 32, 64),
    ("vgg", {}, (3, 32, 32), 10, 8, 32),
    ("shallow_convnet", {}, (64, 256), 2, 8, 32),
    ("eegnet", {}, (64, 320), 2, 8, 32),
]
PAIRED = [
    ("shallow_convnet", {"variant": variant, "filters": filters}, (64, 256), 2, 64, 64)
    for variant in ("paper", "braindecode")
    for filters in (40, 8)
]


Calls = dict[str, Callable[[], object]]


def plain_loop(module: torch.nn.Module, layout: Layout, population: Tensor, x: Tensor) -> None:
    """Evaluate as one would without the toolkit."""
    with torch.inference_mode():
        for genes in population:
            layout.fill(module, genes)
            module(x)


def evaluator_of(module: torch.nn.Module, path: str, x: Tensor) -> Evaluator:
    """Return an evaluator as a run makes it, but on a path of one's choice."""
    wanted = {"path": path, "chunk": None, "tile": None, "memory": 2 * 10**9}
    return Evaluator(module, resolve_plan(module, x, wanted, output="softmax"), output="softmax")


def own_form(module: torch.nn.Module) -> str:
    """Return what a model's own form of a population is called."""
    return "folded" if hasattr(module, "fold") else "stacked"


def paths(module: torch.nn.Module, layout: Layout, count: int, x: Tensor, draw: torch.Generator) -> Calls:
    """Return the plain loop and every path, on different individuals."""
    population = layout.flatten(module) * (1 + 0.1 * torch.randn(count, layout.size, generator=draw))
    calls: Calls = {"plain": lambda: plain_loop(module, layout, population, x)}
    for path in PATHS:
        if path != "stacked" or hasattr(module, "forward_population"):
            evaluator = evaluator_of(module, path, x)
            label = own_form(module) if path == "stacked" else path
            calls[label] = lambda evaluator=evaluator: evaluator.logits(population, x)
    return calls


def shared_base(module: torch.nn.Module, layout: Layout, count: int, x: Tensor, draw: torch.Generator) -> Calls:
    """Return the model's own form for a population and that for pairs, both on the same individuals."""
    noise = Perturbations(0, count // 2, rank_one.width(layout))(0)
    pairs = rank_one.RankOne(layout.flatten(module), noise, rank_one.steps(layout, layout.deviations(), 0.5))
    population, evaluator = pairs.materialised(layout), evaluator_of(module, "stacked", x)
    return {
        own_form(module): lambda: evaluator.logits(population, x),
        "rank 1 shared base": lambda: evaluator.logits(pairs, x),
    }


def main() -> None:
    """Measure every case and print two tables, or a line of JSON for each figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one line of JSON a model and path")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--model", help="this one only")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for cases, calls_of, base in ((CASES, paths, "loop"), (PAIRED, shared_base, "folded")):
        if not arguments.json:
            print(f"\n| model | genes | P x N | path | ms an individual | ratio to {base} |")
            print("|---|---|---|---|---|---|")
        for name, settings, shape, outputs, count, samples in cases:
            if arguments.model not in (None, name):
                continue
            with seeded_initialisation(0):
                module = registry.load("model", name)(shape, outputs, **settings).eval()
            layout, draw = Layout(module), generator(0, "benchmark")
            x = torch.rand(samples, *shape, generator=draw)
            best = milliseconds(calls_of(module, layout, count, x, draw), arguments.repeats)
            reference = next(iter(best.values()))
            for path, spent in best.items():
                line = {
                    "model": name,
                    "settings": settings,
                    "path": path,
                    "ms_per_individual": round(spent / count, 4),
                    f"ratio_to_{base}": round(reference / spent, 2),
                    "threads": arguments.threads,
                }
                if arguments.json:
                    print(json.dumps(line))
                    continue
                shown = ", ".join([name, *(f"{key}={value}" for key, value in settings.items())])
                print(f"| {shown} | {layout.size:,} | {count} x {samples} | {path} | {spent / count:.3f} | "
                      f"{reference / spent:.2f} |")  # fmt: skip


if __name__ == "__main__":
    main()
