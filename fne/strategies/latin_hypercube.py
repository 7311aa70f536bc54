"""Latin hypercube of all evaluations at once: the baseline that any search must beat."""

from __future__ import annotations

from typing import Annotated

from fne.config.groups import Runs
from fne.config.registry import Key, register
from fne.problems.space import SearchTask
from fne.search.value_search import ValueSearch


@register("strategy", "latin_hypercube", pooled=True)
def latin_hypercube(
    task: SearchTask,
    *,
    seed: int,
    initial: Annotated[int | None, Key("number of evaluations; null: 11 d", unit="points", ge=1)] = None,
    runs: Runs = 1,
) -> ValueSearch:
    """Baseline on pooled data: points of a Latin hypercube, without a search."""
    count = 11 * len(task.space) if initial is None else initial
    return ValueSearch(task, seed=seed, runs=runs, initial=count)
