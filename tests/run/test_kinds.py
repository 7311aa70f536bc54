"""Kinds of runs: what drives a run needs nothing but what both kinds have."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from fne.config.load import load_config
from fne.engines.local import LocalEngine
from fne.run import train
from fne.run.kinds import Run
from fne.run.learning_run import LearningRun, build
from fne.run.search_run import SearchRun, build_search

LEARNING: dict[str, Any] = {"name": "a", "data": {"name": "toy", "nodes": 4}, "model": {"name": "logistic"}}
SEARCHING: dict[str, Any] = {"name": "b", "problem": {"name": "rastrigin", "dim": 2, "nodes": 4}}


@pytest.mark.parametrize(
    ("config", "make", "title", "measure", "identity"),
    [
        ({**LEARNING, "strategy": {"name": "fedavg"}}, build, "a seed 0", "cross_entropy", {"model", "data"}),
        ({**SEARCHING, "strategy": {"name": "rcga"}}, build_search, "b seed 0", "best value", {"code", "known"}),
    ],
)
def test_a_run_of_each_kind(
    config: dict[str, Any], make: Any, title: str, measure: str, identity: set[str], tmp_path: Path
) -> None:
    run: Run = make(load_config(config))
    assert (run.title, run.measure, set(run.identity)) == (title, measure, identity)
    assert sorted(run.nodes)
    callbacks = run.begin(tmp_path, LocalEngine(run.worker, "run", tmp_path))
    assert all(callable(callback) for callback in callbacks)
    run.settled()
    run.close()


def test_what_drives_a_run_asks_nowhere_which_kind_it_is() -> None:
    source = inspect.getsource(train)
    assert "isinstance" not in source.replace("isinstance(value,", "")  # of JSON values
    assert not {LearningRun.__name__, SearchRun.__name__} & set(vars(train))
