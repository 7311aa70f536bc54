"""es, snes, sep_cma and de: one generation by NumPy, what they share with FNE, that they converge and resume."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fne.config.registry import load
from fne.core.dataset import Samples
from fne.core.errors import RunError, SettingError
from fne.core.messages import Reply, Request
from fne.evolution import shaping
from fne.evolution.evaluate import Plan
from fne.evolution.genome import Layout
from fne.evolution.shaping import packed
from fne.learning.evolving import Evolving
from fne.learning.task import LearningTask
from fne.loop import run

Build = Callable[..., SimpleNamespace]
Clouds = Callable[..., dict[str, Samples]]
Array = NDArray[np.float64]
METHODS = ("es", "snes", "sep_cma", "de")
NODES = ("n0", "n1", "n2")


def linear() -> nn.Module:
    return nn.Linear(4, 3)


@pytest.fixture
def lab(laboratory: Build, clouds: Clouds) -> SimpleNamespace:
    """Return a linear classifier over three nodes of unequal size with validation data of its own."""
    return laboratory(linear, clouds(9, 5, 14), clouds(60, seed=1)["n0"])


def make(name: str, task: Any, **settings: Any) -> Evolving:
    made: Evolving = load("strategy", name)(task, **{"seed": 0, "population": 10, "rounds": 5, **settings})
    return made


def step(strategy: Evolving, lab: SimpleNamespace) -> tuple[Request, dict[str, Any]]:
    request = strategy.ask(lab.engine.nodes)
    return request, strategy.tell(lab.engine.send(request))


def learn(proposer: Any, t: int, scores: Tensor) -> dict[str, Any]:
    figures: dict[str, Any] = proposer.advance(t, proposer.decide(scores))
    return figures


# ------------------------------------------------------------------------------------------------ by NumPy
def losses_of(population: Array, data: list[Samples]) -> Array:
    """Return nmse of linear classifiers `[P, 15]` over all samples of some nodes, in float64."""
    x, y = (np.concatenate([np.asarray(getattr(d, name)) for d in data]) for name in "xy")
    values = []
    for genes in population:
        logits = x @ genes[:12].reshape(3, 4).T + genes[12:]
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        values.append(np.square(shares - np.eye(3)[y]).sum(axis=1).mean())
    return np.array(values)


def sent(common: dict[str, Tensor]) -> Array:
    """Return the candidates that a request holds, float64 `[P, 15]`; pairs of rank one: weights [3, 4], 3 offsets."""
    if "population" in common:
        return common["population"].double().numpy()
    centre, a, b, offsets = (
        value.double().numpy() for value in (common["centre"], *common["factors"].split([3, 4, 3], dim=1))
    )
    weights, shift = common["sigma"].double().numpy()
    change = np.concatenate([weights * np.einsum("pk,pi->pki", a, b).reshape(-1, 12), shift * offsets], axis=1)
    return np.concatenate([centre + change, centre - change])


def observed(strategy: Evolving, lab: SimpleNamespace) -> tuple[Array, Array, Array, Array]:
    """Take a step; return the centre before, the candidates sent, their losses by NumPy, and the centre after."""
    before = strategy.champion().parameters.double().numpy()
    request, metrics = step(strategy, lab)
    population = sent(dict(request.common))
    losses = losses_of(population, [lab.worker.nodes[name].data for name in request.nodes])
    np.testing.assert_allclose(metrics["_fitness"].numpy(), losses, rtol=1e-5)
    assert (metrics["loss_best"], metrics["loss_worst"]) == pytest.approx((losses.min(), losses.max()), rel=1e-5)
    assert metrics["loss_mean"] == pytest.approx(losses.mean(), rel=1e-5)
    return before, population, losses, strategy.champion().parameters.double().numpy()


def utilities(losses: Array) -> Array:
    count, rank = len(losses), losses.argsort().argsort() + 1
    raw = np.maximum(0, np.log(count / 2 + 1) - np.log(rank))
    return raw / raw.sum() - 1 / count  # type: ignore[no-any-return]


def scales_of(lab: SimpleNamespace) -> Array:
    return lab.task.layout.scales().double().numpy()  # type: ignore[no-any-return]


@pytest.mark.parametrize("rank", ["full", 1])
@pytest.mark.parametrize("shape", ["ranks", "utilities", "raw"])
@pytest.mark.parametrize(
    "more",
    [
        {"optimizer": "adam", "lr": 0.3},
        {"optimizer": "sgd", "lr": 2.0},
        {"optimizer": "sgd", "lr": 2.0, "momentum": 0.5, "weight_decay": 0.1},
        {"optimizer": "adam", "lr": 0.3, "weight_decay": 0.2, "lr_final": 0.5, "sigma_final": 0.25},
    ],
)
def test_generations_of_es_by_numpy(lab: SimpleNamespace, shape: str, more: dict[str, Any], rank: Any) -> None:
    strategy = make("es", lab.task, shape=shape, sigma=0.4, subset_size=2, rank=rank, **{"lr_final": 1.0, **more})
    scales = scales_of(lab)
    mean, square = np.zeros(15), np.zeros(15)
    for t in range(5):
        sigma, lr = 0.4 * more.get("sigma_final", 1.0) ** (t / 4), more["lr"] * more.get("lr_final", 1.0) ** (t / 4)
        before, population, losses, after = observed(strategy, lab)
        noise = (population - before) / (sigma * scales)
        np.testing.assert_allclose(noise[:5], -noise[5:], atol=1e-4)
        ranks = np.linalg.matrix_rank(noise[:, :12].reshape(10, 3, 4), tol=1e-3)
        assert set(ranks.tolist()) == {3 if rank == "full" else 1}
        weights = {
            "ranks": 0.5 - losses.argsort().argsort() / 9, "utilities": utilities(losses), "raw": -losses,
        }[shape]  # fmt: skip
        ascent = weights @ noise / (10 * sigma)
        if more["optimizer"] == "sgd":
            mean = more.get("momentum", 0.0) * mean + ascent
            move = mean
        else:
            mean, square = 0.9 * mean + 0.1 * ascent, 0.999 * square + 0.001 * ascent**2
            move = mean / (1 - 0.9 ** (t + 1)) / (np.sqrt(square / (1 - 0.999 ** (t + 1))) + 1e-8)
        wanted = before * (1 - lr * more.get("weight_decay", 0.0)) + lr * scales * move
        np.testing.assert_allclose(after, wanted, rtol=1e-3, atol=1e-4)
    assert strategy.done


def test_a_full_rank_keeps_its_bits() -> None:
    """Of all candidates and centres, as before there was another rank; zeros have no spread to estimate."""

    def zeros(_: int) -> nn.Module:
        module = linear()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.zero_()
        return module

    task = LearningTask(Layout(zeros(0)), zeros, lambda *_, **__: {"loss": torch.ones(1), "accuracy": torch.ones(1)})
    proposer = make("es", task, optimizer="sgd", momentum=0.5, lr=3.0, lr_final=1.0).lineage
    digest = hashlib.sha256()
    for t in range(5):
        digest.update(proposer.candidates(t)["population"].numpy().tobytes())
        learn(proposer, t, (7 * torch.arange(10) + t).remainder(10).double())
    digest.update(proposer.genes.numpy().tobytes())
    assert digest.hexdigest() == "0d0bde75f6133d1eba2fd290bbbcb57b18b7698c5a387d44dc9b87cb29ba720c"


def moments() -> tuple[Array, Array]:
    """Return the 61 values of the noise in units of its deviation, and how probable they are: four digits' sum."""
    shares = np.ones(1)
    for _ in range(4):
        shares = np.convolve(shares, np.full(16, 1 / 16))
    values = np.arange(-30, 31) / np.sqrt(85)
    return values, shares


