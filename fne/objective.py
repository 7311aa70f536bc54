"""What one node can say about a problem: it measures points, with its own noise, and not everywhere."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fne.errors import DataError, FneError
from fne.space import Measure, Space

VALUE = "value"
"""Name of the column of a CSV that holds what was measured."""


@dataclass(frozen=True)
class Objective:
    """How a node measures.

    Args:
        measure: the problem's function, which nodes may share.
        noise: standard deviation of what is added to each value; alpha of eq. (17).
        infeasible: interval of the first coordinate, in the cube, in which it cannot measure; eq. (18).
        known: points `[n, d]` of the cube and values `[n]` that it has from the start.
    """

    measure: Measure
    noise: float = 0.0
    infeasible: tuple[float, float] | None = None
    known: tuple[Tensor, Tensor] | None = None

    def feasible(self, points: Tensor) -> Tensor:
        """Return which points `[..., d]` it can measure, bool `[...]`."""
        first = points[..., 0]
        if self.infeasible is None:
            return torch.ones_like(first, dtype=torch.bool)
        low, high = self.infeasible
        return ~((first >= low) & (first <= high))


def slot(number: int, nodes: int, tau: int) -> tuple[float, float] | None:
    """Return where node `number` (from 0) of `nodes` cannot measure, in the cube: eq. (18); `None` for tau 0.

    Source: Xu et al., "A federated data-driven evolutionary algorithm", section IV-D.
    """
    width = 2 / nodes  # eq. (19), of [-1, 1]
    return (-1 + number * width, min(-1 + (number + tau) * width, 1.0)) if tau else None


def read_known(path: Path, space: Space) -> tuple[Tensor, Tensor]:
    """Return points of the cube `[n, d]` and values `[n]` from a CSV with a column a variable and one named `value`.

    Raises:
        DataError: no such file, columns that are missing or unknown, a cell that is no number, or a point outside the
            bounds; names the file and line.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file))
    except (OSError, ValueError, csv.Error) as error:  # of text that is no UTF-8, or a path that cannot be
        raise DataError(f"problem.known = {path}: cannot be read: {error}; give a CSV in UTF-8, or null") from None
    header = [cell.strip() for cell in rows[0]] if rows else []
    wanted = [*space.names, VALUE]
    if VALUE in space.names:
        raise DataError(f"problem.known = {path}: a variable is called {VALUE!r}, like the column of values: "
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
        if not math.isfinite(cells[VALUE]):
            raise DataError(f"problem.known = {path}, line {number}: value must be finite; leave failed points out")
        points.append(point)
        values.append(cells[VALUE])
    if not points:
        raise DataError(f"problem.known = {path}: no point below the header; give some, or null")
    return torch.cat(points), torch.tensor(values, dtype=torch.float64)


def measured(
    objectives: Sequence[Objective], points: Tensor, seeds: Tensor, nodes: Sequence[str], noise: Tensor
) -> tuple[Tensor, Tensor]:
    """Return what nodes measure at points `[L, n, d]`, and the same without noise, float64 `[L, n]` both.

    NaN where a node cannot measure or its measurement failed. Nodes that share a function share one call.

    Args:
        objectives: of each row's node.
        points: of the cube.
        seeds: int64 `[L]`, of the run that each row belongs to.
        nodes: names of the nodes.
        noise: standard normal `[L, n]`.
    """
    feasible = torch.stack([o.feasible(p) for o, p in zip(objectives, points, strict=True)])
    values = torch.full(feasible.shape, torch.nan, dtype=torch.float64)
    together: dict[int, list[int]] = {}
    for row, objective in enumerate(objectives):
        if feasible[row].all():
            together.setdefault(id(objective.measure), []).append(row)
        elif feasible[row].any():  # the others are not asked for: they may cost an hour, or be impossible
            wanted = feasible[row]
            part = points[row, wanted].unsqueeze(0)
            values[row, wanted] = objective.measure(part, seeds[row : row + 1], [nodes[row]])[0]
    for rows in together.values():
        index = torch.tensor(rows)
        values[index] = objectives[rows[0]].measure(points[index], seeds[index], [nodes[row] for row in rows])
    values = torch.where(values.isfinite(), values, torch.nan)
    scale = torch.tensor([objective.noise for objective in objectives], dtype=torch.float64).unsqueeze(1)
    return values + scale * noise, values
