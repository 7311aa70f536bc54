"""One opened EEG recording -> its windows: values read and checked, repaired, filtered, resampled, cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fne.core.dataset import FileError, Finding
from fne.core.errors import did_you_mean
from fne.data.eeg.faults import explain
from fne.data.eeg.filters import (
    Values,
    as_sampled,
    check_band,
    filter_in_place,
    moving_standardise,
    resampled,
    samples_at,
)
from fne.data.eeg.open import event_list, event_names, is_epochs, listening
from fne.data.eeg.quality import refuse, some
from fne.data.eeg.recording import Header, Processing, Source, Windows
from fne.data.eeg.repair import repair
from fne.data.eeg.windows import Cuts, Event, breaks, check_settings, is_gap, labelled, left_out, plan

Recording = Any
"""`mne.io.BaseRaw` or `mne.BaseEpochs`."""
_TO_MICROVOLTS = 1e6


def prepare(source: Source, recording: Recording, header: Header, processing: Processing) -> Windows:
    """Return the windows of a recording.

    Filters reach over the whole recording, though not over its breaks.

    Args:
        source: the file; a label of it is used for windows of fixed length.
        recording: as `open_recording` returns it; its values are read, it stays as it is.
        header: likewise.
        processing: what to do.

    Raises:
        FileError: no window can be had, or none that could be trusted; its finding says why, and what to do.
        SettingError: windows that cannot be at this rate, whatever the file.
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
    with np.errstate(over="ignore"):  # the checks tell of infinite values
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
    processing: Processing,
) -> list[Finding]:
    """Repair and filter `values` of these channels, at `rate` Hz, in place; mere references are not filtered."""
    types = [header.types[header.channels.index(name)] for name in names]
    own = len(processing.channels) if processing.reference == "average" else len(names)
    findings = repair(values, rate, names, types, marked, header.uncalibrated, source.name, processing, own)
    chosen = values[: len(processing.channels)]
    return findings + filter_in_place(chosen, rate, pauses, source, processing)


def _check_request(recording: Recording, header: Header, slowest: float, processing: Processing) -> None:
    """Refuse what cannot be done with a file whose slowest channel has this rate in Hz, or with epochs."""
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
def _picked(header: Header, processing: Processing) -> tuple[list[str], list[Finding]]:
    """Return the channels to read: those asked for, in that order, then those that only count as references."""
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
            there = f"channel {name!r} of data.reference is not there{did_you_mean(name, known)}"
            refuse("reference", there, f"one of {some(known)}", "Set data: {reference: average}")
    if len(references) == 1 and processing.reference != "average" and references[0] in wanted:
        found = f"{references[0]} is the reference, so it is 0 everywhere"
        remedy = "Leave it out of data.channels"
        findings.append(Finding("reference", found, "channels that vary", remedy, "noted"))
    return [*wanted, *(name for name in references if name not in wanted)], findings


def _read(recording: Recording, places: Sequence[int]) -> Values:
    """Return the values of channels, in the order of `places`, in volts."""
    values: Values = recording.get_data(picks=list(places))
    return np.ascontiguousarray(values.swapaxes(0, 1)) if is_epochs(recording) else values


def _events(recording: Recording, origin: str) -> list[Event]:
    """Return the events of a recording, of a continuous one also what marks its bad parts and breaks."""
    if is_epochs(recording):
        onsets = (recording.events[:, 0] / recording.info["sfreq"]).tolist()
        return [(onset, 0.0, name) for onset, name in zip(onsets, event_names(recording), strict=True)]
    gaps = [
        (float(note["onset"] - recording.first_time), float(note["duration"]), str(note["description"]))
        for note in recording.annotations
        if is_gap(note["description"])
    ]
    return event_list(recording, origin) + gaps


# ------------------------------------------------------------------------------------------------ windows
def _cuts(
    recording: Recording, events: Sequence[Event], source: Source, header: Header, rate: float, processing: Processing
) -> Cuts:
    """Return which windows to cut from values that come to `rate` Hz first; known before any value is read."""
    if not is_epochs(recording):
        total = samples_at(samples_at(recording.n_times, header.rate, rate), rate, processing.rate)
        return plan(events, total, source.label, processing, "stim" in header.types)
    numbered = [(number, 0.0, name) for number, (_, _, name) in enumerate(events)]
    index, _, y = zip(*labelled(numbered, processing), strict=True)
    onset = np.array([events[number][0] for number in index]) + processing.tmin
    return Cuts(np.array(index, np.int64), np.array(y, np.int64), onset)


def _first_sample(header: Header, processing: Processing, total: int) -> int | None:
    """Return where in an epoch of `total` samples its window begins, `None` of a continuous recording."""
    if not header.epochs:
        return None
    return min(round((processing.tmin - header.tmin) * processing.rate), total - processing.times)


def _cut(values: Values, first: int | None, cuts: Cuts, findings: Sequence[Finding], processing: Processing) -> Windows:
    """Copy the windows out of `values`, which moving standardisation changes."""
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
