"""sep-CMA-ES: a normal distribution with a diagonal covariance matrix, learnt along evolution paths.

R. Ros, N. Hansen, "A simple modification in CMA-ES achieving linear time and space complexity", PPSN X, 2008.

Deviations
- Genes are searched in units of their layer's initial standard deviation; `sigma` is the first step size there.
- Samples are `philox.noise`, whole numbers with almost the moments of a normal distribution: any device can rebuild
  them from their address, and their weighted sums have the same bits in any order.
- The second moment of the selected samples moves the variances. Selection changes the mean of `s^2` in proportion to
  the variance of `s^2`, which is 2 for a normal `s` and 1.698 for the noise (`philox.SQUARE_VARIANCE`). The change from
  1 is multiplied by the ratio of the two, so that the variances learn as fast as with normal samples; the result is 0
  where it would be negative. The path, a weighted sum of many samples, is close to normal as it is.
- Candidates of equal fitness, including those with a non-finite loss, share their weights. Both paths are then
  normalised by the effective mass of the actual weights, which is larger than the paper's constant: with that constant,
  ties alone would shrink the step size. A generation with only equal candidates is skipped.
- With `wire=lineage` nodes repeat the step from the server's decision; only the server ranks, and both ends have the
  same bits.
- The learning rate of the covariance, (D + 2) / 3 times that of CMA-ES, is bounded by 1, which it would exceed with far
  more candidates than genes.
- Each generation is evaluated on other nodes and samples, so the fitness is noisy; more candidates than the paper's
  formula gives (`population=0`) average the noise out.
"""

from __future__ import annotations

import math
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
from fne.learning.evolving import Evolving, usual_population
from fne.learning.task import LearningTask


@register("strategy", "sep_cma", lineage=True)
def sep_cma(
    task: LearningTask,
    *,
    seed: int,
    population: UsualPopulation = 0,
    evolution: Evolution,
    sigma: Annotated[
        float, Key("first step size", unit="standard deviations of the layer's initial values", gt=0)
    ] = 0.5,
    outcome: CentreOutcome,
) -> Evolving:
    """Separable CMA-ES: step size and each gene's variance adapt along the paths that the centre takes."""
    proposer = _SepCMA(task, seed, population=population, sigma=sigma)
    return Evolving(task, proposer, seed=seed, evolution=evolution, outcome=outcome)


class _SepCMA:
    """State of the method: centre, step size, diagonal of the covariance matrix, two evolution paths."""

    remedy = "strategy.sigma"

    def __init__(self, task: LearningTask, seed: int, *, population: int, sigma: float) -> None:
        self.genes = task.layout.flatten(task.new_model(derive_seed(seed, "global")))
        size = len(self.genes)
        self.population = usual_population(population, size)
        self._layout, self._deviations = task.layout, task.layout.deviations()
        self._scales = task.layout.scales()
        self._noise = Perturbations(seed, self.population, size)
        parents = self.population // 2
        raw = math.log(parents + 1) - torch.arange(1, parents + 1, dtype=torch.float64).log()
        self._weights = torch.cat([raw / raw.sum(), torch.zeros(self.population - parents, dtype=torch.float64)])
        mass = self._mass = _effective(self._weights)
        self._rate_path = 4 / (size + 4)
        self._rate_sigma = (mass + 2) / (size + mass + 3)
        self._damping = 1 + 2 * max(0.0, math.sqrt((mass - 1) / (size + 1)) - 1) + self._rate_sigma
        rank_one = 2 / (size + math.sqrt(2)) ** 2 / mass
        rank_mu = (1 - 1 / mass) * min(1.0, (2 * mass - 1) / ((size + 2) ** 2 + mass))
        self._rate_covariance = min(1.0, (size + 2) / 3 * (rank_one + rank_mu))
        self._norm = math.sqrt(size) * (
            1 - 1 / (4 * size) + 1 / (21 * size**2)
        )  # mean norm of a standard normal vector
        self._sigma = sigma
        self._variances = torch.ones(size, dtype=torch.float64)
        self._path_sigma = torch.zeros(size, dtype=torch.float64)
        self._path = torch.zeros(size, dtype=torch.float64)

    def candidates(self, step: int) -> Tensors:
        widths = (self._scales * self._sigma * self._variances.sqrt()).float()
        return {"population": self._noise(step).float().mul_(UNIT).mul_(widths).add_(self.genes)}

    def decide(self, scores: Tensor) -> Tensors:
        return {"ranks": shaping.small_ranks(scores)}

    def advance(self, step: int, decision: Tensors) -> Metrics:
        ranks = decision["ranks"]
        if bool((ranks == ranks[0]).all()):  # nothing to learn
            return self._figures()
        noise, weights = self._noise(step), shaping.by_rank(self._weights, ranks)
        mass = _effective(weights)
        mean = shaping.weighted_sum(weights, noise) * UNIT
        squares = shaping.weighted_sum(weights, noise, power=2) / VARIANCE
        squares = 1 + (squares - 1) * 2 / SQUARE_VARIANCE  # as for normal numbers; 1 where selection is blind
        widths = self._variances.sqrt()
        self.genes = (self.genes.double() + self._scales * self._sigma * widths * mean).float()

        rate = self._rate_sigma
        self._path_sigma = (1 - rate) * self._path_sigma + math.sqrt(rate * (2 - rate) * mass) * mean
        length = float(self._path_sigma.square().sum().sqrt())
        unbiased = length / math.sqrt(1 - (1 - rate) ** (2 * (step + 1)))
        rate = self._rate_path
        self._path = (1 - rate) * self._path
        if unbiased < (1.4 + 2 / (len(mean) + 1)) * self._norm:  # otherwise the step size alone has to grow
            self._path = self._path + math.sqrt(rate * (2 - rate) * mass) * widths * mean

        rate = self._rate_covariance
        learnt = self._path.square() / self._mass + (1 - 1 / self._mass) * self._variances * squares.clamp(min=0)
        self._variances = (1 - rate) * self._variances + rate * learnt
        self._sigma *= math.exp(self._rate_sigma / self._damping * (length / self._norm - 1))
        return self._figures()

    def _figures(self) -> Metrics:
        return {"sigma": self._sigma * float(self._variances.sqrt().mean())}

    def state_dict(self) -> dict[str, Tensor]:
        return {
            "genes": self.genes, "sigma": torch.tensor(self._sigma, dtype=torch.float64), "variances": self._variances,
            "path_sigma": self._path_sigma, "path": self._path, "deviations": self._deviations,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.genes, self._sigma, self._variances = state["genes"], float(state["sigma"]), state["variances"]
        self._path_sigma, self._path, self._deviations = state["path_sigma"], state["path"], state["deviations"]
        self._scales = self._layout.scales(self._deviations)


def _effective(weights: Tensor) -> float:
    """Return the effective mass of weights `[P]` that sum to 1, sorted first for the same bits in any order."""
    return float(1 / weights.sort(descending=True).values.square().sum())
