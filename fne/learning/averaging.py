"""The server half of weight averaging: w + the weighted mean of the nodes' deltas. Methods in strategies/ name it.

Source: McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017,
algorithm 1. Replies are sums over samples, so `reduce="sum"` gives the weighted mean over the nodes that answered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from fne.config.groups import LocalTraining
from fne.core.contracts import Metrics, Result
from fne.core.errors import RunError, SettingError
from fne.core.messages import Header, Request, Round, Scalar
from fne.core.randomness import derive_seed, draw_nodes
from fne.evolution.losses import check_loss
from fne.learning.node_tasks import BUFFER
from fne.learning.task import LearningTask, Validation
from fne.privacy.policy import Tasks


class Averaging:
    """A strategy that sends the global weights, lets nodes train, and moves by the mean of their deltas.

    Args:
        task: model and validation.
        seed: of the run.
        rounds: horizon.
        training: how nodes train and which of them; the local learning rate of round t is `lr * lr_decay ** t`.
        more: what else the node task `train` takes.
        pooled: the method is not federated: deal all data to one node.
    """

    def __init__(
        self,
        task: LearningTask,
        *,
        seed: int,
        rounds: int,
        training: LocalTraining,
        more: Mapping[str, Scalar] = {},
        pooled: bool = False,
    ) -> None:
        check_loss(training.loss, classification=task.classification)
        if training.momentum and training.optimizer != "sgd":
            raise SettingError(
                "strategy.momentum", training.momentum, f"0 with optimizer = {training.optimizer}: it is sgd's"
            )
        self.seed, self.horizon, self.step = seed, rounds, 0
        self.pooled = pooled
        self._task, self._training = task, training
        self._options: dict[str, Scalar] = {
            "epochs": training.local_epochs, "batch_size": training.batch_size, "optimizer": training.optimizer,
            "momentum": training.momentum, **more,
        }  # fmt: skip
        self._weights = task.layout.flatten(task.new_model(derive_seed(seed, "global")))
        self._buffers = dict(task.buffers)
        self._validation = Validation(task, training.loss, self._weights)

    @property
    def done(self) -> bool:
        """Whether the horizon is reached."""
        return self.step >= self.horizon

    @property
    def tasks(self) -> Tasks:
        """Node tasks that it asks for, see `fne.privacy.policy.Tasks`."""
        training = self._training
        lr = training.lr if training.lr_decay == 1 else (0.0, training.lr)
        return {"train": {"loss": training.loss, **self._options, "lr": lr}}

    def ask(self, nodes: Sequence[str]) -> Request:
        """Return the global weights for this round's nodes."""
        if not nodes:
            raise SettingError("data.nodes", 0, "at least 1")
        count = max(1, round(self._training.fraction * len(nodes)))
        chosen = draw_nodes(nodes, count, self.seed, "nodes", self.step)
        common = {"parameters": self._weights, **{BUFFER + n: b for n, b in self._buffers.items()}}
        lr = self._training.lr * self._training.lr_decay**self.step
        options: dict[str, Scalar] = {**self._options, "loss": self._training.loss, "lr": lr}
        return Request(Header(self.seed, self.step), "train", chosen, common=common, options=options, reduce="sum")

    def tell(self, round_: Round) -> Metrics:
        """Move the global weights and validate them."""
        (reply,) = round_.replies
        samples = float(reply.payload["samples"][0])
        if samples <= 0:
            raise RunError(f"round {self.step}: the nodes that answered hold {samples:g} samples in all")
        mean_delta = reply.payload["delta"].double() / samples
        self._weights = (self._weights.double() + mean_delta).float()
        self._buffers = {
            name: _averaged(reply.payload[BUFFER + name], samples, old) for name, old in self._buffers.items()
        }
        self.step += 1
        trained = float(reply.payload["loss"][0]) / samples
        return {
            "round": self.step,
            "evaluations": None,
            "loss_best": trained,
            "loss_mean": trained,
            **self._validation(self._weights, self._buffers, self.step),
            "nonfinite": 0,
        }

    def result(self) -> Result:
        """Return the model of the run, as `returns` says."""
        return self._validation.best() if self._training.returns == "best" else self.champion()

    def champion(self) -> Result:
        """Return the global model of the round told last."""
        return Result("model", self._weights, self._buffers)

    def state_dict(self) -> dict[str, Any]:
        """Return weights, buffers, best model, counters."""
        return {
            "step": self.step, "weights": self._weights, "buffers": self._buffers,
            "validation": self._validation.state_dict(),
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self.step = state["step"]
        self._weights, self._buffers = state["weights"], state["buffers"]
        self._validation.load_state_dict(state["validation"])


def _averaged(total: Tensor, samples: float, old: Tensor) -> Tensor:
    """Return the weighted mean in the buffer's own type; integers move by the rounded mean of their changes."""
    mean = total.double() / samples
    return mean.to(old.dtype) if old.is_floating_point() else (old.long() + mean.round().long()).to(old.dtype)
