"""Counter-based random numbers (Philox) in integer arithmetic: the same bits on every device, in any order, unstored.

J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
Philox4x32-10 turns a counter of four 32-bit words and a key of two into four words. The counter is (gene block,
individual, generation, purpose), the key a hash of the run's seed. For one key Philox is a bijection, so no two
addresses share a block.

`noise` stands in for a normal distribution: the sum of four 4-bit digits, centred, an integer in [-30, 30] of mean 0
and variance 85; a word makes two. Multiplied by `UNIT` = 1 / sqrt(85) in float32, a single rounding, it has variance 1,
is symmetric, and has 61 values 0.108 apart, the outermost at 3.25. Its excess kurtosis is -0.302, that of a sum of four
bytes (-0.300), which would take twice as long. Therefore the square has the variance `SQUARE_VARIANCE` = 1.698, where
that of a normal number has 2, and methods that learn from squares divide by this constant. As int8 the noise takes a
quarter of the memory of float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from fne.core.randomness import derive_seed

MASK = 0xFFFFFFFF
VARIANCE = 85
"""Variance of `noise`: 4 * (16**2 - 1) / 12."""
UNIT = VARIANCE**-0.5
SQUARE_VARIANCE = 2 - 0.3 * (16**2 + 1) / (16**2 - 1)
"""Variance of `(UNIT * noise)**2`, exactly 1443 / 850.

A digit that is uniform on n = 16 values has the excess kurtosis `-6/5 (n^2 + 1) / (n^2 - 1)`, the sum of four such
digits a quarter of that, and the square of a number of variance 1 has the variance 2 plus the excess kurtosis.
"""
LARGEST_NOISE = 30
_M0, _M1 = 0xD2511F53 - 2**32, 0xCD9E8D57 - 2**32
"""Philox's multipliers less 2**32: their products with a word stay within 2**62; the full products overflow int64."""
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_CHUNK = {"cpu": 2**14, "cuda": 2**20}
"""Counters per pass: as many as fit a CPU's second-level cache; large launches on a GPU."""


class Purpose(IntEnum):
    """Purpose of the numbers, the counter's last word: a new purpose gets a new value, and no value is used twice."""

    PERTURBATION = 0
    DONORS = 1
    CROSSOVER = 2
    MUTATION = 3
    MUTATION_NOISE = 4
    SWARM_START = 5
    SWARM_MOVE = 6


def philox(key: tuple[int, int], counter: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
    """Return the four words that Philox4x32-10 makes of each counter.

    Args:
        key: two words.
        counter: four int64 tensors or NumPy arrays of one shape; words are non-negative and below 2**32.
    """
    (k0, k1), (c0, c1, c2, c3) = key, counter
    for _ in range(10):
        p, q = c0 * _M0, c2 * _M1
        low0, low1 = p & MASK, q & MASK
        p >>= 32
        q >>= 32
        p += c0  # the product's high word: that of x * (m - 2**32), rounded down, plus x
        q += c2
        q ^= c1
        p ^= c3
        q ^= k0
        p ^= k1
        c0, c1, c2, c3 = q, low1, p, low0
        k0, k1 = (k0 + _W0) & MASK, (k1 + _W1) & MASK
    return c0, c1, c2, c3


class Stream:
    """Random numbers of one run for one purpose, addressed by (generation, individual, gene).

    Take only one kind of number from a stream: all kinds are made of the same words.

    Args:
        seed: seed of the run.
        purpose: purpose of the numbers.
        device: device that computes them.
    """

    def __init__(self, seed: int, purpose: Purpose, device: torch.device | str = "cpu") -> None:
        hashed = derive_seed(seed, "philox")
        self._key = hashed & MASK, hashed >> 32
        self._purpose, self._device = int(purpose), torch.device(device)

    def words(self, generation: int, individuals: range, genes: int) -> Tensor:
        """Return 32-bit words, int64 `[len(individuals), genes]`; gene g is word g % 4 of block g // 4."""
        return self._made(generation, individuals, genes, torch.int64, lambda word: (word,))

    def uniform(self, generation: int, individuals: range, genes: int) -> Tensor:
        """Return numbers in [0, 1), float32 `[len(individuals), genes]`: a word's upper 24 bits, exact."""
        return self._made(generation, individuals, genes, torch.float32, lambda word: ((word >> 8) * 2.0**-24,))

    def noise(self, generation: int, individuals: range, genes: int) -> Tensor:
        """Return integers, almost standard normal when multiplied by `UNIT`, int8 `[len(individuals), genes]`.

        Gene g is half g % 2 of word g % 8 // 2 of block g // 8.
        """
        return self._made(generation, individuals, genes, torch.int8, _two_sums_of_digits)

    def _made(
        self,
        generation: int,
        individuals: range,
        genes: int,
        dtype: torch.dtype,
        transform: Callable[[Any], tuple[Any, ...]],
    ) -> Tensor:
        assert individuals.step == 1
        result = torch.empty(len(individuals), genes, dtype=dtype, device=self._device)
        on_cpu = self._device.type == "cpu"
        target: Any = result.numpy() if on_cpu else result  # NumPy takes half the time of torch on int64
        each = 8 if dtype is torch.int8 else 4  # values per block
        chunk, blocks = _CHUNK.get(self._device.type, 2**20), -(-genes // each)
        height, width = max(1, chunk // blocks), min(blocks, chunk)
        for top in range(0, len(individuals), height):
            rows = individuals[top : top + height]
            individual = torch.arange(rows.start, rows.stop, device=self._device).unsqueeze(1)
            for left in range(0, blocks, width):
                block = torch.arange(left, min(left + width, blocks), device=self._device)
                ends = (torch.full_like(individual, word) for word in (generation, self._purpose))
                words = [word.expand(len(rows), len(block)) for word in (block, individual, *ends)]
                counter: Any = [word.numpy() for word in words] if on_cpu else words
                part = target[top : top + height, each * left : each * (left + width)]
                values = (value for word in philox(self._key, counter) for value in transform(word))
                for j, value in enumerate(values):
                    place = part[:, j::each]
                    place[...] = value[:, : place.shape[1]]
        return result


class Perturbations:
    """Noise of each generation for `count` individuals of `genes` genes.

    The noise of the last generation is kept, since a strategy needs it twice: in `ask` and in `tell`.
    """

    def __init__(self, seed: int, count: int, genes: int) -> None:
        self._stream, self._shape = Stream(seed, Purpose.PERTURBATION), (range(count), genes)
        self._kept: tuple[int, Tensor] | None = None

    def __call__(self, generation: int) -> Tensor:
        """Return whole numbers, int8 `[count, genes]`; times `UNIT` they have variance 1."""
        if self._kept is None or self._kept[0] != generation:
            self._kept = generation, self._stream.noise(generation, *self._shape)
        return self._kept[1]


def _two_sums_of_digits(word: Any) -> tuple[Any, Any]:
    """Return the centred sums of a word's lower and of its upper four 4-bit digits."""
    total = word & 0x0F0F0F0F
    total += (word >> 4) & 0x0F0F0F0F  # four bytes, each the sum of two digits
    total += total >> 8
    return (total & 0xFF) - LARGEST_NOISE, (total >> 16 & 0xFF) - LARGEST_NOISE
