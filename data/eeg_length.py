"""How long an EEG file is, by its header and by what is there; and when an EDF was interrupted. No MNE in here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fne.data.eeg_checks import LEAVE_OUT, refuse
from fne.data.eeg_layout import extension, first_bytes, header_links
from fne.findings import Finding

_WIDTHS = {"INT_16": 2, "INT_32": 4, "IEEE_FLOAT_32": 4}
"""Bytes of a value, by BrainVision's names."""
_TAL = re.compile(rb"([+-]\d+(?:\.\d*)?)(?:\x15(\d+(?:\.\d*)?))?\x14([^\x00]*)\x14(?=\x00)")
"""A time-stamped list of annotations: onset, duration, texts apart by 0x14."""
_STAMP = 1e-3
"""Seconds: to what records' times are rounded."""
_AGAIN = "Copy or download it again"
_APART = "Export it again as EDF+C or BrainVision, or each piece as a file of its own"


# ------------------------------------------------------------------------------------------------ length
def length_finding(path: Path) -> Finding | None:
    """Return how an EDF, BDF or BrainVision file is shorter (`refused`) or longer (`noted`) than its header says.

    `None` where nothing is wrong, or nothing can be known: readers say then what they cannot read.
    """
    ending = extension(path)
    if ending in (".edf", ".bdf"):
        return _edf_length(path)
    return _brainvision_length(path) if ending in (".vhdr", ".ahdr") else None


def compared(name: str, size: int, expected: int, mend: str = "") -> Finding | None:
    """Return how a file of `size` bytes differs from what its header says; `mend`: advice if it never was longer."""
    if size < expected:
        found = f"truncated: {name} has {size:,} bytes, by the header they should be {expected:,}"
        return Finding("truncated", found, "a whole file", f"{_AGAIN}{mend}; or {LEAVE_OUT}", "refused")
    if size > expected:
        found = f"{name} has {size:,} bytes, {size - expected:,} more than the header says"
        return Finding("length", found, "a file as long as it says", "Compare it with what was recorded", "noted")
    return None


def _edf_length(path: Path) -> Finding | None:
    edf = _edf_header(path)
    if edf is None:
        return None
    size = path.stat().st_size
    if edf.records >= 0:
        records = max(0, edf.whole(size))
        mend = f"; if it was never longer, write {records} at byte 236 of its header, the number of records"
        return compared(path.name, size, edf.length + edf.records * edf.record, mend)
    found = f"the header leaves open how many records there are ({edf.records}); {edf.whole(size)} are there"
    remedy = "Nothing to do if that is its whole length: such a header is one of a recording that was never closed"
    return Finding("length", found, "their number", remedy, "noted")


def _brainvision_length(path: Path) -> Finding | None:
    try:
        lines = [line.partition("=") for line in path.read_text("latin-1").splitlines()]
        values = {key.strip(): value.strip() for key, _, value in reversed(lines)}  # the first of a name counts
        frame = int(values["NumberOfChannels"]) * _WIDTHS[values["BinaryFormat"]]
        data = next(path.parent / name for _, key, name in header_links(path) if key == "DataFile")
        size, points = data.stat().st_size, int(values.get("DataPoints") or size_in(frame, data))
    except (OSError, KeyError, ValueError, StopIteration):
        return None
    return compared(data.name, size, points * frame)


