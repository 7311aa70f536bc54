"""One opened EEG recording -> its windows: values read and checked, repaired, filtered, resampled, cut."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fne.data.eeg_checks import LEAVE_OUT, refuse, some
from fne.data.eeg_faults import explain
from fne.data.eeg_reading import event_list, event_names, is_epochs, listening
from fne.data.eeg_recording import Header, Processing, Source, Windows
from fne.data.eeg_repair import repair
from fne.data.eeg_windows import Cuts, Event, breaks, is_gap, labelled, left_out, plan
from fne.errors import did_you_mean
from fne.findings import FileError, Finding

Recording = Any
"""`mne.io.BaseRaw` or `mne.BaseEpochs`."""
Values = NDArray[np.float64]
"""`[channels, times]` of a continuous recording, `[channels, epochs, times]` of one that is cut into epochs."""
_TO_MICROVOLTS = 1e6
_PADDING = 1000
"""Samples by which a recording is continued at both ends, at least, before it is resampled."""


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
    """
    _check_request(recording, header, processing)
    names, findings = _picked(header, processing)
    try:
        with listening(source, findings):
            events = _events(recording, processing.events)
            cuts = _cuts(recording, events, source, processing)
            values = _read(recording, [header.channels.index(name) for name in names])
    except FileError:
        raise
    except Exception as error:
        raise FileError(explain(error, source)) from error
    values *= _TO_MICROVOLTS * processing.scale
    types = [header.types[header.channels.index(name)] for name in names]
    findings += repair(values, header.rate, names, types, recording.info["bads"], source.name, processing)
    values = values[: len(processing.channels)]  # without references that nobody asked for as channels
    findings += filter_in_place(values, header.rate, breaks(events), source, processing)
    values = resampled(values, header.rate, processing.rate)
    findings += cuts.findings
    return _cut(values, _first_sample(header, processing, values.shape[-1]), cuts, findings, processing)


def _check_request(recording: Recording, header: Header, processing: Processing) -> None:
    """Refuse what cannot be done with a file of this rate, or with epochs."""
    half = min(header.rate, processing.rate) / 2
    if processing.high >= half:
        refuse(
            "filter",
            f"data.high = {processing.high:g} Hz, sampled at {header.rate:g} Hz and used at {processing.rate:g} Hz",
            f"data.high below half the lower rate, {half:g} Hz",
            f"Set data: {{high: {0.8 * half:g}}} or null",
        )
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
    """Return the channels to read: those asked for, in that order, then those that are only references."""
    wanted, known = processing.channels, header.channels
    missing = [name for name in wanted if name not in known]
    if missing:
        refuse(
            "channels",
            f"{len(missing)} of {len(wanted)} channels are missing: {some(missing)}",
            f"channels {some(wanted)}",
            f"Set data: {{channels: common}} for those that all files share, or {LEAVE_OUT}",
        )
    references = [] if isinstance(processing.reference, str) else list(processing.reference)
    for name in references:
        if name not in known:
            there = f"channel {name!r} of data.reference is not there{did_you_mean(name, known)}"
            refuse("reference", there, f"one of {some(known)}", "Set data: {reference: average}")
    findings = []
    places = [known.index(name) for name in wanted]
    if places != sorted(places):
        order = f"channels in another order, beginning {some(known[:3])}"
        remedy = "They are put in order by name"
        findings.append(Finding("channels", order, f"the order {some(wanted[:3])} ...", remedy, "repaired"))
    if len(references) == 1 and references[0] in wanted:
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


