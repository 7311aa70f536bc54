"""Local training by gradient descent inside a node, for one model or several side by side, and the node task `train`.

A CPU is fastest with one model after another, with filters and images in channels-last form. Several models side by
side (`vmap` over the models) take 1.3 to 1.8 times as long there (benchmarks/descent.py), but save a GPU launches.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fne.config.groups import BatchTraining, GradientTraining
from fne.config.registry import register
from fne.core.errors import RunError
from fne.core.messages import Header, Request, Tensors
from fne.core.randomness import seeded_initialisation
from fne.evolution import losses as fitness
from fne.evolution.evaluate import has_batch_norm
from fne.evolution.genome import buffers_of, fill_buffers
from fne.federation.node import Node, payload_of
from fne.federation.payloads import COUNT, Entry, Payload
from fne.federation.worker import Worker
from fne.learning.augment import random_shift
from fne.learning.task import BUFFER, buffers_in

OPTIMIZER = "optimizer."


@dataclass(frozen=True)
class Descent:
    """Result of a training: the change of the weights `[D]`, the buffers afterwards, and the loss.

    The loss is summed over the samples of the last epoch.
    """

    delta: Tensor
    buffers: Mapping[str, Tensor]
    loss: Tensor


def descend(
    worker: Worker,
    node: Node,
    header: Header,
    start: Tensor,
    before: Mapping[str, Tensor],
    training: BatchTraining,
    *,
    optimizer: str = "sgd",
    momentum: float = 0.0,
    mu: float = 0.0,
    state: dict[str, Tensor] | None = None,
) -> Descent:
    """Train the worker's module on a node's samples.

    Args:
        worker: owner of the module, which is filled and trained.
        node: owner of the samples, and of the public generator for the order of the batches.
        header: header of the request.
        start, before: initial weights `[D]` and buffers.
        training, optimizer, momentum, mu: see the task `train`.
        state: the node's memory, which keeps the optimizer's state; `None`: a new optimizer each time.

    Raises:
        RunError: training diverged; the error names the first non-finite parameter or buffer.
    """
    layout, module = worker.evaluator.layout, worker.module
    layout.fill(module, start.to(worker.device))
    fill_buffers(module, before)
    named = dict(module.named_parameters())
    parameters = [named[leaf.name] for leaf in layout.leaves]
    method = make_optimizer(optimizer, parameters, lr=training.lr, momentum=momentum)
    if state is not None:
        _restore(method, state)
    total = _descend(worker, node, header, method, parameters, training, mu=mu)
    delta, after = layout.flatten(module) - start.cpu(), buffers_of(module)
    weighted = delta * len(node.data)  # the form in which deltas are added up must not overflow either
    bad = [leaf.name for leaf in layout.leaves if not weighted[leaf.start : leaf.stop].isfinite().all()]
    bad += [name for name, b in after.items() if not (b.isfinite() | _same(b, before[name].cpu())).all()]
    if bad:  # a buffer may hold infinities from the start, such as a mask
        raise RunError(f"training diverged: non-finite values in {bad[0]!r}; lower strategy.lr = {training.lr}")
    if state is not None:
        _keep(method, state)
    return Descent(delta, after, total)


def descend_together(
    worker: Worker,
    node: Node,
    header: Header,
    starts: Tensor,
    training: BatchTraining,
) -> Tensor:
    """Train several models on a node's samples by plain SGD, each as `descend` would, on the same batches.

    Args:
        worker: owner of the module, whose buffers training must not change, and of the plan with the models per pass.
        node: owner of the samples, and of the public generator for the order of the batches.
        header: header of the request.
        starts: initial weights `[P, D]`.
        training: as for `descend`.

    Returns:
        The changes of the weights, float32 `[P, D]` on the CPU; all NaN in the row of a training that diverged.
    """
    together = worker.evaluator.plan.together
    if not together:
        batch = training.batch_size or len(node.data)
        together = 1 if worker.device.type == "cpu" else max(1, worker.evaluator.plan.most // batch)
    if together == 1:
        return torch.stack([_alone(worker, node, header, start, training) for start in starts])
    layout, samples = worker.evaluator.layout, len(node.data)
    changes = []
    for some in torch.split(starts, together):
        own = {name: genes.clone() for name, genes in layout.unflatten(some.to(worker.device)).items()}
        for genes in own.values():
            genes.requires_grad_()
        method = torch.optim.SGD(own.values(), lr=training.lr)
        with _training(worker, node, header, training) as passes:
            for x, y in itertools.chain.from_iterable(passes):
                logits = _forward(worker.module, own, x)
                losses = fitness.sample_losses(training.loss, logits, y, worker.evaluator.output)
                method.zero_grad(set_to_none=True)
                losses.mean(dim=1).sum().backward()  # type: ignore[no-untyped-call]
                method.step()
        ended = torch.cat([own[leaf.name].detach().flatten(1) for leaf in layout.leaves], dim=1).cpu()
        changes.append(ended - some.cpu())
    change = torch.cat(changes)
    finite = (change * samples).isfinite().all(dim=1, keepdim=True)  # the sums must not overflow either
    return torch.where(finite, change, torch.nan)


def _alone(worker: Worker, node: Node, header: Header, start: Tensor, training: BatchTraining) -> Tensor:
    """Return the change `[D]` of one model, NaN if it diverged."""
    try:
        return descend(worker, node, header, start, {}, training).delta
    except RunError:  # the other models go on
        return torch.full_like(start, torch.nan, device="cpu")


def _forward(module: nn.Module, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Return logits `[P, N, C]` of models on the same inputs, with the same dropout mask for each."""

    def forward(own: dict[str, Tensor]) -> Any:
        return functional_call(module, own, (x,))

    result: Tensor = vmap(forward, randomness="same")(dict(parameters))
    return result


