"""A model, a data set and a strategy of one's own in one file; `my_plugin.yaml` uses them.

fne train examples/my_plugin.yaml
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from fne.config.registry import Key, register
from fne.core.contracts import Metrics, Result
from fne.core.dataset import Dataset, Samples
from fne.core.messages import Header, Request, Round
from fne.core.randomness import derive_seed, generator
from fne.data.sources import check_dataset
from fne.evolution.operators import order
from fne.evolution.population import cleaned
from fne.learning.task import LearningTask


@register("data", "rings")
def rings(
    *,
    seed: int,
    samples: Annotated[int, Key("points of each part", unit="samples", ge=2)] = 300,
    noise: Annotated[float, Key("standard deviation of the radius", ge=0)] = 0.15,
    data_seed: Annotated[int, Key("seed of the data, the same for all runs that are compared", ge=0)] = 0,
) -> Dataset:
    """Draw points `[N, 2]` around a circle of radius 1 (inner) or 2 (outer)."""
    train, validation, test = (
        _points(samples, noise, generator("rings", part, data_seed)) for part in ("train", "validation", "test")
    )
    split = f"drawn apart ({samples}/{samples}/{samples})"
    return check_dataset(Dataset("rings", train, validation, test, ("inner", "outer"), split, "synthetic"))


def _points(count: int, noise: float, draw: torch.Generator) -> Samples:
    y = torch.arange(count) % 2
    radius = 1.0 + y + noise * torch.randn(count, generator=draw)
    angle = 2 * math.pi * torch.rand(count, generator=draw)
    return Samples(torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), y)


@register("model", "tanh_net")
class TanhNet(nn.Module):
    """One hidden layer with tanh: inputs `[N, *shape]`, logits `[N, outputs]`."""

    output: Literal["softmax"] = "softmax"

    def __init__(
        self, shape: tuple[int, ...], outputs: int, *, hidden: Annotated[int, Key("hidden neurons", ge=1)] = 8
    ) -> None:
        super().__init__()
        self.hidden = nn.Linear(math.prod(shape), hidden)
        self.head = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        logits: Tensor = self.head(self.hidden(x.flatten(1)).tanh())
        return logits


@register("strategy", "one_plus_lambda")
class OnePlusLambda:
    """(1 + lambda) evolution: all nodes rate a parent and its children, the best one is the next parent."""

    def __init__(
        self,
        task: LearningTask,
        *,
        seed: int,
        rounds: Annotated[int, Key("generations", unit="generations", ge=1)] = 100,
        children: Annotated[int, Key("children of a generation, lambda", unit="models", ge=1)] = 20,
        spread: Annotated[float, Key("noise on a gene", unit="standard deviations of its initial value", gt=0)] = 0.3,
        loss: Annotated[Literal["nmse", "mse", "bce", "cross_entropy"], Key("fitness")] = "cross_entropy",
    ) -> None:
        self.seed, self.horizon, self.step = seed, rounds, 0
        self.tasks = {"fitness": {"loss": loss}}  # what nodes do for this method, and nothing else
        self._task, self._loss, self._children = task, loss, children
        self._scale = spread * task.layout.scales()
        self._parent = task.layout.flatten(task.new_model(derive_seed(seed, "parent")))

    @property
    def done(self) -> bool:
        """Whether the horizon is reached."""
        return self.step >= self.horizon

    def ask(self, nodes: Sequence[str]) -> Request:
        """Return the parent and its children `[1 + lambda, D]` for every node."""
        common = {"population": self._candidates()}
        header, options = Header(self.seed, self.step), {"loss": self._loss}
        return Request(header, "fitness", tuple(nodes), common=common, options=options, reduce="sum")

    def tell(self, round_: Round) -> Metrics:
        """Take the best candidate as the next parent."""
        (reply,) = round_.replies  # the sum over the nodes that answered
        fitness, nonfinite = cleaned(reply.payload["loss"][:, 0] / reply.payload["samples"][0])
        self._parent = self._candidates()[order(fitness)[0]]
        self.step += 1
        validation = self._task.evaluate(self._parent.unsqueeze(0), loss=self._loss)
        return {
            "round": self.step,
            "evaluations": self.step * (1 + self._children),
            "loss_best": float(fitness.min()),
            "loss_mean": float(fitness.mean()),
            "accuracy_validation": float(validation["accuracy"][0]),
            "loss_validation": float(validation["loss"][0]),
            "nonfinite": nonfinite,
        }

    def _candidates(self) -> Tensor:
        """Return `[1 + lambda, D]`: a function of parent and step, so that a resumed run draws the same."""
        draw = generator(self.seed, "children", self.step)
        noise = torch.randn(self._children, len(self._parent), generator=draw)
        return torch.cat([self._parent.unsqueeze(0), self._parent + self._scale * noise])

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        return {"step": self.step, "parent": self._parent}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self.step, self._parent = state["step"], state["parent"]

    def result(self) -> Result:
        """Return the parent."""
        return Result("model", self._parent)
