"""From a config to a run folder: everything the command does, as functions.

summary = fne.train("fne_quick", out="runs/mine")
module = fne.load_model("runs/mine")
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from fne import loop, registry
from fne.config import Config, difference, load_config
from fne.data.partition import deal
from fne.data.sources import check_dataset
from fne.device import resolve_device
from fne.errors import CheckpointError, DataError, FneError, RunError, SettingError
from fne.evolution.evaluate import Evaluator, resolve_plan
from fne.evolution.fitness import DISPLAY_SIGN
from fne.evolution.genome import Layout, buffers_of, fill_buffers
from fne.files import write_atomically
from fne.node import Node, Secrets, Worker
from fne.randomness import seeded_initialisation
from fne.types import Dataset, Engine, LearningTask, Metrics, Result, Round, Samples, Strategy, Tensors
from fne.watch.checkpoint import Checkpoint
from fne.watch.history import History
from fne.watch.progress import Progress
from fne.watch.tensorboard import TensorBoard
from fne.watch.totals import Totals

CONFIG, SUMMARY, MODEL = "config.yaml", "summary.json", "model.safetensors"


@dataclass(frozen=True)
class Experiment:
    """A config made real: data dealt to nodes, a strategy and an engine that knows them."""

    config: Config
    dataset: Dataset
    nodes: Mapping[str, Samples]
    evaluator: Evaluator
    task: LearningTask
    strategy: Strategy
    worker: Worker


def load_dataset(config: Config) -> Dataset:
    """Load the data set that a config names, and check it: it may be a plugin's.

    Raises:
        DataError: it is missing, broken or empty.
    """
    loader: Callable[..., Dataset] = registry.load("data", config.data.name)
    dataset = check_dataset(loader(seed=config.seed, **config.data.settings))
    for title, part in (("validation", dataset.validation), ("test", dataset.test)):
        if not len(part):
            raise DataError(f"{dataset.name}: the {title} part is empty; a run needs at least one sample in it")
    return dataset


def deal_nodes(config: Config, dataset: Dataset) -> dict[str, Samples]:
    """Deal the training part to nodes as a config says."""
    partition = config.data.partition
    return deal(dataset, partition.name, config.data.nodes, config.seed, partition.settings)


def new_module(config: Config, dataset: Dataset, *seed: int | str) -> nn.Module:
    """Return a freshly initialised model for the data's shape."""
    build: Callable[..., nn.Module] = registry.load("model", config.model.name)
    with seeded_initialisation(*seed):
        return build(dataset.shape, dataset.outputs, **config.model.settings)


def build(config: Config) -> Experiment:
    """Make a config real; the returned config has device, threads and evaluation plan resolved.

    Raises:
        FneError: the settings do not fit the data or this machine; the text names the key.
    """
    device, threads = resolve_device(config.engine.settings)
    resolved = {"device": device.type, "threads": threads}
    dataset = load_dataset(config)
    module = new_module(config, dataset, config.seed, "template").to(device)
    classification = dataset.classes is not None
    output = str(getattr(module, "output", "softmax")) if classification else "linear"
    nodes = deal_nodes(config, dataset)
    largest = max(nodes.values(), key=len)
    plan = resolve_plan(
        module, largest.x[:512].to(device), config.evaluation.model_dump(), output=output
    )  # fmt: skip
    config = config.with_values(
        {
            **{f"engine.{key}": value for key, value in resolved.items() if key in config.engine.settings},
            "evaluation.path": plan.path,
            "evaluation.chunk": plan.chunk,
            "evaluation.tile": plan.tile,
        }
    )
    evaluator = Evaluator(module, plan, output=output)
    validation = _on(dataset.validation, device)

    def evaluate(
        population: torch.Tensor, *, loss: str, buffers: Tensors | None = None, split: str = "validation"
    ) -> dict[str, torch.Tensor]:
        if split != "validation":
            raise SettingError("split", split, "'validation': the test part is for the command, at the end")
        return evaluator.evaluate(population, validation, loss=loss, buffers=buffers)

    task = LearningTask(
        layout=Layout(module),
        new_model=lambda seed: new_module(config, dataset, seed),
        evaluate=evaluate,
        buffers=buffers_of(module),
        classification=classification,
    )
    make: Callable[..., Strategy] = registry.load("strategy", config.strategy.name)
    strategy = make(task, seed=config.seed, **config.strategy.settings)
    if getattr(strategy, "pooled", False):
        nodes = {"all": dataset.train}
    worker = Worker(
        {
            name: Node(name, _on(samples, device), Secrets.simulate(config.seed, name))
            for name, samples in nodes.items()
        },
        evaluator,
        joined=config.evaluation.tiles == "joined",
    )
    strategy.ask(tuple(sorted(nodes)))  # more nodes than there are, and the like, before there is a run folder
    return Experiment(config, dataset, nodes, evaluator, task, strategy, worker)


