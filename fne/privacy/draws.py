"""Private random numbers of a node, from a cryptographic generator: choices, and discrete Gaussian noise.

Why not torch's generator: a Mersenne twister is linear over GF(2). Whoever knows the noise on some weights of an
upload, because these weights are otherwise zero, can solve for the generator's state and remove the noise from all
other weights. Why not floating point: the last bits of a float sum reveal the value that the noise was added to (I.
Mironov, "On significance of the least significant bits for differential privacy", CCS 2012).

Here all numbers come from a ChaCha20 keystream under a key that only the node can compute. Gaussian noise is discrete:
whole numbers of a step that is fixed before any data are seen (C. Canonne, G. Kamath, T. Steinke, "The discrete
Gaussian for differential privacy", NeurIPS 2020). Accounts may treat it as continuous noise of the same deviation:

- The Rényi divergence of one release is not above that of continuous noise. With Poisson sampling the moments are equal
  at whole orders; at fractional orders they exceed those of continuous noise by less than e^-1000.
- A sum of several has the divergence of continuous noise up to e^-600, if each has a deviation of at least
  `LEAST_STEPS` (P. Kairouz, Z. Liu, T. Steinke, "The distributed discrete Gaussian mechanism for federated learning
  with secure aggregation", ICML 2021).

Sampling takes two stages. The first draws a cell of neighbouring numbers by inversion: a random number of 128 bits is
looked up in a table of cumulative probabilities. Its upper 64 bits decide unless they equal an entry's. The second
stage draws a number of the cell uniformly and rejects it with the probability by which it is less likely than the
cell's likeliest number; about one draw in a thousand is rejected. Probabilities are float64 with a relative error below
1e-13, which adds less than 2e-13 per weight to an epsilon. Numbers beyond 13 deviations, which have a probability of
1e-38, are never drawn.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fne.core.hidden import Hidden
from fne.privacy.keystream import KEY_BYTES, keystream

LEAST_STEPS = 8
"""Least deviation of discrete noise, in steps."""
_REACH = 13
"""Largest number that is drawn, in deviations."""
_CELLS = 10
"""Binary logarithm of the cells in a deviation: fewer than 2^10; at least 2^9 where a cell has more than one number."""
_TOP = 16
"""Number of leading bits that select where the search in the table begins."""
_TWISTER = slice(3, 3 + 624)
"""Position of the Mersenne twister's words in the state of torch's CPU generator, as uint64."""

_Words = NDArray[np.uint64]
_Whole = NDArray[np.int64]


class Draws(Hidden):
    """A stream of random numbers that nobody without its key can compute; each call takes what comes next.

    Args:
        key: 32 bytes, for this stream alone.
    """

    __slots__ = ("_calls", "_key")

    def __init__(self, key: bytes) -> None:
        self._key, self._calls = key, 0

    def words(self, count: int) -> _Words:
        """Return uniform numbers of 64 bits, uint64 `[count]`."""
        self._calls += 1
        return keystream(self._key, self._calls.to_bytes(12, "little"), count)

    def uniform(self, *shape: int) -> Tensor:
        """Return uniform numbers between 0 and 1, neither included, float64."""
        whole = self.words(int(np.prod(shape))) >> np.uint64(12)
        return torch.from_numpy((whole.astype(np.float64) + 0.5) * 2.0**-52).view(shape)

    def normal(self, *shape: int) -> Tensor:
        """Return standard normal numbers, float64: to imitate a measurement, and not to hide anything."""
        numbers: Tensor = torch.special.ndtri(self.uniform(*shape))
        return numbers

    def chosen(self, count: int, rate: float) -> Tensor:
        """Return whether each of `count` units is drawn, independently with probability `rate`, bool `[count]`."""
        below = int(Fraction(rate) * 2**64)  # rounded down: no unit is drawn more often than accounted for
        words = self.words(count)
        return torch.from_numpy(np.ones(count, bool) if below == 2**64 else words < np.uint64(below))

    def gaussian(self, count: int, deviation: float) -> _Whole:
        """Return discrete Gaussian noise, int64 `[count]`.

        Args:
            count: number of values.
            deviation: standard deviation in steps, at least `LEAST_STEPS`.
        """
        if not LEAST_STEPS <= deviation < 2**40:
            raise ValueError(f"a deviation of {deviation} steps, must be {LEAST_STEPS} to 2^40")
        made, again = self._proposed(count, deviation)
        while len(again):
            made[again], others = self._proposed(len(again), deviation)
            again = again[others]
        return made

    def _proposed(self, count: int, deviation: float) -> tuple[_Whole, NDArray[np.intp]]:
        """Return whole numbers, and the places of those to be drawn again."""
        table = _table(deviation)
        cells = self._inverted(count, table)
        if not table.bits:
            return cells, np.empty(0, np.intp)
        within = (self.words(count) >> np.uint64(64 - table.bits)).astype(np.int64)
        made = (cells << table.bits) + within
        luck = self.uniform(count).numpy()
        unsure = np.flatnonzero(luck > table.surely)
        likeliest = _likeliest(cells[unsure], table.bits)
        excess = np.square(made[unsure].astype(np.float64)) - np.square(likeliest)
        return made, unsure[luck[unsure] > np.exp(-excess / (2 * deviation * deviation))]

    def _inverted(self, count: int, table: _Table) -> _Whole:
        above, below, words = table.above, table.below, self.words(count)
        places = table.starts[(words >> np.uint64(64 - _TOP)).astype(np.int64)]
        places += above[places] < words
        late = np.flatnonzero(above[places] < words)
        places[late] = np.searchsorted(above, words[late])
        for place in np.flatnonzero(above[places] == words):  # one draw in 10^15
            low = int(self.words(1)[0])
            while above[places[place]] == words[place] and below[places[place]] <= low:
                places[place] += 1
        return places - len(above) // 2

    def generator(self) -> torch.Generator:
        """Return a torch generator whose whole state comes from this stream, for draws inside a module.

        The generator is a Mersenne twister, so none of its numbers may leave the node. Its initial seed, by which CUDA
        is seeded, has 64 bits of the stream; `manual_seed` would make the state from 32 bits, which can be tried out.
        """
        state = torch.Generator().manual_seed(0).get_state().numpy().copy()
        words = self.words(625)
        state.view(np.uint64)[_TWISTER], state.view(np.uint64)[0] = words[1:] >> np.uint64(32), words[0]
        made = torch.Generator()
        made.set_state(torch.from_numpy(state))
        return made


def key_of(secret: bytes, *address: bytes | memoryview) -> bytes:
    """Return the key of the stream with an address, 32 bytes: different for every secret and address."""
    made = hashlib.blake2b(key=secret, digest_size=KEY_BYTES, person=b"fne/draws")
    for part in address:
        made.update(len(part).to_bytes(8, "little"))
        made.update(part)
    return made.digest()


@dataclass(frozen=True)
class _Table:
    """Table of cells of 2^bits whole numbers each, from -n to n - 1, or from -n to n where bits is 0."""

    bits: int
    above: _Words
    """The leading 64 bits of the cells' cumulative probabilities, times 2^128."""
    below: _Words
    """The lower 64 bits."""
    starts: _Whole
    """First place of the search for each value of a random number's `_TOP` leading bits."""
    surely: float
    """Random value up to which every number of a cell is accepted."""


