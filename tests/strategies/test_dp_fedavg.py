"""Client-level differential privacy: what nodes send, what it is worth, and what is accounted."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fne.cli.main import main
from fne.config.load import load_config
from fne.core.errors import FneError
from fne.core.messages import Request
from fne.engines.local import LocalEngine
from fne.privacy.compression import clipped
from fne.privacy.policy import Policy
from fne.run.learning_run import LearningRun, build
from fne.run.train import train
from fne.watch.history import read_history


def config(**settings: Any) -> dict[str, Any]:
    own = {"name": "dp_fedavg", "rounds": 4, "fraction": 0.4, "lr": 0.3, **settings}
    return {
        "name": "dp", "data": {"name": "toy", "nodes": 10}, "model": {"name": "mlp", "hidden": [6]}, "strategy": own,
        "watch": {"tensorboard": False, "checkpoint_every": 1},
    }  # fmt: skip


def started(**settings: Any) -> tuple[LearningRun, LocalEngine]:
    made = build(load_config(config(**settings)))
    unbound(made)
    return made, LocalEngine(made.worker)


def unbound(made: LearningRun) -> None:
    """Let nodes do more than the method asks for, so that it can be compared with others."""
    for node in made.worker.nodes.values():
        node.policy = Policy()


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


@pytest.mark.parametrize(("rounds", "epsilon"), [(1, 1.39), (10, 5.02), (50, 13.13)])
def test_who_sees_sums_alone_faces_the_accounted_epsilon(rounds: int, epsilon: float) -> None:
    """Sigma 6, delta 1e-5, replace-one, by RDP; that 4 of 10 are drawn does not help: the server knows who."""
    made, engine = started(noise=6.0, adversary="aggregate", rounds=rounds)
    strategy: Any = made.strategy
    while not strategy.done:
        metrics = strategy.tell(engine.send(strategy.ask(engine.nodes)))
    assert metrics["epsilon"] == pytest.approx(epsilon, abs=6e-3)
    report = strategy.privacy()
    assert report["epsilon_rdp"] == pytest.approx(epsilon, abs=6e-3)
    assert report["epsilon"] <= report["epsilon_rdp"]
    assert [entry["releases"] for entry in report["mechanisms"]] == [rounds]


def test_who_sees_uploads_learns_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = train(config(noise=6.0), out=tmp_path / "run")
    assert summary["privacy"]["epsilon"] > 1.8 * 2.9  # of four rounds by the sum alone, about 2.9
    (mechanism,) = summary["privacy"]["mechanisms"]
    assert mechanism["multiplier"] == pytest.approx(6 / math.sqrt(4) / 2)
    assert mechanism["counted_rate"] == 1
    epsilons = [line["epsilon"] for line in read_history(tmp_path / "run")]
    assert epsilons == sorted(epsilons)
    assert len(set(epsilons)) == 4
    assert main(["report", str(tmp_path / "run"), "--markdown"]) == 0
    told = capsys.readouterr().out.splitlines()
    epsilon = f"{summary['privacy']['epsilon']:.4g}"
    assert any(line.startswith(f"- simulated privacy of dp: epsilon {epsilon} at delta 1e-05") for line in told)


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


# ------------------------------------------------------------------------------------------------ records
def sgd(**settings: Any) -> dict[str, Any]:
    given = config()
    given["strategy"] = {"name": "dp_sgd", "rounds": 3, "fraction": 0.4, **settings}
    return given


def test_without_noise_and_clipping_dp_sgd_is_gradient_descent() -> None:
    made = build(load_config(sgd(noise=0.0, clip=1e6, rate=1.0, batch_size=40, lr=0.3, local_epochs=3)))
    unbound(made)
    engine = LocalEngine(made.worker)
    request = made.strategy.ask(engine.nodes)
    plain = Request(request.header, "train", request.nodes, request.common, {},
                    {"loss": "cross_entropy", "lr": 0.3, "epochs": 3, "batch_size": 0}, reduce="sum")  # fmt: skip
    replies = engine.send(replace(plain, reduce="none")).replies
    wanted = torch.stack([reply.payload["delta"] / reply.payload["samples"] for reply in replies]).sum(dim=0)
    (found,) = engine.send(request).replies
    assert set(found.payload) == {"delta", "clients"}
    torch.testing.assert_close(found.payload["delta"].float(), wanted, rtol=1e-4, atol=1e-6)
    assert not any(parameter.requires_grad and hasattr(parameter, "_forward_counter") and parameter._forward_counter
                   for parameter in made.worker.module.parameters())  # fmt: skip
    again = engine.send(replace(plain, reduce="none")).replies  # nothing of it is left at the module
    assert all(torch.equal(a.payload["delta"], b.payload["delta"]) for a, b in zip(again, replies, strict=True))


def test_a_records_gradient_is_clipped_and_noised_by_the_nodes_secret() -> None:
    made = build(load_config(sgd(noise=0.0, clip=1e-3, rate=1.0, batch_size=40, lr=1.0)))
    engine = LocalEngine(made.worker)
    (reply,) = engine.send(made.strategy.ask(engine.nodes)).replies
    assert 0 < float(reply.payload["delta"].norm()) <= 4 * 1e-3 + 1e-9
    noisy = build(load_config(sgd(noise=5.0, clip=1e-3, rate=1.0, lr=1.0)))
    (one,) = LocalEngine(noisy.worker).send(noisy.strategy.ask(engine.nodes)).replies
    for node in noisy.worker.nodes.values():
        node.secrets = type(node.secrets)(bytes(32), simulated=True)
    (other,) = LocalEngine(noisy.worker).send(noisy.strategy.ask(engine.nodes)).replies
    assert not torch.equal(one.payload["delta"], other.payload["delta"])


def test_the_account_of_a_record_is_opacus(tmp_path: Path) -> None:
    """Ten steps at rate 0.1 and sigma 1: 3.441 by RDP, 2.865 by PRV."""
    whole = train(sgd(rounds=1, fraction=1.0, rate=0.1, noise=1.0), out=tmp_path / "one")["privacy"]
    assert (whole["epsilon_rdp"], whole["epsilon_prv"]) == pytest.approx((3.441, 2.865), abs=2e-3)
    assert whole["mechanisms"][0]["releases"] == 10
    given = sgd(rounds=4, noise=1.0)
    summary = train(given, out=tmp_path / "whole")
    train(given, out=tmp_path / "parts", stop_after=2)
    parts = train(None, resume=tmp_path / "parts")
    assert parts["privacy"] == summary["privacy"]
    assert parts["model_sha256"] == summary["model_sha256"]
    turns = max(summary["privacy"]["mechanisms"][0]["releases"] // 10, 1)
    assert 2 <= turns <= 4  # 16 turns among 10 nodes: one has two at least


def test_dp_sgd_learns_with_little_noise(tmp_path: Path) -> None:
    summary = train(sgd(rounds=20, fraction=1.0, noise=0.2, lr=0.5), out=tmp_path / "run")
    assert summary["accuracy_test"] > 0.75


@pytest.mark.parametrize(("rate", "records"), [(0.02, 49), (0.01, 40), (0.5, 7)])
def test_records_are_drawn_at_the_rate_that_is_accounted(rate: float, records: int) -> None:
    """Also where it is no whole batch; the noise of a step is that of the batch that the config says."""
    given = sgd(noise=300.0, clip=1e-4, rate=rate, batch_size=3, lr=0.01, local_epochs=4)
    given["data"] = {"name": "toy", "nodes": 4, "samples": 4 * records + 20, "test": 10,
                     "validation": 10}  # fmt: skip
    made = build(load_config({**given, "strategy": {**given["strategy"], "fraction": 1.0}}))
    engine = LocalEngine(made.worker)
    (reply,) = engine.send(made.strategy.ask(engine.nodes)).replies
    steps = 4 * math.ceil(1 / rate)
    wanted = math.sqrt(4 * steps) * 0.01 * 0.03 / 3  # each step of 4 nodes moves a weight by lr * sigma * clip / 3
    assert float(reply.payload["delta"].std()) == pytest.approx(wanted, rel=0.2)


def test_a_training_that_diverges_answers_with_noise_alone() -> None:
    """To fail would tell one thing of the data without noise; without noise there is nothing to hide."""
    made, engine = started(noise=2.0, clip=3.0, lr=1e30)
    round_ = engine.send(made.strategy.ask(engine.nodes))
    assert not round_.failures
    assert float(round_.replies[0].payload["delta"].std()) == pytest.approx(6.0, rel=0.15)
    made, engine = started(noise=0.0, lr=1e30)
    with pytest.raises(FneError, match="training diverged"):
        engine.send(made.strategy.ask(engine.nodes))


def test_units_are_all_clients_that_were_ever_there_and_records_are_not_counted(tmp_path: Path) -> None:
    given = config(rounds=8) | {"engine": {"away": 0.6, "stretch": 1}}
    assert train(given, out=tmp_path / "clients")["privacy"]["units"] == 10
    given["strategy"] = {"name": "dp_sgd", "rounds": 2, "fraction": 0.4, "delta": 0.05}
    account = train(given, out=tmp_path / "records")["privacy"]
    assert account["units"] is None
    assert "delta = 0.05 must be below 1/N of a node's N records, which the node alone knows" in account["warnings"]
    assert not any("without noise leave" in text for text in account["warnings"])
