"""FedAvg: nodes train the global model on their own samples, the server moves it by the mean of their changes.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas, "Communication-efficient learning of deep
networks from decentralized data", AISTATS 2017, algorithm 1.

Deviations
- Nodes send deltas instead of weights: the same mean, and what secure sums and noise need later.
- Buffers: floats are averaged by samples, integers keep their type.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fne.config.registry import Key, register
from fne.learning.averaging import Averaging
from fne.learning.task import LearningTask


@register("strategy", "fedavg")
def fedavg(
    task: LearningTask,
    *,
    seed: int,
    rounds: Annotated[int, Key("communication rounds", unit="rounds", ge=1)] = 100,
    fraction: Annotated[float, Key("share of the nodes in a round, at least one node; C", gt=0, le=1)] = 0.1,
    local_epochs: Annotated[int, Key("passes over a node's samples a round; E", unit="epochs", ge=1)] = 1,
    batch_size: Annotated[int, Key("local batch; 0: all samples at once; B", unit="samples", ge=0)] = 10,
    optimizer: Annotated[Literal["sgd", "adam", "adadelta"], Key("local optimizer, new each round")] = "sgd",
    lr: Annotated[float, Key("local learning rate", gt=0)] = 0.1,
    lr_decay: Annotated[float, Key("factor on lr after each round", gt=0, le=1)] = 1.0,
    momentum: Annotated[float, Key("momentum of sgd", ge=0, lt=1)] = 0.0,
    loss: Annotated[Literal["nmse", "mse", "bce", "cross_entropy"], Key("what nodes minimise")] = "cross_entropy",
    returns: Annotated[Literal["best", "last"], Key("model of the run: best on validation, or the last")] = "last",
) -> Averaging:
    """Federated averaging: local training by gradient descent, weighted mean of the changes."""
    options = {
        "epochs": local_epochs, "batch_size": batch_size, "optimizer": optimizer, "momentum": momentum,
    }  # fmt: skip
    return Averaging(
        task, seed=seed, rounds=rounds, loss=loss, fraction=fraction, lr=lr, lr_decay=lr_decay,
        options=options, returns=returns,
    )  # fmt: skip
