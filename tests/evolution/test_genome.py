"""Module <-> genome: which tensors are genes, where they lie, which of them form a kernel."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fne.core.errors import SettingError
from fne.core.randomness import generator
from fne.evolution.genome import Layout, buffers_of, fill_buffers


class Tied(nn.Module):
    """An encoder and a decoder that share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(3, 3)
        self.decoder = nn.Linear(3, 3, bias=False)
        self.decoder.weight = self.encoder.weight

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.decoder(self.encoder(x))
        return y


class Odd(nn.Module):
    """A 0-dim parameter, a non-float buffer, a buffer that is not saved, a module without parameters."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(2.0))
        self.body = nn.Sequential(nn.Linear(2, 3), nn.Tanh())
        self.register_buffer("steps", torch.tensor(7))
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("cache", torch.zeros(2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.gain * self.body(x)
        return y


def frozen() -> nn.Module:
    """Return two linear layers, the first of them frozen."""
    module = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    module[0].requires_grad_(False)
    return module


MODULES: list[tuple[Callable[[], nn.Module], int, int, list[str]]] = [
    (lambda: nn.Linear(4, 3), 15, 3, ["weight", "bias"]),
    (lambda: nn.Linear(1, 1, bias=False), 1, 1, ["weight"]),  # D = 1
    (Tied, 12, 3, ["encoder.weight", "encoder.bias"]),
    (frozen, 8, 2, ["1.weight", "1.bias"]),
    (Odd, 10, 4, ["gain", "body.0.weight", "body.0.bias"]),
    (lambda: nn.Conv2d(2, 5, 3), 95, 5, ["weight", "bias"]),
    (lambda: nn.ConvTranspose2d(2, 5, 3), 95, 5, ["weight", "bias"]),
    (lambda: nn.BatchNorm2d(6), 12, 6, ["weight", "bias"]),
    (lambda: nn.Conv1d(4, 6, 3, groups=2), 42, 6, ["weight", "bias"]),
]


@pytest.mark.parametrize(("make", "genes", "kernels", "names"), MODULES)
def test_genes_kernels_and_names(make: Callable[[], nn.Module], genes: int, kernels: int, names: list[str]) -> None:
    layout = Layout(make())
    assert layout.size == genes
    assert layout.kernels == kernels
    assert [leaf.name for leaf in layout.leaves] == names
    assert [leaf.start for leaf in layout.leaves[1:]] == [leaf.stop for leaf in layout.leaves[:-1]]


@pytest.mark.parametrize(("make", "genes", "kernels", "names"), MODULES)
def test_flatten_is_torchs_own_order_and_fill_undoes_it(
    make: Callable[[], nn.Module], genes: int, kernels: int, names: list[str]
) -> None:
    source, target = make(), make()
    layout = Layout(source)
    trainable = [p for p in source.parameters() if p.requires_grad]
    flat = layout.flatten(source)
    assert torch.equal(flat, torch.cat([p.detach().flatten() for p in trainable]))
    layout.fill(target, flat)
    assert torch.equal(layout.flatten(target), flat)
    wanted = {name: dict(source.named_parameters())[name] for name in names}
    assert all(torch.equal(dict(target.named_parameters())[name], p) for name, p in wanted.items())


def test_fill_leaves_frozen_parameters_alone() -> None:
    module = frozen()
    before = module[0].weight.clone()
    Layout(module).fill(module, torch.full((8,), 9.0))
    assert torch.equal(module[0].weight, before)
    assert torch.equal(module[1].weight, torch.full((2, 3), 9.0))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_unflatten_gives_views_of_the_same_memory(count: int) -> None:
    layout = Layout(Odd())
    population = torch.arange(count * layout.size, dtype=torch.float32).view(count, layout.size)
    views = layout.unflatten(population)
    assert {name: tuple(v.shape) for name, v in views.items()} == {
        "gain": (count,), "body.0.weight": (count, 3, 2), "body.0.bias": (count, 3)
    }  # fmt: skip
    assert torch.equal(views["body.0.weight"][-1].flatten(), population[-1, 1:7])
    views["gain"].fill_(-1.0)
    assert torch.equal(population[:, 0], torch.full((count,), -1.0))


def test_a_kernel_of_a_transposed_convolution_is_its_output_channel() -> None:
    module = nn.ConvTranspose2d(2, 5, 3)
    layout = Layout(module)
    weight, bias = layout.leaves
    assert (weight.axis, weight.kernels, bias.kernels) == (1, 5, 5)
    assert weight.group == bias.group
    kernel = weight.kernel_view(layout.flatten(module).unsqueeze(0))[0, 3]
    assert torch.equal(kernel, module.weight.detach()[:, 3])


@pytest.mark.parametrize("make", [nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_grouped_transposed_convolution_does_not_tie_input_channels_to_output_biases(
    make: Callable[..., nn.Module], wrapped: bool
) -> None:
    """With in == out the counts agree, yet a slice `weight[i]` [out / groups, ...] belongs to an input channel."""
    for groups, shared in ((1, True), (2, False)):
        module = make(4, 4, 3, groups=groups)
        layout = Layout(nn.Sequential(module) if wrapped else module)
        weight, bias = layout.leaves
        assert (weight.kernels, bias.kernels) == (4, 4)
        assert (weight.group == bias.group) is shared
        assert layout.kernels == (4 if shared else 8)
        kernel = weight.kernel_view(layout.flatten(nn.Sequential(module) if wrapped else module).unsqueeze(0))[0, 3]
        own = module.get_parameter("weight").detach()
        assert torch.equal(kernel, own[:, 3] if shared else own[3])


def test_weight_and_bias_of_a_layer_share_a_group_and_layers_do_not() -> None:
    layout = Layout(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4)))
    first, first_bias, second, second_bias = (leaf.group for leaf in layout.leaves)
    assert first == first_bias != second == second_bias
    assert layout.group_kernels == {first: 4, second: 4}


def test_scales_are_the_layers_initial_spread() -> None:
    module = nn.Sequential(nn.Linear(40, 30), nn.LayerNorm(30), nn.Linear(30, 1))
    nn.init.zeros_(module[0].bias)
    scales = Layout(module).scales()
    spread = module[0].weight.std().item()
    assert scales.shape == (40 * 30 + 30 + 60 + 31,)
    assert torch.allclose(scales[:1230], torch.tensor(spread))  # zeros borrow the weight's
    assert torch.equal(scales[1230:1290], torch.full((60,), 0.1))  # nothing to borrow from
    assert torch.allclose(scales[-1], module[2].weight.std())
    assert bool((scales > 0).all())


def test_modules_without_real_trainable_parameters_are_refused() -> None:
    with pytest.raises(SettingError, match=r"model\.name = 'Tanh'.*trainable parameters"):
        Layout(nn.Tanh())
    with pytest.raises(SettingError, match="trainable"):
        Layout(nn.Linear(2, 2).requires_grad_(False))
    with pytest.raises(SettingError, match="complex"):
        Layout(nn.Linear(2, 2, dtype=torch.complex64))


def test_signature_tells_models_apart_by_names_and_shapes() -> None:
    assert Layout(nn.Linear(2, 3)).signature == Layout(nn.Linear(2, 3)).signature
    others = [nn.Linear(3, 2), nn.Linear(2, 3, bias=False), nn.Sequential(nn.Linear(2, 3))]
    signatures = {Layout(m).signature for m in [nn.Linear(2, 3), *others]}
    assert len(signatures) == 4


# ------------------------------------------------------------------------------------------------ buffers
def test_buffers_keep_their_types_and_are_copies() -> None:
    module = Odd()
    buffers = buffers_of(module)
    assert {n: b.dtype for n, b in buffers.items()} == {"steps": torch.int64, "mask": torch.bool}
    buffers["steps"].fill_(9)
    assert module.steps.item() == 7
    fill_buffers(module, {"steps": torch.tensor(9.0)})
    assert (module.steps.item(), module.steps.dtype) == (9, torch.int64)


def test_batchnorm_statistics_are_buffers_and_identity_in_eval() -> None:
    norm = nn.BatchNorm2d(3).eval()
    assert set(buffers_of(norm)) == {"running_mean", "running_var", "num_batches_tracked"}
    x = torch.randn(2, 3, 4, 4, generator=generator("identity"))
    gain, shift = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([0.0, 3.0, -1.0])
    Layout(norm).fill(norm, torch.cat([gain, shift]))
    wanted = x * gain.view(3, 1, 1) / (1 + norm.eps) ** 0.5 + shift.view(3, 1, 1)
    assert torch.allclose(norm(x), wanted, atol=1e-6)
