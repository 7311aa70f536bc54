"""Checkpoints: the state that a resumed run needs, in one file, replaced as a whole; nodes save their part."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fne.core.contracts import Engine, Metrics, Strategy
from fne.core.errors import CheckpointError
from fne.core.files import read_torch, torch_bytes, write_atomically
from fne.core.messages import Round

FORMAT = 5
NAME = "checkpoint.pt"
MINUTE = 60.0


class Checkpoint:
    """Writer and reader of `checkpoint.pt`, written every `every` steps (0: only by `write`) and at least each minute.

    Args:
        folder: the run folder.
        every: steps between checkpoints.
        engine: saves the nodes' memory of the same step, before the file is written.
        identity: values that must be the same on resume, by name, such as the model's signature and each decisive
            setting.
        extras: returns the state of the watchers (history position, totals).
    """

    def __init__(
        self,
        folder: Path,
        every: int,
        engine: Engine,
        identity: dict[str, Any],
        extras: Callable[[], dict[str, Any]],
    ) -> None:
        self._path = folder / NAME
        self._every, self._engine, self._identity, self._extras = every, engine, identity, extras
        self.written = -1
        self._at = time.monotonic()

    def __call__(self, strategy: Strategy, round_: Round, metrics: Metrics) -> None:
        """Write after each `every`-th step, and after a step that ends a minute or more after the last checkpoint."""
        if self._every and (strategy.step % self._every == 0 or time.monotonic() - self._at >= MINUTE):
            self.write(strategy)

    def write(self, strategy: Strategy) -> None:
        """Write the checkpoint of the current step; on a full disk raise `OSError`, and the last good one stays."""
        if self.written == strategy.step:
            return
        self._engine.save(strategy.step)
        state = {
            "format": FORMAT,
            "step": strategy.step,
            "identity": self._identity,
            "strategy": strategy.state_dict(),
            "extras": self._extras(),
        }
        write_atomically(self._path, torch_bytes(state))
        self.written, self._at = strategy.step, time.monotonic()

    def exists(self) -> bool:
        """Return whether a checkpoint exists, valid or not."""
        return self._path.exists()

    def read(self) -> dict[str, Any]:
        """Return the state last written.

        Raises:
            CheckpointError: the file is missing, damaged, of another format, or of another run; names the differences.
        """
        if not self.exists():
            raise CheckpointError(
                f"{self._path} is missing: without it the run could only begin again, over what is there; put it back, "
                "or start a new run in another folder"
            )
        state = read_checkpoint(self._path)
        # compare texts: to Python 1, 1.0 and true are equal, and so are mappings in another order
        there, here = ({key: repr(value) for key, value in of.items()} for of in (state["identity"], self._identity))
        differences = [
            f"{key}: {there.get(key, 'absent')} in the checkpoint, {here.get(key, 'absent')} in this run"
            for key in {**here, **there}
            if there.get(key) != here.get(key)
        ]
        if differences:
            raise CheckpointError(
                f"{self._path} belongs to another run; {'; '.join(differences)}. Resume with the settings it was "
                "made with, or start a new run in another folder"
            )
        self.written = state["step"]
        return state


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Return a checkpoint's state; raises `CheckpointError` where the file is damaged or of another format."""
    state: Any = read_torch(path)
    if isinstance(state, dict) and state.get("format") == FORMAT:
        return state
    known = state.get("format") if isinstance(state, dict) else None
    raise CheckpointError(f"{path}: checkpoint format {known}, this version reads {FORMAT}")
