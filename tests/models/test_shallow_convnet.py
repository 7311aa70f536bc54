"""The shallow EEG network: its parameters, its folded forms against plain torch and NumPy, and whole runs with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor, nn
from torch.func import functional_call

from fne.config.load import load_config
from fne.config.registry import entry, load, settings_model
from fne.core.errors import SettingError
from fne.core.randomness import generator, seeded_initialisation
from fne.evolution.genome import Layout
from fne.evolution.philox import Perturbations
from fne.evolution.rank_one import RankOne, steps, width
from fne.models import recording_layers as blocks
from fne.run.learning_run import build, load_dataset
from fne.run.train import load_model, train

VARIANTS, ACTIVATIONS = ("paper", "braindecode"), ("square_log", "elu")
SHORT = {"filter_length": 5, "pool_length": 20, "pool_stride": 6, "third_length": 3}


def network(shape: tuple[int, int], outputs: int = 2, **settings: Any) -> Any:
    """Return a network in eval mode whose batch normalisation has non-trivial statistics, gains and offsets."""
    with seeded_initialisation("shallow", str(sorted(settings.items()))):
        model = load("model", "shallow_convnet")(shape, outputs, **settings).eval()
        with torch.no_grad():
            model.norm.running_mean.normal_(std=0.3)
            model.norm.running_var.uniform_(0.5, 2)
            model.norm.weight.uniform_(0.5, 2)
            for bias in (model.norm.bias, model.conv_time.bias, model.head.bias):
                bias.normal_(std=0.3)
    return model


def recordings(count: int, *shape: int) -> Tensor:
    return torch.randn(count, *shape, generator=generator("recordings", count, *shape))


def individuals(model: nn.Module, count: int) -> tuple[Layout, Tensor]:
    layout = Layout(model)
    noise = torch.randn(count, layout.size, generator=generator("individuals", count))
    return layout, layout.flatten(model) + 0.05 * noise


def plain(model: Any, genes: dict[str, Tensor], x: Tensor, settings: dict[str, Any], *, batch: bool = False) -> Tensor:
    """Write the network down as its papers draw it: one convolution after the other, `[N, outputs]`."""
    squared = settings.get("activation", "square_log") == "square_log"

    def normalised(y: Tensor) -> Tensor:
        mean, variance = (None, None) if batch else (model.norm.running_mean, model.norm.running_var)
        return F.batch_norm(y, mean, variance, genes["norm.weight"], genes["norm.bias"], training=batch, eps=1e-5)

    y = F.conv2d(x[:, None], genes["conv_time.weight"], genes["conv_time.bias"])
    y = F.conv2d(y, genes["conv_spatial.weight"], genes.get("conv_spatial.bias"))[:, :, 0]
    paper = settings.get("variant", "paper") == "paper"
    if not paper:
        y = normalised(y)
    y = F.avg_pool1d(y**2 if squared else F.elu(y), settings.get("pool_length", 75), settings.get("pool_stride", 15))
    if squared:
        y = torch.log(torch.clamp(y, min=1e-6))
    if paper:
        y = normalised(F.elu(F.conv1d(y, genes["conv_third.weight"], genes["conv_third.bias"])))
    return F.linear(y.flatten(1), genes["head.weight"], genes["head.bias"])


# ------------------------------------------------------------------------------------------------ parameters
# 64 channels, 256 samples in time, two outputs:
#   temporal 40 x (25 + 1) = 1,040; spatial 40 x 40 x 64 = 102,400 (paper: + 40 biases); batch norm 2 x 40 = 80;
#   pooling leaves (256 - 25 + 1 - 75) // 15 + 1 = 11 values.
#   paper: third 40 x (40 x 5 + 1) = 8,040 leaves 11 - 5 + 1 = 7, dense (40 x 7 + 1) x 2 = 562; in all 112,162
#   braindecode: last (40 x 11 + 1) x 2 = 882; in all 104,402
PAPER = {
    "conv_time.weight": (40, 1, 1, 25), "conv_time.bias": (40,),
    "conv_spatial.weight": (40, 40, 64, 1), "conv_spatial.bias": (40,),
    "conv_third.weight": (40, 40, 5), "conv_third.bias": (40,),
    "norm.weight": (40,), "norm.bias": (40,), "head.weight": (2, 280), "head.bias": (2,),
}  # fmt: skip
BRAINDECODE = {
    **{name: shape for name, shape in PAPER.items() if "third" not in name and name != "conv_spatial.bias"},
    "head.weight": (2, 440),
}


@pytest.mark.parametrize(
    ("variant", "leaves", "count", "output", "dropout"),
    [("paper", PAPER, 112_162, "sigmoid", 0.0), ("braindecode", BRAINDECODE, 104_402, "softmax", 0.5)],
)
def test_parameters(variant: str, leaves: dict[str, tuple[int, ...]], count: int, output: str, dropout: float) -> None:
    model = load("model", "shallow_convnet")((64, 256), 2, variant=variant)
    layout = Layout(model)
    assert {leaf.name: leaf.shape for leaf in layout.leaves} == leaves
    assert layout.size == sum(p.numel() for p in model.parameters()) == count
    assert set(dict(model.named_buffers())) == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    # a kernel is a filter of a convolution with its bias, a channel of the norm, an output of the dense layer
    assert layout.kernels == (4 if variant == "paper" else 3) * 40 + 2
    assert {leaf.axis for leaf in layout.leaves} == {0}
    assert (model.output, model.dropout.p) == (output, dropout)
    chosen = load("model", "shallow_convnet")((64, 256), 2, variant=variant, output="linear", dropout=0.25)
    assert (chosen.output, chosen.dropout.p) == ("linear", 0.25)


def test_initial_values() -> None:
    """Xavier's for braindecode: U[-b, b] with b = sqrt(6 / (fan in + fan out)); no zero that mutation cannot move."""
    theirs, ours = (network_as_made(variant) for variant in ("braindecode", "paper"))
    fans = {"conv_time": 25 + 40 * 25, "conv_spatial": 40 * 64 * 2, "head": 440 + 2}
    for name, fan in fans.items():
        weight, bound = getattr(theirs, name).weight, (6 / fan) ** 0.5
        assert weight.abs().max() <= bound
        assert weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.06)
    assert not theirs.conv_time.bias.any()
    assert not theirs.head.bias.any()
    assert all(p.all() for name, p in ours.named_parameters() if name != "norm.bias")


