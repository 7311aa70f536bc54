"""Federated swarm intelligence: algorithm 1 to the letter, alpha, swarms side by side, reduced samples, mistakes."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fne.config.load import load_config
from fne.config.registry import load
from fne.core.dataset import Samples
from fne.core.errors import ConfigError, DataError, FneError, RunError, SettingError
from fne.core.messages import Header, Reply, Request, Status
from fne.core.randomness import derive_seed
from fne.engines.local import LocalEngine
from fne.evolution import losses as fitness
from fne.evolution import reduction, shaping
from fne.evolution.evaluate import Evaluator, Plan
from fne.evolution.genome import Layout
from fne.evolution.philox import Perturbations, Purpose, Stream
from fne.evolution.swarm import gains, owners
from fne.learning.swarming import owners_for
from fne.loop import run
from fne.privacy.policy import Policy
from fne.run.learning_run import LearningRun, build
from fne.run.train import train
from fne.watch.history import read_history

Build = Callable[..., SimpleNamespace]
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "fsi.py"


def housing(rounds: int, *words: str, data: str = "data.standardise=true") -> LearningRun:
    return build(load_config("fsi_housing", [f"strategy.rounds={rounds}", data, *words]))


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def done(made: LearningRun, stop: int | None = None) -> Any:
    run(made.strategy, LocalEngine(made.worker), callbacks=[lambda strategy, *_: strategy.step == stop])
    return made.strategy


# ------------------------------------------------------------------------------------------------ algorithm 1
@pytest.mark.parametrize(("w1", "w2"), [(0.0, 1.0), (0.2, 0.4), (0.4, 0.6), (0.0, 0.0)])
@pytest.mark.parametrize("changes", ["any", "best"])
def test_algorithm_1_to_the_letter(w1: float, w2: float, changes: str) -> None:
    """Both broadcasts of each epoch, losses by node, in NumPy; random numbers are those of the strategy."""
    epochs, particles, genes = 60, 20, 14
    made = housing(epochs + 1, f"strategy.w1={w1}", f"strategy.w2={w2}", f"strategy.changes={changes}")
    strategy = done(made)
    nodes = [
        (torch.cat([s.x, torch.ones(len(s), 1)], 1).double().numpy(), s.y.double().numpy()) for s in made.nodes.values()
    ]
    total = sum(len(y) for _, y in nodes)

    def mse(theta: Any) -> Any:
        answers = [(len(y) / total, np.mean((x @ theta.T.astype(np.float64) - y) ** 2, axis=0)) for x, y in nodes]
        return sum(weight * mean for weight, mean in answers)

    half = np.float32(65535)
    words = Stream(0, Purpose.SWARM_START).words(0, range(particles), genes).numpy()
    theta = ((words & 65535).astype(np.float32) * np.float32(2 / 65535) - 1).astype(np.float32)
    v, alpha, before, still = np.zeros_like(theta), 1.0, None, 0
    for epoch in range(1, epochs + 1):
        old = mse(theta)
        told = old if changes == "any" else old.min()
        if before is not None:
            changed = bool(np.any(told != before))
            still = 0 if changed else still + 1
            if changed:
                alpha *= 2
            elif still == 5:
                alpha, still = alpha / 2, 0
        before = told
        words = Stream(0, Purpose.SWARM_MOVE).words(epoch, range(particles), genes).numpy()
        rand1 = (words & 65535).astype(np.float32) / half
        rand2 = (words >> 16).astype(np.float32) * 2 / half - 1
        w3 = np.float32(max(0.0, 1 - w1 - w2))
        v = np.float32(alpha) * (
            np.float32(w1) * v + np.float32(w2) * rand1 * (theta[old.argmin()] - theta) + w3 * rand2
        )
        temp = theta + v
        theta = np.where((mse(temp) < old)[:, None], temp, theta)
    swarm = strategy.lineage
    np.testing.assert_allclose(swarm.positions[0].numpy(), theta, rtol=2e-3, atol=2e-3)
    assert strategy.state_dict()["standing"].min() == pytest.approx(mse(theta).min(), rel=1e-4)
    # the last epoch's change is told to alpha in the next one
    assert abs(np.log2(float(swarm.rule.state_dict()["alpha"][0, 0]) / alpha)) <= 1


@pytest.mark.parametrize(
    ("changes", "better", "best", "expected"),
    [
        ("any", [1, 0, 0], 1, 2.0),
        ("any", [0, 0, 0], 0, 1.0),
        ("best", [1, 0, 0], 1, 1.0),
        ("best", [0, 1, 0], 1, 2.0),
    ],
)
def test_alpha_doubles_where_something_changed(changes: str, better: list[int], best: int, expected: float) -> None:
    rule = housing(2, "strategy.population=3", f"strategy.changes={changes}").strategy.lineage.rule  # type: ignore[attr-defined]
    rule.learn(torch.tensor(better).bool().view(1, 3, 1), torch.tensor([[best]]), {})
    assert float(rule.state_dict()["alpha"]) == expected


def test_alpha_halves_every_few_epochs_without_a_change_and_stays_finite() -> None:
    rule = housing(2, "strategy.population=3", "strategy.patience=3", "strategy.alpha_max=8").strategy.lineage.rule  # type: ignore
    best = torch.tensor([[0]])

    def after(change: bool, count: int) -> float:
        for _ in range(count):
            rule.learn(torch.full((1, 3, 1), change), best, {})
        return float(rule.state_dict()["alpha"])

    assert [after(False, n) for n in (2, 1, 2, 1)] == [1, 0.5, 0.5, 0.25]
    assert after(True, 50) == 8
    assert 0 < after(False, 2000) <= 1e-29
    assert after(True, 200) == 8


def test_alpha_that_is_not_adaptive_stays() -> None:
    strategy = done(housing(30, "strategy.adaptive=false", "strategy.alpha=0.1", "strategy.w2=0.5"))
    assert float(strategy.lineage.rule.state_dict()["alpha"]) == 0.1


def test_velocities_stay_within_the_range_of_numbers() -> None:
    rule = housing(2, "strategy.w1=1", "strategy.w2=0", "strategy.alpha=1000").strategy.lineage.rule  # type: ignore[attr-defined]
    rule.load_state_dict({**rule.state_dict(), "velocities": torch.full((1, 20, 14), 1e29)})
    for step in range(1, 40):
        trials = rule.trials(step, torch.zeros(1, 20, 14), torch.zeros(1, 14))
        rule.learn(torch.ones(1, 20, 1).bool(), torch.zeros(1, 1, dtype=torch.int64), {})
        assert bool(torch.isfinite(trials).all())


def test_particles_begin_as_initialised_models() -> None:
    made = housing(2, "strategy.start=model", "strategy.population=3", "strategy.spread=9")
    (common,) = made.strategy.ask(tuple(made.nodes)).common.values()
    modules = [made.task.new_model(derive_seed(0, "individual", i)) for i in range(3)]
    for genes, module in zip(common, modules, strict=True):
        assert torch.equal(genes, torch.cat([p.detach().flatten() for p in module.parameters()]))
    assert not torch.equal(common[0], common[1])


def test_the_benchmark_is_reached(script: dict[str, Any]) -> None:
    """Least squares on all training data: 23.1956 on the paper's test part."""
    made = script["experiment"]([(0.0, 1.0)], 2, **{"data.standardise": True})
    assert [len(part) for part in made.nodes.values()] == [101] * 4
    assert (len(made.dataset.train), len(made.dataset.test)) == (404, 102)
    for _ in script["steps"](made, 7_500):
        pass
    assert script["test_errors"](made).tolist() == pytest.approx([23.1956] * 2, abs=1e-3)


