"""Real-coded genetic algorithm on the expensive objective itself: the baseline that surrogates must beat.

Deb, "An efficient constraint handling method for genetic algorithms", 2000: binary tournaments, simulated binary
crossover, polynomial mutation; parents are the best of all evaluated points.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from fne.config.groups import PooledSearch, Runs
from fne.config.registry import Key, register
from fne.evolution import real_coded
from fne.problems.space import SearchTask
from fne.search.surrogate_rounds import draws
from fne.search.value_search import Archive, ValueSearch


@register("strategy", "rcga", pooled=True)
def rcga(
    task: SearchTask,
    *,
    seed: int,
    budget: PooledSearch,
    population: Annotated[
        int, Key("number of parents, and of children per generation", unit="points", ge=2, multiple_of=2)
    ] = 20,
    crossover_eta: Annotated[float, Key("index of simulated binary crossover", ge=0)] = 15.0,
    mutation_eta: Annotated[float, Key("index of polynomial mutation", ge=0)] = 20.0,
    runs: Runs = 1,
) -> ValueSearch:
    """Baseline on pooled data: a real-coded genetic algorithm without a surrogate."""
    d = len(task.space)
    initial, queries = budget.points(d)

    def propose(step: int, known: Archive) -> Tensor:
        values = torch.where(known.values.isnan(), torch.inf, known.values)
        parents, _ = real_coded.truncate(known.points, values, population)
        generators = draws(seed, runs, "generation", step)

        def uniform(*shape: int) -> Tensor:
            return torch.stack([torch.rand(shape, generator=g, dtype=torch.float64) for g in generators])

        chosen = real_coded.take(parents, real_coded.binary_tournament(uniform(population, 2), parents.shape[1]))
        first, second = chosen.chunk(2, dim=1)
        children = real_coded.sbx(first, second, uniform(population // 2, d), eta=crossover_eta, chance=0.5)
        return real_coded.polynomial_mutation(
            children.flatten(1, 2), uniform(population, d), eta=mutation_eta, chance=1 / d
        )

    return ValueSearch(task, seed=seed, runs=runs, initial=initial, queries=queries, each=population, propose=propose)