def train(
    config: str | Path | Mapping[str, Any] | Config | None,
    overrides: Sequence[str] = (),
    *,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    stop_after: int | None = None,
    quiet: bool = True,
) -> dict[str, Any]:
    """Run a config to its end and return its summary (`summary.json`).

    Args:
        config: a file, a bundled name, a mapping; `None` with `resume`: the run's own.
        overrides: `key=value` settings, such as `strategy.rounds=50`.
        out: run folder; default `runs/NAME-sSEED`, with a number where that is taken.
        resume: folder of a run to go on with, bit for bit.
        stop_after: end after this step with a checkpoint; the horizon stays.
        quiet: no progress bar.

    Returns:
        The summary; of a run that was stopped early only `name, seed, steps, folder, finished=False`.

    Raises:
        FneError: whatever the user can mend; a run's last checkpoint stays good.
    """
    folder, wanted = _folder_and_config(config, overrides, out, resume)
    begun = time.process_time()
    summary = _finished(folder) if resume is not None else None
    if summary is not None:
        return summary
    experiment = build(wanted)
    try:
        if resume is None:
            _claim(folder)
        write_atomically(folder / CONFIG, experiment.config.to_yaml().encode())
        return _run(experiment, folder, begun, resuming=resume is not None, stop_after=stop_after, quiet=quiet)
    except OSError as error:
        raise RunError(
            f"cannot write in {folder}: {error.strerror or error}; make room or mend the folder, then go on from the "
            f"last checkpoint: fne train --resume {folder}"
        ) from error


def load_model(folder: str | Path) -> nn.Module:
    """Return the model of a run folder, on the CPU and in eval mode.

    Raises:
        CheckpointError: the folder holds no finished run's model, or a damaged one.
    """
    path = Path(folder) / MODEL
    if not path.is_file():
        raise CheckpointError(f"{path}: no model there; only a finished run has one (fne train --resume {folder})")
    try:
        with safe_open(path, framework="pt") as file:
            made = json.loads(file.metadata()["fne"])
        tensors = safetensors.torch.load_file(path)
    except (SafetensorError, TypeError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path}: not the model of a run ({error}); restore the file or run again") from None
    for plugin in made["plugins"]:
        registry.add_plugin(Path(plugin))
    build: Callable[..., nn.Module] = registry.load("model", made["model"].pop("name"))
    with seeded_initialisation(0):
        module = build(tuple(made["shape"]), made["outputs"], **made["model"])
    module.load_state_dict(tensors)
    return module.eval()


