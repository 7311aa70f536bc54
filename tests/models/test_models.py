"""Every registered model keeps the contract; those for images and vectors have the parameters and errors they state."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor, nn
from torch.func import functional_call

from fne.config.registry import catalogue, entry, load, settings_model
from fne.core.errors import SettingError
from fne.core.randomness import generator, seeded_initialisation
from fne.models import image_layers as layers

MNIST, CIFAR = (1, 28, 28), (3, 32, 32)
SHAPES = (MNIST, CIFAR, (64, 240), (13,))
"""Tried in turn for a registered model, so that later ones are tested without a line here."""

VARIANTS: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "quadratic": ("logistic", (4, 5), {"features": "quadratic"}),
    "neighbours": ("logistic", (1, 4, 5), {"features": "quadratic", "reach": 1}),
    "regression": ("logistic", (13,), {"output": "linear"}),
    "wide layers": ("mlp", (13,), {"hidden": [40, 33, 7]}),
    "colours": ("cnn", CIFAR, {}),
    "padded, odd sides": ("cnn", (1, 15, 13), {"width": [3, 5], "kernel": 3, "padding": 2, "hidden": 8}),
    "vgg colours": ("vgg", CIFAR, {"blocks": [[8], [16, 16]], "groups": 4}),
    "projections": ("vgg", MNIST, {"blocks": [[8, 8], [16]], "groups": 4, "residual": True}),
    "identities": ("vgg", (8, 9, 12), {"blocks": [[8], [8]], "groups": 2, "residual": True}),
    "eeg, elu": ("shallow_convnet", (3, 170), {"activation": "elu", "filters": 3}),
    "eeg, braindecode": ("shallow_convnet", (3, 128), {"variant": "braindecode", "filters": 6}),
    "eeg, braindecode, elu": ("shallow_convnet", (5, 115), {"variant": "braindecode", "activation": "elu"}),
    "eegnet, odd": ("eegnet", (3, 77), {"filters": 3, "depth": 3, "pointwise": 5, "filter_length": 33}),
}
CASES = [*catalogue("model"), *VARIANTS]


def build(case: str, outputs: int = 10) -> tuple[nn.Module, tuple[int, ...]]:
    """Return a registered model or a variant in eval mode, and the shape of its data."""
    name, shape, settings = VARIANTS.get(case, (case, (), {}))
    with seeded_initialisation("test models", case):
        for candidate in [shape] if shape else SHAPES:
            try:
                return load("model", name)(candidate, outputs, **settings).eval(), candidate
            except SettingError:
                if candidate in (shape, SHAPES[-1]):
                    raise
    raise AssertionError


def individuals(model: nn.Module, population: int) -> dict[str, Tensor]:
    """Return parameters near the model's own as views of one `[P, D]` buffer."""
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    noise = torch.randn(population, len(flat), generator=generator("test population"))
    genes = flat + 0.02 * noise
    views, start = {}, 0
    for name, p in model.named_parameters():
        views[name] = genes[:, start : start + p.numel()].view(population, *p.shape)
        start += p.numel()
    return views


def inputs(shape: tuple[int, ...], samples: int) -> Tensor:
    return torch.rand(samples, *shape, generator=generator("test inputs", samples))


def one_by_one(model: nn.Module, genes: dict[str, Tensor], x: Tensor) -> Tensor:
    count = len(next(iter(genes.values())))
    return torch.stack([functional_call(model, {name: g[p] for name, g in genes.items()}, (x,)) for p in range(count)])


# ------------------------------------------------------------------------------------------------ every model
def test_the_five_are_registered() -> None:
    assert {"cnn", "logistic", "mlp", "shallow_convnet", "vgg"} <= set(catalogue("model"))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("population", "samples"), [(1, 1), (1, 7), (2, 1), (2, 7), (5, 1), (5, 7), (3, 33)])