# ------------------------------------------------------------------------------------------------ side by side
def test_cells_of_a_table_are_swarms_of_their_own() -> None:
    """The first of several swarms is as it is alone; the result is that of the lowest loss."""
    alone = done(housing(40, "strategy.w1=0.2", "strategy.w2=0.8"))
    several = done(housing(40, "strategy.w1=[0.2,0,0]", "strategy.w2=[0.8,0,1]", "strategy.swarms=2"))
    assert torch.equal(several.lineage.positions[0], alone.lineage.positions[0])
    assert several.lineage.shape == (6, 20, 1)
    lowest = several.state_dict()["standing"].min(dim=1).values[:, 0]
    winner = int(lowest.argmin())
    assert torch.equal(several.result().parameters, several.lineage.leaders()[winner])
    assert len({float(value) for value in lowest}) == 6


def test_models_of_a_classifier_go_each_their_own_way(laboratory: Build, clouds: Callable[..., Any]) -> None:
    """Model 0 does not notice that the other two classes change places, and these do change places."""

    def positions(swapped: bool) -> Tensor:
        nodes = clouds(40, 30)
        if swapped:
            nodes = {n: replace(s, y=torch.tensor([0, 2, 1])[s.y]) for n, s in nodes.items()}
        lab = laboratory(lambda: load("model", "logistic")((4,), 3, output="sigmoid"), nodes, output="sigmoid")
        strategy = load("strategy", "fsi")(lab.task, seed=0, rounds=40)
        run(strategy, lab.engine)
        assert strategy.lineage.models == 3
        result: Tensor = strategy.lineage.positions
        return result

    plain, swapped = positions(False), positions(True)
    owner = torch.tensor([*[0] * 4, *[1] * 4, *[2] * 4, 0, 1, 2])
    assert torch.equal(plain[:, :, owner == 0], swapped[:, :, owner == 0])
    assert not torch.equal(plain[:, :, owner == 1], swapped[:, :, owner == 1])


