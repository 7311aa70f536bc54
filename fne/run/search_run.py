"""Search runs: nodes that measure points of a problem, a strategy that searches for the best, and their worker."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fne.config import registry
from fne.config.load import SearchConfig
from fne.config.members import member, new_strategy
from fne.core.contracts import Callback, Engine, Strategy
from fne.core.dataset import Samples
from fne.core.errors import SettingError, SettingWarning
from fne.core.files import write_atomically
from fne.data.partition import node_names
from fne.evolution.indicators import igd
from fne.federation.node import Node, Secrets
from fne.federation.worker import Worker
from fne.privacy.policy import Policy
from fne.problems.objective import Objective, read_known, slot
from fne.problems.space import FrontTask, Problem, SearchTask
from fne.run.folder import FRONT, MEASURED, SOLUTION
from fne.run.kinds import POOLED, check_away, check_quorum, engine_values, resolve_device
from fne.watch.inspection import FrontView, SimulationView


@dataclass
class SearchRun:
    """A search run built from a config with a problem."""

    config: SearchConfig
    problem: Problem
    strategy: Strategy
    worker: Worker
    view: SimulationView | FrontView | None = field(default=None, init=False)
    """View of the simulated nodes, from `begin` on."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of all nodes."""
        return tuple(sorted(self.worker.nodes))

    @property
    def identity(self) -> dict[str, Any]:
        """Values beside the settings that must be the same on resume: the measuring code, and the known points."""
        digest = hashlib.sha256()
        for node in self.worker.nodes.values():
            for part in (node.objective.known if node.objective is not None else None) or ():
                digest.update(part.numpy().tobytes())
        return {"code": self.problem.code, "known": digest.hexdigest()}

    @property
    def title(self) -> str:
        """Name and seed of the run."""
        return f"{self.config.name} seed {self.config.seed}"

    @property
    def measure(self) -> str:
        """Name of the quantity that a search minimises."""
        return "best value"

    def begin(self, folder: Path, nodes: Engine) -> Sequence[Callback]:
        """Let the problem write its values to the folder; return the view of the simulated nodes."""
        self.problem.keep(folder / MEASURED)
        several = len(self.problem.objectives) > 1
        self.view = FrontView(nodes, self.problem.front) if several else SimulationView(nodes)
        return [self.view]

    def settled(self) -> None:
        """Let the problem forget its measured values, since a checkpoint holds them."""
        self.problem.forget()

    def finish(self, folder: Path) -> dict[str, Any]:
        """Write `solution.json` or `front.csv`, and return its fields of the summary.

        With several runs side by side the best of all is the solution, and `best_values` has the best of each run.
        """
        view = self.view
        assert view is not None, "a run is begun before it is finished"
        section = self.config.problem
        variant = {key: value for key, value in section.settings.items() if key in _SPLIT and value}
        variant |= {
            key: value for key, value in (("noise", section.noise), ("infeasible", section.infeasible)) if value
        }
        yielded = _point(self, view, folder) if isinstance(view, SimulationView) else _front(self, view, folder)
        return {
            "dataset": section.name,
            "split": ", ".join(f"{key} {value}" for key, value in variant.items()) or None,
            "optimum": self.problem.optimum,
            **yielded,
        }

    def close(self) -> None:
        """End the measuring processes."""
        self.problem.close()


def build_search(config: SearchConfig) -> SearchRun:
    """Build the search run of a config with a problem; the run's config has device and threads resolved.

    Raises:
        FneError: the settings do not fit each other or this machine; the text names the key.
    """
    several = registry.entry("strategy", config.strategy.name).task == "FrontTask"
    device, threads = resolve_device(config.engine.settings)
    if several:  # surrogates of a few hundred points are faster on the CPU
        device = torch.device("cpu")
    if config.wire == "lineage":
        raise SettingError("wire", config.wire, "tensors or auto with a problem: points are sent as they are")
    config = config.with_values(engine_values(config, device, threads) | {"wire": "tensors"})
    section = config.problem
    make: Callable[..., Problem] = registry.load("problem", section.name)
    problem = make(**section.settings)
    _check_objectives(config, problem, several=several)
    count = len(problem.objectives)
    task = SearchTask(problem.space, section.nodes, device.type)
    if several:
        task = FrontTask(problem.space, section.nodes, device.type, count)
    strategy = new_strategy(config.strategy.name, task, config.seed, config.strategy.settings)
    if section.known is not None and not member(strategy, "takes_known"):
        allowed = f"null with strategy.name = {config.strategy.name!r}, which sees only points that it asked for"
        raise SettingError("problem.known", section.known, allowed)
    pooled = member(strategy, "pooled")
    names = node_names(section.nodes)
    releases = member(strategy, "releases")
    _check_declines(config, names if (not pooled if releases is None else releases) else ())
    objectives = {}
    if pooled:  # the pooled node can measure what any node can measure
        objectives[POOLED] = Objective(problem.measure, section.noise, objectives=count)
    else:
        for number, name in enumerate(names):
            path = None if section.known is None else Path(section.known.replace("{node}", name))
            known = None if path is None else read_known(path, problem.space, problem.objectives)
            infeasible = slot(number, section.nodes, section.infeasible)
            objectives[name] = Objective(
                problem.measure, section.noise, infeasible, known, count, declines=name in section.declines,
                publishes=member(strategy, "publishes"),
            )  # fmt: skip
    _check_spread(config, problem)
    request = strategy.ask(tuple(sorted(objectives)))  # reports impossible settings before the run folder is made
    check_quorum(config, member(strategy, "fewest") or len(request.nodes))
    check_away(config, "in a search: all its nodes are there")
    worker = worker_of(objectives, config.seed, device)
    for node in worker.nodes.values():
        node.policy = Policy(strategy.tasks, strategy.horizon)
    return SearchRun(config, problem, strategy, worker)