def test_population_equals_one_by_one(case: str, population: int, samples: int) -> None:
    model, shape = build(case)
    genes, x = individuals(model, population), inputs(shape, samples)
    before = {name: g.clone() for name, g in genes.items()}, x.clone()
    with torch.inference_mode():
        expected = one_by_one(model, genes, x)
        for p in model.parameters():
            p.fill_(torch.nan)  # the genes alone decide, nothing is read from the module's own parameters
        logits = model.forward_population(genes, x)
    assert logits.shape == (population, samples, 10)
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(x, before[1])
    assert all(torch.equal(g, before[0][name]) for name, g in genes.items())


@pytest.mark.parametrize("case", CASES)
def test_forward(case: str) -> None:
    model, shape = build(case, outputs=3)
    assert model.output in ("softmax", "sigmoid", "linear")
    x = inputs(shape, 7)
    logits = model(x)
    assert logits.shape == (7, 3)
    assert logits.dtype == torch.float32
    assert torch.equal(model(x), logits)
    torch.testing.assert_close(model(x[:1]), logits[:1], rtol=1e-5, atol=1e-5)  # samples do not see each other
    logits.square().sum().backward()
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert p.grad.isfinite().all(), name
        assert p.grad.any(), name


@pytest.mark.parametrize("name", catalogue("model"))
def test_pickle(name: str) -> None:
    model, shape = build(name)
    assert type(model).__module__ == entry("model", name).module
    again = pickle.loads(pickle.dumps(model))
    x = inputs(shape, 2)
    assert type(again) is type(model)
    assert torch.equal(again(x), model(x))


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_population_on_a_gpu(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    model, shape = build(case)
    genes, x = individuals(model, 5), inputs(shape, 33)
    with torch.inference_mode():
        expected = model.forward_population(genes, x)
        logits = model.cuda().forward_population({n: g.cuda() for n, g in genes.items()}, x.cuda())
    torch.testing.assert_close(logits.cpu(), expected, rtol=1e-4, atol=1e-4)


# ------------------------------------------------------------------------------------------------ images and vectors
@pytest.mark.parametrize(
    ("name", "shape", "settings", "count"),
    [
        ("logistic", MNIST, {}, 784 * 10 + 10),
        ("logistic", (20, 20), {"features": "quadratic"}, (400 + 400 * 401 // 2) * 10 + 10),
        ("logistic", (1, 20, 20), {"features": "quadratic", "reach": 1}, (400 + 400 + 2 * 380 + 2 * 361) * 10 + 10),
        ("mlp", MNIST, {}, 199_210),  # McMahan et al.
        ("mlp", (13,), {"hidden": [4]}, 13 * 4 + 4 + 4 * 10 + 10),
        ("cnn", MNIST, {}, 46_730),  # (25+1)*16 + (25*16+1)*32 + (32*4*4+1)*64 + (64+1)*10
        ("cnn", MNIST, {"width": [32, 64], "padding": 2, "hidden": 512}, 1_663_370),  # McMahan et al.
        ("cnn", CIFAR, {}, (75 + 1) * 16 + (25 * 16 + 1) * 32 + (32 * 5 * 5 + 1) * 64 + 650),
        # convolutions 896+9,248+18,496+36,928+73,856+147,584, norms 2*448, linear 128*(128*4*4+1) + 1,290
        ("vgg", CIFAR, {}, 551_466),
        ("vgg", CIFAR, {"residual": True}, 551_466 + (3 + 1) * 32 + (32 + 1) * 64 + (64 + 1) * 128),
        ("vgg", MNIST, {}, 551_466 - 2 * 9 * 32 - 128 * 128 * (16 - 9)),
    ],
)
def test_number_of_parameters(name: str, shape: tuple[int, ...], settings: Any, count: int) -> None:
    model = load("model", name)(shape, 10, **settings)
    assert sum(p.numel() for p in model.parameters()) == count
    assert not list(model.buffers())


def test_quadratic_features() -> None:
    model, shape = build("quadratic", outputs=2)
    x = inputs(shape, 3)
    flat = x.numpy().reshape(3, 20).astype(np.float64)
    products = [flat[:, i] * flat[:, j] for i in range(20) for j in range(i, 20)]
    features = np.column_stack([flat, *products])
    weight, bias = (p.detach().numpy() for p in model.parameters())
    np.testing.assert_allclose(model(x).detach().numpy(), features @ weight.T + bias, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("reach", [0, 1, 2])
def test_quadratic_features_of_neighbours(reach: int) -> None:
    """Of an image [1, 4, 5]: pixels at most `reach` rows and columns apart, each pair once."""
    model = load("model", "logistic")((1, 4, 5), 2, features="quadratic", reach=reach)
    x = inputs((1, 4, 5), 3)
    places = [(row, column) for row in range(4) for column in range(5)]
    near = [
        (i, j) for i, a in enumerate(places) for j, b in enumerate(places)
        if i <= j and abs(a[0] - b[0]) <= reach and abs(a[1] - b[1]) <= reach
    ]  # fmt: skip
    flat = x.flatten(1)
    features = torch.cat([flat, torch.stack([flat[:, i] * flat[:, j] for i, j in near], dim=1)], dim=1)
    torch.testing.assert_close(model(x), model.linear(features))


def test_residual_adds_the_input_of_each_block() -> None:
    model, shape = build("identities")
    x = inputs(shape, 2)
    y = x
    for block in model.blocks:
        y = F.relu(F.max_pool2d(y + block.norms[0](block.convolutions[0](y)), 2))
    torch.testing.assert_close(model(x), model.head(F.relu(model.hidden(y.flatten(1)))))


@pytest.mark.parametrize(
    ("name", "shape", "outputs", "settings", "message"),
    [
        (
            "cnn", (13,), 1, {},
            "model.name = 'cnn': must be a model for data of shape [13], such as mlp or logistic; "
            "cnn needs images [channels, height, width]",
        ),
        (
            "vgg", (64, 240), 2, {},
            "model.name = 'vgg': must be a model for data of shape [64, 240], such as mlp or logistic; "
            "vgg needs images [channels, height, width]",
        ),
        (
            "cnn", (1, 28, 12), 10, {},
            "model.kernel = 5: must be smaller for images of 28x12: two convolutions with padding 0, each "
            "followed by 2x2 pooling, leave nothing of them; or raise model.padding",
        ),
        (
            "vgg", (3, 7, 32), 10, {},
            "model.blocks = ((32, 32), (64, 64), (128, 128)): must be at most 2 blocks for images of 7x32: "
            "each halves them",
        ),
        (
            "vgg", CIFAR, 10, {"groups": 12, "blocks": [[24], [32]]},
            "model.groups = 12: must be a divisor of every width in model.blocks, also of 32",
        ),
        (
            "logistic", MNIST, 10, {"reach": 1},
            "model.reach = 1: must be null with features = linear, which multiplies nothing",
        ),
        (
            "logistic", MNIST, 10, {"features": "quadratic"},
            "model.features = 'quadratic': must be 'linear' for 784 inputs: quadratic makes 308,504 features "
            "of them, at most 100,000 are allowed; model.reach takes fewer",
        ),
        *(
            (
                name, MNIST, 1, {},
                "model.output = 'softmax': must be 'linear' or 'sigmoid' for a single output (regression)",
            )
            for name in ("cnn", "logistic", "mlp", "vgg")
        ),
    ],
)  # fmt: skip
def test_impossible_settings(name: str, shape: tuple[int, ...], outputs: int, settings: Any, message: str) -> None:
    with pytest.raises(SettingError) as caught:
        load("model", name)(shape, outputs, **settings)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("cnn", {"width": [16]}),
        ("cnn", {"width": [16, 32, 64]}),
        ("cnn", {"width": [16, 0]}),
        ("cnn", {"padding": -1}),
        ("mlp", {"hidden": []}),
        ("mlp", {"hidden": 200}),
        ("vgg", {"blocks": [[8], []]}),
        ("vgg", {"blocks": [8, 8]}),
        ("logistic", {"output": "relu"}),
    ],
)
def test_settings_out_of_range(name: str, given: Any) -> None:
    with pytest.raises(ValidationError):
        settings_model(entry("model", name))(**given)


# ------------------------------------------------------------------------------------------------ layers
P, N, C, O = 3, 4, 2, 5  # noqa: E741


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator("test layers", *shape))


def fold(x: Tensor) -> Tensor:
    """`[P, N, C, H, W]` -> `[N, P*C, H, W]`."""
    return x.transpose(0, 1).flatten(1, 2)


@pytest.mark.parametrize("outputs", [1, layers.NARROW - 1, layers.NARROW])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("biased", [True, False])
def test_linear(outputs: int, shared: bool, biased: bool) -> None:
    x = normal(N, 6) if shared else normal(P, N, 6)
    weight, bias = normal(P, outputs, 6), normal(P, outputs) if biased else None
    expected = torch.stack(
        [F.linear(x if shared else x[p], weight[p], None if bias is None else bias[p]) for p in range(P)]
    )
    torch.testing.assert_close(layers.linear(x, weight, bias), expected)


@pytest.mark.parametrize("channels", [1, C])
@pytest.mark.parametrize("form", ["images", "shared", "folded"])
@pytest.mark.parametrize(("kernel", "padding", "stride"), [((3, 3), 0, 1), ((3, 2), 1, 2), ((1, 1), 0, 1)])
@pytest.mark.parametrize("biased", [True, False])
def test_conv2d(channels: int, form: str, kernel: tuple[int, int], padding: int, stride: int, biased: bool) -> None:
    own = normal(P, N, channels, 6, 7) if form == "folded" else normal(N, channels, 6, 7).expand(P, -1, -1, -1, -1)
    x = {"images": lambda: layers.Images(own[0]), "shared": lambda: own[0], "folded": lambda: fold(own)}[form]()
    weight, bias = normal(P, O, channels, *kernel), normal(P, O) if biased else None
    expected = torch.stack(
        [
            F.conv2d(own[p], weight[p], None if bias is None else bias[p], stride=stride, padding=padding)
            for p in range(P)
        ]
    )
    for _ in range(2):  # the second time from the columns that are kept
        result = layers.conv2d(x, weight, bias, padding=padding, stride=stride)
        torch.testing.assert_close(result, fold(expected), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("height", "width"), [(2, 2), (6, 7), (5, 4)])
def test_max_pool2d(height: int, width: int) -> None:
    x = normal(N, P * C, height, width)
    x[0, 0, 0, 0] = torch.nan
    assert torch.equal(layers.max_pool2d(x).nan_to_num(9), F.max_pool2d(x, 2).nan_to_num(9))


def test_group_norm_and_rows() -> None:
    x, weight, bias = normal(P, N, 6, 2, 3), normal(P, 6), normal(P, 6)
    expected = torch.stack([F.group_norm(x[p], 2, weight[p], bias[p]) for p in range(P)])
    torch.testing.assert_close(layers.group_norm(fold(x), weight, bias, groups=2), fold(expected))
    assert torch.equal(layers.rows(fold(x), P), x.flatten(2))
    assert torch.equal(layers.Images(x[0]).folded(P), fold(x[:1].expand(P, -1, -1, -1, -1)))


@pytest.mark.parametrize("case", ["cnn", "colours", "vgg", "projections", "identities"])
def test_whole_population_in_one_block(case: str) -> None:
    """The form that a GPU takes: grouped convolutions over the folded population."""
    model, shape = build(case)
    genes, x = individuals(model, P), inputs(shape, N)
    with torch.inference_mode():
        whole = model._block(genes, layers.Images(x))
        torch.testing.assert_close(whole, one_by_one(model, genes, x), rtol=1e-5, atol=1e-5)
