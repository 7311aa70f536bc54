"""Changes of Python's warning filters by one thread at a time, because the filters belong to the whole process."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator

_FILTERS = threading.RLock()


@contextlib.contextmanager
def own_filters() -> Iterator[list[warnings.WarningMessage]]:
    """Let a block change the warning filters, and put them back; warnings that pass them are collected in the list.

    Blocks of different threads wait for each other: where they overlapped, the one that ends last would put back what
    the other one had changed, and the process would stay silent.

    Yields:
        The list of the warnings so far. None of them is shown.
    """
    with _FILTERS, warnings.catch_warnings(record=True) as heard:
        yield heard


@contextlib.contextmanager
def ignored(category: type[Warning] = Warning, message: str = "") -> Iterator[None]:
    """Ignore warnings of one category inside a block, for one thread at a time as `own_filters` does.

    Args:
        category: which warnings; all other ones are shown as before.
        message: regular expression that the beginning of their text matches; empty for all.
    """
    with _FILTERS, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=message, category=category)
        yield
