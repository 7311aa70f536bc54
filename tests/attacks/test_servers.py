"""Attacks of a lying server: nodes must answer what their method promises, whatever they are asked."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fne.config import registry
from fne.config.load import load_config
from fne.core.errors import RefusedError, RunError, SettingError
from fne.core.messages import Header, Reply, Request, Status
from fne.engines.local import LocalEngine
from fne.federation.node import Node
from fne.privacy.accountant import Accountant, Mechanism
from fne.privacy.policy import Ledger, Policy
from fne.run.learning_run import LearningRun, build
from fne.run.search_run import SearchRun, build_search
from fne.run.train import train
from fne.search import value_tasks as queries
from fne.secure import node_tasks as secure_tasks
from fne.secure import session
from fne.secure.engine import SecureEngine
from fne.secure.node_tasks import secure_only
from fne.secure.protocol import MEMBERS
from fne.strategies import dp_fedavg
from tests.attacks.fuzzing import TIMES, luck

TOY: dict[str, Any] = {
    "data": {"name": "toy", "nodes": 4, "samples": 200, "test": 10, "validation": 10},
    "model": {"name": "mlp", "hidden": [4]},
}
ROUNDS = 3


def private(strategy: str = "dp_fedavg", policy: dict[str, Any] | None = None, **settings: Any) -> LearningRun:
    given = {"name": strategy, "rounds": ROUNDS, "fraction": 1.0, "noise": 1.0, **settings}
    made = build(load_config({**TOY, "strategy": given, "policy": policy or {}}))
    return made


def asked(made: LearningRun, request: Request, **changed: Any) -> Reply:
    """Return what the first node answers to a request with other options."""
    options = {**request.options, **changed}
    (reply,) = made.worker.run(replace(request, nodes=request.nodes[:1], options=options))
    return reply


# ------------------------------------------------------------------------------------------------ noise and clip
LIES: dict[str, list[dict[str, Any]]] = {
    "dp_fedavg": [
        {"noise": 0.0},
        {"noise": 0.4999},
        {"clip": 1.001},
        {"clip": 1e30},
        {"noise": 0.0, "clip": 1e30},
        {"lr": 1e9},
        {"epochs": 2},
    ],
    "dp_sgd": [
        {"noise": 0.0},
        {"noise": 0.999},
        {"clip": 1e9},
        {"noise": 0.0, "rate": 1.0},
        {"rate": 1.0},
        {"epochs": 400},
        {"lr": 1e-9},
        {"batch_size": 1},
    ],
    "fed_moeac": [{"clip": 0.0}, {"clip": 2.0}, {"order": "literal"}, {"noise": "coordinate"}, {"epochs": 9}],
}


def first(strategy: str) -> tuple[LearningRun, Request]:
    if strategy == "fed_moeac":
        given = {"name": strategy, "population": 3, "generations": 1, "rounds_per_evaluation": 1, "participation": 1.0}
        made = build(load_config({**TOY, "strategy": given}))
    else:
        made = private(strategy)
    return made, made.strategy.ask(tuple(sorted(made.worker.nodes)))


@pytest.mark.parametrize(("strategy", "lie"), [(name, lie) for name, lies in LIES.items() for lie in lies])
def test_a_server_that_asks_for_less_noise_or_a_larger_clip_gets_nothing(strategy: str, lie: dict[str, Any]) -> None:
    """It claims to get an update without its noise, by asking for that."""
    made, request = first(strategy)
    reply = asked(made, request, **lie)
    assert reply.status is Status.REFUSED
    assert not reply.payload
    assert "this node's policy a" in reply.reason
    assert asked(made, request).status is Status.OK


def test_noises_among_the_tensors_are_held_to_the_policy_too() -> None:
    made, request = first("fed_moeac")
    for factor in (0.0, 0.9):
        less = {
            **request.common,
            "noises": torch.full_like(request.common["noises"], factor * made.strategy.terms().noise),
        }  # type: ignore[attr-defined]
        reply = asked(made, replace(request, common=less))
        assert reply.status is Status.REFUSED


def test_without_the_policy_a_server_gets_the_plain_update() -> None:
    """The attack itself: with noise of 0 it is the update of a plain training, to the last bits that are sent."""
    made, request = first("dp_fedavg")
    for node in made.worker.nodes.values():
        node.policy = Policy()
    raw = asked(made, request, noise=0.0, clip=1e30).payload["delta"]
    options = {"loss": "cross_entropy", "lr": 0.1, "epochs": 1, "batch_size": 10}
    reply = asked(made, replace(request, task="train", options=options))
    torch.testing.assert_close(raw, reply.payload["delta"] / float(reply.payload["samples"]), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("strategy", ["dp_fedavg", "dp_sgd", "fed_moeac"])
def test_no_other_task_tells_what_is_noised(strategy: str) -> None:
    made, request = first(strategy)
    others = [name for name in registry.catalogue("task") if name != request.task]
    assert {"train", "fitness", "ranking", "secure_keys", "secure_offer"} <= set(others)
    for task in others:
        for options in ({}, request.options, {"loss": "cross_entropy", "lr": 0.1}, {"loss": "cross_entropy"}):
            (reply,) = made.worker.run(replace(request, task=task, nodes=request.nodes[:1], options=options))
            assert reply.status is Status.REFUSED
            assert not reply.payload


# ------------------------------------------------------------------------------------------------ the account
def released(node: Node) -> Mechanism:
    """Return what the first answer of a node has released."""
    ((mechanism, _),) = next(iter(node.ledger._answered.values()))
    return mechanism


def rounds(made: LearningRun, count: int) -> Iterator[Reply]:
    """Yield what the first node answers to the first request, and to others of other seeds."""
    request = made.strategy.ask(tuple(sorted(made.worker.nodes)))
    for seed in range(count):
        yield asked(made, replace(request, header=replace(request.header, seed=seed)))


def test_a_node_answers_as_often_as_the_method_has_rounds() -> None:
    """It claims to average the noise away, by asking again and again under other headers."""
    made = private()
    replies = list(rounds(made, 2 * ROUNDS))
    assert [reply.status for reply in replies] == [Status.OK] * ROUNDS + [Status.REFUSED] * ROUNDS
    assert "as many as its policy allows (policy.answers = 3)" in replies[-1].reason
    again = list(rounds(made, ROUNDS))  # the same requests have the same answers, and cost nothing
    assert all(torch.equal(a.payload["delta"], b.payload["delta"]) for a, b in zip(again, replies, strict=False))


@pytest.mark.parametrize("strategy", ["dp_fedavg", "dp_sgd"])
def test_a_nodes_own_account_is_that_of_the_run_and_holds_to_its_budget(strategy: str) -> None:
    made = private(strategy, {"answers": 100, "epsilon": 1e6, "delta": 1e-5})
    (node, *_) = made.worker.nodes.values()
    spent = []
    engine = LocalEngine(made.worker)
    while not made.strategy.done:
        metrics = made.strategy.tell(engine.send(made.strategy.ask(engine.nodes)))
        spent.append(node.ledger.epsilon(1e-5))
        assert spent[-1] == pytest.approx(metrics["epsilon"], rel=1e-9)
    limited = private(strategy, {"answers": 100, "epsilon": spent[1] * 1.001})
    replies = list(rounds(limited, 4))
    assert [reply.status for reply in replies] == [Status.OK] * 2 + [Status.REFUSED] * 2
    assert f"would have spent epsilon {spent[2]:.4g} at delta 1e-05" in replies[2].reason
    (node, *_) = limited.worker.nodes.values()
    assert node.ledger.epsilon(1e-5) == pytest.approx(spent[1], rel=1e-9)  # what was refused costs nothing


def test_of_secure_sums_a_node_counts_the_noise_of_the_others_that_are_sure_to_be_there() -> None:
    given = {"name": "dp_fedavg", "rounds": 2, "fraction": 1.0, "noise": 4.0, "adversary": "aggregate"}
    made = build(load_config({**TOY, "data": {**TOY["data"], "nodes": 5}, "strategy": given, "secure": True}))
    secure_only(made.worker)
    engine = SecureEngine(LocalEngine(made.worker), made.worker.pinned)
    made.strategy.tell(engine.send(made.strategy.ask(engine.nodes)))
    (node, *_) = made.worker.nodes.values()
    sure = 4  # of 5 members a sum needs 4
    wanted = Accountant()
    z = 4.0 / math.sqrt(5) * math.sqrt(sure) / 2
    mechanism = replace(released(node), multiplier=z)
    wanted.add(mechanism)
    assert node.ledger.epsilon(1e-5) == pytest.approx(wanted.epsilon(1e-5, tight=False).rdp, rel=1e-9)
    assert mechanism.adversary == "aggregate"


def test_a_sum_again_with_fewer_others_costs_what_their_noise_is_worth() -> None:
    """It claims to have a node account for a sum of 40, to drop that, and to open one of 4 for the same request."""
    given = {"name": "dp_fedavg", "rounds": 20, "fraction": 1.0, "noise": 4.0, "adversary": "aggregate"}
    made = build(load_config({**TOY, "data": {**TOY["data"], "nodes": 40}, "strategy": given, "secure": True}))
    request = made.strategy.ask(tuple(sorted(made.worker.nodes)))
    (node, *_) = made.worker.nodes.values()
    spent = []
    for parties in (27, 4, 27):
        node.allow(request, parties)
        spent.append(node.ledger.epsilon(1e-5))
    wanted = Accountant()
    wanted.add(replace(released(node), multiplier=4.0 / math.sqrt(40) * math.sqrt(4) / 2))
    assert spent[1] == spent[2] == pytest.approx(wanted.epsilon(1e-5, tight=False).rdp, rel=1e-9)
    assert spent[0] < 0.5 * spent[1]
    assert len(node.ledger) == 1


def test_sums_of_few_are_refused_before_the_plan_is_exceeded() -> None:
    """It claims to have all noise of 40 accounted for, and to add up four."""
    given = {"name": "dp_fedavg", "rounds": 5, "fraction": 1.0, "noise": 4.0, "adversary": "aggregate"}
    made = build(load_config({**TOY, "data": {**TOY["data"], "nodes": 40}, "strategy": given, "secure": True}))
    request = made.strategy.ask(tuple(sorted(made.worker.nodes)))
    (node, *_) = made.worker.nodes.values()
    node.allow(request, 27)
    with pytest.raises(RefusedError, match="would have spent epsilon"):
        node.allow(replace(request, header=replace(request.header, step=1)), 4)
    assert node.ledger.epsilon(1e-5) <= node.policy.epsilon
    assert len(node.ledger) == 1


def test_as_many_copies_as_a_server_likes_are_charged_one_by_one() -> None:
    """It claims to average the noise away within one answer, by asking for many candidates that are the same one."""
    made, request = first("fed_moeac")
    least = made.strategy.terms().noise * math.sqrt(made.task.layout.size)  # type: ignore[attr-defined]
    for copies, status in ((6, Status.OK), (400, Status.REFUSED)):  # 3 individuals of 2 generations are planned
        made, _ = first("fed_moeac")
        common = {name: tensor[:1].repeat(copies, *[1] * (tensor.dim() - 1)) for name, tensor in request.common.items()}
        common["noises"] = torch.full((copies,), least)
        assert asked(made, replace(request, common=common)).status is status


def test_the_same_request_with_another_answer_is_charged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It claims to get noise after noise for nothing, where a repeated training has other last bits, as on a GPU."""
    made = private()
    request = made.strategy.ask(tuple(sorted(made.worker.nodes)))
    (node, *_) = made.worker.nodes.values()
    honest, replies = dp_fedavg.clipped, []
    for number in range(ROUNDS + 1):
        monkeypatch.setattr(dp_fedavg, "clipped", lambda delta, clip, n=number: honest(delta * (1 + n / 1000), clip))
        replies.append(asked(made, request))
    assert [reply.status for reply in replies] == [Status.OK] * ROUNDS + [Status.REFUSED]
    assert len(node.ledger) == ROUNDS
    monkeypatch.setattr(dp_fedavg, "clipped", honest)
    again = asked(made, request)  # what was answered before is answered as before
    assert torch.equal(again.payload["delta"], replies[0].payload["delta"])


