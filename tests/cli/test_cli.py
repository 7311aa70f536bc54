"""The whole command: exit statuses, errors that say what to do, run folders, plugins, reports."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save
from torch import nn

import fne
from fne.cli.main import main
from fne.config import registry
from fne.config.load import list_bundled
from fne.config.registry import KINDS, catalogue
from fne.core.errors import CheckpointError, FneError, RunError
from fne.evolution.losses import correct
from fne.run.folder import locked, make_folder
from fne.run.learning_run import load_dataset
from fne.watch.history import read_history
from fne.watch.tables import markdown_bytes, markdown_table, read_summary

QUIET = ("-q", "engine.threads=1", "watch.tensorboard=false")
SHORT = ("fne_toy", "strategy.rounds=3", *QUIET)
PLUGIN = '''
from typing import Annotated

import torch
from torch import nn

from fne import Key, register
from fne.data.toy import toy
from fne.engines.local import LocalEngine
from fne.strategies.fne import FNE
from fne.core.dataset import Dataset, Samples


@register("data", "mine")
def mine(*, seed: int, spoil: Annotated[str, Key("what to break")] = "nothing") -> Dataset:
    """Make toy data, broken as told."""
    good = toy(seed=seed, samples=300)
    x, y = good.train.x.clone(), good.train.y.clone()
    if spoil == "nan":
        x[7, 3] = float("nan")
    if spoil == "one class":
        y[:] = 1
    if spoil == "label":
        y[5] = 3
    if spoil == "one node":
        x[80:] = 1000.0
    empty = Samples(x[:0], y[:0])
    test = empty if spoil == "no test" else good.test
    validation = empty if spoil == "no validation" else good.validation
    return Dataset("mine", Samples(x, y), validation, test, good.classes, "made up", "here")


@register("model", "tiny")
class Tiny(nn.Module):
    """One hidden layer without a bias."""

    output = "softmax"

    def __init__(self, shape, outputs, *, width: int = 4, poison: float = 9.0) -> None:
        super().__init__()
        self.poison = poison
        self.inner = nn.Linear(shape[0], width, bias=False)
        self.outer = nn.Linear(width, outputs)

    def forward(self, x):
        if bool((x > 500).any()):
            raise ArithmeticError("out of range")
        logits = self.outer(torch.tanh(self.inner(x)))
        return torch.where(self.outer.bias[0] > self.poison, torch.nan, logits)


@register("model", "tied")
class Tied(nn.Module):
    """Two layers that share one weight."""

    output = "softmax"

    def __init__(self, shape, outputs) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(shape[0], shape[0]), nn.Linear(shape[0], shape[0])
        self.second.weight = self.first.weight
        self.head = nn.Linear(shape[0], outputs)

    def forward(self, x):
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


@register("model", "frozen")
class Frozen(nn.Module):
    """A random projection that is not trained."""

    output = "softmax"

    def __init__(self, shape, outputs) -> None:
        super().__init__()
        self.projection = nn.Linear(shape[0], 16).requires_grad_(False)
        self.head = nn.Linear(16, outputs)

    def forward(self, x):
        return self.head(torch.tanh(self.projection(x)))


@register("model", "waves")
class Waves(nn.Module):
    """Random Fourier features in buffers, which a state dict holds or not."""

    output = "softmax"

    def __init__(self, shape, outputs, *, persistent: bool = True) -> None:
        super().__init__()
        self.register_buffer("frequencies", 0.3 * torch.randn(16, shape[0]), persistent=persistent)
        self.register_buffer("phases", 6.28 * torch.rand(16), persistent=persistent)
        self.head = nn.Linear(16, outputs)

    def forward(self, x):
        return self.head(torch.cos(x @ self.frequencies.T + self.phases))


@register("engine", "mine")
class Counting:
    """Let the local engine do the work, and count."""

    sent = []

    def __init__(self, worker, run, folder) -> None:
        self._inner = LocalEngine(worker, run, folder)

    @property
    def nodes(self):
        return self._inner.nodes

    def send(self, request):
        self.sent.append(request.header.step)
        return self._inner.send(request)

    def save(self, step):
        self._inner.save(step)

    def load(self, step):
        self._inner.load(step)

    def close(self):
        self.sent.append("closed")


@register("strategy", "double")
class Double(FNE):
    """Do as FNE does, with another default."""

    def __init__(self, task, *, seed: int, rounds: Annotated[int, Key("generations", ge=1)] = 4) -> None:
        super().__init__(task, seed=seed, population=12, rounds=rounds, loss="cross_entropy", parents=4)


@register("partition", "greedy")
def greedy(samples, nodes, generator):
    """Give everything to the first node."""
    return [torch.arange(len(samples)), *[torch.arange(0)] * (nodes - 1)]


@register("partition", "rows")
def rows(samples, nodes, generator):
    """Deal in order."""
    return list(torch.arange(len(samples)).tensor_split(nodes))
'''


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Return `write(**sections) -> path` of a config beside a plugin of the user's own."""
    for name in ("_plugin_entries", "_plugin_files"):  # forgotten after the test
        monkeypatch.setattr(registry, name, {})

    def write(**sections: Any) -> str:
        (tmp_path / "mine.py").write_text(PLUGIN)
        settings = {
            "plugins": ["mine.py"], "data": {"name": "mine", "nodes": 5, "partition": "rows"}, "model": "tiny",
            "strategy": "double", "engine": {"threads": 1}, "watch": {"tensorboard": False}, **sections,
        }  # fmt: skip
        path = tmp_path / "mine.yaml"
        path.write_text(json.dumps(settings))
        return str(path)

    yield write
    for key in [k for k, thing in registry._registered.items() if thing.__module__.startswith("fne_plugin_")]:
        del registry._registered[key]


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return `fails(*arguments) -> text of the error`, after a look at the exit status."""

    def run(*arguments: str) -> str:
        assert main(arguments) == 2
        text = capsys.readouterr().err
        assert text.startswith(("fne: ", "Usage: ")), text
        assert "Traceback" not in text
        return text

    return run


@pytest.fixture
def prints(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return `prints(*arguments) -> standard output` of a command that succeeds."""

    def run(*arguments: str) -> str:
        capsys.readouterr()
        assert main(arguments) == 0
        return capsys.readouterr().out

    return run