def test_genes_belong_to_outputs_where_there_is_one_layer() -> None:
    single, deep = Layout(nn.Linear(2, 3)), Layout(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3)))
    assert owners(single, apart=True).tolist() == [0, 0, 1, 1, 2, 2, 0, 1, 2]
    assert not owners(single, apart=False).any()
    assert not owners(deep, apart=True).any()


@pytest.mark.parametrize("features", [4, 1])
@pytest.mark.parametrize(
    ("loss", "output", "labels", "models"),
    [
        ("bce", "sigmoid", True, 3),
        ("bce", "softmax", True, 3),  # which sees logits one by one
        ("mse", "sigmoid", True, 3),
        ("nmse", "sigmoid", True, 3),
        ("mse", "softmax", True, 1),
        ("nmse", "softmax", True, 1),
        ("cross_entropy", "sigmoid", True, 1),
        ("mse", "linear", False, 3),
        ("nmse", "sigmoid", False, 3),  # of numbers the values themselves
    ],
)
def test_outputs_with_losses_of_their_own_are_models(
    laboratory: Build, features: int, loss: str, output: str, labels: bool, models: int
) -> None:
    """The strategy, the function that nodes go by and the nodes agree."""
    y = torch.arange(6) % 3
    nodes = {"n0": Samples(torch.randn(6, features), y if labels else nn.functional.one_hot(y, 3).float())}
    meant = output if labels else "linear"
    lab = laboratory(lambda: load("model", "logistic")((features,), 3, output=output), nodes, output=meant)
    assert fitness.output_of(lab.task.new_model(0), classification=labels) == meant
    assert fitness.separable(loss, meant) == (models > 1)
    for strategy, apart, expected in (("fsi", True, models), ("fsi_shared", True, models), ("fsi", False, 1)):
        made = load("strategy", strategy)(lab.task, seed=0, rounds=3, loss=loss, one_vs_all=apart)
        run(made, lab.engine)
        assert made.lineage.models == expected
        assert int(owners_for(lab.task, loss, apart=apart).max()) + 1 == expected


