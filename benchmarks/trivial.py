"""A plugin whose strategy and node task do nothing: what remains of a step is the loop, the engine and the watchers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import torch

from fne.config.registry import Key, register
from fne.core.contracts import Metrics, Result
from fne.core.messages import Header, Request, Round, Scalar, Tensors
from fne.federation.node import Node
from fne.federation.worker import Worker
from fne.learning.task import LearningTask


@register("task", "nothing")
def nothing(worker: Worker, nodes: Sequence[Node], request: Request) -> Iterator[Tensors]:
    """Answer with the number that came."""
    for _ in nodes:
        yield {"loss": request.common["x"], "samples": request.common["x"]}


@register("strategy", "trivial")
class Trivial:
    """Ask two nodes for nothing."""

    def __init__(self, task: LearningTask, *, seed: int, rounds: Annotated[int, Key("steps", ge=1)] = 100_000) -> None:
        self.seed, self.horizon, self.step = seed, rounds, 0
        self.tasks: dict[str, dict[str, Scalar]] = {"nothing": {}}
        self._x = torch.ones(1)

    @property
    def done(self) -> bool:
        """Whether the horizon is reached."""
        return self.step >= self.horizon

    def ask(self, nodes: Sequence[str]) -> Request:
        """Return a request of one number."""
        return Request(Header(self.seed, self.step), "nothing", tuple(nodes[:2]), common={"x": self._x}, reduce="sum")

    def tell(self, round_: Round) -> Metrics:
        """Count."""
        self.step += 1
        return {"round": self.step, "loss_best": 0.0, "accuracy_validation": 0.5}

    def state_dict(self) -> dict[str, Any]:
        """Return the step."""
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the step."""
        self.step = state["step"]

    def result(self) -> Result:
        """Return one model of zeros."""
        return Result("model", torch.zeros(33))
