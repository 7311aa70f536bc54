"""EEG files in BIDS: found and read with their sidecars, or refused."""

from __future__ import annotations

import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path

import mne
import numpy as np
import pytest

from fne.core.errors import DataError
from fne.data.eeg.find import companions, find
from fne.data.eeg.open import open_recording
from tests.data.eeg.reading_parts import VALUES, marked, put, refused, save


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
