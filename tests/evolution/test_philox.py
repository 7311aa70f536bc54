"""Philox: the published vectors, an independent form in plain Python, addresses, and how `noise` is distributed."""

from __future__ import annotations

import hashlib
import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats

from fne.core.randomness import derive_seed
from fne.evolution import philox
from fne.evolution.philox import SQUARE_VARIANCE, UNIT, VARIANCE, Perturbations, Purpose, Stream

ONES = 0xFFFFFFFF


def plain(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Return Philox4x32-10 in unbounded integers, as the paper writes it."""
    (k0, k1), (c0, c1, c2, c3) = key, counter
    for _ in range(10):
        first, second = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = second >> 32 ^ c1 ^ k0, second & ONES, first >> 32 ^ c3 ^ k1, first & ONES
        k0, k1 = k0 + 0x9E3779B9 & ONES, k1 + 0xBB67AE85 & ONES
    return c0, c1, c2, c3


def key_of(seed: int) -> tuple[int, int]:
    return derive_seed(seed, "philox") & ONES, derive_seed(seed, "philox") >> 32


def expected(seed: int, purpose: int, generation: int, individual: int, genes: int) -> list[int]:
    blocks = (plain(key_of(seed), (b, individual, generation, purpose)) for b in range(-(-genes // 4)))
    return list(itertools.chain(*blocks))[:genes]


# ------------------------------------------------------------------------------------------------ the generator
@pytest.mark.parametrize(
    ("key", "counter", "words"),
    [  # of the authors' library Random123, file kat_vectors
        ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES, ONES), (ONES, ONES, ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0xA4093822, 0x299F31D0), (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["tensor", "array"])
def test_the_published_vectors(
    key: tuple[int, int], counter: tuple[int, ...], words: tuple[int, ...], kind: str
) -> None:
    inputs = [torch.tensor([word]) if kind == "tensor" else np.array([word]) for word in counter]
    assert tuple(int(word[0]) for word in philox.philox(key, inputs)) == words
    assert plain(key, counter) == words  # type: ignore[arg-type]
    assert [int(word[0]) for word in inputs] == list(counter), "the counter is not written to"


def test_any_counter_gives_what_plain_python_gives() -> None:
    draw = np.random.default_rng(0)
    counters = draw.integers(0, 2**32, size=(4, 200))
    counters[:, :4] = [[0], [ONES], [2**31], [2**31 - 1]]
    key = tuple(int(word) for word in draw.integers(0, 2**32, size=2))
    for kind in (torch.from_numpy, np.array):
        words = np.array([np.asarray(word) for word in philox.philox(key, [kind(c) for c in counters])])  # type: ignore
        assert [tuple(column) for column in words.T] == [plain(key, tuple(c)) for c in counters.T.tolist()]  # type: ignore


# ------------------------------------------------------------------------------------------------ addresses
@pytest.mark.parametrize("purpose", list(Purpose))
@pytest.mark.parametrize("genes", [1, 3, 4, 63])
def test_words_are_those_of_their_address(purpose: Purpose, genes: int) -> None:
    words = Stream(7, purpose).words(5, range(2, 6), genes)
    assert words.tolist() == [expected(7, int(purpose), 5, i, genes) for i in range(2, 6)]


@pytest.mark.parametrize("kind", ["words", "uniform", "noise"])
def test_numbers_depend_on_their_address_alone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = getattr(Stream(0, Purpose.CROSSOVER), kind)
    whole = numbers(3, range(9), 101)
    for rows, genes in ((range(4, 5), 101), (range(2, 9), 7), (range(9), 1)):
        assert torch.equal(numbers(3, rows, genes), whole[rows.start : rows.stop, :genes])
    assert torch.equal(whole, getattr(Stream(0, Purpose.CROSSOVER), kind)(3, range(9), 101))
    for chunk in (1, 5, 40):  # passes that split individuals, and passes that join some
        monkeypatch.setitem(philox._CHUNK, "cpu", chunk)
        assert torch.equal(numbers(3, range(9), 101), whole)
    others = [
        Stream(1, Purpose.CROSSOVER), Stream(0, Purpose.DONORS), Stream(0, Purpose.PERTURBATION),
    ]  # fmt: skip
    for different in (numbers(4, range(9), 101), *(getattr(s, kind)(3, range(9), 101) for s in others)):
        assert (different == whole).double().mean() < 0.1


def test_purposes_keep_their_values() -> None:
    wanted = ["PERTURBATION", "DONORS", "CROSSOVER", "MUTATION", "MUTATION_NOISE"]
    assert {purpose.name: int(purpose) for purpose in Purpose}.items() >= {n: i for i, n in enumerate(wanted)}.items()


def test_no_two_addresses_share_a_word_block() -> None:
    blocks = [
        tuple(block)
        for purpose in Purpose
        for generation in (0, 1, 2, 2**32 - 1)
        for row in Stream(0, purpose).words(generation, range(10), 40).view(-1, 4)
        for block in [row.tolist()]
    ]
    assert len(set(blocks)) == len(blocks) == len(Purpose) * 4 * 100


def test_uniform_numbers_are_exact_and_uniform() -> None:
    stream = Stream(3, Purpose.CROSSOVER)
    u, words = stream.uniform(0, range(50), 2000), stream.words(0, range(50), 2000)
    assert u.dtype == torch.float32
    assert torch.equal(u.double() * 2**24, (words >> 8).double())
    assert u.max() < 1
    assert stats.kstest(u.flatten().numpy(), "uniform").pvalue > 0.01


# ------------------------------------------------------------------------------------------------ noise
def test_noise_is_the_sum_of_four_digits_two_a_word() -> None:
    """Gene g is half g % 2 of word g // 2, counted over blocks."""
    noise = Stream(1, Purpose.PERTURBATION).noise(2, range(3), 29)
    assert noise.dtype == torch.int8
    for individual in range(3):
        halves = [h for word in expected(1, 0, 2, individual, 16) for h in (word & 0xFFFF, word >> 16)]
        sums = [sum(half >> shift & 15 for shift in (0, 4, 8, 12)) - 30 for half in halves]
        assert noise[individual].tolist() == sums[:29]


def test_noise_is_distributed_as_documented() -> None:
    shares = np.ones(1)
    for _ in range(4):
        shares = np.convolve(shares, np.full(16, 1 / 16))
    values = np.arange(-30, 31)
    moments = [float((shares * values**k).sum()) for k in range(5)]
    assert moments[1] == moments[3] == 0
    assert moments[2] == pytest.approx(VARIANCE)
    assert moments[4] / moments[2] ** 2 - 3 == pytest.approx(-0.302, abs=5e-4)
    sums = [sum(digits) - 30 for digits in itertools.product(range(16), repeat=4)]
    assert sum(value**2 for value in sums) == VARIANCE * len(sums)
    squares = Fraction(sum(value**4 for value in sums), len(sums))
    assert squares / VARIANCE**2 - 1 == Fraction(1443, 850)
    assert pytest.approx(1443 / 850, rel=1e-15) == SQUARE_VARIANCE
    assert round(UNIT, 3) == 0.108
    assert round(30 * UNIT, 2) == 3.25

    noise = Stream(0, Purpose.PERTURBATION).noise(0, range(100), 10_000)
    counts = np.bincount(noise.flatten().long().numpy() + 30, minlength=61)
    assert stats.chisquare(counts, shares * noise.numel()).pvalue > 0.01
    unit = noise.double() * UNIT
    alike = torch.corrcoef(unit) - torch.eye(100)
    assert alike.abs().max() < 5 / 100  # sd 1 / 100
    neighbours = (unit[:, 1:] * unit[:, :-1]).mean()
    assert abs(neighbours) < 4e-3  # sd 1e-3


def test_perturbations_keep_a_generation_and_make_any_other() -> None:
    perturbations = Perturbations(5, 6, 33)
    first = perturbations(0)
    assert perturbations(0) is first
    assert torch.equal(perturbations(1), Stream(5, Purpose.PERTURBATION).noise(1, range(6), 33))
    assert torch.equal(perturbations(0), first)


# ------------------------------------------------------------------------------------------------ CUDA
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("kind", ["words", "uniform", "noise"])
def test_cuda_makes_the_same_bits(kind: str) -> None:
    digests = {
        hashlib.sha256(getattr(Stream(0, Purpose.PERTURBATION, device), kind)(9, range(7), 100_003).cpu().numpy())
        .hexdigest()
        for device in ("cpu", "cuda")
    }  # fmt: skip
    assert len(digests) == 1
    here, there = (Stream(0, Purpose.PERTURBATION, d).noise(9, range(7), 1003).float() * UNIT for d in ("cpu", "cuda"))
    assert torch.equal(here, there.cpu())
