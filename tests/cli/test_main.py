"""The command itself: exit statuses, help without torch, what it shows."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fne
from fne.config.load import list_bundled
from fne.config.registry import KINDS, catalogue


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


# ------------------------------------------------------------------------------------------------ people's own
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
