"""FedAvg: nodes train the global model on their own samples, the server moves it by the mean of their changes.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas, "Communication-efficient learning of deep
networks from decentralized data", AISTATS 2017, algorithm 1.

Deviations
- Nodes send deltas instead of weights: the mean is the same, and secure sums and noise need deltas.
- Float buffers are averaged by samples; integer buffers keep their type.
"""

from __future__ import annotations

from fne.config.groups import FedAvgTraining, Rounds
from fne.config.registry import register
from fne.learning.averaging import Averaging
from fne.learning.task import LearningTask


@register("strategy", "fedavg")
def fedavg(task: LearningTask, *, seed: int, rounds: Rounds = 100, training: FedAvgTraining) -> Averaging:
    """Federated averaging: local training by gradient descent, weighted mean of the changes."""
    return Averaging(task, seed=seed, rounds=rounds, training=training)
