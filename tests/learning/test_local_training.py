"""Training inside a node: images in channels-last form, several models side by side, one that diverges."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fne import models
from fne.config.groups import BatchTraining
from fne.config.registry import load
from fne.core.dataset import Samples
from fne.core.messages import Header
from fne.core.randomness import generator, seeded_initialisation
from fne.evolution.evaluate import Evaluator, Plan
from fne.federation.node import Node, Secrets
from fne.federation.worker import Worker
from fne.learning import local_training as descent
from fne.learning.local_training import descend

HEADER = Header(3, 5, run="test")
assert models


class Dropping(nn.Module):
    """A network with dropout, as no registered one of images has it."""

    output = "softmax"

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.second = nn.Linear(64, 12), nn.Dropout(0.4), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        logits: Tensor = self.second(self.drop(torch.relu(self.first(x.flatten(1)))))
        return logits


CASES: dict[str, Callable[[], nn.Module]] = {
    "cnn": lambda: load("model", "cnn")((1, 8, 8), 5, width=(3, 4), kernel=3, padding=1, hidden=6),
    "cnn colour": lambda: load("model", "cnn")((3, 8, 8), 5, width=(3, 4), kernel=3, padding=1, hidden=6),
    "vgg": lambda: load("model", "vgg")((1, 8, 8), 5, blocks=((4,), (8, 8)), groups=2, hidden=6, residual=True),
    "logistic": lambda: load("model", "logistic")((64,), 5),
    "dropout": Dropping,
}


def made(case: str, samples: int = 23, device: str = "cpu", shift: int = 0) -> tuple[Worker, Node, nn.Module]:
    with seeded_initialisation("descent", case):
        module = CASES[case]()
    draw = generator("descent", case)
    shape = (64,) if case == "logistic" else (3 if "colour" in case else 1, 8, 8)
    data = Samples(torch.randn(samples, *shape, generator=draw), torch.randint(5, (samples,), generator=draw))
    data = Samples(data.x.to(device), data.y.to(device))
    node = Node("a", data, Secrets.simulate(0, "a"), shift=shift)
    evaluator = Evaluator(copy.deepcopy(module).to(device), Plan("loop", 4, 16, 64), output="softmax")
    return Worker({"a": node}, evaluator), node, module


def starts(worker: Worker, count: int) -> Tensor:
    first = worker.evaluator.layout.flatten(worker.module)
    return first + 0.05 * torch.randn(count, len(first), generator=generator("starts"))


def descend_together(worker: Worker, *given: Any, together: int) -> Tensor:
    worker.evaluator.plan = replace(worker.evaluator.plan, together=together)
    return descent.descend_together(worker, *given)


TRAINING = BatchTraining(loss="cross_entropy", lr=0.1, epochs=3, batch_size=7)


@pytest.mark.parametrize("case", ["cnn", "cnn colour", "vgg", "logistic"])
def test_a_model_is_trained_as_one_would_by_hand(case: str) -> None:
    """Plain torch, in its usual form of images, on the batches that the node's generator gives."""
    worker, node, module = made(case)
    start = starts(worker, 1)[0]
    got = descend(worker, node, HEADER, start, {}, TRAINING).delta
    worker.evaluator.layout.fill(module, start)
    optimizer, order = torch.optim.SGD(module.parameters(), lr=0.1), node.generator(HEADER, "batches")
    for _ in range(3):
        for batch in torch.split(torch.randperm(len(node.data), generator=order), 7):
            optimizer.zero_grad()
            F.cross_entropy(module(node.data.x[batch]), node.data.y[batch]).backward()
            optimizer.step()
    wanted = worker.evaluator.layout.flatten(module) - start
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-6)
    assert got.abs().max() > 0.01


@pytest.mark.parametrize("case", list(CASES))
@pytest.mark.parametrize("together", [2, 5, 9])
def test_side_by_side_they_become_what_they_do_one_after_another(case: str, together: int) -> None:
    worker, node, _ = made(case, shift=0 if case == "logistic" else 1)
    several = starts(worker, 5)
    alone = descend_together(worker, node, HEADER, several, TRAINING, together=1)
    aside = descend_together(worker, node, HEADER, several, TRAINING, together=together)
    torch.testing.assert_close(aside, alone, rtol=1e-4, atol=2e-6)
    assert (alone[0] - alone[1]).abs().max() > 1e-4
    assert torch.equal(descend_together(worker, node, HEADER, several, TRAINING, together=0), alone)  # on a CPU


@pytest.mark.parametrize("together", [1, 3])
def test_one_that_diverges_leaves_the_others_alone(together: int) -> None:
    worker, node, _ = made("cnn")
    several = starts(worker, 3)
    wanted = descend_together(worker, node, HEADER, several, TRAINING, together=together)
    several[1] = 3e38
    got = descend_together(worker, node, HEADER, several, TRAINING, together=together)
    assert got[1].isnan().all()
    assert torch.equal(got[[0, 2]], wanted[[0, 2]])


@pytest.mark.parametrize("together", [1, 3])
def test_what_is_evaluated_does_not_hang_on_what_was_trained(together: int) -> None:
    """The module is in eval mode and in its usual form again: the bits of a loss are those of before."""
    worker, node, _ = made("cnn colour")
    several = starts(worker, 3)
    before = worker.evaluator.sample_losses(several, node.data, "cross_entropy")
    descend_together(worker, node, HEADER, several, TRAINING, together=together)
    assert not worker.module.training
    assert all(p.is_contiguous() for p in worker.module.parameters())
    assert torch.equal(worker.evaluator.sample_losses(several, node.data, "cross_entropy"), before)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("case", ["cnn", "cnn colour", "vgg", "logistic"])
def test_on_a_gpu_a_generation_is_trained_together(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    here, node, _ = made(case)
    there, other, _ = made(case, device="cuda")
    several = starts(here, 5)
    wanted = descend_together(here, node, HEADER, several, TRAINING, together=1)
    for together in (0, 1, 5):
        got = descend_together(there, other, HEADER, several, TRAINING, together=together)
        assert got.device.type == "cpu"
        torch.testing.assert_close(got, wanted, rtol=1e-2, atol=1e-4)
