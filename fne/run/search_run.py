"""A config with a problem made real: nodes that measure its points, and a strategy that looks for the best."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fne.config import registry
from fne.config.load import SearchConfig
from fne.config.members import member, new_strategy
from fne.core.contracts import Strategy
from fne.core.dataset import Samples
from fne.core.errors import SettingError, SettingWarning
from fne.data.partition import node_names
from fne.federation.node import Node, Secrets
from fne.federation.worker import Worker
from fne.privacy.policy import Policy
from fne.problems.objective import Objective, read_known, slot
from fne.problems.space import FrontTask, Problem, SearchTask
from fne.run.device import resolve_device
from fne.run.learning_run import POOLED, check_away, check_quorum, engine_values


@dataclass(frozen=True)
class Search:
    """A config with a problem made real."""

    config: SearchConfig
    problem: Problem
    strategy: Strategy
    worker: Worker

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of all nodes."""
        return tuple(sorted(self.worker.nodes))

    @property
    def identity(self) -> dict[str, Any]:
        """What a run's checkpoint belongs to beside its settings: the code that measures, and what is known already."""
        digest = hashlib.sha256()
        for node in self.worker.nodes.values():
            for part in (node.objective.known if node.objective is not None else None) or ():
                digest.update(part.numpy().tobytes())
        return {"code": self.problem.code, "known": digest.hexdigest()}


def build_search(config: SearchConfig) -> Search:
    """Make a config with a problem real; the returned config has device and threads resolved.

    Raises:
        FneError: the settings do not fit each other or this machine; the text names the key.
    """
    several = registry.entry("strategy", config.strategy.name).task == "FrontTask"
    device, threads = resolve_device(config.engine.settings)
    if several:  # surrogates of a few hundred points: on the CPU it is faster
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
    if pooled:  # where all data lie everything can be measured that somebody can measure
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
    request = strategy.ask(tuple(sorted(objectives)))  # what cannot be asked: before there is a folder
    check_quorum(config, member(strategy, "fewest") or len(request.nodes))
    check_away(config, "in a search: all its nodes are there")
    worker = worker_of(objectives, config.seed, device)
    for node in worker.nodes.values():
        node.policy = Policy(strategy.tasks, strategy.horizon)
    return Search(config, problem, strategy, worker)


def _check_objectives(config: SearchConfig, problem: Problem, *, several: bool) -> None:
    """Raise `SettingError` where a strategy for one objective has more of them, or one for several has one."""
    count = len(problem.objectives)
    if (count > 1) == several:
        return
    fitting = "one objective, such as fdd_ea" if several else "several objectives, such as fdd_ea_mo"
    ours = f"problem.name = {config.problem.name!r} has {count}: {', '.join(problem.objectives)}"
    raise SettingError("strategy.name", config.strategy.name, f"a strategy for {fitting} ({ours})")


def _check_spread(config: SearchConfig, problem: Problem) -> None:
    """Warn where all nodes fit one and the same surrogate, so that an acquisition has no spread over the nodes."""
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
    """Raise `SettingError` where a node that is to decline is not among those `names` that are asked for a release."""
    allowed = f"names of nodes: {', '.join(names)}"
    if not names:
        allowed = f"left out with strategy.name = {config.strategy.name!r}, which ends without a release"
    for name in config.problem.declines:
        if name not in names:
            raise SettingError("problem.declines", name, allowed)


def worker_of(objectives: Mapping[str, Objective], seed: int, device: torch.device | None = None) -> Worker:
    """Return a simulation's worker whose nodes have no samples, but measure."""
    none = Samples(torch.zeros(0), torch.zeros(0))
    nodes = {n: Node(n, none, Secrets.simulate(seed, n), objective=own) for n, own in objectives.items()}
    return Worker(nodes, device=device)
