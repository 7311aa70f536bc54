"""SNES: a normal distribution with one width per gene, moved along the natural gradient.

T. Schaul, T. Glasmachers, J. Schmidhuber, "High dimensions and heavy tails for natural evolution strategies", GECCO
2011, algorithm 2 (separable NES).

Deviations
- Genes are searched in units of their layer's initial standard deviation; `sigma` is the first width there.
- Samples are `philox.noise`, whole numbers with almost the moments of a normal distribution: any device can rebuild
  them from their address, and their weighted sums have the same bits in any order.
- The paper's update of a width, `exp(eta / 2 * sum u (s^2 - 1))`, is derived for normal samples. The natural gradient
  is the least-squares fit of the utilities by the derivatives of the log-density, which are `s` for the centre and
  `s^2 - 1` for the logarithm of a width. The coefficient of a width is the mean of `u (s^2 - 1)` over the variance of
  `s^2`, and the paper's 2 is this variance for a normal `s`. Here the variance of the noise's squares takes the place
  of the 2 (`philox.SQUARE_VARIANCE`, 1.698); with the 2, widths would follow a utility that is linear in `s^2` at 85 %
  of the rate. `benchmarks/widths.py` compares the evaluations with those of normal numbers.
- Candidates of equal fitness, including those with a non-finite loss, share their utilities.
- With `wire=lineage` nodes repeat the step from the server's decision; only the server ranks, and both ends have the
  same bits.
- Beyond the paper: `eta_final`, a schedule of the centre's learning rate; 1, the default, is the paper's constant.
- Each generation is evaluated on other nodes and samples, so the fitness is noisy; more candidates than the paper's
  formula gives (`population=0`) average the noise out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fne.config.groups import CentreOutcome, Evolution, UsualPopulation
from fne.config.registry import Key, register
from fne.core.contracts import Metrics
from fne.core.messages import Tensors
from fne.core.randomness import derive_seed
from fne.evolution import shaping
from fne.evolution.philox import SQUARE_VARIANCE, UNIT, VARIANCE, Perturbations
from fne.learning.evolving import Evolving, scheduled, usual_population
from fne.learning.task import LearningTask


@dataclass(frozen=True, kw_only=True)
class Widths:
    """How the centre and the widths move."""

    sigma: Annotated[
        float, Key("first width of the distribution", unit="standard deviations of the layer's initial values", gt=0)
    ] = 0.5
    eta_mu: Annotated[float, Key("learning rate of the centre", gt=0)] = 1.0
    eta_final: Annotated[float, Key("share of eta_mu in the last generation; exponential in between", gt=0)] = 1.0
    eta_sigma: Annotated[float, Key("learning rate of the widths; 0: the paper's (3 + ln D) / (5 sqrt(D))", ge=0)] = 0.0


@register("strategy", "snes", lineage=True)
def snes(
    task: LearningTask,
    *,
    seed: int,
    population: UsualPopulation = 0,
    evolution: Evolution,
    widths: Widths,
    outcome: CentreOutcome,
) -> Evolving:
    """Separable natural evolution strategy: centre and each gene's width follow the natural gradient."""
    proposer = _SNES(task, seed, evolution.rounds, population, widths)
    return Evolving(task, proposer, seed=seed, evolution=evolution, outcome=outcome)


class _SNES:
    """State of the method: centre and widths of the distribution."""

    remedy = "strategy.sigma"

    def __init__(self, task: LearningTask, seed: int, horizon: int, population: int, widths: Widths) -> None:
        self.genes = task.layout.flatten(task.new_model(derive_seed(seed, "global")))
        size = len(self.genes)
        self.population = usual_population(population, size)
        self._layout, self._deviations = task.layout, task.layout.deviations()
        self._scales = task.layout.scales()
        self._noise = Perturbations(seed, self.population, size)
        self._sigma = torch.full((size,), widths.sigma, dtype=torch.float64)
        self._horizon, self._eta_mu = horizon, (widths.eta_mu, widths.eta_final)
        self._eta_sigma = widths.eta_sigma or (3 + math.log(size)) / (5 * math.sqrt(size))

    def candidates(self, step: int) -> Tensors:
        widths = (self._scales * self._sigma).float()
        return {"population": self._noise(step).float().mul_(UNIT).mul_(widths).add_(self.genes)}

    def decide(self, scores: Tensor) -> Tensors:
        return {"ranks": shaping.small_ranks(scores)}

    def advance(self, step: int, decision: Tensors) -> Metrics:
        noise, weights = self._noise(step), shaping.utilities(decision["ranks"])
        towards = shaping.weighted_sum(weights, noise) * UNIT
        wider = shaping.weighted_sum(weights, noise, power=2) / VARIANCE - weights.sum()
        eta = scheduled(step, self._horizon, self._eta_mu)
        self.genes = (self.genes.double() + eta * self._scales * self._sigma * towards).float()
        self._sigma = self._sigma * torch.exp(self._eta_sigma / SQUARE_VARIANCE * wider)
        return {"sigma": float(self._sigma.mean())}

    def state_dict(self) -> dict[str, Tensor]:
        return {"genes": self.genes, "sigma": self._sigma, "deviations": self._deviations}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.genes, self._sigma, self._deviations = state["genes"], state["sigma"], state["deviations"]
        self._scales = self._layout.scales(self._deviations)
