"""The population manager: select -> cross -> mutate, elites, the non-finite policy. It knows no nodes and no models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fne.errors import SettingError
from fne.evolution import operators
from fne.evolution.genome import Layout
from fne.randomness import generator as new_generator

Selection = Literal["paper", "truncation", "tournament"]
Crossover = Literal["kernelwise", "halving", "interleave", "mean"]
Mutation = Literal["multiply", "offset", "mixed", "lognormal"]

_DIVERSITY_GENES = 4096


@dataclass(frozen=True)
class Variation:
    """How one generation makes the next. Rates of multiplication are fractions, `offset_rate` is in gene units."""

    selection: Selection = "paper"
    parents: int = 10
    tournament_size: int = 3
    crossover: Crossover = "kernelwise"
    mutation: Mutation = "multiply"
    chance: float = 0.1
    rate: float = 0.2
    rate_max: float = 1.0
    offset_rate: float = 0.05
    additive: float = 0.3
    sign_flip: float = 0.0
    elites: int = 0


class Population:
    """`P` individuals of `D` genes, float32 `[P, D]` on the CPU, and the generator that varies them."""

    def __init__(self, layout: Layout, genomes: Tensor, variation: Variation, *, seed: int) -> None:
        count = genomes.shape[0]
        if variation.parents > count:
            raise SettingError("strategy.parents", variation.parents, f"at most strategy.population = {count}")
        if variation.elites >= count:
            raise SettingError("strategy.elites", variation.elites, f"below strategy.population = {count}")
        self.layout = layout
        self.genomes = genomes
        self.variation = variation
        self._generator = new_generator(seed, "population")
        self._scales = layout.scales()

    def __len__(self) -> int:
        return int(self.genomes.shape[0])

    def advance(self, fitness: Tensor, *, multiplier: float = 1.0) -> None:
        """Replace the population by its children; `fitness [P]` is finite or +inf, lower is better.

        Args:
            fitness: of the present population, from `cleaned`.
            multiplier: on the mutation's rate and chance; the chance stays within 1, the rate within `rate_max`.
        """
        v, draw = self.variation, self._generator
        count = len(self) - v.elites
        if v.selection == "tournament":
            first = operators.tournament(fitness, count, v.tournament_size, draw)
            second = operators.tournament(fitness, count, v.tournament_size, draw)
        else:
            pool = (
                operators.paper_pool(fitness, v.parents, draw)
                if v.selection == "paper"
                else operators.order(fitness)[: min(v.parents, int(torch.isfinite(fitness).sum()))]
            )
            first, second = operators.pairs_from_pool(pool, count, draw)
        cross = operators.CROSSOVERS[v.crossover]
        children = cross(self.layout, self.genomes[first], self.genomes[second], draw)
        self._mutate(children, multiplier)
        elites = self.genomes[operators.order(fitness)[: v.elites]]
        self.genomes = torch.cat([elites, children]) if v.elites else children

    def _mutate(self, children: Tensor, multiplier: float) -> None:
        v, draw = self.variation, self._generator
        chance = min(v.chance * multiplier, 1.0)
        rate = min(v.rate * multiplier, v.rate_max)
        if v.mutation == "multiply":
            operators.multiply(children, rate, chance, draw)
        elif v.mutation == "offset":
            operators.offset(children, v.offset_rate * multiplier, chance, draw)
        elif v.mutation == "mixed":
            additive = v.additive * multiplier
            operators.mixed(children, rate, chance, draw, additive=additive, scales=self._scales)
        else:
            operators.lognormal(children, rate, chance, draw, sign_flip=v.sign_flip)

    def diversity(self) -> float:
        """Return the function `diversity` of the genomes."""
        return diversity(self.genomes, self._scales)

    def state_dict(self) -> dict[str, Any]:
        """Return genomes and generator."""
        return {"genomes": self.genomes, "generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over genomes and generator."""
        self.genomes = state["genomes"].clone()
        self._generator.set_state(state["generator"])


def diversity(genomes: Tensor, scales: Tensor) -> float:
    """Return the mean over genes of the spread between individuals `[P, D]`, in units of the layer's initial spread.

    At most 4,096 evenly spaced genes are looked at.
    """
    if len(genomes) < 2:
        return 0.0
    stride = -(-genomes.shape[1] // _DIVERSITY_GENES)
    return float((genomes[:, ::stride].std(dim=0) / scales[::stride]).mean())


def cleaned(fitness: Tensor) -> tuple[Tensor, int]:
    """Return the fitness with NaN and infinities of either sign as +inf, and how many there were.

    Such an individual never wins a comparison; means are taken over the finite ones.
    """
    finite = torch.isfinite(fitness)
    return torch.where(finite, fitness, torch.inf), int((~finite).sum())
