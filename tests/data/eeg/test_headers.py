"""Headers and lengths of EEG files that lie: EDF fields, rewritten line ends, surplus bytes, MATLAB 7.3."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fne.cli.main import main
from fne.core.dataset import FileError, Finding
from fne.core.errors import FneError
from fne.data.eeg.events import event_list
from fne.data.eeg.open import open_recording
from fne.data.eeg.recording import Header, Preprocessing, Source
from fne.data.eeg.windows import prepare

DATA = os.environ.get("FNE_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="FNE_DATA is not set: no EEG files")
OK = Path(DATA or "") / "eeg_files" / "ok"
NAMES, RATE, RECORDS = ("Fz", "Cz", "Pz", "Oz"), 100, 40
STEPS = np.random.default_rng(0).normal(0, 200, (len(NAMES), RATE * RECORDS)).astype(np.int16)
"""Values as a file holds them, of 0.1 microvolts."""
SIZES = {
    "label": 16, "transducer": 80, "unit": 8, "physical minimum": 8, "physical maximum": 8, "digital minimum": 8,
    "digital maximum": 8, "prefiltering": 80, "samples": 8, "reserved": 32,
}  # fmt: skip
"""Fields of a signal by the specification of EDF, in their order."""
HEAD = {"patient": (8, 80), "recording": (88, 80), "date": (168, 8), "time": (176, 8), "bytes": (184, 8),
        "kind": (192, 44), "records": (236, 8), "duration": (244, 8), "signals": (252, 4)}  # fmt: skip
"""Fields of the whole file: where they begin, and how long they are."""
LABELS = (("left", "l"), ("right", "r"))


def edf(bdf: bool = False, annotations: bool = True, **fields: str) -> bytes:
    """Return an EDF+ or BDF+ file of records of a second, with fields of the head in place of right ones."""
    width = 3 if bdf else 2
    total, places = len(NAMES) + annotations, 60
    least, most = ("-8388608", "8388607") if bdf else ("-32768", "32767")
    physical = ("-838861", "838861") if bdf else ("-3276.8", "3276.7")
    notes = ["BDF Annotations" if bdf else "EDF Annotations"] * annotations
    columns = {
        "label": [*NAMES, *notes], "unit": ["uV"] * len(NAMES) + [""] * len(notes),
        "physical minimum": [physical[0]] * total, "physical maximum": [physical[1]] * total,
        "digital minimum": [least] * total, "digital maximum": [most] * total,
        "samples": [str(RATE)] * len(NAMES) + [str(places)] * len(notes),
    }  # fmt: skip
    head = {"patient": "X X X X", "recording": "Startdate X X X X", "date": "01.01.20", "time": "10.00.00",
            "bytes": str(256 * (1 + total)), "kind": f"{'B' if bdf else 'E'}DF+C" if annotations else "",
            "records": str(RECORDS), "duration": "1", "signals": str(total)} | fields  # fmt: skip
    text = "".join(f"{head[name]:{size}}" for name, (_, size) in HEAD.items())
    text += "".join(f"{one:{size}}" for name, size in SIZES.items() for one in columns.get(name, [""] * total))
    body = b""
    for record in range(RECORDS):
        values = np.ascontiguousarray(STEPS[:, record * RATE : (record + 1) * RATE].astype("<i4"))
        body += values[..., None].view(np.uint8)[..., :width].tobytes()
        event = f"+{record}.5\x14{LABELS[record % 2][0]}\x14\0" if record else ""
        body += f"+{record}\x14\x14\0{event}".encode().ljust(places * width, b"\0") if annotations else b""
    return (b"\xffBIOSEMI" if bdf else b"0       ") + text.encode("latin-1") + body


def place_of(name: str, signal: int = 0, total: int = len(NAMES) + 1) -> tuple[int, int]:
    """Return where a field begins, and how long it is."""
    if name in HEAD:
        return HEAD[name]
    before = sum(size for other, size in list(SIZES.items())[: list(SIZES).index(name)])
    return 256 + before * total + SIZES[name] * signal, SIZES[name]


def with_field(content: bytes, name: str, text: str, signal: int = 0, total: int = len(NAMES) + 1) -> bytes:
    begin, size = place_of(name, signal, total)
    return content[:begin] + text.encode("latin-1")[:size].ljust(size) + content[begin + size :]


def source(path: Path) -> Source:
    return Source(path, path.name, "1")


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def refused(path: Path) -> Finding:
    with pytest.raises(FileError) as caught:
        open_recording(source(path))
    finding = caught.value.finding
    assert finding.action == "refused"
    assert finding.remedy
    assert not re.search(r"\w+Error|MNE", str(finding)), finding
    return finding


def opened(path: Path) -> tuple[NDArray[np.float64], Header]:
    recording, header = open_recording(source(path))
    return recording.get_data() * 1e6, header


@pytest.mark.parametrize("bdf", [False, True])
def test_the_files_of_these_tests_are_good(tmp_path: Path, bdf: bool) -> None:
    values, header = opened(put(tmp_path / ("a.bdf" if bdf else "a.edf"), edf(bdf)))
    assert (header.channels, header.rate, header.findings) == (NAMES, RATE, ())
    assert header.events == {"left": 19, "right": 20}
    np.testing.assert_allclose(values, STEPS / 10, atol=0.1)


# ------------------------------------------------------------------------------------------------ fields
@pytest.mark.parametrize(
    ("name", "text", "words", "expected"),
    [
        ("signals", "0", "byte 252, number of signals, is '0'", "a whole number of at least 1"),
        ("signals", "-3", "byte 252, number of signals, is '-3'", "a whole number of at least 1"),
        ("signals", "four", "byte 252, number of signals, is 'four'", "a whole number of at least 1"),
        ("records", "-2", "byte 236, number of records, is '-2'", "-1 leaves the number open"),
        ("records", "1e3", "byte 236, number of records, is '1e3'", "a whole number of at least -1"),
        ("records", "", "byte 236, number of records, is ''", "a whole number of at least -1"),
        ("duration", "-1", "byte 244, duration of a record, is '-1'", "a number of seconds above 0"),
        ("duration", "0", "byte 244, duration of a record, is '0'", "a number of seconds above 0"),
        ("duration", "nan", "byte 244, duration of a record, is 'nan'", "a number of seconds above 0"),
        ("duration", "1,0", "byte 244, duration of a record, is '1,0'", "a number of seconds above 0"),
        ("duration", "1e-300", "byte 244, duration of a record, is '1e-300'", "100 samples in a record make 1e+302 Hz"),
        ("duration", "1e9", "byte 244, duration of a record, is '1e9'", "a rate of 1 to 1e+06 Hz"),
        ("bytes", "1535", "byte 184, number of bytes of the header, is '1535'", "1536, as there are 5 signals"),
        ("bytes", "x", "byte 184, number of bytes of the header, is 'x'", "1536, as there are 5 signals"),
        ("samples", "0", "byte 1352, number of samples in a record of signal 3 (Pz), is '0'", "at least 1"),
        ("samples", "-100", "byte 1352, number of samples in a record of signal 3 (Pz), is '-100'", "at least 1"),
        ("samples", "100.0", "byte 1352, number of samples in a record of signal 3 (Pz), is '100.0'", "at least 1"),
        ("physical minimum", "low", "byte 792, physical minimum of signal 3 (Pz), is 'low'", "a number"),
        ("digital maximum", "", "byte 912, digital maximum of signal 3 (Pz), is ''", "a number"),
        ("reserved", "\xe9", "reserved for signals", "blanks, or text in UTF-8"),
        ("patient", "a b c d e=f=g", "byte 8, patient", "at most one '=' in each"),
        ("time", "25.00.00", "byte 176, start time, is '25.00.00'", "a time of day"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("bdf", [False, True])
def test_a_field_that_cannot_be_is_refused_by_name_and_place(
    tmp_path: Path, bdf: bool, name: str, text: str, words: str, expected: str
) -> None:
    content = with_field(edf(bdf), name, text, signal=2)
    finding = refused(put(tmp_path / ("a.bdf" if bdf else "a.edf"), content))
    assert (finding.kind, words in finding.found, expected in finding.expected) == ("header", True, True), finding


@pytest.mark.parametrize("records", ["0", "-1", "40"])
def test_a_file_without_records_is_refused(tmp_path: Path, records: str) -> None:
    finding = refused(put(tmp_path / "a.edf", edf(records=records)[: 256 * 6]))
    if records == "40":
        assert finding.found == "truncated: a.edf has 1,536 bytes, by the header they should be 38,336"
    else:
        assert finding.found == (
            f"it has no values: the number of records is {records}, and the header is all that is there"
        )


@pytest.mark.parametrize("records", ["0", "-1"])
def test_a_number_of_records_that_is_left_open_is_counted(tmp_path: Path, records: str) -> None:
    values, header = opened(put(tmp_path / "a.edf", edf(records=records)))
    np.testing.assert_allclose(values, STEPS / 10, atol=0.02)
    assert [(f.action, "40 are there" in f.found) for f in header.findings] == [("noted", True)]


MUTATIONS = (
    "", "0", "-1", "-5", "1", "2", "3", "10", "999999", "1e9", "nan", "inf", "-inf", "1,5", "0x10", "abc", "1e-300",
    "1e300", "0.001", "\0", "\n", "\xe9", "32767", "-32768", "EDF Annotations", "1_0", "+1", "0.5", "V", "mV",
    "a b c d e=f=g", "X F 01-JAN-2000 n w=1", "Startdate 31-FEB-2000 a b c", "HP:0.1Hz LP:75Hz", "99.99.99",
)  # fmt: skip


@pytest.mark.parametrize("bdf", [False, True])
def test_whatever_a_header_says_the_file_is_read_or_refused_in_words(tmp_path: Path, bdf: bool) -> None:
    """No other exception, no warning, and no name of an error of Python, whichever fields are overwritten."""
    whole, path = edf(bdf), tmp_path / ("a.bdf" if bdf else "a.edf")
    draw = np.random.default_rng(20 + bdf)
    total = len(NAMES) + 1
    places = [place_of(name) for name in HEAD] + [place_of(name, i) for name in SIZES for i in range(total)]
    said = list[str]()
    for _ in range(120):
        content = bytearray(whole)
        for _ in range(int(draw.integers(1, 3))):
            begin, size = places[draw.integers(len(places))]
            text = MUTATIONS[draw.integers(len(MUTATIONS))].encode("latin-1")[:size].ljust(size)
            content[begin : begin + size] = text if draw.random() < 0.8 else draw.bytes(size)
        path.write_bytes(bytes(content))
        try:
            recording, header = open_recording(source(path))
            processing = Preprocessing(header.channels, header.rate, LABELS, ("l", "r"), tmax=1.0, bad_channels="zero")
            prepare(source(path), recording, header, processing)
            said.append("")
        except (FileError, FneError) as error:
            said.append(str(error))
    assert 20 < said.count("") < 100
    assert [text for text in said if re.search(r"\w+Error\b|MNE", text)] == []


# ------------------------------------------------------------------------------------------------ calibration
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"digital minimum": "32767"}, "its digital minimum and maximum are 32767 and 32767"),
        ({"digital minimum": "0", "digital maximum": "0"}, "its digital minimum and maximum are 0 and 0"),
        ({"physical minimum": "0", "physical maximum": "0"}, "its physical minimum and maximum are 0 and 0"),
        ({"physical maximum": "nan"}, "its physical minimum and maximum are -3276.8 and nan"),
    ],
)
def test_a_channel_without_a_scale_is_bad_by_name(tmp_path: Path, fields: dict[str, str], words: str) -> None:
    content = edf()
    for name, text in fields.items():
        content = with_field(content, name, text, signal=1)
    place = source(put(tmp_path / "a.edf", content))

    def windows(channels: Sequence[str] = NAMES, **settings: Any) -> Any:
        recording, header = open_recording(place)
        processing = Preprocessing(tuple(channels), RATE, LABELS, ("l", "r"), tmax=0.4, reference="average", **settings)
        return prepare(place, recording, header, processing)

    with pytest.raises(FileError) as caught:
        windows()
    finding = caught.value.finding
    assert (finding.kind == "scale" or "nan" in words, finding.found.startswith("Cz: ")) == (True, True), finding
    assert words in finding.found or "NaN" in finding.found
    good = [0, 2, 3]
    expected = (STEPS[good] - STEPS[good].mean(0))[:, 150:190] / 10
    np.testing.assert_allclose(windows(bad_channels="zero").x[0, good], expected, atol=0.05)
    others = windows([NAMES[i] for i in good])  # nor does it count for the average if it is not asked for
    np.testing.assert_allclose(others.x[0], expected, atol=0.05)


def test_a_range_of_zero_is_found_where_the_values_look_good(tmp_path: Path) -> None:
    """Without a range MNE takes it for 1, here 1/65 of the right one: no more than a quiet channel."""
    content = edf(annotations=False)
    for name, text in (("physical minimum", "-32"), ("physical maximum", "33")):
        for signal in range(len(NAMES)):
            content = with_field(content, name, text, signal, len(NAMES))
    content = with_field(content, "physical maximum", "-32", 1, len(NAMES))
    _, header = opened(put(tmp_path / "a.edf", content))
    assert header.uncalibrated == {
        "Cz": "its physical minimum and maximum are -32 and -32, so its values have no scale"
    }


def gdf(version: str = "2.20", **bounds: tuple[float, float]) -> bytes:
    """Return a GDF file of the channels and values of these tests, with a table of no events.

    By GDF's specification: 256 bytes of the file, 256 of each signal, then records of int16; the digital bounds are
    int64 in version 1 and float64 in version 2. Bounds of Cz may be given as `physical` and `digital`.
    """
    n = len(NAMES)
    head = bytearray(256)
    head[:8] = f"GDF {version}".encode()
    if version < "2":
        head[168:184], head[184:192] = b"2020010110000000", np.int64(256 * (1 + n)).tobytes()
        counts, unit = b"", b"".join(b"uV".ljust(8) for _ in NAMES)
        head[252:256] = np.uint32(n).tobytes()
    else:
        head[168:176], head[184:186] = np.uint64(737791 << 32).tobytes(), np.uint16(1 + n).tobytes()
        counts, unit = b"", bytes(6 * n) + np.full(n, 4275, "<u2").tobytes()
        head[252:254] = np.uint16(n).tobytes()
    head[236:244], head[244:252] = np.int64(RECORDS).tobytes(), np.array([1, 1], "<u4").tobytes()
    columns = {"physical": [(-3276.8, 3276.7)] * n, "digital": [(-32768.0, 32767.0)] * n}
    for name, own in bounds.items():
        columns[name][1] = own
    kinds = {"physical": "<f8", "digital": "<i8" if version < "2" else "<f8"}
    fields = b"".join(name.encode().ljust(16) for name in NAMES) + bytes(80 * n) + unit + counts
    for name, kind in kinds.items():
        fields += b"".join(np.array([pair[side] for pair in columns[name]], kind).tobytes() for side in (0, 1))
    fields += bytes(80 * n) + np.full(n, RATE, "<i4").tobytes() + np.full(n, 3, "<i4").tobytes() + bytes(32 * n)
    assert len(fields) == 256 * n
    body = b"".join(STEPS[:, record * RATE : (record + 1) * RATE].astype("<i2").tobytes() for record in range(RECORDS))
    return bytes(head) + fields + body + b"\x01" + bytes(7)


@pytest.mark.parametrize("version", ["1.25", "2.20"])
def test_a_gdf_channel_without_a_range_is_bad_by_name(tmp_path: Path, version: str) -> None:
    values, header = opened(put(tmp_path / "good.gdf", gdf(version)))
    np.testing.assert_allclose(values, STEPS / 10, atol=1e-6)
    assert not header.uncalibrated
    for name, own, least in (("physical", (5.0, 5.0), "5 and 5"), ("digital", (7.0, 7.0), "7 and 7")):
        _, header = opened(put(tmp_path / f"{name}.gdf", gdf(version, **{name: own})))
        assert header.uncalibrated == {"Cz": f"its {name} minimum and maximum are {least}, so its values have no scale"}


@needs_data
def test_a_blank_unit_of_one_channel_shows_in_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, run in enumerate(("S001R03", "S001R04", "S001R07", "S001R08")):
        content = (OK / f"{run}.edf").read_bytes()
        total = int(content[252:256])
        if number == 1:
            content = with_field(content, "unit", "", 8, total)
        put(tmp_path / f"files/p{number}/hands.edf", content)
    tree = {"data": {"name": "eeg_files", "path": str(tmp_path / "files"), "labels": {"T1": "left", "T2": "right"},
                     "tmax": 0.5, "reference": "average", "nodes": None, "partition": "subject", "cache": False},
            "model": "logistic", "strategy": "fne"}  # fmt: skip
    config = put(tmp_path / "config.yaml", json.dumps(tree).encode())
    assert main(["data", "check", str(config), "--json", "--out", str(tmp_path / "a.png")]) == 1
    verdicts = json.loads(capsys.readouterr().out)["files"]
    assert [one["verdict"] for one in verdicts] == ["ok", "refused", "ok", "ok"]
    assert re.match(r"C3: deviation [\d,]+ microvolts, [\d,]+ times that of the others", verdicts[1]["reason"])
    assert "most likely microvolts that the file calls volts, a factor of 1e6" in verdicts[1]["reason"]


# ------------------------------------------------------------------------------------------------ line ends
def as_text(content: bytes) -> bytes:
    """Return what unix2dos and version control make of a file that they take for text."""
    return re.sub(rb"(?<!\r)\n", b"\r\n", content)


def is_line_ends(finding: Finding, name: str, count: int) -> bool:
    found = rf"all {count:,} line ends (\n) of {name} have a \r before them"
    binary = f"write '*{Path(name).suffix} binary' into .gitattributes"
    return finding.kind == "line ends" and finding.found.startswith(found) and binary in finding.remedy


@pytest.mark.parametrize("records", ["40", "-1"])
@pytest.mark.parametrize("annotations", [True, False])
@pytest.mark.parametrize("bdf", [False, True])
def test_rewritten_line_ends_are_named(tmp_path: Path, bdf: bool, annotations: bool, records: str) -> None:
    whole = edf(bdf, annotations, records=records)
    assert whole.count(b"\n") > 16
    name = "a.bdf" if bdf else "a.edf"
    finding = refused(put(tmp_path / name, as_text(whole)))
    assert is_line_ends(finding, name, whole.count(b"\n")), finding


@pytest.mark.parametrize("bdf", [False, True])
def test_rewritten_line_ends_are_named_where_the_length_fits(tmp_path: Path, bdf: bool) -> None:
    """A transfer that keeps the length, or a writer that fills up, loses the end: every value is displaced."""
    whole, name = edf(bdf), "a.bdf" if bdf else "a.edf"
    cut = as_text(whole)[: len(whole)]
    assert is_line_ends(refused(put(tmp_path / name, cut)), name, cut.count(b"\n"))


def test_line_ends_within_a_header_displace_its_fields(tmp_path: Path) -> None:
    whole = edf(annotations=False, patient="X X X X\nY")
    assert opened(put(tmp_path / "a.edf", whole))[1].findings == ()
    assert refused(put(tmp_path / "a.edf", as_text(whole))).kind == "line ends"


def test_line_ends_that_became_shorter_are_named_beside_a_cut(tmp_path: Path) -> None:
    whole = edf(annotations=False)
    begin = 256 * (1 + len(NAMES))
    body = np.frombuffer(whole[begin:], "<i2").reshape(RECORDS, len(NAMES), RATE).copy()
    body[0, 1, 17] = body[4, 2, 0] = 0x0A0D
    whole = whole[:begin] + body.tobytes()
    lost = whole.count(b"\r\n")
    assert lost >= 2
    finding = refused(put(tmp_path / "a.edf", whole.replace(b"\r\n", b"\n")))
    assert (finding.kind, rf"turned \r\n into \n {lost} times" in finding.found) == ("truncated", True), finding
    finding = refused(put(tmp_path / "a.edf", whole[:-lost]))  # cut off, and there is still \r\n in it
    assert (finding.kind, "turned" in finding.found) == ("truncated", False)


@needs_data
@pytest.mark.parametrize(
    ("name", "rewritten"),
    [
        ("S001R03.edf", "S001R03.edf"), ("test.bdf", "test.bdf"), ("test_1ch.gdf", "test_1ch.gdf"),
        ("test.vhdr", "test.eeg"), ("eeglab_data.set", "eeglab_data.fdt"), ("eeglab_data.set", "eeglab_data.set"),
        ("ok-epo.fif", "ok-epo.fif"),
    ],
)  # fmt: skip
def test_rewritten_line_ends_of_real_files_are_named(tmp_path: Path, name: str, rewritten: str) -> None:
    for file in OK.glob(f"{Path(name).stem}.*"):
        shutil.copy(file, tmp_path)
    content = as_text((OK / rewritten).read_bytes())
    put(tmp_path / rewritten, content)
    assert is_line_ends(refused(tmp_path / name), rewritten, content.count(b"\n"))


def test_version_control_that_rewrites_line_ends_is_what_the_message_says(tmp_path: Path) -> None:
    """A clone of git with `autocrlf` and a recording that is declared to be text, then as the remedy says."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    repository, whole = tmp_path / "repository", edf(annotations=False)
    put(repository / "a.edf", whole)
    put(repository / ".gitattributes", b"*.edf text\n")

    def git(*words: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "core.safecrlf=false")
        done = subprocess.run(["git", *identity, *words], cwd=repository, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "a")
    git("config", "core.autocrlf", "true")
    (repository / "a.edf").unlink()
    git("checkout", "a.edf")
    assert is_line_ends(refused(repository / "a.edf"), "a.edf", whole.count(b"\n"))
    put(repository / ".gitattributes", b"*.edf binary\n")
    (repository / "a.edf").unlink()
    git("checkout", "a.edf")
    np.testing.assert_allclose(opened(repository / "a.edf")[0], STEPS / 10, atol=0.02)


