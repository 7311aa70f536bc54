"""VGG-style network with group normalisation instead of batch normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fne.config.groups import Output
from fne.config.registry import Key, register
from fne.core.errors import SettingError
from fne.models import image_layers as layers


@register("model", "vgg")
class VGG(nn.Module):
    """Blocks of 3x3 convolutions with group norm, and two linear layers. Simonyan and Zisserman, 2015.

    Each block ends with 2x2 max pooling. Group norm (Wu and He, 2018) has no running statistics, on which nodes with
    different data would have to agree, and which individuals of a population would have to share. On CIFAR-10 the
    default has 551,466 parameters.

    Args:
        shape: channels, height, width.
        outputs: classes, or dimensions of the target.

    Raises:
        SettingError: data other than images, more blocks than the images can be halved, a width that
            `groups` does not divide, or a softmax over one output.
    """

    output: Literal["softmax", "sigmoid", "linear"]

    def __init__(
        self,
        shape: tuple[int, ...],
        outputs: int,
        *,
        blocks: Annotated[
            tuple[
                Annotated[tuple[Annotated[int, Key("filters", ge=1)], ...], Key("one block", min_length=1)],
                ...,
            ],
            Key("filters of each convolution, block by block", unit="filters", min_length=1),
        ] = ((32, 32), (64, 64), (128, 128)),
        groups: Annotated[int, Key("groups of channels that are normalised together", ge=1)] = 8,
        residual: Annotated[bool, Key("add the input of each block to its output (He et al., 2016)")] = False,
        hidden: Annotated[int, Key("neurons of the hidden layer", unit="neurons", ge=1)] = 128,
        output: Output = "softmax",
    ) -> None:
        super().__init__()
        channels, height, width = layers.image_shape("vgg", shape)
        layers.check_output(output, outputs)
        self.output = output
        most = min(height, width).bit_length() - 1
        if len(blocks) > most:
            raise SettingError(
                "model.blocks",
                blocks,
                f"at most {most} blocks for images of {height}x{width}: each halves them",
            )
        for filters in (filters for block in blocks for filters in block):
            if filters % groups:
                raise SettingError(
                    "model.groups", groups, f"a divisor of every width in model.blocks, also of {filters}"
                )
        self.blocks = nn.ModuleList()
        for block in blocks:
            self.blocks.append(Block(channels, block, groups, residual))
            channels = block[-1]
        area = (height >> len(blocks)) * (width >> len(blocks))
        self.hidden = nn.Linear(channels * area, hidden)
        self.head = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits `[N, outputs]` of images `[N, C, H, W]`."""
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(F.relu(self.hidden(x.flatten(1))))
        return logits

    def forward_population(self, parameters: layers.Parameters, x: Tensor) -> Tensor:
        """Return logits `[P, N, outputs]` of P individuals on the same images `[N, C, H, W]`."""
        return layers.blockwise(self._block, parameters, x)

    def _block(self, genes: layers.Parameters, images: layers.Images) -> Tensor:
        x: Tensor | layers.Images = images
        for i, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            prefix = f"blocks.{i}."
            own = {name.removeprefix(prefix): gene for name, gene in genes.items() if name.startswith(prefix)}
            x = block.forward_population(own, x)
        assert isinstance(x, Tensor)
        x = layers.rows(x, len(genes["head.bias"]))
        x = torch.relu_(layers.linear(x, genes["hidden.weight"], genes["hidden.bias"]))
        return layers.linear(x, genes["head.weight"], genes["head.bias"])


class Block(nn.Module):
    """Convolutions of 3x3 with group norm and ReLU, then 2x2 max pooling; with a shortcut if residual."""

    def __init__(self, channels: int, filters: Sequence[int], groups: int, residual: bool) -> None:
        super().__init__()
        self.groups, self.residual = groups, residual
        self.convolutions = nn.ModuleList(
            nn.Conv2d(before, after, 3, padding=1) for before, after in pairwise([channels, *filters])
        )
        self.norms = nn.ModuleList(nn.GroupNorm(groups, count) for count in filters)
        self.projection = nn.Conv2d(channels, filters[-1], 1) if residual and channels != filters[-1] else None

    def forward(self, x: Tensor) -> Tensor:
        """Return `[N, filters, H/2, W/2]` of `[N, channels, H, W]`."""
        y = x
        for i, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            y = norm(convolution(y if i == 0 else F.relu(y)))
        if self.residual:
            y = y + (x if self.projection is None else self.projection(x))
        return F.relu(F.max_pool2d(y, 2))  # ReLU after the maximum: the same values for a quarter of the work

    def forward_population(self, genes: layers.Parameters, x: Tensor | layers.Images) -> Tensor:
        """Return folded `[N, P*filters, H/2, W/2]` of shared images, or of folded `[N, P*channels, H, W]`."""
        y: Tensor | None = None
        for i in range(len(self.norms)):
            y = layers.conv2d(
                x if y is None else torch.relu_(y),
                genes[f"convolutions.{i}.weight"],
                genes[f"convolutions.{i}.bias"],
                padding=1,
            )
            y = layers.group_norm(y, genes[f"norms.{i}.weight"], genes[f"norms.{i}.bias"], groups=self.groups)
        assert y is not None
        if self.projection is not None:
            y = y + layers.conv2d(x, genes["projection.weight"], genes["projection.bias"])
        elif self.residual:
            y = y + (x.folded(len(genes["norms.0.bias"])) if isinstance(x, layers.Images) else x)
        return torch.relu_(layers.max_pool2d(y))
