"""Generations of es, snes, sep_cma and de, each computed again by NumPy."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fne.core.dataset import Samples
from fne.evolution import shaping
from fne.evolution.genome import Layout
from fne.learning.evolving import Evolving
from fne.learning.task import LearningTask
from tests.learning.evolving_parts import NODES, Array, learn, linear, make, sent, step


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
