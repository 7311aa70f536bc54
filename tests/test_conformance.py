"""Everything registered keeps its contract; a new strategy, model, data set or engine is held to it by itself."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fne.config.load import list_bundled, load_config
from fne.config.registry import catalogue, entry, load, settings_model
from fne.core.contracts import Engine, Strategy
from fne.core.dataset import Dataset, Samples
from fne.core.errors import DataError, DataWarning, RunError, SettingError
from fne.core.messages import AGGREGATE, Request, Status
from fne.core.randomness import generator, seeded_initialisation
from fne.data.partition import deal, describe
from fne.evolution.evaluate import PATHS, Evaluator, Plan
from fne.evolution.genome import Layout
from fne.evolution.philox import Perturbations
from fne.evolution.rank_one import RankOne, steps, width
from fne.federation.node import Secrets
from fne.loop import run
from fne.run.learning_run import LearningRun, build
from fne.run.train import train
from fne.watch.history import read_history

STEPS = 6
STRATEGIES, MODELS, DATA, ENGINES, PARTITIONS = (
    [name for name, found in catalogue(kind).items() if not found.module.startswith("fne_plugin_")]
    for kind in ("strategy", "model", "data", "engine", "partition")
)
STRATEGIES = [name for name in STRATEGIES if entry("strategy", name).task == "LearningTask"]
"""Those that search a problem are held to their contract in tests/search/test_searches.py."""
SHAPES = ((1, 28, 28), (3, 32, 32), (64, 240), (13,))
"""Tried in turn for a model."""
SMALL: dict[str, dict[str, Any]] = {"vgg": {"blocks": [[8], [8]], "groups": 4}, "mlp": {"hidden": [16]}}
"""Settings that make a slow model fast; any other model is taken with its defaults."""
LOUD = {"score_bounds": [0.01, 1.0]}
"""So much noise of a search for trade-offs that the tight account of a run takes a moment."""
TRAINING: tuple[dict[str, Any], ...] = (
    {"name": "toy", "nodes": 5},
    {"name": "toy", "problem": "eeg", "times": 240, "samples": 300, "nodes": 5},
    {"name": "mnist", "nodes": 10},
)
"""Tried in turn to train a model on: vectors, recordings, images."""


def settings(strategy: str, rounds: int = STEPS, **more: Any) -> dict[str, Any]:
    """Return a config of a strategy on toy data; nearly every strategy calls its horizon `rounds`."""
    known = entry("strategy", strategy).settings
    smaller = {"population": 12, "parents": 4} if {"population", "parents"} <= set(known) else {}
    if "rounds_per_evaluation" in known:
        smaller = {"population": 3, "generations": rounds // 2 - 1, "rounds_per_evaluation": 2, **LOUD}
    else:
        smaller["rounds"] = rounds
    return {
        "name": "run", "data": {"name": "toy", "nodes": 5}, "model": {"name": "mlp", "hidden": [6]},
        "strategy": {"name": strategy, **smaller}, "engine": {"threads": 1},
        "watch": {"tensorboard": False, "checkpoint_every": 4}, **more,
    }  # fmt: skip


TINY: dict[str, Any] = {
    "population": 8, "parents": 4, "generations": 3, "rounds": 3, "evaluations": 5, "refit_every": 3, "initial": 12,
    "rounds_per_evaluation": 1, "participation": 1.0, "fraction": 1.0, "rate": 0.5,
}  # fmt: skip
"""Of the settings that a strategy has, those that make any run take a second."""


def smallest(name: str) -> dict[str, Any]:
    """Return the config of a run of any strategy, whatever its task is, over five nodes."""
    found = entry("strategy", name)
    small = {key: value for key, value in TINY.items() if key in found.settings}
    if "rounds_per_evaluation" in small:
        small |= {"population": 3, "generations": 1, **LOUD}
    over: dict[str, dict[str, Any]] = {
        "LearningTask": {"data": {"name": "toy", "nodes": 5}, "model": {"name": "mlp", "hidden": [6]}},
        "SearchTask": {"problem": {"name": "rastrigin", "dim": 2, "nodes": 5, "shift": 0.2}},
        "FrontTask": {"problem": {"name": "dtlz", "number": 2, "objectives": 3, "dim": 4, "nodes": 5}},
    }
    watch = {"tensorboard": False, "checkpoint_every": 2}
    return {"name": "run", "strategy": {"name": name, **small}, "watch": watch, **over[found.task]}


@pytest.fixture(params=ENGINES)
def engine_name(request: pytest.FixtureRequest) -> str:
    """Return the name of each engine in turn: what holds for a strategy holds on all of them."""
    return str(request.param)


def experiment(strategy: str, engine_name: str, **more: Any) -> tuple[LearningRun, Engine]:
    made = build(load_config(settings(strategy, **more)))
    return made, load("engine", engine_name)(made.worker)


# ------------------------------------------------------------------------------------------------ strategies
@pytest.mark.parametrize("name", STRATEGIES)
def test_strategy_keeps_the_contract(name: str, engine_name: str) -> None:
    made, engine = experiment(name, engine_name)
    strategy = made.strategy
    assert isinstance(strategy, Strategy)
    assert (strategy.step, strategy.horizon, strategy.done, strategy.seed) == (0, STEPS, False, 0)
    for step in range(STEPS):
        assert strategy.step == step
        assert not strategy.done
        request = strategy.ask(engine.nodes)
        assert isinstance(request, Request)
        assert set(request.nodes) <= set(engine.nodes)
        assert len(set(request.nodes)) == len(request.nodes) > 0
        assert request.header.step == step
        again = strategy.ask(engine.nodes)  # a request may be sent again: asking decides nothing
        assert (again.nodes, again.options, again.header) == (request.nodes, request.options, request.header)
        assert_equal(dict(again.common), dict(request.common))
        round_ = engine.send(again)
        assert round_.failures == (), "its nodes' answers have the form that the request implies"
        metrics = strategy.tell(round_)
        assert metrics["round"] >= 1
        assert {"evaluations", "loss_best", "loss_mean", "accuracy_validation", "nonfinite"} <= set(metrics)
        result = strategy.result()
        assert result.kind == "model"
        assert result.parameters.shape == (made.task.layout.size,)
        assert result.parameters.device.type == "cpu"
    assert strategy.step == strategy.horizon
    assert strategy.done


@pytest.mark.parametrize("name", STRATEGIES)
def test_strategy_goes_on_from_its_state_bit_for_bit(name: str, engine_name: str, tmp_path: Path) -> None:
    first, engine = experiment(name, engine_name)
    run(first.strategy, engine, callbacks=[lambda strategy, *_: strategy.step == 3])
    torch.save(first.strategy.state_dict(), tmp_path / "state.pt")
    memory = {node.name: dict(node.memory) for node in first.worker.nodes.values()}
    run(first.strategy, engine)

    second, other = experiment(name, engine_name)
    second.strategy.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for node in second.worker.nodes.values():
        node.memory = memory[node.name]
    assert second.strategy.step == 3
    run(second.strategy, other)
    assert_equal(second.strategy.state_dict(), first.strategy.state_dict())
    assert torch.equal(second.strategy.result().parameters, first.strategy.result().parameters)


@pytest.mark.parametrize("name", STRATEGIES)
def test_strategy_bears_nodes_that_come_and_go(name: str, engine_name: str, tmp_path: Path) -> None:
    """It ends, and goes on from a checkpoint to the same end."""
    given = settings(name, engine={"name": engine_name, "threads": 1, "away": 0.4, "stretch": 2})
    if getattr(experiment(name, engine_name)[0].strategy, "pooled", False):
        with pytest.raises(SettingError, match=r"engine\.away = 0\.4: must be 0 with a method that is not federated"):
            train(given, out=tmp_path / "whole")
        return
    whole = train(given, out=tmp_path / "whole")
    assert whole["finished"]
    train(given, out=tmp_path / "parts", stop_after=3)
    train(None, resume=tmp_path / "parts")
    assert without_seconds(tmp_path / "whole") == without_seconds(tmp_path / "parts")


def without_seconds(folder: Path) -> list[dict[str, Any]]:
    """Return a run's history but for what no two runs share."""
    return [{k: v for k, v in line.items() if "seconds" not in k} for line in read_history(folder)]


