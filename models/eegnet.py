"""EEGNet, a compact network for EEG, and its fast form, which mixes channels before it filters them in time.

Lawhern et al., "EEGNet: a compact convolutional neural network for EEG-based brain-computer interfaces", Journal of
Neural Engineering 2018 (arXiv 1611.08024), and the authors' Keras code. The defaults are EEGNet-8,2 at 128 Hz.

Deviations
- The paper bounds the norms of the spatial filters (1) and of the dense layer's weights (0.25), after each step of
  gradient descent. Here norms are unbounded: candidates of evolution take no such steps, and the gradient baselines are
  compared with them on the same network.
- Initial values: Keras uses Glorot's with zero biases; here they are torch's random ones, since multiplicative mutation
  can never change a zero (batch norm's offsets do start at zero, and stay there under this mutation).
- Batch normalisation adds 1e-5 to variances and keeps 0.9 of running statistics, torch's values; Keras' are 1e-3, 0.99.

Temporal filters `T[f, k]`, batch normalisation with known statistics and spatial filters `S[g, c]` are linear, and a
spatial filter sees a single temporal one, `f(g)`. So their order is free: mixing the channels with `S` first and
filtering the result with `T[f(g)]` gives the same values for `C + K` instead of `C K / D` multiplications per value.
The batch statistics of batch normalisation come from the covariance of the recordings' windows, which all individuals
share: no filter has to run on all channels. Genes stay unchanged. Shapes: `F` temporal filters, `D` spatial filters for
each, `G = F D`, `C` channels, `K` length of a filter, `B` filters of some individuals side by side.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fne.config.registry import Key, register
from fne.core.errors import SettingError
from fne.models import image_layers as layers
from fne.models import recording_layers as recordings

SEGMENT = 256
"""Windows in time whose products are summed together: more windows increase the work, fewer the overhead."""


@register("model", "eegnet")
class EEGNet(nn.Module):
    """Compact EEG network of depthwise and separable convolutions, EEGNet-8,2 by default. Lawhern et al., 2018.

    With 64 channels, 128 samples in time and two outputs it has 2,258 parameters.

    Args:
        shape: channels, samples in time.
        outputs: classes, or dimensions of the target.

    Raises:
        SettingError: data other than recordings, or too short for filters and pooling; a softmax over one output.
    """

    output: Literal["softmax", "sigmoid", "linear"]

    def __init__(
        self,
        shape: tuple[int, ...],
        outputs: int,
        *,
        filters: Annotated[int, Key("temporal filters (F1 in the paper)", unit="filters", ge=1)] = 8,
        depth: Annotated[int, Key("spatial filters per temporal filter (D)", unit="filters", ge=1)] = 2,
        pointwise: Annotated[
            int | None, Key("filters of the separable convolution (F2); null: filters x depth", unit="filters", ge=1)
        ] = None,
        filter_length: Annotated[
            int, Key("length of the temporal filters; paper: half the sampling rate", unit="samples in time", ge=1)
        ] = 64,
        separable_length: Annotated[
            int, Key("length of the separable convolution's filters", unit="pooled values", ge=1)
        ] = 16,
        first_pool: Annotated[int, Key("length of the first mean pooling", unit="samples in time", ge=1)] = 4,
        second_pool: Annotated[int, Key("length of the second mean pooling", unit="pooled values", ge=1)] = 8,
        dropout: Annotated[
            float,
            Key("dropout after each pooling, in training; paper: 0.5 within subjects, 0.25 across them", ge=0, lt=1),
        ] = 0.5,
        output: Annotated[Literal["softmax", "sigmoid", "linear"], Key("how logits become predictions")] = "softmax",
    ) -> None:
        super().__init__()
        channels, times = recordings.recording_shape("eegnet", shape)
        layers.check_output(output, outputs)
        self.output = output
        pooled = times // first_pool
        there = f"at most the {times} samples in time"
        left = f"at most the {pooled} values that first_pool = {first_pool} leaves of {times} samples in time"
        for name, value, most, allowed in (
            ("filter_length", filter_length, times, there),
            ("first_pool", first_pool, times, there),
            ("separable_length", separable_length, pooled, left),
            ("second_pool", second_pool, pooled, left),
        ):
            if value > most:
                raise SettingError(f"model.{name}", value, allowed)
        self.first_pool, self.second_pool = first_pool, second_pool
        spatial = filters * depth
        last = spatial if pointwise is None else pointwise
        self.conv_time = nn.Conv2d(1, filters, (1, filter_length), bias=False)
        self.norm_time = nn.BatchNorm2d(filters)
        self.conv_spatial = nn.Conv2d(filters, spatial, (channels, 1), groups=filters, bias=False)
        self.norm_spatial = nn.BatchNorm2d(spatial)
        self.conv_depthwise = nn.Conv2d(spatial, spatial, (1, separable_length), groups=spatial, bias=False)
        self.conv_pointwise = nn.Conv2d(spatial, last, 1, bias=False)
        self.norm_pointwise = nn.BatchNorm2d(last)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(last * (pooled // second_pool), outputs)
        self.population_bytes = 4 * 3 * self.head.in_features
        """Bytes for one individual and sample in `forward_population`, beside the blocks of fixed size."""

    def forward(self, x: Tensor) -> Tensor:
        """Return logits `[N, outputs]` of recordings `[N, channels, times]`.

        In training the channels are mixed first, for the same values and statistics in a fraction of the time.
        """
        if self.norm_time.training:
            y = self._mixed_first(x)
        else:
            y = self.conv_spatial(self.norm_time(self.conv_time(_same(x.unsqueeze(1), self.conv_time))))
        y = self.dropout(F.avg_pool2d(F.elu(self.norm_spatial(y)), (1, self.first_pool)))
        y = self.conv_pointwise(self.conv_depthwise(_same(y, self.conv_depthwise)))
        y = self.dropout(F.avg_pool2d(F.elu(self.norm_pointwise(y)), (1, self.second_pool)))
        logits: Tensor = self.head(y.flatten(1))
        return logits

    def _mixed_first(self, x: Tensor) -> Tensor:
        """Return the input of the second batch normalisation in training, `[N, G, 1, T]`."""
        genes = {name: p.unsqueeze(0) for name, p in self.named_parameters()}
        found = self._statistics(x, genes)
        _follow(self.norm_time, found, x.numel())
        return _filtered(_same(recordings.channels_last(x), self.conv_time), *self.fold(genes, found))

    # -------------------------------------------------------------------------------------------- populations
    def fold(
        self, parameters: layers.Parameters, found: recordings.Pair | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return spatial filters `[P, G, C]`, the temporal filters `[P, G, K]` after them, and offsets `[P, G]`.

        They include the first batch normalisation, with the statistics `found` in place of the layer's.
        """
        spatial = parameters["conv_spatial.weight"][:, :, 0, :, 0]
        scale, shift = self._affine("norm_time", parameters, found)
        time = parameters["conv_time.weight"][:, :, 0, 0] * scale.unsqueeze(2)
        depth = spatial.shape[1] // time.shape[1]
        return spatial, time.repeat_interleave(depth, 1), shift.repeat_interleave(depth, 1) * spatial.sum(2)

    def forward_population(self, parameters: layers.Parameters, x: Tensor) -> Tensor:
        """Return logits `[P, N, outputs]` of P individuals on the same recordings `[N, channels, times]`.

        Batch normalisation takes the module's statistics, or, where those are `None`, each individual's on `x`.
        """
        fixed = self.norm_time.running_mean is not None
        spatial, time, offset = self.fold(parameters, None if fixed else self._statistics(x, parameters))
        depthwise, pointwise = (parameters[f"conv_{name}.weight"] for name in ("depthwise", "pointwise"))
        shift = torch.zeros(pointwise.shape[:2], device=x.device)
        if fixed:
            scale, shift = self._affine("norm_spatial", parameters)
            time, offset = time * scale.unsqueeze(2), offset * scale + shift
            scale, shift = self._affine("norm_pointwise", parameters)
            pointwise = pointwise * scale[..., None, None, None]

        def forward(some: slice, tile: Tensor) -> Tensor:
            y = _filtered(_same(tile, self.conv_time), spatial[some], time[some], offset[some])
            y = self._normalised("norm_spatial", parameters, some, y)
            y = _same(F.avg_pool2d(_elu(y), (1, self.first_pool)), self.conv_depthwise)
            y = F.conv2d(y, depthwise[some].flatten(0, 1), groups=y.shape[1])
            y = F.conv2d(y, pointwise[some].flatten(0, 1), shift[some].flatten(), groups=len(shift[some]))
            y = self._normalised("norm_pointwise", parameters, some, y)
            y = F.avg_pool2d(_elu(y), (1, self.second_pool)).squeeze(2).transpose(1, 2)
            return y.reshape(*y.shape[:2], -1, shift.shape[1])

        pooled = recordings.blockwise(forward, x, *offset.shape, whole=not fixed)
        features = pooled.transpose(2, 3).flatten(2)  # in the order of the head's genes: filters, then time
        return layers.linear(features, parameters["head.weight"], parameters["head.bias"])

    def _normalised(self, name: str, parameters: layers.Parameters, some: slice, y: Tensor) -> Tensor:
        """Normalise `[N, B, 1, T]` by each individual's own statistics; the module's are already folded in."""
        norm = getattr(self, name)
        if norm.running_mean is not None:
            return y
        genes = parameters[f"{name}.weight"][some], parameters[f"{name}.bias"][some]
        return recordings.normalised(norm, genes, y.squeeze(2).transpose(1, 2)).transpose(1, 2).unsqueeze(2)

    def _affine(
        self, name: str, parameters: layers.Parameters, found: recordings.Pair | None = None
    ) -> recordings.Pair:
        genes = parameters[f"{name}.weight"], parameters[f"{name}.bias"]
        return recordings.affine(getattr(self, name), genes, found)

    def _statistics(self, x: Tensor, parameters: layers.Parameters) -> recordings.Pair:
        """Return means and variances `[P, F]` of the temporal filters' outputs on `x [N, C, T]`."""
        time = parameters["conv_time.weight"][:, :, 0, 0].double()
        mean, covariance = _windows(x, self.conv_time)
        return (time @ mean).float(), ((time @ covariance) * time).sum(2).float()


