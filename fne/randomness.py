"""Seeds by hashing and generators of one's own: nothing in the toolkit draws from a global generator.

Sub-seeds are hashed, never computed by arithmetic: `seed * (i + 17) + i` gives 289 for (17, 0) and for (16, 1).
"""

from __future__ import annotations

import contextlib
import hashlib
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
    """Return the node whose turn it is, drawn by hashing: everybody who knows the seed and the names draws the same."""
    return sorted(names)[derive_seed(seed, "chosen", turn) % len(names)]


@contextlib.contextmanager
def seeded_initialisation(*parts: int | str, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's global generators, the CPU's and the device's, inside the block only: modules know no others."""
    import torch

    cuda = device is not None and device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if cuda else []):
        seed = derive_seed(*parts)
        torch.default_generator.manual_seed(seed)
        if cuda:
            torch.cuda.manual_seed(seed)
        yield
