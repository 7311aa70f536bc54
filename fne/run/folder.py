"""Run folders: choice of the folder, settings that a resumed run may change, finished runs, a lock for one process."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fne.config.load import Config, LearningConfig, difference, load_config, without_folders
from fne.config.yaml_text import parse
from fne.core.errors import CheckpointError, FneError, RunError
from fne.core.files import damaged, verified
from fne.run.trust import check_own

CONFIG, SUMMARY, FILES = "config.yaml", "summary.json", "files.json"
MODEL, SOLUTION, FRONT = "model.safetensors", "solution.json", "front.csv"
"""Result files: of a learning run, of a search for a point, of a search for a front."""
MEASURED = "nodes/measured.jsonl"
"""Values that were measured for a problem of the user's own since the last checkpoint."""


def choose(
    config: str | Path | Mapping[str, Any] | Config | None,
    overrides: Sequence[str],
    out: str | Path | None,
    resume: str | Path | None,
    *,
    trust: bool = False,
) -> tuple[Path, Config]:
    """Return the folder of a new or resumed run, and its config.

    Args:
        config, overrides, out, resume, trust: as in `fne.train`.

    Raises:
        FneError: neither a config nor a run to resume is given; `ConfigError` for a config with mistakes.
        CheckpointError: the folder has no run, the settings differ from the run's own (names the differences), or the
            run names code that is not trusted; none of that code was executed.
    """
    if resume is None:
        if config is None:
            raise FneError("train: give a config (a file or a bundled name, see fne list), or resume=FOLDER")
        wanted = _wanted(config, overrides)
        return Path(out) if out is not None else Path("runs") / folder_name(wanted), wanted
    folder = Path(resume)
    if not (folder / CONFIG).is_file():
        raise CheckpointError(f"{folder / CONFIG}: no run to resume there; give the folder of a run")
    own = None if config is None else _wanted(config, overrides)
    if not trust:
        tree = read_tree(folder / CONFIG)
        check_own(folder, tree, None if own is None else own.to_dict())
    stored = load_config(folder / CONFIG, recorded=True)
    wanted = _wanted(stored if config is None else config, overrides)
    changes = [
        change for change in difference(stored, wanted)
        if not change.startswith("watch.") and not _resolved_only(change)
    ]  # fmt: skip
    if changes:
        raise CheckpointError(
            f"cannot resume {folder} with other settings: {'; '.join(changes)}. Resume with the run's own (give no "
            "config), or start a new run; --stop-after ends early without changing the horizon"
        )
    return folder, stored.with_values({f"watch.{k}": v for k, v in wanted.watch.model_dump().items()})


def read_tree(path: Path) -> dict[str, Any]:
    """Return a config file's plain values, without executing code that it names; empty where it cannot be read."""
    try:
        tree, _ = parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return {}
    return tree if isinstance(tree, dict) else {}


def folder_name(config: Config) -> str:
    """Return `NAME-sSEED`, or for a fold of subjects `NAME-sSEED-fFOLD`, so that each fold has its own folder."""
    fold = config.data.settings.get("fold") if isinstance(config, LearningConfig) else None
    return f"{config.name}-s{config.seed}" + (f"-f{fold}" if fold is not None else "")


def _wanted(config: str | Path | Mapping[str, Any] | Config, overrides: Sequence[str]) -> Config:
    if not isinstance(config, Config):
        return load_config(config, overrides)
    return config.with_overrides(overrides) if overrides else config


def _resolved_only(change: str) -> bool:
    """Return whether one side of the difference is `auto` and the other the value to which the run resolved it."""
    key, _, values = change.partition(": ")
    new = values.rpartition(" -> ")[2].strip("'\"")
    return (key in {"engine.device", "engine.threads", "evaluation.path", "evaluation.chunk", "evaluation.tile", "wire"}
            and new in {"auto", "table", "0", "null", "None"})  # fmt: skip


def make_folder(folder: Path, *, numbered: bool) -> Path:
    """Make and return the folder of a new run; `numbered`: append the first free number where the folder exists.

    Raises:
        RunError: the folder cannot be made.
    """
    try:
        if not numbered:
            folder.mkdir(parents=True, exist_ok=True)
            return folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        return _first_free(folder)
    except OSError as error:
        raise RunError(f"cannot make the folder {folder}: {error.strerror or error}; choose another --out") from None


def _first_free(folder: Path) -> Path:
    free, number = folder, 1
    while True:
        try:
            free.mkdir()  # only one of two processes succeeds
            return free
        except FileExistsError:
            number += 1
            free = folder.with_name(f"{folder.name}-{number}")


def check_unused(folder: Path) -> None:
    """Raise `RunError` where the folder, which this process has locked, already holds a run."""
    if (folder / CONFIG).exists():
        raise RunError(f"{folder} holds a run already: --resume {folder} goes on with it, or choose another folder")


def identity_of(config: Config) -> dict[str, Any]:
    """Return the settings that decide a run's bits, by dotted key: all sections except `watch`.

    A setting that is itself a mapping stays whole, since the order of a problem's variables matters, too.
    """
    tree = config.to_dict()
    if isinstance(config, LearningConfig):
        tree["data.partition"] = tree["data"].pop("partition")
    del tree["watch"]
    found: dict[str, Any] = {}
    for section, value in tree.items():
        found |= (
            {f"{section}.{key}": below for key, below in value.items()} if isinstance(value, dict) else {section: value}
        )
    return found


def experiment_of(config: Config) -> str:
    """Return a digest of the settings that runs of one table row share: all except seed, fold, files and machine."""
    tree = without_folders(config)
    if isinstance(config, LearningConfig):
        tree["data"] = {key: value for key, value in tree["data"].items() if key not in {"fold", "path", "download"}}
        tree["evaluation"] = tree["evaluation"]["batch_norm"]
    for key in ("name", "seed", "engine", "watch", "plugins"):
        del tree[key]
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:16]


def finished(folder: Path, target: float | None) -> dict[str, Any] | None:
    """Return the summary of a finished run, `None` for an unfinished one or where a result file is damaged.

    A run that ended at its own `watch.target`, but not yet at `target`, is not finished. Damaged results are made
    again from the last checkpoint.
    """
    try:
        summary = json.loads(verified(folder / SUMMARY))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    if damaged(folder):
        return None
    if not isinstance(summary, dict):
        return None
    ended_at, accuracy = load_config(folder / CONFIG, recorded=True).watch.target, summary.get("accuracy_last")
    if ended_at is None or not isinstance(accuracy, float | int) or accuracy < ended_at:
        return summary  # the run reached its horizon
    return None if target is None or accuracy < target else summary


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder for this process; a second process gets a `RunError`. Without `flock` nothing is locked."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(f"{folder} is being written by another process; wait for it or choose another") from None
        yield
    finally:
        os.close(handle)
