"""Trainings in threads of one process: each draws from generators of its own, and leaves the process as it was."""

from __future__ import annotations

import random
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import fne
from fne.config import registry
from fne.core.drawing import RANDOM, drawing_from
from fne.core.errors import RunError
from fne.core.quiet import ignored
from fne.core.randomness import derive_seed, generator, seeded_initialisation

DRAWS: dict[str, Callable[[], Any]] = {
    "linear": lambda: nn.Linear(4, 3),
    "convolution": lambda: nn.Conv2d(2, 3, 3),
    "embedding": lambda: nn.Embedding(4, 3),
    "orthogonal_": lambda: nn.init.orthogonal_(torch.zeros(4, 4)),
    "trunc_normal_": lambda: nn.init.trunc_normal_(torch.zeros(4, 4)),
    "sparse_": lambda: nn.init.sparse_(torch.zeros(4, 4), 0.5),
    "rand": lambda: torch.rand(5),
    "rand_like": lambda: torch.rand_like(torch.zeros(5)),
    "randn": lambda: torch.randn(20, dtype=torch.float64),
    "randn_like": lambda: torch.randn_like(torch.zeros(5)),
    "randint": lambda: torch.randint(9, (5,)),
    "randint_like": lambda: torch.randint_like(torch.zeros(5), 9),
    "randperm": lambda: torch.randperm(9),
    "normal of numbers": lambda: torch.normal(0.0, 1.0, (5,)),
    "normal of tensors": lambda: torch.normal(torch.zeros(5), torch.ones(5)),
    "out=": lambda: torch.rand(5, out=torch.zeros(5)),
    "multinomial": lambda: torch.multinomial(torch.ones(9), 4),
    "bernoulli": lambda: torch.bernoulli(torch.full((9,), 0.5)),
    "bernoulli_": lambda: torch.zeros(9).bernoulli_(torch.full((9,), 0.5)),
    "random_": lambda: torch.zeros(5).random_(),
    "exponential_": lambda: torch.zeros(5).exponential_(),
    "geometric_": lambda: torch.zeros(5).geometric_(0.5),
    "cauchy_": lambda: torch.zeros(5).cauchy_(),
    "log_normal_": lambda: torch.zeros(5).log_normal_(),
    "poisson": lambda: torch.poisson(torch.full((5,), 3.0)),
    "binomial": lambda: torch.binomial(torch.full((5,), 9.0), torch.full((5,), 0.5)),
    "gamma": lambda: torch.distributions.Gamma(2.0, 1.0).sample((3,)),
    "dirichlet": lambda: torch.distributions.Dirichlet(torch.ones(3)).sample(),
    "dropout": lambda: F.dropout(torch.ones(9, requires_grad=True)),
    "dropout in place": lambda: F.dropout(torch.ones(9), inplace=True),
    "dropout2d": lambda: F.dropout2d(torch.ones(2, 3, 2, 2, requires_grad=True)),
    "native_dropout": lambda: torch.native_dropout(torch.ones(9, requires_grad=True), 0.5, True),
    "alpha_dropout": lambda: F.alpha_dropout(torch.ones(9), training=True),
    "rrelu": lambda: F.rrelu(-torch.ones(9, requires_grad=True), training=True),
    "gumbel_softmax": lambda: F.gumbel_softmax(torch.ones(9)),
    "fractional_max_pool2d": lambda: F.fractional_max_pool2d(torch.rand(1, 1, 5, 5), 2, output_size=2),
    "attention": lambda: F.scaled_dot_product_attention(*torch.ones(3, 1, 1, 4, 4), dropout_p=0.5),
    "LSTM": lambda: nn.LSTM(3, 3, 2, dropout=0.5)(torch.ones(2, 2, 3)),
    "GRU": lambda: nn.GRU(3, 3, 2, dropout=0.5)(torch.ones(2, 2, 3)),
    "transformer": lambda: nn.TransformerEncoderLayer(4, 2)(torch.ones(2, 2, 4)),
    "vmap": lambda: vmap(lambda x: F.dropout(x) + torch.rand(4), randomness="same")(torch.ones(3, 4)),
    "vmap, different": lambda: vmap(lambda x: F.dropout(x) + torch.rand(4), randomness="different")(torch.ones(3, 4)),
}


