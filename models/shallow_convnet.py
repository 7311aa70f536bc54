"""Shallow convolutional network for EEG, and its fast form, which folds time and space into one convolution.

Schirrmeister et al., "Deep learning with convolutional neural networks for EEG decoding and visualization", 2017
(ShallowFBCSPNet of braindecode: `variant=braindecode`), and the network of Szegedi, Kiss and Horváth, "Evolutionary
federated learning on EEG-data", ITAT 2019, section 3.2, which is made from it (`variant=paper`).

Deviations
- The paper describes three convolutions, pooling after the second, batch normalisation on the output of the third, and
  a dense output layer with sigmoids. It gives neither numbers and lengths of filters, nor square, logarithm and
  dropout. The reading here takes the former from ShallowFBCSPNet, with its square and logarithm around the pooling
  (`activation=elu`: an ELU before it instead); the third convolution is 5 pooled values long with an ELU; no dropout.
- The paper's two outputs are sigmoids trained with categorical cross-entropy: see `fne.evolution.losses`.
- Initial values: braindecode's are Xavier's with zero biases; the paper variant keeps torch's random ones, since
  multiplicative mutation can never change a zero (batch norm's offsets do start at zero, and stay there under it).

Between the temporal and the spatial convolution nothing is non-linear, so both are one convolution with the filters
`W[g, c, k] = sum_f S[g, f, c] T[f, k]`, into which batch normalisation with fixed statistics folds as well. Genes stay
unfolded: crossover and mutation act on `T` and `S`. Antithetic pairs around one centre, perturbed by matrices of rank
one, share even more: see `ShallowConvNet.forward_rank_one`. Shapes: `G` filters, `C` channels, `K` length of a filter,
`L` pooled values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fne.config.registry import Key, register
from fne.core.errors import SettingError
from fne.models import image_layers as layers
from fne.models import recording_layers as recordings

SMALLEST_POWER = 1e-6
"""Lower bound of the pooled squares before their logarithm, as in braindecode."""


@register("model", "shallow_convnet")
class ShallowConvNet(nn.Module):
    """Shallow EEG network, of the FNE paper or of braindecode. Schirrmeister et al., 2017; Szegedi et al., 2019.

    With 64 channels, 256 samples in time and two outputs it has 112,162 parameters (paper) or 104,402 (braindecode).

    Args:
        shape: channels, samples in time.
        outputs: classes, or dimensions of the target.

    Raises:
        SettingError: data other than recordings, or too short for the filters; a softmax over one output.
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
        pool_stride: Annotated[int, Key("step of the mean pooling", unit="samples in time", ge=1, le=1000000)] = 15,
        third_length: Annotated[
            int, Key("paper: length of the third filters", unit="pooled values", ge=1, le=1000000)
        ] = 5,
        activation: Annotated[
            Literal["square_log", "elu"],
            Key("activation around the pooling: square before and logarithm after, or ELU before"),
        ] = "square_log",
        dropout: Annotated[
            float | None,
            Key("dropout before the last layer in training; null: 0.5 (braindecode), 0 (paper)", ge=0, lt=1),
        ] = None,
        output: Annotated[
            Literal["softmax", "sigmoid", "linear"] | None,
            Key("how logits become predictions; null: sigmoid (paper), softmax (braindecode)"),
        ] = None,
    ) -> None:
        super().__init__()
        channels, times = recordings.recording_shape("shallow_convnet", shape)
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
            left = f"at most the {pooled} values that pooling leaves, with model.pool_stride = {pool_stride}"
            raise SettingError("model.third_length", third_length, left)
        last = pooled - third_length + 1 if paper else pooled
        self.conv_time = nn.Conv2d(1, filters, (1, filter_length))
        self.conv_spatial = nn.Conv2d(filters, filters, (channels, 1), bias=paper)
        self.conv_third = nn.Conv1d(filters, filters, third_length) if paper else None
        self.norm = nn.BatchNorm1d(filters)
        self.dropout = nn.Dropout(dropout if dropout is not None else 0.0 if paper else 0.5)
        self.head = nn.Linear(filters * last, outputs)
        if not paper:
            for layer in (self.conv_time, self.conv_spatial, self.head):
                # braindecode's last layer is a convolution over the pooled values: its fans are a convolution's
                weight = layer.weight.data
                nn.init.xavier_uniform_(weight if weight.dim() > 2 else weight.view(outputs, filters, last))
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
        self.population_bytes = 4 * filters * (2 * pooled + (third_length + 3) * last)
        """Bytes for one individual and sample in `forward_population`, beside the blocks of fixed size."""

    def forward(self, x: Tensor) -> Tensor:
        """Return logits `[N, outputs]` of recordings `[N, channels, times]`.

        In training the first two convolutions are folded, for the same values in a fraction of the time.
        """
        if self.training:
            genes = {name: p.unsqueeze(0) for name, p in self.named_parameters() if name.startswith("conv_")}
            weight, bias = self.fold(genes)
            y = F.conv2d(recordings.channels_last(x), weight[0].permute(0, 2, 1).unsqueeze(2), bias[0]).squeeze(2)
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
        """Return filters `[P, G, K, C]` and offsets `[P, G]` that join the temporal and the spatial convolution."""
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
        return self._behind(self._pooled(weight, bias, x, None if not normalise or fixed else parameters), parameters)

    def forward_rank_one(
        self, parameters: layers.Parameters, factors: Mapping[str, tuple[Tensor, ...]], x: Tensor
    ) -> Tensor:
        """Return logits `[2 p, N, outputs]` of p antithetic pairs around one centre, first the p with plus.

        With `T + c d'` and `S + a b'` in the first two convolutions (minus: both signs change), their composition is
        `S T * x`, which all individuals share, `+ a (b T * x) + d * (S c) x + a (d * (b c) x)`. The second term needs
        one filter, the others are G + 1 mixtures of the channels, which `d` filters in time. Only the two middle terms
        change their sign within a pair, so each term is computed once for both. Batch normalisation between convolution
        and pooling takes the module's statistics.

        Args:
            parameters: of the 2 p individuals; those of the first two convolutions are not read.
            factors: centre and perturbations of each leaf by name, see `fne.evolution.rank_one.RankOne.pairs`.
            x: recordings `[N, channels, times]`, the same for all individuals.
        """
        affine = self._affine(parameters) if self.conv_third is None else None
        return self._behind(self._pooled_pairs(factors, affine, x), parameters)

    def _behind(self, pooled: Tensor, parameters: layers.Parameters) -> Tensor:
        """Return logits `[P, N, outputs]` from the pooled values `[P, N, L, G]`."""
        if self.conv_third is not None:
            third = parameters["conv_third.weight"]
            windows = pooled.unfold(2, third.shape[-1], 1).flatten(3)  # [P, N, L', G * K']
            y = torch.matmul(windows.flatten(1, 2), third.flatten(2).transpose(1, 2))  # [P, N * L', G]
            y = F.elu_(y + parameters["conv_third.bias"].unsqueeze(1))
            scale, shift = self._affine(parameters, y)
            pooled = (y * scale.unsqueeze(1) + shift.unsqueeze(1)).view(*windows.shape[:3], -1)
        features = pooled.transpose(2, 3).flatten(2)  # as the head's genes lie: filters, then time
        return layers.linear(features, parameters["head.weight"], parameters["head.bias"])

    def _affine(self, parameters: layers.Parameters, y: Tensor | None = None) -> recordings.Pair:
        """Return batch normalisation as scale and shift `[P, G]`, from `y [P, rows, G]` without fixed statistics."""
        found = None
        if self.norm.running_mean is None:
            assert y is not None
            found = recordings.statistics(y)
        return recordings.affine(self.norm, (parameters["norm.weight"], parameters["norm.bias"]), found)

    def _pooled(self, weight: Tensor, bias: Tensor, x: Tensor, norm: layers.Parameters | None) -> Tensor:
        """Convolve, activate and pool: `[P, N, L, G]`; with `norm`, normalise each individual's values in between."""
        population, filters = bias.shape

        def forward(some: slice, tile: Tensor) -> Tensor:
            y = _convolved(tile, weight[some].flatten(0, 1), bias[some].flatten())  # [N, T', P*G]
            if norm is not None:
                y = recordings.normalised(self.norm, (norm["norm.weight"][some], norm["norm.bias"][some]), y)
            return self._energies(y.reshape(*y.shape[:2], -1, filters))

        return self._logarithms(recordings.blockwise(forward, x, population, filters, whole=norm is not None))

    def _pooled_pairs(
        self, factors: Mapping[str, tuple[Tensor, ...]], affine: tuple[Tensor, Tensor] | None, x: Tensor
    ) -> Tensor:
        """Return the pooled values of pairs, `[2 p, N, L, G]`; `affine`: scales and shifts `[2 p, G]` in between."""
        weight, bias = self.fold({name: value[0].unsqueeze(0) for name, value in factors.items()})
        time, c, d = (value.flatten(1) for value in factors["conv_time.weight"])  # [F, K], [p, F], [p, K]
        space, a, b = factors["conv_spatial.weight"]
        space, b = space[..., 0], b[..., 0]  # [G, F, C], [p, F, C]
        direct = torch.einsum("pfc,fk->pkc", b, time)
        mixtures, both = torch.einsum("gfc,pf->pgc", space, c), torch.einsum("pfc,pf->pc", b, c).unsqueeze(1)
        # The offsets of the temporal filters go through the spatial ones likewise.
        offset, change = factors["conv_time.bias"]
        through, offsets = b.sum(2), change @ space.sum(2).T
        if "conv_spatial.bias" in factors:
            offsets = offsets + factors["conv_spatial.bias"][1]

        pairs, filters = a.shape
        channels, samples = recordings.BLOCK["cuda" if x.is_cuda else "cpu"]
        chunk = max(1, channels // filters)
        rows = []
        for n in range(0, len(x), samples):
            tile = recordings.channels_last(x[n : n + samples])
            shared = _convolved(tile, weight[0], bias[0]).unsqueeze(2)  # [N, T', 1, G]
            single = _convolved(tile, direct, through @ offset).unsqueeze(3)  # [N, T', p, 1]
            double = _mixed(tile, both, d, (through * change).sum(1))  # [N, T', p, 1]
            halves: tuple[list[Tensor], list[Tensor]] = ([], [])
            for p in range(0, pairs, chunk):
                some = slice(p, p + chunk)
                odd = _mixed(tile, mixtures[some], d[some], offsets[some])  # [N, T', p', G]
                odd = odd.addcmul_(a[some], single[:, :, some])
                even = torch.addcmul(shared, a[some], double[:, :, some])
                for sign, y in enumerate((even + odd, even.sub_(odd))):
                    if affine is not None:
                        scale, shift = (value.view(2, pairs, filters)[sign, some] for value in affine)
                        y = torch.addcmul(shift, y, scale)
                    halves[sign].append(self._energies(y))
            rows.append(torch.cat([*halves[0], *halves[1]], dim=2))
        return self._logarithms(recordings.joined(rows))

    def _energies(self, y: Tensor) -> Tensor:
        """Activate and pool `[N, T', P, G]`, which is overwritten: `[N, L, P, G]`."""
        pooled = self._pool((y.square_() if self.squared else F.elu_(y)).flatten(2))
        return pooled.view(*pooled.shape[:2], *y.shape[2:])

    def _logarithms(self, pooled: Tensor) -> Tensor:
        """Take the logarithms of pooled squares in place; values that are not squared stay unchanged."""
        return pooled.clamp_min_(SMALLEST_POWER).log_() if self.squared else pooled

    def _pool(self, y: Tensor) -> Tensor:
        """Return means over windows in time, `[N, T', B]` to `[N, L, B]`, from sums that the windows share."""
        segment = math.gcd(self.pool_length, self.pool_stride)
        windows = (y.shape[1] - self.pool_length) // self.pool_stride + 1
        segments = ((windows - 1) * self.pool_stride + self.pool_length) // segment
        sums = y[:, : segments * segment].reshape(len(y), segments, segment, -1).sum(2)
        return sums.unfold(1, self.pool_length // segment, self.pool_stride // segment).sum(-1) / self.pool_length


def _convolved(x: Tensor, filters: Tensor, offsets: Tensor) -> Tensor:
    """Convolve `x [N, C, 1, T]` with filters `[B, K, C]` and offsets `[B]`: `[N, T', B]`."""
    stacked = filters.transpose(1, 2).unsqueeze(2)  # already channels last in memory
    return F.conv2d(x, stacked, offsets).squeeze(2).transpose(1, 2)


def _mixed(x: Tensor, mixtures: Tensor, filters: Tensor, offsets: Tensor) -> Tensor:
    """Mix channels `[p, M, C]`, filter the result in time `[p, K]`, add offsets `[p, M]`: `[N, T', p, M]`."""
    mixed = F.conv2d(x, mixtures.flatten(0, 1)[..., None, None])
    each = filters.repeat_interleave(mixtures.shape[1], 0)[:, None, None]
    y = F.conv2d(mixed, each, offsets.flatten(), groups=len(each))
    return y.squeeze(2).transpose(1, 2).view(len(y), -1, *mixtures.shape[:2])
