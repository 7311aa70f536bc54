"""Calls of the user's function or command that measures a point; run as a script, a process that makes such calls.

The script reads lines of JSON from stdin, first what to call, then one point a line. It answers each line on stdout
with `{"values": [number, ..]}` or `{"failed": why}`, after `{"begun": true}` for a point. Output of the user's own code
goes to stderr. The script imports only the standard library, so that a process starts at once, and takes over the
import path of the process that starts it.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import importlib
import importlib.util
import inspect
import json
import math
import numbers
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

Call = Callable[[Mapping[str, float], str, int], tuple[float, ...]]
"""A point in the user's units, the node's name, the run's seed -> a finite number per objective, or a `CallError`."""

TOLD = ("node", "seed")
"""Arguments that a function gets beside the variables, if it has parameters of these names."""

GRACE = 1.0
"""Seconds that a measurement may still run once nobody waits for it any more."""


class CallError(Exception):
    """A point could not be measured; the text is the reason, worded to follow a colon."""


# ------------------------------------------------------------------------------------------------ functions
def load(text: str) -> Callable[..., object]:
    """Return the function that `package.module:name` or `path/to/file.py:name` names.

    Modules are found as Python finds them, and last in the current folder. A file is loaded by itself.

    Raises:
        CallError: no such function exists, or importing it failed.
    """
    where, _, name = text.rpartition(":")
    if not where or not name:
        raise CallError("there is no colon between the two")
    try:
        module = _load_file(Path(where).expanduser()) if where.endswith(".py") else _import(where)
    except CallError:
        raise
    except (Exception, SystemExit) as error:
        raise CallError(f"importing {where} failed: {type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        near = difflib.get_close_matches(name, dir(module), n=1)
        raise CallError(f"{where} has no {name!r}" + (f", did you mean {near[0]!r}?" if near else ""))
    function = getattr(module, name)
    if not callable(function):
        raise CallError(f"{name!r} is {short(function)}, which cannot be called")
    return function  # type: ignore[no-any-return]


def _import(name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)  # last, so that no file of the user's shadows a library
    return importlib.import_module(name)


def _load_file(path: Path) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        raise CallError(f"there is no file {path}")
    name = f"fne_own_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pickle and dataclasses look up the module here
    spec.loader.exec_module(module)
    return module


def of_function(function: Callable[..., object], objectives: Sequence[str]) -> Call:
    """Return a call that passes a function the variables by name, and those of `TOLD` that it has as parameters."""
    takes = [name for name in TOLD if name in inspect.signature(function).parameters]

    def call(point: Mapping[str, float], node: str, seed: int) -> tuple[float, ...]:
        told = {"node": node, "seed": seed}
        try:
            value = function(**point, **{name: told[name] for name in takes})
        except (Exception, SystemExit) as error:
            place = traceback.extract_tb(error.__traceback__)[1:2]  # the line of the function itself
            where = "".join(f" ({Path(frame.filename).name}, line {frame.lineno})" for frame in place)
            raise CallError(f"it raised {type(error).__name__}: {error}{where}") from error
        return _values(value, objectives, "it returned")

    return call


def _values(value: object, objectives: Sequence[str], what: str) -> tuple[float, ...]:
    """Return a finite number for each objective: the value itself for one, from a mapping or sequence for several."""
    if len(objectives) == 1:
        return (_finite(value, what),)
    many: Any = value
    if isinstance(value, Mapping):
        if set(value) != set(objectives):
            raise CallError(f"{what} {short(value)}, which must have the names {', '.join(objectives)}")
        many = [value[name] for name in objectives]
    elif getattr(value, "ndim", None) == 1 and hasattr(value, "tolist"):  # a vector of NumPy or PyTorch
        many = many.tolist()
    if isinstance(many, str | bytes) or not isinstance(many, Sequence) or len(many) != len(objectives):
        raise CallError(f"{what} {short(value)}, which is not {len(objectives)} numbers: {', '.join(objectives)}")
    return tuple(_finite(one, what, f" for {name}") for one, name in zip(many, objectives, strict=True))


def _finite(value: object, what: str, purpose: str = "") -> float:
    """Return one finite number; a text, a vector, NaN, true and the like raise `CallError`."""
    plain: Any = value
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):  # a number of NumPy or PyTorch
        plain = plain.item()
    if not isinstance(plain, bool) and isinstance(plain, numbers.Real):
        with contextlib.suppress(OverflowError):  # raised for a whole number with hundreds of digits
            if math.isfinite(plain):
                return float(plain)
    raise CallError(f"{what} {short(value)}{purpose}, which is not one finite number")


def short(value: object) -> str:
    """Return a value in one line of at most 60 characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:59]}…"


# ------------------------------------------------------------------------------------------------ commands
def of_command(command: Sequence[str], objectives: Sequence[str]) -> Call:
    """Return a call of a program that reads `{"point": {..}, "node": .., "seed": ..}`; its last line is the value.

    With several objectives the line is JSON, a list or an object.
    """
    read: Callable[[str], object] = float if len(objectives) == 1 else json.loads

    def call(point: Mapping[str, float], node: str, seed: int) -> tuple[float, ...]:
        asked = json.dumps({"point": dict(point), "node": node, "seed": seed})
        try:
            done = subprocess.run(
                command, input=f"{asked}\n", stdout=subprocess.PIPE, encoding="utf-8", errors="replace", check=False
            )
        except OSError as error:
            raise CallError(f"it could not be started: {error.strerror}") from error
        if done.returncode:
            raise CallError(f"it ended with {ending(done.returncode)}")
        lines = [line for line in done.stdout.splitlines() if line.strip()]
        if not lines:
            raise CallError("it printed nothing")
        try:
            value = read(lines[-1])
        except ValueError:
            value = lines[-1]
        return _values(value, objectives, "its last line was")

    return call


def ending(status: int) -> str:
    """Return a description of how a process ended."""
    return f"exit status {status}" if status >= 0 else f"signal {signal.Signals(-status).name}"


# ------------------------------------------------------------------------------------------------ the process
def _serve() -> None:
    asked, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # keep user code from reading or writing between the lines
    os.dup2(2, 1)
    lines: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def listen() -> None:
        for line in asked:
            lines.put(json.loads(line))
        lines.put(None)
        time.sleep(GRACE)
        os.killpg(0, signal.SIGKILL)  # the parent is gone: end what still runs, with all its children

    threading.Thread(target=listen, daemon=True).start()

    def answer(content: dict[str, Any]) -> None:
        print(json.dumps(content), file=answers, flush=True)

    first = lines.get()
    if first is None:
        return
    sys.path[:] = first["path"]
    try:
        if "command" in first:
            call = of_command(first["command"], first["objectives"])
        else:
            call = of_function(load(first["function"]), first["objectives"])
        answer({"ready": True})
    except CallError as error:
        answer({"failed": str(error)})
    for job in iter(lines.get, None):
        answer({"begun": True})  # lets the parent tell an end before this from an end in the measurement
        try:
            answer({"values": call(job["point"], job["node"], job["seed"])})
        except CallError as error:
            answer({"failed": str(error)})


if __name__ == "__main__":
    _serve()
