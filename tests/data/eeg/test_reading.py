"""EEG files as people have them: which are found, whose they are, what a header says, and why a file cannot be read."""

from __future__ import annotations

import errno
import functools
import gzip
import os
import re
import shutil
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import mne
import numpy as np
import pytest

from fne.core.errors import DataError, SettingError
from fne.core.findings import FileError, Finding
from fne.data.eeg.channels import common_name, twin
from fne.data.eeg.diagnose import explain
from fne.data.eeg.events import event_list, event_names
from fne.data.eeg.find import FORMATS, Folder, companions, find, listed
from fne.data.eeg.open import is_epochs, listening, open_recording
from fne.data.eeg.recording import Preprocessing, Source
from fne.data.eeg.windows import prepare

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


# ------------------------------------------------------------------------------------------------ real files
@needs_data
@pytest.mark.parametrize(
    ("name", "channels", "eeg", "rate", "seconds", "epochs", "events", "noted"),
    [
        ("ok/S001R03.edf", 64, 64, 160, 125, 0, {"T0": 15, "T1": 8, "T2": 7}, ()),
        ("ok/eeglab_data.set", 32, 30, 128, 30504 / 128, 0, {"rt": 74, "square": 80}, ("types",)),
        ("ok/ok-epo.fif", 64, 64, 160, 5 * 161 / 160, 5, {"T0": 3, "T1": 1, "T2": 1}, ()),
        ("ok/sample_invalid_birthday_raw.fif", 1, 1, 300.3074951171875, 31 / 300.3074951171875, 0, {}, ()),
        ("ok/test.bdf", 17, 16, 256, 60, 0, {"255": 40}, ("length", "codes")),
        ("ok/test.edf", 139, 138, 512, 6, 0, {"start": 1, "type A": 3, "type B": 1}, ()),
        ("ok/test_1ch.gdf", 1, 0, 150, 30, 0, {}, ("types",)),
        ("ok/test_epochs_onefile.set", 2, 2, 50, 0.64, 4, {"S  8": 1, "S255/S  8": 1, "S255/S  9": 2}, ("mne",)),
        ("odd/bad_date.edf", 64, 64, 160, 20, 0, {"T0": 3, "T1": 1, "T2": 1}, ()),
        ("odd/20ch_raw.fif", 20, 20, 160, 20, 0, {"T0": 3, "T1": 1, "T2": 1}, ()),
        ("odd/no_events_raw.fif", 64, 64, 160, 20, 0, {}, ()),
        ("odd/truncated_raw.fif", 64, 64, 160, 10, 0, {"T0": 2, "T2": 1}, ("mne",)),
    ],
)  # fmt: skip
def test_a_real_file_is_opened(
    name: str, channels: int, eeg: int, rate: float, seconds: float, epochs: int, events: dict[str, int], noted: Any
) -> None:
    opened, header = open_recording(source(FILES / name))
    assert (len(header.channels), header.types.count("eeg"), header.epochs) == (channels, eeg, epochs)
    assert (header.rate, header.seconds) == (rate, pytest.approx(seconds))
    assert header.events == events
    assert tuple(finding.kind for finding in header.findings) == noted
    assert {finding.action for finding in header.findings} <= {"noted"}
    assert tuple(opened.ch_names) == header.channels
    assert str(FILES) not in "".join(map(str, header.findings))
    assert is_epochs(opened) == (epochs > 0)
    assert opened.preload == (name == "ok/test_epochs_onefile.set")  # for which MNE has no other way


@needs_data
def test_a_real_brainvision_file_is_opened() -> None:
    _, header = open_recording(source(FILES / "ok/test.vhdr"))
    assert header.channels[:3] == ("Fp1", "Fp2", "F3")
    assert (header.types.count("eeg"), header.types.count("misc"), header.rate, header.seconds) == (26, 6, 1000, 7.9)
    assert header.events["Stimulus/S255"] == 5
    assert "New Segment/" not in header.events


@needs_data
@pytest.mark.parametrize(
    ("name", "kind", "found", "remedy"),
    [
        ("empty.edf", "empty", "it is empty, 0 bytes", "Copy or download it again"),
        ("text.edf", "text", "plain text that begins 'this is not an edf", "Export it again"),
        ("half_header.edf", "truncated", "1000 bytes are there, the header alone has 16896", "Copy or download it"),
        ("wrong_ext_is_edf.fif", "extension", "its name says .fif, its content is EDF", "Rename it to wrong_ext"),
        ("set_nofdt/test_raw.set", "partner", "its values are in test_raw.fdt, which is missing", "Copy test_raw.fdt"),
        ("bv_renamed/sub-01.vhdr", "partner", "test.eeg and test.vmrk, which are not there",
         "Change line 6 of sub-01.vhdr to DataFile=sub-01.eeg and change line 7 of sub-01.vhdr to MarkerFile="),
    ],
)  # fmt: skip
def test_a_broken_file_is_refused_in_words(name: str, kind: str, found: str, remedy: str) -> None:
    finding = refused(FILES / "odd" / name)
    assert (finding.kind, found in finding.found, finding.remedy.startswith(remedy)) == (kind, True, True), finding
    assert str(FILES) not in str(finding)


@needs_data
def test_what_shows_only_when_values_are_read_is_explained() -> None:
    place = source(FILES / "odd/truncated_raw.fif")
    opened, _ = open_recording(place)
    with pytest.raises(ValueError) as caught:
        opened.get_data()
    finding = explain(caught.value, place)
    assert finding.kind == "truncated"
    lacking = 417548 - (FILES / "odd/truncated_raw.fif").stat().st_size  # the next tag would begin there
    assert f"at least {lacking} bytes are missing" in finding.found


