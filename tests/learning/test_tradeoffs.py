"""FedMOEAC and NSGA-II: what is sent and counted, who mates and survives, what is accounted."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fne.cli.main import main
from fne.config.load import load_config
from fne.core.errors import FneError, RunError
from fne.core.messages import Request
from fne.core.randomness import generator
from fne.engines.local import LocalEngine
from fne.evolution.pareto import ClusterSelection, FrontSelection, offspring
from fne.learning.tradeoffs import Tradeoffs
from fne.privacy.compression import decode, prepare
from fne.privacy.policy import Policy
from fne.privacy.score import score_eq7
from fne.run.learning_run import build
from fne.run.train import load_model, train
from fne.watch.history import read_history

METHODS = ("fed_moeac", "nsga2")
SMALL = {"population": 4, "generations": 2, "rounds_per_evaluation": 2, "epochs": 1, "batch_size": 16}

LOUD = {"score_bounds": [0.01, 1.0]}
"""So much noise that the tight account of a whole run takes a moment, where the account is not what is tested."""


def config(method: str = "fed_moeac", **settings: Any) -> dict[str, Any]:
    return {
        "name": "tradeoffs", "data": {"name": "toy", "nodes": 5}, "model": {"name": "mlp", "hidden": [6]},
        "strategy": {"name": method, **SMALL, **settings}, "watch": {"tensorboard": False, "checkpoint_every": 1},
    }  # fmt: skip


def made(method: str = "fed_moeac", **settings: Any) -> tuple[Tradeoffs, LocalEngine]:
    experiment = build(load_config(config(method, **settings)))
    assert isinstance(experiment.strategy, Tradeoffs)
    return experiment.strategy, LocalEngine(experiment.worker)


def uniform(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=generator("tradeoffs", seed), dtype=torch.float64)


# ------------------------------------------------------------------------------------------------ sending
def test_with_nothing_taken_away_it_is_fedavg_bit_for_bit() -> None:
    strategy, engine = made(
        start=[[0, 32, 0]] * 4, clip=0.0, rounds_per_evaluation=6, generations=0, batch_size=7, epochs=2
    )
    given = config() | {"strategy": {"name": "fedavg", "rounds": 6, "fraction": 0.4, "local_epochs": 2, "batch_size": 7,
                                     "lr": 0.1, "loss": "cross_entropy", "returns": "last"}}  # fmt: skip
    other = build(load_config(given))
    fedavg, plain = other.strategy, LocalEngine(other.worker)
    while not fedavg.done:
        strategy.tell(engine.send(strategy.ask(engine.nodes)))
        fedavg.tell(plain.send(fedavg.ask(plain.nodes)))
        wanted = fedavg.state_dict()["weights"]
        weights = strategy.state_dict()["groups"]["trained"]["weights"]
        assert all(torch.equal(own, wanted) for own in weights)


@pytest.mark.parametrize("order", ["proper", "literal"])
def test_the_bytes_of_a_trade_off_are_those_on_the_wire(order: str) -> None:
    strategy, engine = made(order=order, generations=0)
    size = strategy.result().parameters.numel()
    sent = torch.zeros(4, dtype=torch.float64)
    for _ in range(2):
        round_ = engine.send(strategy.ask(engine.nodes))
        assert len(round_.replies) == 2
        for reply in round_.replies:
            sent += torch.tensor([reply.payload[f"update.{i}"].numel() for i in range(4)])
        payload = sum(round_.traffic.payload_up.values())
        assert payload == sum(v.nbytes for reply in round_.replies for v in reply.payload.values())
        strategy.tell(round_)
    _, rows = strategy.population()
    for row, total in zip(rows, sent.tolist(), strict=True):
        assert row["communication"] == pytest.approx(total / (2 * 2 * 4 * size))
    if order == "proper":
        assert min(row["communication"] for row in rows) < 0.5


def test_a_node_sends_what_its_own_noise_makes_of_its_update() -> None:
    """Computed again from the node's secret; with others the payload is another one, and the same with its own."""
    strategy, engine = made(generations=0)
    request = strategy.ask(engine.nodes)
    first, again = (engine.send(request).replies[0] for _ in range(2))
    assert torch.equal(first.payload["update.0"], again.payload["update.0"])
    experiment = build(load_config(config(generations=0) | {"seed": 0}))
    node = experiment.worker.nodes[first.node]
    node.secrets = type(node.secrets)(bytes(32), simulated=True)
    other = LocalEngine(experiment.worker).send(request).replies[0]
    assert torch.equal(other.payload["samples"], first.payload["samples"])
    assert "loss" not in first.payload  # it would be told without noise
    assert not torch.equal(other.payload["update.0"], first.payload["update.0"])


