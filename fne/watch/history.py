"""`history.jsonl`: one line of JSON for each kept step, whole or not at all, the same after every resume.

A checkpoint records how long the file is, a digest of it, and the thinned step; a resumed run cuts off whatever was
written after it: lines of a killed run, and the last line that a cleanly stopped run adds for a thinned step.
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
        every: keep one step in so many.
        state: as a checkpoint recorded it; empty begins a new file.
        new: begin a new file also if the old one does not fit the checkpoint, and keep the old one aside.

    Raises:
        CheckpointError: the file is missing, or is not the one that the checkpoint knows; nothing is changed then.
        RunError: the file is there already, or cannot be written.
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
                        f"{self.path} {why}: put the run's own file back; or let the run go on with a new one "
                        f"(--new-history), which keeps this one aside as {self._aside().name}"
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
                    f"{self.path} is there already: resume that run (--resume {self.path.parent}), "
                    "or choose another folder (--out)"
                ) from None
            if state and not why:
                self._hash.update(self._file.read(resume_at))
                self._position = resume_at
                self._file.seek(resume_at)
                self._file.truncate()

    def _damage(self, state: Mapping[str, Any]) -> str:
        """Return how the file differs from what the checkpoint knows of it, or nothing."""
        position = state["position"]
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return f"is missing, the checkpoint knows {position} bytes of it"
        if len(data) < position:
            return f"has {len(data)} bytes, the checkpoint knows {position} of it"
        if hashlib.sha256(data[:position]).hexdigest() == state["digest"]:
            return ""
        lines = data[:position].split(b"\n")
        broken = next((f", of which line {number} is no JSON" for number, line in enumerate(lines[:-1], 1)
                       if not _is_json(line)), "")  # fmt: skip
        return f"was changed or damaged: its first {position} bytes are not those that the checkpoint knows{broken}"

    def _aside(self) -> Path:
        """Return a free name for a damaged file."""
        names = (f"history.damaged{'' if n == 1 else f'-{n}'}.jsonl" for n in itertools.count(1))
        return next(path for name in names if not (path := self.path.with_name(name)).exists())

    def __call__(self, strategy: Strategy, round_: Round, metrics: Metrics) -> None:
        """Write the step if it is kept, else remember it (a reference, nothing is copied)."""
        if kept(metrics["step"], self.every) or strategy.done:
            self._pending = None
            self._write(encode(metrics))
        else:
            self._pending = metrics

    @property
    def position(self) -> int:
        """Length of the file in bytes, always at a line's end."""
        return self._position

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint records: length and digest of the file, and the last step if it was thinned."""
        pending = encode(self._pending) if self._pending is not None else ""
        return {"position": self._position, "digest": self._hash.hexdigest(), "pending": pending}

    def sync(self) -> None:
        """Bring the file to the disk, so that a checkpoint written next knows no more than it holds."""
        with writing(self.path):
            os.fsync(self._file.fileno())

    def finish(self) -> None:
        """Write the last step if it was thinned and close the file; a second call does nothing."""
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
    """Return whether a run folder has no history with a step in it, and take away a file of none."""
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
    """Return whether thinning keeps `step` (counted from 1); the last step is kept besides."""
    return step % every == 0 or step == 1


def encode(metrics: Mapping[str, Any]) -> str:
    """Return one compact line of valid JSON: keys in fixed order, no `_names`, NaN and infinities as null.

    Raises:
        FneError: a value is no number, text, list or mapping; its name is said.
    """
    return _JSON.encode({name: _plain(name, metrics[name]) for name in _ordered(tuple(metrics))})


@functools.lru_cache(maxsize=8)  # steps have the same names
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
        f"metric {name!r} is a {type(value).__name__} and cannot go into {FILE}: give a number, text, list "
        "or mapping, or begin its name with an underscore"
    )


def read_history(folder: Path) -> list[dict[str, Any]]:
    """Return the kept steps of a run; a last line that a kill left half-written is passed over.

    Raises:
        FneError: there is no history, a line before the last is broken, or the run has finished with another history.
    """
    path = Path(folder) / FILE
    try:
        lines = verified(path).splitlines()
    except OSError as error:
        raise FneError(f"cannot read {path}: {error.strerror}; give the folder of a run") from None
    except ValueError as error:
        raise FneError(
            f"{path} cannot be read ({error}); put the run's own file back, or keep it aside and begin a new one: "
            f"fne train --resume {folder} --new-history"
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
            raise FneError(f"{path}, line {number}: {error}; put the run's own file back, or delete the line") from None
        steps.append(step)
    return steps


def bytes_so_far(line: Mapping[str, Any]) -> float | None:
    """Return a node's encoded bytes since the start, down and up, mean over all nodes; `None` if not federated."""
    down, up = line.get("bytes_down_per_node"), line.get("bytes_up_per_node")
    return None if down is None or up is None else down + up
