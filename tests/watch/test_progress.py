"""The progress of a run on a terminal and without one."""

from __future__ import annotations

import io
import math
import re
from types import SimpleNamespace

import pytest
from rich.console import Console

from fne.watch.progress import Progress
from tests.watch.parts import ROUND, feed


def plain(stream: io.StringIO) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())


def test_without_a_terminal_there_is_a_line_at_each_end() -> None:
    stream = io.StringIO()
    with Progress("run [x]", 300, display_sign=-1, loss="nmse", console=Console(file=stream)) as progress:
        feed(progress, range(1, 121), 300)
    progress.close()
    feed(progress, range(121, 122), 300)
    first, last = stream.getvalue().splitlines()
    assert first == "run [x]: step 0/300"
    figures = r"nmse -0\.008333  validation 99\.2 %  multiplier 1\.5  \S+ rounds/s"
    assert re.fullmatch(rf"run \[x\]: step 120/300 in 0:00:0\d  {figures}", last)


def test_a_terminal_of_80_columns_shows_it_all() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80, legacy_windows=False, _environ={"TERM": "x"})
    with Progress("run [x]", 20, loss="cross_entropy", console=console) as progress:
        feed(progress, range(1, 21), 20)
    progress.close()
    *_, bar, figures = plain(stream).split("\n")[:-1]
    assert re.search(r"run \[x\] ━+ 20/20 in 0:00:0\d", bar)
    assert re.fullmatch(r"\s*cross_entropy 0\.05  validation 95\.2 %  multiplier 1\.5  \S+ rounds/s\s*", figures)


def test_pace_and_time_left_count_from_where_the_run_was_resumed() -> None:
    progress = Progress("run", 100, start=40, console=Console(file=io.StringIO()))
    progress._begun = 1000.0
    progress(SimpleNamespace(), ROUND, {"step": 60, "round": 30})  # two steps a round
    assert progress.pace(1010.0) == "60/100  0:00:20 left"
    assert progress.figures(1010.0) == "1 rounds/s"


def test_the_last_validation_stays_on_show() -> None:
    progress = Progress("run", 10, console=Console(file=io.StringIO()))
    shown = []
    for step, accuracy in enumerate((None, 0.5, None, None, 0.75, math.nan, None), 1):
        progress(SimpleNamespace(), ROUND, {"step": step, "accuracy_validation": accuracy})
        shown.append(progress.figures(progress._begun))
    assert shown == ["", *["validation 50.0 %"] * 3, *["validation 75.0 %"] * 3]


def test_updates_are_throttled(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(float(second) for second in range(1000))
    monkeypatch.setattr("fne.watch.progress.time.monotonic", lambda: next(clock))
    stream = io.StringIO()
    with Progress("run", 100, console=Console(file=stream)) as progress:  # second 0
        feed(progress, range(1, 91), 100)
    steps = [int(s) for s in re.findall(r"step (\d+)/", stream.getvalue())]
    assert steps == [0, 30, 60, 90, 90]


def test_quiet_says_nothing_and_default_is_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    for quiet in (True, False):
        with Progress("run", 3, quiet=quiet) as progress:
            feed(progress, range(1, 4), 3)
        captured = capsys.readouterr()
        assert captured.out == ""
        assert bool(captured.err) is not quiet
