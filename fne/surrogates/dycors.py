"""DYCORS: candidates around the best point, judged by a surrogate and by how far they are from what was evaluated.

Paper: R. G. Regis, C. A. Shoemaker, "Combining radial basis function surrogates and dynamic coordinate search in
high-dimensional expensive black-box optimization", Engineering Optimization 45(5), 2013 (DYCORS-LMSRBF).

Shapes: `B` runs, `n` samples, `d` variables, `c` candidates. Points are in the cube [-1, 1]^d.

Deviations:
- Large values are compressed (see `compressed`); the paper leaves the values as they are. To cut them off at their
  median, as is often done, costs an order of magnitude on a shifted and turned Ellipsoid.
- Steps are 0.2 of half the range, not of the range, and halved after 5 failures, not after max(5, d), down to 1/128,
  not 1/64: 6d evaluations leave no time for more.
- There is a fifth weight, 0.99.
- A point where evaluating failed is a failure, and candidates keep away from it; it has no other influence.
- Points are not proposed twice: where no candidate is new, as may be with integer variables, others are drawn anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fne.surrogates.cubic import Cubic, distances, fit

CANDIDATES, MOST = 100, 5000
"""For each variable, and in all."""
STEP = 0.2
"""Standard deviation of a candidate's coordinates at first and at most, half the range = 1."""
HALVINGS = 7
SUCCESSES, FAILURES = 3, 5
"""In a row, until the step is doubled or halved."""
BETTER = 1e-3
"""What is better by less, relative to the best value, is no success."""
WEIGHTS = (0.3, 0.5, 0.8, 0.95, 0.99)
"""Of the surrogate's value; the rest is the distance's."""
MOVED = 20
"""Coordinates that a candidate changes at first, on average and at most."""
SPREAD = 3.0
"""How many times the median's distance to the least value is where values begin to be compressed."""
SAME = 1e-6
"""Points that are nearer to each other than this are the same: a matrix product tells distances no better."""

Snap = Callable[[Tensor], Tensor]
"""Points `[..., d]` -> the nearest that can be evaluated, such as `fne.problems.space.Space.snap`."""


class Dycors:
    """The search of several runs side by side; what a run does depends on nothing of the others.

    Args:
        runs: `B`.
        dim: `d`.
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
        """Return where to evaluate next, `[B, d]`.

        Args:
            x: where it was evaluated, `[B, n, d]`.
            y: the values, `[B, n]`, NaN where evaluating failed.
            generators: one a run, on the CPU.
            horizon: how many points this search proposes in all.
            snap: applied to the candidates.
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
        """Take in the values `y [B]` at the points that were proposed, NaN where evaluating failed.

        Args:
            y: `[B]`.
            best: the best values before, `[B]`, infinite where there were none.
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
        """Return candidates `[c, d]` that differ from `best [d]` in some coordinates, ever fewer of them."""
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
        """Return everything that goes on."""
        return {"step": self.step, "successes": self.successes, "failures": self.failures, "count": self.count}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over what `state_dict` returned."""
        self.step, self.count = state["step"], state["count"]
        self.successes, self.failures = state["successes"], state["failures"]


def compressed(y: Tensor, known: Tensor) -> Tensor:
    """Return `log(1 + (y - min) / s)` of the known values of each run `[B, n]`, s = 3 (median - min).

    So the surrogate does not spend itself on high walls, yet knows which of them are higher. Unit and origin of `y` are
    of no matter. Where half of the values are the least one, s is made of the largest in place of the median.
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
