"""A data set of a few numbers to predict, for models without classes."""

from __future__ import annotations

import torch

from fne.config.registry import register
from fne.core.dataset import Dataset, Samples


@register("data", "small_numbers")
def small_numbers(*, seed: int) -> Dataset:
    """Return 60 points of four features with a number each: 40 to train with, 10 to validate, 10 to test."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(60, 4, generator=draw)
    y = x.sum(dim=1, keepdim=True) + 0.1 * torch.randn(60, 1, generator=draw)
    parts = [Samples(x[rows], y[rows]) for rows in (slice(40), slice(40, 50), slice(50, 60))]
    return Dataset("small_numbers", *parts, classes=None, split="trial", source="noise")