def network_as_made(variant: str) -> Any:
    with seeded_initialisation("as made"):
        return load("model", "shallow_convnet")((64, 256), 2, variant=variant)


@pytest.mark.parametrize(
    ("shape", "outputs", "settings", "message"),
    [
        (
            (1, 28, 28), 10, {},
            "model.name = 'shallow_convnet': must be a model for data of shape [1, 28, 28], such as mlp or logistic; "
            "shallow_convnet needs recordings [channels, times]",
        ),
        (
            (13,), 1, {},
            "model.name = 'shallow_convnet': must be a model for data of shape [13], such as mlp or logistic; "
            "shallow_convnet needs recordings [channels, times]",
        ),
        ((64, 24), 2, {}, "model.filter_length = 25: must be at most the 24 samples in time"),
        (
            (64, 98), 2, {},
            "model.pool_length = 75: must be at most 74 for 98 samples in time and filter_length = 25",
        ),
        # (158 - 25 + 1 - 75) // 15 + 1 = 4
        (
            (64, 158), 2, {},
            "model.third_length = 5: must be at most the 4 values that pooling leaves, with model.pool_stride = 15",
        ),
        (
            (64, 256), 1, {"variant": "braindecode"},
            "model.output = 'softmax': must be 'linear' or 'sigmoid' for a single output (regression)",
        ),
        (
            (64, 256), 1, {"output": "softmax"},
            "model.output = 'softmax': must be 'linear' or 'sigmoid' for a single output (regression)",
        ),
    ],
)  # fmt: skip
def test_impossible_settings(shape: tuple[int, ...], outputs: int, settings: Any, message: str) -> None:
    with pytest.raises(SettingError) as caught:
        load("model", "shallow_convnet")(shape, outputs, **settings)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("shape", "settings"),
    [((64, 159), {}), ((64, 99), {"variant": "braindecode"}), ((1, 1), {"filter_length": 1, "pool_length": 1,
      "third_length": 1})],
)  # fmt: skip
def test_the_shortest_recordings(shape: tuple[int, int], settings: Any) -> None:
    model = network(shape, **settings)
    x = recordings(3, *shape)
    torch.testing.assert_close(model(x), plain(model, dict(model.named_parameters()), x, settings))


