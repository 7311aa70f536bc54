"""How long an EEG file is, by its header and by what is there; and when an EDF was interrupted. No MNE in here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fne.core.dataset import Finding
from fne.data.eeg.edf import EdfHeader, edf_header
from fne.data.eeg.gdf import gdf_header
from fne.data.eeg.layout import BINARY, extension, header_links
from fne.data.eeg.quality import LEAVE_OUT, refuse
from fne.data.eeg.transfer import rewritten, shortened, suspicious

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
    """Return how the values of a recording are fewer or more than its header says, or lie elsewhere.

    EDF, BDF and BrainVision files are compared with their headers; of other binary formats only rewritten line ends
    are known. `None` means that nothing is wrong, or that nothing can be known: readers say then what they cannot read.

    Raises:
        FileError: a field of the header of an EDF or BDF file has an impossible value.
    """
    ending = extension(path)
    if ending in (".edf", ".bdf"):
        return _edf_length(path)
    if ending in (".vhdr", ".ahdr"):
        return _brainvision_length(path)
    values = [path, path.with_suffix(".fdt")] if ending == ".set" else [path]
    findings = (suspicious(file) for file in values if ending in BINARY and file.is_file())
    return next(filter(None, findings), None)


def compared(path: Path, expected: int, step: int = 0, mend: str = "") -> Finding | None:
    """Return how the size of a file differs from what its header says.

    Args:
        path: the file with the values.
        expected: bytes, by the header.
        step: bytes of a record or sample; a surplus of whole ones is only noted, any other one displaces values. 0: a
            surplus displaces values anyway.
        mend: advice for a file that never was longer.
    """
    size = path.stat().st_size
    if size == expected:
        return suspicious(path)  # values may have been lost at the end as well
    # Each byte of a surplus that rewritten line ends explain stands before one of them.
    if finding := rewritten(path, size - expected) if size > expected else suspicious(path):
        return finding
    there = f"{path.name} has {size:,} bytes"
    if size < expected:
        cause = shortened(path, expected - size)
        found = f"truncated: {there}, by the header they should be {expected:,}{cause}"
        return Finding("truncated", found, "a whole file", f"{_AGAIN}{mend}; or {LEAVE_OUT}", "refused")
    found = f"{there}, {size - expected:,} more than the header says"
    if step and (size - expected) % step == 0:
        return Finding("length", found, "a file as long as it says", "Compare it with what was recorded", "noted")
    whole = f", which make no whole number of records of {step:,} bytes" if step else ""
    remedy = f"{_AGAIN}; if the surplus is at the end, cut the file to {expected:,} bytes; or {LEAVE_OUT}"
    return Finding("length", found + whole, "a file as long as it says", remedy, "refused")


def _edf_length(path: Path) -> Finding | None:
    edf = edf_header(path)
    if edf is None:
        return None
    size = path.stat().st_size
    records = edf.whole(size)
    if edf.records > 0:
        mend = f"; if it was never longer, write {records} at byte 236 of its header, the number of records"
        return compared(path, edf.length + edf.records * edf.record, edf.record, mend if records else "")
    if not records:
        found = f"it has no values: the number of records is {edf.records}, and the header is all that is there"
        return Finding("empty", found, "a recording", f"{_AGAIN}; or {LEAVE_OUT}", "refused")
    if finding := suspicious(path):
        return finding
    found = f"the header leaves open how many records there are ({edf.records}); {records} are there"
    remedy = "Nothing to do if that is its whole length: such a header is one of a recording that was never closed"
    return Finding("length", found, "their number", remedy, "noted")


def _brainvision_length(path: Path) -> Finding | None:
    try:
        lines = [line.partition("=") for line in path.read_text("latin-1").splitlines()]
        values = {key.strip(): value.strip() for key, _, value in reversed(lines)}  # the first of a name counts
        frame = int(values["NumberOfChannels"]) * _WIDTHS[values["BinaryFormat"]]
        data = next(path.parent / name for _, key, name in header_links(path) if key == "DataFile")
        points = int(values["DataPoints"]) if values.get("DataPoints") else size_in(frame, data)
        by_samples = values.get("DataOrientation") != "VECTORIZED"
        return compared(data, points * frame, frame if by_samples else 0)
    except (OSError, KeyError, ValueError, StopIteration, ZeroDivisionError):
        return None


def size_in(frame: int, data: Path) -> int:
    """Return how many samples there are, one that was begun included."""
    return -(-data.stat().st_size // frame)


# ------------------------------------------------------------------------------------------------ EDF
def signal_rates(path: Path) -> list[tuple[str, float]]:
    """Return the name and the sampling rate in Hz of each signal of an EDF, BDF or GDF, without signals of annotations.

    Empty for all other files, and where the header makes no sense.
    """
    if extension(path) == ".gdf":
        gdf = gdf_header(path)
        return [] if gdf is None else list(zip(gdf.labels, gdf.rates, strict=True))
    edf = edf_header(path)
    if edf is None:
        return []
    seconds = edf.seconds or 1.0  # as MNE takes it
    signals = enumerate(zip(edf.labels, edf.counts, strict=True))
    return [(label, count / seconds) for place, (label, count) in signals if place not in edf.annotations]


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
    edf = edf_header(path)
    if edf is None or edf.kind not in (b"EDF+D", b"BDF+D"):
        return None
    expected = "records that say when each was made, in order"
    lists = _annotations(path, edf)
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


def _annotations(path: Path, edf: EdfHeader) -> list[list[bytes]]:
    """Return what each of the signals that are annotations holds in each record."""
    total = edf.whole(path.stat().st_size)
    if total < 1:
        return []
    values = np.memmap(path, np.uint8, "r", edf.length, (total, edf.record))
    begins = [sum(edf.counts[:place]) * edf.width for place in edf.annotations]
    ends = [sum(edf.counts[: place + 1]) * edf.width for place in edf.annotations]
    return [[row.tobytes() for row in values[:, begin:end]] for begin, end in zip(begins, ends, strict=True)]
