"""A run from its config to its summary: everything `fne train` does, as functions.

summary = fne.train("fne_quick", out="runs/mine")
module = fne.load_model("runs/mine")
"""

from __future__ import annotations

import contextlib
import json
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fne import loop
from fne.config import registry
from fne.config.load import Config, LearningConfig, SearchConfig
from fne.config.members import member
from fne.core.allocation import bounded, out_of_memory_told
from fne.core.contracts import Callback, Engine, Metrics, Strategy
from fne.core.errors import NodeWarning, WriteError
from fne.core.files import DIGESTS, digests, write_atomically
from fne.core.messages import Round
from fne.evolution.losses import DISPLAY_SIGN
from fne.federation.lineage_codec import LineageCodec
from fne.federation.rounds import Relaying
from fne.run.checkpoint import Checkpoint
from fne.run.folder import (
    CONFIG,
    FRONT,
    MODEL,
    SOLUTION,
    SUMMARY,
    check_unused,
    choose,
    experiment_of,
    finished,
    identity_of,
    locked,
    make_folder,
)
from fne.run.kinds import Run
from fne.run.learning_run import build
from fne.run.model_file import load_model
from fne.run.search_run import build_search
from fne.run.stopping import Interruption, interrupts
from fne.run.trust import mark
from fne.secure.engine import SecureEngine
from fne.secure.node_tasks import secure_only
from fne.secure.rules import check_secure
from fne.watch.attendance import warning_of
from fne.watch.history import FILE as HISTORY
from fne.watch.history import History, is_empty
from fne.watch.progress import Progress
from fne.watch.tensorboard import TensorBoard
from fne.watch.totals import Totals

__all__ = ["load_model", "train"]


def train(
    config: str | Path | Mapping[str, Any] | Config | None,
    overrides: Sequence[str] = (),
    *,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    stop_after: int | None = None,
    quiet: bool = True,
    trust: bool = False,
    new_history: bool = False,
) -> dict[str, Any]:
    """Run a config to its end and return its summary (`summary.json`).

    Args:
        config: a file, a bundled name or a mapping; `None` with `resume`: the run's own config.
        overrides: `key=value` settings, such as `strategy.rounds=50`.
        out: run folder; default `runs/NAME-sSEED`, for a fold `runs/NAME-sSEED-fFOLD`, numbered if it exists.
        resume: folder of a run to resume, bit for bit; a run that ended at `watch.target` goes on to a higher target.
        stop_after: end after this step with a checkpoint; the horizon stays.
        quiet: show no progress bar.
        trust: resume a run that names code, even if nothing proves that this user began it, see `fne.run.trust`.
        new_history: if the history of a resumed run is damaged, keep it aside and begin another.

    Returns:
        The summary; for a run that was stopped early only `name, seed, steps, folder, finished=False`.

    Raises:
        FneError: an error that the user can mend; the run's last checkpoint stays good.
    """
    folder, wanted = choose(config, overrides, out, resume, trust=trust)
    begun = time.process_time()
    summary = finished(folder, wanted.watch.target) if resume is not None else None
    if summary is not None:
        return summary
    with bounded(wanted.to_dict()):  # before the folder is made
        run = _build(wanted)
    if resume is None:
        folder = make_folder(folder, numbered=out is None)
    try:
        with locked(folder):
            if resume is None:
                check_unused(folder)
            with out_of_memory_told(wanted.to_dict()):
                return _drive(
                    run, folder, begun, resuming=resume is not None, stop_after=stop_after, quiet=quiet,
                    new_history=new_history,
                )  # fmt: skip
    except OSError as error:
        raise WriteError(
            f"cannot write {error.filename or folder}: {error.strerror or error}; make room or mend the folder, then "
            f"go on from the last checkpoint: fne train --resume {folder}"
        ) from error


_KINDS: dict[type[Config], Callable[[Any], Run]] = {LearningConfig: build, SearchConfig: build_search}


def _build(config: Config) -> Run:
    run = _KINDS[type(config)](config)
    check_secure(config, run.strategy, run.nodes)
    return run


