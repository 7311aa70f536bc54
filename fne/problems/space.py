"""Search spaces: named variables with bounds, and the cube [-1, 1]^d in which all methods compute.

Methods, messages and archives hold points of the cube; only the measuring code sees the user's units. The centre of the
bounds is the origin of the cube. That matters: FDD-EA sorts centres by their norm, and averaging pulls to the origin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fne.core.errors import FneError, SettingError

if TYPE_CHECKING:
    from torch import Tensor


EXACT = 2**53
"""Whole numbers below this bound are all exact as floats; larger ones are not."""


@dataclass(frozen=True)
class Variable:
    """One decision variable: name, bounds, whether it is a whole number, whether its logarithm is searched evenly."""

    name: str
    low: float
    high: float
    integer: bool = False
    log: bool = False

    def __post_init__(self) -> None:
        key = f"problem.variables.{self.name}"
        for holds, allowed in self._rules():
            if not holds:
                raise SettingError(key, [self.low, self.high], allowed)

    def _rules(self) -> Iterator[tuple[bool, str]]:
        """Yield each rule for the bounds: whether it holds, and its text; a rule presumes the rules before it."""
        bounds = (self.low, self.high)
        yield all(map(math.isfinite, bounds)) and self.low < self.high, "[low, high], finite, low below high"
        if self.integer:
            whole = all(float(bound).is_integer() for bound in bounds)
            yield whole, "whole numbers, since it is among the integer variables"
            exact = max(map(abs, bounds)) < EXACT
            yield exact, "below 2^53 in size, since it is among the integer variables: floats hold no others exactly"
        if self.log:
            yield self._ends[0] > 0, "above 0, since it is among the log variables"
        low, high = self._scale
        yield math.isfinite(high - low), "closer together: a float cannot hold their difference; take another unit"
        apart = high > low and math.isfinite(2 / (high - low))
        yield apart, "further apart: values between them cannot be told apart; take another unit"

    @property
    def _ends(self) -> tuple[float, float]:
        # each whole number has an equal share of the cube
        return (self.low - 0.5, self.high + 0.5) if self.integer else (self.low, self.high)

    @property
    def _scale(self) -> tuple[float, float]:
        low, high = self._ends
        return (math.log(low), math.log(high)) if self.log else (low, high)

    def to_user(self, cube: Tensor) -> Tensor:
        """Return the user's values of coordinates in [-1, 1]."""
        low, high = self._scale
        values = low + (cube.double() + 1) * ((high - low) / 2)
        values = values.exp() if self.log else values
        return (values.round() if self.integer else values).clamp(self.low, self.high)

    def to_cube(self, values: Tensor) -> Tensor:
        """Return the coordinates of the user's values."""
        low, high = self._scale
        values = values.double().log() if self.log else values.double()
        return (values - low) * (2 / (high - low)) - 1


class Space:
    """Variables in order, and the conversion between the user's units and the cube.

    Args:
        variables: at least one, with distinct names.

    Raises:
        FneError: no variable is given, or a name is given twice.
    """

    def __init__(self, variables: Sequence[Variable]) -> None:
        self.variables = tuple(variables)
        self.names = tuple(variable.name for variable in self.variables)
        twice = sorted({name for name in self.names if self.names.count(name) > 1})
        if not self.variables or twice:
            raise FneError(f"variables: {f'{twice[0]!r} is there twice' if twice else 'at least one is needed'}")

    def __len__(self) -> int:
        return len(self.variables)

    def to_user(self, cube: Tensor) -> Tensor:
        """Return points of the cube `[..., d]` in the user's units, float64, integers rounded."""
        import torch

        return torch.stack([v.to_user(cube[..., i]) for i, v in enumerate(self.variables)], dim=-1)

    def to_cube(self, points: Tensor) -> Tensor:
        """Return points in the user's units `[..., d]` as points of the cube, float64.

        Raises:
            FneError: a point is outside the bounds, or an integer variable is no whole number; names the variable.
        """
        import torch

        columns = []
        for i, variable in enumerate(self.variables):
            values = points[..., i].double()
            wrong = ~((values >= variable.low) & (values <= variable.high))
            what = f"between {variable.low:g} and {variable.high:g}"
            if variable.integer and not bool(wrong.any()):
                wrong, what = values != values.round(), "a whole number"
            if bool(wrong.any()):
                raise FneError(f"{variable.name} = {values[wrong].flatten()[0].item():.15g}: must be {what}")
            columns.append(variable.to_cube(values).clamp(-1, 1))
        return torch.stack(columns, dim=-1)

    def snap(self, cube: Tensor) -> Tensor:
        """Return points of the cube with integer variables moved to the nearest whole numbers."""
        import torch

        if not any(variable.integer for variable in self.variables):
            return cube
        columns = [
            v.to_cube(v.to_user(cube[..., i])) if v.integer else cube[..., i] for i, v in enumerate(self.variables)
        ]
        return torch.stack(columns, dim=-1)

    def named(self, point: Tensor) -> dict[str, float | int]:
        """Return one point of the cube `[d]` in the user's units by name."""
        values = self.to_user(point).tolist()
        return {v.name: int(x) if v.integer else x for v, x in zip(self.variables, values, strict=True)}


