"""Learning runs: a partition of the data, a model, a strategy that trains it, and the worker that hosts the nodes."""

from __future__ import annotations

import copy
import csv
import functools
import io
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fne.config import registry
from fne.config.load import LearningConfig
from fne.config.members import attempt, member, new_strategy
from fne.config.settings import check
from fne.core.contracts import Callback, Engine, Metrics, Result, Strategy
from fne.core.dataset import Dataset, Samples
from fne.core.errors import DataError, FneError, SettingError
from fne.core.files import write_atomically
from fne.core.messages import Request, Round, Tensors
from fne.core.randomness import seeded_initialisation
from fne.data.partition import deal
from fne.data.sources import check_dataset, checksum
from fne.evolution.evaluate import Evaluator, has_batch_norm, resolve_plan
from fne.evolution.genome import Layout, buffers_of, fill_buffers
from fne.evolution.losses import answers, output_of
from fne.federation.lineage import Lineage, Replica
from fne.federation.node import Node, Secrets
from fne.federation.worker import Worker
from fne.learning.task import LearningTask
from fne.privacy.policy import Policy
from fne.run.folder import FILES, FRONT, MODEL
from fne.run.kinds import POOLED, check_away, check_quorum, engine_values, resolve_device
from fne.run.model_file import save_model
from fne.watch.tables import privacy_lines


@dataclass(frozen=True)
class LearningRun:
    """A learning run built from a config: data of each node, model, strategy, and the worker that hosts the nodes."""

    config: LearningConfig
    dataset: Dataset
    nodes: Mapping[str, Samples]
    evaluator: Evaluator
    task: LearningTask
    strategy: Strategy
    worker: Worker

    @property
    def identity(self) -> dict[str, Any]:
        """Values beside the settings that must be the same on resume: the model's shapes, the data's checksum."""
        return {"model": self.task.layout.signature, "data": checksum(self.dataset)}

    @property
    def title(self) -> str:
        """Name, seed and fold of the run."""
        fold = "" if self.dataset.fold is None else " fold {} of {}".format(*self.dataset.fold)
        return f"{self.config.name} seed {self.config.seed}{fold}"

    @property
    def measure(self) -> str:
        """Loss in the strategy's settings, or the usual loss where the strategy has no such setting."""
        usual = "cross_entropy" if self.task.classification else "mse"
        return str(self.config.strategy.settings.get("loss") or usual)

    def begin(self, folder: Path, nodes: Engine) -> Sequence[Callback]:
        """Write the reports on the data's files; return the callback that saves champions, if wanted."""
        if self.dataset.files:
            reports = [report.as_json() for report in self.dataset.files]
            write_atomically(folder / FILES, json.dumps(reports, indent=1).encode())
        every = self.config.watch.champions
        return [_Champions(folder / "champions", every, self)] if every else []

    def settled(self) -> None:
        """Do nothing: a learning run keeps no values beside its checkpoints."""

    def save(self, result: Result, path: Path) -> str:
        """Write genes and buffers as the module's state; return the file's SHA-256."""
        module = copy.deepcopy(self.evaluator.module).cpu()  # with its frozen parameters
        self.task.layout.fill(module, result.parameters)
        fill_buffers(module, {**self.task.buffers, **result.buffers})
        model = self.config.model
        made = {
            "model": {"name": model.name, **model.settings},
            "seed": self.config.seed,
            "shape": self.dataset.shape,
            "outputs": self.dataset.outputs,
        }
        return save_model(module, made, path)

    def finish(self, folder: Path) -> dict[str, Any]:
        """Write the model and return its fields of the summary; nothing else looks at the test part."""
        config, dataset = self.config, self.dataset
        result = self.strategy.result()
        digest = self.save(result, folder / MODEL)
        test_part = on_device(dataset.test, self.worker.device)
        test = self.evaluator.evaluate(
            result.parameters.unsqueeze(0), test_part, loss=self.measure, buffers=result.buffers
        )
        labels = dataset.classes is not None
        by_subject: dict[str, float] | None = None
        if labels and dataset.test.groups is not None:
            logits = self.evaluator.logits(result.parameters.unsqueeze(0), test_part.x, buffers=result.buffers)[0]
            by_subject = _by_subject((answers(logits) == test_part.y).cpu(), dataset)
        fold, folds = dataset.fold or (None, None)
        front_size = functools.partial(_front_size, self, test_part, folder)
        more = _optional(self, "population", "front_size", front_size)
        more |= _optional(self, "privacy", "privacy", functools.partial(_account, self))
        return {
            "dataset": config.data.name,
            "source": dataset.source,
            "model": config.model.name,
            "split": dataset.split,
            "fold": fold,
            "folds": folds,
            "partition": config.data.partition.name,
            "accuracy_test": float(test["accuracy"][0]) if labels else None,
            "majority_test": _majority(dataset.test.y) if labels else None,
            "accuracy_test_by_subject": by_subject,
            "accuracy_test_subjects": None if by_subject is None else _vote(by_subject.values()),
            "loss": self.measure,
            "loss_test": float(test["loss"][0]),
            "best_value": None,
            "best_point": None,
            "model_sha256": digest,
            **more,
        }

    def close(self) -> None:
        """Do nothing: data and model are left to the garbage collector."""