@needs_data
@pytest.mark.parametrize(
    ("name", "cut", "words"),
    [
        ("eeglab_data.set", "eeglab_data.fdt", "fdt has 1,301,504 bytes, by the header they should be 3,904,512"),
        ("test_1ch.gdf", "test_1ch.gdf", ""),
        ("test.vhdr", "test.eeg", "test.eeg has 168,533 bytes, by the header they should be 168,576"),
        ("S001R03.edf", "S001R03.edf", "S001R03.edf has 865,632 bytes, by the header they should be 2,596,896"),
    ],
)  # fmt: skip
def test_values_that_are_missing_are_told(tmp_path: Path, name: str, cut: str, words: str) -> None:
    for file in (FILES / "ok").glob(f"{Path(name).stem}.*"):
        content = file.read_bytes()
        put(tmp_path / file.name, content[: len(content) // 3] if file.name == cut else content)
    place = source(tmp_path / name)
    if words:
        finding = refused(tmp_path / name)
        assert (finding.kind, words in finding.found) == ("truncated", True)
        assert finding.remedy.startswith("Copy or download it again")
    else:  # shows only when values are read
        opened, _ = open_recording(place)
        with pytest.raises((RuntimeError, ValueError)) as caught:
            opened.get_data()
        assert explain(caught.value, place).kind == "truncated"


@needs_data
def test_brainvision_that_ends_with_a_whole_sample_shows_by_its_events(tmp_path: Path) -> None:
    header = (FILES / "ok/test.vhdr").read_bytes()
    put(tmp_path / "test.vmrk", (FILES / "ok/test.vmrk").read_bytes())
    put(tmp_path / "test.eeg", (FILES / "ok/test.eeg").read_bytes()[: 64 * 2600])
    path = put(tmp_path / "test.vhdr", header)
    found = open_recording(source(path))[1].findings
    assert [("Omitted 9 annotation" in f.found, "cut off" in f.remedy, f.action) for f in found] == [
        (True, True, "noted")
    ]
    for points, action in ((7900, "refused"), (2500, "noted")):
        path.write_bytes(header.replace(b"NumberOfChannels", f"DataPoints={points}\nNumberOfChannels".encode()))
        if action == "refused":
            assert refused(path).found == "truncated: test.eeg has 166,400 bytes, by the header they should be 505,600"
        else:
            assert open_recording(source(path))[1].findings[0].found.endswith("6,400 more than the header says")


@pytest.mark.parametrize("version", [b"0       ", b"\xffBIOSEMI"])
@pytest.mark.parametrize(
    ("records", "lost", "kind", "words"),
    [
        (None, 0, None, ""),
        (None, 1, "truncated", "by the header they should be"),
        (11, 0, "truncated", "if it was never longer, write 10 at byte 236"),
        (9, 0, "length", "more than the header says"),
        (-1, 0, "length", "leaves open how many records there are (-1); 10 are there"),
        (-1, 300, "length", "9 are there"),
    ],
)  # fmt: skip
def test_an_edf_is_as_long_as_its_header_says(
    tmp_path: Path, version: bytes, records: int | None, lost: int, kind: str | None, words: str
) -> None:
    content = edf(VALUES[:3], ("Fz", "Cz", "Pz"), version=version, records=records)
    path = put(tmp_path / ("a.bdf" if b"BIO" in version else "a.edf"), content[: len(content) - lost])
    if kind == "truncated":
        finding = refused(path)
        assert (finding.kind, words in str(finding)) == (kind, True), finding
    else:
        found = open_recording(source(path))[1].findings
        assert [(f.kind, f.action, words in f.found) for f in found] == ([(kind, "noted", True)] if kind else [])


# ------------------------------------------------------------------------------------------------ interrupted
STARTS = (3.5, 4.5, 5.5, 20.5, 21.5, 22.5, 23.5, 1000.5, 1001.5, 1002.5)
"""When records of a second were made: gaps of 14 s and 976 s after 3 and 7 seconds of recording."""
MADE = (
    (4.25, 0.5, "left"), (18.0, 0.0, "in a gap"), (22.0, 0.5, "left"), (5.0, 17.0, "long"), (1001.0, 0.5, "right"),
    (6.0, 0.0, "over"), (22.6, 0.1, "BAD_x"),
)  # fmt: skip
"""Events in the time of `STARTS`."""


def interruptible(starts: Sequence[float], version: bytes = b"0       ", kind: str = "+D") -> bytes:
    """Return an EDF or BDF with the time of each record, and `MADE`, each event in a record, in their order."""
    lists = [f"+{start:g}\x14\x14\0".encode() for start in starts]
    for number, (onset, duration, name) in enumerate(MADE):
        length = f"\x15{duration:g}" if duration else ""
        lists[number] += f"+{onset:g}{length}\x14{name}\x14\0".encode()
    letters = "BDF" if b"BIO" in version else "EDF"
    return edf(VALUES[:3], ("Fz", "Cz", "Pz"), version=version, kind=f"{letters}{kind}", lists=lists)


@pytest.mark.parametrize(("version", "name"), [(b"0       ", "a.edf"), (b"\xffBIOSEMI", "a.bdf")])
def test_an_interrupted_recording_has_its_events_where_they_were(tmp_path: Path, version: bytes, name: str) -> None:
    place = source(put(tmp_path / name, interruptible(STARTS, version)))
    opened, header = open_recording(place)
    assert [(f.kind, f.action, f.found) for f in header.findings] == [
        ("gaps", "repaired", "interrupted, with gaps of 14 s, 976 s")
    ]
    assert event_list(opened) == [
        (0.75, 0.5, "left"), (1.5, 3.0, "long"), (2.5, 0.0, "over"), (3.0, 0.0, "in a gap"),
        (4.5, 0.5, "left"), (7.5, 0.5, "right"),
    ]  # fmt: skip
    labels = (("left", "l"), ("right", "r"), ("over", "r"))
    processing = Preprocessing(("Fz", "Cz", "Pz"), RATE, labels, ("l", "r"), tmax=0.7)
    windows = prepare(place, opened, header, processing)
    assert (windows.onset.tolist(), windows.y.tolist()) == ([0.75, 7.5], [0, 1])  # not over a gap, nor BAD
    np.testing.assert_allclose(windows.x[1], VALUES[:3, 750:820] * 1e6, atol=0.3)
    assert windows.findings[-1].found == "2 of 4 windows are left out: 2 over a part marked BAD or a break"


def test_an_interrupted_recording_in_bids_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("mne_bids")
    put(tmp_path / "dataset_description.json", b'{"Name": "x", "BIDSVersion": "1.8.0"}')
    path = put(tmp_path / "sub-01/eeg/sub-01_task-x_eeg.edf", interruptible(STARTS))
    finding = refused(path, root=tmp_path)
    assert (finding.kind, "data.bids=no" in finding.remedy) == ("gaps", True)


def test_no_filter_reaches_over_a_gap(tmp_path: Path) -> None:
    """The first piece comes out as it does by itself."""
    processing = Preprocessing(("Fz", "Cz", "Pz"), RATE, (("left", "l"),), ("l",), tmax=0.5, high=20.0)
    both = []
    for content in (interruptible(STARTS), edf(VALUES[:3, :300], ("Fz", "Cz", "Pz"))):
        place = source(put(tmp_path / "a.edf", content))
        opened, header = open_recording(place)
        if len(opened.times) == 300:
            opened.set_annotations(mne.Annotations([0.75], [0.5], ["left"]))
        both.append(prepare(place, opened, header, processing).x[0])
    np.testing.assert_allclose(both[0], both[1], atol=1e-6)


def test_an_edf_plus_d_without_gaps_is_taken_as_it_is(tmp_path: Path) -> None:
    starts = [3.5 + second + 0.0004 * (second % 2) for second in range(10)]
    found = []
    for kind in ("+C", "+D"):
        opened, header = open_recording(source(put(tmp_path / "a.edf", interruptible(starts, kind=kind))))
        found.append((event_list(opened), [f for f in header.findings if f.kind == "gaps"]))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("starts", "content", "words"),
    [
        (STARTS[::-1], None, "records overlap in time"),
        (STARTS, (b"EDF Annotations", b"Another signal "), "(EDF+D), and nothing says where"),
        (STARTS, (b"+22.5\x14\x14", b"\0" * 7), "(EDF+D), and nothing says where"),
    ],
)
def test_an_interrupted_recording_of_which_nobody_knows_when(
    tmp_path: Path, starts: Sequence[float], content: tuple[bytes, bytes] | None, words: str
) -> None:
    whole = interruptible(starts)
    finding = refused(put(tmp_path / "a.edf", whole.replace(*content) if content else whole))
    assert (finding.kind, words in finding.found, "EDF+C" in finding.remedy) == ("gaps", True, True)


@needs_data
def test_stim_codes_are_those_of_mne() -> None:
    opened, _ = open_recording(source(FILES / "ok/test.bdf"))
    events = mne.find_events(opened, shortest_event=1, mask=0xFFFF, mask_type="and", verbose="error")
    expected = [(sample / opened.info["sfreq"], 0.0, str(code)) for sample, _, code in events.tolist()]
    assert event_list(opened) == expected


# ------------------------------------------------------------------------------------------------ files made here
def test_channels_get_common_names_and_types(tmp_path: Path) -> None:
    path = put(tmp_path / "a.edf", edf())
    opened, header = open_recording(source(path))
    assert header.channels == ("Fp1", "Cz", "F3", "EOG left")
    assert header.types == ("eeg", "eeg", "eeg", "eog")
    assert ["EOG left (eog)" in finding.found for finding in header.findings] == [True]
    assert np.allclose(opened.get_data(), VALUES, atol=0.5e-7, rtol=0)


@pytest.mark.parametrize(
    ("name", "common"),
    [
        ("Fc5.", "FC5"), ("FC5", "FC5"), ("FP1", "Fp1"), ("fpz ", "Fpz"), ("CZ", "Cz"), ("T3", "T3"), ("t7", "T7"),
        ("EEG FP1-REF", "Fp1"), ("EEG F3-LE", "F3"), ("EEG O2-Ref", "O2"), ("EEG-Cz", "Cz"), ("eeg:fz", "Fz"),
        ("Cz-AVG", "Cz"), ("EEG EKG1-REF", "EKG1"), ("nd", "nd"), ("EEG 001", "EEG 001"), ("EEG", "EEG"),
        ("C3-A2", "C3-A2"), ("Fp1-F7", "Fp1-F7"), ("STI 014", "STI 014"), ("...", "..."), ("Ref", "Ref"),
    ],
)  # fmt: skip
def test_common_name(name: str, common: str) -> None:
    assert common_name(name) == common
    assert common_name(common) == common


def test_twins() -> None:
    assert [twin(name) for name in ("T3", "T4", "T5", "T6", "T7", "T8", "P7", "P8", "Cz")] == [
        "T7", "T8", "P7", "P8", "T3", "T4", "T5", "T6", None
    ]  # fmt: skip


def test_events_that_mne_would_take_for_bad_parts_are_told(tmp_path: Path) -> None:
    raw = recording().set_annotations(
        mne.Annotations(
            range(1, 9), 0.1, ["badge", "edgeways", "BAD_x", "bad x", "Bad", "EDGE boundary", "badge", "boundary"]
        )
    )
    epochs = mne.Epochs(raw, [[150, 0, 1], [250, 0, 1]], tmin=-0.5, tmax=0, baseline=None, verbose="error")
    assert len(epochs.drop_bad(verbose="error")) == 1  # that over `badge` is not there, that over `edgeways` is
    _, header = open_recording(source(save(raw, tmp_path / "a_raw.fif")))
    assert header.events == {"edgeways": 1}
    assert [(f.action, f.found) for f in header.findings if f.kind == "events"] == [
        ("noted", "taken for bad parts of the recording: badge (2)")
    ]


def test_names_that_would_become_one_stay(tmp_path: Path) -> None:
    path = put(tmp_path / "a.edf", edf(VALUES[:3], ("FP1", "EEG Fp1", "fz")))
    _, header = open_recording(source(path))
    assert header.channels == ("FP1", "EEG Fp1", "Fz")
    assert [finding.found for finding in header.findings] == [
        "FP1 and EEG Fp1 would all be called Fp1, so they keep their names"
    ]


@pytest.mark.parametrize("date", [None, datetime(2020, 1, 1, tzinfo=UTC)])
@pytest.mark.parametrize("cut", [0.0, 0.5])
def test_onsets_count_from_the_first_sample(tmp_path: Path, date: datetime | None, cut: float) -> None:
    raw = marked(date).crop(cut)
    opened, header = open_recording(source(save(raw, tmp_path / "a_raw.fif")))
    assert opened.first_time == cut
    assert event_list(opened) == [(1 - cut, 0.5, "left"), (3.5 - cut, 0.0, "right"), (7 - cut, 0.0, "left")]
    assert header.events == {"left": 2, "right": 1}
    assert header.findings[1:] == ()  # that of types


@pytest.mark.parametrize("unit", [1.0, 1e-6])
def test_stim_channels_give_codes(tmp_path: Path, unit: float) -> None:
    raw = recording([(100, 1), (105, 3), (200, 2), (400, 1)], unit=unit)
    opened, header = open_recording(source(save(raw, tmp_path / "a_raw.fif")))
    assert header.types[-1] == "stim"
    assert header.events == {"1": 2, "2": 1, "3": 1}
    assert event_list(opened) == [(1.0, 0.0, "1"), (1.05, 0.0, "3"), (2.0, 0.0, "2"), (4.0, 0.0, "1")]
    assert event_list(opened, "annotations") == []
    opened.set_annotations(mne.Annotations([1.5], [0], ["go"]))
    assert event_list(opened) == [(1.5, 0.0, "go")]
    assert len(event_list(opened, "stim")) == 4


def test_epochs_keep_their_names_and_are_read_lazily(tmp_path: Path) -> None:
    raw = recording()
    events = np.array([[100, 0, 7], [300, 0, 8], [500, 0, 7]])
    epochs = mne.Epochs(raw, events, {"left": 7, "right": 8}, -0.1, 0.5, baseline=None, preload=True, verbose="error")
    for name in ("a-epo.fif", "a.fif", "b_epo.fif.gz"):  # whatever it is called
        with pytest.warns(RuntimeWarning, match="naming conventions") if name == "a.fif" else nullcontext():
            epochs.save(tmp_path / name)
        opened, header = open_recording(source(tmp_path / name))
        assert not opened.preload
        assert (header.epochs, header.tmin, header.tmax, header.seconds) == (3, -0.1, 0.5, pytest.approx(3 * 0.61))
        assert event_names(opened) == ["left", "right", "left"]
        assert header.events == {"left": 2, "right": 1}
        assert header.channels == ("Fp1", "Cz", "F3", "EOG left")
        assert np.allclose(opened.get_data()[1], VALUES[:, 290:351], rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(
    ("package", "name"), [("edfio", "a.edf"), ("edfio", "a.bdf"), ("pybv", "a.vhdr"), ("eeglabio", "a.set")]
)
def test_what_mne_exports_comes_back(tmp_path: Path, package: str, name: str) -> None:
    pytest.importorskip(package)
    raw = marked(datetime(2020, 1, 1, tzinfo=UTC))
    raw.rename_channels({"EEG Fp1-REF": "Fp1"})
    try:
        mne.export.export_raw(tmp_path / name, raw, verbose="error")
    except ValueError as error:
        if "bdf" in str(error).lower():
            pytest.skip("this MNE exports no BDF")
        raise
    opened, header = open_recording(source(tmp_path / name))
    assert header.channels[:3] == ("Fp1", "Cz", "F3")
    names = {event.rsplit("/", 1)[-1]: count for event, count in header.events.items()}
    assert names == {"left": 2, "right": 1}
    assert [onset for onset, *_ in event_list(opened)] == pytest.approx([1, 3.5, 7])
    assert np.allclose(opened.get_data()[:4], VALUES, atol=1e-7, rtol=0)
    (found,) = find(tmp_path)
    beside = {"a.vhdr": {"a.eeg", "a.vmrk"}}.get(name, set())
    assert {file.name for file in companions(found)} == {name, *beside}


def test_packed_and_split_files(tmp_path: Path) -> None:
    raw = mne.io.RawArray(np.tile(VALUES, 400), mne.create_info([*CHANNELS], RATE, "eeg"), verbose="error")
    save(raw, tmp_path / "one" / "a_raw.fif", split_size="3MB", buffer_size_sec=1)
    save(recording(), tmp_path / "one" / "a_raw-5.fif")  # named as a part, but a recording of its own
    save(recording(), tmp_path / "one" / "b_raw.fif.gz")
    save(raw, tmp_path / "two" / "sub-2_eeg.fif", split_size="3MB", buffer_size_sec=1, split_naming="bids")
    found = {s.name: s for s in find(tmp_path)}
    assert list(found) == ["one/a_raw-5.fif", "one/a_raw.fif", "one/b_raw.fif.gz", "two/sub-2_split-01_eeg.fif"]
    parts = ["a_raw.fif", "a_raw-1.fif", "a_raw-2.fif", "a_raw-3.fif"]
    assert [file.name for file in companions(found["one/a_raw.fif"])] == parts
    assert len(companions(found["two/sub-2_split-01_eeg.fif"])) == len(parts)
    assert companions(found["one/a_raw-5.fif"]) == (tmp_path / "one" / "a_raw-5.fif",)
    for name in ("one/a_raw.fif", "two/sub-2_split-01_eeg.fif"):
        assert open_recording(found[name])[1].seconds == 4000
    assert open_recording(found["one/b_raw.fif.gz"])[1].seconds == 10
    packed = tmp_path / "one" / "b_raw.fif.gz"
    packed.write_bytes(packed.read_bytes()[:-100])
    assert refused(packed).kind == "truncated"
    (tmp_path / "one" / "a_raw-2.fif").unlink()
    finding = refused(tmp_path / "one" / "a_raw.fif")
    assert (finding.kind, "a_raw-2.fif, which is missing" in finding.found) == ("partner", True)


# ------------------------------------------------------------------------------------------------ whatever is wrong
BRAINVISION = (
    b"Brain Vision Data Exchange Header File Version 1.0\n[Common Infos]\nDataFile=$b.eeg\nMarkerFile=old.vmrk\n"
)
WRONG: list[tuple[str, bytes, str, str]] = [
    ("a.edf", b"<!DOCTYPE html><html>", "extension", "web site"),
    ("a.edf", b"PK\x03\x04 and more", "extension", "ZIP"),
    ("a.edf", b"version https://git-lfs.github.com/spec/v1\n", "extension", "git lfs pull"),
    ("a.edf", b"/annex/objects/MD5E-s1--0.edf\n", "extension", "datalad get"),
    ("a.edf", gzip.compress(edf()), "extension", "Unpack it"),
    ("a.edf", edf(version=b"\xffBIOSEMI"), "extension", "Rename it to a.bdf"),
    ("a.bdf", edf(), "extension", "Rename it to a.edf"),
    ("a.abc", edf(), "extension", "Rename it to a.edf"),
    ("a.abc", b"\x00\x01\x02\xff", "extension", "no EEG format is known by the extension .abc"),
    ("a.edf", b"\x00\x01\x02\xff" * 100, "header", "field at byte 252"),
    ("a.edf", b"   \n", "text", "nothing but blanks"),
    ("a.edf", edf()[:200], "truncated", "200 bytes are there, the header alone has 256"),
    ("a.edf", edf()[:1000], "truncated", "header alone has 1280"),
    ("a.edf", edf()[:256] + b" " * 2000, "header", "number of samples in a record of signal 1 (), is ''"),
    ("a.edf", edf()[:256].replace(b"4   ", b"x   "), "header", "field at byte 252, number of signals, is 'x'"),
    ("a.vhdr", BRAINVISION, "partner", "Copy a.eeg here and copy old.vmrk here"),
    ("a.vmrk", b"Brain Vision Data Exchange Marker File", "partner", "a.vhdr is missing"),
    ("a.eeg", b"\x00\x01\x02\xff", "partner", "Copy a.vhdr beside it"),
    ("a.fdt", b"\x00\x01\x02\xff", "partner", "Copy a.set beside it"),
    ("a.eeg", b"EEG-1100C V01.00" + bytes(100), "mne", "does not expect (IndexError"),
    ("a.set", b"MATLAB 5.0 MAT-file" + bytes(200), "mne", "says"),
    ("a.cnt", b"Version 3.0" + bytes(20), "truncated|mne", "buffer"),
    ("a.mff/info.xml", b"", "package|mne", "EGI MFF data"),
]


@pytest.mark.parametrize(("name", "content", "kind", "words"), WRONG)
def test_any_wrong_file_is_refused(tmp_path: Path, name: str, content: bytes, kind: str, words: str) -> None:
    path = put(tmp_path / name, content)
    finding = refused(path.parent if path.parent != tmp_path else path)
    assert finding.kind in kind.split("|"), finding
    assert words in str(finding), finding
    assert str(tmp_path) not in str(finding)


def test_places_that_are_no_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.edf").mkdir()
    assert refused(tmp_path / "folder.edf").kind == "folder"
    assert refused(tmp_path / "gone.edf").kind == "missing"
    (tmp_path / "link.edf").symlink_to("annexed")
    assert "datalad get" in refused(tmp_path / "link.edf").remedy
    (tmp_path / "a.vhdr").write_bytes(BRAINVISION)
    (tmp_path / "a.eeg").write_bytes(b"\x00")
    assert "Set data.path to a.vhdr" in refused(tmp_path / "a.eeg").remedy


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/data/a.fdt"), "permission", "chmod u+r a.fdt"),
        (PermissionError("does not have read permissions"), "permission", "chmod u+r a.edf"),
        (MemoryError("Unable to allocate 9 GiB"), "memory", "Cut the recording"),
        (ImportError("No module named 'antio'"), "package", "antio"),
        (RuntimeError("For this the curryreader module is needed, but it could not be imported."), "package", "curry"),
        (zlib.error("invalid block type"), "damaged", "Copy or download it again"),
        (EOFError("Compressed file ended"), "truncated", "Compressed file ended"),
        (UnicodeDecodeError("ascii", b"\xd1", 0, 1, "ordinal not in range"), "mne", "says UnicodeDecodeError"),
        (struct.error("unpack requires a buffer"), "mne", "says error: unpack requires"),
        (OSError(errno.EIO, "Input/output error"), "mne", "says OSError: [Errno 5]"),
        (AssertionError(), "mne", "it is damaged, or made in a way that MNE-Python"),
        (IndexError("index 0 is out of bounds"), "mne", "does not expect (IndexError: index 0 is out of bounds)"),
        (ValueError("cannot reshape array of size 75 into shape (2,6,9)"), "truncated", "ends before its header says"),
        (ValueError("cannot reshape array of size 75 into shape (2,6,6)"), "length", "75 values, by its header"),
        (NotImplementedError("Please use HDF reader for matlab v7.3 files"), "package", "Install it with pip"),
    ],
)  # fmt: skip
def test_any_error_is_explained(tmp_path: Path, error: Exception, kind: str, words: str) -> None:
    finding = explain(error, source(put(tmp_path / "a.edf", edf())))
    assert (finding.kind, words in str(finding), finding.action) == (kind, True, "refused"), finding


