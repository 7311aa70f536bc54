"""Attacks on a run folder between two parts of a run: what was changed, lost or damaged is told, not gone on with."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import random
import re
import shutil
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from fne.cli.main import main
from fne.config import registry
from fne.config.load import load_config
from fne.config.sections import EvaluationSection, RunSection
from fne.core.errors import ConfigError, FneError
from fne.core.files import with_digest
from fne.run.train import load_model, train
from fne.watch.history import History, read_history
from fne.watch.plots import curves
from tests import processes
from tests.attacks.fuzzing import TIMES, luck

TOY: dict[str, Any] = {
    "name": "toy_run", "data": {"name": "toy", "nodes": 4}, "model": "logistic",
    "watch": {"tensorboard": False, "checkpoint_every": 2},
}  # fmt: skip
FNE = {"name": "fne", "population": 6, "parents": 3, "rounds": 8}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[[Path], str]:
    """Return `refused(folder) -> message` of a resume that must neither go on nor change anything in the folder."""

    def resume(folder: Path) -> str:
        before = contents(folder)
        assert main(["train", "--resume", str(folder), "-q"]) == 2
        assert contents(folder) == before
        error = capsys.readouterr().err
        assert error.startswith("fne: ")
        assert "Traceback" not in error
        return error

    return resume


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run that was stopped after 6 of 8 steps."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    train({**TOY, "strategy": FNE}, out=folder, stop_after=6)
    return folder


@pytest.fixture
def folder(stopped: Path, tmp_path: Path) -> Path:
    """Return a copy of that folder."""
    return Path(shutil.copytree(stopped, tmp_path / "run"))


# ------------------------------------------------------------------------------------------------ identity
def test_another_name_in_the_stored_config_is_another_run(folder: Path, refused: Any) -> None:
    """Claims to have a run end with another model and status 0, by one letter of the name that seeds nodes' draws."""
    stored = folder / "config.yaml"
    stored.write_text(stored.read_text().replace("name: toy_run", "name: toy_rum", 1))
    assert "name: 'toy_run' in the checkpoint, 'toy_rum' in this run" in refused(folder)


def test_a_run_is_not_resumed_under_another_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Claims that a run goes on as another one: the name that is given is not the one that the run began with."""
    assert main(["train", "name=other", "--resume", str(folder), "-q"]) == 2
    assert "name: 'toy_run' -> 'other'" in capsys.readouterr().err


FREE = {"watch"}
"""Sections whose settings a resumed run may change, as docs/config.md says; of all others no key."""
SEARCH: dict[str, Any] = {
    "name": "small_search", "problem": {"name": "ellipsoid", "dim": 2, "nodes": 4},
    "strategy": {"name": "fdd_ea", "rounds": 3, "generations": 2, "population": 4, "participation": 0.5},
    "watch": {"tensorboard": False},
}  # fmt: skip


@pytest.mark.parametrize("config", [{**TOY, "strategy": FNE}, SEARCH], ids=["learning", "search"])
def test_every_key_that_decides_bits_is_refused_by_name(config: dict[str, Any], tmp_path: Path, refused: Any) -> None:
    """Claims to find a key of the stored config that changes the run and is not looked at."""
    folder = tmp_path / "run"
    train(config, out=folder, stop_after=1)
    stored = folder / "config.yaml"
    tree = yaml.safe_load(stored.read_text())
    keys = [keys for keys in leaves(tree) if keys[0] not in FREE]
    assert len(keys) > 30
    of_key = choices(tree)
    for *above, last in keys:
        key = ".".join((*above, last))
        changed = copy.deepcopy(tree)
        section = functools.reduce(lambda below, name: below[name], above, changed)
        for other in others(section[last], of_key.get(key, ())):
            section[last] = other
            stored.write_text(yaml.safe_dump(changed, sort_keys=False))
            if readable(stored):
                break
        else:
            only = last in ("name", "plugins") or len(of_key.get(key, ())) == 1
            assert only, f"{key}: the test knows no other value that a config may have"
        assert re.search(rf"\b{re.escape(key.removesuffix('.name'))}\b", refused(folder)), (key, other)


def others(value: Any, words: Sequence[str]) -> list[Any]:
    """Return values of which a key may have one instead: a choice, one of the same type, or of any where it is null."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, float):
        return [other for other in (value / 2, value + 0.5) if other != value]
    if isinstance(value, int):
        return [value + 1, value + 2, value - 1]
    if isinstance(value, list):
        return [[*value, "node-0"], [*value, 1]]
    return [
        *(word for word in words if word not in {value, *RESOLVED}),
        *([1, 0.5] if value is None else []),
        f"{value}x",
    ]


