"""Survey of EEG files: read and check them one by one, agree on channels and rate, and report on each."""

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
from fne.core.errors import DataError, did_you_mean
from fne.data.eeg.cache import Cache
from fne.data.eeg.diagnose import explain
from fne.data.eeg.find import companions, listed
from fne.data.eeg.open import open_recording
from fne.data.eeg.quality import some
from fne.data.eeg.recording import Header, Preprocessing, Source, Windows, same_rate
from fne.data.eeg.repeats import sketch
from fne.data.eeg.split import Recorded
from fne.data.eeg.windows import prepare


@dataclass(frozen=True)
class Survey:
    """Result of reading all files.

    Args:
        files: windows of the files that can be used, in order.
        reports: reports on all files.
        contract: channels and rate of all files; `None` if no file can be opened.
        events: event -> number of times that the event occurs in all files.
    """

    files: tuple[Recorded, ...]
    reports: tuple[FileReport, ...]
    contract: Contract | None
    events: Mapping[str, int]


def survey(
    sources: Sequence[Source],
    wanted: Preprocessing,
    *,
    channels: str | Sequence[str],
    types: Sequence[str],
    resample: float | None,
    scale: float | Mapping[str, float],
    cache: Cache,
) -> Survey:
    """Read all headers, agree on channels and rate, then read the windows. One recording at a time is in memory.

    Args:
        sources: the files.
        wanted: preprocessing of all files, except channels, rate and scale.
        channels, types, resample: see `agree`.
        scale: factor for all files, or pattern of file names -> factor, of which the first match counts.
        cache: headers and windows that were read before.

    Raises:
        DataError: no file has the channels.
    """
    found: dict[str, list[Finding]] = {source.name: [] for source in sources}
    digests: dict[str, str] = {}
    headers: dict[str, Header] = {}
    listing = functools.cache(listed)  # each folder once
    for source in _with_progress(sources, "looking at EEG files"):
        with _told(source, found):
            digests[source.name] = cache.hash_of(companions(source, listing))
            make = functools.partial(_header, source, wanted.events)
            header = cache.header(digests[source.name], source, wanted.events, make)
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
            windows = cache.windows(digests[source.name], source, own, read)
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
    """Return the report on a file; `about` or `file` is `None` if the header or the windows could not be read.

    The rate in the report is that of the `chosen` channels.
    """
    counts = {} if file is None else {name: int((file.y == label).sum()) for label, name in enumerate(classes)}
    if about is None:
        return FileReport(source.name, source.subject, findings=tuple(findings))
    channels, rate = len(about.channels), about.rates_of(chosen)[1]
    return FileReport(source.name, source.subject, channels, rate, about.seconds, counts, tuple(findings))


@contextmanager
def _told(source: Source, found: dict[str, list[Finding]]) -> Iterator[None]:
    """Turn an error inside the block into a finding about the file."""
    try:
        yield
    except FileError as error:
        found[source.name].append(error.finding)
    except OSError as error:
        found[source.name].append(explain(error, source))


def _header(source: Source, events: str) -> Header:
    return open_recording(source, events)[1]


def _windows(source: Source, processing: Preprocessing) -> Windows:
    recording, header = open_recording(source, processing.events)
    windows = prepare(source, recording, header, processing)
    return replace(windows, sketch=sketch(windows.x))


def _factor(source: Source, scale: Mapping[str, float]) -> float:
    return next((factor for pattern, factor in scale.items() if fnmatchcase(source.name, pattern)), 1.0)


def _recorded(source: Source, windows: Windows, seconds: float) -> Recorded:
    """Return the windows of a file; mapped windows are closed, since a process may open only so many files."""
    overlap = bool((np.diff(np.sort(windows.onset)) < seconds - 1e-9).any())
    values = functools.partial(_same, windows.x)
    if isinstance(windows.x, np.memmap) and windows.x.filename is not None:
        values = functools.partial(np.load, windows.x.filename, mmap_mode="r")
    return Recorded(source, windows.y, windows.sketch, overlap, values)


