"""FSI: particles move towards the best particle and at random; a move that does not lower the loss is undone.

Deyi Zeng, "Self-adaptive federated swarm intelligence", report.

Deviations and readings
- One broadcast a step: the paper sends the particles and then their trials in each epoch, but the losses of particles
  that did not move are known. So `rounds` is one more than the paper's epochs.
- "MSE_old changes" is read as "any particle moved" (pseudo-code, where MSE_old is a list of all particles) or as "the
  best loss changed" (text of section 7, of gbest): `changes`.
- "for several steps" is `patience`, counted anew after each halving; the paper gives no number. It gives neither the
  first positions, U(-spread, spread) here, nor the first alpha.
- Weights of nodes are n_j / n; the pseudo-code's l_j / J does not sum to 1. BCE is the mean over samples, not their
  sum, which changes no comparison; it is computed from logits, so it stays finite.
- The two random numbers of a gene come from the two halves of one word: 65,536 even steps, ends included.
- alpha stays within [1e-30, `alpha_max`], velocities within +-1e30: values that overflow never recover.
- The ten one-vs-all models are one population of models with ten outputs, see `fne.evolution.swarm`.
- Beyond the paper: several swarms and several settings side by side; particles that start as initialised models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from fne.config.groups import Broadcasts, SwarmEvaluation
from fne.config.registry import Key, register
from fne.core.contracts import Metrics
from fne.core.errors import SettingError
from fne.core.messages import Tensors
from fne.core.randomness import derive_seed
from fne.evolution.philox import Purpose, Stream
from fne.evolution.swarm import Swarm
from fne.learning.swarming import Swarming, owners_for
from fne.learning.task import LearningTask

LEAST_ALPHA = 1e-30
FASTEST = 1e30
_HALF = 2**16 - 1


@dataclass(frozen=True, kw_only=True)
class Moves:
    """Coefficients of eq. (4), and the adaptation of its step size."""

    w1: Annotated[
        float | tuple[Annotated[float, Key("", ge=0, le=1)], ...],
        Key("weight of the last velocity; several values: one per swarm", ge=0, le=1),
    ] = 0.0
    w2: Annotated[
        float | tuple[Annotated[float, Key("", ge=0, le=1)], ...],
        Key("weight of the way to the best; the random move has the weight 1 - w1 - w2", ge=0, le=1),
    ] = 0.3
    alpha: Annotated[
        float | tuple[Annotated[float, Key("", ge=0)], ...],
        Key("factor on every move, in the first epoch or, if not adaptive, in all epochs", ge=0),
    ] = 1.0
    adaptive: Annotated[
        bool, Key("double alpha when losses change, and halve it when they do not; false ignores patience and changes")
    ] = True
    changes: Annotated[
        Literal["any", "best"], Key("loss that must change: that of any particle, or that of the best")
    ] = "any"
    patience: Annotated[int, Key("epochs without a change after which alpha halves", unit="epochs", ge=1)] = 5
    alpha_max: Annotated[float, Key("upper bound of alpha", gt=0, le=1e6)] = 1e6


@register("strategy", "fsi", lineage=True)
def fsi(
    task: LearningTask,
    *,
    seed: int,
    population: Annotated[int, Key("particles of a swarm; S", unit="models", ge=1)] = 20,
    broadcasts: Broadcasts,
    moves: Moves,
    start: Annotated[
        Literal["uniform", "model"],
        Key("first positions: each gene uniform in [-spread, spread], or initialised models"),
    ] = "uniform",
    spread: Annotated[float, Key("spread of start = uniform; start = model ignores it", gt=0, le=1e6)] = 1.0,
    swarms: Annotated[
        int, Key("number of independent swarms per setting; the best one is the result", unit="swarms", ge=1)
    ] = 1,
    evaluation: SwarmEvaluation,
) -> Swarming:
    """Federated swarm intelligence: particles move towards the best one and at random, with an adaptive step size."""
    cells = _settings(moves).repeat_interleave(swarms, dim=0)
    owner = owners_for(task, broadcasts.loss, apart=evaluation.one_vs_all)
    count = len(cells) * population
    if start == "uniform":
        words = Stream(seed, Purpose.SWARM_START).words(0, range(count), task.layout.size)
        positions = ((words & _HALF).float() * (2 / _HALF) - 1) * spread
    else:
        modules = (task.new_model(derive_seed(seed, "individual", i)) for i in range(count))
        positions = torch.stack([task.layout.flatten(module) for module in modules])
    positions = positions.view(len(cells), population, -1)
    swarm = Swarm(positions, owner, _Paper(seed, positions, owner, cells, moves))
    lower = "strategy.spread" if start == "uniform" else ""
    return Swarming(task, swarm, seed=seed, broadcasts=broadcasts, evaluation=evaluation, lower=lower)


def _settings(moves: Moves) -> Tensor:
    """Return w1, w2 and alpha of each setting, float64 `[n, 3]`; single numbers serve all settings.

    Raises:
        SettingError: lists that are empty or of different lengths, or inconsistent values.
    """
    columns = {
        key: list(value) if isinstance(value, tuple | list) else [value]
        for key, value in (("w1", moves.w1), ("w2", moves.w2), ("alpha", moves.alpha))
    }
    count = max(map(len, columns.values()))
    for key, values in columns.items():
        if not values:
            raise SettingError(f"strategy.{key}", values, "a number, or a list of at least one number")
        if len(values) not in (1, count):
            raise SettingError(f"strategy.{key}", values, f"one number, or {count} like the others")
    table = torch.tensor([values * (count // len(values)) for values in columns.values()], dtype=torch.float64).t()
    for first, second, scale in table.tolist():
        if first + second > 1 + 1e-9:
            raise SettingError("strategy.w2", second, f"at most 1 - strategy.w1 = {1 - first:.6g}")
        if scale > moves.alpha_max:
            raise SettingError("strategy.alpha", scale, f"at most strategy.alpha_max = {moves.alpha_max:g}")
    return table


class _Paper:
    """Rule of eq. (4) with the adaptive alpha of algorithm 1; a `fne.evolution.swarm.Rule`."""

    def __init__(self, seed: int, positions: Tensor, owner: Tensor, cells: Tensor, settings: Moves) -> None:
        first, second, alpha = cells.unbind(dim=1)
        third = (1 - first - second).clamp_min(0)
        third = torch.where(third < 1e-9, 0.0, third)  # 1 - 0.2 - 0.8 is not 0
        self._weights = [weight.float().view(-1, 1, 1) for weight in (first, second, third)]
        self._owner, self._moves = owner, Stream(seed, Purpose.SWARM_MOVE)
        self._settings = settings
        self._velocities = torch.zeros_like(positions)
        self._next = self._velocities
        self._alpha = alpha.unsqueeze(1).repeat(1, int(owner.max()) + 1)
        self._still = torch.zeros_like(self._alpha, dtype=torch.int64)

    def trials(self, step: int, positions: Tensor, leaders: Tensor) -> Tensor:
        swarms, particles, genes = positions.shape
        words = self._moves.words(step, range(swarms * particles), genes).view_as(positions)
        towards = (words & _HALF).float().mul_(1 / _HALF)
        towards *= leaders.unsqueeze(1) - positions
        anywhere = (words >> 16).float().mul_(2 / _HALF).sub_(1)
        inertia, attraction, mutation = self._weights
        v = self._velocities * inertia
        v += towards.mul_(attraction)
        v += anywhere.mul_(mutation)
        v *= self._alpha.float()[:, self._owner].unsqueeze(1)  # eq. (4)
        self._next = v.clamp_(-FASTEST, FASTEST)
        return positions + v

    def decide(self, gains: Tensor) -> Tensors:
        return {}

    def learn(self, better: Tensor, best: Tensor, told: Tensors) -> Metrics:
        self._velocities = self._next
        if self._settings.adaptive:
            # the best particle changes, or its loss changes, only if it moved
            moved = better if self._settings.changes == "any" else better.gather(1, best.unsqueeze(1))
            changed = moved.any(dim=1)
            self._still = torch.where(changed, 0, self._still + 1)
            halved = self._still == self._settings.patience
            self._still = torch.where(halved, 0, self._still)
            factor = torch.where(changed, 2.0, torch.where(halved, 0.5, 1.0))
            self._alpha = (self._alpha * factor).clamp(LEAST_ALPHA, self._settings.alpha_max)
        return {"alpha": float(self._alpha.mean())}

    def state_dict(self) -> dict[str, Tensor]:
        return {"velocities": self._velocities, "alpha": self._alpha, "still": self._still}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._velocities, self._alpha, self._still = state["velocities"], state["alpha"], state["still"]
