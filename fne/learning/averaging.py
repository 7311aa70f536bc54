"""Server halves of weight averaging, plain and private: the weights move by the weighted mean of the nodes' deltas.

Source: McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017,
algorithm 1. Replies are sums over samples, so `reduce="sum"` gives the weighted mean over the nodes that answered.

Under differential privacy all nodes have the same weight and answer with their update alone. The sum of the updates is
divided by the number of nodes that the server asked, however many answer. So the noise of the mean is the accounted
noise, and no node's number of samples is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from fne.config.groups import Clients, LocalTraining, PrivateTraining
from fne.core.contracts import Metrics, Result
from fne.core.errors import RunError, SettingError
from fne.core.messages import Header, Request, Round, Scalar
from fne.core.randomness import derive_seed, draw_nodes
from fne.evolution.genome import refuse_buffers
from fne.evolution.losses import check_loss
from fne.learning.task import BUFFER, LearningTask, Validation
from fne.privacy.accountant import Accountant, Conduct, report
from fne.privacy.policy import Tasks, Terms


class Averaging:
    """A strategy that sends the global weights, lets nodes train, and moves by the mean of their deltas.

    Args:
        task: model and validation.
        seed: seed of the run.
        rounds: number of rounds.
        training: how nodes train, and which ones; the local learning rate of round t is `lr * lr_decay ** t`.
        more: further options of the node task `train`.
        pooled: whether the method is not federated, so that one node gets all data.
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
                "strategy.momentum",
                training.momentum,
                f"0 with optimizer = {training.optimizer}: only sgd has momentum",
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
        """Whether the run has reached its horizon."""
        return self.step >= self.horizon

    @property
    def tasks(self) -> Tasks:
        """Node tasks of the requests, see `fne.privacy.policy.Tasks`."""
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
        """Return the global model after the last `tell`."""
        return Result("model", self._weights, self._buffers)

    def state_dict(self) -> dict[str, Any]:
        """Return weights, buffers, best model, counters."""
        return {
            "step": self.step, "weights": self._weights, "buffers": self._buffers,
            "validation": self._validation.state_dict(),
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self.step = state["step"]
        self._weights, self._buffers = state["weights"], state["buffers"]
        self._validation.load_state_dict(state["validation"])


def _averaged(total: Tensor, samples: float, old: Tensor) -> Tensor:
    """Return the weighted mean in the buffer's own type; integers move by the rounded mean of their changes."""
    mean = total.double() / samples
    return mean.to(old.dtype) if old.is_floating_point() else (old.long() + mean.round().long()).to(old.dtype)


class Account(Protocol):
    """Account of a method's releases about the clients or records that it protects."""

    sampler: str
    """How clients or records are drawn, as in `fne.privacy.accountant.Conduct`."""
    records: bool
    """Whether the method protects single records, and not whole clients."""
    unnoised: tuple[str, ...]
    """Names of the quantities that leave a node without noise."""

    def add(self, asked: Sequence[str], answered: int) -> None:
        """Add a round, by the nodes that were asked and the number that answered."""
        ...

    def accountant(self) -> Accountant:
        """Return all releases of the node that has released most."""
        ...

    def planned(self, rounds: int, asked: int) -> Accountant:
        """Return the most that a node can release which is asked, with `asked` nodes in all, in every round."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        ...


class PrivateAveraging:
    """Server half shared by private methods that differ in how nodes protect themselves; a `Strategy`.

    Args:
        task: model and validation.
        seed, rounds: seed and number of rounds of the run.
        clients: which nodes take part in a round; a fixed number is drawn.
        training: how nodes train, and the delta of the reported account.
        node_task: node task of the training, which yields `delta [D]` and `clients`, 1.
        options: number of nodes in a round -> options of that task.
        returns: `best` on validation or `last`.
        account: account of the releases.
        secure: whether `secure` must be set; with `None` it may be.
    """

    def __init__(
        self,
        task: LearningTask,
        *,
        seed: int,
        rounds: int,
        clients: Clients,
        training: PrivateTraining,
        node_task: str,
        options: Callable[[int], Mapping[str, Scalar]],
        returns: str,
        account: Account,
        secure: bool | None = None,
    ) -> None:
        check_loss(training.loss, classification=task.classification)
        refuse_buffers(task.buffers)
        self.seed, self.horizon, self.step, self.secure = seed, rounds, 0, secure
        self._account, self._clients, self._training, self._returns = account, clients, training, returns
        self._node_task, self._options = node_task, options
        self._weights = task.layout.flatten(task.new_model(derive_seed(seed, "global")))
        self._validation = Validation(task, training.loss, self._weights)
        self._asked: tuple[str, ...] = ()
        self._names: set[str] = set()

    @property
    def done(self) -> bool:
        """Whether the run has reached its horizon."""
        return self.step >= self.horizon

    def ask(self, nodes: Sequence[str]) -> Request:
        """Return the global weights for this round's nodes."""
        count = max(1, round(self._clients.fraction * len(nodes)))
        self._asked = draw_nodes(nodes, count, self.seed, "nodes", self.step)
        self._names.update(nodes)
        options = {"loss": self._training.loss, **self._options(count)}
        header = Header(self.seed, self.step)
        return Request(header, self._node_task, self._asked, {"parameters": self._weights}, {}, options, reduce="sum")

    def tell(self, round_: Round) -> Metrics:
        """Move the global weights by the sum over the number asked, validate them, and account for the round."""
        if not round_.replies:
            raise RunError(f"round {self.step}: no participating node has answered")
        (reply,) = round_.replies
        self._weights = (self._weights.double() + reply.payload["delta"].double() / len(self._asked)).float()
        self._account.add(self._asked, int(reply.payload["clients"][0]))
        self.step += 1
        return {
            "round": self.step, "evaluations": None, "loss_best": None, "loss_mean": None,
            **self._validation(self._weights, {}, self.step), "nonfinite": 0,
            "epsilon": self._account.accountant().epsilon(self._training.delta, tight=False).rdp,
        }  # fmt: skip

    @property
    def tasks(self) -> Tasks:
        """Node tasks of the requests, see `fne.privacy.policy.Tasks`."""
        constant = {key: value for key, value in self._options(1).items() if key not in ("noise", "clip")}
        return {self._node_task: {"loss": self._training.loss, **constant}}

    def terms(self) -> Terms:
        """Return the noise that each node of this round adds, the clip, and the releases of a node in every round."""
        options = self._options(len(self._asked))
        return Terms(
            float(options["noise"]), float(options["clip"]), self._account.planned(self.horizon, len(self._asked))
        )

    def privacy(self) -> dict[str, Any]:
        """Return the accounted privacy of the run, see `fne.privacy.accountant.report`."""
        units = None if self._account.records else len(self._names)
        conduct = Conduct(units, self._account.sampler, unnoised=self._account.unnoised)
        return report(self._account.accountant(), self._training.delta, conduct)

    def result(self) -> Result:
        """Return the model of the run, as `returns` says."""
        return self._validation.best() if self._returns == "best" else self.champion()

    def champion(self) -> Result:
        """Return the global model after the last `tell`."""
        return Result("model", self._weights)

    def state_dict(self) -> dict[str, Any]:
        """Return weights, best model, counters."""
        return {
            "step": self.step, "weights": self._weights, "validation": self._validation.state_dict(),
            "names": sorted(self._names), "account": self._account.state_dict(),
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self.step, self._weights, self._names = state["step"], state["weights"], set(state["names"])
        self._validation.load_state_dict(state["validation"])
        self._account.load_state_dict(state["account"])
