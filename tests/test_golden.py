"""Small runs of everything yield what they yielded before, bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fne.config.registry import catalogue
from tests import golden

RUNS = golden.runs()
LEARNING = dict(golden.learning())


@pytest.mark.parametrize("names", [list(LEARNING), list(RUNS.keys() - LEARNING.keys())], ids=["learning", "searching"])
def test_runs_yield_what_is_stored(names: list[str]) -> None:
    family = golden.family()
    wrong = golden.differences(golden.make(names), family)
    assert not wrong, "\n".join([*wrong, "CONTRIBUTING.md says what to do"])
    if family not in golden.stored()["results"]:
        pytest.skip(f"no results are stored for {family}: the configs alone were compared")


def test_every_run_is_stored() -> None:
    known = golden.stored()
    assert set(known["configs"]) == set(RUNS)
    assert all(set(results) == set(RUNS) for results in known["results"].values())


@pytest.mark.parametrize("kind", ["strategy", "model", "partition", "problem", "engine"])
def test_everything_registered_has_a_run(kind: str) -> None:
    """Data sets are left out: all but one need files."""
    part = {"partition": "data"}.get(kind, kind)
    used = {config.get(part, {}).get("name") if kind == part else config.get(part, {}).get(kind, {}).get("name")
            for config in RUNS.values()} | {"local"}  # fmt: skip
    own = {name for name, found in catalogue(kind).items() if found.module.startswith("fne.")}
    assert own - used <= {"callable", "command"}, "those of the user, who writes the function"


def test_a_changed_bit_is_found() -> None:
    family = "a family"
    made = {"es": {"config": golden.stored()["configs"]["es"], "history": "0" * 16}}
    assert golden.differences(made, family) == []
    known = next(iter(golden.stored()["results"]))
    assert [line.split(" has ")[0] for line in golden.differences(made, known)] == [
        "es: history",
        "es: model.safetensors",
    ]
    made["es"]["config"] = "0" * 16
    assert [line.split(" has ")[0] for line in golden.differences(made, family)] == ["es: config"]


def test_another_seed_is_another_result(tmp_path: Path) -> None:
    """The digests see what a run yields, not only that it ran."""
    config = RUNS["rcga"]
    first, again, other = (
        golden.digests({**config, "seed": seed}, tmp_path / str(i)) for i, seed in enumerate((0, 0, 1))
    )
    assert first == again
    assert {file for file in first if first[file] != other[file]} == {"config", "history", "solution.json"}


def test_the_command_refuses_an_unknown_run() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.golden", "fnee"], capture_output=True, text=True, check=False,
        cwd=Path(__file__).parents[1], env=dict(os.environ),
    )  # fmt: skip
    assert done.returncode == 2
    assert "no golden run is called 'fnee'" in done.stderr
