"""EEG files in folders: which are found, and whose they are."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import mne
import pytest

from fne.core.errors import DataError, SettingError
from fne.data.eeg.find import FORMATS, Folder, companions, find, listed
from tests.data.eeg.reading_parts import BRAINVISION, edf, put


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
