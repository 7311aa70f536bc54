"""Run folders: each of one process at a time, and none overwritten."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import fne
from fne.config.load import LearningConfig
from fne.core.errors import RunError
from fne.run.folder import locked, make_folder
from fne.watch.history import read_history
from tests.cli.parts import SHORT, read_summary_file


# ------------------------------------------------------------------------------------------------ bad input
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


# ------------------------------------------------------------------------------------------------ people's own
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
    overtaking, build = [], fne.run.train._KINDS[LearningConfig]

    def slow(config: Any) -> Any:
        monkeypatch.setitem(fne.run.train._KINDS, LearningConfig, build)
        overtaking.append(fne.train("fne_toy", ["strategy.rounds=1"]))
        return build(config)

    monkeypatch.setitem(fne.run.train._KINDS, LearningConfig, slow)
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