@pytest.mark.parametrize(
    "given",
    [
        {"variant": "deep"}, {"activation": "relu"}, {"output": "tanh"}, {"dropout": 1.0}, {"dropout": -0.1},
        *({name: 0} for name in ("filters", "filter_length", "pool_length", "pool_stride", "third_length")),
    ],
)  # fmt: skip
def test_settings_out_of_range(given: Any) -> None:
    with pytest.raises(ValidationError):
        settings_model(entry("model", "shallow_convnet"))(**given)


# ------------------------------------------------------------------------------------------------ forward
def test_the_paper_s_network_in_numpy() -> None:
    """Every layer as loops over its definition, in float64."""
    filters, channels, times, length, pool, stride, third = 3, 4, 40, 5, 8, 6, 2
    model = network(
        (channels, times), filters=filters, filter_length=length, pool_length=pool, pool_stride=stride,
        third_length=third,
    )  # fmt: skip
    g = {name: p.detach().double().numpy() for name, p in [*model.named_parameters(), *model.named_buffers()]}
    x = recordings(2, channels, times)
    for sample, logits in zip(x.double().numpy(), model(x).detach().numpy(), strict=True):
        steps = times - length + 1
        temporal = np.zeros((filters, channels, steps))
        for f, c, t in np.ndindex(temporal.shape):
            temporal[f, c, t] = g["conv_time.bias"][f] + sample[c, t : t + length] @ g["conv_time.weight"][f, 0, 0]
        spatial = np.einsum("gfc,fct->gt", g["conv_spatial.weight"][..., 0], temporal) + g["conv_spatial.bias"][:, None]
        windows = (steps - pool) // stride + 1
        pooled = np.stack([np.log((spatial[:, w * stride : w * stride + pool] ** 2).mean(1)) for w in range(windows)])
        last = np.zeros((filters, windows - third + 1))
        for f, t in np.ndindex(last.shape):
            value = g["conv_third.bias"][f] + (g["conv_third.weight"][f].T * pooled[t : t + third]).sum()
            value = value if value > 0 else np.exp(value) - 1
            spread = np.sqrt(g["norm.running_var"][f] + 1e-5)
            last[f, t] = (value - g["norm.running_mean"][f]) / spread * g["norm.weight"][f] + g["norm.bias"][f]
        np.testing.assert_allclose(logits, g["head.weight"] @ last.flatten() + g["head.bias"], rtol=1e-5, atol=1e-5)


GEOMETRIES: list[dict[str, int]] = [
    {"filters": 3, **SHORT},
    {"filters": 40, **SHORT},  # 256 // 40 = 6 individuals share a convolution
    {"filters": 300, "filter_length": 3, "pool_length": 30, "pool_stride": 11, "third_length": 1},
    {"filters": 3, "filter_length": 5, "pool_length": 7, "pool_stride": 7, "third_length": 2},
    {"filters": 3, "filter_length": 5, "pool_length": 4, "pool_stride": 9, "third_length": 2},  # gaps between
    {"filters": 3, "filter_length": 5, "pool_length": 60, "pool_stride": 1, "third_length": 1},
    {"filters": 3, "filter_length": 1, "pool_length": 9, "pool_stride": 4, "third_length": 1},
]


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize(("population", "samples"), [(1, 5), (2, 1), (5, 33), (7, 5)])
def test_population_equals_one_by_one(
    geometry: dict[str, int], variant: str, activation: str, population: int, samples: int, batch: bool
) -> None:
    settings = {**geometry, "variant": variant, "activation": activation}
    model, x = network((5, 76), 3, **settings), recordings(samples, 5, 76)
    layout, genomes = individuals(model, population)
    each = [{leaf.name: leaf.view(genomes)[p] for leaf in layout.leaves} for p in range(population)]
    expected = torch.stack([plain(model, genes, x, settings, batch=batch) for genes in each])
    if batch:
        model.norm.running_mean = model.norm.running_var = None
    one_by_one = torch.stack([functional_call(model, genes, (x,)) for genes in each])
    with torch.inference_mode():
        logits = model.forward_population(layout.unflatten(genomes), x)
    assert logits.shape == (population, samples, 3)
    for other in (one_by_one, logits):  # norms of few samples enlarge what processors round in other ways
        torch.testing.assert_close(other, expected, rtol=1e-5, atol=3e-5)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("geometry", [*GEOMETRIES, {"filters": 1, **SHORT}])
