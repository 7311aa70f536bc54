"""Exact reduction of a node's samples to the squared errors of a linear model, up to rounding, by QR decomposition.

With predictions `A g`, linear in the genes `g [D]`, and targets `y`, the QR decomposition of `[A, y]` gives a triangle
`R` with `|A g - y|^2 = |R (g, -1)|^2` for every `g`, of at most `D + 1` rows for any number of samples. The
decomposition is in float64, and differences are taken before squares, so no digits are lost.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fne.core.dataset import Samples
from fne.core.errors import RunError
from fne.evolution.evaluate import Evaluator

MOST_GENES = 1000
"""A node keeps `outputs * (D + 1)**2` numbers; larger models have too few samples to gain from the reduction."""

LOSSES = ("mse", "nmse")


def reduced(evaluator: Evaluator, samples: Samples) -> Tensor:
    """Return the triangles of a node's samples, float64 `[outputs, R, D + 1]` with `R` at most `D + 1`.

    The columns of `A` are the model's outputs for unit genes, so the reduction serves any model that is linear in its
    genes.

    Raises:
        RunError: the model is not linear in its genes, or too large.
    """
    size = evaluator.layout.size
    if size > MOST_GENES:
        raise RunError(f"exact_reduction: this model has {size} genes, at most {MOST_GENES} can be reduced")
    probe = torch.linspace(-1, 1, size)
    units = torch.cat([torch.eye(size), torch.zeros(1, size), probe.unsqueeze(0)])
    *columns, origin, probed = evaluator.logits(units, samples.x).double().cpu().unbind()
    a = torch.stack(columns, dim=-1).transpose(0, 1)  # [outputs, N, D]
    expected = (a @ probe.double()).t()
    scale = a.abs().amax().clamp_min(1.0) * size
    if bool((origin != 0).any()) or float((probed - expected).abs().max()) > 1e-5 * float(scale):
        raise RunError("exact_reduction: this model's outputs are not linear in its genes; set it to false")
    y = samples.y.double().cpu().t().unsqueeze(-1)
    triangles: Tensor = torch.linalg.qr(torch.cat([a, y], dim=-1), mode="r").R
    return triangles


def squared_errors(triangles: Tensor, population: Tensor) -> Tensor:
    """Return the squared errors summed over the samples, float64 `[P, outputs]`, of a population `[P, D]`."""
    outputs, rows, columns = triangles.shape
    flat = triangles.flatten(0, 1)
    residuals = population.double() @ flat[:, : columns - 1].t() - flat[:, columns - 1]
    return residuals.square_().view(-1, outputs, rows).sum(dim=2)
