"""Members of a strategy: tables of the required and optional members, their check, and access to optional members.

A strategy is a plain class, so a user's own attribute that happens to be called `population` would be taken for the
method of that name. `new_strategy` refuses such a strategy before the run folder is made.
"""

from __future__ import annotations

import inspect
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fne.config import registry
from fne.config.traits import TRAITS
from fne.core.allocation import check_counts
from fne.core.contracts import Strategy
from fne.core.errors import FneError, StrategyWarning

T = TypeVar("T")


def _is_method(value: Any) -> bool:
    if not callable(value):
        return False
    try:
        inspect.signature(value).bind()
    except TypeError:
        return False
    except ValueError:  # compiled code may not expose its parameters
        return True
    return True


VALUES = ("seed", "step", "horizon", "done", "tasks")
METHODS = ("ask", "tell", "state_dict", "load_state_dict", "result")
"""Members that every strategy has: values (or properties), and methods."""

KINDS: dict[str, Callable[[Any], bool]] = {
    "method": _is_method,
    "true or false": lambda value: isinstance(value, bool),
    "whole number": lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 1,
    "lineage": lambda value: all(
        callable(getattr(value, name, None)) for name in ("candidates", "advance", "state_dict", "load_state_dict")
    ),
    "tensors": lambda value: isinstance(value, Mapping),
}
"""Test that a member of each kind must pass."""

_WORDS = {
    "method": "a method without required arguments",
    "whole number": "a whole number >= 1",
    "lineage": "a fne.federation.lineage.Lineage",
    "tensors": "a mapping of tensors by name",
}


_TASKS = (
    "it maps the node tasks that the strategy asks for, which alone nodes will do, to those of their options that "
    'never change, such as {"fitness": {"loss": "mse"}}, or {"fitness": {}}'
)


@dataclass(frozen=True)
class Member:
    """An optional member of a strategy.

    Args:
        kind: kind of the member, a key of `KINDS`; None is also allowed and means the same as a missing member.
        default: value of the member for a strategy without it.
        meaning: use that the toolkit makes of the member.
    """

    kind: str
    default: Any
    meaning: str


MEMBERS = {
    "pooled": Member("true or false", False, "whether all data go to one node, since the method is not federated"),
    "validates": Member("true or false", True, "whether validation data are used; otherwise they may be empty"),
    "champion": Member("method", None, "returns the Result that watch.champions keeps; without it: result()"),
    "population": Member("method", None, "returns weights [n, D] of trade-offs and the rows of front.csv"),
    "terms": Member("method", None, "returns the most that it requests of nodes, as fne.privacy.policy.Terms"),
    "privacy": Member("method", None, "returns the account of privacy for the summary, a mapping"),
    "lineage": Member(
        "lineage", None, "lineage of the candidates that nodes can make by themselves, for wire = lineage"
    ),
    "decision": Member("tensors", None, "decision by which tell advanced the lineage last; None before"),
    "secure": Member("true or false", None, "whether the setting secure must be set, or must not"),
    "fewest": Member(
        "whole number", None, "fewest nodes that a step addresses; without it: those of the first request"
    ),
    "takes_known": Member("true or false", False, "whether problem.known is of use to a search"),
    "releases": Member("true or false", None, "whether owners are asked at the end; without it: unless pooled"),
    "publishes": Member("true or false", False, "whether owners publish what they have measured"),
}
"""Name -> optional member. Every other attribute of a strategy is private to the strategy."""


def member(strategy: Strategy, name: str) -> Any:
    """Return an optional member of a strategy, or its default where the strategy has none.

    Raises:
        FneError: the member's kind differs from the table, or the member is a property that raises.
    """
    declared = MEMBERS[name]
    try:
        value = getattr(strategy, name, None)
    except Exception as error:
        raise FneError(f"{type(strategy).__name__}.{name} raises {type(error).__name__}: {error}") from error
    if value is None:
        return declared.default
    if not KINDS[declared.kind](value):
        raise FneError(
            f"{type(strategy).__name__}.{name} is of type {type(value).__name__}: of a strategy it must be "
            f"{_WORDS.get(declared.kind, declared.kind)} ({declared.meaning}), or None; give an attribute of your own "
            f"another name, such as _{name}"
        )
    return value


