"""Settings, data and folders that cannot be: each refused in words that say what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.parts import SHORT


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["strategy.populaton=3"], ["strategy.populaton = 3", "did you mean 'population'?"]),
        (["model=logstic"], ["model.name = 'logstic'", "must be one of cnn", "did you mean 'logistic'?"]),
        (["data=toys"], ["data.name = 'toys'", "did you mean 'toy'?"]),
        (["strategy.rounds=0"], ["strategy.rounds = 0", "must be a whole number >= 1"]),
        (["strategy.mutation_chance=1.5"], ["strategy.mutation_chance = 1.5", ">= 0 and <= 1"]),
        (["strategy.loss=nsme"], ["strategy.loss = 'nsme'", "did you mean 'nmse'?"]),
        (["strategy.subset_size=7"], ["strategy.subset_size = 7", "at most the number of nodes, 6"]),
        (["strategy.nodes=moving_window", "strategy.window_size=9"], ["strategy.window_size = 9", "nodes, 6"]),
        (["strategy.deal=true", "strategy.deal_groups=10"], ["strategy.deal_groups = 10", "number of nodes, 6"]),
        (["strategy.parents=21"], ["strategy.parents = 21", "at most strategy.population = 20"]),
        (["strategy.elites=20"], ["strategy.elites = 20", "below strategy.population = 20"]),
        (["data.nodes=401"], ["data.nodes = 401", "from 1 to 400, the number of training samples"]),
        (["data.partition=dirichlet", "data.partition.minimum=90"], ["minimum = 90", "6 nodes", "take fewer nodes"]),
        (["data.classes=30"], ["data.classes = 30", "at most data.features = 20"]),
        (["data.test=600"], ["data.test = 600", "below 600"]),
        (["data.partition=subject"], ["subject"]),
        (["evaluation.path=stacked", "model=vgg"], ["vgg"]),
        (["engine.device=cuda"] if not torch.cuda.is_available() else ["engine.device=tpu"], ["engine.device"]),
        (["engine.quorum=3"], ["engine.quorum = 3: must be at most the number of nodes in a step, 2"]),
        (["model=cnn"], ["cnn"]),
        (["plugins=[none.py]"], ["plugins", "none.py"]),
        (["data.path=here"], ["data.path", "unknown key"]),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(words: list[str], said: list[str], tmp_path: Path, fails: Any) -> None:
    text = fails("train", *SHORT, *words, "--out", str(tmp_path / "run"))
    assert [part for part in said if part not in text] == [], text
    assert not (tmp_path / "run").exists(), "the corrected command may use the same folder"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"spoil": "nan"}, ["1 of the inputs are NaN or infinite", "[7, 3]", "repair or drop"]),
        ({"spoil": "one class"}, ["all 100 labels are of class '1'", "at least 2 classes are needed"]),
        ({"spoil": "label"}, ["1 labels are outside the classes 0 to 2", "3 at index 5"]),
        ({"spoil": "no test"}, ["test part is empty"]),
        ({"spoil": "no validation"}, ["validation part is empty"]),
        ({"partition": "greedy"}, ["node-001 has no samples", "take fewer nodes"]),
        ({"nodes": 200}, ["data.nodes = 200"]),
    ],
)
def test_bad_data_of_a_plugin(data: dict[str, Any], said: list[str], plugin: Any, fails: Any, tmp_path: Path) -> None:
    source = plugin(data={"name": "mine", "nodes": 5, "partition": "rows", **data})
    text = fails("train", source, "-q", "--out", str(tmp_path / "run"))
    assert [part for part in said if part not in text] == [], text
    assert not (tmp_path / "run").exists()


def test_no_validation_is_refused(fails: Any, tmp_path: Path) -> None:
    """Else `returns=best` would give the first model of the first generation without a word."""
    text = fails("train", *SHORT, "data=housing", "data.nodes=3", "data.validation=0", "model.output=linear",
                 "strategy.loss=mse", "--out", str(tmp_path / "run"))  # fmt: skip
    assert "validation part is empty" in text