# ------------------------------------------------------------------------------------------------ without torch
def test_help_list_show_and_config_errors_import_no_torch() -> None:
    commands: list[tuple[list[str], int]] = [
        (["--help"], 0), (["--version"], 0), ([], 2), (["nothing"], 2), (["train", "--help"], 0), (["list"], 0),
        *[
            (["show", kind, next(n for n, e in catalogue(kind).items() if not e.module.startswith("fne_plugin_"))], 0)
            for kind in KINDS
        ],
        (["show", "config", "fne_quick"], 0), (["show", "model", "cnnn"], 2), (["show", "thing", "cnn"], 2),
        (["train", "nowhere"], 2), (["train"], 2), (["train", "fne_toy", "fne_quick"], 2), (["report", "nowhere"], 2),
        (["train", "fne_toy", "strategy.rounds=0", "model=cnnn", "watch.evry=2"], 2), (["data", "show", "fne_tyo"], 2),
        (["train", "fne_toy", "--seeds", "x"], 2), (["train", "fne_toy", "--seeds", "0-1", "--out", "x"], 2),
        (["train", "fne_toy", "--stop-after", "0"], 2), (["compare", "fne_toy", "fedavg_quick"], 2),
        (["train", "fne_toy", "--folds", "0-1"], 2), (["data", "fetch", "toy"], 2),
        (["data", "fetch", "mnist", "x=1"], 2),
    ]  # fmt: skip
    code = (
        "import json, sys\nfrom fne.cli.main import main\n"
        "for arguments, status in json.loads(sys.argv[1]):\n"
        "    assert main(arguments) == status, arguments\n"
        "    assert 'torch' not in sys.modules, arguments\n"
    )
    done = subprocess.run([sys.executable, "-c", code, json.dumps(commands)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    assert f"{fne.__version__}\n" in done.stdout
    assert "fne_quick" in done.stdout


def test_exit_status_of_the_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fne.cli.main", "train", "fne_toy", "strategy.populaton=3"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert "did you mean 'population'?" in done.stderr
    assert not list(tmp_path.iterdir()), "an error leaves nothing behind"


@pytest.mark.parametrize("kind", KINDS)
def test_show_names_every_setting(kind: str, prints: Any) -> None:
    for name, entry in catalogue(kind).items():
        text = prints("show", kind, name)
        assert entry.summary.split()[0] in text
        assert [key for key in entry.settings if key not in text] == []


def test_show_of_a_plugin_and_of_every_config(plugin: Any, prints: Any, tmp_path: Path) -> None:
    plugin()
    text = prints("show", "model", "tiny", "--plugin", str(tmp_path / "mine.py"))
    assert re.search(r"width +4 +a whole number", text), "a setting may do without a Key"
    for name in list_bundled():
        text = prints("show", "config", name)
        (tmp_path / "again.yaml").write_text(text)
        assert prints("show", "config", str(tmp_path / "again.yaml")) == text


# ------------------------------------------------------------------------------------------------ bad input
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


def test_a_run_folder_is_never_overwritten(tmp_path: Path, fails: Any, prints: Any) -> None:
    folder = tmp_path / "run"
    prints("train", *SHORT, "--out", str(folder))
    before = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert "holds a run already" in fails("train", *SHORT, "seed=1", "--out", str(folder))
    assert {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_folder_that_cannot_be(tmp_path: Path, fails: Any) -> None:
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        said = fails("train", *SHORT, "--out", str(folder))
        assert f"cannot make the folder {folder}: " in said
        assert said.rstrip().endswith("choose another --out")
    assert (tmp_path / "file").read_text() == "mine"
    assert "no run to resume" in fails("train", "--resume", str(tmp_path / "nothing"))


def test_a_default_folder_that_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"cannot make the folder .*: File name too long; choose another --out"):
        make_folder(tmp_path / "runs" / ("x" * 300), numbered=True)


# ------------------------------------------------------------------------------------------------ runs
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


def read_summary_file(folder: Path) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text(), parse_constant=refuse)
    return summary


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


def test_train_prints_table_folder_and_tensorboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prints: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    text = prints("train", *SHORT, "--seeds", "0-1", "wire=tensors")
    assert re.search(r"bytes a node over the run *\n(.*\n)+?fne_toy .* kB .* 0 B +0 .* B", text)
    assert re.search(r"fne_toy +fne +\d+\.\d ± \d+\.\d %", text), "two seeds are one row"
    assert "run folder: runs/fne_toy-s0\nrun folder: runs/fne_toy-s1\n" in text
    assert "tensorboard --logdir runs\n" in text
    seeds = [read_summary_file(Path("runs") / f"fne_toy-s{seed}")["seed"] for seed in (0, 1)]
    assert seeds == [0, 1]
    text = prints("train", *SHORT, "--no-bytes")
    assert "bytes a node" not in text
    assert "run folder: runs/fne_toy-s0-2\n" in text, "a taken name gets a number"
    text = prints("train", "fne_toy", *QUIET, "--stop-after", "2", "--out", "[b]")
    assert "run folder: [b]  stopped after step 2\ngo on with: fne train --resume [b]\n" in text
    assert "82.0 %" not in text
    assert "30" in prints("train", "--resume", "[b]", "-q")


def test_compare_prints_one_table(tmp_path: Path, prints: Any, fails: Any) -> None:
    (tmp_path / "avg.yaml").write_text(
        "data: {name: toy, nodes: 6}\nmodel: logistic\nstrategy: {name: fedavg, rounds: 2}\n"
    )
    both = ("fne_toy", str(tmp_path / "avg.yaml"))
    text = prints("compare", *both, "strategy.rounds=2", *QUIET, "--out", str(tmp_path / "runs"), "--seeds", "0-1")
    assert text.count("evalu-") == text.count("looked at once") == text.count("bytes a node") == 1
    assert len(re.findall(r"^fne_toy .*\n^avg ", text, re.MULTILINE)) == 2, "in each table"
    runs = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert runs == ["avg-s0", "avg-s1", "fne_toy-s0", "fne_toy-s1"]
    for key, value in (("seed", 1), ("data", "{name: toy, nodes: 5}")):
        mine = tmp_path / "other.yaml"
        mine.write_text(
            (tmp_path / "avg.yaml").read_text() + f"seed: {value}\n"
            if key == "seed"
            else f"data: {value}\nmodel: logistic\nstrategy: {{name: fedavg, rounds: 2}}\n"
        )
        error = fails("compare", "fne_toy", str(mine), *QUIET, "--out", str(tmp_path / "refused"))
        assert "do not share one partition" in error
        assert ("seed: 0 -> 1" if key == "seed" else "data.nodes: 6 -> 5") in error
        assert not (tmp_path / "refused").exists()
    assert prints("compare", "fne_toy", str(mine), "data.nodes=6", *QUIET, "--out", str(tmp_path / "mended"))


def test_report(tmp_path: Path, prints: Any, fails: Any) -> None:
    folders = [str(tmp_path / f"run{seed}") for seed in (0, 1)]
    for seed, folder in enumerate(folders):
        prints("train", *SHORT, f"seed={seed}", "--out", folder)
    picture = tmp_path / "curves.png"
    text = prints("report", *folders, "--curves", str(picture), "--x", "bytes")
    assert "n = 2" in text or "±" in text
    with Image.open(picture) as image:
        assert image.format == "PNG"
        assert min(image.size) > 300
    first, second = (table([read_summary(Path(folders[0]))]) for table in (markdown_table, markdown_bytes))
    assert prints("report", folders[0], "--markdown") == f"{first}\n{second}\n"
    assert prints("report", folders[0], "--markdown", "--no-bytes") == f"{first}\n"
    pooled = str(tmp_path / "pooled")
    assert "bytes a node" not in prints("train", *SHORT, "strategy=centralised", "strategy.rounds=1", "--out", pooled)
    assert prints("report", pooled, "--markdown") == f"{markdown_table([read_summary(Path(pooled))])}\n"
    prints("train", *SHORT, "--out", str(tmp_path / "part"), "--stop-after", "1")
    assert "has not finished" in fails("report", str(tmp_path / "part"))


def test_data_show(tmp_path: Path, prints: Any, plugin: Any) -> None:
    picture = tmp_path / "[bold]data.png"
    text = prints("data", "show", "fne_toy", "data.nodes=4", "data.partition=shards", "--out", str(picture))
    rows = re.findall(r"^(node-\d+|all) +(\d+) +(\d+) +(\d+) +(\d+)$", text, re.MULTILINE)
    counts = np.array([[int(cell) for cell in row[1:]] for row in rows])
    assert [row[0] for row in rows] == ["node-000", "node-001", "node-002", "node-003", "all"]
    assert (counts[:-1].sum(0) == counts[-1]).all()
    assert (counts[:, :3].sum(1) == counts[:, 3]).all()
    assert counts[-1, 3] == 400
    assert f"picture: {picture}" in text
    with Image.open(picture) as image:
        assert np.asarray(image.convert("L")).std() > 1, "there is something on it"
    text = prints("data", "show", plugin(), "--out", str(tmp_path / "mine.png"))
    assert "mine: made up" in text


# ------------------------------------------------------------------------------------------------ people's own
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


def test_a_run_folder_belongs_to_one_process_at_a_time(tmp_path: Path, fails: Any, prints: Any) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    hold = f"""
import sys
from pathlib import Path
from fne.run.folder import locked, make_folder
with locked(Path({str(folder)!r})):
    print("held", flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:  # fmt: skip
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        assert "is being written by another process" in fails("train", *SHORT, "--out", str(folder))
        assert list(folder.iterdir()) == []
        other.communicate()
    prints("train", *SHORT, "--out", str(folder), "--stop-after", "1")
    with locked(folder), pytest.raises(RunError, match=f"{folder} is being written by another process; wait for it"):
        fne.train(None, resume=folder)
    assert len(read_history(folder)) == 1
    prints("train", "-q", "--resume", str(folder))
    assert read_summary_file(folder)["steps"] == 3


def test_a_run_that_is_overtaken_while_it_loads_gets_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    overtaking, build = [], fne.run.train.build

    def slow(config: Any) -> Any:
        monkeypatch.setattr(fne.run.train, "build", build)
        overtaking.append(fne.train("fne_toy", ["strategy.rounds=1"]))
        return build(config)

    monkeypatch.setattr(fne.run.train, "build", slow)
    overtaken = fne.train("fne_toy", ["strategy.rounds=1"])
    assert [overtaking[0]["folder"], overtaken["folder"]] == ["runs/fne_toy-s0", "runs/fne_toy-s0-2"]
    assert overtaking[0]["model_sha256"] == overtaken["model_sha256"]


def test_no_two_get_one_folder(tmp_path: Path) -> None:
    barrier = threading.Barrier(8)

    def make(_: int) -> Path:
        barrier.wait(60)
        return make_folder(tmp_path / "runs" / "x", numbered=True)

    with ThreadPoolExecutor(8) as pool:
        made = set(pool.map(make, range(8)))
    assert made == set((tmp_path / "runs").iterdir())
    assert len(made) == 8


def test_an_empty_folder_will_do(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    assert fne.train("fne_toy", ["strategy.rounds=1"], out=tmp_path / "run")["finished"]
    with pytest.raises(RunError, match="holds a run already"):
        fne.train("fne_toy", ["strategy.rounds=1"], out=tmp_path / "run")


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


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        ("", "compare"), ("--seeds 0-2", "compare"), ("-q --seeds 0-2 --out x", "compare"), ("--seeds=0-2", "compare"),
        ("--no-bytes", "compare"), ("fne_toy --no-bytes", "train"),
        ("strategy.rounds=3", "compare"), ("strategy.rounds=3 --seeds 0", "compare"),
        ("fne_toy", "train"), ("fne_toy strategy.rounds=3", "train"), ("--seeds 0-2 fne_toy", "train"),
        ("-q fne_toy", "train"), ("--resume runs/x", "train"), ("--resume=runs/x -q", "train"),
        ("fne_toy --help", "train"), ("train fne_toy", ""),
        ("compare a b --seeds 0", ""), ("data show fne_toy", ""), ("list", ""), ("--help", ""),
        ("--version", ""),
    ],
)  # fmt: skip
def test_train_py_finds_the_command(arguments: str, command: str) -> None:
    script = runpy.run_path(str(Path(__file__).parents[2] / "train.py"))
    assert script["with_command"](arguments.split()) == [*command.split(), *arguments.split()]


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
