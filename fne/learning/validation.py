"""The server's own data, looked at once a step: scores for the history, and the best model so far (early stopping)."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from fne.core.types import LearningTask, Metrics, Result, Tensors


class Validation:
    """Validates one model a step and keeps the best.

    The score is the accuracy, or minus the loss for regression; of equal ones the first is kept. A model whose loss is
    not finite has the score minus infinity and is never the best.

    Args:
        task: evaluates on the validation part.
        loss: its name.
        start: genes `[D]` that are the best as long as none were validated.
    """

    def __init__(self, task: LearningTask, loss: str, start: Tensor) -> None:
        self._task, self._loss = task, loss
        self._best: tuple[Tensor, Tensors] = (start, task.buffers)
        self._best_score = -float("inf")
        self.best_step = 0
        self.score = -float("inf")

    def __call__(self, genes: Tensor, buffers: Tensors, step: int) -> Metrics:
        """Validate genes `[D]` with their buffers after `step` steps; returns the figures for the history."""
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
        """Take over what `state_dict` returned."""
        self._best = (state["genes"], state["buffers"])
        self._best_score, self.best_step = state["score"], state["step"]
