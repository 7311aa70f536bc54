"""A config with a problem made real: nodes that measure its points, and a strategy that looks for the best."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fne import registry
from fne.config import SearchConfig
from fne.device import resolve_device
from fne.errors import SettingError
from fne.node import Node, Secrets, Worker
from fne.objective import Objective, read_known, slot
from fne.space import Problem, SearchTask
from fne.types import Samples, Strategy

POOLED = "all"


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


def node_names(count: int) -> tuple[str, ...]:
    """Return `node-000` and so on."""
    width = max(3, len(str(count - 1)))
    return tuple(f"node-{number:0{width}d}" for number in range(count))


def build_search(config: SearchConfig) -> Search:
    """Make a config with a problem real; the returned config has device and threads resolved.

    Raises:
        FneError: the settings do not fit each other or this machine; the text names the key.
    """
    device, threads = resolve_device(config.engine.settings)
    if config.wire == "lineage":
        raise SettingError("wire", config.wire, "tensors or auto with a problem: points are sent as they are")
    resolved = {"device": device.type, "threads": threads}
    config = config.with_values(
        {f"engine.{key}": value for key, value in resolved.items() if key in config.engine.settings}
        | {"wire": "tensors"}
    )
    section = config.problem
    make: Callable[..., Problem] = registry.load("problem", section.name)
    problem = make(**section.settings)
    strategize: Callable[..., Strategy] = registry.load("strategy", config.strategy.name)
    strategy = strategize(
        SearchTask(problem.space, section.nodes, device.type), seed=config.seed, **config.strategy.settings
    )
    if section.known is not None and not getattr(strategy, "takes_known", False):
        allowed = f"null with strategy.name = {config.strategy.name!r}, which sees only points that it asked for"
        raise SettingError("problem.known", section.known, allowed)
    names = node_names(section.nodes)
    pooled = getattr(strategy, "pooled", False)
    # Where all data lie in one place everything can be measured that somebody can measure.
    taus = [None] if pooled else [slot(number, section.nodes, section.infeasible) for number in range(section.nodes)]
    nodes = {}
    for name, infeasible in zip([POOLED] if pooled else names, taus, strict=True):
        known = _known(config, problem, names if pooled else [name])
        objective = Objective(problem.measure, section.noise, infeasible, known)
        none = Samples(torch.zeros(0), torch.zeros(0))
        nodes[name] = Node(name, none, Secrets.simulate(config.seed, name), objective=objective)
    request = strategy.ask(tuple(sorted(nodes)))  # more nodes than there are, and the like: before there is a folder
    quorum = config.engine.settings.get("quorum", 0)
    fewest = getattr(strategy, "fewest", len(request.nodes))
    if quorum > fewest:
        raise SettingError("engine.quorum", quorum, f"at most the number of nodes in a step, {fewest}")
    return Search(config, problem, strategy, Worker(nodes, device=device))


def _known(config: SearchConfig, problem: Problem, nodes: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return what these nodes together know from the start, each file once."""
    if config.problem.known is None:
        return None
    paths = list(dict.fromkeys(Path(config.problem.known.replace("{node}", node)) for node in nodes))
    points, values = zip(*(read_known(path, problem.space) for path in paths), strict=True)
    return torch.cat(points), torch.cat(values)
