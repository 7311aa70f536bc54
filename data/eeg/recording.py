"""What the parts of the EEG loader hand to each other: a file's place, its header, its windows. No MNE in here."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fne.core.findings import Finding

_SAME = 1e-4
"""Relative difference of equal sampling rates: formats keep them as float32, in whole microseconds or as text."""


def same_rate(one: float, other: float) -> bool:
    """Whether two sampling rates are equal but for how formats round them: 1000 samples differ by a tenth of one."""
    return math.isclose(one, other, rel_tol=_SAME)


@dataclass(frozen=True)
class Source:
    """One recording's main file and whose it is.

    Args:
        path: the file that a reader is given (`.vhdr` of a BrainVision triple, `.set` beside a `.fdt`).
        name: its path below the data set's folder, as reports show it.
        subject: from the path or from BIDS.
        session, run, site, label: likewise, empty where nothing says.
        root: the BIDS root, where it is one.
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
    """What a file says before its values are read.

    Args:
        channels: names of all channels, spelled the common way (`Fc5.` is `FC5`).
        types: MNE's type of each, `eeg`, `eog`, `stim` and so on; by its name where the file calls an EOG an EEG.
        rate: of the values as they are read, in Hz.
        seconds: length; of epochs, of all together.
        events: how often each event occurs.
        epochs: how many, 0 for a continuous recording.
        tmin, tmax: of epochs, their first and last sample, in seconds from the event.
        findings: what was noted on the way.
        uncalibrated: channel -> why its values have no scale, by the file's header.
        rates: at which each channel was sampled, in Hz; empty: `rate`. MNE reads all channels at the highest one.
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
        """Return the lowest and the highest rate in Hz at which these channels were sampled, if they are there."""
        rates = [rate for name, rate in zip(self.channels, self.rates, strict=False) if name in channels]
        return (min(rates), max(rates)) if rates else (self.rate, self.rate)


@dataclass(frozen=True)
class Preprocessing:
    """All that decides the values of a file's windows; two equal ones give equal windows.

    Args:
        channels: which ones, in this order.
        rate: in Hz, what files are resampled to.
        labels: event (a name, or a pattern such as `left/*`) -> class.
        classes: their names, in the order of the labels `y`.
        events: where events come from: `annotations`, `stim`, or `auto`.
        tmin, tmax: window around an event, in seconds; tmax is not included.
        length, step: in seconds, windows of fixed length in place of those; `length` 0: around events.
        low, high: band-pass in Hz, 0: none.
        notch: in Hz, with its harmonics; 0: none.
        reference: `none`, `average`, or names of channels.
        scale: factor for the values, beside that from volts to microvolts.
        bad_channels: what to do with channels that are flat, hold NaN or are in another unit: `refuse`,
            `interpolate`, `zero`.
        moving: exponential moving standardisation of the continuous recording.
        reject: windows of a larger peak-to-peak amplitude are left out, in microvolts; 0: none.
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
        """Samples of a window."""
        return round((self.length or self.tmax - self.tmin) * self.rate)


@dataclass(frozen=True)
class Windows:
    """A file's windows.

    Args:
        x: float32 `[n, channels, times]`, in microvolts.
        y: int64 `[n]`, their classes.
        onset: `[n]`, where each begins, in seconds from the first sample.
        findings: what was noted and repaired.
        sketch: float32 `[n, 32]`, some values of each, by which a repeated one is known (`fne.data.eeg.repeats`).
    """

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    onset: NDArray[np.float64]
    findings: tuple[Finding, ...] = ()
    sketch: NDArray[np.float32] = field(default_factory=lambda: np.empty((0, 0), np.float32))
