"""Whose a recording is, by its path."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from fne.core.errors import SettingError

GROUPS = ("subject", "session", "run", "site", "label")
_KNOWN = (
    r"(?P<subject>S\d{3})(?P<run>R\d{2})",  # eegmmidb
    r"(?P<subject>[AB]0\d)(?P<session>(0\d)?[TE])",  # BCI competition IV, 2a and 2b
    r"(?P<subject>S[CT]4\d\d)(?P<session>\d)\w\d-PSG",  # Sleep-EDF: two nights of each subject
    r"(?P<subject>[a-z]{8}|\d{8})_(?P<session>s\d{3})_(?P<run>t\d{3})",  # Temple University
)
"""Names of files of common data sets, where one subject has several."""
_NUMBERED = re.compile(
    r"(?!day|night|week|month|visit|time|ses|run|block|site|cent|hosp|lab|group|cond)\D*\d+\D*", re.IGNORECASE
)
"""Names of folders such as `p01`, `sub_2` or `S003`, and not `day1`."""


def owners(names: Sequence[str], subject: str | None) -> list[dict[str, str]]:
    """Return subject, session, run, site and label of files, as far as their paths say.

    Args:
        names: paths below the data set's folder, with `/`.
        subject: regular expression with a group `subject`; `None`: the usual names.

    Raises:
        SettingError: the expression does not work for these files, or usual names leave open who a subject is.
    """
    if subject is None:
        found = [_usual(name) for name in names]
        _refuse_guess([name for name, owner in zip(names, found, strict=True) if "guess" in owner])
    else:
        expression = _expression(subject)
        matches = [expression.search(name) for name in names]
        bad = [name for name, match in zip(names, matches, strict=True) if not (match and match["subject"])]
        if bad:
            allowed = (
                f"an expression that finds a subject in the path of each file: {len(bad)} of {len(names)} have none, "
                f"the first is {bad[0]!r} (data.pattern leaves files out)"
            )
            raise SettingError("data.subject", subject, allowed)
        found = [match.groupdict(default="") for match in matches if match]
    return [{key: owner.get(key, "") for key in GROUPS} for owner in found]


def _expression(subject: str) -> re.Pattern[str]:
    try:
        expression = re.compile(subject)
    except re.error as error:
        raise SettingError("data.subject", subject, f"a regular expression ({error})") from error
    if "subject" not in expression.groupindex:
        raise SettingError("data.subject", subject, "a regular expression with a group (?P<subject>...)")
    return expression


def _usual(name: str) -> dict[str, str]:
    """Return whose a file is by the usual names."""
    path = PurePosixPath(name)
    # A later entity wins: the file's name knows better than a folder's.
    entities = dict(re.findall(r"(?:^|[/_])(sub|ses|run)-([^/_.]+)", name))
    if "sub" in entities:
        return {"subject": entities["sub"], "session": entities.get("ses", ""), "run": entities.get("run", "")}
    stem = _stem(path)
    for known in _KNOWN:
        if match := re.fullmatch(known, stem):
            return match.groupdict(default="")
    if len(path.parts) > 2:
        # Neither folder nor file can be guessed: one subject taken for two would be in training and test.
        allowed = (
            f"an expression that says whose {name!r} is, by no usual form of a name; such as "
            "'^(?P<subject>[^/]+)/' where the first folder is a subject's"
        )
        raise SettingError("data.subject", None, allowed)
    return {"subject": path.parent.name, "guess": "folder"} if path.parent.name else {"subject": stem}


def _refuse_guess(names: Sequence[str]) -> None:
    """Ask whose files are, if the same name lies in several folders, none of which is numbered as subjects are."""
    folders: dict[str, set[str]] = {}
    for path in map(PurePosixPath, names):
        if not _NUMBERED.fullmatch(path.parent.name):
            folders.setdefault(_stem(path), set()).add(path.parent.name)
    for stem, where in folders.items():
        if len(where) > 1:
            one, other = sorted(where)[:2]
            allowed = (
                f"an expression that says who is a subject: {one!r} and {other!r}, or {stem!r}, which is in both? "
                "Such as '^(?P<subject>[^/]+)/' for the folder, "
                "'^(?P<session>[^/]+)/(?P<subject>[^/.]+)' for the file"
            )
            raise SettingError("data.subject", None, allowed)


def _stem(path: PurePosixPath) -> str:
    """Return a file's name without its extension, `.fif.gz` is one."""
    return re.sub(r"(\.fif\.gz|\.[^.]*)$", "", path.name, count=1, flags=re.IGNORECASE)
