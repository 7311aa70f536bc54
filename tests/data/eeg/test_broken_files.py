"""EEG files that cannot be read: each is refused with the reason in words."""

from __future__ import annotations

import errno
import gzip
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import mne
import numpy as np
import pytest

from fne.core.dataset import FileError
from fne.data.eeg.diagnose import explain
from fne.data.eeg.open import listening, open_recording
from tests.data.eeg.reading_parts import BRAINVISION, edf, marked, put, refused, save, source

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
