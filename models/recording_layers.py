"""Layers on recordings for many models at once: shape, cache-sized blocks, batch normalisation.

Recordings are `[N, C, T]`; the outputs of P individuals with `G` filters each are side by side, `[N, T, P*G]`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fne.core.errors import SettingError

BLOCK = {"cpu": (256, 16), "cuda": (4096, 64)}
"""Filters and samples that go through the layers together; on a CPU, intermediate results then stay in the cache."""

Pair = tuple[Tensor, Tensor]
"""Gains and offsets, means and variances, or scales and shifts of batch normalisation, each `[P, G]`."""


# ------------------------------------------------------------------------------------------------ blocks
def recording_shape(model: str, shape: tuple[int, ...]) -> tuple[int, int]:
    """Return `shape` as channels and times; raise `SettingError` for data other than recordings."""
    if len(shape) != 2:
        raise SettingError(
            "model.name",
            model,
            f"a model for data of shape {list(shape)}, such as mlp or logistic; "
            f"{model} needs recordings [channels, times]",
        )
    return shape[0], shape[1]


def channels_last(x: Tensor) -> Tensor:
    """Return `[N, C, T]` as images `[N, C, 1, T]` with the channels last in memory."""
    return x.unsqueeze(2).contiguous(memory_format=torch.channels_last)


def blockwise(
    forward: Callable[[slice, Tensor], Tensor], x: Tensor, population: int, filters: int, *, whole: bool = False
) -> Tensor:
    """Apply `forward(individuals, recordings [N', C, 1, T]) -> [N', L, P', G]` block by block: `[P, N, L, G]`.

    Args:
        forward: called with slices of the individuals.
        x: the recordings `[N, C, T]`, the same for all.
        population: number of individuals, `P`.
        filters: filters of each individual, which determine the number of individuals in a block.
        whole: whether blocks hold all samples, for statistics over them, and fewer individuals.
    """
    channels, samples = BLOCK["cuda" if x.is_cuda else "cpu"]
    tile = len(x) if whole else samples
    chunk = max(1, channels * samples // (filters * tile))
    rows = []
    for n in range(0, len(x), tile):
        recordings = channels_last(x[n : n + tile])
        parts = [forward(slice(p, p + chunk), recordings) for p in range(0, population, chunk)]
        rows.append(torch.cat(parts, dim=2))
    return joined(rows)


def joined(rows: Sequence[Tensor]) -> Tensor:
    """Return the features of successive samples, each `[N', L, P, G]`, as `[P, N, L, G]`."""
    return torch.cat(list(rows)).permute(2, 0, 1, 3).contiguous()


# ------------------------------------------------------------------------------------------------ batch normalisation
def statistics(y: Tensor) -> Pair:
    """Return means and variances `[P, G]` of `[P, rows, G]`, as torch computes them for a batch.

    Raises:
        ValueError: there is only one row.
    """
    if y.shape[1] == 1:
        raise ValueError(f"Expected more than 1 value per channel, as torch does; got {list(y.shape)}")
    variance, mean = torch.var_mean(y, dim=1, correction=0)
    return mean, variance


def affine(norm: nn.modules.batchnorm._BatchNorm, genes: Pair, found: Pair | None = None) -> Pair:
    """Return batch normalisation as scales and shifts `[P, G]`.

    Args:
        norm: the layer, for its statistics.
        genes: gains and offsets.
        found: means and variances in place of the layer's.
    """
    mean, variance = found or (norm.running_mean, norm.running_var)
    assert mean is not None
    assert variance is not None
    gain, offset = genes
    scale = gain * torch.rsqrt(variance + norm.eps)
    return scale, offset - mean * scale


def normalised(norm: nn.modules.batchnorm._BatchNorm, genes: Pair, y: Tensor) -> Tensor:
    """Normalise `[N, T, P*G]` by each individual's own statistics."""
    population, filters = genes[0].shape
    rows = y.reshape(-1, population, filters).transpose(0, 1)
    scale, shift = affine(norm, genes, statistics(rows))
    return y * scale.flatten() + shift.flatten()