def load_dataset(config: LearningConfig) -> Dataset:
    """Load the data set that a config names, and check it, since it may come from a plugin.

    Raises:
        DataError: the data set is missing, broken or empty.
    """
    loader: Callable[..., Dataset] = registry.load("data", config.data.name)
    dataset = check_dataset(loader(seed=config.seed, **config.data.settings))
    _check_filled(dataset, "test", dataset.test)
    return dataset


def _check_filled(dataset: Dataset, title: str, part: Samples) -> None:
    if not len(part):
        error = DataError(f"{dataset.name}: the {title} part is empty; a run needs at least one sample in it")
        error.files, error.findings = dataset.files, dataset.findings
        raise error


def deal_nodes(config: LearningConfig, dataset: Dataset) -> dict[str, Samples]:
    """Deal the training part to nodes by the config's partition."""
    partition = config.data.partition
    return deal(dataset, partition.name, config.data.nodes, config.seed, partition.settings)


def new_module(config: LearningConfig, dataset: Dataset, *seed: int | str) -> nn.Module:
    """Return a freshly initialised model for the data's shape.

    Args:
        config: names the model and its settings.
        dataset: data set of which shape and outputs are used.
        seed: parts of the seed of the initialisation.
    """
    build: Callable[..., nn.Module] = registry.load("model", config.model.name)
    with seeded_initialisation(*seed):
        return build(dataset.shape, dataset.outputs, **config.model.settings)


def build(config: LearningConfig) -> LearningRun:
    """Build the learning run of a config; the run's config has device, threads and evaluation plan resolved.

    Raises:
        FneError: the settings do not fit the data or this machine; the text names the key.
    """
    device, threads = resolve_device(config.engine.settings)
    dataset = load_dataset(config)
    _check_shift(config.data.shift, dataset.shape)
    module = new_module(config, dataset, config.seed, "template").to(device)
    classification = dataset.classes is not None
    output = output_of(module, classification=classification)
    nodes = deal_nodes(config, dataset)
    largest = max(nodes.values(), key=len)
    plan = resolve_plan(module, largest.x[:512].to(device), config.evaluation.model_dump(), output=output)
    config = config.with_values(
        {
            **engine_values(config, device, threads),
            "evaluation.path": plan.path,
            "evaluation.chunk": plan.chunk,
            "evaluation.tile": plan.tile,
        }
    )
    evaluator = Evaluator(module, plan, output=output)
    validation = on_device(dataset.validation, device)
    policy = config.evaluation.batch_norm
    if policy != "identity" and not has_batch_norm(module):
        raise SettingError(
            "evaluation.batch_norm", policy, f"identity: model {config.model.name!r} has no batch normalisation"
        )
    if policy != "identity":  # reports too little data before the run folder is made
        evaluator.statistics(evaluator.layout.flatten(module), validation.x)

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
        batch_norm=policy,
        statistics=None if policy == "identity" else lambda genes: evaluator.statistics(genes, validation.x),
    )
    strategy = new_strategy(config.strategy.name, task, config.seed, config.strategy.settings)
    if member(strategy, "validates") or policy == "server":
        _check_filled(dataset, "validation", dataset.validation)
    pooled = member(strategy, "pooled")
    if pooled:
        nodes = {POOLED: dataset.train}
    worker = Worker(
        {
            name: Node(name, on_device(samples, device), Secrets.simulate(config.seed, name), shift=config.data.shift)
            for name, samples in nodes.items()
        },
        evaluator,
        joined=config.evaluation.tiles == "joined",
        replica=Replica(functools.partial(new_lineage, task)),
    )
    request = strategy.ask(tuple(sorted(nodes)))  # reports impossible settings before the run folder is made
    allowed = policy_of(config, strategy)
    for node in worker.nodes.values():
        node.policy = allowed
    config = config.with_values({"wire": _wire(config, strategy, request)})
    check_quorum(config, len(request.nodes))
    check_away(config, "with a method that is not federated: its one node is always there" if pooled else "")
    return LearningRun(config, dataset, nodes, evaluator, task, strategy, worker)


