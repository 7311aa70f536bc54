"""Ownership marks of run folders: code that a folder names is executed without asking only in the user's own folders.

A run folder names code: plugins, a Python function, a program. Resuming a run executes that code, and a folder may come
from anywhere. A run that names code therefore leaves a mark in its folder: the names, the digests of the files, and a
keyed digest of both. The key is a secret in the user's own state folder, so nobody else can make the mark. The check
executes no code of a folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import platformdirs

from fne.config import registry
from fne.core.errors import CheckpointError, FneError
from fne.core.files import write_atomically

MARK = "own.json"
"""Name of the mark's file in a run folder; a folder whose config names no code has no mark."""
_KEY = "run_folders.key"
_SECTIONS = ("data", "model", "problem", "strategy", "engine")


def mark(folder: Path, tree: Mapping[str, Any]) -> None:
    """Mark a run folder as the user's own, if its config names code.

    Where the state folder cannot be written no mark is made, and resuming needs the user's consent.

    Args:
        folder: the run folder.
        tree: the run's config as plain values.
    """
    code = code_of(tree)
    if not code:
        return
    with contextlib.suppress(OSError):
        content = {"code": code, "files": _digests(code)}
        write_atomically(folder / MARK, json.dumps(content | {"mark": _keyed(_secret(make=True), content)}).encode())


def check_own(folder: Path, tree: Mapping[str, Any], given: Mapping[str, Any] | None = None) -> None:
    """Refuse to resume a run folder that names code, unless this user began the run here with the same code.

    Args:
        folder: the run folder.
        tree: the run's config as plain values; no code of it was executed.
        given: a config of the user's own; code that it names, with the same content, is trusted.

    Raises:
        CheckpointError: nothing proves that the folder is the user's own, or a file of its code has changed since.
    """
    code = code_of(tree)
    if not code or (given is not None and _same(code, code_of(given))):
        return
    told = _marked(folder)
    if told is None or told["code"] != code:
        raise CheckpointError(
            f"{folder}: to go on would run code that its config names, and nothing tells that you began this run on "
            f"this machine: {'; '.join(' '.join(words) for words in code)}. Look at the code; if you trust it, "
            "give --trust (in Python trust=True), or your own config with the same code: fne train CONFIG --resume "
            f"{folder}"
        )
    now = _digests(code)
    changed = [file for file, digest in told["files"].items() if now.get(file) != digest]
    if changed:
        raise CheckpointError(
            f"{folder}: {' and '.join(changed)} changed since the run was begun, and it would go on with other code; "
            "put the file back, or start a new run"
        )


def code_of(tree: Mapping[str, Any]) -> list[list[str]]:
    """Return the code that a config adds to the toolkit and the installed packages: a setting's key and its words each.

    Args:
        tree: plain values. Only settings of the toolkit's own are looked at: a plugin's settings go with the plugin.
    """
    plugins = tree.get("plugins")
    found = [["plugins", str(path)] for path in plugins] if isinstance(plugins, list | tuple) else []
    for kind in _SECTIONS:
        section = tree.get(kind)
        if not isinstance(section, Mapping) or not isinstance(section.get("name"), str):
            continue
        try:
            fields = registry.settings_model(registry.entry(kind, section["name"])).model_fields
        except FneError:  # a plugin's
            continue
        for key, field in fields.items():
            extra = field.json_schema_extra
            if isinstance(extra, dict) and extra.get("path") in ("call", "program") and key in section:
                value = section[key]
                words = [str(word) for word in value] if isinstance(value, list | tuple) else [str(value)]
                found.append([f"{kind}.{key}", *words])
    return found


def _same(code: list[list[str]], given: list[list[str]]) -> bool:
    """Return whether all of the code is among the given code, compared by content where it is a file."""

    def content(words: list[str]) -> tuple[str, ...]:
        kind, *rest = words
        return kind, *(_sha256(word.rpartition(":")[0] or word) or _sha256(word) or word for word in rest)

    known = {content(words) for words in given}
    return all(content(words) in known for words in code)


def _marked(folder: Path) -> dict[str, Any] | None:
    """Return the content of the folder's mark, `None` where the mark is missing or not this user's."""
    try:
        told = json.loads((folder / MARK).read_bytes())
        own = {"code": told["code"], "files": dict(told["files"])}
        right = hmac.compare_digest(str(told["mark"]).encode(), _keyed(_secret(make=False), own).encode())
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return own if right else None


def _keyed(key: bytes, told: Mapping[str, Any]) -> str:
    return hmac.new(key, json.dumps(told, sort_keys=True).encode(), hashlib.sha256).hexdigest()


def _digests(code: list[list[str]]) -> dict[str, str]:
    """Return the digest of each file among the words: plugins, functions' files, programs and their arguments."""
    words = [word for _, *rest in code for word in rest]
    files = {file for word in words for file in (word, word.rpartition(":")[0]) if file}
    return {file: digest for file in sorted(files) if (digest := _sha256(file))}


def _sha256(file: str) -> str:
    """Return the digest of a file, or an empty text for a word that is no file, such as a program's argument."""
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest() if os.path.isfile(file) else ""
    except (OSError, ValueError):
        return ""


def _secret(*, make: bool) -> bytes:
    """Return the user's key; with `make`, make a key where none exists."""
    path = Path(platformdirs.user_state_dir("fne", appauthor=False)) / _KEY
    if make and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = path.with_name(f".{_KEY}.{secrets.token_hex(4)}.tmp")
        write_atomically(fresh, secrets.token_bytes(32), private=True)
        with contextlib.suppress(FileExistsError):
            os.link(fresh, path)  # only one of two processes succeeds
        fresh.unlink(missing_ok=True)
    key = path.read_bytes()
    if len(key) != 32:
        raise OSError(f"{path} is damaged")
    return key
