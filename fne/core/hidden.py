"""Secret objects, which refuse to be printed, copied or serialised, and the error of the secure-sum protocol."""

from __future__ import annotations

from typing import NoReturn

from fne.core.errors import FneError


class Hidden:
    """A secret object: its text reveals nothing, and it cannot be pickled or copied.

    Subclasses define `__slots__`, so that `vars` shows nothing either.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(hidden)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a node's secrets stay with the node: they cannot be copied or serialised")


class ProtocolError(FneError):
    """Raised where secure sums cannot or must not go on; the text names the node at fault, never a private value."""
