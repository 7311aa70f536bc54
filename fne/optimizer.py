"""A search in a notebook: ask for a point, measure it by whatever means, tell what came out.

    optimizer = fne.Optimizer({"lr": (1e-4, 1.0), "epochs": (1, 5)}, log=["lr"], integer=["epochs"])
    while not optimizer.done:
        x = optimizer.ask()
        optimizer.tell(x, measure(**x))
    print(optimizer.best)

It runs the same strategies, node tasks and messages as `fne train`, with nodes in this process.
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

from fne import registry
from fne.engines.local import LocalEngine
from fne.errors import ConfigError, FneError, SettingError
from fne.node import Node, Secrets, Worker
from fne.objective import Objective
from fne.search import POOLED, node_names
from fne.settings import check
from fne.space import SearchTask, Space, space_of
from fne.types import Request, Samples, Strategy

Point = dict[str, float | int] | NDArray[np.float64]
_TOLERANCE = 1e-9
"""How far, in the cube, a told point may be from the one that was asked."""


@dataclass
class _Pending:
    """A point of the cube `[d]` that some nodes are to measure, and what they told."""

    point: Tensor
    nodes: tuple[str, ...]
    values: dict[str, float] | None = field(default=None)


class Optimizer:
    """Minimise an expensive function that somebody else evaluates.

    Args:
        bounds: `{name: (low, high)}`, and points are dicts; or a list of pairs, and points are arrays.
        strategy: registered name of a search strategy, such as `fdd_ea`, `fdd_ea_plus`, `gp_lcb`.
        nodes: how many owners of data there are; each may tell a value of its own.
        seed: of everything that is drawn.
        integer, log: names (or, with a list of bounds, indices) of variables that are whole numbers, and of those whose
            logarithm is even.
        settings: of the strategy, as in a config's `strategy` section.

    Raises:
        FneError: bounds, names or settings that cannot be; the text names them.
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
        by_name = dict(bounds) if isinstance(bounds, Mapping) else {f"x{i}": pair for i, pair in enumerate(bounds)}
        whole, even = ([name if isinstance(name, str) else f"x{name}" for name in names] for names in (integer, log))
        self._space = _space(by_name, whole, even)
        if nodes < 1:
            raise FneError(f"nodes = {nodes}: must be a whole number >= 1")
        entry = registry.entry("strategy", strategy)
        if entry.task != "SearchTask":
            raise FneError(f"strategy = {strategy!r}: trains models; Optimizer takes one that searches a problem")
        given = {"runs": 1, **settings} if "runs" in entry.settings else dict(settings)
        made, mistakes = check(registry.settings_model(entry), given, f"strategy {strategy!r}")
        if mistakes:
            raise ConfigError([f"Optimizer: {m.key} = {given.get(m.key)!r}: {m.text}" for m in mistakes])
        if made.get("runs", 1) != 1:
            raise FneError(f"runs = {made['runs']}: must be 1: make an Optimizer for each")
        self._strategy: Strategy = registry.load("strategy", strategy)(
            SearchTask(self._space, nodes), seed=seed, **made
        )
        names = (POOLED,) if getattr(self._strategy, "pooled", False) else node_names(nodes)
        none = Samples(torch.zeros(0), torch.zeros(0))
        objective = Objective(self._told)
        self._engine = LocalEngine(
            Worker({n: Node(n, none, Secrets.simulate(seed, n), objective=objective) for n in names})
        )
        self._request: Request | None = None
        self._pending: list[_Pending] = []
        self._values: dict[tuple[str, bytes], float] = {}

    @property
    def done(self) -> bool:
        """Whether the strategy's budget is spent; tells the nodes' best to the strategy if that is what is left."""
        self._advance()
        return self._strategy.done

    @property
    def waiting(self) -> dict[str, list[Point]]:
        """The points that were not told yet, by node."""
        self._advance()
        open_ = [pending for pending in self._pending if pending.values is None]
        names = sorted({node for pending in open_ for node in pending.nodes})
        return {n: [self._given(p.point) for p in open_ if n in p.nodes] for n in names}

    def ask(self) -> Point:
        """Return the next point to be measured; asked again before it is told, the same.

        Raises:
            FneError: the budget is spent.
        """
        if self.done:
            raise FneError(
                "Optimizer.ask: the budget is spent; `best` has the result, a larger one needs a new Optimizer"
            )
        return self._given(next(p.point for p in self._pending if p.values is None))

    def tell(self, x: Point, y: float | Mapping[str, float]) -> None:
        """Take in what was measured at a point that was asked for.

        Args:
            x: the point, as `ask` or `waiting` gave it.
            y: a number, the same for all nodes, or one for each by name; smaller is better. One that is not finite, or
                left out, says that the node could not measure it.

        Raises:
            FneError: `x` was not asked or was told before, or `y` is no number.
        """
        self._advance()
        cube = self._space.to_cube(self._tensor(x))
        near = [p for p in self._pending if float((p.point - cube).abs().max()) <= _TOLERANCE]
        fresh = [p for p in near if p.values is None]
        if not fresh:
            why = "was told before" if near else "was not asked for"
            raise FneError(f"Optimizer.tell: x = {x} {why}; tell what `ask` returned")
        values = dict(y) if isinstance(y, Mapping) else dict.fromkeys(fresh[0].nodes, y)
        unknown = sorted(set(values) - set(fresh[0].nodes))
        if unknown:
            raise FneError(f"Optimizer.tell: {unknown[0]!r} was not asked; {', '.join(fresh[0].nodes)} were")
        fresh[0].values = {node: _number(value) for node, value in values.items()}
        for node, value in fresh[0].values.items():
            self._values[node, _key(fresh[0].point)] = value
        self._advance()

    @property
    def best(self) -> tuple[Point, float]:
        """The best point told so far, and its value: of several nodes the least.

        Raises:
            FneError: nothing finite was told yet.
        """
        finite = [(value, key) for (_, key), value in self._values.items() if math.isfinite(value)]
        if not finite:
            raise FneError("Optimizer.best: no finite value was told yet")
        value, key = min(finite)
        return self._given(torch.frombuffer(bytearray(key), dtype=torch.float64)), value

    # -------------------------------------------------------------------------------------------- inside
    def _advance(self) -> None:
        """Do what can be done without another measurement: send what is complete, ask for more."""
        while not self._strategy.done:
            if self._request is None:
                self._request = self._strategy.ask(self._engine.nodes)
                self._pending = _points(self._request)
            if any(pending.values is None for pending in self._pending):
                return
            round_ = self._engine.send(self._request)
            self._strategy.tell(round_)
            self._request, self._pending = None, []

    def _told(self, points: Tensor, seeds: Tensor, nodes: Sequence[str]) -> Tensor:
        """Return what was told of points `[L, n, d]`: how this process's nodes measure."""
        rows = [
            [self._values.get((node, _key(point)), math.nan) for point in row]
            for row, node in zip(points, nodes, strict=True)
        ]
        return torch.tensor(rows, dtype=torch.float64)

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
            values = torch.as_tensor(np.asarray(x, dtype=np.float64))
            if values.shape != (len(names),):
                raise ValueError
        except (TypeError, ValueError):
            raise FneError(f"Optimizer.tell: x = {x!r:.80}: must be a number for each of {', '.join(names)}") from None
        return values


def _space(bounds: Mapping[str, Sequence[float]], integer: Sequence[str], log: Sequence[str]) -> Space:
    try:
        return space_of(bounds, integer, log)
    except SettingError as error:  # there is no config here
        raise SettingError(error.key.replace("problem.variables", "bounds").removeprefix("problem."), error.value,
                           error.allowed) from None  # fmt: skip


def _points(request: Request) -> list[_Pending]:
    """Return the points that a request lets nodes measure."""
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
    array = np.asarray(value)
    if array.ndim or array.dtype.kind not in "fiu":
        raise FneError(f"Optimizer.tell: y = {value!r:.80}: must be a number, or a number by node")
    return float(array)
