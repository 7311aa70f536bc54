"""NSGA-II over the same individuals as FedMOEAC: what that is compared with.

K. Deb, A. Pratap, S. Agarwal, T. Meyarivan, "A fast and elitist multiobjective genetic algorithm: NSGA-II", IEEE
Transactions on Evolutionary Computation 6(2), 2002; sorting and crowding are pymoo's. Variation, start, training and
objectives are those of `fed_moeac`, with its deviations.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fne.config.registry import Key, register
from fne.evolution.pareto import FrontSelection
from fne.learning.task import LearningTask
from fne.learning.tradeoff_genes import Sending
from fne.learning.tradeoffs import Tradeoffs


@register("strategy", "nsga2", population=True, privacy=True)
def nsga2(
    task: LearningTask,
    *,
    seed: int,
    population: Annotated[int, Key("individuals; N", ge=1)] = 10,
    generations: Annotated[int, Key("of children", ge=0)] = 12,
    rounds_per_evaluation: Annotated[int, Key("of federated averaging for each; T", unit="rounds", ge=1)] = 10,
    loss: Annotated[Literal["nmse", "mse", "bce", "cross_entropy"], Key("of training")] = "cross_entropy",
    participation: Annotated[float, Key("share of the nodes that take part in a round; v", gt=0, le=1)] = 0.4,
    epochs: Annotated[int, Key("passes over a node's samples in a round; E", unit="epochs", ge=1)] = 2,
    batch_size: Annotated[int, Key("0: all samples at once; B", unit="samples", ge=0)] = 64,
    lr: Annotated[float, Key("learning rate of SGD", gt=0)] = 0.1,
    bits: Annotated[tuple[int, ...], Key("choices for a value that is sent", unit="bits", min_length=1)] = (32, 16, 8),
    clip: Annotated[float, Key("largest L2 norm of an update; 0: none, and no noise; Z", ge=0)] = 1.0,
    noise: Annotated[
        Literal["total", "coordinate"], Key("sigma Z is the size of all noise together, or its deviation a weight")
    ] = "total",
    score_bounds: Annotated[tuple[float, float], Key("least and largest score of eq. (7), which bound the noise")] = (
        0.1,
        10.0,
    ),
    delta: Annotated[float, Key("of the accounted privacy, and of eq. (7)", gt=0, lt=1)] = 1e-5,
    pruning: Annotated[
        Literal["rate", "threshold"], Key("of the first gene: a share that is pruned, or a size")
    ] = "rate",
    prune: Annotated[Literal["fc", "all"], Key("weights of fully connected layers, or all")] = "fc",
    order: Annotated[
        Literal["proper", "literal"], Key("clip, noise, compress the update; or compress, clip, noise weights")
    ] = "proper",
    inherit: Annotated[Literal["initial", "first_parent"], Key("weights that a child begins with")] = "initial",
    shared_global: Annotated[bool, Key("all begin with one global model, the mean of those before")] = False,
    start: Annotated[
        tuple[tuple[float, float, float], ...], Key("first individuals, [threshold, bits, noise]; others are drawn")
    ] = (),
    validate_every: Annotated[
        int, Key("those in training are validated; 0: at the end of their evaluation", unit="rounds", ge=0)
    ] = 0,
) -> Tradeoffs:
    """Federated multi-objective search over sparsity, bits and noise, by non-dominated sorting."""
    sending = Sending(bits, clip, noise, pruning, prune, order, score_bounds, delta)
    return Tradeoffs(
        task, seed=seed, selection=FrontSelection(), population=population, generations=generations,
        rounds=rounds_per_evaluation, loss=loss, participation=participation, epochs=epochs, batch_size=batch_size,
        lr=lr, sending=sending, inherit=inherit, shared_global=shared_global,
        given=start, validate_every=validate_every,
    )  # fmt: skip
