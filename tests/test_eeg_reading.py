"""EEG files as people have them: which are found, whose they are, what a header says, and why a file cannot be read."""

from __future__ import annotations

import errno
import gzip
import os
import shutil
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import mne
import numpy as np
import pytest

from fne.data.eeg_faults import explain
from fne.data.eeg_layout import FORMATS, companions, find
from fne.data.eeg_reading import common_name, event_list, event_names, is_epochs, listening, open_recording
from fne.data.eeg_recording import Source
from fne.errors import DataError, SettingError
from fne.findings import FileError, Finding

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


def edf(values: Any = VALUES, names: Any = CHANNELS, unit: str = "uV", version: bytes = b"0       ") -> bytes:
    """Return an EDF file of records of one second, from volts `[channels, samples]`; 0.1 microvolts a step."""
    n, rate = len(values), int(RATE)
    records = values.shape[1] // rate
    columns: list[tuple[int, list[str]]] = [
        (16, list(names)), (80, [""] * n), (8, [unit] * n), (8, ["-3276.8"] * n), (8, ["3276.7"] * n),
        (8, ["-32768"] * n), (8, ["32767"] * n), (80, [""] * n), (8, [str(rate)] * n), (32, [""] * n),
    ]  # fmt: skip
    head = f"{'X':80}{'X':80}01.01.2001.01.01{256 * (n + 1):<8}{'':44}{records:<8}{'1':8}{n:<4}"
    fields = "".join(f"{text:{width}}" for width, column in columns for text in column)
    steps = np.rint(values * 1e7).astype("<i2").reshape(n, records, rate).swapaxes(0, 1)
    return version + (head + fields).encode() + steps.tobytes()


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
        ("ok/sample_invalid_birthday_raw.fif", 1, 1, 300.3074951171875, 31 / 300.3074951171875, 0, {}, ("mne",)),
        ("ok/test.bdf", 17, 16, 256, 60, 0, {"255": 40}, ("mne",)),
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
    ("name", "cut"),
    [("eeglab_data.set", "eeglab_data.fdt"), ("test_1ch.gdf", "test_1ch.gdf"), ("test.vhdr", "test.eeg")],
)
def test_values_that_are_missing_are_told(tmp_path: Path, name: str, cut: str) -> None:
    for file in (FILES / "ok").glob(f"{Path(name).stem}.*"):
        content = file.read_bytes()
        put(tmp_path / file.name, content[: len(content) // 3] if file.name == cut else content)
    place = source(tmp_path / name)
    opened, header = open_recording(place)
    if name == "test.vhdr":  # whose header says nothing about the length: events lie beyond the end
        assert [("Omitted 9 annotation" in f.found, "cut off" in f.remedy) for f in header.findings] == [(True, True)]
    else:
        with pytest.raises((RuntimeError, ValueError)) as caught:
            opened.get_data()
        assert explain(caught.value, place).kind == "truncated"


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
    ("a.edf", b"\x00\x01\x02\xff" * 100, "mne", "says"),
    ("a.edf", b"   \n", "text", "nothing but blanks"),
    ("a.edf", edf()[:200], "truncated", "200 bytes are there, the header alone has 256"),
    ("a.edf", edf()[:1000], "truncated", "header alone has 1280"),
    ("a.edf", edf()[:256] + b" " * 2000, "mne", "says"),
    ("a.edf", edf()[:256].replace(b"4   ", b"x   "), "mne", "says ValueError"),
    ("a.vhdr", BRAINVISION, "partner", "Copy a.eeg here and copy old.vmrk here"),
    ("a.vmrk", b"Brain Vision Data Exchange Marker File", "partner", "a.vhdr is missing"),
    ("a.eeg", b"\x00\x01\x02\xff", "partner", "Copy a.vhdr beside it"),
    ("a.fdt", b"\x00\x01\x02\xff", "partner", "Copy a.set beside it"),
    ("a.eeg", b"EEG-1100C V01.00" + bytes(100), "mne", "says"),
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
        (AssertionError(), "mne", "says AssertionError: nothing"),
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
        (None, "by no usual form of a name"),
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


def test_find_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not there"):
        find(tmp_path / "gone")
    with pytest.raises(DataError, match="there is nothing else"):
        find(tmp_path)
    put(tmp_path / "a.txt", b"")
    put(tmp_path / "b.txt", b"")
    with pytest.raises(DataError, match=r"no EEG recording with data.pattern = .*\.edf.*there are 2 \.txt"):
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


def test_every_reader_is_one_of_mne() -> None:
    later = {"read_raw_mef", "read_raw_bci2k"}  # than the oldest version that is supported
    names = {name for readers in FORMATS.values() for name in readers} - later
    assert [name for name in names if not hasattr(mne.io, name) and not hasattr(mne, name)] == []


def test_looking_for_files_needs_no_mne(tmp_path: Path) -> None:
    put(tmp_path / "a.edf", edf())
    code = (
        "import sys, pathlib, fne.data.eeg_reading, fne.data.eeg_layout as layout\n"
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
    with pytest.raises(DataError, match=r"pip install 'fne\[bids\]'; or set data.bids=no"):
        find(bids)
    assert len(find(bids, bids="no")) == 4


def test_broken_bids_is_refused(bids: Path, tmp_path: Path) -> None:
    root = tmp_path / "bids"
    shutil.copytree(bids, root)
    channels = next(root.rglob("sub-02*_channels.tsv"))
    channels.write_text(channels.read_text().replace("Cz", "Pz"))
    finding = refused(find(root)[2].path, root=root)
    assert (finding.kind, "data.bids=no" in finding.remedy) == ("mne", True)
    assert str(tmp_path) not in str(finding)
    shutil.rmtree(root / "sub-01")
    shutil.rmtree(root / "sub-02")
    with pytest.raises(DataError, match="BIDS files"):
        find(root)
