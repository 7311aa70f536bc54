"""What would spoil training without a sound: values of another unit, channels that are flat or hold NaN."""

from __future__ import annotations

import glob
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from fne.data.eeg_recording import Processing
from fne.findings import FileError, Finding

LEAST, MOST = 0.1, 1000.0
"""Between these, in microvolts, the median deviation of an EEG lies; most have 5 to 50."""
_TYPICAL = 30.0
_FLAT = 1e-3
"""In microvolts: below the noise (0.1) and the steps (0.02) of any amplifier, above rounding errors of float32."""
_UNITS = {
    1e-6: "microvolts that the file calls volts",
    1e-3: "microvolts that the file calls millivolts",
    1e3: "millivolts that the file calls microvolts",
    1e6: "volts that the file calls microvolts",
}
LEAVE_OUT = "leave the file out by data.pattern"
_NAMES = 8
"""That a message lists before it says how many more there are."""


def refuse(kind: str, found: str, expected: str, remedy: str) -> NoReturn:
    """Raise the finding that a file cannot be used."""
    raise FileError(Finding(kind, found, expected, remedy, "refused"))


def some(names: Sequence[str]) -> str:
    """Return names in a row, at most so many that a message can be read."""
    rest = len(names) - _NAMES
    return ", ".join(names[:_NAMES]) + (f" and {rest} more" if rest > 0 else "")


@dataclass(frozen=True)
class Strength:
    """How much channels vary.

    Args:
        deviation: of each, in microvolts: the median over seconds of the standard deviation within a second, which
            drifts do not raise; NaN where a value is not finite, 0 where most seconds are constant `[channels]`.
        invalid: how many values of each are NaN or infinite `[channels]`.
        total: values of a channel.
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
        invalid[number] = np.count_nonzero(~np.isfinite(channel))
        if not invalid[number]:
            seconds = channel[..., :whole].reshape(-1, second)
            varies = np.ptp(seconds, axis=1) > 0  # the deviation of a constant may be a rounding error
            deviation[number] = np.median(np.where(varies, seconds.std(axis=1), 0.0))
    return Strength(deviation, invalid, values[0].size)


def check_scale(measured: Strength, eeg: NDArray[np.bool_], name: str, scale: float) -> tuple[Finding, ...]:
    """Refuse values that are no microvolts, by the median deviation of EEG channels that vary.

    Args:
        measured: of all channels, after scaling.
        eeg: which of them are EEG `[channels]`.
        name: the file's, as `data.scale` would name it.
        scale: that the values were multiplied by.

    Raises:
        FileError: the median lies outside of what an EEG has; says what the values most likely are.
    """
    usable = measured.deviation[eeg & (measured.deviation > 0)]
    if not len(usable):
        return ()
    median = float(np.median(usable))
    found = f"the median deviation of its channels within a second is {_microvolts(median)}"
    expected = f"between {LEAST:g} and {MOST:g} microvolts"
    if LEAST < median < MOST:
        if scale == 1:
            return ()
        remedy = f"Nothing to do: data.scale = {scale:g} is applied"
        return (Finding("scale", f"values are multiplied by {scale:g}; {found}", expected, remedy, "repaired"),)
    factor = 1000.0 ** -round(math.log10(median / _TYPICAL) / 3)
    if scale != 1:
        found = f"with data.scale = {scale:g} {found}"
    likely = _UNITS.get(factor, "another unit") if scale == 1 else "another unit"
    line = f"{scale * factor:g}"
    refuse(
        "scale",
        f"{found}: most likely {likely}",
        expected,
        f"Correct the unit in the file (of EDF and BDF: the physical dimension), or set data: {{scale: {line}}}, "
        f"for this file alone data: {{scale: {{{glob.escape(name)!r}: {line}}}}}",
    )


def check_channels(
    measured: Strength, names: Sequence[str], marked: Sequence[str], processing: Processing
) -> tuple[list[str], tuple[Finding, ...]]:
    """Return the channels that are to be repaired, and what is said about them.

    Args:
        measured: of all channels.
        names: of the channels, in order.
        marked: those that the file itself calls bad.
        processing: says what is done with bad channels.

    Raises:
        FileError: a channel is flat or holds NaN, and nothing is to be done about it; or more than half of them are.
    """
    broken = broken_channels(measured, names)
    policy = processing.bad_channels
    by_file = [name for name in names if name in marked and name not in broken]
    told = list(broken.values()) + ([f"marked as bad by the file: {', '.join(by_file)}"] if by_file else [])
    bad = [name for name in names if name in broken or (policy != "refuse" and name in by_file)]
    found, expected = "; ".join(told), "channels that vary, with finite values"
    kind = "nan" if measured.invalid.any() else "flat" if broken else "marked"
    if 2 * len(bad) > len(names):
        what = f"{len(bad)} of {len(names)} channels are bad: {some(told)}"
        refuse("channels", what, "at least half of the channels good", "Leave the file out by data.pattern")
    if broken and policy == "refuse":
        out = "leave these channels out of data.channels"
        refuse(kind, found, expected, f"Set data: {{bad_channels: interpolate}}, or zero, or {out}")
    if not told:
        return [], ()
    if policy == "refuse":
        return [], (Finding(kind, found, expected, "They are kept; see data.bad_channels for what else", "noted"),)
    done = "They are interpolated" if policy == "interpolate" else "They are set to 0"
    return bad, (Finding(kind, found, expected, f"{done}, as data.bad_channels says", "repaired"),)


def broken_channels(measured: Strength, names: Sequence[str]) -> dict[str, str]:
    """Return the channels that nothing can be learned from, and why."""
    varying = measured.deviation[measured.deviation > 0]
    # In another unit than assumed all channels are small: that is the scale's fault, not theirs.
    limit = _FLAT * min(1.0, float(np.median(varying))) if len(varying) else _FLAT
    broken = {}
    for name, deviation, invalid in zip(names, measured.deviation, measured.invalid, strict=True):
        if invalid:
            broken[name] = f"{name}: {invalid} of {measured.total} values are NaN or infinite"
        elif deviation < limit:
            broken[name] = f"{name}: flat, deviation {_microvolts(deviation)}"
    return broken


def _microvolts(value: float) -> str:
    return f"{value:.4g} microvolts" if value < 1e4 else f"{value:,.0f} microvolts"
