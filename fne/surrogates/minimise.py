"""Minimisation of cheap functions by a real-coded genetic algorithm, many runs side by side.

Shapes: `B` runs, `P` individuals, `d` variables. Latin hypercube start, binary tournaments, simulated binary crossover,
polynomial mutation; parents and children together are truncated. Points lie in the cube [-1, 1]^d.

Source: Deb, "An efficient constraint handling method for genetic algorithms" (2000).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fne.evolution import real_coded

Score = Callable[[Tensor], Tensor]
"""From points `[B, P, d]` to values `[B, P]`, lower is better."""
_BLOCK = 10
"""Number of generations whose random numbers are drawn at once."""


def minimise(
    score: Score,
    variables: int,
    generators: Sequence[torch.Generator],
    *,
    population: int = 100,
    generations: int = 100,
    crossover_eta: float = 1.0,
    crossover_gene: float = 0.5,
    mutation_eta: float = 1.0,
    mutation_gene: float | None = None,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> tuple[Tensor, Tensor]:
    """Return the best point `[B, d]` and its score `[B]` of each run.

    Args:
        score: see `Score`; a non-finite value counts as the worst.
        variables: number of variables; d.
        generators: a generator for each run, on the CPU; a run draws from its own generator alone.
        population: number of individuals; P, even.
        generations: number of generations of children; the start is evaluated before the first.
        crossover_eta, crossover_gene: index of the crossover, and the probability that a variable is crossed.
        mutation_eta, mutation_gene: index of the mutation, and the probability for each variable, 1/d unless given.
        dtype, device: type and device of the points.
    """
    chance = 1 / variables if mutation_gene is None else mutation_gene

    def uniform(*shape: int) -> Tensor:
        drawn = torch.stack([torch.rand(shape, generator=g, dtype=dtype) for g in generators])
        return drawn.to(device)

    def assess(points: Tensor) -> Tensor:
        values = score(points)
        return values.where(values.isfinite(), math.inf)

    start = uniform(2, population, variables)
    points = real_coded.latin_hypercube(start[:, 0], start[:, 1])
    points, values = real_coded.truncate(points, assess(points), population)
    for generation in range(generations):
        place = generation % _BLOCK
        if place == 0:
            block = min(_BLOCK, generations - generation)
            fights = uniform(block, population, 2)
            crossing = uniform(block, population // 2, variables)
            mutating = uniform(block, population, variables)
        parents = real_coded.take(points, real_coded.binary_tournament(fights[:, place], population))
        first, second = parents.chunk(2, dim=1)
        children = real_coded.sbx(first, second, crossing[:, place], eta=crossover_eta, chance=crossover_gene)
        children = children.flatten(1, 2)
        children = real_coded.polynomial_mutation(children, mutating[:, place], eta=mutation_eta, chance=chance)
        both = torch.cat([points, children], dim=1), torch.cat([values, assess(children)], dim=1)
        points, values = real_coded.truncate(*both, population)
    return points[:, 0], values[:, 0]
