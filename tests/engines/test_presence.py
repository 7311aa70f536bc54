"""Nodes that come and go: who is listed, who answers, how often they are away."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fne.config.load import load_config
from fne.core.errors import FneError
from fne.core.messages import Header, Request, Status
from fne.engines.availability import Availability
from fne.engines.local import LocalEngine
from fne.federation.lineage_codec import LineageCodec
from fne.run.learning_run import build
from fne.run.train import train
from fne.watch.history import read_history

NODES = tuple(f"n{i}" for i in range(8))


def presence(run: str = "run", **changed: Any) -> Availability:
    return Availability(NODES, run, **{"away": 0.3, "stretch": 4, "least": 1, **changed})


def test_nobody_is_away_where_that_is_not_asked_for() -> None:
    always = presence(away=0.0)
    assert all(always.available(step) == set(NODES) and always.listed(step) == NODES for step in range(20))


@pytest.mark.parametrize("away", [0.1, 0.3, 0.7])
def test_nodes_are_away_for_their_share_of_the_time(away: float) -> None:
    steps = 4000
    some = presence(away=away)
    absent = sum(len(NODES) - len(some.available(step)) for step in range(steps)) / (steps * len(NODES))
    # 8,000 stretches: a standard deviation of at most 0.0056
    assert absent == pytest.approx(away, abs=0.025)


def test_a_node_stays_as_it_is_for_whole_stretches_that_begin_at_different_steps() -> None:
    some = presence(stretch=6)
    changes = {name: [s for s in range(1, 300) if (name in some.available(s)) != (name in some.available(s - 1))]
               for name in NODES}  # fmt: skip
    residues = {name: {step % 6 for step in steps} for name, steps in changes.items()}
    assert all(len(of_node) == 1 for of_node in residues.values())
    assert len(set().union(*residues.values())) > 1


def test_one_that_leaves_is_listed_once_more_and_one_that_comes_at_once() -> None:
    some = presence()
    assert some.listed(0) == NODES
    for step in range(1, 200):
        now, before = some.available(step), some.available(step - 1)
        assert set(some.listed(step)) == now | before
        assert list(some.listed(step)) == sorted(some.listed(step))
    assert any(some.available(step - 1) - some.available(step) for step in range(1, 200))


def test_so_many_are_always_there() -> None:
    scarce = presence(away=0.95, least=3)
    sizes = {len(scarce.available(step)) for step in range(300)}
    assert min(sizes) == 3


def test_it_is_the_same_at_any_time_and_another_for_another_run() -> None:
    forward = [presence().available(step) for step in range(50)]
    backward = [presence().available(step) for step in reversed(range(50))]
    assert forward == backward[::-1]
    assert forward != [presence("other").available(step) for step in range(50)]


def config(**changed: Any) -> dict[str, Any]:
    return {
        "name": "presence", "data": {"name": "toy", "nodes": 6}, "model": {"name": "mlp", "hidden": [4]},
        "strategy": {"name": "fedavg", "rounds": 12, "fraction": 1.0}, "watch": {"tensorboard": False}, **changed,
    }  # fmt: skip


def test_the_engine_has_no_answer_of_one_that_has_left() -> None:
    made = build(load_config(config()))
    engine = LocalEngine(made.worker, "run", away=0.5, stretch=3)
    there = Availability(sorted(made.nodes), "run", away=0.5, stretch=3, least=1)
    left = 0
    for step in range(12):
        listed = there.listed(step)
        assert engine.nodes == listed
        request = made.strategy.ask(engine.nodes)
        assert request.header == Header(0, step)
        assert isinstance(request, Request)
        round_ = engine.send(request)
        gone = set(listed) - there.available(step)
        assert {failure.node: failure.reason for failure in round_.failures} == dict.fromkeys(gone, "the node has left")
        assert set(round_.per_node) == set(listed) - gone
        assert set(round_.traffic.encoded_down) == set(listed)  # it was sent all the same
        left += len(gone)
        made.strategy.tell(round_)
    assert left > 0


def test_a_step_has_its_quorum(tmp_path: Path) -> None:
    """One node a step, and two: now and then it is one that has just left, and it stays until its answer is there."""
    for quorum, fraction in ((1, 0.1), (2, 1.0)):
        few = config(
            engine={"away": 0.6, "stretch": 1, "quorum": quorum},
            strategy={"name": "fedavg", "rounds": 40, "fraction": fraction},
        )
        train(few, out=tmp_path / str(quorum))
        lines = read_history(tmp_path / str(quorum))
        assert min(len(line["per_node"]) for line in lines) == quorum


def test_one_that_has_left_is_not_billed_for_what_it_did_not_get(tmp_path: Path) -> None:
    """A codec does not take it that the node follows: when it is back, it is brought up from where it was."""
    evolved = config(
        strategy={"name": "fne", "population": 8, "parents": 3, "rounds": 12, "subset_size": 6}, wire="lineage"
    )
    made = build(load_config(evolved))
    strategy, engine = made.strategy, LocalEngine(made.worker, "run", away=0.5, stretch=2)
    settings = {"strategy": "fne", "seed": 0, "settings": made.config.strategy.settings}
    codec, gone = LineageCodec(engine, strategy, settings), 0
    for step in range(12):
        before = codec.state_dict()["held"]
        round_ = codec.send(strategy.ask(codec.nodes))
        after = codec.state_dict()["held"]
        for failure in round_.failures:
            assert failure.status is Status.GONE
            assert after.get(failure.node) == before.get(failure.node)
            gone += 1
        assert all(after[node] == step for node in round_.per_node)
        strategy.tell(round_)
    assert gone > 0


@pytest.mark.parametrize(
    "choice", [{"subset_size": 6}, {"nodes": "moving_window", "window_size": 5}, {"deal": True, "deal_groups": 4}]
)
def test_where_fewer_are_there_than_are_asked_for_it_is_all_of_them(choice: dict[str, Any], tmp_path: Path) -> None:
    fne = {"name": "fne", "population": 8, "parents": 3, "rounds": 20, **choice}
    summary = train(config(strategy=fne, engine={"away": 0.5, "stretch": 2}), out=tmp_path / "run")
    assert summary["finished"]
    answered = [len(line["per_node"]) for line in read_history(tmp_path / "run")]
    assert min(answered) < 4


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"secure": True}, "engine.away = 0.3: must be 0 with secure sums"),
        ({"strategy": {"name": "centralised", "rounds": 2}}, "engine.away = 0.3: must be 0 with a method that is not"),
        ({"engine": {"away": 1.0}}, "engine.away = 1.0"),
        ({"engine": {"stretch": 0}}, "engine.stretch = 0"),
    ],
)
def test_mistakes_are_told_by_key(given: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(FneError, match=re.escape(text)):
        train(config(**{"engine": {"away": 0.3}, **given}), out=tmp_path / "run")


def test_in_a_search_all_are_there(tmp_path: Path) -> None:
    with pytest.raises(FneError, match=re.escape("engine.away = 0.2: must be 0 in a search")):
        train("fdd_ea_ellipsoid", ["engine.away=0.2"], out=tmp_path / "run")