def test_steps_are_those_of_one_run() -> None:
    made = private()
    request = made.strategy.ask(tuple(sorted(made.worker.nodes)))
    for header, said in (
        (Header(0, 1), ""), (Header(0, 0), ""), (Header(0, 1, "x"), "takes part in run ''"),
        (Header(0, ROUNDS), "allows steps 0 to 2, not 3"), (Header(0, -1), "allows steps 0 to 2, not -1"),
        (Header(0, 2), ""),
    ):  # fmt: skip
        reply = asked(made, replace(request, header=header))
        assert said in reply.reason
        assert (reply.status is Status.OK) is not bool(said)


def test_the_account_is_alive_across_a_resume_and_is_not_taken_back(tmp_path: Any) -> None:
    given = {**TOY, "strategy": {"name": "dp_fedavg", "rounds": ROUNDS, "fraction": 1.0, "noise": 1.0},
             "watch": {"checkpoint_every": 1, "tensorboard": False}}  # fmt: skip
    train(given, out=tmp_path / "run", stop_after=2)
    made = build(load_config(given))
    engine = LocalEngine(made.worker, folder=tmp_path / "run")
    engine.load(2)
    (node, *_) = made.worker.nodes.values()
    assert len(node.ledger) == 2
    engine.load(1)  # to take the memory back does not take back what was told
    assert len(node.ledger) == 2
    assert train(None, resume=tmp_path / "run")["steps"] == ROUNDS


