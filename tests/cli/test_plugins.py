"""Plugins of people's own in whole runs: models, engines, nodes that fail."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fne
from fne.config import registry
from fne.core.errors import CheckpointError
from fne.evolution.losses import correct
from fne.run.learning_run import load_dataset
from fne.watch.history import read_history
from tests.cli.parts import PLUGIN, read_summary_file


def test_plugins_run(plugin: Any, tmp_path: Path, prints: Any) -> None:
    source, folder = plugin(), tmp_path / "run"
    text = prints("train", source, "-q", "--out", str(folder), "model.width=3")
    assert re.search(r"^mine +double ", text, re.MULTILINE)
    summary = read_summary_file(folder)
    assert (summary["dataset"], summary["model"], summary["nodes"]) == ("mine", "tiny", 5)
    assert list(summary["plugins"]) == [str(tmp_path / "mine.py")]
    given = [str(tmp_path / "mine.py")]
    code = f"import fne; print(fne.load_model({str(folder)!r}, plugins={given!r}).inner.weight.shape)"
    fresh = subprocess.run([sys.executable, "-c", code], cwd="/", capture_output=True, text=True)
    assert fresh.stdout == "torch.Size([3, 20])\n", fresh.stderr
    prints("train", source, "-q", "--out", str(tmp_path / "part"), "model.width=3", "--stop-after", "2")
    prints("train", "-q", "--resume", str(tmp_path / "part"))
    assert read_summary_file(tmp_path / "part")["model_sha256"] == summary["model_sha256"]
    other = fne.train("fne_toy", ["strategy.rounds=1"], out=tmp_path / "other")
    assert other["plugins"] == {}, "another run of this process has nothing to do with them"


@pytest.mark.parametrize(
    "model", ["tied", "frozen", {"name": "waves"}, {"name": "waves", "persistent": False}], ids=str
)
@pytest.mark.parametrize("strategy", ["fne", "fedavg"])
def test_models_that_are_more_than_their_trainable_parameters(
    strategy: str, model: Any, plugin: Any, tmp_path: Path
) -> None:
    """They are the same model at every node, after a stop, and when loaded."""
    more = {"population": 20, "parents": 5, "nodes": "all", "elites": 1} if strategy == "fne" else {"fraction": 1.0}
    source = plugin(model=model, strategy={"name": strategy, "rounds": 6, "loss": "cross_entropy", **more}, seed=5)
    whole = fne.train(source, out=tmp_path / "whole")
    history = read_history(tmp_path / "whole")
    assert history[-1]["loss_best"] < history[0]["loss_best"]
    assert not any(line["failures"] or line["nonfinite"] for line in history)
    assert not fne.train(source, out=tmp_path / "part", stop_after=3)["finished"]
    resumed = fne.train(None, resume=tmp_path / "part")
    for key in ("model_sha256", "accuracy_test", "loss_test"):
        assert resumed[key] == whole[key]
    torch.rand(3)  # whatever the user did meanwhile
    module = fne.load_model(tmp_path / "whole")
    test = load_dataset(fne.config.load.load_config(source)).test  # type: ignore[attr-defined]
    with torch.no_grad():
        logits = module(test.x)
    assert float(correct(logits.unsqueeze(0), test.y)[0]) / len(test) == whole["accuracy_test"]
    assert nn.functional.cross_entropy(logits, test.y).item() == pytest.approx(whole["loss_test"], rel=1e-5)
    if model == "tied":
        assert module.second.weight is module.first.weight


def test_an_engine_of_ones_own_is_used(plugin: Any, tmp_path: Path) -> None:
    usual = fne.train(plugin(), out=tmp_path / "usual")
    sent = registry.load("engine", "mine").sent
    assert sent == []
    source = plugin(engine={"name": "mine"})
    own = fne.train(source, out=tmp_path / "own")
    assert sent == [0, 1, 2, 3, "closed"]
    assert own["model_sha256"] == usual["model_sha256"]
    assert own["loss"] == usual["loss"] == "cross_entropy", "of labels, where the strategy has no such setting"
    sent.clear()
    fne.train(source, out=tmp_path / "part", stop_after=1)
    assert fne.train(None, resume=tmp_path / "part")["model_sha256"] == usual["model_sha256"]
    assert sent == [0, "closed", 1, 2, 3, "closed"]


def test_an_engine_is_closed_where_a_run_fails(plugin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = plugin(engine={"name": "mine"})
    fne.train(source, out=tmp_path / "part", stop_after=1)
    sent = registry.load("engine", "mine").sent
    sent.clear()
    (checkpoint,) = (tmp_path / "part").glob("checkpoint.pt")
    good = checkpoint.read_bytes()
    checkpoint.write_bytes(b"damaged")
    with pytest.raises(CheckpointError):
        fne.train(None, resume=tmp_path / "part")
    assert sent == ["closed"]
    checkpoint.write_bytes(good)
    monkeypatch.setattr(registry.load("strategy", "double"), "tell", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fne.train(None, resume=tmp_path / "part")
    assert sent == ["closed", 1, "closed"]


def test_a_plugin_edited_since_a_stop_is_refused(plugin: Any, tmp_path: Path, fails: Any) -> None:
    folder, file = tmp_path / "run", tmp_path / "mine.py"
    whole = fne.train(plugin(), out=tmp_path / "whole")
    fne.train(plugin(), out=folder, stop_after=2)
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    file.write_text(PLUGIN + "\n# a word\n")
    text = fails("train", "-q", "--resume", str(folder))
    assert f"{file} changed since the run was begun, and it would go on with other code; put the file back" in text
    with pytest.raises(
        CheckpointError, match=r"other run; plugins: \{'.*mine.py': '\w{64}'\} in the checkpoint, \{'.*"
    ):
        fne.train(None, resume=folder, trust=True)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    file.write_text(PLUGIN)
    assert fne.train(None, resume=folder)["model_sha256"] == whole["model_sha256"]


def test_a_failing_node_is_left_out_and_named(plugin: Any, tmp_path: Path, prints: Any) -> None:
    data = {"name": "mine", "nodes": 5, "partition": "rows", "spoil": "one node"}
    for strategy in ({"name": "fne", "population": 12, "rounds": 3, "nodes": "all", "parents": 4},
                     {"name": "fedavg", "rounds": 3, "fraction": 1.0}):  # fmt: skip
        source, folder = plugin(data=data, strategy=strategy), tmp_path / strategy["name"]
        prints("train", source, "-q", "--out", str(folder))
        history = read_history(folder)
        assert len(history) == 3
        for line in history:
            assert list(line["failures"]) == ["node-004"]
            assert line["failures"]["node-004"].startswith("ArithmeticError: out of range")
            assert sorted(line["per_node"]) == ["node-000", "node-001", "node-002", "node-003"]
            assert np.isfinite(line["loss_best"])


def test_a_round_without_replies_ends_the_run_and_says_so(plugin: Any, tmp_path: Path, fails: Any) -> None:
    data = {"name": "mine", "nodes": 5, "partition": "rows", "spoil": "one node"}
    strategy = {"name": "fne", "population": 4, "rounds": 3, "nodes": "all", "parents": 2}
    source = plugin(data=data, strategy=strategy, engine={"threads": 1, "quorum": 5})
    text = fails("train", source, "-q", "--out", str(tmp_path / "run"))
    assert "step 0: 4 of 5 nodes answered, engine.quorum = 5" in text
    assert "node-004: ArithmeticError: out of range" in text


def test_a_nan_individual_never_wins(plugin: Any, tmp_path: Path, prints: Any) -> None:
    strategy = {"name": "fne", "population": 30, "rounds": 12, "nodes": "all", "parents": 5, "mutation": "mixed",
                "loss": "cross_entropy", "elites": 1}  # fmt: skip
    source, folder = plugin(strategy=strategy), tmp_path / "run"
    prints("train", source, "-q", "model.poison=0.2", "--out", str(folder))
    history = read_history(folder)
    assert sum(line["nonfinite"] for line in history) > 5, "some were NaN"
    assert all(0 < line["nonfinite"] < 30 or line["nonfinite"] == 0 for line in history)
    for line in history:
        assert line["loss_best"] <= line["loss_mean"] <= line["loss_worst"] < 10
    module: Any = fne.load_model(folder)
    assert float(module.outer.bias.detach()[0]) <= 0.2
    assert read_summary_file(folder)["loss_test"] < 2
