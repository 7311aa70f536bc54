"""Output to any terminal: characters that its encoding lacks, a reader that has gone, a disk that is full."""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import os
import sys
import unicodedata
from collections.abc import Iterator

from rich.console import Console

_ASCII = {
    "±": "+-", "·": "*", "—": "-", "→": "->", "≤": "<=", "≥": ">=", "≈": "~", "ε": "epsilon", "µ": "u", "μ": "u",
    "\N{MULTIPLICATION SIGN}": "x", "\N{EN DASH}": "-", "\N{MINUS SIGN}": "-", "\N{RIGHT SINGLE QUOTATION MARK}": "'",
}  # fmt: skip
_HANDLER = "fne.ascii"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


def _replaced(error: UnicodeError) -> tuple[str, int]:
    """Return ASCII for characters that cannot be encoded: a form of theirs that one can read, else their number."""
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end]
    return "".join(map(_in_ascii, text)), error.end


def _in_ascii(character: str) -> str:
    if character in _ASCII:
        return _ASCII[character]
    parts = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return parts or character.encode("ascii", "backslashreplace").decode()


codecs.register_error(_HANDLER, _replaced)


@contextlib.contextmanager
def any_encoding() -> Iterator[None]:
    """Let standard output and error write every character, those that their encoding lacks in ASCII."""
    streams = [stream for stream in (sys.stdout, sys.stderr) if isinstance(stream, io.TextIOWrapper)]
    before = [stream.errors for stream in streams]
    for stream in streams:
        stream.reconfigure(errors=_HANDLER)
    try:
        yield
    finally:
        for stream, errors in zip(streams, before, strict=True):
            with contextlib.suppress(OSError, ValueError):  # it is closed, or nobody reads any more
                stream.reconfigure(errors=errors)


def is_full(error: OSError) -> bool:
    """Whether an error is of output that went to a full disk; files of the toolkit's own are told by their names."""
    return error.errno in _FULL and error.filename is None


def silence() -> None:
    """Drop what standard output still holds, so that Python does not complain of it when it ends."""
    with contextlib.suppress(OSError, ValueError):  # there is no such file, as in a notebook
        number = sys.stdout.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)


class Screen(Console):
    """A console that leaves it to the caller what to do when nobody reads any more."""

    def on_broken_pipe(self) -> None:
        """Raise the error on; rich would end the process here."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
