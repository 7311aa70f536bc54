"""The task of a strategy that trains models: genome, initial models, and the server's own validation data."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from torch import Tensor
from torch.nn import Module

from fne.core.contracts import Metrics, Result
from fne.core.messages import Tensors
from fne.evolution.genome import Layout


class Evaluate(Protocol):
    """`evaluate(population [P, D], loss=..., buffers=..., split="validation")` -> `loss`, `accuracy`, both `[P]`."""

    def __call__(
        self, population: Tensor, *, loss: str, buffers: Tensors | None = None, split: str = "validation"
    ) -> dict[str, Tensor]: ...


@dataclass(frozen=True)
class LearningTask:
    """Task of a strategy that trains models, so that strategies import neither models nor data.

    Args:
        layout: the genome: how `[P, D]` maps to the model's parameters and kernels.
        new_model: seed -> freshly initialised module.
        evaluate: evaluates a population on the server's own data; `accuracy` is NaN for regression.
        classification: whether targets are labels.
        buffers: the model's buffers at nodes and server when a run begins.
        batch_norm: statistics of batch normalisation in methods without gradients: the initial ones (`identity`), those
            of the evaluated samples (`batch`), or those of the server's data (`server`).
        statistics: genes `[D]` -> buffers with statistics of the server's data; `None` with `identity`.
    """

    layout: Layout
    new_model: Callable[[int], Module]
    evaluate: Evaluate
    classification: bool = True
    buffers: Tensors = field(default_factory=dict)
    batch_norm: Literal["identity", "batch", "server"] = "identity"
    statistics: Callable[[Tensor], Tensors] | None = None

    def buffers_for(self, genes: Tensor) -> Tensors:
        """Return the buffers to validate and to keep with a model that was trained without gradients."""
        return self.buffers if self.statistics is None else self.statistics(genes)


class Validation:
    """Validation of one model per step, which keeps the best model.

    The score is the accuracy, or minus the loss for regression; among equal scores the first model is kept. A model
    with a non-finite loss has the score minus infinity and is never the best.

    Args:
        task: evaluates on the validation part.
        loss: name of the loss.
        start: genes `[D]` that count as the best until a model is validated.
    """

    def __init__(self, task: LearningTask, loss: str, start: Tensor) -> None:
        self._task, self._loss = task, loss
        self._best: tuple[Tensor, Tensors] = (start, task.buffers)
        self._best_score = -float("inf")
        self.best_step = 0
        self.score = -float("inf")

    def __call__(self, genes: Tensor, buffers: Tensors, step: int) -> Metrics:
        """Validate genes `[D]` with their buffers after `step` steps and return the figures for the history."""
        figures = self._task.evaluate(genes.unsqueeze(0), loss=self._loss, buffers=buffers)
        accuracy, loss = float(figures["accuracy"][0]), float(figures["loss"][0])
        score = accuracy if self._task.classification else -loss
        self.score = score if math.isfinite(loss) else -math.inf
        if self.score > self._best_score:
            self._best, self._best_score, self.best_step = (genes, buffers), self.score, step
        return {
            "accuracy_validation": accuracy if self._task.classification else None,
            "loss_validation": loss,
        }

    def best(self) -> Result:
        """Return the best model so far."""
        return Result("model", *self._best)

    def state_dict(self) -> dict[str, Any]:
        """Return the best model and its score."""
        genes, buffers = self._best
        return {"genes": genes, "buffers": dict(buffers), "score": self._best_score, "step": self.best_step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self._best = (state["genes"], state["buffers"])
        self._best_score, self.best_step = state["score"], state["step"]


BUFFER = "buffer."


def buffers_in(tensors: Tensors) -> dict[str, Tensor]:
    """Return the buffers among a message's tensors by their names in the module."""
    return {name.removeprefix(BUFFER): value for name, value in tensors.items() if name.startswith(BUFFER)}
