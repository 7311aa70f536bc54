"""Quality of an EEG recording: checks for wrong units and bad channels, and repair of channels and reference.

Without these checks such values would spoil training silently.
"""

from __future__ import annotations

import glob
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from fne.core.dataset import FileError, Finding
from fne.data.eeg.channels import montage
from fne.data.eeg.recording import Preprocessing

LEAST, MOST = 0.1, 1000.0
"""Bounds of the median deviation of an EEG, in microvolts; most recordings have 5 to 50."""
_TYPICAL = 30.0
"""Typical median deviation, in microvolts, from which the power of 1000 of a wrong unit is computed."""
_FLAT = 1e-3
"""Deviation of a flat channel, in microvolts: less than the noise (0.1) and steps (0.02) of any amplifier."""
_UNITS = {
    2: "microvolts that the file calls volts",
    1: "microvolts that the file calls millivolts",
    -1: "millivolts that the file calls microvolts",
    -2: "volts that the file calls microvolts",
}
"""Power of 1000 by which values are too large -> likely cause."""
_ODD = 2.25
"""Distance of a channel from the others, in decades, that noise, muscles or a quiet position cannot explain.

A wrong unit makes 3 or 6 decades, and good channels differ by up to 0.75 (a factor of 5.6). A noisy channel with 30
times the deviation of the others is at 1.5.
"""
_HUGE = 1e100
"""Magnitude in microvolts below which no sum of squares overflows."""
_CENTRE = (0.0, 0.015, 0.041)
"""Centre, in metres, of the sphere through all positions of the montage; MNE would fit it to a recording's few."""
_SOURCES = 4
"""Least number of good channels for an interpolation."""
LEAVE_OUT = "leave the file out by data.pattern"
_NAMES = 8
"""Names that a message lists before it counts the rest."""


def refuse(kind: str, found: str, expected: str, remedy: str) -> NoReturn:
    """Raise `FileError` with the finding that a file cannot be used."""
    raise FileError(Finding(kind, found, expected, remedy, "refused"))


def some(names: Sequence[str]) -> str:
    """Return the first names as text, and how many more there are."""
    rest = len(names) - _NAMES
    return ", ".join(names[:_NAMES]) + (f" and {rest} more" if rest > 0 else "")


@dataclass(frozen=True)
class Strength:
    """Variation of channels.

    Args:
        deviation: deviation of each channel in microvolts: the median over seconds of the standard deviation within a
            second, which drifts do not raise. NaN for non-finite values, 0 if most seconds are constant `[channels]`.
        invalid: number of values of each channel that are NaN, infinite or too large to compute with `[channels]`.
        total: number of values of a channel.
    """

    deviation: NDArray[np.float64]
    invalid: NDArray[np.int64]
    total: int


def strength(values: NDArray[np.float64], rate: float) -> Strength:
    """Measure channels `[channels, times]` or `[channels, epochs, times]` in microvolts, sampled at `rate` Hz."""
    second = max(1, min(round(rate), values.shape[-1]))
    whole = values.shape[-1] // second * second
    deviation = np.full(len(values), math.nan)
    invalid = np.zeros(len(values), np.int64)
    for number, channel in enumerate(values):
        invalid[number] = np.count_nonzero(~(np.abs(channel) < _HUGE))
        if not invalid[number]:
            seconds = channel[..., :whole].reshape(-1, second)
            varies = np.ptp(seconds, axis=1) > 0  # a constant may have a deviation by rounding
            deviation[number] = np.median(np.where(varies, seconds.std(axis=1), 0.0))
    return Strength(deviation, invalid, values[0].size)


def level(deviation: NDArray[np.float64], eeg: NDArray[np.bool_]) -> float:
    """Return the median deviation of the EEG channels that vary, in microvolts; NaN if none does.

    If at least half of these channels have a plausible deviation, the median is over the plausible ones, so that a few
    channels in another unit do not matter even if a recording has few channels.

    Args:
        deviation: deviation of each channel in microvolts `[channels]`.
        eeg: which of the channels are EEG `[channels]`.
    """
    usable = deviation[eeg & (deviation > 0)]
    plausible = usable[(usable > LEAST) & (usable < MOST)]
    counting = plausible if 2 * len(plausible) >= len(usable) else usable
    return float(np.median(counting)) if len(counting) else math.nan


