"""Protocol of a run, common to both kinds of runs, with the resolution of device and threads and common checks.

A run trains a model (`fne.run.learning_run`) or searches a problem (`fne.run.search_run`). `fne.run.train` drives both
through `Run` and never asks which kind it has.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from fne.config.load import Config
from fne.core.contracts import Callback, Engine, Strategy
from fne.core.errors import RunError, SettingError
from fne.federation.worker import Worker

POOLED = "all"
"""Name of the single node that holds all data, for methods that are not federated."""


class Run(Protocol):
    """A run built from a config: the nodes with their data, and the strategy that sends them requests."""

    @property
    def config(self) -> Config:
        """The config, with all values resolved that depend on this machine and the data."""
        ...

    @property
    def strategy(self) -> Strategy:
        """The server half of the method."""
        ...

    @property
    def worker(self) -> Worker:
        """The worker that hosts all nodes of the simulation."""
        ...

    @property
    def nodes(self) -> Collection[str]:
        """Names of all nodes."""
        ...

    @property
    def identity(self) -> dict[str, Any]:
        """Values beside the settings that must be the same when the run is resumed, by name."""
        ...

    @property
    def title(self) -> str:
        """Name of the run for display."""
        ...

    @property
    def measure(self) -> str:
        """Name of the quantity that the strategy minimises: a loss, or `best value`."""
        ...

    def begin(self, folder: Path, nodes: Engine) -> Sequence[Callback]:
        """Write the files that the run folder has from the first step on; return callbacks to call after each step.

        Args:
            folder: the run folder.
            nodes: the engine of the nodes, without any wrapper.
        """
        ...

    def settled(self) -> None:
        """Delete values that were kept only until a checkpoint holds them."""
        ...

    def finish(self, folder: Path) -> dict[str, Any]:
        """Write the run's results, and return the fields of the summary that belong to them."""
        ...

    def close(self) -> None:
        """Release the run's resources."""
        ...


def resolve_device(settings: Mapping[str, Any]) -> tuple[torch.device, int]:
    """Set up torch by an engine's settings `device` and `threads`, and return both as resolved on this machine.

    On CUDA, convolutions become deterministic and TF32 is off, so that runs are repeatable and at full precision.

    Raises:
        RunError: the setting is `cuda` and the machine has no CUDA device.
    """
    wanted = settings.get("device", "auto")
    if wanted == "cuda" and not torch.cuda.is_available():
        raise RunError("engine.device = 'cuda': torch sees no CUDA device here; use cpu or auto")
    cuda = wanted == "cuda" or (wanted == "auto" and torch.cuda.is_available())
    if cuda:
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = int(settings.get("threads", 1)) or cores
    torch.set_num_threads(threads)
    return torch.device("cuda" if cuda else "cpu"), threads


def engine_values(config: Config, device: torch.device, threads: int) -> dict[str, Any]:
    """Return the resolved `device` and `threads` by dotted key, for the settings that the engine has."""
    resolved = {"device": device.type, "threads": threads}
    return {f"engine.{key}": value for key, value in resolved.items() if key in config.engine.settings}


def check_quorum(config: Config, fewest: int) -> None:
    """Raise `SettingError` where the quorum is above `fewest`, the smallest number of nodes in a step."""
    quorum = config.engine.settings.get("quorum", 0)
    if quorum > fewest:
        raise SettingError("engine.quorum", quorum, f"at most the number of nodes in a step, {fewest}")


def check_away(config: Config, never: str = "") -> None:
    """Raise `SettingError` where nodes may be away but must not: with secure sums, or for the reason `never`."""
    away = config.engine.settings.get("away")
    reason = never or ("with secure sums: keys are exchanged once, by nodes that are there" if config.secure else "")
    if away and reason:
        raise SettingError("engine.away", away, f"0 {reason}")
