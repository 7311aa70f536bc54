"""Data classes of the EEG loader: a recording's file, its header, its preprocessing, its windows. MNE is not needed."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fne.core.dataset import Finding

_SAME = 1e-4
"""Relative difference up to which sampling rates are equal: formats round them to float32, microseconds or text."""


def same_rate(one: float, other: float) -> bool:
    """Return whether two sampling rates are equal up to the rounding of formats, a tenth of a sample in 1000."""
    return math.isclose(one, other, rel_tol=_SAME)


@dataclass(frozen=True)
class Source:
    """Main file of one recording, and the subject that was recorded.

    Args:
        path: file that a reader opens (`.vhdr` of a BrainVision triple, `.set` beside a `.fdt`).
        name: path of the file below the data set's folder, as reports show it.
        subject: name of the subject, from the path or from BIDS.
        session, run, site, label: names from the same source; empty where neither says.
        root: BIDS root of the recording; `None` where it is not read as BIDS.
    """

    path: Path
    name: str
    subject: str
    session: str = ""
    run: str = ""
    site: str = ""
    label: str = ""
    root: Path | None = None


@dataclass(frozen=True)
class Header:
    """Facts about a file that are known before its values are read.

    Args:
        channels: names of all channels, spelled the common way (`Fc5.` is `FC5`).
        types: MNE's type of each channel, such as `eeg`, `eog`, `stim`; by its name where the file calls an EOG an EEG.
        rate: sampling rate of the values as they are read, in Hz.
        seconds: length of the recording, or of all its epochs together.
        events: event -> number of times that the event occurs.
        epochs: number of epochs, 0 for a continuous recording.
        tmin, tmax: times of the first and the last sample of an epoch, in seconds from the event.
        findings: findings from opening the file.
        uncalibrated: channel -> why its values have no scale, by the file's header.
        rates: sampling rate of each channel in Hz, empty where all are `rate`. MNE reads all at the highest rate.
    """

    channels: tuple[str, ...]
    types: tuple[str, ...]
    rate: float
    seconds: float
    events: Mapping[str, int]
    epochs: int = 0
    tmin: float = 0.0
    tmax: float = 0.0
    findings: tuple[Finding, ...] = ()
    uncalibrated: Mapping[str, str] = field(default_factory=dict)
    rates: tuple[float, ...] = ()

    def rates_of(self, channels: Collection[str]) -> tuple[float, float]:
        """Return the lowest and the highest sampling rate, in Hz, of those `channels` that the file has."""
        rates = [rate for name, rate in zip(self.channels, self.rates, strict=False) if name in channels]
        return (min(rates), max(rates)) if rates else (self.rate, self.rate)


@dataclass(frozen=True)
class Preprocessing:
    """Settings that decide the values of a file's windows: equal settings give equal windows.

    Args:
        channels: names of the channels, in the order of `x`.
        rate: sampling rate that files are brought to, in Hz.
        labels: event (a name, or a pattern such as `left/*`) -> class.
        classes: names of the classes, in the order of the labels `y`.
        events: source of the events: `annotations`, `stim`, or `auto`.
        tmin, tmax: begin and end of the window around an event, in seconds; the sample at tmax is excluded.
        length, step: length and distance of windows of fixed length, in seconds; `length` 0: windows around events.
        low, high: ends of the band-pass in Hz, 0: none.
        notch: mains frequency that is removed with its harmonics, in Hz; 0: none.
        reference: `none`, `average`, or names of channels.
        scale: factor that values in microvolts are multiplied by.
        bad_channels: treatment of channels that are flat, hold NaN or are in another unit: `refuse`,
            `interpolate`, `zero`.
        moving: whether the continuous recording is standardised by exponentially moving statistics.
        reject: peak-to-peak amplitude in microvolts above which a window is left out; 0: no limit.
    """

    channels: tuple[str, ...]
    rate: float
    labels: tuple[tuple[str, str], ...]
    classes: tuple[str, ...]
    events: str = "auto"
    tmin: float = 0.0
    tmax: float = 1.0
    length: float = 0.0
    step: float = 0.0
    low: float = 0.0
    high: float = 0.0
    notch: float = 0.0
    reference: str | tuple[str, ...] = "none"
    scale: float = 1.0
    bad_channels: str = "refuse"
    moving: bool = False
    reject: float = 0.0

    @property
    def times(self) -> int:
        """Number of samples in a window."""
        return round((self.length or self.tmax - self.tmin) * self.rate)


@dataclass(frozen=True)
class Windows:
    """Windows of one file.

    Args:
        x: values in microvolts, float32 `[n, channels, times]`.
        y: classes, int64 `[n]`.
        onset: begin of each window in seconds from the first sample, `[n]`.
        findings: notes and repairs.
        sketch: values by which a repeated window is recognised (`fne.data.eeg.repeats`), float32 `[n, 32]`.
    """

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    onset: NDArray[np.float64]
    findings: tuple[Finding, ...] = ()
    sketch: NDArray[np.float32] = field(default_factory=lambda: np.empty((0, 0), np.float32))
