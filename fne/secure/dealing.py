"""Verifiable dealing of shares: nobody can change a share of a node's two keys later, and all lie on one polynomial.

A dealer publishes a digest of each of its shares, and also of each share of a third polynomial g with random
coefficients. A challenge c, derived from all these digests, selects one combination h = g + c b + c^2 r, whose
coefficients the dealer publishes, too. The holder of share number i of b and r computes the share of g as h(i) - c b(i)
- c^2 r(i), and answers with one digest of the digests of the three shares, its receipt. If the receipt follows from the
dealer's published digests,

- nobody can later reveal another share than the dealt one: the digest would differ;
- the shares of nodes whose receipts fit lie on one polynomial of as few coefficients as h has, except with a chance of
  2^-127: otherwise no h would fit for more than two of the 2^128 challenges. So any `threshold` of them give the same
  key.

Nothing about b or r is given away: h is as random as g, and to a holder of fewer than `threshold` shares each further
share has the 256 unknown bits of its key, so its digest cannot be inverted by trial.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from fne.secure import keys, shares

DIGEST_BYTES = 16
"""Length of a share's digest: finding another share with the same digest takes 2^128 tries."""
DIGESTS = 3
"""Digests for each member: of its shares of b, r and g."""
MASK, OPENER = 0, 1
"""Indices of the shares of b and of r in the pair that a member holds."""
_VERSION = b"fne/deal/v1"
_SHARE, _PLACE = _VERSION + b"/share", struct.Struct("<IIB")


def deal(
    context: bytes, dealer: int, secrets: tuple[bytes, bytes], threshold: int, count: int
) -> tuple[list[tuple[bytes, bytes]], tuple[bytes, ...], tuple[bytes, ...]]:
    """Return a member's dealing: for each member its shares of both secrets, the digests, and the proof.

    Args:
        context: digest that identifies the sum.
        dealer: number of the dealing member, from 1, like the numbers of shares.
        secrets: b and r.
        threshold: number of shares that give a secret.
        count: number of members.
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
    """Return the digest that identifies a share."""
    return hashlib.sha256(_SHARE + context + _PLACE.pack(dealer, number, kind) + share).digest()[:DIGEST_BYTES]


def challenge(context: bytes, dealer: int, digests: Sequence[bytes]) -> bytes:
    """Return the challenge that follows from all of a dealer's commitments."""
    return keys.digest(_VERSION, b"/challenge", context, dealer.to_bytes(4, "little"), *digests)[:DIGEST_BYTES]


def points(proofs: Sequence[Sequence[bytes]], count: int) -> list[list[bytes]]:
    """Return the value of each proof's polynomial at every member's number."""
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
