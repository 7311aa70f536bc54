"""Whether a run folder is one's own: what a folder makes this process execute is run unasked only then.

A run folder names code: plugins, a Python function, a program. To go on with a run is to execute the code, and a folder
may come from anywhere. A new run therefore leaves a mark in its folder, a keyed digest of the config and of the code's
files. The key is a secret that lies in the user's own state folder, so that nobody else can make the mark.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import platformdirs

from fne import registry
from fne.config import Config
from fne.errors import CheckpointError
from fne.files import write_atomically
from fne.settings import over_paths

MARK = "own.json"
"""The file in a run folder; a folder whose config names no code has none."""
_KEY = "run_folders.key"


def mark(folder: Path, config: Config, identity: dict[str, Any]) -> None:
    """Write that a run folder is one's own, if its config names code; before the folder has a config.

    Where the state folder cannot be written there is no mark, and to go on needs the user's word.

    Args:
        folder: of the run.
        config: of the run, resolved.
        identity: what decides the run's bits, see `fne.runfolder.identity_of`.
    """
    if not _code(config):
        return
    try:
        key = _secret(make=True)
    except OSError:
        return
    write_atomically(folder / MARK, json.dumps({"mark": _digest(key, config, identity)}).encode())


def check_own(folder: Path, config: Config, identity: dict[str, Any]) -> None:
    """Raise `CheckpointError` where a run folder names code, and no mark tells that it is one's own.

    Args:
        folder: of the run.
        config: in the folder.
        identity: as for `mark`.
    """
    code = _code(config)
    if not code or _is_own(folder, config, identity):
        return
    raise CheckpointError(
        f"{folder}: to go on would run code that its config names, and nothing tells that you began this run here with "
        f"this code: {'; '.join(code)}. Look at the code; if you trust it, give --trust (in Python trust=True), or the "
        "config file of your own that the run was begun with: fne train CONFIG --resume FOLDER"
    )


def _is_own(folder: Path, config: Config, identity: dict[str, Any]) -> bool:
    try:
        told = json.loads((folder / MARK).read_bytes())["mark"]
        key = _secret(make=False)
        return isinstance(told, str) and hmac.compare_digest(told.encode(), _digest(key, config, identity).encode())
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return False


def _code(config: Config) -> list[str]:
    """Return in words what a config makes a run execute beside the toolkit and what is installed."""
    found = [f"plugin {path}" for path in config.plugins]
    for kind, key, value, _ in _called(config):
        found.append(f"{kind}.{key} = {' '.join(value) if isinstance(value, list | tuple) else value}")
    return found


def _called(config: Config) -> Iterator[tuple[str, str, Any, list[str]]]:
    """Yield section, key and value of each setting that is a function or a program, and the files in it."""
    for kind in ("data", "model", "problem", "strategy", "engine"):
        section = getattr(config, kind, None)
        if section is None:
            continue
        model = registry.settings_model(registry.entry(kind, section.name))
        for key, field in model.model_fields.items():
            extra = field.json_schema_extra
            if isinstance(extra, dict) and extra.get("path") in ("call", "program"):
                value, files = section.settings[key], []

                def note(key: str, form: str, text: str, files: list[str] = files) -> str:
                    files.append(text)
                    return text

                over_paths(model, {key: value}, note)
                words = [str(word) for word in value[1:]] if extra["path"] == "program" else []
                yield kind, key, value, files + words


def _digest(key: bytes, config: Config, identity: dict[str, Any]) -> str:
    files = [*config.plugins, *(file for *_, files in _called(config) for file in files)]
    told = {"identity": identity, "files": {file: _sha256(file) for file in files}}
    return hmac.new(key, json.dumps(told, sort_keys=True).encode(), hashlib.sha256).hexdigest()


def _sha256(file: str) -> str:
    """Return the digest of a file, or nothing where there is none: an argument of a program need not be one."""
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest() if os.path.isfile(file) else ""
    except (OSError, ValueError):
        return ""


def _secret(*, make: bool) -> bytes:
    """Return the user's key; to `make` it where there is none."""
    path = Path(platformdirs.user_state_dir("fne", appauthor=False)) / _KEY
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        if not make:
            raise
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = path.with_name(f".{_KEY}.{secrets.token_hex(4)}.tmp")
        write_atomically(fresh, secrets.token_bytes(32), private=True)
        try:
            os.link(fresh, path)  # of two processes one is the first
        except FileExistsError:
            pass
        finally:
            fresh.unlink(missing_ok=True)
        key = path.read_bytes()
    if len(key) != 32:
        raise OSError(f"{path} is damaged")
    return key
