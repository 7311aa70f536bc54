"""FNE: who evaluates, how the multiplier moves, what is kept, and that it learns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
from fne.evolution.evaluate import Plan
from fne.federation.node import Node
from fne.federation.worker import Worker
from fne.learning.node_tasks import fitness_task
from fne.learning.task import LearningTask
from fne.loop import run
from fne.strategies.fne import FNE

Build = Callable[..., SimpleNamespace]
Clouds = Callable[..., dict[str, Samples]]
NODES = ("a", "b", "c", "d", "e")


def linear() -> nn.Module:
    return nn.Linear(4, 3)


@pytest.fixture
def lab(laboratory: Build, clouds: Clouds) -> SimpleNamespace:
    """Return a linear classifier over five nodes of unequal size with validation data of its own."""
    return laboratory(linear, clouds(3, 9, 5, 14, 7), clouds(60, seed=1)["n0"])


def fne(task: LearningTask, **settings: Any) -> FNE:
    return FNE(task, **{"seed": 0, "population": 12, "rounds": 10, "parents": 4, **settings})


def step(strategy: FNE, lab: SimpleNamespace) -> tuple[Request, dict[str, Any]]:
    request = strategy.ask(lab.engine.nodes)
    return request, strategy.tell(lab.engine.send(request))


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


# ------------------------------------------------------------------------------------------------ batch normalisation
HELD = 60


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))


def normed_lab(laboratory: Build, clouds: Clouds, policy: Any, make: Callable[[], nn.Module] = normed) -> Any:
    """Return a lab whose task has a policy for batch normalisation, with `HELD` samples on the server."""
    held = clouds(HELD, seed=1)["n0"]
    lab = laboratory(make, clouds(3, 9, 5), held)
    statistics = None if policy == "identity" else lambda genes: lab.evaluator.statistics(genes, held.x)
    lab.task = replace(lab.task, batch_norm=policy, statistics=statistics)
    return lab


def on_the_server(genes: Tensor, clouds: Clouds) -> dict[str, Tensor]:
    """Return mean and unbiased variance in front of the norm over the server's samples."""
    y = clouds(HELD, seed=1)["n0"].x @ genes[:20].view(5, 4).T + genes[20:25]
    return {"1.running_mean": y.mean(0), "1.running_var": y.var(0), "1.num_batches_tracked": torch.tensor(0)}


def close(a: Any, b: Any) -> bool:
    return list(a) == list(b) and all(torch.allclose(a[name], b[name], rtol=1e-4, atol=1e-5) for name in a)


@pytest.mark.parametrize("more", [{"nodes": "all"}, {"deal": True}])
def test_nodes_are_sent_the_statistics_of_the_last_fittest_on_the_servers_samples(
    laboratory: Build, clouds: Clouds, more: dict[str, Any]
) -> None:
    lab = normed_lab(laboratory, clouds, "server")
    strategy = fne(lab.task, **more)
    expected: Any = lab.task.buffers
    for _ in range(3):
        request = strategy.ask(lab.engine.nodes)
        sent = {name.removeprefix("buffer."): b for name, b in request.common.items() if name != "population"}
        assert close(sent, expected)
        assert "statistics" not in request.options
        population = strategy.lineage.genomes.clone()
        round_ = lab.engine.send(request)
        metrics = strategy.tell(round_)
        for g, rows in enumerate([slice(0, 6), slice(6, 12)] if "deal" in more else [slice(0, 12)]):
            names = [n for n in lab.engine.nodes if "deal" not in more or strategy._group_of[n] == g]
            data = [lab.worker.nodes[name].data for name in names]
            together = Samples(torch.cat([d.x for d in data]), torch.cat([d.y for d in data]))
            wanted = lab.evaluator.evaluate(population[rows], together, loss="nmse", buffers=expected)["loss"]
            assert torch.allclose(metrics["_fitness"][rows], wanted, rtol=1e-4)
        fittest = population[metrics["_fitness"].argmin()]
        expected = on_the_server(fittest, clouds)
        assert torch.equal(strategy.champion().parameters, fittest)
        assert close(strategy.champion().buffers, expected)
        validated = lab.task.evaluate(fittest[None], loss="nmse", buffers=expected)
        assert metrics["accuracy_validation"] == validated["accuracy"].item()
        assert metrics["loss_validation"] == pytest.approx(validated["loss"].item(), rel=1e-4)
    assert close(strategy.result().buffers, on_the_server(strategy.result().parameters, clouds))


@pytest.mark.parametrize("more", [{"nodes": "all"}, {"deal": True}])
def test_with_batch_statistics_each_node_takes_its_own_samples(
    laboratory: Build, clouds: Clouds, more: dict[str, Any]
) -> None:
    lab = normed_lab(laboratory, clouds, "batch")
    strategy = fne(lab.task, **more)
    request = strategy.ask(lab.engine.nodes)
    population = strategy.lineage.genomes.clone()
    assert request.options == {"loss": "nmse", "samples": 0, "statistics": "batch"}
    assert set(request.common) == ({"population"} if "nodes" in more else set())
    metrics = strategy.tell(lab.engine.send(request))
    for i, genes in enumerate(population):
        total, count = 0.0, 0
        for name, node in lab.worker.nodes.items():
            if "deal" in more and strategy._group_of[name] != i // 6:
                continue
            y = node.data.x @ genes[:20].view(5, 4).T + genes[20:25]
            y = torch.tanh((y - y.mean(0)) / (y.var(0, correction=0) + 1e-5).sqrt() * genes[25:30] + genes[30:35])
            shares = (y @ genes[35:50].view(3, 5).T + genes[50:]).softmax(1)
            total += (shares - nn.functional.one_hot(node.data.y, 3)).square().sum().item()
            count += len(node.data)
        assert metrics["_fitness"][i].item() == pytest.approx(total / count, rel=1e-4)
    assert close(strategy.result().buffers, on_the_server(strategy.result().parameters, clouds))


