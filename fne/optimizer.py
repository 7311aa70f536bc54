"""Ask-and-tell optimizer for notebooks: ask for a point, measure it by any means, tell its value.

    optimizer = fne.Optimizer({"lr": (1e-4, 1.0), "epochs": (1, 5)}, log=["lr"], integer=["epochs"])
    while not optimizer.done:
        x = optimizer.ask()
        optimizer.tell(x, measure(**x))
    print(optimizer.best)

The optimizer runs the same strategies, node tasks and messages as `fne train`, with nodes in this process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fne.config import registry
from fne.config.groups import SimulatedNodes
from fne.config.members import member, new_strategy
from fne.config.settings import check
from fne.core.errors import ConfigError, FneError, SettingError
from fne.core.messages import Request
from fne.data.partition import node_names
from fne.engines.local import LocalEngine
from fne.problems.objective import Objective
from fne.problems.space import SearchTask, Space, space_of
from fne.run.kinds import POOLED
from fne.run.search_run import worker_of

Point = dict[str, float | int] | NDArray[np.float64]
_TOLERANCE = 1e-9
"""Largest distance, in the cube, between a point given to `tell` and the point that `ask` returned."""


@dataclass
class _Pending:
    """A point of the cube `[d]` that some nodes are to measure, and the nodes whose values are known."""

    point: Tensor
    nodes: tuple[str, ...]
    told: set[str] = field(default_factory=set)

    @property
    def waiting(self) -> tuple[str, ...]:
        """Nodes whose values are still missing."""
        return tuple(node for node in self.nodes if node not in self.told)


class Optimizer:
    """Minimise an expensive function that the caller evaluates.

    Args:
        bounds: `{name: (low, high)}`, and points are dicts; or a list of pairs, and points are arrays.
        strategy: registered name of a search strategy, such as `fdd_ea`, `fdd_ea_plus`, `gp_lcb`.
        nodes: number of owners of data; each may have a value of its own.
        seed: seed of all random draws.
        integer, log: names (or, with a list of bounds, indices) of the variables that are whole numbers, and of the
            variables that are searched by their logarithm.
        settings: settings of the strategy, as in a config's `strategy` section.

    Raises:
        FneError: bounds, names or settings are impossible; the text names them.
    """

    def __init__(
        self,
        bounds: Mapping[str, Sequence[float]] | Sequence[Sequence[float]],
        *,
        strategy: str = "fdd_ea_plus",
        nodes: int = 1,
        seed: int = 0,
        integer: Sequence[str | int] = (),
        log: Sequence[str | int] = (),
        **settings: Any,
    ) -> None:
        self._named = isinstance(bounds, Mapping)
        self._space = _space(bounds, integer, log)
        for key, number, least in (("nodes", nodes, 1), ("seed", seed, 0)):
            if not isinstance(number, int) or isinstance(number, bool) or number < least:
                raise FneError(f"Optimizer: {key} = {number!r}: must be a whole number >= {least}")
        entry = registry.entry("strategy", strategy)
        if entry.task != "SearchTask":
            does = "trains models" if entry.task == "LearningTask" else "searches for several objectives at once"
            raise FneError(f"strategy = {strategy!r}: {does}; Optimizer takes one for a point, such as fdd_ea_plus")
        given = {"runs": 1, **settings} if "runs" in entry.settings else dict(settings)
        made, mistakes = check(registry.settings_model(entry), given, f"strategy {strategy!r}")
        if mistakes:
            raise ConfigError([f"Optimizer: {m.key} = {given.get(m.key)!r}: {m.text}" for m in mistakes])
        if made.get("runs", 1) != 1:
            raise FneError(f"runs = {made['runs']}: must be 1: make an Optimizer for each")
        self._strategy = new_strategy(strategy, SearchTask(self._space, nodes), seed, made)
        names = (POOLED,) if member(self._strategy, "pooled") else node_names(nodes)
        worker = worker_of(dict.fromkeys(names, Objective(self._told)), seed)
        self._engine = LocalEngine(worker, settings=SimulatedNodes())
        self._request: Request | None = None
        self._pending: list[_Pending] = []
        self._values: dict[tuple[str, bytes], float] = {}

    @property
    def done(self) -> bool:
        """Whether the strategy's budget is spent; first runs all steps that need no further measurement."""
        self._advance()
        return self._strategy.done

    @property
    def waiting(self) -> dict[str, list[Point]]:
        """The points whose values are still missing, by node."""
        self._advance()
        names = sorted({node for pending in self._pending for node in pending.waiting})
        return {n: [self._given(p.point) for p in self._pending if n in p.waiting] for n in names}

    def ask(self) -> Point:
        """Return the next point to measure; until `tell` has its value, the same point again.

        Raises:
            FneError: the budget is spent.
        """
        if self.done:
            raise FneError(
                "Optimizer.ask: the budget is spent; `best` has the result, a larger one needs a new Optimizer"
            )
        return self._given(next(p.point for p in self._pending if p.waiting))

    def tell(self, x: Point, y: float | Mapping[str, float]) -> None:
        """Take in the value of a point that `ask` returned.

        Args:
            x: the point, as `ask` or `waiting` returned it.
            y: a number for all nodes whose values are missing, or numbers by node name; smaller is better. A non-finite
                number means that the node could not measure the point.

        Raises:
            FneError: `x` was not asked for or has its value already, or `y` is no number.
        """
        self._advance()
        cube = self._space.to_cube(self._tensor(x))
        near = [p for p in self._pending if float((p.point - cube).abs().max()) <= _TOLERANCE]
        fresh = next((p for p in near if p.waiting), None)
        if fresh is None:
            why = "was told before" if near else "was not asked for"
            raise FneError(f"Optimizer.tell: x = {x} {why}; tell what `ask` returned")
        told = dict(y) if isinstance(y, Mapping) else dict.fromkeys(fresh.waiting, y)
        unknown = [node for node in told if node not in fresh.waiting]
        if unknown:
            why = "has told it before" if unknown[0] in fresh.nodes else "was not asked"
            raise FneError(f"Optimizer.tell: {unknown[0]!r} {why}; still to be told: {', '.join(fresh.waiting)}")
        values = {node: _number(value) for node, value in told.items()}
        for node, value in values.items():
            self._values[node, _key(fresh.point)] = value
        fresh.told |= set(values)
        self._advance()

    @property
    def best(self) -> tuple[Point, float]:
        """The best point and its value: the strategy's result once the budget is spent, before that the best so far.

        The value of a point with values of several nodes is their mean.

        Raises:
            FneError: no finite value is known yet.
        """
        result = self._strategy.result()
        if self._strategy.done and result.values is not None and bool(result.values.isfinite().all()):
            return self._given(result.parameters[0]), float(result.values[0])
        told: dict[bytes, list[float]] = {}
        for (_, key), value in self._values.items():
            if math.isfinite(value):
                told.setdefault(key, []).append(value)
        if not told:
            raise FneError("Optimizer.best: no finite value was told yet")
        value, key = min((sum(values) / len(values), key) for key, values in told.items())
        return self._given(torch.frombuffer(bytearray(key), dtype=torch.float64)), value

    # -------------------------------------------------------------------------------------------- inside
    def _advance(self) -> None:
        """Run all steps that need no further measurement: send complete requests, and ask the strategy for more."""
        while not self._strategy.done:
            if self._request is None:
                self._request = self._strategy.ask(self._engine.nodes)
                self._pending = _points(self._request)
            if any(pending.waiting for pending in self._pending):
                return
            round_ = self._engine.send(self._request)
            self._strategy.tell(round_)
            self._request, self._pending = None, []

    def _told(self, points: Tensor, seeds: Tensor, nodes: Sequence[str]) -> Tensor:
        """Return the known values `[L, n, 1]` of points `[L, n, d]`; the nodes in this process measure by it."""
        rows = [
            [self._values.get((node, _key(point)), math.nan) for point in row]
            for row, node in zip(points, nodes, strict=True)
        ]
        return torch.tensor(rows, dtype=torch.float64).unsqueeze(-1)

    def _given(self, point: Tensor) -> Point:
        named = self._space.named(point)
        return named if self._named else np.array(list(named.values()), dtype=np.float64)

    def _tensor(self, x: Point) -> Tensor:
        names = self._space.names
        try:
            if isinstance(x, Mapping):
                if set(x) != set(names):
                    raise ValueError
                return torch.tensor([float(x[name]) for name in names], dtype=torch.float64)
            values = torch.as_tensor(np.array(x, dtype=np.float64))
            if values.shape != (len(names),):
                raise ValueError
        except (TypeError, ValueError, OverflowError):
            raise FneError(f"Optimizer.tell: x = {x!r:.80}: must be a number for each of {', '.join(names)}") from None
        return values


