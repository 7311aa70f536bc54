"""A model of one's own: one hidden layer with tanh."""

import math
from typing import Annotated

from torch import Tensor, nn

from fne.extend import Key, register


@register("model", "tanh_net")
class TanhNet(nn.Module):
    """One hidden layer with tanh: inputs `[N, *shape]`, logits `[N, outputs]`."""

    output = "softmax"

    def __init__(
        self, shape: tuple[int, ...], outputs: int, *, hidden: Annotated[int, Key("number of hidden neurons", ge=1)] = 8
    ) -> None:
        super().__init__()
        self.hidden = nn.Linear(math.prod(shape), hidden)
        self.head = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        return self.head(self.hidden(x.flatten(1)).tanh())