def _descend(
    worker: Worker,
    node: Node,
    header: Header,
    method: torch.optim.Optimizer,
    parameters: Sequence[Tensor],
    training: BatchTraining,
    *,
    mu: float,
) -> Tensor:
    """Train the worker's module on a node's samples and return the loss summed over the last epoch, float64."""
    module, device = worker.module, worker.device
    anchors = [p.detach().clone() for p in parameters] if mu else []
    total = torch.zeros((), dtype=torch.float64, device=device)
    with _training(worker, node, header, training) as passes:
        for batches in passes:
            total.zero_()
            for x, y in batches:
                losses = fitness.sample_losses(training.loss, module(x).unsqueeze(0), y, worker.evaluator.output)
                method.zero_grad(set_to_none=True)
                losses.mean().backward()  # type: ignore[no-untyped-call]
                if mu:  # gradient of mu / 2 * ||w - w_global||^2, added separately: mu = 0 is FedAvg, bit for bit
                    _pull(parameters, anchors, mu)
                method.step()
                total += losses.detach().sum(dtype=torch.float64)
    return total


@contextlib.contextmanager
def _training(
    worker: Worker, node: Node, header: Header, training: BatchTraining
) -> Iterator[Iterator[Iterator[tuple[Tensor, Tensor]]]]:
    """Put the worker's module into training mode, and yield the node's batches `x, y`, epoch by epoch.

    Equal headers give equal batches and seed dropout equally.
    """
    module, device, data = worker.module, worker.device, node.data
    last = device.type == "cpu" and data.x.ndim == 4
    order, shifts = node.generator(header, "batches"), node.generator(header, "shift")

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        permuted = torch.randperm(len(data), generator=order).to(device)
        for batch in _batches(permuted, training.batch_size or len(data), module):
            x = random_shift(data.x[batch], node.shift, shifts) if node.shift else data.x[batch]
            yield x.contiguous(memory_format=torch.channels_last) if last else x, data.y[batch]

    module.train()
    try:
        if last:
            module.to(memory_format=torch.channels_last)
        with dropping_out(header, node, device):
            yield (batches() for _ in range(training.epochs))
    finally:
        if last:  # later evaluations with this module do not depend on earlier training
            module.to(memory_format=torch.contiguous_format)
        module.eval()