def test_a_node_that_fails_is_no_comparison(laboratory: Build, clouds: Callable[..., Any]) -> None:
    nodes = clouds(40, 30, 20)
    lab = laboratory(lambda: load("model", "logistic")((4,), 3, output="sigmoid"), nodes, output="sigmoid")
    strategy = load("strategy", "fsi")(lab.task, seed=0, rounds=60)

    def step(*absent: str) -> dict[str, Any]:
        request = strategy.ask(lab.engine.nodes)
        round_ = lab.engine.send(replace(request, nodes=tuple(n for n in request.nodes if n not in absent)))
        failures = tuple(Reply(request.header, n, Status.FAILED, "away") for n in absent)
        figures: dict[str, Any] = strategy.tell(replace(round_, failures=failures))
        return figures

    for _ in range(10):
        step()
    before = strategy.lineage.positions.clone()
    assert step("n1")["moved"] == 0
    assert strategy.lineage.measuring
    step("n1")  # measures what the others say of the particles
    assert torch.equal(strategy.lineage.positions, before)
    weight = len(nodes["n0"]) + len(nodes["n2"])
    flat = before.flatten(0, 1)
    summed = sum(
        lab.evaluator.sample_losses(flat, nodes[n], "bce", per_output=True).double().sum(1) for n in ("n0", "n2")
    )
    torch.testing.assert_close(strategy.state_dict()["standing"][0], summed / weight)
    assert sum(step("n1")["moved"] for _ in range(20)) > 0
    assert step()["moved"] == 0  # it is back
    assert strategy.lineage.measuring


@pytest.mark.parametrize(
    ("name", "settings", "lower"),
    [
        ("fsi", {"spread": 1e6}, "lower strategy.spread, or "),
        ("fsi", {"start": "model"}, ""),
        ("fsi_shared", {}, ""),
        ("fsi_shared", {"penalty": 1e300}, "lower strategy.penalty, or "),
    ],
)
def test_nothing_finite_is_said_with_what_would_help(
    laboratory: Build, name: str, settings: dict[str, Any], lower: str
) -> None:
    nodes = {"n0": Samples(torch.full((3, 2), 1e30), torch.ones(3, 1))}
    lab = laboratory(lambda: load("model", "logistic")((2,), 1, output="linear"), nodes, output="linear")
    strategy = load("strategy", name)(lab.task, seed=0, loss="mse", **settings)
    with pytest.raises(RunError, match=f"step 0: no particle of a swarm has a finite loss; {lower}scale the data$"):
        run(strategy, lab.engine)
    later = load("strategy", name)(lab.task, seed=0, loss="mse", **settings, rounds=9)
    figures = [torch.ones(20, 1), torch.ones(20, 1), torch.full((20, 1), torch.nan)]
    later.learn(figures[0], [])
    later.learn(figures[1], ["n1"])  # is away: the particles are to be measured again
    with pytest.raises(RunError, match=r"step 2: no particle of a swarm has a finite loss; scale the data$"):
        later.learn(figures[2], ["n1"])


def test_what_is_gained_is_never_nan(laboratory: Build) -> None:
    inf, nan = torch.inf, torch.nan
    gained = gains(torch.tensor([inf, inf, 1.0, 3.0]), torch.tensor([inf, 2.0, 2.0, inf]))
    assert gained.tolist() == [inf, inf, -1.0, -inf]
    lab = laboratory(
        lambda: load("model", "logistic")((2,), 1, output="linear"),
        {"n0": Samples(torch.ones(3, 2), torch.ones(3, 1))},
        output="linear",
    )
    strategy = load("strategy", "fsi_shared")(lab.task, seed=0, loss="mse", population=4)
    strategy.learn(torch.tensor([[inf], [1.0], [2.0], [nan]]), [])
    strategy.learn(torch.tensor([[-inf], [nan], [1.0], [3.0]]), [])
    assert strategy.decision["ranks"].tolist() == [2, 3, 1, 0]


