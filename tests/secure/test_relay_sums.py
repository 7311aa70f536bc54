"""Sums that a chosen node opens in the server's place: dropouts, and nothing in what the server sees."""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fne.core.hidden import ProtocolError
from fne.privacy.keystream import Words
from fne.secure import protocol
from fne.secure.protocol import CHECKS, enough, threshold
from tests.secure.parts import agree, plain, some
from tests.secure.relay_parts import known, literal_signs, relayed

pytestmark = pytest.mark.usefixtures("relay_tasks")


# ------------------------------------------------------------------------------------------------ a sum by hand
@pytest.mark.parametrize("nodes", [4, 5, 7, 10, 13])
def test_the_receiver_has_the_sum_with_all_dropouts_that_it_can_take_and_no_more(nodes: int) -> None:
    sessions, most, step = agree(nodes), nodes - enough(nodes), 0
    for receiver in (0, 2, nodes - 1):
        for lost in {0, most}:
            gone = set([i for i in range(nodes) if i != receiver][:lost])
            sum_ = relayed(nodes, receiver=receiver, sessions=sessions, step=step).offer().mask(gone)
            sum_.tell(silent={*range(lost, nodes - threshold(nodes))} - {receiver})
            assert np.array_equal(sum_.received(), plain(sum_.values, {*range(nodes)} - gone))
            step += 1
    with pytest.raises(ProtocolError, match=f"and at least {enough(nodes)} must be in"):
        relayed(nodes, sessions=sessions, step=step).offer().mask(range(most + 1)).tell()


# ------------------------------------------------------------------------------------------------ nothing in it
def correlations(own: NDArray[Any], seen: NDArray[Any]) -> tuple[float, float]:
    """Return Pearson's and Spearman's."""
    ranks = [np.argsort(np.argsort(side)) for side in (own, seen)]
    return float(np.corrcoef(own, seen)[0, 1]), float(np.corrcoef(*ranks)[0, 1])


def test_what_the_server_makes_of_a_sum_says_nothing_of_it_or_of_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """All messages but the receiver's secrets, over 100 sums of ten values: of the others, of one of them, of all."""

    def found() -> list[float]:
        sessions, pairs = agree(4), []
        for step in range(100):
            sum_ = relayed(4, 10, receiver=step, seed=step, sessions=sessions, step=step).offer().mask().tell()
            one, *_ = sum_.vectors
            peeled = sum_.vectors[one] - protocol.own_mask(known(sum_, one), sum_.nonce, 10 + CHECKS)
            everything = plain(sum_.values, range(4))
            guess = sum_.rest()[:-CHECKS].view(np.int64)
            pairs.append((sum_.others(), guess, sum_.values[one], peeled[:-CHECKS].view(np.int64), everything, guess))
        columns = [np.concatenate(column).view(np.int64).astype(float) for column in zip(*pairs, strict=True)]
        return [abs(r) for i in (0, 2, 4) for r in correlations(columns[i], columns[i + 1])]

    assert max(found()) < 7 / math.sqrt(1000)
    literal_signs(monkeypatch)
    assert min(found()) > 0.8


def test_equal_values_in_two_steps_leave_rests_of_which_even_the_difference_is_even() -> None:
    sessions = agree(4)
    first, second = (
        replace(relayed(4, 4000, sessions=sessions, step=step), values=[np.full(4000, 7, dtype=np.uint64)] * 4)
        .offer().mask().tell().rest() for step in (0, 1)
    )  # fmt: skip
    for words in (first, second, second - first):
        counts = [np.bincount(column, minlength=256) for column in words.view(np.uint8).reshape(-1, 8).T]
        assert max(((c - c.mean()) ** 2 / c.mean()).sum() for c in counts) < 255 + 10 * math.sqrt(2 * 255)


def test_two_worlds_of_one_sum_look_the_same_to_the_receiver(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same randomness of everybody all that it sees is equal bit for bit, so it is of one distribution."""

    def view(values: list[Words]) -> tuple[Any, ...]:
        counter = iter(range(10**9))

        def drawn(size: int) -> bytes:
            return hashlib.shake_256(str(next(counter)).encode()).digest(size)

        with monkeypatch.context() as patch:
            patch.setattr(os, "urandom", drawn)
            sum_ = replace(relayed(4, receiver=2), values=values).offer().mask()
            own = sum_.sessions[2]._exchange
            assert own is not None
            seen = (sum_.told(2), own.mask, {i: link.mask for i, link in own.links.items()}, own.shares)
            rest = sum_.tell().rest()
            return seen, rest.tobytes(), sum_.received(rest).tobytes()

    a, shift = some(4, 6), some(2, 6, seed=9)
    b = [a[0] + shift[0], a[1] - shift[0] + shift[1], a[2], a[3] - shift[1]]
    other = [a[0] + shift[0], *a[1:]]
    assert view(a) == view(b)
    assert view(a)[0] == view(other)[0]
    assert view(a)[1:] != view(other)[1:]


def in_span(nodes: int, of: str, *, receiver_tells: bool) -> bool:
    """Return whether one value, or the sum of all but the receiver's, follows from the server's equations.

    Every value and every keystream is an unknown of its own. The server knows all masks b; the receiver, where it
    tells, its own value and its masks with the others.
    """
    columns: dict[bytes, int] = {}
    size = nodes + nodes * (nodes - 1) // 2

    def one_hot(key: bytes, nonce: bytes, words: int) -> Words:
        unit = np.zeros(words, dtype=np.uint64)
        unit[nodes + columns.setdefault(key, len(columns))] = 1
        return unit

    sum_ = replace(relayed(nodes), values=[np.eye(size, dtype=np.uint64)[i] for i in range(nodes)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "keystream", one_hot)
        patch.setattr(protocol, "own_mask", lambda key, nonce, words: np.zeros(words, dtype=np.uint64))
        patch.setattr(protocol, "checks", lambda key, nonce, words: words[:0])
        sum_.offer().mask()
    own = sum_.sessions[-1]._exchange
    assert own is not None
    binding = sum_.offers[nodes - 1].commitment
    told = {protocol.pair_key(link.mask, binding) for link in own.links.values()} if receiver_tells else set()
    hidden = [*range(nodes - 1), *(nodes + place for key, place in columns.items() if key not in told)]
    rows = np.stack(list(sum_.vectors.values())).view(np.int64)[:, hidden].astype(float)
    wanted = np.zeros(len(hidden))
    wanted[: 1 if of == "one" else nodes - 1] = 1
    return bool(np.linalg.matrix_rank(np.vstack([rows, wanted])) == np.linalg.matrix_rank(rows))


@pytest.mark.parametrize("nodes", [4, 5, 8])
def test_server_and_receiver_together_know_the_sum_of_the_others_and_no_more(nodes: int) -> None:
    assert in_span(nodes, "sum", receiver_tells=True)
    assert not in_span(nodes, "one", receiver_tells=True)
    assert not in_span(nodes, "sum", receiver_tells=False)
    assert not in_span(nodes, "one", receiver_tells=False)
