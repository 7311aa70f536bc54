"""Logistic regression: one linear layer, on the inputs or on their squares and products as well."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from fne.errors import SettingError
from fne.models import layers
from fne.registry import Key, register

MOST_FEATURES = 100_000
"""Quadratic features grow with the square of the inputs; beyond this a mistake is likelier than a wish."""


@register("model", "logistic")
class Logistic(nn.Module):
    """Logistic regression, or linear regression where the output is linear. Cox, 1958.

    With quadratic features and d inputs, all d(d+1)/2 products `x_i * x_j`, i <= j, follow the inputs.

    Args:
        shape: shape of one sample; it is flattened.
        outputs: classes, or dimensions of the target.

    Raises:
        SettingError: too many quadratic features, or a softmax over one output.
    """

    output: Literal["softmax", "sigmoid", "linear"]

    def __init__(
        self,
        shape: tuple[int, ...],
        outputs: int,
        *,
        output: Annotated[
            Literal["softmax", "sigmoid", "linear"],
            Key("how logits become predictions: one of many, one against all the others, or as they are"),
        ] = "softmax",
        features: Annotated[
            Literal["linear", "quadratic"], Key("the inputs, or with all their squares and pairwise products")
        ] = "linear",
    ) -> None:
        super().__init__()
        layers.check_output(output, outputs)
        self.output = output
        self.quadratic = features == "quadratic"
        inputs = math.prod(shape)
        count = inputs + inputs * (inputs + 1) // 2 if self.quadratic else inputs
        if self.quadratic and count > MOST_FEATURES:
            raise SettingError(
                "model.features",
                features,
                f"'linear' for {inputs:,} inputs: quadratic makes {count:,} features of them, "
                f"at most {MOST_FEATURES:,} are allowed",
            )
        self.linear = nn.Linear(count, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits `[N, outputs]` of samples `[N, *shape]`."""
        logits: Tensor = self.linear(self._features(x))
        return logits

    def forward_population(self, parameters: layers.Parameters, x: Tensor) -> Tensor:
        """Return logits `[P, N, outputs]` of P individuals on the same samples `[N, *shape]`."""
        return layers.linear(self._features(x), parameters["linear.weight"], parameters["linear.bias"])

    def _features(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        if not self.quadratic:
            return x
        i, j = torch.triu_indices(x.shape[1], x.shape[1], device=x.device)
        return torch.cat([x, x[:, i] * x[:, j]], dim=1)
