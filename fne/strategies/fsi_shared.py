"""Particle swarm with a shared search direction, learnt from all moves: an extension of FSI over the same answers.

As in `fsi`, particles move towards the best particle and at random, a move that does not lower the loss is undone, and
known losses are not requested again. The differences, and their reasons:

- Every move is informative, even if it is undone: the server ranks a step's moves by how much they lowered their
  particle's loss, and the random parts, weighted by rank (the utilities of SNES), point downhill. Their decaying sum,
  in which the random parts of uninformative moves cancel out, joins the next moves. The sum is normalised so that
  without any signal it is as long as a random part.
- Each gene has its own width, which grows where large random parts rank well and shrinks where small ones do (the
  natural gradient of SNES), so features may have different scales. Widths learn more slowly than in SNES, since here
  they do not control the step size, and chance in the ranks adds up. The update is the one for normal numbers: SNES's
  correction for the noise's fourth moment is part of the chosen share `widths` here.
- Each particle has its own step size, which grows with a success and shrinks with a failure, so that it is steady where
  one move in five succeeds (I. Rechenberg, "Evolutionsstrategie", 1973). A common alpha that doubles when any of twenty
  particles moves settles where one move in a hundred succeeds.
- Steps are in units of each layer's initial standard deviation, and particles start as initialised models, so networks
  need no other settings than a linear model.
- The server adds a `penalty` on the squared genes to each loss, since a swarm that fits this fast can overfit.

Direction and widths belong to the whole population, as in evolution strategies (`snes`); here they move particles that
keep their own positions and losses.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fne.config.groups import Broadcasts, SwarmEvaluation
from fne.config.registry import Key, register
from fne.core.contracts import Metrics
from fne.core.messages import Tensors
from fne.core.randomness import derive_seed
from fne.evolution import shaping
from fne.evolution.genome import Layout
from fne.evolution.philox import UNIT, VARIANCE, Perturbations, Purpose, Stream
from fne.evolution.swarm import Swarm
from fne.learning.swarming import Swarming, owners_for
from fne.learning.task import LearningTask

BOUNDS = (1e-30, 1e6)
"""Bounds of a step size and of a width: values beyond them never recover."""


@dataclass(frozen=True, kw_only=True)
class Moves:
    """How particles move, and how their step sizes and widths adapt."""

    sigma: Annotated[float, Key("first step size", unit="standard deviations of the layer's initial values", gt=0)] = (
        1.0
    )
    attraction: Annotated[float, Key("largest share of the way to the best in a move", ge=0, le=1)] = 0.3
    direction: Annotated[float, Key("weight of the shared direction in a move; the random part has weight 1", ge=0)] = (
        1.0
    )
    memory: Annotated[float, Key("share of the direction that stays from step to step", ge=0, lt=1)] = 0.7
    growth: Annotated[float, Key("factor on a particle's step size where its move succeeds", gt=1)] = 1.5
    widths: Annotated[
        float, Key("learning rate of the genes' widths, as a share of that of snes; 0: all stay 1", ge=0, le=1)
    ] = 0.2


@register("strategy", "fsi_shared", lineage=True)
def fsi_shared(
    task: LearningTask,
    *,
    seed: int,
    population: Annotated[int, Key("particles of a swarm", unit="models", ge=2)] = 20,
    broadcasts: Broadcasts,
    moves: Moves,
    penalty: Annotated[
        float, Key("factor on half the sum of a model's squared genes, which the server adds to its loss", ge=0)
    ] = 0.0,
    evaluation: SwarmEvaluation,
) -> Swarming:
    """Swarm of the FSI paper with a step size for each particle and a direction learnt from all moves."""
    modules = (task.new_model(derive_seed(seed, "individual", i)) for i in range(population))
    positions = torch.stack([task.layout.flatten(module) for module in modules]).unsqueeze(0)
    owner = owners_for(task, broadcasts.loss, apart=evaluation.one_vs_all)
    swarm = Swarm(positions, owner, _Shared(seed, task.layout, positions, owner, moves))
    return Swarming(
        task, swarm, seed=seed, broadcasts=broadcasts, evaluation=evaluation, penalty=penalty,
        lower="strategy.penalty" if penalty else "",
    )  # fmt: skip


class _Shared:
    """Rule with a shared direction, widths and step sizes; a `fne.evolution.swarm.Rule`."""

    def __init__(self, seed: int, layout: Layout, positions: Tensor, owner: Tensor, settings: Moves) -> None:
        swarms, particles, genes = positions.shape
        self._genes = [torch.nonzero(owner == model)[:, 0] for model in range(int(owner.max()) + 1)]
        self._layout, self._deviations, self._owner = layout, layout.deviations(), owner
        self._scales = layout.scales()
        self._noise = Perturbations(seed, swarms * particles, genes)
        self._ways = Stream(seed, Purpose.SWARM_MOVE)
        self._settings = settings
        self._direction = torch.zeros(swarms, genes, dtype=torch.float64)
        self._widths = torch.ones_like(self._direction)
        rates = [(3 + math.log(len(own))) / (5 * math.sqrt(len(own))) for own in self._genes]
        self._rates = torch.tensor(rates, dtype=torch.float64)[owner] * (settings.widths / 2)
        self._steps = torch.full((swarms, particles, len(self._genes)), settings.sigma, dtype=torch.float64)
        self._utilities = shaping.utilities(torch.arange(particles))
        self._unit = UNIT / float(self._utilities.square().sum().sqrt())
        self._step = 0

    def trials(self, step: int, positions: Tensor, leaders: Tensor) -> Tensor:
        swarms, particles, genes = positions.shape
        self._step = step
        move = self._noise(step).float().mul_(UNIT).view_as(positions)
        move += (self._direction * self._settings.direction).float().unsqueeze(1)
        move *= self._steps.float()[:, :, self._owner] * (self._scales * self._widths).float().unsqueeze(1)
        way = self._ways.uniform(step, range(swarms * particles), genes).view_as(positions)
        way.mul_(self._settings.attraction)
        return positions + move.add_(way.mul_(leaders.unsqueeze(1) - positions))

    def decide(self, gains: Tensor) -> Tensors:
        order = gains.argsort(dim=1, stable=True).argsort(dim=1)
        return {"ranks": shaping.small(order.flatten(), gains.shape[1] - 1)}

    def learn(self, better: Tensor, best: Tensor, told: Tensors) -> Metrics:
        weights = self._utilities[told["ranks"].long().view_as(better)]
        noise = self._noise(self._step).view(*better.shape[:2], -1)
        towards, wider = torch.empty_like(self._direction), torch.empty_like(self._direction)
        for (swarm, parts), (model, own) in itertools.product(enumerate(noise), enumerate(self._genes)):
            part, ranked = parts[:, own], weights[swarm, :, model]
            towards[swarm, own] = shaping.weighted_sum(ranked, part) * self._unit
            wider[swarm, own] = shaping.weighted_sum(ranked, part, power=2) / VARIANCE  # weights sum up to 0
        kept, growth = self._settings.memory, self._settings.growth
        self._direction = kept * self._direction + (1 - kept**2) ** 0.5 * towards
        self._widths = (self._widths * torch.exp(self._rates * wider)).clamp(*BOUNDS)
        # one success in five keeps the step size where it is
        self._steps = (self._steps * torch.where(better, growth, growth**-0.25)).clamp(*BOUNDS)
        return {"sigma": float(self._steps.mean())}

    def state_dict(self) -> dict[str, Tensor]:
        return {
            "direction": self._direction, "widths": self._widths, "steps": self._steps,
            "deviations": self._deviations,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._direction, self._widths, self._steps = state["direction"], state["widths"], state["steps"]
        self._deviations = state["deviations"]
        self._scales = self._layout.scales(self._deviations)
