"""Forward of many models: every path, chunk and tile gives what one module after the other gives."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fne.config.registry import load
from fne.core.dataset import Samples
from fne.core.errors import SettingError
from fne.core.messages import Header, Request
from fne.core.randomness import generator, seeded_initialisation
from fne.evolution.evaluate import (
    CPU_WORKING_SET,
    PATHS,
    Evaluator,
    Plan,
    activation_bytes,
    has_batch_norm,
    resolve_plan,
)
from fne.evolution.genome import Layout, buffers_of
from fne.evolution.philox import Perturbations
from fne.evolution.rank_one import RankOne, steps, width
from fne.federation.node import Node, Secrets
from fne.federation.worker import Worker


class Stacked(nn.Module):
    """A linear classifier with a population form of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y

    def forward_population(self, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return torch.baddbmm(
            parameters["layer.bias"].unsqueeze(1),
            x.expand(len(parameters["layer.bias"]), -1, -1),
            parameters["layer.weight"].transpose(1, 2),
        )


class Everything(nn.Module):
    """BatchNorm, dropout, tied weights, a frozen layer, a 0-dim parameter, an integer buffer."""

    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.again = nn.Linear(4, 4, bias=False)
        self.again.weight = self.first.weight
        self.drop = nn.Dropout(0.5)
        self.fixed = nn.Linear(4, 3).requires_grad_(False)
        self.gain = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("shift", torch.tensor(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(torch.tanh(self.norm(self.first(x))))
        y: Tensor = self.fixed(self.again(x)) * self.gain + self.shift
        return y


def convolution() -> nn.Module:
    """Return a small MNIST-like network, transposed convolution included."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.ConvTranspose2d(4, 2, 2),
        nn.Flatten(), nn.Linear(2 * 6 * 6, 10),
    )  # fmt: skip


def eeg(variant: str) -> Callable[[], nn.Module]:
    """Return a small EEG network, which normalises before or behind its pooling and has a form of its own."""
    settings = {"filters": 2, "filter_length": 5, "pool_length": 9, "pool_stride": 7, "third_length": 2}
    return lambda: load("model", "shallow_convnet")((3, 50), 4, variant=variant, **settings)


def made(make: Callable[[], nn.Module]) -> nn.Module:
    with seeded_initialisation("module"):
        return make()


def generation(module: nn.Module, count: int) -> Tensor:
    """Return `count` individuals around the module's own weights."""
    layout = Layout(module)
    noise = torch.randn(count, layout.size, generator=generator("population"))
    return layout.flatten(module) + 0.3 * noise


def one_by_one(make: Callable[[], nn.Module], population: Tensor, x: Tensor, *, batch: bool = False) -> Tensor:
    """Return the logits of a fresh module for each individual, all samples at once.

    `batch`: batch normalisation as in training, everything else as in eval mode.
    """
    outputs = []
    for genes in population:
        module = made(make).eval()
        for norm in module.modules():
            norm.training = batch and isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d)
        at = 0
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.requires_grad:
                    parameter.copy_(genes[at : at + parameter.numel()].view_as(parameter))
                    at += parameter.numel()
            outputs.append(module(x))
    return torch.stack(outputs)


CASES: list[tuple[Callable[[], nn.Module], tuple[int, ...]]] = [
    (Stacked, (4,)),
    (Everything, (4,)),
    (convolution, (1, 12, 12)),
    (lambda: nn.Linear(1, 1, bias=False), (1,)),  # D = 1
]
PLANS = [(path, chunk, tile) for path in PATHS for chunk, tile in ((1, 64), (2, 5), (64, 4), (64, 64))]


@pytest.mark.parametrize(("path", "chunk", "tile"), PLANS)
@pytest.mark.parametrize(("make", "shape"), CASES)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_path_chunk_and_tile_equals_one_by_one(
    make: Callable[[], nn.Module], shape: tuple[int, ...], path: Any, chunk: int, tile: int, count: int
) -> None:
    if path == "stacked" and make is not Stacked:
        pytest.skip("no form of its own")
    module = made(make)
    x = torch.randn(9, *shape, generator=generator("x"))
    population = generation(module, count)
    wanted = one_by_one(make, population, x)
    evaluator = Evaluator(module, Plan(path, chunk, tile), output="softmax")
    scale = max(1.0, wanted.abs().max().item())
    assert (evaluator.logits(population, x) - wanted).abs().max() <= 1e-6 * scale
    if wanted.shape[2] < 2:
        return
    y = torch.randint(wanted.shape[2], (9,), generator=generator("y"))
    losses = evaluator.sample_losses(population, Samples(x, y), "cross_entropy")
    theirs = torch.stack([F.cross_entropy(logits, y, reduction="none") for logits in wanted])
    assert (losses - theirs).abs().max() <= 2e-6 * scale


@pytest.mark.parametrize("path", ["loop", "vmap"])
def test_twice_the_same_population_gives_the_same_bits_in_eval_mode(path: Any) -> None:
    module = made(Everything).train()
    evaluator = Evaluator(module, Plan(path, 2, 4), output="softmax")
    samples = Samples(torch.randn(9, 4, generator=generator("x")), torch.arange(9) % 3)
    before, population = buffers_of(module), generation(module, 3)
    first, second = (evaluator.sample_losses(population, samples, "nmse") for _ in range(2))
    assert torch.equal(first, second)
    assert not module.training
    after = buffers_of(module)
    assert all(torch.equal(after[name], b) for name, b in before.items())  # no statistics were gathered


def test_the_mean_is_over_samples_and_not_over_batches() -> None:
    """Batches of 64, 64 and 2: a mean of batch means would weigh the last two samples 32 times."""
    module = nn.Linear(1, 1, bias=False)
    x = torch.cat([torch.ones(128, 1), torch.full((2, 1), 10.0)])
    samples = Samples(x, torch.zeros(130, 1))
    evaluator = Evaluator(module, Plan("loop", 4, 64), output="linear")
    result = evaluator.evaluate(torch.tensor([[1.0], [2.0]]), samples, loss="mse")
    assert result["loss"].tolist() == [(128 + 2 * 100) / 130, 4 * (128 + 2 * 100) / 130]
    assert result["loss"].dtype == torch.float64
    assert bool(result["accuracy"].isnan().all())


def test_loss_and_accuracy_against_numpy() -> None:
    module = made(Stacked)
    x, y = torch.randn(50, 4, generator=generator("x")), torch.arange(50) % 3
    population = generation(module, 4)
    result = Evaluator(module, Plan("stacked", 3, 7), output="softmax").evaluate(
        population, Samples(x, y), loss="cross_entropy"
    )
    for p, genes in enumerate(population.double().numpy()):
        logits = x.double().numpy() @ genes[:12].reshape(3, 4).T + genes[12:]
        log = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        assert result["loss"][p] == pytest.approx(-log[np.arange(50), y.numpy()].mean(), rel=1e-5)
        assert result["accuracy"][p] == (logits.argmax(axis=1) == y.numpy()).mean()


def test_buffers_that_are_given_are_used() -> None:
    norm = nn.BatchNorm1d(2)
    samples = Samples(torch.tensor([[3.0, 5.0]]), torch.zeros(1, 2))
    evaluator = Evaluator(norm, Plan("vmap", 2, 8), output="linear")
    genes = torch.tensor([[1.0, 1.0, 0.0, 0.0]])
    moved = {"running_mean": torch.tensor([3.0, 5.0]), "running_var": torch.ones(2)}
    assert evaluator.evaluate(genes, samples, loss="mse", buffers=moved)["loss"].item() < 1e-12
    identity = {"running_mean": torch.zeros(2), "running_var": torch.ones(2)}
    loss = evaluator.evaluate(genes, samples, loss="mse", buffers=identity)["loss"].item()
    assert loss == pytest.approx((9 + 25) / 2 / (1 + norm.eps), rel=1e-6)


def test_a_non_finite_individual_leaves_the_others_alone() -> None:
    module = made(Stacked)
    samples = Samples(torch.randn(6, 4, generator=generator("x")), torch.arange(6) % 3)
    population = generation(module, 3)
    broken = population.clone()
    broken[1] = torch.nan
    for path in PATHS:
        evaluator = Evaluator(module, Plan(path, 8, 8), output="softmax")
        good = evaluator.evaluate(population, samples, loss="nmse")["loss"]
        bad = evaluator.evaluate(broken, samples, loss="nmse")["loss"]
        assert bool(bad[1].isnan())
        assert torch.equal(bad[[0, 2]], good[[0, 2]])


def hosted(*sizes: int) -> dict[str, Node]:
    """Return nodes n0, n1, ... with images for `convolution`, those of each brighter than those before."""
    draw, nodes = generator("nodes"), {}
    for i, n in enumerate(sizes):
        data = Samples(i + torch.randn(n, 1, 12, 12, generator=draw), torch.randint(10, (n,), generator=draw))
        nodes[f"n{i}"] = Node(f"n{i}", data, Secrets.simulate(0, f"n{i}"))
    return nodes


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("sizes", [(5, 1, 8), (1,), (64, 64, 2)])
def test_joined_tiles_equal_tiles_per_node(sizes: tuple[int, ...], joined: bool) -> None:
    module = made(convolution)
    evaluator = Evaluator(module, Plan("loop", 2, 7), output="softmax")
    nodes = hosted(*sizes)
    population = generation(module, 3)
    request = Request(
        Header(0, 0), "fitness", tuple(nodes), {"population": population}, options={"loss": "cross_entropy"}
    )
    replies = list(Worker(nodes, evaluator, joined=joined).run(request))
    assert [r.node for r in replies] == list(nodes)
    for reply, node in zip(replies, nodes.values(), strict=True):
        logits = one_by_one(convolution, population, node.data.x)
        sums = [F.cross_entropy(z, node.data.y, reduction="sum").item() for z in logits]
        assert reply.payload["samples"].tolist() == [len(node.data)]
        assert reply.payload["loss"].shape == (3, 1)
        assert reply.payload["loss"].dtype == torch.float32
        assert (reply.payload["loss"][:, 0] / len(node.data)).tolist() == pytest.approx(
            [s / len(node.data) for s in sums], rel=1e-6, abs=1e-6
        )


# ------------------------------------------------------------------------------------------------ pairs
def pairs_around(module: nn.Module, count: int) -> RankOne:
    """Return `count` antithetic pairs of rank one around the module's own weights."""
    layout = Layout(module)
    return RankOne(
        layout.flatten(module), Perturbations(0, count, width(layout))(0), steps(layout, layout.deviations(), 0.5)
    )


class Paired(Stacked):
    """Has a form for pairs, too; each pass is written down."""

    def __init__(self) -> None:
        super().__init__()
        self.passes: list[tuple[str, int, int]] = []

    def forward_population(self, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        self.passes.append(("population", len(parameters["layer.bias"]), len(x)))
        return super().forward_population(parameters, x)

    def forward_rank_one(
        self, parameters: Mapping[str, Tensor], factors: Mapping[str, tuple[Tensor, ...]], x: Tensor
    ) -> Tensor:
        centre, a, b = factors["layer.weight"]
        self.passes.append(("pairs", 2 * len(a), len(x)))
        change = a.unsqueeze(1) * (x @ b.T).T.unsqueeze(2)  # [p, N, outputs]
        return torch.cat([x @ centre.T + change, x @ centre.T - change]) + parameters["layer.bias"].unsqueeze(1)


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize(("path", "chunk", "tile"), PLANS)
@pytest.mark.parametrize(("make", "shape"), [*CASES, (Paired, (4,))])
def test_pairs_are_evaluated_as_the_population_that_they_are(
    make: Callable[[], nn.Module], shape: tuple[int, ...], path: Any, chunk: int, tile: int, count: int
) -> None:
    module = made(make)
    if path == "stacked" and not hasattr(module, "forward_population"):
        pytest.skip("no form of its own")
    x = torch.randn(9, *shape, generator=generator("x"))
    samples = Samples(x, torch.arange(9) % 3 if shape != (1,) else torch.ones(9, 1))
    evaluator = Evaluator(module, Plan(path, chunk, tile), output="softmax")
    pairs = pairs_around(module, count)
    population = pairs.materialised(evaluator.layout)
    for evaluate in (
        lambda p: evaluator.logits(p, x),
        lambda p: evaluator.sample_losses(p, samples, "mse"),
        lambda p: evaluator.evaluate(p, samples, loss="mse")["loss"],
        lambda p: evaluator.sample_losses(p, samples, "mse", batch_statistics=True),
    ):
        got, wanted = evaluate(pairs), evaluate(population)
        if make is Paired:
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
        else:
            assert torch.equal(got, wanted)


@pytest.mark.parametrize(
    ("path", "chunk", "wanted"),
    [
        ("stacked", 64, [("pairs", 10, 6), ("pairs", 10, 3)]),
        ("stacked", 5, [("pairs", 4, 6), ("pairs", 4, 3)] * 2 + [("pairs", 2, 6), ("pairs", 2, 3)]),
        ("stacked", 2, [("pairs", 2, 6), ("pairs", 2, 3)] * 5),
        ("stacked", 1, [("population", 1, 6), ("population", 1, 3)] * 10),  # no room for two
        ("loop", 64, []),
        ("vmap", 64, []),
    ],
)
def test_passes_of_pairs_are_as_large_as_planned(path: Any, chunk: int, wanted: list[tuple[str, int, int]]) -> None:
    module = Paired()
    evaluator = Evaluator(module, Plan(path, chunk, 6), output="softmax")
    samples = Samples(torch.randn(9, 4), torch.arange(9) % 3)
    evaluator.sample_losses(pairs_around(module, 5), samples, "mse")
    assert module.passes == wanted
    if path == "stacked":
        module.passes.clear()
        evaluator.sample_losses(pairs_around(module, 5), samples, "mse", batch_statistics=True)
        assert {kind for kind, _, _ in module.passes} == {"population"}


# ------------------------------------------------------------------------------------------------ batch normalisation
@pytest.mark.parametrize(
    ("make", "shape"),
    [(Everything, (4,)), (convolution, (1, 12, 12)), (eeg("paper"), (3, 50)), (eeg("braindecode"), (3, 50))],
)
@pytest.mark.parametrize("path", PATHS)
def test_batch_statistics_are_each_individuals_own_over_all_samples(
    path: Any, make: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    module = made(make)
    if path == "stacked" and not hasattr(module, "forward_population"):
        pytest.skip("no form of its own")
    x, y = 2 * torch.randn(9, *shape, generator=generator("x")), torch.arange(9) % 3
    population = generation(module, 5)
    logits = one_by_one(make, population, x, batch=True)
    wanted = torch.stack([F.cross_entropy(z, y, reduction="none") for z in logits])
    given = {name: b + 1 for name, b in buffers_of(module).items() if "running" in name}
    for chunk, tile in ((1, 64), (2, 5), (64, 4), (64, 64)):
        evaluator = Evaluator(made(make), Plan(path, chunk, tile), output="softmax")
        evaluate = functools.partial(evaluator.sample_losses, population, Samples(x, y), "cross_entropy")
        before = evaluate()
        torch.testing.assert_close(evaluate(batch_statistics=True, buffers=given), wanted, rtol=1e-5, atol=1e-5)
        assert torch.equal(evaluate(), before)  # and the module's own are back
        assert not torch.allclose(before, wanted, rtol=1e-2)
    with pytest.raises(RuntimeError):
        evaluator.sample_losses(population, Samples(x.flatten(1)[:, 1:], y), "cross_entropy", batch_statistics=True)
    assert torch.equal(evaluate(), before)


@pytest.mark.parametrize("path", PATHS)
def test_a_batch_with_one_value_has_no_variance(path: Any) -> None:
    """The paper's net, its third filters as long as what pooling leaves: one value per channel and sample."""

    def make() -> nn.Module:
        return load("model", "shallow_convnet")((3, 50), 3, filters=2, pool_length=20, pool_stride=3, third_length=3)

    module = made(make)
    evaluator = Evaluator(module, Plan(path, 4, 4), output="softmax")
    population, x = generation(module, 2), torch.randn(1, 3, 50, generator=generator("x"))
    for call, policy in (
        (
            lambda: evaluator.sample_losses(population, Samples(x, torch.tensor([1])), "mse", batch_statistics=True),
            "batch",
        ),
        (lambda: evaluator.statistics(population[0], x), "server"),
    ):
        with pytest.raises(SettingError) as caught:
            call()
        assert str(caught.value) == (
            f"evaluation.batch_norm = '{policy}': must be identity: 1 sample gives a channel one value, which has no "
            "variance; or more samples"
        )
    assert not module.training
    assert evaluator.logits(population, x).isfinite().all()


def test_a_batch_that_does_not_fit_into_the_memory_is_refused() -> None:
    module = made(convolution)
    x = torch.randn(9, 1, 12, 12, generator=generator("x"))
    memory = 8 * activation_bytes(module, x[:1])
    evaluator = Evaluator(module, resolve_plan(module, x, settings(memory=memory), output="softmax"), output="softmax")
    population, samples = generation(module, 2), Samples(x, torch.arange(9) % 3)
    evaluator.sample_losses(population, samples.take(torch.arange(8)), "mse", batch_statistics=True)
    with pytest.raises(SettingError, match=r"'batch': must be identity or server with 9 samples on a node: .* holds 8"):
        evaluator.sample_losses(population, samples, "mse", batch_statistics=True)


def test_a_batch_is_a_nodes_own_also_in_joined_tiles() -> None:
    module, nodes = made(convolution), hosted(5, 3, 8)
    evaluator = Evaluator(module, Plan("loop", 2, 4), output="softmax")
    population = generation(module, 3)
    options = {"loss": "cross_entropy", "statistics": "batch"}
    request = Request(Header(0, 0), "fitness", tuple(nodes), {"population": population}, options=options)
    for joined in (False, True):
        for reply, node in zip(Worker(nodes, evaluator, joined=joined).run(request), nodes.values(), strict=True):
            logits = one_by_one(convolution, population, node.data.x, batch=True)
            sums = [F.cross_entropy(z, node.data.y, reduction="sum").item() for z in logits]
            assert reply.payload["loss"][:, 0].tolist() == pytest.approx(sums, rel=1e-5)


def test_a_batch_that_is_larger_than_a_tile_goes_through_whole_with_fewer_individuals() -> None:
    seen = []

    class Watched(Stacked):
        def forward_population(self, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
            seen.append((len(parameters["layer.bias"]), len(x)))
            return super().forward_population(parameters, x)

    module = made(Watched)
    samples = Samples(torch.randn(9, 4, generator=generator("x")), torch.arange(9) % 3)
    for tile, chunk, wanted in ((4, 6, [(2, 9), (2, 9), (1, 9)]), (2, 1, [(1, 9)] * 5), (9, 4, [(4, 9), (1, 9)])):
        seen.clear()
        evaluator = Evaluator(module, Plan("stacked", chunk, tile), output="softmax")
        evaluator.sample_losses(generation(module, 5), samples, "mse", batch_statistics=True)
        assert seen == wanted


def two_norms() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 3), nn.Dropout(0.5), nn.BatchNorm1d(3, momentum=None), nn.Tanh(),
        nn.BatchNorm1d(3, affine=False, momentum=0.3), nn.Linear(3, 2),
    )  # fmt: skip


@pytest.mark.parametrize("size", [2, 9, 512, 513, 1100])
def test_statistics_are_the_weighted_means_of_even_passes(size: int) -> None:
    """In NumPy: at most 512 samples a pass, means and unbiased variances; no dropout, whatever the plan."""
    x = 3 + 2 * torch.randn(size, 4, generator=generator("x"))
    genes = generation(made(two_norms), 1)[0]
    weight, bias, gain, offset = (g.double().numpy() for g in genes.split([12, 3, 3, 3, 8])[:4])
    wanted = np.zeros((4, 3))
    for part in np.array_split(x.double().numpy(), -(-size // 512)):
        first = part @ weight.reshape(3, 4).T + bias
        second = np.tanh((first - first.mean(0)) / np.sqrt(first.var(0) + 1e-5) * gain + offset)
        moments = [first.mean(0), first.var(0, ddof=1), second.mean(0), second.var(0, ddof=1)]
        wanted += len(part) / size * np.stack(moments)
    state = torch.get_rng_state()
    for plan in (Plan("vmap", 16, 64), Plan("loop", 1, 1)):
        evaluator = Evaluator(made(two_norms), plan, output="softmax")
        samples = Samples(x, torch.arange(size) % 2)
        before = evaluator.sample_losses(genes[None], samples, "mse")
        got = evaluator.statistics(genes, x)
        names = ["2.running_mean", "2.running_var", "4.running_mean", "4.running_var"]
        np.testing.assert_allclose(np.stack([got[n].numpy() for n in names]), wanted, rtol=1e-4, atol=1e-6)
        assert [got[f"{i}.num_batches_tracked"].item() for i in (2, 4)] == [0, 0]
        assert torch.equal(evaluator.sample_losses(genes[None], samples, "mse"), before)  # from the initial ones
        with pytest.raises(RuntimeError):
            evaluator.statistics(genes, x[:, 1:])
        norms = [m for m in evaluator.module.modules() if isinstance(m, nn.BatchNorm1d)]
        assert [norm.momentum for norm in norms] == [None, 0.3]
        assert not any(m.training for m in evaluator.module.modules())
    assert torch.equal(torch.get_rng_state(), state)


def test_statistics_make_eval_mode_what_the_batch_was() -> None:
    """On the very samples that they are from, but for the variance, unbiased where a batch takes the biased one."""
    for variant in ("paper", "braindecode"):
        module = made(eeg(variant))
        genes = generation(module, 1)
        samples = Samples(torch.randn(300, 3, 50, generator=generator("x")), torch.arange(300) % 4)
        evaluator = Evaluator(module, Plan("stacked", 8, 64), output="softmax")
        batch = evaluator.sample_losses(genes, samples, "mse", batch_statistics=True)
        given = evaluator.sample_losses(genes, samples, "mse", buffers=evaluator.statistics(genes[0], samples.x))
        torch.testing.assert_close(given, batch, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(
    ("module", "there"),
    [
        (nn.BatchNorm2d(3), True),
        (Everything(), True),
        (nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, track_running_stats=False))), True),
        (nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.GroupNorm(1, 2), nn.InstanceNorm1d(2)), False),
    ],
)
def test_what_has_batch_norm(module: nn.Module, there: bool) -> None:
    assert has_batch_norm(module) is there


# ------------------------------------------------------------------------------------------------ planning
def settings(**changes: Any) -> dict[str, Any]:
    return {"path": "table", "chunk": None, "tile": None, "memory": 2 * 10**9, **changes}


def test_the_table_prefers_a_models_own_form() -> None:
    assert resolve_plan(made(Stacked), torch.zeros(2, 4), settings(), output="softmax").path == "stacked"
    assert resolve_plan(nn.Linear(4, 3), torch.zeros(2, 4), settings(), output="softmax").path == "loop"


@pytest.mark.parametrize("path", ["loop", "vmap"])
def test_what_is_given_is_kept(path: str) -> None:
    plan = resolve_plan(nn.Linear(4, 3), torch.zeros(2, 4), settings(path=path, chunk=3, tile=11), output="softmax")
    assert (plan.path, plan.chunk, plan.tile) == (path, 3, 11)


def test_auto_takes_a_path_that_the_model_has() -> None:
    plan = resolve_plan(nn.Linear(4, 3), torch.zeros(8, 4), settings(path="auto"), output="softmax")
    assert plan.path in ("loop", "vmap")


@pytest.mark.parametrize("memory", [12_000, 100_000, 10_000_000])
def test_activations_of_a_pass_fit_into_the_memory(memory: int) -> None:
    module, x = made(convolution), torch.zeros(4, 1, 12, 12)
    plan = resolve_plan(module, x, settings(memory=memory), output="softmax")
    assert plan.chunk * plan.tile * activation_bytes(module, x[:1]) <= memory
    assert plan.chunk >= 1
    assert plan.tile >= 1


def test_activation_bytes_are_every_layers_output_doubled() -> None:
    module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    assert activation_bytes(module, torch.zeros(1, 4)) == 2 * 4 * (6 + 6 + 2)


def test_a_form_of_its_own_is_planned_by_the_bytes_that_it_says() -> None:
    """Pooled 11, third convolution 5 long leaves 7: 4 bytes x 40 filters x (2 x 11 + (5 + 3) x 7) = 12,480."""
    module, x = load("model", "shallow_convnet")((64, 256), 2), torch.zeros(64, 64, 256)
    assert module.population_bytes == 12_480
    assert resolve_plan(module, x, settings(), output="sigmoid") == Plan(
        "stacked", CPU_WORKING_SET // 6_389_760, 512, most=2 * 10**9 // 12_480
    )
    # 16 individuals with 64 samples would be too much
    small = resolve_plan(module, x, settings(memory=10**7), output="sigmoid")
    assert small == Plan("stacked", 10**7 // (32 * 12_480), 32, most=10**7 // 12_480)
    # Without it the first convolution counts: 2 x 4 x 40 x (64 + 1) x 232 bytes and more.
    per_sample = activation_bytes(module, x[:1])
    assert per_sample > 2 * 4 * 40 * 65 * 232
    for memory in (per_sample, 10**8, 2 * 10**9):
        loop = resolve_plan(module, x, settings(path="loop", memory=memory), output="sigmoid")
        assert loop.path == "loop"
        assert loop.chunk * loop.tile * per_sample <= min(memory, CPU_WORKING_SET)
    with pytest.raises(SettingError, match=rf"evaluation\.memory = 1000000: must be at least {per_sample} bytes"):
        resolve_plan(module, x, settings(path="loop", memory=10**6), output="sigmoid")


def test_auto_plans_each_path_by_itself() -> None:
    module, x = made(eeg("paper")), torch.zeros(8, 3, 50)
    plans = {path: resolve_plan(module, x, settings(path=path), output="softmax") for path in PATHS}
    assert plans["stacked"].chunk != plans["loop"].chunk
    assert resolve_plan(module, x, settings(path="auto"), output="softmax") in plans.values()


def test_too_little_memory_for_one_sample_is_an_error_with_both_numbers() -> None:
    with pytest.raises(SettingError, match=r"evaluation\.memory = 10: must be at least 24 bytes"):
        resolve_plan(nn.Linear(4, 3), torch.zeros(2, 4), settings(memory=10), output="softmax")


def test_stacked_without_a_form_of_its_own_is_refused() -> None:
    with pytest.raises(SettingError, match=r"evaluation\.path = 'stacked': must be loop or vmap: Linear"):
        Evaluator(nn.Linear(4, 3), Plan("stacked", 1, 1), output="softmax")


@pytest.mark.parametrize(
    ("path", "make"), list(itertools.product(["table", "auto", "vmap"], [Everything, convolution]))
)
def test_planning_leaves_statistics_and_global_randomness_alone(path: str, make: Callable[[], nn.Module]) -> None:
    module = made(make)  # as it comes from its constructor: in training mode
    x = torch.randn(4, *((4,) if make is Everything else (1, 12, 12)), generator=generator("x"))
    before, state = buffers_of(module), torch.get_rng_state()
    resolve_plan(module, x, settings(path=path), output="softmax")
    after = buffers_of(module)
    assert all(torch.equal(after[name], b) for name, b in before.items())
    assert torch.equal(torch.get_rng_state(), state)


def test_what_training_leaves_in_the_module_does_not_reach_the_next_evaluation(
    laboratory: Callable[..., Any], clouds: Callable[..., dict[str, Samples]]
) -> None:
    """Batch norm: a task that trains moves the module's statistics, a later fitness starts from the initial ones."""
    nodes = clouds(20, 30)
    lab = laboratory(lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)), nodes)
    genes = lab.task.layout.flatten(lab.task.new_model(3))
    before = lab.evaluator.sample_losses(genes.unsqueeze(0), nodes["n0"], "mse")
    buffers = {f"buffer.{name}": value for name, value in lab.task.buffers.items()}
    options = {"loss": "mse", "lr": 0.1, "batch_size": 5}
    request = Request(Header(0, 0), "train", ("n0",), common={"parameters": genes, **buffers}, options=options)
    (reply,) = lab.engine.send(request).replies
    assert not torch.equal(reply.payload["buffer.1.running_mean"], torch.zeros(5))
    after = lab.evaluator.sample_losses(genes.unsqueeze(0), nodes["n0"], "mse")
    assert torch.equal(after, before)
    given = {"1.running_mean": torch.full((5,), 2.0)}
    assert not torch.equal(lab.evaluator.sample_losses(genes.unsqueeze(0), nodes["n0"], "mse", buffers=given), before)