# ------------------------------------------------------------------------------------------------ length
@pytest.mark.parametrize(("surplus", "action"), [(1, "refused"), (799, "refused"), (800, "noted"), (1600, "noted")])
def test_surplus_bytes_that_make_no_record_are_refused(tmp_path: Path, surplus: int, action: str) -> None:
    """Whole records are those of a recording whose header was not brought up to date; all values are in place."""
    content = edf(annotations=False)
    path = put(tmp_path / "a.edf", content + b"\n" + content[-surplus:][1:])
    if action == "refused":
        finding = refused(path)
        assert finding.found.startswith(f"a.edf has {33_280 + surplus:,} bytes, {surplus} more than the header says")
        path.write_bytes(path.read_bytes()[:33_280])  # as the remedy says
        assert "cut the file to 33,280 bytes" in finding.remedy
    values, header = opened(path)
    np.testing.assert_allclose(values[:, : RATE * RECORDS], STEPS / 10, atol=0.02)
    assert [f.action for f in header.findings] == ([] if action == "refused" else ["noted"])


@needs_data
@pytest.mark.parametrize(("surplus", "action"), [(0, "none"), (1, "refused"), (63, "refused"), (64, "noted")])
@pytest.mark.parametrize("vectorised", [False, True])
def test_a_brainvision_file_has_whole_samples(tmp_path: Path, surplus: int, action: str, vectorised: bool) -> None:
    header = (OK / "test.vhdr").read_bytes().replace(b"NumberOfChannels", b"DataPoints=7900\nNumberOfChannels")
    if vectorised:  # channel after channel, so that any surplus is in doubt
        assert b"MULTIPLEXED" in header
        header = header.replace(b"DataOrientation=MULTIPLEXED", b"DataOrientation=VECTORIZED")
        action = action.replace("noted", "refused")
    shutil.copy(OK / "test.vmrk", tmp_path)
    put(tmp_path / "test.eeg", (OK / "test.eeg").read_bytes() + bytes(surplus))
    path = put(tmp_path / "test.vhdr", header)
    if action == "refused":
        assert f"{surplus} more than the header says" in refused(path).found
    else:
        actions = [f.action for f in opened(path)[1].findings if f.kind == "length"]
        assert actions == ([] if action == "none" else ["noted"])