def tensors(value: Any) -> list[Tensor]:
    if isinstance(value, nn.Module):
        return [p.detach() for p in value.parameters()]
    if isinstance(value, Tensor):
        return [value.detach()]
    return [tensor for part in value for tensor in tensors(part)]


# ------------------------------------------------------------------------------------------------ random operators
@pytest.mark.parametrize("key", [True, False], ids=["key", "no key"])
@pytest.mark.parametrize("name", DRAWS)
def test_a_block_gives_the_numbers_that_the_process_would_give(
    name: str, key: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not key:  # as with a torch that has no such dispatch key
        monkeypatch.setattr("fne.core.drawing._KEY", None)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        expected, then = tensors(DRAWS[name]()), torch.rand(1)
        torch.manual_seed(7)
        before, own = torch.get_rng_state(), torch.Generator().manual_seed(5)
        with drawing_from(own):
            found = tensors(DRAWS[name]())
        assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
        assert torch.equal(torch.rand(1, generator=own), then), "not as many numbers were drawn"
        assert torch.equal(torch.get_rng_state(), before), "the process-wide generator was used"


def test_every_random_operator_of_this_torch_is_known() -> None:
    """What is tagged as random and takes a generator goes through a kernel of ours, with every overload."""
    for full in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = full.partition("::")
        base, _, overload = rest.partition(".")
        if namespace != "aten" or base == "_fused_dropout":  # CUDA's alone
            continue
        operator = getattr(getattr(torch.ops.aten, base), overload or "default", None)
        if operator is None or torch.Tag.nondeterministic_seeded not in operator.tags:
            continue
        arguments = {argument.name: argument.type for argument in operator._schema.arguments}
        if "generator" in arguments:
            assert base in RANDOM, full
            if any(isinstance(kind, torch.TensorType) for kind in arguments.values()):
                assert torch._C._dispatch_has_kernel_for_dispatch_key(full, "TESTING_ONLY_GenericMode"), full


def test_a_generator_that_is_given_is_kept_and_blocks_nest() -> None:
    def draw() -> float:
        return float(torch.rand(1))

    with drawing_from(generator("outer")):
        given = torch.poisson(torch.full((4,), 3.0), generator=generator("given"))
        inside = torch.rand(2, generator=generator("given"))
        with drawing_from(generator("inner")):
            inner = draw()
        outer = draw()
    assert torch.equal(given, torch.poisson(torch.full((4,), 3.0), generator=generator("given")))
    assert torch.equal(inside, torch.rand(2, generator=generator("given")))
    assert (inner, outer) == tuple(float(torch.rand(1, generator=generator(name))) for name in ("inner", "outer"))


def test_threads_draw_apart_from_each_other_and_from_the_process() -> None:
    """Each thread draws in turns with all others; what it gets is what it gets alone."""
    turns = threading.Barrier(4)

    def draw(number: int) -> list[float]:
        found = []
        with seeded_initialisation("thread", number):
            for _ in range(20):
                turns.wait(60)
                found.append(float(torch.rand(1)))
        return found

    before = torch.get_rng_state()
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(draw, range(4)))
    for number, found in enumerate(together):
        own = torch.Generator().manual_seed(derive_seed("thread", number))
        assert found == [float(torch.rand(1, generator=own)) for _ in range(20)]
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("reentrant", [True, False])
def test_dropout_that_a_backward_pass_repeats_is_refused(reentrant: bool) -> None:
    """Activation checkpointing puts the process-wide generator back, which was not drawn from."""
    x = torch.ones(9, requires_grad=True)
    with drawing_from(generator(0)):
        loss = checkpoint(F.dropout, x, use_reentrant=reentrant).sum()
        with pytest.raises(RunError, match=r"bernoulli_.*in its backward pass.*leave out activation checkpointing"):
            loss.backward()