@pytest.mark.parametrize(("pairs", "samples"), [(1, 5), (2, 1), (7, 33)])
def test_pairs_equal_one_by_one(
    geometry: dict[str, int], variant: str, activation: str, pairs: int, samples: int
) -> None:
    settings = {**geometry, "variant": variant, "activation": activation}
    model, x = network((5, 76), 3, **settings), recordings(samples, 5, 76)
    layout = Layout(model)
    candidates = RankOne(
        layout.flatten(model), Perturbations(0, pairs, width(layout))(0), steps(layout, layout.deviations(), 0.5)
    )
    genes = layout.unflatten(candidates.materialised(layout))
    expected = torch.stack([plain(model, {k: v[p] for k, v in genes.items()}, x, settings) for p in range(2 * pairs)])
    parameters, factors = candidates.pairs(layout, slice(0, pairs))
    small = {name: parameters[name] for name in parameters if name not in ("conv_time.weight", "conv_spatial.weight")}
    with torch.inference_mode():
        logits = model.forward_rank_one(small, factors, x)
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


def test_the_published_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 channels, 256 samples, 40 filters; whatever goes through a convolution together."""
    for variant in VARIANTS:
        settings = {"variant": variant}
        model, x = network((64, 256), **settings), recordings(3, 64, 256)
        layout, genomes = individuals(model, 2)
        each = [{leaf.name: leaf.view(genomes)[p] for leaf in layout.leaves} for p in range(2)]
        expected = torch.stack([plain(model, genes, x, settings) for genes in each])
        for block in ((256, 16), (1, 1), (4096, 2)):
            monkeypatch.setitem(blocks.BLOCK, "cpu", block)
            logits = model.forward_population(layout.unflatten(genomes), x)
            torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)

            candidates = RankOne(
                layout.flatten(model), Perturbations(0, 3, width(layout))(0), steps(layout, layout.deviations(), 0.5)
            )
            expected_pairs = model.forward_population(layout.unflatten(candidates.materialised(layout)), x)
            logits = model.forward_rank_one(*candidates.pairs(layout, slice(0, 3)), x)
            torch.testing.assert_close(logits, expected_pairs, rtol=1e-5, atol=1e-5)


def test_a_broken_individual_leaves_the_others_alone() -> None:
    for variant in VARIANTS:
        model, x = network((5, 76), filters=4, variant=variant, **SHORT), recordings(5, 5, 76)
        layout, genomes = individuals(model, 3)
        good = model.forward_population(layout.unflatten(genomes), x)
        genomes[1] = torch.nan
        bad = model.forward_population(layout.unflatten(genomes), x)
        assert bool(bad[1].isnan().all())
        assert torch.equal(bad[[0, 2]], good[[0, 2]])


# ------------------------------------------------------------------------------------------------ training
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("geometry", GEOMETRIES[:5])
def test_training_is_that_of_the_plain_network(geometry: dict[str, int], variant: str, activation: str) -> None:
    """Folded in training: the same logits, statistics, and gradients of every parameter."""
    settings = {**geometry, "variant": variant, "activation": activation}
    model, x = network((5, 76), 3, dropout=0.0, **settings), recordings(9, 5, 76)
    copies = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    expected = plain(model, copies, x, settings, batch=True)
    before = model.norm.running_mean.clone(), model.norm.running_var.clone()
    logits = model.train()(x)
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
    weights = recordings(9, 3)
    (logits * weights).sum().backward()
    (expected * weights).sum().backward()
    for name, p in model.named_parameters():
        theirs = copies[name].grad
        assert p.grad is not None, name
        assert theirs is not None, name
        torch.testing.assert_close(p.grad, theirs, rtol=1e-4, atol=1e-4 * max(1.0, theirs.abs().max().item()))
    assert not torch.equal(model.norm.running_mean, before[0])
    assert model.norm.num_batches_tracked.item() == 1
    model.norm.running_mean, model.norm.running_var = before  # eval mode with the statistics of before is plain again
    torch.testing.assert_close(model.eval()(x), plain(model, copies, x, settings), rtol=1e-5, atol=1e-5)


def test_dropout_stands_before_the_last_layer_and_in_training_alone() -> None:
    """With equal statistics in both modes only dropout makes a difference: features are dropped or doubled."""
    model, x = network((5, 76), filters=4, variant="braindecode", **SHORT), recordings(1, 5, 76)
    model.norm.eval()
    model.head = nn.Identity()
    features = model(x)
    model.dropout.train()
    model.training = True
    with seeded_initialisation("dropout"):
        dropped = model(x)
    kept = dropped != 0
    assert 0 < int(kept.sum()) < features.numel()
    torch.testing.assert_close(dropped[kept], 2 * features[kept], rtol=1e-5, atol=1e-5)


# ------------------------------------------------------------------------------------------------ whole runs
def config_of(policy: str = "identity", variant: str = "paper", strategy: str = "fne", **more: Any) -> dict[str, Any]:
    """Return a config of a small network on the synthetic EEG, a node a subject."""
    small = {"population": 8, "parents": 4, "subset_size": 2} if strategy == "fne" else {"lr": 0.05}
    return {
        "name": "run",
        "data": {
            "name": "toy", "problem": "eeg", "subjects": 5, "samples": 200, "channels": 4, "times": 76,
            "validation": 50, "test": 50, "nodes": None, "partition": "subject",
        },
        "model": {"name": "shallow_convnet", "variant": variant, "filters": 3, **SHORT},
        "strategy": {"name": strategy, "rounds": 5, **small},
        "engine": {"threads": 1}, "evaluation": {"batch_norm": policy},
        "watch": {"tensorboard": False, "checkpoint_every": 2}, **more,
    }  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("policy", ["identity", "batch", "server"])
def test_the_saved_model_has_the_accuracy_that_was_reported(
    policy: str, variant: str, tmp_path: Path, accuracy_of_the_saved: Any
) -> None:
    config = config_of(policy, variant)
    summary = train(config, out=tmp_path / "run")
    assert accuracy_of_the_saved(tmp_path / "run", config) == summary["accuracy_test"]
    norm = load_model(tmp_path / "run").norm
    assert isinstance(norm, nn.BatchNorm1d)
    assert torch.equal(norm.running_mean, torch.zeros(3)) == (policy == "identity")  # type: ignore[arg-type]
    assert norm.num_batches_tracked == 0

    train(config, out=tmp_path / "again", stop_after=3)
    assert train(None, resume=tmp_path / "again")["model_sha256"] == summary["model_sha256"]


def test_the_saved_statistics_are_those_of_the_server_s_data(tmp_path: Path) -> None:
    """The variance is the unbiased one, as torch keeps it."""
    for policy in ("batch", "server"):
        config = config_of(policy, "braindecode")
        train(config, out=tmp_path / policy)
        model: Any = load_model(tmp_path / policy)
        x = load_dataset(load_config(config)).validation.x
        with torch.no_grad():
            y = model.conv_spatial(model.conv_time(x[:, None])).squeeze(2).transpose(0, 1).flatten(1)
        torch.testing.assert_close(model.norm.running_mean, y.mean(1), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(model.norm.running_var, y.var(1), rtol=1e-4, atol=1e-4)


def test_methods_with_gradients_ignore_the_policy(tmp_path: Path) -> None:
    digests = {
        train(config_of(policy, strategy="fedavg"), out=tmp_path / policy)["model_sha256"]
        for policy in ("identity", "batch", "server")
    }
    assert len(digests) == 1


@pytest.mark.parametrize("policy", ["batch", "server"])
def test_a_policy_for_what_the_model_does_not_have(policy: str) -> None:
    with pytest.raises(SettingError) as caught:
        build(load_config(config_of(policy, model={"name": "mlp"})))
    assert str(caught.value) == (
        f"evaluation.batch_norm = '{policy}': must be identity: model 'mlp' has no batch normalisation"
    )


@pytest.mark.parametrize("path", ["loop", "vmap", "stacked"])
@pytest.mark.parametrize("tiles", ["node", "joined"])
@pytest.mark.parametrize("policy", ["identity", "batch", "server"])
def test_a_run_is_the_same_on_every_path(policy: str, tiles: str, path: str, first_losses: Any) -> None:
    one, other = (
        first_losses(config_of(policy, evaluation={"batch_norm": policy, **evaluation}))
        for evaluation in ({"path": "loop"}, {"path": path, "tiles": tiles, "chunk": 3, "tile": 7})
    )
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("strategy", ["fedavg", "centralised"])
def test_it_learns_the_synthetic_eeg(strategy: str, variant: str, tmp_path: Path, accuracy_of_the_saved: Any) -> None:
    config = config_of(strategy=strategy, variant=variant)
    config["strategy"] |= {"rounds": 15, "lr": 0.02, "optimizer": "adam", "batch_size": 16}
    summary = train(config, out=tmp_path / "run")
    assert summary["majority_test"] == 0.5
    assert summary["accuracy_test"] >= 0.9
    assert accuracy_of_the_saved(tmp_path / "run", config) == summary["accuracy_test"]