def _edf(folder: Path) -> Path:
    return put(folder / "a.edf", edf())


def _fif(folder: Path) -> Path:
    return save(marked(), folder / "a_raw.fif")


def _exported(name: str, package: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        pytest.importorskip(package)
        mne.export.export_raw(folder / name, marked(), verbose="error")
        return folder / name

    return make


@pytest.mark.parametrize("make", [_edf, _fif, _exported("a.vhdr", "pybv"), _exported("a.set", "eeglabio")])
def test_damage_anywhere_is_read_or_refused(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    """No other exception, no warning, whatever was cut off or overwritten."""
    path = make(tmp_path)
    whole = path.read_bytes()
    draw = np.random.default_rng(1)
    outcomes = set()
    for turn in range(60):
        damaged = bytearray(whole)
        if turn % 2:
            del damaged[int(draw.integers(len(whole))) :]
        else:
            first = int(draw.integers(min(len(whole), 3000)))
            damaged[first : first + 8] = draw.bytes(8)
        path.write_bytes(bytes(damaged))
        try:
            opened, header = open_recording(source(path))
            assert len(header.channels) == len(opened.ch_names)
            with listening(source(path), []):
                opened.get_data()
            outcomes.add("read")
        except FileError as error:
            outcomes.add(error.finding.action)
        except Exception as error:  # of get_data
            outcomes.add(explain(error, source(path)).action)
    assert outcomes == {"read", "refused"}


# ------------------------------------------------------------------------------------------------ which files, whose
def named(folder: Path, *args: Any, **settings: Any) -> list[tuple[str, ...]]:
    return [(s.name, s.subject, s.session, s.run) for s in find(folder, *args, **settings)]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["b.edf", "a.BDF"], [("a.BDF", "a", "", ""), ("b.edf", "b", "", "")]),
        (["S001/S001R04.edf", "S001/S001R04.edf.event"], [("S001/S001R04.edf", "S001", "", "R04")]),
        (["p1/x.edf", "p2/x.set", "p2/x.fdt"], [("p1/x.edf", "p1", "", ""), ("p2/x.set", "p2", "", "")]),
        (["sub-01_ses-2_task-x_run-3_eeg.edf"], [("sub-01_ses-2_task-x_run-3_eeg.edf", "01", "2", "3")]),
        (["sub-01/ses-b/eeg/rest.edf"], [("sub-01/ses-b/eeg/rest.edf", "01", "b", "")]),
        (["A01T.gdf", "A01E.gdf"], [("A01E.gdf", "A01", "E", ""), ("A01T.gdf", "A01", "T", "")]),
        (["SC4012E0-PSG.edf"], [("SC4012E0-PSG.edf", "SC401", "2", "")]),
        (["aaaaaaaa_s001_t000.edf"], [("aaaaaaaa_s001_t000.edf", "aaaaaaaa", "s001", "t000")]),
        (["x.vhdr", "x.vmrk", "x.eeg", "y.eeg"], [("x.vhdr", "x", "", "")]),
        (["lost/x.eeg", "lost/x.vmrk", "lost/y.vmrk", "a.fdt"],
         [("a.fdt", "a", "", ""), ("lost/x.eeg", "lost", "", ""), ("lost/y.vmrk", "lost", "", "")]),
        (["a.edf", ".b.edf", ".hidden/c.edf", "notes.txt", "a.json", "x.snirf", "t.mat"], [("a.edf", "a", "", "")]),
        (["p/r.mff/signal1.bin", "p/r.mff/x.eeg", "m.ds/m.eeg", "m.ds/x.set"], [("p/r.mff", "p", "", "")]),
        (["a_raw.fif", "a-ave.fif", "a-eve.fif", "a-ica.fif.gz", "a-epo.fif"],
         [("a-epo.fif", "a-epo", "", ""), ("a_raw.fif", "a_raw", "", "")]),
    ],
)  # fmt: skip
def test_find(tmp_path: Path, files: list[str], expected: list[tuple[str, ...]]) -> None:
    for file in files:
        put(tmp_path / file, b"\x00")
    assert named(tmp_path) == expected


