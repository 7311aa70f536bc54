"""Node tasks that several methods share: `fitness` (no gradients) and `train` (the baselines).

Payloads are sums over a node's samples with the sample count beside them: they can be added, masked and divided
once, so a strategy that asks for `reduce="sum"` gets the weighted mean without seeing a single node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fne.errors import RunError
from fne.evolution import fitness
from fne.evolution.genome import buffers_of, fill_buffers
from fne.node import Node, Worker, payload_of
from fne.randomness import seeded_initialisation
from fne.registry import register
from fne.types import Request, Samples, Tensors

BUFFER = "buffer."
OPTIMIZER = "optimizer."
_BATCH_NORM = nn.modules.batchnorm._BatchNorm
OPTIMIZERS = ("sgd", "adam", "adadelta")


@register("task", "fitness")
def fitness_task(worker: Worker, nodes: Sequence[Node], request: Request) -> Iterator[Tensors]:
    """Evaluate a population on each node's samples, without gradients.

    Takes `population [P, D]` (common, or private for a slice of one's own); options `loss` and `samples` (`all`, or
    `one`: a single sample drawn from the node's public generator). Yields `loss`, float32 `[P, 1]`, summed over the
    samples in float64, and `samples`, int64 `[1]`. Samples of different nodes share a pass only with
    `evaluation.tiles=joined`.
    """
    loss = str(request.options["loss"])
    parts = [_chosen(node, request) for node in nodes]
    evaluate = worker.evaluator.sample_losses
    if worker.joined and len(nodes) > 1 and not request.private:
        joined = Samples(torch.cat([s.x for s in parts]), torch.cat([s.y for s in parts]))
        all_losses = evaluate(request.common["population"], joined, loss)
        per_node = iter(torch.split(all_losses, [len(s) for s in parts], dim=1))
    else:
        per_node = (
            evaluate(payload_of(request, node)["population"], part, loss)
            for node, part in zip(nodes, parts, strict=True)
        )
    for part, losses in zip(parts, per_node, strict=True):
        total = losses.sum(dim=1, keepdim=True, dtype=torch.float64).float().cpu()
        yield {"loss": total, "samples": torch.tensor([len(part)])}


def _chosen(node: Node, request: Request) -> Samples:
    if request.options.get("samples", "all") == "all":
        return node.data
    pick = torch.randint(len(node.data), (1,), generator=node.generator(request.header, "sample"))
    return node.data.take(pick.to(node.data.x.device))


@register("task", "train")
def train_task(worker: Worker, nodes: Sequence[Node], request: Request) -> Iterator[Tensors]:
    """Train the given weights on each node's samples by gradient descent and answer with the change.

    Takes `parameters [D]` and `buffer.*`; options `loss`, `epochs`, `batch_size` (0: all samples at once), `optimizer`
    with `lr` and `momentum`, `mu` (FedProx: mu / 2 * ||w - w_global||^2 joins the loss), `keep_optimizer` (the
    optimizer's state stays in the node's memory between steps). Yields `delta [D]` times the sample count, buffers
    times the count in float64 or int64, `loss` (summed over the samples of the last epoch) and `samples`. Layers that
    draw (dropout) do so from the run's seed. Raises `RunError` where training leaves the finite numbers.
    """
    for node in nodes:
        yield _train(worker, node, request)


def _train(worker: Worker, node: Node, request: Request) -> Tensors:
    given, options, module = payload_of(request, node), request.options, worker.module
    layout = worker.evaluator.layout
    start = given["parameters"]
    layout.fill(module, start.to(worker.device))
    fill_buffers(module, {name.removeprefix(BUFFER): b for name, b in given.items() if name.startswith(BUFFER)})
    named = dict(module.named_parameters())
    parameters = [named[leaf.name] for leaf in layout.leaves]
    anchors = [p.detach().clone() for p in parameters]
    optimizer = make_optimizer(parameters, options)
    if options.get("keep_optimizer", False):
        _restore(optimizer, node.memory)
    header, order = request.header, node.generator(request.header, "batches")
    count, mu = len(node.data), float(options.get("mu", 0.0))
    size = int(options["batch_size"]) or count
    module.train()
    try:
        with seeded_initialisation(header.seed, header.step, header.attempt, node.name, "dropout"):
            for _ in range(int(options["epochs"])):
                total = torch.zeros((), dtype=torch.float64, device=worker.device)
                permuted = torch.randperm(count, generator=order).to(worker.device)
                for batch in _batches(permuted, size, module):
                    logits = module(node.data.x[batch]).unsqueeze(0)
                    losses = fitness.sample_losses(
                        str(options["loss"]), logits, node.data.y[batch], worker.evaluator.output
                    )
                    objective = losses.mean()
                    optimizer.zero_grad(set_to_none=True)
                    objective.backward()  # type: ignore[no-untyped-call]
                    if mu:  # the gradient of mu / 2 * ||w - w_global||^2, apart: mu = 0 is FedAvg, bit for bit
                        _pull(parameters, anchors, mu)
                    optimizer.step()
                    total += losses.detach().sum(dtype=torch.float64)
    finally:
        module.eval()
    weighted, buffers = (layout.flatten(module) - start.cpu()) * count, buffers_of(module)
    bad = [leaf.name for leaf in layout.leaves if not weighted[leaf.start : leaf.stop].isfinite().all()]
    bad += [name for name, b in buffers.items() if not (b.isfinite() | (b == given[BUFFER + name].cpu())).all()]
    if bad:  # a buffer may hold infinities from the start, such as a mask
        raise RunError(f"training diverged: non-finite values in {bad[0]!r}; lower strategy.lr = {options['lr']}")
    if options.get("keep_optimizer", False):
        _keep(optimizer, node.memory)
    sums = {  # exact in float64: a buffer that nobody changes must come back with its bits
        BUFFER + name: (b.double() if b.is_floating_point() else b.long()) * count for name, b in buffers.items()
    }
    return {"delta": weighted, **sums, "loss": total.cpu().reshape(1), "samples": torch.tensor([count])}


def _batches(order: Tensor, size: int, module: nn.Module) -> list[Tensor]:
    """Return the batches; batch norm cannot train on a single sample, so such a last one joins its neighbour."""
    batches = list(torch.split(order, size))
    if len(batches) > 1 and len(batches[-1]) == 1 and any(isinstance(m, _BATCH_NORM) for m in module.modules()):
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


@torch.no_grad()
def _pull(parameters: Sequence[Tensor], anchors: Sequence[Tensor], mu: float) -> None:
    for parameter, anchor in zip(parameters, anchors, strict=True):
        if parameter.grad is not None:  # one that the forward does not use never leaves its anchor
            parameter.grad.add_(parameter - anchor, alpha=mu)


def make_optimizer(parameters: Sequence[Tensor], options: Any) -> torch.optim.Optimizer:
    """Return the optimizer that the options name (`OPTIMIZERS`)."""
    lr, name = float(options["lr"]), options["optimizer"]
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=lr, momentum=float(options.get("momentum", 0.0)))
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
