"""Client-level differential privacy: what nodes send, what it is worth, and what is accounted."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from fne.config import load_config
from fne.engines.local import LocalEngine
from fne.errors import FneError
from fne.experiment import Experiment, build
from fne.privacy.compression import clipped
from fne.training import train
from fne.types import Request
from fne.watch.history import read_history


def config(**settings: Any) -> dict[str, Any]:
    own = {"name": "dp_fedavg", "rounds": 4, "fraction": 0.4, "lr": 0.3, **settings}
    return {
        "name": "dp", "data": {"name": "toy", "nodes": 10}, "model": {"name": "mlp", "hidden": [6]}, "strategy": own,
        "watch": {"tensorboard": False, "checkpoint_every": 1},
    }  # fmt: skip


def started(**settings: Any) -> tuple[Experiment, LocalEngine]:
    made = build(load_config(config(**settings)))
    return made, LocalEngine(made.worker)


def test_without_noise_it_is_the_mean_of_clipped_updates() -> None:
    made, engine = started(noise=0.0, clip=0.05)
    request = made.strategy.ask(engine.nodes)
    plain = Request(request.header, "train", request.nodes, request.common, {},
                    {"loss": "cross_entropy", "lr": 0.3, "epochs": 1, "batch_size": 10})  # fmt: skip
    deltas = [r.payload["delta"] / r.payload["samples"] for r in engine.send(plain).replies]
    made.strategy.tell(engine.send(request))
    assert min(float(delta.norm()) for delta in deltas) > 0.05  # all are clipped
    mean = torch.stack([clipped(delta, 0.05) for delta in deltas]).double().mean(dim=0)
    moved = made.strategy.result().parameters.double() - request.common["parameters"].double()
    torch.testing.assert_close(moved, mean, rtol=0, atol=1e-6)
    assert float(moved.norm()) <= 0.05 + 1e-6


def test_the_noise_of_a_sum_is_what_was_asked_for() -> None:
    made, engine = started(noise=2.0, clip=3.0, lr=1e-6)
    request = made.strategy.ask(engine.nodes)
    (reply,) = engine.send(request).replies
    assert set(reply.payload) == {"delta", "clients"}  # no loss, no count of samples
    assert int(reply.payload["clients"]) == 4
    assert float(reply.payload["delta"].std()) == pytest.approx(6.0, rel=0.15)


@pytest.mark.parametrize(("rounds", "epsilon"), [(1, 0.831), (10, 3.526), (50, 10.359)])
def test_who_sees_sums_alone_faces_the_accounted_epsilon(rounds: int, epsilon: float) -> None:
    """4 of 10 clients, sigma 6, delta 1e-5, replace-one: bounds of Wang, Balle, Kasiviswanathan (2019)."""
    made, engine = started(noise=6.0, adversary="aggregate", rounds=rounds)
    strategy: Any = made.strategy
    while not strategy.done:
        metrics = strategy.tell(engine.send(strategy.ask(engine.nodes)))
    assert metrics["epsilon"] == pytest.approx(epsilon, abs=2e-3)
    report = strategy.privacy()
    assert report["epsilon"] == pytest.approx(epsilon, abs=2e-3)
    assert [entry["releases"] for entry in report["mechanisms"]] == [rounds]


def test_who_sees_uploads_learns_more(tmp_path: Path) -> None:
    summary = train(config(noise=6.0), out=tmp_path / "run")
    assert summary["privacy"]["epsilon"] > 5 * 0.831
    (mechanism,) = summary["privacy"]["mechanisms"]
    assert mechanism["multiplier"] == pytest.approx(6 / math.sqrt(4) / 2)
    assert mechanism["counted_rate"] == 1
    epsilons = [line["epsilon"] for line in read_history(tmp_path / "run")]
    assert epsilons == sorted(epsilons)
    assert len(set(epsilons)) == 4


def test_the_account_is_alive_across_resume_and_secure_sums_go_with_it(tmp_path: Path) -> None:
    given = config(adversary="aggregate", noise=1.0) | {"secure": True}
    whole = train(given, out=tmp_path / "whole")
    train(given, out=tmp_path / "parts", stop_after=2)
    parts = train(None, resume=tmp_path / "parts")
    assert parts["privacy"] == whole["privacy"]
    assert parts["accuracy_test"] == whole["accuracy_test"]
    assert sum(entry["releases"] for entry in whole["privacy"]["mechanisms"]) == 4


def test_little_noise_learns(tmp_path: Path) -> None:
    summary = train(config(noise=0.01, rounds=30, clip=1.0, fraction=1.0), out=tmp_path / "run")
    assert summary["accuracy_test"] > 0.75


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (config(adversary="aggregate"), "secure = false: must be true with strategy.name = 'dp_fedavg'"),
        (config(clip=0.0), "strategy.clip = 0.0: must be a number > 0"),
        (config(delta=1.0), "strategy.delta = 1.0: must be a number > 0 and < 1"),
    ],
)
def test_mistakes_are_told_by_key(given: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(FneError) as caught:
        train(given, out=tmp_path / "run")
    assert text in str(caught.value)