# ------------------------------------------------------------------------------------------------ nodes
@pytest.mark.parametrize(
    ("loss", "output"), [("bce", "softmax"), ("bce", "sigmoid"), ("mse", "sigmoid"), ("nmse", "linear")]
)
def test_losses_of_outputs_add_up(loss: str, output: str) -> None:
    draw = torch.Generator().manual_seed(0)
    logits, y = torch.randn(3, 7, 4, generator=draw) * 50, torch.arange(7) % 4
    each = fitness.sample_losses(loss, logits, y, output, per_output=True)
    whole = fitness.sample_losses(loss, logits, y, output)
    torch.testing.assert_close(each.sum(-1) if loss == "nmse" else each.mean(-1), whole)
    if loss == "bce":
        hot = nn.functional.one_hot(y, 4).bool()
        wanted = -torch.where(hot, logits.double(), -logits.double()).sigmoid().log()
        torch.testing.assert_close(each.double(), wanted, rtol=1e-4, atol=1e-6)
        assert bool(torch.isfinite(fitness.sample_losses(loss, logits * 1e30, y, output)).all())


@pytest.mark.parametrize(("loss", "output"), [("cross_entropy", "sigmoid"), ("mse", "softmax"), ("nmse", "softmax")])
def test_losses_that_outputs_do_not_have_are_refused(loss: str, output: str) -> None:
    with pytest.raises(FneError, match="outputs have no separate losses"):
        fitness.sample_losses(loss, torch.zeros(1, 2, 3), torch.tensor([0, 1]), output, per_output=True)


def linear(outputs: int, rows: int, **settings: Any) -> tuple[Evaluator, Samples]:
    draw = torch.Generator().manual_seed(rows)
    samples = Samples(torch.randn(rows, 5, generator=draw), torch.randn(rows, outputs, generator=draw))
    torch.manual_seed(0)
    module = load("model", "logistic")((5,), outputs, output="linear", **settings)
    return Evaluator(module, Plan("stacked", 16, 64), output="linear"), samples


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("rows", [4, 100])
@pytest.mark.parametrize("features", ["linear", "quadratic"])
def test_reduced_samples_give_the_same_errors(outputs: int, rows: int, features: str) -> None:
    evaluator, samples = linear(outputs, rows, features=features)
    population = torch.randn(6, evaluator.layout.size)
    triangles = reduction.reduced(evaluator, samples)
    assert triangles.shape[1] <= min(rows, evaluator.layout.size + 1)
    exact = (evaluator.logits(population, samples.x).double() - samples.y).square().sum(dim=1)
    torch.testing.assert_close(reduction.squared_errors(triangles, population), exact, rtol=1e-5, atol=1e-5)


def test_reduced_samples_are_exact_in_float64() -> None:
    evaluator, samples = linear(1, 50)
    genes = torch.randn(2, 6)
    a = torch.cat([samples.x, torch.ones(50, 1)], dim=1).double()
    exact = (genes.double() @ a.t() - samples.y.double().t()).square().sum(dim=1, keepdim=True)
    found = reduction.squared_errors(reduction.reduced(evaluator, samples), genes)
    torch.testing.assert_close(found, exact, rtol=1e-12, atol=0)


def test_a_model_that_is_not_linear_cannot_be_reduced() -> None:
    module = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 1))
    evaluator = Evaluator(module, Plan("loop", 16, 64), output="linear")
    with pytest.raises(RunError, match="not linear in its genes"):
        reduction.reduced(evaluator, Samples(torch.ones(3, 5), torch.ones(3, 1)))


def test_exact_reduction_is_the_same_run() -> None:
    plain = done(housing(40, "strategy.exact_reduction=false"))
    reduced = done(housing(40))
    torch.testing.assert_close(reduced.state_dict()["standing"], plain.state_dict()["standing"], rtol=1e-4, atol=1e-4)


