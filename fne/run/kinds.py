"""What the kinds of runs share: the protocol by which a run is driven, and checks of what both kinds resolve.

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
"""Name of the one node that has everything, for methods that are not federated."""


class Run(Protocol):
    """A config made real: nodes with what they hold, and a strategy that asks them."""

    @property
    def config(self) -> Config:
        """The config, with everything resolved that depends on this machine and the data."""
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
        """What a checkpoint of the run depends on beside the settings."""
        ...

    @property
    def title(self) -> str:
        """Name of the run for people."""
        ...

    @property
    def measure(self) -> str:
        """Name of the quantity that the strategy minimises: a loss, or `best value`."""
        ...

    def begin(self, folder: Path, nodes: Engine) -> Sequence[Callback]:
        """Write what the run folder says from the first step on; return callbacks to call after each step.

        Args:
            folder: the run folder.
            nodes: the engine that the nodes are in, without any wrapper.
        """
        ...

    def settled(self) -> None:
        """Forget what was kept only until a checkpoint holds it."""
        ...

    def finish(self, folder: Path) -> dict[str, Any]:
        """Write what the run yields, and return the figures of the summary that belong to it."""
        ...

    def close(self) -> None:
        """Release what the run holds."""
        ...


def resolve_device(settings: Mapping[str, Any]) -> tuple[torch.device, int]:
    """Set torch up as an engine's settings `device` and `threads` say, and return what they mean on this machine.

    On CUDA, convolutions become deterministic and TF32 is off: the same bits twice, and none of the missing ones.

    Raises:
        RunError: `cuda` is asked for and there is none.
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
    """Return what `auto` and 0 mean on this machine, for those settings that the engine has."""
    resolved = {"device": device.type, "threads": threads}
    return {f"engine.{key}": value for key, value in resolved.items() if key in config.engine.settings}


def check_quorum(config: Config, fewest: int) -> None:
    """Raise `SettingError` where the quorum is above the `fewest` nodes that a step asks."""
    quorum = config.engine.settings.get("quorum", 0)
    if quorum > fewest:
        raise SettingError("engine.quorum", quorum, f"at most the number of nodes in a step, {fewest}")


def check_away(config: Config, never: str = "") -> None:
    """Raise `SettingError` where nodes come and go that must not: with secure sums, or for the reason `never`."""
    away = config.engine.settings.get("away")
    reason = never or ("with secure sums: keys are exchanged once, by nodes that are there" if config.secure else "")
    if away and reason:
        raise SettingError("engine.away", away, f"0 {reason}")
