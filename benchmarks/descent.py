"""Time the training of ten models on a node's samples: one after another, side by side, and in torch's usual form.

    python benchmarks/descent.py

One thread; the least of some repetitions, as ratio to one after another in channels-last form, which a CPU is given.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from timing import milliseconds
from torch import nn
from torch.nn import functional as F

from fne.config.groups import BatchTraining
from fne.config.registry import load
from fne.core.dataset import Samples
from fne.core.messages import Header
from fne.evolution.evaluate import Evaluator, Plan
from fne.federation.node import Node, Secrets
from fne.federation.worker import Worker
from fne.learning.local_training import descend_together

MODELS, BATCHES, REPETITIONS = 10, 8, 5
VGG = {"blocks": ((8,), (16,), (32,)), "hidden": 64, "residual": True}
CASES: dict[str, tuple[tuple[int, int, int], int, Callable[[tuple[int, ...]], nn.Module]]] = {
    "CNN, MNIST, batches of 64": ((1, 28, 28), 64, lambda shape: load("model", "cnn")(shape, 10)),
    "CNN, CIFAR-10, batches of 32": ((3, 32, 32), 32, lambda shape: load("model", "cnn")(shape, 10)),
    "VGG of 8, 16, 32 filters, MNIST, batches of 64": ((1, 28, 28), 64, lambda s: load("model", "vgg")(s, 10, **VGG)),
    "VGG of 8, 16, 32 filters, CIFAR-10, batches of 32":
        ((3, 32, 32), 32, lambda s: load("model", "vgg")(s, 10, **VGG)),
}  # fmt: skip


def usual(worker: Worker, node: Node, starts: torch.Tensor, batch: int) -> None:
    """Train one after another without any change of form."""
    module, layout = worker.module.train(), worker.evaluator.layout
    for start in starts:
        layout.fill(module, start)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
        for x, y in zip(node.data.x.split(batch), node.data.y.split(batch), strict=True):
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(module(x), y).backward()
            optimizer.step()
    module.eval()


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print("| model | one after another (us a sample) | side by side | one after another, usual form |")
    print("|---|---:|---:|---:|")
    for name, (shape, batch, build) in CASES.items():
        torch.manual_seed(0)
        data = Samples(torch.randn(batch * BATCHES, *shape), torch.randint(10, (batch * BATCHES,)))
        node = Node("a", data, Secrets.simulate(0, "a"))
        worker = Worker({"a": node}, Evaluator(build(shape), Plan("loop", 1, 1), output="softmax"))
        starts = worker.evaluator.layout.flatten(worker.module).repeat(MODELS, 1)

        def trained(together: int, worker=worker, node=node, starts=starts, batch=batch) -> None:
            training = BatchTraining(loss="cross_entropy", lr=0.05, epochs=1, batch_size=batch)
            worker.evaluator.plan = Plan("loop", 1, 1, together=together)
            descend_together(worker, node, Header(0, 0), starts, training)

        calls = {
            "one": lambda: trained(1), "all": lambda: trained(MODELS),
            "usual": lambda: usual(worker, node, starts, batch),  # noqa: B023
        }  # fmt: skip
        best = milliseconds(calls, REPETITIONS)
        first = best["one"] / (MODELS * len(data)) * 1e3
        aside, plain = best["all"] / best["one"], best["usual"] / best["one"]
        print(f"| {name} | {first:.0f} | {aside:.2f} | {plain:.2f} |", flush=True)


if __name__ == "__main__":
    main()
