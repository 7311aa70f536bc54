"""History of a run in `history.jsonl`: one line of JSON for each kept step.

A line is written completely or not at all, and a resumed run leaves the same bytes as an uninterrupted one. For this a
checkpoint records the length and the digest of the file, and the last step if thinning left it out. A resumed run cuts
off everything after that length: lines of a killed run, or the last line that a cleanly stopped run adds for a step
that thinning left out.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fne.core.contracts import Metrics, Strategy
from fne.core.errors import CheckpointError, FneError, RunError, SettingError
from fne.core.files import append, verified, writing
from fne.core.messages import Round
from fne.watch.metrics import order

FILE = "history.jsonl"
_JSON = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


class History:
    """Write the steps divisible by `every`, the first and the last one; a callback and a context manager.

    Args:
        folder: the run folder.
        every: keep every n-th step.
        state: what `state` returned for the checkpoint; empty begins a new file.
        new: where the file does not match the checkpoint, rename the file and begin a new one.

    Raises:
        CheckpointError: the file is missing or does not match the checkpoint; nothing is changed.
        RunError: the file already exists, or cannot be written.
    """

    def __init__(self, folder: Path, every: int, state: Mapping[str, Any] | None = None, *, new: bool = False) -> None:
        if every < 1:
            raise SettingError("watch.every", every, "at least 1")
        self.path = Path(folder) / FILE
        self.every = every
        self._position, self._hash = 0, hashlib.sha256()
        self._pending: Metrics | None = None
        with writing(self.path):
            if state:
                self._pending = json.loads(state["pending"]) if state["pending"] else None
                if (why := self._damage(state)) and not new:
                    raise CheckpointError(
                        f"{self.path} {why}: restore the run's own file, or continue with a new one "
                        f"(--new-history), which renames this file to {self._aside().name}"
                    )
                if why and self.path.exists():
                    os.rename(self.path, self._aside())
                resume_at = 0 if why else state["position"]
            try:
                # Unbuffered: a line is one write, so a kill leaves whole lines and nothing unflushed.
                mode = "r+b" if state and not why else "xb"
                self._file = open(self.path, mode, buffering=0)  # noqa: SIM115
            except FileExistsError:
                raise RunError(
                    f"{self.path} already exists: resume that run (--resume {self.path.parent}), "
                    "or choose another folder (--out)"
                ) from None
            if state and not why:
                self._hash.update(self._file.read(resume_at))
                self._position = resume_at
                self._file.seek(resume_at)
                self._file.truncate()

    def _damage(self, state: Mapping[str, Any]) -> str:
        """Return how the file differs from what the checkpoint recorded, or an empty text."""
        position = state["position"]
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return f"is missing, but the checkpoint recorded {position} bytes"
        if len(data) < position:
            return f"has {len(data)} bytes, but the checkpoint recorded {position}"
        if hashlib.sha256(data[:position]).hexdigest() == state["digest"]:
            return ""
        lines = data[:position].split(b"\n")
        broken = next((f", and line {number} is not JSON" for number, line in enumerate(lines[:-1], 1)
                       if not _is_json(line)), "")  # fmt: skip
        return f"was changed or damaged: its first {position} bytes differ from the checkpoint's record{broken}"

    def _aside(self) -> Path:
        """Return an unused name for a damaged file."""
        names = (f"history.damaged{'' if n == 1 else f'-{n}'}.jsonl" for n in itertools.count(1))
        return next(path for name in names if not (path := self.path.with_name(name)).exists())

    def __call__(self, strategy: Strategy, round_: Round, metrics: Metrics) -> None:
        """Write the step if thinning keeps it; otherwise remember a reference to its metrics."""
        if kept(metrics["step"], self.every) or strategy.done:
            self._pending = None
            self._write(encode(metrics))
        else:
            self._pending = metrics

    @property
    def position(self) -> int:
        """Length of the file in bytes, always at the end of a line."""
        return self._position

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint records: length and digest of the file, and a last step that thinning left out."""
        pending = encode(self._pending) if self._pending is not None else ""
        return {"position": self._position, "digest": self._hash.hexdigest(), "pending": pending}

    def sync(self) -> None:
        """Flush the file to the disk, so that the next checkpoint records no bytes that the disk lacks."""
        with writing(self.path):
            os.fsync(self._file.fileno())

    def finish(self) -> None:
        """Write the last step if thinning left it out, and close the file; a second call does nothing."""
        if self._file.closed:
            return
        try:
            if self._pending is not None:
                self._write(encode(self._pending))
                self.sync()
        finally:
            self._pending = None
            self._file.close()

    close = finish

    def __enter__(self) -> History:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def _write(self, line: str) -> None:
        data = line.encode() + b"\n"
        with writing(self.path):
            append(self._file, data)
        self._position += len(data)
        self._hash.update(data)


def is_empty(folder: Path) -> bool:
    """Return whether the history of a run folder is missing or empty; delete an empty file."""
    path = Path(folder) / FILE
    if path.exists() and path.stat().st_size:
        return False
    path.unlink(missing_ok=True)
    return True


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def kept(step: int, every: int) -> bool:
    """Return whether thinning keeps `step` (counted from 1); the last step of a run is always kept."""
    return step % every == 0 or step == 1


def encode(metrics: Mapping[str, Any]) -> str:
    """Return one compact line of valid JSON: keys in fixed order, no `_names`, NaN and infinities as null.

    Raises:
        FneError: a value is not a number, text, list or mapping; the message names the metric.
    """
    return _JSON.encode({name: _plain(name, metrics[name]) for name in _ordered(tuple(metrics))})


@functools.lru_cache(maxsize=8)  # all steps of a run have the same metrics
def _ordered(names: tuple[str, ...]) -> tuple[str, ...]:
    shown = (name for name in names if not name.startswith("_"))
    return tuple(sorted(shown, key=order))


def _plain(name: str, value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): _plain(f"{name}.{k}", value[k]) for k in sorted(value, key=str)}
    if isinstance(value, list | tuple):
        return [_plain(name, item) for item in value]
    if hasattr(value, "tolist"):  # tensors, arrays and their scalars
        return _plain(name, value.tolist())
    raise FneError(
        f"metric {name!r} has the type {type(value).__name__}, which {FILE} cannot hold: return a number, text, list "
        "or mapping, or begin its name with an underscore to leave it out"
    )


def read_history(folder: Path) -> list[dict[str, Any]]:
    """Return the kept steps of a run, without an incomplete last line that a killed run may leave.

    Raises:
        FneError: the history is missing, a line before the last is broken, or the digest of a finished run differs.
    """
    path = Path(folder) / FILE
    try:
        lines = verified(path).splitlines()
    except OSError as error:
        raise FneError(f"cannot read {path}: {error.strerror}; give the folder of a run") from None
    except ValueError as error:
        raise FneError(
            f"{path} cannot be read ({error}); restore the run's own file, or begin a new one, which renames this "
            f"file: fne train --resume {folder} --new-history"
        ) from None
    steps: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            step = json.loads(line)
            if not isinstance(step, dict):
                raise ValueError("not an object")
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                break
            raise FneError(f"{path}, line {number}: {error}; restore the run's own file, or delete the line") from None
        steps.append(step)
    return steps


def bytes_so_far(line: Mapping[str, Any]) -> float | None:
    """Return the encoded bytes of a node so far, both directions, mean over all nodes; `None` if not federated."""
    down, up = line.get("bytes_down_per_node"), line.get("bytes_up_per_node")
    return None if down is None or up is None else down + up
