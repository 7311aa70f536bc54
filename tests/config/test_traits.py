"""Traits: declared with a registration, checked there, shown by the command, and what the strategy really is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fne
from fne.cli.main import main
from fne.config import registry
from fne.config.members import MEMBERS
from fne.config.registry import register
from fne.config.traits import TRAITS
from fne.core.errors import FneError


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("_plugin_entries", "_plugin_files"):
        monkeypatch.setattr(registry, name, {})
    yield
    for key in [k for k, thing in registry._registered.items() if thing.__module__.startswith(("fne_plugin_", "test"))]:
        del registry._registered[key]


def thing() -> None:
    """Do nothing."""


@pytest.mark.parametrize(
    ("traits", "said"),
    [
        ({"keep": True}, "cannot register task 't' with 'keep': a task declares payload, charge, keeps, withheld"),
        ({"keeps": "yes"}, "cannot register task 't' with keeps = 'yes': it must be true or false"),
        ({"keeps": 1}, "it must be true or false"),
        ({"payload": 3}, "with payload = 3: it must be function"),
        ({"remedy": True}, "with remedy = True: it must be text"),
        ({"keeps": True, "withheld": True}, "as withheld and keeps: a task is one of them; make two tasks of it"),
        ({"declines": True, "keeps": True}, "as keeps and declines"),
        ({"protocol": True}, "with protocol: nodes answer the parts of secure sums whatever their policy is"),
    ],
)
def test_a_trait_that_cannot_be_is_refused(traits: dict[str, Any], said: str) -> None:
    with pytest.raises(FneError, match=re.escape(said)):
        register("task", "t", **traits)(thing)
    assert ("task", "t") not in registry._registered


def test_a_kind_without_traits_says_so() -> None:
    with pytest.raises(FneError, match="cannot register model 'm' with 'keeps': a model declares no traits"):
        register("model", "m", keeps=True)(thing)


def test_traits_of_strategies_are_members() -> None:
    assert set(TRAITS["strategy"]) <= set(MEMBERS)


PLUGIN = """
from fne.config.registry import register
from fne.strategies.fne import FNE


@register("strategy", "undeclared"{})
class Undeclared(FNE):
    \"\"\"FNE with a member.\"\"\"

    def __init__(self, task, *, seed: int):
        super().__init__(task, seed=seed, rounds=2, population=6, parents=3, loss="cross_entropy")

    def privacy(self):
        return {}
"""


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        (", lineage=True", "Undeclared.privacy is not declared: a strategy that has it accounts for differential "
         'privacy (summary.json); write @register("strategy", "undeclared", privacy=True)'),
        (", privacy=True", "Undeclared.lineage is not declared"),
        (", lineage=True, privacy=True, pooled=True", "Undeclared.pooled is not true, though it is declared"),
    ],
)  # fmt: skip
def test_a_strategy_is_what_it_declares(declared: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(PLUGIN.replace("{}", declared, 1))
    config = {"plugins": [str(path)], "data": {"name": "toy", "nodes": 3}, "model": {"name": "mlp", "hidden": [4]},
              "strategy": "undeclared", "watch": {"tensorboard": False}}  # fmt: skip
    with pytest.raises(FneError, match=re.escape(said)):
        fne.train(config, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_the_catalogue_reads_is_what_is_registered() -> None:
    for kind in TRAITS:
        for name, entry in registry.catalogue(kind).items():
            declared = registry.traits(kind, name)
            assert set(entry.traits) == {trait for trait, value in declared.items() if value is not False}, name


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["strategy", "dp_sgd"], ["privacy", "accounts for differential privacy"]),
        (["task", "select"], ["keeps", "may be given a sum that no server sees", "select_payload"]),
        (["task", "train"], ["remedy", "lower strategy.lr"]),
    ],
)
def test_the_command_shows_traits(words: list[str], shown: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", *words]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert all(part in text for part in ["what it means", *shown])


def test_of_a_thing_without_traits_none_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "strategy", "fedavg"]) == 0
    assert "what it means" not in capsys.readouterr().out


def only(kind: str, trait: str) -> Callable[[str], bool]:
    return lambda name: bool(registry.traits(kind, name).get(trait))


def test_the_tasks_with_a_say_in_secure_sums() -> None:
    """A new one is a decision about privacy; it shows here."""
    tasks = registry.catalogue("task")
    assert [name for name in tasks if only("task", "keeps")(name)] == ["select"]
    assert [name for name in tasks if only("task", "withheld")(name)] == ["front_predict"]
    assert [name for name in tasks if only("task", "declines")(name)] == ["release", "release_front"]
