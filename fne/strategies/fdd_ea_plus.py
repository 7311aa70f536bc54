"""FDD-EA, and then a second phase: a search over the mean values that the nodes measure.

Ours. The paper says that FDD-EA "quickly gets stuck in a local optimum in the later search stage" (section IV-B); with
the optimum away from the middle of the bounds it does not get near it at all. The first `share` of the rounds is FDD-EA
as it is. Then each node tells its values of the points that the server has sent so far, and in every further round
those that take part tell the value of the new point: as sums over nodes, of which the server takes means. It fits one
cubic surrogate to the means and searches with DYCORS (see `fne.surrogates.dycors`).

What this reveals that FDD-EA does not: the mean value at each point, over the nodes that measured it. Where only one
node has measured a point that is its value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from torch import Tensor

from fne.registry import Key, register
from fne.searching import Participation, SurrogateRounds, draws, start_points
from fne.space import SearchTask
from fne.surrogates.dycors import Dycors
from fne.types import Metrics, Request, Result, Round
from fne.value_search import Archive, value_request, values_of


@register("strategy", "fdd_ea_plus")
class FddEaPlus:
    """FDD-EA first, then a search over sums of values: does not need the optimum in the middle of the bounds."""

    def __init__(
        self,
        task: SearchTask,
        *,
        seed: int,
        rounds: Annotated[int | None, Key("queries; null: 6 d", unit="rounds", ge=2)] = None,
        initial: Annotated[
            int | None, Key("points of the Latin hypercube that all nodes measure; null: 5 d", unit="points", ge=1)
        ] = None,
        participation: Annotated[float, Key("share of the nodes that take part in a round; lambda", gt=0, le=1)] = 0.1,
        share: Annotated[
            float, Key("of the rounds that are FDD-EA; at least one round, and one is left", gt=0, lt=1)
        ] = 0.25,
        acquisition: Annotated[Literal["f", "l", "g"], Key("of FDD-EA, as there")] = "f",
        mu: Annotated[float, Key("standard deviations that the acquisition subtracts", ge=0)] = 2.0,
        epochs: Annotated[int, Key("passes over a node's samples; E", unit="epochs", ge=1)] = 20,
        lr: Annotated[float, Key("learning rate of the networks; eta", gt=0)] = 0.12,
        population: Annotated[int, Key("of the genetic algorithm on the acquisition", ge=2, multiple_of=2)] = 100,
        generations: Annotated[int, Key("of that algorithm; g", ge=1)] = 100,
        runs: Annotated[int, Key("side by side, of seeds seed, seed + 1, …", unit="runs", ge=1, le=1000)] = 1,
    ) -> None:
        d = len(task.space)
        self.seed, self.step, self._runs, self._space = seed, 0, runs, task.space
        queries = 6 * d if rounds is None else rounds
        self._first = min(max(1, round(share * queries)), queries - 1)
        self._start = start_points(task, seed, runs, 5 * d if initial is None else initial)
        self._participation = Participation(seed, runs, participation)
        self.fewest = self._participation.count(task.nodes)
        self._rounds = SurrogateRounds(
            task, seed=seed, runs=runs, start=self._start, participation=self._participation, distinct=False,
            acquisition=acquisition, mu=mu, centres=2 * d + 1, epochs=epochs, lr=lr, reading="workable", starts=3,
            most=0, population=population, generations=generations,
        )  # fmt: skip
        self._known = Archive(runs, d)
        self._asked: Tensor | None = None
        self._search, self._second = Dycors(runs, d), queries - self._first
        self.releases = False
        self.horizon = 1 + queries + 1
        """The start, the queries, and between the phases the values so far."""

    @property
    def done(self) -> bool:
        """Whether the horizon is reached."""
        return self.step >= self.horizon

    def ask(self, nodes: Sequence[str]) -> Request:
        """Return FDD-EA's request; then all nodes' values of all points so far; then a point's values."""
        if self.step <= self._first:
            return self._rounds.request(self.step, nodes)
        if self.step == self._first + 1:
            return value_request(self.seed, self.step, self._rounds.asked, [nodes] * self._runs, recall=True)
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
        else:
            assert self._asked is not None
            values = values_of(round_)
            self._search.learn(values[:, 0], self._known.least)
            self._known.add(self._asked, values)
            self._asked = None
        self.step += 1
        queried = step if step <= self._first else step - 1
        return {"round": queried, "evaluations": self._start.shape[1] + queried, **figures}

    def result(self) -> Result:
        """Return the best point of each run by the means of values; in the first phase the point asked last."""
        return self._known.best if self._known.values.shape[1] else self._rounds.last

    def state_dict(self) -> dict[str, Any]:
        """Return everything that goes on."""
        return {
            "step": self.step, "rounds": self._rounds.state_dict(), "known": self._known.state_dict(),
            "search": self._search.state_dict(),
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self.step, self._asked = state["step"], None
        self._rounds.load_state_dict(state["rounds"])
        self._known.load_state_dict(state["known"])
        self._search.load_state_dict(state["search"])