# ------------------------------------------------------------------------------------------------ filters
def filter_in_place(
    values: Values, rate: float, pauses: Sequence[float], source: Source, processing: Processing
) -> list[Finding]:
    """Take the mains frequency and what is outside the band-pass out of `values`, changed in place.

    Args:
        values: in microvolts at `rate` Hz.
        rate: at least twice `processing.high`.
        pauses: where the recording was interrupted, in seconds; each piece between is filtered by itself.
        source: the file, for what is noted.
        processing: with `low`, `high`, `notch` in Hz, 0: none.
    """
    import mne

    low, high, notch = processing.low, processing.high, processing.notch
    # A notch at f is f / 200 wide, and its slopes are 0.5 Hz: all that must lie below half the rate.
    harmonics = (
        [k * notch for k in range(1, int(rate / 2 / notch) + 1) if k * notch * 1.0025 + 0.5 < rate / 2] if notch else []
    )
    findings, heard = [], list[Finding]()
    if notch and not harmonics:
        found = f"data.notch = {notch:g} Hz is not below half the sampling rate of {rate:g} Hz"
        findings.append(Finding("filter", found, "a notch within the signal", "Nothing to do", "noted"))
    length = values.shape[-1]
    inner = sorted({edge for pause in pauses if 0 < (edge := round(pause * rate)) < length})
    with listening(source, heard):
        for channel in values:  # one at a time, since MNE copies what it filters
            for first, end in pairwise([0, *inner, length]):
                piece = channel[..., first:end]
                if harmonics:
                    piece[...] = mne.filter.notch_filter(piece, rate, harmonics)
                if low or high:
                    piece[...] = mne.filter.filter_data(piece, rate, low or None, high or None)
    if heard:  # one for many pieces
        expected, remedy = "pieces longer than the filter", "Set data.low higher, or leave out data.low and data.notch"
        findings.append(replace(heard[0], kind="filter", expected=expected, remedy=remedy))
    return findings


def resampled(values: Values, rate: float, new: float) -> Values:
    """Return `values` `[..., times]` at `new` Hz in place of `rate`, sample 0 where it was, by Fourier transforms.

    MNE's own pads to lengths that the ratio of the rates does not divide, which moves the signal by up to half a
    sample. Here both lengths are multiples of it.
    """
    import scipy.fft
    import scipy.signal

    ratio = Fraction(new / rate).limit_denominator(10_000)
    if ratio == 1:
        return values
    up, down = ratio.numerator, ratio.denominator
    length, total = values.shape[-1], round(values.shape[-1] * new / rate)
    blocks = scipy.fft.next_fast_len(math.ceil((length + 2 * max(_PADDING, down)) / down), real=True)
    before = (blocks * down - length) // 2 // down
    after = (blocks - before) * down - length
    result = np.empty((*values.shape[:-1], total))
    for place in np.ndindex(values.shape[:-1]):
        signal = values[place]
        slope = (signal[-1] - signal[0]) / max(
            1, length - 1
        )  # taken out meanwhile: the transform takes the ends for neighbours
        padded = np.pad(signal - slope * np.arange(length), (before * down, after), "reflect", reflect_type="odd")
        result[place] = scipy.signal.resample(padded, blocks * up)[before * up :][:total]
        result[place] += slope * rate / new * np.arange(total)
    return result


def moving_standardise(values: Values, factor: float = 1e-3, first: int = 1000, eps: float = 1e-4) -> None:
    """Change each channel of `values` `[channels, times]` in place by its exponentially weighted mean and deviation.

    Schirrmeister et al. (2017) and their braindecode: mean m[t] and variance v[t] of all samples up to t, with weights
    that fall by 1 - `factor` a sample and sum to 1; the deviations in v are each from the mean at their own time. The
    `first` samples are standardised by their own mean and deviation instead, and no deviation counts less than `eps`.
    """
    import scipy.signal

    decay = 1 - factor
    weights = -np.expm1(np.arange(1, values.shape[-1] + 1) * math.log1p(-factor)) / factor  # sum of decay ** i

    def mean(signal: Values) -> Values:
        return np.asarray(scipy.signal.lfilter([1.0], [1.0, -decay], signal) / weights)

    for channel in values:
        begin = channel[:first].copy()
        channel -= mean(channel)
        channel /= np.maximum(eps, np.sqrt(mean(channel * channel)))
        channel[:first] = (begin - begin.mean()) / max(eps, begin.std())


# ------------------------------------------------------------------------------------------------ windows
def _cuts(recording: Recording, events: Sequence[Event], source: Source, processing: Processing) -> Cuts:
    """Return which windows to cut; known before any value is read."""
    if not is_epochs(recording):
        total = round(recording.n_times * (processing.rate / recording.info["sfreq"]))
        return plan(events, total, source.label, processing)
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
