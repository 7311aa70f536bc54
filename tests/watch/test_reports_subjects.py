"""Data of several subjects: figures by subject, folds as runs of one experiment, warnings, fetching."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fne
from fne.cli.main import main
from fne.config import registry
from fne.config.load import load_config
from fne.core.dataset import Dataset, Samples
from fne.run.folder import folder_name
from fne.run.learning_run import _by_subject, _majority, _vote, load_dataset
from fne.watch.tables import grouped
from tests import processes

PLUGIN = '''
import warnings
from typing import Annotated, Literal

import torch
from torch import nn

from fne import Key, register
from fne.data.sources import cache_folder
from fne.core.errors import DataError, DataWarning
from fne.core.dataset import Dataset, Samples


@register("data", "people")
def people(
    *,
    seed: int,
    split: Annotated[Literal["subject", "trial"], Key("how")] = "subject",
    fold: Annotated[int | None, Key("which", ge=0)] = None,
    folds: Annotated[int, Key("how many", ge=3)] = 3,
    classes: bool = True,
    named: bool = True,
    download: bool = False,
) -> Dataset:
    """Make ten trials of each of six people; subject n is in fold n % folds."""
    if download:
        (cache_folder() / "people").mkdir(parents=True, exist_ok=True)
        (cache_folder() / "people" / "file").write_text("fetched")
    fold = fold or 0
    draw = torch.Generator().manual_seed(0)
    groups = torch.arange(60) % 6
    y = (torch.rand(60, generator=draw) < 0.4).long()
    x = 3 * torch.randn(60, 4, generator=draw) + torch.nn.functional.one_hot(y, 4) + 5
    parts = torch.arange(60) % folds if split == "subject" else torch.arange(60) // 6 % folds
    if split == "trial":
        for _ in range(2):
            warnings.warn("people: the same people in\\n  all parts", DataWarning, stacklevel=2)
        warnings.warn("people: another text", DataWarning)
        warnings.warn("somebody else's", UserWarning)
    where = [((parts != fold) & (parts != (fold + 1) % folds)), parts == (fold + 1) % folds, parts == fold]
    y = y if classes else y[:, None].float()
    made = [Samples(x[i], y[i], groups[i] if named else None) for i in where]
    return Dataset(
        "people", *made, classes=("no", "yes") if classes else None, split=f"{split}-wise", source="made up",
        group_names=tuple("abcdef"), fold=(fold, folds) if split == "subject" else None,
    )


@register("model", "normed")
class Normed(nn.Sequential):
    """Batch normalisation, whose statistics are buffers, and a layer."""

    output = "softmax"

    def __init__(self, shape, outputs) -> None:
        super().__init__(nn.BatchNorm1d(shape[0]), nn.Linear(shape[0], outputs))
'''


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the path of a config of a plugin's data with subjects; the plugin is forgotten after the test."""
    for name in ("_plugin_entries", "_plugin_files"):
        monkeypatch.setattr(registry, name, {})
    (tmp_path / "people.py").write_text(PLUGIN)
    path = tmp_path / "mine.yaml"
    settings = {
        "plugins": ["people.py"], "data": {"name": "people", "partition": "subject"}, "model": "normed",
        "strategy": {"name": "fedavg", "rounds": 2, "fraction": 1.0}, "engine": {"threads": 1},
        "watch": {"tensorboard": False},
    }  # fmt: skip
    path.write_text(json.dumps(settings))
    yield str(path)
    for key in [k for k, thing in registry._registered.items() if thing.__module__.startswith("fne_plugin_")]:
        del registry._registered[key]


