"""Individuals of a search for trade-offs: (threshold, bits, noise) as genes, and the first ones.

Genes are points of the cube [-1, 1]^3: the threshold, the place among the bits, and the logarithm of the noise between
what the bounds of the score allow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fne.config.groups import Sending
from fne.core.errors import SettingError
from fne.core.randomness import generator
from fne.privacy.score import score_eq7

MOST_PRUNED = 0.95
"""Largest threshold: a rate of 1 would send nothing."""


class Genes:
    """How genes are read.

    Args:
        sending: choices and bounds.
        rounds, participation: of an evaluation; T and v of eq. (7).

    Raises:
        SettingError: bounds or bits that cannot be.
    """

    def __init__(self, sending: Sending, rounds: int, participation: float) -> None:
        low, high = sending.score_bounds
        if not 0 < low < high:
            allowed = f"[low, high], {'low below high' if low > 0 else 'above 0'}"
            raise SettingError("strategy.score_bounds", [low, high], allowed)
        for bits in sending.bits:
            if bits not in (*range(2, 17), 32):
                raise SettingError("strategy.bits", bits, "2 to 16, or 32 for floats as they are")
        one = score_eq7(rounds, sending.delta, participation, 1.0)
        self._bits, self._noised = sending.bits, sending.clip > 0
        self._low, self._high = one / high, one / low
        self._why = f"which strategy.score_bounds = [{low:g}, {high:g}] allow at {rounds} rounds"

    def decoded(self, genes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return thresholds, bits (int64) and noises `[n]` of genes `[n, 3]`; without clipping there is no noise."""
        places = (genes + 1) / 2
        choices = torch.tensor(self._bits)
        index = (places[:, 1] * len(choices)).long().clamp(max=len(choices) - 1)
        low, high = math.log(self._low), math.log(self._high)
        noises = (low + places[:, 2] * (high - low)).exp() if self._noised else torch.zeros_like(places[:, 2])
        return places[:, 0] * MOST_PRUNED, choices[index], noises

    @property
    def least_noise(self) -> float:
        """Return the least that an individual can have."""
        return self._low if self._noised else 0.0

    def meaning(self, genes: Tensor) -> Tensor:
        """Return what `decoded` does as one tensor, float64 `[n, 3]`."""
        return torch.stack([column.double() for column in self.decoded(genes)], dim=1)

    def start(self, count: int, given: Sequence[tuple[float, float, float]], seed: int) -> Tensor:
        """Return genes `[count, 3]` of the first individuals: those given, and as many as are missing.

        These are drawn: pruning about 0.3, noise about 6 within its bounds, as the paper has them.

        Raises:
            SettingError: one that is given cannot be; names which.
        """
        if len(given) > count:
            raise SettingError("strategy.start", len(given), f"at most strategy.population = {count} individuals")
        draw = generator(seed, "start")
        normal = torch.randn(count, 2, generator=draw, dtype=torch.float64)
        bits = torch.rand(count, generator=draw, dtype=torch.float64)
        low, high = self._low, self._high
        noise = (6 + 2.5 * normal[:, 1]).clamp(low, high).log()
        threshold = (0.3 + 0.1 * normal[:, 0]).clamp(0, MOST_PRUNED) / MOST_PRUNED
        place = (noise - math.log(low)) / (math.log(high) - math.log(low))
        places = torch.stack([threshold, bits, place], dim=1)
        for i, individual in enumerate(given):
            places[i] = torch.tensor(self._places(i, individual), dtype=torch.float64)
        return places * 2 - 1

    def _places(self, i: int, individual: tuple[float, float, float]) -> list[float]:
        threshold, bits, noise = individual
        if not 0 <= threshold <= MOST_PRUNED:
            raise SettingError(f"strategy.start.{i}", threshold, f"a threshold of 0 to {MOST_PRUNED:g}")
        if bits not in self._bits:
            raise SettingError(f"strategy.start.{i}", bits, f"bits of strategy.bits = {list(self._bits)}")
        if not self._noised and noise:
            raise SettingError(f"strategy.start.{i}", noise, "a noise of 0 with strategy.clip = 0")
        if not self._noised:
            return [threshold / MOST_PRUNED, (self._bits.index(int(bits)) + 0.5) / len(self._bits), 0.0]
        slack = 1e-9  # what was read from front.csv may lie on a bound
        if not self._low * (1 - slack) <= noise <= self._high * (1 + slack):
            allowed = f"a noise of {self._low:.4g} to {self._high:.4g}, {self._why}"
            raise SettingError(f"strategy.start.{i}", noise, allowed)
        low, high = math.log(self._low), math.log(self._high)
        place = min(max((math.log(noise) - low) / (high - low), 0.0), 1.0)
        return [threshold / MOST_PRUNED, (self._bits.index(int(bits)) + 0.5) / len(self._bits), place]
