"""Models that runs save: they give the recorded accuracy, and execute nothing unasked."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

import fne
from fne.config import registry
from fne.core.errors import CheckpointError, FneError
from fne.evolution.losses import correct
from fne.run.learning_run import load_dataset
from tests.cli.parts import PLUGIN, read_summary_file


@pytest.mark.parametrize("words", [("fne_toy",), ("fedavg_quick", "model=cnn", "strategy.rounds=2"),
                                   ("fne_toy", "strategy=fedavg", "strategy.rounds=5")])  # fmt: skip
def test_a_loaded_model_gives_the_recorded_accuracy(words: tuple[str, ...], tmp_path: Path) -> None:
    config = fne.config.load.load_config(words[0], words[1:])  # type: ignore[attr-defined]
    summary = fne.train(config, ["engine.threads=1"], out=tmp_path / "run")
    torch.rand(3)  # whatever the user did meanwhile
    module = fne.load_model(tmp_path / "run")
    assert module.training is False
    assert all(not m.training for m in module.modules())
    test = load_dataset(config).test
    with torch.no_grad():
        right = correct(module(test.x).unsqueeze(0), test.y)
    assert float(right[0]) / len(test) == summary["accuracy_test"]
    assert summary == read_summary_file(tmp_path / "run")


def test_load_model_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(fne.core.errors.CheckpointError, match="only a finished run has one"):  # type: ignore[attr-defined]
        fne.load_model(tmp_path)
    for content in (b"", b"text that is no model", b"\2\0\0\0\0\0\0\0{}"):
        (tmp_path / "model.safetensors").write_bytes(content)
        with pytest.raises(fne.core.errors.CheckpointError, match="not the model of a run"):  # type: ignore[attr-defined]
            fne.load_model(tmp_path)


MADE: dict[str, Any] = {"model": {"name": "logistic"}, "seed": 0, "shape": [4], "outputs": 3}
TENSORS = {"linear.weight": torch.zeros(3, 4), "linear.bias": torch.zeros(3)}


@pytest.mark.parametrize(
    ("changed", "tensors", "said"),
    [
        ({}, {}, "does not fit model 'logistic' as it is now .*Missing key"),
        ({"shape": [5]}, TENSORS, "does not fit model 'logistic' as it is now .*size mismatch"),
        ({"model": {"name": "logistic", "widht": 3}}, TENSORS, "does not fit .*widht: unknown key of model 'logistic'"),
        ({"model": {"name": "mlp", "hidden": [0]}}, TENSORS, "does not fit .*hidden: must be a list"),
        ({"seed": None}, TENSORS, r"not the model of a run \(seed: Input should be a valid integer\)"),
        ({"shape": "4"}, TENSORS, r"not the model of a run \(shape: "),
        ({"outputs": 0}, TENSORS, r"not the model of a run \(outputs: "),
        ({"model": {"hidden": [3]}}, TENSORS, r"not the model of a run \(model.name: Field required\)"),
        (None, TENSORS, "not the model of a run"),
        ([], TENSORS, "not the model of a run"),
    ],
)
def test_a_model_file_with_odd_contents(
    changed: Any, tensors: dict[str, torch.Tensor], said: str, tmp_path: Path
) -> None:
    def write(made: Any, tensors: dict[str, torch.Tensor]) -> None:
        (tmp_path / "model.safetensors").write_bytes(save(tensors, metadata={"fne": json.dumps(made)}))

    write(MADE, TENSORS)
    assert torch.equal(fne.load_model(tmp_path)(torch.ones(2, 4)), torch.zeros(2, 3))
    write({**MADE, **changed} if isinstance(changed, dict) else changed, tensors)
    with pytest.raises(CheckpointError, match=said) as caught:
        fne.load_model(tmp_path)
    assert str(tmp_path / "model.safetensors") in str(caught.value)
    assert "run again" in str(caught.value)


def test_a_run_folder_executes_nothing_unasked(plugin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, mark = tmp_path / "run", tmp_path / "mark"
    fne.train(plugin(), ["strategy.rounds=1"], out=folder)
    assert str(tmp_path).encode() not in (folder / "model.safetensors").read_bytes(), "no path goes with the file"
    file = tmp_path / "mine.py"
    file.write_text(f"{PLUGIN}\nopen({str(mark)!r}, 'w').close()\n")
    for name in ("_plugin_entries", "_plugin_files"):  # as in a new process
        monkeypatch.setattr(registry, name, {})
    with pytest.raises(FneError, match=f"{folder}/model.safetensors: model 'tiny' is not registered") as caught:
        fne.load_model(folder)
    assert f"{folder}/config.yaml names {file}. " in str(caught.value)
    assert str(caught.value).endswith(f"fne.load_model({str(folder)!r}, plugins=[{str(file)!r}])")
    assert not mark.exists()
    (folder / "config.yaml").unlink()
    with pytest.raises(FneError, match=r"names no plugin\. .*plugins=\['FILE'\]\)"):
        fne.load_model(folder)
    for module in [name for name in sys.modules if name.startswith("fne_plugin_mine_")]:
        del sys.modules[module]
    assert fne.load_model(folder, plugins=[file]).inner.weight.shape == (4, 20)
    assert mark.exists()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import nosuch", "ModuleNotFoundError: No module named 'nosuch' (line "),
        ("1 / 0", "ZeroDivisionError: division by zero (line "),
        ("return", "SyntaxError: 'return' outside function (mine.py, line "),
    ],
)
def test_a_plugin_that_cannot_be_imported(code: str, said: str, plugin: Any, fails: Any, tmp_path: Path) -> None:
    source = plugin()
    (tmp_path / "mine.py").write_text(f"{PLUGIN}\n{code}\n")
    assert f"plugin {tmp_path / 'mine.py'}: {said}" in fails("train", source, "--out", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
