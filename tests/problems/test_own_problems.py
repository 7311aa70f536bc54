"""Problems of one's own: functions and commands that fail in every way, real processes, real kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fne.cli.main import main
from fne.config import registry
from fne.config.load import load_config
from fne.core.errors import ConfigError, DataError, FneError, SettingError
from fne.problems.external import MeasurementWarning
from fne.problems.objective import read_known
from fne.problems.space import Problem, space_of
from fne.run.train import train
from fne.search.release import ReleaseWarning

OWN = '''
import json, os, subprocess, sys, time
from fractions import Fraction
from pathlib import Path

HERE = Path(__file__).parent
CONSTANT = 3

def raises(): raise ValueError("no\\nsuch thing")
CASES = """1 | -2.5 | np.float32(0.5) | np.array(4) | Fraction(1, 4) | 10**300
  | float("nan") | -np.inf | "1.0" | [1.0] | np.ones(1) | None | True | 10**400 | 1j | raises() | sys.exit(2)"""
def case(case):
    import numpy as np
    return eval(CASES.split("|")[case].strip(), globals() | {"np": np})

def told(lr, epochs, node, seed=None):
    with (HERE / "told").open("a") as file:
        print(json.dumps([lr, epochs, node, seed]), file=file)
    return lr * epochs

def noisy(x):
    print("text", flush=True)
    print(json.dumps({"value": 7}), flush=True)
    os.write(1, b'{"value": 8}\\n')
    subprocess.run(["echo", '{"value": 9}'])
    return x + len(sys.stdin.read())

def hangs(x):
    child = subprocess.Popen(["sleep", "600"])
    (HERE / "pids").write_text(f"{os.getpid()} {child.pid}")
    while x < 0:
        time.sleep(0.01)
    child.kill()
    child.wait()
    return x

def thrice(x):
    """Fail until it was called three times."""
    with (HERE / "calls").open("a") as file:
        print(x, file=file)
    if len((HERE / "calls").read_text().splitlines()) < 3:
        raise OSError("not yet")
    return x

def ends(how):
    if how:
        os._exit(3) if how == 1 else os.kill(os.getpid(), 9)
    return os.getpid()

def meet(x):
    """Wait until four are here."""
    (HERE / f"here{x}").touch()
    while len(list(HERE.glob("here*"))) < 4:
        time.sleep(0.01)
    return x

BOTH = """{"cost": 1, "time": x} | {"time": np.float32(x), "cost": True + 0} | [1, x] | (1, x) | np.array([1, x])
  | {"cost": 1} | {"cost": 1, "time": 2, "x": 3} | {1: 2, "time": 2} | [1] | [1, 2, 3] | np.ones((2, 2)) | 1.0 | "12"
  | None | [1, "2"] | {"cost": float("nan"), "time": 2} | [[1], 2]"""
def both(case, x):
    import numpy as np
    return eval(BOTH.split("|")[case].strip(), globals() | {"np": np, "x": x})

def slow_pair(x, node):
    with open("calls.txt", "a") as file:
        file.write(f"{node} {x!r}\\n")
    time.sleep(0.05)
    return {"far": (x - 1) ** 2, "near": x**2}

def at_exit(x):
    import atexit
    atexit.register((HERE / "left").touch)
    return x

class Quadratic:
    def __call__(self, x, **other): return x**2
quadratic = Quadratic()
'''
COMMAND = """
import json, os, sys, time
case = sys.argv[1]
if case == "deaf": print(5); sys.exit()
asked = json.loads(sys.stdin.read())
x = asked["point"]["x"]
if case == "last": print("noise", asked["node"], asked["seed"], type(x).__name__); print(x); print()
if case == "text": print("1.5 metres")
if case == "vector": print("[1.5]")
if case == "nan": print("nan")
if case == "status": print(1); sys.exit(4)
if case == "killed": print(1, flush=True); os.kill(os.getpid(), 9)
if case == "hangs": open("pids_of_command", "w").write(f"{os.getpid()} {os.getppid()}"); time.sleep(600)
if case == "argument": print(len(sys.argv[2]))
if case == "list": print(f"[1, {x}]")
if case == "object": print(json.dumps({"time": x, "cost": 1}))
if case == "short": print("[1]")
if case == "names": print('{"cost": 1}')
if case == "number": print(1.5)
if case == "inf": print("[1, Infinity]")
if case == "true": print("[true, 1]")
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def measure(problem: Problem, *points: dict[str, float], nodes: tuple[str, ...] = ("node-0",), seed: int = 5) -> Any:
    """Return the values of points at nodes, a list or (of several nodes) a list of lists, and the warnings' texts.

    Of several objectives the value of a point is a list.
    """
    rows = torch.tensor([[point[name] for name in problem.space.names] for point in points], dtype=torch.float64)
    cube = problem.space.to_cube(rows).expand(len(nodes), *rows.shape)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        values = problem.measure(cube, torch.full((len(nodes),), seed), nodes)
    assert values.dtype == torch.float64
    assert values.shape == (*cube.shape[:2], len(problem.objectives))
    assert all(w.category is MeasurementWarning for w in caught)
    failed = values.isnan()
    assert torch.equal(failed.all(dim=2), failed.any(dim=2))
    told = values[..., 0] if len(problem.objectives) == 1 else values
    lists = [
        [None if lost else value for value, lost in zip(*row, strict=True)]
        for row in zip(told.tolist(), failed.any(dim=2).tolist(), strict=True)
    ]
    return lists[0] if len(nodes) == 1 else lists, [str(w.message) for w in caught]


