"""Nodes of FNE: who evaluates in which generation, and how generations are dealt among nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fne.core.dataset import Samples
from fne.core.errors import SettingError
from fne.strategies.fne import FNE
from tests.strategies.fne_parts import NODES, fne, step


def asked(strategy: FNE, at: int, nodes: Sequence[str] = NODES) -> tuple[str, ...]:
    strategy.step = at
    return strategy.ask(nodes).nodes


# ------------------------------------------------------------------------------------------------ node choice
def test_all_nodes(lab: SimpleNamespace) -> None:
    assert asked(fne(lab.task, nodes="all"), 3) == NODES


@pytest.mark.parametrize("size", [1, 2, 5])
def test_random_subsets_are_a_function_of_seed_and_step(lab: SimpleNamespace, size: int) -> None:
    first, again, other = (fne(lab.task, nodes="random_subset", subset_size=size, seed=s) for s in (0, 0, 1))
    drawn = [asked(first, t) for t in range(200)]
    assert all(len(set(nodes)) == size and nodes == tuple(sorted(nodes)) for nodes in drawn)
    assert [asked(again, t) for t in reversed(range(200))] == drawn[::-1]
    if size < 5:
        assert [asked(other, t) for t in range(200)] != drawn
        counts = [sum(name in nodes for nodes in drawn) for name in NODES]
        assert all(abs(c - 40 * size) < 25 for c in counts)  # sd at most 7


def test_a_subset_is_kept_for_as_long_as_told(lab: SimpleNamespace) -> None:
    strategy = fne(lab.task, subset_size=2, subset_every=3)
    drawn = [asked(strategy, t) for t in range(60)]
    assert all(len(set(drawn[t : t + 3])) == 1 for t in range(0, 60, 3))
    assert len(set(drawn)) > 5


def test_the_window_moves_one_node_to_the_right_and_wraps_around(lab: SimpleNamespace) -> None:
    strategy = fne(lab.task, nodes="moving_window", window_size=2, window_every=3)
    wanted = ["ab", "bc", "cd", "de", "ae", "ab"]
    assert ["".join(asked(strategy, t)) for t in range(18)] == [w for w in wanted for _ in range(3)]


def test_a_single_sample_of_a_single_node(lab: SimpleNamespace) -> None:
    strategy = fne(lab.task, nodes="single_sample")
    drawn = [asked(strategy, t) for t in range(50)]
    assert {len(nodes) for nodes in drawn} == {1}
    assert set(sum(drawn, ())) == set(NODES)
    strategy.step = 0
    assert strategy.ask(NODES).options == {"loss": "nmse", "samples": 1}
    _, metrics = step(fne(lab.task, nodes="single_sample"), lab)
    assert metrics["loss_best"] >= 0
    assert fne(lab.task).ask(NODES).options["samples"] == 0


@pytest.mark.parametrize("more", [{"nodes": "all"}, {"deal": True, "deal_groups": 3}])
def test_some_samples_of_each_node_the_same_for_all_individuals(lab: SimpleNamespace, more: dict[str, Any]) -> None:
    strategy = fne(lab.task, samples_per_node=4, **more)
    request = strategy.ask(lab.engine.nodes)
    assert request.options == {"loss": "nmse", "samples": 4}
    strategy.lineage.genomes[:] = strategy.lineage.genomes[0]
    request, metrics = step(strategy, lab)
    counts = {r.node: int(r.payload["samples"]) for r in lab.engine.send(replace(request, reduce="none")).replies}
    assert counts == {"n0": 3, "n1": 4, "n2": 4, "n3": 4, "n4": 4}
    values = set(metrics["_fitness"].tolist())
    assert len(values) == (1 if more == {"nodes": "all"} else 3)  # one a group
    assert step(strategy, lab)[1]["loss_best"] not in values  # drawn anew


@pytest.mark.parametrize("kind", ["random_subset", "moving_window", "single_sample"])
def test_all_nodes_every_so_many_generations(lab: SimpleNamespace, kind: str) -> None:
    strategy = fne(lab.task, nodes=kind, full_every=4)
    assert [t for t in range(12) if asked(strategy, t) == NODES] == [3, 7, 11]


def test_in_a_full_generation_all_nodes_evaluate_all_their_samples(lab: SimpleNamespace) -> None:
    strategy = fne(lab.task, nodes="single_sample", full_every=3)
    for t in range(6):
        request = strategy.ask(lab.engine.nodes)
        round_ = lab.engine.send(request)
        strategy.tell(round_)
        full = t in (2, 5)
        assert request.options["samples"] == (0 if full else 1)
        assert round_.replies[0].payload["samples"].item() == (3 + 9 + 5 + 14 + 7 if full else 1)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"subset_size": 6}, "subset_size"),
        ({"nodes": "moving_window", "window_size": 6}, "window_size"),
        ({"deal": True, "deal_groups": 6}, "deal_groups"),
    ],
)
def test_more_nodes_than_there_are(lab: SimpleNamespace, settings: dict[str, Any], key: str) -> None:
    with pytest.raises(SettingError, match=rf"strategy\.{key} = 6: must be at most the number of nodes, 5"):
        fne(lab.task, **settings).ask(NODES)


# ------------------------------------------------------------------------------------------------ dealing
def test_dealing_leaves_no_node_idle_and_no_slice_alone(lab: SimpleNamespace) -> None:
    strategy = fne(lab.task, deal=True, deal_groups=3)
    groups_seen = set()
    for _ in range(6):
        request = strategy.ask(lab.engine.nodes)
        assert request.nodes == lab.engine.nodes
        population = strategy.lineage.genomes
        slices = [population[:4], population[4:8], population[8:]]
        groups: list[list[str]] = [[], [], []]
        for node, private in request.private.items():
            (g,) = (g for g in range(3) if torch.equal(private["population"], slices[g]))
            groups[g].append(node)
        assert sorted(len(g) for g in groups) == [1, 2, 2]
        groups_seen.add(str(groups))
        metrics = strategy.tell(lab.engine.send(request))
        for g, members in enumerate(groups):
            data = [lab.worker.nodes[name].data for name in members]
            together = Samples(torch.cat([d.x for d in data]), torch.cat([d.y for d in data]))
            wanted = lab.evaluator.evaluate(slices[g], together, loss="nmse")["loss"]
            assert torch.allclose(metrics["_fitness"][4 * g : 4 * g + 4], wanted, rtol=1e-6)
    assert len(groups_seen) > 3  # shuffled anew


def test_a_slice_that_nobody_answered_for_cannot_win(lab: SimpleNamespace) -> None:
    strategy = fne(lab.task, deal=True, deal_groups=3)
    request = strategy.ask(lab.engine.nodes)
    lost = strategy.lineage.genomes[:4].clone()
    round_ = lab.engine.send(request)
    silent = {n for n, p in request.private.items() if torch.equal(p["population"], lost)}
    metrics = strategy.tell(replace(round_, replies=tuple(r for r in round_.replies if r.node not in silent)))
    assert bool(metrics["_fitness"][:4].isinf().all())
    assert bool(metrics["_fitness"][4:].isfinite().all())
    assert metrics["evaluations"] == 8


@pytest.mark.parametrize("settings", [{"deal_groups": 5}, {"nodes": "all"}, {"nodes": "moving_window"}])
def test_what_cannot_be_dealt(lab: SimpleNamespace, settings: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=r"strategy\.deal = true: must be used with nodes=random_subset"):
        fne(lab.task, deal=True, **settings)
