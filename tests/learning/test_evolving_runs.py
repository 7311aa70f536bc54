"""Runs of es, snes, sep_cma and de: what nodes send, what they share with FNE, that they resume and learn."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fne.config.registry import load
from fne.core.errors import SettingError
from fne.core.messages import Reply
from fne.evolution.evaluate import Plan
from fne.evolution.shaping import packed
from fne.loop import run
from tests.learning.evolving_parts import METHODS, NODES, Build, Clouds, linear, make, step


# ------------------------------------------------------------------------------------------------ uplink
def test_one_node_that_ranks_is_as_good_as_one_that_tells(lab: SimpleNamespace) -> None:
    """With a node a generation the ranks of ranks are the ranks of losses, and a single pair's sign is its rank."""
    for modes, count in ((("fitness", "ranks"), 10), (("fitness", "ranks", "sign"), 2)):
        results = []
        for uplink in modes:
            strategy = make("es", lab.task, population=count, uplink=uplink)
            run(strategy, lab.engine)
            results.append(strategy.result().parameters)
        assert all(torch.equal(result, results[0]) for result in results)


def test_votes_and_ranks_are_weighted_by_samples(lab: SimpleNamespace) -> None:
    """Three pairs, nodes of 9, 5 and 14 samples: worked out by hand."""
    votes = {"n0": [True, False, True], "n1": [False, False, True], "n2": [True, True, False]}
    ranks = {"n0": [0, 1, 2, 3, 4, 5], "n1": [5, 4, 3, 2, 1, 0], "n2": [1, 1, 1, 3, 4.5, 4.5]}
    by_hand = {
        "sign": torch.tensor([9 - 5 + 14, -9 - 5 + 14, 9 + 5 - 14]) / 28,
        "ranks": torch.tensor([25 + 14, 9 + 20 + 14, 18 + 15 + 14, 27 + 10 + 42, 36 + 5 + 63, 45 + 63]) / 28,
    }
    seen: list[Tensor] = []
    for uplink, wanted in by_hand.items():
        strategy = make("es", lab.task, population=6, uplink=uplink, subset_size=3)
        request = strategy.ask(NODES)
        round_ = lab.engine.send(request)
        told = tuple(
            Reply(reply.header, reply.node, payload={
                **{k: v for k, v in reply.payload.items() if k in ("samples", "nonfinite")},
                **({"signs": packed(torch.tensor(votes[reply.node]))} if uplink == "sign" else
                   {"ranks": (2 * torch.tensor(ranks[reply.node])).to(torch.uint8)}),
            })
            for reply in round_.replies
        )  # fmt: skip
        proposer: Any = strategy.lineage
        proposer.decide = lambda scores, decide=proposer.decide: seen.append(scores) or decide(scores)
        metrics = strategy.tell(replace(round_, replies=told))
        scores = torch.cat([-wanted, wanted]) if uplink == "sign" else wanted
        assert torch.allclose(seen[-1], scores.double(), rtol=1e-6)
        assert (metrics["loss_best"], metrics["loss_mean"], metrics["evaluations"]) == (None, None, 6)


