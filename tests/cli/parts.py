"""Words of short runs, and a plugin that has one of everything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

QUIET = ("-q", "engine.threads=1", "watch.tensorboard=false")
SHORT = ("fne_toy", "strategy.rounds=3", *QUIET)
PLUGIN = '''
from typing import Annotated

import torch
from torch import nn

from fne import Key, register
from fne.data.toy import toy
from fne.engines.local import LocalEngine
from fne.strategies.fne import FNE
from fne.core.dataset import Dataset, Samples


@register("data", "mine")
def mine(*, seed: int, spoil: Annotated[str, Key("what to break")] = "nothing") -> Dataset:
    """Make toy data, broken as told."""
    good = toy(seed=seed, samples=300)
    x, y = good.train.x.clone(), good.train.y.clone()
    if spoil == "nan":
        x[7, 3] = float("nan")
    if spoil == "one class":
        y[:] = 1
    if spoil == "label":
        y[5] = 3
    if spoil == "one node":
        x[80:] = 1000.0
    empty = Samples(x[:0], y[:0])
    test = empty if spoil == "no test" else good.test
    validation = empty if spoil == "no validation" else good.validation
    return Dataset("mine", Samples(x, y), validation, test, good.classes, "made up", "here")


@register("model", "tiny")
class Tiny(nn.Module):
    """One hidden layer without a bias."""

    output = "softmax"

    def __init__(self, shape, outputs, *, width: int = 4, poison: float = 9.0) -> None:
        super().__init__()
        self.poison = poison
        self.inner = nn.Linear(shape[0], width, bias=False)
        self.outer = nn.Linear(width, outputs)

    def forward(self, x):
        if bool((x > 500).any()):
            raise ArithmeticError("out of range")
        logits = self.outer(torch.tanh(self.inner(x)))
        return torch.where(self.outer.bias[0] > self.poison, torch.nan, logits)


@register("model", "tied")
class Tied(nn.Module):
    """Two layers that share one weight."""

    output = "softmax"

    def __init__(self, shape, outputs) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(shape[0], shape[0]), nn.Linear(shape[0], shape[0])
        self.second.weight = self.first.weight
        self.head = nn.Linear(shape[0], outputs)

    def forward(self, x):
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


@register("model", "frozen")
class Frozen(nn.Module):
    """A random projection that is not trained."""

    output = "softmax"

    def __init__(self, shape, outputs) -> None:
        super().__init__()
        self.projection = nn.Linear(shape[0], 16).requires_grad_(False)
        self.head = nn.Linear(16, outputs)

    def forward(self, x):
        return self.head(torch.tanh(self.projection(x)))


@register("model", "waves")
class Waves(nn.Module):
    """Random Fourier features in buffers, which a state dict holds or not."""

    output = "softmax"

    def __init__(self, shape, outputs, *, persistent: bool = True) -> None:
        super().__init__()
        self.register_buffer("frequencies", 0.3 * torch.randn(16, shape[0]), persistent=persistent)
        self.register_buffer("phases", 6.28 * torch.rand(16), persistent=persistent)
        self.head = nn.Linear(16, outputs)

    def forward(self, x):
        return self.head(torch.cos(x @ self.frequencies.T + self.phases))


@register("engine", "mine")
class Counting:
    """Let the local engine do the work, and count."""

    sent = []

    def __init__(self, worker, run, folder) -> None:
        self._inner = LocalEngine(worker, run, folder)

    @property
    def nodes(self):
        return self._inner.nodes

    def send(self, request):
        self.sent.append(request.header.step)
        return self._inner.send(request)

    def save(self, step):
        self._inner.save(step)

    def load(self, step):
        self._inner.load(step)

    def close(self):
        self.sent.append("closed")


@register("strategy", "double", lineage=True)
class Double(FNE):
    """Do as FNE does, with another default."""

    def __init__(self, task, *, seed: int, rounds: Annotated[int, Key("generations", ge=1)] = 4) -> None:
        super().__init__(task, seed=seed, population=12, rounds=rounds, loss="cross_entropy", parents=4)


@register("partition", "greedy")
def greedy(samples, nodes, generator):
    """Give everything to the first node."""
    return [torch.arange(len(samples)), *[torch.arange(0)] * (nodes - 1)]


@register("partition", "rows")
def rows(samples, nodes, generator):
    """Deal in order."""
    return list(torch.arange(len(samples)).tensor_split(nodes))
'''


def read_summary_file(folder: Path) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text(), parse_constant=refuse)
    return summary
