"""Evolution strategy: candidates in antithetic pairs around one model, which moves along their weighted sum.

T. Salimans, J. Ho, X. Chen, S. Sidor, I. Sutskever, "Evolution strategies as a scalable alternative to reinforcement
learning", arXiv:1703.03864, 2017 (OpenAI-ES).

Deviations
- Genes are searched in units of their layer's initial standard deviation: `sigma` and `lr` mean the same in every
  layer, whatever its fan-in.
- Perturbations are `philox.noise`, whole numbers with almost the moments of a normal distribution: any device can
  rebuild them from their address, and their weighted sum has the same bits in any order.
- All candidates of a generation see the same samples of the same nodes; candidates of equal fitness share their rank.
- `rank=1` perturbs each matrix by the product of two vectors (B. Sarkar et al., "Evolution strategies at the
  hyperscale", arXiv:2511.16652, 2025): messages are small, and a model may evaluate all candidates around their common
  centre; see `fne.evolution.rank_one`.
- With `wire=lineage` nodes repeat the step from the server's decision; only the server ranks, and both ends have the
  same bits.
- Weight decay acts on the model beside the optimizer (Loshchilov, Hutter, arXiv:1711.05101), not through its gradient.
- Beyond the paper: schedules of `lr` and `sigma`, `shape=utilities|raw`, and `uplink`: `levels` sends losses in a byte
  each, `ranks` no loss, `sign` one bit per pair. With `ranks` and `sign`, mean ranks or mean votes over nodes, weighted
  by samples, replace the losses. A node gives ties the mean of their ranks, and draws the bit of a tied pair.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from fne.config.groups import CentreOutcome, Evolution, MomentumOfSgd
from fne.config.registry import Key, register
from fne.core.contracts import Metrics
from fne.core.errors import SettingError
from fne.core.messages import Tensors
from fne.core.randomness import derive_seed
from fne.evolution import rank_one, shaping
from fne.evolution.philox import UNIT, Perturbations
from fne.learning.evolving import Evolving, scheduled
from fne.learning.task import LearningTask


@dataclass(frozen=True, kw_only=True)
class Moves:
    """How candidates are perturbed, what nodes answer, and how the centre moves."""

    sigma: Annotated[
        float, Key("size of a perturbation", unit="standard deviations of the layer's initial values", gt=0)
    ] = 0.5
    sigma_final: Annotated[float, Key("share of sigma in the last generation; exponential in between", gt=0)] = 1.0
    rank: Annotated[
        Literal["full", 1],
        Key("rank of a layer's perturbation as a matrix: full, a number per gene, or 1, a product of two vectors"),
    ] = "full"
    shape: Annotated[
        Literal["ranks", "utilities", "raw"],
        Key("weight of a candidate: centred rank, SNES's utility, or minus the loss itself"),
    ] = "ranks"
    optimizer: Annotated[Literal["adam", "sgd"], Key("optimizer that turns the weighted sum into a step")] = "adam"
    lr: Annotated[
        float,
        Key("learning rate; for adam the step size", unit="standard deviations of the layer's initial values", gt=0),
    ] = 0.3
    lr_final: Annotated[float, Key("share of lr in the last generation; exponential in between", gt=0)] = 0.1
    momentum: MomentumOfSgd = 0.0
    weight_decay: Annotated[float, Key("share of each gene that a generation removes, times lr", ge=0)] = 0.0
    uplink: Annotated[
        Literal["fitness", "levels", "ranks", "sign"],
        Key("answer of a node: a loss per candidate, in 4 bytes or in one, a rank, or one bit for each pair"),
    ] = "fitness"


@register("strategy", "es", lineage=True)
def es(
    task: LearningTask,
    *,
    seed: int,
    population: Annotated[int, Key("candidates per generation, in antithetic pairs; even", unit="models", ge=2)] = 40,
    evolution: Evolution,
    moves: Moves,
    outcome: CentreOutcome,
) -> Evolving:
    """Evolution strategy: the mean of a population of antithetic pairs moves along their ranked, weighted sum."""
    if population % 2:
        raise SettingError("strategy.population", population, "even: candidates come in antithetic pairs")
    if moves.momentum and moves.optimizer != "sgd":
        allowed = f"0 with optimizer = {moves.optimizer}: only sgd has momentum"
        raise SettingError("strategy.momentum", moves.momentum, allowed)
    fastest = moves.lr * max(1.0, moves.lr_final)
    if fastest * moves.weight_decay > 1:
        allowed = f"at most {1 / fastest:.6g}, 1 over the largest lr: their product is the share of a gene that decays"
        raise SettingError("strategy.weight_decay", moves.weight_decay, allowed)
    if moves.uplink == "sign" and moves.shape != "ranks":
        raise SettingError("strategy.shape", moves.shape, "ranks with uplink = sign: its weights are the votes")
    proposer = _ES(task, seed, evolution.rounds, population, moves)
    return Evolving(task, proposer, seed=seed, evolution=evolution, outcome=outcome, uplink=moves.uplink)


class _ES:
    """The centre, the perturbations around it, and the optimizer that moves it."""

    remedy = "strategy.sigma or strategy.lr"

    def __init__(self, task: LearningTask, seed: int, horizon: int, population: int, moves: Moves) -> None:
        self.genes = task.layout.flatten(task.new_model(derive_seed(seed, "global")))
        self.population = population
        self._layout, self._deviations = task.layout, task.layout.deviations()
        self._scales = task.layout.scales()
        self._of_rank_one = moves.rank == 1
        numbers = rank_one.width(task.layout) if self._of_rank_one else len(self.genes)
        self._noise = Perturbations(seed, population // 2, numbers)
        self._horizon, self._moves = horizon, moves
        self._shape = "votes" if moves.uplink == "sign" else moves.shape
        self._adam = moves.optimizer == "adam"
        self._first = torch.zeros(len(self.genes), dtype=torch.float64)
        self._second = torch.zeros(len(self.genes) if self._adam else 0, dtype=torch.float64)

    def _sigma(self, step: int) -> float:
        return scheduled(step, self._horizon, (self._moves.sigma, self._moves.sigma_final))

    def candidates(self, step: int) -> Tensors:
        sigma = self._sigma(step)
        if self._of_rank_one:
            steps = rank_one.steps(self._layout, self._deviations, sigma)
            return {"centre": self.genes, "factors": self._noise(step), "sigma": steps}
        offsets = self._noise(step).float().mul_(UNIT).mul_(self._scales * sigma)
        return {"population": torch.cat([self.genes + offsets, self.genes - offsets])}

    def decide(self, scores: Tensor) -> Tensors:
        if self._shape == "votes":  # the second of a pair has the first's vote, negated
            return {"votes": scores[: self.population // 2]}
        return {"losses": scores} if self._shape == "raw" else {"ranks": shaping.small_ranks(scores)}

    def advance(self, step: int, decision: Tensors) -> Metrics:
        sigma = self._sigma(step)
        lr = scheduled(step, self._horizon, (self._moves.lr, self._moves.lr_final))
        first, second = self._weights(**decision).chunk(2)
        weights, noise = first - second, self._noise(step)
        if self._of_rank_one:
            summed = rank_one.weighted_sum(weights, noise, self._layout)
        else:
            summed = shaping.weighted_sum(weights, noise)
        ascent = summed * (UNIT / (self.population * sigma))
        move = lr * (self._adam_step(ascent, step + 1) if self._adam else self._sgd_step(ascent))
        kept = self.genes.double() * (1 - lr * self._moves.weight_decay)
        self.genes = (kept + self._scales * move).float()
        return {"sigma": sigma, "lr": lr}

    def _weights(
        self, ranks: Tensor | None = None, votes: Tensor | None = None, losses: Tensor | None = None
    ) -> Tensor:
        """Return the candidates' weights, float64 `[P]`, from the one of the three that the server decided."""
        if ranks is not None:
            return shaping.centred_ranks(ranks) if self._shape == "ranks" else shaping.utilities(ranks)
        if votes is not None:  # half for each of a pair: as far apart as the best and the worst rank
            return torch.cat([-votes, votes]) / 2
        assert losses is not None
        return -torch.where(torch.isfinite(losses), losses, losses[torch.isfinite(losses)].max())

    def _sgd_step(self, ascent: Tensor) -> Tensor:
        self._first = self._moves.momentum * self._first + ascent
        return self._first

    def _adam_step(self, ascent: Tensor, count: int) -> Tensor:
        self._first = 0.9 * self._first + 0.1 * ascent
        self._second = 0.999 * self._second + 0.001 * ascent.square()
        spread = (self._second / (1 - 0.999**count)).sqrt()
        return self._first / (1 - 0.9**count) / (spread + 1e-8)

    def state_dict(self) -> dict[str, Tensor]:
        return {"genes": self.genes, "first": self._first, "second": self._second, "deviations": self._deviations}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.genes, self._first, self._second = state["genes"], state["first"], state["second"]
        self._deviations = state["deviations"]
        self._scales = self._layout.scales(self._deviations)
