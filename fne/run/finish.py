"""What a run ends with: its model or its point written, and the figures of the summary that go with it."""

from __future__ import annotations

import csv
import functools
import io
import json
import math
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fne.config.members import attempt
from fne.core.contracts import Engine
from fne.core.dataset import Dataset, Samples
from fne.core.files import write_atomically
from fne.evolution.indicators import igd
from fne.evolution.losses import answers
from fne.run.folder import FRONT, MODEL, SOLUTION, save_model
from fne.run.learning_run import Experiment, on_device
from fne.run.search_run import Search
from fne.watch.inspection import FrontView, SimulationView
from fne.watch.tables import privacy_lines


def finish_learning(experiment: Experiment, folder: Path) -> dict[str, Any]:
    """Write the model and return what the summary says of it; the only place that looks at the test part."""
    config, dataset = experiment.config, experiment.dataset
    result = experiment.strategy.result()
    digest = save_model(experiment, result, folder / MODEL)
    test_part = on_device(dataset.test, experiment.worker.device)
    test = experiment.evaluator.evaluate(
        result.parameters.unsqueeze(0), test_part, loss=experiment.loss, buffers=result.buffers
    )
    labels = dataset.classes is not None
    by_subject: dict[str, float] | None = None
    if labels and dataset.test.groups is not None:
        logits = experiment.evaluator.logits(result.parameters.unsqueeze(0), test_part.x, buffers=result.buffers)[0]
        by_subject = _by_subject((answers(logits) == test_part.y).cpu(), dataset)
    fold, folds = dataset.fold or (None, None)
    front_size = functools.partial(_front_size, experiment, test_part, folder)
    more = _optional(experiment, "population", "front_size", front_size)
    more |= _optional(experiment, "privacy", "privacy", functools.partial(_account, experiment))
    return {
        "dataset": config.data.name,
        "source": dataset.source,
        "model": config.model.name,
        "split": dataset.split,
        "fold": fold,
        "folds": folds,
        "partition": config.data.partition.name,
        "accuracy_test": float(test["accuracy"][0]) if labels else None,
        "majority_test": _majority(dataset.test.y) if labels else None,
        "accuracy_test_by_subject": by_subject,
        "accuracy_test_subjects": None if by_subject is None else _vote(by_subject.values()),
        "loss": experiment.loss,
        "loss_test": float(test["loss"][0]),
        "best_value": None,
        "best_point": None,
        "model_sha256": digest,
        **more,
    }


def _optional(experiment: Experiment, name: str, field: str, use: Callable[[Callable[[], Any]], Any]) -> dict[str, Any]:
    """Return a field of the summary that an optional method of the strategy gives, null where the method fails."""

    def made(method: Callable[[], Any] | None) -> dict[str, Any]:
        return {} if method is None else {field: use(method)}

    given = attempt(experiment.strategy, name, made)
    return {field: None} if given is None else given


def _account(experiment: Experiment, privacy: Callable[[], Any]) -> dict[str, Any]:
    """Return a strategy's account of privacy, once it is known that it can be written and printed."""
    simulated = any(node.secrets.simulated for node in experiment.worker.nodes.values())
    account = {**privacy(), "simulated": simulated}
    json.dumps(account)
    privacy_lines([{"name": experiment.config.name, "privacy": account}])
    return account


def _front_size(experiment: Experiment, test: Samples, folder: Path, population: Callable[[], Any]) -> int:
    """Write what each trade-off that a run ends with is and comes to; return how many no other one dominates."""
    weights, rows = population()
    if rows:
        found = experiment.evaluator.evaluate(weights, test, loss=experiment.loss)
        labels = experiment.dataset.classes is not None
        errors = (1 - found["accuracy"] if labels else found["loss"]).tolist()
        text = io.StringIO()
        writer = csv.DictWriter(text, [*rows[0], "error_test"], lineterminator="\n")
        writer.writeheader()
        writer.writerows({**row, "error_test": error} for row, error in zip(rows, errors, strict=True))
        write_atomically(folder / FRONT, text.getvalue().encode())
    return sum(bool(row["on_front"]) for row in rows)


