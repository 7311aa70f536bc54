"""Where torch computes, and with how many threads: resolved once a run, since the last bits depend on it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from fne.core.errors import RunError


def resolve_device(settings: Mapping[str, Any]) -> tuple[torch.device, int]:
    """Set torch up as an engine's settings `device` and `threads` say, and return what they mean on this machine.

    On CUDA, convolutions become deterministic and TF32 is off: the same bits twice, and none of the missing ones.

    Raises:
        RunError: `cuda` is asked for and there is none.
    """
    wanted = settings.get("device", "auto")
    if wanted == "cuda" and not torch.cuda.is_available():
        raise RunError("engine.device = 'cuda': torch sees no CUDA device here; use cpu or auto")
    cuda = wanted == "cuda" or (wanted == "auto" and torch.cuda.is_available())
    if cuda:
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = int(settings.get("threads", 1)) or cores
    torch.set_num_threads(threads)
    return torch.device("cuda" if cuda else "cpu"), threads
