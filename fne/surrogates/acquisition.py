"""Acquisition functions of local models and their average: lower confidence bounds that rank points for a query.

Shapes: `...` any number of leading axes (runs), `K` nodes, `n` points.

Source: Xu, Jin, Du, Gu, "A federated data-driven evolutionary algorithm" (FDD-EA), sections II-C, III-D and IV-E.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

Kind = Literal["f", "l", "g"]
"""Prediction that is the mean: of both together (F-LCB), of the local models (L-LCB) or of their average (G-LCB)."""


def lcb(kind: Kind, local: Tensor, fed: Tensor, shares: Tensor, mu: float | Tensor) -> Tensor:
    """Return the lower confidence bound of each point, `[..., n]`. Eq. (8).

    Args:
        kind: which mean to take, see `Kind`.
        local: predictions of the nodes' models `[..., K, n]`; predictions of nodes without a share are never read.
        fed: predictions of the averaged model `[..., n]`, eq. (15).
        shares: the nodes' weights p_k `[..., K]`, of sum 1; a node that is left out has 0.
        mu: number of standard deviations to subtract; a tensor is broadcast.
    """
    taken = (shares > 0).unsqueeze(-1)
    local = local.where(taken, 0)
    nodes = taken.sum(dim=-2)
    own = (shares.to(local).unsqueeze(-2) @ local).squeeze(-2)  # eq. (14)
    mean = {"f": (own + fed) / 2, "l": own, "g": fed}[kind]  # eq. (13)
    squares = (local - mean.unsqueeze(-2)).square_().where(taken, 0).sum(dim=-2)
    if kind == "f":  # eq. (16): K + 1 deviations, divided by K
        squares, free = squares + (fed - mean).square(), nodes
    else:  # eq. (20); undefined for one node alone: divided by 1
        free = (nodes - 1).clamp(min=1)
    return mean - mu * (squares / free).sqrt()


def lcb_of_sums(first: Tensor, second: Tensor, count: Tensor, fed: Tensor | None, mu: float) -> Tensor:
    """Return the lower confidence bound from sums over nodes: nobody needs to know what a single node predicts.

    The bound is F-LCB with equal weights, from two sums of `d_i = y_i - fed`: the mean is `fed + D/2` with `D = S1/K`,
    and the variance about it `(S2 - D S1 + (K + 1) D^2 / 4) / K`. A variance that rounding makes negative counts as 0.

    Args:
        first: sum of `d_i` over the nodes; S1.
        second: sum of the squares of `d_i`, of the same shape; S2.
        count: number of nodes in the sums, broadcast; K.
        fed: prediction of the averaged model; `None` without one: `d_i` are then the nodes' predictions themselves, and
            their mean takes its place.
        mu: number of standard deviations to subtract.
    """
    mean = first / count
    if fed is None:
        return mean - mu * (second / count - mean.square()).clamp(min=0).sqrt()
    variance = (second - mean * first + (count + 1) * mean.square() / 4) / count
    return fed + mean / 2 - mu * variance.clamp(min=0).sqrt()


def lcb_of_masked(masked: Tensor, fed: Tensor | None, mu: float, *, normalise: bool) -> Tensor:
    """Return FDD-EA-DH's bound of masked predictions as printed: masks cancel in the mean, not in the deviation.

    Source: Liu, Yan, Ligeti, Jin, "A secure federated data-driven evolutionary multi-objective optimization algorithm",
    eqs. (1) and (4).

    Args:
        masked: predictions of the nodes under their masks, `[K, ..., n, M]`.
        fed: predictions of the averaged model `[..., n, M]`; `None`: the mean of the nodes.
        mu: number of standard deviations to subtract; t.
        normalise: whether to scale mean and deviation of each objective to [0, 1] over the points, eq. (4).
    """
    own = masked.mean(dim=0)
    mean = own if fed is None else (own + fed) / 2
    squares = (masked - mean).square().sum(dim=0)
    if fed is not None:
        squares = squares + (fed - mean).square()
    deviation = (squares / len(masked)).sqrt()
    if normalise:
        mean, deviation = (_to_unit(values) for values in (mean, deviation))
    return mean - mu * deviation


def _to_unit(values: Tensor) -> Tensor:
    low, high = values.amin(dim=-2, keepdim=True), values.amax(dim=-2, keepdim=True)
    return (values - low) / (high - low).where(high > low, 1.0)
