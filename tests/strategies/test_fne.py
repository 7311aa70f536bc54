"""Generations of FNE: fitness, selection, how the multiplier moves, what is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fne.config import registry
from fne.core.dataset import Samples
from fne.core.errors import RunError, SettingError
from fne.core.messages import Request, Tensors
from fne.federation.node import Node
from fne.federation.worker import Worker
from fne.learning.fitness_tasks import fitness_task
from fne.learning.task import LearningTask
from fne.loop import run
from tests.strategies.fne_parts import NODES, Build, Clouds, fne, linear, step


# ------------------------------------------------------------------------------------------------ fitness
@pytest.mark.parametrize("loss", ["nmse", "mse", "bce", "cross_entropy"])
@pytest.mark.parametrize("joined", [False, True])
def test_fitness_is_the_mean_over_the_samples_of_all_nodes(
    laboratory: Build, clouds: Clouds, loss: str, joined: bool
) -> None:
    nodes = clouds(3, 9, 5, 14, 7)
    lab = laboratory(linear, nodes, joined=joined)
    request, metrics = step(fne(lab.task, nodes="all", loss=loss), lab)
    chosen = [nodes[name] for name in request.nodes]
    together = Samples(torch.cat([d.x for d in chosen]), torch.cat([d.y for d in chosen]))
    wanted = lab.evaluator.evaluate(request.common["population"], together, loss=loss)["loss"]
    assert torch.allclose(metrics["_fitness"], wanted, rtol=1e-6)
    assert metrics["loss_best"] == metrics["_fitness"].min().item()
    assert metrics["loss_mean"] == pytest.approx(wanted.mean().item(), rel=1e-6)
    assert metrics["loss_worst"] == metrics["_fitness"].max().item()
    assert (metrics["evaluations"], metrics["round"], metrics["nonfinite"]) == (12, 1, 0)


def test_nodes_weigh_alike_where_they_take_equally_many_samples(lab: SimpleNamespace) -> None:
    """Nodes hold 3 to 14 samples; eq. (1) would weigh them so."""
    strategy = fne(lab.task, nodes="all", samples_per_node=3)
    request = strategy.ask(lab.engine.nodes)
    replies = lab.engine.send(replace(request, reduce="none")).replies
    means = torch.stack([reply.payload["loss"][:, 0].double() / 3 for reply in replies])
    fitness = strategy.tell(lab.engine.send(request))["_fitness"]
    assert torch.allclose(fitness.double(), means.mean(dim=0), rtol=1e-6)
    held = torch.tensor([3.0, 9, 5, 14, 7], dtype=torch.float64)
    assert not torch.allclose(fitness.double(), held @ means / held.sum(), rtol=1e-3)


def test_a_node_that_fails_is_left_out_of_the_mean(
    laboratory: Build, clouds: Clouds, monkeypatch: pytest.MonkeyPatch
) -> None:
    def task(worker: Worker, nodes: Sequence[Node], request: Request, *, loss: str, samples: int) -> Iterator[Tensors]:
        for node in nodes:
            if node.name == "n1":
                raise RuntimeError("asleep")
            yield from fitness_task(worker, (node,), request, loss=loss, samples=samples)  # type: ignore[arg-type]

    monkeypatch.setattr(registry, "load", lambda kind, name: task)
    nodes = clouds(3, 9, 5)
    lab = laboratory(linear, nodes)
    strategy = fne(lab.task, nodes="all")
    request = strategy.ask(lab.engine.nodes)
    round_ = lab.engine.send(request)
    metrics = strategy.tell(round_)
    assert [f.node for f in round_.failures] == ["n1"]
    rest = Samples(torch.cat([nodes["n0"].x, nodes["n2"].x]), torch.cat([nodes["n0"].y, nodes["n2"].y]))
    wanted = lab.evaluator.evaluate(request.common["population"], rest, loss="nmse")["loss"]
    assert torch.allclose(metrics["_fitness"], wanted, rtol=1e-6)


@pytest.mark.parametrize("crossover", ["halving", "kernelwise", "mean"])
@pytest.mark.parametrize("selection", ["paper", "truncation", "tournament"])
@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -float("inf")])
def test_a_broken_individual_never_wins_and_is_counted(
    lab: SimpleNamespace, broken: float, selection: str, crossover: str
) -> None:
    strategy = fne(lab.task, selection=selection, crossover=crossover, nodes="all", tournament_size=8)
    genomes = strategy.lineage.genomes
    genomes[[0, 5]] = broken
    request, metrics = step(strategy, lab)
    fitness = metrics["_fitness"]
    assert metrics["nonfinite"] == 2
    assert bool(fitness[[0, 5]].isinf().all())
    finite = fitness[fitness.isfinite()]
    assert len(finite) == 10
    assert metrics["loss_mean"] == finite.mean().item()
    assert metrics["loss_worst"] == finite.max().item()
    fittest = int(fitness.argmin())
    assert torch.equal(strategy.champion().parameters, request.common["population"][fittest])
    assert torch.equal(strategy.result().parameters, strategy.champion().parameters)
    assert bool(strategy.ask(lab.engine.nodes).common["population"].isfinite().all())  # nor has it children


def test_where_all_are_broken_the_run_ends_with_advice(lab: SimpleNamespace) -> None:
    strategy = fne(lab.task)
    strategy.lineage.genomes.fill_(torch.nan)
    with pytest.raises(RunError, match=r"generation 0: all 12 individuals have a non-finite fitness; lower strategy\."):
        step(strategy, lab)


# ------------------------------------------------------------------------------------------------ generations
def test_the_first_generation_is_independent_random_models(lab: SimpleNamespace) -> None:
    genomes = fne(lab.task).ask(NODES).common["population"]
    assert genomes.shape == (12, 15)
    assert len({tuple(g.tolist()) for g in genomes}) == 12
    assert torch.equal(genomes, fne(lab.task).ask(NODES).common["population"])
    assert not torch.equal(genomes, fne(lab.task, seed=1).ask(NODES).common["population"])
    weights = genomes[:, :12].flatten()
    assert weights.abs().max() <= 0.5  # torch's own initialisation: U[-1/sqrt(4), 1/sqrt(4)]
    assert abs(weights.std().item() - 0.5 / 3**0.5) < 0.05


def test_paper_selection_breeds_the_fittest_and_one_other(lab: SimpleNamespace) -> None:
    strategy = fne(lab.task, mutation_chance=0.0, crossover="halving", nodes="all", parents=4, population=30)
    for _ in range(5):
        request, metrics = step(strategy, lab)
        parents = request.common["population"]
        ranked = metrics["_fitness"].argsort().tolist()
        heads = {tuple(g[:7].tolist()): i for i, g in reversed(list(enumerate(parents)))}
        used = {ranked.index(heads[tuple(g[:7].tolist())]) for g in strategy.ask(NODES).common["population"]}
        same = {tuple(parents[i, :7].tolist()) for i in ranked[:3]}  # relatives may share a head
        others = {r for r in used if tuple(parents[ranked[r], :7].tolist()) not in same}
        assert len(others) <= 1


def test_elites_live_on_and_are_evaluated_again_on_other_nodes(lab: SimpleNamespace) -> None:
    strategy = fne(lab.task, elites=2, nodes="moving_window", window_size=1)
    first, before = step(strategy, lab)
    second, after = step(strategy, lab)
    assert first.nodes != second.nodes
    ranked = before["_fitness"].argsort()
    elites = second.common["population"][:2]
    assert torch.equal(elites, first.common["population"][ranked[:2]])
    data = lab.worker.nodes[second.nodes[0]].data
    again = lab.evaluator.evaluate(elites, data, loss="nmse")["loss"]
    assert torch.allclose(after["_fitness"][:2], again, rtol=1e-6)
    assert not torch.allclose(after["_fitness"][:2], before["_fitness"][ranked[:2]], rtol=1e-3)


@pytest.mark.parametrize("mutation", ["multiply", "mixed"])
def test_generations_are_replayed_from_decisions(lab: SimpleNamespace, mutation: str) -> None:
    settings = {"mutation": mutation, "elites": 1, "stagnation_window": 1, "growth": 1.5, "nodes": "all"}
    strategy, other = fne(lab.task, **settings), fne(lab.task, **settings).lineage
    assert strategy.decision is None
    multipliers = []
    for at in range(6):
        request, metrics = step(strategy, lab)
        assert torch.equal(request.common["population"], other.candidates(at)["population"])
        assert strategy.decision is strategy.state_dict()["decision"]
        multipliers.append(strategy.decision["multiplier"].item())
        assert multipliers[-1] == metrics["multiplier"]
        other.advance(at, strategy.decision)
    assert torch.equal(other.genomes, strategy.lineage.genomes)


# ------------------------------------------------------------------------------------------------ the multiplier
def scripted(task: LearningTask, scores: Sequence[float], key: str = "accuracy") -> LearningTask:
    """Return the task with a validation that says what is written down."""
    script: Iterator[float] = iter(scores)

    def evaluate(population: Tensor, **_: Any) -> dict[str, Tensor]:
        said = {"loss": torch.tensor([1.0]), "accuracy": torch.tensor([torch.nan]), key: torch.tensor([next(script)])}
        return {name: value.double() for name, value in said.items()}

    return replace(task, evaluate=evaluate)


@pytest.mark.parametrize(
    ("settings", "scores", "wanted"),
    [
        # equal to one of the last two: grows; else back to 1
        (
            {"stagnation": "match_last_n", "stagnation_window": 2, "growth": 2.0, "multiplier_max": 5.0},
            [0.5, 0.6, 0.5, 0.5, 0.6, 0.7, 0.8, 0.6, 0.6, 0.6],
            [1, 1, 2, 4, 1, 1, 1, 1, 2, 4],
        ),
        (
            {"stagnation": "match_last_n", "stagnation_window": 1, "growth": 2.0, "multiplier_max": 5.0},
            [0.5, 0.5, 0.5, 0.5, 0.5, 0.6],
            [1, 2, 4, 5, 5, 1],  # bounded, then reset
        ),
        (
            {"stagnation_window": 1, "growth": 2.0, "multiplier_max": 4.0, "at_max": "hold"},
            [0.5] * 7,
            [1, 2, 4, 4, 4, 4, 4],
        ),
        (
            {"stagnation_window": 1, "growth": 2.0, "multiplier_max": 4.0, "at_max": "restart"},
            [0.5] * 7,
            [1, 2, 4, 1, 2, 4, 1],  # the bound itself is reached, nothing beyond it
        ),
        (
            {"stagnation_window": 1, "growth": 2.0, "multiplier_max": 5.0, "at_max": "restart"},
            [0.5, 0.5, 0.5, 0.5, 0.5, 0.6],
            [1, 2, 4, 1, 2, 1],
        ),
        # no new best within two: grows until there is one
        (
            {"stagnation": "no_improvement", "stagnation_window": 2, "growth": 1.5, "multiplier_max": 3.0},
            [0.5, 0.4, 0.5, 0.3, 0.2, 0.1, 0.6, 0.6, 0.6],
            [1, 1, 1.5, 2.25, 3, 3, 1, 1, 1.5],
        ),
        ({"stagnation": "off"}, [0.5] * 4, [1, 1, 1, 1]),
    ],
)
def test_the_multiplier(
    lab: SimpleNamespace, settings: dict[str, Any], scores: list[float], wanted: list[float]
) -> None:
    strategy = fne(scripted(lab.task, scores), **settings)
    assert [step(strategy, lab)[1]["multiplier"] for _ in scores] == wanted


@pytest.mark.parametrize(
    ("at_max", "wanted"), [("hold", [1, 2, 4, 4, 4, 4, 4, 4]), ("restart", [1, 2, 4] * 2 + [1, 2])]
)
def test_an_elite_that_goes_on_winning_holds_the_multiplier_at_its_bound_unless_it_restarts(
    lab: SimpleNamespace, at_max: str, wanted: list[float]
) -> None:
    """One individual has the solution from the start: it wins every time, with the same accuracy."""
    strategy = fne(
        lab.task, nodes="all", elites=1, stagnation="match_last_n", growth=2.0, multiplier_max=4.0, at_max=at_max
    )
    solution = torch.cat([20 * torch.eye(3, 4).flatten(), torch.zeros(3)])
    strategy.lineage.genomes[7] = solution
    seen = [step(strategy, lab)[1] for _ in wanted]
    assert {m["accuracy_validation"] for m in seen} == {1.0}
    assert [m["multiplier"] for m in seen] == wanted


def test_the_multiplier_acts_on_chance_and_rate(lab: SimpleNamespace) -> None:
    """Identical parents: children differ from them by mutation alone."""
    shares = []
    for growth in (1.0, 3.0):
        strategy = fne(
            scripted(lab.task, [0.5, 0.5]), population=200, stagnation_window=1, growth=growth, multiplier_max=9.0,
            mutation_chance=0.1, mutation_rate=10.0,
        )  # fmt: skip
        step(strategy, lab)
        strategy.lineage.genomes.fill_(1.0)
        step(strategy, lab)
        genomes = strategy.lineage.genomes
        shares.append((genomes != 1).double().mean().item())
        assert 1 - 0.1 * growth - 1e-6 <= genomes.min() < 1 - 0.09 * growth
    assert shares == pytest.approx([0.1, 0.3], abs=0.03)


# ------------------------------------------------------------------------------------------------ early stopping
@pytest.mark.parametrize(("returns", "kept"), [("best", 1), ("last", 3)])
def test_the_best_of_all_generations_fittest_is_kept(lab: SimpleNamespace, returns: str, kept: int) -> None:
    strategy = fne(scripted(lab.task, [0.5, 0.7, 0.7, 0.6]), rounds=4, returns=returns)
    fittest = []
    while not strategy.done:
        request, metrics = step(strategy, lab)
        fittest.append(request.common["population"][metrics["_fitness"].argmin()])
        assert torch.equal(strategy.champion().parameters, fittest[-1])
    assert torch.equal(strategy.result().parameters, fittest[kept])


def test_patience_ends_the_run(lab: SimpleNamespace) -> None:
    scores = [0.5, 0.6, 0.6, 0.5, 0.7, 0.1, 0.1, 0.1, 0.1, 0.1]
    strategy = fne(scripted(lab.task, scores), patience=3)
    run(strategy, lab.engine)
    assert strategy.step == 8  # the best at generation 5, three more without a better one
    endless = fne(scripted(lab.task, scores), patience=0)
    run(endless, lab.engine)
    assert endless.step == endless.horizon == 10


def test_regression_is_judged_by_its_loss(laboratory: Build) -> None:
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    lab = laboratory(lambda: nn.Linear(2, 1), {"n0": Samples(x, x.sum(dim=1, keepdim=True))}, output="linear")
    strategy = fne(scripted(lab.task, [0.5, 0.3, 0.4], "loss"), rounds=3, loss="mse")
    fittest = []
    for _ in range(3):
        request, metrics = step(strategy, lab)
        assert metrics["accuracy_validation"] is None
        fittest.append(request.common["population"][metrics["_fitness"].argmin()])
    assert torch.equal(strategy.result().parameters, fittest[1])
    with pytest.raises(SettingError, match=r"strategy\.loss = 'bce'"):
        fne(lab.task, loss="bce")