def comparable(folder: Path, bytes_: bool = True) -> tuple[list[dict[str, Any]], list[tuple[str, bytes]]]:
    """Return a run's history and what the run yields."""
    history = without_seconds(folder)
    if not bytes_:
        history = [{k: v for k, v in line.items() if "bytes" not in k and "payload" not in k} for line in history]
    names = ("model.safetensors", "solution.json", "front.csv")
    return history, [(name, (folder / name).read_bytes()) for name in names if (folder / name).exists()]


PARITY = [(name, secure, 1.0) for name in catalogue("strategy") for secure in (False, True)]
PARITY += [(name, False, 0.6) for name in catalogue("strategy") if "participation" in entry("strategy", name).settings]
"""Every registered strategy, also those that search, with and without secure sums, and where some nodes take part."""


@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "local"])
@pytest.mark.parametrize(("name", "secure", "participation"), PARITY)
def test_engine_gives_the_bits_of_local(
    engine: str, name: str, secure: bool, participation: float, tmp_path: Path
) -> None:
    """Whatever a strategy's nodes compute hangs on what they are sent, and on nothing else that one process holds."""
    if entry("strategy", name).module.startswith("fne_plugin_"):
        pytest.skip("a plugin of another test")
    given = smallest(name)
    known = entry("strategy", name).settings
    if participation < 1:
        given["strategy"]["participation"] = participation
    if secure and "subset_size" in known:
        given["strategy"]["subset_size"] = 5
    for each in ("local", engine):
        config = {**given, "secure": secure, "engine": {"name": each, "threads": 1}}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)
            try:
                train(config, out=tmp_path / each)
            except SettingError as error:  # the one way or the other it cannot be had: which, is held elsewhere
                if "secure" not in str(error):
                    raise
                return
    histories, results = zip(*(comparable(tmp_path / each) for each in ("local", engine)), strict=True)
    assert results[0] == results[1] != []
    assert histories[0] == histories[1]


