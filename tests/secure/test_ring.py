"""The ring of secure sums and the vectors in it: sums as of fractions, and what has no place in it."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fne.core.hidden import ProtocolError
from fne.core.messages import Header, Reply
from fne.federation.payloads import PayloadSpec
from fne.federation.rounds import RunningSum
from fne.secure import encoding
from fne.secure.encoding import BITS
from fne.secure.protocol import enough
from tests.secure.parts import agree, assert_close, plain, play, words


# ------------------------------------------------------------------------------------------------ ring
@given(st.lists(st.floats(-5e7, 5e7), min_size=1, max_size=8), st.integers(4, 40))
@settings(deadline=None, max_examples=60)
def test_a_sum_in_the_ring_is_that_of_the_rounded_fractions(values: list[float], nodes: int) -> None:
    array = np.array(values)
    whole = [round(Fraction(value) * 2**BITS) for value in values]  # to even, as rint
    encoded, clipped = encoding.encode(array, nodes, "loss")
    assert clipped == 0
    assert encoded.view(np.int64).tolist() == whole
    total = np.full(1, 2**64 - 7, dtype=np.uint64)  # a mask, on one and off the other
    for word in encoded:
        total = total + word
    assert encoding.decode(total + words(7))[0] == sum(whole) / 2**BITS


@given(st.lists(st.floats(-2e8, 2e8), min_size=4, max_size=8))
@settings(deadline=None, max_examples=60)
def test_a_sum_is_off_by_the_fixed_point_and_by_what_a_float_holds_of_it(values: list[float]) -> None:
    nodes, exact = len(values), sum(map(Fraction, values))
    (total,) = encoding.decode(plain([encoding.encode(np.array([value]), nodes, "")[0] for value in values]))
    assert abs(Fraction(float(total)) - exact) <= Fraction(nodes, 2**33) + abs(exact) * Fraction(1 + 2**-40) / 2**53


def test_buffers_that_nobody_changes_come_back_to_the_fixed_point_only() -> None:
    """As the docs say: a plain sum gives their bits."""
    counts, buffers = (3, 5, 7, 2), torch.tensor([1e-11, 2**-20, 3.0], dtype=torch.float64)
    total = plain([encoding.flatten({"b": buffers * count}, 4) for count in counts])
    got, _ = encoding.unflatten(total, PayloadSpec.of({"b": buffers}), 4)
    assert (got["b"] / sum(counts)).tolist() == [0.0, 2**-20, 3.0]


@pytest.mark.parametrize("nodes", [4, 5, 7, 10, 100, 1000, 4097])
def test_the_largest_numbers_do_not_wrap(nodes: int) -> None:
    most = encoding.largest(nodes)
    for end in (most, -most):
        (word,), _ = encoding.encode(np.array([end]), nodes, "")
        total = np.zeros(1, dtype=np.uint64)
        for _ in range(nodes):
            total = total + word
        assert encoding.decode(total)[0] == pytest.approx(nodes * end, rel=1e-15)
    assert nodes * int(most * 2**BITS) < 2**63 <= nodes * (int(most * 2**BITS * (1 + 2**-51)) + nodes)
    with pytest.raises(ProtocolError, match="out of range"):
        encoding.encode(np.array([math.nextafter(most, math.inf)]), nodes, "")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (math.nan, r"loss\[1, 0\] is not finite"),
        (math.inf, r"loss\[1, 0\] is not finite"),
        (1e300, r"loss\[1, 0\] is out of range: sums of 10 nodes take numbers up to 2\.15e\+08 in size"),
        (-2.2e8, r"loss\[1, 0\] is out of range"),
    ],
)
def test_what_has_no_place_in_the_ring_is_named_by_entry_and_index(value: float, said: str) -> None:
    with pytest.raises(ProtocolError, match=said) as caught:
        encoding.encode(np.array([[0.5], [value]]), 10, "loss")
    assert f"{value:.1e}"[:4] not in str(caught.value)  # what it is stays there


def test_numbers_beyond_are_clipped_and_counted_where_that_is_declared() -> None:
    encoded, clipped = encoding.encode(np.array([1e300, -1e300, 1.0, -0.0]), 10, "", clip=True)
    most = encoding.largest(10)
    assert (encoding.decode(encoded).tolist(), clipped) == ([most, -most, 1.0, 0.0], 2)
    assert not np.signbit(encoding.decode(encoded)[3])


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63), 2**61])
def test_integers_are_exact_or_an_error(number: int) -> None:
    most = (2**63 - 1) // 4
    exact = encoding.encode_whole(np.array([most, -most, 2**53 + 1]), 4, "")
    assert encoding.decode_whole(exact).tolist() == [most, -most, 2**53 + 1]
    with pytest.raises(ProtocolError, match=r"samples\[0\] is out of range"):
        encoding.encode_whole(np.array([number]), 4, "samples")


@given(st.data(), st.integers(4, 300), st.integers(0, 40))
@settings(deadline=None, max_examples=40)
def test_counters_add_up_inside_their_words(data: st.DataObject, nodes: int, size: int) -> None:
    counts = [data.draw(st.lists(st.integers(0, 1), min_size=size, max_size=size)) for _ in range(5)]
    counts += [[1] * size] * (nodes - 5)  # up to all nodes
    packed = [encoding.pack(np.array(c, dtype=np.uint64), nodes) for c in counts[:nodes]]
    assert {len(p) for p in packed} == {encoding.packed_size(size, nodes)}
    total = encoding.unpack(plain(packed), nodes, size)
    assert total.tolist() == np.sum(counts[:nodes], axis=0, dtype=int, initial=0).tolist() if size else not len(total)


# ------------------------------------------------------------------------------------------------ vectors
FLOATS = st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 1e-12])


@given(st.data())
@settings(deadline=None, max_examples=40)
def test_a_masked_sum_is_the_plain_one_with_dropouts_and_whatever_is_not_finite(data: st.DataObject) -> None:
    nodes, size = data.draw(st.integers(4, 8)), data.draw(st.integers(1, 5))
    payloads = [
        {
            "loss": torch.tensor(data.draw(st.lists(FLOATS, min_size=size, max_size=size))).unsqueeze(1),
            "half": torch.tensor([data.draw(st.floats(-100, 100))], dtype=torch.float16),
            "samples": torch.tensor([data.draw(st.integers(0, 2**40))]),
            "flag": torch.tensor(data.draw(st.booleans())),
        }
        for _ in range(nodes)
    ]
    gone = data.draw(st.sets(st.integers(0, nodes - 1), max_size=nodes - enough(nodes)))
    vectors_ = [encoding.flatten(payload, nodes) for payload in payloads]
    view = play(agree(nodes), vectors_, gone=gone)
    got, clipped = encoding.unflatten(view.opened(), PayloadSpec.of(payloads[0]), nodes)
    wanted = RunningSum(Header(0, 0))
    for i, payload in enumerate(payloads):
        if i not in gone:
            wanted.add(Reply(Header(0, 0), str(i), payload=payload))
    assert clipped == 0
    assert_close(got, dict(wanted.reply().payload), nodes)


@given(st.data())
@settings(deadline=None, max_examples=25)
def test_a_masked_weighted_mean_is_the_plain_one_to_nine_digits(data: st.DataObject) -> None:
    """Unequal weights inside the vector: n_k and n_k f_k, divided once (openfl PR#1407 had this wrong)."""
    nodes = data.draw(st.integers(4, 7))
    counts = data.draw(st.lists(st.integers(1, 5000), min_size=nodes, max_size=nodes))
    losses = data.draw(st.lists(st.floats(0.02, 2e4), min_size=nodes, max_size=nodes))
    gone = data.draw(st.sets(st.integers(0, nodes - 1), max_size=nodes - enough(nodes)))
    payloads = [
        {"loss": torch.tensor([n * f], dtype=torch.float64), "samples": torch.tensor([n])}
        for n, f in zip(counts, losses, strict=True)
    ]
    view = play(agree(nodes), [encoding.flatten(p, nodes) for p in payloads], gone=gone)
    got, _ = encoding.unflatten(view.opened(), PayloadSpec.of(payloads[0]), nodes)
    left = [i for i in range(nodes) if i not in gone]
    mean = sum(Fraction(counts[i]) * Fraction(losses[i]) for i in left) / sum(counts[i] for i in left)
    assert float(got["loss"]) / int(got["samples"]) == pytest.approx(float(mean), rel=1e-9)
