"""Terminal output that copes with characters missing from the encoding, closed pipes and full disks."""

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
    """Return ASCII for characters that cannot be encoded: a readable form, otherwise the escaped code point."""
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
    """Let standard output and error write every character; characters missing from the encoding become ASCII."""
    streams = [stream for stream in (sys.stdout, sys.stderr) if isinstance(stream, io.TextIOWrapper)]
    before = [stream.errors for stream in streams]
    for stream in streams:
        stream.reconfigure(errors=_HANDLER)
    try:
        yield
    finally:
        for stream, errors in zip(streams, before, strict=True):
            with contextlib.suppress(OSError, ValueError):  # the stream or the pipe is closed
                stream.reconfigure(errors=errors)


def is_full(error: OSError) -> bool:
    """Return whether standard output met a full disk; errors of the toolkit's own files carry a file name."""
    return error.errno in _FULL and error.filename is None


def silence() -> None:
    """Discard unflushed standard output, so that Python reports no error at exit."""
    with contextlib.suppress(OSError, ValueError):  # standard output has no file descriptor, as in a notebook
        number = sys.stdout.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)


class Screen(Console):
    """Console that leaves a broken pipe to the caller."""

    def on_broken_pipe(self) -> None:
        """Raise the error again; rich would end the process here."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