def test_initial_statistics_are_neither_sent_nor_changed(laboratory: Build, clouds: Clouds) -> None:
    lab = normed_lab(laboratory, clouds, "identity")
    strategy = fne(lab.task, nodes="all")
    for _ in range(2):
        request, _ = step(strategy, lab)
        assert set(request.common) == {"population"}
        assert request.options == {"loss": "nmse", "samples": 0}
    assert close(strategy.result().buffers, lab.task.buffers)
    assert strategy.result().buffers["1.running_var"].tolist() == [1.0] * 5


# ------------------------------------------------------------------------------------------------ whole runs
@pytest.mark.parametrize(
    ("settings", "policy"),
    [
        ({}, "identity"),
        ({"mutation": "mixed", "elites": 2, "selection": "tournament"}, "server"),
        ({"mutation": "lognormal", "sign_flip": 0.1, "nodes": "single_sample", "patience": 7}, "server"),
        ({"mutation": "offset", "crossover": "mean", "deal": True, "stagnation": "no_improvement"}, "identity"),
        ({"samples_per_node": 3, "subset_size": 2, "returns": "last"}, "batch"),
    ],
)
@pytest.mark.parametrize("stop", [0, 1, 4])
def test_a_resumed_run_ends_with_the_same_bits(
    laboratory: Build, clouds: Clouds, settings: dict[str, Any], policy: str, stop: int, tmp_path: Any
) -> None:
    def fresh() -> tuple[SimpleNamespace, FNE]:
        lab = normed_lab(
            laboratory, clouds, policy, lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3), nn.BatchNorm1d(3))
        )
        return lab, fne(lab.task, **settings)

    lab, whole = fresh()
    history: list[dict[str, Any]] = []
    run(whole, lab.engine, callbacks=[lambda s, r, m: history.append(m)])
    lab, first = fresh()
    if stop:
        run(first, lab.engine, callbacks=[lambda s, r, m: s.step == stop])
    torch.save(first.state_dict(), tmp_path / "state.pt")
    lab, second = fresh()
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    again: list[dict[str, Any]] = []
    run(second, lab.engine, callbacks=[lambda s, r, m: again.append(m)])
    assert second.step == whole.step
    assert torch.equal(second.result().parameters, whole.result().parameters)
    assert torch.equal(second.champion().parameters, whole.champion().parameters)
    for name, value in whole.result().buffers.items():
        assert torch.equal(second.result().buffers[name], value), name
    volatile = {"seconds", "_fitness"}
    for old, new in zip(history[stop:], again, strict=True):
        assert torch.equal(old["_fitness"], new["_fitness"])
        assert {k: v for k, v in old.items() if k not in volatile} == {
            k: v for k, v in new.items() if k not in volatile
        }


@pytest.mark.parametrize(
    ("settings", "accuracy"),
    [
        ({"mutation": "mixed"}, 0.95),
        ({"mutation": "mixed", "deal": True}, 0.9),
        ({"mutation": "offset", "offset_rate": 0.2}, 0.9),
        ({}, 0.8),  # the paper's own operators
    ],
)
def test_fne_learns_a_linear_problem(
    laboratory: Build, clouds: Clouds, settings: dict[str, Any], accuracy: float
) -> None:
    """Three separable classes on six unequal nodes, two of which evaluate a generation; chance is a third."""
    lab = laboratory(linear, clouds(10, 30, 20, 40, 15, 25), clouds(200, seed=1)["n0"], plan=Plan("vmap", 64, 512))
    strategy = fne(lab.task, population=40, rounds=60, parents=10, subset_size=2, **settings)
    run(strategy, lab.engine)
    genes = strategy.result().parameters.unsqueeze(0)
    start = fne(lab.task, population=40, parents=10).result().parameters.unsqueeze(0)
    unseen = clouds(300, seed=2)["n0"]
    got = lab.evaluator.evaluate(genes, unseen, loss="nmse")
    before = lab.evaluator.evaluate(start, unseen, loss="nmse")
    assert got["accuracy"].item() >= accuracy
    assert got["loss"].item() < 0.75 * before["loss"].item()


def test_traffic_and_metrics_of_the_loop(lab: SimpleNamespace) -> None:
    strategy = fne(lab.task, rounds=2, subset_size=2)
    seen: list[dict[str, Any]] = []
    run(strategy, lab.engine, callbacks=[lambda s, r, m: seen.append(m), lambda s, r, m: s.step == 1])
    (metrics,) = seen
    assert metrics["step"] == 1
    assert metrics["failures"] == {}
    assert metrics["bytes_down"] == 2 * metrics["bytes_down_max"] > 2 * 12 * 15 * 4
    assert metrics["bytes_up"] == 2 * metrics["bytes_up_max"] > 2 * (12 * 4 + 8)
    assert metrics["seconds"] > 0
