"""The objective of one node: measurement of points with noise of its own, in the region where the node can measure."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fne.core.errors import DataError, FneError, RunError
from fne.problems.space import Measure, Space


@dataclass(frozen=True)
class Objective:
    """The objective of one node.

    Args:
        measure: the problem's function, which nodes may share.
        noise: standard deviation of the noise that is added to each value; alpha of eq. (17).
        infeasible: interval of the first coordinate, in the cube, in which the node cannot measure; eq. (18).
        known: points `[n, d]` of the cube and values `[n, M]` that the node has from the start.
        objectives: number of values of a point; M.
        declines: whether the node's owner declines to release its measurements.
        publishes: whether the node's owner lets all nodes know which points it chose, as `infill = all` requires.
    """

    measure: Measure
    noise: float = 0.0
    infeasible: tuple[float, float] | None = None
    known: tuple[Tensor, Tensor] | None = None
    objectives: int = 1
    declines: bool = False
    publishes: bool = False

    def feasible(self, points: Tensor) -> Tensor:
        """Return which points `[..., d]` the node can measure, bool `[...]`; a padded point is NaN."""
        first = points[..., 0]
        if self.infeasible is None:
            return first.isfinite()
        low, high = self.infeasible
        return first.isfinite() & ~((first >= low) & (first <= high))


def slot(number: int, nodes: int, tau: int) -> tuple[float, float] | None:
    """Return the interval of the cube in which node `number` (from 0) cannot measure: eq. (18); `None` for tau 0.

    Source: Xu et al., "A federated data-driven evolutionary algorithm", section IV-D.

    Args:
        number: number of the node, from 0.
        nodes: number of nodes.
        tau: number of slots, of `nodes`, in which the node cannot measure.
    """
    width = 2 / nodes  # eq. (19), of [-1, 1]
    return (-1 + number * width, min(-1 + (number + tau) * width, 1.0)) if tau else None


def read_known(path: Path, space: Space, objectives: Sequence[str] = ("value",)) -> tuple[Tensor, Tensor]:
    """Return points of the cube `[n, d]` and values `[n, M]` from a CSV with a column for each variable and objective.

    Args:
        path: the CSV file, in UTF-8.
        space: space of the points.
        objectives: names of the columns of values.

    Raises:
        DataError: the file is missing, columns are missing or unknown, a cell is no number, or a point is outside the
            bounds; names the file and line.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file))
    except (OSError, ValueError, csv.Error) as error:  # also for text that is no UTF-8, or an impossible path
        raise DataError(f"problem.known = {path}: cannot be read: {error}; give a CSV in UTF-8, or null") from None
    header = [cell.strip() for cell in rows[0]] if rows else []
    wanted = [*space.names, *objectives]
    for name in objectives:
        if name in space.names:
            raise DataError(f"problem.known = {path}: a variable is called {name!r}, like the column of values: "
                            "rename it")  # fmt: skip
    if sorted(header) != sorted(wanted):
        raise DataError(f"problem.known = {path}: its first line must name the columns {', '.join(wanted)}, "
                        f"not {', '.join(header) or 'nothing'}")  # fmt: skip
    points, values = [], []
    for number, row in enumerate(rows[1:], 2):
        if not any(cell.strip() for cell in row):
            continue
        try:
            cells = dict(zip(header, map(float, row), strict=True))
            point = space.to_cube(torch.tensor([[cells[name] for name in space.names]], dtype=torch.float64))
        except FneError as error:
            raise DataError(f"problem.known = {path}, line {number}: {error}") from None
        except ValueError:
            raise DataError(
                f"problem.known = {path}, line {number}: must be {len(header)} numbers, not {','.join(row)!r:.60}"
            ) from None
        found = [cells[name] for name in objectives]
        for name, value in zip(objectives, found, strict=True):
            if not math.isfinite(value):
                raise DataError(
                    f"problem.known = {path}, line {number}: {name} must be finite; leave failed points out"
                )
        points.append(point)
        values.append(found)
    if not points:
        raise DataError(f"problem.known = {path}: no point below the header; give some, or null")
    return torch.cat(points), torch.tensor(values, dtype=torch.float64)


def measured(
    objectives: Sequence[Objective], points: Tensor, seeds: Tensor, nodes: Sequence[str], noise: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the values that nodes measure at points `[L, n, d]`, with and without noise, both float64 `[L, n, M]`.

    Values are NaN, in all objectives, where a node cannot measure or its measurement failed. Nodes that share a
    function share one call.

    Args:
        objectives: the objective of each row's node.
        points: points of the cube.
        seeds: int64 `[L]`, seed of the run that each row belongs to.
        nodes: name of each row's node.
        noise: standard normal `[L, n, M]`.

    Raises:
        RunError: a problem's function returned another shape.
    """
    feasible = torch.stack([o.feasible(p) for o, p in zip(objectives, points, strict=True)])
    values = torch.full(noise.shape, torch.nan, dtype=torch.float64)
    together: dict[int, list[int]] = {}
    for row, objective in enumerate(objectives):
        if feasible[row].all():
            together.setdefault(id(objective.measure), []).append(row)
        elif feasible[row].any():  # other points are not measured: a measurement may cost an hour, or be impossible
            wanted = feasible[row]
            part = points[row, wanted].unsqueeze(0)
            values[row, wanted] = _called(objective, part, seeds[row : row + 1], [nodes[row]])[0]
    for rows in together.values():
        index = torch.tensor(rows)
        values[index] = _called(objectives[rows[0]], points[index], seeds[index], [nodes[row] for row in rows])
    values = torch.where(values.isfinite().all(dim=-1, keepdim=True), values, torch.nan)
    scale = torch.tensor([objective.noise for objective in objectives], dtype=torch.float64)
    return values + scale[:, None, None] * noise, values


def _called(objective: Objective, points: Tensor, seeds: Tensor, nodes: Sequence[str]) -> Tensor:
    values, wanted = objective.measure(points, seeds, nodes), [*points.shape[:2], objective.objectives]
    if list(values.shape) != wanted:
        raise RunError(
            f"the problem's measure returned values {list(values.shape)}, must be {wanted}: rows, points, objectives"
        )
    return values