def why(text: str) -> str:
    """Return what a warning says went wrong."""
    return text.partition(": it")[2].partition("; the point")[0].strip()


def alive(pid: int) -> bool:
    """Return whether a process runs (and is not one that has ended and waits to be collected)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def gone(pids: str, within: float = 10) -> bool:
    end = time.monotonic() + within
    while any(alive(int(pid)) for pid in pids.split()) and time.monotonic() < end:
        time.sleep(0.02)
    return not any(alive(int(pid)) for pid in pids.split())


def appears(path: Path, within: float = 20) -> str:
    end = time.monotonic() + within
    while not (path.exists() and path.read_text()) and time.monotonic() < end:
        time.sleep(0.02)
    return path.read_text()


def line(part: str) -> int:
    """Return the number of the line of `own.py` in which a part of it stands."""
    return 1 + OWN[: OWN.index(part)].count("\n")


# ------------------------------------------------------------------------------------------------ functions
REFUSED = [
    "returned nan, which is not one finite number",
    "returned -inf, which is not one finite number",
    "returned '1.0', which is not one finite number",
    "returned [1.0], which is not one finite number",
    "returned array([1.]), which is not one finite number",
    "returned None, which is not one finite number",
    "returned True, which is not one finite number",
    f"returned 1{'0' * 58}…, which is not one finite number",
    "returned 1j, which is not one finite number",
    f"raised ValueError: no\nsuch thing (own.py, line {line('return eval')})",
    f"raised SystemExit: 2 (own.py, line {line('return eval')})",
]


@pytest.mark.parametrize("own_process", [False, True])
def test_what_is_a_number_and_what_is_not(made: Any, own_process: bool) -> None:
    cases = len(REFUSED) + 6
    problem = made("callable", function="own.py:case", variables={"case": (0, cases - 1)}, integer=("case",),
                   time_limit=60 if own_process else None)  # fmt: skip
    values, told = measure(problem, *({"case": number} for number in range(cases)))
    assert values == [1, -2.5, 0.5, 4, 0.25, 1e300, *[None] * len(REFUSED)]
    assert [why(text) for text in told] == REFUSED[:10]  # then every hundredth
    values, told = measure(problem, {"case": 6}, nodes=("a", "b") * 45)
    assert [text.partition(";")[0] for text in told] == [
        "problem.function: a could not measure case = 6: it returned nan, which is not one finite number"
    ]
    assert "(so far 100 of 106). If that is not meant, mend what is called or change problem.variables" in told[0]


NOT_BOTH = [
    "returned {'cost': 1}, which must have the names cost, time",
    "returned {'cost': 1, 'time': 2, 'x': 3}, which must have the names cost, time",
    "returned {1: 2, 'time': 2}, which must have the names cost, time",
    "returned [1], which is not 2 numbers: cost, time",
    "returned [1, 2, 3], which is not 2 numbers: cost, time",
    "returned array([[1., 1.], [1., 1.]]), which is not 2 numbers: cost, time",
    "returned 1.0, which is not 2 numbers: cost, time",
    "returned '12', which is not 2 numbers: cost, time",
    "returned None, which is not 2 numbers: cost, time",
    "returned '2' for time, which is not one finite number",
    "returned nan for cost, which is not one finite number",
    "returned [1] for cost, which is not one finite number",
]


@pytest.mark.parametrize("own_process", [False, True])
def test_what_a_function_of_two_objectives_returns(made: Any, own_process: bool) -> None:
    cases = 5 + len(NOT_BOTH)
    problem = made("callable", function="own.py:both", variables={"case": (0, cases - 1), "x": (0, 8)},
                   integer=("case",), objectives=("cost", "time"), time_limit=60 if own_process else None)  # fmt: skip
    assert problem.objectives == ("cost", "time")
    values, told = measure(problem, *({"case": number, "x": 3} for number in range(cases)))
    assert values == [[1, 3]] * 5 + [None] * len(NOT_BOTH)
    assert [why(text) for text in told] == NOT_BOTH[:10]
    if not own_process:  # and the last two, of another count of failures
        told = measure(made("callable", function="own.py:both", variables={"case": (0, 99), "x": (0, 8)},
                            integer=("case",), objectives=("cost", "time")),
                       *({"case": number, "x": 3} for number in (15, 16)))[1]  # fmt: skip
        assert [why(text) for text in told] == NOT_BOTH[10:]


def test_one_objective_of_another_name_is_a_number_all_the_same(made: Any) -> None:
    problem = made("callable", function="own.py:quadratic", objectives=("loss",))
    assert measure(problem, {"x": 3}) == ([pytest.approx(9)], [])


@pytest.mark.parametrize("function", ["own.py:told", "own:told", "{here}/own.py:told"])
def test_a_function_is_told_point_node_and_seed_in_the_users_units(made: Any, function: str, tmp_path: Path) -> None:
    sys.modules.pop("own", None)
    problem = made("callable", function=function.format(here=tmp_path), integer=("epochs",), log=("lr",),
                   variables={"lr": (1e-4, 1), "epochs": (1, 20)})  # fmt: skip
    values, told = measure(problem, {"lr": 1e-2, "epochs": 3}, {"lr": 1, "epochs": 20}, nodes=("a", "b"), seed=2**62)
    assert told == []
    assert values == [[pytest.approx(0.03), 20]] * 2
    lines = [json.loads(line) for line in Path("told").read_text().splitlines()]
    assert lines == [[pytest.approx(lr), epochs, node, 2**62] for node in "ab" for lr, epochs in ((1e-2, 3), (1, 20))]
    assert all(type(epochs) is int for _, epochs, _, _ in lines)
    middle = problem.space.named(torch.zeros(2))  # even in the logarithm, and every whole number alike
    assert middle == {"lr": pytest.approx(1e-2), "epochs": 10}


def test_an_object_that_can_be_called_measures(made: Any) -> None:
    assert measure(made("callable", function="own.py:quadratic"), {"x": 3}) == ([pytest.approx(9)], [])


def test_what_a_function_prints_and_reads_breaks_nothing(made: Any, capfd: pytest.CaptureFixture[str]) -> None:
    problem = made("callable", function="own.py:noisy", time_limit=60)
    assert measure(problem, {"x": 1}, {"x": 2}) == ([pytest.approx(1), pytest.approx(2)], [])
    out, error = capfd.readouterr()
    assert out == ""
    assert error.count("text\n") == 2


def test_a_function_that_hangs_is_killed_with_what_it_started_and_the_next_point_is_measured(made: Any) -> None:
    problem = made("callable", function="own.py:hangs", time_limit=0.5)
    values, told = measure(problem, {"x": -1}, {"x": 3})
    assert values == [None, pytest.approx(3)]
    assert [text.partition(" (so")[0] for text in told] == [
        "problem.function: node-0 could not measure x = -1: it took longer than 0.5 seconds; the point is infeasible "
        "there"
    ]
    measure(problem, {"x": -1})
    assert gone(Path("pids").read_text())


@pytest.mark.parametrize("own_process", [False, True])
def test_it_is_tried_again(made: Any, own_process: bool) -> None:
    settings = {"function": "own.py:thrice", "time_limit": 60 if own_process else None}
    values, told = measure(made("callable", retries=1, **settings), {"x": 1})
    assert values == [None]
    assert [why(text) for text in told] == [
        f"raised OSError: not yet (own.py, line {line('not yet')}) (the last of 2 tries)"
    ]
    assert Path("calls").read_text().split() == ["1.0"] * 2
    Path("calls").unlink()
    assert measure(made("callable", retries=2, **settings), {"x": 1}) == ([1], [])
    assert Path("calls").read_text().split() == ["1.0"] * 3


def test_a_process_that_ends_is_begun_anew(made: Any) -> None:
    problem = made("callable", function="own.py:ends", time_limit=60, variables={"how": (0, 2)}, integer=("how",))
    values, told = measure(problem, *({"how": how} for how in (0, 0, 1, 0, 2, 0)))
    assert [text.partition(": its ")[2].partition(";")[0] for text in told] == [
        "process ended with exit status 3",
        "process ended with signal SIGKILL",
    ]
    assert values[2] is values[4] is None
    assert values[0] == values[1] != values[3] != values[5]
    os.kill(int(values[5]), signal.SIGKILL)  # between two points
    assert gone(str(int(values[5])))
    assert measure(problem, {"how": 0})[1] == []


def test_a_process_that_ends_before_it_takes_a_point_up_says_nothing_of_the_point(made: Any) -> None:
    problem = made("callable", function="own.py:ends", time_limit=60, variables={"how": (0, 2)}, integer=("how",))
    ((first,), _) = measure(problem, {"how": 0})
    os.kill(int(first), signal.SIGSTOP)  # it is there, and does not read
    killer = threading.Timer(0.3, os.kill, (int(first), signal.SIGKILL))
    killer.start()
    ((second,), told) = measure(problem, {"how": 0})
    killer.join()
    assert told == []
    assert second != first


def test_several_points_are_measured_at_once(made: Any) -> None:
    problem = made("callable", function="own.py:meet", time_limit=20, parallel=4)
    values, told = measure(problem, *({"x": x} for x in (4, 3, 2, 1, 0)))
    assert told == []
    assert values == [pytest.approx(x, abs=1e-12) for x in (4, 3, 2, 1, 0)]


@pytest.mark.parametrize("parallel", [1, 2])
def test_an_interruption_ends_what_is_measured(made: Any, parallel: int) -> None:
    def interrupt() -> None:
        appears(Path("pids"))
        os.kill(os.getpid(), signal.SIGINT)

    problem = made("callable", function="own.py:hangs", time_limit=60, parallel=parallel)
    thread = threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell may have off in the background
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            measure(problem, {"x": -1}, {"x": -1}, {"x": -1})
        thread.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert gone(Path("pids").read_text())
    assert measure(problem, {"x": 1}, {"x": 2})[1] == []


def test_closing_lets_a_process_end_by_itself(made: Any) -> None:
    problem = made("callable", function="own.py:at_exit", time_limit=60)
    measure(problem, {"x": 1})
    assert not Path("left").exists()
    problem.close()
    assert Path("left").exists()


PARENT = """
import sys, threading, torch
from fne.problems.external import callable_problem, command_problem
x = {"x": (-2, 0)}
for problem in (
    callable_problem(function="own.py:hangs", variables=x, time_limit=600),
    command_problem(command=(sys.executable, "command.py", "hangs"), variables=x),
):
    threading.Thread(target=problem.measure, args=(torch.zeros(1, 1, 1), torch.zeros(1).long(), ["node-0"])).start()
