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

from fne.core.dataset import Finding
from fne.data.eeg.open import listening
from fne.data.eeg.quality import refuse
from fne.data.eeg.recording import Preprocessing, Source

Values = NDArray[np.float64]
"""`[channels, times]` of a continuous recording, `[channels, epochs, times]` of one that is cut into epochs."""
_PADDING = 1000
"""Least number of samples by which a recording is extended at both ends before resampling."""
_DISPLACED = 0.25
"""Displacement of the last sample, in samples, that resampling stays below."""
_MOST = 100
"""Largest ratio of the new rate to the rate of a file."""
_CYCLES = 3.3
"""Length of MNE's filters in seconds times the width of their slopes in Hz; up to 2 Hz, that width is `low`."""
_BLOCK = 1 << 23
"""Bytes of channels per filter call: MNE copies them, and a call for each channel would design each filter anew."""
_NOTCH = 2.0
"""Lowest notch frequency in Hz; below, the slopes of neighbouring notches would overlap."""
_LONG = 1000.0
"""Length of a filter in seconds that is allowed even if the recording is shorter."""


def check_band(rate: float, seconds: float, processing: Preprocessing) -> None:
    """Refuse filters and rates that are impossible for a file.

    Args:
        rate: sampling rate of the file in Hz.
        seconds: length of the recording.
        processing: settings of the filters and the new rate.

    Raises:
        FileError: `low` or `high` is not below half the sampling rate, `low` is so small that its filter would be too
            long, or `rate` is so high that resampling would fill the memory without adding information.
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
    """Apply the notch filter and the band-pass in place.

    Args:
        values: values in microvolts at `rate` Hz.
        rate: sampling rate in Hz, at least twice `processing.high`.
        pauses: times in seconds at which the recording was interrupted; each piece between them is filtered by itself.
        source: the file, for findings.
        processing: settings with `low`, `high`, `notch` in Hz, 0: none.

    Raises:
        FileError: MNE cannot design the filter.
    """
    from mne.filter import filter_data, notch_filter

    low, high, notch = processing.low, processing.high, processing.notch
    # A notch at f is f / 200 wide with slopes of 0.5 Hz, all of which must be below half the rate.
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
    if heard:  # one finding stands for all pieces
        expected, remedy = "pieces longer than the filter", "Set data.low higher, or leave out data.low and data.notch"
        findings.append(replace(heard[0], kind="filter", expected=expected, remedy=remedy))
    return findings


def _apply(piece: Values, what: str, apply: Callable[..., Values]) -> None:
    """Filter in place; `what` names the settings for the case that the filter cannot be made."""
    try:
        piece[...] = apply(piece, copy=False)
    except ValueError as error:
        said = " ".join(str(error).split()).rstrip(".")
        refuse("filter", f"{what}: MNE says {said}", "a filter that can be made", "Set another value, or null for none")


def samples_at(length: int, rate: float, new: float) -> int:
    """Return the number of samples at `new` Hz that correspond to `length` samples at `rate` Hz."""
    return round(length * new / rate)


def resampled(values: Values, rate: float, new: float) -> Values:
    """Return `values` `[..., times]`, resampled from `rate` to `new` Hz by Fourier transforms; sample 0 keeps its time.

    MNE pads to lengths that do not fit the ratio of the rates, which moves the signal by up to half a sample. Here
    the lengths before and after are multiples of the ratio's denominator and numerator. If these are large, the nearest
    ratio is used that displaces the last sample by less than a quarter of a sample.
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
        )  # removed for the transform, which treats both ends as neighbours
        padded = np.pad(signal - slope * np.arange(length), (before * down, after), "reflect", reflect_type="odd")
        result[place] = scipy.signal.resample(padded, blocks * up)[before * up :][:total]
        result[place] += slope * rate / new * np.arange(total)
    return result


def as_sampled(values: Values, read: float, rates: Sequence[float], rate: float) -> Values:
    """Return continuous values, which MNE read at one rate for all channels, at `rate` Hz.

    MNE resamples slower channels to the highest rate by a Fourier transform without padding; the inverse transform
    restores the samples of the file.

    Args:
        values: values at `read` Hz, `[channels, times]`.
        read: highest sampling rate of the file in Hz.
        rates: sampling rate of each channel in Hz.
        rate: sampling rate of the result in Hz.
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
    """Standardise each channel of `values` `[channels, times]` in place by exponentially weighted mean and deviation.

    The method is that of Schirrmeister et al. (2017) and braindecode. Mean m[t] and variance v[t] are over all samples
    up to t, with weights that fall by a factor of 1 - `factor` per sample and sum to 1; v uses the deviation of each
    sample from the mean at its own time. The `first` samples are standardised by their own mean and deviation instead.
    A deviation below `eps` is replaced by `eps`.
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
