"""Headers of GDF files: how fast each signal was recorded, and whether its values have a scale. No MNE in here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fne.data.eeg.layout import first_bytes

_FIXED, _SIGNAL = 256, 256
"""Bytes of the fixed part of the header, and of the fields of a signal; a field of all signals stands together."""
_PLACES = {"physical minimum": 104, "physical maximum": 112, "digital minimum": 120, "digital maximum": 128}
"""Where the fields of the first signal begin if there is one: offsets in bytes times the number of signals."""


@dataclass(frozen=True)
class GdfHeader:
    """Header of a GDF file.

    Args:
        labels: names of the signals.
        rates: of each signal, in Hz.
        faults: place among the signals -> why the values of that signal have no scale.
    """

    labels: tuple[str, ...]
    rates: tuple[float, ...]
    faults: dict[int, str]


def gdf_header(path: Path) -> GdfHeader | None:
    """Return the header of a GDF file; `None` where it is cut off."""
    head = first_bytes(path)
    signals = int.from_bytes(head[252:254], "little")
    fields = first_bytes(path, _FIXED + _SIGNAL * signals)[_FIXED:]
    if len(fields) < _SIGNAL * signals:
        return None
    labels = [fields[16 * i : 16 * (i + 1)].decode("latin-1").strip(" \0") for i in range(signals)]
    counts = np.frombuffer(fields, "<i4", signals, 216 * signals).tolist()
    seconds, divisor = np.frombuffer(head, "<u4", 2, 244).tolist()
    whole = head[4:8] < b"1.90"  # digital bounds were int64 in the first version, and are float64 since
    found = {
        name: np.frombuffer(fields, "<i8" if whole and "digital" in name else "<f8", signals, place * signals).tolist()
        for name, place in _PLACES.items()
    }
    faults = {}
    for i in range(signals):
        for what in ("physical", "digital"):
            least, most = found[f"{what} minimum"][i], found[f"{what} maximum"][i]
            if not math.isfinite(most - least) or least == most:
                faults[i] = f"its {what} minimum and maximum are {least:g} and {most:g}, so its values have no scale"
    return GdfHeader(tuple(labels), tuple(count * divisor / (seconds or 1) for count in counts), faults)