def test_a_run_beyond_its_budget_ends_in_words(tmp_path: Any) -> None:
    given = {**TOY, "strategy": {"name": "dp_fedavg", "rounds": 9, "fraction": 1.0, "noise": 1.0},
             "policy": {"answers": 4, "epsilon": 1e6}, "watch": {"tensorboard": False}}  # fmt: skip
    with pytest.raises(RunError, match=r"step 4: 0 of 4 nodes answered.*policy.answers = 4"):
        train(given, out=tmp_path / "run")


@pytest.mark.parametrize(
    ("policy", "strategy", "message"),
    [
        ({"noise": 0.51}, {"name": "dp_fedavg", "fraction": 1.0}, "policy.noise = 0.51: must be null, or at most 0.5"),
        ({"clip": 0.9}, {"name": "dp_fedavg"}, "policy.clip = 0.9: must be null, or at least 1"),
        (
            {"epsilon": 3.0},
            {"name": "dp_fedavg", "noise": 0.0},
            "policy.epsilon = 3.0: must be null with strategy.name",
        ),
        ({"noise": 1.0}, {"name": "fedavg"}, "policy.noise = 1.0: must be null with strategy.name = 'fedavg'"),
        ({"answers": 5}, {"name": "fne"}, "policy.answers = 5: must be null with strategy.name = 'fne'"),
    ],
)
def test_a_policy_that_no_round_would_meet_is_refused_before_there_is_one(
    policy: dict[str, Any], strategy: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingError) as caught:
        build(load_config({**TOY, "strategy": strategy, "policy": policy}))
    assert message in str(caught.value)


