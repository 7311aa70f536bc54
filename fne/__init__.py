"""Federated neuroevolution: train models over data that stays with its owners, without gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"
__all__ = ["Key", "Optimizer", "__version__", "load_model", "register", "train"]

if TYPE_CHECKING:
    from fne.config.registry import Key, register
    from fne.optimizer import Optimizer
    from fne.run.train import load_model, train


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import fne` and the command's `--help` do not import torch (2 s)."""
    if name in {"train", "load_model"}:
        from fne.run import train as training

        return getattr(training, name)
    if name == "Optimizer":
        from fne.optimizer import Optimizer

        return Optimizer
    if name in {"register", "Key"}:
        from fne.config import registry

        return getattr(registry, name)
    raise AttributeError(f"module 'fne' has no attribute {name!r}")
