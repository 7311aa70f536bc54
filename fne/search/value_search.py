"""Searches whose server sees values: an archive of points, and a strategy built on a rule that proposes points.

Shapes: `B` runs side by side, `n` points known, `q` points a step, `d` variables. Points lie in the cube [-1, 1]^d.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from fne.core.contracts import Metrics, Result
from fne.core.errors import RunError
from fne.core.messages import Header, Request, Round, Scalar
from fne.privacy.policy import Tasks
from fne.problems.space import SearchTask
from fne.search.surrogate_rounds import NOWHERE, runs_by_node, start_points
from fne.secure import encoding


class Archive:
    """Points `[B, n, d]` and values `[B, n]` that the server knows; NaN where no node could measure."""

    def __init__(self, runs: int, variables: int) -> None:
        self.points = torch.zeros(runs, 0, variables, dtype=torch.float64)
        self.values = torch.zeros(runs, 0, dtype=torch.float64)

    def add(self, points: Tensor, values: Tensor) -> None:
        """Add points `[B, n, d]` and values `[B, n]`."""
        self.points = torch.cat([self.points, points], dim=1)
        self.values = torch.cat([self.values, values], dim=1)

    @property
    def least(self) -> Tensor:
        """The least value of each run, `[B]`, infinite where no value is known."""
        return torch.where(self.values.isfinite(), self.values, torch.inf).amin(dim=1)

    @property
    def best(self) -> Result:
        """The best point of each run and its value."""
        values = torch.where(self.values.isfinite(), self.values, torch.inf)
        least, index = values.min(dim=1)
        points = self.points[torch.arange(len(index)), index]
        return Result("point", points, values=torch.where(least < math.inf, least, torch.nan))

    def state_dict(self) -> dict[str, Tensor]:
        """Return points and values."""
        return {"points": self.points, "values": self.values}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over what `state_dict` returned."""
        self.points, self.values = state["points"], state["values"]


Arithmetic = Literal["float", "fixed"]
"""Arithmetic of the sum of values: float64, or words of the ring, which give the same bits as a secure sum."""


def value_request(
    seed: int,
    step: int,
    points: Tensor,
    members: Sequence[Sequence[str]],
    *,
    recall: bool = False,
    arithmetic: Arithmetic = "float",
    objectives: int = 1,
) -> Request:
    """Return the request for the sum of the values that the runs' members measure at points `[B, n, d]`.

    Args:
        seed, step: seed of the first run, and step.
        points: points of the cube, `[B, n, d]`.
        members: participants of each run.
        recall: whether nodes answer from memory instead of measuring.
        arithmetic: see `Arithmetic`.
        objectives: number of values of a point; M.
    """
    taking = runs_by_node(members)
    private = {node: {"runs": runs} for node, runs in taking.items()} if len(members) > 1 else {}
    options: dict[str, Scalar] = {"recall": True} if recall else {}
    options |= {} if arithmetic == "float" else {"arithmetic": arithmetic, "parties": len(taking)}
    return Request(
        Header(seed, step), "measure", tuple(taking), {"points": points}, private, options, reduce="sum",
        sizes={"objectives": objectives},
    )  # fmt: skip


def values_of(round_: Round) -> Tensor:
    """Return the means of the nodes' values of one objective, `[B, n]`, NaN where no node could measure."""
    return means_of(round_)[0][..., 0]


def means_of(round_: Round, arithmetic: Arithmetic = "float") -> tuple[Tensor, Tensor]:
    """Return means `[B, n, M]` of the nodes' values, NaN where no node could measure, and counts of nodes `[B, n]`."""
    (total,) = round_.replies
    value, count = total.payload["value"], total.payload["count"]
    if arithmetic == "fixed":
        value = torch.from_numpy(encoding.decode(value.numpy().view(np.uint64))).view(value.shape)
    return torch.where(count.unsqueeze(2) > 0, value / count.double().unsqueeze(2), torch.nan), count


Propose = Callable[[int, Archive], Tensor]
"""Step and what is known -> where to measure next, `[B, q, d]`; asked again at a step, the same."""


class Memory(Protocol):
    """What a rule remembers beside the archive."""

    def learn(self, step: int, known: Archive, values: Tensor) -> None:
        """Take in what was measured at the proposed points, `[B, q]`, NaN where nothing; `known` is without them."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """Return what proposals depend on besides the step and what is known."""
        ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over what `state_dict` returned."""
        ...


class ValueSearch:
    """A baseline on pooled data: a Latin hypercube, then what a rule proposes; a `fne.core.contracts.Strategy`.

    Args:
        task: of which the space is used.
        seed, runs: of the first run, and how many there are side by side.
        initial: points of the Latin hypercube.
        queries: evaluations after them.
        each: points a step; the last step may have fewer.
        propose: where they are.
        memory: of `propose`, if it has one.
    """

    pooled = True

    def __init__(
        self,
        task: SearchTask,
        *,
        seed: int,
        runs: int,
        initial: int,
        queries: int = 0,
        each: int = 1,
        propose: Propose | None = None,
        memory: Memory | None = None,
    ) -> None:
        self.seed, self.step, self._space, self._propose, self._memory = seed, 0, task.space, propose, memory
        self._queries, self._each = queries, each
        self._start = start_points(task, seed, runs, initial)
        self._known = Archive(runs, len(task.space))
        self._asked: Tensor | None = None
        self.horizon = 1 + math.ceil(queries / each)

    @property
    def done(self) -> bool:
        """Whether the horizon is reached."""
        return self.step >= self.horizon

    @property
    def tasks(self) -> Tasks:
        """Node tasks that it asks for, see `fne.privacy.policy.Tasks`."""
        return {"measure": {"arithmetic": "float", "recall": False}}

    def ask(self, nodes: Sequence[str]) -> Request:
        """Return the start, or the points that the rule proposes."""
        if self._asked is None:
            self._asked = self._proposed()
        return value_request(self.seed, self.step, self._asked, [nodes] * len(self._start))

    def _proposed(self) -> Tensor:
        if self.step == 0:
            return self._start
        left = self._queries - self._each * (self.step - 1)
        assert self._propose is not None
        return self._space.snap(self._propose(self.step, self._known))[:, :left]

    def tell(self, round_: Round) -> Metrics:
        """Keep the values; they are known to the server.

        Raises:
            RunError: no point of the start has a value in a run.
        """
        assert self._asked is not None
        points, values, self._asked = self._asked, values_of(round_), None
        if self.step == 0 and bool(values.isnan().all(dim=1).any()):
            raise RunError(f"step 0: {NOWHERE}")
        if self.step and self._memory is not None:
            self._memory.learn(self.step, self._known, values)
        self._known.add(points, values)
        self.step += 1
        return {"round": self.step - 1, "evaluations": self._known.values.shape[1]}

    def result(self) -> Result:
        """Return the best point of each run, with its value."""
        return self._known.best

    def state_dict(self) -> dict[str, Any]:
        """Return everything that goes on."""
        memory = {} if self._memory is None else self._memory.state_dict()
        return {"step": self.step, "known": self._known.state_dict(), "memory": memory}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self.step, self._asked = state["step"], None
        self._known.load_state_dict(state["known"])
        if self._memory is not None:
            self._memory.load_state_dict(state["memory"])