def _same(x: Tensor, layer: nn.Conv2d) -> Tensor:
    """Pad `[..., T]` with zeros so that a layer's filters keep its length; the odd zero comes last, as in Keras."""
    length = layer.kernel_size[1]
    return F.pad(x, ((length - 1) // 2, length // 2))


def _filtered(x: Tensor, spatial: Tensor, time: Tensor, offset: Tensor) -> Tensor:
    """Mix the channels of padded recordings, filter the result in time and add offsets: `[N, B, 1, T]`."""
    mixed = F.conv2d(x, spatial.flatten(0, 1)[..., None, None])
    return F.conv2d(mixed, time.flatten(0, 1)[:, None, None], offset.flatten(), groups=mixed.shape[1])


def _elu(y: Tensor) -> Tensor:
    """Return the ELU within 1e-7, on a CPU in a tenth of the time of torch's own, whose `expm1` is slow."""
    below = y.clamp_max(0).exp_().sub_(1)
    return torch.maximum(y, below, out=below)


def _follow(norm: nn.BatchNorm2d, found: recordings.Pair, count: int) -> None:
    """Update the running statistics by those of a batch `[1, F]` of `count` values, as torch does in training."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    assert norm.momentum is not None
    mean, variance = (values[0].detach() for values in found)
    norm.num_batches_tracked.add_(1)
    norm.running_mean.lerp_(mean, norm.momentum)
    norm.running_var.lerp_(variance * count / (count - 1), norm.momentum)  # the unbiased variance


def _windows(x: Tensor, layer: nn.Conv2d) -> recordings.Pair:
    """Return mean `[K]` and covariance `[K, K]` of the windows under a filter on `x [N, C, T]`, padding included.

    Both are float64, since slow waves in EEG are far stronger than the output of many filters.

    Raises:
        ValueError: a single value, which has no variance.
    """
    if x.numel() == 1:
        raise ValueError(f"Expected more than 1 value per channel, as torch does; got {list(x.shape)}")
    length, samples = layer.kernel_size[1], recordings.BLOCK["cuda" if x.is_cuda else "cpu"][1]
    first = x.new_zeros(length, dtype=torch.float64)
    second = x.new_zeros(length, length, dtype=torch.float64)
    padded = _same(x, layer)
    for start in range(0, x.shape[2], SEGMENT):
        segment = padded[..., start : start + SEGMENT + length - 1]
        windows = segment.shape[2] - length + 1
        products = first.new_zeros(segment.shape[2], segment.shape[2])  # of all pairs of times; a window's are a square
        for part in torch.split(segment, samples):
            rows = part.flatten(0, 1).double()
            first += rows.sum(0).unfold(0, windows, 1).sum(1)
            products.addmm_(rows.T, rows)
        second += products.unfold(0, windows, 1).unfold(1, windows, 1).diagonal(dim1=2, dim2=3).sum(2)
    mean = first / x.numel()
    return mean, second / x.numel() - torch.outer(mean, mean)
