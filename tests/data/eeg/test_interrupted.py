"""EDF+D and BDF+D files with gaps: events where they were, and no filter over a gap."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import mne
import numpy as np
import pytest

from fne.data.eeg.events import event_list
from fne.data.eeg.open import open_recording
from fne.data.eeg.recording import Preprocessing
from fne.data.eeg.windows import prepare
from tests.data.eeg.reading_parts import FILES, RATE, VALUES, edf, needs_data, put, refused, source

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
