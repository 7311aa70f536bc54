"""Shallow convolutional network for EEG, and its fast form: time and space folded into one convolution.

Schirrmeister et al., "Deep learning with convolutional neural networks for EEG decoding and visualization", 2017
(ShallowFBCSPNet of braindecode: `variant=braindecode`), and the network of Szegedi, Kiss and Horváth, "Evolutionary
federated learning on EEG-data", ITAT 2019, section 3.2, which is made from it (`variant=paper`).

Deviations
- The paper says: three convolutions, pooling after the second, batch normalisation on the output of the third, a
  dense output layer with sigmoids. Numbers and lengths of filters are not given, nor are square, logarithm and
  dropout. The reading here takes the former from ShallowFBCSPNet and its square and logarithm around the pooling
  (`activation=elu`: an ELU before it instead); the third convolution is 5 pooled values long with an ELU; no dropout.
- The paper's two outputs are sigmoids trained with categorical cross-entropy: see `fne.evolution.fitness`.
- Initial values: braindecode's are Xavier's with zero biases; the paper variant keeps torch's random ones, since
  multiplicative mutation can never revive a zero (batch norm's offsets do begin at zero, and stay there with it).

Between the temporal and the spatial convolution nothing is non-linear, so both are one convolution with the filters
`W[g, c, k] = sum_f S[g, f, c] T[f, k]`, into which batch normalisation with fixed statistics folds as well. Genes stay
unfolded: crossover and mutation act on `T` and `S`. Shapes: `G` filters, `C` channels, `K` length of a filter, `L`
pooled values.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fne.errors import SettingError
from fne.models import layers
from fne.registry import Key, register

SMALLEST_POWER = 1e-6
"""What the pooled squares are raised to before their logarithm is taken, as in braindecode."""

BLOCK = {"cpu": (256, 16), "cuda": (4096, 64)}
"""Folded filters and samples that go through a convolution together: on a CPU so that its output stays in the cache."""


@register("model", "shallow_convnet")
class ShallowConvNet(nn.Module):
    """Shallow EEG network, of the FNE paper or of braindecode. Schirrmeister et al., 2017; Szegedi et al., 2019.

    With 64 channels, 256 samples in time and two outputs it has 112,162 parameters (paper) or 104,402 (braindecode).

    Args:
        shape: channels, samples in time.
        outputs: classes, or dimensions of the target.

    Raises:
        SettingError: data that are not recordings, or too short for the filters; a softmax over one output.
    """

    output: Literal["softmax", "sigmoid", "linear"]

    def __init__(
        self,
        shape: tuple[int, ...],
        outputs: int,
        *,
        variant: Annotated[
            Literal["paper", "braindecode"],
            Key("paper: a third convolution, then batch norm and a dense layer; braindecode: ShallowFBCSPNet"),
        ] = "paper",
        filters: Annotated[int, Key("filters of each convolution", unit="filters", ge=1)] = 40,
        filter_length: Annotated[int, Key("length of the temporal filters", unit="samples in time", ge=1)] = 25,
        pool_length: Annotated[int, Key("length of the mean pooling", unit="samples in time", ge=1)] = 75,
        pool_stride: Annotated[int, Key("step of the mean pooling", unit="samples in time", ge=1)] = 15,
        third_length: Annotated[int, Key("paper: length of the third filters", unit="pooled values", ge=1)] = 5,
        activation: Annotated[
            Literal["square_log", "elu"], Key("around the pooling: square before and logarithm after, or ELU before")
        ] = "square_log",
        dropout: Annotated[
            float | None, Key("before the last layer, in training; null: 0.5 (braindecode), 0 (paper)", ge=0, lt=1)
        ] = None,
        output: Annotated[
            Literal["softmax", "sigmoid", "linear"] | None,
            Key("how logits become predictions; null: sigmoid (paper), softmax (braindecode)"),
        ] = None,
    ) -> None:
        super().__init__()
        channels, times = _recording_shape(shape)
        paper = variant == "paper"
        self.output = output if output is not None else "sigmoid" if paper else "softmax"
        layers.check_output(self.output, outputs)
        self.pool_length, self.pool_stride = pool_length, pool_stride
        self.squared = activation == "square_log"
        convolved = times - filter_length + 1
        if convolved < 1:
            raise SettingError("model.filter_length", filter_length, f"at most the {times} samples in time")
        if convolved < pool_length:
            raise SettingError(
                "model.pool_length", pool_length,
                f"at most {convolved} for {times} samples in time and filter_length = {filter_length}",
            )  # fmt: skip
        pooled = (convolved - pool_length) // pool_stride + 1
        if paper and pooled < third_length:
            raise SettingError("model.third_length", third_length, f"at most the {pooled} values that pooling leaves")
        last = pooled - third_length + 1 if paper else pooled
        self.conv_time = nn.Conv2d(1, filters, (1, filter_length))
        self.conv_spatial = nn.Conv2d(filters, filters, (channels, 1), bias=paper)
        self.conv_third = nn.Conv1d(filters, filters, third_length) if paper else None
        self.norm = nn.BatchNorm1d(filters)
        self.dropout = nn.Dropout(dropout if dropout is not None else 0.0 if paper else 0.5)
        self.head = nn.Linear(filters * last, outputs)
        if not paper:
            for layer in (self.conv_time, self.conv_spatial, self.head):
                # braindecode's last layer is a convolution over what pooling leaves: its fans are a convolution's
                weight = layer.weight.data
                nn.init.xavier_uniform_(weight if weight.dim() > 2 else weight.view(outputs, filters, last))
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
        self.population_bytes = 4 * filters * (2 * pooled + (third_length + 3) * last)
        """Bytes for one individual and sample in `forward_population`, beside the blocks of fixed size."""

    def forward(self, x: Tensor) -> Tensor:
        """Return logits `[N, outputs]` of recordings `[N, channels, times]`.

        In training the first two convolutions are folded: the same values, in a fraction of the time.
        """
        if self.training:
            genes = {name: p.unsqueeze(0) for name, p in self.named_parameters() if name.startswith("conv_")}
            weight, bias = self.fold(genes)
            y = F.conv2d(_channels_last(x), weight[0].permute(0, 2, 1).unsqueeze(2), bias[0]).squeeze(2)
        else:
            y = self.conv_spatial(self.conv_time(x.unsqueeze(1))).squeeze(2)
        if self.conv_third is None:
            y = self.norm(y)
        y = F.avg_pool1d(y.square() if self.squared else F.elu(y), self.pool_length, self.pool_stride)
        y = y.clamp_min(SMALLEST_POWER).log() if self.squared else y
        if self.conv_third is not None:
            y = self.norm(F.elu(self.conv_third(y)))
        logits: Tensor = self.head(self.dropout(y.flatten(1)))
        return logits

    # -------------------------------------------------------------------------------------------- populations
    def fold(self, parameters: layers.Parameters) -> tuple[Tensor, Tensor]:
        """Return the filters `[P, G, K, C]` and offsets `[P, G]` of temporal and spatial convolution in one."""
        time = parameters["conv_time.weight"][:, :, 0, 0]  # [P, F, K]
        spatial = parameters["conv_spatial.weight"][..., 0]  # [P, G, F, C]
        weight = time.transpose(1, 2).unsqueeze(1) @ spatial
        bias = torch.einsum("pgfc,pf->pg", spatial, parameters["conv_time.bias"])
        if "conv_spatial.bias" in parameters:
            bias = bias + parameters["conv_spatial.bias"]
        return weight, bias

    def forward_population(self, parameters: layers.Parameters, x: Tensor) -> Tensor:
        """Return logits `[P, N, outputs]` of P individuals on the same recordings `[N, channels, times]`.

        Batch normalisation takes the module's statistics, or, where those are `None`, each individual's on `x`.
        """
        weight, bias = self.fold(parameters)
        normalise = self.conv_third is None  # between convolution and pooling
        fixed = self.norm.running_mean is not None
        if normalise and fixed:
            scale, shift = self._affine(parameters)
            weight, bias = weight * scale[..., None, None], bias * scale + shift
        pooled = self._pooled(weight, bias, x, None if not normalise or fixed else parameters)  # [P, N, L, G]
        if self.conv_third is not None:
            third = parameters["conv_third.weight"]
            windows = pooled.unfold(2, third.shape[-1], 1).flatten(3)  # [P, N, L', G * K']
            y = torch.matmul(windows.flatten(1, 2), third.flatten(2).transpose(1, 2))  # [P, N * L', G]
            y = F.elu_(y + parameters["conv_third.bias"].unsqueeze(1))
            scale, shift = self._affine(parameters, y)
            pooled = (y * scale.unsqueeze(1) + shift.unsqueeze(1)).view(*windows.shape[:3], -1)
        features = pooled.transpose(2, 3).flatten(2)  # as the head's genes lie: filters, then time
        return layers.linear(features, parameters["head.weight"], parameters["head.bias"])

    def _affine(self, parameters: layers.Parameters, y: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return batch normalisation as scale and shift `[P, G]`, from `y [P, rows, G]` without fixed statistics."""
        mean, variance = self.norm.running_mean, self.norm.running_var
        if mean is None or variance is None:
            assert y is not None
            if y.shape[1] == 1:
                raise ValueError(f"Expected more than 1 value per channel, as torch does; got {list(y.shape)}")
            variance, mean = torch.var_mean(y, dim=1, correction=0)
        scale = parameters["norm.weight"] * torch.rsqrt(variance + self.norm.eps)
        return scale, parameters["norm.bias"] - mean * scale

    def _pooled(self, weight: Tensor, bias: Tensor, x: Tensor, norm: layers.Parameters | None) -> Tensor:
        """Convolve, activate and pool: `[P, N, L, G]`; `norm`: normalise each individual's `x` in between."""
        population, filters = bias.shape
        channels, samples = BLOCK["cuda" if x.is_cuda else "cpu"]
        tile = samples if norm is None else len(x)
        chunk = max(1, channels * samples // (filters * tile))
        rows = []
        for n in range(0, len(x), tile):
            recordings = _channels_last(x[n : n + tile])
            parts = []
            for p in range(0, population, chunk):
                some = slice(p, p + chunk)
                stacked = weight[some].flatten(0, 1).transpose(1, 2).unsqueeze(2)  # channels last in memory already
                y = F.conv2d(recordings, stacked, bias[some].flatten()).squeeze(2).transpose(1, 2)  # [N, T', P*G]
                if norm is not None:
                    y = self._normalised(y, {name: norm[name][some] for name in ("norm.weight", "norm.bias")})
                y = self._pool(y.square_() if self.squared else F.elu_(y))
                parts.append(y.view(*y.shape[:2], -1, filters))
            rows.append(torch.cat(parts, dim=2))
        pooled = torch.cat(rows).permute(2, 0, 1, 3).contiguous()
        return pooled.clamp_min_(SMALLEST_POWER).log_() if self.squared else pooled

    def _normalised(self, y: Tensor, genes: layers.Parameters) -> Tensor:
        rows = y.reshape(-1, len(genes["norm.bias"]), y.shape[2] // len(genes["norm.bias"])).transpose(0, 1)
        scale, shift = self._affine(genes, rows)
        return y * scale.flatten() + shift.flatten()

    def _pool(self, y: Tensor) -> Tensor:
        """Return means over windows in time, `[N, T', B]` to `[N, L, B]`, from sums that the windows share."""
        segment = math.gcd(self.pool_length, self.pool_stride)
        windows = (y.shape[1] - self.pool_length) // self.pool_stride + 1
        segments = ((windows - 1) * self.pool_stride + self.pool_length) // segment
        sums = y[:, : segments * segment].reshape(len(y), segments, segment, -1).sum(2)
        return sums.unfold(1, self.pool_length // segment, self.pool_stride // segment).sum(-1) / self.pool_length


def _channels_last(x: Tensor) -> Tensor:
    """Return `[N, C, T]` as images `[N, C, 1, T]` with the channels last in memory."""
    return x.unsqueeze(2).contiguous(memory_format=torch.channels_last)


def _recording_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    if len(shape) != 2:
        raise SettingError(
            "model.name", "shallow_convnet",
            f"a model for data of shape {list(shape)}, such as mlp or logistic; shallow_convnet needs recordings "
            "[channels, times]",
        )  # fmt: skip
    return shape[0], shape[1]
