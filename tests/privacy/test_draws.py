"""Private random numbers, and the Gaussian mechanism on a grid: laws, exact sums, bounds that hold to the last bit."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from fne.core.errors import SettingError
from fne.privacy import draws
from fne.privacy.draws import LEAST_STEPS, Draws, key_of
from fne.privacy.noise import noised, step_of, whole
from fne.secure import encoding

KEY = bytes(range(32))


def stream(vector: Tensor | None = None) -> Draws:
    return Draws(KEY)


# ------------------------------------------------------------------------------------------------ streams
def test_words_are_those_of_chacha20() -> None:
    """The first block of RFC 8439's keystream for a key and nonce of zeros, and then the same again by our counter."""
    (block,) = [Draws(bytes(32))]
    block._calls = -1  # the nonce of the first call is then 0
    wanted = "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    assert block.words(4).astype("<u8").tobytes().hex() == wanted


def test_a_stream_goes_on_and_another_key_gives_another() -> None:
    one, again, other = Draws(KEY), Draws(KEY), Draws(KEY[::-1])
    assert one.words(3).tolist() == again.words(3).tolist() != other.words(3).tolist()
    assert one.words(3).tolist() == again.words(3).tolist() != Draws(KEY).words(3).tolist()


def test_addresses_are_told_apart_by_their_parts() -> None:
    addresses: list[tuple[bytes, ...]] = [(), (b"",), (b"", b""), (b"a", b"b"), (b"ab",), (b"ab", b""), (b"", b"ab")]
    assert len({key_of(KEY, *address) for address in addresses} | {key_of(KEY[::-1])}) == len(addresses) + 1


def test_uniform_and_normal_numbers_have_their_laws() -> None:
    uniform = Draws(KEY).uniform(1000, 100)
    assert 0 < float(uniform.min()) < 1e-4 < 1 - 1e-4 < float(uniform.max()) < 1
    assert stats.kstest(uniform.flatten().numpy(), "uniform").pvalue > 1e-3
    normal = Draws(KEY[::-1]).normal(100, 1000)
    assert normal.shape == (100, 1000)
    assert stats.kstest(normal.flatten().numpy(), "norm").pvalue > 1e-3


@pytest.mark.parametrize("rate", [1e-3, 0.1, 1 / 3, 1.0])
def test_records_are_drawn_at_their_rate_and_never_above_it(rate: float) -> None:
    drawn = Draws(KEY).chosen(200_000, rate)
    assert abs(int(drawn.sum()) - 200_000 * rate) <= 4 * math.sqrt(200_000 * rate * (1 - rate))
    assert Fraction(int(Fraction(rate) * 2**64), 2**64) <= Fraction(rate)


