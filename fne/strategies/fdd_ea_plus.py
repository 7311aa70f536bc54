"""FDD-EA with a second phase: a search over the nodes' mean values.

The method is our own. The FDD-EA paper says that FDD-EA "quickly gets stuck in a local optimum in the later search
stage" (section IV-B); where the optimum is away from the middle of the bounds, FDD-EA does not come near it at all. The
first `share` of the rounds is plain FDD-EA. Then each node reports its values at the points that the server has sent so
far, and in every further round the participating nodes report the value of the new point. The server receives sums over
nodes and takes means, fits one cubic surrogate to the means and searches with DYCORS (see `fne.surrogates.dycors`).

The means are over the nodes that took part in a step, so the least mean may be luck: few nodes, noise, or nodes that
measure lower values than others. In the last step all nodes measure the `finalists` points with the least means, and
the least mean of these values decides (`fne.search.finals`). With `finals = literal` the least mean during the search
decides.

Unlike FDD-EA, the method reveals the mean value at each point, over the nodes that measured it. Where only one node has
measured a point, the mean is that node's value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from torch import Tensor

from fne.config.groups import (
    AcquisitionSearch,
    Deviations,
    Finalists,
    NetworkDescent,
    Runs,
    SurrogateStart,
    SurrogateTraining,
)  # fmt: skip
from fne.config.registry import Key, register
from fne.core.contracts import Metrics, Result
from fne.core.messages import Request, Round
from fne.privacy.policy import STEP, Tasks
from fne.problems.space import SearchTask
from fne.search.finals import MEASUREMENT, Finals
from fne.search.surrogate_rounds import Participation, SurrogateRounds, draws, start_points
from fne.search.value_search import Archive, value_request, values_of
from fne.surrogates.dycors import Dycors


@register("strategy", "fdd_ea_plus")
class FddEaPlus:
    """FDD-EA, then a search over sums of values, which does not need the optimum in the middle of the bounds."""

    def __init__(
        self,
        task: SearchTask,
        *,
        seed: int,
        rounds: Annotated[int | None, Key("number of queries; null: 6 d", unit="rounds", ge=2)] = None,
        begin: SurrogateStart,
        share: Annotated[
            float, Key("share of the rounds that are FDD-EA; each phase has at least one round", gt=0, lt=1)
        ] = 0.25,
        acquisition: Annotated[Literal["f", "l", "g"], Key("acquisition of the FDD-EA phase, as in fdd_ea")] = "f",
        mu: Deviations = 2.0,
        descent: NetworkDescent,
        search: AcquisitionSearch,
        finals: Annotated[
            Literal["mean", "literal"],
            Key("how the run ends: by the mean over all nodes, which measure the best points, or by the means so far"),
        ] = "mean",
        finalists: Finalists = 5,
        runs: Runs = 1,
    ) -> None:
        d = len(task.space)
        self.seed, self.step, self._runs, self._space = seed, 0, runs, task.space
        queries = 6 * d if rounds is None else rounds
        self._first = min(max(1, round(share * queries)), queries - 1)
        self._start = start_points(task, seed, runs, 5 * d if begin.initial is None else begin.initial)
        self._participation = Participation(seed, runs, begin.participation)
        self._participation.warn_of_no_spread(task.nodes, "mu", mu)
        self.fewest = self._participation.count(task.nodes)
        self._rounds = SurrogateRounds(
            task, seed=seed, runs=runs, start=self._start, participation=self._participation, distinct=False,
            acquisition=acquisition, mu=mu, search=search,
            training=SurrogateTraining(centres=2 * d + 1, epochs=descent.epochs, lr=descent.lr),
        )  # fmt: skip
        self._known = Archive(runs, d)
        self._asked: Tensor | None = None
        self._search, self._second = Dycors(runs, d), queries - self._first
        self.releases = False
        self._finals: Finals | None = None
        if finals == "mean" and task.nodes > 1:  # one node alone has nobody to agree with
            self._finals = Finals(
                "point", seed=seed, sizes={"runs": runs, "variables": d, "objectives": 1}, most=finalists
            )
        self._last = 1 + queries
        self._result: Result | None = None
        self.horizon = self._last + 1 + (self._finals is not None)
        """Number of steps: the start, the queries, the values so far between the phases, and the finals."""

    @property
    def done(self) -> bool:
        """Whether the run has reached its horizon."""
        return self.step >= self.horizon

    @property
    def tasks(self) -> Tasks:
        """Node tasks of the requests, see `fne.privacy.policy.Tasks`."""
        return {
            "surrogate": {**self._rounds.options, STEP: (0, self._first)},
            "measure": {"arithmetic": "float", STEP: (self._first + 1, self.horizon)},
        }

    def ask(self, nodes: Sequence[str]) -> Request:
        """Return FDD-EA's request; then all nodes' values of all points so far; then a point's; then the finalists'."""
        if self.step <= self._first:
            return self._rounds.request(self.step, nodes)
        if self.step == self._first + 1:
            return value_request(self.seed, self.step, self._rounds.asked, [nodes] * self._runs, recall=True)
        if self._finals and self.step > self._last:
            self._finals.shortlist(self._known.points, self._known.values.unsqueeze(2))
            return self._finals.ask(MEASUREMENT, self.step, nodes)
        if self._asked is None:
            self._asked = self._proposed()
        return value_request(self.seed, self.step, self._asked, self._participation(self.step, nodes))

    def _proposed(self) -> Tensor:
        """Return the points of this step, `[B, 1, d]`."""
        generators = draws(self.seed, self._runs, "candidates", self.step)
        known, snap = self._known, self._space.snap
        return self._search.propose(known.points, known.values, generators, self._second, snap=snap).unsqueeze(1)

    def tell(self, round_: Round) -> Metrics:
        """Average networks in the first phase, take in means of values in the second."""
        step, figures = self.step, Metrics()
        if step <= self._first:
            figures = self._rounds.learn(step, round_, propose=step < self._first)
        elif step == self._first + 1:
            self._known.add(self._rounds.asked, values_of(round_))
        elif self._finals and step > self._last:
            self._result = self._finals.tell(MEASUREMENT, step, round_, self._known.best)
            figures = self._finals.figures
        else:
            assert self._asked is not None
            values = values_of(round_)
            self._search.learn(values[:, 0], self._known.least)
            self._known.add(self._asked, values)
            self._asked = None
        self.step += 1
        queried = step if step <= self._first else min(step, self._last) - 1
        measured = self._finals.measured if self._finals else 0
        return {"round": queried, "evaluations": self._start.shape[1] + queried + measured, **figures}

    def result(self) -> Result:
        """Return each run's best point: by the finals, before them by the means so far, and at first the last query."""
        if self._result is not None:
            return self._result
        return self._known.best if self._known.values.shape[1] else self._rounds.last

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state."""
        return {
            "step": self.step, "rounds": self._rounds.state_dict(), "known": self._known.state_dict(),
            "search": self._search.state_dict(), "finals": self._finals.state_dict() if self._finals else {},
            "result": {"points": self._result.parameters, "values": self._result.values} if self._result else {},
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self.step, self._asked = state["step"], None
        self._rounds.load_state_dict(state["rounds"])
        self._known.load_state_dict(state["known"])
        self._search.load_state_dict(state["search"])
        if self._finals:
            self._finals.load_state_dict(state["finals"])
        result = state["result"]
        self._result = Result("point", result["points"], values=result["values"]) if result else None