def policy_of(config: LearningConfig, strategy: Strategy) -> Policy:
    """Return the policy of a simulation's nodes: what the strategy declares, limited by the config's `policy`.

    Raises:
        SettingError: the strategy requests more than the config lets nodes answer.
    """
    given, terms = config.policy, member(strategy, "terms")
    named = f"with strategy.name = {config.strategy.name!r}"
    if terms is None:
        for key, value in given:
            if value is not None:
                raise SettingError(f"policy.{key}", value, f"null {named}, whose answers have no noise")
        return Policy(strategy.tasks, strategy.horizon)
    wanted = terms()
    noise, clip = wanted.noise, wanted.clip
    if given.noise is not None and given.noise > noise:
        raise SettingError("policy.noise", given.noise, f"null, or at most {noise:g}: what a node adds {named}")
    if given.clip is not None and given.clip < clip:
        raise SettingError("policy.clip", given.clip, f"null, or at least {clip:g}: what is clipped {named}")
    if given.epsilon is not None and not noise:
        raise SettingError("policy.epsilon", given.epsilon, f"null {named} without noise")
    delta = given.delta or config.strategy.settings.get("delta", Policy.delta)
    return Policy(
        strategy.tasks,
        strategy.horizon,
        noise=noise if given.noise is None else given.noise,
        clip=clip if given.clip is None else given.clip,
        answers=strategy.horizon if given.answers is None else given.answers,
        epsilon=wanted.plan.epsilon(delta, tight=False).rdp if given.epsilon is None else given.epsilon,
        delta=delta,
    )


def _check_shift(shift: int, shape: tuple[int, ...]) -> None:
    """Raise `SettingError` where inputs cannot be shifted, or would be shifted by more than their length."""
    if shift and len(shape) < 2:
        raise SettingError("data.shift", shift, "0: these inputs are no images and no recordings")
    if shift > max(shape[1:], default=0):
        raise SettingError("data.shift", shift, f"at most {max(shape[1:])}, the length of these inputs: beyond it "
                           "nothing of them is left")  # fmt: skip


def _wire(config: LearningConfig, strategy: Strategy, request: Request) -> str:
    """Return the codec of a run with this first request: `lineage` or `tensors`."""
    reason = ""
    if member(strategy, "lineage") is None:
        reason = f"strategy.name = {config.strategy.name!r}: nodes cannot make what it sends by themselves"
    elif request.private:
        reason = "candidates of each node's own (strategy.deal)"
    if config.wire == "lineage" and reason:
        raise SettingError("wire", config.wire, f"tensors or auto with {reason}")
    return "tensors" if reason or config.wire == "tensors" else "lineage"


