"""Masks of secure sums: streams as ChaCha20 has them, even, and without a trace of the values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fne.privacy.keystream import keystream
from fne.secure import encoding, keys
from tests.secure.parts import LIMIT, agree, chi2, play, some, words


def test_a_stream_is_chacha20() -> None:
    """RFC 8439, section 2.4.2 has the counter from 1; A.1 test vector 1 is this one: zero key, nonce, counter."""
    first = bytes.fromhex("76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7")
    assert keystream(bytes(32), bytes(12), 4).tobytes() == first


def test_every_bit_of_a_key_changes_half_of_the_stream() -> None:
    key, size = keys.fresh(), 512
    base = keystream(key, bytes(12), size)
    for bit in range(0, 256, 5):
        other = bytearray(key)
        other[bit // 8] ^= 1 << bit % 8
        changed = np.bitwise_count(base ^ keystream(bytes(other), bytes(12), size)).sum()
        assert abs(int(changed) - 32 * size) < 7 * math.sqrt(64 * size) / 2


@pytest.mark.parametrize("value", [0, 1, -1, 2**61, -(2**61)])
def test_masked_words_are_even_in_every_byte_and_run_like_coins(value: int) -> None:
    view = play(agree(4), [words(*[value] * 4000)] * 4)
    for node in range(4):
        masked = view.peeled(node)
        assert chi2(masked) < LIMIT
        bits = np.unpackbits(masked.view(np.uint8))
        runs = 1 + int((bits[1:] != bits[:-1]).sum())
        assert abs(runs - len(bits) / 2) < 7 * math.sqrt(len(bits)) / 2
    assert encoding.decode_whole(view.opened()).tolist() == [(4 * value + 2**63) % 2**64 - 2**63] * 4000


def test_equal_values_in_two_steps_give_vectors_of_which_even_the_difference_is_even() -> None:
    sessions, values = agree(4), [words(*[7] * 4000)] * 4
    first, second = play(sessions, values, 0), play(sessions, values, 1)
    for difference in (second.peeled(1) - first.peeled(1), first.peeled(1) - first.peeled(2)):
        assert chi2(difference) < LIMIT


def test_what_the_server_knows_of_a_node_says_nothing_of_its_values() -> None:
    """Pearson and Spearman over 100 sums of ten values."""
    sessions, pairs = agree(4), []
    for step in range(100):
        values = some(4, 10, step)
        view = play(sessions, values, step)
        pairs.append((values[2].view(np.int64), view.peeled(2).view(np.int64)))
    own, seen = (np.concatenate(side).astype(float) for side in zip(*pairs, strict=True))
    ranks = [np.argsort(np.argsort(side)) for side in (own, seen)]
    for a, b in ((own, seen), ranks):
        assert abs(np.corrcoef(a, b)[0, 1]) < 7 / math.sqrt(len(own))
