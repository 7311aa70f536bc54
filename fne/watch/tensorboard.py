"""TensorBoard events of a run: scalars in groups, the config as text, and histograms of the population's fitness."""

from __future__ import annotations

import math
import os
import socket
import time
from pathlib import Path
from typing import Any

from fne.core.contracts import Metrics, Strategy
from fne.core.errors import SettingError
from fne.core.files import append, writing
from fne.core.messages import Round
from fne.watch.history import kept
from fne.watch.metrics import TAGS

_BINS = 30  # as many as TensorBoard draws


class TensorBoard:
    """Write an event file into the run folder; a callback and a context manager.

    Args:
        folder: folder of the event file.
        config_text: the resolved config (YAML), shown as text at step 0.
        every: keep every n-th step, and the first and the last one.
        purge_step: first step that a resumed run takes; TensorBoard hides events of the killed run from this step on.
        display_sign: -1 where the figure shown is maximised (NMSE), else 1.
        loss: name of the loss, shown beside the config.

    Raises:
        WriteError: the event file cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        config_text: str,
        every: int,
        purge_step: int | None = None,
        *,
        display_sign: int = 1,
        loss: str = "loss",
    ) -> None:
        if every < 1:
            raise SettingError("watch.every", every, "at least 1")
        self.folder, self.every, self.display_sign = Path(folder), every, display_sign
        if purge_step is not None:
            _wait_for_a_later_name(self.folder)
        self._events = _EventFile(self.folder, purge_step)
        if purge_step is None or purge_step <= 1:  # otherwise the first part of the run has written both
            better = "higher" if display_sign < 0 else "lower"
            for tag, text in (
                ("config", f"```yaml\n{config_text.rstrip()}\n```"),
                ("fitness", f"{loss}, {better} is better"),
            ):
                self._add_text(0, tag, text)

    def __call__(self, strategy: Strategy, round_: Round, metrics: Metrics) -> None:
        """Write the numbers of a kept step, except those that are not finite."""
        step = metrics["step"]
        for title, text in metrics.get("_texts", {}).items():
            self._add_text(step, title, text)
        if not (kept(step, self.every) or strategy.done):
            return
        from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]
        from torch.utils.tensorboard.summary import histogram

        # One event per step: `add_scalar` for each metric costs ten times as much, mostly in its queue.
        summary = Summary()
        for name, value in metrics.items():
            tag = TAGS.get(name, f"method/{name}")
            if name == "failures":
                summary.value.add(tag=tag, simple_value=len(value or ()))
            elif tag and not name.startswith("_") and _is_finite(value):
                sign = self.display_sign if tag.startswith("fitness/") else 1
                summary.value.add(tag=tag, simple_value=sign * value)
        fitness = metrics.get("_fitness")
        if fitness is not None:
            values = [self.display_sign * f for f in fitness.tolist() if math.isfinite(f)]
            if values:
                shape = histogram("fitness/population", *_bins(values))  # type: ignore[no-untyped-call]
                summary.MergeFrom(shape)
        self._events.add(step, summary=summary)

    def _add_text(self, step: int, title: str, content: str) -> None:
        """Write a text: the config, or a strategy's note on its figures."""
        from torch.utils.tensorboard.summary import text  # takes a second and imports torch

        self._events.add(step, summary=text(title, content))  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Close the event file; a second call does nothing."""
        self._events.close()

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _EventFile:
    """Event file without a writer thread: an event is in the file when `add` returns.

    TensorBoard's own writer has a thread, which prints a traceback on a full disk and delays events by two minutes.

    Args:
        folder: folder of the file.
        purge_step: see `TensorBoard`.
    """

    def __init__(self, folder: Path, purge_step: int | None) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog  # type: ignore[import-untyped]
        from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

        number = len(list(folder.glob("events.out.tfevents.*")))
        self._path = (
            folder / f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{number}"
        )
        with writing(self._path):
            self._file = open(self._path, "xb", buffering=0)  # noqa: SIM115
        self._records = RecordWriter(self)
        self.add(file_version="brain.Event:2")
        if purge_step is not None:
            self.add(purge_step, session_log=SessionLog(status=SessionLog.START))

    def add(self, step: int = 0, **content: Any) -> None:
        """Write an event of a step, or raise `WriteError`."""
        from tensorboard.compat.proto.event_pb2 import Event

        self._records.write(Event(wall_time=time.time(), step=step, **content).SerializeToString())

    def write(self, record: bytes) -> None:
        """Write a record framed by `RecordWriter`, completely or not at all."""
        with writing(self._path):
            append(self._file, record)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _wait_for_a_later_name(folder: Path) -> None:
    """Wait until no event file has the current second in its name: TensorBoard reads event files in order of name."""
    while list(folder.glob(f"events.out.tfevents.{int(time.time()):010d}.*")):
        time.sleep(0.05)


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _bins(values: list[float]) -> tuple[Any, list[float]]:
    """Return `values` as an array, and edges of equal bins around the values; no two edges are the same float."""
    import numpy as np

    clipped = np.clip(np.array(values), -1e38, 1e38)  # their squares must be finite
    low, high = float(clipped.min()), float(clipped.max())
    half = 0.5001 * max(high - low, 1e-6 * max(abs(low), abs(high)), 1e-12)
    edges = np.linspace((low + high) / 2 - half, (low + high) / 2 + half, _BINS + 1)
    return clipped, edges.tolist()
