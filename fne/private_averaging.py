"""The server half of averaging under differential privacy: all nodes have the same weight, and tell one thing only.

The sum of their updates is divided by the number of nodes that were asked, whoever answers: its noise is that of the
account, and nobody's number of samples is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fne.errors import RunError, SettingError
from fne.evolution.fitness import check_loss
from fne.randomness import derive_seed, draw_nodes
from fne.types import Header, LearningTask, Metrics, Request, Result, Round, Scalar
from fne.validation import Validation


class PrivateAveraging:
    """What methods that differ in how nodes protect themselves share; each has its own account.

    Args:
        task: model and validation.
        seed, rounds: of the run.
        loss: of training and validation.
        fraction: of the nodes that take part in a round, at least one; a fixed number is drawn.
        node_task: by which nodes train: yields `delta [D]` and `clients`, 1.
        options: of that task, for a round with so many nodes.
        returns: `best` on validation or `last`.
    """

    def __init__(
        self,
        task: LearningTask,
        *,
        seed: int,
        rounds: int,
        loss: str,
        fraction: float,
        node_task: str,
        options: Callable[[int], Mapping[str, Scalar]],
        returns: str,
    ) -> None:
        check_loss(loss, classification=task.classification)
        if any(True for _ in task.buffers):
            raise SettingError("model.name", "one with buffers", "one without batch normalisation: it is not noised")
        self.seed, self.horizon, self.step = seed, rounds, 0
        self._fraction, self._loss, self._returns = fraction, loss, returns
        self._node_task, self._options = node_task, options
        self._weights = task.layout.flatten(task.new_model(derive_seed(seed, "global")))
        self._validation = Validation(task, loss, self._weights)
        self.asked: tuple[str, ...] = ()
        """Who was asked last."""
        self.answered = 0
        """How many of them have answered."""
        self.units = 1
        """How many nodes there are."""

    @property
    def done(self) -> bool:
        """Whether the horizon is reached."""
        return self.step >= self.horizon

    def ask(self, nodes: Sequence[str]) -> Request:
        """Return the global weights for this round's nodes."""
        count = max(1, round(self._fraction * len(nodes)))
        self.asked, self.units = draw_nodes(nodes, count, self.seed, "nodes", self.step), len(nodes)
        options = {"loss": self._loss, **self._options(count)}
        header = Header(self.seed, self.step)
        return Request(header, self._node_task, self.asked, {"parameters": self._weights}, {}, options, reduce="sum")

    def tell(self, round_: Round) -> Metrics:
        """Move the global weights by the sum over the number asked, and validate them."""
        if not round_.replies:
            raise RunError(f"round {self.step}: none of the nodes that take part has answered")
        (reply,) = round_.replies
        self.answered = int(reply.payload["clients"][0])
        self._weights = (self._weights.double() + reply.payload["delta"].double() / len(self.asked)).float()
        self.step += 1
        return {
            "round": self.step, "evaluations": None, "loss_best": None, "loss_mean": None,
            **self._validation(self._weights, {}, self.step), "nonfinite": 0,
        }  # fmt: skip

    def result(self) -> Result:
        """Return the model of the run, as `returns` says."""
        return self._validation.best() if self._returns == "best" else self.champion()

    def champion(self) -> Result:
        """Return the global model of the round told last."""
        return Result("model", self._weights)

    def state_dict(self) -> dict[str, Any]:
        """Return weights, best model, counters."""
        return {
            "step": self.step, "weights": self._weights, "validation": self._validation.state_dict(),
            "units": self.units,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self.step, self._weights, self.units = state["step"], state["weights"], state["units"]
        self._validation.load_state_dict(state["validation"])
