"""Radial-basis-function networks of many nodes at once: training, prediction, and their sorted average.

Shapes: `...` any number of leading axes (runs, nodes), `L` pairs of node and run, `K` nodes, `n` samples, `m` centres,
`d` variables. A network is `f(x) = sum_j a_j exp(-(|x - c_j| / s_j)^2) + b`.

Source: Xu, Jin, Du, Gu, "A federated data-driven evolutionary algorithm" (FDD-EA), sections II-B and III-C.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fne.evolution.real_coded import take
from fne.surrogates.kmeans import kmeans

Reading = Literal["workable", "literal"]
"""Reading of the paper's width and synchronisation, see `fit`."""
_NARROWEST = 1e-6
"""The least width. Centres nearer to each other than this, in a cube of side 2, count as the same centre."""
_ROWS = 64
"""Samples are padded to a multiple of this number: the last bits of a matrix product depend on the rows' number and
place in memory, and a run alone has other padding than a run among others."""
_ELEMENTS = 2**19
"""Number of products of two samples' features held at a time, as many as fit in the processor's cache."""


@dataclass(frozen=True)
class Network:
    """Networks with leading axes in common: `centres [..., m, d]`, `widths` and `weights [..., m]`, `bias [...]`.

    With several outputs the shapes are `weights [..., M, m]`, `bias [..., M]`.
    """

    centres: Tensor
    widths: Tensor
    weights: Tensor
    bias: Tensor


def fit(
    x: Tensor,
    y: Tensor,
    valid: Tensor,
    weights: Tensor,
    bias: Tensor,
    u: Tensor,
    *,
    epochs: int,
    lr: float,
    reading: Reading = "workable",
    received: Network | None = None,
) -> Network:
    """Train a network on each node's samples by incremental gradient descent from the given weights and bias.

    Each step takes one sample, in ascending y, at a constant rate, on `0.5 (f(x) - y)^2`. Under the reading

    - `workable`, k-means on the samples finds the centres anew and they are put in order of their norm, so that start
      weight j belongs to the j-th centre; a width is the distance from a centre to the nearest other centre;
    - `literal`, training continues from the whole received network, with its centres and widths; without one, centres
      are found as above, and all widths are sqrt(2) times the largest distance between two centres: eq. (6).

    Training can diverge: weights and bias are then infinite or NaN, and no error is raised.

    Args:
        x, y, valid: samples `[L, n, d]`, values `[L, n]`, and which rows count, bool `[L, n]`; others are never read.
        weights, bias: the start, `[L, m]` and `[L]`.
        u: uniform numbers `[L, starts, m]` for `kmeans`.
        epochs, lr: number of visits of each sample, and the learning rate.
        reading: see above.
        received: the network that `literal` continues from; `workable` does not read it.
    """
    padding = -x.shape[1] % _ROWS
    x, y, valid = F.pad(x, (0, 0, 0, padding)), F.pad(y, (0, padding)), F.pad(valid, (0, padding))
    if reading == "literal" and received is not None:
        centres, widths = received.centres, received.widths
    else:
        centres = by_norm(kmeans(x, valid, u))
        widths = nearest_widths(centres) if reading == "workable" else largest_widths(centres)
    w = _trained(centres, widths, x, y, valid, torch.cat([weights, bias.unsqueeze(-1)], dim=-1), epochs, lr)
    return Network(centres, widths, w[:, :-1], w[:, -1])


