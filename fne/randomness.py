"""Seeds by hashing and generators of one's own: nothing in the toolkit draws from a global generator.

Sub-seeds are hashed, never computed by arithmetic: `seed * (i + 17) + i` gives 289 for (17, 0) and for (16, 1).
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
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


@contextlib.contextmanager
def seeded_initialisation(*parts: int | str) -> Iterator[None]:
    """Seed torch's global CPU generator inside the block only: constructors and dropout know no other."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(*parts))
        yield
