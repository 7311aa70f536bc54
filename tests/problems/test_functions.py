"""Functions of one's own as problems: they fail in every way, in real processes with real kills."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import processes
from tests.problems.parts import alive, gone, line, measure, why

pytestmark = pytest.mark.usefixtures("own_folder")


def appears(path: Path, within: float = 20) -> str:
    end = time.monotonic() + within
    while not (path.exists() and path.read_text()) and time.monotonic() < end:
        time.sleep(0.02)
    return path.read_text()


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
    with processes.Process(["-c", PARENT]):
        pids = f"{appears(Path('pids'))} {appears(Path('pids_of_command'))}"
        assert len(pids.split()) == 4
        assert all(alive(int(pid)) for pid in pids.split())
    assert gone(pids)
