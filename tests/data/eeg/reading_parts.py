"""EEG files that are made for a test, and how the tests open them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import mne
import numpy as np
import pytest

from fne.core.dataset import FileError, Finding
from fne.data.eeg.open import open_recording
from fne.data.eeg.recording import Source

DATA = os.environ.get("FNE_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="FNE_DATA is not set: no EEG files")
FILES = Path(DATA or "") / "eeg_files"
RATE, CHANNELS = 100.0, ("EEG Fp1-REF", "Cz..", "F3", "EOG left")
VALUES = np.random.default_rng(0).normal(0, 20e-6, (len(CHANNELS), 1000))


def source(path: Path, **more: Any) -> Source:
    return Source(path, path.name, "1", **more)


def recording(codes: Any = None, date: datetime | None = None, unit: float = 1.0) -> mne.io.RawArray:
    """Return 10 s at 100 Hz in volts, with a stim channel where there are codes."""
    names, types, values = [*CHANNELS], ["eeg"] * len(CHANNELS), VALUES
    if codes is not None:
        stim = np.zeros(values.shape[1])
        for sample, code in codes:
            stim[sample : sample + 5] = code * unit
        names, values = [*names, "TRIG 1"], np.vstack([values, stim])
        types = [*types, "stim" if unit == 1 else "eeg"]
    raw = mne.io.RawArray(values, mne.create_info(names, RATE, types), verbose="error")
    raw.set_meas_date(date)
    return raw


def marked(date: datetime | None = None) -> mne.io.RawArray:
    raw = recording(date=date)
    notes = (
        (1.0, 0.5, "left"),
        (3.5, 0.0, "right"),
        (6.0, 1.0, "BAD muscle"),
        (7.0, 0.0, "left"),
        (8.0, 0.0, "boundary"),
    )
    onset, duration, names = zip(*notes, strict=True)
    return raw.set_annotations(mne.Annotations(onset, duration, names))


def save(raw: Any, path: Path, **more: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    raw.save(path, overwrite=True, verbose="error", **more)
    return path


def edf(
    values: Any = VALUES,
    names: Any = CHANNELS,
    unit: str = "uV",
    version: bytes = b"0       ",
    kind: str = "",
    lists: Sequence[bytes] = (),
    records: int | None = None,
) -> bytes:
    """Return an EDF or BDF file of records of one second, from volts `[channels, samples]`; 0.1 microvolts a step.

    With a list of annotations for each record, of up to 80 bytes, there is a signal of them.
    """
    n, rate, bdf = len(values), int(RATE), version.startswith(b"\xff")
    there, width = values.shape[1] // rate, 3 if bdf else 2
    most = 2 ** (8 * width - 1)
    notes, places = (["BDF Annotations" if bdf else "EDF Annotations"], 80 // width + 1) if lists else ([], 0)
    total = n + len(notes)
    columns: list[tuple[int, list[str]]] = [
        (16, [*names, *notes]), (80, [""] * total), (8, [unit] * n + [""] * len(notes)),
        (8, [f"{-most / 10:g}"[:8]] * total if not bdf else ["-838861"] * total),
        (8, [f"{(most - 1) / 10:.1f}"[:8]] * total if not bdf else ["838861"] * total),
        (8, [str(-most)] * total), (8, [str(most - 1)] * total), (80, [""] * total),
        (8, [str(rate)] * n + [str(places)] * len(notes)), (32, [""] * total),
    ]  # fmt: skip
    said = there if records is None else records
    head = f"{'X':80}{'X':80}01.01.2001.01.01{256 * (total + 1):<8}{kind:44}{said:<8}{'1':8}{total:<4}"
    fields = "".join(f"{text:{size}}" for size, column in columns for text in column)
    steps = np.rint(values * 1e7).astype("<i4").reshape(n, there, rate).swapaxes(0, 1)
    signals = np.ascontiguousarray(steps)[..., None].view(np.uint8)[..., :width]
    body = [signals[i].tobytes() + (lists[i].ljust(places * width, b"\0") if lists else b"") for i in range(there)]
    return version + (head + fields).encode() + b"".join(body)


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def refused(path: Path, **more: Any) -> Finding:
    with pytest.raises(FileError) as caught:
        open_recording(source(path, **more))
    finding = caught.value.finding
    assert finding.action == "refused"
    assert all((finding.kind, finding.found, finding.expected, finding.remedy))
    return finding


BRAINVISION = (
    b"Brain Vision Data Exchange Header File Version 1.0\n[Common Infos]\nDataFile=$b.eeg\nMarkerFile=old.vmrk\n"
)
