"""Differential evolution: a trial made of differences between other models challenges each model.

R. Storn, K. Price, "Differential evolution: a simple and efficient heuristic for global optimization over continuous
spaces", Journal of Global Optimization 11, 1997.

Deviations
- A generation's parents are evaluated again, on the same nodes and samples as their trials: a stored fitness from other
  nodes is not comparable. A generation costs 2 P evaluations and sends 2 P models.
- The first population consists of randomly initialised models, not of points in a box: weights have no bounds.
- The best model of `best/1/bin` and `current-to-best/1/bin` is the best of the last generation, on its nodes; in the
  first generation a random model takes its place.
- With `wire=lineage` nodes repeat the step from the server's decision; only the server ranks, and both ends have the
  same bits.
- A trial whose loss is not finite never replaces its parent.
- `returns=last` is the fittest of the last generation; the paper keeps the best ever, which needs stored fitness.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor

from fne.config.groups import Evolution, FittestOutcome
from fne.config.registry import Key, register
from fne.core.contracts import Metrics
from fne.core.messages import Tensors
from fne.core.randomness import derive_seed
from fne.evolution import shaping
from fne.evolution.operators import order
from fne.evolution.philox import Purpose, Stream
from fne.evolution.population import diversity
from fne.learning.evolving import Evolving
from fne.learning.task import LearningTask


@register("strategy", "de", lineage=True)
def de(
    task: LearningTask,
    *,
    seed: int,
    population: Annotated[int, Key("parents per generation, each with a trial; NP", unit="models", ge=4)] = 40,
    evolution: Evolution,
    variant: Annotated[
        Literal["rand/1/bin", "best/1/bin", "current-to-best/1/bin"], Key("base vector of the mutant")
    ] = "rand/1/bin",
    weight: Annotated[float, Key("weight of a difference; F", gt=0, le=2)] = 0.5,
    crossover: Annotated[float, Key("probability that a gene comes from the mutant; CR", ge=0, le=1)] = 0.9,
    outcome: FittestOutcome,
) -> Evolving:
    """Differential evolution: trials made of differences between models replace the parents that they beat."""
    proposer = _DE(task, seed, population=population, variant=variant, weight=weight, crossover=crossover)
    return Evolving(task, proposer, seed=seed, evolution=evolution, outcome=outcome)


class _DE:
    """State of the method: the parents, and the place of the best one."""

    remedy = "strategy.weight"

    def __init__(
        self, task: LearningTask, seed: int, *, population: int, variant: str, weight: float, crossover: float
    ) -> None:
        modules = (task.new_model(derive_seed(seed, "individual", i)) for i in range(population))
        self._parents = torch.stack([task.layout.flatten(module) for module in modules])
        self.population = 2 * population
        self.genes = self._parents[0]
        self._best = -1
        self._scales = task.layout.scales()
        self._donors, self._coins = Stream(seed, Purpose.DONORS), Stream(seed, Purpose.CROSSOVER)
        self._variant, self._weight, self._crossover = variant, weight, crossover
        self._kept: tuple[int, Tensor] | None = None

    def candidates(self, step: int) -> Tensors:
        return {"population": torch.cat([self._parents, self._trials(step)])}

    def _trials(self, step: int) -> Tensor:
        """Return a trial for each parent, `[NP, D]`; the last ones are kept for `update`."""
        if self._kept is None or self._kept[0] != step:
            self._kept = step, self._bred(step)
        return self._kept[1]

    def _bred(self, step: int) -> Tensor:
        parents = self._parents
        everyone = range(len(parents))
        words = self._donors.words(step, everyone, 4)
        first, second, third = _donors(words[:, :3])
        if self._variant == "rand/1/bin" or self._best < 0:
            base = parents[third]
        else:
            base = parents[self._best].expand_as(parents)
        if self._variant == "current-to-best/1/bin":
            base = parents + self._weight * (base - parents)
        mutants = base + self._weight * (parents[first] - parents[second])
        crossed = self._coins.uniform(step, everyone, parents.shape[1]) < self._crossover
        crossed[torch.arange(len(parents)), _below(words[:, 3], parents.shape[1])] = True  # at least one gene
        return torch.where(crossed, mutants, parents)

    def decide(self, scores: Tensor) -> Tensors:
        old, new = scores.chunk(2)
        better = (new <= old) & torch.isfinite(new)
        return {"better": shaping.packed(better), "best": order(torch.where(better, new, old))[:1].int()}

    def advance(self, step: int, decision: Tensors) -> Metrics:
        better = shaping.unpacked(decision["better"], len(self._parents))
        self._parents = torch.where(better.unsqueeze(1), self._trials(step), self._parents)
        self._best = int(decision["best"])
        self.genes = self._parents[self._best].clone()
        return {"replaced": int(better.sum()), "diversity": diversity(self._parents, self._scales)}

    def state_dict(self) -> dict[str, Tensor]:
        return {"parents": self._parents, "best": torch.tensor(self._best), "genes": self.genes}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._parents, self._best, self.genes = state["parents"], int(state["best"]), state["genes"]
        self._kept = None  # trials of other parents


def _below(words: Tensor, bound: int) -> Tensor:
    """Return whole numbers in [0, bound) made of 32-bit words."""
    return words * bound >> 32


def _donors(words: Tensor) -> list[Tensor]:
    """Return n different individuals other than i for each individual i, drawn by `words [NP, n]`."""
    count = len(words)
    taken = [torch.arange(count)]
    for word in words.unbind(dim=1):
        donor = _below(word, count - len(taken))
        for other in torch.stack(taken).sort(dim=0).values:  # skips the individuals that are taken
            donor = donor + (donor >= other)
        taken.append(donor)
    return taken[1:]
