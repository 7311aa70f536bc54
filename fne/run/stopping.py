"""Interruption of a run by a signal: the first signal stops after the current step, a second one at once."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any


class Interruption:
    """Flag that a signal sets to stop the run; a plain attribute, since a signal handler must not wait for a lock."""

    def __init__(self) -> None:
        self.asked = False


@contextlib.contextmanager
def interrupts() -> Iterator[Interruption]:
    """Let the run finish its step after the first Ctrl-C or SIGTERM; a second signal of either kind acts as usual.

    The second signal may arrive at any instruction of the handler of the first. The handler therefore takes no lock:
    neither that of a `threading.Event` nor that of `sys.stderr`, for which the second signal would wait for ever.
    """
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    arrived = itertools.count()  # counts in one call in C, which no signal can interrupt

    def ask_to_stop(signum: int, _: Any) -> None:
        if next(arrived):
            restore()
            signal.raise_signal(signum)
            return
        interruption.asked = True
        with contextlib.suppress(OSError):  # raised where nobody reads the message
            os.write(2, b"fne: stopping after this step; once more stops at once\n")

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    previous = {number: signal.getsignal(number) or signal.SIG_DFL for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in previous:
            signal.signal(number, ask_to_stop)
        yield interruption
    finally:
        restore()
