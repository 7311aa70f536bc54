"""FedProx: FedAvg whose local objective holds the model near the global one.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith, "Federated optimization in heterogeneous networks",
MLSys 2020, algorithm 2.

Deviations
- The gamma-inexact local solution is a given number of epochs, as in the authors' experiments.
- `mu = 0` is FedAvg bit for bit.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fne.config.registry import Key, register
from fne.learning.averaging import Averaging
from fne.learning.task import LearningTask


@register("strategy", "fedprox")
def fedprox(
    task: LearningTask,
    *,
    seed: int,
    rounds: Annotated[int, Key("communication rounds", unit="rounds", ge=1)] = 100,
    mu: Annotated[float, Key("weight of mu / 2 * ||w - w_global||^2 in the local loss", ge=0)] = 0.01,
    fraction: Annotated[float, Key("share of the nodes in a round, at least one node", gt=0, le=1)] = 0.1,
    local_epochs: Annotated[int, Key("passes over a node's samples a round", unit="epochs", ge=1)] = 1,
    batch_size: Annotated[int, Key("local batch; 0: all samples at once", unit="samples", ge=0)] = 10,
    optimizer: Annotated[Literal["sgd", "adam", "adadelta"], Key("local optimizer, new each round")] = "sgd",
    lr: Annotated[float, Key("local learning rate", gt=0)] = 0.1,
    lr_decay: Annotated[float, Key("factor on lr after each round", gt=0, le=1)] = 1.0,
    momentum: Annotated[float, Key("momentum of sgd", ge=0, lt=1)] = 0.0,
    loss: Annotated[Literal["nmse", "mse", "bce", "cross_entropy"], Key("what nodes minimise")] = "cross_entropy",
    returns: Annotated[Literal["best", "last"], Key("model of the run: best on validation, or the last")] = "last",
) -> Averaging:
    """FedProx: federated averaging with a proximal term in the local objective."""
    options = {
        "epochs": local_epochs, "batch_size": batch_size, "optimizer": optimizer, "momentum": momentum, "mu": mu,
    }  # fmt: skip
    return Averaging(
        task, seed=seed, rounds=rounds, loss=loss, fraction=fraction, lr=lr, lr_decay=lr_decay,
        options=options, returns=returns,
    )  # fmt: skip
