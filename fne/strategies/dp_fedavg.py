"""DP-FedAvg: federated averaging with differential privacy of whole clients, accounted.

H. B. McMahan, D. Ramage, K. Talwar, L. Zhang, "Learning differentially private recurrent language models", ICLR 2018.

In each round a fixed number of nodes takes part. Each node clips its update to a norm Z and adds Gaussian noise, so
that all noise together has a standard deviation of sigma Z on each weight. All nodes have the same weight, and nothing
else leaves a node: no loss, no sample count. The sum is divided by the number of nodes that were asked, however many
answer.

Deviations
- The nodes add the noise, a share of 1 / sqrt(m) each, and not the server, which they hold to its first request
  (`fne.privacy.policy`). An adversary that sees only the sum (`adversary = aggregate`, with secure sums) faces all of
  the noise; a server that sees each upload faces one share.
- A fixed number of clients is drawn, instead of each client independently (Poisson). So neighbours are runs in which
  one client's data are replaced (replace-one), and an update moves by 2 Z.
- Drawing nodes amplifies nothing here, since the server draws them from a public seed. The account is for a client that
  takes part in all rounds.
- Noise is missing where nodes drop out. Each round is accounted with the nodes that answered. A node that colludes with
  the server knows its own share: then the shares of m - 1 of m nodes are left.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import torch

from fne.config.groups import BatchTraining, Clients, PrivateReturns, PrivateTraining
from fne.config.registry import Key, register
from fne.core.errors import RunError
from fne.core.messages import Request, Scalar, Tensors
from fne.federation.node import Node, payload_of
from fne.federation.worker import Worker
from fne.learning.averaging import PrivateAveraging
from fne.learning.local_training import descend, private_payload
from fne.learning.task import LearningTask
from fne.privacy.accountant import Accountant, Mechanism, multiplier
from fne.privacy.compression import clipped
from fne.privacy.noise import noised
from fne.privacy.policy import Release
from fne.secure.protocol import enough


def clipped_charge(request: Request, node: str, parties: int) -> tuple[Release, ...]:
    """Return the release of `train_clipped`: one noised update, or a sum with the noise of `parties` nodes."""
    noise, clip = (float(request.options[key]) for key in ("noise", "clip"))
    z = multiplier(noise, "replace_one", parties)
    adversary = "uploads" if parties == 1 else "aggregate"
    return (Release(noise, clip, Mechanism(z, "update", clip, adjacency="replace_one", adversary=adversary)),)


@register("task", "train_clipped", payload=private_payload, charge=clipped_charge)
def train_clipped_task(
    worker: Worker,
    nodes: Sequence[Node],
    request: Request,
    *,
    training: BatchTraining,
    clip: Annotated[float, Key("largest L2 norm of an update", gt=0)],
    noise: Annotated[float, Key("standard deviation of this node's share of the noise, in clips", ge=0)],
) -> Iterator[Tensors]:
    """Train the given weights on each node's samples, and answer with the change, clipped and noised.

    The task takes `parameters [D]`. It yields `delta [D]` and `clients`, 1, and nothing without noise: a training that
    diverges answers with noise alone.
    """
    for node in nodes:
        start = payload_of(request, node)["parameters"]
        try:
            delta = descend(worker, node, request.header, start, {}, training).delta
        except RunError:
            if not noise:
                raise
            delta = torch.zeros_like(start, device="cpu")  # a failure would reveal something, unnoised
        draws = functools.partial(node.answering(request), "noise") if noise else None
        yield {"delta": noised(clipped(delta, clip), noise, clip, draws), "clients": torch.tensor([1])}


class _Clients:
    """Account of a client that takes part in every round."""

    sampler, records = "fixed", False
    unnoised: tuple[str, ...] = ()

    def __init__(self, noise: float, clip: float, adversary: str) -> None:
        self._noise, self._clip, self._adversary = noise, clip, adversary
        self._accountant = Accountant()

    def add(self, asked: Sequence[str], answered: int) -> None:
        """Add a round."""
        self._accountant.add(self._mechanism(len(asked), answered))

    def _mechanism(self, asked: int, answered: int) -> Mechanism:
        noises = 1 if self._adversary == "uploads" else answered
        z = multiplier(self._noise / math.sqrt(asked), "replace_one", noises)
        return Mechanism(z, "update", self._clip, adjacency="replace_one", adversary=self._adversary)

    def planned(self, rounds: int, asked: int) -> Accountant:
        """Return all releases if no round loses more nodes than is tolerated."""
        planned = Accountant()
        planned.add(self._mechanism(asked, enough(asked)), rounds)
        return planned

    def accountant(self) -> Accountant:
        """Return all releases."""
        return self._accountant

    def state_dict(self) -> dict[str, Any]:
        """Return all releases as plain numbers."""
        return self._accountant.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self._accountant.load_state_dict(state)


@register("strategy", "dp_fedavg", privacy=True)
def dp_fedavg(
    task: LearningTask,
    *,
    seed: int,
    rounds: Annotated[int, Key("communication rounds", unit="rounds", ge=1)] = 100,
    clients: Clients,
    training: PrivateTraining,
    adversary: Annotated[
        Literal["uploads", "aggregate"], Key("adversary that sees each upload, or the sum alone (needs secure = true)")
    ] = "uploads",
    returns: PrivateReturns = "last",
) -> PrivateAveraging:
    """Federated averaging with client-level differential privacy: clipped updates, noise from the nodes, an account."""

    def options(count: int) -> dict[str, Scalar]:
        share = training.noise / math.sqrt(count)
        return {
            "lr": training.lr, "epochs": clients.local_epochs, "batch_size": training.batch_size,
            "clip": training.clip, "noise": share,
        }  # fmt: skip

    return PrivateAveraging(
        task, seed=seed, rounds=rounds, clients=clients, training=training, node_task="train_clipped", options=options,
        returns=returns, account=_Clients(training.noise, training.clip, adversary),
        secure=True if adversary == "aggregate" else None,
    )  # fmt: skip
