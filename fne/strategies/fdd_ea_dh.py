"""FDD-EA-DH: a search for a Pareto front in which the server sees neither predictions nor the points that are measured.

Qiqi Liu, Yuping Yan, Peter Ligeti, Yaochu Jin, "A secure federated data-driven evolutionary multi-objective
optimization algorithm", 2022.

A round: nodes fit surrogates to what they have measured; the server varies candidates (RVEA); all nodes predict them; a
node that is drawn anew for each round is given the sums of the predictions and of their squares, selects by F-LCB, and
tells which candidates survive. In the last generation it tells nothing: it chooses mu points, measures and keeps them.

Deviations and readings
- The masks of eq. (3) are all 0 as printed: both of its sums run over j < i, and keys are symmetric. With the signs
  that were meant a sigma of masked values has little to do with that of the values (it is not linear), so no size of
  noise hides them and is of use. `mode = secure` sums what is needed: d_i, the predictions less the global network's,
  and their squares; from the two F-LCB, eq. (1), is exact (`fne.surrogates.acquisition.lcb_of_sums`). Masks are words
  of a ring, from keys that are new in each step, on sums that only the chosen node can open (docs/secure.md): with
  floats and one salt a run, as printed, survivors that come back in another place show their differences.
- As printed the chosen node returns the values of F-LCB and the server selects: it would know their ranks, and could
  repeat the choice. Here that node selects and returns indices, and so holds the state of RVEA for the round.
- Children only are predicted in a generation: what the chosen node knows of the parents it remembers.
- Local networks sent in the clear would give all predictions away: the global one is made of a secure sum.
- `mode = literal` is the text's protocol with the signs that were meant, for comparison of figures: masks are normal
  numbers of size `noise_scale` (the text has no number), one salt for the run, and every candidate, parents too, is
  predicted and masked each generation. Eq. (4) is `normalise`. It protects nothing.
- "All other parameters are the same as in FDD-EA": a network of the root of M + d, and 3, centres, of E = 20 and
  eta = 0.06, is `surrogate = network`. The default is a cubic interpolant, which has no parameters to be averaged and
  needs no global network: y_s in eq. (1) is the mean of the nodes' predictions. Figures of both are in
  benchmarks/RESULTS.md.
- Unstated: who measures the 11 d - 1 initial points (here all nodes, as in FDD-EA), how the mu points are selected
  (one of each of mu clusters in the space of the objectives), where RVEA starts (a Latin hypercube, and children
  of the round before), how anybody learns of the front. Here each owner publishes the points of its own front at the
  end, or declines; all nodes measure a shortlist, at most `finalists` further evaluations, and the front is that of the
  means, since of the owners' own values the luckiest would win (`fne.search.finals`). With `finals = literal` owners
  publish their own values, too, and the front is that of these.
- What exact sums imply stays: a node that is chosen again can subtract those of two of its turns (docs/fdd_ea_dh.md).
- `infill = all`, the paper's future work: the chosen points are told to all, who measure them. The server and all
  nodes know the queried points then; predictions and values stay hidden.
"""

from __future__ import annotations

import warnings
from typing import Annotated, Literal

from fne.config.groups import FrontEnd, FrontRounds, Masking
from fne.config.registry import Key, register
from fne.core.errors import DataWarning, SettingError
from fne.problems.space import FrontTask
from fne.search.front_search import FrontSearch

_LITERAL = (
    "strategy.mode = literal: the protocol as its paper prints it, for comparison of figures; it protects nothing. "
    "Take mode = secure"
)


@register("strategy", "fdd_ea_dh", takes_known=True)
def fdd_ea_dh(
    task: FrontTask,
    *,
    seed: int,
    mode: Annotated[
        Literal["secure", "literal"], Key("secure sums at the chosen node, or the text's masks, which protect nothing")
    ] = "secure",
    front: FrontRounds,
    masking: Masking,
    ending: FrontEnd,
    runs: Annotated[int, Key("side by side, with mode = literal", unit="runs", ge=1, le=1000)] = 1,
) -> FrontSearch:
    """Secure federated surrogate-assisted search for a Pareto front: predictions and queried points stay hidden."""
    secure = mode == "secure"
    if secure and runs > 1:
        raise SettingError("strategy.runs", runs, "1 with strategy.mode = secure; take fdd_ea_mo for several at once")
    if not secure and runs > 1 and front.participation < 1:
        allowed = "1 with strategy.mode = literal and several runs: masks cancel among the same nodes only"
        raise SettingError("strategy.participation", front.participation, allowed)
    if not secure:
        warnings.warn(_LITERAL, DataWarning, stacklevel=2)
    return FrontSearch(
        task, seed=seed, runs=runs, front=front, arithmetic="fixed" if secure else "masked",
        masking=None if secure else masking, ending=ending, secure=secure,
    )  # fmt: skip