def fit_outputs(
    x: Tensor, y: Tensor, valid: Tensor, weights: Tensor, bias: Tensor, u: Tensor, *, epochs: int, lr: float
) -> Network:
    """Train networks of several outputs with centres and widths in common, each output as `fit` (workable) does.

    Args:
        x, y, valid: samples `[L, n, d]`, values `[L, n, M]`, and which rows count, bool `[L, n]`.
        weights, bias: the start, `[L, M, m]` and `[L, M]`; the returned weights and bias have the same shapes.
        u, epochs, lr: see `fit`.
    """
    outputs, padding = y.shape[2], -x.shape[1] % _ROWS
    x, y, valid = F.pad(x, (0, 0, 0, padding)), F.pad(y, (0, 0, 0, padding)), F.pad(valid, (0, padding))
    centres = by_norm(kmeans(x, valid, u))
    widths = nearest_widths(centres)

    def repeated(values: Tensor) -> Tensor:
        return values.repeat_interleave(outputs, dim=0)

    start = torch.cat([weights, bias.unsqueeze(-1)], dim=-1).flatten(0, 1)
    w = _trained(
        repeated(centres), repeated(widths), repeated(x), y.mT.flatten(0, 1), repeated(valid), start, epochs, lr
    ).view(len(x), outputs, -1)
    return Network(centres, widths, w[..., :-1], w[..., -1])


def predict_outputs(network: Network, x: Tensor) -> Tensor:
    """Return the predictions `[..., n, M]` of networks of several outputs at points `[..., n, d]`."""
    waves = _gaussians(_left(network.centres, network.widths), _right(x))
    return (torch.matmul(network.weights, waves) + network.bias.unsqueeze(-1)).mT


def ordered_outputs(network: Network) -> Network:
    """Return networks `[B]` of several outputs with centres, widths and weights in order of the centres' norm."""
    order = network.centres.square().sum(dim=-1).argsort(dim=-1, stable=True)
    weights = network.weights.gather(-1, order.unsqueeze(-2).expand_as(network.weights))
    return Network(take(network.centres, order), network.widths.gather(-1, order), weights, network.bias)


def _trained(
    centres: Tensor, widths: Tensor, x: Tensor, y: Tensor, valid: Tensor, start: Tensor, epochs: int, lr: float
) -> Tensor:
    """Return weights and bias `[L, m + 1]` after training from `start` on samples in ascending order of their value."""
    order = y.where(valid, math.inf).argsort(dim=1, stable=True)
    x, y, valid = take(x, order), y.gather(1, order), valid.gather(1, order)
    features = basis(centres, widths, x.where(valid.unsqueeze(-1), 0))
    features = torch.cat([features, torch.ones_like(y).unsqueeze(1)], dim=1).mul_(valid.unsqueeze(1))
    return descend(features, y.where(valid, 0), start, epochs=epochs, lr=lr)


