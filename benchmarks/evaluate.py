"""How fast each path evaluates a population, as a ratio to the plain loop, measured in one run.

    python benchmarks/evaluate.py [--json] [--threads 1]

The plain loop copies one individual after the other into one module and calls it on the whole batch. Each figure is
the best of several interleaved repetitions, so that another program on the machine hits all paths alike. A model's own
form of a whole population is called `folded` where it folds layers together, else `stacked`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import torch
from torch import Tensor

from fne import registry
from fne.evolution.evaluate import PATHS, Evaluator, resolve_plan
from fne.evolution.genome import Layout
from fne.randomness import generator, seeded_initialisation

CASES = [  # model, settings, input shape, outputs, individuals, samples
    ("logistic", {}, (1, 28, 28), 10, 50, 512),
    ("mlp", {}, (1, 28, 28), 10, 32, 256),
    ("cnn", {}, (1, 28, 28), 10, 32, 64),
    ("vgg", {}, (3, 32, 32), 10, 8, 32),
    ("shallow_convnet", {}, (64, 256), 2, 8, 32),
]


def plain_loop(module: torch.nn.Module, layout: Layout, population: Tensor, x: Tensor) -> None:
    """Evaluate as one would without the toolkit."""
    with torch.inference_mode():
        for genes in population:
            layout.fill(module, genes)
            module(x)


def milliseconds(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the best time of each call, the calls interleaved."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            best[name] = min(best[name], (time.perf_counter() - start) * 1e3)
    return best


def main() -> None:
    """Measure every case and print a table or a line of JSON each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one line of JSON a model and path")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--model", help="this one only")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if not arguments.json:
        print("| model | genes | P x N | path | ms an individual | ratio to the loop |\n|---|---|---|---|---|---|")
    for name, settings, shape, outputs, count, samples in CASES:
        if arguments.model not in (None, name):
            continue
        with seeded_initialisation(0):
            module = registry.load("model", name)(shape, outputs, **settings).eval()
        layout = Layout(module)
        draw = generator(0, "benchmark")
        population = layout.flatten(module) * (1 + 0.1 * torch.randn(count, layout.size, generator=draw))
        x = torch.rand(samples, *shape, generator=draw)
        calls: dict[str, Callable[[], object]] = {"plain": lambda: plain_loop(module, layout, population, x)}  # noqa: B023
        for path in PATHS:
            wanted = {"path": path, "chunk": None, "tile": None, "memory": 2 * 10**9}
            evaluator = Evaluator(module, resolve_plan(module, x, wanted, output="softmax"), output="softmax")
            label = "folded" if path == "stacked" and hasattr(module, "fold") else path
            calls[label] = lambda evaluator=evaluator: evaluator.logits(population, x)  # noqa: B023
        best = milliseconds(calls, arguments.repeats)
        for path, spent in best.items():
            line = {
                "model": name,
                "path": path,
                "ms_per_individual": round(spent / count, 4),
                "ratio_to_loop": round(best["plain"] / spent, 2),
                "threads": arguments.threads,
            }
            if arguments.json:
                print(json.dumps(line))
            else:
                print(f"| {name} | {layout.size:,} | {count} x {samples} | {path} | {line['ms_per_individual']:.3f} | "
                      f"{line['ratio_to_loop']:.2f} |")  # fmt: skip


if __name__ == "__main__":
    main()
