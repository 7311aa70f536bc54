"""Functions and commands that fail in every way, and what the tests ask of their measurements."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import torch

from fne.problems.external import MeasurementWarning
from fne.problems.space import Problem

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


def line(part: str) -> int:
    """Return the number of the line of `own.py` in which a part of it stands."""
    return 1 + OWN[: OWN.index(part)].count("\n")