def dropping_out(header: Header, node: Node, device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Return a context in which a module that trains on a node's samples draws the same numbers for equal headers."""
    return seeded_initialisation(header.seed, header.step, header.attempt, node.name, "dropout", device=device)


def _same(a: Tensor, b: Tensor) -> Tensor:
    return (a == b) | (a.isnan() & b.isnan())


def _batches(order: Tensor, size: int, module: nn.Module) -> list[Tensor]:
    """Return the batches; batch norm cannot train on a single sample, so a last batch of one joins the one before."""
    batches = list(torch.split(order, size))
    if len(batches) > 1 and len(batches[-1]) == 1 and has_batch_norm(module):
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


@torch.no_grad()
def _pull(parameters: Sequence[Tensor], anchors: Sequence[Tensor], mu: float) -> None:
    for parameter, anchor in zip(parameters, anchors, strict=True):
        if parameter.grad is not None:  # a parameter that the forward pass does not use never leaves its anchor
            parameter.grad.add_(parameter - anchor, alpha=mu)


def make_optimizer(name: str, parameters: Sequence[Tensor], *, lr: float, momentum: float) -> torch.optim.Optimizer:
    """Return the optimizer `sgd`, `adam` or `adadelta` (rho 0.95, eps 1e-7: the FNE paper's control, section 3.2)."""
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=lr, momentum=momentum)
    if name == "adam":
        return torch.optim.Adam(parameters, lr=lr)
    return torch.optim.Adadelta(parameters, lr=lr, rho=0.95, eps=1e-7)


def _keep(optimizer: torch.optim.Optimizer, memory: dict[str, Tensor]) -> None:
    for index, state in optimizer.state_dict()["state"].items():
        for key, value in state.items():
            if value is not None:
                memory[f"{OPTIMIZER}{index}.{key}"] = torch.as_tensor(value).detach().cpu().clone()


def _restore(optimizer: torch.optim.Optimizer, memory: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in memory.items():
        if name.startswith(OPTIMIZER):
            index, key = name.removeprefix(OPTIMIZER).split(".", 1)
            state.setdefault(int(index), {})[key] = value.clone()
    if state:
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def train_payload(request: Request, node: str) -> Payload:
    """Return the payload of `train`: the change of the parameters, the buffers, the loss and the number of samples."""
    given = request.addressed(node)
    buffers = {
        name: Entry("float" if value.is_floating_point() else "int", tuple(value.shape))
        for name, value in given.items() if name.startswith(BUFFER)
    }  # fmt: skip
    delta = Entry("float", tuple(given["parameters"].shape), finite="all")
    return {"delta": delta, **buffers, "loss": Entry("float", (1,), finite="some"), "samples": COUNT}


@register("task", "train", payload=train_payload, remedy="lower strategy.lr, or scale the data")
def train_task(
    worker: Worker,
    nodes: Sequence[Node],
    request: Request,
    *,
    training: GradientTraining,
) -> Iterator[Tensors]:
    """Train the given weights on each node's samples by gradient descent and answer with the change.

    The task takes `parameters [D]` and `buffer.*`. It yields `delta [D]` and float buffers times the sample count, the
    change of integer buffers times the count as int64, `loss` (summed over the samples of the last epoch) and
    `samples`.

    Raises:
        RunError: training diverged.
    """
    for node in nodes:
        given = payload_of(request, node)
        before, count = buffers_in(given), len(node.data)
        found = descend(
            worker, node, request.header, given["parameters"], before, training, optimizer=training.optimizer,
            momentum=training.momentum, mu=training.mu, state=node.memory if training.keep_optimizer else None,
        )  # fmt: skip
        sums = {BUFFER + name: _weighted_buffer(b, before[name].cpu(), count) for name, b in found.buffers.items()}
        total = found.loss.cpu().reshape(1)
        yield {"delta": found.delta * count, **sums, "loss": total, "samples": torch.tensor([count])}


def private_payload(request: Request, node: str) -> Payload:
    """Return the payload of private training: the change of the parameters, and a count of 1 for the node."""
    delta = Entry("float", tuple(request.addressed(node)["parameters"].shape), finite="all")
    return {"delta": delta, "clients": Entry("int", (1,), least=1, most=1)}


def _weighted_buffer(after: Tensor, before: Tensor, count: int) -> Tensor:
    """Return a buffer's summand: floats times the samples, exact in float64; for integers the change.

    In both cases a buffer that no node changes keeps its bits in a plain sum. A secure sum is exact for integers only:
    it keeps 32 bits of a float after the binary point, and a float out of range fails the node.
    """
    return after.double() * count if after.is_floating_point() else (after.long() - before.long()) * count