def test_a_ledger_goes_round_and_keeps_what_it_has() -> None:
    made = private()
    list(rounds(made, 2))
    (node, *_) = made.worker.nodes.values()
    other = Ledger()
    other.load_state_dict(node.ledger.state_dict())
    other.load_state_dict(node.ledger.state_dict())
    assert len(other) == 2
    assert other.epsilon(1e-5) == node.ledger.epsilon(1e-5)
    assert other.state_dict()["keys"].shape == (2, 32)
    assert Ledger().state_dict()["keys"].shape == (0, 32)


# ------------------------------------------------------------------------------------------------ hidden points
def hiding(**settings: Any) -> SearchRun:
    given = {"name": "fdd_ea_dh", "rounds": 3, "initial": 30, "generations": 6, "points": 3}
    problem = {"name": "dtlz", "number": 2, "objectives": 3, "dim": 8, "nodes": 5}
    return build_search(load_config({"problem": problem, "strategy": {**given, **settings}, "secure": True}))


def asked_for_all_candidates(search: SearchRun) -> tuple[int, int]:
    """Return how many of the secretly measured points a server finds with their values, and how many there are.

    It runs the protocol as it is, and asks besides for a secure sum of what nodes remember at all candidates.
    """
    secure_only(search.worker)
    engine, strategy = SecureEngine(LocalEngine(search.worker), search.worker.pinned), search.strategy
    sent: list[Tensor] = []
    found = hidden = 0
    while not strategy.done:
        request = strategy.ask(engine.nodes)
        if "candidates" in request.common:
            sent.append(request.common["candidates"][0])
        before = {name: int(node.memory["asked"][0]) if "asked" in node.memory else 0
                  for name, node in search.worker.nodes.items()}  # fmt: skip
        strategy.tell(engine.send(request))
        now = [node for name, node in search.worker.nodes.items() if int(node.memory["asked"][0]) != before[name]]
        if request.relay is None or len(now) != 1:
            continue
        points = torch.cat(sent).unique(dim=0).unsqueeze(0)  # type: ignore[no-untyped-call]
        own = slice(before[now[0].name], int(now[0].memory["asked"][0]))
        hidden += own.stop - own.start
        lie = Request(
            request.header, "measure", engine.nodes, {"points": points, "runs": torch.arange(1)}, {},
            {"recall": True, "arithmetic": "fixed", "parties": 5}, reduce="sum", sizes={"objectives": 3},
        )  # fmt: skip
        try:
            (reply,) = engine.send(lie).replies
        except RunError:
            continue
        told = reply.payload["count"][0] > 0
        measured = now[0].memory["points"][0, own]
        found += int((points[0, told].unsqueeze(1) == measured).all(dim=2).any(dim=0).sum())
    return found, hidden


