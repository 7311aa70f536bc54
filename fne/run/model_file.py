"""The model file of a run: tensors of one module, and the settings that build the module again; no code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import safetensors.torch
from pydantic import BaseModel, Field, ValidationError
from safetensors import SafetensorError, safe_open
from torch import nn

from fne.config import registry
from fne.config.settings import check, faults
from fne.core.errors import CheckpointError, FneError
from fne.core.files import verified, write_atomically
from fne.core.randomness import seeded_initialisation
from fne.run.folder import CONFIG, MODEL, read_tree


def save_model(module: nn.Module, made: dict[str, Any], path: Path) -> str:
    """Write a module's state and the description `made` that builds it again; return the file's SHA-256."""
    # Clone tied weights: they are one tensor, which the format refuses; loading both copies fills that tensor again.
    state = {name: value.contiguous().clone() for name, value in module.state_dict().items()}
    data = safetensors.torch.save(state, metadata={"fne": json.dumps(made)})
    write_atomically(path, data)
    return hashlib.sha256(data).hexdigest()


class _Named(BaseModel, strict=True, extra="allow"):
    name: str


class _Made(BaseModel, strict=True):
    """Description in a model file of the module that its tensors belong to."""

    model: _Named
    seed: int
    shape: list[Annotated[int, Field(ge=1)]]
    outputs: Annotated[int, Field(ge=1)]


def load_model(folder: str | Path, *, plugins: Sequence[str | Path] = ()) -> nn.Module:
    """Return the model of a run folder, on the CPU and in eval mode.

    Args:
        folder: folder of a finished run.
        plugins: files to import for a model that is not the toolkit's. No other plugin is imported: plugins are code,
            and a run folder may come from anywhere.

    Raises:
        CheckpointError: the folder holds no finished run's model, or a damaged one.
        FneError: the model is not registered; names the run's plugins.
    """
    path = Path(folder) / MODEL
    if not path.is_file():
        raise CheckpointError(f"{path}: no model there; only a finished run has one (fne train --resume {folder})")
    try:
        verified(path)
        with safe_open(path, framework="pt") as file:
            made = _Made.model_validate_json(file.metadata()["fne"])
        tensors = safetensors.torch.load_file(path)
    except (SafetensorError, TypeError, KeyError, ValueError) as error:
        why = faults(error) if isinstance(error, ValidationError) else error
        raise CheckpointError(f"{path}: not the model of a run ({why}); restore the file or run again") from None
    for plugin in plugins:
        registry.add_plugin(Path(plugin))
    name = made.model.name
    if name not in registry.catalogue("model"):
        raise FneError(_unregistered(path, name))
    build: Callable[..., nn.Module] = registry.load("model", name)
    declared = registry.settings_model(registry.entry("model", name))
    settings, mistakes = check(declared, made.model.model_extra or {}, f"model {name!r}")
    try:
        if mistakes:
            raise ValueError("; ".join(f"{mistake.key}: {mistake.text}" for mistake in mistakes))
        with seeded_initialisation(made.seed, "template"):  # values that are random but not saved are as in the run
            module = build(tuple(made.shape), made.outputs, **settings)
        module.load_state_dict(tensors)
    except Exception as error:
        raise CheckpointError(
            f"{path}: does not fit model {name!r} as it is now ({' '.join(str(error).split())}); load it with the "
            "version of fne and the plugins that it was made with, or run again"
        ) from error
    return module.eval()


def _unregistered(path: Path, name: str) -> str:
    """Return the error text for a model that is not registered here; the text names the run's plugins."""
    config = path.with_name(CONFIG)
    plugins = read_tree(config).get("plugins")
    had = [str(plugin) for plugin in plugins] if isinstance(plugins, list) else []
    return (
        f"{path}: model {name!r} is not registered; {config} names {', '.join(had) or 'no plugin'}. A plugin is code: "
        f"give the files that you trust, fne.load_model({str(path.parent)!r}, plugins={had or ['FILE']})"
    )
