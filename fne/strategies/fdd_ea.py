"""FDD-EA: nodes keep their measurements and send small networks; the server averages them and chooses the next query.

Jinjin Xu, Yaochu Jin, Wenli Du, Sai Gu, "A federated data-driven evolutionary algorithm",
Knowledge-Based Systems 233, 2021.

Deviations and readings
- The width of a basis function is "selected according to the maximum distance between the centres". With one such
  width for all functions, and the factor 2 of eq. (6), the features together are so large that the descent at eta =
  0.12 diverges (eta times the squared features exceeds 2). `reading = workable` takes the distance to the nearest other
  centre, without the factor 2. `reading = literal` follows the text, and ends with an error that says so.
- "Synchronise w_k <- w": nodes take over only weights and bias. Each time, k-means on all of a node's measurements
  yields new centres and widths, which are sorted by their norm (11), so that weight j meets the j-th centre. With
  `literal` nodes take over all of w.
- Samples are visited in ascending order of their values, at a constant rate. Such an epoch is one affine map.
- The set S of step t measures x_p and trains, and its networks determine the next x_p. At step 0 all nodes measure the
  start.
- (14) is weighted with p_k like (12); nodes with the same number of samples make it a plain mean. (16) divides K + 1
  deviations by K, as printed.
- The paper's lambda of 0.1 is for 100 nodes. With 10 nodes it would leave one participant, whose network is the
  average, so that the standard deviation in (13) is 0 and the acquisition has no exploration left. By default,
  `participation` is a tenth of the nodes, but at least three nodes.
- The method works in the cube [-1, 1]^d, to which the bounds are mapped. Norms (11) and widths scale along. So the
  method is the same for bounds that are symmetric about 0, as in the paper; for other bounds the origin is their
  middle.
- `queries = distinct` ("lambda N for distinct x_p") is not described: each participant's point minimises the
  acquisition with a mu of its own, exponentially distributed about `mu` (Hutter, Hoos, Leyton-Brown, "Parallel
  algorithm configuration", 2012), since the same acquisition would give the same point.
- The paper does not say how the best point becomes known, since values stay with the nodes; its tables take the best
  value that any node has measured during the run. With noise or unlike nodes this is the luckiest value. Here the run
  ends with finals (`fne.search.finals`): owners propose their best points, all nodes measure the shortlist, with at
  most `finalists` further evaluations, and the least mean decides. `finals = literal` ends as the tables do: each node
  reports its best point and value, and the least value is the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch

from fne.config.groups import (
    AcquisitionSearch,
    Deviations,
    Finalists,
    KmeansStarts,
    NetworkDescent,
    Reading,
    Runs,
    SurrogateStart,
    SurrogateTraining,
)  # fmt: skip
from fne.config.registry import Key, register
from fne.core.contracts import Metrics, Result
from fne.core.messages import Request, Round
from fne.privacy.policy import STEP, Tasks
from fne.problems.space import SearchTask
from fne.search.finals import STEPS, Finals
from fne.search.release import release_request, released
from fne.search.surrogate_rounds import Participation, SurrogateRounds, start_points


@register("strategy", "fdd_ea", takes_known=True)
class FddEa:
    """Federated data-driven evolutionary search: surrogates travel, measurements stay with the nodes."""

    takes_known = True

    def __init__(
        self,
        task: SearchTask,
        *,
        seed: int,
        rounds: Annotated[
            int | None, Key("number of queries; null: as many as 6 d evaluations allow", unit="rounds", ge=1)
        ] = None,
        begin: SurrogateStart,
        acquisition: Annotated[
            Literal["f", "l", "g"],
            Key("acquisition F-LCB, L-LCB or G-LCB: mean of local and global models, local, or global"),
        ] = "f",
        mu: Deviations = 2.0,
        queries: Annotated[
            Literal["same", "distinct"],
            Key("one point for all participants, or one per participant, each an evaluation"),
        ] = "same",
        centres: Annotated[int | None, Key("number of a network's centres; null: 2 d + 1; m", ge=1)] = None,
        descent: NetworkDescent,
        reading: Annotated[
            Reading, Key("reading of width and synchronisation: one that works, or the text's")
        ] = "workable",
        kmeans_starts: KmeansStarts = 3,
        max_training_samples: Annotated[
            int | None, Key("number of its best samples that a node trains on; null: all", unit="samples", ge=1)
        ] = None,
        search: AcquisitionSearch,
        release: Annotated[bool, Key("end with the nodes' best points; otherwise with the last query")] = True,
        finals: Annotated[
            Literal["mean", "literal"],
            Key("how the run ends: by the mean over all nodes, which measure the best points, or by nodes' own values"),
        ] = "mean",
        finalists: Finalists = 5,
        runs: Runs = 1,
    ) -> None:
        d = len(task.space)
        self.seed, self.step, self.releases = seed, 0, release
        self._initial = 5 * d if begin.initial is None else begin.initial
        participants = Participation(seed, runs, begin.participation)
        participants.warn_of_no_spread(task.nodes, "mu", mu)
        self.fewest = participants.count(task.nodes)
        self._each = self.fewest if queries == "distinct" else 1
        self._queries = max(1, 6 * d // self._each) if rounds is None else rounds
        self._rounds = SurrogateRounds(
            task, seed=seed, runs=runs, start=start_points(task, seed, runs, self._initial),
            participation=participants, distinct=queries == "distinct", acquisition=acquisition, mu=mu,
            training=SurrogateTraining(
                centres=2 * d + 1 if centres is None else centres, epochs=descent.epochs, lr=descent.lr,
                reading=reading, starts=kmeans_starts, most=max_training_samples or 0,
            ), search=search,
        )  # fmt: skip
        self._sizes = {"runs": runs, "variables": d, "objectives": 1}
        self._finals: Finals | None = None
        if release and finals == "mean" and task.nodes > 1:  # one node alone has nobody to agree with
            self._finals = Finals("point", seed=seed, sizes=self._sizes, most=finalists)
        self._result = Result("point", torch.full((runs, d), torch.nan, dtype=torch.float64))

    @property
    def horizon(self) -> int:
        """Number of steps: the start, the queries, and the finals or the release."""
        return 1 + self._queries + (STEPS if self._finals else self.releases)

    @property
    def done(self) -> bool:
        """Whether the run has reached its horizon, or there are no finalists."""
        return self.step >= self.horizon or (self._finals is not None and self._finals.over)

    @property
    def tasks(self) -> Tasks:
        """Node tasks of the requests, see `fne.privacy.policy.Tasks`."""
        last = self._queries + 1
        tasks: dict[str, Any] = {"surrogate": {**self._rounds.options, STEP: (0, self._queries)}}
        if self._finals:
            return tasks | dict(self._finals.tasks(last))
        return tasks | {"release": {"values": True, STEP: (last, last)}} if self.releases else tasks

    def ask(self, nodes: Sequence[str]) -> Request:
        """Return the start for all nodes, a query for those that take part, or at the end the finals' requests."""
        if self.step <= self._queries:
            return self._rounds.request(self.step, nodes)
        if self._finals:
            return self._finals.ask(self.step - self._queries - 1, self.step, nodes)
        return release_request(self.seed, self.step, nodes, sizes=self._sizes)

    def tell(self, round_: Round) -> Metrics:
        """Average the networks and find the next point; at the end keep the best point."""
        figures: Metrics = {}
        if self.step <= self._queries:
            figures = self._rounds.learn(self.step, round_, propose=self.step < self._queries)
            self._result = self._rounds.last
        elif self._finals:
            self._result = self._finals.tell(self.step - self._queries - 1, self.step, round_, self._result)
            figures = self._finals.figures
        else:
            self._result = released(round_, self._result)
        queried = min(self.step, self._queries)
        self.step += 1
        evaluations = self._initial + self._each * queried + (self._finals.measured if self._finals else 0)
        return {"round": queried, "evaluations": evaluations, **figures}

    def result(self) -> Result:
        """Return the best point of each run after the finals or the release, and before them the last query."""
        return self._result

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state."""
        result = {"points": self._result.parameters, "values": self._result.values}
        finals = self._finals.state_dict() if self._finals else {}
        return {"step": self.step, "rounds": self._rounds.state_dict(), "result": result, "finals": finals}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self.step = state["step"]
        self._rounds.load_state_dict(state["rounds"])
        self._result = Result("point", state["result"]["points"], values=state["result"]["values"])
        if self._finals:
            self._finals.load_state_dict(state["finals"])
