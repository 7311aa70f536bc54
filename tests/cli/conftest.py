"""Fixtures that several files about the command share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fne.cli.main import main
from fne.config import registry
from tests.cli.parts import PLUGIN


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
