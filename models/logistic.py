"""Logistic regression: one linear layer on the inputs, optionally with their squares and products."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from fne.config.groups import Output
from fne.config.registry import Key, register
from fne.core.errors import SettingError
from fne.models import image_layers as layers

MOST_FEATURES = 100_000
"""Most features: quadratic ones grow with the square of the inputs, and more than this is probably a mistake."""


@register("model", "logistic")
class Logistic(nn.Module):
    """Logistic regression, or linear regression where the output is linear. Cox, 1958.

    With quadratic features and d inputs, all d(d+1)/2 products `x_i * x_j`, i <= j, follow the inputs; with `reach`,
    only the products of inputs that lie near each other along every axis of a sample. An image of 20 x 20 has 80,200
    products, which with ten outputs make 806,010 genes for 4,000 images; the products of a pixel with itself and its
    eight neighbours are 1,882 and make 22,830 genes. Two distant pixels together tell little more than each alone.

    Args:
        shape: shape of one sample; it is flattened.
        outputs: classes, or dimensions of the target.

    Raises:
        SettingError: too many quadratic features, a reach without them, or a softmax over one output.
    """

    output: Literal["softmax", "sigmoid", "linear"]

    def __init__(
        self,
        shape: tuple[int, ...],
        outputs: int,
        *,
        output: Output = "softmax",
        features: Annotated[
            Literal["linear", "quadratic"], Key("the inputs, or the inputs with their squares and pairwise products")
        ] = "linear",
        reach: Annotated[
            int | None,
            Key("quadratic: largest distance on each axis of multiplied inputs; null: any", unit="places", ge=0),
        ] = None,
    ) -> None:
        super().__init__()
        layers.check_output(output, outputs)
        self.output = output
        self.quadratic = features == "quadratic"
        if reach is not None and not self.quadratic:
            raise SettingError("model.reach", reach, "null with features = linear, which multiplies nothing")
        inputs = math.prod(shape)
        count = inputs
        if self.quadratic:
            spans = [n - 1 if reach is None else min(reach, n - 1) for n in shape]
            ordered = math.prod(n * (2 * span + 1) - span * (span + 1) for n, span in zip(shape, spans, strict=True))
            count += (ordered + inputs) // 2
            if count > MOST_FEATURES:
                raise SettingError(
                    "model.features",
                    features,
                    f"'linear' for {inputs:,} inputs: quadratic makes {count:,} features of them, "
                    f"at most {MOST_FEATURES:,} are allowed; model.reach takes fewer",
                )
            self._pairs = _pairs(shape, spans)
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
        first, second = self._pairs
        return torch.cat([x, x[:, first] * x[:, second]], dim=1)


def _pairs(shape: Sequence[int], spans: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the places of multiplied inputs, first <= second, sorted; at most `spans` apart on each axis."""
    grid = torch.arange(math.prod(shape)).view(*shape)
    found = []
    for offset in itertools.product(*(range(-span, span + 1) for span in spans)):
        if offset >= (0,) * len(offset):  # the other offsets give the same pairs in reverse
            here = grid[tuple(slice(max(0, -d), n - max(0, d)) for d, n in zip(offset, shape, strict=True))]
            there = grid[tuple(slice(max(0, d), n - max(0, -d)) for d, n in zip(offset, shape, strict=True))]
            found.append(torch.stack([here.flatten(), there.flatten()]))
    pairs = torch.cat(found, dim=1)
    first, second = pairs[:, (pairs[0] * grid.numel() + pairs[1]).argsort()]
    return first, second
