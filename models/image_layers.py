"""Layers for many models at once: the parameters of P individuals lie along a leading axis.

Images of a population are *folded*, `[N, P*C, H, W]`: the individuals are side by side in the channel axis.
Pooling, activation and group norm are then the ordinary ones, and a convolution is a grouped one. Rows of
features are `[P, N, I]`. Data that all individuals share have no P axis.

The speed-ups over loading each individual into one module were measured with one CPU thread: 3 to 8 for a narrow
linear layer as one matrix product, 1.5 as a batched product; 2.9 for convolutions of one individual after another
in channels-last form, with a first convolution of one channel as a matrix product on columns that all share (1.1
without the columns); 0.8 for convolutions grouped over 4 individuals. A first convolution of few filters is a
product with few columns, which runs at a tenth of the speed of a wide product: computed for 8 individuals together,
with the maxima of the pooling over whole products, it takes a third of the time. On a GPU launches dominate, so
there the whole population goes through grouped convolutions at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from fne.core.errors import SettingError

Parameters = Mapping[str, Tensor]
"""Name -> `[P, *shape]`, with the names of `named_parameters()`."""

NARROW = 32
"""Linear layers with fewer outputs are faster stacked into one matrix product, copying included."""

TILE = 32
"""Samples that go through all layers together on a CPU, so that intermediate results stay in its cache."""

TOGETHER = 8
"""Individuals whose first convolution on shared images is one matrix product on a CPU."""


# ------------------------------------------------------------------------------------------------ blocks
class Images:
    """Images `[N, C, H, W]` that all individuals see, with the columns that their first convolutions share."""

    def __init__(self, x: Tensor) -> None:
        self.x = x if x.is_cuda else x.contiguous(memory_format=torch.channels_last)
        self._columns: dict[tuple[int, ...], Tensor] = {}
        self._pooling: dict[tuple[int, ...], Tensor] = {}

    def folded(self, population: int) -> Tensor:
        """Return the images once per individual, `[N, P*C, H, W]`."""
        return self.x.repeat(1, population, 1, 1)

    def columns(self, kernel: tuple[int, int], padding: int, stride: int) -> Tensor:
        """Return the windows under a filter as rows `[N, H', W', C*kh*kw]` (im2col), computed once."""
        key = (*kernel, padding, stride)
        if key not in self._columns:
            padded = F.pad(self.x, (padding,) * 4)
            windows = padded.unfold(2, kernel[0], stride).unfold(3, kernel[1], stride)
            self._columns[key] = windows.permute(0, 2, 3, 1, 4, 5).flatten(3)  # from [N, C, H', W', kh, kw]
        return self._columns[key]

    def pooling_columns(self, kernel: tuple[int, int], padding: int) -> Tensor:
        """Return `columns` by their place in the following 2x2 pooling, `[4, N, H' // 2, W' // 2, C*kh*kw]`."""
        key = (*kernel, padding)
        if key not in self._pooling:
            columns = self.columns(kernel, padding, 1)
            height, width = (size // 2 * 2 for size in columns.shape[1:3])
            corners = [columns[:, i:height:2, j:width:2] for i in (0, 1) for j in (0, 1)]
            self._pooling[key] = torch.stack(corners)
        return self._pooling[key]


def blockwise(
    forward: Callable[[Parameters, Images], Tensor], parameters: Parameters, x: Tensor, *, together: int = 1
) -> Tensor:
    """Apply `forward(parameters [P', ...], images [N', ...]) -> [P', N', outputs]` block by block.

    On a CPU a block holds `together` individuals and `TILE` samples, so that memory between the layers does not grow
    with P; on a GPU one block holds everything.

    Args:
        forward: the function to apply.
        parameters: of all P individuals.
        x: images `[N, C, H, W]`; the result is `[P, N, outputs]`.
        together: individuals in a block.
    """
    if x.is_cuda:
        return forward(parameters, Images(x))
    blocks = list(_blocks(parameters, together))
    tiles = map(Images, torch.split(x, TILE))  # lazily, as each tile keeps its columns
    return torch.cat([torch.cat([forward(block, tile) for block in blocks]) for tile in tiles], dim=1)


def apart(parameters: Parameters, x: Tensor) -> Iterator[tuple[Parameters, Tensor]]:
    """Yield each individual's parameters `[1, ...]` and its part of folded images `x`; on a GPU all together."""
    if x.is_cuda:
        yield parameters, x
        return
    blocks = list(_blocks(parameters, 1))
    for genes, images in zip(blocks, x.chunk(len(blocks), dim=1), strict=True):
        yield genes, images.contiguous(memory_format=torch.channels_last)


