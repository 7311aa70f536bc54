"""Particle swarms whose particles move only where their loss falls; many swarms side by side in one population.

Shapes: `C` swarms, `S` particles in each, `D` genes, `M` models in a particle. A particle is one individual of the
model's layout. Where the outputs of a model share no genes, a particle is `M` models side by side, each with its own
loss, best particle and moves; `owner [D]` assigns each gene to its model. So the one-vs-all models of a classifier, the
cells of a table and repeated runs are axes of one tensor.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from fne.core.contracts import Metrics
from fne.core.messages import Tensors
from fne.evolution import shaping
from fne.evolution.genome import Layout


def owners(layout: Layout, *, apart: bool) -> Tensor:
    """Return the model that each gene belongs to, int64 `[D]`: one model per output where outputs share no genes.

    Outputs share no genes in models of a single layer. In other models, or without `apart`, all genes are one model.
    """
    owner = torch.zeros(1, layout.size, dtype=torch.int64)
    if apart and layout.groups == 1:
        for leaf in layout.leaves:
            view = leaf.kernel_view(owner)
            view += torch.arange(leaf.kernels).view(1, -1, *[1] * (view.ndim - 2))
    return owner[0]


def gains(losses: Tensor, standing: Tensor) -> Tensor:
    """Return the differences of losses and standing losses: +inf for a non-finite loss, never NaN (inf - inf).

    Args:
        losses: finite or +inf, any shape.
        standing: finite or +inf, the same shape; a finite loss gains -inf over an infinite standing loss.
    """
    return torch.where(torch.isfinite(losses), losses - standing, torch.inf)


class Rule(Protocol):
    """How particles move, and what the rule learns from successful moves."""

    def trials(self, step: int, positions: Tensor, leaders: Tensor) -> Tensor:
        """Return the trial positions of the particles, float32 `[C, S, D]`.

        Args:
            step: step of the run.
            positions: float32 `[C, S, D]`.
            leaders: genes of the best particle of each gene's model, `[C, D]`.
        """
        ...

    def decide(self, gains: Tensor) -> Tensors:
        """Return the further tensors that `learn` needs, as small as possible; only the server computes them.

        Args:
            gains: the trials' losses minus their particles', float64 `[C, S, M]`, as the function `gains` returns them.
        """
        ...

    def learn(self, better: Tensor, best: Tensor, told: Tensors) -> Metrics:
        """Learn from the outcome of the last `trials`.

        Args:
            better: which trials replaced their particle, bool `[C, S, M]`.
            best: the best particle of each model now, int64 `[C, M]`.
            told: the tensors that `decide` returned.
        """
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """Return the complete state."""
        ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore a state that `state_dict` returned."""
        ...


class Swarm:
    """Particles as server and nodes know them, a `fne.federation.lineage.Lineage`; only the server knows their losses.

    Args:
        positions: first positions, float32 `[C, S, D]`.
        owner: model of each gene, as `owners` returns it.
        rule: how the particles move.
    """

    def __init__(self, positions: Tensor, owner: Tensor, rule: Rule) -> None:
        self.positions, self.owner, self.rule = positions, owner, rule
        self.models = int(owner.max()) + 1
        self.best = torch.zeros(len(positions), self.models, dtype=torch.int64)
        self._winner = 0
        self._measuring = True
        self._kept: tuple[int, Tensor] | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """`C, S, M`."""
        return self.positions.shape[0], self.positions.shape[1], self.models

    @property
    def measuring(self) -> bool:
        """Whether the candidates are the particles themselves, and not their trials."""
        return self._measuring

    @property
    def genes(self) -> Tensor:
        """The best genes of the winning swarm, float32 `[D]`: for each model its own best particle."""
        return self.leaders()[self._winner].clone()

    def leaders(self) -> Tensor:
        """Return the best genes of each swarm, float32 `[C, D]`: each gene from the best particle of its model."""
        index = self.best[:, self.owner].unsqueeze(1)
        return self.positions.gather(1, index).squeeze(1)

    def _trials(self, step: int) -> Tensor:
        """Return the trials of a step; the last ones are kept, since they are needed twice."""
        if self._kept is None or self._kept[0] != step:
            self._kept = step, self.rule.trials(step, self.positions, self.leaders())
        return self._kept[1]

    def candidates(self, step: int) -> Tensors:
        """Return `population [C * S, D]`: the trials, or, where losses are unknown, the particles themselves."""
        return {"population": (self.positions if self._measuring else self._trials(step)).flatten(0, 1)}

    def squares(self, step: int) -> Tensor:
        """Return the sum of the squared genes of each model among the candidates, float64 `[C, S, M]`."""
        squared = (self.positions if self._measuring else self._trials(step)).double().square_()
        return torch.zeros(self.shape, dtype=torch.float64).index_add_(2, self.owner, squared)

    def decision(self, better: Tensor, gains: Tensor, best: Tensor, winner: int, *, measure: bool) -> Tensors:
        """Return the tensors that `advance` needs.

        Args:
            better: which trials replace their particle, bool `[C, S, M]`.
            gains: as for `Rule.decide`; ignored where nothing moves.
            best: the best particle of each model afterwards, int64 `[C, M]`.
            winner: the swarm whose best particle is the result.
            measure: whether the particles themselves are evaluated next.
        """
        return {
            "better": shaping.packed(better.flatten()),
            "best": shaping.small(best.flatten(), self.shape[1] - 1),
            "winner": shaping.small(torch.tensor([winner]), self.shape[0] - 1),
            "measure": torch.tensor([measure], dtype=torch.uint8),
            **self.rule.decide(gains),
        }

    def advance(self, step: int, decision: Tensors) -> Metrics:
        """Move the particles whose trial was better; a step that measured or could not be compared moves none."""
        swarms, particles, models = self.shape
        measure = bool(decision["measure"])
        self.best = decision["best"].long().view(swarms, models)
        self._winner = int(decision["winner"])
        moved, learnt = 0, {}
        if not (self._measuring or measure):
            better = shaping.unpacked(decision["better"], swarms * particles * models).view(self.shape)
            trials = self._trials(step)
            taken = better if models == 1 else better[:, :, self.owner]
            self.positions = torch.where(taken, trials, self.positions)
            moved, learnt = int(better.sum()), self.rule.learn(better, self.best, decision)
        self._measuring = measure
        return {"moved": moved, **learnt}

    def state_dict(self) -> dict[str, Tensor]:
        """Return positions, the best particles, and the state of the rule."""
        flags = torch.tensor([self._winner, self._measuring])
        return {"positions": self.positions, "best": self.best, "flags": flags, **self.rule.state_dict()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore a state that `state_dict` returned."""
        self.positions, self.best = state["positions"], state["best"]
        self._winner, self._measuring = int(state["flags"][0]), bool(state["flags"][1])
        self.rule.load_state_dict(state)
        self._kept = None  # trials from other positions
