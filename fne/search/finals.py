"""The finals of a search: all nodes measure a few finalists, and the mean over the nodes decides.

The values that a single node measured do not decide which point is the best: of many noisy values, or of values at
unlike sites, the least belongs to the luckiest node. The finals take three steps, and only the last one measures:

1. proposal: each owner proposes the best points of its node, without values, or declines.
2. recall: the nodes add up the values that they have already measured at the proposed points. The means decide which
   points are on the shortlist, at most `most` finalists.
3. measurement: all nodes measure the finalists anew, and the means of these values decide.

Only points and sums of values cross the wire. The values that made a point a finalist have no part in the decision;
otherwise luck would decide after all. The mean of a finalist is taken over the nodes that could measure it, and counts
where these nodes are a quorum: more than half of the nodes whose owners do not decline. A node whose owner declines
proposes nothing and adds nothing to the sums.

Shapes: `B` runs side by side, `n` points, `d` variables, `M` objectives. Points lie in the cube [-1, 1]^d; a row of NaN
means "no point".
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from fne.core.contracts import Metrics, Result
from fne.core.messages import Request, Round, Status
from fne.evolution.indicators import non_dominated
from fne.evolution.real_coded import take
from fne.privacy.policy import STEP, Tasks
from fne.search.release import ReleaseWarning, declined, fronts, release_request
from fne.search.value_search import Arithmetic, means_of, value_request

PROPOSAL, RECALL, MEASUREMENT = range(3)
STEPS = 3
"""Number of steps of the finals; a server that knows the means of the values needs only the last one."""


class Finals:
    """The server's half of the finals.

    Args:
        kind: whether the runs yield a point each or a front each.
        seed: seed of the first run.
        sizes: the numbers of `runs` side by side, of `variables` and of `objectives`.
        most: largest number of finalists of a run.
        arithmetic: how values are added, see `fne.search.value_tasks.measure_task`.
    """

    def __init__(
        self,
        kind: Literal["point", "front"],
        *,
        seed: int,
        sizes: Mapping[str, int],
        most: int,
        arithmetic: Arithmetic = "float",
    ) -> None:
        runs = sizes["runs"]
        self._task = "release" if kind == "point" else "release_front"
        self._kind, self._seed, self._runs, self._most, self._arithmetic = kind, seed, runs, most, arithmetic
        self._sizes = dict(sizes)
        self._points = torch.zeros(runs, 0, 0, dtype=torch.float64)
        self._declined = self._asked = 0
        self.over = False
        """Whether nothing is left to do: the finalists are measured, or there are none."""
        self.measured = 0
        """Number of finalists that were measured; with several runs, the largest such number."""

    def tasks(self, first: int) -> Tasks:
        """Return the node tasks that the finals request from step `first` on, see `fne.privacy.policy.Tasks`."""
        proposal, others = (first + PROPOSAL,) * 2, (first + RECALL, first + MEASUREMENT)
        return {
            self._task: {"values": False, STEP: proposal},
            "measure": {"arithmetic": self._arithmetic, STEP: others},
        }

    # ------------------------------------------------------------------------------------------------ ask
    def ask(self, place: int, step: int, nodes: Sequence[str]) -> Request:
        """Return the request of one of the three steps."""
        self._asked = len(nodes)
        if place == PROPOSAL:
            return release_request(self._seed, step, nodes, self._task, sizes=self._sizes, values=False)
        return value_request(
            self._seed, step, self._points, [nodes] * self._runs, recall=place == RECALL, arithmetic=self._arithmetic,
            objectives=self._sizes["objectives"],
        )  # fmt: skip

    # ------------------------------------------------------------------------------------------------ tell
    def tell(self, place: int, step: int, round_: Round, before: Result) -> Result:
        """Take in the answers to a step and return the result so far.

        Args:
            place: which of the three steps.
            step: step of the run, for warnings.
            round_: the answers.
            before: the result before the finals, which stays the result where there is no finalist.
        """
        if place == PROPOSAL:
            return self._proposed(round_, before)
        means, counts = means_of(round_, self._arithmetic)
        if place == RECALL:
            self.shortlist(self._points, means)
            return before
        self.over, self.measured = True, self._points.shape[1]
        return self._decided(step, means, counts, (self._asked - self._declined) // 2 + 1, before)

    def _proposed(self, round_: Round, before: Result) -> Result:
        """Keep the distinct points that owners propose, in the order of the nodes."""
        self._declined = sum(failure.status is Status.DECLINED for failure in round_.failures)
        name = "point" if self._kind == "point" else "points"
        proposals = [reply.payload[name].double() for reply in round_.replies]
        if not proposals:
            self.over = True
            return declined(round_, before)
        together = torch.cat([points.unsqueeze(1) if points.dim() == 2 else points for points in proposals], dim=1)
        self._points = _stacked([points[_different(points)] for points in together])
        self.over = self._points.shape[1] == 0
        return before

    def shortlist(self, points: Tensor, means: Tensor) -> None:
        """Choose the finalists: the best of points `[B, n, d]` by the means `[B, n, M]` of their values, best first.

        A point whose mean is not known comes last.
        """
        chosen = []
        for own, values in zip(points, means, strict=True):
            rows = _different(own)
            order = _by_value(values[rows, 0]) if self._kind == "point" else _by_fronts(values[rows], self._most)
            chosen.append(own[rows[order[: self._most]]])
        self._points = _stacked(chosen)
        self.over = self._points.shape[1] == 0

    def _decided(self, step: int, means: Tensor, counts: Tensor, quorum: int, before: Result) -> Result:
        """Return the result by means `[B, n, M]` over `counts [B, n]` nodes each."""
        eligible = counts >= quorum
        short = ~eligible.any(dim=1)
        if bool(short.any()):
            most = int(counts[short].max())
            warnings.warn(
                f"step {step}: no finalist was measured by {quorum} nodes, more than half of those whose owners do not "
                f"decline; the decision is among those that most nodes could measure ({most})", ReleaseWarning,
                stacklevel=3,
            )  # fmt: skip
            largest = counts.amax(dim=1, keepdim=True).clamp(min=1)
            eligible = torch.where(short.unsqueeze(1), counts == largest, eligible)
        means = means.where(eligible.unsqueeze(2), torch.nan)
        if self._kind == "front":
            points, values = fronts(self._points, means)
            return Result("front", points, values=values)
        best = torch.stack([_by_value(values)[:1] for values in means[..., 0]])
        points, values = take(self._points, best)[:, 0], take(means, best)[:, 0, 0]
        known = values.isfinite()
        return Result("point", torch.where(known.unsqueeze(1), points, before.parameters), values=values)

    @property
    def figures(self) -> Metrics:
        """Metrics of the finals: once they are over, how many finalists were measured."""
        return {"finalists": self.measured} if self.over else {}

    # ------------------------------------------------------------------------------------------------ state
    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run continues from."""
        return {
            "points": self._points, "declined": self._declined, "over": self.over, "measured": self.measured,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self._points, self._declined = state["points"], state["declined"]
        self.over, self.measured = state["over"], state["measured"]


def _different(points: Tensor) -> Tensor:
    """Return the rows at which points `[n, d]` occur for the first time, int64, in order; rows of NaN are skipped."""
    first: dict[bytes, int] = {}
    for place, point in enumerate(points):
        if bool(point.isfinite().all()):
            first.setdefault((point + 0.0).numpy().tobytes(), place)
    return torch.tensor(list(first.values()), dtype=torch.int64)


def _stacked(rows: Sequence[Tensor]) -> Tensor:
    """Return points `[n, d]` of each run as `[B, n, d]`, padded with NaN to the largest number."""
    padded = torch.full((len(rows), max(map(len, rows)), rows[0].shape[1]), torch.nan, dtype=torch.float64)
    for whole, points in zip(padded, rows, strict=True):
        whole[: len(points)] = points
    return padded


def _by_value(values: Tensor) -> Tensor:
    """Return the order of values `[n]`, the least first; equal values keep their order, NaN comes last."""
    return torch.where(values.isnan(), torch.inf, values).argsort(stable=True)


def _by_fronts(values: Tensor, most: int) -> Tensor:
    """Return an order of values `[n, M]` by which a front as wide as possible is among the first `most`.

    Non-dominated rows come first, then the rows that only these dominate, and so on. A front that does not fit as a
    whole begins with the least value of the first objective, and each further point is the farthest from the points
    before it, in units of the front's ranges. Rows of NaN come last.
    """
    order: list[int] = []
    left = torch.arange(len(values))
    while len(left):
        best = non_dominated(values[left])
        if not bool(best.any()):
            return torch.tensor([*order, *left.tolist()], dtype=torch.int64)
        front = left[best]
        order += front.tolist() if len(order) + len(front) <= most else front[_spread(values[front])].tolist()
        left = left[~best]
    return torch.tensor(order, dtype=torch.int64)


def _spread(values: Tensor) -> Tensor:
    """Return an order of values `[n, M]` in which each is the farthest from all before it; the first is an end."""
    low, high = values.amin(dim=0), values.amax(dim=0)
    scaled = (values - low) / torch.where(high > low, high - low, 1.0)
    order = [int(scaled[:, 0].argmin())]
    nearest = torch.cdist(scaled, scaled[order])[:, 0]
    while len(order) < len(values):
        nearest[order] = -1.0
        order.append(int(nearest.argmax()))
        nearest = torch.minimum(nearest, torch.cdist(scaled, scaled[order[-1:]])[:, 0])
    return torch.tensor(order)
