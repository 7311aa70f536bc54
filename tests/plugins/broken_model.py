"""A model that trains, and whose outputs in eval mode are not numbers."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor, nn

from fne.config.registry import Key, register


@register("model", "broken")
class Broken(nn.Module):
    """A linear model with one of its outputs replaced in eval mode."""

    def __init__(
        self,
        shape: tuple[int, ...],
        outputs: int,
        *,
        value: Annotated[str, Key("what the first output is in eval mode")] = "nan",
    ) -> None:
        super().__init__()
        self.head = nn.Linear(math.prod(shape), outputs)
        self._value = float(value)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        logits: Tensor = self.head(x.flatten(1))
        if self.training:
            return logits
        return torch.cat([torch.full_like(logits[:, :1], self._value), logits[:, 1:]], dim=1)
