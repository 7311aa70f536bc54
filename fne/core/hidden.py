"""What never leaves a node: objects that refuse to be printed, copied or serialised, and the protocol's refusals."""

from __future__ import annotations

from typing import NoReturn

from fne.core.errors import FneError


class Hidden:
    """A thing that is secret: its text says nothing, and it cannot be pickled or copied.

    Those who derive from it have `__slots__`, so that `vars` shows nothing either.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(hidden)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a node's secrets stay with the node: they cannot be copied or serialised")


class ProtocolError(FneError):
    """Raised where secure sums cannot go on, or must not; the text names who, and never a value that is private."""
