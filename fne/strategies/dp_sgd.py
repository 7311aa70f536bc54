"""FedAvg whose nodes train by DP-SGD: differential privacy of single records, accounted.

M. Abadi, A. Chu, I. Goodfellow, H. B. McMahan, I. Mironov, K. Talwar, L. Zhang, "Deep learning with differential
privacy", CCS 2016. Opacus' `GradSampleModule` computes the gradients of single records.

In each step of a node, each record is in the batch with the same probability (Poisson), its gradient is clipped, and
the sum is noised with draws from the node's own secret. Everything that leaves a node is noised, so uploads may be seen
by anyone, and nothing else leaves: no loss, no number of samples, not even the fact that a gradient was non-finite,
which counts as zero. The secret also draws dropout and shifts: with publicly known masks, one additional record would
move the masks of all records behind it. All nodes have the same weight.

Deviations
- The account is for the node that has taken part most often; the account of any other node's records is not above it.
- The config sets the rate at which records are drawn, not the size of a batch: so the account holds for nodes with any
  number of samples, and the server need not know this number.
- A sum of gradients is divided by a number of the config, `batch_size`, and not by the node's own rate times samples:
  otherwise the noise of an update would reveal the number of samples, within 0.7 % with some thousand weights, and so
  whether a given record is present.
- A model must not mix records: a model with buffers, such as those of batch normalisation, is refused, but a custom
  layer that mixes records goes unnoticed.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from fne.config.groups import Clients, PrivateReturns, RecordPrivateTraining, RecordTraining, Rounds
from fne.config.registry import Key, register
from fne.core.errors import RunError
from fne.core.messages import Request, Scalar, Tensors
from fne.core.quiet import ignored
from fne.core.randomness import seeded_by
from fne.evolution import losses as fitness
from fne.federation.node import Node, payload_of
from fne.federation.worker import Worker
from fne.learning.augment import random_shift
from fne.learning.averaging import PrivateAveraging
from fne.learning.local_training import private_payload
from fne.learning.task import LearningTask
from fne.privacy.accountant import Accountant, Mechanism
from fne.privacy.compression import clipped
from fne.privacy.noise import step_of, whole
from fne.privacy.policy import Release

TOGETHER = 64
"""Number of records whose gradients are held at once."""


def records_charge(request: Request, node: str, parties: int) -> tuple[Release, ...]:
    """Return the releases of `train_dp_sgd` about a node's records: one noised sum of gradients per step."""
    noise, clip, rate = (float(request.options[key]) for key in ("noise", "clip", "rate"))
    return (Release(noise, clip, _mechanism(noise, clip, rate), int(request.options["epochs"]) * steps_of(rate)),)


def _mechanism(noise: float, clip: float, rate: float) -> Mechanism:
    return Mechanism(
        noise, "gradient", clip, sampling="poisson", rate=rate, adjacency="add_remove", unit="record",
        adversary="uploads", drawn="records",
    )  # fmt: skip


@register("task", "train_dp_sgd", payload=private_payload, charge=records_charge)
def train_dp_sgd_task(
    worker: Worker,
    nodes: Sequence[Node],
    request: Request,
    *,
    training: RecordTraining,
) -> Iterator[Tensors]:
    """Train the given weights on each node's samples by DP-SGD, and answer with the change.

    The task takes `parameters [D]`. It yields `delta [D]` and `clients`, 1, and nothing without noise.

    Raises:
        RunError: training diverged.
    """
    layout, module = worker.evaluator.layout, worker.module
    for node in nodes:
        start = payload_of(request, node)["parameters"]
        layout.fill(module, start.to(worker.device))
        _descend(worker, node, request, training)
        delta = layout.flatten(module) - start.cpu()
        if not bool(delta.isfinite().all()):
            raise RunError(f"training diverged: lower strategy.lr = {training.lr}")
        yield {"delta": delta, "clients": torch.tensor([1])}


