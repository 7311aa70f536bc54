"""A data set of one's own: points around two circles."""

import math
from typing import Annotated

import torch

from fne.extend import Dataset, Key, Samples, generator, register


@register("data", "rings")
def rings(
    *, seed: int, samples: Annotated[int, Key("points of each part", unit="samples", ge=2)] = 300,
    noise: Annotated[float, Key("standard deviation of the radius", ge=0)] = 0.15,
    data_seed: Annotated[int, Key("seed of the data, the same for all runs that are compared", ge=0)] = 0,
) -> Dataset:  # fmt: skip
    """Draw points `[N, 2]` around a circle of radius 1 (inner) or 2 (outer)."""
    parts = [points(samples, noise, generator("rings", part, data_seed)) for part in ("train", "validation", "test")]
    return Dataset("rings", *parts, ("inner", "outer"), split=f"three draws of {samples}", source="synthetic")


def points(count: int, noise: float, draw: torch.Generator) -> Samples:
    y = torch.arange(count) % 2
    radius = 1.0 + y + noise * torch.randn(count, generator=draw)
    angle = 2 * math.pi * torch.rand(count, generator=draw)
    return Samples(torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), y)
