"""Attacks by a run folder from somebody else: it names code, and `--resume` would run it."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import fne
from fne.cli.main import main
from fne.config import registry
from fne.core.errors import CheckpointError
from fne.run.trust import MARK

PLUGIN = '''
from pathlib import Path
from fne.config.registry import register

Path(__file__).with_name("ran").touch()


@register("model", "NAME")
def own(shape, outputs):
    """A layer."""
    from torch import nn

    return nn.Linear(shape[0], outputs)
'''


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a run with a plugin, stopped after two steps; nothing has run since."""
    file = tmp_path / "theirs" / "mine.py"
    file.parent.mkdir()
    name = f"of_{tmp_path.name}"  # what is registered stays so in this process
    file.write_text(PLUGIN.replace("NAME", name))
    new_process(monkeypatch)
    config = {
        "plugins": [str(file)], "data": {"name": "toy", "nodes": 3}, "model": name,
        "strategy": {"name": "fne", "population": 4, "parents": 2, "rounds": 4}, "watch": {"tensorboard": False},
    }  # fmt: skip
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    folder = tmp_path / "theirs" / "run"
    fne.train(tmp_path / "config.yaml", out=folder, stop_after=2)
    (file.parent / "ran").unlink()
    new_process(monkeypatch)
    return folder


def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what was imported, as a new process has not imported it."""
    for name in ("_plugin_entries", "_plugin_files"):
        monkeypatch.setattr(registry, name, {})
    for module in [name for name in sys.modules if name.startswith("fne_plugin_mine_")]:
        del sys.modules[module]


@pytest.fixture
def stranger(begun: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Be another user than the one who began the run, with a state folder of one's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))


def ran(folder: Path) -> bool:
    return (folder.parent / "ran").exists()


@pytest.mark.usefixtures("stranger")
def test_a_folder_of_somebody_else_executes_nothing(begun: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It claims to run the plugin of whoever made the folder, by the command that a report advises."""
    before = {path.name: path.read_bytes() for path in begun.iterdir() if path.is_file()}
    assert main(["train", "-q", "--resume", str(begun)]) == 2
    told = capsys.readouterr().err
    assert "nothing tells that you began this run on this machine: plugins " in told
    assert "--trust" in told
    assert main(["report", str(begun)]) == 2
    assert not ran(begun)
    assert {path.name: path.read_bytes() for path in begun.iterdir() if path.is_file()} == before
    assert main(["train", "-q", "--resume", str(begun), "--trust"]) == 0
    assert ran(begun)


def test_a_run_of_ones_own_goes_on_unasked(begun: Path) -> None:
    assert fne.train(None, resume=begun)["rounds"] == 4


@pytest.mark.usefixtures("stranger")
def test_the_users_own_config_with_the_same_code_is_a_word(begun: Path, tmp_path: Path) -> None:
    """The plugin's content is what is trusted, wherever the folder says that it lies."""
    own = begun.parent.parent / "config.yaml"
    assert fne.train(own, resume=begun)["rounds"] == 4


@pytest.mark.usefixtures("stranger")
def test_the_users_own_config_with_other_code_is_none(begun: Path, tmp_path: Path) -> None:
    """It claims that a config of one's own vouches for whatever plugin the folder has."""
    mine = tmp_path / "mine.py"
    shutil.copy(begun.parent / "mine.py", mine)
    config = yaml.safe_load((begun.parent.parent / "config.yaml").read_text()) | {"plugins": [str(mine)]}
    (begun.parent / "mine.py").write_text(mine.read_text() + "\nprint('theirs')\n")
    with pytest.raises(CheckpointError, match="to go on would run code"):
        fne.train(config, resume=begun)
    assert not ran(begun)


@pytest.mark.parametrize("forged", ["{}", "[]", '{"code": 1, "files": {}, "mark": "a"}', "[" * 9999, "\x00"])
def test_a_mark_that_is_forged_or_damaged_is_none(begun: Path, forged: str) -> None:
    (begun / MARK).write_text(forged)
    with pytest.raises(CheckpointError, match="to go on would run code"):
        fne.train(None, resume=begun)
    assert not ran(begun)


def test_a_mark_does_not_hold_for_other_code(begun: Path) -> None:
    """It claims to take the mark of a run that the user began, and to put another plugin into the folder's config."""
    other = begun.parent / "other.py"
    shutil.copy(begun.parent / "mine.py", other)
    stored = begun / "config.yaml"
    stored.write_text(stored.read_text().replace("mine.py", "other.py"))
    with pytest.raises(CheckpointError, match=r"to go on would run code .*other\.py"):
        fne.train(None, resume=begun)
    told = json.loads((begun / MARK).read_text())
    told["code"] = [["plugins", str(other)]]
    (begun / MARK).write_text(json.dumps(told))
    with pytest.raises(CheckpointError, match="to go on would run code"):
        fne.train(None, resume=begun)
    assert not ran(begun)


@pytest.mark.usefixtures("stranger")
@pytest.mark.parametrize(
    "problem",
    [
        {"name": "command", "command": ["touch", "ran"], "variables": {"u": [0, 1]}},
        {"name": "callable", "function": "os:system", "variables": {"u": [0, 1]}},
    ],
)
def test_programs_and_functions_are_code(problem: dict[str, Any], tmp_path: Path) -> None:
    """It claims to run a program, or a function of the standard library, that a folder names."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump({"problem": problem, "strategy": {"name": "fdd_ea"}}))
    with pytest.raises(CheckpointError, match=r"to go on would run code .*problem\.(command touch|function os)"):
        fne.train(None, resume=folder)


def test_a_folder_that_names_no_code_needs_no_mark(tmp_path: Path) -> None:
    config = {"data": {"name": "toy", "nodes": 3}, "model": "logistic", "watch": {"tensorboard": False},
              "strategy": {"name": "fne", "population": 4, "parents": 2, "rounds": 4}}  # fmt: skip
    fne.train(config, out=tmp_path / "run", stop_after=2)
    assert not (tmp_path / "run" / MARK).exists()
    assert fne.train(None, resume=tmp_path / "run")["rounds"] == 4


def test_without_the_defence_the_attack_succeeds(begun: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(begun / "nobody"))
    monkeypatch.setattr("fne.run.folder.check_own", lambda *given: None)
    fne.train(None, resume=begun)
    assert ran(begun)