def size_in(frame: int, data: Path) -> int:
    """Return how many samples there are, one that was begun included."""
    return -(-data.stat().st_size // frame)


# ------------------------------------------------------------------------------------------------ EDF
@dataclass(frozen=True)
class _Edf:
    """Header of an EDF: its bytes, number of records, seconds of a record, values of each signal in it, their names."""

    length: int
    records: int
    seconds: float
    counts: tuple[int, ...]
    labels: tuple[str, ...]
    width: int
    kind: bytes

    @property
    def record(self) -> int:
        """Bytes of a record."""
        return sum(self.counts) * self.width

    def whole(self, size: int) -> int:
        """Return how many records a file of so many bytes has."""
        return (size - self.length) // self.record


def _edf_header(path: Path) -> _Edf | None:
    """Return the header, or `None` where it makes no sense."""
    head = first_bytes(path)
    try:
        signals = max(0, int(head[252:256]))
        fields = first_bytes(path, 256 * (1 + signals))[256:]
        labels = [fields[16 * i : 16 * (i + 1)].decode("latin-1").strip() for i in range(signals)]
        counts = [int(fields[216 * signals + 8 * i :][:8]) for i in range(signals)]
        numbers = int(head[184:192]), int(head[236:244]), float(head[244:252])
    except ValueError:
        return None
    if min(counts, default=0) < 0 or not sum(counts):
        return None
    return _Edf(*numbers, tuple(counts), tuple(labels), 3 if extension(path) == ".bdf" else 2, head[192:197])


_ANNOTATIONS = ("EDF Annotations", "BDF Annotations")


def signal_rates(path: Path) -> list[tuple[str, float]]:
    """Return the name and the sampling rate in Hz of each signal of an EDF, BDF or GDF, without signals of annotations.

    Empty for all other files, and where the header makes no sense.
    """
    if extension(path) == ".gdf":
        return _gdf_rates(path)
    edf = _edf_header(path) if extension(path) in (".edf", ".bdf") else None
    if edf is None:
        return []
    seconds = edf.seconds or 1.0  # as MNE takes it
    signals = zip(edf.labels, edf.counts, strict=True)
    return [(label, count / seconds) for label, count in signals if label not in _ANNOTATIONS]


def _gdf_rates(path: Path) -> list[tuple[str, float]]:
    head = first_bytes(path)
    signals = int.from_bytes(head[252:254], "little")
    fields = first_bytes(path, 256 * (1 + signals))[256:]
    if len(fields) < 256 * signals:
        return []
    labels = [fields[16 * i : 16 * (i + 1)].decode("latin-1").strip(" \0") for i in range(signals)]
    counts = np.frombuffer(fields, "<i4", signals, 216 * signals).tolist()
    seconds, divisor = np.frombuffer(head, "<u4", 2, 244).tolist()
    return [(label, count * divisor / (seconds or 1)) for label, count in zip(labels, counts, strict=True)]


@dataclass(frozen=True)
class Interrupted:
    """An EDF+D or BDF+D: pieces that were recorded one after the other, with gaps between.

    Args:
        starts: of each record, in seconds from the first one `[records]`.
        seconds: that a record lasts.
        events: onset and duration in the same time, and name.
    """

    starts: NDArray[np.float64]
    seconds: float
    events: tuple[tuple[float, float, str], ...]

    def recorded(self, times: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return how much was recorded until then, in seconds: where that time is in the values `[n]`."""
        record = np.maximum(np.searchsorted(self.starts, times + 1e-9, side="right") - 1, 0)
        return record * self.seconds + np.minimum(times - self.starts[record], self.seconds)

    @property
    def gaps(self) -> tuple[list[float], list[float]]:
        """Where in the values gaps are, and how long each was, in seconds."""
        lost = np.diff(self.starts) - self.seconds
        after = np.flatnonzero(lost > _STAMP)
        return ((after + 1) * self.seconds).tolist(), lost[after].tolist()


def interrupted(path: Path) -> Interrupted | None:
    """Return when the records of an EDF+D or BDF+D were made; `None` of all other files, or if there is no gap.

    Raises:
        FileError: its records have no time stamps, or not one after the other.
    """
    edf = _edf_header(path) if extension(path) in (".edf", ".bdf") else None
    if edf is None or edf.kind not in (b"EDF+D", b"BDF+D"):
        return None
    expected = "records that say when each was made, in order"
    places = [i for i, label in enumerate(edf.labels) if label in _ANNOTATIONS]
    lists = _annotations(path, edf, places)
    stamps = [_TAL.match(record) for record in lists[0]] if lists else []
    if not stamps or not all(stamps):
        refuse("gaps", f"it may be interrupted ({edf.kind.decode()}), and nothing says where", expected, _APART)
    times = np.array([float(stamp[1]) for stamp in stamps if stamp])
    starts = times - times[0]
    if (np.diff(starts) < edf.seconds - _STAMP).any():
        refuse("gaps", "records overlap in time", expected, _APART)
    if np.abs(starts - edf.seconds * np.arange(len(starts))).max() <= _STAMP:
        return None
    events = []
    for tal in (tal for records in lists for record in records for tal in _TAL.finditer(record)):
        for text in filter(None, tal[3].split(b"\x14")):
            events.append((float(tal[1]) - float(times[0]), float(tal[2] or 0), text.decode("utf-8", "replace")))
    return Interrupted(starts, edf.seconds, tuple(events))


def _annotations(path: Path, edf: _Edf, places: list[int]) -> list[list[bytes]]:
    """Return what each of the signals at these places holds in each record."""
    total = edf.whole(path.stat().st_size)
    if total < 1:
        return []
    values = np.memmap(path, np.uint8, "r", edf.length, (total, edf.record))
    begins = [sum(edf.counts[:place]) * edf.width for place in places]
    ends = [sum(edf.counts[: place + 1]) * edf.width for place in places]
    return [[row.tobytes() for row in values[:, begin:end]] for begin, end in zip(begins, ends, strict=True)]