def check_scale(
    measured: Strength, names: Sequence[str], eeg: NDArray[np.bool_], file: str, scale: float
) -> tuple[Finding, ...]:
    """Refuse values that are not in microvolts, by the median deviation of the EEG channels that vary.

    Args:
        measured: variation of all channels, after scaling.
        names: names of the channels.
        eeg: which of the channels are EEG `[channels]`.
        file: name of the file, as a pattern in `data.scale` would match it.
        scale: factor that the values were multiplied by.

    Raises:
        FileError: the median is outside the bounds of an EEG; the finding names the most likely unit.
    """
    median = level(measured.deviation, eeg)
    if math.isnan(median):
        return ()
    found = f"the median deviation of its channels within a second is {_microvolts(median)}"
    expected = f"between {LEAST:g} and {MOST:g} microvolts"
    if LEAST < median < MOST:
        if scale == 1:
            return ()
        remedy = f"Nothing to do: data.scale = {scale:g} is applied"
        return (Finding("scale", f"values are multiplied by {scale:g}; {found}", expected, remedy, "repaired"),)
    power = round(math.log10(median / _TYPICAL) / 3)
    if scale != 1:
        found = f"with data.scale = {scale:g} {found}"
    likely = _UNITS.get(power, "another unit") if scale == 1 else "another unit"
    correct = "Correct the unit in the file (of EDF and BDF: the physical dimension)"
    # A factor for the whole file would spoil the channels that are in microvolts already.
    odd = _other_units(measured.deviation, names, eeg, median)
    right = [name for name, own in zip(names, measured.deviation, strict=True) if name in odd and LEAST < own < MOST]
    if right:
        refuse(
            "scale",
            f"{found}: most likely {likely}, though not in {len(right)} of {len(names)} channels: {some(right)}",
            f"{expected}, and one unit in all channels",
            f"{correct} channel by channel, or leave the channels of one unit out of data.channels",
        )
    line = f"{scale * 1000.0**-power:g}"
    refuse(
        "scale",
        f"{found}: most likely {likely}",
        expected,
        f"{correct}, or set data: {{scale: {line}}}, for this file alone "
        f"data: {{scale: {{{glob.escape(file)!r}: {line}}}}}",
    )


def check_channels(
    measured: Strength,
    names: Sequence[str],
    eeg: NDArray[np.bool_],
    marked: Sequence[str],
    uncalibrated: Mapping[str, str],
    processing: Preprocessing,
) -> tuple[list[str], tuple[Finding, ...]]:
    """Return the channels to repair, and the findings about them.

    Args:
        measured: variation of all channels.
        names: names of the channels, in order.
        eeg: which of the channels are EEG `[channels]`.
        marked: channels that the file itself calls bad.
        uncalibrated: channel -> why its values have no scale, by the file's header.
        processing: settings with the treatment of bad channels.

    Raises:
        FileError: a channel is flat, holds NaN or is in another unit, and the settings refuse such channels; or more
            than half of the channels are bad.
    """
    median = level(measured.deviation, eeg)
    broken = broken_channels(measured, names, eeg, uncalibrated, median)
    noisy = _noisy(measured.deviation, names, eeg, median, broken)
    policy = processing.bad_channels
    by_file = [name for name in names if name in marked and name not in broken]
    told = [why for _, why in broken.values()] + (
        [f"marked as bad by the file: {', '.join(by_file)}"] if by_file else []
    )
    bad = [name for name in names if name in broken or (policy != "refuse" and name in by_file)]
    kinds = {kind for kind, _ in broken.values()}
    kind = next((kind for kind in ("nan", "scale", "flat") if kind in kinds), "marked")
    in_unit = ", in the unit of the others" if "scale" in kinds else ""
    found, expected = "; ".join(told), f"channels that vary, with finite values{in_unit}"
    correct = (
        "Correct the unit of these channels in the file (of EDF and BDF: the physical dimension, the physical and "
        "digital minimum and maximum). "
        if "scale" in kinds
        else ""
    )
    if 2 * len(bad) > len(names):
        what = f"{len(bad)} of {len(names)} channels are bad: {some(told)}"
        remedy = f"{correct}Leave the file out by data.pattern"
        refuse("channels", what, f"at least half of the channels good{in_unit}", remedy)
    if broken and policy == "refuse":
        out = "leave these channels out of data.channels"
        refuse(kind, found, expected, f"{correct}Set data: {{bad_channels: interpolate}}, or zero, or {out}")
    if not told:
        return [], noisy
    if policy == "refuse":
        remedy = "They are kept; see data.bad_channels for what else"
        return [], (Finding(kind, found, expected, remedy, "noted"), *noisy)
    done = "They are interpolated" if policy == "interpolate" else "They are set to 0"
    return bad, (Finding(kind, found, expected, f"{done}, as data.bad_channels says", "repaired"), *noisy)


def broken_channels(
    measured: Strength,
    names: Sequence[str],
    eeg: NDArray[np.bool_],
    uncalibrated: Mapping[str, str],
    median: float,
) -> dict[str, tuple[str, str]]:
    """Return channel -> kind and description of its fault, for channels that nothing can be learned from.

    Args:
        measured: variation of all channels.
        names: names of the channels.
        eeg: which of the channels are EEG, and so comparable with each other `[channels]`.
        uncalibrated: channel -> why its values have no scale, by the file's header.
        median: deviation of a good channel in microvolts, by `level`; NaN if no channel varies.
    """
    varying = measured.deviation[measured.deviation > 0]
    # In a wrong unit all channels may be small, and no channel is flat for that reason.
    limit = _FLAT * min(1.0, float(np.median(varying))) if len(varying) else _FLAT
    units = _other_units(measured.deviation, names, eeg, median)
    broken = {}
    for name, deviation, invalid in zip(names, measured.deviation, measured.invalid, strict=True):
        if invalid:
            broken[name] = "nan", f"{name}: {invalid} of {measured.total} values are NaN or infinite"
        elif name in uncalibrated:
            broken[name] = "scale", f"{name}: {uncalibrated[name]}"
        elif deviation < limit or name in units:
            flat = "flat, " if deviation < limit else ""
            unit = f", {units[name]}" if name in units else ""
            why = f"{name}: {flat}deviation {_microvolts(deviation)}{unit}"
            broken[name] = "scale" if unit else "flat", why
    return broken