def check_members(strategy: Strategy) -> None:
    """Raise `FneError` for the first member that is missing or whose kind differs from the tables."""
    for name in (*VALUES, *METHODS):
        what = "a method" if name in METHODS else "a value or a property, and no method"
        if not hasattr(strategy, name):
            hint = f"; {_TASKS}" if name == "tasks" else ""
            raise FneError(f"{type(strategy).__name__} has no {name}, which every strategy has, as {what}{hint}")
        if callable(getattr(strategy, name)) != (name in METHODS):
            raise FneError(f"{type(strategy).__name__}.{name} must be {what}")
    tasks = strategy.tasks
    if not (isinstance(tasks, Mapping) and all(isinstance(options, Mapping) for options in tasks.values())):
        raise FneError(f"{type(strategy).__name__}.tasks = {tasks!r:.60}: {_TASKS}")
    for name in MEMBERS:
        member(strategy, name)


def _check_declared(strategy: Strategy, name: str) -> None:
    """Raise `FneError` for a member that is a trait but not declared, or declared but missing."""
    declared = registry.traits("strategy", name)
    for trait, what in TRAITS["strategy"].items():
        value, given = member(strategy, trait), bool(declared.get(trait))
        if value not in (None, False) and not given:
            raise FneError(
                f"{type(strategy).__name__}.{trait} is not declared: a strategy that has it {what.meaning}; write "
                f'@register("strategy", "{name}", {trait}=True), or give an attribute of your own another name, such '
                f"as _{trait}"
            )
        if given and value is False:
            raise FneError(
                f"{type(strategy).__name__}.{trait} is not true, though it is declared: a strategy that has it "
                f"{what.meaning}; set {trait} = True in the class, or leave it out of @register"
            )


def attempt(strategy: Strategy, name: str, use: Callable[[Any], T]) -> T | None:
    """Return the result of `use` with an optional method, or `None` with a warning where the call fails.

    A failure in an optional method must not lose the trained result of a run.

    Args:
        strategy: the strategy that may have the method.
        name: name of the method.
        use: gets the method, or `None` where the strategy has none.

    Raises:
        OSError: a file cannot be written.
    """
    try:
        return use(member(strategy, name))
    except OSError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"
        warnings.warn(
            f"{type(strategy).__name__}.{name}, step {strategy.step}: {type(error).__name__}: {error}{place}; the run "
            "goes on without what it was to give",
            StrategyWarning,
            stacklevel=2,
        )
        return None


def new_strategy(name: str, task: Any, seed: int, settings: Mapping[str, Any]) -> Strategy:
    """Return a strategy of a registered name.

    Args:
        name: the registered name, as `fne list` shows it.
        task: the strategy's task: a `LearningTask`, `SearchTask` or `FrontTask`.
        seed: seed of the run.
        settings: checked settings of the strategy.

    Raises:
        FneError: an optional member is of the wrong kind; the text names the member and the strategy.
        SettingError: so many models or points do not fit into memory.
    """
    entry = registry.entry("strategy", name)
    each = {"models": 4 * task.layout.size} if entry.task == "LearningTask" else {"points": 8 * len(task.space)}
    check_counts("strategy", entry.settings, settings, each)
    make: Callable[..., Strategy] = registry.load("strategy", name)
    strategy = make(task, seed=seed, **settings)
    try:
        check_members(strategy)
        _check_declared(strategy, name)
    except FneError as error:
        raise FneError(f"strategy.name = {name!r} ({entry.file}): {error}") from error
    return strategy
