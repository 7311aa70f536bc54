"""Shamir shares of a 32-byte secret: any `threshold` shares give the secret, fewer reveal nothing (A. Shamir, 1979).

The secret is the value at 0 of a polynomial over the integers modulo a prime above 2^256, whose other coefficients are
drawn from the operating system; share number x, from 1, is its value at x, 33 bytes.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Mapping, Sequence

from fne.privacy.keystream import KEY_BYTES

PRIME = 2**256 + 297
"""The smallest prime above 2^256."""
SHARE_BYTES = 33


def polynomial(secret: bytes, threshold: int) -> list[int]:
    """Return the coefficients, highest first, of a polynomial of which `threshold` values give a secret of 32 bytes."""
    assert len(secret) == KEY_BYTES
    drawn = os.urandom(48 * (threshold - 1))  # 128 bits more than the prime has: uniform up to 2^-127
    coefficients = [int.from_bytes(drawn[i : i + 48], "little") % PRIME for i in range(0, len(drawn), 48)]
    return [*coefficients, int.from_bytes(secret, "little")]


def values(polynomials: Sequence[Sequence[int]], count: int) -> list[list[bytes]]:
    """Return the values of each polynomial at 1 to `count`.

    Args:
        polynomials: coefficients of each, highest first; numbers of at most `SHARE_BYTES` bytes.
        count: number of values.
    """
    longest = max(map(len, polynomials), default=0)
    bits = 8 * SHARE_BYTES + longest * count.bit_length() + longest.bit_length()
    size = -(-bits // 8)  # no value grows beyond this: values of all polynomials go side by side in one number
    even = [[*[0] * (longest - len(own)), *own] for own in polynomials]
    columns = [number(b"".join(c.to_bytes(size, "little") for c in column)) for column in zip(*even, strict=True)]
    made: list[list[bytes]] = [[] for _ in polynomials]
    for x in range(1, count + 1):
        value = 0
        for column in columns:
            value = value * x + column  # x is small: a single reduction at the end is fastest
        raw = value.to_bytes(size * len(made), "little")
        for place, own in enumerate(made):
            own.append(written(number(raw[place * size : (place + 1) * size])))
    return made


def split(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Return `count` shares of a secret of 32 bytes, numbered from 1."""
    assert 1 <= threshold <= count
    return values([polynomial(secret, threshold)], count)[0]


def written(value: int) -> bytes:
    """Return a number modulo the prime as the bytes of a share."""
    return (value % PRIME).to_bytes(SHARE_BYTES, "little")


def number(share: bytes) -> int:
    """Return the number that a share encodes."""
    return int.from_bytes(share, "little")


def joined(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret of exactly `threshold` shares by number; for wrong shares the result is nonsense."""
    weights = _weights(tuple(shares))
    total = sum(w * number(share) for w, share in zip(weights, shares.values(), strict=True))
    return (total % PRIME % 2**256).to_bytes(KEY_BYTES, "little")


@functools.lru_cache(maxsize=16)  # the weights are the same for all secrets of a step
def _weights(numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Return the weights by which values at `numbers` give the value at 0 (Lagrange)."""
    product = math.prod(numbers)
    return tuple(
        product // x * pow(math.prod(other - x for other in numbers if other != x), -1, PRIME) for x in numbers
    )
