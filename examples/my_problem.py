"""A problem of one's own: ovens that differ, and whose settings are searched together."""

from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor

from fne.extend import Key, Problem, register, space_of


@register("problem", "ovens")
def ovens(
    *, drift: Annotated[float, Key("difference between the best temperatures of two ovens", unit="°C", ge=0)] = 2.0
) -> Problem:
    """Share of faulty pieces of several ovens by temperature and minutes; smaller is better."""
    space = space_of({"temperature": [150, 300], "minutes": [5, 30]}, integer=["minutes"])

    def measure(points: Tensor, seeds: Tensor, nodes: Sequence[str]) -> Tensor:
        """Return what `nodes [L]` measure at `points [L, n, 2]` of the cube, `[L, n, 1]`."""
        temperature, minutes = space.to_user(points).unbind(-1)
        best = 210 + drift * torch.tensor([float(name.split("-")[-1]) for name in nodes])[:, None]
        return (0.02 + ((temperature - best) / 100) ** 2 + (minutes - 12).abs() / 200).unsqueeze(-1)

    return Problem(space, measure)
