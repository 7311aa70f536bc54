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
from fne.config.members import attempt, member
from fne.core.allocation import bounded, out_of_memory_told
from fne.core.contracts import Callback, Engine, Metrics, Strategy
from fne.core.errors import NodeWarning, WriteError
from fne.core.files import DIGESTS, digests, write_atomically
from fne.core.messages import Round
from fne.evolution.losses import DISPLAY_SIGN
from fne.federation.lineage_codec import LineageCodec
from fne.federation.rounds import Relaying
from fne.run.checkpoint import Checkpoint
from fne.run.finish import finish_learning, finish_search, view_of
from fne.run.folder import (
    CONFIG,
    FILES,
    FRONT,
    MEASURED,
    MODEL,
    SOLUTION,
    SUMMARY,
    check_unused,
    choose,
    experiment_of,
    finished,
    identity_of,
    load_model,
    locked,
    make_folder,
    save_model,
)
from fne.run.learning_run import Experiment, build
from fne.run.search_run import Search, build_search
from fne.run.stopping import Interruption, interrupts
from fne.run.trust import mark
from fne.secure.engine import SecureEngine
from fne.secure.node_tasks import secure_only
from fne.secure.rules import check_secure
from fne.watch.attendance import warning_of
from fne.watch.history import FILE as HISTORY
from fne.watch.history import History, is_empty
from fne.watch.inspection import FrontView, SimulationView
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
        config: a file, a bundled name, a mapping; `None` with `resume`: the run's own.
        overrides: `key=value` settings, such as `strategy.rounds=50`.
        out: run folder; default `runs/NAME-sSEED`, of a fold `runs/NAME-sSEED-fFOLD`, with a number where taken.
        resume: folder of a run to go on with, bit for bit; one that ended at `watch.target` goes on to a higher one.
        stop_after: end after this step with a checkpoint; the horizon stays.
        quiet: no progress bar.
        trust: go on with a run that names code, also if nothing tells that this user began it, see `fne.run.trust`.
        new_history: if the history of a run to go on with is damaged, keep it aside and begin another.

    Returns:
        The summary; of a run that was stopped early only `name, seed, steps, folder, finished=False`.

    Raises:
        FneError: whatever the user can mend; a run's last checkpoint stays good.
    """
    folder, wanted = choose(config, overrides, out, resume, trust=trust)
    begun = time.process_time()
    summary = finished(folder, wanted.watch.target) if resume is not None else None
    if summary is not None:
        return summary
    with bounded(wanted.to_dict()):  # before there is a folder
        experiment = _build(wanted)
    if resume is None:
        folder = make_folder(folder, numbered=out is None)
    try:
        with locked(folder):
            if resume is None:
                check_unused(folder)
            with out_of_memory_told(wanted.to_dict()):
                return _run(
                    experiment, folder, begun, resuming=resume is not None, stop_after=stop_after, quiet=quiet,
                    new_history=new_history,
                )  # fmt: skip
    except OSError as error:
        raise WriteError(
            f"cannot write {error.filename or folder}: {error.strerror or error}; make room or mend the folder, then "
            f"go on from the last checkpoint: fne train --resume {folder}"
        ) from error


def _build(config: Config) -> Experiment | Search:
    made: Experiment | Search
    if isinstance(config, SearchConfig):
        made = build_search(config)
    else:
        assert isinstance(config, LearningConfig)
        made = build(config)
    check_secure(config, made.strategy, made.nodes)
    return made


def _run(
    experiment: Experiment | Search,
    folder: Path,
    begun: float,
    *,
    resuming: bool,
    stop_after: int | None,
    quiet: bool,
    new_history: bool,
) -> dict[str, Any]:
    config, strategy, watch = experiment.config, experiment.strategy, experiment.config.watch
    connect: Callable[..., Engine] = registry.load("engine", config.engine.name)
    with contextlib.ExitStack() as stack:
        if config.secure:
            secure_only(experiment.worker)  # before engines give each node a worker of its own
        run = f"{config.name}-s{config.seed}"  # the nodes' draws are addressed by it
        nodes = connect(experiment.worker, run, folder, **config.engine.settings)
        engine: Engine = Relaying(nodes)
        codec, secured = None, None
        if config.secure:
            engine = secured = SecureEngine(nodes, experiment.worker.pinned, clip=config.secure == "clip")
        if config.wire == "lineage":
            named = {"strategy": config.strategy.name, "seed": config.seed, "settings": config.strategy.settings}
            engine = codec = LineageCodec(engine, strategy, named)
        stack.callback(engine.close)
        totals = Totals(begun)
        of_settings = {**identity_of(config), "plugins": _plugins(config)}  # and what the plugins' files hold
        identity = {"horizon": strategy.horizon, **of_settings, **experiment.identity}

        def extras() -> dict[str, Any]:
            history.sync()
            wire = {"wire": codec.state_dict()} if codec else {}
            return {**history.state(), "totals": totals.state_dict(), **wire}

        checkpoint = Checkpoint(folder, watch.checkpoint_every, engine, identity, extras)
        if resuming and not checkpoint.exists() and is_empty(folder):
            resuming = False  # it was ended before its first step
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
        view = None
        if isinstance(experiment, Search):
            stack.callback(experiment.problem.close)
            experiment.problem.keep(folder / MEASURED)
            view = view_of(experiment, nodes)
        elif experiment.dataset.files:
            told = [report.as_json() for report in experiment.dataset.files]
            write_atomically(folder / FILES, json.dumps(told, indent=1).encode())
        history = stack.enter_context(History(folder, watch.every, kept, new=new_history))
        if resuming:  # everything that goes on was there
            for stale in (SUMMARY, DIGESTS, MODEL, SOLUTION, FRONT):  # of a run that goes on to another target
                (folder / stale).unlink(missing_ok=True)
            write_atomically(folder / CONFIG, config.to_yaml().encode())
        interruption = stack.enter_context(interrupts())
        stops = _Stops(stop_after, watch.target, totals, interruption)
        watchers = _watchers(experiment, folder, resuming=resuming, quiet=quiet)
        for watcher in watchers:
            stack.enter_context(watcher)
        champions = []
        if watch.champions:
            assert isinstance(experiment, Experiment)  # as the config was read
            champions = [_Champions(folder / "champions", watch.champions, experiment)]
        if state:
            totals.load_state_dict(kept["totals"])
        else:
            checkpoint.write(strategy)  # so that there is one, whenever the run is killed
        totals.start()
        stops.reached = totals.has_reached(watch.target)  # killed after the last step, before the summary
        if not stops.reached and (stop_after is None or strategy.step < stop_after):
            # history and totals before the checkpoint that records where they stand
            views: list[Callback] = [] if view is None else [view]
            views += [] if secured is None else [secured.observe]
            watching: list[Callback] = [*views, totals, history, *watchers, *champions, checkpoint, stops]
            if isinstance(experiment, Search):
                watching.append(_Settled(checkpoint, experiment))
            loop.run(strategy, engine, callbacks=watching)
        checkpoint.write(strategy)
        if isinstance(experiment, Search):
            experiment.problem.forget()
    if not (strategy.done or stops.reached):
        state_of = {"name": config.name, "seed": config.seed, "steps": strategy.step, "folder": str(folder)}
        return {**state_of, "finished": False, "interrupted": interruption.asked}
    return _finish(experiment, view, folder, totals)


def _watchers(
    experiment: Experiment | Search, folder: Path, *, resuming: bool, quiet: bool
) -> list[Progress | TensorBoard]:
    """Return what shows the run while it goes on; each is a context manager and a callback."""
    config, strategy = experiment.config, experiment.strategy
    title, loss = f"{config.name} seed {config.seed}", "best value"
    if isinstance(experiment, Experiment):
        loss = experiment.loss
        if experiment.dataset.fold is not None:
            title += " fold {} of {}".format(*experiment.dataset.fold)
    sign = DISPLAY_SIGN.get(loss, 1)
    watchers: list[Progress | TensorBoard] = [
        Progress(title, strategy.horizon, start=strategy.step, loss=loss, display_sign=sign, quiet=quiet)
    ]
    if config.watch.tensorboard:
        purge = strategy.step + 1 if resuming else None
        every, text = config.watch.every, config.to_yaml()
        watchers.append(TensorBoard(folder, text, every, purge, display_sign=sign, loss=loss))
    return watchers


def _finish(
    experiment: Experiment | Search, view: SimulationView | FrontView | None, folder: Path, totals: Totals
) -> dict[str, Any]:
    """Write what the run yields and the summary."""
    config, strategy = experiment.config, experiment.strategy
    if isinstance(experiment, Search):
        assert view is not None
        yielded = finish_search(experiment, view, folder)
    else:
        yielded = finish_learning(experiment, folder)
    summary = {
        "name": config.name,
        "method": config.strategy.name,
        "experiment": experiment_of(config),
        "nodes": len(experiment.nodes),
        "seed": config.seed,
        "steps": strategy.step,
        "finished": True,
        **totals.summary(len(experiment.nodes), federated=not member(strategy, "pooled")),
        **yielded,
        "plugins": _plugins(config),
        "device": experiment.worker.device.type,
        "threads": torch.get_num_threads(),
        "folder": str(folder),
    }
    often = warning_of(summary["failures"], len(experiment.nodes))
    if often:
        warnings.warn(often, NodeWarning, stacklevel=2)
    summary = {key: _plain(value) for key, value in summary.items()}
    written = json.dumps(summary, indent=1).encode()
    names = (MODEL, SOLUTION, FRONT, HISTORY)
    yields = {name: (folder / name).read_bytes() for name in names if (folder / name).exists()}
    write_atomically(folder / DIGESTS, digests({**yields, SUMMARY: written}))
    write_atomically(folder / SUMMARY, written)  # the last of all: where it is, the run has finished
    return summary


def _plugins(config: Config) -> dict[str, str]:
    """Return the SHA-256 of each of the config's plugins."""
    return {path: digest for path, digest in registry.plugin_digests().items() if path in config.plugins}


