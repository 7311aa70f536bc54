"""Attacks of a node by its replies: what the node answers must neither end the run for the others nor be believed.

tests/federation/test_payloads.py has the replies of another form.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fne.config import registry
from fne.core.contracts import Strategy
from fne.core.dataset import Samples
from fne.core.errors import RunError
from fne.core.messages import Reply, Request, Round, Status
from fne.engines.local import LocalEngine
from fne.federation import rounds
from fne.federation.worker import Worker
from fne.loop import run

Change = Callable[[Reply], list[Reply]]
METHODS: dict[str, dict[str, Any]] = {
    "fne": {"population": 6, "parents": 3, "nodes": "all"},
    "es": {"population": 6, "subset_size": 4},
    "fedavg": {"fraction": 1.0},
    "fedprox": {"fraction": 1.0},
}


class Lying(Worker):
    """A worker of which one node's replies are changed on the way, or never made."""

    def __init__(self, worker: Worker, lie: Change | None) -> None:
        super().__init__(worker.nodes, worker.evaluator)
        self._lie = lie

    def run(self, request: Request) -> Iterator[Reply]:
        for reply in super().run(request):
            if reply.node != "n2":
                yield reply
            elif self._lie is None:
                yield Reply(request.header, "n2", Status.FAILED, "no answer today")
            else:
                yield from self._lie(reply)


class Answering(LocalEngine):
    """An engine that gathers whatever the worker says: a transport that does not look at replies."""

    def _replies(self, request: Request, common: Any, private: Mapping[str, Any]) -> Iterator[Reply]:
        return self._worker.run(request)


Go = Callable[..., tuple[Strategy, list[Round]]]


@pytest.fixture
def go(laboratory: Callable[..., SimpleNamespace], clouds: Callable[..., dict[str, Samples]]) -> Go:
    """Return `go(method, lie, **engine)`: the strategy after three rounds in which n2 lies, and the rounds."""

    def run_with(method: str, lie: Change | None, **engine: Any) -> tuple[Strategy, list[Round]]:
        lab = laboratory(lambda: nn.Linear(4, 3), clouds(9, 12, 15, 8), clouds(20, seed=5)["n0"])
        strategy: Strategy = registry.load("strategy", method)(lab.task, seed=0, rounds=3, **METHODS[method])
        rounds: list[Round] = []
        run(strategy, Answering(Lying(lab.worker, lie), "test", **engine), callbacks=[lambda s, r, m: rounds.append(r)])
        return strategy, rounds

    return run_with


def spoilt(value: float, *, one: bool = False) -> Change:
    """Put a value into the first entry of a reply that a strategy computes with: one number of it, or all."""

    def lie(reply: Reply) -> list[Reply]:
        if reply.status is not Status.OK:
            return [reply]
        name = "delta" if "delta" in reply.payload else "loss"
        wrong = reply.payload[name].clone()
        wrong.view(-1)[: 1 if one else None] = value
        return [replace(reply, payload={**reply.payload, name: wrong})]

    return lie


def of_header(**changes: Any) -> Change:
    return lambda reply: [replace(reply, header=replace(reply.header, **changes))]


def counted(samples: int) -> Change:
    """Say that the answer is of so many samples."""

    def lie(reply: Reply) -> list[Reply]:
        return [replace(reply, payload={**reply.payload, "samples": torch.tensor([samples])})]

    return lie


STEP_7 = of_header(step=7)
LIES: dict[str, tuple[Change, str]] = {
    "of another step": (STEP_7, "answers another request: step 7, attempt 0 of run 'test'"),
    "of another attempt": (of_header(attempt=1), "answers another request: step "),
    "of another run": (of_header(run="theirs"), "answers another request: step "),
    "of another seed": (of_header(seed=5), "answers another request: step "),
    "of no samples": (counted(0), "answers 'samples' = 0, must be at least 1"),
    "of samples that it does not hold": (counted(16), "answers 'samples' = 16, must be at most 15"),
    "of nothing but NaN": (spoilt(math.nan), "answers "),
    "of infinities": (spoilt(math.inf), "answers "),
    "of minus infinity": (spoilt(-math.inf), "answers "),
    "that never comes": (lambda reply: [], "no answer"),
}