def _space(bounds: Any, integer: Any, log: Any) -> Space:
    """Return the space of bounds by name or in a list; `integer` and `log` hold names or indices."""
    try:
        pairs = bounds.items() if isinstance(bounds, Mapping) else ((f"x{i}", pair) for i, pair in enumerate(bounds))
        by_name = {str(name): [float(low), float(high)] for name, (low, high) in pairs}
    except (TypeError, ValueError, OverflowError):
        raise FneError(
            f"Optimizer: bounds = {bounds!r:.80}: must be {{name: (low, high)}}, or a list of pairs of numbers"
        ) from None
    wrong = [names for names in (integer, log) if isinstance(names, str) or not isinstance(names, Sequence)]
    if wrong:
        raise FneError(f"Optimizer: integer or log = {wrong[0]!r}: must be a list of names, or of places from 0")
    whole, even = ([name if isinstance(name, str) else f"x{name}" for name in names] for names in (integer, log))
    try:
        return space_of(by_name, whole, even)
    except SettingError as error:  # there is no config here
        raise SettingError(error.key.replace("problem.variables", "bounds").removeprefix("problem."), error.value,
                           error.allowed) from None  # fmt: skip


def _points(request: Request) -> list[_Pending]:
    """Return the points that a request asks nodes to measure."""
    if "points" not in request.common or request.options.get("recall"):
        return []
    found: dict[bytes, _Pending] = {}
    for node in request.nodes:
        own = request.private.get(node, {}).get("points", request.common["points"])
        for point in own.double().flatten(0, 1):
            there = found.setdefault(_key(point), _Pending(point, ()))
            there.nodes = (*there.nodes, node)
    return list(found.values())


def _key(point: Tensor) -> bytes:
    return bytes(point.double().contiguous().numpy().tobytes())


def _number(value: Any) -> float:
    try:
        array = np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value)
    except ValueError:  # a list of lists of different lengths
        array = np.zeros(1)
    if array.ndim or array.dtype.kind not in "fiu":
        raise FneError(f"Optimizer.tell: y = {value!r:.80}: must be a number, or a number by node")
    return float(array)