@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "local"])
@pytest.mark.parametrize("infill", ["aggregator", "all"])
def test_engine_gives_the_bits_of_local_under_the_masks_of_the_text(engine: str, infill: str, tmp_path: Path) -> None:
    """Masks hang on who takes part: with workers that do not know it they were all 0."""
    given = smallest("fdd_ea_dh")
    surrogate = "network" if infill == "all" else "cubic"  # interpolants of the same points are all the same
    given["strategy"] |= {"mode": "literal", "infill": infill, "surrogate": surrogate}
    for each in ("local", engine):
        with pytest.warns(DataWarning, match="it protects nothing"):
            train({**given, "engine": {"name": each, "threads": 1}}, out=tmp_path / each)
    assert comparable(tmp_path / "local") == comparable(tmp_path / engine)
    masked = (tmp_path / "local" / "front.csv").read_bytes()
    given["strategy"]["noise_scale"] = 0.0
    with pytest.warns(DataWarning, match="it protects nothing"):
        train({**given, "engine": {"threads": 1}}, out=tmp_path / "bare")
    assert (tmp_path / "bare" / "front.csv").read_bytes() != masked, "the masks are there, and matter"


@pytest.mark.parametrize("engine", ENGINES)
def test_values_that_the_nodes_cannot_add_up_are_refused_on_every_engine(engine: str, tmp_path: Path) -> None:
    """Squares of 3e4 fit into the ring for one node, and not for five; a worker for each node must know of all five."""
    (tmp_path / "large.py").write_text("def f(u, v):\n    return {'a': 3e4 + u, 'b': 3e4 - u}\n")
    given = smallest("fdd_ea_dh") | {
        "problem": {"name": "callable", "function": f"{tmp_path}/large.py:f", "variables": {"u": [0, 1], "v": [0, 1]},
                    "objectives": ["a", "b"], "nodes": 5},
        "engine": {"name": engine, "threads": 1}, "secure": True,
    }  # fmt: skip
    with pytest.raises(RunError, match=r"whose squares 5 nodes cannot add up; scale the objectives"):
        train(given, out=tmp_path / "run")


