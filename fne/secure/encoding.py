"""Fixed-point encoding of payloads as words of the ring Z_2^64, in which masks cancel exactly, without silent wrap.

A word is an unsigned 64-bit integer; addition wraps. Arrays of words are NumPy's uint64 `[n]`. A float x becomes
round(x * 2^32), so a sum of n floats is off by at most n * 2^-33; a total S beyond 2^21 in size has more digits than a
float64, which adds |S| * 2^-53 at most. All numbers of a sum of n nodes are at most (2^63 - 1) / n in size. This is
checked before anything is masked, because afterwards nobody could tell that a sum has wrapped.

A payload is one vector of words:

    entries by name, each flattened | counters of non-finite values | number of clipped values

Integers are exact. A non-finite value has no place in the ring: a random word is sent instead, and with each float two
counters, of nodes where the value is +inf or NaN, and of nodes where it is -inf or NaN. From the counters the total
becomes +inf, -inf or NaN exactly where the sum of the floats would, and the random word hides the sum of the finite
numbers: with 0 in its place, three infinite losses of four would reveal the fourth. Sample counts are ordinary entries
of the vector.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fne.core.hidden import ProtocolError
from fne.federation.payloads import PayloadSpec
from fne.privacy.keystream import Words
from fne.secure import keys

BITS = 32
"""Number of bits after the binary point."""
SCALE = float(2**BITS)


class OutOfRangeError(ProtocolError):
    """Raised for a float that is too large for a sum of so many nodes."""


def largest(nodes: int) -> float:
    """Return the largest magnitude of a float that `nodes` nodes can add up."""
    most = (2**63 - 1) // nodes
    rounded = float(most)
    return (rounded if int(rounded) <= most else math.nextafter(rounded, 0.0)) / SCALE


def encode(values: NDArray[np.float64], nodes: int, what: str, *, clip: bool = False) -> tuple[Words, int]:
    """Return floats as words, and the number of clipped ones.

    Args:
        values: finite, of any shape; -0.0 is 0.
        nodes: number of nodes in the sum.
        what: name of the values, for the error.
        clip: replace a number out of range by the nearest one in range, and count it.

    Raises:
        OutOfRangeError: a value is out of range, without `clip`; the text names the index of the first.
        ProtocolError: a value is not finite.
    """
    if not np.isfinite(values).all():
        raise ProtocolError(f"{what}{_first(~np.isfinite(values))} is not finite")
    most = largest(nodes)
    beyond = np.abs(values) > most
    if beyond.any():
        if not clip:
            raise OutOfRangeError(
                f"{what}{_first(beyond)} is out of range: sums of {nodes} nodes take numbers up to {most:.3g} in size"
            )
        values = np.clip(values, -most, most)
    whole = np.rint(values * SCALE).astype(np.int64)
    return whole.reshape(-1).view(np.uint64), int(beyond.sum())


def encode_whole(values: NDArray[np.int64], nodes: int, what: str) -> Words:
    """Return integers as words, exactly; raises `ProtocolError` where a sum over `nodes` could exceed 64 bits."""
    most = (2**63 - 1) // nodes
    beyond = (values > most) | (values < -most)
    if beyond.any():
        raise ProtocolError(f"{what}{_first(beyond)} is out of range: sums of {nodes} nodes take up to {most}")
    return np.ascontiguousarray(values).reshape(-1).view(np.uint64)


def decode(words: Words) -> NDArray[np.float64]:
    """Return the floats that words encode, rounded to float64 above 2^21 in magnitude."""
    return words.view(np.int64).astype(np.float64) / SCALE


def decode_whole(words: Words) -> NDArray[np.int64]:
    """Return the integers that words encode."""
    return words.view(np.int64)


def _first(wrong: NDArray[np.bool_]) -> str:
    return "[" + ", ".join(str(int(i)) for i in np.argwhere(wrong)[0]) + "]" if wrong.ndim else ""


# ------------------------------------------------------------------------------------------------ counters
def pack(counts: NDArray[np.uint64], nodes: int) -> Words:
    """Return counters packed in words, as many as fit where each can grow to `nodes`: they add without carry."""
    width, per_word = _fields(nodes)
    padded = np.zeros(-(-len(counts) // per_word) * per_word, dtype=np.uint64)
    padded[: len(counts)] = counts
    shifted: Words = padded.reshape(-1, per_word) << (np.arange(per_word, dtype=np.uint64) * width)
    packed: Words = np.bitwise_or.reduce(shifted, axis=1)
    return packed


def unpack(words: Words, nodes: int, count: int) -> NDArray[np.uint64]:
    """Return the `count` counters that words hold."""
    width, per_word = _fields(nodes)
    fields = words[:, None] >> (np.arange(per_word, dtype=np.uint64) * width)
    return (fields & (np.uint64(1) << width) - np.uint64(1)).reshape(-1)[:count]


def packed_size(count: int, nodes: int) -> int:
    """Return the number of words that `count` counters take."""
    return -(-count // _fields(nodes)[1])


def _fields(nodes: int) -> tuple[np.uint64, int]:
    width = nodes.bit_length()
    return np.uint64(width), 64 // width


def floats_in(form: PayloadSpec) -> int:
    """Return the number of floats in a payload of this form."""
    return sum(math.prod(shape) for _, is_float, shape in form.entries if is_float)


def vector_words(form: PayloadSpec, nodes: int) -> int:
    """Return the length of the vector of a payload of this form, in a sum over `nodes` nodes."""
    numbers = sum(math.prod(shape) for _, _, shape in form.entries)
    return numbers + packed_size(2 * floats_in(form), nodes) + 1


def flatten(payload: Mapping[str, Tensor], nodes: int, *, clip: bool = False) -> Words:
    """Return a payload as words.

    Args:
        payload: tensors of floats, integers and booleans.
        nodes: number of nodes in the sum.
        clip: see `encode`.

    Raises:
        ProtocolError: a number is out of range (a float: `OutOfRangeError`); the text names entry and index.
    """
    parts, counters, clipped = [], [], 0
    for name, value in sorted(payload.items()):
        flat = value.detach().cpu()
        if not value.is_floating_point():
            parts.append(encode_whole(flat.long().numpy(), nodes, name))
            continue
        floats = flat.double().numpy()
        unknown = np.isnan(floats)
        counters += [(np.isposinf(floats) | unknown).reshape(-1), (np.isneginf(floats) | unknown).reshape(-1)]
        finite = np.isfinite(floats)
        words, beyond = encode(np.where(finite, floats, 0.0), nodes, name, clip=clip)
        nowhere = ~finite.reshape(-1)
        words[nowhere] = keys.drawn(int(nowhere.sum()))
        parts.append(words)
        clipped += beyond
    packed = pack(np.concatenate(counters or [np.zeros(0)]).astype(np.uint64), nodes)
    return np.concatenate([*parts, packed, np.array([clipped], dtype=np.uint64)])


def unflatten(words: Words, form: PayloadSpec, nodes: int) -> tuple[dict[str, Tensor], int]:
    """Return the payload of a total, floats as float64 and integers as int64, and the number of clipped values.

    Args:
        words: sum of the vectors of any of the nodes.
        form: form of each payload.
        nodes: the same as for `flatten`, however many of them are in the sum.
    """
    numbers = sum(math.prod(shape) for _, _, shape in form.entries)
    counters = unpack(words[numbers:-1], nodes, 2 * floats_in(form))
    payload: dict[str, Tensor] = {}
    at = counted = 0
    for name, is_float, shape in form.entries:
        size = math.prod(shape)
        part = words[at : at + size]
        at += size
        if is_float:
            up, down = counters[counted : counted + 2 * size].reshape(2, size) > 0
            counted += 2 * size
            total = decode(part) + np.where(up, np.inf, 0.0)
            with np.errstate(invalid="ignore"):  # both infinities together give NaN, as in any sum
                total = total - np.where(down, np.inf, 0.0)
            payload[name] = torch.from_numpy(total.reshape(shape))
        else:
            payload[name] = torch.from_numpy(decode_whole(part).reshape(shape).copy())
    return payload, int(decode_whole(words[-1:])[0])