@pytest.mark.parametrize("release", [False, True])
def test_a_chosen_nodes_points_are_told_by_no_other_task(release: bool) -> None:
    """It claims to find all points that chosen nodes measured, with values, by asking what nodes remember."""
    assert asked_for_all_candidates(hiding(release=release, finalists=5)) == (0, 9)


def test_a_front_is_published_once_the_search_is_over() -> None:
    """It claims to learn what a node has just chosen, by asking it for its front after every round."""
    search = hiding()
    secure_only(search.worker)
    engine, strategy = SecureEngine(LocalEngine(search.worker), search.worker.pinned), search.strategy
    (node, *_) = search.worker.nodes.values()
    told: list[bool] = []
    while not strategy.done:
        request = strategy.ask(engine.nodes)
        strategy.tell(engine.send(request))
        lie = Request(replace(request.header, run="run"), "release_front", (node.name,), options={"values": False})
        (reply,) = search.worker.run(lie)
        told.append(reply.status is Status.OK)
    last = strategy.horizon - 3
    assert [step for step, ok in enumerate(told) if ok] == [last]
    early = hiding()
    (node, *_) = early.worker.nodes.values()
    node.allow(Request(Header(0, last), "release_front", (), options={"values": False}))
    with pytest.raises(RefusedError, match=f"from step {last} on: steps do not go back to 0"):  # no more of the search
        node.allow(early.strategy.ask(tuple(sorted(early.worker.nodes))))


