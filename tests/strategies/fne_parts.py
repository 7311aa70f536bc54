"""FNE over a few nodes, step by step."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from torch import nn

from fne.core.dataset import Samples
from fne.core.messages import Request
from fne.learning.task import LearningTask
from fne.strategies.fne import FNE

Build = Callable[..., SimpleNamespace]
Clouds = Callable[..., dict[str, Samples]]
NODES = ("a", "b", "c", "d", "e")


def linear() -> nn.Module:
    return nn.Linear(4, 3)


def fne(task: LearningTask, **settings: Any) -> FNE:
    return FNE(task, **{"seed": 0, "population": 12, "rounds": 10, "parents": 4, **settings})


def step(strategy: FNE, lab: SimpleNamespace) -> tuple[Request, dict[str, Any]]:
    request = strategy.ask(lab.engine.nodes)
    return request, strategy.tell(lab.engine.send(request))
