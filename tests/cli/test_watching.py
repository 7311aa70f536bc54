"""What a run leaves to be watched: targets, champions, events, seconds, bytes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import fne
from fne.evolution.losses import correct
from fne.run.learning_run import load_dataset
from fne.watch.history import read_history
from fne.watch.tables import markdown_table, read_summary
from tests.cli.parts import QUIET


# ------------------------------------------------------------------------------------------------ people's own
def test_the_bytes_of_a_method_that_is_not_federated_are_null(tmp_path: Path) -> None:
    both = [
        fne.train("fne_toy", [f"strategy={name}", "strategy.rounds=1"], out=tmp_path / name)
        for name in ("centralised", "fedavg")
    ]
    for direction in ("bytes_down", "bytes_up", "payload_down", "payload_up"):
        for key in (f"{direction}_per_node", f"{direction}_per_node_max"):
            assert both[0][key] is read_history(tmp_path / "centralised")[-1][key] is None
            assert both[1][key] == read_history(tmp_path / "fedavg")[-1][key] > 0
    row = markdown_table([read_summary(tmp_path / "centralised")]).splitlines()[-1].split(" | ")
    header = markdown_table([]).splitlines()[0].split(" | ")
    assert [row[header.index(name)] for name in ("down/node", "up/node")] == ["-", "-"]


@pytest.mark.parametrize(
    "words",
    [
        ("wire=tensors",),
        ("wire=lineage",),
        ("strategy=es", "strategy.population=8", "wire=lineage"),
        ("strategy=fedavg",),
    ],
    ids=" ".join,
)
def test_bytes_of_a_run_are_the_sums_of_its_steps(words: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    fne.train("fne_toy", [*words, "strategy.rounds=7", "engine.threads=1"], out=folder, stop_after=3)
    summary, lines = fne.train(None, resume=folder), read_history(folder)
    per_node = {name for name in summary if "_per_node" in name}
    assert {name: lines[-1][name] for name in per_node} == {name: summary[name] for name in per_node}
    for name in ("bytes_down", "bytes_up", "payload_down", "payload_up", "catch_up"):
        total = sum(line[name] for line in lines)
        assert summary[f"{name}_per_node"] == total / 6
        assert total / 6 <= summary[f"{name}_per_node_max"] <= total
    assert summary["snapshots"] == sum(line["snapshots"] for line in lines)
    assert (summary["catch_up_per_node"] > 0) is ("wire=lineage" in words)
    assert summary["catch_up_per_node"] < summary["bytes_down_per_node"]


# ------------------------------------------------------------------------------------------------ watching
def test_target_ends_a_run(tmp_path: Path) -> None:
    whole = fne.train("fne_toy", ["engine.threads=1"], out=tmp_path / "whole")
    history = read_history(tmp_path / "whole")
    target = 0.6
    first = next(line["step"] for line in history if line["accuracy_validation"] >= target)
    ended = fne.train("fne_toy", ["engine.threads=1", f"watch.target={target}"], out=tmp_path / "ended")
    assert ended["steps"] == first < whole["steps"] == 30
    assert ended["finished"]
    assert ended["accuracy_last"] >= target


def test_target_and_curves_of_a_method_that_validates_now_and_then(tmp_path: Path, prints: Any) -> None:
    words = ("fne_toy", "strategy=es", "strategy.rounds=10", "strategy.validate_every=4", *QUIET)
    whole, ended = tmp_path / "whole", tmp_path / "ended"
    prints("train", *words, "--out", str(whole))
    assert [line["step"] for line in read_history(whole) if line["accuracy_validation"] is not None] == [4, 8, 10]
    assert fne.train(words[0], [*words[1:4], "watch.target=0"], out=ended)["steps"] == 4, "the first that is validated"
    for x in ("step", "bytes"):
        picture = tmp_path / f"{x}.png"
        prints("report", str(whole), str(ended), "--curves", str(picture), "--x", x)
        with Image.open(picture) as image:
            colours = {colour for _, colour in image.convert("RGB").getcolors(2**24)}
        assert (31, 119, 180) in colours, "the first run's line"


def test_champions(tmp_path: Path) -> None:
    fne.train("fne_toy", ["engine.threads=1", "watch.champions=10"], out=tmp_path / "run")
    kept = sorted((tmp_path / "run" / "champions").iterdir())
    assert [path.name for path in kept] == [f"step-0000000{step}0.safetensors" for step in (1, 2, 3)]
    validation = load_dataset(fne.config.load.load_config("fne_toy")).validation  # type: ignore[attr-defined]
    folder = tmp_path / "as_model"
    folder.mkdir()
    for path, step in zip(kept, (10, 20, 30), strict=True):
        os.replace(path, folder / "model.safetensors")
        module: nn.Module = fne.load_model(folder)
        with torch.no_grad():
            right = correct(module(validation.x).unsqueeze(0), validation.y)
        line = read_history(tmp_path / "run")[step - 1]
        assert float(right[0]) / len(validation) == line["accuracy_validation"]


def test_tensorboard_events_read_back(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    fne.train("fne_toy", ["engine.threads=1", "strategy.rounds=6"], out=tmp_path / "run", stop_after=4)
    fne.train(None, resume=tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run")).Reload()
    history = read_history(tmp_path / "run")
    for tag, field, sign in (("validation/accuracy", "accuracy_validation", 1), ("fitness/best", "loss_best", -1)):
        scalars = events.Scalars(tag)
        assert [event.step for event in scalars] == [1, 2, 3, 4, 5, 6]
        np.testing.assert_allclose([event.value for event in scalars], [sign * line[field] for line in history], 1e-6)
    assert "fitness/population" in events.Tags()["histograms"]
    assert b"fne_toy" in events.Tensors("config/text_summary")[0].tensor_proto.string_val[0]


def test_seconds_are_of_this_run(tmp_path: Path) -> None:
    """Processor seconds do not count what the process did before, and add up over resumed parts."""
    end = sum(os.times()[:2]) + 0.5
    while sum(os.times()[:2]) < end:
        torch.randn(1000).sort()
    summary = fne.train("fne_toy", ["engine.threads=1", "strategy.rounds=1"], out=tmp_path / "run")
    assert summary["cpu_seconds"] <= summary["cpu_seconds_total"] < end
    fne.train("fne_toy", ["engine.threads=1"], out=tmp_path / "part", stop_after=29)
    last = fne.train(None, resume=tmp_path / "part")
    assert last["cpu_seconds_total"] >= last["cpu_seconds"]
