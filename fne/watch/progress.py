"""Progress of a run: a bar on a terminal, elsewhere a line at the start, every half minute and at the end."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn
from rich.progress import Progress as Bar
from rich.table import Column
from rich.text import Text

from fne.core.contracts import Metrics, Strategy
from fne.core.messages import Round
from fne.watch.terminal import Screen

_EVERY = 0.1  # seconds between updates of the bar
_EVERY_LINE = 30.0  # seconds between lines where there is no terminal


class Progress:
    """Show the progress of a run; a callback and a context manager.

    Args:
        name: the run's name.
        horizon: planned number of steps.
        start: steps taken before a resume.
        loss: name of the figure shown as the best fitness.
        display_sign: -1 where that figure is maximised (NMSE), else 1.
        quiet: show nothing.
        console: console to write to; `None`: stderr.
    """

    def __init__(
        self,
        name: str,
        horizon: int,
        *,
        start: int = 0,
        loss: str = "fitness",
        display_sign: int = 1,
        quiet: bool = False,
        console: Console | None = None,
    ) -> None:
        self.name, self.horizon, self.start = name, horizon, start
        self.loss, self.display_sign, self.quiet = loss, display_sign, quiet
        self.console = console or Screen(stderr=True)
        self._last: Metrics = {"step": start}
        self._validated: float | None = None  # methods need not validate every step
        self._bar: Bar | None = None
        self._task = TaskID(0)
        self._begun = time.monotonic()
        self._next = math.inf  # shows nothing before `__enter__` and after `close`

    def __enter__(self) -> Progress:
        if self.quiet:
            return self
        self._begun = time.monotonic()
        if self.console.is_terminal and not self.console.is_dumb_terminal:
            self._bar = _TwoLines(
                SpinnerColumn("line" if self.console.options.ascii_only else "dots", finished_text=" "),
                TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[pace]}", table_column=Column(no_wrap=True)),
                console=self.console,
                refresh_per_second=4,
                redirect_stdout=sys.stdout.isatty(),  # otherwise redirected output would go to stderr
            )
            self._bar.start()
            pace = f"{self.start}/{self.horizon}"
            self._task = self._bar.add_task(self.name, total=self.horizon, completed=self.start, pace=pace, figures="")
            self._next = self._begun
        else:
            self._line(f"step {self.start}/{self.horizon}")
            self._next = self._begun + _EVERY_LINE
        return self

    def __call__(self, strategy: Strategy, round_: Round, metrics: Metrics) -> None:
        """Record a step; refresh the display at most ten times a second."""
        self._last = metrics
        if _finite(metrics.get("accuracy_validation")):
            self._validated = metrics["accuracy_validation"]
        now = time.monotonic()
        if now >= self._next:
            self._next = now + (_EVERY_LINE if self._bar is None else _EVERY)
            self._show(self.pace(now), self.figures(now))

    def pace(self, now: float) -> str:
        """Return the steps taken and the estimated time left at `now` (from `time.monotonic`)."""
        step = self._last["step"]
        text = f"{step}/{self.horizon}"
        if self.start < step < self.horizon and now > self._begun:
            seconds = (self.horizon - step) * (now - self._begun) / (step - self.start)
            text += f"  {timedelta(seconds=round(seconds))} left"
        return text

    def figures(self, now: float) -> str:
        """Return the last step's figures, the last validation accuracy, and the rounds per second up to `now`."""
        step, metrics = self._last["step"], self._last
        parts = []
        if _finite(metrics.get("loss_best")):
            parts.append(f"{self.loss} {self.display_sign * metrics['loss_best']:.4g}")
        if _finite(metrics.get("best_value")):
            parts.append(f"best value {metrics['best_value']:.4g}")
        if _finite(metrics.get("igd")):
            parts.append(f"IGD {metrics['igd']:.4g}")
        elif _finite(metrics.get("front_size")):
            parts.append(f"front {metrics['front_size']:.4g} points")
        if self._validated is not None:
            parts.append(f"validation {100 * self._validated:.1f} %")
        if _finite(metrics.get("multiplier")):
            parts.append(f"multiplier {metrics['multiplier']:.3g}")
        if step > self.start and now > self._begun:
            rounds = (step - self.start) * metrics.get("round", step) / step
            parts.append(f"{rounds / (now - self._begun):.3g} rounds/s")
        return "  ".join(parts)

    def close(self) -> None:
        """Show the last step and end; a second call does nothing."""
        if self._next == math.inf:
            return
        self._next = math.inf
        now = time.monotonic()
        pace = f"{self._last['step']}/{self.horizon} in {timedelta(seconds=round(now - self._begun))}"
        self._show(pace, self.figures(now))
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def _show(self, pace: str, figures: str) -> None:
        if self._bar is None:
            self._line(f"step {pace}  {figures}")
        else:
            self._bar.update(self._task, completed=self._last["step"], pace=pace, figures=figures)

    def _line(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a closed stderr must not end the run
            self.console.print(f"{self.name}: {text}", markup=False, highlight=False, soft_wrap=True)


class _TwoLines(Bar):
    """Progress bar with the figures on a second line, since 80 columns are too few for both."""

    def get_renderables(self) -> Iterator[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        for task in self.tasks:
            yield Text(f"  {task.fields['figures']}", no_wrap=True, overflow="ellipsis")


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