def _drive(
    run: Run,
    folder: Path,
    begun: float,
    *,
    resuming: bool,
    stop_after: int | None,
    quiet: bool,
    new_history: bool,
) -> dict[str, Any]:
    config, strategy, watch = run.config, run.strategy, run.config.watch
    connect: Callable[..., Engine] = registry.load("engine", config.engine.name)
    with contextlib.ExitStack() as stack:
        if config.secure:
            secure_only(run.worker)  # before an engine gives each node its own worker
        address = f"{config.name}-s{config.seed}"  # address of the nodes' draws
        nodes = connect(run.worker, address, folder, **config.engine.settings)
        engine: Engine = Relaying(nodes)
        codec, secured = None, None
        if config.secure:
            engine = secured = SecureEngine(nodes, run.worker.pinned, clip=config.secure == "clip")
        if config.wire == "lineage":
            named = {"strategy": config.strategy.name, "seed": config.seed, "settings": config.strategy.settings}
            engine = codec = LineageCodec(engine, strategy, named)
        stack.callback(engine.close)
        totals = Totals(begun)
        of_settings = {**identity_of(config), "plugins": _plugins(config)}  # and the digests of the plugins' files
        identity = {"horizon": strategy.horizon, **of_settings, **run.identity}

        def extras() -> dict[str, Any]:
            history.sync()
            wire = {"wire": codec.state_dict()} if codec else {}
            return {**history.state(), "totals": totals.state_dict(), **wire}

        checkpoint = Checkpoint(folder, watch.checkpoint_every, engine, identity, extras)
        if resuming and not checkpoint.exists() and is_empty(folder):
            resuming = False  # the run ended before its first step
        state = checkpoint.read() if resuming else None
        kept: dict[str, Any] = state["extras"] if state else {}
        if state:
            strategy.load_state_dict(state["strategy"])
            engine.load(state["step"])
            if codec:
                codec.load_state_dict(kept["wire"])
        if not resuming:
            write_atomically(folder / CONFIG, config.to_yaml().encode())
            mark(folder, config.to_dict())
        stack.callback(run.close)
        own = run.begin(folder, nodes)
        history = stack.enter_context(History(folder, watch.every, kept, new=new_history))
        if resuming:  # all state was read
            for stale in (SUMMARY, DIGESTS, MODEL, SOLUTION, FRONT):  # results of a run that goes on to another target
                (folder / stale).unlink(missing_ok=True)
            write_atomically(folder / CONFIG, config.to_yaml().encode())
        interruption = stack.enter_context(interrupts())
        stops = _Stops(stop_after, watch.target, totals, interruption)
        watchers = _watchers(run, folder, resuming=resuming, quiet=quiet)
        for watcher in watchers:
            stack.enter_context(watcher)
        if state:
            totals.load_state_dict(kept["totals"])
        else:
            checkpoint.write(strategy)  # a checkpoint exists whenever the run is killed
        totals.start()
        stops.reached = totals.has_reached(watch.target)  # killed after the last step, before the summary
        if not stops.reached and (stop_after is None or strategy.step < stop_after):
            # history and totals before the checkpoint that records where they stand
            secure = [] if secured is None else [secured.observe]
            watching: list[Callback] = [
                *own, *secure, totals, history, *watchers, checkpoint, stops, _Settled(checkpoint, run),
            ]  # fmt: skip
            loop.run(strategy, engine, callbacks=watching)
        checkpoint.write(strategy)
        run.settled()
    if not (strategy.done or stops.reached):
        state_of = {"name": config.name, "seed": config.seed, "steps": strategy.step, "folder": str(folder)}
        return {**state_of, "finished": False, "interrupted": interruption.asked}
    return _finish(run, folder, totals)


def _watchers(run: Run, folder: Path, *, resuming: bool, quiet: bool) -> list[Progress | TensorBoard]:
    """Return the displays of the running run; each is a context manager and a callback."""
    config, strategy, loss = run.config, run.strategy, run.measure
    sign = DISPLAY_SIGN.get(loss, 1)
    watchers: list[Progress | TensorBoard] = [
        Progress(run.title, strategy.horizon, start=strategy.step, loss=loss, display_sign=sign, quiet=quiet)
    ]
    if config.watch.tensorboard:
        purge = strategy.step + 1 if resuming else None
        every, text = config.watch.every, config.to_yaml()
        watchers.append(TensorBoard(folder, text, every, purge, display_sign=sign, loss=loss))
    return watchers


def _finish(run: Run, folder: Path, totals: Totals) -> dict[str, Any]:
    """Write the run's results and the summary."""
    config, strategy = run.config, run.strategy
    yielded = run.finish(folder)
    summary = {
        "name": config.name,
        "method": config.strategy.name,
        "experiment": experiment_of(config),
        "nodes": len(run.nodes),
        "seed": config.seed,
        "steps": strategy.step,
        "finished": True,
        **totals.summary(len(run.nodes), federated=not member(strategy, "pooled")),
        **yielded,
        "plugins": _plugins(config),
        "device": run.worker.device.type,
        "threads": torch.get_num_threads(),
        "folder": str(folder),
    }
    often = warning_of(summary["failures"], len(run.nodes))
    if often:
        warnings.warn(often, NodeWarning, stacklevel=2)
    summary = {key: _plain(value) for key, value in summary.items()}
    written = json.dumps(summary, indent=1).encode()
    names = (MODEL, SOLUTION, FRONT, HISTORY)
    yields = {name: (folder / name).read_bytes() for name in names if (folder / name).exists()}
    write_atomically(folder / DIGESTS, digests({**yields, SUMMARY: written}))
    write_atomically(folder / SUMMARY, written)  # written last: a run with a summary has finished
    return summary


def _plugins(config: Config) -> dict[str, str]:
    """Return the SHA-256 of each of the config's plugins."""
    return {path: digest for path, digest in registry.plugin_digests().items() if path in config.plugins}


def _plain(value: Any) -> Any:
    """Return a value with null for non-finite numbers, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class _Stops:
    """Callback that ends the run after the current step: at `stop_after`, a reached target, Ctrl-C."""

    def __init__(
        self, stop_after: int | None, target: float | None, totals: Totals, interruption: Interruption
    ) -> None:
        self._stop_after, self._target, self._totals, self._interruption = stop_after, target, totals, interruption
        self.reached = False

    def __call__(self, strategy: Strategy, round_: Round, metrics: Metrics) -> bool:
        self.reached = self._totals.has_reached(self._target)  # the totals were called before
        late = self._stop_after is not None and strategy.step >= self._stop_after
        return self.reached or late or self._interruption.asked


class _Settled:
    """Callback that lets a run delete the values kept for the next checkpoint, once that is written."""

    def __init__(self, checkpoint: Checkpoint, run: Run) -> None:
        self._checkpoint, self._run = checkpoint, run

    def __call__(self, strategy: Strategy, round_: Round, metrics: Metrics) -> None:
        if self._checkpoint.written == strategy.step:
            self._run.settled()