def _plain(value: Any) -> Any:
    """Return a value with null for numbers that JSON does not know."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class _Stops:
    """Ends the run after the present step: `stop_after`, a reached target, Ctrl-C."""

    def __init__(
        self, stop_after: int | None, target: float | None, totals: Totals, interruption: Interruption
    ) -> None:
        self._stop_after, self._target, self._totals, self._interruption = stop_after, target, totals, interruption
        self.reached = False

    def __call__(self, strategy: Strategy, round_: Round, metrics: Metrics) -> bool:
        self.reached = self._totals.has_reached(self._target)  # which were called before
        late = self._stop_after is not None and strategy.step >= self._stop_after
        return self.reached or late or self._interruption.asked


class _Champions:
    """Keeps the fittest model of every `every`-th step: FNE saves that of each generation (section 4.3)."""

    def __init__(self, folder: Path, every: int, experiment: Experiment) -> None:
        self._folder, self._every, self._experiment = folder, every, experiment
        folder.mkdir(exist_ok=True)

    def __call__(self, strategy: Strategy, round_: Round, metrics: Metrics) -> None:
        if strategy.step % self._every:
            return
        path = self._folder / f"step-{strategy.step:09d}.safetensors"
        attempt(strategy, "champion", lambda get: save_model(self._experiment, (get or strategy.result)(), path))


class _Settled:
    """Lets a problem forget what it measured once a checkpoint holds it."""

    def __init__(self, checkpoint: Checkpoint, search: Search) -> None:
        self._checkpoint, self._problem = checkpoint, search.problem

    def __call__(self, strategy: Strategy, round_: Round, metrics: Metrics) -> None:
        if self._checkpoint.written == strategy.step:
            self._problem.forget()
