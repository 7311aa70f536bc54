"""Node tasks of a plugin: they can be added up by secure sums, and be given a sum, if their traits say so."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fne
from fne.config import registry
from fne.core.errors import RunError
from fne.core.messages import Request, Round
from fne.engines.local import LocalEngine

PLUGIN = Path(__file__).parents[1] / "plugins" / "quiet_election.py"


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("_plugin_entries", "_plugin_files"):
        monkeypatch.setattr(registry, name, {})
    yield
    for key in [k for k, thing in registry._registered.items() if thing.__module__.startswith("fne_plugin_")]:
        sys.modules.pop(registry._registered.pop(key).__module__, None)


def config(**more: Any) -> dict[str, Any]:
    return {
        "plugins": [str(PLUGIN)], "data": {"name": "toy", "nodes": 5}, "model": {"name": "logistic"},
        "strategy": "quiet_election", "watch": {"tensorboard": False}, **more,
    }  # fmt: skip


def winners(folder: Path) -> list[int]:
    return [json.loads(line)["winner"] for line in (folder / "history.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("engine", ["local", "framed"])
def test_a_plugins_task_is_secure_and_relayed(engine: str, tmp_path: Path) -> None:
    """The same winners with and without secure sums, on each engine."""
    plain = fne.train(config(), out=tmp_path / "plain")
    secure = fne.train(config(secure=True, engine=engine), out=tmp_path / "secure")
    assert plain["steps"] == secure["steps"] == 3
    assert winners(tmp_path / "plain") == winners(tmp_path / "secure")
    assert plain["model_sha256"] == secure["model_sha256"]


def test_the_server_sees_no_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Round] = []
    real = LocalEngine.send

    def send(self: LocalEngine, request: Request) -> Round:
        seen.append(real(self, request))
        return seen[-1]

    monkeypatch.setattr(LocalEngine, "send", send)
    fne.train(config(secure=True), out=tmp_path / "run")
    entries = {name for round_ in seen for reply in round_.replies for name in reply.payload}
    assert "winner" in entries
    assert not [name for name in entries if "ballots" in name]


@pytest.mark.parametrize(
    ("trait", "task", "said"),
    [
        ("keeps", "announce", "'announce' is not known to keep to itself what it is given"),
        (None, "ballot", None),
    ],
)
def test_without_the_trait_the_sum_is_not_given(trait: str | None, task: str, said: str | None, tmp_path: Path) -> None:
    """Without `keeps` no node gives the task a sum; `withheld` forbids sums for the server, and not this one."""
    text = PLUGIN.read_text()
    path = tmp_path / "changed.py"
    path.write_text(text.replace(", keeps=True", "") if trait else text.replace(", withheld=True", ""))
    changed = config(secure=True, plugins=[str(path)])
    if said:
        with pytest.raises(RunError, match=said):
            fne.train(changed, out=tmp_path / "run")
    else:
        assert fne.train(changed, out=tmp_path / "run")["finished"]


@pytest.mark.parametrize("withheld", [True, False])
def test_what_is_withheld_is_added_up_for_no_server(withheld: bool, tmp_path: Path) -> None:
    text = PLUGIN.read_text().replace(", relay=relay)", ")").replace('["winner"]', '["ballots"].argmax()')
    path = tmp_path / "greedy.py"
    path.write_text(text if withheld else text.replace(", withheld=True", ""))
    changed = config(secure=True, plugins=[str(path)])
    if withheld:
        with pytest.raises(RunError, match="'ballot' is added up for a node to open, and not for the server"):
            fne.train(changed, out=tmp_path / "run")
    else:
        assert fne.train(changed, out=tmp_path / "run")["finished"]
