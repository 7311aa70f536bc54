"""Attacks on a run folder between two parts of a run: what was changed, lost or damaged is told, not gone on with."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fne.cli import main
from fne.training import train

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
    assert "run: 'toy_run-s0' in the checkpoint, 'toy_rum-s0' in this run" in refused(folder)


def test_a_run_is_not_resumed_under_another_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Claims that a run goes on as another one: the name that is given is not the one that the run began with."""
    assert main(["train", "name=other", "--resume", str(folder), "-q"]) == 2
    assert "name: 'toy_run' -> 'other'" in capsys.readouterr().err
