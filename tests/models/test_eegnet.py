"""EEGNet: its parameters against the paper's, its fast forms against the definition in float64, whole runs with it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor, nn

from fne.config.load import load_config
from fne.config.registry import entry, load, settings_model
from fne.core.dataset import Samples
from fne.core.errors import SettingError
from fne.core.randomness import generator, seeded_initialisation
from fne.evolution.evaluate import PATHS, Evaluator, Plan
from fne.evolution.genome import Layout
from fne.models import eegnet
from fne.models import recording_layers as blocks
from fne.run.learning_run import load_dataset
from fne.run.train import load_model, train

NORMS = ("norm_time", "norm_spatial", "norm_pointwise")


def network(shape: tuple[int, int], outputs: int = 2, **settings: Any) -> Any:
    """Return a network in eval mode whose batch normalisation has non-trivial statistics, gains and offsets."""
    with seeded_initialisation("eegnet", str(sorted(settings.items()))), torch.no_grad():
        model = load("model", "eegnet")(shape, outputs, **settings).eval()
        for norm in (getattr(model, name) for name in NORMS):
            norm.running_mean.normal_(std=0.3)
            norm.running_var.uniform_(0.5, 2)
            norm.weight.uniform_(0.5, 2)
            norm.bias.normal_(std=0.3)
    return model


def recordings(count: int, *shape: int) -> Tensor:
    return torch.randn(count, *shape, generator=generator("recordings", count, *shape))


def individuals(model: nn.Module, count: int) -> tuple[Layout, Tensor]:
    layout = Layout(model)
    noise = torch.randn(count, layout.size, generator=generator("individuals", count))
    return layout, layout.flatten(model) + 0.05 * noise


# ------------------------------------------------------------------------------------------------ the definition
def same(x: Tensor, weight: Tensor) -> Tensor:
    """Filter `[..., T]` with `[..., K]`: y[t] = sum_k w[k] x[t + k - (K - 1) // 2], zeros around x (Keras' "same")."""
    times, length = x.shape[-1], weight.shape[-1]
    y = torch.zeros((*torch.broadcast_shapes(x.shape[:-1], weight.shape[:-1]), times), dtype=x.dtype)
    for k in range(length):
        ahead = k - (length - 1) // 2
        start, stop = max(0, -ahead), min(times, times - ahead)
        if start < stop:
            y[..., start:stop] += weight[..., k : k + 1] * x[..., start + ahead : stop + ahead]
    return y


def plain(model: Any, genes: dict[str, Tensor], x: Tensor, *, batch: bool = False) -> Tensor:
    """Write the network down as the paper's table 2 does, in float64: `[N, outputs]`."""
    g = {name: value.double() for name, value in genes.items()}

    def normalised(y: Tensor, name: str) -> Tensor:
        others = [axis for axis in range(y.dim()) if axis != 1]
        norm, shape = getattr(model, name), [-1] + [1] * (y.dim() - 2)
        mean = y.mean(others) if batch else norm.running_mean.double()
        variance = y.var(others, correction=0) if batch else norm.running_var.double()
        y = (y - mean.view(shape)) / torch.sqrt(variance.view(shape) + 1e-5)
        return y * g[f"{name}.weight"].view(shape) + g[f"{name}.bias"].view(shape)

    def pooled(y: Tensor, length: int) -> Tensor:
        y = torch.where(y > 0, y, torch.expm1(y))
        return torch.stack([y[..., i : i + length].mean(-1) for i in range(0, y.shape[-1] - length + 1, length)], -1)

    y = same(x.double()[:, None], g["conv_time.weight"][:, 0])  # [N, F, C, T]
    y = normalised(y, "norm_time")
    spatial = g["conv_spatial.weight"][:, 0, :, 0]
    y = torch.einsum("nfct,fdc->nfdt", y, spatial.view(y.shape[1], -1, y.shape[2])).flatten(1, 2)
    y = pooled(normalised(y, "norm_spatial"), model.first_pool)
    y = same(y, g["conv_depthwise.weight"][:, 0, 0])
    y = torch.einsum("ngt,hg->nht", y, g["conv_pointwise.weight"][..., 0, 0])
    y = pooled(normalised(y, "norm_pointwise"), model.second_pool)
    return (y.flatten(1) @ g["head.weight"].T + g["head.bias"]).float()


# ------------------------------------------------------------------------------------------------ parameters
# 64 channels, 128 samples in time, two outputs (the paper's P300 data):
#   temporal 8 x 64 = 512; spatial 16 x 64 = 1,024; separable 16 x 16 + 16 x 16 = 512; norms 2 x (8 + 16 + 16) = 80;
#   pooling leaves 128 // 4 // 8 = 4 values, dense (16 x 4 + 1) x 2 = 130; in all 2,258
LEAVES = {
    "conv_time.weight": (8, 1, 1, 64), "norm_time.weight": (8,), "norm_time.bias": (8,),
    "conv_spatial.weight": (16, 1, 64, 1), "norm_spatial.weight": (16,), "norm_spatial.bias": (16,),
    "conv_depthwise.weight": (16, 1, 1, 16), "conv_pointwise.weight": (16, 16, 1, 1),
    "norm_pointwise.weight": (16,), "norm_pointwise.bias": (16,), "head.weight": (2, 64), "head.bias": (2,),
}  # fmt: skip


def test_parameters() -> None:
    model = load("model", "eegnet")((64, 128), 2)
    layout = Layout(model)
    assert {leaf.name: leaf.shape for leaf in layout.leaves} == LEAVES
    assert layout.size == 2258
    assert layout.kernels == 8 + 8 + 5 * 16 + 2  # filters, channels of the norms, outputs
    assert {name.partition(".")[0] for name, _ in model.named_buffers()} == set(NORMS)
    assert (model.output, model.dropout.p) == ("softmax", 0.5)
    assert all(p.all() for name, p in model.named_parameters() if "norm" not in name)  # no zero that mutation must move


@pytest.mark.parametrize(
    ("shape", "outputs", "filters", "filter_length", "count"),
    [
        ((64, 128), 2, 4, 64, 1066), ((64, 128), 2, 8, 64, 2258),  # P300
        ((64, 192), 2, 4, 64, 1098), ((64, 192), 2, 8, 64, 2322),  # MRCP
        ((22, 256), 4, 4, 32, 796), ((22, 256), 4, 8, 32, 1716),  # SMR
    ],
)  # fmt: skip
def test_the_paper_s_numbers_of_parameters(
    shape: tuple[int, int], outputs: int, filters: int, filter_length: int, count: int
) -> None:
    """Table 3 of arXiv 1611.08024, EEGNet-4,2 and EEGNet-8,2."""
    model = load("model", "eegnet")(shape, outputs, filters=filters, filter_length=filter_length)
    assert sum(p.numel() for p in model.parameters()) == count


SHORTEST = {"filter_length": 1, "first_pool": 1, "separable_length": 1, "second_pool": 1}


@pytest.mark.parametrize(
    ("shape", "outputs", "settings", "message"),
    [
        (
            (1, 28, 28), 10, {},
            "model.name = 'eegnet': must be a model for data of shape [1, 28, 28], such as mlp or logistic; "
            "eegnet needs recordings [channels, times]",
        ),
        ((64, 63), 2, {}, "model.filter_length = 64: must be at most the 63 samples in time"),
        ((64, 3), 2, SHORTEST | {"first_pool": 4}, "model.first_pool = 4: must be at most the 3 samples in time"),
        (
            (64, 63), 2, {"filter_length": 63},
            "model.separable_length = 16: must be at most the 15 values that first_pool = 4 leaves of 63 samples in "
            "time",
        ),
        (
            (64, 31), 2, {"filter_length": 31, "separable_length": 7},
            "model.second_pool = 8: must be at most the 7 values that first_pool = 4 leaves of 31 samples in time",
        ),
        ((64, 128), 1, {}, "model.output = 'softmax': must be 'linear' or 'sigmoid' for a single output (regression)"),
    ],
)  # fmt: skip
def test_impossible_settings(shape: tuple[int, ...], outputs: int, settings: Any, message: str) -> None:
    with pytest.raises(SettingError) as caught:
        load("model", "eegnet")(shape, outputs, **settings)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "given",
    [
        {"output": "tanh"}, {"dropout": 1.0}, {"dropout": -0.1}, {"pointwise": 0}, {"filters": 0}, {"depth": 0},
        *({name: 0} for name in SHORTEST),
    ],
)  # fmt: skip
def test_settings_out_of_range(given: Any) -> None:
    with pytest.raises(ValidationError):
        settings_model(entry("model", "eegnet"))(**given)


