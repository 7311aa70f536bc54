"""A payload as one vector of words, and a total of such vectors as the payload that a plain sum would be.

    entries by name, each flattened | counters of what is not finite | numbers that were clipped

Floats are fixed point, integers exact. What is not finite has no place in the ring: a random word goes instead, and
beside each float go two counters, of nodes where it is +inf or NaN, and of nodes where it is -inf or NaN. From them the
total becomes +inf, -inf or NaN exactly where the sum of the floats would, and the random word hides what the finite
numbers there add up to: were it 0, three infinite losses of four would leave the fourth by itself. Sample counts are
ordinary entries, so they are inside.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fne.federation.payloads import Form
from fne.privacy.keystream import Words
from fne.secure import keys, ring


def floats_in(form: Form) -> int:
    """Return how many floats a payload of this form has."""
    return sum(math.prod(shape) for _, is_float, shape in form.entries if is_float)


def vector_words(form: Form, nodes: int) -> int:
    """Return the length of the vector of a payload of this form, of a sum over so many nodes."""
    numbers = sum(math.prod(shape) for _, _, shape in form.entries)
    return numbers + ring.packed_size(2 * floats_in(form), nodes) + 1


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
    counters = ring.unpack(words[numbers:-1], nodes, 2 * floats_in(form))
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
