"""Repair of an EEG recording's values, in place: scale, bad channels, reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fne.core.dataset import Finding
from fne.data.eeg.open import montage
from fne.data.eeg.quality import broken_channels, check_channels, check_scale, level, refuse, some, strength
from fne.data.eeg.recording import Processing

_CENTRE = (0.0, 0.015, 0.041)
"""Of the sphere through all positions of the montage, in metres; MNE would fit one to a recording's own, maybe few."""
_SOURCES = 4
"""Good channels that an interpolation needs at least."""


def repair(
    values: NDArray[np.float64],
    rate: float,
    names: Sequence[str],
    types: Sequence[str],
    marked: Sequence[str],
    uncalibrated: Mapping[str, str],
    file: str,
    processing: Processing,
    own: int | None = None,
) -> list[Finding]:
    """Check `values` in microvolts, `[channels, times]` or `[channels, epochs, times]`, and change them in place.

    Args:
        values: read, and multiplied by `processing.scale`.
        rate: in Hz.
        names, types: of the channels.
        marked: channels that the file calls bad.
        uncalibrated: channels whose values have no scale by the file's header, and why.
        file: its name, for what is said about it.
        processing: says what is done with bad channels, and what the reference is.
        own: how many of the channels must be good or repaired; the others only count for the average, if they are good.

    Raises:
        FileError: values of another unit, channels that cannot be used or repaired.
    """
    eeg = np.array([kind == "eeg" for kind in types])
    if not eeg.any():
        eeg[:] = True  # electrodes on or in the brain, say: the user asked for this type
    own = len(values) if own is None else own
    measured = strength(values[:own], rate)
    findings = [*check_scale(measured, names[:own], eeg[:own], file, processing.scale)]
    bad, found = check_channels(measured, names[:own], eeg[:own], marked, uncalibrated, processing)
    median = level(measured.deviation, eeg[:own])
    rows = values.reshape(len(values), -1)
    where = [names.index(name) for name in bad]
    if bad and processing.bad_channels == "interpolate":
        interpolate(rows[:own], names[:own], eeg[:own], bad)
    elif bad:
        rows[where] = 0
    if processing.reference != "none":
        zeroed = bad if processing.bad_channels == "zero" else []
        if processing.reference == "average":
            lost, told = _lost(values[own:], rate, names[own:], eeg[own:], marked, uncalibrated, median)
            findings += told
            counting = _average(names, eeg, {*zeroed, *lost, *(set(marked) - set(bad))})
        else:
            counting = _named(names, bad, processing.reference)
        # By hand, since MNE copies all values twice for it.
        mean = rows.mean(axis=0, where=counting[:, None])
        np.subtract(rows, mean, out=rows, where=eeg[:, None])
        rows[[names.index(name) for name in zeroed]] = 0
    return [*findings, *found]


def interpolate(rows: NDArray[np.float64], names: Sequence[str], eeg: NDArray[np.bool_], bad: Sequence[str]) -> None:
    """Replace channels by spherical splines through the good ones (Perrin et al. 1989), by names of the 10-05 system.

    Args:
        rows: values `[channels, times]`, changed in place.
        names: of the channels.
        eeg: which of them are EEG `[channels]`.
        bad: which ones are replaced.

    Raises:
        FileError: one has no position, or too few good ones have.
    """
    places = montage()
    known = {name.lower() for name in places.ch_names}
    placed = [name for name, is_eeg in zip(names, eeg, strict=True) if is_eeg and name.lower() in known]
    lost = [name for name in bad if name not in placed]
    good = [name for name in placed if name not in bad]
    if lost or len(good) < _SOURCES:
        found = f"no position is known of {some(lost)}" if lost else f"{len(good)} good channels have a known position"
        expected = f"EEG channels named as in the 10-05 system, {_SOURCES} good ones at least, to interpolate from"
        out = f"leave {some(list(bad))} out of data.channels"
        refuse("interpolate", found, expected, f"Set data: {{bad_channels: zero}}, or {out}")
    raw = _raw(rows, names, [name in placed for name in names])
    raw.set_montage(places, match_case=False, on_missing="ignore", verbose="ERROR")
    raw.info["bads"] = list(bad)
    raw.interpolate_bads(origin=_CENTRE, verbose="ERROR")


def _lost(
    values: NDArray[np.float64],
    rate: float,
    names: Sequence[str],
    eeg: NDArray[np.bool_],
    marked: Sequence[str],
    uncalibrated: Mapping[str, str],
    median: float,
) -> tuple[list[str], list[Finding]]:
    """Return which of the channels that only count for the average are no good, and the finding about other units."""
    if not len(values):
        return [], []
    lost = broken_channels(strength(values, rate), names, eeg, uncalibrated, median)
    units = [why for name, (kind, why) in lost.items() if kind == "scale" and name not in marked]
    if not units:
        return list(lost), []
    remedy = "Nothing to do: they do not count for the average reference, and are not among data.channels"
    return list(lost), [Finding("reference", some(units), "channels in the unit of the others", remedy, "noted")]


def _average(names: Sequence[str], eeg: NDArray[np.bool_], without: set[str]) -> NDArray[np.bool_]:
    """Return which channels the average is over: EEG, as in MNE without bad ones `[channels]`."""
    counting: NDArray[np.bool_] = eeg & np.array([name not in without for name in names])
    count = int(counting.sum())
    if count < 2:
        found = f"data.reference = average of {count} channel, which is then 0 everywhere"
        refuse("reference", found, "several good EEG channels in the file", "Set data: {reference: none}")
    return counting


def _named(names: Sequence[str], bad: Sequence[str], reference: Sequence[str]) -> NDArray[np.bool_]:
    """Return which channels are the reference `[channels]`."""
    if broken := [name for name in reference if name in bad]:
        found = f"channel {some(broken)} of data.reference is bad: flat, with NaN, or marked as bad"
        remedy = "Set data: {reference: average}, or none if the recording has this reference already"
        refuse("reference", found, "a reference that was recorded well", remedy)
    return np.array([name in reference for name in names])


def _raw(rows: NDArray[np.float64], names: Sequence[str], eeg: Sequence[bool]) -> Any:
    """Return a recording that shares the memory of `rows`."""
    import mne

    info = mne.create_info(list(names), 1.0, ["eeg" if is_eeg else "misc" for is_eeg in eeg], verbose="ERROR")
    raw = mne.io.RawArray(rows, info, copy="auto", verbose="ERROR")
    assert np.shares_memory(raw._data, rows)
    return raw
