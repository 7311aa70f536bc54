"""The cubic radial basis function with a linear tail: a central surrogate that goes through its samples.

    s(x) = sum_j w_j |x - x_j|^3 + c + b'x,   sum_j w_j = 0,   sum_j w_j x_j = 0

Shapes: `B` runs, `n` samples, `c` points, `d` variables, `M` outputs, each with weights of its own. A small ridge on
the kernel keeps the equations solvable where samples are close to each other or the same. The cubic function has no
length scale to fit, which is its advantage over a Gaussian with so few samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

RIDGE = 1e-8
FLOOR = 1e-12
"""Ridge of the linear tail; it matters only where there are fewer than d + 1 samples, or all are in a plane."""


def distances(a: Tensor, b: Tensor) -> Tensor:
    """Return Euclidean distances `[..., m, n]` of `a [..., m, d]` to `b [..., n, d]`, by one matrix product."""
    return torch.cdist(a, b, compute_mode="use_mm_for_euclid_dist")


@dataclass(frozen=True)
class Cubic:
    """A cubic interpolant; all tensors have the same leading axes, none or `[B]`.

    Args:
        centres: the samples, `[..., n, d]`.
        weights: weights of the samples, `[..., n, M]`, 0 where a sample is not valid.
        constant: constant of the tail, `[..., M]`.
        slopes: slopes of the tail, `[..., d, M]`.
    """

    centres: Tensor
    weights: Tensor
    constant: Tensor
    slopes: Tensor

    def predict(self, x: Tensor) -> Tensor:
        """Return the values `[..., c, M]` at `x [..., c, d]`."""
        squares = self.centres.square().sum(dim=-1).unsqueeze(-2) + x.square().sum(dim=-1, keepdim=True)
        squares = squares.sub_(2 * x @ self.centres.mT).clamp_(min=0)
        return squares.sqrt().mul_(squares) @ self.weights + x @ self.slopes + self.constant.unsqueeze(-2)

    def predict_from(self, x: Tensor, r: Tensor) -> Tensor:
        """Return the values `[..., c, M]` at `x [..., c, d]`, with known distances `r [..., c, n]` to the centres."""
        return r.pow(3) @ self.weights + x @ self.slopes + self.constant.unsqueeze(-2)


def fit(x: Tensor, y: Tensor, valid: Tensor) -> Cubic:
    """Return the interpolant of the valid samples of each run; without valid samples it is 0.

    Args:
        x: samples `[B, n, d]`, of about the size of the cube [-1, 1]^d, for which the ridge is chosen.
        y: values `[B, n, M]`.
        valid: bool `[B, n]`; other rows have no influence, whatever they hold.
    """
    runs, count, dim = x.shape
    x = x.where(valid.unsqueeze(-1), 0.0)
    mask = valid.to(x.dtype)
    tail = torch.cat([mask.unsqueeze(-1), x], dim=-1)
    kernel = distances(x, x).pow(3) * mask.unsqueeze(1) * mask.unsqueeze(2)
    kernel.diagonal(dim1=1, dim2=2).copy_(torch.where(valid, RIDGE, 1.0))  # others: weight 0
    system = x.new_zeros(runs, count + dim + 1, count + dim + 1)
    system[:, :count, :count] = kernel
    system[:, :count, count:] = tail
    system[:, count:, :count] = tail.mT
    system[:, count:, count:].diagonal(dim1=1, dim2=2).fill_(-FLOOR)
    values = torch.cat([y.where(valid.unsqueeze(-1), 0.0), y.new_zeros(runs, dim + 1, y.shape[2])], dim=1)
    weights, constant, slopes = torch.linalg.solve_ex(system, values).result.split([count, 1, dim], dim=1)
    return Cubic(x, weights, constant.squeeze(1), slopes)
