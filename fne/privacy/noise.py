"""The Gaussian mechanism on a grid: clip a vector, round it to whole numbers of steps, add discrete Gaussian noise.

The step is a power of two that clip and noise alone decide. It is the smallest one for which every sent value is exact
in float32 and in the ring of secure sums, so no rounding of a value or of a sum depends on the value before the noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fne.core.errors import SettingError
from fne.privacy.draws import LEAST_STEPS, Draws

_EXACT = 2**24
"""Whole numbers up to this one are exact in float32."""
_REACH = 13
"""Largest size of noise, in standard deviations."""
_FINEST = 2.0**-32
"""Least step: words of secure sums have 32 bits behind the binary point."""
_INWARD = 2.0**-20
"""Share by which a vector is made shorter than the clip, because rounding seldom lengthens a vector by more."""
LEAST_NOISE = 2.0**-19
"""Least standard deviation of noise, in units of the clip: 1.9e-6, with which no account would be meaningful."""


def step_of(multiplier: float, most: float) -> float:
    """Return the step of the grid, a power of two.

    Args:
        multiplier: standard deviation of the noise over `most`, above 0.
        most: largest L2 norm of the vector that noise is added to.

    Raises:
        SettingError: the noise is so small, or so large, that no such grid exists.
    """
    least = max(LEAST_NOISE, 2 * LEAST_STEPS * _FINEST / most)
    if not multiplier >= least:
        raise SettingError("noise", multiplier, f"0, or at least {least:.3g} for a clip of {most:g}")
    reach = (1 + _REACH * multiplier) * most
    if not reach < 2.0**127:
        raise SettingError("noise", multiplier, f"so small that, times {most:g}, it stays within float32")
    return max(2.0 ** math.frexp(reach)[1] / _EXACT, _FINEST)


def whole(vectors: Tensor, most: float, step: float) -> Tensor:
    """Return vectors `[.., D]` clipped and as whole numbers of steps, float64, none of them longer than `most`.

    Numbers are rounded to the nearest; a vector that rounding lengthens beyond `most` is first scaled down a little. A
    vector with a non-finite number becomes zero.

    Args:
        vectors: vectors of any type and norm.
        most: largest L2 norm.
        step: step of the grid.
    """
    rows = (vectors.double() / step).view(-1, vectors.shape[-1])
    limit, norms = most / step, torch.linalg.vector_norm(rows, dim=1)
    rows[~norms.isfinite()] = 0.0
    rows *= torch.where(norms > limit, limit / norms * (1 - _INWARD), 1.0).nan_to_num().unsqueeze(1)
    rounded, inward = rows.round(), _INWARD
    while len(long := (torch.einsum("nd,nd->n", rounded, rounded) > limit**2).nonzero()[:, 0]):
        rounded[long] = (rows[long] * max(1 - inward, 0.0)).round()
        inward *= 2
    return rounded.view(vectors.shape)


def noised(vector: Tensor, multiplier: float, most: float, draws: Callable[[Tensor], Draws] | None) -> Tensor:
    """Return a vector with discrete Gaussian noise of standard deviation `multiplier * most` on each coordinate.

    Args:
        vector: float32 `[D]`, finite, of an L2 norm of at most `most`.
        multiplier: multiplier of the noise; 0 adds no noise and leaves the vector as it is.
        most: largest L2 norm.
        draws: returns the node's private stream for noise on this vector of whole numbers: a different stream for
            another vector, so that the difference of two answers always has noise.

    Raises:
        SettingError: see `step_of`.
    """
    if not multiplier >= 0:
        raise SettingError("noise", multiplier, "a number of at least 0")
    if multiplier == 0:
        return vector
    if draws is None:
        raise ValueError("noise needs the node's private draws")
    step = step_of(multiplier, most)
    told = whole(vector, most, step)
    noise = draws(told).gaussian(told.numel(), multiplier * most / step)
    return ((told + torch.from_numpy(noise)) * step).float()
