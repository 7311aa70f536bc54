"""DYCORS: candidates around the best point, ranked by a surrogate and by their distance to the evaluated points.

Paper: R. G. Regis, C. A. Shoemaker, "Combining radial basis function surrogates and dynamic coordinate search in
high-dimensional expensive black-box optimization", Engineering Optimization 45(5), 2013 (DYCORS-LMSRBF).

Shapes: `B` runs, `n` samples, `d` variables, `c` candidates. Points are in the cube [-1, 1]^d.

Deviations:
- Large values are compressed (see `compressed`); the paper leaves the values as they are. Cutting them off at their
  median, as is often done, costs an order of magnitude on a shifted and rotated Ellipsoid.
- Steps are 0.2 of half the range, not of the range, and halved after 5 failures, not after max(5, d), down to 1/128,
  not 1/64: 6d evaluations leave no time for more.
- There is a fifth weight, 0.99.
- A point that could not be evaluated counts as a failure, and candidates keep away from it; it has no other influence.
- No point is proposed twice: where no candidate is new, as may happen with integer variables, others are drawn
  anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fne.surrogates.cubic import Cubic, distances, fit

CANDIDATES, MOST = 100, 5000
"""Number of candidates for each variable, and largest number in all."""
STEP = 0.2
"""Initial and largest standard deviation of a candidate's coordinates, half the range = 1."""
HALVINGS = 7
SUCCESSES, FAILURES = 3, 5
"""Successes or failures in a row after which the step is doubled or halved."""
BETTER = 1e-3
"""Smallest improvement, relative to the best value, that counts as a success."""
WEIGHTS = (0.3, 0.5, 0.8, 0.95, 0.99)
"""Weights of the surrogate's value, used in turn; the distance has the rest."""
MOVED = 20
"""Largest mean number of coordinates that a candidate changes at first."""
SPREAD = 3.0
"""Scale of the compression, in units of the distance between the median and the least value."""
SAME = 1e-6
"""Points nearer to each other than this count as the same: a matrix product resolves distances no better."""

Snap = Callable[[Tensor], Tensor]
"""Points `[..., d]` -> the nearest points that can be evaluated, such as `fne.problems.space.Space.snap`."""


