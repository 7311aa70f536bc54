"""Measurements that are kept: runs that are killed or run out of disk measure nothing twice."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from fne.problems.external import MeasurementWarning
from fne.problems.space import Problem
from fne.run.train import train
from fne.search.release import ReleaseWarning
from tests import processes
from tests.problems.parts import measure

pytestmark = pytest.mark.usefixtures("own_folder")
TRAIN = ("-m", "fne.cli.main", "train")
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
    with processes.Process(["-c", SEARCH_IN_TWO, str(parallel)]):
        end = time.monotonic() + 60
        while not (Path("calls.txt").exists() and len(Path("calls.txt").read_text().splitlines()) > 4):
            assert time.monotonic() < end
            time.sleep(0.01)
    lines = [json.loads(line) for line in Path("measured.jsonl").read_text().splitlines()]
    assert lines
    for line in lines:
        x = json.loads(line["of"])[0]["x"]
        assert line["values"] == [(x - 1) ** 2, x**2]
    processes.run(["-c", SEARCH_IN_TWO, str(parallel)], check=True, timeout=60)
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
        with processes.Process([*TRAIN, *words, "-q"], cwd=tmp_path):
            end = time.monotonic() + 60
            while not (calls.exists() and len(calls.read_text().splitlines()) >= enough) and time.monotonic() < end:
                time.sleep(0.01)
        words = ["--resume", "run"]  # also where no step was finished
    processes.run([*TRAIN, "--resume", "run", "-q"], cwd=tmp_path, check=True)
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
    full = processes.run([*TRAIN, "run.yaml", "-q", "--out", "run"], cwd=tmp_path, blocks=24)
    assert full.returncode == 2
    assert full.stderr.startswith("fne: cannot write run/nodes/measured.jsonl: File too large; make room")
    assert full.stderr.count("\n") == 1
    journal = (tmp_path / "run" / "nodes" / "measured.jsonl").read_bytes()
    assert journal.endswith(b"}\n")
    assert all(json.loads(line)["values"] for line in journal.splitlines())
    processes.run([*TRAIN, "--resume", "run", "-q"], cwd=tmp_path, check=True)
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
