"""DYCORS: a cubic surrogate and dynamic coordinate search on pooled values.

Regis, Shoemaker, "Combining radial basis function surrogates and dynamic coordinate search in high-dimensional
black-box expensive optimization", Engineering Optimization 45, 2013. The search equals the second phase of
`fdd_ea_plus`, from the start and on pooled data.
"""

from __future__ import annotations

from torch import Tensor

from fne.config.groups import PooledSearch, Runs
from fne.config.registry import register
from fne.problems.space import SearchTask, Space
from fne.search.surrogate_rounds import draws
from fne.search.value_search import Archive, ValueSearch
from fne.surrogates.dycors import Dycors


@register("strategy", "dycors", pooled=True)
def dycors(
    task: SearchTask,
    *,
    seed: int,
    budget: PooledSearch,
    runs: Runs = 1,
) -> ValueSearch:
    """Baseline on pooled data: a cubic surrogate, candidates about the best point with few coordinates changed."""
    d = len(task.space)
    initial, queries = budget.points(d)
    rule = _Rule(seed, Dycors(runs, d), queries, task.space)
    return ValueSearch(task, seed=seed, runs=runs, initial=initial, queries=queries, propose=rule.propose, memory=rule)


class _Rule:
    """The search, with draws from the run's seed."""

    def __init__(self, seed: int, search: Dycors, horizon: int, space: Space) -> None:
        self._seed, self._search, self._horizon, self._space = seed, search, horizon, space
        self.state_dict, self.load_state_dict = search.state_dict, search.load_state_dict

    def propose(self, step: int, known: Archive) -> Tensor:
        """Return the next point, `[B, 1, d]`."""
        generators = draws(self._seed, len(known.points), "candidates", step)
        snap = self._space.snap
        return self._search.propose(known.points, known.values, generators, self._horizon, snap=snap).unsqueeze(1)

    def learn(self, step: int, known: Archive, values: Tensor) -> None:
        """Learn from the measured values."""
        self._search.learn(values[:, 0], known.least)
