"""Problems of the user's own: a Python function or a command measures points, in the user's units; smaller is better.

Both are code that a config names, and run with the user's rights. Points are measured one by one or several at once,
with a time limit and retries. A point that cannot be measured has the value NaN, which methods treat as infeasible at
that node, and a warning tells the user.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import json
import math
import os
import queue
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor

from fne.config.registry import Key, register
from fne.core.errors import CheckpointError, DataWarning, SettingError
from fne.core.files import append, with_digest, without_digest, writing
from fne.problems import child as child_script
from fne.problems.child import TOLD, Call, CallError, load, of_function
from fne.problems.space import Problem, Space, space_of


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Settings of the measurement: the variables, the objectives, time limit, retries and processes."""

    variables: Annotated[
        dict[str, tuple[float, float]],
        Key(
            "lower and upper bound of each variable, by name",
            min_length=1,
            allowed="{name: [low, high], ..}, at least one, finite numbers",
        ),
    ]
    integer: Annotated[tuple[str, ...], Key("names of the variables that are whole numbers")] = ()
    log: Annotated[tuple[str, ...], Key("names of the variables that are searched by their logarithm")] = ()
    time_limit: Annotated[
        float | None, Key("longest time of a measurement; null: no limit", unit="seconds", gt=0, le=10000000)
    ] = None
    retries: Annotated[int, Key("number of retries of a point that could not be measured", ge=0)] = 0
    parallel: Annotated[int, Key("number of points that are measured at once", unit="processes", ge=1, le=1024)] = 1
    objectives: Annotated[
        tuple[str, ...],
        Key(
            "names of the objectives, smaller is better for all", min_length=1, allowed="[name, ..], at least one text"
        ),
    ] = ("value",)


@register("problem", "callable")
def callable_problem(
    *,
    function: Annotated[str, Key("package.module:name, or path/to/file.py:name", path="call")],
    measured: Measured,
) -> Problem:
    """Measure by a Python function of the variables.

    The function is called with the variables by name, and with `node=` (the node's name) and `seed=` (the run's seed)
    if it has parameters of these names; it returns a number. With several objectives it returns a mapping by their
    names, or a sequence of numbers in their order. With a time limit, or where several points are measured at once, the
    function runs in separate processes, otherwise in this process.
    """
    objectives, space = measured.objectives, space_of(measured.variables, measured.integer, measured.log)
    _check_names(objectives, space)
    try:
        found = _checked(function, space)
    except CallError as error:
        allowed = f"'package.module:name' or 'path/to/file.py:name' of a function of the variables: {error}"
        raise SettingError("problem.function", function, allowed) from error
    code = _digest(found)
    if measured.time_limit is None and measured.parallel == 1:
        calls: list[Call] = [of_function(found, objectives)]
    else:
        calls = [
            Child({"function": function, "objectives": objectives}, measured.time_limit)
            for _ in range(measured.parallel)
        ]
    measure = Measuring(space, "problem.function", calls, measured.retries, len(objectives))
    return Problem(space, measure, code=code, objectives=objectives)


@register("problem", "command")
def command_problem(
    *,
    command: Annotated[
        tuple[str, ...],
        Key(
            "program and its arguments; no shell reads them",
            min_length=1,
            path="program",
            allowed="[program, argument, ..], each text",
        ),
    ],
    measured: Measured,
) -> Problem:
    """Measure by a program that is started for each point.

    The program reads one line of JSON on stdin, `{"point": {name: value, ..}, "node": text, "seed": number}`, and
    prints a number as its last line on stdout; with several objectives a JSON list of numbers in their order, or an
    object by their names.
    """
    objectives, space = measured.objectives, space_of(measured.variables, measured.integer, measured.log)
    _check_names(objectives, space)
    if shutil.which(command[0]) is None:
        allowed = f"a program and its arguments: there is no {command[0]!r} that can be run"
        raise SettingError("problem.command", list(command), allowed)
    what = {"command": list(command), "objectives": objectives}
    children = [Child(what, measured.time_limit) for _ in range(measured.parallel)]
    measure = Measuring(space, "problem.command", children, measured.retries, len(objectives))
    return Problem(space, measure, objectives=objectives)


def _check_names(objectives: tuple[str, ...], space: Space) -> None:
    taken = {*space.names, "seed"} if len(objectives) > 1 else set()  # columns of front.csv
    if not all(objectives) or len(set(objectives)) < len(objectives) or taken & set(objectives):
        allowed = "names that differ, none of them empty, 'seed' or a variable's"
        raise SettingError("problem.objectives", list(objectives), allowed)


def _digest(function: Callable[..., object]) -> str:
    """Return the SHA-256 of the file that defines a function, or an empty text where no file does."""
    plain: object = inspect.unwrap(function)
    while isinstance(plain, functools.partial):
        plain = plain.func
    file = None
    for thing in (plain, type(plain)):  # a function, or an object that can be called
        try:
            file = file or inspect.getsourcefile(thing)  # type: ignore[arg-type]
        except TypeError:  # raised for compiled code
            continue
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""


