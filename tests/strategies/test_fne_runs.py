"""Runs of FNE: statistics of batch normalisation, resumed to the same bits, and that it learns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fne.core.dataset import Samples
from fne.evolution.evaluate import Plan
from fne.loop import run
from fne.strategies.fne import FNE
from tests.strategies.fne_parts import Build, Clouds, fne, linear, step

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
