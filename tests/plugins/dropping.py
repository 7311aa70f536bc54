"""A model with dropout, without layers that mix samples: one that DP-SGD can train."""

from __future__ import annotations

import math

from torch import Tensor, nn

from fne.config.registry import register


@register("model", "dropping")
class Dropping(nn.Module):
    """A linear model on inputs of which half are dropped."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(math.prod(shape), outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        logits: Tensor = self.head(self.drop(x.flatten(1)))
        return logits
