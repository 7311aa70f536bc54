"""How long FNE takes to make a generation, beside evaluating it, measured in one run.

    python benchmarks/operators.py [--json] [--threads 1]

A generation are 50 shallow EEG networks of 40 filters (`variant=braindecode`), evaluated on two nodes' 30 samples each
by the network's folded form, then selected, crossed and mutated. With `wire=lineage` server and worker both cross and
mutate, and both take the digest of what they made; here they are one process, as in the engine `local`. Each figure is
the best of several interleaved repetitions, so that another program on the machine hits all of them alike.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import get_args

import torch
from timing import milliseconds

from fne.config import registry
from fne.core.dataset import Samples
from fne.core.randomness import generator, seeded_initialisation
from fne.evolution.evaluate import Evaluator, resolve_plan
from fne.evolution.genome import Layout
from fne.evolution.population import Crossover, Mutation, Population, Variation
from fne.federation import lineage

INDIVIDUALS, NODES, SAMPLES, SHAPE = 50, 2, 30, (64, 256)


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
    origin = lineage.origin_tensor({"strategy": "fne", "seed": 0, "settings": {}})

    def tensors(population: Population) -> None:
        population.advance(0, population.decide(0, fitness))
        population.genomes = genomes

    def replayed(population: Population) -> None:
        decision = population.decide(0, fitness)
        for _ in ("server", "worker"):
            population.advance(0, decision)
            lineage.digest(origin, population.state_dict())
            population.genomes = genomes

    wires = {"tensors": tensors, "lineage": replayed}
    kinds = [(mutation, "kernelwise") for mutation in get_args(Mutation)]
    kinds += [("multiply", crossover) for crossover in get_args(Crossover) if crossover != "kernelwise"]
    calls: dict[str, Callable[[], object]] = {
        "evaluation": lambda: [evaluator.sample_losses(genomes, samples, "nmse") for samples in nodes]
    }
    for mutation, crossover in kinds:
        population = Population(layout, genomes, Variation(mutation=mutation, crossover=crossover), seed=0)
        for wire, make in wires.items():
            calls[f"{mutation} | {crossover} | {wire}"] = lambda make=make, population=population: make(population)
    best = milliseconds(calls, arguments.repeats)
    evaluation = best.pop("evaluation")
    if not arguments.json:
        print(
            f"{INDIVIDUALS} individuals of {layout.size:,} genes, {NODES} x {SAMPLES} samples, evaluation "
            f"{evaluation:.0f} ms, {arguments.threads} thread(s)\n\n"
            f"| mutation | crossover |{''.join(f' {wire}: ms | share of a generation |' for wire in wires)}\n"
            "|---|---|---:|---:|---:|---:|"
        )
    for mutation, crossover in kinds:
        spent = {wire: best[f"{mutation} | {crossover} | {wire}"] for wire in wires}
        share = {wire: ms / (ms + evaluation) for wire, ms in spent.items()}
        if not arguments.json:
            cells = "".join(f" {spent[wire]:.1f} | {share[wire]:.1%} |" for wire in wires)
            print(f"| {mutation} | {crossover} |{cells}")
            continue
        line = {"mutation": mutation, "crossover": crossover, "ms_evaluation": round(evaluation, 1)}
        for wire in wires:
            line |= {f"ms_{wire}": round(spent[wire], 1), f"share_{wire}": round(share[wire], 3)}
        print(json.dumps({**line, "threads": arguments.threads}))


if __name__ == "__main__":
    main()
