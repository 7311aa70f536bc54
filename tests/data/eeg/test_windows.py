"""Windows of EEG recordings and epochs: every sample where it belongs, none over a bad part."""

from __future__ import annotations

from typing import Any

import hypothesis
import mne
import numpy as np
import pytest
from hypothesis import strategies as st

from fne.core.dataset import FileError
from fne.core.errors import SettingError
from fne.data.eeg.recording import Windows
from tests.data.eeg.signal_parts import EVENTS, NAMES, RAMP, RATE, Event, Values, noise, recorded, refusal, run, told


# ------------------------------------------------------------------------------------------------ windows
def starts(windows: Windows) -> list[int]:
    """Return the first samples of windows of `RAMP`, after a look at all other values."""
    first = windows.x[:, 0, 0]
    times = np.arange(windows.x.shape[2])
    expected = first[:, None, None] + 1000 * np.arange(windows.x.shape[1])[:, None] + times
    np.testing.assert_allclose(windows.x, expected, atol=1e-3)
    np.testing.assert_allclose(windows.onset, np.rint(first) / RATE)
    return np.rint(first).astype(int).tolist()


def test_windows_around_events_hold_the_samples_that_they_should() -> None:
    windows = run(recorded(RAMP), tmin=-0.5, tmax=1.5)
    assert (windows.x.dtype, windows.y.dtype, windows.x.shape) == (np.float32, np.int64, (3, 8, 200))
    assert starts(windows) == [50, 300, 550]
    assert windows.y.tolist() == [0, 1, 0]
    assert windows.findings == ()


def test_times_are_from_the_first_sample_of_a_recording_that_was_cut() -> None:
    raw = recorded(RAMP)
    raw.set_meas_date(1_000_000_000)
    cut = raw.crop(2.5)
    assert cut.first_samp == 250
    windows = run(cut, tmin=0.0, tmax=1.0)
    assert np.rint(windows.x[:, 0, 0]).tolist() == [350, 600]
    assert windows.onset.tolist() == [1.0, 3.5]


@pytest.mark.parametrize(
    ("marks", "kept", "found"),
    [
        ([], [100, 350, 600], ""),
        ([(1.5, 0.2, "BAD_jump")], [350, 600], "1 of 3 windows are left out: 1 over a part marked BAD or a break"),
        ([(0.5, 0.5, "bad"), (2.0, 1.5, "BAD")], [100, 350, 600], ""),  # they end, begin where a window begins, ends
        ([(1.99, 0.0, "EDGE boundary")], [350, 600], "1 of 3"),
        ([(2.0, 0.0, "EDGE boundary"), (3.5, 0.0, "boundary")], [100, 350, 600], ""),
        ([(1.995, 0.0, "boundary")], [100, 350, 600], ""),  # EEGLAB: between the last sample of a window and the next
        ([(0.995, 7.0, "boundary")], [100, 350, 600], ""),  # there, duration is what was cut out
        ([(4.0, 0.0, "New Segment/")], [100, 600], "1 of 3"),
        ([(9.5, 0.0, "T2"), (0.0, 9.0, "T2")], [0, 100, 350, 600], "1 of 5 windows are left out: 1 beyond the"),
    ],
)
def test_windows_over_bad_parts_and_breaks_are_left_out(marks: list[Event], kept: list[int], found: str) -> None:
    windows = run(recorded(RAMP, EVENTS + marks))
    assert starts(windows) == kept
    assert [finding.found[: len(found)] for finding in windows.findings] == ([found] if found else [])


def test_no_window_left() -> None:
    finding = refusal(recorded(RAMP), tmax=10.0)
    assert finding.found == "3 of 3 windows are left out: 3 beyond the recording"
    assert finding.expected == "windows within the 10 s of the recording, without a gap"