def _check_objectives(config: SearchConfig, problem: Problem, *, several: bool) -> None:
    """Raise `SettingError` where the strategy and the problem differ in one or several objectives."""
    count = len(problem.objectives)
    if (count > 1) == several:
        return
    fitting = "one objective, such as fdd_ea" if several else "several objectives, such as fdd_ea_mo"
    ours = f"problem.name = {config.problem.name!r} has {count}: {', '.join(problem.objectives)}"
    raise SettingError("strategy.name", config.strategy.name, f"a strategy for {fitting} ({ours})")


def _check_spread(config: SearchConfig, problem: Problem) -> None:
    """Warn where all nodes fit the same surrogate, so that an acquisition has no spread over the nodes."""
    section, settings = config.problem, config.strategy.settings
    own = not registry.entry("problem", section.name).module.startswith("fne.")
    unlike = problem.code or own or section.noise or section.infeasible or section.known
    same = settings.get("infill") == "all" and settings.get("surrogate") == "cubic" and settings.get("weight")
    if same and not unlike:
        warnings.warn(
            f"strategy.infill = all with strategy.surrogate = cubic: all nodes of problem.name = {section.name!r} "
            "measure the same points alike and fit the same interpolant, so the standard deviation over the nodes is 0 "
            f"up to rounding and strategy.weight = {settings['weight']:g} has no effect; take infill = aggregator, or "
            "surrogate = network",
            SettingWarning, stacklevel=2,
        )  # fmt: skip


def _check_declines(config: SearchConfig, names: Sequence[str]) -> None:
    """Raise `SettingError` where `problem.declines` names a node that is not in `names`, the nodes that release."""
    allowed = f"names of nodes: {', '.join(names)}"
    if not names:
        allowed = f"left out with strategy.name = {config.strategy.name!r}, which ends without a release"
    for name in config.problem.declines:
        if name not in names:
            raise SettingError("problem.declines", name, allowed)


def worker_of(objectives: Mapping[str, Objective], seed: int, device: torch.device | None = None) -> Worker:
    """Return a simulation's worker with nodes that measure and have no samples."""
    none = Samples(torch.zeros(0), torch.zeros(0))
    nodes = {n: Node(n, none, Secrets.simulate(seed, n), objective=own) for n, own in objectives.items()}
    return Worker(nodes, device=device)


_SPLIT = ("number", "objectives", "dim", "position", "shift", "rotate")
"""Settings that tell the problems of a family apart."""


def _point(run: SearchRun, view: SimulationView, folder: Path) -> dict[str, Any]:
    """Write the best point of each run."""
    space, result = run.problem.space, run.strategy.result()
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


def _front(run: SearchRun, view: FrontView, folder: Path) -> dict[str, Any]:
    """Write the non-dominated published points, a line each: run, variables, objectives."""
    problem, result = run.problem, run.strategy.result()
    assert result.values is not None
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["seed", *problem.space.names, *problem.objectives])
    sizes = []
    for number, (points, values) in enumerate(zip(result.parameters, result.values, strict=True)):
        there = values.isfinite().all(dim=1)
        sizes.append(int(there.sum()))
        for point, value in zip(points[there], values[there], strict=True):
            writer.writerow([run.strategy.seed + number, *problem.space.named(point).values(), *value.tolist()])
    write_atomically(folder / FRONT, text.getvalue().encode())
    figures = {f"{name}_exact": value for name, value in view.figures.items()}
    released = {"front_size": sum(sizes) / len(sizes)}
    if problem.front is not None:
        front = problem.front()
        distances = [igd(values, front) for values in result.values]
        released["igd"] = sum(distances) / len(distances)
    return {"best_value": None, "best_point": None, **released, **figures}


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON has no non-finite numbers
