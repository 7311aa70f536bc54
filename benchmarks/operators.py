"""How long FNE takes to make a generation, beside evaluating it, measured in one run.

    python benchmarks/operators.py [--json] [--threads 1]

A generation are 50 shallow EEG networks of 40 filters (`variant=braindecode`), evaluated on two nodes' 30 samples each
by the network's folded form, then selected, crossed and mutated. Each figure is the best of several interleaved
repetitions, so that another program on the machine hits all of them alike.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from typing import get_args

import torch

from fne import registry
from fne.evolution.evaluate import Evaluator, resolve_plan
from fne.evolution.genome import Layout
from fne.evolution.population import Crossover, Mutation, Population, Variation
from fne.randomness import generator, seeded_initialisation
from fne.types import Samples

INDIVIDUALS, NODES, SAMPLES, SHAPE = 50, 2, 30, (64, 256)


def milliseconds(calls: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the best time of each call, the calls interleaved."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            best[name] = min(best[name], (time.perf_counter() - start) * 1e3)
    return best


def main() -> None:
    """Measure every mutation and every crossover, and print a table or a line of JSON each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one line of JSON each")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=10)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with seeded_initialisation(0):
        module = registry.load("model", "shallow_convnet")(SHAPE, 2, variant="braindecode").eval()
    layout, draw = Layout(module), generator(0, "benchmark")
    genomes = layout.flatten(module) * (1 + 0.1 * torch.randn(INDIVIDUALS, layout.size, generator=draw))
    nodes = [
        Samples(torch.rand(SAMPLES, *SHAPE, generator=draw), torch.randint(2, (SAMPLES,), generator=draw))
        for _ in range(NODES)
    ]
    wanted = {"path": "stacked", "chunk": None, "tile": None, "memory": 2 * 10**9}
    evaluator = Evaluator(module, resolve_plan(module, nodes[0].x, wanted, output="softmax"), output="softmax")
    fitness = torch.rand(INDIVIDUALS, generator=draw, dtype=torch.float64)

    def generation(population: Population) -> None:
        population.advance(0, population.decide(0, fitness))
        population.genomes = genomes

    calls: dict[str, Callable[[], object]] = {
        "evaluation": lambda: [evaluator.sample_losses(genomes, samples, "nmse") for samples in nodes]
    }
    kinds = [(mutation, "kernelwise") for mutation in get_args(Mutation)]
    kinds += [("multiply", crossover) for crossover in get_args(Crossover) if crossover != "kernelwise"]
    for mutation, crossover in kinds:
        population = Population(layout, genomes, Variation(mutation=mutation, crossover=crossover), seed=0)
        calls[f"{mutation} | {crossover}"] = lambda population=population: generation(population)
    best = milliseconds(calls, arguments.repeats)
    evaluation = best.pop("evaluation")
    if not arguments.json:
        print(
            f"{INDIVIDUALS} individuals of {layout.size:,} genes, {NODES} x {SAMPLES} samples, evaluation "
            f"{evaluation:.0f} ms, {arguments.threads} thread(s)\n\n"
            "| mutation | crossover | ms a generation | share of a generation |\n|---|---|---|---|"
        )
    for name, spent in best.items():
        share = spent / (spent + evaluation)
        if arguments.json:
            mutation, crossover = name.split(" | ")
            figures = {"ms": round(spent, 1), "ms_evaluation": round(evaluation, 1), "share": round(share, 3)}
            print(json.dumps({"mutation": mutation, "crossover": crossover, **figures, "threads": arguments.threads}))
        else:
            print(f"| {name} | {spent:.1f} | {share:.1%} |")


if __name__ == "__main__":
    main()
