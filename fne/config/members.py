"""Members of a strategy: tables of what they are, checked when a strategy is made; one way to read optional ones.

A strategy is a plain class, so an attribute that a user calls `population` for reasons of their own would be taken for
the method of that name. `new_strategy` refuses such a strategy before there is a run folder.
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
    except ValueError:  # compiled code need not tell its parameters
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
"""What each kind of member must be."""

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
        kind: what it must be, a key of `KINDS`; None is allowed besides and means the same as a missing member.
        default: what a strategy without the member is taken to have.
        meaning: what the toolkit does with it.
    """

    kind: str
    default: Any
    meaning: str


MEMBERS = {
    "pooled": Member("true or false", False, "whether all data go to one node, since the method is not federated"),
    "validates": Member("true or false", True, "whether validation data are looked at; else they may be empty"),
    "champion": Member("method", None, "returns the Result that watch.champions keeps; without it: result()"),
    "population": Member("method", None, "returns weights [n, D] of trade-offs and the rows of front.csv"),
    "terms": Member("method", None, "returns what it asks of nodes at most, as fne.privacy.policy.Terms"),
    "privacy": Member("method", None, "returns the account of privacy for the summary, a mapping"),
    "lineage": Member("lineage", None, "what nodes can make by themselves, for wire = lineage"),
    "decision": Member("tensors", None, "by which tell advanced the lineage last; None before"),
    "secure": Member("true or false", None, "whether the setting secure must be set, or must not"),
    "fewest": Member("whole number", None, "fewest nodes that a step asks; without it: those of the first request"),
    "takes_known": Member("true or false", False, "whether problem.known is of use to a search"),
    "releases": Member("true or false", None, "whether owners are asked at the end; without it: unless pooled"),
    "publishes": Member("true or false", False, "whether owners publish what they have measured"),
}
"""Name -> what it is. Every other attribute of a strategy is the strategy's own affair."""


def member(strategy: Strategy, name: str) -> Any:
    """Return an optional member of a strategy, or its default where the strategy has none.

    Raises:
        FneError: the member is of another kind than the table says, or is a property that raises.
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
    """Raise `FneError` for the first member that is missing or of another kind than the tables say."""
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
    """Raise `FneError` for a member that is a trait and not declared, or declared and not there."""
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
    """Return what `use` makes of an optional method, or `None` with a warning where that fails.

    What a run has trained is not to be lost because something beside it fails.

    Args:
        strategy: whose method it is.
        name: of the method.
        use: is given the method, or `None` where the strategy has none.

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
        name: as `fne list` has it.
        task: what the strategy is given: a `LearningTask`, `SearchTask` or `FrontTask`.
        seed: of the run.
        settings: of the strategy, checked.

    Raises:
        FneError: an optional member is of the wrong kind; names it and the strategy.
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
