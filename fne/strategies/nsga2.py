"""NSGA-II over the same individuals as FedMOEAC, as its baseline.

K. Deb, A. Pratap, S. Agarwal, T. Meyarivan, "A fast and elitist multiobjective genetic algorithm: NSGA-II", IEEE
Transactions on Evolutionary Computation 6(2), 2002; pymoo does sorting and crowding. Variation, start, training and
objectives are those of `fed_moeac`, with its deviations.
"""

from __future__ import annotations

from fne.config.groups import Sending, TradeoffSearch, TradeoffStart, TradeoffTraining
from fne.config.registry import register
from fne.evolution.pareto import FrontSelection
from fne.learning.task import LearningTask
from fne.learning.tradeoffs import Tradeoffs


@register("strategy", "nsga2", population=True, privacy=True)
def nsga2(
    task: LearningTask,
    *,
    seed: int,
    search: TradeoffSearch,
    training: TradeoffTraining,
    sending: Sending,
    beginning: TradeoffStart,
) -> Tradeoffs:
    """Federated multi-objective search over sparsity, bits and noise, by non-dominated sorting."""
    return Tradeoffs(
        task, seed=seed, selection=FrontSelection(), search=search, training=training, sending=sending,
        beginning=beginning,
    )  # fmt: skip