# ------------------------------------------------------------------------------------------------ forward
@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        ([5.0], [0, 0, 5, 0, 0]),
        ([1.0, 2.0], [0, 2, 1, 0, 0]),
        ([1.0, 2.0, 3.0], [0, 3, 2, 1, 0]),
        ([1.0, 2.0, 3.0, 4.0], [4, 3, 2, 1, 0]),  # even: the odd zero stands behind, so time 2 is seen from 0 on
        ([1.0, 2.0, 3.0, 4.0, 5.0], [5, 4, 3, 2, 1]),
    ],
)
def test_padding_of_an_impulse(weight: list[float], expected: list[float]) -> None:
    """What Keras' "same" makes of 0 0 1 0 0, by hand."""
    layer = nn.Conv2d(1, 1, (1, len(weight)), bias=False)
    layer.weight.data = torch.tensor(weight).view(1, 1, 1, -1)
    impulse = torch.tensor([0.0, 0, 1, 0, 0])
    assert layer(eegnet._same(impulse.view(1, 1, 1, 5), layer)).flatten().tolist() == expected
    assert same(impulse, torch.tensor(weight)).tolist() == expected


GEOMETRIES: list[tuple[tuple[int, int], dict[str, int]]] = [
    ((5, 37), {"filters": 2, "filter_length": 6, "separable_length": 4, "second_pool": 2}),
    ((5, 37), {"filters": 3, "depth": 1, "filter_length": 37, "separable_length": 9}),  # as long as the data
    ((1, 40), {"filters": 1, "depth": 3, "pointwise": 5, "filter_length": 7, "separable_length": 5}),
    ((4, 30), {"filters": 150, "filter_length": 3, "first_pool": 7, "separable_length": 3, "second_pool": 3}),
    ((3, 5), {"filters": 2, **SHORTEST}),
    ((64, 128), {}),
]


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize(("shape", "settings"), GEOMETRIES)
@pytest.mark.parametrize(("population", "samples"), [(1, 5), (2, 1), (5, 33), (17, 3)])
def test_every_form_is_the_definition(
    shape: tuple[int, int], settings: dict[str, int], population: int, samples: int, batch: bool
) -> None:
    model, x = network(shape, 3, **settings), recordings(samples, *shape)
    layout, genomes = individuals(model, population)
    genes = layout.unflatten(genomes)
    expected = torch.stack(
        [plain(model, {k: v[p] for k, v in genes.items()}, x, batch=batch) for p in range(2)[:population]]
    )
    if batch:
        for norm in (getattr(model, name) for name in NORMS):
            norm.running_mean = norm.running_var = None
    with torch.inference_mode():
        logits = model.forward_population(genes, x)
        layout.fill(model, genomes[0])
        alone = model(x)
    assert logits.shape == (population, samples, 3)
    torch.testing.assert_close(logits[:2], expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(alone, expected[0], rtol=1e-5, atol=1e-5)


def test_whatever_goes_through_together(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = network((64, 320)), recordings(5, 64, 320)
    layout, genomes = individuals(model, 3)
    expected = model.forward_population(layout.unflatten(genomes), x)
    for block in ((1, 1), (16, 2), (40, 3), (4096, 64)):
        monkeypatch.setitem(blocks.BLOCK, "cpu", block)
        logits = model.forward_population(layout.unflatten(genomes), x)
        torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("segment", [1, 7, 30, 59, 60, 256])
def test_statistics_under_strong_slow_waves(segment: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter that takes differences lets little through of what drifts: variances keep their digits all the same."""
    monkeypatch.setattr(eegnet, "SEGMENT", segment)
    model = network((4, 60), filters=2, filter_length=5, separable_length=3, second_pool=4)
    drift = 1000 * torch.linspace(-1, 3, 60).sin()
    x = recordings(6, 4, 60) + drift
    model.conv_time.weight.data[0] = torch.tensor([0.0, 1, -2, 1, 0])
    expected = same(x.double()[:, None], model.conv_time.weight.detach().double()[:, 0])
    mean, variance = model._statistics(x, {"conv_time.weight": model.conv_time.weight[None]})
    torch.testing.assert_close(mean[0], expected.mean((0, 2, 3)).float())
    torch.testing.assert_close(variance[0], expected.var((0, 2, 3), correction=0).float())


def test_elu() -> None:
    y = torch.cat([torch.linspace(-20, 20, 4001), torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, -1e-9])])
    torch.testing.assert_close(eegnet._elu(y), F.elu(y), rtol=0, atol=1e-7, equal_nan=True)


def test_a_broken_individual_leaves_the_others_alone() -> None:
    model, x = network((5, 80), filter_length=9), recordings(5, 5, 80)
    layout, genomes = individuals(model, 3)
    good = model.forward_population(layout.unflatten(genomes), x)
    genomes[1] = torch.nan
    bad = model.forward_population(layout.unflatten(genomes), x)
    assert bool(bad[1].isnan().all())
    assert torch.equal(bad[[0, 2]], good[[0, 2]])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("times", [1, 2])
def test_a_batch_with_one_value_has_no_variance(path: Any, times: int) -> None:
    """Of a recording of one value, and behind a pooling that leaves one."""
    with seeded_initialisation("short"):
        module = load("model", "eegnet")((1, times), 2, **SHORTEST | {"first_pool": times})
    evaluator = Evaluator(module, Plan(path, 4, 4), output="softmax")
    population, x = evaluator.layout.flatten(module).repeat(2, 1), recordings(1, 1, times)
    with pytest.raises(SettingError, match=r"^evaluation.batch_norm = 'batch': must be identity: 1 sample"):
        evaluator.sample_losses(population, Samples(x, torch.tensor([1])), "mse", batch_statistics=True)
    with pytest.raises(SettingError, match=r"^evaluation.batch_norm = 'server': must be identity: 1 sample"):
        evaluator.statistics(population[0], x)


# ------------------------------------------------------------------------------------------------ training
@pytest.mark.parametrize(("shape", "settings"), GEOMETRIES[:3])
def test_training_is_that_of_the_plain_network(shape: tuple[int, int], settings: dict[str, int]) -> None:
    """Channels mixed first: the same logits, running statistics, and gradients of every parameter."""
    model, x = network(shape, 3, dropout=0.0, **settings), recordings(9, *shape)
    other: Any = copy.deepcopy(model).train()
    y = other.norm_spatial(
        other.conv_spatial(other.norm_time(other.conv_time(eegnet._same(x[:, None], other.conv_time))))
    )
    y = F.avg_pool2d(F.elu(y), (1, other.first_pool))
    y = other.norm_pointwise(other.conv_pointwise(other.conv_depthwise(eegnet._same(y, other.conv_depthwise))))
    expected = other.head(F.avg_pool2d(F.elu(y), (1, other.second_pool)).flatten(1))
    logits = model.train()(x)
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
    weights = recordings(9, 3)
    (logits * weights).sum().backward()
    (expected * weights).sum().backward()
    for (name, p), theirs in zip(model.named_parameters(), other.parameters(), strict=True):
        scale = max(1.0, theirs.grad.abs().max().item())
        torch.testing.assert_close(p.grad, theirs.grad, rtol=1e-4, atol=1e-4 * scale, msg=name)
    for (name, b), theirs in zip(model.named_buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(b, theirs, msg=name)
    assert model.norm_time.num_batches_tracked.item() == 1


def test_dropout_stands_behind_each_pooling() -> None:
    model, x, seen = network((5, 80), filter_length=9, pointwise=7), recordings(4, 5, 80), []
    model.dropout.register_forward_hook(lambda _, given, result: seen.append((given[0], result)))
    model(x)
    model.train()(x)
    assert [tuple(given.shape) for given, _ in seen] == 2 * [(4, 16, 1, 20), (4, 7, 1, 2)]
    assert all(torch.equal(given, result) for given, result in seen[:2])
    for given, result in seen[2:]:
        kept = result != 0
        assert 0 < int(kept.sum()) < given.numel()
        torch.testing.assert_close(result[kept], 2 * given[kept])


# ------------------------------------------------------------------------------------------------ whole runs
def config_of(policy: str = "identity", strategy: str = "fne", **more: Any) -> dict[str, Any]:
    """Return a config of a small network on the synthetic EEG, a node a subject."""
    small = {"population": 8, "parents": 4, "subset_size": 2} if strategy == "fne" else {"lr": 0.02}
    return {
        "name": "run",
        "data": {
            "name": "toy", "problem": "eeg", "subjects": 5, "samples": 200, "channels": 4, "times": 76,
            "validation": 50, "test": 50, "nodes": None, "partition": "subject",
        },
        "model": {"name": "eegnet", "filters": 4, "filter_length": 32, "dropout": 0.25},
        "strategy": {"name": strategy, "rounds": 5, **small},
        "engine": {"threads": 1}, "evaluation": {"batch_norm": policy},
        "watch": {"tensorboard": False, "checkpoint_every": 2}, **more,
    }  # fmt: skip


@pytest.mark.parametrize("policy", ["identity", "batch", "server"])
def test_the_saved_model_has_the_accuracy_that_was_reported(
    policy: str, tmp_path: Path, accuracy_of_the_saved: Any
) -> None:
    config = config_of(policy)
    summary = train(config, out=tmp_path / "run")
    assert accuracy_of_the_saved(tmp_path / "run", config) == summary["accuracy_test"]
    model: Any = load_model(tmp_path / "run")
    x = load_dataset(load_config(config)).validation.x
    with torch.no_grad():
        y = same(x[:, None], model.conv_time.weight[:, 0]).transpose(0, 1).flatten(1)
    expected = (torch.zeros(4), torch.ones(4)) if policy == "identity" else (y.mean(1), y.var(1))
    torch.testing.assert_close(model.norm_time.running_mean, expected[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.norm_time.running_var, expected[1], rtol=1e-4, atol=1e-4)

    train(config, out=tmp_path / "again", stop_after=3)
    assert train(None, resume=tmp_path / "again")["model_sha256"] == summary["model_sha256"]


@pytest.mark.parametrize("path", ["loop", "vmap", "stacked"])
@pytest.mark.parametrize("tiles", ["node", "joined"])
@pytest.mark.parametrize("policy", ["identity", "batch", "server"])
def test_a_run_is_the_same_on_every_path(policy: str, tiles: str, path: str, first_losses: Any) -> None:
    one, other = (
        first_losses(config_of(policy, evaluation={"batch_norm": policy, **evaluation}))
        for evaluation in ({"path": "loop"}, {"path": path, "tiles": tiles, "chunk": 3, "tile": 7})
    )
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("strategy", ["fedavg", "centralised"])
def test_it_learns_the_synthetic_eeg(strategy: str, tmp_path: Path, accuracy_of_the_saved: Any) -> None:
    config = config_of(strategy=strategy)
    config["strategy"] |= {"rounds": 15, "optimizer": "adam", "batch_size": 16}
    summary = train(config, out=tmp_path / "run")
    assert summary["majority_test"] == 0.5
    assert summary["accuracy_test"] >= 0.9
    assert accuracy_of_the_saved(tmp_path / "run", config) == summary["accuracy_test"]
