"""Which samples of a recording become windows, and of which class: around events, or of fixed length in their spans."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
import yaml
from numpy.typing import NDArray

from fne.core.dataset import Finding
from fne.core.errors import SettingError, did_you_mean
from fne.data.eeg.quality import LEAVE_OUT, refuse, some
from fne.data.eeg.recording import Processing

Event = tuple[float, float, str]
"""Onset from the start of the recording and duration, both in seconds, and name."""
_BREAK = re.compile(r"edge( boundary)?|boundary|new segment.*")
"""Names of breaks in lower case: MNE's where it joined recordings, EEGLAB's, BrainVision's."""
_NAMES = 8
"""That the config line of a message takes."""


@dataclass(frozen=True)
class Cuts:
    """Windows to cut.

    Args:
        index: first samples, or of a recording that is cut into epochs their numbers, int64 `[n]`.
        y: classes, int64 `[n]`.
        onset: where windows begin, in seconds `[n]`.
        findings: what was noted.
    """

    index: NDArray[np.int64]
    y: NDArray[np.int64]
    onset: NDArray[np.float64]
    findings: tuple[Finding, ...] = ()


def check_settings(processing: Processing) -> None:
    """Raise `SettingError` for windows that cannot be at this sampling rate."""
    rate, least = processing.rate, 1 / processing.rate
    if processing.times < 1:
        key, value = ("data.length", processing.length) if processing.length else ("data.tmax", processing.tmax)
        begin = "" if processing.length else f"after data.tmin = {processing.tmin:g} "
        allowed = f"at least {least:g} s {begin}at {rate:g} Hz, as a window needs one sample (more with data.resample)"
        raise SettingError(key, value, allowed)
    if processing.length and processing.step and processing.step * rate < 1 - 1e-6:
        raise SettingError("data.step", processing.step, f"at least {least:g} s, one sample at {rate:g} Hz")


def plan(events: Sequence[Event], total: int, label: str, processing: Processing, stim: bool = False) -> Cuts:
    """Return the windows of a continuous recording.

    Args:
        events: all of them, those that mark bad parts and breaks included.
        total: samples of the recording, at the rate of `processing`.
        label: of the whole file, or nothing.
        processing: says which events, and where windows lie.
        stim: whether the recording has a stim channel.

    Raises:
        FileError: no event or label is asked for, no window lies within the recording.
    """
    gaps = [_point(event) for event in events if is_gap(event[2])]
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
    for onset, duration, _ in gaps:
        first, end = (math.ceil(second * rate - 1e-6) for second in (onset, onset + duration))
        clean &= (start >= end) | (start + times <= first)  # without duration: a break, which must not lie within
    kept = inside & clean
    reasons = (
        (int((~inside).sum()), "beyond the recording"),
        (int((inside & ~clean).sum()), "over a part marked BAD or a break"),
    )
    expected = f"windows within the {total / rate:g} s of the recording, without a gap"
    findings = (*findings, *left_out(len(kept), reasons, expected))
    return Cuts(start[kept], y[kept], start[kept] / rate, findings)


def labelled(events: Sequence[Event], processing: Processing, stim: bool = False) -> list[tuple[float, float, int]]:
    """Return onset, duration and class of the events that `labels` asks for; `stim` as in `plan`.

    Raises:
        FileError: there are none; says which were looked for, and which there are.
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


def is_gap(name: str) -> bool:
    """Whether an event marks a break, or a bad part: for MNE all do that begin with `bad`, also `badge`."""
    return _plain(name).startswith("bad") or _is_break(name)


def taken_for_bad(names: Iterable[str]) -> tuple[Finding, ...]:
    """Return the finding that events are taken for bad parts which may be none, such as `badge`."""
    counts = Counter(name for name in names if re.match(r"bad[^\W_]", _plain(name)))
    if not counts:
        return ()
    found = f"taken for bad parts of the recording: {some([f'{name} ({count})' for name, count in counts.items()])}"
    remedy = "Rename them if they are trials: MNE takes all that begin with bad for bad parts"
    return (Finding("events", found, "events with other names", remedy, "noted"),)


def _plain(name: str) -> str:
    return name.lower().removeprefix("comment/")  # which BrainVision puts before them


def _is_break(name: str) -> bool:
    return _BREAK.fullmatch(_plain(name)) is not None


def breaks(events: Sequence[Event]) -> list[float]:
    """Return where the recording was interrupted, in seconds, sorted: filters must not reach across."""
    found = set[float]()
    for onset, duration, name in events:
        if _is_break(name):
            found.add(onset)
        elif _plain(name).startswith("bad_acq_skip"):  # MNE gives zeros there
            found |= {onset, onset + duration}
    return sorted(found)


def left_out(total: int, reasons: Sequence[tuple[int, str]], expected: str) -> tuple[Finding, ...]:
    """Return the finding that windows were left out, if any were.

    Raises:
        FileError: none is left.
    """
    parts = [f"{count} {why}" for count, why in reasons if count]
    if not parts:
        return ()
    lost = sum(count for count, _ in reasons)
    found = f"{lost} of {total} windows are left out: {', '.join(parts)}"
    if lost == total:
        refuse("windows", found, expected, f"Check data.tmin, data.tmax, data.length, data.reject; or {LEAVE_OUT}")
    return (Finding("windows", found, expected, "Nothing to do where that is meant", "noted"),)


def _point(event: Event) -> Event:
    """Return an event without its duration if it is a break: EEGLAB gives there how much was cut out."""
    onset, _, name = event
    return (onset, 0.0, name) if _is_break(name) else event


# ------------------------------------------------------------------------------------------------ classes
def _class_of(name: str, processing: Processing) -> int | None:
    """Return the class by the event's very name, else by the first pattern that fits."""
    fitting = [label for pattern, label in processing.labels if name == pattern]
    fitting += [label for pattern, label in processing.labels if fnmatchcase(name, pattern)]
    return processing.classes.index(fitting[0]) if fitting else None


def _class_of_file(label: str, processing: Processing) -> int:
    y = _class_of(label, processing)
    if y is None:
        patterns = ", ".join(f"{pattern!r}{did_you_mean(pattern, [label])}" for pattern, _ in processing.labels)
        refuse("label", f"the file's label is {label!r}", f"one of data.labels: {patterns}", _remedy([label]))
    return y


def _remedy(names: Sequence[str], stim: bool = False) -> str:
    """Return how to say which events or labels are meant, of these; `stim`: maybe those of the stim channels."""
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
    events: Sequence[Event], seconds: float, label: str, processing: Processing, stim: bool
) -> tuple[list[tuple[int, int]], tuple[Finding, ...]]:
    """Return first sample and class of the windows in a recording of so many seconds, and what was noted."""
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


def _spans(events: Sequence[Event], processing: Processing, stim: bool) -> list[tuple[float, float, int]]:
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


def _within(onset: float, duration: float, y: int, processing: Processing) -> list[tuple[int, int]]:
    """Return first sample and class of each window within a span."""
    rate, step = processing.rate, processing.step or processing.length
    last = round((onset + duration) * rate) - processing.times
    starts = {round((onset + k * step) * rate) for k in range(math.ceil(max(duration, 0) / step) + 1)}
    return [(start, y) for start in sorted(starts) if start <= last]