# ------------------------------------------------------------------------------------------------ a run
def _run(
    experiment: Experiment, folder: Path, begun: float, *, resuming: bool, stop_after: int | None, quiet: bool
) -> dict[str, Any]:
    config, strategy = experiment.config, experiment.strategy
    watch = config.watch
    loss = str(config.strategy.settings.get("loss") or ("cross_entropy" if experiment.task.classification else "mse"))
    sign = DISPLAY_SIGN.get(loss, 1)
    connect: Callable[..., Engine] = registry.load("engine", config.engine.name)
    engine = connect(experiment.worker, f"{config.name}-s{config.seed}", folder, **config.engine.settings)
    totals = Totals(begun)
    identity = {
        "model": experiment.task.layout.signature,
        "horizon": strategy.horizon,
        "settings": hashlib.sha256(json.dumps(_identity(config), sort_keys=True).encode()).hexdigest(),
    }

    def extras() -> dict[str, Any]:
        history.sync()
        return {
            "position": history.position, "pending": history.pending, "totals": totals.state_dict(),
        }  # fmt: skip

    checkpoint = Checkpoint(folder, watch.checkpoint_every, engine, identity, extras)
    state = checkpoint.read() if resuming else None
    kept: dict[str, Any] = state["extras"] if state else {"position": 0, "pending": ""}
    if state:
        strategy.load_state_dict(state["strategy"])
        engine.load(state["step"])
    with contextlib.ExitStack() as stack:
        resume_at = kept["position"] if resuming else None
        history = stack.enter_context(History(folder, watch.every, resume_at, kept["pending"]))
        interrupted = stack.enter_context(_interrupts())
        progress = Progress(
            f"{config.name} seed {config.seed}", strategy.horizon, start=strategy.step, loss=loss,
            display_sign=sign, quiet=quiet,
        )  # fmt: skip
        stops = _Stops(stop_after, watch.target, totals, interrupted)
        callbacks: list[Any] = [totals, history, stack.enter_context(progress)]
        if watch.tensorboard:
            purge = strategy.step + 1 if resuming else None
            board = TensorBoard(
                folder, config.to_yaml(), watch.every, purge, display_sign=sign, loss=loss
            )  # fmt: skip
            callbacks.append(stack.enter_context(board))
        if watch.champions:
            callbacks.append(_Champions(folder / "champions", watch.champions, experiment))
        callbacks += [checkpoint, stops]
        if state:
            totals.load_state_dict(kept["totals"])
        totals.start()
        stops.reached = totals.has_reached(watch.target)  # killed after the last step, before the summary
        if not stops.reached and (stop_after is None or strategy.step < stop_after):
            loop.run(strategy, engine, callbacks=callbacks)
        checkpoint.write(strategy)
    engine.close()
    if not (strategy.done or stops.reached):
        return {
            "name": config.name, "seed": config.seed, "steps": strategy.step, "folder": str(folder),
            "finished": False, "interrupted": interrupted.is_set(),
        }  # fmt: skip
    return _finish(experiment, folder, totals, loss)


def _finish(experiment: Experiment, folder: Path, totals: Totals, loss: str) -> dict[str, Any]:
    """Write the model and the summary; the only place that looks at the test part."""
    config, strategy, dataset = experiment.config, experiment.strategy, experiment.dataset
    result = strategy.result()
    digest = _save_model(experiment, result, folder / MODEL)
    test = experiment.evaluator.evaluate(
        result.parameters.unsqueeze(0), _on(dataset.test, experiment.worker.device), loss=loss,
        buffers=result.buffers,
    )  # fmt: skip
    labels = dataset.classes is not None
    summary = {
        "name": config.name,
        "method": config.strategy.name,
        "dataset": config.data.name,
        "model": config.model.name,
        "split": dataset.split,
        "partition": config.data.partition.name,
        "nodes": len(experiment.nodes),
        "seed": config.seed,
        "steps": strategy.step,
        "finished": True,
        **totals.summary(len(experiment.nodes)),
        "accuracy_test": float(test["accuracy"][0]) if labels else None,
        "loss": loss,
        "loss_test": float(test["loss"][0]),
        "best_value": None,
        "best_point": None,
        "snapshots": 0,
        "model_sha256": digest,
        "plugins": {path: digest for path, digest in registry.plugin_digests().items() if path in config.plugins},
        "device": experiment.worker.device.type,
        "threads": torch.get_num_threads(),
        "folder": str(folder),
    }
    summary = {key: _plain(value) for key, value in summary.items()}
    write_atomically(folder / SUMMARY, json.dumps(summary, indent=1).encode())
    return summary


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value  # which JSON does not know


class _Stops:
    """Ends the run after the present step: `stop_after`, a reached target, Ctrl-C."""

    def __init__(
        self, stop_after: int | None, target: float | None, totals: Totals, interrupted: threading.Event
    ) -> None:
        self._stop_after, self._target, self._totals, self._interrupted = stop_after, target, totals, interrupted
        self.reached = False

    def __call__(self, strategy: Strategy, round_: Round, metrics: Metrics) -> bool:
        self.reached = self._totals.has_reached(self._target)  # which were called before
        late = self._stop_after is not None and strategy.step >= self._stop_after
        return self.reached or late or self._interrupted.is_set()


class _Champions:
    """Keeps the fittest model of every `every`-th step: FNE saves that of each generation (section 4.3)."""

    def __init__(self, folder: Path, every: int, experiment: Experiment) -> None:
        self._folder, self._every, self._experiment = folder, every, experiment
        folder.mkdir(exist_ok=True)

    def __call__(self, strategy: Strategy, round_: Round, metrics: Metrics) -> None:
        champion = getattr(strategy, "champion", strategy.result)
        if strategy.step % self._every == 0:
            _save_model(self._experiment, champion(), self._folder / f"step-{strategy.step:09d}.safetensors")


