"""What was read from EEG files once: their headers, their windows, and the content each had when last looked at.

All lies in the folder `eeg_files` of the cache folder (`folder()`), for its owner only, since these are patients' data.
Nothing in there is ever removed by itself: delete the folder whenever you like, what is needed is made anew.
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

from fne.core.errors import DataWarning
from fne.core.files import write_atomically
from fne.core.findings import Finding
from fne.data import sources
from fne.data.eeg.recording import Header, Preprocessing, Source, Windows

_VERSION = 6
"""Of what is kept; to be raised when the same file and settings would give other headers or windows."""
_ARRAYS = {"y": np.int64, "onset": np.float64, "sketch": np.float32}
_GRANULARITY = 2_000_000_000
"""Nanoseconds within which a file may change twice and keep its times: those of FAT are the coarsest."""


def folder() -> Path:
    """Return where everything is kept; it need not exist."""
    return sources.cache_folder() / "eeg_files"


class Cache:
    """Headers and windows that were made before, by content of the files and by settings.

    A damaged entry counts as none. Where nothing can be written, one `DataWarning` says so and everything is made anew.

    Args:
        place: its folder; `None`: nothing is kept.
    """

    def __init__(self, place: Path | None) -> None:
        self._place = place
        self._writes = place is not None

    def hash_of(self, paths: Sequence[Path]) -> str:
        """Return the digest of names and contents; a file that is known and unchanged is not read, nor is a folder.

        Raises:
            OSError: a file cannot be read.
        """
        total = hashlib.blake2b(digest_size=32)
        for path in paths:
            content = "" if path.is_dir() else self._content(path)
            total.update(os.fsencode(path.name) + b"\0" + content.encode() + b"\n")
        return total.hexdigest()

    def header(self, digest: str, source: Source, events: str, make: Callable[[], Header]) -> Header:
        """Return the header of the files with this digest, made if it is not there; errors of `make` are not kept."""
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
        """Return the windows of the files with this digest, made if they are not there.

        Their `x` is mapped from the disk (and holds a file descriptor, so copy it before opening a thousand more);
        changes to it stay in memory. Errors of `make` are not kept.
        """
        key = _key("windows", digest, _of(source), asdict(processing))
        kept = self._read(key)
        if kept is None:
            made = make()
            facts = {name: getattr(made, name).tolist() for name in _ARRAYS}
            facts["findings"] = [asdict(finding) for finding in made.findings]
            self._write(key, facts, made.x)
            kept = self._read(key)  # in place of what is in memory
            if kept is None:
                return made
        facts, x = kept
        assert x is not None
        arrays = {name: np.array(facts[name], kind) for name, kind in _ARRAYS.items()}
        return Windows(x, findings=_findings(facts), **arrays)

    # ------------------------------------------------------------------------------------------------ contents
    def _content(self, path: Path) -> str:
        """Return the digest of one file, remembered by its size and times.

        As in git's index, that is trusted only if the file's times lie well before it was read: a file may change
        just after, within the same tick of the clock of its file system.
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
        """Return an entry's facts and array, or `None` where there is none that is whole."""
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
        except Exception:  # not there, or damaged, which may raise nearly anything
            return None

    def _write(self, key: str, facts: dict[str, Any], x: NDArray[np.float32] | None = None) -> None:
        """Keep an entry: the array first, since the facts, with its checksum, make the entry count."""
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
    """Return what headers and windows depend on beside contents: a label, a name that messages hold, BIDS or not."""
    return [source.name, source.label, "" if source.root is None else importlib.metadata.version("mne-bids")]


def _stat(file: Path | int) -> list[int]:
    """Return the size and the times in ns of the last changes of content and of attributes; nobody can set these."""
    stat = os.stat(file)
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


@functools.cache
def _mne() -> str:
    return importlib.metadata.version("mne")  # without importing it


def _key(*parts: object) -> str:
    everything = [_VERSION, _mne(), *parts]
    return hashlib.blake2b(_canonical(everything), digest_size=20).hexdigest()


def _canonical(value: object) -> bytes:
    """Return the JSON text of plain values, the same for what was read from it."""
    return json.dumps(value, separators=(",", ":")).encode()


def _check(content: bytes | memoryview) -> int:
    return zlib.crc32(content)


def _findings(facts: dict[str, Any]) -> tuple[Finding, ...]:
    return tuple(Finding(**finding) for finding in facts["findings"])
