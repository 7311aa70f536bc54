"""A payload as one vector of words, and a total of such vectors as the payload that a plain sum would be.

    entries by name, each flattened | counters of what is not finite | numbers that were clipped

Floats are fixed point, integers exact. What is not finite has no place in the ring: a random word goes instead, and
beside each float go two counters, of nodes where it is +inf or NaN, and of nodes where it is -inf or NaN. From them the
total becomes +inf, -inf or NaN exactly where the sum of the floats would, and the random word hides what the finite
numbers there add up to: were it 0, three infinite losses of four would leave the fourth by itself. Sample counts are
ordinary entries, so they are inside.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fne.privacy import keys, ring
from fne.privacy.hidden import ProtocolError
from fne.privacy.ring import Words


@dataclass(frozen=True)
class Form:
    """What a vector is of: `(name, whether floats, shape)` of each entry, by name in order; all nodes' are equal."""

    entries: tuple[tuple[str, bool, tuple[int, ...]], ...]

    @classmethod
    def of(cls, payload: Mapping[str, Tensor]) -> Form:
        """Return the form of a payload."""
        return cls(tuple((n, v.is_floating_point(), tuple(v.shape)) for n, v in sorted(payload.items())))

    def floats(self) -> int:
        """Return how many floats there are."""
        return sum(math.prod(shape) for _, is_float, shape in self.entries if is_float)

    def words(self, nodes: int) -> int:
        """Return the length of the vector."""
        numbers = sum(math.prod(shape) for _, _, shape in self.entries)
        return numbers + ring.packed_size(2 * self.floats(), nodes) + 1

    def to_bytes(self) -> bytes:
        """Return it as JSON."""
        return json.dumps(self.entries, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, raw: bytes, whose: str) -> Form:
        """Return the form of `to_bytes`; raises `ProtocolError` that names `whose` it is for anything else."""
        try:
            entries = tuple((str(n), bool(f), tuple(int(size) for size in shape)) for n, f, shape in json.loads(raw))
        except (ValueError, TypeError):
            raise ProtocolError(f"{whose}: what it says of its vector cannot be read") from None
        if any(size < 0 for _, _, shape in entries for size in shape):
            raise ProtocolError(f"{whose}: its vector has a negative size")
        return cls(entries)


def flatten(payload: Mapping[str, Tensor], nodes: int, *, clip: bool = False) -> Words:
    """Return a payload as words.

    Args:
        payload: of floats, integers and booleans.
        nodes: that take part in the sum.
        clip: see `ring.encode`.

    Raises:
        ProtocolError: a number is out of range (a float: `ring.OutOfRangeError`); names entry and index.
    """
    parts, counters, clipped = [], [], 0
    for name, value in sorted(payload.items()):
        flat = value.detach().cpu()
        if not value.is_floating_point():
            parts.append(ring.encode_whole(flat.long().numpy(), nodes, name))
            continue
        floats = flat.double().numpy()
        unknown = np.isnan(floats)
        counters += [(np.isposinf(floats) | unknown).reshape(-1), (np.isneginf(floats) | unknown).reshape(-1)]
        finite = np.isfinite(floats)
        words, beyond = ring.encode(np.where(finite, floats, 0.0), nodes, name, clip=clip)
        nowhere = ~finite.reshape(-1)
        words[nowhere] = keys.drawn(int(nowhere.sum()))
        parts.append(words)
        clipped += beyond
    packed = ring.pack(np.concatenate(counters or [np.zeros(0)]).astype(np.uint64), nodes)
    return np.concatenate([*parts, packed, np.array([clipped], dtype=np.uint64)])


def unflatten(words: Words, form: Form, nodes: int) -> tuple[dict[str, Tensor], int]:
    """Return the payload of a total, floats as float64 and integers as int64, and how many numbers were clipped.

    Args:
        words: sum of the vectors of any of the nodes.
        form: of each.
        nodes: as of `flatten`, whoever of them is in the sum.
    """
    numbers = sum(math.prod(shape) for _, _, shape in form.entries)
    counters = ring.unpack(words[numbers:-1], nodes, 2 * form.floats())
    payload: dict[str, Tensor] = {}
    at = counted = 0
    for name, is_float, shape in form.entries:
        size = math.prod(shape)
        part = words[at : at + size]
        at += size
        if is_float:
            up, down = counters[counted : counted + 2 * size].reshape(2, size) > 0
            counted += 2 * size
            total = ring.decode(part) + np.where(up, np.inf, 0.0)
            with np.errstate(invalid="ignore"):  # of one infinity and the other comes NaN, as in any sum
                total = total - np.where(down, np.inf, 0.0)
            payload[name] = torch.from_numpy(total.reshape(shape))
        else:
            payload[name] = torch.from_numpy(ring.decode_whole(part).reshape(shape).copy())
    return payload, int(ring.decode_whole(words[-1:])[0])