# ------------------------------------------------------------------------------------------------ discrete Gaussian
def law(deviation: float) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return whole numbers and their probabilities, summed up directly."""
    numbers = np.arange(-math.ceil(9 * deviation), math.ceil(9 * deviation) + 1)
    weights = np.exp(-np.square(numbers / deviation) / 2)
    return numbers, weights / weights.sum()


@pytest.mark.parametrize("deviation", [8.0, 11.3, 700.0, 1023.9, 1024.0, 5000.7, 1e6])
def test_noise_has_the_law_of_the_discrete_gaussian(deviation: float) -> None:
    """Chi-square over bins of a tenth of a deviation; one of 700 is drawn number by number, the larger by cells."""
    noise = Draws(KEY).gaussian(400_000, deviation)
    numbers, probability = law(deviation)
    edges = np.unique(np.round(np.arange(-3.5, 3.6, 0.1) * deviation)).astype(np.int64)
    below = np.concatenate([[0.0], probability.cumsum()])
    expected = np.diff(below[edges - numbers[0]]) * len(noise)
    found = np.diff(np.searchsorted(np.sort(noise), edges))
    assert stats.chisquare(found, expected * found.sum() / expected.sum()).pvalue > 1e-3
    assert float(noise.std()) == pytest.approx(deviation, rel=0.005)
    for bit in (1, 2, 4):  # the lowest ones are even: they tell nothing
        assert abs(int((noise & bit != 0).sum()) - 200_000) < 4 * math.sqrt(100_000)


@pytest.mark.parametrize("deviation", [8.0, 30.0])
def test_cells_of_several_numbers_have_the_same_law(deviation: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "_CELLS", 3)  # cells that are wide against a deviation: many are drawn anew
    draws._table.cache_clear()
    try:
        noise = Draws(KEY).gaussian(1_000_000, deviation)
    finally:
        draws._table.cache_clear()
    numbers, probability = law(deviation)
    kept = probability * len(noise) > 10
    found = np.array([(noise == number).sum() for number in numbers[kept]])
    assert stats.chisquare(found, probability[kept] * found.sum() / probability[kept].sum()).pvalue > 1e-3


@pytest.mark.parametrize("deviation", [8.0, 333.3, 1023.0])
def test_the_table_is_exact(deviation: float) -> None:
    """Each probability, an exact difference of whole numbers, against one summed up with fractions."""
    table = draws._table(deviation)
    sums = [(int(a) << 64) + int(b) for a, b in zip(table.above, table.below, strict=True)]
    most = len(sums) // 2
    weights = [Fraction(math.exp(-((n / deviation) ** 2) / 2)) for n in range(-most, most + 1)]
    total = sum(weights)
    for place in (
        most,
        most + 1,
        most - 1,
        most + int(2 * deviation),
        most - int(5 * deviation),
        most + int(8 * deviation),
    ):
        found = Fraction(sums[place] - sums[place - 1], 2**128)
        assert abs(found / (weights[place] / total) - 1) < Fraction(1, 10**12)
    assert sums[-1] == 2**128 - 1


def test_a_tie_with_the_table_is_broken_by_further_bits() -> None:
    table = draws._table(500.0)
    place = len(table.above) // 2 + 3

    class Rigged(Draws):
        __slots__ = ("low",)

        def words(self, count: int) -> Any:
            return np.full(count, self.low if count == 1 else table.above[place], np.uint64)

    for low, wanted in ((int(table.below[place]) - 1, place), (int(table.below[place]), place + 1)):
        rigged = Rigged(KEY)
        rigged.low = np.uint64(low)
        assert set((rigged.gaussian(2, 500.0) + len(table.above) // 2).tolist()) == {wanted}


@pytest.mark.parametrize("deviation", [7.9, 0.0, -1.0, math.nan, math.inf, 2.0**40])
def test_deviations_out_of_range_are_refused(deviation: float) -> None:
    with pytest.raises(ValueError, match=f"must be {LEAST_STEPS} to"):
        Draws(KEY).gaussian(1, deviation)


def hockey_stick(shift: int, deviation: float, epsilon: float) -> tuple[float, float]:
    """Return delta of discrete and of continuous noise at `epsilon` for a number that moves by `shift` steps.

    Of discrete noise by theorem 7 of Canonne, Kamath and Steinke, of continuous by Balle and Wang (ICML 2018).
    """
    numbers, probability = law(deviation)
    middle, half = epsilon * deviation**2 / shift, shift / 2
    tails = [probability[numbers > bound].sum() for bound in (middle - half, middle + half)]
    normal = [stats.norm.sf(bound / deviation) for bound in (middle - half, middle + half)]
    return tails[0] - math.exp(epsilon) * tails[1], normal[0] - math.exp(epsilon) * normal[1]


@pytest.mark.parametrize("multiplier", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0])
def test_bounds_of_continuous_noise_hold_for_discrete_noise(multiplier: float, epsilon: float) -> None:
    """On the coarsest grid of noise that is any protection at all, within the error that PRV adds (0.01)."""
    deviation = 700.0
    shift = round(deviation / multiplier)
    discrete = hockey_stick(shift, deviation, epsilon)[0]
    assert 0 <= discrete <= hockey_stick(shift, shift * multiplier, epsilon - 0.01)[1] + 1e-12


# ------------------------------------------------------------------------------------------------ the mechanism
@given(
    st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=40), st.floats(1e-3, 1e3),
    st.floats(1e-5, 100), st.floats(0, 1),
)  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_whole_numbers_are_never_longer_than_the_clip(
    numbers: list[float], most: float, multiplier: float, share: float
) -> None:
    values = torch.tensor(numbers, dtype=torch.float64)
    norm = float(values.norm())
    vector = (values / norm * most * share).float() if norm else values.float()
    step = step_of(multiplier, most)
    assert math.frexp(step)[0] == 0.5  # a power of two
    told = whole(vector, most, step)
    assert sum(int(value) ** 2 for value in told) <= (Fraction(most) / Fraction(step)) ** 2
    assert float((told * step - vector.double()).norm()) <= 1e-3 * most + 2 * step * math.sqrt(len(numbers))


def test_what_is_sent_is_a_whole_number_of_steps_that_sums_keep() -> None:
    """Of the noised vector, of its float32, and of sums of it in the ring: nothing is rounded anywhere."""
    torch.manual_seed(0)
    total, words = torch.zeros(1000, dtype=torch.float64), np.zeros(1000, np.uint64)
    step = step_of(0.7, 0.3)
    for number in range(5):
        vector = torch.randn(1000)
        vector = vector / vector.norm() * 0.29
        sent = noised(vector, 0.7, 0.3, lambda told, number=number: Draws(bytes([number] * 32)))  # type: ignore[misc]
        steps = sent.double() / step
        assert torch.equal(steps, steps.round())
        assert sent.dtype == torch.float32
        assert float(steps.abs().max()) < 2**24
        total += sent.double()
        words += encoding.encode(sent.numpy(), 5, "update")[0]
    assert np.array_equal(encoding.decode(words), total.numpy())
    assert float(total.std()) == pytest.approx(0.21 * math.sqrt(5), rel=0.1)


def test_noise_is_of_the_vector_that_it_hides() -> None:
    seen: list[Tensor] = []

    def drawn(told: Tensor) -> Draws:
        seen.append(told)
        return Draws(KEY)

    vector = torch.tensor([0.6, -0.8])
    sent = noised(vector, 1.0, 1.0, drawn)
    assert torch.equal(seen[0], whole(vector, 1.0, step_of(1.0, 1.0)))
    noise = torch.from_numpy(Draws(KEY).gaussian(2, 1.0 / step_of(1.0, 1.0)))
    assert torch.equal(sent.double(), (seen[0] + noise) * step_of(1.0, 1.0))
    assert noised(vector, 0.0, 1.0, drawn) is vector
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("multiplier", "most"), [(-1.0, 1.0), (math.nan, 1.0), (1e-7, 1.0), (1.0, 1e-10), (1e38, 10.0)]
)
def test_noise_out_of_range_is_refused_with_the_number(multiplier: float, most: float) -> None:
    with pytest.raises(SettingError, match=re.escape(f"noise = {multiplier}: must be ")):
        noised(torch.zeros(2), multiplier, most, stream)