@pytest.mark.parametrize("noise", ["coordinate", "total"])
def test_noise_is_of_the_size_that_the_setting_says(noise: str) -> None:
    """What a node sends with noise, less what it sends without: on each weight, or all of it together, sigma clips."""
    sent = {}
    for label, score in (("noised", [0.1, 10.0]), ("almost not", [1e5, 1e9])):
        strategy, engine = made(noise=noise, generations=0, clip=0.5, bits=[32], epochs=1, score_bounds=score)
        state = strategy.state_dict()
        state["groups"]["trained"]["genes"][:, 0] = -1  # nothing is pruned
        strategy.load_state_dict(state)
        request = strategy.ask(engine.nodes)
        parts = build(load_config(config())).task.layout.leaves
        reply = engine.send(request).replies[0]
        sent[label] = [decode(reply.payload[f"update.{i}"], parts) for i in range(4)], request.common["noises"]
    d = strategy.result().parameters.numel()
    for one, other, sigma in zip(sent["noised"][0], sent["almost not"][0], sent["noised"][1].tolist(), strict=True):
        size = float((one - other).double().norm())
        wanted = sigma * 0.5 * (math.sqrt(d) if noise == "coordinate" else 1.0)
        assert size == pytest.approx(wanted, rel=4 / math.sqrt(2 * d))


# ------------------------------------------------------------------------------------------------ genes
def test_the_start_is_the_papers_and_genes_stay_in_bounds() -> None:
    strategy, _ = made(population=3000, score_bounds=[0.01, 1000.0])
    thresholds, bits, noises = strategy.decoded(strategy.state_dict()["groups"]["trained"]["genes"])
    assert float(thresholds.mean()) == pytest.approx(0.3, abs=0.01)
    assert float(thresholds.std()) == pytest.approx(0.1, abs=0.01)
    assert float(noises.mean()) == pytest.approx(6, abs=0.2)
    assert float(noises.std()) == pytest.approx(2.5, abs=0.2)
    assert [int((bits == b).sum()) for b in (32, 16, 8)] == pytest.approx([1000] * 3, rel=0.1)
    corners = torch.tensor([[-1.0, -1, -1], [1, 1, 1]], dtype=torch.float64)
    for threshold, bit, noise, expected in zip(*strategy.decoded(corners), [(0, 32, 1000.0), (0.95, 8, 0.01)],
                                               strict=True):  # fmt: skip
        score = score_eq7(2, 1e-5, 0.4, float(noise))
        assert (float(threshold), int(bit), score) == pytest.approx(expected)


def test_children_are_of_their_parents_and_inside() -> None:
    genes = 2 * uniform(10, 3) - 1
    pairs = (uniform(20_000, 2, seed=1) * 10).long()
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    children = offspring(genes, pairs, generator("draw"))
    assert children.abs().max() <= 1
    same = children == genes[pairs[:, 0]]
    assert not bool(same.all(dim=1).any())  # nobody is evaluated twice
    # a gene stays the first parent's: it is not mutated (0.9), and not crossed (1 - 0.9 * 0.5); but of those that would
    # stay in all three genes one is changed
    stays = 0.9 * (1 - 0.45)
    untouched = 0.9**3 * (0.1 + 0.9 * 0.5**3)
    assert float(same.double().mean()) == pytest.approx(stays - untouched / 3, abs=0.01)


