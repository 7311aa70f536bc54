"""Warning filters for one thread at a time, because Python's filters belong to the whole process."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator

_FILTERS = threading.RLock()


@contextlib.contextmanager
def own_filters() -> Iterator[list[warnings.WarningMessage]]:
    """Let a block change the warning filters, and restore them; the list collects the warnings that pass the filters.

    Blocks of different threads wait for each other: where they overlapped, the one that ends last would put back what
    the other one had changed, and the process would stay silent.

    Yields:
        The list of warnings so far. None of the warnings is shown.
    """
    with _FILTERS, warnings.catch_warnings(record=True) as heard:
        yield heard


@contextlib.contextmanager
def ignored(category: type[Warning] = Warning, message: str = "") -> Iterator[None]:
    """Ignore warnings of one category inside a block, for one thread at a time as `own_filters` does.

    Args:
        category: class of the warnings to ignore; all other warnings are shown as before.
        message: regular expression that must match the beginning of their text; empty for all.
    """
    with _FILTERS, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=message, category=category)
        yield
