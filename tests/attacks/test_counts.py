"""An attack on what noise hides by the size of the noise: it must not hang on how many records a node has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fne.config.load import load_config
from fne.engines.local import LocalEngine
from fne.run.learning_run import build
from fne.strategies import dp_sgd


def size_of_noise(samples: int) -> float:
    """Return the standard deviation of the upload of a node with so many records, of which noise is nearly all."""
    given: dict[str, Any] = {
        "data": {"name": "toy", "nodes": 4, "samples": 4 * samples + 20, "test": 10, "validation": 10},
        "model": {"name": "mlp", "hidden": [200]},
        "strategy": {"name": "dp_sgd", "rounds": 1, "fraction": 1.0, "rate": 0.5, "noise": 300.0, "clip": 1e-4},
    }
    made = build(load_config(given))
    (reply,) = LocalEngine(made.worker).send(made.strategy.ask(tuple(made.worker.nodes))).replies
    assert {len(node.data) for node in made.worker.nodes.values()} == {samples}
    return float(reply.payload["delta"].std())


def test_noise_tells_nothing_of_the_number_of_records() -> None:
    """It claims to tell 70 records from 35 by a look at one upload."""
    assert size_of_noise(70) == pytest.approx(size_of_noise(35), rel=0.05)


def test_divided_by_what_a_node_has_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    descend = dp_sgd._descend

    def literal(worker: Any, node: Any, draw: Any, training: Any) -> None:
        descend(worker, node, draw, replace(training, batch_size=round(training.rate * len(node.data))))

    monkeypatch.setattr(dp_sgd, "_descend", literal)
    assert size_of_noise(70) < 0.6 * size_of_noise(35)