# ------------------------------------------------------------------------------------------------ trainings
DROPPING = str(Path(__file__).parents[1] / "plugins" / "dropping.py")
TOY = {"data": {"name": "toy", "nodes": 3}, "model": {"name": "mlp", "hidden": [6]}}
EEG = {
    "data": {"name": "toy", "problem": "eeg", "times": 64, "samples": 300, "nodes": 2},
    "model": {"name": "eegnet", "filters": 2, "filter_length": 9, "separable_length": 4},
}
RUNS: dict[str, dict[str, Any]] = {
    "fne": {**TOY, "strategy": {"name": "fne", "population": 8, "parents": 4, "rounds": 10}},
    "dropout": {**EEG, "strategy": {"name": "fedavg", "rounds": 3, "fraction": 1.0}},
    "dropout, another seed": {**EEG, "strategy": {"name": "fedavg", "rounds": 3, "fraction": 1.0}, "seed": 1},
    "side by side": {
        **TOY,
        "model": "dropping",
        "plugins": [DROPPING],
        "strategy": {"name": "nsga2", "population": 4, "generations": 1, "rounds_per_evaluation": 1},
        "evaluation": {"together": 4},
    },
}


def digest(config: dict[str, Any], folder: Path) -> str:
    summary = fne.train({"name": "t", **config, "watch": {"tensorboard": False}}, out=folder)
    assert summary["finished"]
    return str(summary["model_sha256"])


def state() -> list[Any]:
    return [
        torch.get_rng_state().tolist(),
        str(np.random.mtrand._rand.get_state()),
        random.getstate(),
        list(warnings.filters),
    ]


def test_trainings_in_threads_do_not_change_each_other_or_the_process(tmp_path: Path) -> None:
    alone = {name: digest(config, tmp_path / f"alone {name}") for name, config in RUNS.items()}
    assert len(set(alone.values())) == len(RUNS)
    before = state()
    with ThreadPoolExecutor(len(RUNS)) as pool:
        made = {n: pool.submit(digest, config, tmp_path / f"together {n}") for n, config in RUNS.items()}
        together = {name: future.result() for name, future in made.items()}
    assert together == alone
    assert state() == before


def test_dropout_of_dp_sgd_is_seeded(tmp_path: Path) -> None:
    strategy = {"name": "dp_sgd", "rounds": 1, "fraction": 1.0, "rate": 0.3}
    config = {**TOY, "model": "dropping", "plugins": [DROPPING], "strategy": strategy}
    digests = []
    with torch.random.fork_rng(devices=[]):
        for seed in (1, 2):
            torch.manual_seed(seed)
            before = torch.get_rng_state()
            digests.append(digest(config, tmp_path / str(seed)))
            assert torch.equal(torch.get_rng_state(), before)
    assert digests[0] == digests[1]


# ------------------------------------------------------------------------------------------------ the process
def test_warning_filters_are_put_back_whatever_the_order_of_threads() -> None:
    before, entered, go_on = list(warnings.filters), threading.Event(), threading.Event()

    def first() -> None:
        with ignored(UserWarning):
            entered.set()
            go_on.wait(0.3)  # for the other thread, which cannot come in before this one is out

    def second() -> None:
        entered.wait(60)
        with ignored(DeprecationWarning):
            go_on.set()
            thread.join(60)

    thread = threading.Thread(target=first)
    thread.start()
    second()
    thread.join(60)
    assert list(warnings.filters) == before


PLUGIN = '''
"""A plugin that takes its time to be imported."""
import time
from fne.config.registry import register

time.sleep(0.2)


@register("data", "slow_{number}")
def slow(*, seed: int):
    """Nothing."""
'''


def test_threads_use_one_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is imported once, and is never unknown while another thread reads it again."""
    for name in ("_plugin_entries", "_plugin_files", "_registered"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
    path = tmp_path / "slow.py"
    path.write_text(PLUGIN.format(number=0))
    registry.add_plugin(path)
    with ThreadPoolExecutor(3) as pool:
        loaded = {future.result() for future in [pool.submit(registry.load, "data", "slow_0") for _ in range(3)]}
        assert len(loaded) == 1
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            again = pool.submit(lambda: [registry.add_plugin(path) for _ in range(200)])
            while not again.done():
                assert registry.entry("data", "slow_0").name == "slow_0"
            again.result()
        finally:
            sys.setswitchinterval(interval)
