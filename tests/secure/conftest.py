"""Fixtures that several files about secure sums share."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from torch import nn

from fne.config import registry
from fne.core.dataset import Samples
from fne.secure.engine import SecureEngine
from fne.secure.node_tasks import public_identity
from tests.secure.parts import SIZES, Tap
from tests.secure.relay_parts import TASKS


@pytest.fixture
def lab(laboratory: Callable[..., SimpleNamespace], clouds: Callable[..., dict[str, Samples]]) -> SimpleNamespace:
    """Return six nodes with a linear model, and a secure engine around a plain one."""
    made = laboratory(lambda: nn.Linear(4, 3), clouds(*SIZES))
    made.worker.pinned = {name: public_identity(node) for name, node in made.worker.nodes.items()}
    made.tap = Tap(made.engine)
    made.secured = SecureEngine(made.tap, made.worker.pinned)
    return made


@pytest.fixture
def relay_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nodes do the tasks of `relay_parts`, of which they keep what is given to `hold`."""
    load = registry.load
    monkeypatch.setattr(registry, "load", lambda kind, name: TASKS.get(name) or load(kind, name))
    monkeypatch.setitem(registry._traits, ("task", "hold"), {"keeps": True})
    monkeypatch.setitem(registry._traits, ("task", "scores"), {"withheld": True})
