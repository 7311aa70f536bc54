"""FedMOEAC: multi-objective search over pruning, quantisation and noise of updates, with mating within clusters.

Chengui Xiao, Songbai Liu, "Clustering-based evolutionary federated multiobjective optimization and learning"
(FedMOEAC). Objectives: error, bytes sent, and what the paper calls the privacy budget.

Deviations and readings
- The paper does not say for how many rounds a model is trained in an evaluation (`rounds_per_evaluation`, T of eq.
  (7)), nor the initial weights of a child (`inherit`), nor whether all individuals share one global model, as lines 7
  and 8 of its algorithm read (`shared_global`). By default each individual is trained from the initial weights for ten
  rounds, so that objectives are comparable; parents keep their objectives and are not trained again.
- Eq. (5), the error, is 1 - accuracy on the server's validation data; for regression, the loss.
- Eq. (6), communication, counts the bytes that are really sent: encoded positions, levels, heads, divided by the bytes
  of the same weights as floats.
- Eq. (7) is a score and no epsilon (`fne.privacy.score.score_eq7`); an accounted epsilon is reported beside it. Bounds
  of the score ("privacy budget within [0.1, 10]") bound the noise; its genes are logarithms, since the bounds are far
  apart.
- Eq. (4) adds noise of deviation sigma Z to every coordinate: with 46,730 weights and sigma = 6 the noise is 1,300
  times the update, and nothing is learned (`noise = coordinate`). With `noise = total`, the default, all noise together
  has size sigma Z: then models learn, and the accounted epsilon shows that nothing is protected.
- Eq. (3) is misprinted, and eq. (4) clips weights: see `fne.privacy.compression`. `order = literal` has the text's
  order: weights are pruned and quantised, clipped, noised, and so sent as floats. The default clips and noises the
  update, and then prunes and quantises it, which costs no privacy.
- The threshold "is a pruning rate" where it is drawn, with mean 0.3. `pruning = rate` prunes that share; with
  `threshold` it is the size of eq. (2), and nearly all updates are smaller than this size.
- Only fully connected layers are pruned (`prune = fc`); `all` prunes all layers.
- "Minimum fitness" of three objectives is the least distance to the ideal point, of scaled objectives (`select`).
  Objectives are scaled before cosines are taken, as the paper normalises them for its hypervolume: error and bytes are
  shares, the score is divided by its largest. `scale = range` divides by the ranges in the population, in which one bad
  outlier makes all the others look alike: hypervolumes were lower with it (benchmarks/RESULTS.md).
- The best of a cluster survives even where another cluster's members dominate it, so part of the population is not
  Pareto-optimal. `fronts` clusters only the first fronts that fill the population, which is our addition.
- The paper does not give the number of mating groups (`clusters`).
- After variation, bits are the nearest of `bits`, each with an equal share of the gene.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fne.config.groups import Sending, TradeoffSearch, TradeoffStart, TradeoffTraining
from fne.config.registry import Key, register
from fne.evolution.pareto import ClusterSelection
from fne.learning.task import LearningTask
from fne.learning.tradeoffs import Tradeoffs


@register("strategy", "fed_moeac", population=True, privacy=True)
def fed_moeac(
    task: LearningTask,
    *,
    seed: int,
    search: TradeoffSearch,
    clusters: Annotated[int, Key("number of mating groups; m", ge=1)] = 3,
    select: Annotated[
        Literal["distance", "sum"], Key("survivor of a cluster: nearest to the ideal point, or least sum")
    ] = "distance",
    scale: Annotated[
        Literal["bounds", "range"],
        Key("unit of the objectives: their worst acceptable values, or their ranges in the population"),
    ] = "bounds",
    fronts: Annotated[bool, Key("cluster only the first fronts that fill the population")] = False,
    training: TradeoffTraining,
    sending: Sending,
    beginning: TradeoffStart,
) -> Tradeoffs:
    """Federated multi-objective search over sparsity, bits and noise, with direction clusters."""
    selection = ClusterSelection(clusters, select, ranges=scale == "range", fronts=fronts)
    return Tradeoffs(
        task, seed=seed, selection=selection, search=search, training=training, sending=sending, beginning=beginning
    )
