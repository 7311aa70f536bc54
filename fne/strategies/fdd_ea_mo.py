"""FDD-EA for several objectives, unprotected: what the secure form is compared with.

Jinjin Xu, Yaochu Jin, Wenli Du, "A federated data-driven evolutionary algorithm for expensive multi-/many-objective
optimization", Complex & Intelligent Systems 7, 2021; compared with in Liu, Yan, Ligeti, Jin, "A secure federated
data-driven evolutionary multi-objective optimization algorithm" (FDD-EA-DH), tables II and III, as "FDD-EA".

With `infill = all` the chosen points go to everybody, and all nodes measure them, as in that method; its surrogates are
`surrogate = network`. Cubic interpolants of the same points and values are the same at all nodes, so that the standard
deviation over the nodes is 0 and `weight` has no effect: `infill = all` with `surrogate = cubic` is a variant of our
own, and a warning says so where all nodes measure alike.

`infill = aggregator`, the default, is FDD-EA-DH without its masks: the same requests, sums in the same fixed point, the
same choices under the same seed; only the server could look at the sums. Deviations are those of `fdd_ea_dh`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fne.config.registry import Key, register
from fne.problems.space import FrontTask
from fne.search.front_search import FrontSearch
from fne.search.front_settings import Networks, default_centres, default_initial, default_population


@register("strategy", "fdd_ea_mo", takes_known=True)
def fdd_ea_mo(
    task: FrontTask,
    *,
    seed: int,
    rounds: Annotated[int, Key("of surrogates and queries", ge=1)] = 24,
    initial: Annotated[
        int | None, Key("points of the Latin hypercube that all nodes measure; null: 11 d - 1", unit="points", ge=1)
    ] = None,
    points: Annotated[int, Key("measured in a round; mu", ge=1)] = 5,
    infill: Annotated[
        Literal["aggregator", "all"], Key("who measures the chosen points, and is told them: the chosen node, or all")
    ] = "aggregator",
    participation: Annotated[float, Key("share of the nodes that take part in a round", gt=0, le=1)] = 1.0,
    surrogate: Annotated[
        Literal["cubic", "network"], Key("cubic interpolants, or the networks of FDD-EA and their average")
    ] = "cubic",
    centres: Annotated[int | None, Key("of a network; null: the root of M + d, and 3", ge=1)] = None,
    epochs: Annotated[int, Key("of a network's training; E", unit="epochs", ge=1)] = 20,
    lr: Annotated[float, Key("learning rate of the networks; eta", gt=0)] = 0.06,
    kmeans_starts: Annotated[int, Key("of k-means, of which the best is kept", ge=1, le=100)] = 3,
    weight: Annotated[float, Key("standard deviations that the acquisition subtracts; t", ge=0)] = 2.0,
    population: Annotated[
        int | None, Key("most reference vectors of RVEA; null: by the number of objectives", ge=2, le=5000)
    ] = None,
    generations: Annotated[int, Key("of RVEA in a round", ge=1)] = 50,
    arithmetic: Annotated[
        Literal["fixed", "float"], Key("of the sums: the fixed point of secure sums, or floating point")
    ] = "fixed",
    release: Annotated[bool, Key("end with the fronts that owners publish; else with none")] = True,
    finals: Annotated[
        Literal["mean", "literal"],
        Key("all nodes measure the published points, and their means make the front; or the owners' own values do"),
    ] = "mean",
    finalists: Annotated[int, Key("most points that all nodes measure at the end", unit="points", ge=1, le=1000)] = 50,
    runs: Annotated[int, Key("side by side, of seeds seed, seed + 1, …", unit="runs", ge=1, le=1000)] = 1,
) -> FrontSearch:
    """Federated surrogate-assisted search for a Pareto front, unprotected: the baseline of fdd_ea_dh."""
    return FrontSearch(
        task, seed=seed, runs=runs, rounds=rounds, generations=generations,
        initial=default_initial(task) if initial is None else initial, participation=participation, points=points,
        publish=infill == "all", surrogate=surrogate,
        networks=Networks(default_centres(task) if centres is None else centres, epochs, lr, kmeans_starts),
        population=default_population(task.objectives) if population is None else population, weight=weight,
        arithmetic=arithmetic, release=release,
        finalists=finalists if finals == "mean" else 0, secure=False,
    )  # fmt: skip