def assert_equal(a: Any, b: Any) -> None:
    """Compare nested states: tensors bit for bit, everything else by value."""
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_equal(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_equal(x, y)
    elif isinstance(a, Tensor):
        assert torch.equal(a, b)
    else:
        assert a == b


@pytest.mark.parametrize("name", STRATEGIES)
def test_strategy_runs_the_same_twice_and_draws_from_no_global_generator(name: str, tmp_path: Path) -> None:
    before = torch.get_rng_state(), np.random.get_state()  # noqa: NPY002
    first = train(settings(name), out=tmp_path / "a")
    assert torch.equal(torch.get_rng_state(), before[0])
    after = np.random.get_state()  # noqa: NPY002
    assert all(np.array_equal(a, b) for a, b in zip(after, before[1], strict=True))

    torch.manual_seed(99)
    np.random.seed(99)  # noqa: NPY002
    second = train(settings(name), out=tmp_path / "b")
    other = train(settings(name, seed=1), out=tmp_path / "c")
    assert second["model_sha256"] == first["model_sha256"] != other["model_sha256"]
    a, b = (
        [{k: v for k, v in line.items() if k != "seconds"} for line in read_history(tmp_path / n)] for n in ("a", "b")
    )
    assert a == b


@pytest.mark.parametrize("name", STRATEGIES)
def test_strategy_learns_regression_or_says_why_not(name: str, tmp_path: Path) -> None:
    more = {"data": {"name": "housing", "nodes": 4}, "model": {"name": "logistic", "output": "linear"}}
    changed = settings(name, **more)
    if "loss" in entry("strategy", name).settings:
        with pytest.raises(SettingError, match=r"strategy\.loss"):
            train({**changed, "strategy": {**changed["strategy"], "loss": "cross_entropy"}}, out=tmp_path / "no")
        changed["strategy"] = {**changed["strategy"], "loss": "mse"}
    if "lr" in entry("strategy", name).settings:
        changed["strategy"]["lr"] = 0.01
    summary = train(changed, out=tmp_path / "run")
    assert summary["accuracy_test"] is None
    assert 0 < summary["loss_test"] < 700
    assert all(line["accuracy_validation"] is None for line in read_history(tmp_path / "run"))


# ------------------------------------------------------------------------------------------------ models
def make(name: str) -> tuple[nn.Module, Tensor]:
    """Return a registered model and some inputs for it."""
    with seeded_initialisation("conformance", name):
        for shape in SHAPES:
            try:
                module = load("model", name)(shape, 5, **SMALL.get(name, {}))
            except SettingError:
                continue
            return module, torch.rand(7, *shape, generator=generator("conformance", name))
    raise AssertionError(f"model {name!r} takes none of {SHAPES}: add one")


def population(module: nn.Module, count: int, draw: torch.Generator) -> Tensor:
    genes = torch.cat([p.detach().flatten() for p in module.parameters()])
    return genes + 0.05 * torch.randn(count, len(genes), generator=draw)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_model_gives_the_same_on_every_path(name: str, count: int) -> None:
    module, x = make(name)
    genomes = population(module, count, generator("genomes", count))
    samples = Samples(x, torch.arange(len(x)) % 5)
    paths = [path for path in PATHS if path != "stacked" or hasattr(module, "forward_population")]
    values: dict[str, list[Tensor]] = {}
    for path in paths:
        for plan in (Plan(path, 16, 64), Plan(path, 2, 3)):  # at once, and in chunks that do not divide
            evaluator = Evaluator(module, plan, output=getattr(module, "output", "softmax"))
            checked = evaluator.evaluate(genomes, samples, loss="cross_entropy")
            losses = evaluator.sample_losses(genomes, samples, "nmse")
            values.setdefault(path, []).extend([evaluator.logits(genomes, x), losses, checked["loss"]])
            assert checked["accuracy"].shape == (count,)
    reference = values["loop"]
    assert reference[0].shape == (count, 7, 5)
    for path in paths:
        for value, expected in zip(values[path], reference, strict=True):
            torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in MODELS if hasattr(load("model", name), "forward_rank_one")])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_model_gives_the_same_for_pairs_around_one_centre(name: str, count: int) -> None:
    """As for the individuals one by one: of one pair, an odd number of them, and in chunks that do not divide."""
    module, x = make(name)
    layout = Layout(module)
    pairs = RankOne(
        layout.flatten(module), Perturbations(0, count, width(layout))(0), steps(layout, layout.deviations(), 0.5)
    )
    output = getattr(module, "output", "softmax")
    expected = Evaluator(module, Plan("loop", 16, 64), output=output).logits(pairs.materialised(layout), x)
    for plan in (Plan("stacked", 16, 64), Plan("stacked", 5, 3)):
        logits = Evaluator(module, plan, output=output).logits(pairs, x)
        torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("strategy", ["fne", "fedavg"])
