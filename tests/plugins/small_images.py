"""A data set of a few images, for models of images."""

from __future__ import annotations

import torch

from fne.config.registry import register
from fne.core.dataset import Dataset, Samples


@register("data", "small_images")
def small_images(*, seed: int) -> Dataset:
    """Return 30 images of noise in two classes: 20 to train with, 5 to validate, 5 to test."""
    draw = torch.Generator().manual_seed(seed)
    x, y = torch.randn(30, 1, 28, 28, generator=draw), torch.arange(30) % 2
    parts = [Samples(x[rows], y[rows]) for rows in (slice(20), slice(20, 25), slice(25, 30))]
    return Dataset("small_images", *parts, classes=("0", "1"), split="trial", source="noise")
