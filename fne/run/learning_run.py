"""A config made real: data dealt to nodes, a model, a strategy and the worker that hosts the nodes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from fne.config import registry
from fne.config.load import Config, LearningConfig
from fne.config.members import member, new_strategy
from fne.config.settings import check
from fne.core.contracts import Strategy
from fne.core.dataset import Dataset, Samples
from fne.core.errors import DataError, FneError, SettingError
from fne.core.messages import Request, Tensors
from fne.core.randomness import seeded_initialisation
from fne.data.partition import deal
from fne.data.sources import check_dataset, checksum
from fne.evolution.evaluate import Evaluator, has_batch_norm, resolve_plan
from fne.evolution.genome import Layout, buffers_of
from fne.evolution.losses import output_of
from fne.federation.lineage import Lineage, Replica
from fne.federation.node import Node, Secrets
from fne.federation.worker import Worker
from fne.learning.task import LearningTask
from fne.privacy.policy import Policy
from fne.run.device import resolve_device

POOLED = "all"
"""Name of the one node that has everything, for methods that are not federated."""


@dataclass(frozen=True)
class Experiment:
    """A config made real: data dealt to nodes, a strategy and an engine that knows them."""

    config: LearningConfig
    dataset: Dataset
    nodes: Mapping[str, Samples]
    evaluator: Evaluator
    task: LearningTask
    strategy: Strategy
    worker: Worker

    @property
    def identity(self) -> dict[str, Any]:
        """What a run's checkpoint belongs to beside its settings: the model's shapes, the data."""
        return {"model": self.task.layout.signature, "data": checksum(self.dataset)}

    @property
    def loss(self) -> str:
        """Loss that the strategy is set to, or the usual one where it has no such setting."""
        usual = "cross_entropy" if self.task.classification else "mse"
        return str(self.config.strategy.settings.get("loss") or usual)


def load_dataset(config: LearningConfig) -> Dataset:
    """Load the data set that a config names, and check it: it may be a plugin's.

    Raises:
        DataError: it is missing, broken or empty.
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
    """Deal the training part to nodes as a config says."""
    partition = config.data.partition
    return deal(dataset, partition.name, config.data.nodes, config.seed, partition.settings)


def new_module(config: LearningConfig, dataset: Dataset, *seed: int | str) -> nn.Module:
    """Return a freshly initialised model for the data's shape."""
    build: Callable[..., nn.Module] = registry.load("model", config.model.name)
    with seeded_initialisation(*seed):
        return build(dataset.shape, dataset.outputs, **config.model.settings)


def build(config: LearningConfig) -> Experiment:
    """Make a config real; the returned config has device, threads and evaluation plan resolved.

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
    if policy != "identity":  # too little data for it: before there is a folder
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
    request = strategy.ask(tuple(sorted(nodes)))  # more nodes than there are, and the like: before there is a folder
    allowed = policy_of(config, strategy)
    for node in worker.nodes.values():
        node.policy = allowed
    config = config.with_values({"wire": _wire(config, strategy, request)})
    check_quorum(config, len(request.nodes))
    check_away(config, "with a method that is not federated: its one node is always there" if pooled else "")
    return Experiment(config, dataset, nodes, evaluator, task, strategy, worker)


def policy_of(config: LearningConfig, strategy: Strategy) -> Policy:
    """Return what the nodes of a simulation answer: what the strategy asked for first, and what the config says.

    Raises:
        SettingError: the strategy asks for what the config does not let nodes answer.
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
    """Raise `SettingError` where inputs cannot be moved, or would be moved by more than they are long."""
    if shift and len(shape) < 2:
        raise SettingError("data.shift", shift, "0: these inputs are no images and no recordings")
    if shift > max(shape[1:], default=0):
        raise SettingError("data.shift", shift, f"at most {max(shape[1:])}, the length of these inputs: beyond it "
                           "nothing of them is left")  # fmt: skip


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


def _wire(config: LearningConfig, strategy: Strategy, request: Request) -> str:
    """Return the codec of a run whose first request is this: `lineage` or `tensors`."""
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
        task: of the model; its validation is not used, a worker has no part in it.
        origin: `strategy`, `seed` and `settings`, as the codec sent them.

    Raises:
        FneError: no such strategy, settings that it does not know, or one without a lineage.
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
