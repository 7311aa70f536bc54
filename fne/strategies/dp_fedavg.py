"""DP-FedAvg: federated averaging with differential privacy of whole clients, accounted.

H. B. McMahan, D. Ramage, K. Talwar, L. Zhang, "Learning differentially private recurrent language models", ICLR 2018.

In each round a fixed number of nodes takes part, each clips its update to a norm Z and adds Gaussian noise, so that all
noise together has a standard deviation of sigma Z on each weight. All have the same weight, and nothing else leaves: no
loss, no sample count. The sum is divided by the number of nodes that were asked, whoever answers.

Deviations
- Nodes add the noise, a share of 1 / sqrt(m) each, and not the server, which need not be trusted then. Who sees the sum
  alone (`adversary = aggregate`, with secure sums) faces all of it; a server that sees each upload faces a share.
- A fixed number of clients is drawn and not each by itself (Poisson), so neighbours are runs in which one client's data
  are others (replace-one): an update moves by 2 Z.
- Where nodes drop out noise is missing. The account is made for each round with those that answered.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import torch

from fne.descent import descend
from fne.errors import RunError, SettingError
from fne.evolution.fitness import check_loss
from fne.node import Node, Worker, payload_of
from fne.privacy.accountant import Accountant, Conduct, Mechanism, multiplier, report
from fne.privacy.compression import clipped, noised
from fne.randomness import derive_seed, draw_nodes
from fne.registry import Key, register
from fne.types import Header, LearningTask, Metrics, Request, Result, Round, Scalar, Tensors
from fne.validation import Validation


@register("task", "train_clipped")
def train_clipped_task(
    worker: Worker,
    nodes: Sequence[Node],
    request: Request,
    *,
    loss: Annotated[Literal["nmse", "mse", "bce", "cross_entropy"], Key("what is minimised")],
    lr: Annotated[float, Key("learning rate", ge=0)],
    epochs: Annotated[int, Key("passes over the node's samples", unit="epochs", ge=1)],
    batch_size: Annotated[int, Key("0: all samples at once", unit="samples", ge=0)],
    clip: Annotated[float, Key("largest L2 norm of an update", gt=0)],
    noise: Annotated[float, Key("standard deviation of this node's share of the noise, in clips", ge=0)],
) -> Iterator[Tensors]:
    """Train the given weights on each node's samples, and answer with the change, clipped and noised.

    Takes `parameters [D]`. Yields `delta [D]` and `clients`, 1, and nothing that is not noised.
    """
    for node in nodes:
        start = payload_of(request, node)["parameters"]
        found = descend(worker, node, request.header, start, {}, loss=loss, lr=lr, epochs=epochs, batch_size=batch_size)
        draw = node.private_generator(request.header, "noise") if noise else None
        yield {"delta": noised(clipped(found.delta, clip), noise, clip, draw), "clients": torch.tensor([1])}


@register("strategy", "dp_fedavg")
class DpFedAvg:
    """Federated averaging with client-level differential privacy: clipped updates, noise from the nodes, an account."""

    def __init__(
        self,
        task: LearningTask,
        *,
        seed: int,
        rounds: Annotated[int, Key("of the run", unit="rounds", ge=1)] = 100,
        fraction: Annotated[float, Key("share of the nodes in a round, at least one", gt=0, le=1)] = 0.1,
        local_epochs: Annotated[int, Key("passes over a node's samples in a round", unit="epochs", ge=1)] = 1,
        batch_size: Annotated[int, Key("0: all of a node's samples at once", unit="samples", ge=0)] = 10,
        lr: Annotated[float, Key("local learning rate", gt=0)] = 0.1,
        loss: Annotated[
            Literal["nmse", "mse", "bce", "cross_entropy"], Key("of training and validation")
        ] = "cross_entropy",
        clip: Annotated[float, Key("largest L2 norm of an update; Z", gt=0)] = 1.0,
        noise: Annotated[
            float, Key("standard deviation of all noise on a weight of the sum, in clips; sigma", ge=0)
        ] = 1.0,
        delta: Annotated[float, Key("of the accounted privacy", gt=0, lt=1)] = 1e-5,
        adversary: Annotated[
            Literal["uploads", "aggregate"], Key("sees each upload, or the sum alone (needs secure = true)")
        ] = "uploads",
        returns: Annotated[Literal["best", "last"], Key("model of the best validation or of the last round")] = "last",
    ) -> None:
        check_loss(loss, classification=task.classification)
        if any(True for _ in task.buffers):
            raise SettingError("model.name", "one with buffers", "one without batch normalisation: it is not noised")
        self.seed, self.horizon, self.step = seed, rounds, 0
        if adversary == "aggregate":
            self.secure = True
        self._task, self._loss, self._fraction, self._returns = task, loss, fraction, returns
        self._clip, self._noise, self._delta, self._adversary = clip, noise, delta, adversary
        self._options: dict[str, Scalar] = {
            "loss": loss, "lr": lr, "epochs": local_epochs, "batch_size": batch_size, "clip": clip,
        }  # fmt: skip
        self._weights = task.layout.flatten(task.new_model(derive_seed(seed, "global")))
        self._validation = Validation(task, loss, self._weights)
        self._accountant = Accountant()
        self._units = 0

    @property
    def done(self) -> bool:
        """Whether the horizon is reached."""
        return self.step >= self.horizon

    def ask(self, nodes: Sequence[str]) -> Request:
        """Return the global weights for this round's nodes."""
        count = max(1, round(self._fraction * len(nodes)))
        chosen = draw_nodes(nodes, count, self.seed, "nodes", self.step)
        self._units = len(nodes)
        options = {**self._options, "noise": self._noise / math.sqrt(count)}
        header = Header(self.seed, self.step)
        return Request(header, "train_clipped", chosen, {"parameters": self._weights}, {}, options, reduce="sum")

    def tell(self, round_: Round) -> Metrics:
        """Move the global weights by the sum over the number asked, validate them, and account for the round."""
        if not round_.replies:
            raise RunError(f"round {self.step}: none of the nodes that take part has answered")
        (reply,) = round_.replies
        answered = int(reply.payload["clients"][0])
        asked = max(1, round(self._fraction * self._units))
        self._weights = (self._weights.double() + reply.payload["delta"].double() / asked).float()
        self._accountant.add(self._mechanism(asked, answered))
        self.step += 1
        spent = self._accountant.epsilon(self._delta, tight=False).rdp
        return {
            "round": self.step, "evaluations": None, "loss_best": None, "loss_mean": None,
            **self._validation(self._weights, {}, self.step), "nonfinite": 0, "epsilon": spent,
        }  # fmt: skip

    def _mechanism(self, asked: int, answered: int) -> Mechanism:
        """Return what a round has released of a client."""
        share = self._noise / math.sqrt(asked)
        if self._adversary == "uploads":
            z = multiplier(share, "replace_one")
            return Mechanism(z, "update", self._clip, adjacency="replace_one", adversary="uploads")
        z = multiplier(share, "replace_one", answered)
        return Mechanism(
            z, "update", self._clip, sampling="fixed", size=asked, population=self._units, adjacency="replace_one"
        )

    def privacy(self) -> dict[str, Any]:
        """Return the accounted privacy of the run, as `fne.privacy.accountant.report` has it."""
        return report(self._accountant, self._delta, Conduct(units=self._units, sampler="fixed"))

    def result(self) -> Result:
        """Return the model of the run, as `returns` says."""
        return self._validation.best() if self._returns == "best" else self.champion()

    def champion(self) -> Result:
        """Return the global model of the round told last."""
        return Result("model", self._weights)

    def state_dict(self) -> dict[str, Any]:
        """Return weights, best model, account."""
        return {
            "step": self.step, "weights": self._weights, "validation": self._validation.state_dict(),
            "accountant": self._accountant.state_dict(), "units": self._units,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self.step, self._weights, self._units = state["step"], state["weights"], state["units"]
        self._validation.load_state_dict(state["validation"])
        self._accountant.load_state_dict(state["accountant"])
