"""Multi-layer perceptron; the default is the 2NN of the federated averaging paper."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fne.config.groups import Output
from fne.config.registry import Key, register
from fne.models import image_layers as layers


@register("model", "mlp")
class MLP(nn.Module):
    """Multi-layer perceptron with ReLU, by default the 2NN of McMahan et al., 2017 (arXiv 1602.05629).

    On MNIST the default has 199,210 parameters.

    Args:
        shape: shape of one sample; it is flattened.
        outputs: classes, or dimensions of the target.

    Raises:
        SettingError: a softmax over one output.
    """

    output: Literal["softmax", "sigmoid", "linear"]

    def __init__(
        self,
        shape: tuple[int, ...],
        outputs: int,
        *,
        hidden: Annotated[
            tuple[Annotated[int, Key("neurons", ge=1)], ...],
            Key("neurons of each hidden layer", unit="neurons", min_length=1),
        ] = (200, 200),
        output: Output = "softmax",
    ) -> None:
        super().__init__()
        layers.check_output(output, outputs)
        self.output = output
        sizes = [math.prod(shape), *hidden, outputs]
        self.layers = nn.ModuleList(nn.Linear(inputs, neurons) for inputs, neurons in pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits `[N, outputs]` of samples `[N, *shape]`."""
        x = x.flatten(1)
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        logits: Tensor = self.layers[-1](x)
        return logits

    def forward_population(self, parameters: layers.Parameters, x: Tensor) -> Tensor:
        """Return logits `[P, N, outputs]` of P individuals on the same samples `[N, *shape]`."""
        x = x.flatten(1)
        last = len(self.layers) - 1
        for i in range(last):
            x = torch.relu_(layers.linear(x, parameters[f"layers.{i}.weight"], parameters[f"layers.{i}.bias"]))
        return layers.linear(x, parameters[f"layers.{last}.weight"], parameters[f"layers.{last}.bias"])