"""


def test_processes_end_where_their_parent_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT])
    pids = f"{appears(Path('pids'))} {appears(Path('pids_of_command'))}"
    assert len(pids.split()) == 4
    assert all(alive(int(pid)) for pid in pids.split())
    parent.kill()
    parent.wait()
    assert gone(pids)


# ------------------------------------------------------------------------------------------------ commands
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


# ------------------------------------------------------------------------------------------------ mistakes
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


# ------------------------------------------------------------------------------------------------ known points
def known(text: str | bytes, *objectives: str) -> tuple[list[dict[str, float]], list[list[float]]]:
    space = space_of({"lr": (1e-3, 1), "epochs": (1, 9)}, ["epochs"], ["lr"])
    Path("known.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    points, values = read_known(Path("known.csv"), space, objectives or ("value",))
    assert points.dtype == values.dtype == torch.float64
    assert torch.equal(points, space.snap(points))
    return [space.named(point) for point in points], values.tolist()


@pytest.mark.parametrize(
    "text",
    [
        "lr,epochs,value\n0.1,3,7\n1,9,-2.5\n",
        "value,epochs,lr\r\n7,3,0.1\r\n-2.5,9,1\r\n",
        "\ufeff lr , epochs , value \n\n 0.1 , 3.0 , 7 \n1,9,-2.5",
        '"lr","epochs","value"\n"1e-1","3","7e0"\n,,\n1,9,-2.5\n',
    ],
)
def test_known_points(text: str) -> None:
    points, values = known(text)
    assert points == [{"lr": pytest.approx(0.1), "epochs": 3}, {"lr": 1, "epochs": 9}]
    assert values == [[7], [-2.5]]


def test_known_points_of_two_objectives_have_their_names_as_columns() -> None:
    points, values = known("time,lr,epochs,cost\n7,0.1,3,8\n-2.5,1,9,0\n", "cost", "time")
    assert points == [{"lr": pytest.approx(0.1), "epochs": 3}, {"lr": 1, "epochs": 9}]
    assert values == [[8, 7], [0, -2.5]]
    for text, message in (
        ("lr,epochs,value\n", ": its first line must name the columns lr, epochs, cost, time, not lr, epochs, value"),
        ("lr,epochs,cost,time\n1,1,1,inf\n", ", line 2: time must be finite; leave failed points out"),
        ("lr,epochs,cost,time\n1,1,1\n", ", line 2: must be 4 numbers, not '1,1,1'"),
    ):
        with pytest.raises(DataError) as caught:
            known(text, "cost", "time")
        assert str(caught.value).startswith(f"problem.known = known.csv{message}")
    with pytest.raises(DataError, match="a variable is called 'lr', like the column of values: rename it"):
        known("lr,epochs\n", "cost", "lr")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ": its first line must name the columns lr, epochs, value, not nothing"),
        ("lr,value\n1,2\n", ": its first line must name the columns lr, epochs, value, not lr, value"),
        ("lr,epochs,value,value\n", ": its first line must name the columns"),
        ("lr;epochs;value\n", ": its first line must name the columns lr, epochs, value, not lr;epochs;value"),
        ("lr,epochs,value\n", ": no point below the header; give some, or null"),
        ("lr,epochs,value\n0.1,3,7\n0.1,3\n", ", line 3: must be 3 numbers, not '0.1,3'"),
        ("lr,epochs,value\n0.1,3,seven\n", ", line 2: must be 3 numbers, not '0.1,3,seven'"),
        ("lr,epochs,value\n0.1,,7\n", ", line 2: must be 3 numbers, not '0.1,,7'"),
        ("lr,epochs,value\n2,3,7\n", ", line 2: lr = 2: must be between 0.001 and 1"),
        ("lr,epochs,value\nnan,3,7\n", ", line 2: lr = nan: must be between 0.001 and 1"),
        ("lr,epochs,value\n0.1,2.5,7\n", ", line 2: epochs = 2.5: must be a whole number"),
        ("lr,epochs,value\n0.1,3,inf\n", ", line 2: value must be finite; leave failed points out"),
        (b"\xff\xfe\x00", ": cannot be read: 'utf-8' codec"),
    ],
)
def test_known_points_that_are_wrong(text: str | bytes, message: str) -> None:
    with pytest.raises(DataError) as caught:
        known(text)
    assert str(caught.value).startswith(f"problem.known = known.csv{message}")


def test_no_file_of_known_points(tmp_path: Path) -> None:
    for path in (Path("none.csv"), tmp_path):
        with pytest.raises(FneError, match=r"problem.known = .*: cannot be read: .*; give a CSV in UTF-8, or null"):
            read_known(path, space_of({"x": (0, 1)}))


SEARCH_IN_TWO = """
import sys
from pathlib import Path
import torch
from fne.problems.external import callable_problem
problem = callable_problem(function="own.py:slow_pair", variables={"x": (-1, 1)}, objectives=("far", "near"),
                           parallel=int(sys.argv[1]))