@needs_data
def test_a_brainvision_channel_of_resolution_zero_is_refused_in_words(tmp_path: Path) -> None:
    for name in ("test.eeg", "test.vmrk"):
        shutil.copy(OK / name, tmp_path)
    lines = (OK / "test.vhdr").read_text("latin-1")
    assert "Ch2=FP2,,0.5" in lines
    path = put(tmp_path / "test.vhdr", lines.replace("Ch2=FP2,,0.5", "Ch2=FP2,,0").encode("latin-1"))
    finding = refused(path)
    assert finding.found == "FP2: the resolution of the header is 0, so its values have no scale"
    assert finding.remedy.startswith("Write the resolution that it was recorded with into test.vhdr; ")


@needs_data
def test_a_brainvision_file_without_values_is_refused(tmp_path: Path) -> None:
    for name in ("test.vhdr", "test.vmrk"):
        shutil.copy(OK / name, tmp_path)
    put(tmp_path / "test.eeg", b"")
    assert refused(tmp_path / "test.vhdr").found == "it has no values: 0 samples"


@needs_data
@pytest.mark.parametrize("surplus", [1, 4, 128])
def test_an_fdt_that_is_longer_than_its_set_is_refused(tmp_path: Path, surplus: int) -> None:
    shutil.copy(OK / "eeglab_data.set", tmp_path)
    put(tmp_path / "eeglab_data.fdt", (OK / "eeglab_data.fdt").read_bytes() + bytes(surplus))
    finding = refused(tmp_path / "eeglab_data.set")
    assert (finding.kind, f", {surplus} more than the header says" in finding.found) == ("length", True)


