"""Augmentation of training samples: random shifts of images and recordings, which add variety to few samples."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def random_shift(x: Tensor, reach: int, generator: torch.Generator) -> Tensor:
    """Return each input shifted by its own draw, uniform from -reach to reach along each axis, and padded with zeros.

    Args:
        x: images `[N, C, H, W]`, shifted along height and width, or recordings `[N, C, T]`, shifted in time.
        reach: largest shift, in pixels or samples in time.
        generator: on the CPU, so that shifts are the same on every device.
    """
    steps = torch.randint(2 * reach + 1, (len(x), x.dim() - 2), generator=generator).to(x.device)
    for axis, step in enumerate(steps.t(), start=2):
        places = torch.arange(x.shape[axis], device=x.device) + step[:, None]
        shape = [len(x), *(size if a == axis else 1 for a, size in enumerate(x.shape[1:], start=1))]
        padded = F.pad(x, [0, 0] * (x.dim() - 1 - axis) + [reach, reach])
        x = padded.gather(axis, places.view(shape).expand(x.shape))
    return x