@pytest.fixture
def says(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return `says(status, *arguments) -> standard output`, or the error where the status is 2."""

    def run(status: int, *arguments: str) -> str:
        capsys.readouterr()
        assert main(arguments) == status
        captured = capsys.readouterr()
        return captured.err if status == 2 else captured.out

    return run


# ------------------------------------------------------------------------------------------------ figures
def test_figures_by_subject_by_hand() -> None:
    right = torch.tensor([1, 0, 1, 1, 0, 1, 0, 0, 1]).bool()
    groups = torch.tensor([2, 0, 2, 0, 5, 2, 5, 5, 0])  # of subject 0: 0 1 1, of 2: 1 1 1, of 5: 0 0 0
    part = Samples(torch.zeros(9, 1), right.long(), groups)
    people = Dataset("people", part, part, part, ("no", "yes"), "", "", group_names=("ann", "ben", "cem"))
    shares = _by_subject(right, people)
    assert shares == {"ann": 2 / 3, "cem": 1.0, "subject-005": 0.0}
    assert list(shares) == ["ann", "cem", "subject-005"]
    assert _vote(shares.values()) == 2 / 3
    assert _vote([0.5, 0.5, 0.9, 0.1]) == 0.5  # (0.5 + 0.5 + 1 + 0) / 4
    assert _vote([24 / 49, 25 / 49]) == 0.5
    assert _majority(torch.tensor([1, 1, 0, 2, 1])) == 0.6
    assert _majority(torch.tensor([0, 0])) == 1.0


@pytest.mark.parametrize("strategy", ["fedavg", "fne"])
def test_figures_of_a_run_are_those_of_the_returned_model(strategy: str, source: str, tmp_path: Path) -> None:
    overrides = ["data.fold=1", f"strategy={strategy}", "strategy.rounds=3"]
    summary = fne.train(source, overrides, out=tmp_path / "run")
    test = load_dataset(load_config(source, overrides)).test
    with torch.no_grad():
        answers = fne.load_model(tmp_path / "run")(test.x).argmax(1).numpy()
    y, groups = test.y.numpy(), test.groups.numpy()  # type: ignore[union-attr]
    by_subject = {name: float(np.mean((answers == y)[groups == n])) for n, name in ((1, "b"), (4, "e"))}
    assert summary["accuracy_test_by_subject"] == by_subject
    votes = [np.sign(share - 0.5) / 2 + 0.5 for share in by_subject.values()]
    assert summary["accuracy_test_subjects"] == np.mean(votes)
    assert summary["accuracy_test"] == np.mean(answers == y)
    assert summary["majority_test"] == max(np.mean(y == 0), np.mean(y == 1))
    assert (summary["split"], summary["fold"], summary["folds"]) == ("subject-wise", 1, 3)
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == summary


@pytest.mark.parametrize(
    ("overrides", "null"),
    [
        (["data.named=false", "data.partition=iid", "data.nodes=2"], {"accuracy_test_by_subject"}),
        (["data.classes=false"], {"accuracy_test_by_subject", "majority_test", "accuracy_test"}),
    ],
)
def test_figures_that_have_no_meaning_are_null(
    overrides: list[str], null: set[str], source: str, tmp_path: Path
) -> None:
    summary = fne.train(source, [*overrides, "strategy.loss=mse"], out=tmp_path / "run")
    assert summary["accuracy_test_subjects"] is None
    names = ("accuracy_test", "majority_test", "accuracy_test_by_subject")
    assert {name for name in names if summary[name] is None} == null


def test_without_folds_both_are_null(tmp_path: Path) -> None:
    eeg = ["data.problem=eeg", "data.channels=2", "data.times=16", "data.partition=subject", "data.nodes=null"]
    summary = fne.train("fne_toy", [*eeg, "model=mlp", "strategy.rounds=1"], out=tmp_path / "run")
    assert (summary["fold"], summary["folds"]) == (None, None)
    assert list(summary["accuracy_test_by_subject"]) == [f"subject-{n:02d}" for n in range(10)]


# ------------------------------------------------------------------------------------------------ folds
def test_names_of_folders(source: str) -> None:
    cases = {
        (): "mine-s0", ("data.fold=2", "seed=3", "name=x"): "x-s3-f2", ("data.fold=0",): "mine-s0-f0",
    }  # fmt: skip
    assert {words: folder_name(load_config(source, words)) for words in cases} == cases
    assert folder_name(load_config("fne_toy")) == "fne_toy-s0"


def test_train_over_folds_and_seeds(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: Any) -> None:
    monkeypatch.chdir(tmp_path)
    text = says(0, "train", source, "-q", "--folds", "0-2", "--seeds", "0,4")
    names = [f"mine-s{seed}-f{fold}" for seed in (0, 4) for fold in range(3)]
    assert re.findall(r"run folder: runs/(\S+)", text) == names
    assert text.splitlines()[0].strip() == "people (subject-wise, 3 folds), n = 6 (2 seeds x 3 folds)"
    summaries = [json.loads((tmp_path / "runs" / name / "summary.json").read_text()) for name in names]
    assert [(s["seed"], s["fold"]) for s in summaries] == [(seed, fold) for seed in (0, 4) for fold in range(3)]
    tests = [100 * s["accuracy_test"] for s in summaries]
    assert f" {np.mean(tests):.1f} ± {np.std(tests, ddof=1):.1f} % " in text
    text = says(0, "report", *(f"runs/{name}" for name in names[:2]))
    assert text.splitlines()[0].strip() == "people (subject-wise, 2 of 3 folds), n = 2"
    text = says(0, "train", source, "-q", "--folds", "2")
    assert "run folder: runs/mine-s0-f2-2\n" in text, "a taken name gets a number"
    assert text.splitlines()[0].strip() == "people (subject-wise, fold 2 of 3), seed 0"


def test_compare_over_folds(source: str, tmp_path: Path, says: Any) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(Path(source).read_text().replace('"rounds": 2', '"rounds": 1'))
    text = says(0, "compare", source, str(other), "-q", "--folds", "0-1", "--out", str(tmp_path / "out"))
    names = {f"{name}-s0-f{fold}" for name in ("mine", "other") for fold in (0, 1)}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names
    assert text.splitlines()[0].strip() == "people (subject-wise, 2 of 3 folds), n = 2"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--folds", "0-3"], "data.fold = 3: must be below data.folds = 3"),
        (["--folds", "0-2,1"], "--folds '0-2,1': a number is there twice"),
        (["--folds", "x"], "--folds 'x': write numbers such as 0-4"),
        (["--folds", "2-1"], "--folds '2-1': no number in it; write the smaller one first"),
        (["--folds", "0", "data=toy", "data.nodes=2"], "data.fold = 0: unknown key of data 'toy'"),
        (["--folds", "0-1", "--out", "x"], "--seeds and --folds go with neither --resume nor --out"),
        (["--folds", "0", "--resume", "x"], "--seeds and --folds go with neither --resume nor --out"),
    ],
)
def test_folds_that_cannot_be(
    words: list[str], said: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in ("train", "compare") if not {"--out", "--resume"} & {*words} else ("train",):
        text = says(2, command, source, "-q", *words)
        assert text.startswith("fne: ")
        assert said in text
    assert {path.name for path in tmp_path.iterdir()} == {"people.py", "mine.yaml"}, "refused before the first run"


# ------------------------------------------------------------------------------------------------ warnings
def test_a_warning_about_the_data_is_one_line_once_a_command(source: str, tmp_path: Path) -> None:
    command = ["-m", "fne.cli.main", "train", source, "data.split=trial", "-q", "--seeds", "0-1"]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONWARNINGS"}
    done = processes.run(command, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    ours = ["fne: warning: people: the same people in all parts", "fne: warning: people: another text"]
    assert lines[:2] == ours
    assert not [line for line in lines[2:] if "people:" in line], done.stderr
    assert re.fullmatch(r".*people\.py:\d+: UserWarning: somebody else's", lines[2]), "others are as before"


def test_warnings_are_as_before_after_a_command(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (warnings.showwarning, list(warnings.filters))
    for number in range(2):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="somebody else's")
            picture = str(tmp_path / "x.png")
            assert main(["data", "show", source, "data.split=trial", "--out", picture]) == 0
        err = capsys.readouterr().err
        assert err.count("the same people in all parts") == 1, f"command {number}"
    assert (warnings.showwarning, list(warnings.filters)) == before


# ------------------------------------------------------------------------------------------------ data
def test_data_show_counts_subjects(source: str, tmp_path: Path, says: Any) -> None:
    out = ("--out", str(tmp_path / "x.png"))
    lines = says(0, "data", "show", source, "data.fold=1", *out).splitlines()
    assert lines[0] == "people: subject-wise, fold 1 of 3"
    assert lines[3] == "subjects: training 2, validation (the server's) 2, test 2"
    assert "subjects: " not in says(0, "data", "show", "fne_toy", *out)


def test_data_fetch(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: Any) -> None:
    monkeypatch.setattr("fne.data.sources.cache_folder", lambda: tmp_path / "cache")
    fetch = ("data", "fetch", "people", "--plugin", str(tmp_path / "people.py"))
    text = says(0, *fetch, "fold=2", "data.folds=6")
    assert text.splitlines() == [
        "people: subject-wise, fold 2 of 6", "made up",
        "input shape (4,), 2 outputs; training 40, validation (the server's) 10, test 10",
        "subjects: training 4, validation (the server's) 1, test 1", f"fetched into {tmp_path / 'cache'}",
    ]  # fmt: skip
    assert (tmp_path / "cache" / "people" / "file").read_text() == "fetched"
    assert says(0, *fetch).splitlines()[-1] == "nothing fetched: the files were there already"
    text = says(2, *fetch, "fold=-1", "flods=3", "seed=1", "folds=[")
    assert text.startswith("fne: command line: data.folds = '[': not YAML")
    text = says(2, *fetch, "fold=-1", "flods=3", "seed=1", "nodes=2")
    assert text.splitlines() == [
        "fne: command line: data.flods = 3: unknown key of data 'people' (did you mean 'folds'?)",
        "command line: data.seed = 1: unknown key of data 'people' "
        "(known: split, fold, folds, classes, named, download)",
        "command line: data.nodes = 2: unknown key of data 'people' (did you mean 'folds'?)",
        "command line: data.fold = -1: must be a whole number >= 0 or null",
    ]
    assert "command line: 'more': must be key=value" in says(2, *fetch, "more")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["toy"], "data fetch: toy has no setting 'download'; these data sets have: cifar10, eeg_uci, mnist"),
        (["mnits"], "unknown data 'mnits', did you mean 'mnist'?"),
        (["mnist"], "data.download = true: must be false with the small edition"),
        (["mnist", "edition=full", "path=here"], "data.download = true: must be false beside data.path"),
    ],
)
def test_what_cannot_be_fetched(words: list[str], said: str, says: Any) -> None:
    assert said in says(2, "data", "fetch", *words)


@pytest.mark.skipif("FNE_DATA" not in os.environ, reason="FNE_DATA is not set")
def test_fetch_of_files_that_are_there(says: Any) -> None:
    lines = says(0, "data", "fetch", "mnist", "edition=full").splitlines()
    assert lines[1:] == [
        "MNIST (LeCun, Cortes and Burges), IDX files",
        "input shape (1, 28, 28), 10 outputs; training 55000, validation (the server's) 5000, test 10000",
        "nothing fetched: the files were there already",
    ]


def test_runs_of_other_settings_are_not_put_together(source: str, tmp_path: Path) -> None:
    cases = (["seed=0"], ["seed=1"], ["seed=2", "strategy.loss=mse"], ["seed=3", "data.fold=1", "watch.every=2"])
    runs = [fne.train(source, words, out=tmp_path / str(n)) for n, words in enumerate(cases)]
    assert [row["n"] for row in grouped(runs)] == [3, 1]  # another fold is one of the same, another loss is not
    assert len({run["experiment"] for run in runs}) == 2
    old = [{**run, "experiment": None} for run in runs]  # summaries of before have none
    assert [row["n"] for row in grouped(old)] == [4]
