"""A problem of one whole number, at one value of which nothing can be measured."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fne.config.registry import register
from fne.problems.space import Problem, Space, Variable

SPACE = Space([Variable("n", 1, 9, integer=True)])


def measure(points: Tensor, seeds: Tensor, nodes: Sequence[str]) -> Tensor:
    n = SPACE.to_user(points)
    assert torch.equal(SPACE.to_cube(n), points)  # only points that are what they say
    return torch.where(n == 2, torch.nan, (n - 6) ** 2)


@register("problem", "odd")
def odd() -> Problem:
    """(n - 6)^2, but not at 2."""
    return Problem(SPACE, measure)