# ------------------------------------------------------------------------------------------------ failures that tell
class Oracle:
    """A server that reads single values of a node from when its work for a secure sum fails, sum by sum."""

    def __init__(self, parties: int | None) -> None:
        given = {"name": "fdd_ea_dh", "rounds": 2, "initial": 12, "generations": 2, "points": 2}
        problem = {"name": "dtlz", "number": 2, "objectives": 2, "dim": 4, "nodes": 5}
        self.search = build_search(load_config({"problem": problem, "strategy": given, "secure": True}))
        secure_only(self.search.worker)
        self.engine = SecureEngine(LocalEngine(self.search.worker), self.search.worker.pinned)
        self.request = self.search.strategy.ask(self.engine.nodes)
        self.attempt, self.parties = 0, parties
        self.engine._agree(replace(self.request.header, run="run"))

    def fails(self, most: float) -> bool | None:
        """Return whether one value at least is above `most`, by one offer that leads to no sum; `None`: refused."""
        self.attempt += 1
        parties = self.parties or int((2**63 - 1) / (most**2 * 2.0**32))  # squares are what is added up
        work = {**self.request.options, "parties": parties}
        header = replace(self.request.header, run="run", attempt=self.attempt)
        common = {**self.request.common, MEMBERS: torch.arange(5, dtype=torch.int32)}
        options = {"task": self.request.task, "options": json.dumps(work), "attempt": 0}
        offer = Request(header, "secure_offer", self.engine.nodes[:1], common, options=options)
        (reply,) = self.search.worker.run(offer)
        if "policy" in reply.reason or "cannot be added up" in reply.reason or "begins no further" in reply.reason:
            return None
        return reply.status is not Status.OK

    def largest(self) -> tuple[float, int]:
        """Return the largest value that it finds by bisection, and how many of its questions were answered."""
        low, high, answered = 0.0, 64.0, 0
        for _ in range(30):
            told = self.fails((low + high) / 2)
            if told is None:
                break
            answered += 1
            low, high = ((low + high) / 2, high) if told else (low, (low + high) / 2)
        return (low + high) / 2, answered


def truth(search: SearchRun) -> float:
    (node, *_) = search.worker.nodes.values()
    return float(node.memory["measured"][..., :].abs().max())


def test_failures_within_secure_sums_are_no_oracle() -> None:
    """It claims to read the largest value of one node to seven digits, by 30 offers for sums of ever more nodes."""
    assert Oracle(None).largest()[1] == 0
    honest = Oracle(5)
    answers = [honest.fails(1.0) for _ in range(3)]
    assert answers == [False] * 3  # the same work again is no further one


def test_without_the_check_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secure_tasks, "_check_parties", lambda options, members, known: None)
    oracle = Oracle(None)
    assert oracle.largest()[1] == session.MOST_WORK  # of four questions at most there is an answer, all the same
    monkeypatch.setattr(session, "MOST_WORK", 100)
    oracle = Oracle(None)
    found, answered = oracle.largest()
    assert answered == 30
    assert found == pytest.approx(truth(oracle.search), rel=1e-6)


def without_policy(search: SearchRun) -> None:
    for node in search.worker.nodes.values():
        node.policy = Policy()


