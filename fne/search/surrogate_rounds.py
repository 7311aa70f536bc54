"""Rounds of FDD-EA: participation, surrogates trained by nodes, their average, and the search for the next point.

Shapes: `B` runs side by side, `K` participants of a run, `n` points, `d` variables, `m` centres. Run b is the run of
seed `seed + b` and has the same draws as that run alone, so several runs in one batch are several runs, only faster.
Points lie in the cube [-1, 1]^d.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from fne.config.groups import AcquisitionSearch, SurrogateTraining
from fne.core.contracts import Metrics, Result
from fne.core.errors import RunError, SettingWarning
from fne.core.messages import Header, Request, Round, Scalar, Tensors
from fne.core.randomness import draw_nodes, generator
from fne.evolution.real_coded import latin_hypercube
from fne.problems.space import SearchTask
from fne.surrogates import minimise as rcga
from fne.surrogates.acquisition import Kind, lcb
from fne.surrogates.rbfn import Network, predictor, sorted_average

NOWHERE = (
    "none of the nodes that take part could measure any point; see the warnings, and whether the problem's bounds, "
    "time limit and infeasible regions leave anything"
)


DEFAULT_SHARE = 0.1
"""Share of the nodes that takes part unless given: the lambda of FDD-EA."""
LEAST_SPREAD = 3
"""Fewest participants with the default share: a standard deviation over fewer says little, over one nothing."""


def draws(seed: int, runs: int, *parts: int | str) -> list[torch.Generator]:
    """Return a generator for each run."""
    return [generator(seed + run, *parts) for run in range(runs)]


def start_points(task: SearchTask, seed: int, runs: int, count: int) -> Tensor:
    """Return a Latin hypercube of `count` points for each run, `[B, count, d]`, with integer variables snapped."""
    shape = (2, count, len(task.space))
    u = torch.stack([torch.rand(shape, generator=g, dtype=torch.float64) for g in draws(seed, runs, "start")])
    return task.space.snap(latin_hypercube(u[:, 0], u[:, 1]))


@dataclass(frozen=True)
class Participation:
    """Participation of nodes in a step: a share of all nodes, drawn anew for each run and step.

    Args:
        seed: seed of the first run.
        runs: number of runs side by side; B.
        share: share of the nodes that take part; lambda. At least one takes part. `None`: `DEFAULT_SHARE`, but at least
            `LEAST_SPREAD` nodes where there are as many.
    """

    seed: int
    runs: int
    share: float | None

    def __call__(self, step: int, nodes: Sequence[str]) -> list[tuple[str, ...]]:
        """Return the participants of each run, in the order of `nodes`."""
        count = self.count(len(nodes))
        return [draw_nodes(nodes, count, self.seed + run, "nodes", step) for run in range(self.runs)]

    def count(self, nodes: int) -> int:
        """Return how many of `nodes` nodes take part."""
        if self.share is None:
            return min(nodes, max(LEAST_SPREAD, round(DEFAULT_SHARE * nodes)))
        return max(1, round(self.share * nodes))

    def warn_of_no_spread(self, nodes: int, key: str, weight: float) -> None:
        """Warn where one of several nodes takes part, so that an acquisition has no spread over participants.

        Args:
            nodes: number of nodes.
            key: the strategy's setting that weighs the standard deviation over participants.
            weight: value of that setting; with 0 there is nothing to warn of.
        """
        if weight and nodes > 1 and self.count(nodes) == 1:
            enough = min(1.0, math.ceil(100 * LEAST_SPREAD / nodes) / 100)
            warnings.warn(
                f"strategy.participation = {self.share:g}: one of {nodes} nodes takes part in a round, so the standard "
                f"deviation over participants is 0 and strategy.{key} = {weight:g} has no effect; take {enough:g} or "
                "more", SettingWarning, stacklevel=3,
            )  # fmt: skip


def runs_by_node(members: Sequence[Sequence[str]]) -> dict[str, Tensor]:
    """Return the runs in which each node takes part, int64, by name in order."""
    names = sorted({name for of_run in members for name in of_run})
    return {name: torch.tensor([run for run, of_run in enumerate(members) if name in of_run]) for name in names}


# ------------------------------------------------------------------------------------------------ surrogates
class SurrogateRounds:
    """The rounds of FDD-EA: nodes measure and train; the server averages, and searches for the next point to measure.

    Source: Xu, Jin, Du, Gu, "A federated data-driven evolutionary algorithm", algorithms 1 and 2.

    Args:
        task: the space, and the device of the server's own computations.
        seed, runs: seed of the first run, and number of runs side by side.
        start: points `[B, n, d]` that all nodes measure at step 0.
        participation: which nodes take part.
        distinct: whether each participant gets a point of its own.
        acquisition, mu: kind of the lower confidence bound, and its weight of the standard deviation.
        training: options of the node task `surrogate`.
        search: settings of the search for the minimum of the acquisition.
    """

    def __init__(
        self,
        task: SearchTask,
        *,
        seed: int,
        runs: int,
        start: Tensor,
        participation: Participation,
        distinct: bool,
        acquisition: Kind,
        mu: float,
        training: SurrogateTraining,
        search: AcquisitionSearch,
    ) -> None:
        self._task, self._seed, self._runs, self._participation = task, seed, runs, participation
        self._distinct, self._acquisition, self._mu = distinct, acquisition, mu
        self._search, self._lr, self._literal = search, training.lr, training.reading == "literal"
        self.options: dict[str, Scalar] = asdict(training)
        """Options of the nodes' task, the same in all steps."""
        u = torch.stack(
            [torch.randn(training.centres + 1, generator=g, dtype=torch.float64) for g in draws(seed, runs, "server")]
        )
        self._network: dict[str, Tensor] = {"weights": u[:, :-1], "bias": u[:, -1]}
        self._points = start
        self._members: list[tuple[str, ...]] = []
        self.asked = start
        """All points `[B, n, d]` sent so far, without the points to be sent next; with `distinct` the start alone."""

    def request(self, step: int, nodes: Sequence[str]) -> Request:
        """Return the request of a step; at step 0 all nodes measure, and the participants train as well."""
        self._members = self._participation(step, nodes)
        taking = runs_by_node(self._members)
        private: dict[str, dict[str, Tensor]] = {}
        if step == 0:
            none = torch.zeros(0, dtype=torch.int64)
            private = {node: {"fit": taking.get(node, none)} for node in nodes}
            addressed = tuple(nodes)
        else:
            addressed = tuple(taking)
            if self._runs > 1:
                private = {node: {"runs": runs} for node, runs in taking.items()}
        common: Tensors = {"points": self._points, **self._network}
        if self._distinct and step:
            common = {"points": self._points[:, :0], **self._network}
            for node, runs in taking.items():
                slots = torch.tensor([self._members[run].index(node) for run in runs.tolist()])
                private.setdefault(node, {})["points"] = self._points[runs, slots].unsqueeze(1)
        header = Header(self._seed, step)
        return Request(header, "surrogate", addressed, common, private, self.options)

    def learn(self, step: int, round_: Round, *, propose: bool = True) -> Metrics:
        """Average the networks of the replies and, if wanted, find the points to be measured next.

        Raises:
            RunError: the networks are non-finite, or no node could measure any point in a run.
        """
        if step and not self._distinct:
            self.asked = torch.cat([self.asked, self._points], dim=1)
        local, shares = self._received(step, round_)
        average = sorted_average(local, shares)
        if not (average.weights.isfinite().all() and average.bias.isfinite().all()):
            remedy = "take reading = workable, or lower strategy.lr" if self._literal else "lower strategy.lr"
            raise RunError(
                f"step {step}: the nodes' networks diverged with strategy.lr = {self._lr:g}: a step of the descent "
                f"overshoots where lr times the squared features exceeds 2; {remedy}"
            )
        self._network = {"weights": average.weights, "bias": average.bias}
        if self._literal:
            self._network |= {"centres": average.centres, "widths": average.widths}
        figures: Metrics = {}
        if propose:
            self._points, scores = self._found(step, local, shares, average)
            figures["acquisition"] = float(scores.mean())
        return figures

    def _received(self, step: int, round_: Round) -> tuple[Network, Tensor]:
        """Return the networks `[B, K]` and their shares p_k `[B, K]`, eq. (3): zeros for nodes that did not answer."""
        place = {(run, name): slot for run, of_run in enumerate(self._members) for slot, name in enumerate(of_run)}
        taking = runs_by_node(self._members)
        where = [
            (run, place[run, r.node]) for r in round_.replies for run in taking.get(r.node, torch.empty(0)).tolist()
        ]
        if not where:
            raise RunError(f"step {step}: none of the nodes that take part has answered")
        runs, slots = torch.tensor(where).unbind(1)
        trained = [reply for reply in round_.replies if reply.node in taking]

        def filled(name: str) -> Tensor:
            values = torch.cat([reply.payload[name] for reply in trained]).double()
            whole = values.new_zeros(self._runs, len(self._members[0]), *values.shape[1:])
            whole[runs, slots] = values
            return whole

        samples = filled("samples")
        total = samples.sum(dim=1, keepdim=True)
        if not (total > 0).all():
            raise RunError(f"step {step}: {NOWHERE}")
        return Network(*(filled(name) for name in ("centres", "widths", "weights", "bias"))), samples / total

    def _found(self, step: int, local: Network, shares: Tensor, average: Network) -> tuple[Tensor, Tensor]:
        """Return the next points `[B, 1, d]`, or one for each participant, and their acquisition values."""
        queries = shares.shape[1] if self._distinct else 1
        device = torch.device(self._task.device)

        def prepared(values: Tensor) -> Tensor:  # float32 is enough to find a point, and twice as fast
            return values.float().repeat_interleave(queries, dim=0).to(device)

        def at(network: Network) -> Network:
            return Network(*map(prepared, (network.centres, network.widths, network.weights, network.bias)))

        near, far, weights = predictor(at(local)), predictor(at(average)), prepared(shares)
        seeds = [(self._seed + run, query) for run in range(self._runs) for query in range(queries)]
        mu: Tensor | float = self._mu
        if self._distinct:  # each query weighs the uncertainty differently: exponential, with mean mu
            u = torch.stack([torch.rand(1, generator=generator(seed, "mu", step, query)) for seed, query in seeds])
            mu = (-torch.log1p(-u) * self._mu).to(device)
        points, scores = rcga.minimise(
            lambda x: lcb(self._acquisition, near(x.unsqueeze(1)), far(x), weights, mu),
            len(self._task.space),
            [generator(seed, "search", step, query) for seed, query in seeds],
            population=self._search.population,
            generations=self._search.generations,
            dtype=torch.float32,
            device=device,
        )
        found = self._task.space.snap(points.double().cpu()).view(self._runs, queries, -1)
        return found, scores.double().cpu()

    @property
    def last(self) -> Result:
        """The point of each run that the search proposed last; its value is not known."""
        return Result("point", self._points[:, 0])

    def state_dict(self) -> dict[str, Any]:
        """Return the server's network, the points to be sent next and the points that were sent."""
        return {"network": dict(self._network), "points": self._points, "asked": self.asked}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self._network, self._points, self.asked = dict(state["network"]), state["points"], state["asked"]
