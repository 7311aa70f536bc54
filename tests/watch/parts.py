"""Steps of a run as watchers are told of them, and a full disk."""

from __future__ import annotations

import contextlib
import io
import json
import math
import resource
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from rich.console import Console

from fne.core.messages import Round, Traffic
from fne.watch.history import History

ROUND = Round((), (), Traffic({}, {}, {}, {}))


def metrics(step: int, **more: Any) -> dict[str, Any]:
    """Return what a strategy and the loop give for one step."""
    return {
        "seconds": 0.5, "round": step, "evaluations": 10 * step, "loss_best": 1 / step, "loss_mean": 2 / step,
        "loss_worst": math.inf, "accuracy_validation": 1 - 1 / (step + 1), "nonfinite": 1, "multiplier": 1.5,
        "step": step, "failures": {}, "bytes_down": 100, "bytes_up": 20, "bytes_down_max": 60,
        "bytes_up_max": 12, "bytes_down_per_node": 50.0 * step,
        "bytes_up_per_node": 10.0 * step, "per_node": {"b": {"n": 3.0}, "a": {"n": 4.0}},
        "_fitness": torch.tensor([1 / step, 2 / step, math.inf]), **more,
    }  # fmt: skip


def feed(watcher: Any, steps: range, horizon: int) -> None:
    """Call a watcher as the loop does."""
    for step in steps:
        watcher(SimpleNamespace(step=step, done=step == horizon, horizon=horizon), ROUND, metrics(step))


@contextlib.contextmanager
def file_limit(size: int) -> Iterator[None]:
    """Refuse to let any file grow beyond `size` bytes, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


SO_FAR = {
    "bytes_down_per_node": [55, 217.5, 259], "bytes_down_per_node_max": [130, 560, 630],
    "bytes_up_per_node": [100.25, 201.25, 302.5], "bytes_up_per_node_max": [201, 402, 604],
    "payload_down_per_node": [40, 180, 205.75], "payload_down_per_node_max": [100, 500, 540],
    "payload_up_per_node": [4, 8, 12.25], "payload_up_per_node_max": [8, 16, 25],
    "catch_up_per_node": [0, 112.5, 115], "catch_up_per_node_max": [0, 450, 457],
}  # fmt: skip
"""Means over four and maxima, added up by hand."""


def events(folder: Path) -> Any:
    """Read a folder's event files as TensorBoard does."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0, "tensors": 0})
    return accumulator.Reload()


SUMMARY = {
    "name": "fne_mnist", "method": "fne", "dataset": "mnist", "split": "4000/500/500", "seed": 0,
    "rounds": 300, "steps": 300, "evaluations": 15000, "accuracy_last": 0.81, "accuracy_best": 0.825,
    "accuracy_test": 0.8, "majority_test": 0.5, "loss_last": 0.5, "loss_test": 0.4, "bytes_down_per_node": 1234567.5,
    "bytes_up_per_node": 4321, "payload_up_per_node": 4000, "wall_seconds": 61.25, "model_sha256": "ab",
}  # fmt: skip


def run_folder(
    parent: Path, folder: str, steps: int = 5, every: int = 1, changed: Any = lambda step: {}, **fields: Any
) -> Path:
    """Write a finished run; `changed(step)` are metrics of its own."""
    path = parent / folder
    path.mkdir()
    with History(path, every) as history:
        for step in range(1, steps + 1):
            history(SimpleNamespace(done=step == steps), ROUND, metrics(step, **changed(step)))
    (path / "summary.json").write_text(json.dumps({**SUMMARY, **fields}))
    return path


def shown(table: Any) -> str:
    stream = io.StringIO()
    Console(file=stream, width=200).print(table)
    return stream.getvalue()


def folded(seed: int, fold: int, **fields: Any) -> dict[str, Any]:
    return {**SUMMARY, "dataset": "eeg", "split": "subject", "seed": seed, "fold": fold, "folds": 5, **fields}
