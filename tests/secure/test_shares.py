"""Shares of secrets: enough of them give the secret, one less gives nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fne.secure import dealing, keys, shares
from tests.secure.parts import LIMIT


def test_the_prime_is_one() -> None:
    odd, twos = shares.PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in range(2, 60):  # Miller, Rabin: a composite passes each with a chance below 1/4
        power = pow(base, odd, shares.PRIME)
        passed = power in (1, shares.PRIME - 1)
        for _ in range(twos - 1):
            power = power * power % shares.PRIME
            passed = passed or power == shares.PRIME - 1
        assert passed


@given(st.binary(min_size=32, max_size=32), st.integers(1, 12), st.integers(0, 8), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=40)
def test_any_shares_enough_give_the_secret_and_one_less_another(secret: bytes, need: int, more: int, rng: Any) -> None:
    made = shares.split(secret, need, need + more)
    assert {len(share) for share in made} == {shares.SHARE_BYTES}
    picked = rng.sample(range(need + more), need)
    assert shares.joined({i + 1: made[i] for i in picked}) == secret
    if need > 1:
        assert shares.joined({i + 1: made[i] for i in picked[1:]}) != secret


@given(st.data(), st.integers(1, 8), st.integers(1, 130))
@settings(deadline=None, max_examples=40)
def test_values_of_polynomials_are_those_of_each(data: st.DataObject, length: int, count: int) -> None:
    most = 2 ** (8 * shares.SHARE_BYTES) - 1
    number = st.integers(0, most) | st.sampled_from([0, most])
    polynomials = data.draw(st.lists(st.lists(number, min_size=1, max_size=length), max_size=5))
    wanted = [
        [sum(c * x**k for k, c in enumerate(reversed(own))) % shares.PRIME for x in range(1, count + 1)]
        for own in polynomials
    ]
    assert [list(map(shares.number, made)) for made in shares.values(polynomials, count)] == wanted


def test_a_share_may_be_any_number_whatever_the_secret() -> None:
    """Two secrets, the same number of a share: its first bytes are even for either."""
    for secret in (bytes(32), b"\xff" * 32):
        first = np.array([shares.split(secret, 3, 4)[0][0] for _ in range(5120)])
        counts = np.bincount(first, minlength=256)
        assert ((counts - 20) ** 2 / 20).sum() < LIMIT


def test_digests_and_proof_fit_any_key_for_who_holds_too_few_shares() -> None:
    """Another b, and a g that makes up for it, give the same proof and the same shares to all but those who do not see.

    So only a digest could tell them apart, of a share with 256 unknown bits.
    """
    context, need, held = bytes(32), 4, [1, 3, 5]
    b, r, g = (shares.polynomial(keys.fresh(), need) for _ in range(3))
    c = int.from_bytes(dealing.challenge(context, 1, [bytes(16)]), "little")
    zero = np.array([1], dtype=object)  # a polynomial that is 0 for those who see their shares, and not at 0
    for x in held:
        zero = np.convolve(zero, np.array([1, -x], dtype=object))
    b_, g_ = ([(a + k * z) % shares.PRIME for a, z in zip(own, zero, strict=True)] for own, k in ((b, 7), (g, -7 * c)))
    assert b_[-1] != b[-1]
    for x in held:
        assert all(own[x - 1] == other[x - 1] for own, other in [shares.values([b_, b], 6), shares.values([g_, g], 6)])
    proofs = [
        [shares.written(z + c * x + c * c * y) for x, y, z in zip(p, r, q, strict=True)] for p, q in ((b, g), (b_, g_))
    ]
    assert proofs[0] == proofs[1]
