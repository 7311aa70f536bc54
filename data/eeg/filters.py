"""Filters, resampling and moving standardisation of continuous values, or of epochs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import pairwise, product

import numpy as np
from numpy.typing import NDArray

from fne.core.findings import Finding
from fne.data.eeg.open import listening
from fne.data.eeg.quality import refuse
from fne.data.eeg.recording import Preprocessing, Source

Values = NDArray[np.float64]
"""`[channels, times]` of a continuous recording, `[channels, epochs, times]` of one that is cut into epochs."""
_PADDING = 1000
"""Samples by which a recording is continued at both ends, at least, before it is resampled."""
_DISPLACED = 0.25
"""Samples, below which resampling may displace the last one."""
_MOST = 100
"""Times a file's rate to which it may be resampled."""
_CYCLES = 3.3
"""Length of MNE's filters times the width of their slopes, which is `low` up to 2 Hz."""
_BLOCK = 1 << 23
"""Bytes of channels that are filtered by one call, which MNE copies; a call for each would make each filter anew."""
_NOTCH = 2.0
"""Hz; below, the slopes of one notch would reach into those of the next."""
_LONG = 1000.0
"""Seconds that a filter may last even if the recording is shorter."""


def check_band(rate: float, seconds: float, processing: Preprocessing) -> None:
    """Refuse filters and rates that cannot be with a file of this rate in Hz and this length.

    Raises:
        FileError: `low` or `high` beyond what is sampled, `low` so small that its filter would never end, `rate` so
            high that it would fill the memory with nothing.
    """
    if processing.rate > _MOST * rate:
        found = f"data.resample = {processing.rate:g} Hz, sampled at {rate:g} Hz"
        remedy = f"Set data: {{resample: {rate:g}}}, as no higher rate holds more"
        refuse("rate", found, f"data.resample up to {_MOST * rate:g} Hz", remedy)
    half = min(rate, processing.rate) / 2
    for key in ("low", "high"):
        value = getattr(processing, key)
        if value >= half:
            refuse(
                "filter",
                f"data.{key} = {value:g} Hz, sampled at {rate:g} Hz and used at {processing.rate:g} Hz",
                f"data.{key} below half the lower rate, {half:g} Hz",
                f"Set data: {{{key}: {0.8 * half:g}}} or null" if key == "high" else "Set data: {low: null}, or lower",
            )
    if 0 < processing.notch < _NOTCH:
        found, expected = f"data.notch = {processing.notch:g} Hz", f"a mains frequency, at least {_NOTCH:g} Hz"
        refuse("filter", found, expected, "Set data: {notch: 50}, 60 or null")
    longest = max(seconds, _LONG)
    if processing.low and _CYCLES / processing.low > longest:
        least = math.ceil(1e4 * _CYCLES / longest) / 1e4
        refuse(
            "filter",
            f"data.low = {processing.low:g} Hz needs a filter of {_CYCLES / processing.low:.4g} s",
            f"a filter of at most {longest:g} s",
            f"Set data: {{low: {least:g}}} or higher, or null",
        )


def filter_in_place(
    values: Values, rate: float, pauses: Sequence[float], source: Source, processing: Preprocessing
) -> list[Finding]:
    """Take the mains frequency and what is outside the band-pass out of `values`, changed in place.

    Args:
        values: in microvolts at `rate` Hz.
        rate: at least twice `processing.high`.
        pauses: where the recording was interrupted, in seconds; each piece between is filtered by itself.
        source: the file, for what is noted.
        processing: with `low`, `high`, `notch` in Hz, 0: none.

    Raises:
        FileError: MNE cannot make the filter.
    """
    from mne.filter import filter_data, notch_filter

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

    together = max(1, _BLOCK // max(1, values[:1].nbytes))
    blocks = [values[number : number + together] for number in range(0, len(values), together)]
    with listening(source, heard):
        for block, (first, end) in product(blocks, pairwise([0, *inner, length])):
            piece = block[..., first:end]
            if harmonics:
                _apply(piece, f"data.notch = {notch:g} Hz", partial(notch_filter, Fs=rate, freqs=harmonics))
            if low or high:
                band = partial(filter_data, sfreq=rate, l_freq=low or None, h_freq=high or None)
                ends = [f"data.{key} = {value:g} Hz" for key, value in (("low", low), ("high", high)) if value]
                _apply(piece, " and ".join(ends), band)
    if heard:  # one for many pieces
        expected, remedy = "pieces longer than the filter", "Set data.low higher, or leave out data.low and data.notch"
        findings.append(replace(heard[0], kind="filter", expected=expected, remedy=remedy))
    return findings


def _apply(piece: Values, what: str, apply: Callable[..., Values]) -> None:
    """Filter in place; `what` are the settings to name where that cannot be."""
    try:
        piece[...] = apply(piece, copy=False)
    except ValueError as error:
        said = " ".join(str(error).split()).rstrip(".")
        refuse("filter", f"{what}: MNE says {said}", "a filter that can be made", "Set another value, or null for none")


def samples_at(length: int, rate: float, new: float) -> int:
    """Return how many samples at `new` Hz become of `length` at `rate` Hz."""
    return round(length * new / rate)


def resampled(values: Values, rate: float, new: float) -> Values:
    """Return `values` `[..., times]` at `new` Hz in place of `rate`, sample 0 where it was, by Fourier transforms.

    MNE's own pads to lengths that the ratio of the rates does not divide, which moves the signal by up to half a
    sample. Here both lengths are multiples of it. Where the ratio has no small denominator, the nearest one is taken
    that displaces the last sample by less than a quarter of one.
    """
    import scipy.fft
    import scipy.signal

    length, total = values.shape[-1], samples_at(values.shape[-1], rate, new)
    exact, limit = Fraction(new) / Fraction(rate), 10_000
    while abs((ratio := exact.limit_denominator(limit)) - exact) * length >= _DISPLACED:
        limit *= 2
    if ratio == 1:
        return values
    up, down = ratio.numerator, ratio.denominator
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


def as_sampled(values: Values, read: float, rates: Sequence[float], rate: float) -> Values:
    """Return continuous `values` `[channels, times]`, which MNE read at one rate for all channels, at `rate` Hz.

    MNE brings slower channels to the highest rate by a Fourier transform without padding; the same transform back
    returns the very samples of the file.

    Args:
        values: at `read` Hz.
        read: the highest rate of the file, in Hz.
        rates: at which each of the channels was sampled, in Hz.
        rate: the rate to return.
    """
    import scipy.signal

    if read == rate:
        return values
    total = samples_at(values.shape[-1], read, rate)
    result = np.empty((len(values), total))
    for number, (signal, own) in enumerate(zip(values, rates, strict=True)):
        result[number] = scipy.signal.resample(signal, total) if own <= rate else resampled(signal, read, rate)
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
