"""Mistakes in the settings of problems of one's own, which are told before a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fne.cli.main import main
from fne.config.load import load_config
from fne.core.errors import ConfigError, SettingError

pytestmark = pytest.mark.usefixtures("own_folder")

FUNCTION = "must be 'package.module:name' or 'path/to/file.py:name' of a function of the variables"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"function": "own.py"}, f"problem.function = 'own.py': {FUNCTION}: there is no colon between the two"),
        ({"function": "none.py:f"}, f"problem.function = 'none.py:f': {FUNCTION}: there is no file {{here}}/none.py"),
        ({"function": "own.py:cases"}, "own.py has no 'cases', did you mean 'case'?"),
        ({"function": "own.py:CONSTANT"}, "'CONSTANT' is 3, which cannot be called"),
        ({"function": "none.such:f"}, "importing none.such failed: ModuleNotFoundError: No module named 'none'"),
        ({"function": "broken.py:f"}, "importing broken.py failed: SyntaxError: "),
        ({"function": "leaves.py:f"}, "importing leaves.py failed: SystemExit: 3"),
        ({"function": "own.py:told"}, "it must take x by name: missing a required argument: 'lr'"),
        ({"function": "own.py:case"}, "it must take x by name: missing a required argument: 'case'"),
        ({"function": "math:log"}, "it must take x by name: no signature found for builtin"),
        (
            {"function": "own.py:quadratic", "variables": {"x": (0, 1), "seed": (1, 2)}},
            "problem.variables.seed = [1.0, 2.0]: must be of another name: node and seed are what a function is told",
        ),
        ({"variables": {"x": (1, 0)}}, "variables.x = [1.0, 0.0]: must be [low, high], finite, low below high"),
        ({"variables": {"x": (1, 1)}}, "variables.x = [1.0, 1.0]: must be [low, high], finite, low below high"),
        ({"integer": ("y",)}, "problem.integer = 'y': must be names among the variables: x"),
        ({"objectives": ("a", "a")}, "problem.objectives = ['a', 'a']: must be names that differ, none of them empty"),
        ({"objectives": ("",)}, "problem.objectives = ['']: must be names that differ, none of them empty"),
        ({"log": ("y",)}, "problem.log = 'y': must be names among the variables: x"),
        ({"log": ("x",)}, "variables.x = [-10.0, 10.0]: must be above 0, since it is among the log variables"),
        (
            {"integer": ("x",), "variables": {"x": (0.5, 3)}},
            "variables.x = [0.5, 3.0]: must be whole numbers, since it is among the integer variables",
        ),
        (
            {"variables": {"x": (-1e308, 1e308)}},
            "variables.x = [-1e+308, 1e+308]: must be closer together: a float cannot hold their difference; take",
        ),
        (
            {"variables": {"x": (0, 1e-320)}},
            "variables.x = [0.0, 1e-320]: must be further apart: values between them cannot be told apart; take",
        ),
        ({"log": ("x",), "variables": {"x": (1e16, 1e16 + 2)}}, "must be further apart"),
        (
            {"integer": ("x",), "variables": {"x": (0, 2**53)}},
            "x = [0.0, 9007199254740992.0]: must be below 2^53 in size, since it is among the integer variables",
        ),
    ],
)  # fmt: skip
def test_mistakes_that_are_told_before_a_run(made: Any, settings: dict[str, Any], text: str, tmp_path: Path) -> None:
    Path("broken.py").write_text("def f(:")
    Path("leaves.py").write_text("raise SystemExit(3)")
    with pytest.raises(SettingError) as caught:
        made("callable", **{"function": "own.py:hangs", **settings})
    assert text.format(here=tmp_path) in str(caught.value)


def test_a_program_that_is_not_there(made: Any) -> None:
    with pytest.raises(SettingError) as caught:
        made("command", command=("./none", "-x"))
    assert str(caught.value) == (
        "problem.command = ['./none', '-x']: must be a program and its arguments: there is no './none' that can be run"
    )


VARIABLES = "must be {name: [low, high], ..}, at least one, finite numbers"


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("variables={x: [1]}", f"variables = {{'x': [1]}}: {VARIABLES}; x = [1] is not"),
        ("variables={x: 3}", f"variables = {{'x': 3}}: {VARIABLES}; x = 3 is not"),
        ("variables={x: [0, 1, 2]}", f"variables = {{'x': [0, 1, 2]}}: {VARIABLES}; x = [0, 1, 2] is not"),
        ("variables={x: [0, 1], y: [0, high]}",
         f"variables = {{'x': [0, 1], 'y': [0, 'high']}}: {VARIABLES}; y = [0, 'high'] is not"),
        ("variables={x: [0, .nan]}", f"variables = {{'x': [0, nan]}}: {VARIABLES}; x = [0, nan] is not"),
        ("variables={x: [0, .inf]}", f"variables = {{'x': [0, inf]}}: {VARIABLES}; x = [0, inf] is not"),
        ("variables={x: [false, 1]}", f"variables = {{'x': [False, 1]}}: {VARIABLES}"),
        ("variables={}", f"variables = {{}}: {VARIABLES}"),
        ("variables=x", f"variables = 'x': {VARIABLES}"),
        ("integer=x", "integer = 'x': must be a list, each text"),
        ("log=[1]", "log = [1]: must be a list, each text"),
        ("command=python f.py", "command = 'python f.py': must be [program, argument, ..], each text"),
        ("command=[]", "command = []: must be [program, argument, ..], each text"),
        ("time_limit=0", "time_limit = 0: must be a number > 0 and <= 10000000 or null"),
        ("retries=-1", "retries = -1: must be a whole number >= 0"),
        ("objectives=[]", "objectives = []: must be [name, ..], at least one text"),
        ("objectives=cost", "objectives = 'cost': must be [name, ..], at least one text"),
        ("objectives=[1]", "objectives = [1]: must be [name, ..], at least one text"),
        ("parallel=0", "parallel = 0: must be a whole number >= 1 and <= 1024"),
    ],
)  # fmt: skip
def test_settings_of_a_wrong_form(override: str, text: str) -> None:
    config = {"problem": {"name": "command", "command": ["cat"], "variables": {"x": [0, 1]}}, "strategy": "fdd_ea"}
    with pytest.raises(ConfigError) as caught:
        load_config(config, [f"problem.{override}"])
    assert caught.value.problems == (f"command line: problem.{text}",)


def test_a_mistake_ends_the_command_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.yaml").write_text(
        "problem: {name: callable, function: 'own.py:hangs', variables: {x: [1, 0]}}\nstrategy: fdd_ea\n"
    )
    assert main(["train", "mine.yaml", "--quiet"]) == 2
    assert "variables.x = [1.0, 0.0]: must be [low, high], finite, low below high" in capsys.readouterr().err
    assert not Path("runs").exists()