def space_of(bounds: Mapping[str, Sequence[float]], integer: Sequence[str] = (), log: Sequence[str] = ()) -> Space:
    """Return the space of variables with given bounds.

    Args:
        bounds: `{name: [low, high]}`.
        integer: names of the variables that are whole numbers.
        log: names of the variables that are searched by their logarithm.

    Raises:
        SettingError: bounds are no such pair, or a name is not among the variables.
    """
    for title, names in (("integer", integer), ("log", log)):
        for name in names:
            if name not in bounds:
                raise SettingError(f"problem.{title}", name, f"names among the variables: {', '.join(bounds)}")
    made = []
    for name, pair in bounds.items():
        if len(pair) != 2:
            raise SettingError(f"problem.variables.{name}", list(pair), "[low, high]")
        made.append(Variable(name, float(pair[0]), float(pair[1]), name in integer, name in log))
    return Space(made)


class Measure(Protocol):
    """Evaluation of M objectives: `measure(points [L, n, d], seeds [L], nodes [L])` -> `[L, n, M]`, float64, on CPU.

    Row i belongs to the run of seed `seeds[i]` (several runs may go side by side) and is measured by node `nodes[i]`. A
    value that could not be measured is NaN, and a point with a NaN counts as a point without values. Smaller is better.
    """

    def __call__(self, points: Tensor, seeds: Tensor, nodes: Sequence[str]) -> Tensor: ...


@dataclass(frozen=True)
class Problem:
    """A problem of a search: its space and the function that measures points of it.

    Args:
        space: variables and bounds.
        measure: function that measures points of the cube, with integer variables snapped.
        optimum: the least value if known, for reports.
        code: digest of the user's code that measures, if any: a run is resumed with the same code.
        objectives: names of the M objectives, in order.
        front: returns points `[n, M]` of the Pareto front if known, for reports.
    """

    space: Space
    measure: Measure
    optimum: float | None = None
    code: str = ""
    objectives: tuple[str, ...] = ("value",)
    front: Callable[[], Tensor] | None = None

    def keep(self, journal: Path) -> None:
        """Let a measure with a method `keep` write each value to a file at once, and take up the values in the file."""
        getattr(self.measure, "keep", lambda _: None)(journal)

    def forget(self) -> None:
        """Let the measure forget its file: a checkpoint holds all values."""
        getattr(self.measure, "forget", lambda: None)()

    def close(self) -> None:
        """Release the resources of the measure, such as child processes."""
        getattr(self.measure, "close", lambda: None)()


@dataclass(frozen=True)
class SearchTask:
    """The task of a strategy that searches for a point; values stay with the nodes.

    Args:
        space: space of the points.
        nodes: number of nodes.
        device: device of the server's own computations, such as `cpu`.
    """

    space: Space
    nodes: int
    device: str = "cpu"


@dataclass(frozen=True)
class FrontTask(SearchTask):
    """The task of a strategy that searches for a Pareto front.

    Args:
        objectives: number of objectives, at least two; M.
    """

    objectives: int = 2