def _other_units(
    deviation: NDArray[np.float64], names: Sequence[str], eeg: NDArray[np.bool_], median: float
) -> dict[str, str]:
    """Return EEG channel -> likely cause, for channels whose distance from the others only another unit explains."""
    units = {}
    for name, own, is_eeg in zip(names, deviation, eeg, strict=True):
        decades = math.log10(own / median) if is_eeg and own > 0 and median > 0 else 0.0
        power = round(decades / 3)
        if abs(decades - 3 * power) > 3 - _ODD:
            likely = "its unit or its range is wrong, or it was not connected"
        else:
            likely = f"most likely {_UNITS.get(power, 'another unit')}, a factor of 1e{3 * power}"
        if abs(decades) >= _ODD:
            units[name] = f"{_times(own / median)} that of the others: {likely}"
    return units


def _noisy(
    deviation: NDArray[np.float64],
    names: Sequence[str],
    eeg: NDArray[np.bool_],
    median: float,
    broken: Mapping[str, object],
) -> tuple[Finding, ...]:
    """Return the finding that EEG channels in the right unit are louder or quieter than an EEG, if there are any."""
    odd = [
        f"{name}: deviation {_microvolts(own)}, {_times(own / median)} that of the others"
        for name, own, is_eeg in zip(names, deviation, eeg, strict=True)
        if is_eeg and name not in broken and not LEAST < own < MOST
    ]
    if not odd:
        return ()
    remedy = "They are kept: look at the recording, and leave them out of data.channels if they were badly connected"
    return (Finding("noise", some(odd), f"between {LEAST:g} and {MOST:g} microvolts", remedy, "noted"),)


def _times(ratio: float) -> str:
    return f"{ratio:,.3g} times" if ratio < 1000 else f"{ratio:,.0f} times"


def _microvolts(value: float) -> str:
    return f"{value:.4g} microvolts" if value < 1e4 else f"{value:,.0f} microvolts"


# ------------------------------------------------------------------------------------------------ repair
def repair(
    values: NDArray[np.float64],
    rate: float,
    names: Sequence[str],
    types: Sequence[str],
    marked: Sequence[str],
    uncalibrated: Mapping[str, str],
    file: str,
    processing: Preprocessing,
    own: int | None = None,
) -> list[Finding]:
    """Check values, repair bad channels and subtract the reference, in place.

    Args:
        values: values in microvolts, multiplied by `processing.scale`, `[channels, times]` or
            `[channels, epochs, times]`; changed in place.
        rate: sampling rate in Hz.
        names: names of the channels.
        types: MNE's types of the channels.
        marked: channels that the file calls bad.
        uncalibrated: channel -> why its values have no scale, by the file's header.
        file: name of the file for the findings.
        processing: settings with the treatment of bad channels, and the reference.
        own: number of leading channels that must be good or repaired; the others only count for the average, and only
            if they are good. `None`: all channels.

    Raises:
        FileError: values are in another unit, or channels can be neither used nor repaired.
    """
    eeg = np.array([kind == "eeg" for kind in types])
    if not eeg.any():
        eeg[:] = True  # for instance electrodes on or in the brain, a type that the settings name
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
        # MNE's own function would copy all values twice.
        mean = rows.mean(axis=0, where=counting[:, None])
        np.subtract(rows, mean, out=rows, where=eeg[:, None])
        rows[[names.index(name) for name in zeroed]] = 0
    return [*findings, *found]


def interpolate(rows: NDArray[np.float64], names: Sequence[str], eeg: NDArray[np.bool_], bad: Sequence[str]) -> None:
    """Replace channels by spherical splines through the good ones (Perrin et al. 1989), by names of the 10-05 system.

    Args:
        rows: values `[channels, times]`, changed in place.
        names: names of the channels.
        eeg: which of the channels are EEG `[channels]`.
        bad: names of the channels to replace.

    Raises:
        FileError: a bad channel has no known position, or too few good channels have one.
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
    """Return the bad channels among those that only count for the average, and the finding about other units."""
    if not len(values):
        return [], []
    lost = broken_channels(strength(values, rate), names, eeg, uncalibrated, median)
    units = [why for name, (kind, why) in lost.items() if kind == "scale" and name not in marked]
    if not units:
        return list(lost), []
    remedy = "Nothing to do: they do not count for the average reference, and are not among data.channels"
    return list(lost), [Finding("reference", some(units), "channels in the unit of the others", remedy, "noted")]


def _average(names: Sequence[str], eeg: NDArray[np.bool_], without: set[str]) -> NDArray[np.bool_]:
    """Return which channels the average is over: good EEG channels, as in MNE `[channels]`."""
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
