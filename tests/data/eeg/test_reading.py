"""EEG files as people have them: what a header says, which events and channels there are."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import mne
import numpy as np
import pytest

from fne.data.eeg.channels import common_name
from fne.data.eeg.diagnose import explain
from fne.data.eeg.events import event_list, event_names
from fne.data.eeg.find import companions, find
from fne.data.eeg.open import is_epochs, open_recording
from tests.data.eeg.reading_parts import (
    CHANNELS,
    FILES,
    RATE,
    VALUES,
    edf,
    marked,
    needs_data,
    put,
    recording,
    refused,
    save,
    source,
)


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
