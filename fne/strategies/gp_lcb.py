"""Bayesian optimisation in its common form: a Gaussian process and its lower confidence bound.

Cox, John, "SDO: a statistical method for global optimization", 1997; scikit-learn's `GaussianProcessRegressor`.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from torch import Tensor

from fne.config.groups import Deviations, GaussianSearch, PooledSearch
from fne.config.registry import Key, register
from fne.core.quiet import ignored
from fne.core.randomness import generator
from fne.problems.space import SearchTask
from fne.search.value_search import Archive, ValueSearch
from fne.surrogates import minimise as rcga


@register("strategy", "gp_lcb", pooled=True)
def gp_lcb(
    task: SearchTask,
    *,
    seed: int,
    budget: PooledSearch,
    mu: Deviations = 2.0,
    refit_every: Annotated[int, Key("evaluations between fits of the length scales", unit="evaluations", ge=1)] = 10,
    search: GaussianSearch,
    runs: Annotated[
        int, Key("number of runs in sequence, with seeds seed, seed + 1, …", unit="runs", ge=1, le=1000)
    ] = 1,
) -> ValueSearch:
    """Baseline on pooled data: a Gaussian process (Matern 5/2, a length scale per variable) and its LCB."""
    initial, queries = budget.points(len(task.space))
    rule = _Process(seed, mu, refit_every, search)
    return ValueSearch(task, seed=seed, runs=runs, initial=initial, queries=queries, propose=rule.propose, memory=rule)


class _Process:
    """Gaussian process of each run; its only state is the hyper-parameters of its kernel."""

    def __init__(self, seed: int, mu: float, refit_every: int, search: GaussianSearch) -> None:
        self._seed, self._mu, self._every, self._settings = seed, mu, refit_every, search
        self._theta: dict[int, Any] = {}

    def propose(self, step: int, known: Archive) -> Tensor:
        """Return the point with the least bound, `[B, 1, d]`."""
        points = [self._one(run, step, x, y) for run, (x, y) in enumerate(zip(known.points, known.values, strict=True))]
        return torch.stack(points).unsqueeze(1)

    def _one(self, run: int, step: int, x: Tensor, y: Tensor) -> Tensor:
        there = y.isfinite()
        process = self._process(run, step, x[there].numpy(), y[there].numpy())

        def bound(points: Tensor) -> Tensor:
            mean, deviation = process.predict(points[0].numpy(), return_std=True)
            return torch.from_numpy(mean - self._mu * deviation).unsqueeze(0)

        best, _ = rcga.minimise(
            bound, x.shape[1], [generator(self._seed + run, "search", step)],
            population=self._settings.population, generations=self._settings.generations,
        )  # fmt: skip
        return best[0]

    def _process(self, run: int, step: int, x: Any, y: Any) -> GaussianProcessRegressor:
        theta = self._theta.get(run)
        fresh = theta is None or (step - 1) % self._every == 0
        d = x.shape[1]
        kernel = ConstantKernel(1.0, (1e-2, 1e3)) * Matern([1.0] * d, (5e-2, 2e1), nu=2.5) + WhiteKernel(
            1e-4, (1e-8, 1e-1)
        )
        if theta is not None:
            kernel = kernel.clone_with_theta(np.asarray(theta))
        process = GaussianProcessRegressor(kernel, normalize_y=True, optimizer="fmin_l_bfgs_b" if fresh else None)
        with ignored(ConvergenceWarning):  # at a bound or not converged, the best fit so far is used
            process.fit(x, y)
        self._theta[run] = process.kernel_.theta
        return process

    def learn(self, step: int, known: Archive, values: Tensor) -> None:
        """Do nothing: the archive holds all values."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return the kernels' parameters."""
        return {f"theta.{run}": torch.from_numpy(np.asarray(theta)) for run, theta in self._theta.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore a state that `state_dict` returned."""
        self._theta = {int(name.removeprefix("theta.")): theta.numpy() for name, theta in state.items()}
