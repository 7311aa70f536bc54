"""Cache of headers and windows of EEG files, by content of the files and by settings.

Entries are in the folder `eeg_files` of the cache folder (`folder()`), which only its owner may read, since they are
patients' data. No entry is ever removed automatically. The folder may be deleted at any time; its entries are then made
anew.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
import time
import warnings
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fne.core.dataset import Finding
from fne.core.errors import DataWarning
from fne.core.files import write_atomically
from fne.data import sources
from fne.data.eeg.recording import Header, Preprocessing, Source, Windows

_VERSION = 6
"""Version of the entries; raise it when the same file and settings would give other headers or windows."""
_ARRAYS = {"y": np.int64, "onset": np.float64, "sketch": np.float32}
"""Field of `Windows` that is stored among the facts of an entry -> its type."""
_GRANULARITY = 2_000_000_000
"""Time in nanoseconds within which a file may change twice and keep its time stamps; FAT has the coarsest ones."""


def folder() -> Path:
    """Return the folder of the cache, which need not exist."""
    return sources.cache_folder() / "eeg_files"


class Cache:
    """Headers and windows that were read before, by content of the files and by settings.

    A damaged entry is ignored. If the folder cannot be written to, one `DataWarning` says so and nothing is stored.

    Args:
        place: folder of the cache; `None`: nothing is stored.
    """

    def __init__(self, place: Path | None) -> None:
        self._place = place
        self._writes = place is not None

    def hash_of(self, paths: Sequence[Path]) -> str:
        """Return the digest of names and contents; neither folders nor known, unchanged files are read.

        Raises:
            OSError: a file cannot be read.
        """
        total = hashlib.blake2b(digest_size=32)
        for path in paths:
            content = "" if path.is_dir() else self._content(path)
            total.update(os.fsencode(path.name) + b"\0" + content.encode() + b"\n")
        return total.hexdigest()

    def header(self, digest: str, source: Source, events: str, make: Callable[[], Header]) -> Header:
        """Return the header for a digest; a header that is not stored is made. Errors of `make` are not stored."""
        key = _key("header", digest, _of(source), events)
        kept = self._read(key)
        if kept is None:
            made = make()
            self._write(key, asdict(made))
            return made
        facts, _ = kept
        lists = {name: tuple(facts[name]) for name in ("channels", "types", "rates")}
        return Header(**facts | lists | {"findings": _findings(facts)})

    def windows(self, digest: str, source: Source, processing: Preprocessing, make: Callable[[], Windows]) -> Windows:
        """Return the windows for a digest; windows that are not stored are made. Errors of `make` are not stored.

        Their `x` is mapped from the disk and occupies a file descriptor, so copy it before opening a thousand more.
        Changes to `x` stay in memory.
        """
        key = _key("windows", digest, _of(source), asdict(processing))
        kept = self._read(key)
        if kept is None:
            made = make()
            facts = {name: getattr(made, name).tolist() for name in _ARRAYS}
            facts["findings"] = [asdict(finding) for finding in made.findings]
            self._write(key, facts, made.x)
            kept = self._read(key)  # mapped from the disk instead of in memory
            if kept is None:
                return made
        facts, x = kept
        assert x is not None
        arrays = {name: np.array(facts[name], kind) for name, kind in _ARRAYS.items()}
        return Windows(x, findings=_findings(facts), **arrays)

    # ------------------------------------------------------------------------------------------------ contents
    def _content(self, path: Path) -> str:
        """Return the digest of one file, which is stored by the file's size and time stamps.

        As in git's index, a stored digest is trusted only if the time stamps are well before the reading: the file may
        have changed just afterwards, within the same tick of the file system's clock.
        """
        key = _key("file", str(path.absolute()))
        now = time.time_ns()
        kept = self._read(key)
        if kept is not None:
            known, stat = kept[0], _stat(path)
            if known["stat"] == stat and max(stat[1:]) + _GRANULARITY < known["seen"]:
                return str(known["digest"])
        with path.open("rb") as file:
            before = _stat(file.fileno())
            digest = hashlib.file_digest(file, "blake2b").hexdigest()
            unchanged = _stat(file.fileno()) == before
        if unchanged:
            self._write(key, {"stat": before, "seen": now, "digest": digest})
        return digest

    # ------------------------------------------------------------------------------------------------ entries
    def _read(self, key: str) -> tuple[dict[str, Any], NDArray[np.float32] | None] | None:
        """Return the facts and the array of an entry, or `None` if the entry is missing or damaged."""
        if self._place is None:
            return None
        try:
            entry = json.loads((self._place / f"{key}.json").read_bytes())
            facts, array = entry["facts"], entry["array"]
            if entry["check"] != _check(_canonical([facts, array])):
                return None
            if array is None:
                return facts, None
            x = np.load(self._place / f"{key}.npy", mmap_mode="c")
            return (facts, x) if [list(x.shape), str(x.dtype), _check(x.data)] == array else None
        except Exception:  # missing or damaged; a damaged entry may raise nearly anything
            return None

    def _write(self, key: str, facts: dict[str, Any], x: NDArray[np.float32] | None = None) -> None:
        """Store an entry: first the array, then the facts with its checksum, which make the entry valid."""
        if self._place is None or not self._writes:
            return
        array = None if x is None else [list(x.shape), str(x.dtype), _check(x.data)]
        entry = {"check": _check(_canonical([facts, array])), "facts": facts, "array": array}
        try:
            self._place.mkdir(mode=0o700, parents=True, exist_ok=True)
            if x is not None:
                write_atomically(self._place / f"{key}.npy", lambda file: np.save(file, x), private=True, flush=False)
            write_atomically(self._place / f"{key}.json", _canonical(entry), private=True, flush=False)
        except OSError as error:
            self._writes = False
            text = f"eeg_files: what was read cannot be kept ({error}), so each start reads the files again"
            warnings.warn(text, DataWarning, stacklevel=4)


def _of(source: Source) -> list[object]:
    """Return the inputs of headers and windows beside contents: the name for messages, the label, and BIDS or not."""
    return [source.name, source.label, "" if source.root is None else importlib.metadata.version("mne-bids")]


def _stat(file: Path | int) -> list[int]:
    """Return size, modification time and change time, both in ns; no user can set the change time."""
    stat = os.stat(file)
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


@functools.cache
def _mne() -> str:
    return importlib.metadata.version("mne")  # without importing it


def _key(*parts: object) -> str:
    everything = [_VERSION, _mne(), *parts]
    return hashlib.blake2b(_canonical(everything), digest_size=20).hexdigest()


def _canonical(value: object) -> bytes:
    """Return the canonical JSON text of plain values, which is the same after a round trip."""
    return json.dumps(value, separators=(",", ":")).encode()


def _check(content: bytes | memoryview) -> int:
    return zlib.crc32(content)


def _findings(facts: dict[str, Any]) -> tuple[Finding, ...]:
    return tuple(Finding(**finding) for finding in facts["findings"])
