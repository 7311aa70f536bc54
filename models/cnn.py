"""Convolutional network of two convolutions and two fully connected layers."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fne.config.groups import Output
from fne.config.registry import Key, register
from fne.core.errors import SettingError
from fne.models import image_layers as layers


@register("model", "cnn")
class CNN(nn.Module):
    """Two convolutions, each with 2x2 max pooling and ReLU, and two linear layers. LeCun et al., 1998.

    On MNIST the default has 46,730 parameters; widths 32 and 64, padding 2 and 512 hidden neurons make the
    CNN of McMahan et al., 2017 (arXiv 1602.05629), with 1,663,370 parameters.

    Args:
        shape: channels, height, width.
        outputs: classes, or dimensions of the target.

    Raises:
        SettingError: data other than images, a kernel too large for the images, or a softmax over one output.
    """

    output: Literal["softmax", "sigmoid", "linear"]

    def __init__(
        self,
        shape: tuple[int, ...],
        outputs: int,
        *,
        width: Annotated[
            tuple[Annotated[int, Key("filters", ge=1)], ...],
            Key("filters of the two convolutions", unit="filters", min_length=2, max_length=2),
        ] = (16, 32),
        kernel: Annotated[int, Key("side of the square filters", unit="pixels", ge=1)] = 5,
        padding: Annotated[int, Key("zero padding of the images at each convolution", unit="pixels", ge=0)] = 0,
        hidden: Annotated[int, Key("neurons of the hidden layer", unit="neurons", ge=1)] = 64,
        output: Output = "softmax",
    ) -> None:
        super().__init__()
        channels, height, side = layers.image_shape("cnn", shape)
        layers.check_output(output, outputs)
        self.output = output
        self.padding = padding
        for _ in width:
            height, side = ((size + 2 * padding - kernel + 1) // 2 for size in (height, side))
            if min(height, side) < 1:
                raise SettingError(
                    "model.kernel",
                    kernel,
                    f"smaller for images of {shape[1]}x{shape[2]}: two convolutions with padding {padding}, "
                    "each followed by 2x2 pooling, leave nothing of them; or raise model.padding",
                )
        first, second = width
        self.conv1 = nn.Conv2d(channels, first, kernel, padding=padding)
        self.conv2 = nn.Conv2d(first, second, kernel, padding=padding)
        self.hidden = nn.Linear(second * height * side, hidden)
        self.head = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits `[N, outputs]` of images `[N, C, H, W]`."""
        x = F.relu(F.max_pool2d(self.conv1(x), 2))  # ReLU after the maximum: the same values for a quarter of the work
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        logits: Tensor = self.head(F.relu(self.hidden(x.flatten(1))))
        return logits

    def forward_population(self, parameters: layers.Parameters, x: Tensor) -> Tensor:
        """Return logits `[P, N, outputs]` of P individuals on the same images `[N, C, H, W]`."""
        return layers.blockwise(self._block, parameters, x, together=layers.TOGETHER)

    def _block(self, genes: layers.Parameters, images: layers.Images) -> Tensor:
        x = layers.pooled_conv2d(images, genes["conv1.weight"], genes["conv1.bias"], padding=self.padding)
        return torch.cat([self._after_first(own, y) for own, y in layers.apart(genes, torch.relu_(x))])

    def _after_first(self, genes: layers.Parameters, x: Tensor) -> Tensor:
        x = layers.conv2d(x, genes["conv2.weight"], genes["conv2.bias"], padding=self.padding)
        x = layers.rows(torch.relu_(layers.max_pool2d(x)), len(genes["head.bias"]))
        x = torch.relu_(layers.linear(x, genes["hidden.weight"], genes["hidden.bias"]))
        return layers.linear(x, genes["head.weight"], genes["head.bias"])
