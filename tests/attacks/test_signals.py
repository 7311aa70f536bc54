"""Attacks on a run by signals: each moment at which a second signal may arrive while the first one is handled."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

SECOND_SIGNAL = """
import os, signal, sys
from fne.run.stopping import interrupts

first, second = int(sys.argv[1]), int(sys.argv[2])
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets its background jobs ignore it


def ended(moment):
    '''Return how a process ends to which the second signal comes at this instruction of the first one's handler.'''
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with open(reader, "rb") as told:
            return status, told.read()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(5)  # a process that hangs is killed by this one
    left = moment

    def trace(frame, event, argument):
        nonlocal left
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == -1:
                os.kill(os.getpid(), second)
        return trace

    try:
        with interrupts() as interruption:
            sys.settrace(trace)
            os.kill(os.getpid(), first)
            sys.settrace(None)
            if left < 0:
                os.write(writer, b"lost")
            else:
                os.write(writer, b"asked" if interruption.asked else b"ignored")
    except KeyboardInterrupt:
        sys.settrace(None)
        os._exit(130)
    os._exit(0)


moment, seen = 0, {}
while True:
    status, told = ended(moment)
    if told == b"asked":
        break
    seen.setdefault((status, told), []).append(moment)
    moment += 1
    if status == -signal.SIGALRM and moment > 3:
        break
usual = {signal.SIGINT: 130, signal.SIGTERM: -signal.SIGTERM}
assert moment > 10, "the handler was not traced"
assert {status for status, _ in seen} <= {usual[first], usual[second]}, seen
"""


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_at_any_instruction_of_the_handler_ends_the_run(
    first: signal.Signals, second: signal.Signals
) -> None:
    """Claims to hang a run for ever, its folder locked, by two signals within some microseconds of each other."""
    words = [sys.executable, "-c", SECOND_SIGNAL, str(int(first)), str(int(second))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