def variance_of_squares() -> float:
    values, shares = moments()
    return float(shares @ values**4 - (shares @ values**2) ** 2)


def test_generations_of_snes_by_numpy(lab: SimpleNamespace) -> None:
    strategy = make("snes", lab.task, population=7, sigma=0.4, eta_mu=0.8, eta_final=0.5)
    widths, scales = np.full(15, 0.4), scales_of(lab)
    for t in range(5):
        before, population, losses, after = observed(strategy, lab)
        s = (population - before) / (widths * scales)
        u = utilities(losses)
        wanted = before + 0.8 * 0.5 ** (t / 4) * scales * widths * (u @ s)
        np.testing.assert_allclose(after, wanted, rtol=1e-3, atol=1e-4)
        widths = widths * np.exp((3 + np.log(15)) / (5 * np.sqrt(15)) / variance_of_squares() * (u @ (s**2 - 1)))


def towards_far(strategy: Evolving, lab: SimpleNamespace, t: int) -> tuple[Array, Array, Array, Array]:
    """Return what `observed` does, but of losses that are squared distances from a far point."""
    proposer = strategy.lineage
    before, population = proposer.genes.double().numpy(), proposer.candidates(t)["population"].double().numpy()
    losses = np.square(population / scales_of(lab) - 1e3).sum(axis=1)
    learn(proposer, t, torch.from_numpy(losses))
    return before, population, losses, proposer.genes.double().numpy()