def test_find_by_expression_and_pattern(tmp_path: Path) -> None:
    for name in ("siteA/p1/day1/x.edf", "siteA/p2/day1/x.edf", "siteB/p1/day2/x.edf", "siteB/p1/day2/x.bdf"):
        put(tmp_path / name, b"\x00")
    everything = r"(?P<site>\w+)/(?P<subject>p\d)/(?P<session>\w+)/(?P<label>x)(?P<run>y)?"
    found = find(tmp_path, "**/*.edf", everything)
    assert [(s.subject, s.session, s.run, s.site, s.label) for s in found] == [
        ("p1", "day1", "", "siteA", "x"), ("p2", "day1", "", "siteA", "x"), ("p1", "day2", "", "siteB", "x"),
    ]  # fmt: skip
    assert [s.name for s in find(tmp_path, "siteA/p1/**/*", everything)] == ["siteA/p1/day1/x.edf"]
    (one,) = find(tmp_path / "siteB/p1/day2/x.bdf")
    assert (one.name, one.subject, one.path) == ("x.bdf", "x", tmp_path / "siteB/p1/day2/x.bdf")
    for subject, words in (
        (None, "whose path has no usual form"),
        ("(", "a regular expression"),
        ("p1", "with a group"),
        (r"siteA/(?P<subject>\w+)", "2 of 4 have none, the first is 'siteB/p1/day2/x.bdf'"),
        (r"p\d(?P<subject>z)?", "4 of 4 have none"),
    ):
        with pytest.raises(SettingError, match=r"data\.subject") as caught:
            find(tmp_path, subject=subject)
        assert words in str(caught.value)
    for pattern in ("/etc/*", "../*"):
        with pytest.raises(SettingError, match=r"data\.pattern"):
            find(tmp_path, pattern)


