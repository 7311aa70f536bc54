"""Population manager: selection, crossover, mutation, elites, non-finite policy; independent of nodes and models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fne.core.contracts import Metrics
from fne.core.errors import SettingError
from fne.core.messages import Tensors
from fne.core.randomness import generator as new_generator
from fne.evolution import operators
from fne.evolution.genome import Layout
from fne.evolution.philox import Purpose, Stream
from fne.evolution.shaping import small

Selection = Literal["paper", "truncation", "tournament"]
Crossover = Literal["kernelwise", "halving", "interleave", "mean"]
Mutation = Literal["multiply", "offset", "mixed", "lognormal"]

_DIVERSITY_GENES = 4096
_PASS = {"cpu": 2**17, "cuda": 2**22}
"""Genes per pass: as many as fit a CPU's second-level cache; large launches on a GPU."""


@dataclass(frozen=True)
class Variation:
    """How one generation breeds the next. Rates of multiplication are fractions, `offset_rate` is in gene units."""

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
    """`P` individuals of `D` genes, float32 `[P, D]`; the server selects, and server and workers breed identically.

    Args:
        layout: layout of the genome.
        genomes: the first generation.
        variation: how one generation breeds the next.
        seed: seed of the run.

    Raises:
        SettingError: more parents than individuals, or so many elites that there are no children.
    """

    def __init__(self, layout: Layout, genomes: Tensor, variation: Variation, *, seed: int) -> None:
        count = genomes.shape[0]
        if variation.parents > count:
            raise SettingError("strategy.parents", variation.parents, f"at most strategy.population = {count}")
        if variation.elites >= count:
            raise SettingError("strategy.elites", variation.elites, f"below strategy.population = {count}")
        self.layout = layout
        self.genomes = genomes
        self.variation = variation
        self._seed = seed

    def __len__(self) -> int:
        return int(self.genomes.shape[0])

    def candidates(self, step: int) -> Tensors:
        """Return `population`, the current generation `[P, D]`."""
        return {"population": self.genomes}

    def decide(self, step: int, fitness: Tensor, *, multiplier: float = 1.0) -> Tensors:
        """Select parents and pair them; only the server does so, no worker repeats it.

        Args:
            step: step whose candidates were evaluated.
            fitness: fitness of the current population `[P]`, finite or +inf (from `cleaned`), lower is better.
            multiplier: factor on the mutation's rate and chance.

        Returns:
            `parents [C, 2]` of each child and, if there are any, `elites [E]`, as places in the current population;
            `multiplier`, float64 `[1]`.
        """
        v, draw = self.variation, new_generator(self._seed, "population", step)
        count = len(self) - v.elites
        if v.selection == "tournament":
            pairs = [operators.tournament(fitness, count, v.tournament_size, draw) for _ in range(2)]
        else:
            paper = v.selection == "paper"
            pool = operators.paper_pool(fitness, v.parents, draw) if paper else operators.sound(fitness)[: v.parents]
            pairs = list(operators.pairs_from_pool(pool, count, draw))
        decision = {"parents": small(torch.stack(pairs, dim=1), len(self) - 1)}
        if v.elites:
            sound = operators.sound(fitness)  # if fewer than the elites, the fittest are kept twice
            decision["elites"] = small(sound[torch.arange(v.elites) % len(sound)], len(self) - 1)
        return {**decision, "multiplier": torch.tensor([multiplier], dtype=torch.float64)}

    def advance(self, step: int, decision: Tensors) -> Metrics:
        """Replace the current generation, that of `step`, by the next one."""
        self.genomes = breed(self.layout, self.genomes, decision, self.variation, seed=self._seed, step=step)
        return {}

    def diversity(self) -> float:
        """Return the genomes' diversity, see the function `diversity`."""
        return diversity(self.genomes, self.layout.scales())

    def state_dict(self) -> dict[str, Tensor]:
        """Return the genomes."""
        return {"genomes": self.genomes}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the genomes; the next generations are bred on their device."""
        self.genomes = state["genomes"].clone()


def breed(layout: Layout, genomes: Tensor, decision: Tensors, variation: Variation, *, seed: int, step: int) -> Tensor:
    """Return the next generation, float32 `[E + C, D]`: the elites, then a mutated child of each pair.

    The bits are the same on every device: random numbers have the address (seed, step, child, gene or kernel), and
    every operation is rounded once.

    Args:
        layout: layout of the genome.
        genomes: the generation of `step`, float32 `[P, D]`, on any device.
        decision: the tensors that `Population.decide` returned.
        variation: how children are made.
        seed: seed of the run.
        step: step whose candidates are the parents.
    """
    v, device = variation, genomes.device
    parents, multiplier = decision["parents"].to(device).long(), float(decision["multiplier"])
    chance, rate = min(v.chance * multiplier, 1.0), min(v.rate * multiplier, v.rate_max)
    # bfloat16, since a standard deviation's last bits depend on the processor that computed it
    deviations = (layout.scales().bfloat16().float() * (v.additive * multiplier)).to(device)
    coins, uniform, noise = (
        Stream(seed, purpose, device) for purpose in (Purpose.CROSSOVER, Purpose.MUTATION, Purpose.MUTATION_NOISE)
    )
    result = genomes.new_empty(v.elites + len(parents), layout.size)
    if v.elites:
        result[: v.elites] = genomes[decision["elites"].to(device).long()]
    height = max(1, _PASS.get(device.type, _PASS["cuda"]) // layout.size)
    for top in range(0, len(parents), height):
        rows = range(top, min(top + height, len(parents)))
        first, second = parents[top : rows.stop].unbind(dim=1)
        children = result[v.elites + top : v.elites + rows.stop]
        torch.index_select(genomes, 0, first, out=children)
        tossed = coins.words(step, rows, layout.kernels) >= 2**31
        operators.CROSSOVERS[v.crossover](layout, children, genomes[second], tossed)
        u = uniform.uniform(step, rows, layout.size)
        if v.mutation == "multiply":
            operators.multiply(children, u, chance, rate)
        elif v.mutation == "offset":
            operators.offset(children, u, chance, v.offset_rate * multiplier)
        elif v.mutation == "mixed":
            operators.mixed(children, u, noise.noise(step, rows, layout.size), chance, rate, deviations)
        else:
            operators.lognormal(children, u, noise.noise(step, rows, layout.size), chance, rate, v.sign_flip)
    return result


def diversity(genomes: Tensor, scales: Tensor) -> float:
    """Return the mean over genes of the spread between individuals `[P, D]`, in units of the layer's initial spread.

    The mean is over at most 4,096 evenly spaced genes.
    """
    if len(genomes) < 2:
        return 0.0
    stride = -(-genomes.shape[1] // _DIVERSITY_GENES)
    return float((genomes[:, ::stride].std(dim=0) / scales[::stride]).mean())


def cleaned(fitness: Tensor) -> tuple[Tensor, int]:
    """Return the fitness with every NaN and infinity replaced by +inf, and the number of these non-finite values.

    An individual with non-finite fitness never wins a comparison; means are taken over the finite ones.
    """
    finite = torch.isfinite(fitness)
    return torch.where(finite, fitness, torch.inf), int((~finite).sum())
