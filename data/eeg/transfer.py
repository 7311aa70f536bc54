"""Detection of binary files whose line ends were rewritten by version control or by a transfer as text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fne.core.dataset import Finding

_CHUNK = 1 << 20
_MANY = 16
"""Number of equal line ends that is evidence of rewriting if the length of the file is right or unknown."""


def rewritten(path: Path, least: int = 1) -> Finding | None:
    r"""Return the finding that each `\n` of a binary file became `\r\n`, which displaces all later values.

    An intact binary file has a `\n` without `\r` every few hundred bytes, so little of it is read.

    Args:
        path: a binary file.
        least: number of line ends below which no finding is made.
    """
    count = 0
    for ends, with_return in _line_ends(path):
        if ends > with_return:
            return None
        count += ends
    if count < least:
        return None
    found = (
        rf"all {count:,} line ends (\n) of {path.name} have a \r before them, which no binary file has: most likely "
        r"version control, or a transfer as text, turned \n into \r\n, which displaces all values after the first"
    )
    remedy = (
        f"Copy the file again as a binary file (with git: write '*{path.suffix} binary' into .gitattributes and check "
        "it out again, or commit the original again)"
    )
    return Finding("line ends", found, "the bytes that were recorded", remedy, "refused")


def suspicious(path: Path) -> Finding | None:
    """Return the finding of `rewritten` for a file whose correct length is not known."""
    return rewritten(path, _MANY)


def shortened(path: Path, missing: int) -> str:
    r"""Return the text for a file that lacks `missing` bytes if `\r\n` may have become `\n` in it, else nothing."""
    count = 0
    for ends, with_return in _line_ends(path):
        if with_return:
            return ""
        count += ends
    if count < missing:
        return ""
    return (
        rf", or, as there is no \r\n in it, version control or a transfer as text turned \r\n into \n {missing:,} times"
    )


def _line_ends(path: Path) -> Iterator[tuple[int, int]]:
    r"""Yield, for each part of a file, the number of `\n` and the number of these that follow a `\r`."""
    last = b""
    with path.open("rb") as file:
        while part := file.read(_CHUNK):
            yield part.count(b"\n"), (last + part).count(b"\r\n")
            last = part[-1:]