def _save_model(experiment: Experiment, result: Result, path: Path) -> str:
    """Write genes and buffers as the module's state; returns the file's SHA-256."""
    config, module = experiment.config, copy.deepcopy(experiment.evaluator.module).cpu()  # with its frozen parameters
    experiment.task.layout.fill(module, result.parameters)
    fill_buffers(module, result.buffers)
    made = {
        "model": {"name": config.model.name, **config.model.settings},
        "shape": experiment.dataset.shape,
        "outputs": experiment.dataset.outputs,
        "plugins": config.plugins,
    }
    # Clones: tied weights are one tensor, which the format refuses; loading them twice fills the one again.
    state = {name: value.contiguous().clone() for name, value in module.state_dict().items()}
    data = safetensors.torch.save(state, metadata={"fne": json.dumps(made)})
    write_atomically(path, data)
    return hashlib.sha256(data).hexdigest()


# ------------------------------------------------------------------------------------------------ folders
def _folder_and_config(
    config: str | Path | Mapping[str, Any] | Config | None,
    overrides: Sequence[str],
    out: str | Path | None,
    resume: str | Path | None,
) -> tuple[Path, Config]:
    if resume is None:
        if config is None:
            raise FneError("train: give a config (a file or a bundled name, see fne list), or resume=FOLDER")
        wanted = _wanted(config, overrides)
        return Path(out) if out is not None else _free_folder(wanted), wanted
    folder = Path(resume)
    if not (folder / CONFIG).is_file():
        raise CheckpointError(f"{folder / CONFIG}: no run to resume there; give the folder of a run")
    stored = load_config(folder / CONFIG)
    wanted = _wanted(stored if config is None else config, overrides)
    changes = [
        change for change in difference(stored, wanted)
        if not change.startswith(("watch.", "name")) and not _resolved_only(change)
    ]  # fmt: skip
    if changes:
        raise CheckpointError(
            f"cannot resume {folder} with other settings: {'; '.join(changes)}. Resume with the run's own (give no "
            "config), or start a new run; --stop-after ends early without changing the horizon"
        )
    return folder, stored.with_values({f"watch.{k}": v for k, v in wanted.watch.model_dump().items()})


def _wanted(config: str | Path | Mapping[str, Any] | Config, overrides: Sequence[str]) -> Config:
    if not isinstance(config, Config):
        return load_config(config, overrides)
    return config.with_overrides(overrides) if overrides else config


def _resolved_only(change: str) -> bool:
    """Whether the difference is that one side says `auto` where the run recorded what that meant."""
    key, _, values = change.partition(": ")
    new = values.rpartition(" -> ")[2].strip("'\"")
    return (key in {"engine.device", "engine.threads", "evaluation.path", "evaluation.chunk", "evaluation.tile"}
            and new in {"auto", "table", "0", "null", "None"})  # fmt: skip


def _free_folder(config: Config) -> Path:
    base = Path("runs") / f"{config.name}-s{config.seed}"
    folder, number = base, 2
    while (folder / CONFIG).exists():
        folder, number = base.with_name(f"{base.name}-{number}"), number + 1
    return folder


def _claim(folder: Path) -> None:
    if (folder / CONFIG).exists():
        raise RunError(f"{folder} holds a run already: --resume {folder} goes on with it, or choose another folder")
    folder.mkdir(parents=True, exist_ok=True)


def _identity(config: Config) -> dict[str, Any]:
    """Return what decides a run's bits: everything but its name and what is watched."""
    return {key: value for key, value in config.to_dict().items() if key not in {"name", "watch"}}


def _finished(folder: Path) -> dict[str, Any] | None:
    """Return the summary of a finished run; where it is broken, the last checkpoint gives it again."""
    try:
        summary = json.loads((folder / SUMMARY).read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return summary if isinstance(summary, dict) else None


def _on(samples: Samples, device: torch.device) -> Samples:
    return Samples(samples.x.to(device), samples.y.to(device), samples.groups)


@contextlib.contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Let the first Ctrl-C or SIGTERM finish the step; a second one interrupts as usual."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def ask_to_stop(signum: int, _: Any) -> None:
        event.set()
        signal.signal(signum, previous[signal.Signals(signum)])

    signals = (signal.SIGINT, signal.SIGTERM)
    previous = {s: signal.signal(s, ask_to_stop) for s in signals}
    try:
        yield event
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
