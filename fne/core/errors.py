"""Errors and warnings in the user's words: what is wrong, the value, and the remedy. The command exits with status 2.

All errors that derive from `FneError` are `ValueError`s, so library users may catch that; the command shows no
traceback for them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any


class FneError(ValueError):
    """A mistake or a circumstance that the user can mend; the text says how."""


class SettingError(FneError):
    """A setting that is well-formed but cannot work here, such as a request for more nodes than exist.

    Args:
        key: dotted name of the setting, such as `strategy.subset_size`.
        value: the given value.
        allowed: what is allowed, as the end of "must be ...".
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
    """Data that are missing, broken, or too few for the request.

    `files`, `findings`: the `fne.core.dataset.FileReport` of each file and the `Finding`s about all files, where the
    files were inspected one by one.
    """

    files: tuple[Any, ...] = ()
    findings: tuple[Any, ...] = ()


class FneWarning(UserWarning):
    """Something that the user should know; the run goes on. The command prints it in one line."""


class DataWarning(FneWarning):
    """Something about the data that the user should know before believing a figure; the run goes on."""


class NodeWarning(FneWarning):
    """Nodes that often gave no usable answer: the result of the run comes from the other nodes."""


class SettingWarning(FneWarning):
    """A setting that switches off a part of the method; the run goes on without that part."""


class PathWarning(FneWarning):
    """A path that exists relative to the current folder, and not relative to the folder of the config that names it."""


class StrategyWarning(FneWarning):
    """An optional method of a strategy that failed; the run goes on without the method's result."""


class CheckpointError(FneError):
    """A checkpoint that is missing, damaged, or belongs to another run."""


class RefusedError(Exception):
    """Raised by a task for a request that this node will not answer; the text is the reply's reason."""


class DeclinedError(RefusedError):
    """Raised by a task for a request that needs the owner's consent, where the owner declines."""


class RunError(FneError):
    """A run that cannot go on: too few replies, a full disk. Checkpoints stay."""


class WriteError(RunError):
    """A file that cannot be written, as on a full disk. The error ends the run, whichever node's work raises it."""


def shown(value: Any, most: int = 80) -> str:
    """Write a value as a config would: `true`, `null`, `'text'`; cut to `most` characters."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no number of more than 4,300 digits
        text = f"a {type(value).__name__} too long to be written"
    text = {"None": "null", "True": "true", "False": "false"}.get(text, text)
    return text if len(text) <= most else text[: most - 1] + "…"


def did_you_mean(word: str, known: Iterable[str], elsewhere: Iterable[str] = ()) -> str:
    """Return `, did you mean 'x'?` for the nearest known word, or an empty string; upper and lower case count alike.

    Args:
        word: the word that was written.
        known: the words that are allowed in its place.
        elsewhere: dotted names that are allowed in other places; their last part is compared. They must be clearly
            nearer than the known words; all that are equally near are named.
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
