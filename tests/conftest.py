"""Fixtures that several files share."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fne.config.load import load_config
from fne.core.dataset import Samples
from fne.core.messages import Tensors
from fne.core.randomness import generator, seeded_initialisation
from fne.engines.local import LocalEngine
from fne.evolution.evaluate import Evaluator, Plan
from fne.evolution.genome import Layout, buffers_of
from fne.federation.node import Node, Secrets
from fne.federation.worker import Worker
from fne.learning.task import LearningTask
from fne.run.learning_run import build, load_dataset
from fne.run.train import load_model

pytest.register_assert_rewrite(  # so that failing assertions of shared helpers show their values
    "tests.data.eeg.reading_parts",
    "tests.data.eeg.signal_parts",
    "tests.data.eeg.uci_parts",
    "tests.problems.parts",
    "tests.secure.parts",
)

Laboratory = Callable[..., SimpleNamespace]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each file to one worker, in order: what its tests share is then made once, not by every worker."""
    from xdist.scheduler import LoadFileScheduling

    if config.getvalue("dist") != "load":  # another one was asked for
        return None
    config.option.loadscopereorder = False  # files of few and long tests would be the last ones
    return LoadFileScheduling(config, log)


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over all that was imported, a million objects that stay."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the key by which run folders are known out of the user's own state folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture
def laboratory() -> Laboratory:
    """Return `build(make, nodes, validation=None, ...) -> task, worker, engine, evaluator` without any config."""

    def build(
        make: Callable[[], nn.Module],
        nodes: Mapping[str, Samples],
        validation: Samples | None = None,
        *,
        plan: Plan = Plan("loop", 16, 64),  # noqa: B008
        output: str = "softmax",
        joined: bool = False,
        folder: Path | None = None,
        **settings: Any,
    ) -> SimpleNamespace:
        def new_model(seed: int) -> nn.Module:
            with seeded_initialisation(seed):
                return make()

        held = next(iter(nodes.values())) if validation is None else validation
        evaluator = Evaluator(new_model(0), plan, output=output)

        def evaluate(
            population: Tensor, *, loss: str, buffers: Tensors | None = None, split: str = "validation"
        ) -> dict[str, Tensor]:
            return evaluator.evaluate(population, held, loss=loss, buffers=buffers)

        task = LearningTask(
            Layout(new_model(0)), new_model, evaluate, held.y.dtype == torch.int64, buffers_of(evaluator.module)
        )
        hosted = {name: Node(name, data, Secrets.simulate(0, name)) for name, data in nodes.items()}
        worker = Worker(hosted, evaluator, joined=joined)
        engine = LocalEngine(worker, "test", folder, **settings)
        return SimpleNamespace(task=task, worker=worker, engine=engine, evaluator=evaluator)

    return build


@pytest.fixture
def clouds() -> Callable[..., dict[str, Samples]]:
    """Return `deal(*sizes) -> nodes n0, n1, ...` with samples of three linearly separable classes `[N, 4]`."""

    def deal(*sizes: int, seed: int = 0) -> dict[str, Samples]:
        nodes = {}
        for i, size in enumerate(sizes):
            draw = generator("clouds", seed, i)
            y = torch.randint(3, (size,), generator=draw)
            x = 2.0 * nn.functional.one_hot(y, 4).float() + 0.4 * torch.randn(size, 4, generator=draw)
            nodes[f"n{i}"] = Samples(x, y)
        return nodes

    return deal


@pytest.fixture
def accuracy_of_the_saved() -> Callable[[Path, dict[str, Any]], float]:
    """Return `go(run folder, config)`: the saved model's accuracy on the test part, counted anew."""

    def go(folder: Path, config: dict[str, Any]) -> float:
        part, model = load_dataset(load_config(config)).test, load_model(folder)
        assert not model.training
        with torch.no_grad():
            return float((model(part.x).argmax(dim=1) == part.y).double().mean())

    return go


@pytest.fixture
def first_losses(tmp_path: Path) -> Callable[[dict[str, Any]], Tensor]:
    """Return `go(config)`: losses of the first two generations, before a rounding could change who is selected."""

    def go(config: dict[str, Any]) -> Tensor:
        made = build(load_config(config))
        engine = LocalEngine(made.worker, "run", tmp_path, quorum=1)
        metrics = [made.strategy.tell(engine.send(made.strategy.ask(engine.nodes))) for _ in range(2)]
        return torch.stack([m["_fitness"] for m in metrics])

    return go