def parameters(strategy: Strategy) -> Tensor:
    return strategy.result().parameters


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("method", METHODS)
def test_a_reply_that_cannot_be_used_costs_its_node_the_round_and_nobody_else(go: Go, method: str, lie: str) -> None:
    """The attack claims to end the run, or to steer it: it is bit for bit the run in which the node does not answer."""
    change, said = LIES[lie]
    attacked, rounds = go(method, change)
    silent, _ = go(method, None)
    assert len(rounds) == 3
    for round_ in rounds:
        assert [failure.node for failure in round_.failures] == ["n2"]
        assert round_.failures[0].reason.startswith(said)
    assert torch.equal(parameters(attacked), parameters(silent))


@pytest.mark.parametrize("method", ["fedavg", "fedprox"])
def test_one_number_of_an_update_that_is_not_finite_is_enough(go: Go, method: str) -> None:
    attacked, rounds = go(method, spoilt(math.nan, one=True))
    silent, _ = go(method, None)
    assert "values that are not finite" in rounds[0].failures[0].reason
    assert torch.equal(parameters(attacked), parameters(silent))


def test_an_individual_that_is_not_finite_at_one_node_is_judged_by_all(go: Go) -> None:
    """What diverges at one node is no lie: only a node without any finite loss is left out, and only if others have."""
    _, rounds = go("fne", spoilt(math.nan, one=True))
    assert all(not round_.failures for round_ in rounds)


def test_the_second_of_two_answers_and_a_strangers_are_not_listened_to(go: Go) -> None:
    """The attack claims to count twice, or for a node that was not asked."""
    honest, _ = go("fedavg", lambda reply: [reply])
    for lie in (
        lambda reply: [reply, reply],
        lambda reply: [reply, *spoilt(7.0)(reply)],
        lambda reply: [replace(reply, node="n9"), reply],
    ):
        attacked, rounds = go("fedavg", lie)
        assert all(not round_.failures for round_ in rounds)
        assert torch.equal(parameters(attacked), parameters(honest))


def test_a_node_that_answers_too_late_has_gone(go: Go) -> None:
    """The attack claims to hold up all others; in one process it does while it works, and gains nothing by it."""

    def late(reply: Reply) -> list[Reply]:
        time.sleep(1.05)
        return [reply]

    attacked, rounds = go("fedavg", late, timeout=1.0)
    silent, _ = go("fedavg", None)
    for round_ in rounds:
        (failure,) = round_.failures
        assert (failure.node, failure.status) == ("n2", Status.GONE)
        assert failure.reason.startswith("no answer within engine.timeout = 1 seconds; it took 1.")
    assert torch.equal(parameters(attacked), parameters(silent))


def test_a_node_that_does_not_answer_has_sent_no_bytes(go: Go) -> None:
    _, rounds = go("fedavg", lambda reply: [])
    assert all(round_.traffic.encoded_up["n2"] == round_.traffic.payload_up["n2"] == 0 for round_ in rounds)
    assert all(round_.failures[0].status is Status.GONE for round_ in rounds)


def test_without_the_defences_the_attacks_succeed(go: Go, monkeypatch: pytest.MonkeyPatch) -> None:
    """One NaN of one node ends FedAvg for good, and a generation of `es`."""
    monkeypatch.setattr(rounds, "fault", lambda payload, expected: "")
    monkeypatch.setattr(rounds, "lifeless", lambda payload, expected: "")
    with pytest.raises(RunError, match=r"step 1: 0 of 4 nodes answered.*n0 and 3 more: training diverged"):
        go("fedavg", spoilt(math.nan))  # and the others are blamed
    with pytest.raises(RunError, match=r"no candidate has a finite loss|non-finite"):
        go("es", spoilt(math.nan))