def _same(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return values


def _with_progress(sources: Sequence[Source], what: str) -> Iterator[Source]:
    """Yield the files, with a progress bar on a terminal, since a first start may take minutes."""
    screen = Console(stderr=True)
    quiet = len(sources) < 10 or not sys.stderr.isatty()
    yield from track(sources, description=what, console=screen, transient=True, disable=quiet)


# ------------------------------------------------------------------------------------------------ agreement
@dataclass(frozen=True)
class Contract:
    """Channels in order and sampling rate in Hz that all files share, and findings about each file."""

    channels: tuple[str, ...]
    rate: float
    findings: Mapping[str, tuple[Finding, ...]]


def agree(
    headers: Mapping[str, Header], channels: str | Sequence[str], types: Sequence[str], resample: float | None
) -> Contract:
    """Return the channels and the rate to use for all files, and findings about files that differ.

    Args:
        headers: file name -> header, for the files that could be opened, in order.
        channels: names in the common spelling; `all`: the channels of most files; `common`: those that all files have.
        types: types of the channels that `all` and `common` consider.
        resample: sampling rate in Hz; `None`: the rate of most files, and files with another rate are refused.

    Raises:
        DataError: no channel has one of these types, a named channel is in no file, or no channel is in all files.
    """
    own = {
        name: tuple(c for c, t in zip(header.channels, header.types, strict=True) if t in types)
        for name, header in headers.items()
    }
    there = sorted({kind for header in headers.values() for kind in header.types})
    if isinstance(channels, str):
        if not any(own.values()):
            kinds = f"data.types = [{', '.join(types)}]; there are channels of type {', '.join(there)}"
            raise DataError(f"eeg_files: no file has a channel of {kinds}")
        chosen = _most(own) if channels == "all" else _common(own)
    else:
        chosen = tuple(channels)
        known = {channel for header in headers.values() for channel in header.channels}
        for channel in chosen:
            if channel not in known:
                raise DataError(
                    f"eeg_files: data.channels: no file has a channel {channel!r}{did_you_mean(channel, known)}; "
                    f"there are {some(sorted(known))}"
                )
    usual = _usual([header.rates_of(chosen)[1] for header in headers.values()])
    found = {
        name: (
            *_of_channels(header, own[name], chosen, channels),
            *_of_rate(header.rates_of(chosen)[1], usual, resample),
            *_of_slow(header, chosen),
        )
        for name, header in headers.items()
    }
    return Contract(chosen, resample or usual, found)


def _of_channels(
    header: Header, own: Sequence[str], chosen: Sequence[str], channels: str | Sequence[str]
) -> tuple[Finding, ...]:
    """Return findings about channels that a file lacks, or has in excess or in another order."""
    found = []
    lacking = [channel for channel in chosen if channel not in header.channels]
    more = [channel for channel in own if channel not in chosen]
    if lacking:
        found.append(
            Finding(
                "channels",
                f"{len(lacking)} of {len(chosen)} channels are missing: {some(lacking)}",
                f"the {len(chosen)} channels that {'the settings name' if channels != 'all' else 'most files have'}",
                "Set data: {channels: common} for those that all files share, or leave the file out by data.pattern",
                "refused",
            )
        )
    elif more and isinstance(channels, str):
        found.append(
            Finding(
                "channels",
                f"{len(more)} channels are not used: {some(more)}",
                f"the {len(chosen)} channels that {'all' if channels == 'common' else 'most'} files have",
                "Name the channels in data.channels if others are wanted",
                "noted",
            )
        )
    places = [header.channels.index(channel) for channel in chosen if channel in header.channels]
    if places != sorted(places) and isinstance(channels, str):  # a list in the config is the order already
        order = f"channels in another order, beginning {some(own[:3])}"
        found.append(
            Finding("channels", order, f"the order {some(chosen[:3])} ...", "They are put in order by name", "repaired")
        )
    return tuple(found)


def _of_rate(rate: float, usual: float, resample: float | None) -> tuple[Finding, ...]:
    """Return the finding that a file's sampling rate differs from that of most files."""
    if same_rate(rate, usual):
        return ()
    found, expected = f"sampled at {rate:g} Hz", f"{usual:g} Hz, as most files have"
    if resample is not None:
        return (
            Finding("rate", found, expected, f"All files come to {resample:g} Hz, as data.resample says", "repaired"),
        )
    remedy = f"Set data: {{resample: {min(rate, usual):.10g}}} to bring all files to one rate"
    return (Finding("rate", found, expected, remedy, "refused"),)


def _of_slow(header: Header, chosen: Sequence[str]) -> tuple[Finding, ...]:
    """Return the finding that some chosen channels were sampled at a lower rate than the others of the file."""
    lowest, highest = header.rates_of(chosen)
    if same_rate(lowest, highest):
        return ()
    slow = [f"{name} ({rate:g} Hz)" for name in chosen if not same_rate(rate := header.rates_of([name])[0], highest)]
    found = f"channels sampled at less than the {highest:g} Hz of the others: {some(slow)}"
    remedy = f"They are brought to {highest:g} Hz, and filters must fit the lowest rate"
    return (Finding("rate", found, "one rate for all channels", remedy, "noted"),)


def _usual(rates: Sequence[float]) -> float:
    """Return the rate of most files, in the form in which most of these files have it."""
    often = max(rates, key=lambda rate: sum(same_rate(rate, other) for other in rates))
    return Counter(rate for rate in rates if same_rate(rate, often)).most_common(1)[0][0]


def _most(own: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the most frequent set of channels, in the order of the first file that has this set."""
    sets = Counter(frozenset(names) for names in own.values() if names)
    best = sets.most_common(1)[0][0]
    return next(names for names in own.values() if frozenset(names) == best)


def _common(own: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the channels that all files have, in the order of the first file."""
    shared = set.intersection(*map(set, own.values()))
    if not shared:
        poorest = min(own, key=lambda name: len(own[name]))
        raise DataError(
            f"eeg_files: data.channels = common: no channel is in all {len(own)} files; {poorest} has "
            f"{some(own[poorest]) or 'none'}: leave it out by data.pattern, or name the channels in data.channels"
        )
    return tuple(name for name in next(iter(own.values())) if name in shared)
