"""What goes wrong, in the user's words: what was wrong, the value, what to do. The command exits with status 2.

All of them are `ValueError`s, so library users may catch that; none shows a traceback in the command.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any


class FneError(ValueError):
    """A mistake or a circumstance that the user can mend; its text says how."""


class SettingError(FneError):
    """A setting that is well-formed but cannot work here, such as more nodes asked than exist.

    Args:
        key: dotted name of the setting, such as `strategy.subset_size`.
        value: what was given.
        allowed: what would do, as the end of "must be ...".
    """

    def __init__(self, key: str, value: object, allowed: str) -> None:
        super().__init__(f"{key} = {shown(value)}: must be {allowed}")
        self.key, self.value, self.allowed = key, value, allowed


class ConfigError(FneError):
    """All mistakes of a configuration at once."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class DataError(FneError):
    """Data that are missing, broken, or too few for what is asked.

    `files`, `findings`: the `fne.core.dataset.FileReport` of each file and the `Finding`s about all files, where they
    were looked at one by one before.
    """

    files: tuple[Any, ...] = ()
    findings: tuple[Any, ...] = ()


class FneWarning(UserWarning):
    """Something that the user should know; the run goes on. The command prints it in one line."""


class DataWarning(FneWarning):
    """Something about the data that the user should know before believing a figure; the run goes on."""


class NodeWarning(FneWarning):
    """Nodes that often gave no answer of use: what a run yields is that of the others."""


class SettingWarning(FneWarning):
    """A setting that switches off a part of the method; the run goes on without that part."""


class PathWarning(FneWarning):
    """A path that was found from the current folder, and not from the folder of the config that names it."""


class StrategyWarning(FneWarning):
    """An optional method of a strategy that failed; the run goes on without what the method was to give."""


class CheckpointError(FneError):
    """A checkpoint that is missing, damaged, or belongs to another run."""


class RefusedError(Exception):
    """Raised by a task for a request that this node will not answer; the text is the reply's reason."""


class DeclinedError(RefusedError):
    """Raised by a task for a request that is the owner's choice, which the owner does not agree to."""


class RunError(FneError):
    """A run that cannot go on: too few replies, a full disk. What was checkpointed stays."""


class WriteError(RunError):
    """A file that cannot be written, as on a full disk. It ends the run, whichever node's work it comes up in."""


def shown(value: Any, most: int = 80) -> str:
    """Write a value as a config would: `true`, `null`, `'text'`; at most so many characters."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no number of more than 4,300 digits
        text = f"a {type(value).__name__} too long to be written"
    text = {"None": "null", "True": "true", "False": "false"}.get(text, text)
    return text if len(text) <= most else text[: most - 1] + "…"


def did_you_mean(word: str, known: Iterable[str], elsewhere: Iterable[str] = ()) -> str:
    """Return `, did you mean 'x'?` for the nearest known word, or an empty string; upper and lower case count alike.

    Args:
        word: what was written.
        known: what could stand there.
        elsewhere: dotted names of what could stand in other places, of which the last part is compared. They must be
            clearly nearer than what is known; all that are equally near are named.
    """
    here, matcher = list(known), difflib.SequenceMatcher(b=word.lower())
    scores: dict[str, float] = {}
    for name, part, least, bonus in [
        *((name, name.rpartition(".")[2], 0.8, 0.0) for name in elsewhere), *((name, name, 0.6, 0.05) for name in here),
    ]:  # fmt: skip
        matcher.set_seq1(part.lower())
        if matcher.ratio() >= least:
            scores[name] = matcher.ratio() + bonus
    near = [name for name, score in scores.items() if score == max(scores.values())]
    near = [name for name in near if name in here][-1:] or near
    return f", did you mean {' or '.join(map(repr, near))}?" if near else ""