def descend(features: Tensor, y: Tensor, start: Tensor, *, epochs: int, lr: float) -> Tensor:
    """Return the weights `[L, m]` after gradient descent over the columns of `features [L, m, n]` with `y [L, n]`.

    The order of the columns is fixed, so each epoch is the same affine map: its errors r solve
    `(I + lr strictly_lower(F^T F)) r = y - F^T w`, and the weights end at `w + lr F r`. A column of zeros with y = 0
    changes nothing.

    Args:
        features: F, a column for each sample.
        y: the values.
        start: weights before the first epoch, `[L, m]`.
        epochs, lr: number of visits of each column, and the learning rate.
    """
    size = max(1, _ELEMENTS // features.shape[2] ** 2)
    parts = (slice(i, i + size) for i in range(0, len(y), size))
    return torch.cat([_descend(features[part], y[part], start[part], epochs, lr) for part in parts])


def _descend(features: Tensor, y: Tensor, w: Tensor, epochs: int, lr: float) -> Tensor:
    """Do what `descend` does, all nodes at once."""
    lower = torch.bmm(features.mT, features).mul_(lr).tril_(-1)
    right = torch.cat([features, y.unsqueeze(1)], dim=1).mT
    errors = torch.linalg.solve_triangular(lower, right, upper=False, unitriangular=True)
    change = torch.bmm(features, errors).mul_(lr)
    matrix, shift = change[..., :-1].contiguous(), change[..., -1]
    for _ in range(epochs):
        w = w - (matrix * w.unsqueeze(1)).sum(dim=-1) + shift
    return w


def by_norm(centres: Tensor) -> Tensor:
    """Return centres `[..., m, d]` in ascending order of their squared norm, eq. (11); ties keep their order."""
    order = centres.square().sum(dim=-1).argsort(dim=-1, stable=True)
    return take(centres, order)


def nearest_widths(centres: Tensor) -> Tensor:
    """Return each centre's distance to the nearest other centre, `[..., m]`; 1 where there is no other centre."""
    apart = _distances(centres)
    apart = apart.where(apart > _NARROWEST, math.inf).amin(dim=-1)
    return apart.where(apart < math.inf, 1.0)


def largest_widths(centres: Tensor) -> Tensor:
    """Return sqrt(2) times the largest distance between two centres, for each, `[..., m]`: eq. (6) has a factor 2."""
    largest = _distances(centres).amax(dim=(-2, -1)).clamp(min=_NARROWEST)
    return (math.sqrt(2) * largest).unsqueeze(-1).repeat_interleave(centres.shape[-2], dim=-1)


def _distances(centres: Tensor) -> Tensor:
    """Return the distances of all pairs, `[..., m, m]`, from differences, which is exact for near centres, too."""
    return torch.cdist(centres, centres, compute_mode="donot_use_mm_for_euclid_dist")


def basis(centres: Tensor, widths: Tensor, x: Tensor) -> Tensor:
    """Return `exp(-(|x_i - c_j| / s_j)^2)` of points `[..., n, d]`, `[..., m, n]`."""
    return _gaussians(_left(centres, widths), _right(x))


def predictor(network: Network) -> Callable[[Tensor], Tensor]:
    """Return a function from points `[..., n, d]` to predictions `[..., n]`, with the network prepared once."""
    left, weights, bias = _left(network.centres, network.widths), network.weights.unsqueeze(-2), network.bias[..., None]

    def predict_at(x: Tensor) -> Tensor:
        return torch.matmul(weights, _gaussians(left, _right(x))).squeeze(-2) + bias

    return predict_at


def predict(network: Network, x: Tensor) -> Tensor:
    """Return the predictions `[..., n]` at points `[..., n, d]`; leading axes are broadcast."""
    return predictor(network)(x)


def sorted_average(network: Network, shares: Tensor) -> Network:
    """Return the weighted average of networks `[..., K]`, each with its centres in order of their norm. Algorithm 2.

    Args:
        network: networks with leading axes `[..., K]`; a network without a share is never read.
        shares: the weights p_k `[..., K]`, of sum 1; a node that is left out has 0.
    """
    ordered = _ordered(network)

    def mean(values: Tensor) -> Tensor:  # eq. (12)
        p = shares.to(values).view(*shares.shape, *[1] * (values.ndim - shares.ndim))
        return (p * values).where(p > 0, 0).sum(dim=shares.ndim - 1)

    averaged = Network(mean(ordered.centres), mean(ordered.widths), mean(ordered.weights), mean(network.bias))
    return _ordered(averaged)


def _ordered(network: Network) -> Network:
    """Return the network with centres, widths and weights in ascending order of the centres' squared norm. Eq. (11)."""
    order = network.centres.square().sum(dim=-1).argsort(dim=-1, stable=True)
    centres, widths, weights = take(network.centres, order), network.widths.gather(-1, order), network.weights
    return Network(centres, widths, weights.gather(-1, order), network.bias)


def _left(centres: Tensor, widths: Tensor) -> Tensor:
    """Return the factor `[..., m, d + 2]` whose product with `_right(x)` is `-(|x - c| / s)^2`."""
    narrow = widths.square().reciprocal().unsqueeze(-1)
    return torch.cat([2 * centres * narrow, -narrow, -centres.square().sum(dim=-1, keepdim=True) * narrow], dim=-1)


def _right(x: Tensor) -> Tensor:
    """Return `[..., d + 2, n]`: the points, their squares and ones."""
    squares = x.square().sum(dim=-1).unsqueeze(-2)
    return torch.cat([x.mT, squares, torch.ones_like(squares)], dim=-2)


def _gaussians(left: Tensor, right: Tensor) -> Tensor:
    """Return the exponential of the product `[..., m, n]`.

    Rounding can make the exponent positive. Underflow would be a hundred times slower, and e^-80 is as good as 0.
    """
    return torch.matmul(left, right).clamp_(min=-80, max=0).exp_()
