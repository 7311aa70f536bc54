"""FDD-EA-DH: search for a Pareto front in which the server sees neither predictions nor measured points.

Qiqi Liu, Yuping Yan, Peter Ligeti, Yaochu Jin, "A secure federated data-driven evolutionary multi-objective
optimization algorithm", 2022.

In a round, nodes fit surrogates to their measurements, the server varies candidates (RVEA), and all nodes predict them.
The chosen node, drawn anew for each round, receives the sums of the predictions and of their squares, selects by F-LCB,
and reports the surviving candidates. In the last generation it reports nothing: it chooses mu points, measures and
keeps them.

Deviations and readings
- The masks of eq. (3) are all 0 as printed: both of its sums run over j < i, and keys are symmetric. With the intended
  signs, the sigma of masked values has little to do with that of the values (sigma is not linear), so no size of noise
  both hides values and keeps them useful. `mode = secure` sums the quantities that the selection needs: d_i, the
  predictions minus the global network's, and their squares; F-LCB, eq. (1), follows from them exactly
  (`fne.surrogates.acquisition.lcb_of_sums`). Masks are words of a ring, from keys that are new in each step, on sums
  that only the chosen node can open (docs/secure.md): with floats and one salt per run, as printed, survivors that
  return in another place reveal their differences.
- As printed, the chosen node returns the values of F-LCB and the server selects: the server would know their ranks, and
  could repeat the choice. Here the chosen node selects and returns indices, so it holds the state of RVEA for the
  round.
- Nodes predict only the children of a generation, since the chosen node remembers the values of the parents.
- Local networks sent in the clear would reveal all predictions, so the global network comes from a secure sum.
- `mode = literal` is the text's protocol with the intended signs, for comparison of figures: masks are normal numbers
  of size `noise_scale` (the text gives no number), with one salt for the run, and every candidate, also every parent,
  is predicted and masked in each generation. `normalise` is eq. (4). This mode protects nothing.
- "All other parameters are the same as in FDD-EA": `surrogate = network` is a network of the root of M + d, and 3,
  centres, with E = 20 and eta = 0.06. The default is a cubic interpolant, which has no parameters to average and needs
  no global network: y_s in eq. (1) is the mean of the nodes' predictions. Figures of both are in benchmarks/RESULTS.md.
- The paper does not state which nodes measure the 11 d - 1 initial points (here all nodes, as in FDD-EA), how the mu
  points are selected (one from each of mu clusters in objective space), where RVEA starts (from a Latin hypercube, and
  the children of the previous round), and how the front becomes known. Here each owner publishes the points of its own
  front at the end, or declines; all nodes measure a shortlist, with at most `finalists` further evaluations, and the
  means make the front, since the luckiest of the owners' own values would win (`fne.search.finals`). With
  `finals = literal` owners publish their own values, too, and these values make the front.
- The implications of exact sums remain: a node that is chosen again can subtract the sums of two of its turns
  (docs/fdd_ea_dh.md).
- `infill = all`, the paper's future work, sends the chosen points to all nodes, which measure them. The server and all
  nodes then know the queried points; predictions and values stay hidden.
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
        Literal["secure", "literal"],
        Key("protocol: secure sums at the chosen node, or the text's masks, which protect nothing"),
    ] = "secure",
    front: FrontRounds,
    masking: Masking,
    ending: FrontEnd,
    runs: Annotated[int, Key("number of runs side by side, with mode = literal", unit="runs", ge=1, le=1000)] = 1,
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