def test_nobody_is_evaluated_twice() -> None:
    """A nudge of the gene of the bits leaves them as they are: of children it is what they mean that is compared."""
    strategy, _ = made(population=200)
    genes = strategy.state_dict()["groups"]["trained"]["genes"][:10]
    pairs = (uniform(5000, 2, seed=3) * 10).long()
    children = offspring(genes, pairs, generator("draw"), strategy._genes.meaning)
    known = {tuple(row) for row in strategy._genes.meaning(genes).tolist()}
    assert not known & {tuple(row) for row in strategy._genes.meaning(children).tolist()}
    careless = offspring(genes, pairs, generator("draw"))
    assert known & {tuple(row) for row in strategy._genes.meaning(careless).tolist()}
    one = {bits: int((strategy._genes.meaning(children)[:, 1] == bits).sum()) for bits in (32, 16, 8)}
    assert min(one.values()) > 500  # bits go on to change


# ------------------------------------------------------------------------------------------------ selection
def test_nsga2_selects_as_pymoo_does() -> None:
    from pymoo.core.individual import Individual
    from pymoo.core.population import Population
    from pymoo.core.problem import Problem
    from pymoo.operators.survival.rank_and_crowding import RankAndCrowding

    for seed in range(5):
        values = uniform(30, 3, seed=seed)
        population = Population.create(*[Individual(F=row, X=np.array([i])) for i, row in enumerate(values.numpy())])
        kept = RankAndCrowding().do(Problem(n_var=1, n_obj=3), population, n_survive=12)
        ours = [
            (population[i].get("rank"), population[i].get("crowding")) for i in FrontSelection().survivors(values, 12)
        ]
        # of the last front some have the same, infinite distance, of which pymoo draws
        assert sorted(ours) == sorted(zip(kept.get("rank"), kept.get("crowding"), strict=True))


def test_of_each_cluster_the_best_survives() -> None:
    values = torch.tensor(
        [[0.1, 9], [0.2, 18], [5, 5], [9, 0.1], [4, 4.2], [18, 0.3], [math.inf, 1]], dtype=torch.float64
    )
    kept = ClusterSelection(2, "distance").survivors(values, 3).tolist()
    assert len(set(kept)) == 3
    assert {0, 3} < set(kept)
    assert ClusterSelection(2, "sum").survivors(values, 7).tolist() == list(range(7))


def test_only_fronts_that_are_needed_are_clustered() -> None:
    """By hand: (9, 9.1) is dominated, but its direction is its own, so of all it would survive."""
    values = torch.tensor([[1.0, 2.0], [1.1, 1.9], [2.0, 1.0], [0.1, 9.0], [9.0, 9.1], [9.0, 0.2], [0.2, 30.0]])
    assert 4 in ClusterSelection(2, "distance").survivors(values, 5).tolist()
    kept = ClusterSelection(2, "distance", fronts=True).survivors(values, 5)
    assert kept.tolist() == [0, 1, 2, 3, 5]
    for seed in range(5):
        drawn = uniform(20, 3, seed=seed)
        kept = ClusterSelection(3, "sum", fronts=True).survivors(drawn, 10)
        better = (drawn.unsqueeze(0) <= drawn.unsqueeze(1)).all(dim=2) & (drawn.unsqueeze(0) < drawn.unsqueeze(1)).any(
            dim=2
        )
        if int((~better.any(dim=1)).sum()) >= 10:
            assert not bool(better[kept].any())
        assert len(set(kept.tolist())) == 10