def new_lineage(task: LearningTask, origin: Mapping[str, Any]) -> Lineage:
    """Return a strategy's lineage at step 0, as a worker holds it.

    Args:
        task: the learning task of the model; a worker does not use its validation.
        origin: `strategy`, `seed` and `settings`, as the codec sent them.

    Raises:
        FneError: no such strategy is registered, it does not know the settings, or it has no lineage.
    """
    name, seed = str(origin["strategy"]), int(origin["seed"])
    declared = registry.settings_model(registry.entry("strategy", name))
    settings, mistakes = check(declared, origin["settings"], f"strategy {name!r}")
    if mistakes:
        raise FneError(f"strategy {name!r}: " + "; ".join(f"{m.key}: {m.text}" for m in mistakes))
    strategy = new_strategy(name, replace(task, batch_norm="identity", statistics=None), seed, settings)
    lineage: Lineage | None = member(strategy, "lineage")
    if lineage is None:
        raise FneError(f"strategy {name!r} has no lineage; set wire = tensors")
    return lineage


def on_device(samples: Samples, device: torch.device) -> Samples:
    """Return the samples with inputs and targets on a device."""
    return Samples(samples.x.to(device), samples.y.to(device), samples.groups)


class _Champions:
    """Callback that saves the fittest model of every `every`-th step; FNE saves one a generation (section 4.3)."""

    def __init__(self, folder: Path, every: int, run: LearningRun) -> None:
        self._folder, self._every, self._run = folder, every, run
        folder.mkdir(exist_ok=True)

    def __call__(self, strategy: Strategy, round_: Round, metrics: Metrics) -> None:
        if strategy.step % self._every:
            return
        path = self._folder / f"step-{strategy.step:09d}.safetensors"
        attempt(strategy, "champion", lambda get: self._run.save((get or strategy.result)(), path))


def _optional(run: LearningRun, name: str, field: str, use: Callable[[Callable[[], Any]], Any]) -> dict[str, Any]:
    """Return a field of the summary from an optional method of the strategy, null where the method fails."""

    def made(method: Callable[[], Any] | None) -> dict[str, Any]:
        return {} if method is None else {field: use(method)}

    given = attempt(run.strategy, name, made)
    return {field: None} if given is None else given


def _account(run: LearningRun, privacy: Callable[[], Any]) -> dict[str, Any]:
    """Return a strategy's privacy account, after a check that the account can be written and printed."""
    simulated = any(node.secrets.simulated for node in run.worker.nodes.values())
    account = {**privacy(), "simulated": simulated}
    json.dumps(account)
    privacy_lines([{"name": run.config.name, "privacy": account}])
    return account


def _front_size(run: LearningRun, test: Samples, folder: Path, population: Callable[[], Any]) -> int:
    """Write each final trade-off with its objectives to `front.csv`; return the number of non-dominated ones."""
    weights, rows = population()
    if rows:
        found = run.evaluator.evaluate(weights, test, loss=run.measure)
        labels = run.dataset.classes is not None
        errors = (1 - found["accuracy"] if labels else found["loss"]).tolist()
        text = io.StringIO()
        writer = csv.DictWriter(text, [*rows[0], "error_test"], lineterminator="\n")
        writer.writeheader()
        writer.writerows({**row, "error_test": error} for row, error in zip(rows, errors, strict=True))
        write_atomically(folder / FRONT, text.getvalue().encode())
    return sum(bool(row["on_front"]) for row in rows)


def _majority(y: Tensor) -> float:
    """Return the share of the most frequent of labels `[N]`: the accuracy of a model that always answers that class."""
    return int(torch.bincount(y).max()) / len(y)


def _by_subject(right: Tensor, dataset: Dataset) -> dict[str, float]:
    """Return each test subject's share of correct answers (`right [N]`), in the order of the subjects' numbers."""
    groups = dataset.test.groups
    assert groups is not None
    shares = {}
    for number in sorted(set(groups.tolist())):
        of_subject = right[groups == number]
        shares[dataset.group_name(number)] = int(of_subject.sum()) / len(of_subject)
    return shares


def _vote(accuracies: Collection[float]) -> float:
    """Return the share of subjects with an accuracy above one half; a subject at exactly one half counts half."""
    return sum((share > 0.5) + 0.5 * (share == 0.5) for share in accuracies) / len(accuracies)
