"""Acquisition functions of local models and their average: where the expensive objective is worth a query.

Shapes: `...` any number of leading axes (runs), `K` nodes, `n` points.

Source: Xu, Jin, Du, Gu, "A federated data-driven evolutionary algorithm" (FDD-EA), sections II-C, III-D and IV-E.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

Kind = Literal["f", "l", "g"]
"""Whose prediction is the mean: both together (F-LCB), the local models (L-LCB) or their average network (G-LCB)."""


def lcb(kind: Kind, local: Tensor, fed: Tensor, shares: Tensor, mu: float | Tensor) -> Tensor:
    """Return the lower confidence bound of each point, `[..., n]`. Eq. (8).

    Args:
        kind: the mean that is taken, see `Kind`.
        local: predictions of the nodes' models `[..., K, n]`; those of nodes without a share are never read.
        fed: predictions of the averaged model `[..., n]`, eq. (15).
        shares: the nodes' weights p_k `[..., K]`, of sum 1; a node that is out has 0.
        mu: how many standard deviations; a tensor is broadcast.
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