def test_an_exact_name_wins_over_a_pattern_before_it() -> None:
    assert run(recorded(RAMP), labels=(("T*", "a"), ("T2", "b"), ("T[12]", "c"))).y.tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize(
    ("settings", "key", "allowed"),
    [
        ({"tmax": 0.004}, "data.tmax", "at least 0.01 s after data.tmin = 0 at 100 Hz"),
        ({"rate": 1e-3}, "data.tmax", "at least 1000 s after data.tmin = 0 at 0.001 Hz"),
        ({"rate": 0.5}, "data.tmax", "at least 2 s"),
        ({"length": 0.004}, "data.length", "at least 0.01 s at 100 Hz"),
        ({"length": 1.0, "step": 1e-9}, "data.step", "at least 0.01 s"),
    ],
)
def test_windows_that_cannot_be(settings: dict[str, Any], key: str, allowed: str) -> None:
    with pytest.raises(SettingError) as caught:
        run(recorded(noise()), **settings)
    assert (caught.value.key, allowed in caught.value.allowed) == (key, True), caught.value
    assert run(recorded(noise()), tmax=0.01).x.shape == (3, 8, 1)


def test_the_first_label_that_fits_decides() -> None:
    events: list[Event] = [(1, 0, "left/hand"), (2, 0, "left/foot"), (3, 0, "right"), (4, 0, "[x]"), (5, 0, "rest")]
    labels = (("left/foot", "b"), ("left/*", "a"), ("[x]", "c"), ("*t", "a"))
    assert run(recorded(RAMP, events), labels=labels).y.tolist() == [1, 0, 1, 2, 1]


def test_no_event_that_is_asked_for() -> None:
    finding = refusal(recorded(RAMP), labels=(("Tee1", "left"), ("right/*", "right")))
    assert str(finding) == (
        "no trials: its events are T1 (2), T2 (1), T0 (1); expected: events 'Tee1', did you mean 'T1'?, 'right/*'. "
        "Name the class of those that are meant, as in data: {labels: {T1: CLASS, T2: CLASS, T0: CLASS}}, "
        "or leave the file out by data.pattern"
    )
    finding = refusal(recorded(RAMP, [(1.0, 1.0, "BAD")]))
    assert finding.found == "no trials: it has no events"
    assert "(?P<label>...)" in finding.remedy
    assert "events: stim" not in finding.remedy  # there is no such channel
    raw = recorded(RAMP[:3], types=["eeg", "eeg", "stim"])
    assert "or take its stim channels by data: {events: stim}" in refusal(raw, labels=(("T9", "x"),)).remedy
    raw.set_annotations(None)
    assert "data: {events: stim}" in refusal(raw, events="annotations").remedy
    assert "events: stim" not in refusal(raw, events="stim").remedy


def test_windows_of_fixed_length_within_events() -> None:
    windows = run(recorded(RAMP), length=0.8, step=0.5)
    assert starts(windows) == [100, 350, 400, 450, 600]
    assert windows.y.tolist() == [0, 1, 1, 1, 0]
    windows = run(recorded(RAMP), length=1.5)
    assert starts(windows) == [350]
    assert windows.findings[0].found == "2 of 3 spans are shorter than a window"
    assert refusal(recorded(RAMP), length=2.5).remedy.startswith("Set data: {length: 2} or less")
    finding = refusal(recorded(RAMP), length=1.0, labels=(("T0", "rest"),))
    assert finding.found == "1 events are named in data.labels, and none of them has a duration"


def test_windows_of_fixed_length_over_a_file_with_a_label() -> None:
    bad: list[Event] = [(2.2, 0.1, "BAD")]
    windows = run(recorded(RAMP, EVENTS + bad), label="patient", length=1.0, labels=(("well", "c"), ("pat*", "p")))
    assert starts(windows) == [0, 100, *range(300, 1000, 100)]
    assert set(windows.y.tolist()) == {1}
    assert len(starts(run(recorded(RAMP), label="T2", length=1 / 3, step=0.07))) == 139  # at 0, 7, 14 ... 966
    finding = refusal(recorded(RAMP), label="patients", length=1.0, labels=(("patient", "p"),))
    assert finding.expected == "one of data.labels: 'patient', did you mean 'patients'?"


