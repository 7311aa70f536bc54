"""Hashed seeds and local generators: on the CPU no code draws from a process-wide generator.

Sub-seeds are hashed, never computed by arithmetic: `seed * (i + 17) + i` gives 289 for (17, 0) and for (16, 1).

CUDA is the exception, because torch's dropout there accepts no other generator than the device's: see
`seeded_initialisation`.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def derive_seed(*parts: int | str) -> int:
    """Return a seed in [0, 2**63) that depends on every part, its type and its place."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(*parts: int | str) -> torch.Generator:
    """Return a CPU generator seeded by `derive_seed(*parts)`; draws on CPU are the same for every device."""
    import torch

    return torch.Generator().manual_seed(derive_seed(*parts))


def draw_nodes(nodes: Sequence[str], count: int, *parts: int | str) -> tuple[str, ...]:
    """Return `count` different nodes, in the order of `nodes`, drawn by `generator(*parts)`."""
    import torch

    picked = torch.randperm(len(nodes), generator=generator(*parts))[:count]
    return tuple(nodes[i] for i in sorted(picked.tolist()))


def chosen_node(seed: int, turn: int, names: Sequence[str]) -> str:
    """Return the node of a turn, drawn by hashing: whoever knows the seed and the names draws the same node."""
    return sorted(names)[derive_seed(seed, "chosen", turn) % len(names)]


@contextlib.contextmanager
def seeded_initialisation(*parts: int | str, device: torch.device | None = None) -> Iterator[None]:
    """Let modules inside the block draw from generators seeded by `derive_seed(*parts)`; modules accept no generator.

    On the CPU these are the calling thread's own (`fne.core.drawing`), and torch's process-wide generator is neither
    used nor touched. On CUDA the device's generator is seeded and put back afterwards; blocks of different threads
    for CUDA wait for each other. Python's `random` and NumPy's process-wide generator are not seeded.

    Args:
        parts: the parts that the seed depends on.
        device: where modules compute inside the block; `None` for the CPU.
    """
    with seeded_by(generator(*parts), device):
        yield


@contextlib.contextmanager
def seeded_by(made: torch.Generator, device: torch.device | None = None) -> Iterator[None]:
    """Let code inside the block draw from the CPU generator `made`; CUDA is seeded by its initial seed.

    See `seeded_initialisation`.
    """
    from fne.core.drawing import drawing_from

    with drawing_from(made), contextlib.ExitStack() as stack:
        if device is not None and device.type == "cuda":
            stack.enter_context(_device_seeded(made.initial_seed(), device))
        yield


_DEVICES = threading.RLock()


@contextlib.contextmanager
def _device_seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the generator that all threads share on a CUDA device, for one thread at a time, and restore it."""
    import torch

    with _DEVICES:
        before = torch.cuda.get_rng_state(device)
        torch.cuda.manual_seed(seed)
        try:
            yield
        finally:
            torch.cuda.set_rng_state(before, device)