def choices(tree: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the words among which a key lets choose, by dotted key."""
    named = {
        kind: (kind, tree[kind]["name"]) for kind in ("data", "model", "problem", "strategy", "engine") if kind in tree
    }
    if "data" in tree:
        named["data.partition"] = ("partition", tree["data"]["partition"]["name"])
    found = {f"{key}.name": list(registry.catalogue(kind)) for key, (kind, _) in named.items()}
    sections = {key: registry.settings_model(registry.entry(*of)) for key, of in named.items()}
    for section, model in {**sections, "evaluation": EvaluationSection, "": RunSection}.items():
        for key, field in model.model_fields.items():
            found[f"{section}.{key}".lstrip(".")] = words(field.annotation)
    return found


def words(annotation: Any) -> list[str]:
    """Return the words among which an annotation lets choose."""
    parts = typing.get_args(annotation)
    return [word for part in parts for word in ([part] if isinstance(part, str) else words(part))]


RESOLVED = {"auto", "table"}
"""Words that mean what the run has made of them, and what its config says."""


def readable(config: Path) -> bool:
    try:
        load_config(config, recorded=True)
    except ConfigError:
        return False
    return True


def test_the_order_of_variables_is_part_of_a_run(tmp_path: Path, refused: Any) -> None:
    """Claims to have points read with their coordinates exchanged: the keys and their values stay the same."""
    (tmp_path / "mine.py").write_text("def f(x, y):\n    return (x - 1) ** 2 + y\n")
    variables = {"x": [-3, 3], "y": [0, 1]}
    problem = {"name": "callable", "function": f"{tmp_path}/mine.py:f", "variables": variables, "nodes": 4}
    folder = tmp_path / "run"
    train({**SEARCH, "problem": problem}, out=folder, stop_after=1)
    tree = yaml.safe_load((folder / "config.yaml").read_text())
    tree["problem"]["variables"] = dict(reversed(variables.items()))
    (folder / "config.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    assert "problem.variables: {'x': [-3.0, 3.0], 'y': [0.0, 1.0]} in the checkpoint, {'y': " in refused(folder)


def leaves(tree: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, (*at, key))
        else:
            yield (*at, key)


# ------------------------------------------------------------------------------------------------ checkpoint
def test_without_a_checkpoint_nothing_begins_again(folder: Path, refused: Any) -> None:
    """Claims to have the history of a run cut to nothing by taking its checkpoint away."""
    (folder / "checkpoint.pt").unlink()
    assert "checkpoint.pt is missing: without it the run could only begin again, over what is there" in refused(folder)


def test_a_run_that_was_killed_before_its_first_step_goes_on(tmp_path: Path) -> None:
    whole = train({**TOY, "strategy": FNE}, out=tmp_path / "whole")
    config = {**TOY, "strategy": FNE, "watch": {"tensorboard": False, "checkpoint_every": 100}}
    code = f"""
import os
from fne import loop
from fne.run.train import load_model, train
loop.run = lambda *given, **more: os._exit(9)
train({config!r}, out={str(tmp_path / "run")!r})
"""
    assert processes.run(["-c", code]).returncode == 9
    assert train(None, resume=tmp_path / "run")["model_sha256"] == whole["model_sha256"]


# ------------------------------------------------------------------------------------------------ history
def test_one_flipped_bit_of_the_history_is_told_and_cut_at_the_users_word_alone(folder: Path, refused: Any) -> None:
    """Claims to change a figure of the past: before, 99 of 100 flipped bits were kept without a word."""
    history = folder / "history.jsonl"
    good = history.read_bytes()
    draw = luck("history")
    for _ in range(20):
        damaged = flipped(good, draw)
        history.write_bytes(damaged)
        assert "history.jsonl was changed or damaged" in refused(folder)
    assert main(["train", "--resume", str(folder), "-q", "--new-history"]) == 0
    assert (folder / "history.damaged.jsonl").read_bytes() == damaged
    assert [line["step"] for line in read_history(folder)] == [7, 8]


def test_without_the_digest_the_attack_succeeds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = folder / "history.jsonl"
    history.write_bytes(history.read_bytes().replace(b'"step":3', b'"step":7', 1))
    monkeypatch.setattr(History, "_damage", lambda *given: "")
    assert main(["train", "--resume", str(folder), "-q"]) == 0
    assert [line["step"] for line in read_history(folder)][:3] == [1, 2, 7]


# ------------------------------------------------------------------------------------------------ what was measured
def test_a_damaged_measurement_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Claims a traceback, or a value that nobody measured: before, 32 of 60 flipped bits were tracebacks."""
    (tmp_path / "mine.py").write_text("def f(x):\n    return (x - 1) ** 2\n")
    problem = {"name": "callable", "function": f"{tmp_path}/mine.py:f", "variables": {"x": [-3, 3]}, "nodes": 5}
    config = {"problem": problem, "strategy": {"name": "fdd_ea", "rounds": 2, "generations": 4},
              "engine": {"threads": 1}, "watch": {"tensorboard": False, "checkpoint_every": 100}}  # fmt: skip
    train(config, out=tmp_path / "run", stop_after=1)
    journal = tmp_path / "run" / "nodes" / "measured.jsonl"
    lines = [with_digest({"of": f"point {n}", "values": [0.5 * n]}) for n in range(4)]
    good = "".join(json.dumps(line) + "\n" for line in lines).encode()
    draw = luck("measured")
    told = 0
    for _ in range(60):
        damaged = flipped(good, draw)
        journal.write_bytes(damaged)
        status = main(["train", "--resume", str(tmp_path / "run"), "-q", "--stop-after", "1"])
        error = capsys.readouterr().err
        assert status in (0, 2)
        assert "Traceback" not in error
        told += status == 2
        if status == 2:
            assert re.search(r"measured\.jsonl, line \d is damaged .*: put the file back, or delete the line", error)
    assert told > 50, "but for the key of the digest, and a line end at the end of the file"


# ------------------------------------------------------------------------------------------------ all files
YIELDED = ("summary.json", "results.sha256", "history.jsonl", "model.safetensors")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run that came to its end."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    train({**TOY, "strategy": FNE}, out=folder)
    return folder


@pytest.mark.parametrize("name", [name for name in YIELDED if name != "results.sha256"])
def test_one_flipped_bit_of_what_a_run_has_yielded_is_told_and_made_anew(
    name: str, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Claims to change a figure, a curve or a weight of a finished run: before, of its history, without a word."""
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    good = contents(folder)
    draw = luck(f"finished {name}")
    for _ in range(10):
        (folder / name).write_bytes(flipped(good[name], draw))
        assert main(["report", str(folder)]) == 2
        told = capsys.readouterr().err
        assert str(folder / name) in told
        assert "was changed or damaged: it is not the file that results.sha256 knows" in told
        assert f"fne train --resume {folder}" in told
    if name == "history.jsonl":
        for read in (lambda: read_history(folder), lambda: curves([folder], tmp_path / "a.png")):
            with pytest.raises(FneError, match=rf"{name} .*restore the run's own file, or .* {folder} --new-history"):
                read()
        assert main(["train", "--resume", str(folder), "-q"]) == 2
        assert "history.jsonl was changed or damaged" in capsys.readouterr().err
    given = ["--new-history"] if name == "history.jsonl" else []
    assert main(["train", "--resume", str(folder), "-q", *given]) == 0
    assert main(["report", str(folder)]) == 0
    assert (folder / "model.safetensors").read_bytes() == good["model.safetensors"]


def test_without_the_digests_the_attack_succeeds(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    history = folder / "history.jsonl"
    history.write_bytes(history.read_bytes().replace(b'"step":3', b'"step":7', 1))
    monkeypatch.setattr("fne.watch.history.verified", Path.read_bytes)
    assert [line["step"] for line in read_history(folder)][:3] == [1, 2, 7]
    monkeypatch.setattr("fne.watch.tables.damaged", lambda folder: [])
    assert main(["report", str(folder), "--curves", str(tmp_path / "a.png")]) == 0


@pytest.mark.fuzz
def test_flipped_bits_of_a_finished_run_are_told_or_harmless(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Claims a traceback, or another figure in a table: before, 138 of 500 flips of summary.json were tracebacks."""
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    capsys.readouterr()
    assert main(["report", str(folder), "--markdown"]) == 0
    good, table = contents(folder), capsys.readouterr().out
    lines, weights = read_history(folder), load_model(folder).state_dict()
    draw = luck("finished run")
    told = 0
    for _ in range(100 * TIMES):
        name = draw.choice(YIELDED)
        (folder / name).write_bytes(flipped(good[name], draw))
        status = main(["report", str(folder), "--markdown"])
        out = capsys.readouterr()
        assert (status == 0 and out.out == table) or (status == 2 and out.err.startswith("fne: "))
        told += status == 2
        status = main(["report", str(folder), "--curves", str(tmp_path / "a.svg")]) if draw.random() < 0.05 else 0
        assert status in (0, 2)
        with contextlib.suppress(FneError):
            assert read_history(folder) == lines
        with contextlib.suppress(FneError):
            assert all(weight.equal(weights[key]) for key, weight in load_model(folder).state_dict().items())
        capsys.readouterr()
        (folder / name).write_bytes(good[name])
    assert told > 80, "but for names in results.sha256 of files that nobody asks for"


@pytest.mark.fuzz
def test_flipped_bits_of_a_stopped_run_are_told_or_harmless(
    stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Claims that a run goes on to another model with status 0, or a traceback."""
    folder = tmp_path / "run"
    shutil.copytree(stopped, tmp_path / "whole")
    wanted = train(None, resume=tmp_path / "whole")["model_sha256"]
    draw = luck("stopped run")
    names = sorted(name for name in contents(stopped) if not name.endswith(".lock"))
    told = 0
    for _ in range(100 * TIMES):
        shutil.copytree(stopped, folder)
        name = draw.choice(names)
        (folder / name).write_bytes(flipped((folder / name).read_bytes(), draw))
        status = main(["train", "--resume", str(folder), "-q"])
        error = capsys.readouterr().err
        if status == 0:
            assert json.loads((folder / "summary.json").read_bytes())["model_sha256"] == wanted, name
        else:
            assert status == 2
            assert error.startswith("fne: ")
            assert "Traceback" not in error
            told += 1
        shutil.rmtree(folder)
    assert told > 50


def flipped(data: bytes, draw: random.Random) -> bytes:
    """Return a file with one bit flipped."""
    at = draw.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]
