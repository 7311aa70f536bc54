"""Compression: bytes by hand and by a slow encoder, what comes back, sizes, damage, and the order of clip and noise."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fne.core.errors import FneError, SettingError
from fne.core.randomness import generator
from fne.evolution.genome import Layout, Leaf
from fne.privacy.compression import (
    clipped,
    decode,
    encode,
    is_fully_connected,
    prepare,
    prunable,
    quantised,
    sparsified,
)
from fne.privacy.draws import Draws
from fne.privacy.noise import noised

SPECIAL = (0.0, -0.0, 1e-45, -1e-45, 1.17e-38, 3.4028235e38, -3.4028235e38, 1.0, -1.0)
NUMBERS = st.one_of(st.sampled_from(SPECIAL), st.floats(width=32, allow_nan=False, allow_infinity=False))
BITS = (2, 3, 7, 8, 9, 16)
PLAIN: dict[str, Any] = {"threshold": 0.0, "bits": 32, "clip": None, "noise": 0.0}


def leaves(*sizes: int) -> tuple[Leaf, ...]:
    stops = np.cumsum(sizes).tolist()
    return tuple(
        Leaf(f"part {i}", (size,), stop - size, stop, 0, i, 0.1)
        for i, (size, stop) in enumerate(zip(sizes, stops, strict=True))
    )


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def same(one: Tensor, other: Tensor) -> bool:
    """Bit for bit, so that -0.0 is not 0.0."""
    return one.dtype == other.dtype == torch.float32 and torch.equal(one.view(torch.int32), other.view(torch.int32))


@st.composite
def vectors(draw: st.DrawFn, most: int = 40) -> tuple[Tensor, tuple[Leaf, ...]]:
    """Return values of up to three parts, some of them pruned."""
    sizes = draw(st.lists(st.one_of(st.sampled_from((0, 1, 7, 8, 9)), st.integers(0, most)), min_size=1, max_size=3))
    numbers = draw(st.lists(NUMBERS, min_size=sum(sizes), max_size=sum(sizes)))
    kept = draw(st.lists(st.booleans(), min_size=sum(sizes), max_size=sum(sizes)))
    return vector(*(x if keep else 0.0 for x, keep in zip(numbers, kept, strict=True))), leaves(*sizes)


# ------------------------------------------------------------------------------------------------ an encoder of its own
def octets(bits: str) -> bytes:
    return bytes(int(bits[at : at + 8].ljust(8, "0"), 2) for at in range(0, len(bits), 8))


def rice(marked: Sequence[bool], k: int) -> tuple[str, str]:
    """Return quotients and remainders of the gaps before what is marked, as text."""
    text = "".join("x" if m else "." for m in marked)
    gaps = [len(run) for run in text.split("x")[:-1]]
    return "".join("0" * (gap >> k) + "1" for gap in gaps), "".join(f"{gap:032b}"[32 - k :] for gap in gaps)


def slow_part(values: list[float], bits: int, rounding: str) -> bytes:
    kept = [v != 0 or (bits == 32 and math.copysign(1, v) < 0) for v in values]
    sent = [v for v, keep in zip(values, kept, strict=True) if keep]
    if not any(kept):
        return b"\x41"
    if all(kept):
        out = b"\x40"
    else:
        tried = {(c, k): rice([keep != bool(c) for keep in kept], k) for c in (0, 32) for k in range(16)}
        c, k = min(tried, key=lambda it: (len(tried[it][0] + tried[it][1]), sum(it)))
        count = len(sent) if c == 0 else len(values) - len(sent)
        out = struct.pack(">BI", c + k, count) + octets(tried[c, k][0]) + octets(tried[c, k][1])
    if bits == 32:
        return out + b"".join(struct.pack(">f", v) for v in sent)
    low, high = min(sent), max(sent)
    out += struct.pack(">ff", low, high)
    if low == high:
        return out
    exact = [(v - low) / (high - low) * (2**bits - 1) for v in sent]
    levels = [math.floor(x) if rounding == "floor" else round(x) for x in exact]
    return out + octets("".join(f"{level:0{bits}b}" for level in levels))


def head(bits: int, body: bytes, parts: Sequence[Leaf]) -> bytes:
    sizes = [bits, *(part.stop - part.start for part in parts)]
    return struct.pack(">BI", bits, zlib.crc32(body, zlib.crc32(str(sizes).encode())))


@given(vectors(), st.sampled_from((*BITS, 32)), st.sampled_from(("nearest", "floor")))
@settings(max_examples=150, deadline=None)
def test_bytes_are_those_of_a_slow_encoder(drawn: tuple[Tensor, tuple[Leaf, ...]], bits: int, rounding: Any) -> None:
    values, parts = drawn
    body = b"".join(slow_part(values[part.start : part.stop].tolist(), bits, rounding) for part in parts)
    assert encode(values, parts, bits, rounding).numpy().tobytes() == head(bits, body, parts) + body


# ------------------------------------------------------------------------------------------------ what comes back
def test_a_small_update_by_hand() -> None:
    """1, 2, 3 on four levels: 0, 1.5 -> 2, 3; their gaps 1, 2, 1 are shortest at k = 1, or as unary: 01 001 01."""
    values, parts = vector(0, 1, 0, 0, 2, 0, 3, 0, 0, 0, 0), leaves(11)
    body = bytes([0]) + struct.pack(">I", 3) + bytes([0b01001010]) + struct.pack(">ff", 1, 3) + bytes([0b00101100])
    payload = encode(values, parts, 2)
    assert payload.numpy().tobytes() == head(2, body, parts) + body
    assert same(decode(payload, parts), vector(0, 1, 0, 0, 7 / 3, 0, 3, 0, 0, 0, 0))
    assert same(quantised(values, parts, 2, "floor"), vector(0, 1, 0, 0, 5 / 3, 0, 3, 0, 0, 0, 0))


@pytest.mark.parametrize("bits", [2, 16, 32])
@pytest.mark.parametrize(
    ("sizes", "values"),
    [
        ((0,), ()),
        ((3,), (0, 0, 0)),
        ((1,), (0.1,)),
        ((4, 0, 2), (0.1, 0.1, 0.1, 0.1, -7, -7)),
        ((5,), (0, 0.3, 0, 0.3, 0)),
        ((2, 2), (-1e-45, 1e-45, 3.4028235e38, -3.4028235e38)),
        ((2,), (-1e30, 1e-30)),
    ],
)
def test_parts_of_one_or_two_values_come_back_as_they_are(
    sizes: tuple[int, ...], values: tuple[float, ...], bits: int
) -> None:
    assert same(quantised(vector(*values), leaves(*sizes), bits), vector(*values))


@given(vectors(), st.sampled_from(BITS), st.sampled_from(("nearest", "floor")))
@settings(max_examples=150, deadline=None)
def test_levels_are_the_nearest_or_those_below(
    drawn: tuple[Tensor, tuple[Leaf, ...]], bits: int, rounding: Any
) -> None:
    values, parts = drawn
    result = quantised(values, parts, bits, rounding)
    assert not (torch.signbit(result) & (result == 0)).any()
    assert (result[values == 0] == 0).all()
    for part in parts:
        old, new = (v[part.start : part.stop] for v in (values, result))
        kept = old != 0
        if not kept.any():
            continue
        assert (new[kept].min(), new[kept].max()) == (old[kept].min(), old[kept].max())
        low, high = Fraction(old[kept].min().item()), Fraction(old[kept].max().item())
        step = (high - low) / (2**bits - 1)
        for before, after in zip(old[kept].tolist(), new[kept].tolist(), strict=True):
            rounded = Fraction(abs(after)) / 2**23 + Fraction(1, 2**149) + (high - low) / 2**50
            off = Fraction(after) - Fraction(before)
            assert -(step if rounding == "floor" else step / 2) - rounded <= off
            assert off <= (0 if rounding == "floor" else step / 2) + rounded


def test_a_level_that_underflows_is_0_without_a_sign() -> None:
    """-2, -1, 3 units of the last place on four levels: -1 is nearest to -1/3, which is no float32 but -0.0."""
    unit = 2.0**-149
    assert same(quantised(vector(-2 * unit, -unit, 3 * unit), leaves(3), 2), vector(-2 * unit, 0.0, 3 * unit))


def test_the_floor_biases_and_the_nearest_level_does_not() -> None:
    values = torch.randn(20_000, generator=generator(3))
    parts = leaves(20_000)
    step = float(values.max() - values.min()) / 15
    assert (quantised(values, parts, 4, "floor") - values).mean() / step == pytest.approx(-0.5, abs=0.01)
    assert (quantised(values, parts, 4) - values).mean() / step == pytest.approx(0, abs=0.01)


@given(vectors())
@settings(max_examples=100, deadline=None)
def test_an_update_comes_back_bit_for_bit_if_nothing_is_asked(drawn: tuple[Tensor, tuple[Leaf, ...]]) -> None:
    values, parts = drawn
    prepared = prepare(values, parts, **PLAIN)
    assert same(prepared.update, values)
    sent = [int((values[part.start : part.stop].view(torch.int32) != 0).sum()) for part in parts]
    sizes = [part.stop - part.start for part in parts]
    positions = sum(5 + -(-n // 8) + 1 if 0 < m < n else 1 for m, n in zip(sent, sizes, strict=True))
    assert 4 * sum(sent) + 5 + len(parts) <= prepared.size <= 4 * sum(sent) + 5 + positions


# ------------------------------------------------------------------------------------------------ sizes
@pytest.mark.parametrize("bits", [*BITS, 32])
@pytest.mark.parametrize("sizes", [(8,), (7, 9), (1000, 10, 2)])
def test_a_dense_update_takes_its_bits_and_heads(sizes: tuple[int, ...], bits: int) -> None:
    values = 1 + torch.rand(sum(sizes), generator=generator(1))
    expected = 5 + sum(1 + (8 if bits < 32 else 0) + -(-n * bits // 8) for n in sizes)
    assert encode(values, leaves(*sizes), bits).numel() == expected


@pytest.mark.parametrize("sent", [0.001, 0.01, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 0.99])
def test_positions_of_random_values_take_little_more_than_their_entropy(sent: float) -> None:
    size = 50_000
    values = torch.where(
        torch.rand(size, generator=generator(2)) < sent, torch.rand(size, generator=generator(3)) + 1, 0.0
    )
    count = int((values != 0).sum())
    p = count / size
    entropy = size * -(p * math.log2(p) + (1 - p) * math.log2(1 - p))
    heads = 5 + 1 + 4 + 8
    positions = 8 * (encode(values, leaves(size), 8).numel() - count - heads)
    assert entropy * 0.98 <= positions <= entropy * 1.05


# ------------------------------------------------------------------------------------------------ damage
@pytest.mark.parametrize("bits", [5, 32])
def test_a_damaged_payload_is_refused(bits: int) -> None:
    parts = leaves(30, 4, 3, 2)
    values = vector(*(i % 3 for i in range(30)), 1, 2, 3, 4, 0, 0, 0, 6, 6)
    payload = encode(values, parts, bits)
    broken = [payload[:n] for n in range(payload.numel())] + [torch.cat([payload, payload[:1]])]
    for at in range(payload.numel()):
        broken.append(payload.clone())
        broken[-1][at] ^= 1 << at % 8
    for one in broken:
        with pytest.raises(FneError, match=r"compressed update: .*let the node send it again"):
            decode(one, parts)
    with pytest.raises(FneError, match="checksum"):
        decode(payload, leaves(30, 4, 2, 3))


def floats(*values: float) -> bytes:
    return b"".join(struct.pack(">f", v) for v in values)


@pytest.mark.parametrize(
    ("bits", "body", "reason"),
    [
        (17, b"\x41", "checksum"),
        (8, b"", "too early"),
        (8, b"\x41\x41", "left over"),
        (8, b"\x42\0\0\0\1", "coding 66"),
        (8, b"\x00\0\0\0\x09", "9 positions of 9"),
        (8, b"\x00\0\0\0\0", "0 positions of 9"),
        (8, b"\x00\0\0\0\2\x80\0", "positions end too early"),
        (8, b"\x00\0\0\0\2", "positions end too early"),
        (8, b"\x02\0\0\0\2\x40\xf0" + floats(1, 1), "positions end too early"),
        (8, b"\x1f\0\0\0\1\x80\xff\xff\xff\xff", "beyond the 9"),
        (8, b"\x40" + floats(1, math.nan), "run from 1.0 to nan"),
        (8, b"\x40" + floats(1, math.inf), "run from 1.0 to inf"),
        (8, b"\x40" + floats(1, -1), "run from 1.0 to -1.0"),
        (8, b"\x40" + floats(-1, 1) + bytes(8), "too early"),
        (32, b"\x40" + floats(*range(8), math.nan), "not finite"),
    ],
)
def test_a_payload_that_lies_is_refused(bits: int, body: bytes, reason: str) -> None:
    """Its checksum is right: somebody meant it."""
    parts = leaves(9)
    with pytest.raises(FneError, match=reason):
        decode(torch.tensor([*(head(bits, body, parts) + body)], dtype=torch.uint8), parts)


@given(st.binary(max_size=60), st.sampled_from((2, 16, 32)))
@settings(max_examples=200, deadline=None)
def test_any_bytes_decode_or_are_refused(body: bytes, bits: int) -> None:
    parts = leaves(9, 3)
    try:
        result = decode(torch.tensor([*(head(bits, body, parts) + body)], dtype=torch.uint8), parts)
    except FneError:
        return
    assert result.shape == (12,)
    assert result.isfinite().all()


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused_with_its_part(wrong: float) -> None:
    values, parts = vector(1, 2, 3, wrong, wrong), leaves(2, 0, 3)
    with pytest.raises(FneError, match=f"part 2: 2 of its 3 values are not finite, such as {wrong}"):
        prepare(values, parts, **{**PLAIN, "threshold": 9.0}, prune="all")
    with pytest.raises(FneError, match="part 2"):
        encode(values, parts, 8)


# ------------------------------------------------------------------------------------------------ pruning
def test_only_fully_connected_weights_are_pruned_unless_all_are() -> None:
    parts = Layout(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))).leaves
    assert [part.name for part in parts if is_fully_connected(part)] == ["2.weight"]
    where = prunable(parts, "fc")
    assert where.tolist() == [False] * 20 + [True] * 24 + [False] * 3
    assert prunable(parts, "all").all()
    values = torch.full((47,), 0.1)
    values[30] = -0.3
    expected = torch.where(where, 0.0, values)
    expected[30] = -0.3
    assert same(sparsified(values, 0.2, where), expected)


def test_a_threshold_keeps_what_reaches_it_and_0_keeps_all() -> None:
    values, everywhere = vector(0.1, -0.1, 0.09, -0.2, -0.0, 1e-45), torch.ones(6, dtype=torch.bool)
    assert same(sparsified(values, 0.1, everywhere), vector(0.1, -0.1, 0, -0.2, 0, 0))
    assert same(sparsified(values, 0.0, everywhere), values)


# ------------------------------------------------------------------------------------------------ clip and noise
def draws(vector: Tensor) -> Draws:
    return Draws(bytes(32))


@given(st.lists(NUMBERS, max_size=30), st.floats(1e-3, 1e3))
@settings(max_examples=100, deadline=None)
def test_a_clipped_vector_is_no_longer_than_asked(numbers: list[float], most: float) -> None:
    values = vector(*numbers)
    result = clipped(values, most)
    norms = [math.sqrt(math.fsum(x * x for x in v.tolist())) for v in (values, result)]
    if norms[0] <= most:
        assert same(result, values)
    else:
        assert most * (1 - 1e-6) <= norms[1] <= most
    assert clipped(values, None) is values


def test_proper_clips_and_noises_the_update_and_sends_that_compressed() -> None:
    parts = Layout(nn.Linear(4, 5)).leaves
    delta = torch.randn(25, generator=generator(5))
    prepared = prepare(delta, parts, threshold=0.5, bits=4, clip=1.0, noise=0.5, prune="fc", draws=draws)
    noisy = noised(clipped(delta, 1.0), 0.5, 1.0, draws).double()
    pruned = torch.where((noisy.abs() < 0.5) & (torch.arange(25) < 20), 0.0, noisy)
    assert torch.equal(prepared.update == 0, pruned == 0)
    for part in (pruned[:20], pruned[20:]):
        low, high = part[part != 0].min(), part[part != 0].max()
        levels = ((part - low) / (high - low) * 15).round()
        part[:] = torch.where(part == 0, 0.0, low + levels * (high - low) / 15)
    torch.testing.assert_close(prepared.update.double(), pruned, rtol=0, atol=1e-6)
    assert same(prepared.update, decode(prepared.payload, parts))
    assert prepared.size < 5 + 2 * 14 + 25


def test_literal_compresses_weights_and_its_noise_makes_them_dense_floats_again() -> None:
    parts = Layout(nn.Linear(4, 5, bias=False)).leaves
    origin, delta = (torch.randn(20, generator=generator(6, part)) for part in ("origin", "delta"))
    asked: dict[str, Any] = {"threshold": 0.5, "bits": 8, "clip": 1.0, "order": "literal", "origin": origin}
    weights = quantised(sparsified(origin + delta, 0.5, torch.ones(20, dtype=torch.bool)), parts, 8)
    weights = weights / weights.norm()
    sparse = prepare(delta, parts, **asked, noise=0.0)
    torch.testing.assert_close(sparse.update, weights - origin, rtol=0, atol=1e-6)
    assert sparse.size < 20 + 5 + 14 + 3
    noisy = prepare(delta, parts, **asked, noise=2.0, draws=draws)
    noise = noised(torch.zeros(20), 2.0, 1.0, draws)
    torch.testing.assert_close(noisy.update, weights + noise - origin, rtol=0, atol=1e-5)
    assert noisy.size == 5 + 1 + 4 * 20


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"bits": 1}, "bits = 1: must be 2 to 16, or 32"),
        ({"bits": 17}, "bits = 17"),
        ({"noise": 1.0}, "clip = null: must be a number above 0, which the noise"),
        ({"noise": -1.0, "clip": 1.0}, "noise = -1.0: must be"),
        ({"clip": 0.0}, "clip = 0.0: must be"),
        ({"prune": "conv"}, "prune = 'conv': must be fc or all"),
        ({"order": "other"}, "order = 'other': must be proper or literal"),
        ({"rounding": "up"}, "rounding = 'up': must be nearest or floor"),
    ],
)
def test_settings_out_of_range_are_refused(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        prepare(vector(1, 2), leaves(2), **{**PLAIN, **asked})


@pytest.mark.parametrize(
    ("delta", "asked", "message"),
    [
        (vector(1, 2), {"order": "literal"}, "give the origin"),
        (vector(1, 2), {"noise": 1.0, "clip": 1.0}, "private"),
        (vector(1, 2, 3), {}, r"float32 \[2\], not torch.float32 \[3\]"),
        (vector(1, 2).double(), {}, r"not torch.float64 \[2\]"),
    ],
)
def test_calls_that_cannot_be_meant_are_refused(delta: Tensor, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prepare(delta, leaves(2), **{**PLAIN, **asked})


def test_a_rate_prunes_that_share_of_what_may_be_pruned() -> None:
    parts = Layout(nn.Linear(20, 10)).leaves
    size = parts[-1].stop
    delta = torch.arange(1, size + 1).float() * (-1) ** torch.arange(size)
    sent = prepare(delta, parts, threshold=0.25, bits=32, clip=None, noise=0, pruning="rate").update
    may = prunable(parts, "fc")
    assert int((sent[may] == 0).sum()) == 50
    assert sent[may].abs()[sent[may] != 0].min() > delta[may].abs().sort().values[49]
    assert torch.equal(sent[~may], delta[~may])
    for rate, left in ((0.0, 210), (1.0, 1)):
        sent = prepare(delta, parts, threshold=rate, bits=32, clip=None, noise=0, pruning="rate", prune="all").update
        assert int((sent != 0).sum()) == left
    nothing = prepare(delta[:0], (), threshold=0.5, bits=32, clip=None, noise=0, pruning="rate")
    assert nothing.update.numel() == 0
