"""Steps of es, snes, sep_cma and de: quadratics, invariances, ties, and candidates that are broken."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fne.core.dataset import Samples
from fne.core.errors import RunError
from fne.evolution.evaluate import Plan
from fne.loop import run
from tests.learning.evolving_parts import METHODS, NODES, Build, Clouds, learn, linear, make, sent, step


# ------------------------------------------------------------------------------------------------ quadratics
def quadratic(size: int, laboratory: Build) -> tuple[SimpleNamespace, Tensor]:
    """Return a lab whose loss is sum_j h_j (w_j - t_j)^2 / size with h from 1 to 9, dealt to three nodes, and t."""
    target = torch.linspace(-1, 1, size) if size > 1 else torch.tensor([0.7])
    x = torch.diag(torch.linspace(1, 3, size))
    y = (x @ target).unsqueeze(1)
    parts = torch.arange(size).chunk(3)
    nodes = {f"n{i}": Samples(x[part], y[part]) for i, part in enumerate(parts)}
    lab = laboratory(
        lambda: nn.Linear(size, 1, bias=False), nodes, Samples(x, y), output="linear", plan=Plan("vmap", 64, 64)
    )
    return lab, target


@pytest.mark.parametrize(
    ("name", "settings", "reached"),
    [
        ("es", {"lr": 0.3, "lr_final": 0.02, "sigma_final": 0.1}, 1e-3),
        ("es", {"optimizer": "sgd", "lr": 5.0, "momentum": 0.5, "lr_final": 0.02, "shape": "utilities"}, 1e-2),
        ("es", {"optimizer": "sgd", "lr": 4.0, "shape": "raw", "sigma": 0.1}, 1e-3),
        ("es", {"uplink": "levels", "lr_final": 0.02}, 1e-2),
        ("es", {"uplink": "ranks", "lr_final": 0.02}, 1e-2),
        ("es", {"rank": 1, "lr_final": 0.02}, 1e-2),
        ("es", {"uplink": "sign", "lr_final": 0.02}, 5e-2),
        ("snes", {}, 1e-6),
        ("snes", {"population": 0}, 1e-3),
        ("sep_cma", {}, 1e-6),
        ("sep_cma", {"population": 0}, 1e-6),
        ("de", {}, 1e-3),
        ("de", {"variant": "current-to-best/1/bin", "weight": 0.7}, 1e-3),
    ],
)
def test_a_quadratic_is_solved(laboratory: Build, name: str, settings: dict[str, Any], reached: float) -> None:
    lab, target = quadratic(6, laboratory)
    strategy = make(name, lab.task, loss="mse", **{"population": 20, "rounds": 180, "subset_size": 3, **settings})
    start = strategy.result().parameters
    run(strategy, lab.engine)
    distance = (strategy.result().parameters - target).square().mean() / (start - target).square().mean()
    assert float(distance) < reached


@pytest.mark.parametrize("name", METHODS)
def test_one_gene_is_enough(laboratory: Build, name: str) -> None:
    x = torch.tensor([[1.0], [2.0]])
    lab = laboratory(lambda: nn.Linear(1, 1, bias=False), {"n0": Samples(x, 0.7 * x)}, output="linear")
    more: dict[str, Any] = {"es": {"population": 6}, "de": {"population": 12, "weight": 0.8}}.get(
        name, {"population": 0}
    )
    strategy = make(name, lab.task, loss="mse", rounds=120, **more)
    run(strategy, lab.engine)
    assert strategy.result().parameters.item() == pytest.approx(0.7, abs=0.1)


@pytest.mark.parametrize(("name", "count"), [("snes", 2), ("snes", 3), ("sep_cma", 2), ("sep_cma", 5), ("de", 5)])
def test_odd_and_small_populations(lab: SimpleNamespace, name: str, count: int) -> None:
    strategy = make(name, lab.task, population=count)
    request, metrics = step(strategy, lab)
    assert len(request.common["population"]) == (2 * count if name == "de" else count)
    assert metrics["evaluations"] == len(request.common["population"])
    run(strategy, lab.engine)
    assert bool(strategy.result().parameters.isfinite().all())


@pytest.mark.parametrize("name", ["snes", "sep_cma"])
def test_the_usual_population_grows_with_the_logarithm(lab: SimpleNamespace, name: str) -> None:
    assert len(make(name, lab.task, population=0).ask(NODES).common["population"]) == 4 + int(3 * math.log(15))


def test_a_covariance_of_more_candidates_than_genes_stays_positive(laboratory: Build) -> None:
    lab, _ = quadratic(2, laboratory)
    strategy = make("sep_cma", lab.task, population=400, loss="mse", rounds=20)
    run(strategy, lab.engine)
    assert float(strategy.state_dict()["lineage"]["variances"].min()) > 0


# ------------------------------------------------------------------------------------------------ invariances
@pytest.mark.parametrize(
    ("name", "settings"),
    [("es", {}), ("es", {"shape": "utilities", "optimizer": "sgd"}), ("snes", {}), ("sep_cma", {}), ("de", {})],
)
def test_a_monotone_transformation_of_the_losses_changes_nothing(
    lab: SimpleNamespace, name: str, settings: dict[str, Any]
) -> None:
    plain, bent = (make(name, lab.task, **settings).lineage for _ in range(2))
    draw = torch.Generator().manual_seed(0)
    for t in range(5):
        scores = torch.rand(plain.population, generator=draw, dtype=torch.float64)
        learn(plain, t, scores)
        learn(bent, t, torch.exp(7 * scores) - 3)
        assert torch.equal(plain.candidates(t + 1)["population"], bent.candidates(t + 1)["population"])
        assert torch.equal(plain.genes, bent.genes)


@pytest.mark.parametrize("shape", ["ranks", "utilities", "raw"])
def test_pairs_are_antithetic(lab: SimpleNamespace, shape: str) -> None:
    """Swapped losses move the centre the other way, equal ones not at all."""
    there, back, nowhere = (make("es", lab.task, shape=shape, optimizer="sgd").lineage for _ in range(3))
    start = there.genes.double()
    population = there.candidates(0)["population"].double()
    assert torch.allclose(population[:5] + population[5:], 2 * start, rtol=0, atol=1e-6)
    scores = torch.rand(10, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    learn(there, 0, scores)
    learn(back, 0, scores.roll(5))
    learn(nowhere, 0, torch.full((10,), 3.0, dtype=torch.float64))
    assert not torch.equal(there.genes.double(), start)
    assert torch.allclose(there.genes.double() + back.genes.double(), 2 * start, rtol=0, atol=1e-6)
    assert torch.equal(nowhere.genes.double(), start)


def test_step_sizes_are_in_units_of_each_layers_initial_spread(lab: SimpleNamespace) -> None:
    """Ten times the weights in a layer: ten times the perturbation there."""
    scales = lab.task.layout.scales()
    for name, more in (("es", {}), ("es", {"rank": 1}), ("snes", {}), ("sep_cma", {})):
        strategy = make(name, lab.task, sigma=0.3, population=2000, **more)
        candidates = torch.from_numpy(sent(dict(strategy.ask(NODES).common)))
        spread = (candidates - strategy.champion().parameters).std(dim=0)
        assert torch.allclose(spread, 0.3 * scales.double(), rtol=0.15)


# ------------------------------------------------------------------------------------------------ ties
def test_flat_fitness_leaves_sep_cma_as_it_is(lab: SimpleNamespace) -> None:
    proposer = make("sep_cma", lab.task).lineage
    learn(proposer, 0, torch.rand(10, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    before = {key: torch.as_tensor(value).clone() for key, value in proposer.state_dict().items()}
    figures = [learn(proposer, t, torch.full((10,), 0.25, dtype=torch.float64))["sigma"] for t in range(1, 20)]
    assert len(set(figures)) == 1
    after = proposer.state_dict()
    assert all(torch.equal(torch.as_tensor(after[key]), value) for key, value in before.items())


@pytest.mark.parametrize("kind", ["none", "half not finite", "most not finite", "three values"])
def test_ties_do_not_collapse_the_step_size_of_sep_cma(lab: SimpleNamespace, kind: str) -> None:
    """Scores that have nothing to do with the candidates give no reason to shrink or grow, however many tie."""
    proposer: Any = make("sep_cma", lab.task, population=20).lineage
    draw = torch.Generator().manual_seed(3)
    logs = []
    for t in range(300):
        scores = torch.rand(20, generator=draw, dtype=torch.float64)
        if "not finite" in kind:
            scores[torch.randperm(20, generator=draw)[: 10 if kind.startswith("half") else 17]] = math.inf
        if kind == "three values":
            scores = (3 * scores).floor()
        learn(proposer, t, scores)
        logs.append(math.log(proposer.state_dict()["sigma"] / 0.5))
    assert abs(logs[-1]) < 2


# ------------------------------------------------------------------------------------------------ broken candidates
class Rooted(nn.Linear):
    """A classifier whose outputs are NaN where its first weight is below a bound."""

    bound = -0.05

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 0 * (self.weight[0, 0] - self.bound).sqrt()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("name", "uplink"), [*((name, "fitness") for name in METHODS), ("es", "levels"), ("es", "ranks"), ("es", "sign")]
)
def test_what_is_not_finite_is_counted_and_steers_away(
    laboratory: Build, clouds: Clouds, name: str, uplink: str
) -> None:
    lab = laboratory(lambda: Rooted(4, 3), clouds(9, 5, 14), clouds(20, seed=1)["n0"])
    more = {"uplink": uplink, "lr": 0.1} if name == "es" else {}
    strategy = make(name, lab.task, population=20, rounds=30, subset_size=3, **more)
    if name != "de":
        strategy.lineage.genes[0] = 0.0  # type: ignore[index]
    broken = []
    for _ in range(30):
        request, metrics = step(strategy, lab)
        bad = int((request.common["population"][:, 0] < Rooted.bound).sum())
        told = uplink in ("fitness", "levels")
        assert metrics["nonfinite"] == bad * (1 if told else 3)
        if told:
            assert math.isfinite(metrics["loss_worst"])
            assert int(metrics["_fitness"].isinf().sum()) == bad
        broken.append(bad)
        assert math.isfinite(metrics["loss_validation"])
    assert broken[0] > 0
    assert sum(broken[:10]) > sum(broken[-10:])


ALL_BROKEN = r"generation 0: all \d+ candidates have a non-finite loss; lower strategy\.(sigma|weight)"
NODE_BROKEN = (
    r"0 of 1 nodes answered.* n\d: all 10 individuals have a non-finite loss on this node; lower .*strategy\.sigma"
)


@pytest.mark.parametrize(
    ("name", "settings", "wanted"),
    [
        *((name, {}, ALL_BROKEN) for name in METHODS),
        ("es", {"uplink": "levels"}, NODE_BROKEN),
        ("es", {"uplink": "ranks"}, NODE_BROKEN),
        ("es", {"uplink": "sign"}, NODE_BROKEN),
    ],
)
def test_where_all_are_broken_the_run_ends_with_advice(
    lab: SimpleNamespace, name: str, settings: dict[str, Any], wanted: str
) -> None:
    strategy = make(name, lab.task, **settings)
    state = strategy.state_dict()
    for key in ("genes", "parents"):
        if key in state["lineage"]:
            state["lineage"][key] = torch.full_like(state["lineage"][key], torch.nan)
    strategy.load_state_dict(state)
    with pytest.raises(RunError, match=wanted):
        step(strategy, lab)


@pytest.mark.parametrize("uplink", ["fitness", "levels", "ranks", "sign"])
def test_a_node_where_all_are_broken(laboratory: Build, clouds: Clouds, uplink: str) -> None:
    """The node fails by name and the others go on, where nodes rank and where losses are added up."""
    nodes = clouds(9, 5, 14)
    nodes["n1"] = Samples(nodes["n1"].x * torch.nan, nodes["n1"].y)
    lab = laboratory(linear, nodes)
    strategy = make("es", lab.task, uplink=uplink, subset_size=3)
    round_ = lab.engine.send(strategy.ask(NODES))
    assert [failure.node for failure in round_.failures] == ["n1"]
    assert strategy.tell(round_)["nonfinite"] == 0
    assert set(round_.per_node) == {"n0", "n2"}


def test_trials_of_before_are_not_those_of_a_state_taken_over(lab: SimpleNamespace) -> None:
    first, second, fresh = (make("de", lab.task, seed=seed).lineage for seed in (1, 0, 0))
    for proposer in (first, second):
        proposer.candidates(0)
    for proposer in (second, fresh):
        proposer.load_state_dict(first.state_dict())
    assert torch.equal(second.candidates(0)["population"], fresh.candidates(0)["population"])


def test_a_trial_that_is_not_finite_never_replaces_a_parent(lab: SimpleNamespace) -> None:
    strategy = make("de", lab.task, population=4)
    proposer: Any = strategy.lineage
    before, trials = proposer.candidates(0)["population"].chunk(2)
    inf = math.inf
    figures = learn(proposer, 0, torch.tensor([1, inf, inf, 2, inf, inf, 5, 2], dtype=torch.float64))
    assert torch.equal(proposer._parents, torch.stack([before[0], before[1], trials[2], trials[3]]))
    assert figures["replaced"] == 2
    assert torch.equal(proposer.genes, before[0])