def _blocks(parameters: Parameters, size: int) -> Iterator[Parameters]:
    population = len(next(iter(parameters.values())))
    for p in range(0, population, size):
        yield {name: value[p : p + size] for name, value in parameters.items()}


# ------------------------------------------------------------------------------------------------ layers
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Apply P linear layers `[P, O, I]`, `[P, O]` to shared `[N, I]` or own `[P, N, I]` rows: `[P, N, O]`."""
    population, outputs, _ = weight.shape
    if x.dim() == 2 and outputs < NARROW:
        y = (weight.flatten(0, 1) @ x.t()).view(population, outputs, -1).transpose(1, 2)
    else:
        y = torch.bmm(x.expand(population, -1, -1), weight.transpose(1, 2))
    return y if bias is None else y.add_(bias.unsqueeze(1))


def conv2d(
    x: Tensor | Images, weight: Tensor, bias: Tensor | None = None, *, padding: int = 0, stride: int = 1
) -> Tensor:
    """Convolve shared or folded images `[N, P*C, H, W]` with P sets of filters `[P, O, C, kh, kw]`, `[P, O]`.

    Returns folded images `[N, P*O, H', W']`.
    """
    filters = weight.flatten(0, 1)
    offset = None if bias is None else bias.flatten()
    if isinstance(x, Images):
        if x.x.shape[1] == 1 and not x.x.is_cuda:
            columns = x.columns((weight.shape[3], weight.shape[4]), padding, stride)
            return F.linear(columns, filters.flatten(1), offset).permute(0, 3, 1, 2)
        x = x.x
    if not x.is_cuda:
        filters = filters.contiguous(memory_format=torch.channels_last)
    return F.conv2d(x, filters, offset, stride, padding, groups=x.shape[1] // weight.shape[2])


def pooled_conv2d(x: Images, weight: Tensor, bias: Tensor, *, padding: int = 0) -> Tensor:
    """Return `max_pool2d(conv2d(...))` of shared images, the maxima over 2x2 taken first and the offset last."""
    if x.x.shape[1] > 1 or x.x.is_cuda:
        return max_pool2d(conv2d(x, weight, bias, padding=padding))
    columns = x.pooling_columns((weight.shape[3], weight.shape[4]), padding)
    filters = weight.flatten(2).flatten(0, 1).t().contiguous()
    y, *others = (torch.mm(corner.flatten(0, 2), filters) for corner in columns)
    for other in others:
        torch.maximum(y, other, out=y)
    folded: Tensor = y.add_(bias.flatten()).view(*columns.shape[1:4], -1).permute(0, 3, 1, 2)
    return folded


def group_norm(x: Tensor, weight: Tensor, bias: Tensor, *, groups: int) -> Tensor:
    """Normalise folded images `[N, P*C, H, W]` in `groups` groups each; `weight`, `bias` are `[P, C]`."""
    return F.group_norm(x, len(weight) * groups, weight.flatten(), bias.flatten())


def max_pool2d(x: Tensor) -> Tensor:
    """Halve height and width of folded images by maxima over 2x2; an odd last row or column is dropped."""
    if x.is_cuda:
        return F.max_pool2d(x, 2)
    height, width = x.shape[2] // 2 * 2, x.shape[3] // 2 * 2
    x = torch.maximum(x[:, :, 0:height:2], x[:, :, 1:height:2])
    return torch.maximum(x[..., 0:width:2], x[..., 1:width:2])


def rows(x: Tensor, population: int) -> Tensor:
    """Unfold images `[N, P*C, H, W]` to one row per individual and sample: `[P, N, C*H*W]`."""
    return x.reshape(len(x), population, -1).transpose(0, 1)


# ------------------------------------------------------------------------------------------------ checks
def image_shape(model: str, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return `shape` as channels, height, width; raise `SettingError` for data other than images."""
    if len(shape) != 3:
        raise SettingError(
            "model.name",
            model,
            f"a model for data of shape {list(shape)}, such as mlp or logistic; "
            f"{model} needs images [channels, height, width]",
        )
    return shape[0], shape[1], shape[2]


def check_output(output: str, outputs: int) -> None:
    """Raise `SettingError` for a softmax over a single output, which is always 1."""
    if output == "softmax" and outputs == 1:
        raise SettingError("model.output", output, "'linear' or 'sigmoid' for a single output (regression)")
