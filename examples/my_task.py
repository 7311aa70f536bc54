"""A node task of one's own: nodes say which model they like best, no loss leaves them. `my_task.yaml` uses it.

fne train examples/my_task.yaml
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from fne.config.registry import Key, register
from fne.core.contracts import Metrics, Result
from fne.core.messages import Header, Request, Round, Tensors
from fne.core.randomness import derive_seed, generator
from fne.federation.node import Node, payload_of
from fne.federation.payloads import COUNT, Entry, Payload
from fne.federation.worker import Worker
from fne.learning.task import LearningTask


def vote_payload(request: Request, node: str) -> Payload:
    """Return what `vote` yields; a node whose answer has another form is named and left out."""
    individuals = len(request.common["population"])
    return {"votes": Entry("int", (individuals,), least=0, most=1), "samples": COUNT}


@register("task", "vote", payload=vote_payload)
def vote(
    worker: Worker,
    nodes: Sequence[Node],
    request: Request,
    *,
    loss: Annotated[Literal["mse", "cross_entropy"], Key("what the votes go by")],
) -> Iterator[Tensors]:
    """Give the individual with the lowest loss on the node's samples one vote.

    Takes `population [P, D]`; yields `votes`, int64 `[P]`, and `samples`, int64 `[1]`.
    """
    for node in nodes:
        population = payload_of(request, node)["population"]
        losses = worker.evaluator.sample_losses(population, node.data, loss).mean(dim=1)
        votes = torch.zeros(len(population), dtype=torch.int64)
        votes[int(losses.nan_to_num(torch.inf).argmin())] = 1
        yield {"votes": votes, "samples": torch.tensor([len(node.data)])}


@register("strategy", "election")
class Election:
    """Evolution by majority: each node votes for a parent or one of its children, most votes win."""

    def __init__(
        self,
        task: LearningTask,
        *,
        seed: int,
        rounds: Annotated[int, Key("elections", unit="rounds", ge=1)] = 100,
        children: Annotated[int, Key("children that stand for election", unit="models", ge=1)] = 20,
        spread: Annotated[float, Key("noise on a gene", unit="standard deviations of its initial value", gt=0)] = 0.3,
        loss: Annotated[Literal["mse", "cross_entropy"], Key("what nodes vote by")] = "cross_entropy",
    ) -> None:
        self.seed, self.horizon, self.step = seed, rounds, 0
        self.tasks = {"vote": {"loss": loss}}  # what nodes do for this method, and nothing else
        self._task, self._loss, self._children = task, loss, children
        self._scale = spread * task.layout.scales()
        self._parent = task.layout.flatten(task.new_model(derive_seed(seed, "parent")))

    @property
    def done(self) -> bool:
        """Whether the horizon is reached."""
        return self.step >= self.horizon

    def ask(self, nodes: Sequence[str]) -> Request:
        """Return the candidates for every node."""
        common = {"population": self._candidates()}
        header, options = Header(self.seed, self.step), {"loss": self._loss}
        return Request(header, "vote", tuple(nodes), common=common, options=options, reduce="sum")

    def tell(self, round_: Round) -> Metrics:
        """Count the votes; the parent stands first and wins a tie."""
        (reply,) = round_.replies
        votes = reply.payload["votes"]
        self._parent = self._candidates()[int(votes.argmax())]
        self.step += 1
        validation = self._task.evaluate(self._parent.unsqueeze(0), loss=self._loss)
        return {
            "round": self.step,
            "evaluations": self.step * (1 + self._children),
            "accuracy_validation": float(validation["accuracy"][0]),
            "loss_validation": float(validation["loss"][0]),
            "winner_votes": int(votes.max()),
        }

    def _candidates(self) -> Tensor:
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
