"""Strategies that evolve weights, over a few nodes and step by step."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from fne.config.registry import load
from fne.core.dataset import Samples
from fne.core.messages import Request
from fne.learning.evolving import Evolving

Build = Callable[..., SimpleNamespace]
Clouds = Callable[..., dict[str, Samples]]
Array = NDArray[np.float64]
METHODS = ("es", "snes", "sep_cma", "de")
NODES = ("n0", "n1", "n2")


def linear() -> nn.Module:
    return nn.Linear(4, 3)


def make(name: str, task: Any, **settings: Any) -> Evolving:
    made: Evolving = load("strategy", name)(task, **{"seed": 0, "population": 10, "rounds": 5, **settings})
    return made


def step(strategy: Evolving, lab: SimpleNamespace) -> tuple[Request, dict[str, Any]]:
    request = strategy.ask(lab.engine.nodes)
    return request, strategy.tell(lab.engine.send(request))


def learn(proposer: Any, t: int, scores: Tensor) -> dict[str, Any]:
    figures: dict[str, Any] = proposer.advance(t, proposer.decide(scores))
    return figures


def sent(common: dict[str, Tensor]) -> Array:
    """Return the candidates that a request holds, float64 `[P, 15]`; pairs of rank one: weights [3, 4], 3 offsets."""
    if "population" in common:
        return common["population"].double().numpy()
    centre, a, b, offsets = (
        value.double().numpy() for value in (common["centre"], *common["factors"].split([3, 4, 3], dim=1))
    )
    weights, shift = common["sigma"].double().numpy()
    change = np.concatenate([weights * np.einsum("pk,pi->pki", a, b).reshape(-1, 12), shift * offsets], axis=1)
    return np.concatenate([centre + change, centre - change])
