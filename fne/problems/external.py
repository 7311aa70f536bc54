"""Problems of one's own: a Python function or a command measures, in the user's units. Smaller is better.

Both are code that a config names, and run with the user's rights.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fne.config.registry import Key, register
from fne.core.errors import SettingError
from fne.problems.child import TOLD, Call, CallError, load, of_function
from fne.problems.measuring import Child, Measuring
from fne.problems.space import Problem, Space, space_of


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What is measured, at which points, and how."""

    variables: Annotated[
        dict[str, tuple[float, float]],
        Key("name: [low, high] of each", min_length=1, allowed="{name: [low, high], ..}, at least one, finite numbers"),
    ]
    integer: Annotated[tuple[str, ...], Key("variables that are whole numbers")] = ()
    log: Annotated[tuple[str, ...], Key("variables that are searched by their logarithm")] = ()
    time_limit: Annotated[
        float | None, Key("most that a point may take; null: none", unit="seconds", gt=0, le=10000000)
    ] = None
    retries: Annotated[int, Key("further tries of a point that could not be measured", ge=0)] = 0
    parallel: Annotated[int, Key("points that are measured at once", unit="processes", ge=1, le=1024)] = 1
    objectives: Annotated[
        tuple[str, ...],
        Key("names of what is measured, all smaller is better", min_length=1, allowed="[name, ..], at least one text"),
    ] = ("value",)


@register("problem", "callable")
def callable_problem(
    *,
    function: Annotated[str, Key("package.module:name, or path/to/file.py:name", path="call")],
    measured: Measured,
) -> Problem:
    """Measure by a Python function of the variables.

    It is called with the variables by name, and with `node=` (the node's name) and `seed=` (the run's) if it has
    parameters of these names; it returns a number. Of several objectives it returns a mapping by their names, or so
    many numbers in their order. With a time limit, or where several points are measured at once, it runs in processes
    of its own, else in this one.
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

    It reads one line of JSON on stdin, `{"point": {name: value, ..}, "node": text, "seed": number}`, and prints a
    number as its last line on stdout; of several objectives a JSON list of numbers in their order, or an object by
    their names.
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
    """Return the SHA-256 of the file that a function is in, or nothing where it is in none."""
    plain: object = inspect.unwrap(function)
    while isinstance(plain, functools.partial):
        plain = plain.func
    file = None
    for thing in (plain, type(plain)):  # a function, or an object that can be called
        try:
            file = file or inspect.getsourcefile(thing)  # type: ignore[arg-type]
        except TypeError:  # of something that is compiled
            continue
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""


def _checked(text: str, space: Space) -> Callable[..., object]:
    """Return the function that a config names, once it is known to take the variables.

    Raises:
        CallError: there is none, or it does not take them.
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