def remembering_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nodes recall points of their own as any other."""
    honest = queries._recalled

    def recalled(node: Node, runs: Tensor, points: Tensor) -> Tensor:
        kept = node.memory["own"]
        node.memory["own"] = torch.zeros_like(kept)
        try:
            return honest(node, runs, points)
        finally:
            node.memory["own"] = kept

    monkeypatch.setattr(queries, "_recalled", recalled)


def test_each_of_two_defences_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    search = hiding(release=False)
    without_policy(search)
    assert asked_for_all_candidates(search) == (0, 9)
    remembering_all(monkeypatch)
    assert asked_for_all_candidates(hiding(release=False)) == (0, 9)


def test_without_both_all_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    search = hiding(release=False)
    without_policy(search)
    remembering_all(monkeypatch)
    assert asked_for_all_candidates(search) == (9, 9)


@pytest.mark.parametrize(
    ("given", "task", "options"),
    [
        ({"name": "fdd_ea_dh"}, "release_front", {"values": True}),
        ({"name": "fdd_ea_dh"}, "release", {"values": False}),
        ({"name": "fdd_ea_dh"}, "select", {"publish": True}),
        ({"name": "fdd_ea_dh"}, "surrogate", {}),
        ({"name": "fdd_ea_dh", "release": False}, "measure", {"recall": True, "arithmetic": "fixed"}),
        ({"name": "fdd_ea_dh"}, "front_predict", {"surrogate": "cubic", "arithmetic": "masked", "parties": 5}),
    ],
)
def test_what_a_search_hides_no_other_task_tells(given: dict[str, Any], task: str, options: dict[str, Any]) -> None:
    search = hiding(**given)
    (node, *_) = search.worker.nodes.values()
    with pytest.raises(RefusedError, match="this node's policy allows"):
        node.policy.check_task(task, options, 0)


@pytest.mark.parametrize(
    ("uplink", "lies"),
    [("sign", ["levels", "ranks", "fitness"]), ("ranks", ["levels", "fitness"]), ("levels", ["ranks", "fitness"]),
     ("fitness", ["levels", "ranks"])],
)  # fmt: skip
def test_a_node_answers_in_the_form_that_the_method_has_chosen(uplink: str, lies: list[str]) -> None:
    """It claims to get losses where ranks are answered, or one bit, by asking for them."""
    made = build(load_config({**TOY, "strategy": {"name": "es", "population": 8, "uplink": uplink}}))
    request = made.strategy.ask(tuple(sorted(made.worker.nodes)))
    assert asked(made, request).status is Status.OK
    for lie in lies:
        task, options = ("fitness", {}) if lie == "fitness" else ("ranking", {"answer": lie})
        options = {"loss": "cross_entropy", **options}
        (reply,) = made.worker.run(replace(request, task=task, options=options))
        assert reply.status is Status.REFUSED
    reply = asked(made, request, samples=1)  # and of one sample alone no loss
    assert reply.status is Status.REFUSED


# ------------------------------------------------------------------------------------------------ any request
def everything(draw: random.Random, made: LearningRun, request: Request) -> Request:
    """Return a request that no strategy makes: another task, options of any task, tensors of any name and shape."""
    tasks = list(registry.catalogue("task"))
    options = dict(request.options)
    for key in draw.sample(["noise", "clip", "loss", "lr", "epochs", "rate", "recall", "values", "answer", "x"], 3):
        options[key] = draw.choice([0, 0.0, 1e30, -1, True, False, "train", "cross_entropy", "levels", 10**9])
    common: dict[str, Any] = dict(request.common)
    for key in draw.sample(["parameters", "population", "points", "runs", "members", "noises", "given.first"], 2):
        shape = draw.choice([(), (0,), (3,), tuple(request.common["parameters"].shape), (2, 2), (1, 1, 1)])
        common[key] = torch.full(shape, draw.choice([0.0, math.nan, math.inf, 1.0]))
    changed = draw.sample(["options", "common", "task", "header"], draw.randint(1, 4))
    header = Header(draw.randint(0, 3), draw.randint(-1, 9), "run", draw.randint(0, 2), draw.choice([1, 1, 1, 2]))
    given = {"options": options, "common": common, "task": draw.choice([request.task, *tasks, "x"]), "header": header}
    return replace(request, **{key: given[key] for key in changed})


@pytest.mark.fuzz
@pytest.mark.parametrize("strategy", ["dp_fedavg", "dp_sgd"])
def test_whatever_is_asked_a_node_tells_no_more_than_its_policy_says(strategy: str) -> None:
    """Two hundred random requests: an answer is a noised update of full size, there are as many as rounds, no fault."""
    made = private(strategy, noise=300.0, clip=1e-3)
    request = made.strategy.ask(tuple(sorted(made.worker.nodes)))
    draw = luck(f"requests of {strategy}")
    answers: dict[str, set[bytes]] = {}
    for _ in range(200 * TIMES):
        asked_for = everything(draw, made, request)
        for reply in made.worker.run(asked_for):
            if reply.status is not Status.OK:
                assert not reply.payload
                continue
            assert set(reply.payload) == {"delta", "clients"}
            wanted = 1e-3 * 300 / (2 if strategy == "dp_fedavg" else 50 * 10)  # of one step of dp_sgd, at lr = 0.1
            assert float(reply.payload["delta"].std()) > 0.8 * wanted
            answers.setdefault(reply.node, set()).add(reply.payload["delta"].numpy().tobytes())
    assert all(len(different) <= ROUNDS for different in answers.values())
