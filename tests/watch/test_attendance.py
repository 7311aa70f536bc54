"""Failures by node: counted in the summary, named on the terminal, and warned of where they are many."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from fne.cli.main import main
from fne.core.errors import RunError
from fne.core.messages import Header, Reply, Round, Status, Traffic
from fne.run.train import train
from fne.watch.attendance import Attendance, failure_lines, warning_of

PLUGIN = '''
from typing import Annotated

from fne.learning.averaging import Averaging
from fne.config.groups import LocalTraining
from fne.config.registry import Key, register
from fne.learning.local_training import train_payload, train_task
from dataclasses import replace


@register("task", "train_at_few", payload=train_payload)
def train_at_few(
    worker, nodes, request, *, few: Annotated[str, Key("nodes that can")], every: Annotated[int, Key("n", ge=1)]
):
    """Train at a few nodes; the others fail in each `every`-th step."""
    work = replace(request, task="train", options={})
    for node in nodes:
        if node.name not in few and request.header.step % every == 0:
            raise ValueError("out of memory")
        yield from train_task(worker, [node], work, loss="cross_entropy", lr=0.1)


class AtFew(Averaging):
    @property
    def tasks(self):
        return {"train_at_few": {"few": "node-000", "every": self.every}}

    def ask(self, nodes):
        few = {"few": "node-000", "every": self.every}
        return replace(super().ask(nodes), task="train_at_few", options=few)


@register("strategy", "at_few")
def at_few(task, *, seed, rounds: Annotated[int, Key("n", ge=1)] = 20, every: Annotated[int, Key("n", ge=1)] = 1):
    """Average as FedAvg does, at nodes most of which fail."""
    made = AtFew(task, seed=seed, rounds=rounds, training=LocalTraining(fraction=1.0, lr=0.1))
    made.every = every
    return made
'''


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return one file for all tests: a name is registered once a process."""
    path = tmp_path_factory.mktemp("plugin") / "few.py"
    path.write_text(PLUGIN)
    return str(path)


@pytest.fixture
def config(plugin: str) -> dict[str, Any]:
    return {
        "name": "few", "plugins": [plugin], "data": {"name": "toy", "nodes": 6}, "model": "logistic",
        "strategy": {"name": "at_few", "rounds": 20}, "watch": {"tensorboard": False, "checkpoint_every": 3},
    }  # fmt: skip


def test_five_of_six_nodes_that_fail_are_told(
    config: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "few.json"
    path.write_text(json.dumps(config))
    assert main(["train", str(path), "--out", str(tmp_path / "run"), "--quiet"]) == 0
    out, err = capfd.readouterr()
    assert "fne: warning: 5 of 6 nodes failed in more than a tenth of the steps that asked them" in err
    assert "node-001 in 20 of 20 (ValueError: out of memory" in err
    for node in range(1, 6):
        assert f"node-00{node} failed in 20 of 20 steps that asked it; last reason: ValueError: out of memory" in out
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["failures"].keys() == {f"node-00{node}" for node in range(1, 6)}
    assert summary["failures"]["node-003"]["failed"] == summary["failures"]["node-003"]["asked"] == 20


def test_failures_are_counted_across_a_resume(config: dict[str, Any], tmp_path: Path) -> None:
    config["strategy"]["every"] = 20  # the first step alone
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a twentieth is nothing to warn of
        whole = train(config, out=tmp_path / "whole")
        train(config, out=tmp_path / "parts", stop_after=7)
        parts = train(None, resume=tmp_path / "parts")
    assert whole["failures"] == parts["failures"]
    assert {node: (own["failed"], own["asked"]) for node, own in parts["failures"].items()} == {
        f"node-00{node}": (1, 20) for node in range(1, 6)
    }


def test_a_quorum_ends_what_a_warning_tells(config: dict[str, Any], tmp_path: Path) -> None:
    config["engine"] = {"quorum": 4}
    with pytest.raises(RunError, match=r"1 of 6 nodes answered, engine\.quorum = 4; node-001 and 4 more: ValueError"):
        train(config, out=tmp_path / "run")


def test_what_only_the_strategy_can_see_counts_among_the_failures() -> None:
    attendance = Attendance()
    attendance.add(step({"c": Status.GONE}), {"b": "its update cannot be decoded", "c": "nor this one"})
    assert attendance.failures() == {
        "b": {"asked": 1, "failed": 1, "away": 0, "reason": "its update cannot be decoded"},
        "c": {"asked": 1, "failed": 1, "away": 0, "reason": "nor this one"},
    }


def test_nodes_that_come_and_go_are_counted_and_not_warned_of(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        summary = train(
            "fne_toy", ["strategy.rounds=20", "engine.away=0.5", "watch.tensorboard=false"], out=tmp_path / "r"
        )
    away = {node: own["away"] for node, own in summary["failures"].items()}
    assert sum(away.values()) > 0
    assert all(own["failed"] == 0 and own["reason"] == "the node has left" for own in summary["failures"].values())


# ------------------------------------------------------------------------------------------------ counts
def step(statuses: dict[str, Status], asked: tuple[str, ...] = ("a", "b", "c")) -> Round:
    sizes = dict.fromkeys(asked, 10)
    failures = tuple(Reply(Header(0, 0), node, status, f"{status} now") for node, status in statuses.items())
    return Round((), failures, Traffic(sizes, sizes, sizes, sizes))


def test_counts_lines_and_the_tenth() -> None:
    attendance = Attendance()
    for number in range(20):
        attendance.add(step({"a": Status.FAILED, **({"b": Status.FAILED} if number < 2 else {})}))
    attendance.add(step({"a": Status.GONE, "c": Status.DECLINED}))
    attendance.add(step({"d": Status.REFUSED}, asked=("b",)))  # left out of what was sent, and named all the same
    found = attendance.failures()
    assert found == {
        "a": {"asked": 21, "failed": 20, "away": 1, "reason": "gone now"},
        "b": {"asked": 22, "failed": 2, "away": 0, "reason": "failed now"},
        "d": {"asked": 1, "failed": 1, "away": 0, "reason": "refused now"},
    }
    assert failure_lines(found) == [
        "a failed in 20 and was away in 1 of 21 steps that asked it; last reason: gone now",
        "b failed in 2 of 22 steps that asked it; last reason: failed now",
        "d failed in 1 of 1 steps that asked it; last reason: refused now",
    ]
    assert warning_of({"b": {**found["b"], "asked": 20}}, 3) == ""  # a tenth is not above a tenth
    assert warning_of({"b": {**found["b"], "asked": 19}}, 3).startswith("1 of 3 nodes failed in more than a tenth")
    many = {f"n{i}": found["b"] for i in range(9)}
    assert failure_lines(many)[-1] == "4 more nodes failed or were away; summary.json counts them by node"
    assert Attendance(found).by_node == found
