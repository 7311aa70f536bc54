"""Headers of EDF, BDF and GDF files: fields, sampling rates, interruptions, and faults that make a channel useless.

Nothing here needs MNE.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from fne.core.dataset import FileError
from fne.data.eeg.find import extension, first_bytes
from fne.data.eeg.quality import LEAVE_OUT, refuse
from fne.data.eeg.transfer import rewritten

_FIXED = 256
"""Bytes of the fixed part of a header; each signal of an EDF, BDF or GDF file adds as many."""
_SIGNAL_FIELDS = {
    "label": 16, "transducer": 80, "physical dimension": 8, "physical minimum": 8, "physical maximum": 8,
    "digital minimum": 8, "digital maximum": 8, "prefiltering": 80, "number of samples in a record": 8, "reserved": 32,
}  # fmt: skip
"""Name -> bytes of each field of a signal; the header holds one field of all signals, then the next."""
_ANNOTATIONS = ("EDF Annotations", "BDF Annotations")
_RATES = (1.0, 1e6)
"""Lowest and highest rate in Hz that the fastest signal of a file can have, whatever the amplifier."""
_GDF_BOUNDS = {"physical minimum": 104, "physical maximum": 112, "digital minimum": 120, "digital maximum": 128}
"""Field of a GDF signal -> start of the first one, in bytes times the number of signals, behind the fixed part."""
_TAL = re.compile(rb"([+-]\d+(?:\.\d*)?)(?:\x15(\d+(?:\.\d*)?))?\x14([^\x00]*)\x14(?=\x00)")
"""A time-stamped list of annotations (TAL): onset, duration, and texts that are separated by 0x14."""
_STAMP = 1e-3
"""Seconds to which the times of records are rounded."""
_APART = "Export it again as EDF+C or BrainVision, or each piece as a file of its own"
_MEND = f"Correct the field in the file, export the recording again, or {LEAVE_OUT}"


@dataclass(frozen=True)
class EdfHeader:
    """Header of an EDF or BDF file.

    Args:
        length: length of the header in bytes.
        records: number of records, -1 where the header leaves the number open.
        seconds: duration of a record.
        counts: number of values of each signal in a record.
        labels: names of the signals, annotations included.
        width: size of a value in bytes.
        kind: first bytes of the reserved field, such as `EDF+D`.
        faults: index of a signal -> why the values of that signal have no scale.
    """

    length: int
    records: int
    seconds: float
    counts: tuple[int, ...]
    labels: tuple[str, ...]
    width: int
    kind: bytes
    faults: dict[int, str]

    @property
    def record(self) -> int:
        """Size of a record in bytes."""
        return sum(self.counts) * self.width

    @property
    def annotations(self) -> list[int]:
        """Indices of the signals that hold annotations."""
        return [place for place, label in enumerate(self.labels) if label in _ANNOTATIONS]

    def whole(self, size: int) -> int:
        """Return how many whole records a file of `size` bytes holds."""
        return (size - self.length) // self.record


def edf_header(path: Path) -> EdfHeader | None:
    """Return the header of an EDF or BDF file; `None` for other files, and where the file ends within the header.

    Raises:
        FileError: a field has a value that no recording can have; the finding names field, position and value.
    """
    if extension(path) not in (".edf", ".bdf"):
        return None
    head = first_bytes(path, _FIXED)
    if len(head) < _FIXED:
        return None
    signals = _whole_number(head, 252, 4, "number of signals", 1)
    length = _FIXED * (1 + signals)
    fields = first_bytes(path, length)
    if len(fields) < length:
        return None
    _check_end(path, head, signals, length)
    records = _whole_number(head, 236, 8, "number of records", -1, "; -1 leaves the number open")
    columns = _columns(fields, signals)
    labels = [_text(label).strip() for label in columns["label"]]
    counts = [
        _whole_number(fields, place, 8, f"number of samples in a record of signal {number} ({label})", 1)
        for number, (place, label) in enumerate(
            zip(_places("number of samples in a record", signals), labels, strict=True), 1
        )
    ]
    ordinary = [count for count, label in zip(counts, labels, strict=True) if label not in _ANNOTATIONS]
    seconds = _duration(head, ordinary)
    _check_texts(fields, signals)
    faults = _faults(fields, signals, labels)
    width = 3 if extension(path) == ".bdf" else 2
    return EdfHeader(length, records, seconds, tuple(counts), tuple(labels), width, head[192:197], faults)


# ------------------------------------------------------------------------------------------------ fields
def _text(raw: bytes) -> str:
    """Return a field as MNE reads it: up to the first zero byte."""
    return raw.decode("latin-1").split("\0")[0]


def _refused(name: str, place: int, text: str, expected: str, remedy: str = _MEND) -> NoReturn:
    refuse("header", f"the header's field at byte {place}, {name}, is {text.strip()!r}", expected, remedy)


def _places(name: str, signals: int) -> list[int]:
    """Return the byte at which the field `name` of each signal begins."""
    names = list(_SIGNAL_FIELDS)
    before = sum(_SIGNAL_FIELDS[other] for other in names[: names.index(name)])
    return [_FIXED + before * signals + _SIGNAL_FIELDS[name] * i for i in range(signals)]


def _columns(fields: bytes, signals: int) -> dict[str, list[bytes]]:
    """Return field name -> bytes of that field for each signal."""
    return {
        name: [fields[place : place + size] for place in _places(name, signals)]
        for name, size in _SIGNAL_FIELDS.items()
    }


def _whole_number(fields: bytes, place: int, size: int, name: str, least: int, more: str = "") -> int:
    text = _text(fields[place : place + size])
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        _refused(name, place, text, f"a whole number of at least {least}{more}")
    return number


def _check_end(path: Path, head: bytes, signals: int, length: int) -> None:
    """Refuse a header whose length does not follow from its number of signals, or is no number."""
    text = _text(head[184:192])
    try:
        said = int(text)
    except ValueError:
        said = -1
    if said != length:
        if finding := rewritten(path):
            raise FileError(finding)
        _refused("number of bytes of the header", 184, text, f"{length}, as there are {signals} signals")


def _duration(head: bytes, counts: Sequence[int]) -> float:
    """Return the duration of a record in seconds; `counts` are the values in a record of each ordinary signal."""
    text = _text(head[244:252])
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    expected = "a number of seconds above 0"
    if not counts and seconds == 0:
        return seconds  # the file has annotations only
    if not 0 < seconds < math.inf:
        _refused("duration of a record", 244, text, expected)
    if counts and not _RATES[0] <= max(counts) / seconds <= _RATES[1]:
        rate = f"{max(counts)} samples in a record make {max(counts) / seconds:.4g} Hz"
        _refused(
            "duration of a record", 244, text, f"{expected}, for a rate of {_RATES[0]:g} to {_RATES[1]:g} Hz; {rate}"
        )
    return seconds


def _check_texts(fields: bytes, signals: int) -> None:
    """Refuse texts that MNE cannot decode, although nothing else reads them."""
    place = _places("reserved", signals)[0]
    raw = fields[place : place + 32 * signals]
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        _refused("reserved for signals", place, repr(raw[error.start : error.end]), "blanks, or text in UTF-8")
    patient = _text(fields[8:88])
    if any(part.count("=") > 1 for part in patient.split(" ")[4:]):
        _refused("patient", 8, patient, "words apart by blanks, with at most one '=' in each")


# ------------------------------------------------------------------------------------------------ calibration
def _faults(fields: bytes, signals: int, labels: Sequence[str]) -> dict[int, str]:
    """Return the signals whose values have no scale, and why; refuse a file where a bound is no number."""
    numbers: dict[str, list[float]] = {}
    for name in ("physical minimum", "physical maximum", "digital minimum", "digital maximum"):
        numbers[name] = []
        for i, (place, label) in enumerate(zip(_places(name, signals), labels, strict=True)):
            text = _text(fields[place : place + 8])
            try:
                numbers[name].append(float(text.replace(",", ".")))
            except ValueError:
                _refused(f"{name} of signal {i + 1} ({label})", place, text, "a number")
    return _unscaled(numbers, [place for place, label in enumerate(labels) if label not in _ANNOTATIONS])


def _unscaled(bounds: Mapping[str, Sequence[float]], places: Iterable[int]) -> dict[int, str]:
    """Return those of the signals at `places` whose bounds define no scale, and why."""
    faults = {}
    for i in places:
        for what in ("physical", "digital"):
            least, most = bounds[f"{what} minimum"][i], bounds[f"{what} maximum"][i]
            if not math.isfinite(most - least) or least == most:
                faults[i] = f"its {what} minimum and maximum are {least:g} and {most:g}, so its values have no scale"
    return faults


# ------------------------------------------------------------------------------------------------ GDF
@dataclass(frozen=True)
class GdfHeader:
    """Header of a GDF file.

    Args:
        labels: names of the signals.
        rates: sampling rate of each signal, in Hz.
        faults: index of a signal -> why the values of that signal have no scale.
    """

    labels: tuple[str, ...]
    rates: tuple[float, ...]
    faults: dict[int, str]


def gdf_header(path: Path) -> GdfHeader | None:
    """Return the header of a GDF file; `None` where it is cut off."""
    head = first_bytes(path)
    signals = int.from_bytes(head[252:254], "little")
    fields = first_bytes(path, _FIXED * (1 + signals))[_FIXED:]
    if len(fields) < _FIXED * signals:
        return None
    labels = [fields[16 * i : 16 * (i + 1)].decode("latin-1").strip(" \0") for i in range(signals)]
    counts = np.frombuffer(fields, "<i4", signals, 216 * signals).tolist()
    seconds, divisor = np.frombuffer(head, "<u4", 2, 244).tolist()
    whole = head[4:8] < b"1.90"  # digital bounds were int64 in the first version and are float64 in later ones
    bounds = {
        name: np.frombuffer(fields, "<i8" if whole and "digital" in name else "<f8", signals, place * signals).tolist()
        for name, place in _GDF_BOUNDS.items()
    }
    rates = tuple(count * divisor / (seconds or 1) for count in counts)
    return GdfHeader(tuple(labels), rates, _unscaled(bounds, range(signals)))


# ------------------------------------------------------------------------------------------------ sampling rates
def signal_rates(path: Path) -> list[tuple[str, float]]:
    """Return name and sampling rate in Hz of each signal of an EDF, BDF or GDF file, without annotation signals.

    The list is empty for all other files, and where the header is cut off.
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


