"""Searches for a Pareto front whose values stay with the nodes: rounds of surrogates, selection at a chosen node.

A round is a step in which nodes fit surrogates (and measure, where there is something to measure), a step in which they
predict a first population, and a step for each generation: the server varies the survivors, all nodes predict, the
chosen node selects. In the last generation that node chooses a few points, measures them and keeps the values. At the
run's end each owner publishes its front, or declines, and all nodes measure the published points (`fne.search.finals`).

Shapes: `B` runs side by side, `V` places of the population, `n` candidates, `d` variables, `M` objectives, `m` centres.
Points lie in the cube [-1, 1]^d.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fne.config.groups import Arithmetic, FrontEnd, FrontRounds, Masking
from fne.core.contracts import Metrics, Result
from fne.core.errors import RunError
from fne.core.messages import Header, Relay, Request, Round, Scalar
from fne.core.randomness import chosen_node
from fne.evolution import real_coded, rvea
from fne.privacy.policy import STEP, Tasks
from fne.problems.space import FrontTask
from fne.search.finals import STEPS, Finals
from fne.search.release import release_request, released_fronts
from fne.search.surrogate_rounds import (
    NOWHERE,
    Participation,
    draws,
    runs_by_node,
    start_points,
)
from fne.secure import encoding
from fne.surrogates import rbfn
from fne.surrogates.rbfn import Network

ADAPTED = 0.1
"""Share of the generations between two adaptations of the reference vectors: f_r."""
_NONE = torch.zeros(0, dtype=torch.int64)


class FrontSearch:
    """A search for a front: the `fne.core.contracts.Strategy` behind both `fdd_ea_mo` and `fdd_ea_dh`.

    Args:
        task: the space and the number of objectives.
        seed, runs: seed of the first run, and number of runs side by side.
        front: rounds, surrogates, acquisition, and the search in a round.
        arithmetic, masking: how predictions are added and masked, see `fne.config.groups`.
        ending: whether the run ends with the owners' fronts, and which points all nodes measure then.
        secure: whether the config must set `secure`, or must not.
    """

    takes_known = True

    def __init__(
        self,
        task: FrontTask,
        *,
        seed: int,
        runs: int,
        front: FrontRounds,
        arithmetic: Arithmetic,
        masking: Masking | None = None,
        ending: FrontEnd,
        secure: bool,
    ) -> None:
        self.seed, self.step, self.secure, self._runs, self.releases = seed, 0, secure, runs, ending.release
        self._front, self._arithmetic, self._masking, self._space = front, arithmetic, masking, task.space
        self._initial = default_initial(task) if front.initial is None else front.initial
        self._centres = default_centres(task) if front.centres is None else front.centres
        self._population = default_population(task.objectives) if front.population is None else front.population
        self._adapt_every = max(1, round(ADAPTED * front.generations))
        self._participation = Participation(seed, runs, front.participation)
        self._participation.warn_of_no_spread(task.nodes, "weight", front.weight)
        self.fewest = self._participation.count(task.nodes)
        d, places = len(task.space), len(rvea.reference_vectors(task.objectives, self._population))
        self._asked = start_points(task, seed, runs, self._initial)
        self._survivors = torch.zeros(runs, places, d, dtype=torch.float64)
        self._taken = torch.zeros(runs, places, dtype=torch.bool)
        self._network: dict[str, Tensor] = {}
        if front.surrogate == "network":
            u = torch.stack([
                torch.randn(task.objectives, self._centres + 1, generator=g, dtype=torch.float64)
                for g in draws(seed, runs, "server")
            ])  # fmt: skip
            self._network = {"weights": u[..., :-1], "bias": u[..., -1]}
        self._sizes = {"runs": runs, "variables": d, "objectives": task.objectives}
        self._finals: Finals | None = None
        if ending.release and ending.finals == "mean" and task.nodes > 1:  # a single node needs no agreement
            words: Literal["fixed", "float"] = "fixed" if arithmetic == "fixed" else "float"
            self._finals = Finals("front", seed=seed, sizes=self._sizes, most=ending.finalists, arithmetic=words)
        self.publishes = front.infill == "all"
        self._turn = self._measured = 0
        self._lost: list[str] = []
        self._lead_lost = False
        self._chosen: dict[str, Tensor] = {}
        self._sent: tuple[int, Tensor] | None = None
        self._result = Result("front", self._survivors[:, :0], values=torch.zeros(runs, 0, task.objectives).double())

    # ------------------------------------------------------------------------------------------------ schedule
    @property
    def horizon(self) -> int:
        """Steps of all rounds, a step in which all measure the points published last, and the finals or release."""
        last = STEPS if self._finals else self.releases
        return self._front.rounds * (2 + self._front.generations) + self.publishes + last

    @property
    def done(self) -> bool:
        """Whether the horizon is reached, or there are no finalists."""
        return self.step >= self.horizon or (self._finals is not None and self._finals.over)

    def _place(self) -> tuple[int, int]:
        """Return round and generation: in generation -1 nodes fit surrogates, generation 0 is the first population.

        After the last round, -1 is the step in which all measure the points published last, and the finals or the
        release begin at 0.
        """
        each = 2 + self._front.generations
        round_ = min(self.step // each, self._front.rounds)
        return round_, self.step - round_ * each - (self.publishes or round_ < self._front.rounds)

    def _members(self, nodes: Sequence[str]) -> list[tuple[str, ...]]:
        """Return the participants of the round in each run, without the nodes that the round has lost."""
        return self._participation(self._place()[0], [name for name in nodes if name not in self._lost])

    # ------------------------------------------------------------------------------------------------ ask
    @property
    def tasks(self) -> Tasks:
        """Node tasks that the search requests, see `fne.privacy.policy.Tasks`."""
        last = self._front.rounds * (2 + self._front.generations) + self.publishes
        each = {"surrogate": self._front.surrogate, "arithmetic": self._arithmetic, STEP: (0, last - 1)}
        selecting = {
            "arithmetic": self._arithmetic, "population": self._population, "weight": self._front.weight,
            "publish": self.publishes, STEP: (0, last - 1),
        }  # fmt: skip
        tasks: dict[str, Any] = {"front_fit": each, "front_predict": each, "select": selecting}
        if self._finals:
            return tasks | dict(self._finals.tasks(last))
        return tasks | {"release_front": {"values": True, STEP: (last, last)}} if self.releases else tasks

    def ask(self, nodes: Sequence[str]) -> Request:
        """Return the next request: for surrogates, for predictions that the chosen node opens, or for the release."""
        round_, generation = self._place()
        if generation < 0:
            return self._fit_request(nodes)
        if round_ == self._front.rounds and self._finals:
            return self._finals.ask(generation, self.step, nodes)
        if round_ == self._front.rounds:
            return release_request(self.seed, self.step, nodes, "release_front", sizes=self._sizes)
        members = self._members(nodes)
        if set(nodes) <= set(self._lost):
            raise RunError(f"step {self.step}: no node is left that takes part in round {round_ + 1}")
        taking = runs_by_node(members)
        private = {node: {"runs": runs} for node, runs in taking.items()} if self._runs > 1 else {}
        options = self._sum_options(len(taking))
        if self._masking:
            falling = 1 - generation / self._front.generations if self._masking.schedule == "linear" else 1.0
            options |= {"noise": self._masking.noise_scale * falling, "names": json.dumps(list(taking))}
        common = {"candidates": self._candidates(generation).float(), **self._network}
        return Request(
            Header(self.seed, self.step), "front_predict", tuple(taking), common, private, options,
            reduce="none" if self._masking else "sum", relay=self._relay(members, generation), sizes=self._sizes,
        )  # fmt: skip

    def _fit_request(self, nodes: Sequence[str]) -> Request:
        """Return the request for surrogates; all nodes measure the start, and later the points that were published."""
        common = {"points": self._asked}
        options = self._sum_options(len(nodes))
        if self._front.surrogate == "network":
            common |= {name: self._network[name] for name in ("weights", "bias")}
            options |= {"centres": self._centres, "epochs": self._front.epochs, "lr": self._front.lr,
                        "starts": self._front.kmeans_starts}  # fmt: skip
        return Request(Header(self.seed, self.step), "front_fit", tuple(nodes), common, {}, options, reduce="sum")

    def _sum_options(self, parties: int) -> dict[str, Scalar]:
        """Return the options shared by both tasks whose answers `parties` nodes add up."""
        return {"surrogate": self._front.surrogate, "arithmetic": self._arithmetic, "parties": parties}

    def _relay(self, members: Sequence[Sequence[str]], generation: int) -> Relay:
        """Return what the chosen nodes do with the sums: each run has one chosen node, drawn anew every round."""
        chosen = runs_by_node([[chosen_node(self.seed + run, self._turn, m)] for run, m in enumerate(members)])
        private = {node: {"runs": runs} for node, runs in chosen.items()} if self._runs > 1 else {}
        self._chosen = chosen
        last = generation == self._front.generations
        options: dict[str, Scalar] = {
            "turn": self._turn, "arithmetic": self._arithmetic, "population": self._population,
            "weight": self._front.weight, "progress": generation / self._front.generations,
            "fresh": self._fresh(generation), "adapt": generation > 0 and generation % self._adapt_every == 0,
            "points": self._front.points if last else 0, "publish": self.publishes,
        }  # fmt: skip
        if self._masking:
            options["normalise"] = self._masking.normalise
        return Relay(tuple(chosen), "select", private, options)

    def _fresh(self, generation: int) -> bool:
        """Return whether the chosen node is sent the whole population: it has none, or none that it can trust."""
        return generation == 0 or self._lead_lost or self._masking is not None

    def _candidates(self, generation: int) -> Tensor:
        """Return the next candidates `[B, n, d]`: a first population, or children, with their parents if need be."""
        if self._sent is None or self._sent[0] != self.step:
            made = self._children() if generation and self._taken.any() else self._first()
            if generation and self._taken.any() and self._fresh(generation):
                made = torch.cat([rvea.filled(self._survivors, self._taken), made], dim=1)
            self._sent = self.step, self._space.snap(made).float()  # kept as they are sent
        return self._sent[1]

    def _first(self) -> Tensor:
        """Return a Latin hypercube, and children of the survivors of the round before.

        The survivors themselves are left out: the next chosen node does not know which of them another chosen node has
        measured, and would measure them again.
        """
        places, d = self._survivors.shape[1:]
        u = torch.stack([
            torch.rand(2, places, d, generator=g, dtype=torch.float64) for g in self._draws("population")
        ])  # fmt: skip
        new = real_coded.latin_hypercube(u[:, 0], u[:, 1])
        return torch.cat([self._children(), new], dim=1) if self._taken.any() else new

    def _children(self) -> Tensor:
        """Return a child for each place."""
        places, d = self._survivors.shape[1:]
        shape = 2 * ((places + 1) // 2), 1 + 2 * d
        u = torch.stack([torch.rand(shape, generator=g, dtype=torch.float64) for g in self._draws("children")])
        return rvea.children(self._survivors, self._taken, u)[:, :places]

    def _draws(self, purpose: str) -> list[torch.Generator]:
        return draws(self.seed, self._runs, purpose, self.step)

    # ------------------------------------------------------------------------------------------------ tell
    def tell(self, round_: Round) -> Metrics:
        """Average the networks, continue with the survivors, or keep the published fronts."""
        number, generation = self._place()
        figures: Metrics = {}
        if generation < 0:
            self._average(round_)
            self._measured += self.publishes and self._asked.shape[1] == self._front.points and number > 0
            self._asked, self._lead_lost, self._turn = self._asked[:, :0], False, self._turn + 1
            self._lost = sorted(failure.node for failure in round_.failures)
        elif number == self._front.rounds and self._finals:
            self._result = self._finals.tell(generation, self.step, round_, self._result)
            figures = self._finals.figures
        elif number == self._front.rounds:
            self._result = released_fronts(round_, self._result)
        else:
            figures = self._go_on(round_, generation)
        self.step += 1
        done = min(self.step // (2 + self._front.generations), self._front.rounds)
        evaluations = self._initial + self._front.points * self._measured
        evaluations += self._finals.measured if self._finals else 0
        return {"round": done, "evaluations": evaluations, **figures}

    def _average(self, round_: Round) -> None:
        """Make the global network from the sums.

        Raises:
            RunError: no node could measure any point, or the networks are non-finite.
        """
        (total,) = round_.replies
        samples = total.payload["samples"].double()
        if not bool((samples > 0).all()):
            raise RunError(f"step {self.step}: {NOWHERE}")
        if self._front.surrogate != "network":
            return

        def mean(name: str) -> Tensor:
            value = total.payload[name]
            if self._arithmetic == "fixed":
                value = torch.from_numpy(encoding.decode(value.numpy().view(np.uint64)))
            return value / samples.view(-1, *[1] * (value.dim() - 1))

        network = {name: mean(name) for name in ("centres", "widths", "weights", "bias")}
        if not all(bool(value.isfinite().all()) for value in network.values()):
            raise RunError(f"step {self.step}: the nodes' networks diverged; lower strategy.lr")
        made = rbfn.ordered_outputs(Network(**network))
        self._network = {name: getattr(made, name) for name in network}

    def _go_on(self, round_: Round, generation: int) -> Metrics:
        """Take over the survivors; in the last generation take over the published points, if any.

        A generation whose chosen node fails is lost; the next generation has another chosen node, which is sent the
        whole population. If the lost generation was the last one, nothing is measured in the round.
        """
        assert self._sent is not None
        led = self._led(round_)
        if led is None or (self._masking and round_.failures):  # masks of those who failed do not cancel
            self._lose(round_)
            return {}
        if generation == self._front.generations:
            if self.publishes:
                self._asked = _stacked([reply.payload["points"] for reply in round_.replies], led)
            self._measured += not self.publishes
            return {}
        candidates = self._sent[1].double()
        everybody = candidates if self._fresh(generation) else torch.cat([self._survivors, candidates], dim=1)
        survivors = torch.cat([reply.payload["survivors"] for reply in round_.replies]).long()[led]
        self._taken = survivors >= 0
        self._survivors = real_coded.take(everybody, survivors.clamp(min=0))
        self._lead_lost = False
        return {"survivors": float(self._taken.sum(dim=1).double().mean())}

    def _led(self, round_: Round) -> Tensor | None:
        """Return each run's row in the chosen nodes' concatenated answers, or `None` where an answer is missing."""
        runs = torch.cat([self._chosen.get(reply.node, _NONE) for reply in round_.replies] or [_NONE])
        return runs.argsort() if len(runs) == self._runs else None

    def _lose(self, round_: Round) -> None:
        """Leave the failed nodes out for the rest of the round, and draw another chosen node."""
        self._lost = sorted({*self._lost, *(failure.node for failure in round_.failures)})
        self._lead_lost, self._turn = True, self._turn + 1

    # ------------------------------------------------------------------------------------------------ result
    def result(self) -> Result:
        """Return the front that the owners published; it is empty before that."""
        return self._result

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run continues from."""
        return {
            "step": self.step, "turn": self._turn, "measured": self._measured, "survivors": self._survivors,
            "taken": self._taken, "network": dict(self._network), "asked": self._asked, "lost": list(self._lost),
            "lead_lost": self._lead_lost, "result": {"points": self._result.parameters, "values": self._result.values},
            "finals": self._finals.state_dict() if self._finals else {},
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self.step, self._turn, self._sent = state["step"], state["turn"], None
        self._measured = state["measured"]
        self._survivors, self._taken, self._network = state["survivors"], state["taken"], dict(state["network"])
        self._asked, self._lost, self._lead_lost = state["asked"], list(state["lost"]), state["lead_lost"]
        self._result = Result("front", state["result"]["points"], values=state["result"]["values"])
        if self._finals:
            self._finals.load_state_dict(state["finals"])


def _stacked(rows: Sequence[Tensor], order: Tensor) -> Tensor:
    """Return points `[r, q, d]` of several nodes as `[B, q, d]` in order; all have the same number of points."""
    return torch.cat(list(rows))[order]


def default_initial(task: FrontTask) -> int:
    """Return the default number of initial points, 11 d - 1, as in FDD-EA-DH."""
    return 11 * len(task.space) - 1


def default_centres(task: FrontTask) -> int:
    """Return the number of centres of the authors' networks."""
    return math.isqrt(task.objectives + len(task.space)) + 3


def default_population(objectives: int) -> int:
    """Return the most reference vectors: the authors' for 3, 5, 10 and 20 objectives, RVEA's for 6 and 8."""
    known = {2: 100, 3: 105, 4: 120, 5: 126, 6: 132, 7: 140, 8: 156, 9: 174}
    return known.get(objectives, 230 + 19 * (objectives - 10))