@pytest.mark.parametrize(("rounds", "seen"), [(5, {True}), (30, {True, False})])
def test_generations_of_sep_cma_by_numpy(lab: SimpleNamespace, rounds: int, seen: set[bool]) -> None:
    """Near the optimum, and far from it, where the step size grows so fast that the path has to wait for it."""
    strategy, n, scales = make("sep_cma", lab.task, population=7, sigma=0.4), 15, scales_of(lab)
    w = np.log(4) - np.log([1, 2, 3])
    w = w / w.sum()
    mu = 1 / np.square(w).sum()
    c_s, c_c = (mu + 2) / (n + mu + 3), 4 / (n + 4)
    d_s = 1 + 2 * max(0, np.sqrt((mu - 1) / (n + 1)) - 1) + c_s
    c_cov = (1 / mu) * 2 / (n + np.sqrt(2)) ** 2 + (1 - 1 / mu) * min(1, (2 * mu - 1) / ((n + 2) ** 2 + mu))
    c_cov *= (n + 2) / 3
    chi = np.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n**2))
    sigma, c, p_s, p_c = 0.4, np.ones(n), np.zeros(n), np.zeros(n)
    met = set()
    for t in range(rounds):
        before, population, losses, after = observed(strategy, lab) if rounds == 5 else towards_far(strategy, lab, t)
        z = (population - before) / (sigma * np.sqrt(c) * scales)
        best = z[losses.argsort()[:3]]
        np.testing.assert_allclose(after, before + sigma * scales * np.sqrt(c) * (w @ best), rtol=1e-3, atol=1e-4)
        p_s = (1 - c_s) * p_s + np.sqrt(c_s * (2 - c_s) * mu) * (w @ best)
        length = np.linalg.norm(p_s)
        moving = length / np.sqrt(1 - (1 - c_s) ** (2 * (t + 1))) < (1.4 + 2 / (n + 1)) * chi
        met.add(bool(moving))
        p_c = (1 - c_c) * p_c + moving * np.sqrt(c_c * (2 - c_c) * mu) * np.sqrt(c) * (w @ best)
        squares = np.maximum(0, 1 + 2 / variance_of_squares() * (w @ best**2 - 1))
        c = (1 - c_cov) * c + c_cov / mu * p_c**2 + c_cov * (1 - 1 / mu) * c * squares
        sigma *= np.exp(c_s / d_s * (length / chi - 1))
    assert met == seen
    state = strategy.state_dict()["lineage"]
    assert state["sigma"] == pytest.approx(sigma, rel=1e-3)
    np.testing.assert_allclose(state["variances"].numpy(), c, rtol=1e-2)