def view_of(search: Search, engine: Engine) -> SimulationView | FrontView:
    """Return what looks at the nodes of a simulation while it runs; `engine` is the one that they are in."""
    front = len(search.problem.objectives) > 1
    return FrontView(engine, search.problem.front) if front else SimulationView(engine)


def finish_search(search: Search, view: SimulationView | FrontView, folder: Path) -> dict[str, Any]:
    """Write `solution.json` or `front.csv`, and return what the summary says of it.

    With several runs side by side the best of all is the solution, and `best_values` has that of each.
    """
    section = search.config.problem
    told = {key: value for key, value in section.settings.items() if key in _SPLIT and value}
    told |= {key: value for key, value in (("noise", section.noise), ("infeasible", section.infeasible)) if value}
    yielded = _point(search, view, folder) if isinstance(view, SimulationView) else _front(search, view, folder)
    return {
        "dataset": section.name,
        "split": ", ".join(f"{key} {value}" for key, value in told.items()) or None,
        "optimum": search.problem.optimum,
        **yielded,
    }


_SPLIT = ("number", "objectives", "dim", "position", "shift", "rotate")
"""Settings of problems that say which of a family it is."""


def _point(search: Search, view: SimulationView, folder: Path) -> dict[str, Any]:
    """Write the best point of each run."""
    space, result = search.problem.space, search.strategy.result()
    values = result.values if result.values is not None else torch.full((len(result.parameters),), torch.nan)
    best = int(torch.where(values.isfinite(), values, torch.inf).argmin())
    points = [space.named(point) for point in result.parameters]
    solution = {
        "best_value": _number(float(values[best])),
        "best_point": points[best],
        "best_values": [_number(value) for value in values.tolist()],
        "best_points": points,
        "best_values_exact": view.values,
    }
    write_atomically(folder / SOLUTION, json.dumps(solution, indent=1).encode())
    return {key: value for key, value in solution.items() if key != "best_points"}


def _front(search: Search, view: FrontView, folder: Path) -> dict[str, Any]:
    """Write the published points that no other one dominates, a line each: run, variables, objectives."""
    problem, result = search.problem, search.strategy.result()
    assert result.values is not None
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["seed", *problem.space.names, *problem.objectives])
    sizes = []
    for run, (points, values) in enumerate(zip(result.parameters, result.values, strict=True)):
        there = values.isfinite().all(dim=1)
        sizes.append(int(there.sum()))
        for point, value in zip(points[there], values[there], strict=True):
            writer.writerow([search.strategy.seed + run, *problem.space.named(point).values(), *value.tolist()])
    write_atomically(folder / FRONT, text.getvalue().encode())
    figures = {f"{name}_exact": value for name, value in view.figures.items()}
    released = {"front_size": sum(sizes) / len(sizes)}
    if problem.front is not None:
        front = problem.front()
        distances = [igd(values, front) for values in result.values]
        released["igd"] = sum(distances) / len(distances)
    return {"best_value": None, "best_point": None, **released, **figures}


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON knows no other


def _majority(y: Tensor) -> float:
    """Return the share of the most frequent of labels `[N]`: the accuracy of always answering that class."""
    return int(torch.bincount(y).max()) / len(y)


def _by_subject(right: Tensor, dataset: Dataset) -> dict[str, float]:
    """Return each test subject's share of right answers (`right [N]`), in the order of their numbers."""
    groups = dataset.test.groups
    assert groups is not None
    shares = {}
    for number in sorted(set(groups.tolist())):
        of_subject = right[groups == number]
        shares[dataset.group_name(number)] = int(of_subject.sum()) / len(of_subject)
    return shares


def _vote(accuracies: Collection[float]) -> float:
    """Return the share of subjects of whose samples more than half are right; exactly half counts half."""
    return sum((share > 0.5) + 0.5 * (share == 0.5) for share in accuracies) / len(accuracies)
