"""Bits and positions, as an update that is sent has them: packed without gaps, positions as Rice-coded gaps.

All is big-endian; each stream begins on a byte.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fne.core.errors import FneError

_DROPPED, _DENSE, _EMPTY = 32, 64, 65
"""Codings: Rice parameter k of the values sent; `_DROPPED` + k of those dropped; all are sent; none is."""


class Reader:
    """Bytes, read from the front."""

    def __init__(self, raw: bytes) -> None:
        self.raw, self.at = raw, 0

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        if len(self.raw) - self.at < count:
            raise damaged("it ends too early")
        self.at += count
        return self.raw[self.at - count : self.at]


def positions_of(kept: NDArray[np.bool_]) -> bytes:
    """Return coding, count and streams that say which values of a part are sent."""
    if kept.all() or not kept.any():
        return bytes([_DENSE if kept.any() else _EMPTY])
    choices: list[tuple[int, int, NDArray[np.int64]]] = []
    for flag, marked in ((0, kept), (_DROPPED, ~kept)):
        gaps = np.diff(np.flatnonzero(marked), prepend=-1) - 1
        for k in range(int(gaps.max()).bit_length() + 1):
            choices.append((int((gaps >> k).sum()) + len(gaps) * (1 + k), flag + k, gaps))
    _, coding, gaps = min(choices, key=lambda choice: choice[:2])
    k = coding % _DROPPED
    ends = np.cumsum((gaps >> k) + 1)
    unary = np.zeros(ends[-1], np.uint8)
    unary[ends - 1] = 1
    remainders = (gaps & (1 << k) - 1).astype(np.uint32)
    return bytes([coding]) + len(gaps).to_bytes(4, "big") + np.packbits(unary).tobytes() + packed(remainders, k)


def read_positions(source: Reader, size: int) -> NDArray[np.bool_]:
    """Return which of `size` values are sent, from what `positions_of` wrote."""
    coding = source.take(1)[0]
    if coding in (_DENSE, _EMPTY):
        return np.full(size, coding == _DENSE)
    count = int.from_bytes(source.take(4), "big")
    if coding > _EMPTY or not 0 < count < size:
        raise damaged(f"it has {count} positions of {size}, in coding {coding}")
    k = coding % _DROPPED
    longest = count + ((size - count) >> k)  # quotients add up to no more than all gaps do, shifted
    unary = np.frombuffer(source.raw[source.at : source.at + whole_bytes(longest)], np.uint8)
    ends = np.flatnonzero(np.unpackbits(unary))[:count]
    if len(ends) < count:
        raise damaged("its positions end too early")
    source.take(whole_bytes(int(ends[-1]) + 1))
    gaps = (np.diff(ends, prepend=-1) - 1 << k) + unpacked(source, count, k)
    positions = np.cumsum(gaps + 1) - 1
    if positions[-1] >= size:
        raise damaged(f"it has a position beyond the {size} of its part")
    kept = np.full(size, coding >= _DROPPED)
    kept[positions] ^= True
    return kept


def packed(numbers: NDArray[np.uint32], width: int) -> bytes:
    """Return the lowest `width` bits of each number without gaps, the highest first."""
    used = whole_bytes(width)
    octets = numbers.astype(">u4").view(np.uint8).reshape(-1, 4)[:, 4 - used :]
    return np.packbits(np.unpackbits(octets, axis=1)[:, 8 * used - width :]).tobytes()


def unpacked(source: Reader, count: int, width: int) -> NDArray[np.uint32]:
    """Return `count` numbers from what `packed` wrote."""
    used = whole_bytes(width)
    raw = np.frombuffer(source.take(whole_bytes(count * width)), np.uint8)
    bits = np.zeros((count, 8 * used), np.uint8)
    bits[:, 8 * used - width :] = np.unpackbits(raw, count=count * width).reshape(count, width)
    octets = np.zeros((count, 4), np.uint8)
    octets[:, 4 - used :] = np.packbits(bits).reshape(count, used)
    return octets.view(">u4")[:, 0].astype(np.uint32)


def whole_bytes(bits: int) -> int:
    return -(-bits // 8)


def damaged(how: str) -> FneError:
    return FneError(f"compressed update: {how}; it is damaged, or of another model: let the node send it again")
