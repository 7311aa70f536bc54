"""Defaults of searches for a front that depend on the problem."""

from __future__ import annotations

import math

from fne.problems.space import FrontTask


def default_initial(task: FrontTask) -> int:
    """Return 11 d - 1 points, as FDD-EA-DH has them."""
    return 11 * len(task.space) - 1


def default_centres(task: FrontTask) -> int:
    """Return how many centres the authors' networks have."""
    return math.isqrt(task.objectives + len(task.space)) + 3


def default_population(objectives: int) -> int:
    """Return the most reference vectors: as the authors have for 3, 5, 10 and 20 objectives, for 6 and 8 as RVEA's."""
    known = {2: 100, 3: 105, 4: 120, 5: 126, 6: 132, 7: 140, 8: 156, 9: 174}
    return known.get(objectives, 230 + 19 * (objectives - 10))