def test_model_trains_in_both_ways(name: str, strategy: str, tmp_path: Path) -> None:
    config = settings(strategy, 2, model={"name": name, **SMALL.get(name, {})})
    if strategy == "fne":
        config["strategy"] |= {"population": 4, "parents": 2}
    for data in TRAINING:
        try:
            summary = train({**config, "data": data}, out=tmp_path / "run")
        except SettingError:
            continue
        assert summary["finished"]
        assert np.isfinite(summary["loss_test"])
        return
    raise AssertionError(f"model {name!r} takes none of {TRAINING}: add one")


# ------------------------------------------------------------------------------------------------ data
def loaded(name: str) -> Dataset:
    more: dict[str, Any] = {"edition": "small"} if name == "mnist" else {}
    if any(default is ... for _, default in entry("data", name).settings.values()):
        configs = (load_config(bundled) for bundled in list_bundled())
        more = next(config.data.settings for config in configs if config.data.name == name)
    try:
        with warnings.catch_warnings():  # that a split has the same subjects on both sides is said elsewhere
            warnings.simplefilter("ignore", DataWarning)
            return load("data", name)(seed=0, **more)  # type: ignore[no-any-return]
    except DataError as error:
        if os.environ.get("FNE_DATA"):
            raise
        pytest.skip(f"{name}: its files are not here and FNE_DATA is not set ({str(error).splitlines()[0]})")


@pytest.mark.parametrize("name", DATA)
def test_data_set_keeps_the_contract(name: str) -> None:
    state = torch.get_rng_state()
    dataset, again = loaded(name), loaded(name)
    assert torch.equal(torch.get_rng_state(), state)
    assert dataset.name.startswith(name)
    assert dataset.split
    assert dataset.source
    for part, other in (
        (dataset.train, again.train), (dataset.validation, again.validation), (dataset.test, again.test),
    ):  # fmt: skip
        assert len(part) > 0
        assert part.x.dtype == torch.float32
        assert tuple(part.x.shape[1:]) == dataset.shape
        assert part.x.device.type == "cpu"
        assert bool(torch.isfinite(part.x).all())
        assert torch.equal(part.x, other.x)
        assert torch.equal(part.y, other.y)
        if dataset.classes is None:
            assert part.y.dtype == torch.float32
            assert part.y.shape == (len(part), dataset.outputs)
        else:
            assert part.y.dtype == torch.int64
            assert part.y.shape == (len(part),)
            assert 0 <= int(part.y.min()) <= int(part.y.max()) < len(dataset.classes)
        if part.groups is not None:
            assert part.groups.shape == (len(part),)
            assert int(part.groups.max()) < len(dataset.group_names)
    rows = {part.x.flatten(1).numpy().tobytes() for part in (dataset.train, dataset.validation, dataset.test)}
    assert len(rows) == 3