@hypothesis.given(
    st.lists(st.tuples(st.integers(0, 999), st.integers(0, 300), st.sampled_from(["T1", "T2", "BAD"])), min_size=1),
    st.integers(-100, 100),
    st.integers(1, 200),
)
@hypothesis.settings(max_examples=60, deadline=None)
def test_each_window_lies_within_and_touches_nothing_bad(
    marks: list[tuple[int, int, str]], begin: int, times: int
) -> None:
    ordered = sorted((onset, min(length, 1000 - onset), name) for onset, length, name in marks)
    bad = {sample for onset, length, name in ordered if name == "BAD" for sample in range(onset, onset + length)}
    jumps = {onset for onset, length, name in ordered if name == "BAD" and not length}
    expected = [
        (onset + begin, int(name == "T2"))
        for onset, _, name in ordered
        if name != "BAD" and onset + begin >= 0 and onset + begin + times <= 1000
        and not bad & set(range(onset + begin, onset + begin + times))
        and not jumps & set(range(onset + begin + 1, onset + begin + times))
    ]  # fmt: skip
    raw = recorded(RAMP, [(onset / RATE, length / RATE, name) for onset, length, name in ordered])
    try:
        windows = run(raw, tmin=begin / RATE, tmax=(begin + times) / RATE)
    except FileError:
        assert not expected
    else:
        found = list(zip(np.rint(windows.x[:, 0, 0]).astype(int).tolist(), windows.y.tolist(), strict=True))
        assert sorted(found) == sorted(expected)
        starts(windows)


# ------------------------------------------------------------------------------------------------ epochs
def epochs_of(values: Values, tmin: float = -0.2) -> mne.BaseEpochs:
    """Cut values `[epochs, channels, times]` in microvolts; their events are T1, T2, T0 by turns."""
    info = mne.create_info(list(NAMES)[: values.shape[1]], RATE, "eeg")
    codes = np.arange(len(values)) % 3
    events = np.stack([1000 + 200 * np.arange(len(values)), np.zeros(len(values), int), codes + 1], axis=1)
    names = {name: code for name, code in (("T1", 1), ("T2", 2), ("T0", 3)) if code <= len(values)}
    return mne.EpochsArray(values * 1e-6, info, events, tmin, names, baseline=None, verbose="ERROR")


def test_epochs_are_cropped_and_labelled() -> None:
    values = np.arange(101.0) + 1000 * np.arange(8.0)[:, None] + 10000 * np.arange(5.0)[:, None, None]
    windows = run(epochs_of(values), tmin=0.1, tmax=0.5)
    np.testing.assert_allclose(windows.x, values[[0, 1, 3, 4], :, 30:70], atol=1e-2)
    assert windows.y.tolist() == [0, 1, 0, 1]
    assert windows.onset.tolist() == pytest.approx([10.1, 12.1, 16.1, 18.1])


def test_epochs_are_filtered_and_resampled_before_they_are_cropped() -> None:
    time = np.arange(301) / RATE
    values = np.tile(20 * np.sin(2 * np.pi * 5 * time) + 20 * np.sin(2 * np.pi * 30 * time), (2, 8, 1))
    windows = run(epochs_of(values, tmin=-1.0), tmin=-0.5, tmax=1.5, rate=50.0, high=15.0)
    assert windows.x.shape == (2, 8, 100)
    expected = 20 * np.sin(2 * np.pi * 5 * (0.5 + np.arange(100) / 50))
    np.testing.assert_allclose(windows.x, np.broadcast_to(expected, (2, 8, 100)), atol=0.6)


def test_what_epochs_cannot_have() -> None:
    epochs = epochs_of(noise(8, 1.01).reshape(1, 8, -1))
    finding = refusal(epochs, tmin=0.0, tmax=2.0)
    assert finding.found == "its epochs reach from -0.2 to 0.81 s"
    assert finding.remedy == "Set data: {tmin: 0, tmax: 0.81}"
    assert run(epochs, tmin=-0.2, tmax=0.81).x.shape == (1, 8, 101)
    assert "standardise: trial" in refusal(epochs, moving=True).remedy
    assert "length: null" in refusal(epochs, length=0.5).remedy
    assert refusal(epochs, labels=(("T9", "x"),), tmax=0.5).found == "no trials: its events are T1 (1)"
    noted = run(epochs, tmin=0.0, tmax=0.5, notch=30.0, low=1.0)
    assert told(noted) == [("noted", "filter")]
