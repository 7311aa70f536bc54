"""Fixtures that several files about problems of one's own share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fne.config import registry
from fne.problems.space import Problem
from tests.problems.parts import COMMAND, OWN


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with `own.py` and `command.py`."""
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "command.py").write_text(COMMAND)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def made() -> Iterator[Any]:
    """Return `make(problem, **settings)`, whose problems are closed at the end."""
    problems: list[Problem] = []

    def make(name: str, **settings: Any) -> Problem:
        if "variables" not in settings:
            settings["variables"] = {"x": (-10, 10)}
        problems.append(registry.load("problem", name)(**settings))
        return problems[-1]

    yield make
    for problem in problems:
        problem.close()