# ------------------------------------------------------------------------------------------------ MATLAB 7.3
MATLAB = b"MATLAB 7.3 MAT-file, Platform: GLNXA64, Created on: Thu Jan  1 00:00:00 2026 HDF5 schema 1.00 ."


def test_a_set_of_matlab_7_3_names_the_extra_that_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("pymatreader", "h5py"):  # as if they were not installed
        monkeypatch.setitem(__import__("sys").modules, package, None)
    content = MATLAB.ljust(116) + bytes(8) + b"\0\2IM" + bytes(384) + b"\x89HDF\r\n\x1a\n" + bytes(100)
    finding = refused(put(tmp_path / "a.set", content))
    assert (finding.kind, "pip install -e '.[eeglab]'" in finding.remedy) == ("package", True)
    assert "pymatreader and h5py" in finding.found


@pytest.mark.parametrize("nested", [False, True])
def test_a_set_of_matlab_7_3_is_read(tmp_path: Path, nested: bool) -> None:
    pytest.importorskip("pymatreader")
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "a.set"
    events = ((101, "left"), (351, "right"), (601, "left"))
    with h5py.File(path, "w", userblock_size=512) as file:
        write_eeglab(file.create_group("EEG") if nested else file, file.create_group("#refs#"), events)
    with path.open("r+b") as binary:
        binary.write(MATLAB.ljust(116) + bytes(8) + b"\0\2IM")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recording, header = open_recording(source(path))
        values = recording.get_data() * 1e6
    assert (header.channels, header.rate, header.seconds, header.findings) == (NAMES, RATE, RECORDS, ())
    assert event_list(recording) == [((sample - 1) / RATE, 0.0, name) for sample, name in events]
    np.testing.assert_allclose(values, STEPS / 10, atol=1e-4)
    windows = prepare(source(path), recording, header, Preprocessing(NAMES, RATE, LABELS, ("l", "r"), tmax=1.0))
    assert windows.y.tolist() == [0, 1, 0]
    np.testing.assert_allclose(windows.x[1], STEPS[:, 350:450] / 10, atol=1e-4)