def _checked(text: str, space: Space) -> Callable[..., object]:
    """Return the function that a config names, after a check that it takes the variables.

    Raises:
        CallError: no such function exists, or it does not take the variables.
        SettingError: a variable has a name that means something else to a function.
    """
    for variable in space.variables:
        if variable.name in TOLD:
            allowed = f"of another name: {' and '.join(TOLD)} are what a function is told beside the variables"
            raise SettingError(f"problem.variables.{variable.name}", [variable.low, variable.high], allowed)
    function = load(text)
    try:
        signature = inspect.signature(function)
        told = [name for name in TOLD if name in signature.parameters]
        signature.bind(**dict.fromkeys([*space.names, *told]))
    except (TypeError, ValueError) as error:
        raise CallError(f"it must take {', '.join(space.names)} by name: {error}") from error
    return function


START_LIMIT = 300.0
"""Seconds that a process may take to import the user's function."""

TOLD_SINGLY = 10
"""Number of failures with a warning each; after these, every hundredth failure has one."""

Job = tuple[Mapping[str, float], str, int]
"""Arguments of a `Call`: a point in the user's units, the node's name, the run's seed."""


class MeasurementWarning(DataWarning):
    """A point that a node could not measure; the run goes on."""


class Measuring:
    """Measurement by the user's function or command; a `fne.problems.space.Measure`.

    Args:
        space: space of the points.
        key: the setting that names the function or command, for warnings.
        calls: as many calls as points are measured at once; each measures one at a time. Several must be `Child`ren.
        retries: number of retries of a point that could not be measured.
        objectives: number of values of a point; M.
    """

    def __init__(self, space: Space, key: str, calls: Sequence[Call], retries: int = 0, objectives: int = 1) -> None:
        self._space, self._key, self._calls, self._tries = space, key, calls, 1 + retries
        self._objectives = objectives
        self._children = [call for call in calls if isinstance(call, Child)]
        self._asked = self._failed = 0
        self._journal: Path | None = None
        self._known: dict[str, list[tuple[float, ...]]] = {}
        self._writing = threading.Lock()

    def __call__(self, points: Tensor, seeds: Tensor, nodes: Sequence[str]) -> Tensor:
        """Return the values of nodes `[L]` at `points [L, n, d]` of the cube, float64 `[L, n, M]`, NaN for failures."""
        jobs = [
            (self._space.named(point), node, seed)
            for row, node, seed in zip(points, nodes, seeds.tolist(), strict=True)
            for point in row
        ]
        if len(self._calls) == 1:
            values = [self._told(job, self._outcome(self._calls[0], job)) for job in jobs]
        else:
            values = self._at_once(jobs)
        return torch.tensor(values, dtype=torch.float64).reshape(*points.shape[:2], self._objectives)

    def keep(self, journal: Path) -> None:
        """Write each point's values to a file at once; values that a killed run wrote are not measured again."""
        self._journal = journal
        if not journal.exists():
            return
        whole, end, _ = journal.read_bytes().rpartition(b"\n")  # the rest is a line that a kill cut off
        os.truncate(journal, len(whole + end))
        for number, line in enumerate(whole.split(b"\n"), 1) if whole else ():
            try:
                entry = without_digest(json.loads(line))
                self._known.setdefault(entry["of"], []).append(tuple(map(float, entry["values"])))
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise CheckpointError(
                    f"{journal}, line {number} is damaged ({error}): put the file back, or delete the line, and its "
                    "point is measured anew"
                ) from None

    def forget(self) -> None:
        """Empty the file: a checkpoint holds its values now."""
        self._known = {}
        if self._journal is not None and self._journal.exists():
            os.truncate(self._journal, 0)

    def _write(self, of: str, values: Sequence[float]) -> None:
        if self._journal is None:
            return
        with self._writing, writing(self._journal):
            self._journal.parent.mkdir(exist_ok=True)
            with open(self._journal, "ab", buffering=0) as file:
                append(file, json.dumps(with_digest({"of": of, "values": values})).encode() + b"\n")
                os.fsync(file.fileno())

    def close(self) -> None:
        """End the processes."""
        for child in self._children:
            child.close()

    def _at_once(self, jobs: Sequence[Job]) -> list[tuple[float, ...]]:
        idle: queue.LifoQueue[Call] = queue.LifoQueue()
        for call in self._calls:
            idle.put(call)
        stop = threading.Event()

        def outcome(job: Job) -> tuple[float, ...] | CallError:
            call = idle.get()
            try:
                return self._outcome(call, job, stop)
            finally:
                idle.put(call)

        with ThreadPoolExecutor(len(self._calls)) as pool:
            try:
                return [self._told(*pair) for pair in zip(jobs, pool.map(outcome, jobs), strict=True)]
            except BaseException:  # Ctrl-C: running measurements may take hours, and leaving the pool waits for them
                stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                for child in self._children:
                    child.kill()
                raise

    def _outcome(self, call: Call, job: Job, stop: threading.Event | None = None) -> tuple[float, ...] | CallError:
        """Return a point's values, from the file if it has them, or why the last try failed."""
        of = json.dumps(job, sort_keys=True)
        with self._writing:
            if self._known.get(of):
                return self._known[of].pop(0)
        last = CallError("it was stopped")
        for _ in range(self._tries):
            if stop is not None and stop.is_set():
                break
            try:
                values = call(*job)
            except CallError as error:
                last = error
                continue
            self._write(of, values)
            return values
        return last

    def _told(self, job: Job, outcome: tuple[float, ...] | CallError) -> tuple[float, ...]:
        """Return the values, or NaN with a warning."""
        self._asked += 1
        if not isinstance(outcome, CallError):
            return outcome
        self._failed += 1
        if self._failed <= TOLD_SINGLY or self._failed % 100 == 0:
            point, node, _ = job
            where = ", ".join(f"{name} = {value:.6g}" for name, value in point.items())
            tries = f" (the last of {self._tries} tries)" if self._tries > 1 else ""
            warnings.warn(
                f"{self._key}: {node} could not measure {where}: {outcome}{tries}; the point is infeasible there "
                f"(so far {self._failed} of {self._asked}). If that is not meant, mend what is called or change "
                "problem.variables, problem.time_limit or problem.retries",
                MeasurementWarning,
                stacklevel=2,
            )
        return (math.nan,) * self._objectives


