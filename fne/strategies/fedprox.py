"""FedProx: FedAvg with a proximal term, which keeps local models near the global one.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith, "Federated optimization in heterogeneous networks",
MLSys 2020, algorithm 2.

Deviations
- The gamma-inexact local solution is a given number of epochs, as in the authors' experiments.
- `mu = 0` is FedAvg bit for bit.
"""

from __future__ import annotations

from typing import Annotated

from fne.config.groups import LocalTraining, Rounds
from fne.config.registry import Key, register
from fne.learning.averaging import Averaging
from fne.learning.task import LearningTask


@register("strategy", "fedprox")
def fedprox(
    task: LearningTask,
    *,
    seed: int,
    rounds: Rounds = 100,
    mu: Annotated[float, Key("weight of mu / 2 * ||w - w_global||^2 in the local loss", ge=0)] = 0.01,
    training: LocalTraining,
) -> Averaging:
    """FedProx: federated averaging with a proximal term in the local objective."""
    return Averaging(task, seed=seed, rounds=rounds, training=training, more={"mu": mu})
