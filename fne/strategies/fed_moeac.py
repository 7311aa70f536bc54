"""FedMOEAC: how updates are pruned, quantised and noised, as a population of trade-offs that mates within clusters.

Chengui Xiao, Songbai Liu, "Clustering-based evolutionary federated multiobjective optimization and learning"
(FedMOEAC). Objectives: error, bytes sent, and what the paper calls the privacy budget.

Deviations and readings
- The paper does not say for how many rounds a model is trained to be evaluated (`rounds_per_evaluation`, T of eq. (7)),
  nor from which weights a child begins (`inherit`), nor whether all share one global model, as lines 7 and 8 of its
  algorithm read (`shared_global`). By default each individual is trained from the initial weights for ten rounds, so
  that objectives are comparable; parents keep theirs and are not trained again.
- Eq. (5), the error, is that on the server's validation data, 1 - accuracy; of regression the loss.
- Eq. (6), bytes, is counted on what is really sent: encoded positions, levels, heads, over the same weights as floats.
- Eq. (7) is a score and no epsilon (`fne.privacy.score.score_eq7`); beside it goes an accounted epsilon. Bounds
  of the score ("privacy budget within [0.1, 10]") bound the noise; its genes are logarithms, the bounds are far apart.
- Eq. (4) adds noise of deviation sigma Z to every coordinate: of 46,730 weights at sigma = 6 that is 1,300 times the
  update, and nothing is learned (`noise = coordinate`). With `noise = total`, the default, all noise together is of
  size sigma Z: then models learn, and the accounted epsilon says that nothing is protected.
- Eq. (3) is misprinted, eq. (4) clips weights: see `fne.privacy.compression`. `order = literal` has the text's order:
  pruned and quantised weights, clipped, noised, and so sent as floats. The default clips and noises the update, and
  then prunes and quantises it, which costs no privacy.
- The threshold "is a pruning rate" where it is drawn: mean 0.3. `pruning = rate` takes that share; with `threshold` it
  is the size of eq. (2), of which nearly all updates are smaller.
- Only fully connected layers are pruned (`prune = fc`); `all` prunes all.
- "Minimum fitness" of three objectives is the least distance to the ideal point, of scaled objectives (`select`).
  Objectives are scaled before cosines are taken, as the paper normalises them for its hypervolume: error and bytes are
  shares, the score is divided by its largest. `scale = range` divides by the ranges in the population, in which one bad
  outlier makes all the others look alike: hypervolumes were lower with it (benchmarks/RESULTS.md).
- Of a cluster the best survives even where another cluster's members dominate it, so part of the population is no
  trade-off. `fronts` clusters only the first fronts that fill the population; this is ours.
- The number of mating groups is not given (`clusters`).
- Bits are the nearest of `bits` after variation, each with an equal share of the gene.
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
    clusters: Annotated[int, Key("groups for mating; m", ge=1)] = 3,
    select: Annotated[
        Literal["distance", "sum"], Key("who survives of a cluster: nearest to the ideal point, or least sum")
    ] = "distance",
    scale: Annotated[
        Literal["bounds", "range"],
        Key("unit of the objectives: the worst that they should be, or their ranges in the population"),
    ] = "bounds",
    fronts: Annotated[bool, Key("cluster the first fronts that fill the population, and not all")] = False,
    training: TradeoffTraining,
    sending: Sending,
    beginning: TradeoffStart,
) -> Tradeoffs:
    """Federated multi-objective search over sparsity, bits and noise, with clusters of directions."""
    selection = ClusterSelection(clusters, select, ranges=scale == "range", fronts=fronts)
    return Tradeoffs(
        task, seed=seed, selection=selection, search=search, training=training, sending=sending, beginning=beginning
    )
