"""A plugin whose own tasks are added up by secure sums and opened by one node: the server learns the winner alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor

from fne.config.registry import Key, register
from fne.core.contracts import Metrics, Result
from fne.core.messages import GIVEN, Header, Relay, Request, Round, Tensors
from fne.core.randomness import chosen_node, derive_seed, generator
from fne.federation.node import Node, payload_of
from fne.federation.payloads import Entry, Payload
from fne.federation.worker import Worker
from fne.learning.task import LearningTask


def ballots_payload(request: Request, node: str) -> Payload:
    """Return one count for each candidate."""
    return {"ballots": Entry("int", (len(request.common["population"]),), least=0, most=1)}


@register("task", "ballot", payload=ballots_payload, withheld=True)
def ballot(worker: Worker, nodes: Sequence[Node], request: Request) -> Iterator[Tensors]:
    """Vote for the candidate with the least loss; takes `population [P, D]`, yields `ballots`, int64 `[P]`."""
    for node in nodes:
        population = payload_of(request, node)["population"]
        losses = worker.evaluator.sample_losses(population, node.data, "cross_entropy").mean(dim=1)
        ballots = torch.zeros(len(population), dtype=torch.int64)
        ballots[int(losses.argmin())] = 1
        yield {"ballots": ballots}


@register("task", "announce", payload=lambda request, node: {"winner": Entry("int", (1,), least=0)}, keeps=True)
def announce(
    worker: Worker, nodes: Sequence[Node], request: Request, *, turn: Annotated[int, Key("turn of the draw", ge=0)]
) -> Iterator[Tensors]:
    """Say which candidate has most of the votes that the node is given, and not how many."""
    for node in nodes:
        yield {"winner": payload_of(request, node)[f"{GIVEN}ballots"].argmax().reshape(1)}


@register("strategy", "quiet_election")
class QuietElection:
    """Evolution by majority, where nobody learns how many votes a candidate has."""

    def __init__(
        self, task: LearningTask, *, seed: int, rounds: Annotated[int, Key("elections", unit="rounds", ge=1)] = 3
    ) -> None:
        self.seed, self.horizon, self.step = seed, rounds, 0
        self.tasks: dict[str, Any] = {"ballot": {}, "announce": {}}
        self.winners: list[int] = []
        self._task = task
        self._parent = task.layout.flatten(task.new_model(derive_seed(seed, "parent")))

    @property
    def done(self) -> bool:
        """Whether the horizon is reached."""
        return self.step >= self.horizon

    def _candidates(self) -> Tensor:
        draw = generator(self.seed, "children", self.step)
        return self._parent + 0.3 * torch.randn(6, len(self._parent), generator=draw)

    def ask(self, nodes: Sequence[str]) -> Request:
        """Return the candidates for every node; one node, whose turn it is, opens the sum of the votes."""
        relay = Relay((chosen_node(self.seed, self.step, nodes),), "announce", options={"turn": self.step})
        common = {"population": self._candidates()}
        return Request(Header(self.seed, self.step), "ballot", tuple(nodes), common=common, reduce="sum", relay=relay)

    def tell(self, round_: Round) -> Metrics:
        """Take the winner as the next parent."""
        (reply,) = round_.replies
        self.winners.append(int(reply.payload["winner"]))
        self._parent = self._candidates()[self.winners[-1]]
        self.step += 1
        return {"round": self.step, "evaluations": 6 * self.step, "winner": self.winners[-1]}

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        return {"step": self.step, "parent": self._parent, "winners": self.winners}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self.step, self._parent, self.winners = state["step"], state["parent"], state["winners"]

    def result(self) -> Result:
        """Return the parent."""
        return Result("model", self._parent)