problem.keep(Path("measured.jsonl"))
points = torch.linspace(-1, 1, 9).double().view(1, 9, 1).expand(2, 9, 1)
values = problem.measure(points, torch.tensor([0, 0]), ["a", "b"])
problem.close()
assert torch.equal(values, torch.cat([(points - 1) ** 2, points**2], dim=2)), values
"""


@pytest.mark.parametrize("parallel", [1, 2])
def test_a_killed_measurement_of_two_objectives_is_gone_on_with(parallel: int) -> None:
    process = subprocess.Popen([sys.executable, "-c", SEARCH_IN_TWO, str(parallel)])
    end = time.monotonic() + 60
    while not (Path("calls.txt").exists() and len(Path("calls.txt").read_text().splitlines()) > 4):
        assert time.monotonic() < end
        time.sleep(0.01)
    process.kill()
    process.wait()
    lines = [json.loads(line) for line in Path("measured.jsonl").read_text().splitlines()]
    assert lines
    for line in lines:
        x = json.loads(line["of"])[0]["x"]
        assert line["values"] == [(x - 1) ** 2, x**2]
    subprocess.run([sys.executable, "-c", SEARCH_IN_TWO, str(parallel)], check=True, timeout=60)
    measured = Path("calls.txt").read_text().splitlines()
    assert len(set(measured)) == 18
    assert len(measured) <= 18 + parallel


@pytest.mark.parametrize("parallel", [1, 2])
def test_a_killed_run_measures_nothing_twice(parallel: int, tmp_path: Path) -> None:
    """Killed in the middle of the start, and of what the second process took up."""
    (tmp_path / "slow.py").write_text(
        "import os, time\n"
        "def f(x, node):\n"
        "    with open('calls.txt', 'a') as file:\n"
        "        file.write(f'{node} {x!r}\\n')\n"
        "    time.sleep(0.05)\n"
        "    return x * x\n"
    )
    (tmp_path / "run.yaml").write_text(
        "problem: {name: callable, function: 'slow.py:f', variables: {x: [-1, 1]}, nodes: 2, "
        f"parallel: {parallel}}}\n"
        "strategy: {name: fdd_ea, finals: literal, initial: 12, rounds: 2, participation: 1, generations: 2}\n"
        "watch: {tensorboard: false}\n"
    )
    calls = tmp_path / "calls.txt"
    words = ["run.yaml", "--out", "run"]
    for enough in (5, 14):
        process = subprocess.Popen([sys.executable, "-m", "fne.cli.main", "train", *words, "-q"], cwd=tmp_path)
        deadline = time.monotonic() + 60
        while not (calls.exists() and len(calls.read_text().splitlines()) >= enough) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.kill()
        process.wait()
        words = ["--resume", "run"]  # also where no step was finished
    done = subprocess.run(
        [sys.executable, "-m", "fne.cli.main", "train", "--resume", "run", "-q"], cwd=tmp_path, timeout=120, check=False
    )
    assert done.returncode == 0
    measured = calls.read_text().splitlines()
    # of each kill what was under way is measured again, at most as many as at once
    assert len(measured) >= 14
    assert len(measured) - len(set(measured)) <= 2 * parallel
    assert len(set(measured)) == 2 * (12 + 2)
    assert (tmp_path / "run" / "nodes" / "measured.jsonl").read_bytes() == b""


@pytest.mark.parametrize("parallel", [1, 2])
def test_a_full_disk_ends_a_run_whose_measurements_cannot_be_kept(parallel: int, tmp_path: Path) -> None:
    """Not a node is to blame, and no point counts as one that could not be measured."""
    (tmp_path / "parabola.py").write_text("def f(x):\n    return x * x\n")
    (tmp_path / "run.yaml").write_text(
        f"problem: {{name: callable, function: 'parabola.py:f', variables: {{x: [-1, 1]}}, nodes: 2, "
        f"parallel: {parallel}}}\n"
        "strategy: {name: fdd_ea, initial: 200, rounds: 1, participation: 1, generations: 2}\n"
        "watch: {tensorboard: false}\n"
    )
    command = f"ulimit -f 24; exec {sys.executable} -m fne.cli.main train run.yaml -q --out run"  # blocks of 1024 bytes
    full = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert full.returncode == 2
    assert full.stderr.startswith("fne: cannot write run/nodes/measured.jsonl: File too large; make room")
    assert full.stderr.count("\n") == 1
    journal = (tmp_path / "run" / "nodes" / "measured.jsonl").read_bytes()
    assert journal.endswith(b"}\n")
    assert all(json.loads(line)["values"] for line in journal.splitlines())
    again = [sys.executable, "-m", "fne.cli.main", "train", "--resume", "run", "-q"]
    subprocess.run(again, cwd=tmp_path, check=True, timeout=120, capture_output=True)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["finished"]


def test_a_line_that_a_kill_cut_off_takes_no_other_with_it(made: Any, tmp_path: Path) -> None:
    (tmp_path / "count.py").write_text("calls = []\ndef f(x):\n    calls.append(x)\n    return 10 * len(calls) + x\n")
    journal = tmp_path / "nodes" / "measured.jsonl"

    def kept() -> Problem:
        problem: Problem = made("callable", function=f"{tmp_path}/count.py:f")
        problem.keep(journal)
        return problem

    assert measure(kept(), {"x": 1.5})[0] == pytest.approx([11.5])
    with journal.open("ab") as file:
        file.write(b'{"of": "[{')
    # the first from the file, the second by a new count
    assert measure(kept(), {"x": 1.5}, {"x": 2})[0] == pytest.approx([11.5, 12])
    lines = [json.loads(line)["values"] for line in journal.read_bytes().splitlines()]
    assert lines == [[pytest.approx(11.5)], [pytest.approx(12)]]
    assert measure(kept(), {"x": 2}, {"x": 2})[0] == pytest.approx([12, 12])  # once from the file, once measured
    problem = kept()
    problem.forget()
    assert journal.read_bytes() == b""
    assert measure(problem, {"x": 1})[0] == pytest.approx([11])


def test_a_node_that_never_answers_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import time\ndef f(x, node):\n    time.sleep(60 if node == 'node-001' else 0)\n    return x * x\n"
    )
    config = {
        "problem": {
            "name": "callable", "function": f"{tmp_path}/mine.py:f", "variables": {"x": [-1, 1]}, "nodes": 2,
            "time_limit": 0.1,
        },
        "strategy": {"name": "fdd_ea", "initial": 4, "rounds": 2, "participation": 1, "generations": 2},
        "watch": {"tensorboard": False},
    }  # fmt: skip
    with (
        pytest.warns(MeasurementWarning, match="node-001 could not measure .* it took longer than 0.1 seconds"),
        pytest.warns(ReleaseWarning, match="no finalist was measured by 2 nodes"),
    ):
        summary = train(config, out=tmp_path / "run")
    assert summary["finished"]
    assert summary["best_value"] < 0.3