def test_what_is_reduced_is_resumed_with_the_nodes(tmp_path: Path) -> None:
    words = ["strategy.rounds=30", "watch.tensorboard=false", "engine.threads=1"]
    whole = train("fsi_housing", words, out=tmp_path / "whole")
    train("fsi_housing", words, out=tmp_path / "parts", stop_after=17)
    assert train(None, resume=tmp_path / "parts")["model_sha256"] == whole["model_sha256"]


@pytest.mark.parametrize("shared", [False, True])
def test_the_benchmark_of_tables_takes_the_steps_of_the_run(script: dict[str, Any], shared: bool) -> None:
    cells = [(0.0, 1.0), (0.2, 0.4), (0.4, 0.6)]
    one, other = (
        housing(200, *script["SHARED"].split()) if shared else script["experiment"](cells, 2) for _ in range(2)
    )
    *_, (_, standing) = script["steps"](one, 150)
    strategy = done(other, stop=151)
    assert torch.equal(one.strategy.lineage.positions, strategy.lineage.positions)
    torch.testing.assert_close(standing, strategy.state_dict()["standing"][:, :, 0], rtol=1e-9, atol=0)


def test_records_are_of_the_same_settings(script: dict[str, Any], tmp_path: Path) -> None:
    cells, path = [(0.0, 1.0), (0.2, 0.4)], tmp_path / "record.json"

    def looked(*what: Any, alike: bool = False, epochs: int = 5, **more: Any) -> dict[str, Any]:
        made = script["experiment"](*what, **more)
        result: dict[str, Any] = script["recorded"](script["alike"](made, 2) if alike else made, epochs, path)
        return result

    kept = looked(cells, 2) | {"seconds": -1}
    for what, more in [
        ((cells[::-1], 2), {}), ((cells, 3), {}), ((cells, 2, 1), {}), ((cells, 2), {"strategy.spread": 2.0}),
        ((cells, 2), {"data.standardise": True}), ((cells, 2), {"alike": True}), ((cells, 2), {"epochs": 6}),
    ]:  # fmt: skip
        path.write_text(json.dumps(kept))
        assert looked(cells, 2) == kept
        other = looked(*what, **more)
        assert other["seconds"] >= 0, (what, more)
        assert other["errors"] != kept["errors"]
    path.write_text(json.dumps({name: value for name, value in kept.items() if name != "of"}))
    assert looked(cells, 2)["seconds"] >= 0
    path.write_text(json.dumps(kept | {"epochs": [], "errors": []}))  # broken off
    assert looked(cells, 2)["errors"] == kept["errors"]


def test_rows_of_figure_8_begin_at_the_same_positions(script: dict[str, Any], tmp_path: Path) -> None:
    cells = [(0.0, 0.6)] * 3
    positions = script["alike"](script["experiment"](cells, 2), 2).strategy.lineage.positions
    adaptive = script["experiment"](cells[:1], 2).strategy.lineage.positions
    assert torch.equal(positions.view(3, 2, 20, 14), adaptive.expand(3, 2, 20, 14))
    for swarms in (2, 3):  # the second finds the records of the first
        script["alphas"](20, swarms, 0, tmp_path)
        assert (tmp_path / "figure8.png").stat().st_size > 10_000