def write_eeglab(eeg: Any, references: Any, events: Sequence[tuple[int, str]]) -> None:
    """Write a recording as MATLAB does it: transposed arrays, text as uint16, fields of structures by references."""
    import h5py

    def put_array(where: Any, name: str, values: Any, kind: str = "double") -> Any:
        data = where.create_dataset(name, data=np.atleast_2d(values).T)
        data.attrs["MATLAB_class"] = np.bytes_(kind)
        return data

    def put_text(where: Any, name: str, text: str) -> Any:
        data = put_array(where, name, np.array([ord(letter) for letter in text], np.uint16), "char")
        data.attrs["MATLAB_int_decode"] = np.int32(2)
        return data

    def put_empty(where: Any, name: str) -> None:
        data = where.create_dataset(name, data=np.zeros(2, np.uint64))
        data.attrs.update({"MATLAB_class": np.bytes_("double"), "MATLAB_empty": np.uint8(1)})

    def put_rows(name: str, rows: Sequence[dict[str, Any]]) -> None:
        group = eeg.create_group(name)
        group.attrs["MATLAB_class"] = np.bytes_("struct")
        for field in rows[0]:
            made = []
            for row in rows:
                key, write = f"r{len(references)}", put_text if isinstance(row[field], str) else put_array
                made.append([write(references, key, row[field]).ref])
            group.create_dataset(field, data=np.array(made, h5py.ref_dtype))

    if "MATLAB_class" not in eeg.attrs and eeg.name != "/":
        eeg.attrs["MATLAB_class"] = np.bytes_("struct")
    for name, number in (("nbchan", len(NAMES)), ("trials", 1), ("pnts", STEPS.shape[1]), ("srate", RATE), ("xmin", 0)):
        put_array(eeg, name, float(number))
    put_array(eeg, "data", (STEPS / 10).astype(np.float32), "single")
    put_text(eeg, "setname", "a recording")
    put_rows("chanlocs", [{"labels": name} for name in NAMES])
    put_rows("event", [{"type": name, "latency": float(sample), "duration": 0.0} for sample, name in events])
    for name in ("icaact", "icawinv", "icasphere", "icaweights", "icachansind", "epoch"):
        put_empty(eeg, name)


def test_the_extra_has_the_packages_that_the_message_names() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert [re.match(r"\w+", line)[0] for line in extras["eeglab"]] == ["pymatreader", "h5py"]  # type: ignore[index]
    assert any(re.search(r"\[.*\beeglab\b.*\]", line) for line in extras["test"])