@pytest.mark.parametrize(
    ("uplink", "count", "payload"),
    [
        ("fitness", 40, 4 * 40 + 8), ("levels", 40, 40 + 8 + 2), ("ranks", 40, 40 + 2), ("sign", 40, 3 + 2),
        ("sign", 64, 4 + 2), ("ranks", 300, 602),
    ],
)  # fmt: skip
def test_what_a_node_sends_is_as_short_as_said(lab: SimpleNamespace, uplink: str, count: int, payload: int) -> None:
    strategy = make("es", lab.task, population=count, uplink=uplink, subset_size=3)
    round_ = lab.engine.send(strategy.ask(NODES))
    assert round_.traffic.payload_up == dict.fromkeys(NODES, payload)
    assert all(encoded < payload + 260 for encoded in round_.traffic.encoded_up.values())
    assert round_.traffic.payload_down == dict.fromkeys(NODES, 4 * 15 * count)
    strategy = make("es", lab.task, population=count, uplink=uplink, subset_size=3, rank=1)
    round_ = lab.engine.send(strategy.ask(NODES))  # a centre, (3 + 4) + 3 bytes a pair, sigma of two leaves
    assert round_.traffic.payload_up == dict.fromkeys(NODES, payload)
    assert round_.traffic.payload_down == dict.fromkeys(NODES, 4 * 15 + 10 * count // 2 + 4 * 2)


# ------------------------------------------------------------------------------------------------ shared with FNE
@pytest.mark.parametrize("name", METHODS)
def test_nodes_and_samples_are_chosen_as_fne_chooses_them(lab: SimpleNamespace, name: str) -> None:
    strategy = make(name, lab.task, rounds=20, subset_size=2, samples_per_node=4)
    fne = load("strategy", "fne")(lab.task, seed=0, rounds=20, subset_size=2, samples_per_node=4)
    for _ in range(20):
        request, theirs = strategy.ask(NODES), fne.ask(NODES)
        assert (request.nodes, request.options) == (theirs.nodes, theirs.options)
        assert (request.task, request.reduce) == ("fitness", "sum")
        for one, asked in ((strategy, request), (fne, theirs)):
            one.tell(lab.engine.send(asked))
    with pytest.raises(SettingError, match=r"strategy\.subset_size = 4: must be at most the number of nodes, 3"):
        make(name, lab.task, subset_size=4).ask(NODES)


@pytest.mark.parametrize(("returns", "kept"), [("last", 3), ("best", 1)])
@pytest.mark.parametrize("name", METHODS)
def test_the_model_of_the_run(lab: SimpleNamespace, name: str, returns: str, kept: int) -> None:
    script = iter([0.5, 0.7, 0.7, 0.6])

    def evaluate(population: Tensor, **_: Any) -> dict[str, Tensor]:
        validated.append(population[0])
        return {"loss": torch.ones(1), "accuracy": torch.tensor([next(script)])}

    validated: list[Tensor] = []
    strategy = make(name, replace(lab.task, evaluate=evaluate), rounds=4, returns=returns)
    while not strategy.done:
        _, metrics = step(strategy, lab)
        assert torch.equal(strategy.champion().parameters, validated[-1])
    assert metrics["accuracy_validation"] == pytest.approx(0.6)
    assert len({tuple(genes.tolist()) for genes in validated}) > 1
    assert torch.equal(strategy.result().parameters, validated[kept])


@pytest.mark.parametrize("policy", ["identity", "server", "batch"])
def test_batch_normalisation(laboratory: Build, clouds: Clouds, policy: Any) -> None:
    held = clouds(60, seed=1)["n0"]
    lab = laboratory(lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3), nn.BatchNorm1d(3)), clouds(9, 5), held)
    statistics = None if policy == "identity" else lambda genes: lab.evaluator.statistics(genes, held.x)
    lab.task = replace(lab.task, batch_norm=policy, statistics=statistics)
    strategy = make("snes", lab.task)
    for _ in range(3):
        centre = strategy.champion()
        wanted = lab.task.buffers_for(centre.parameters)
        assert all(torch.equal(centre.buffers[name], value) for name, value in wanted.items())
        request, metrics = step(strategy, lab)
        sent = {k.removeprefix("buffer."): v for k, v in request.common.items() if k != "population"}
        assert list(sent) == (list(wanted) if policy == "server" else [])
        assert all(torch.equal(sent[name], wanted[name]) for name in sent)
        assert request.options.get("statistics") == ("batch" if policy == "batch" else None)
        data = lab.worker.nodes[request.nodes[0]].data
        if policy != "batch":
            losses = lab.evaluator.evaluate(request.common["population"], data, loss="nmse", buffers=wanted)["loss"]
            assert torch.allclose(metrics["_fitness"], losses, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("es", {"optimizer": "sgd", "momentum": 0.9, "sigma_final": 0.5}),
        ("es", {"uplink": "levels", "subset_size": 3}),
        ("es", {"uplink": "sign", "subset_size": 3}),
        ("es", {"uplink": "ranks", "subset_size": 2, "samples_per_node": 4}),
        ("es", {"rank": 1, "sigma_final": 0.5}),
        ("es", {"rank": 1, "uplink": "sign", "subset_size": 3}),
        ("snes", {"eta_final": 0.1, "returns": "best"}),
        ("sep_cma", {}),
        ("de", {"variant": "best/1/bin"}),
        ("de", {"variant": "current-to-best/1/bin", "returns": "best"}),
    ],
)
@pytest.mark.parametrize("stop", [0, 1, 3])
def test_a_resumed_run_ends_with_the_same_bits(
    lab: SimpleNamespace, name: str, settings: dict[str, Any], stop: int, tmp_path: Any
) -> None:
    whole = make(name, lab.task, **settings)
    history: list[dict[str, Any]] = []
    run(whole, lab.engine, callbacks=[lambda s, r, m: history.append(m)])
    first = make(name, lab.task, **settings)
    if stop:
        run(first, lab.engine, callbacks=[lambda s, r, m: s.step == stop])
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second = make(name, lab.task, **settings)
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    again: list[dict[str, Any]] = []
    run(second, lab.engine, callbacks=[lambda s, r, m: again.append(m)])
    assert torch.equal(second.result().parameters, whole.result().parameters)
    assert torch.equal(second.champion().parameters, whole.champion().parameters)
    volatile = {"seconds", "_fitness"}
    for old, new in zip(history[stop:], again, strict=True):
        assert {k: v for k, v in old.items() if k not in volatile} == {
            k: v for k, v in new.items() if k not in volatile
        }


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("es", {"population": 7}, r"strategy\.population = 7: must be even: candidates come in antithetic pairs"),
        ("es", {"momentum": 0.5}, r"strategy\.momentum = 0\.5: must be 0 with optimizer = adam: only sgd has momentum"),
        (
            "es", {"uplink": "sign", "shape": "raw"},
            r"strategy\.shape = 'raw': must be ranks with uplink = sign: its weights are the votes",
        ),
        ("es", {"lr": 0.5, "weight_decay": 2.5}, r"strategy\.weight_decay = 2\.5: must be at most 2, 1 over"),
        ("es", {"lr": 0.5, "lr_final": 4.0, "weight_decay": 0.6}, r"weight_decay = 0\.6: must be at most 0\.5, 1 over"),
        ("snes", {"population": 1}, r"strategy\.population = 1: must be at least 2, or 0"),
        ("sep_cma", {"population": 1}, r"strategy\.population = 1: must be at least 2, or 0"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_said(lab: SimpleNamespace, name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        make(name, lab.task, **settings)


@pytest.mark.parametrize("name", METHODS)
def test_a_linear_problem_is_learnt(laboratory: Build, clouds: Clouds, name: str) -> None:
    """Three separable classes on six unequal nodes, two of which evaluate a generation; chance is a third."""
    lab = laboratory(linear, clouds(10, 30, 20, 40, 15, 25), clouds(200, seed=1)["n0"], plan=Plan("vmap", 64, 512))
    strategy = make(name, lab.task, population=20, rounds=60, subset_size=2)
    run(strategy, lab.engine)
    got = lab.evaluator.evaluate(strategy.result().parameters.unsqueeze(0), clouds(300, seed=2)["n0"], loss="nmse")
    assert got["accuracy"].item() >= 0.95