@pytest.mark.parametrize("name", PARTITIONS)
def test_partition_deals_every_sample_once(name: str) -> None:
    grouped = load("data", "toy")(seed=0, problem="eeg", subjects=4, samples=400, channels=2, times=16)
    defaults = {k: default for k, (_, default) in entry("partition", name).settings.items()}
    marked = Samples(
        torch.arange(len(grouped.train), dtype=torch.float32)[:, None], grouped.train.y, grouped.train.groups
    )
    dataset = Dataset("marked", marked, marked, marked, grouped.classes, "", "", grouped.group_names)
    state = torch.get_rng_state()
    nodes, again, other = (deal(dataset, name, 4, seed, defaults) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert list(nodes) == sorted(nodes)
    assert len(nodes) == 4
    assert sorted(torch.cat([part.x for part in nodes.values()]).flatten().tolist()) == list(range(len(marked)))
    assert all(torch.equal(nodes[n].x, again[n].x) for n in nodes)
    assert all(len(part) for part in other.values())
    _, counts = describe(nodes, dataset.classes)
    assert int(counts.sum()) == len(marked)


# ------------------------------------------------------------------------------------------------ engines
@pytest.mark.parametrize("name", ENGINES)
def test_engine_keeps_the_contract(name: str, tmp_path: Path) -> None:
    defaults = settings_model(entry("engine", name))().model_dump()
    made = build(load_config(settings("fne", evaluation={"path": "loop"})))
    engine = load("engine", name)(made.worker, "a run", tmp_path, **defaults)
    assert engine.nodes == tuple(sorted(made.nodes))
    request = made.strategy.ask(engine.nodes)
    both = tuple(reversed(engine.nodes))[:2]
    single = Request(request.header, "fitness", both, common=request.common, options=request.options)
    round_ = engine.send(single)
    assert [reply.node for reply in round_.replies] == list(both), "in the order of the request"
    assert all(reply.status is Status.OK and reply.header.run == "a run" for reply in round_.replies)
    assert set(round_.traffic.encoded_down) == set(round_.traffic.encoded_up) == set(both)
    for node in both:
        assert 0 < round_.traffic.payload_down[node] < round_.traffic.encoded_down[node]
        assert 0 < round_.traffic.payload_up[node] < round_.traffic.encoded_up[node]
    summed = Request(request.header, "fitness", both, common=request.common, options=request.options, reduce="sum")
    (total,) = engine.send(summed).replies
    assert total.node == AGGREGATE
    expected = torch.stack([reply.payload["loss"].double() for reply in round_.replies]).sum(0)
    assert torch.equal(total.payload["loss"], expected)
    engine.save(3)
    engine.load(3)
    engine.close()


def test_secrets_are_neither_printed_nor_saved(tmp_path: Path) -> None:
    secrets = Secrets.simulate(0, "node")
    assert "hidden" in repr(secrets)
    with pytest.raises(TypeError, match="stay with the node"):
        torch.save(secrets, tmp_path / "secrets.pt")


# ------------------------------------------------------------------------------------------------ CUDA
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("path", PATHS)
def test_fitness_on_cuda_is_that_of_the_cpu(name: str, path: str) -> None:
    """Relative and absolute difference of at most 1e-4: other summation orders, no TF32."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    module, x = make(name)
    if path == "stacked" and not hasattr(module, "forward_population"):
        pytest.skip(f"{name} has no forward_population")
    genomes = population(module, 5, generator("genomes"))
    labels = torch.arange(len(x)) % 5
    output = getattr(module, "output", "softmax")
    plan = Plan(path, 3, 4)  # type: ignore[arg-type]
    for loss in ("nmse", "mse", "bce", "cross_entropy"):
        here = Evaluator(module.cpu(), plan, output=output).sample_losses(genomes, Samples(x, labels), loss)
        there = Evaluator(module.cuda(), plan, output=output).sample_losses(
            genomes, Samples(x.cuda(), labels.cuda()), loss
        )
        assert there.is_cuda
        torch.testing.assert_close(there.cpu(), here, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_whole_run_on_cuda(strategy: str, tmp_path: Path) -> None:
    """FNE on a node subset, and every other strategy: the same twice, resumed, and about as good as on the CPU."""
    changed = settings(strategy, 20, engine={"device": "cuda", "threads": 1})
    if strategy == "fne":
        changed["strategy"] |= {"subset_size": 2, "mutation": "mixed", "elites": 1, "loss": "cross_entropy"}
    first = train(changed, out=tmp_path / "a")
    train(changed, out=tmp_path / "b", stop_after=7)
    assert train(None, resume=tmp_path / "b")["model_sha256"] == first["model_sha256"]
    assert first["device"] == "cuda"
    cpu = train({**changed, "engine": {"device": "cpu", "threads": 1}}, out=tmp_path / "c")
    assert first["accuracy_test"] == pytest.approx(cpu["accuracy_test"], abs=0.15)