@pytest.mark.parametrize("selection", [ClusterSelection(3, "distance"), FrontSelection()])
def test_mating(selection: Any) -> None:
    genes, values = 2 * uniform(9, 3) - 1, uniform(9, 3, seed=2)
    children, first = selection.children(genes, values, 9, generator("mating"))
    assert children.shape == (9, 3)
    assert set(first.tolist()) <= set(range(9))
    again, _ = selection.children(genes, values, 9, generator("mating"))
    assert torch.equal(children, again)
    _, first = selection.children(genes[:2], values[:2], 40, generator("mating"))
    both, _ = selection.children(genes[:2], values[:2], 40, generator("mating"))
    moved = (both != genes[first]).double().mean()
    assert moved > 0.3  # two cross: of mutation alone a tenth of the genes would be changed
    alone, parents = selection.children(genes[:1], values[:1], 4, generator("mating"))
    assert parents.tolist() == [0] * 4
    assert alone.shape == (4, 3)


# ------------------------------------------------------------------------------------------------ runs
@pytest.mark.parametrize("method", METHODS)
def test_a_run_yields_a_front_and_what_it_cost(method: str, tmp_path: Path) -> None:
    summary = train(config(method), out=tmp_path / "run")
    with (tmp_path / "run/front.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4
    assert set(rows[0]) == {
        "threshold", "bits", "noise", "error", "communication", "score", "epsilon", "on_front", "error_test",
    }  # fmt: skip
    assert summary["front_size"] == sum(row["on_front"] == "True" for row in rows)
    best = min(rows, key=lambda row: float(row["error"]))
    assert summary["accuracy_test"] == pytest.approx(1 - float(best["error_test"]))
    history = read_history(tmp_path / "run")
    weighed = [line for line in history if line.get("hypervolume") is not None]
    assert [line["step"] for line in weighed] == [2, 4, 6]
    assert summary["evaluations"] == 12
    privacy = summary["privacy"]
    assert privacy["units"] == 5
    spent = [line["epsilon"] for line in history]
    assert spent == sorted(spent)
    assert len(set(spent)) == 6  # after every round
    assert sum(entry["releases"] for entry in privacy["mechanisms"]) == 3 * 4 * 2
    assert privacy["epsilon"] > max(float(row["epsilon"]) for row in rows)  # of all trainings together
    assert any("trains 12 times" in text for text in privacy["warnings"])
    assert privacy["score of eq. (7), not an epsilon"] == pytest.approx(float(best["score"]))
    for row in rows:
        assert float(row["score"]) == pytest.approx(score_eq7(2, 1e-5, 0.4, float(row["noise"])))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("noise", ["total", "coordinate"])
def test_what_the_score_leaves_out_is_said_wherever_the_score_is_shown(
    method: str, noise: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the terminal, in a report, in the summary and in TensorBoard; nothing is said where nothing is left out."""
    own = config(method, noise=noise)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**own, "watch": {**own.get("watch", {}), "tensorboard": True}}))
    main(["train", str(path), "--out", str(tmp_path / "run"), "--quiet"])
    shown = " ".join(capsys.readouterr().out.split())
    privacy = json.loads((tmp_path / "run/summary.json").read_text())["privacy"]
    weights = sum(p.numel() for p in load_model(tmp_path / "run").parameters())
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    texts = EventAccumulator(str(tmp_path / "run")).Reload()
    title = "note on the score/text_summary"
    assert "score of eq. (7), not an epsilon:" in shown
    main(["report", str(tmp_path / "run")])
    reported = " ".join(capsys.readouterr().out.split())
    if noise == "coordinate":
        assert privacy["note on the score"] is None
        assert "note on the score" not in shown + reported
        assert title not in texts.Tags()["tensors"]
        return
    note = privacy["note on the score"]
    assert f"each of the {weights:,} weights gets noise of sigma Z / {math.sqrt(weights):.0f}" in note
    assert note in shown
    assert note in reported
    (event,) = texts.Tensors(title)
    assert event.tensor_proto.string_val[0].decode() == note
    assert event.step == 1


@pytest.mark.parametrize("stop", [1, 2, 3, 5])
def test_resumed_it_ends_the_same(stop: int, tmp_path: Path) -> None:
    whole = train(config(inherit="first_parent", **LOUD), out=tmp_path / "whole")
    train(config(inherit="first_parent", **LOUD), out=tmp_path / "parts", stop_after=stop)
    parts = train(None, resume=tmp_path / "parts")
    assert whole["model_sha256"] == parts["model_sha256"]
    assert json.dumps(whole["privacy"]) == json.dumps(parts["privacy"])
    assert (tmp_path / "whole/front.csv").read_bytes() == (tmp_path / "parts/front.csv").read_bytes()


def test_without_clipping_nothing_is_noised_and_epsilon_is_infinite(tmp_path: Path) -> None:
    summary = train(config(clip=0.0, generations=0), out=tmp_path / "run")
    assert summary["privacy"]["epsilon"] is None  # which JSON has no number for
    assert any("released without noise" in text for text in summary["privacy"]["warnings"])
    assert summary["front_size"] > 0  # error and bytes are still there
    history = read_history(tmp_path / "run")
    assert history[-1]["hypervolume"] == 0.0  # of a score that is as bad as can be


@pytest.mark.parametrize("method", METHODS)
def test_of_a_regression_errors_are_shares_of_the_untrained_models(method: str, tmp_path: Path) -> None:
    given = config(method, loss="mse", lr=0.001, generations=2, **LOUD) | {"data": {"name": "housing", "nodes": 5}}
    given["model"] = {"name": "mlp", "hidden": [6], "output": "linear"}
    train(given, out=tmp_path / "run")
    weighed = [line for line in read_history(tmp_path / "run") if line.get("hypervolume") is not None]
    assert weighed[-1]["error_best"] > 1
    assert 0 < weighed[-1]["hypervolume"] < 1
    strategy = build(load_config(given)).strategy
    assert isinstance(strategy, Tradeoffs)
    reference = torch.tensor([[0.0, 0.0, 0.0]], dtype=torch.float64)
    assert strategy.hypervolume(reference) == pytest.approx(1.0)
    untrained = build(load_config(given)).task.evaluate(strategy.result().parameters.unsqueeze(0), loss="mse")["loss"]
    half = torch.tensor([[float(untrained) / 2, 0.0, 0.0]], dtype=torch.float64)
    assert strategy.hypervolume(half) == pytest.approx(0.5)


def test_what_diverges_is_told_where_there_is_no_noise_to_hide_it() -> None:
    """With noise a node answers as ever, with noise alone; its size says so."""
    for clip, told in ((0.0, 1), (1.0, 0)):
        strategy, engine = made(clip=clip, lr=1e30, generations=0, bits=[32])
        (reply, *_) = engine.send(strategy.ask(engine.nodes)).replies
        assert set(reply.payload) == {f"update.{i}" for i in range(4)} | {"diverged", "samples"}
        assert reply.payload["diverged"].tolist() == [told] * 4
        update = decode(reply.payload["update.0"], strategy._task.layout.leaves)
        assert bool(update.any()) == bool(clip)


def test_what_children_begin_with() -> None:
    begun: dict[str, Tensor] = {}
    for label, settings in (
        ("initial", {}),
        ("first_parent", {"inherit": "first_parent"}),
        ("shared", {"shared_global": True}),
    ):
        strategy, engine = made(**settings)
        initial = strategy.ask(engine.nodes).common["parameters"][0]
        for _ in range(2):
            strategy.tell(engine.send(strategy.ask(engine.nodes)))
        begun[label] = strategy.ask(engine.nodes).common["parameters"]
        trained = strategy.state_dict()["groups"]["parents"]["weights"]
        if label == "initial":
            assert all(torch.equal(own, initial) for own in begun[label])
        elif label == "shared":
            mean = trained.double().mean(dim=0).float()
            assert all(torch.equal(own, mean) for own in begun[label])
        else:
            draw = generator(0, "children", strategy.step)
            group = strategy.state_dict()["groups"]["parents"]
            shares = group["values"] / torch.tensor([1.0, 1.0, 10.0], dtype=torch.float64)
            _, first = ClusterSelection(3, "distance").children(group["genes"], shares, 4, draw)
            assert torch.equal(begun[label], trained[first])


def test_nodes_that_come_and_go(tmp_path: Path) -> None:
    """Shares of labels by Dirichlet(0.3), a third of the nodes away at any time: it ends, and means what it did."""
    given = config(participation=0.6, generations=3, **LOUD) | {
        "data": {"name": "toy", "nodes": 8, "partition": {"name": "dirichlet", "alpha": 0.3}},
        "engine": {"away": 0.35, "stretch": 3},
    }  # fmt: skip
    summary = train(given, out=tmp_path / "run")
    lines = read_history(tmp_path / "run")
    assert sum(len(line["failures"]) for line in lines) > 0
    assert {reason for line in lines for reason in line["failures"].values()} == {"the node has left"}
    asked = {len(line["per_node"]) + len(line["failures"]) for line in lines}
    assert len(asked) > 1  # a share of those who are there
    rows = list(csv.DictReader((tmp_path / "run" / "front.csv").read_text().splitlines()))
    assert all(0 < float(row["communication"]) < 1.2 for row in rows)
    assert summary["privacy"]["units"] == 8  # also those who are away when it ends
    assert sum(part["releases"] for part in summary["privacy"]["mechanisms"]) == 8 * 4  # of each round, all individuals


def test_first_individuals_that_are_given(tmp_path: Path) -> None:
    chosen = [[0.25, 16, 4.0], [0.0, 32, 20.0]]
    strategy, _ = made(start=chosen)
    thresholds, bits, noises = strategy.decoded(strategy.state_dict()["groups"]["trained"]["genes"])
    got = torch.stack([thresholds, bits.double(), noises], dim=1)
    torch.testing.assert_close(got[:2], torch.tensor(chosen, dtype=torch.float64))
    drawn, _ = made()
    torch.testing.assert_close(
        got[2:], torch.stack(strategy.decoded(drawn.state_dict()["groups"]["trained"]["genes"]), 1)[2:]
    )
    train(config(), out=tmp_path / "run")
    rows = list(csv.DictReader((tmp_path / "run" / "front.csv").read_text().splitlines()))
    again = [[float(row[key]) for key in ("threshold", "bits", "noise")] for row in rows]
    train(config(start=again, generations=0), out=tmp_path / "again")
    others = list(csv.DictReader((tmp_path / "again" / "front.csv").read_text().splitlines()))
    for row, other in zip(rows, others, strict=True):
        assert [float(other[key]) for key in ("threshold", "bits", "noise")] == pytest.approx(
            [float(row[key]) for key in ("threshold", "bits", "noise")]
        )


def test_one_individual_is_validated_as_its_training_goes(tmp_path: Path) -> None:
    """The curve of one that was chosen; looking more often changes nothing."""
    one = {"population": 1, "generations": 0, "rounds_per_evaluation": 7, "start": [[0.3, 16, 3.5]]}
    for every in (0, 2):
        train(config(**one, validate_every=every), out=tmp_path / str(every))
    curves = [[line["accuracy_validation"] for line in read_history(tmp_path / str(e))] for e in (0, 2)]
    assert [place for place, value in enumerate(curves[0], 1) if value is not None] == [7]
    assert [place for place, value in enumerate(curves[1], 1) if value is not None] == [2, 4, 6, 7]
    assert curves[0][-1] == curves[1][-1]
    losses = [line["loss_validation"] for line in read_history(tmp_path / "2") if "loss_validation" in line]
    assert len(losses) == 4


@pytest.mark.parametrize("method", METHODS)
def test_what_was_ever_evaluated_has_no_less_volume_than_what_went_on(method: str, tmp_path: Path) -> None:
    train(config(method, generations=4), out=tmp_path / "run")
    lines = [line for line in read_history(tmp_path / "run") if line.get("hypervolume") is not None]
    seen = [line["hypervolume_seen"] for line in lines]
    assert len(seen) == 5
    assert seen == sorted(seen)
    assert all(line["hypervolume_seen"] >= line["hypervolume"] for line in lines)
    assert seen[0] == lines[0]["hypervolume"]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"score_bounds": [2.0, 1.0]}, "strategy.score_bounds = [2.0, 1.0]: must be [low, high], low below high"),
        ({"score_bounds": [0.0, 1.0]}, "strategy.score_bounds = [0.0, 1.0]: must be [low, high], above 0"),
        ({"bits": [1]}, "strategy.bits = 1: must be 2 to 16, or 32"),
        ({"population": 1}, "strategy.population = 1: must be at least 2, or 1 with generations = 0"),
        ({"start": [[0.3, 8, 6.0]] * 5}, "strategy.start = 5: must be at most strategy.population = 4"),
        ({"start": [[0.3, 8, 6.0], [0.96, 8, 6.0]]}, "strategy.start.1 = 0.96: must be a threshold of 0 to 0.95"),
        (
            {"start": [[0.3, 8, 6.0]], "clip": 0.0},
            "strategy.start.0 = 6.0: must be a noise of 0 with strategy.clip = 0",
        ),
        ({"start": [[0.3, 9, 6.0]]}, "strategy.start.0 = 9.0: must be bits of strategy.bits = [32, 16, 8]"),
        (
            {"start": [[0.3, 8, 0.01]]},
            "strategy.start.0 = 0.01: must be a noise of 1.697 to 169.7, which "
            "strategy.score_bounds = [0.1, 10] allow at 2 rounds",
        ),
        ({"delta": 1.0}, "strategy.delta = 1.0"),
        ({"inherit": "first_parent", "shared_global": True}, "strategy.inherit = 'first_parent': must be initial with"),
    ],
)
def test_mistakes_are_told_by_key(settings: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(FneError) as caught:
        train(config(**settings), out=tmp_path / "run")
    assert text in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_secure_sums_cannot_add_what_is_compressed(tmp_path: Path) -> None:
    with pytest.raises(
        FneError, match="secure = true: must be false with a strategy that needs each node's own answer"
    ):
        train(config() | {"secure": True}, out=tmp_path / "run")


def test_prepare_is_what_a_node_does_alone() -> None:
    """The task's update, made again by hand from a plain training."""
    strategy, engine = made(generations=0, clip=0.0)
    request = strategy.ask(engine.nodes)
    reply = engine.send(request).replies[0]
    experiment = build(load_config(config(generations=0, clip=0.0)))
    layout = experiment.task.layout
    plain = Request(request.header, "train", (reply.node,), {"parameters": request.common["parameters"][0]}, {},
                    {"loss": "cross_entropy", "lr": 0.1, "epochs": 1, "batch_size": 16})  # fmt: skip
    for node in experiment.worker.nodes.values():  # which else does only what its method asks for
        node.policy = Policy()
    trained = LocalEngine(experiment.worker).send(plain).replies[0]
    delta = trained.payload["delta"] / trained.payload["samples"]
    wanted = prepare(
        delta, layout.leaves, threshold=float(request.common["thresholds"][0]), pruning="rate",
        bits=int(request.common["bits"][0]), clip=None, noise=0.0,
    )  # fmt: skip
    found = decode(reply.payload["update.0"], layout.leaves)
    torch.testing.assert_close(found, wanted.update, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("damage", [b"", b"\x07", b"\x20" * 40])
def test_updates_that_cannot_be_decoded_leave_their_node_out_by_name(damage: bytes) -> None:
    """The liar's node changes nothing of the others' mean, also by what it says of divergence."""
    bytes_ = torch.tensor(list(damage), dtype=torch.uint8)
    (strategy, engine), (without, _) = made(generations=0), made(generations=0)
    round_ = engine.send(strategy.ask(engine.nodes))
    liar, *others = round_.replies
    lie = replace(liar, payload={**liar.payload, "update.1": bytes_, "diverged": torch.ones(4, dtype=torch.int64)})
    metrics = strategy.tell(replace(round_, replies=(lie, *others)))
    without.ask(engine.nodes)
    without.tell(replace(round_, replies=tuple(others)))
    assert list(metrics["_failed"]) == [liar.node]
    assert metrics["nonfinite"] == 0
    own, wanted = (s.state_dict()["groups"]["trained"] for s in (strategy, without))
    assert torch.equal(own["weights"], wanted["weights"])
    assert torch.equal(own["sent"], wanted["sent"])
    lies = tuple(replace(reply, payload={**reply.payload, "update.1": bytes_}) for reply in round_.replies)
    with pytest.raises(RunError, match=rf"step 1: no node has sent usable updates; {liar.node}: "):
        strategy.tell(replace(engine.send(strategy.ask(engine.nodes)), replies=lies))


def test_one_training_that_diverges_is_the_worst_and_the_others_go_on() -> None:
    strategy, engine = made(generations=0, clip=0.0)
    state = strategy.state_dict()
    state["groups"]["trained"]["weights"][2] = 1e30
    strategy.load_state_dict(state)
    metrics = [strategy.tell(engine.send(strategy.ask(engine.nodes))) for _ in range(2)]
    assert [m["nonfinite"] for m in metrics] == [1, 1]
    _, rows = strategy.population()
    assert rows[2]["error"] == 1.0
    assert math.isfinite(metrics[1]["loss_validation"])
    assert all(row["error"] < 1.0 for i, row in enumerate(rows) if i != 2)


def test_a_bound_that_is_fixed_beforehand_stands_beside_what_was_spent(tmp_path: Path) -> None:
    """All releases at the least noise that the score's bounds allow; noise is chosen by what was seen before."""
    from fne.privacy.accountant import Accountant, Mechanism

    account = train(config(), out=tmp_path / "run")["privacy"]
    weights = made()[0].result().parameters.numel()
    least = score_eq7(2, 1e-5, 0.4, 1.0) / 10.0
    wanted = Accountant()
    multiplier = least / 2 / math.sqrt(weights)
    wanted.add(Mechanism(multiplier, "update", 1.0, adjacency="replace_one", adversary="uploads"), 2 * 3 * 4)
    assert account["epsilon_beforehand"] == pytest.approx(wanted.epsilon(1e-5, tight=False).rdp)
    assert account["epsilon"] < account["epsilon_beforehand"]
    assert any("chosen by what was released before" in text for text in account["warnings"])
    assert account["simulated"]
    alone = train(config(generations=0, start=[[0.3, 8, 6.0]]), out=tmp_path / "alone")["privacy"]
    assert alone["epsilon_beforehand"] is None
    assert [text for text in alone["warnings"] if "individuals were given" in text]
    assert not [text for text in account["warnings"] if "individuals were given" in text]


def test_a_model_with_buffers_is_refused_by_what_it_could_be(tmp_path: Path) -> None:
    normed = config() | {"data": {"name": "toy", "problem": "eeg", "times": 240, "samples": 300, "nodes": 5},
                         "model": {"name": "eegnet"}}  # fmt: skip
    with pytest.raises(FneError, match="must be one without batch normalisation, such as cnn, vgg, mlp or logistic"):
        train(normed, out=tmp_path / "run")
