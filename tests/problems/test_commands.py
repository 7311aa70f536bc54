"""Commands of one's own as problems: what they print, and processes that are killed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.problems.parts import gone, measure, why

pytestmark = pytest.mark.usefixtures("own_folder")


@pytest.mark.parametrize(
    ("case", "value", "text"),
    [
        ("last", 1.5, ""),
        ("deaf", 5, ""),
        ("text", None, "s last line was '1.5 metres', which is not one finite number"),
        ("vector", None, "s last line was '[1.5]', which is not one finite number"),
        ("nan", None, "s last line was nan, which is not one finite number"),
        ("nothing", None, "printed nothing"),
        ("status", None, "ended with exit status 4"),
        ("killed", None, "ended with signal SIGKILL"),
    ],
)
def test_what_a_command_prints(made: Any, case: str, value: float | None, text: str) -> None:
    values, told = measure(made("command", command=(sys.executable, "command.py", case)), {"x": 1.5})
    assert values == [value if value is None else pytest.approx(value)]
    assert [why(line) for line in told] == ([text] if text else [])


@pytest.mark.parametrize(
    ("case", "value", "text"),
    [
        ("list", [1, 1.5], ""),
        ("object", [1, 1.5], ""),
        ("short", None, "s last line was [1], which is not 2 numbers: cost, time"),
        ("number", None, "s last line was 1.5, which is not 2 numbers: cost, time"),
        ("text", None, "s last line was '1.5 metres', which is not 2 numbers: cost, time"),
        ("names", None, "s last line was {'cost': 1}, which must have the names cost, time"),
        ("inf", None, "s last line was inf for time, which is not one finite number"),
        ("true", None, "s last line was True for cost, which is not one finite number"),
    ],
)
def test_what_a_command_of_two_objectives_prints(made: Any, case: str, value: list[float] | None, text: str) -> None:
    command = (sys.executable, "command.py", case)
    values, told = measure(made("command", command=command, objectives=("cost", "time")), {"x": 1.5})
    assert values == [value if value is None else pytest.approx(value)]
    assert [why(line) for line in told] == ([text] if text else [])


def test_no_shell_reads_a_command(made: Any) -> None:
    argument = "$(touch made); `touch made` && touch made *"
    problem = made("command", command=(sys.executable, "command.py", "argument", argument))
    assert measure(problem, {"x": 1})[0] == [len(argument)]
    assert not Path("made").exists()


def test_a_command_that_hangs_is_killed(made: Any) -> None:
    problem = made("command", command=(sys.executable, "command.py", "hangs"), time_limit=1)
    values, told = measure(problem, {"x": 1})
    assert values == [None]
    assert [why(text) for text in told] == ["took longer than 1 seconds"]
    assert gone(Path("pids_of_command").read_text())


def test_a_program_that_cannot_be_started_after_all(made: Any) -> None:
    Path("mine").write_text("#!/none\n")
    Path("mine").chmod(0o755)
    values, told = measure(made("command", command=("./mine",)), {"x": 1})
    assert values == [None]
    assert [why(text) for text in told] == ["could not be started: No such file or directory"]