class _EndedError(CallError):
    """The process has ended instead of answering."""


class Child:
    """A process that measures one point at a time; when late it is killed with all its children, and started anew.

    The process starts at the first point, and ends by itself once the parent process is gone, killed or not.

    Args:
        what: `{"function": text}` or `{"command": [..]}`, and the names of its `objectives`.
        limit: most seconds for a point, not counting the start of the process; `None`: no limit.
    """

    def __init__(self, what: Mapping[str, Any], limit: float | None) -> None:
        self._what, self._limit = what, limit
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""

    def __call__(self, point: Mapping[str, float], node: str, seed: int) -> tuple[float, ...]:
        """Return the values of a point in the user's units.

        Raises:
            CallError: the point could not be measured.
        """
        try:
            answer = self._line(self._begun({"point": dict(point), "node": node, "seed": seed}))
        except BaseException:
            self.kill()
            self._forget()
            raise
        if "failed" in answer:
            raise CallError(answer["failed"])
        return tuple(map(float, answer["values"]))

    def _begun(self, job: Mapping[str, Any]) -> tuple[float, float] | None:
        """Begin a job, in a new process where the last one ended before it took the job up; return its deadline."""
        if self._process is not None and self._process.poll() is None:
            late = self._send(job, self._limit)
            with contextlib.suppress(_EndedError):
                self._line(late)
                return late
        self._begin()
        late = self._send(job, self._limit)
        self._line(late)
        return late

    def kill(self) -> None:
        """Kill the process and all its children."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # it has just ended
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Let the process end by itself; kill it if it does not."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(child_script.GRACE + 1)
        self.kill()
        self._forget()

    def _begin(self) -> None:
        self._forget()
        self._process = subprocess.Popen(
            [sys.executable, "-P", child_script.__file__],  # -P: no module beside the script hides one of the user's
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True,
        )  # fmt: skip
        late = self._send({"path": [entry or os.getcwd() for entry in sys.path], **self._what}, START_LIMIT)
        answer = self._line(late)
        if "failed" in answer:
            raise CallError(answer["failed"])

    def _send(self, content: Mapping[str, Any], limit: float | None) -> tuple[float, float] | None:
        """Send a line, and return the limit and the deadline."""
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # reading reports the end
            self._process.stdin.write(json.dumps(content).encode() + b"\n")
        return None if limit is None else (limit, time.monotonic() + limit)

    def _line(self, late: tuple[float, float] | None) -> dict[str, Any]:
        """Return the next line of the process.

        Raises:
            CallError: the line is late, or the process has ended (`_EndedError`).
        """
        process = self._process
        assert process is not None
        assert process.stdout is not None
        with selectors.DefaultSelector() as ready:
            ready.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not ready.select(None if late is None else max(0.0, late[1] - time.monotonic())):
                    assert late is not None
                    raise CallError(f"it took longer than {late[0]:g} seconds")
                part = os.read(process.stdout.fileno(), 65536)
                if not part:
                    self.kill()  # and with it what it may have left running
                    raise _EndedError(f"its process ended with {child_script.ending(process.wait())}")
                self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _forget(self) -> None:
        """Wait for a process that has ended or was killed, and close the pipes."""
        process, self._process, self._unread = self._process, None, b""
        if process is not None:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()
