"""FDD-EA for several objectives, unprotected: the baseline of the secure form.

Jinjin Xu, Yaochu Jin, Wenli Du, "A federated data-driven evolutionary algorithm for expensive multi-/many-objective
optimization", Complex & Intelligent Systems 7, 2021; compared with in Liu, Yan, Ligeti, Jin, "A secure federated
data-driven evolutionary multi-objective optimization algorithm" (FDD-EA-DH), tables II and III, as "FDD-EA".

With `infill = all` the chosen points go to all nodes, which measure them, as in that method; its surrogates are
`surrogate = network`. Cubic interpolants of the same points and values are the same at all nodes, so that the standard
deviation over the nodes is 0 and `weight` has no effect: `infill = all` with `surrogate = cubic` is our own variant,
and a warning says so where all nodes measure alike.

`infill = aggregator`, the default, is FDD-EA-DH without its masks: requests, fixed-point sums and choices under the
same seed are identical, but the server could look at the sums. The deviations are those of `fdd_ea_dh`.
"""

from __future__ import annotations

from typing import Annotated

from fne.config.groups import FrontEnd, FrontRounds, Ring, Runs
from fne.config.registry import Key, register
from fne.problems.space import FrontTask
from fne.search.front_search import FrontSearch


@register("strategy", "fdd_ea_mo", takes_known=True)
def fdd_ea_mo(
    task: FrontTask,
    *,
    seed: int,
    front: FrontRounds,
    arithmetic: Annotated[
        Ring, Key("arithmetic of the sums: the fixed point of secure sums, or floating point")
    ] = "fixed",
    ending: FrontEnd,
    runs: Runs = 1,
) -> FrontSearch:
    """Federated surrogate-assisted search for a Pareto front, unprotected: the baseline of fdd_ea_dh."""
    return FrontSearch(task, seed=seed, runs=runs, front=front, arithmetic=arithmetic, ending=ending, secure=False)
