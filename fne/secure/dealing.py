"""What a node deals in a sum: shares of its two keys that nobody can change later, and that lie on one polynomial.

With its shares a dealer publishes a digest of each, and for a third polynomial g, of random coefficients, as well. A
challenge c that is made of all its digests picks one combination h = g + c b + c^2 r, whose coefficients it publishes,
too. Who holds the shares of b and r number i works out what the one of g must be, h(i) - c b(i) - c^2 r(i), and tells
the digests of the three as one, its receipt. If the receipt is the one that follows from what the dealer has published,

- nobody can tell another share later than the one that was dealt: its digest would be another;
- the shares of those whose receipts fit lie on one polynomial of as few coefficients as h has, but for a chance of
  2^-127: else no h would fit for more than two of the 2^128 challenges. So any `threshold` of them give the same key.

Nothing of b or r is given away: h is as random as g is, and a share has the 256 unknown bits of its key for whoever
holds fewer than `threshold` of them, so no digest of it can be tried out.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from fne.secure import keys, shares

DIGEST_BYTES = 16
"""Of a share: to find another one of the same digest takes 2^128 tries."""
DIGESTS = 3
"""For each member: of its shares of b, r and g."""
MASK, OPENER = 0, 1
"""Which of the pair of shares that a member holds is of b, and which of r."""
_VERSION = b"fne/deal/v1"
_SHARE, _PLACE = _VERSION + b"/share", struct.Struct("<IIB")


def deal(
    context: bytes, dealer: int, secrets: tuple[bytes, bytes], threshold: int, count: int
) -> tuple[list[tuple[bytes, bytes]], tuple[bytes, ...], tuple[bytes, ...]]:
    """Return what a member deals: for each member its shares of both secrets, the digests, and the proof.

    Args:
        context: digest that the sum is known by.
        dealer: number of the member, from 1, as of the shares.
        secrets: b and r.
        threshold: shares that it takes.
        count: of the members.
    """
    polynomials = [shares.polynomial(secret, threshold) for secret in (*secrets, keys.fresh())]
    b, r, g = shares.values(polynomials, count)
    digests = tuple(
        digest(context, dealer, number, kind, share)
        for number, three in enumerate(zip(b, r, g, strict=True), 1)
        for kind, share in enumerate(three)
    )
    c = int.from_bytes(challenge(context, dealer, digests), "little")
    proof = tuple(shares.written(z + c * x + c * c * y) for x, y, z in zip(*polynomials, strict=True))
    return list(zip(b, r, strict=True)), digests, proof


def digest(context: bytes, dealer: int, number: int, kind: int, share: bytes) -> bytes:
    """Return the digest by which a share is known again."""
    return hashlib.sha256(_SHARE + context + _PLACE.pack(dealer, number, kind) + share).digest()[:DIGEST_BYTES]


def challenge(context: bytes, dealer: int, digests: Sequence[bytes]) -> bytes:
    """Return the challenge that follows from all that a dealer has committed itself to."""
    return keys.digest(_VERSION, b"/challenge", context, dealer.to_bytes(4, "little"), *digests)[:DIGEST_BYTES]


def points(proofs: Sequence[Sequence[bytes]], count: int) -> list[list[bytes]]:
    """Return what each proof says at every member's number."""
    return shares.values([[shares.number(coefficient) for coefficient in proof] for proof in proofs], count)


def receipt(
    context: bytes, dealer: int, number: int, pair: tuple[bytes, bytes], point: bytes, challenge: bytes
) -> bytes:
    """Return the receipt of a member for the pair of shares that it holds."""
    c = int.from_bytes(challenge, "little")
    b, r = map(shares.number, pair)
    three = (*pair, shares.written(shares.number(point) - c * b - c * c * r))
    return receipt_of([digest(context, dealer, number, kind, share) for kind, share in enumerate(three)])


def receipt_of(three: Sequence[bytes]) -> bytes:
    """Return the receipt that follows from the digests of a member's three shares."""
    return keys.digest(_VERSION, b"/receipt", *three)[:DIGEST_BYTES]
