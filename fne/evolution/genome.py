"""Layout of a torch module's genome: the place of each parameter in `[D]`, and the genes of each kernel.

A kernel is the unit that kernelwise crossover copies whole: one output filter of a convolution with its bias, one
output neuron's incoming weights with its bias, or one channel of a normalisation layer. Buffers and frozen parameters
are not genes; tied weights are one leaf.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fne.core.errors import SettingError

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass(frozen=True)
class Leaf:
    """One parameter tensor in the genome.

    Args:
        name: dotted name in the module.
        shape: shape of the parameter.
        start, stop: range of its genes.
        axis: the axis of `shape` along which kernels lie (-1 for a scalar, which is one kernel).
        group: leaves of one group share kernels (weight and bias of a layer).
        scale: standard deviation of its initial values, the unit of additive mutation.
    """

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int
    axis: int
    group: int
    scale: float

    @property
    def kernels(self) -> int:
        """Number of kernels."""
        return self.shape[self.axis] if self.axis >= 0 else 1

    def view(self, population: Tensor) -> Tensor:
        """Return this leaf's genes of `[P, D]` as a view `[P, *shape]` of the same memory."""
        return population[:, self.start : self.stop].view(population.shape[0], *self.shape)

    def kernel_view(self, population: Tensor) -> Tensor:
        """Return a view `[P, kernels, ...]` with the kernel axis first."""
        view = self.view(population)
        if self.axis < 0:
            return view.unsqueeze(1)
        return view.movedim(1 + self.axis, 1)


class Layout:
    """The genome of a module: `D` genes in leaves, in the order of `named_parameters()`.

    Raises `SettingError` for a module without trainable parameters or with complex ones.
    """

    def __init__(self, module: nn.Module) -> None:
        leaves: list[Leaf] = []
        groups: dict[tuple[str, int], int] = {}
        start = 0
        for name, parameter in module.named_parameters():
            if not parameter.requires_grad:
                continue
            if parameter.is_complex():
                raise SettingError("model.name", name, "a model with real parameters (this one is complex)")
            owner_name, _, _ = name.rpartition(".")
            axis = 0 if parameter.ndim else -1
            owner = module.get_submodule(owner_name)
            shared = owner_name
            if isinstance(owner, _TRANSPOSED) and parameter.ndim > 1:
                # transposed convolutions store [in, out / groups, ...]: with groups, a slice is an input channel's
                axis, shared = (1, owner_name) if owner.groups == 1 else (0, name)
            kernels = parameter.shape[axis] if axis >= 0 else 1
            group = groups.setdefault((shared, kernels), len(groups))
            stop = start + parameter.numel()
            scale = _initial_scale(parameter, owner)
            leaves.append(Leaf(name, tuple(parameter.shape), start, stop, axis, group, scale))
            start = stop
        if not leaves:
            raise SettingError("model.name", type(module).__name__, "a model with trainable parameters")
        self.leaves = tuple(leaves)
        self.size = start
        self.groups = len(groups)
        self.group_kernels = {leaf.group: leaf.kernels for leaf in leaves}

    @property
    def kernels(self) -> int:
        """Number of kernels of the whole genome."""
        return sum(self.group_kernels.values())

    @property
    def signature(self) -> str:
        """Digest of names and shapes, by which a checkpoint is matched to this model."""
        text = ";".join(f"{leaf.name}{leaf.shape}" for leaf in self.leaves)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def flatten(self, module: nn.Module) -> Tensor:
        """Return the module's genes, float32 `[D]` on the CPU."""
        parameters = dict(module.named_parameters())
        return torch.cat([parameters[leaf.name].detach().reshape(-1).float().cpu() for leaf in self.leaves])

    def unflatten(self, population: Tensor) -> dict[str, Tensor]:
        """Return views `[P, *shape]` of a population `[P, D]` by parameter name."""
        return {leaf.name: leaf.view(population) for leaf in self.leaves}

    def fill(self, module: nn.Module, genes: Tensor) -> None:
        """Copy genes `[D]` into the module's parameters, in place."""
        parameters = dict(module.named_parameters())
        with torch.no_grad():
            for leaf in self.leaves:
                parameters[leaf.name].copy_(genes[leaf.start : leaf.stop].view(leaf.shape))

    def deviations(self) -> Tensor:
        """Return each leaf's initial standard deviation, float32 `[leaves]`; its last bits depend on the processor."""
        return torch.tensor([leaf.scale for leaf in self.leaves])

    def scales(self, deviations: Tensor | None = None) -> Tensor:
        """Return each gene's standard deviation `[D]`: the initial one, or its leaf's of `deviations [leaves]`."""
        sizes = torch.tensor([leaf.stop - leaf.start for leaf in self.leaves])
        return (self.deviations() if deviations is None else deviations).repeat_interleave(sizes)


def buffers_of(module: nn.Module) -> dict[str, Tensor]:
    """Return copies of the module's persistent buffers on the CPU, by name."""
    persistent = module.state_dict().keys()
    return {name: b.detach().cpu().clone() for name, b in module.named_buffers() if name in persistent}


def refuse_buffers(buffers: Mapping[str, Tensor]) -> None:
    """Raise `SettingError` for a model with buffers; methods that noise their updates do not noise buffers."""
    for name in buffers:
        allowed = "one without batch normalisation, such as cnn, vgg, mlp or logistic: buffers are not noised"
        raise SettingError("model.name", f"(with the buffer {name})", allowed)


def fill_buffers(module: nn.Module, buffers: Mapping[str, Tensor]) -> None:
    """Copy buffers into the module in place; each buffer keeps its type."""
    own = dict(module.named_buffers())
    with torch.no_grad():
        for name, value in buffers.items():
            own[name].copy_(value)


def _initial_scale(parameter: Tensor, owner: nn.Module) -> float:
    """Return the spread of the initial values; constants (norm gains, zero biases) take their layer's, else 0.1."""
    candidates = [parameter, *sorted(owner.parameters(recurse=False), key=Tensor.numel, reverse=True)]
    for values in candidates:
        if values.numel() > 1:
            spread = float(values.detach().float().std())
            if spread > 0:
                return spread
    return 0.1