@lru_cache(maxsize=64)
def _table(deviation: float) -> _Table:
    bits = max(0, math.frexp(deviation)[1] - _CELLS)
    most = int(_REACH * deviation) >> bits
    cells = np.arange(-most, most + 1 if bits == 0 else most)
    likeliest = _likeliest(cells, bits)
    weights = [int(w * 2.0**140) for w in np.exp(-np.square(likeliest / deviation) / 2).tolist()]
    total, reached, sums = sum(weights), 0, []
    for weight in weights:
        reached += weight
        sums.append((reached << 128) // total)
    sums[-1] -= 1  # 2^128 has one bit too many
    above = np.array([value >> 64 for value in sums], np.uint64)
    below = np.array([value & (2**64 - 1) for value in sums], np.uint64)
    starts = np.searchsorted(above, np.arange(2**_TOP, dtype=np.uint64) << np.uint64(64 - _TOP))
    farthest = (np.abs(likeliest).max() + 2.0**bits) * 2.0**bits / (deviation * deviation)
    return _Table(bits, above, below, starts.astype(np.int64), math.exp(-farthest))


def _likeliest(cells: _Whole, bits: int) -> NDArray[np.float64]:
    """Return the number nearest to 0 of each cell."""
    return (np.where(cells >= 0, cells << bits, ((cells + 1) << bits) - 1)).astype(np.float64)