@pytest.mark.parametrize(
    ("files", "subjects"),
    [
        (["mon/anna.edf", "tue/anna.edf"], None),
        (["day1/anna.edf", "day2/anna.edf"], None),
        (["2020-01-01/anna.edf", "2020-01-02/anna.edf"], None),
        (["north/p01.edf", "south/p01.edf"], None),
        (["p01/rest.edf", "p02/rest.edf"], ["p01", "p02"]),
        (["mon/anna.edf", "tue/bob.edf"], ["mon", "tue"]),
        (["mon/anna.edf", "tue/sub-anna.edf"], ["mon", "anna"]),
        (["mon/S001R01.edf", "tue/S001R01.edf"], ["S001", "S001"]),
    ],
)
def test_folders_are_subjects_only_where_they_must_be(
    tmp_path: Path, files: list[str], subjects: list[str] | None
) -> None:
    for file in files:
        put(tmp_path / file, b"\x00")
    if subjects is not None:
        assert [s.subject for s in find(tmp_path)] == subjects
        return
    with pytest.raises(SettingError, match=r"data\.subject = null.*who is a subject") as caught:
        find(tmp_path)
    by_file = re.findall(r"'(\^[^']*)'", str(caught.value))[1]
    assert {s.subject for s in find(tmp_path, subject=by_file)} == {Path(files[0]).stem}