# ------------------------------------------------------------------------------------------------ the variant
def test_shared_moves_in_numpy(laboratory: Build, clouds: Callable[..., Any]) -> None:
    """Trials; the direction as the decaying sum of ranked moves; widths as in SNES, 2011, algorithm 2."""
    lab = laboratory(lambda: nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)), clouds(30))
    strategy = load("strategy", "fsi_shared")(
        lab.task, seed=3, rounds=9, population=6, loss="cross_entropy", memory=0.6
    )
    size = lab.task.layout.size
    expected, widths, rate = np.zeros(size), np.ones(size), (3 + np.log(size)) / (5 * np.sqrt(size))
    raw = np.maximum(0, np.log(6 / 2 + 1) - np.log(np.arange(1, 7)))
    utilities = raw / raw.sum() - 1 / 6
    weights = utilities / np.sqrt((utilities**2).sum())
    for step in range(9):
        old = strategy.state_dict()["standing"].clone()
        places, leader = strategy.lineage.positions[0].numpy(), strategy.lineage.leaders().numpy()
        length = strategy.lineage.rule.state_dict()["steps"][0].numpy() * lab.task.layout.scales().numpy() * widths
        trials = strategy.ask(lab.engine.nodes).common["population"]
        strategy.tell(lab.engine.send(strategy.ask(lab.engine.nodes)))
        if step:
            losses = lab.evaluator.evaluate(trials, clouds(30)["n0"], loss="cross_entropy")["loss"].numpy()
            ranks = (losses - old[0, :, 0].numpy()).argsort().argsort()
            noise = Perturbations(3, 6, size)(step).numpy() / np.sqrt(85)
            way = 0.3 * Stream(3, Purpose.SWARM_MOVE).uniform(step, range(6), size).numpy() * (leader - places)
            np.testing.assert_allclose(trials, places + length * (noise + expected) + way, rtol=1e-4, atol=1e-5)
            expected = 0.6 * expected + 0.8 * (weights[ranks, None] * noise).sum(0)
            widths *= np.exp(0.2 * rate / 2 * (utilities[ranks, None] * (noise**2 - 1)).sum(0))
    state = strategy.lineage.rule.state_dict()
    np.testing.assert_allclose(state["direction"][0].numpy(), expected, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(state["widths"][0].numpy(), widths, rtol=1e-6)
    assert strategy.lineage.models == 1


def test_the_shared_direction_has_the_same_bits_in_any_order(laboratory: Build, clouds: Callable[..., Any]) -> None:
    """Three models with ranks of their own; sums of fractions have no order."""
    lab = laboratory(lambda: load("model", "logistic")((4,), 3, output="sigmoid"), clouds(30), output="sigmoid")
    strategy = load("strategy", "fsi_shared")(lab.task, seed=3, rounds=2, memory=0.6, widths=0.0)
    run(strategy, lab.engine)
    utilities = shaping.utilities(torch.arange(20))
    short = [Fraction(w) for w in shaping.rounded(utilities).tolist()]
    noise = Perturbations(3, 20, 15)(1).tolist()
    ranks = strategy.decision["ranks"].view(20, 3).tolist()
    unit = 85**-0.5 / float(utilities.square().sum().sqrt())
    owner = [*[0] * 4, *[1] * 4, *[2] * 4, 0, 1, 2]
    sums = [sum(short[ranks[i][owner[g]]] * noise[i][g] for i in range(20)) for g in range(15)]
    state = strategy.lineage.rule.state_dict()
    assert state["direction"][0].tolist() == [(1 - 0.6**2) ** 0.5 * (float(total) * unit) for total in sums]
    assert torch.equal(state["widths"], torch.ones(1, 15, dtype=torch.float64))


def test_widths_serve_features_of_different_scales(script: dict[str, Any]) -> None:
    """Housing as it is, whose features are of 0.5 to 400; least squares has a training MSE of 22.0048."""
    made = housing(2, *script["SHARED"].split(), data="data.standardise=false")
    assert made.dataset.train.x.std(0).max() > 1000 * made.dataset.train.x.std(0).min()
    *_, (_, standing) = script["steps"](made, 3000)
    assert 22.0048 < float(standing.min()) < 22.1


def test_the_penalty_is_half_the_squares_of_each_model(laboratory: Build, clouds: Callable[..., Any]) -> None:
    def standing(penalty: float) -> tuple[Tensor, Tensor]:
        lab = laboratory(lambda: load("model", "logistic")((4,), 3, output="sigmoid"), clouds(30), output="sigmoid")
        strategy = load("strategy", "fsi_shared")(lab.task, seed=0, rounds=1, population=4, penalty=penalty)
        run(strategy, lab.engine)
        return strategy.state_dict()["standing"][0], strategy.lineage.positions[0]

    plain, positions = standing(0.0)
    heavy, _ = standing(0.5)
    weights, biases = positions[:, :12].view(4, 3, 4).double(), positions[:, 12:].double()
    torch.testing.assert_close(heavy - plain, 0.25 * (weights.square().sum(2) + biases.square()), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("strategy", "least"), [("fsi", 0.8), ("fsi_shared", 0.85)])
@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_it_learns(strategy: str, least: float, model: str, tmp_path: Path) -> None:
    words = [f"strategy={strategy}", f"model={model}", "strategy.rounds=150", "watch.tensorboard=false"]
    if model == "mlp":
        words += ["strategy.rounds=300", "model.hidden=[6]", "strategy.loss=cross_entropy"]
    summary = train("fne_toy", words, out=tmp_path / "run")
    assert summary["accuracy_test"] > least  # chance is 1/3
    last = read_history(tmp_path / "run")[-1]
    assert len(last.get("losses", [])) == (3 if model == "logistic" else 0)


# ------------------------------------------------------------------------------------------------ mistakes
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["strategy.w1=0.6", "strategy.w2=0.5"], "strategy.w2 = 0.5: must be at most 1 - strategy.w1 = 0.4"),
        (["strategy.w1=[0.1,0.6]", "strategy.w2=[0.2,0.5]"], "strategy.w2 = 0.5: must be at most"),
        (["strategy.alpha=-1"], "strategy.alpha = -1: must be"),
        (["strategy.w1=[0.5,1.5]"], "strategy.w1 = \\[0.5, 1.5\\]: must be"),
        (["strategy.w1=[0,0]", "strategy.w2=[0,0,0]"], r"strategy.w1 = \[0.0, 0.0\]: must be one number, or 3"),
        (["strategy.w1=[]", "strategy.w2=[]", "strategy.alpha=[]"], r"strategy.w1 = \[\]: must be a number, or a list"),
        (["strategy.alpha=[]"], r"strategy.alpha = \[\]: must be a number, or a list of at least one number"),
        (["strategy.alpha=9", "strategy.alpha_max=8"], "strategy.alpha = 9.0: must be at most strategy.alpha_max = 8"),
        (["strategy.loss=bce"], "strategy.loss = 'bce': must be nmse or mse"),
        (["model=mlp", "model.output=linear"], "strategy.exact_reduction = true: must be false, except for mse"),
        (["strategy.validate_every=5"], "the validation part is empty"),
        (["strategy=es", "strategy.loss=mse"], "the validation part is empty"),
    ],
)
def test_mistakes_name_their_key(words: list[str], said: str) -> None:
    with pytest.raises((SettingError, ConfigError, DataError), match=said):
        housing(5, *words)


def test_statistics_that_change_are_refused(laboratory: Build, clouds: Callable[..., Any]) -> None:
    task = replace(laboratory(lambda: nn.Linear(4, 3), clouds(30)).task, batch_norm="server")
    with pytest.raises(SettingError, match=r"evaluation.batch_norm = 'server'"):
        load("strategy", "fsi")(task, seed=0)


@pytest.mark.parametrize("options", [{"loss": "bce"}, {"loss": "mse", "samples": 3}])
def test_nodes_reduce_squared_errors_of_all_samples_only(options: dict[str, Any]) -> None:
    made = housing(2)
    for node in made.worker.nodes.values():  # which else does only what its method asks for
        node.policy = Policy()
    request = Request(Header(0, 0), "fitness", tuple(made.nodes), {"population": torch.zeros(1, 14)},
                      options={"reduced": True, **options})  # fmt: skip
    with pytest.raises(RunError, match="exact_reduction: needs loss mse or nmse"):
        LocalEngine(made.worker).send(request)