@pytest.mark.parametrize("name", ["snes", "sep_cma"])
def test_widths_follow_a_square_as_fast_as_with_normal_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every value of the noise as often as it occurs, and a weight that is linear in its square.

    The mean of `(a z^2 + b) (z^2 - 1)` over normal numbers is 2 a: a step of SNES's log-widths of `a eta`, and of
    sep-CMA-ES's variances of `2 a c` where the weights add up to 1.
    """
    values, shares = moments()
    module = nn.Linear(1, 1, bias=False)
    task = LearningTask(Layout(module), lambda _: module, lambda *_, **__: {"loss": torch.ones(1)})
    proposer = make(name, task, population=61).lineage
    weights = torch.from_numpy(shares * (0.5 * (values**2 - 1) + (name == "sep_cma")))
    monkeypatch.setattr(proposer, "_noise", lambda _: torch.arange(-30, 31, dtype=torch.int8).unsqueeze(1))
    monkeypatch.setattr(shaping, "utilities", lambda _: weights)
    monkeypatch.setattr(shaping, "by_rank", lambda *_: weights)
    state = proposer.state_dict()
    proposer.advance(0, {"ranks": torch.arange(61)})
    after = proposer.state_dict()
    if name == "snes":
        rate = 3 / 5
        assert float((after["sigma"] / state["sigma"]).log()) == pytest.approx(0.5 * rate, rel=1e-6)
    else:
        rate = proposer._rate_covariance
        expected = (1 - rate) + rate * (1 - 1 / proposer._mass) * (1 + 2 * 0.5)
        assert float(after["variances"] - rate * after["path"] ** 2 / proposer._mass) == pytest.approx(
            expected, rel=1e-6
        )


@pytest.mark.parametrize("variant", ["rand/1/bin", "best/1/bin", "current-to-best/1/bin"])
def test_generations_of_de_by_numpy(lab: SimpleNamespace, variant: str) -> None:
    """Every trial gene is its parent's or a mutant's of some three others, the same three in all genes."""
    strategy = make("de", lab.task, population=6, variant=variant, weight=0.7, crossover=0.6)
    best, crossed = -1, 0
    for _ in range(5):
        _, population, losses, after = observed(strategy, lab)
        parents, trials = population[:6], population[6:]
        for i in range(6):
            others = [k for k in range(6) if k != i]
            mutants = []
            for a in others:
                for b in (k for k in others if k != a):
                    bases = [parents[best]] if best >= 0 and variant != "rand/1/bin" else parents[
                        [k for k in others if k not in (a, b)]
                    ]  # fmt: skip
                    for base in bases:
                        start = parents[i] + 0.7 * (base - parents[i]) if variant.startswith("current") else base
                        mutants.append(start + 0.7 * (parents[a] - parents[b]))
            changed = trials[i] != parents[i]
            assert changed.any()
            fits = [np.allclose(trials[i][changed], m[changed], rtol=1e-4, atol=1e-5) for m in mutants]
            assert any(fits)
            crossed += int(changed.sum())
        better = losses[6:] <= losses[:6]
        survivors = np.where(better[:, None], trials, parents)
        best = int(np.where(better, losses[6:], losses[:6]).argmin())
        np.testing.assert_array_equal(after, survivors[best])
        np.testing.assert_array_equal(strategy.ask(NODES).common["population"][:6].numpy(), survivors.astype("f4"))
    assert abs(crossed / (5 * 6 * 15) - 0.6 - 0.4 / 15) < 0.1


@pytest.mark.parametrize(("crossover", "changed"), [(0.0, 1), (1.0, 15)])
def test_de_takes_one_gene_at_least_and_all_at_most(lab: SimpleNamespace, crossover: float, changed: int) -> None:
    population = make("de", lab.task, population=50, crossover=crossover).ask(NODES).common["population"]
    differing = (population[:50] != population[50:]).sum(dim=1)
    assert differing.tolist() == [changed] * 50
    if changed == 1:
        assert len(set((population[:50] != population[50:]).nonzero()[:, 1].tolist())) > 8


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
    strategy = make(name, lab.task, loss="mse", **{"population": 20, "rounds": 250, "subset_size": 3, **settings})
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
        ("es", {"momentum": 0.5}, r"strategy\.momentum = 0\.5: must be 0 with optimizer = adam: it is sgd's"),
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