class Dycors:
    """The search of several runs side by side; no run depends on another.

    Args:
        runs: number of runs; `B`.
        dim: number of variables; `d`.
    """

    def __init__(self, runs: int, dim: int) -> None:
        self.dim = dim
        self._shape = min(CANDIDATES * dim, MOST), dim
        self.step = torch.full((runs,), STEP, dtype=torch.float64)
        self.successes, self.failures, self.count = torch.zeros(3, runs, dtype=torch.int64)

    def propose(
        self,
        x: Tensor,
        y: Tensor,
        generators: Sequence[torch.Generator],
        horizon: int,
        *,
        snap: Snap = lambda points: points,
    ) -> Tensor:
        """Return the next point to evaluate in each run, `[B, d]`.

        Args:
            x: the evaluated points, `[B, n, d]`.
            y: the values, `[B, n]`, NaN where the evaluation failed.
            generators: a generator for each run, on the CPU.
            horizon: number of points that this search proposes in all.
            snap: function applied to the candidates.
        """
        known = y.isfinite()
        fitted = fit(x, compressed(y, known).unsqueeze(-1), known)
        points = []
        for run, draw in enumerate(generators):
            model = Cubic(x[run], fitted.weights[run], fitted.constant[run], fitted.slopes[run])
            best = x[run, y[run].where(known[run], math.inf).argmin()] if known[run].any() else None
            points.append(self._point(run, model, best, horizon, draw, snap))
        return torch.stack(points)

    def learn(self, y: Tensor, best: Tensor) -> None:
        """Take in the values `y [B]` at the proposed points, NaN where the evaluation failed.

        Args:
            y: the values, `[B]`.
            best: the best values before, `[B]`, infinite where no value was known.
        """
        y, best = y.detach().cpu().double(), best.detach().cpu().double()
        success = y < torch.where(best.isfinite(), best - BETTER * best.abs(), best)
        successes = torch.where(success, self.successes + 1, 0)
        failures = torch.where(success, 0, self.failures + 1)
        longer, shorter = successes >= SUCCESSES, failures >= FAILURES
        step = torch.where(longer, 2 * self.step, torch.where(shorter, self.step / 2, self.step))
        self.step = step.clamp(STEP / 2**HALVINGS, STEP)
        self.successes, self.failures = successes.masked_fill(longer, 0), failures.masked_fill(shorter, 0)
        self.count = self.count + 1

    def _point(
        self, run: int, model: Cubic, best: Tensor | None, horizon: int, draw: torch.Generator, snap: Snap
    ) -> Tensor:
        """Return one run's next point `[d]`; the centres of `model` are all points that were evaluated or failed."""
        weight = WEIGHTS[int(self.count[run]) % len(WEIGHTS)]
        if best is not None:
            candidates = snap(self._around(best, run, horizon, draw))
            chosen = _choice(candidates, model, weight)
            if chosen is not None:
                return chosen
        candidates = snap((2 * torch.rand(self._shape, generator=draw) - 1).to(model.centres))
        chosen = _choice(candidates, model, weight)
        return candidates[0] if chosen is None else chosen

    def _around(self, best: Tensor, run: int, horizon: int, draw: torch.Generator) -> Tensor:
        """Return candidates `[c, d]` that differ from `best [d]` in some coordinates, in ever fewer over time."""
        over = math.log(int(self.count[run]) + 1) / math.log(max(horizon, 2))
        chance = max(min(MOVED / self.dim, 1) * (1 - over), 1 / self.dim)
        moved = torch.rand(self._shape, generator=draw) < chance
        one = torch.randint(self.dim, self._shape[:1], generator=draw)
        moved[torch.arange(len(one)), one] |= ~moved.any(dim=1)
        moves = float(self.step[run]) * torch.randn(self._shape, generator=draw) * moved
        candidates = best + moves.to(best)
        candidates = torch.where(candidates.abs() > 1, 2 * candidates.sign() - candidates, candidates)  # reflected
        return candidates.clamp_(-1, 1)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state that a resumed run continues from."""
        return {"step": self.step, "successes": self.successes, "failures": self.failures, "count": self.count}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over what `state_dict` returned."""
        self.step, self.count = state["step"], state["count"]
        self.successes, self.failures = state["successes"], state["failures"]


def compressed(y: Tensor, known: Tensor) -> Tensor:
    """Return `log(1 + (y - min) / s)` of the known values of each run `[B, n]`, s = 3 (median - min).

    The surrogate is then not dominated by high walls, yet keeps their order. Unit and origin of `y` do not matter.
    Where half of the values are equal to the least one, s is made from the largest value instead of the median.
    """
    if not y.shape[1]:
        return y
    low = y.where(known, math.inf).amin(dim=1, keepdim=True)
    high = y.where(known, -math.inf).amax(dim=1, keepdim=True)
    middle = y.where(known, math.nan).nanmedian(dim=1, keepdim=True).values
    spread = SPREAD * torch.where(middle > low, middle - low, high - low)
    return torch.log1p((y - low) / spread.where(spread > 0, 1.0))


def _choice(candidates: Tensor, model: Cubic, weight: float) -> Tensor | None:
    """Return the candidate `[d]` of `[c, d]` with the best score, `None` where none is new.

    The score adds the surrogate's value and the nearness to the nearest centre, both scaled to [0, 1].
    """
    r = distances(candidates, model.centres)
    nearest = r.amin(dim=1) if r.shape[1] else r.new_ones(len(r))
    new = nearest > SAME
    if not new.any():
        return None
    candidates, nearest, values = candidates[new], nearest[new], model.predict_from(candidates, r)[new, 0]
    score = weight * _scaled(values) + (1 - weight) * _scaled(-nearest)
    return candidates[score.argmin()]


def _scaled(values: Tensor) -> Tensor:
    low, high = values.aminmax()
    return (values - low) / (high - low) if high > low else torch.zeros_like(values)