def test_find_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        find(tmp_path / "gone")
    with pytest.raises(DataError, match="found no other file"):
        find(tmp_path)
    put(tmp_path / "a.txt", b"")
    put(tmp_path / "b.txt", b"")
    with pytest.raises(DataError, match=r"no EEG recording with data.pattern = .*\.edf.*found 2 \.txt"):
        find(tmp_path)
    with pytest.raises(DataError, match=r"data\.bids = yes"):
        find(tmp_path, bids="yes")


def test_links_in_a_circle_are_followed_once(tmp_path: Path) -> None:
    put(tmp_path / "p1/a.edf", b"\x00")
    (tmp_path / "p1/loop").symlink_to(tmp_path / "p1", target_is_directory=True)
    assert named(tmp_path) == [("p1/a.edf", "p1", "", "")]


def test_companions(tmp_path: Path) -> None:
    for name in ("a.set", "a.fdt", "b.set", "lost.fdt", "b.fdt", "ab.fdt", "a.json", "a.edf"):
        put(tmp_path / name, b"")
    put(tmp_path / "c.vhdr", BRAINVISION.replace(b"$b.eeg", b"b.fdt"))
    put(tmp_path / "old.vmrk", b"")
    names = {s.name: [file.name for file in companions(s)] for s in find(tmp_path)}
    assert names["a.set"] == ["a.set", "a.fdt", "a.json", "ab.fdt", "lost.fdt"]
    assert names["b.set"] == ["b.set", "ab.fdt", "b.fdt", "lost.fdt"]
    assert names["c.vhdr"] == ["c.vhdr", "b.fdt", "old.vmrk"]
    put(tmp_path / "d.mff/info.xml", b"")
    folder = find(tmp_path / "d.mff")[0]
    assert companions(folder) == (tmp_path / "d.mff", tmp_path / "d.mff/info.xml")


