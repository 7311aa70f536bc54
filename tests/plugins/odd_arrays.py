"""Data sets whose arrays have other types and shapes than the toolkit's own."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch

from fne.config.registry import Key, register
from fne.core.dataset import Dataset, Samples


@register("data", "kinds")
def kinds(*, seed: int, kind: Annotated[str, Key("of the arrays")] = "plain") -> Dataset:
    """Three classes apart, in many types of arrays."""
    draw = torch.Generator().manual_seed(1)

    def part(count):
        y = torch.arange(count) % 3
        x = (torch.randint(4, (count, 3), generator=draw) + 6 * torch.nn.functional.one_hot(y, 3)).float()
        if kind == "inputs":
            x = x.to(torch.uint8)
        if kind in ("int32", "uint8", "float64"):
            y = y.to(getattr(torch, kind))
        if kind == "numpy":
            x, y = x.double().numpy(), y.numpy().astype(np.float32)[:, None]
        if kind == "text":
            y = np.array(["left", "middle", "right"])[y.numpy()]
        return Samples(x, y)

    return Dataset("kinds", part(90), part(30), part(30), ("l", "m", "r"), "drawn", "none")


@register("data", "line")
def line(*, seed: int, kind: Annotated[str, Key("of the arrays")] = "plain") -> Dataset:
    """A regression with one target, in two shapes."""
    draw = torch.Generator().manual_seed(1)

    def part(count):
        x = torch.rand(count, 2, generator=draw)
        y = x.sum(1)
        return Samples(x, y if kind == "flat" else y.unsqueeze(1))

    return Dataset("line", part(60), part(20), part(20), None, "drawn", "none")
