"""Augmentation of training samples: random shifts of images and recordings, so that a few samples show more."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def random_shift(x: Tensor, reach: int, generator: torch.Generator) -> Tensor:
    """Return each input moved by a draw of its own, evenly from -reach to reach along each axis; zeros come in.

    Args:
        x: images `[N, C, H, W]`, moved along height and width, or recordings `[N, C, T]`, moved in time.
        reach: in pixels, or samples in time.
        generator: on the CPU, so that every device moves the same.
    """
    steps = torch.randint(2 * reach + 1, (len(x), x.dim() - 2), generator=generator).to(x.device)
    for axis, step in enumerate(steps.t(), start=2):
        places = torch.arange(x.shape[axis], device=x.device) + step[:, None]
        shape = [len(x), *(size if a == axis else 1 for a, size in enumerate(x.shape[1:], start=1))]
        padded = F.pad(x, [0, 0] * (x.dim() - 1 - axis) + [reach, reach])
        x = padded.gather(axis, places.view(shape).expand(x.shape))
    return x