def test_a_folder_is_listed_once(tmp_path: Path) -> None:
    for number in range(50):
        for name in (f"{number}.set", f"{number}.fdt", f"{number}.notes.json"):
            put(tmp_path / name, b"")
    calls = []

    @functools.cache
    def counted(folder: Path) -> Folder:
        calls.append(folder)
        return listed(folder)

    found = find(tmp_path)
    names = [[file.name for file in companions(one, counted)] for one in found]
    assert names == [[f"{s.subject}.set", f"{s.subject}.fdt", f"{s.subject}.notes.json"] for s in found]
    assert calls == [tmp_path]
    put(tmp_path / "7.json", b"")
    (seven,) = (one for one in found if one.subject == "7")
    assert tmp_path / "7.json" in companions(seven)


def test_every_reader_is_one_of_mne() -> None:
    later = {"read_raw_mef", "read_raw_bci2k"}  # than the oldest version that is supported
    names = {name for readers in FORMATS.values() for name in readers} - later
    assert [name for name in names if not hasattr(mne.io, name) and not hasattr(mne, name)] == []


def test_looking_for_files_needs_no_mne(tmp_path: Path) -> None:
    put(tmp_path / "a.edf", edf())
    code = (
        "import sys, pathlib, fne.data.eeg.open, fne.data.eeg.find as layout\n"
        f"print(len(layout.find(pathlib.Path({str(tmp_path)!r}))), [m for m in sys.modules if m.startswith('mne')])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "1 []"


# ------------------------------------------------------------------------------------------------ BIDS
@pytest.fixture(scope="module")
def bids(tmp_path_factory: pytest.TempPathFactory) -> Path:
    mne_bids = pytest.importorskip("mne_bids")
    pytest.importorskip("pybv")
    folder: Path = tmp_path_factory.mktemp("made")
    root = folder / "bids"
    raw = marked(datetime(2020, 1, 1, tzinfo=UTC)).set_channel_types({"EOG left": "eog"})
    raw.rename_channels({"EEG Fp1-REF": "Fp1"})
    raw.info["bads"] = ["F3"]
    raw.info["line_freq"] = 50
    raw = mne.io.read_raw(save(raw, folder / "a_raw.fif"), verbose="error")
    for subject, run in (("02", "1"), ("01", "1"), ("01", "2")):
        place = mne_bids.BIDSPath(subject, "a", "go", run=run, root=root, datatype="eeg")
        mne_bids.write_raw_bids(raw, place, format="BrainVision", verbose="error", allow_preload=False)
    for other in (
        "derivatives/x/sub-01/eeg/sub-01_task-go_eeg.vhdr",
        "sourcedata/sub-01.edf",
        "sub-01/beh/sub-01_eeg.edf",
    ):
        put(root / other, b"\x00")
    return root


def test_bids_is_found_and_read_with_its_sidecars(bids: Path) -> None:
    found = find(bids)
    assert [(s.subject, s.session, s.run, s.root) for s in found] == [
        ("01", "a", "1", bids), ("01", "a", "2", bids), ("02", "a", "1", bids)
    ]  # fmt: skip
    first = found[0]
    assert first.name == "sub-01/ses-a/eeg/sub-01_ses-a_task-go_run-1_eeg.vhdr"
    names = {file.name.removeprefix("sub-01_ses-a_task-go_run-1_") for file in companions(first)}
    assert {"eeg.vhdr", "eeg.eeg", "eeg.vmrk", "eeg.json", "events.tsv", "channels.tsv"} <= names
    assert not any("run-2" in file.name for file in companions(first))

    events = first.path.with_name("sub-01_ses-a_task-go_run-1_events.tsv")
    events.write_text(events.read_text().replace("right", "up"))
    opened, header = open_recording(first)
    assert header.events == {"left": 2, "up": 1}
    assert header.types == ("eeg", "eeg", "eeg", "eog")
    assert opened.info["bads"] == ["F3"]
    assert header.findings == ()
    assert np.allclose(opened.get_data(), VALUES, atol=1e-7, rtol=0)
    plainly = find(bids, bids="no")
    assert [s.name for s in plainly] == ["sub-01/beh/sub-01_eeg.edf", *(s.name for s in found)]
    _, plain = open_recording(plainly[1])
    assert all(name.startswith("Stimulus/S") for name in plain.events)


def test_part_of_bids_is_read_as_such(bids: Path) -> None:
    assert [(s.name[:9], s.root) for s in find(bids / "sub-02")] == [("ses-a/eeg", bids)]
    assert find(bids / "sub-02", bids="no")[0].root is None
    assert find(bids / "sourcedata")[0].root is None


def test_bids_needs_its_package(bids: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mne_bids", None)  # as Python sees a package that is not there
    with pytest.raises(DataError, match=r"pip install -e '\.\[bids\]' in the clone; or set data.bids=no"):
        find(bids)
    assert len(find(bids, bids="no")) == 4


def test_broken_bids_is_refused(bids: Path, tmp_path: Path) -> None:
    root = tmp_path / "bids"
    shutil.copytree(bids, root)
    channels = next(root.rglob("sub-02*_channels.tsv"))
    channels.write_text(channels.read_text().replace("Cz", "Pz"))
    finding = refused(find(root)[2].path, root=root)
    assert (finding.kind, "data.bids=no" in finding.remedy) == ("channels", True)
    assert "'Pz..' in the place of 'Cz..'" in finding.found
    assert "read_raw_bids" not in str(finding)
    assert str(tmp_path) not in str(finding)
    shutil.rmtree(root / "sub-01")
    shutil.rmtree(root / "sub-02")
    with pytest.raises(DataError, match="BIDS files"):
        find(root)


def test_bids_may_spell_channels_in_another_way_or_list_them_in_another_order(bids: Path, tmp_path: Path) -> None:
    root = tmp_path / "bids"
    shutil.copytree(bids, root)
    file = next(root.rglob("sub-02*_channels.tsv"))
    before = file.read_text()
    head, *rows = before.splitlines()
    for text in (before.replace("Cz..", "CZ").replace("Fp1", "FP1."), "\n".join([head, *rows[::-1]]) + "\n"):
        assert text != before
        file.write_text(text)
        opened, header = open_recording(find(root)[2])
        assert sorted(header.channels) == ["Cz", "EOG left", "F3", "Fp1"]
        assert dict(zip(header.channels, header.types, strict=True))["EOG left"] == "eog"
        assert opened.info["bads"] == ["F3"]
        places = [("Fp1", "Cz", "F3", "EOG left").index(name) for name in header.channels]
        assert np.allclose(opened.get_data(), VALUES[places], atol=1e-7, rtol=0)
