"""Windows of one opened EEG recording: choose them by events, read, check, filter and resample the values, and cut."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from fne.core.dataset import FileError, Finding
from fne.core.errors import SettingError, did_you_mean
from fne.data.eeg.diagnose import explain
from fne.data.eeg.events import Event, breaks, event_list, event_names, gaps, is_gap
from fne.data.eeg.filters import (
    Values,
    as_sampled,
    check_band,
    filter_in_place,
    moving_standardise,
    resampled,
    samples_at,
)
from fne.data.eeg.open import is_epochs, listening
from fne.data.eeg.quality import LEAVE_OUT, refuse, repair, some
from fne.data.eeg.recording import Header, Preprocessing, Source, Windows

Recording = Any
"""`mne.io.BaseRaw` or `mne.BaseEpochs`."""
_TO_MICROVOLTS = 1e6
_NAMES = 8
"""Events that the config line of a message names at most."""


@dataclass(frozen=True)
class Cuts:
    """Windows to cut.

    Args:
        index: first sample of each window, or number of its epoch if the recording is cut into epochs, int64 `[n]`.
        y: classes, int64 `[n]`.
        onset: begin of each window in seconds `[n]`.
        findings: findings about windows that are left out.
    """

    index: NDArray[np.int64]
    y: NDArray[np.int64]
    onset: NDArray[np.float64]
    findings: tuple[Finding, ...] = ()


def prepare(source: Source, recording: Recording, header: Header, processing: Preprocessing) -> Windows:
    """Return the windows of a recording.

    Filters are applied to the whole recording, but not across its breaks.

    Args:
        source: the file; its label is used for windows of fixed length.
        recording: recording as `open_recording` returns it; its values are read, but not changed.
        header: header as `open_recording` returns it.
        processing: settings of the windows and their values.

    Raises:
        FileError: the file has no usable window; its finding says why and what to do.
        SettingError: the windows are impossible at this rate, whatever the file.
    """
    check_settings(processing)
    slowest, rate = header.rates_of(processing.channels)
    _check_request(recording, header, slowest, processing)
    names, findings = _picked(header, processing)
    try:
        with listening(source, findings):
            events = _events(recording, processing.events)
            cuts = _cuts(recording, events, source, header, rate, processing)
            values = _read(recording, [header.channels.index(name) for name in names])
    except FileError:
        raise
    except Exception as error:
        raise FileError(explain(error, source)) from error
    with np.errstate(over="ignore"):  # the checks report infinite values
        values *= _TO_MICROVOLTS * processing.scale
    try:
        if header.rates:
            values = as_sampled(values, header.rate, [header.rates_of([name])[0] for name in names], rate)
        findings += _processed(values, rate, names, breaks(events), recording.info["bads"], source, header, processing)
        values = resampled(values[: len(processing.channels)], rate, processing.rate)
        findings += cuts.findings
        return _cut(values, _first_sample(header, processing, values.shape[-1]), cuts, findings, processing)
    except MemoryError as error:
        raise FileError(explain(error, source)) from error


def _processed(
    values: Values,
    rate: float,
    names: Sequence[str],
    pauses: Sequence[float],
    marked: Sequence[str],
    source: Source,
    header: Header,
    processing: Preprocessing,
) -> list[Finding]:
    """Repair and filter the values of `names`, at `rate` Hz, in place; pure reference channels are not filtered."""
    types = [header.types[header.channels.index(name)] for name in names]
    own = len(processing.channels) if processing.reference == "average" else len(names)
    findings = repair(values, rate, names, types, marked, header.uncalibrated, source.name, processing, own)
    chosen = values[: len(processing.channels)]
    return findings + filter_in_place(chosen, rate, pauses, source, processing)


def _check_request(recording: Recording, header: Header, slowest: float, processing: Preprocessing) -> None:
    """Refuse settings that are impossible for epochs, or where `slowest` Hz is the rate of the slowest channel."""
    check_band(slowest, len(recording.times) / header.rate, processing)
    if not is_epochs(recording):
        return
    what = "" if not processing.length else f"data.length = {processing.length:g} s"
    what = "data.standardise = moving" if processing.moving else what
    if what:
        remedy = "standardise: trial" if processing.moving else "length: null"
        refuse(
            "epochs", f"{what} with a file that is cut into epochs", "a continuous recording", f"Set data: {{{remedy}}}"
        )
    begin, end, half_sample = header.tmin, header.tmax + 1 / header.rate, 0.5 / header.rate
    if processing.tmin < begin - half_sample or processing.tmax > end + half_sample:
        refuse(
            "epochs",
            f"its epochs reach from {begin:g} to {end:g} s",
            f"epochs that hold data.tmin = {processing.tmin:g} to data.tmax = {processing.tmax:g} s",
            f"Set data: {{tmin: {max(begin, processing.tmin):g}, tmax: {min(end, processing.tmax):g}}}",
        )


# ------------------------------------------------------------------------------------------------ reading
def _picked(header: Header, processing: Preprocessing) -> tuple[list[str], list[Finding]]:
    """Return the channels to read: those of the settings in their order, then pure reference channels."""
    wanted, known = processing.channels, header.channels
    assert set(wanted) <= set(known), "what files lack, their contract tells"
    references: list[str] = []
    findings: list[Finding] = []
    if processing.reference == "average":
        eeg = [name for name, kind in zip(known, header.types, strict=True) if kind == "eeg"]
        references = eeg if set(eeg) & set(wanted) else []
    elif not isinstance(processing.reference, str):
        references = list(processing.reference)
    for name in references:
        if name not in known:
            there = f"channel {name!r} of data.reference does not exist{did_you_mean(name, known)}"
            refuse("reference", there, f"one of {some(known)}", "Set data: {reference: average}")
    if len(references) == 1 and processing.reference != "average" and references[0] in wanted:
        found = f"{references[0]} is the reference, so it is 0 everywhere"
        remedy = "Leave it out of data.channels"
        findings.append(Finding("reference", found, "channels that vary", remedy, "noted"))
    return [*wanted, *(name for name in references if name not in wanted)], findings


def _read(recording: Recording, places: Sequence[int]) -> Values:
    """Return the values of the channels at `places` in volts, in that order."""
    values: Values = recording.get_data(picks=list(places))
    return np.ascontiguousarray(values.swapaxes(0, 1)) if is_epochs(recording) else values


def _events(recording: Recording, origin: str) -> list[Event]:
    """Return the events of a recording; for a continuous one, marks of bad parts and breaks are included."""
    if is_epochs(recording):
        onsets = (recording.events[:, 0] / recording.info["sfreq"]).tolist()
        return [(onset, 0.0, name) for onset, name in zip(onsets, event_names(recording), strict=True)]
    marks = [
        (float(note["onset"] - recording.first_time), float(note["duration"]), str(note["description"]))
        for note in recording.annotations
        if is_gap(note["description"])
    ]
    return event_list(recording, origin) + marks


# ------------------------------------------------------------------------------------------------ cutting
def _cuts(
    recording: Recording,
    events: Sequence[Event],
    source: Source,
    header: Header,
    rate: float,
    processing: Preprocessing,
) -> Cuts:
    """Return the windows to cut from values that are first brought to `rate` Hz; no value is needed for that."""
    if not is_epochs(recording):
        total = samples_at(samples_at(recording.n_times, header.rate, rate), rate, processing.rate)
        return plan(events, total, source.label, processing, "stim" in header.types)
    numbered = [(number, 0.0, name) for number, (_, _, name) in enumerate(events)]
    index, _, y = zip(*labelled(numbered, processing), strict=True)
    onset = np.array([events[number][0] for number in index]) + processing.tmin
    return Cuts(np.array(index, np.int64), np.array(y, np.int64), onset)


def _first_sample(header: Header, processing: Preprocessing, total: int) -> int | None:
    """Return the first sample of the window within an epoch of `total` samples; `None` for a continuous recording."""
    if not header.epochs:
        return None
    return min(round((processing.tmin - header.tmin) * processing.rate), total - processing.times)


def _cut(
    values: Values, first: int | None, cuts: Cuts, findings: Sequence[Finding], processing: Preprocessing
) -> Windows:
    """Return copies of the windows; moving standardisation changes `values`."""
    length = processing.times
    if first is None:
        every = np.lib.stride_tricks.sliding_window_view(values, length, axis=-1)
    else:
        every = values[..., first : first + length]
    kept, reasons = np.ones(len(cuts.index), bool), tuple[Finding, ...]()
    if processing.reject:
        kept = np.array([np.ptp(every[:, i], axis=-1).max() <= processing.reject for i in cuts.index])
        text = f"above data.reject = {processing.reject:g} microvolts peak to peak"
        reasons = left_out(len(kept), [(int((~kept).sum()), text)], "windows without artefacts")
    if processing.moving:
        moving_standardise(values)
    x = np.empty((int(kept.sum()), len(values), length), np.float32)
    for number, i in enumerate(cuts.index[kept]):
        x[number] = every[:, i]
    return Windows(x, cuts.y[kept], cuts.onset[kept], (*findings, *reasons))


# ------------------------------------------------------------------------------------------------ choice of windows
def check_settings(processing: Preprocessing) -> None:
    """Raise `SettingError` for windows that are impossible at this sampling rate."""
    rate, least = processing.rate, 1 / processing.rate
    if processing.times < 1:
        key, value = ("data.length", processing.length) if processing.length else ("data.tmax", processing.tmax)
        begin = "" if processing.length else f"after data.tmin = {processing.tmin:g} "
        allowed = f"at least {least:g} s {begin}at {rate:g} Hz, as a window needs one sample (more with data.resample)"
        raise SettingError(key, value, allowed)
    if processing.length and processing.step and processing.step * rate < 1 - 1e-6:
        raise SettingError("data.step", processing.step, f"at least {least:g} s, one sample at {rate:g} Hz")


def plan(events: Sequence[Event], total: int, label: str, processing: Preprocessing, stim: bool = False) -> Cuts:
    """Return the windows of a continuous recording.

    Args:
        events: all events, marks of bad parts and breaks included.
        total: number of samples of the recording at the rate of `processing`.
        label: label of the whole file, or an empty text.
        processing: settings of the windows and their events.
        stim: whether the recording has a stim channel.

    Raises:
        FileError: the settings name no event or label of the file, or no window is within the recording.
    """
    named = [event for event in events if not is_gap(event[2])]
    rate, times = processing.rate, processing.times
    findings: tuple[Finding, ...] = ()
    if processing.length:
        wanted, findings = _fixed(named, total / rate, label, processing, stim)
    else:
        wanted = [(round((onset + processing.tmin) * rate), y) for onset, _, y in labelled(named, processing, stim)]
    start, y = np.array(wanted, np.int64).T
    inside = (start >= 0) & (start + times <= total)
    clean = np.ones(len(start), bool)
    for onset, duration, _ in gaps(events):
        first, end = (math.ceil(second * rate - 1e-6) for second in (onset, onset + duration))
        clean &= (start >= end) | (start + times <= first)  # a break has no duration and must not be inside
    kept = inside & clean
    reasons = (
        (int((~inside).sum()), "beyond the recording"),
        (int((inside & ~clean).sum()), "over a part marked BAD or a break"),
    )
    expected = f"windows within the {total / rate:g} s of the recording, without a gap"
    findings = (*findings, *left_out(len(kept), reasons, expected))
    return Cuts(start[kept], y[kept], start[kept] / rate, findings)


def labelled(events: Sequence[Event], processing: Preprocessing, stim: bool = False) -> list[tuple[float, float, int]]:
    """Return onset, duration and class of the events that `labels` names; `stim` as in `plan`.

    Raises:
        FileError: the file has no such event; the finding lists its events.
    """
    counts = Counter(name for _, _, name in events)
    classes = {name: _class_of(name, processing) for name in counts}
    found = [(onset, duration, y) for onset, duration, name in events if (y := classes[name]) is not None]
    if not found:
        known = list(counts)
        looked_for = ", ".join(f"{pattern!r}{did_you_mean(pattern, known)}" for pattern, _ in processing.labels)
        there = some([f"{name} ({count})" for name, count in counts.most_common()])
        found_there = f"its events are {there}" if there else "it has no events"
        instead = stim and processing.events != "stim" and (bool(known) or processing.events == "annotations")
        refuse("events", f"no trials: {found_there}", f"events {looked_for}", _remedy(known, instead))
    return found


def left_out(total: int, reasons: Sequence[tuple[int, str]], expected: str) -> tuple[Finding, ...]:
    """Return the finding that windows were left out, if there are any.

    Raises:
        FileError: no window is left.
    """
    parts = [f"{count} {why}" for count, why in reasons if count]
    if not parts:
        return ()
    lost = sum(count for count, _ in reasons)
    found = f"{lost} of {total} windows are left out: {', '.join(parts)}"
    if lost == total:
        refuse("windows", found, expected, f"Check data.tmin, data.tmax, data.length, data.reject; or {LEAVE_OUT}")
    return (Finding("windows", found, expected, "Nothing to do where that is meant", "noted"),)


# ------------------------------------------------------------------------------------------------ classes
def _class_of(name: str, processing: Preprocessing) -> int | None:
    """Return the class by the exact name of the event, else by the first pattern that matches."""
    fitting = [label for pattern, label in processing.labels if name == pattern]
    fitting += [label for pattern, label in processing.labels if fnmatchcase(name, pattern)]
    return processing.classes.index(fitting[0]) if fitting else None


def _class_of_file(label: str, processing: Preprocessing) -> int:
    y = _class_of(label, processing)
    if y is None:
        patterns = ", ".join(f"{pattern!r}{did_you_mean(pattern, [label])}" for pattern, _ in processing.labels)
        refuse("label", f"the file's label is {label!r}", f"one of data.labels: {patterns}", _remedy([label]))
    return y


def _remedy(names: Sequence[str], stim: bool = False) -> str:
    """Return the remedy that names some of the events or labels; `stim`: also suggest the stim channels."""
    if not names:
        where = "Say where its events are by data: {events: stim}, or cut" if stim else "Cut"
        return (
            f"{where} windows of fixed length (data.length) with a label for each file, which data.subject finds in "
            f"its path by (?P<label>...), or {LEAVE_OUT}"
        )
    line = yaml.safe_dump(
        {"labels": dict.fromkeys(names[:_NAMES], "CLASS")},
        default_flow_style=True, sort_keys=False, allow_unicode=True, width=math.inf,
    )  # fmt: skip
    other = ", or take its stim channels by data: {events: stim}" if stim else ""
    return f"Name the class of those that are meant, as in data: {line.strip()}{other}, or {LEAVE_OUT}"


# ------------------------------------------------------------------------------------------------ fixed length
def _fixed(
    events: Sequence[Event], seconds: float, label: str, processing: Preprocessing, stim: bool
) -> tuple[list[tuple[int, int]], tuple[Finding, ...]]:
    """Return first sample and class of each window in a recording of `seconds`, and findings."""
    spans = [(0.0, seconds, _class_of_file(label, processing))] if label else _spans(events, processing, stim)
    spans = [(onset, min(duration, seconds - onset), y) for onset, duration, y in spans]
    windows = [_within(*span, processing) for span in spans]
    short = windows.count([])
    every = [window for of_span in windows for window in of_span]
    if not short:
        return every, ()
    found = f"{short} of {len(spans)} spans are shorter than a window"
    expected = f"spans of at least data.length = {processing.length:g} s"
    if short == len(spans):
        longest = max(duration for _, duration, _ in spans)
        refuse("windows", found, expected, f"Set data: {{length: {longest:g}}} or less, or {LEAVE_OUT}")
    return every, (Finding("windows", found, expected, "Nothing to do where that is meant", "noted"),)


def _spans(events: Sequence[Event], processing: Preprocessing, stim: bool) -> list[tuple[float, float, int]]:
    matching = labelled(events, processing, stim)
    lasting = [event for event in matching if event[1] > 0]
    if not lasting:
        length = f"{processing.length:g}"
        refuse(
            "events",
            f"{len(matching)} events are named in data.labels, and none of them has a duration",
            f"events that last, which windows of data.length = {length} s are cut from",
            f"Set data: {{length: null, tmax: {length}}} for one window an event",
        )
    return lasting


def _within(onset: float, duration: float, y: int, processing: Preprocessing) -> list[tuple[int, int]]:
    """Return first sample and class of each window within a span; onset and duration are in seconds."""
    rate, step = processing.rate, processing.step or processing.length
    last = round((onset + duration) * rate) - processing.times
    starts = {round((onset + k * step) * rate) for k in range(math.ceil(max(duration, 0) / step) + 1)}
    return [(start, y) for start in sorted(starts) if start <= last]
