"""The progress bar on a terminal; elsewhere a line at the start, at the end, and each half minute."""

from __future__ import annotations

import math
import time
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn
from rich.progress import Progress as Bar
from rich.table import Column

from fne.types import Metrics, Round, Strategy

_EVERY = 0.1  # seconds between updates of the bar
_EVERY_LINE = 30.0  # seconds between lines where there is no terminal


class Progress:
    """Show how far a run is, on stderr; a callback and a context manager.

    Args:
        name: the run's name.
        horizon: planned number of steps.
        start: steps taken before, when resumed.
        loss: name of the figure shown as the best fitness.
        display_sign: -1 where that figure is maximised (NMSE), else 1.
        quiet: show nothing.
        console: where to show it; stderr if `None`.
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
        self.console = console or Console(stderr=True)
        self._last: Metrics = {"step": start}
        self._bar: Bar | None = None
        self._task = TaskID(0)
        self._begun = time.monotonic()
        self._next = math.inf  # nothing is shown before `__enter__` and after `close`

    def __enter__(self) -> Progress:
        if self.quiet:
            return self
        self._begun = time.monotonic()
        if self.console.is_terminal and not self.console.is_dumb_terminal:
            self._bar = Bar(
                SpinnerColumn(finished_text=" "),
                TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
                BarColumn(bar_width=16),
                TextColumn("{task.fields[state]}", markup=False, table_column=Column(no_wrap=True)),
                console=self.console,
                refresh_per_second=4,
            )
            self._bar.start()
            self._task = self._bar.add_task(
                self.name, total=self.horizon, completed=self.start, state=f"{self.start}/{self.horizon}"
            )
            self._next = self._begun
        else:
            self._line(f"step {self.start}/{self.horizon}")
            self._next = self._begun + _EVERY_LINE
        return self

    def __call__(self, strategy: Strategy, round_: Round, metrics: Metrics) -> None:
        """Take in a step; what is shown changes at most ten times a second."""
        self._last = metrics
        now = time.monotonic()
        if now >= self._next:
            self._next = now + (_EVERY_LINE if self._bar is None else _EVERY)
            self._show(self.state(now))

    def state(self, now: float) -> str:
        """Return the text beside the bar at `now` (of `time.monotonic`): step, figures, pace, time left."""
        step, metrics = self._last["step"], self._last
        parts = [f"{step}/{self.horizon}"]
        if _finite(metrics.get("loss_best")):
            parts.append(f"{self.loss} {self.display_sign * metrics['loss_best']:.4g}")
        if _finite(metrics.get("accuracy_validation")):
            parts.append(f"val {100 * metrics['accuracy_validation']:.1f} %")
        if _finite(metrics.get("multiplier")):
            parts.append(f"mult {metrics['multiplier']:.3g}")
        seconds, steps = now - self._begun, step - self.start
        if steps > 0 and seconds > 0:
            pace = steps / seconds
            parts.append(f"{pace * metrics.get('round', step) / step:.3g} rounds/s")
            if step < self.horizon:
                parts.append(f"{timedelta(seconds=round((self.horizon - step) / pace))} left")
        return "  ".join(parts)

    def close(self) -> None:
        """Show the last step and end; a second call does nothing."""
        if self._next == math.inf:
            return
        self._next = math.inf
        now = time.monotonic()
        state = f"{self.state(now)}  in {timedelta(seconds=round(now - self._begun))}"
        self._show(state)
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def _show(self, state: str) -> None:
        if self._bar is None:
            self._line(f"step {state}")
        else:
            self._bar.update(self._task, completed=self._last["step"], state=state)

    def _line(self, text: str) -> None:
        self.console.print(f"{self.name}: {text}", markup=False, highlight=False, soft_wrap=True)


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