def _descend(worker: Worker, node: Node, request: Request, training: RecordTraining) -> None:
    """Train the worker's module in place."""
    layout, module, data = worker.evaluator.layout, worker.module, node.data
    clip, noise = training.clip, training.noise
    draws, step = node.answering(request), step_of(noise, clip) if noise else 1.0
    weights, shifts = layout.flatten(module).double(), draws("shift").generator()
    with _recording(module) as gradients, seeded_by(draws("dropout").generator(), worker.device):
        for number in range(training.epochs * steps_of(training.rate)):
            total = torch.zeros(layout.size, dtype=torch.float64)
            drawn = draws(f"records of step {number}").chosen(len(data), training.rate).nonzero()[:, 0]
            for some in torch.split(drawn, TOGETHER) if len(drawn) else ():
                batch = data.take(some.to(data.x.device))
                x = random_shift(batch.x, node.shift, shifts) if node.shift else batch.x
                found = gradients(worker, x, batch.y, training.loss).cpu()
                total += (whole(found, clip, step) if noise else _clipped(found, clip)).sum(dim=0)
            if noise:
                hidden = draws(f"noise of step {number}", total).gaussian(layout.size, noise * clip / step)
                total += torch.from_numpy(hidden)
            weights -= training.lr / training.batch_size * step * total
            layout.fill(module, weights.float().to(worker.device))


def _clipped(gradients: Tensor, clip: float) -> Tensor:
    return clipped(gradients.where(gradients.isfinite().all(dim=1, keepdim=True), 0.0), clip).double()


@contextlib.contextmanager
def _recording(module: nn.Module) -> Iterator[Callable[[Worker, Tensor, Tensor, str], Tensor]]:
    """Yield a function that returns the gradients of single records, float32 `[n, D]`, by Opacus, in training mode."""
    from opacus.grad_sample import GradSampleModule

    def gradients(worker: Worker, x: Tensor, y: Tensor, loss: str) -> Tensor:
        recorded.zero_grad()
        losses = fitness.sample_losses(loss, recorded(x).unsqueeze(0), y, worker.evaluator.output)
        losses.sum().backward()  # type: ignore[no-untyped-call]
        named: dict[str, Any] = dict(module.named_parameters())
        rows = [named[leaf.name].grad_sample.flatten(1) for leaf in worker.evaluator.layout.leaves]
        return torch.cat(rows, dim=1)

    with ignored():  # the warning that a layer's inputs need no gradients
        recorded = GradSampleModule(module.train(), loss_reduction="sum")
        try:
            yield gradients
        finally:
            recorded.remove_hooks()
            for layer in module.modules():  # a pass that failed leaves its activations and gradients behind
                layer.__dict__.pop("activations", None)
            for parameter in module.parameters():
                parameter.grad = parameter.grad_sample = None  # type: ignore[attr-defined]
            module.eval()


def steps_of(rate: float) -> int:
    """Return the steps of an epoch, in which a record is drawn once on average, or slightly more often."""
    return math.ceil(1 / rate)


class _Records:
    """Account of the records of the node that has taken part most often."""

    sampler, records = "poisson", True
    unnoised: tuple[str, ...] = ()

    def __init__(self, mechanism: Mechanism, steps: int) -> None:
        self._mechanism, self._steps = mechanism, steps
        self._turns: Counter[str] = Counter()

    def add(self, asked: Sequence[str], answered: int) -> None:
        """Add a round; nodes that failed may have trained, too, and count."""
        self._turns.update(asked)

    def planned(self, rounds: int, asked: int) -> Accountant:
        """Return all releases about the records of a node that takes part in every round."""
        planned = Accountant()
        planned.add(self._mechanism, rounds * self._steps)
        return planned

    def accountant(self) -> Accountant:
        """Return all releases of that node."""
        accountant = Accountant()
        accountant.add(self._mechanism, max(self._turns.values(), default=0) * self._steps)
        return accountant

    def state_dict(self) -> dict[str, Any]:
        """Return how often each node has taken part."""
        return dict(self._turns)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self._turns = Counter(state)


@register("strategy", "dp_sgd", privacy=True)
def dp_sgd(
    task: LearningTask,
    *,
    seed: int,
    rounds: Rounds = 100,
    clients: Clients,
    rate: Annotated[float, Key("probability that a node draws a record for a batch, independently", gt=0, le=1)] = 0.1,
    training: RecordPrivateTraining,
    returns: PrivateReturns = "last",
) -> PrivateAveraging:
    """FedAvg of nodes that train by DP-SGD (Opacus), with an account of the privacy loss of single records."""
    options: dict[str, Scalar] = {
        "lr": training.lr, "epochs": clients.local_epochs, "rate": rate, "batch_size": training.batch_size,
        "clip": training.clip, "noise": training.noise,
    }  # fmt: skip
    account = _Records(_mechanism(training.noise, training.clip, rate), clients.local_epochs * steps_of(rate))
    return PrivateAveraging(
        task, seed=seed, rounds=rounds, clients=clients, training=training, node_task="train_dp_sgd",
        options=lambda _: options, returns=returns, account=account,
    )  # fmt: skip
