"""Data set of EEG recordings in files of many formats (EDF, BrainVision, EEGLAB, FIF and others), read through MNE.

Every file is read and checked; a file that would spoil training silently is refused or repaired, with a finding that
names it. Windows are in microvolts, filtered and resampled before they are cut, and kept in a cache.
"""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal

from fne.config.groups import SplitSeed
from fne.config.registry import Key, register
from fne.core.dataset import Dataset, FilesError, Finding
from fne.core.errors import DataError, DataWarning, SettingError
from fne.data.eeg.cache import Cache, folder
from fne.data.eeg.channels import common_name
from fne.data.eeg.find import find
from fne.data.eeg.quality import some
from fne.data.eeg.recording import Preprocessing, Source
from fne.data.eeg.split import Split, divide
from fne.data.eeg.survey import Survey, survey
from fne.data.sources import locate, standardise_each
from fne.data.sources import standardise as standardised


@register("data", "eeg_files")
def eeg_files(
    *,
    seed: int,
    path: Annotated[
        str, Key("file, folder or BIDS root; also searched for below $FNE_DATA and the cache folder", path="search")
    ],
    labels: Annotated[dict[str, str], Key("event (its name, or a pattern such as left/*) -> class", min_length=1)],
    pattern: Annotated[str | tuple[str, ...], Key("glob pattern of the files below the folder, or several")] = "**/*",
    subject: Annotated[
        str | None,
        Key("expression for paths with a group (?P<subject>...), also session, run, site, label; null: usual names"),
    ] = None,
    bids: Annotated[Literal["auto", "yes", "no"], Key("read as BIDS, through mne-bids")] = "auto",
    events: Annotated[
        Literal["auto", "annotations", "stim"],
        Key("source of events; auto: annotations if the file has any, else stim channels"),
    ] = "auto",
    tmin: Annotated[float, Key("begin of a window, after its event", unit="seconds")] = 0.0,
    tmax: Annotated[float, Key("end of a window, after its event", unit="seconds")] = 2.0,
    length: Annotated[
        float | None,
        Key("length of windows that are cut from an event's span, or from a file with a label", unit="seconds", gt=0),
    ] = None,
    step: Annotated[
        float | None, Key("distance of windows of fixed length; null: length", unit="seconds", gt=0)
    ] = None,
    channels: Annotated[
        Literal["all", "common"] | tuple[str, ...],
        Key("channels; all: those of most files; common: those of all files; or a list"),
    ] = "all",
    types: Annotated[tuple[str, ...], Key("channel types that all and common include", min_length=1)] = ("eeg",),
    low: Annotated[float | None, Key("lower end of the band-pass", unit="Hz", gt=0)] = None,
    high: Annotated[float | None, Key("upper end of the band-pass", unit="Hz", gt=0)] = None,
    notch: Annotated[float | None, Key("mains frequency, which is removed with its harmonics", unit="Hz", gt=0)] = None,
    resample: Annotated[
        float | None, Key("sampling rate; null: that of the files, which must agree", unit="Hz", gt=0)
    ] = None,
    reference: Annotated[
        Literal["none", "average"] | tuple[str, ...], Key("reference that is subtracted: average, or names of channels")
    ] = "none",
    scale: Annotated[
        float | dict[str, float], Key("factor for the values in microvolts, or pattern of file names -> factor", gt=0)
    ] = 1.0,
    bad_channels: Annotated[
        Literal["refuse", "interpolate", "zero"],
        Key("treatment of channels that are flat, hold NaN or are in another unit than the others"),
    ] = "refuse",
    reject: Annotated[
        float | None, Key("amplitude above which a window is left out", unit="microvolts peak to peak", gt=0)
    ] = None,
    standardise: Annotated[
        Literal["node", "trial", "moving", "none"],
        Key("node: by a group's own training windows; trial: each window; moving: exponentially; none: microvolts"),
    ] = "node",
    bad_files: Annotated[
        Literal["raise", "warn", "skip"],
        Key("whether files that cannot be used end the run or are left out, with a warning or without"),
    ] = "raise",
    groups: Annotated[
        Literal["subject", "session", "run", "site"], Key("unit that data.partition=subject puts on a node")
    ] = "subject",
    split: Annotated[
        Literal["subject", "session", "run", "trial"], Key("unit that training and test do not share")
    ] = "subject",
    split_seed: SplitSeed = 0,
    folds: Annotated[int | None, Key("parts of the split; null: one for each subject, session or run", ge=2)] = None,
    fold: Annotated[int | None, Key("which is the test part; null: the first", ge=0)] = None,
    validation: Annotated[
        float | None,
        Key("fraction of the training windows for validation; null: the next fold, 0.2 with split=trial", gt=0, lt=1),
    ] = None,
    test: Annotated[float | None, Key("split=trial: fraction of test windows; null: 0.2", gt=0, lt=1)] = None,
    shuffle_labels: Annotated[
        bool, Key("control for leaks: shuffle labels within subjects, or between subjects if each has one class")
    ] = False,
    label_seed: Annotated[int, Key("seed of shuffle_labels", ge=0)] = 0,
    cache: Annotated[bool, Key("keep prepared windows in the cache folder for later starts")] = True,
) -> Dataset:
    """Load EEG recordings: `x` float32 `[N, channels, times]`, groups are the subjects (sites, sessions, runs).

    Raises:
        DataError: there is no recording, files cannot be used, or there are too few subjects; the error names each file
            with a remedy.
        SettingError: settings contradict each other.

    Warns:
        DataWarning: files are left out (`bad_files=warn`), the split has the same subjects on both sides, or windows
            occur twice.
    """
    how = Split(split, split_seed, folds, fold, validation, test, groups, shuffle_labels, label_seed)
    how.check()
    _check_windows(tmin, tmax, length, step, low, high)
    classes = tuple(dict.fromkeys(labels.values()))
    if len(classes) < 2:
        raise SettingError("data.labels", labels, "events of two classes at least, such as {T1: left, T2: right}")
    chosen = channels if isinstance(channels, str) else _named("data.channels", channels)
    wanted = Preprocessing(
        channels=(),
        rate=0.0,
        labels=tuple(labels.items()),
        classes=classes,
        events=events,
        tmin=tmin,
        tmax=tmax,
        length=length or 0.0,
        step=step or 0.0,
        low=low or 0.0,
        high=high or 0.0,
        notch=notch or 0.0,
        reference=reference if isinstance(reference, str) else _named("data.reference", reference),
        bad_channels=bad_channels,
        moving=standardise == "moving",
        reject=reject or 0.0,
    )
    root = _root(path)
    sources = find(root, pattern, subject, bids)
    # Even without a cache the windows are on the disk while they are copied, so that they are not in memory twice.
    with contextlib.nullcontext(folder()) if cache else tempfile.TemporaryDirectory(prefix="fne-") as place:
        seen = survey(
            sources, wanted, channels=chosen, types=types, resample=resample, scale=scale, cache=Cache(Path(place))
        )
        _tell(seen, bad_files)
        assert seen.contract is not None
        findings = [*_of_names(sources, subject), *_unused(seen, sources, labels, scale)]
        try:
            _check_classes(seen, labels, classes)
            parts = divide(seen.files, classes, how)
        except DataError as error:
            error.files, error.findings = seen.reports, tuple(findings)
            raise
    findings += parts.findings
    for finding in findings:
        warnings.warn(f"eeg_files: {finding}", DataWarning, stacklevel=2)
    values, title = [part.x for part in parts.samples], parts.how
    if standardise == "node":
        standardised(values, [part.groups for part in parts.samples if part.groups is not None])
        title += "" if split == "trial" else f", a {groups} without training windows standardised by itself"
    elif standardise == "trial":
        for x in values:
            standardise_each(x)
    people = len({one.source.subject for one in seen.files})
    shape = f"{len(seen.contract.channels)} channels at {seen.contract.rate:g} Hz"
    return Dataset(
        "eeg_files",
        *parts.samples,
        classes=classes,
        split=title,
        source=f"EEG in {root}, {shape}; files: {len(seen.files)}, subjects: {people}",
        group_names=parts.group_names,
        group_kind=groups,
        fold=parts.fold,
        files=seen.reports,
        findings=tuple(findings),
        rate=seen.contract.rate,
        start=0.0 if length else tmin,
    )


