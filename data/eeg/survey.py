"""All files of a folder, read and checked one after the other: what each gives, and what was found in it."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from fne.core.dataset import FileError, FileReport, Finding
from fne.core.errors import DataError
from fne.data.eeg.cache import Store
from fne.data.eeg.contract import Contract, agree
from fne.data.eeg.faults import explain
from fne.data.eeg.layout import companions, listed
from fne.data.eeg.leaks import sketch
from fne.data.eeg.open import open_recording
from fne.data.eeg.recording import Header, Processing, Source, Windows
from fne.data.eeg.signal import prepare
from fne.data.eeg.split import Recorded


@dataclass(frozen=True)
class Survey:
    """What the files of a folder give.

    Args:
        files: those that can be used, in order.
        reports: of all.
        contract: what they agree on; `None` where no file can be opened.
        events: how often each event occurs in all of them.
    """

    files: tuple[Recorded, ...]
    reports: tuple[FileReport, ...]
    contract: Contract | None
    events: Mapping[str, int]


def survey(
    sources: Sequence[Source],
    wanted: Processing,
    *,
    channels: str | Sequence[str],
    types: Sequence[str],
    resample: float | None,
    scale: float | Mapping[str, float],
    store: Store,
) -> Survey:
    """Read all files: their headers first, then what these agree on. One recording at a time is in memory.

    Args:
        sources: the files.
        wanted: what is done to each, but for channels, rate and scale.
        channels, types, resample: see `agree`.
        scale: for all files, or by pattern of their names, the first that fits.
        store: what was read before.

    Raises:
        DataError: channels that no file has.
    """
    found: dict[str, list[Finding]] = {source.name: [] for source in sources}
    digests: dict[str, str] = {}
    headers: dict[str, Header] = {}
    listing = functools.cache(listed)  # each folder once
    for source in _with_progress(sources, "looking at EEG files"):
        with _told(source, found):
            digests[source.name] = store.hash_of(companions(source, listing))
            make = functools.partial(_header, source, wanted.events)
            header = store.header(digests[source.name], source, wanted.events, make)
            headers[source.name] = header
            found[source.name] += header.findings

    def reports(files: Mapping[str, Recorded]) -> tuple[FileReport, ...]:
        chosen = () if contract is None else contract.channels
        return tuple(
            _report(s, headers.get(s.name), chosen, files.get(s.name), found[s.name], wanted.classes) for s in sources
        )

    contract: Contract | None = None
    try:
        contract = agree(headers, channels, types, resample) if headers else None
    except DataError as error:
        error.files = reports({})
        raise
    files: dict[str, Recorded] = {}
    for source in _with_progress([s for s in sources if s.name in headers], "reading EEG files"):
        assert contract is not None
        found[source.name] += contract.findings[source.name]
        if any(finding.action == "refused" for finding in contract.findings[source.name]):
            continue
        factor = scale if isinstance(scale, float | int) else _factor(source, scale)
        own = replace(wanted, channels=contract.channels, rate=contract.rate, scale=float(factor))
        with _told(source, found):
            read = functools.partial(_windows, source, own)
            windows = store.windows(digests[source.name], source, own, read)
            found[source.name] += windows.findings
            files[source.name] = _recorded(source, windows, own.times / own.rate)
    events = sum((Counter(header.events) for header in headers.values()), Counter[str]())
    return Survey(tuple(files.values()), reports(files), contract, events)


def _report(
    source: Source,
    about: Header | None,
    chosen: Sequence[str],
    file: Recorded | None,
    findings: Sequence[Finding],
    classes: Sequence[str],
) -> FileReport:
    """Return what is known of one file, of which the header or the windows could perhaps not be had.

    Its rate is that of the `chosen` channels.
    """
    counts = {} if file is None else {name: int((file.y == label).sum()) for label, name in enumerate(classes)}
    if about is None:
        return FileReport(source.name, source.subject, findings=tuple(findings))
    channels, rate = len(about.channels), about.rates_of(chosen)[1]
    return FileReport(source.name, source.subject, channels, rate, about.seconds, counts, tuple(findings))


@contextmanager
def _told(source: Source, found: dict[str, list[Finding]]) -> Iterator[None]:
    """Note why a file cannot be used, whatever the reason."""
    try:
        yield
    except FileError as error:
        found[source.name].append(error.finding)
    except OSError as error:
        found[source.name].append(explain(error, source))


def _header(source: Source, events: str) -> Header:
    return open_recording(source, events)[1]


def _windows(source: Source, processing: Processing) -> Windows:
    recording, header = open_recording(source, processing.events)
    windows = prepare(source, recording, header, processing)
    return replace(windows, sketch=sketch(windows.x))


def _factor(source: Source, scale: Mapping[str, float]) -> float:
    return next((factor for pattern, factor in scale.items() if fnmatchcase(source.name, pattern)), 1.0)


def _recorded(source: Source, windows: Windows, seconds: float) -> Recorded:
    """Return a file's windows as they are passed on: mapped ones are closed, a thousand files would be too many."""
    overlap = bool((np.diff(np.sort(windows.onset)) < seconds - 1e-9).any())
    values = functools.partial(_same, windows.x)
    if isinstance(windows.x, np.memmap) and windows.x.filename is not None:
        values = functools.partial(np.load, windows.x.filename, mmap_mode="r")
    return Recorded(source, windows.y, windows.sketch, overlap, values)


def _same(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return values


def _with_progress(sources: Sequence[Source], what: str) -> Iterator[Source]:
    """Yield the files, with a bar on a terminal: a first start may take minutes."""
    screen = Console(stderr=True)
    quiet = len(sources) < 10 or not sys.stderr.isatty()
    yield from track(sources, description=what, console=screen, transient=True, disable=quiet)