# ------------------------------------------------------------------------------------------------ interruptions
@dataclass(frozen=True)
class Interrupted:
    """Time course of an interrupted recording (EDF+D, BDF+D): pieces in order, with gaps between them.

    Args:
        starts: start of each record, in seconds from the first record `[records]`.
        seconds: duration of a record.
        events: onset, duration (both in the same time, gaps included) and name of each event.
    """

    starts: NDArray[np.float64]
    seconds: float
    events: tuple[tuple[float, float, str], ...]

    def recorded(self, times: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return how many seconds were recorded before each time, which is the position in the values `[n]`."""
        record = np.maximum(np.searchsorted(self.starts, times + 1e-9, side="right") - 1, 0)
        return record * self.seconds + np.minimum(times - self.starts[record], self.seconds)

    @property
    def gaps(self) -> tuple[list[float], list[float]]:
        """Positions of the gaps in the values, and the length of each gap, in seconds."""
        lost = np.diff(self.starts) - self.seconds
        after = np.flatnonzero(lost > _STAMP)
        return ((after + 1) * self.seconds).tolist(), lost[after].tolist()


def interrupted(path: Path) -> Interrupted | None:
    """Return the time course of an EDF+D or BDF+D file; `None` for other files, and where there is no gap.

    Raises:
        FileError: the records have no time stamps, or overlap.
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
    """Return the bytes of each annotation signal in each record."""
    total = edf.whole(path.stat().st_size)
    if total < 1:
        return []
    values = np.memmap(path, np.uint8, "r", edf.length, (total, edf.record))
    begins = [sum(edf.counts[:place]) * edf.width for place in edf.annotations]
    ends = [sum(edf.counts[: place + 1]) * edf.width for place in edf.annotations]
    return [[row.tobytes() for row in values[:, begin:end]] for begin, end in zip(begins, ends, strict=True)]