def _named(key: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return channel names in the common spelling; refuse an empty list and duplicates."""
    common = tuple(common_name(name) for name in names)
    if not common or len(set(common)) < len(common):
        raise SettingError(key, list(names), "a list of different channels, at least one")
    return common


def _check_windows(
    tmin: float, tmax: float, length: float | None, step: float | None, low: float | None, high: float | None
) -> None:
    """Refuse settings that are impossible or would have no effect."""
    if length is None:
        if tmax <= tmin:
            raise SettingError("data.tmax", tmax, f"above data.tmin = {tmin:g}: the end of a window, in seconds")
        if step is not None:
            raise SettingError("data.step", step, "null without data.length: windows lie around events")
    elif tmin:
        raise SettingError("data.tmin", tmin, "0 with data.length: windows are cut from where an event begins")
    if low is not None and high is not None and low >= high:
        raise SettingError("data.low", low, f"below data.high = {high:g}, the upper end of the band")


def _check_classes(seen: Survey, labels: Mapping[str, str], classes: Sequence[str]) -> None:
    """Raise `DataError` for a class without any window; the error lists the events of the files."""
    for number, name in enumerate(classes):
        if not any((one.y == number).any() for one in seen.files):
            asked = " or ".join(repr(event) for event, given in labels.items() if given == name)
            there = some([f"{event!r} ({count})" for event, count in seen.events.items()]) or "none"
            raise DataError(
                f"eeg_files: data.labels: no window of class {name!r}: no file has an event {asked}; "
                f"there are {there}; name another event in data.labels, or leave the class out"
            )


def _unused(
    seen: Survey, sources: Sequence[Source], labels: Mapping[str, str], scale: float | Mapping[str, float]
) -> Iterator[Finding]:
    """Yield findings about events and files that the settings name and that do not exist; most likely misspelled."""
    events = {*seen.events, *(source.label for source in sources)}
    for event, name in labels.items():
        if not any(event == there or fnmatchcase(there, event) for there in events):
            found = f"no file has an event {event!r}, which data.labels names (class {name!r})"
            remedy = f"There are {some(sorted(events - {''}))}: correct data.labels, or leave it out"
            yield Finding("labels", found, "events that occur", remedy, "problem")
    for pattern in () if isinstance(scale, float | int) else scale:
        if not any(fnmatchcase(source.name, pattern) for source in sources):
            found = f"no file is called {pattern!r}, which data.scale names"
            remedy = f"Files are {some([source.name for source in sources])}: correct data.scale, or leave it out"
            yield Finding("scale", found, "patterns of existing files", remedy, "problem")


def _of_names(sources: Sequence[Source], subject: str | None) -> Iterator[Finding]:
    """Yield a note if each file counts as a subject of its own only because of its name."""
    if subject is None and len(sources) > 1 and all(Path(s.name).stem == s.subject for s in sources):
        found = f"each file is taken for a subject of its own, by its name: {some([s.subject for s in sources])}"
        remedy = "If several are of one person, say whose by data.subject, such as '(?P<subject>[^_]+)_'"
        yield Finding("subjects", found, "one subject a file", remedy, "noted")


def _root(path: str) -> Path:
    given = Path(path).expanduser()
    if given.is_absolute() or given.exists():
        return given
    return locate(
        f"eeg_files: {path} (from {Path.cwd()})",
        [path],
        None,
        ["set data.path to a file, a folder or a BIDS root, absolute or relative to the config file"],
    )


def _tell(seen: Survey, bad_files: str) -> None:
    """Report the files that are not used, and why: by an error, by warnings, or not at all."""
    refused = [report for report in seen.reports if report.verdict == "refused"]
    if refused and (bad_files == "raise" or not seen.files):
        advice = (
            "There are no other files."
            if not seen.files
            else "Set data: {bad_files: warn} to go on without them (skip: silently), or leave them out by "
            "data.pattern; fne data check CONFIG lists all files"
        )
        raise FilesError("eeg_files", seen.reports, advice)
    if bad_files == "warn":
        for report in refused:
            reason = next(finding for finding in report.findings if finding.action == "refused")
            warnings.warn(f"eeg_files: {report.file} is left out: {reason}", DataWarning, stacklevel=3)
