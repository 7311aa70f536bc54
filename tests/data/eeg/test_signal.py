"""One EEG recording to windows: every sample where it belongs, values checked, filters that do what they say."""

from __future__ import annotations

import os
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import mne
import numpy as np
import pytest
from hypothesis import strategies as st
from numpy.typing import NDArray

from fne.core.errors import SettingError
from fne.core.findings import FileError, Finding
from fne.data.eeg.events import event_list
from fne.data.eeg.filters import filter_in_place, moving_standardise, resampled
from fne.data.eeg.open import open_recording
from fne.data.eeg.recording import Header, Preprocessing, Source, Windows
from fne.data.eeg.windows import prepare

DATA = os.environ.get("FNE_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="FNE_DATA is not set: no EEG files")
RATE = 100.0
NAMES = ("Fz", "Cz", "Pz", "Oz", "C3", "C4", "P3", "P4")
Values = NDArray[np.float64]
Event = tuple[float, float, str]
EVENTS: list[Event] = [(1.0, 1.0, "T1"), (3.5, 2.0, "T2"), (6.0, 1.0, "T1"), (8.0, 0.0, "T0")]


def noise(channels: int = len(NAMES), seconds: float = 10, seed: int = 0, rate: float = RATE) -> Values:
    """Draw white noise of 20 microvolts `[channels, times]`."""
    return np.random.default_rng(seed).normal(0, 20, (channels, round(seconds * rate)))


def sine(frequency: float, amplitude: float = 20, seconds: float = 30, rate: float = RATE) -> Values:
    return amplitude * np.sin(2 * np.pi * frequency * np.arange(round(seconds * rate)) / rate)


def recorded(
    values: Values,
    events: Sequence[Event] = EVENTS,
    *,
    names: Sequence[str] = NAMES,
    types: str | list[str] = "eeg",
    rate: float = RATE,
    bads: Sequence[str] = (),
) -> mne.io.BaseRaw:
    """Return a recording of `values` in microvolts."""
    info = mne.create_info(list(names)[: len(values)], rate, types)
    info["bads"] = list(bads)
    raw = mne.io.RawArray(values * 1e-6, info, verbose="ERROR")
    raw.set_annotations(mne.Annotations(*zip(*events, strict=True)) if events else None)
    return raw


def run(raw: Any, label: str = "", **settings: Any) -> Windows:
    """Prepare a recording that was not read from a file; all channels in its own order, but for what is said."""
    epochs = isinstance(raw, mne.BaseEpochs)
    events = Counter(raw.event_id) if epochs else Counter(name for _, _, name in event_list(raw))
    header = Header(
        tuple(raw.ch_names),
        tuple(raw.get_channel_types()),
        float(raw.info["sfreq"]),
        len(raw.times) / raw.info["sfreq"],
        events,
        len(raw) if epochs else 0,
        raw.tmin if epochs else 0.0,
        raw.tmax if epochs else 0.0,
    )
    labels = settings.pop("labels", (("T1", "left"), ("T2", "right")))
    wanted = {"channels": header.channels, "rate": header.rate, "labels": labels} | settings
    processing = Preprocessing(**wanted, classes=tuple(dict.fromkeys(name for _, name in labels)))
    return prepare(Source(Path("one.edf"), "s1/one.edf", "s1", label=label), raw, header, processing)


def refusal(raw: Any, **settings: Any) -> Finding:
    with pytest.raises(FileError) as caught:
        run(raw, **settings)
    assert caught.value.finding.action == "refused"
    return caught.value.finding


def told(windows: Windows) -> list[tuple[str, str]]:
    return [(finding.action, finding.kind) for finding in windows.findings]


# ------------------------------------------------------------------------------------------------ windows
RAMP = np.arange(1000.0) + 1000 * np.arange(8.0)[:, None]
"""Sample t of channel c is 1000 c + t microvolts, so that each value tells where it is from."""


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


# ------------------------------------------------------------------------------------------------ channels
def test_channels_are_taken_by_name_in_the_order_that_is_asked_for() -> None:
    raw = recorded(RAMP, names=NAMES[::-1])
    windows = run(raw, channels=("Fz", "Oz", "P4"))
    assert np.rint(windows.x[0, :, 0]).tolist() == [7100, 4100, 100]
    assert told(windows) == []  # of the order the contract tells


def test_the_recording_stays_as_it_is() -> None:
    raw = recorded(noise())
    before, annotations = raw.get_data(), raw.annotations.copy()
    run(raw, low=2.0, high=20.0, reference="average", rate=50.0, moving=True, channels=("Cz", "Fz"))
    assert np.array_equal(raw.get_data(), before)
    assert raw.annotations == annotations
    assert raw.ch_names == list(NAMES)


def test_references() -> None:
    values = noise()
    windows = run(recorded(values), reference="average")
    np.testing.assert_allclose(windows.x[0], (values - values.mean(0))[:, 100:200], atol=1e-4)
    theirs = mne.set_eeg_reference(recorded(values), "average", verbose="ERROR")[0].get_data() * 1e6
    np.testing.assert_allclose(windows.x[0], theirs[:, 100:200], atol=1e-4)
    others = values[:3] - values[6:8].mean(0)
    windows = run(recorded(values), reference=("P3", "P4"), channels=NAMES[:3])
    np.testing.assert_allclose(windows.x[0], others[:, 100:200], atol=1e-4)
    windows = run(recorded(values), reference=("Cz",))
    assert not windows.x[:, 1].any()
    assert told(windows) == [("noted", "reference")]


def test_only_eeg_channels_count_for_the_average_and_are_changed_by_it() -> None:
    values = noise(4)
    raw = recorded(values, types=["eeg", "eeg", "eeg", "eog"])
    windows = run(raw, reference="average")
    np.testing.assert_allclose(windows.x[0, :3], (values[:3] - values[:3].mean(0))[:, 100:200], atol=1e-4)
    np.testing.assert_allclose(windows.x[0, 3], values[3, 100:200], atol=1e-4)
    np.testing.assert_allclose(run(raw, reference=("Oz",)).x[0, 0], (values[0] - values[3])[100:200], atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"reference": ("Pzz",)}, "channel 'Pzz' of data.reference does not exist, did you mean 'Pz'?"),
        ({"reference": ("Oz",), "bad_channels": "zero"}, "channel Oz of data.reference is bad"),
    ],
)
def test_a_reference_that_cannot_be(settings: dict[str, Any], found: str) -> None:
    values = noise()
    values[3] = 0
    finding = refusal(recorded(values), **settings)
    assert finding.kind == "reference"
    assert finding.found.startswith(found)


def test_the_average_is_over_all_good_eeg_channels_of_the_file() -> None:
    values = noise()
    values[4], values[5, 17], values[6] = 3.0, np.nan, 1000 * values[6]
    types = ["eeg"] * 7 + ["eog"]
    expected = values[:2] - values[:4].mean(0)  # C3 is flat, C4 has NaN, P3 is called bad by the file, P4 is an EOG
    raw = recorded(values, types=types, bads=["P3"])
    for policy in ("refuse", "interpolate", "zero"):
        windows = run(raw, reference="average", channels=("Fz", "Cz"), bad_channels=policy)
        assert windows.findings == ()
        np.testing.assert_allclose(windows.x[0], expected[:, 100:200], atol=1e-4)
    raw = recorded(np.nan_to_num(values), types=types, bads=["C3", "C4", "P3"])
    theirs = mne.set_eeg_reference(raw, "average", verbose="ERROR")[0].get_data(["Cz", "Fz"]) * 1e6
    found = run(raw, reference="average", channels=("Cz", "Fz")).x[0]
    np.testing.assert_allclose(found, theirs[:, 100:200], atol=1e-4)
    # A chosen one that is bad follows the policy, which for the average means that it counts or does not.
    with pytest.raises(FileError, match="C3: flat"):
        run(raw, reference="average", channels=("Fz", "C3", "Pz"))
    zeroed = run(raw, reference="average", channels=("Fz", "C3", "Pz"), bad_channels="zero").x[0]
    np.testing.assert_allclose(zeroed[0], (values[0] - values[:4].mean(0))[100:200], atol=1e-4)
    assert not zeroed[1].any()
    # Not for electrodes of another type, which the file's EEG has nothing to do with.
    other = recorded(noise(4), types=["seeg", "seeg", "eeg", "eeg"])
    found = run(other, reference="average", channels=("Fz", "Cz")).x[0]
    np.testing.assert_allclose(found[0], ((noise(4)[0] - noise(4)[1]) / 2)[100:200], atol=1e-4)
    finding = refusal(recorded(noise(3), types=["eeg", "eog", "misc"]), reference="average", channels=("Fz",))
    assert finding.found.startswith("data.reference = average of 1 channel")


# ------------------------------------------------------------------------------------------------ checks
@pytest.mark.parametrize(
    ("factor", "likely", "line"),
    [
        (1e6, "microvolts that the file calls volts", "1e-06"),
        (1e3, "microvolts that the file calls millivolts", "0.001"),
        (1e-3, "millivolts that the file calls microvolts", "1000"),
        (1e-6, "volts that the file calls microvolts", "1e+06"),
        (1e9, "another unit", "1e-09"),
    ],
)
def test_another_unit_is_refused_with_the_factor_that_mends_it(factor: float, likely: str, line: str) -> None:
    values = noise()
    values[2] = 0.1 * factor  # a flat channel does not hide it
    finding = refusal(recorded(values * factor), bad_channels="zero")
    assert finding.kind == "scale"
    assert finding.found.endswith(f"most likely {likely}")
    assert f"data: {{scale: {line}}}, for this file alone data: {{scale: {{'s1/one.edf': {line}}}}}" in finding.remedy
    mended = run(recorded(values * factor), scale=float(line), bad_channels="zero")
    assert told(mended) == [("repaired", "scale"), ("repaired", "flat")]
    np.testing.assert_allclose(mended.x[0, 0], values[0, 100:200], rtol=1e-5)


def test_the_line_for_one_file_fits_a_name_with_brackets() -> None:
    processing = Preprocessing(NAMES, RATE, (("T1", "a"),), ("a",))
    raw = recorded(noise() * 1e6)
    header = Header(NAMES, ("eeg",) * 8, RATE, 10.0, {})
    with pytest.raises(FileError) as caught:
        prepare(Source(Path("a[1].edf"), "s1/a[1].edf", "s1"), raw, header, processing)
    assert "data: {scale: {'s1/a[[]1].edf': 1e-06}}" in caught.value.finding.remedy


def test_a_scale_on_top_of_a_scale() -> None:
    assert "data: {scale: 1}" in refusal(recorded(noise()), scale=1e-3).remedy


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (1e6, "most likely microvolts that the file calls volts, a factor of 1e6"),
        (1e3, "most likely microvolts that the file calls millivolts, a factor of 1e3"),
        (1e-3, "most likely millivolts that the file calls microvolts, a factor of 1e-3"),
        (1e-6, "most likely volts that the file calls microvolts, a factor of 1e-6"),
        (65535, "its unit or its range is wrong"),
    ],
)
@pytest.mark.parametrize("channels", [2, 3, 8])
def test_a_channel_in_another_unit_is_bad_by_name(factor: float, words: str, channels: int) -> None:
    values = noise(channels)
    values[1] *= factor
    deviations = [np.median(values[i].reshape(10, 100).std(1)) for i in range(channels)]
    reference = "none" if channels == 2 else "average"
    finding = refusal(recorded(values), reference=reference)
    assert (finding.kind, finding.found.startswith("Cz: "), words in finding.found) == ("scale", True, True), finding
    times = float(finding.found.split(" times that of the others")[0].split()[-1].replace(",", ""))
    assert times == pytest.approx(deviations[1] / np.median([*deviations[:1], *deviations[2:]]), rel=0.06)
    assert finding.remedy.startswith("Correct the unit of these channels in the file")
    # The policy repairs it before the average, in which it would be in all other channels.
    windows = run(recorded(values), reference=reference, bad_channels="zero")
    assert told(windows) == [("repaired", "scale")]
    good = [0, *range(2, channels)]
    assert not windows.x[:, 1].any()
    expected = values[good] - (0 if channels == 2 else values[good].mean(0))
    np.testing.assert_allclose(windows.x[0, good], expected[:, 100:200], atol=1e-4)


def test_several_channels_in_other_units_are_told_one_by_one() -> None:
    values = noise()
    values[[0, 3]] *= 1e6
    values[5] *= 1e-3
    windows = run(recorded(values), bad_channels="interpolate")
    (finding,) = windows.findings
    assert [part.split(":")[0] for part in finding.found.split("; ")] == ["Fz", "Oz", "C4"]
    assert np.abs(windows.x).max() < 200
    values[1] *= 1e6  # half of them may be bad, but not one more
    assert told(run(recorded(values), bad_channels="zero")) == [("repaired", "scale")]
    values[2] = 0
    finding = refusal(recorded(values), bad_channels="zero")
    assert finding.found.startswith("5 of 8 channels are bad: Fz: deviation")
    assert "Correct the unit of these channels" in finding.remedy


def test_a_file_of_which_most_channels_are_in_another_unit_gets_no_factor_for_all() -> None:
    values = noise()
    values[2:] *= 1e6
    finding = refusal(recorded(values), bad_channels="zero")
    assert finding.found.endswith("microvolts that the file calls volts, though not in 2 of 8 channels: Fz, Cz")
    assert "data: {scale" not in finding.remedy
    assert "channel by channel" in finding.remedy
    values[:2] *= 1e6
    values[1] /= 1000  # in millivolts among volts, so in no channel are values right
    assert "data: {scale: 1e-06}" in refusal(recorded(values)).remedy


@pytest.mark.parametrize(
    ("factor", "words"),
    [(10, ""), (30, ""), (1 / 30, ""), (1 / 100, ""), (60, "Cz: deviation 1231 microvolts, ")],
)
def test_a_noisy_or_quiet_channel_is_not_in_another_unit(factor: float, words: str) -> None:
    values = noise()
    values[1] *= factor
    deviations = np.median(values.reshape(8, 10, 100).std(2), axis=1)
    assert (0.1 < deviations[1] < 1000) != (factor == 60)
    windows = run(recorded(values))
    np.testing.assert_allclose(windows.x[0], values[:, 100:200], rtol=1e-5)
    assert told(windows) == ([("noted", "noise")] if factor == 60 else [])
    assert all(finding.found.startswith(words) for finding in windows.findings)


def test_only_eeg_channels_are_compared_with_each_other() -> None:
    values = noise()
    values[6:] *= 1e6
    types = ["eeg"] * 6 + ["misc", "resp"]
    assert run(recorded(values, types=types)).findings == ()
    assert "P3: deviation" in refusal(recorded(values, types=["eeg"] * 7 + ["misc"])).found


def test_a_channel_in_another_unit_does_not_count_for_the_average() -> None:
    """It is not among `data.channels`, so that nobody asks for its repair."""
    values = noise()
    values[7] *= 1e6
    windows = run(recorded(values), reference="average", channels=NAMES[:2])
    (finding,) = windows.findings
    assert (finding.kind, finding.action, finding.found.startswith("P4: deviation")) == ("reference", "noted", True)
    np.testing.assert_allclose(windows.x[0], (values[:2] - values[:7].mean(0))[:, 100:200], atol=1e-4)


def test_values_beyond_all_bounds_are_bad_without_an_overflow() -> None:
    values = noise()
    values[3, :50] = 1e305
    assert refusal(recorded(values)).found == "Oz: 50 of 1000 values are NaN or infinite"


@pytest.mark.parametrize("deviation", [0.15, 900.0])
def test_the_limits_of_the_scale(deviation: float) -> None:
    run(recorded(noise() * deviation / 20))
    refusal(recorded(noise() * deviation / 20 * (10 if deviation > 1 else 0.1)))


def test_offset_and_drift_are_no_matter_of_scale() -> None:
    drift = 25_000 + np.linspace(0, 10_000, 1000)
    windows = run(recorded(noise() + drift))
    assert windows.findings == ()
    assert windows.x.mean() > 25_000


def broken() -> Values:
    values = noise()
    values[1] = 7.0
    values[4, 30:130] = np.nan
    values[4, 5] = np.inf
    return values


BROKEN = "Cz: flat, deviation 0 microvolts; C3: 101 of 1000 values are NaN or infinite"


def test_broken_channels_are_refused_by_name() -> None:
    finding = refusal(recorded(broken()))
    assert finding.found == BROKEN
    assert finding.remedy.startswith("Set data: {bad_channels: interpolate}, or zero, or leave these channels out")
    assert told(run(recorded(broken()), channels=("Fz", "Pz", "Oz"))) == []


def test_a_channel_is_flat_that_is_still_for_most_of_the_time() -> None:
    values = noise()
    values[0, 250:] = 3e5
    values[1] = 1e-4 * values[1] / 20 + 4e4
    own, others = (np.median(values[i].reshape(10, 100).std(1)) for i in (1, 2))
    found = refusal(recorded(values)).found
    assert found.startswith(f"Fz: flat, deviation 0 microvolts; Cz: flat, deviation {own:.4g} microvolts, ")
    # As small as volts that the file calls microvolts, which cannot be told from a channel that is nearly flat.
    assert found.endswith("most likely volts that the file calls microvolts, a factor of 1e-6")
    assert 0.9 < float(found.split(", ")[-2].split()[0]) / (own / others) < 1.1
    values = noise()
    values[0, 550:] = 3e5
    run(recorded(values))


@pytest.mark.parametrize("reference", ["none", "average"])
def test_broken_channels_set_to_zero_count_for_nothing(reference: str) -> None:
    values = broken()
    windows = run(recorded(values), bad_channels="zero", reference=reference, low=1.0)
    assert [(f.action, f.found) for f in windows.findings if f.kind == "nan"] == [("repaired", BROKEN)]
    assert not windows.x[:, [1, 4]].any()
    good = [0, 2, 3, 5, 6, 7]
    alone = run(recorded(values[good], names=[NAMES[i] for i in good]), reference=reference, low=1.0)
    np.testing.assert_allclose(windows.x[:, good], alone.x, atol=1e-4)


def field(names: Sequence[str], seed: int = 0) -> Values:
    """Draw potentials that vary slowly over the head: linear in the positions, which all methods should get right."""
    montage = "colin27_1005" if "colin27_1005" in mne.channels.get_builtin_montages() else "standard_1005"
    places = mne.channels.make_standard_montage(montage).get_positions()["ch_pos"]
    position = np.array([places[name] for name in names]) * 10
    return 10 + 20 * position @ noise(3, seed=seed) / 20


def test_interpolation_brings_back_a_smooth_field() -> None:
    names = [
        "Fp1",
        "Fp2",
        "F7",
        "F3",
        "Fz",
        "F4",
        "F8",
        "T7",
        "C3",
        "Cz",
        "C4",
        "T8",
        "P7",
        "P3",
        "Pz",
        "P4",
        "P8",
        "Oz",
    ]
    truth = field(names)
    values = truth.copy()
    values[[4, 9]] = [[0.0], [np.nan]]
    windows = run(recorded(values, names=names), bad_channels="interpolate")
    assert [(f.action, f.remedy) for f in windows.findings] == [
        ("repaired", "They are interpolated, as data.bad_channels says")
    ]
    wanted = truth[:, 100:200]
    np.testing.assert_allclose(windows.x[0], wanted, atol=0.1 * wanted.std())
    good = [i for i in range(len(names)) if i not in (4, 9)]
    np.testing.assert_allclose(windows.x[0][good], wanted[good], atol=1e-4)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("Fz", "MY1", "Pz", "Oz", "C3", "C4", "P3", "P4"), "no position is known of MY1"),
        (("Fz", "Cz", "Pz", "Oz", "M-1", "M-2", "M-3", "M-4"), "3 good channels have a known position"),
    ],
)
def test_an_interpolation_that_cannot_be(names: Sequence[str], found: str) -> None:
    values = noise()
    values[1] = 0
    finding = refusal(recorded(values, names=names), bad_channels="interpolate")
    assert (finding.kind, finding.found) == ("interpolate", found)
    assert "bad_channels: zero" in finding.remedy


def test_positions_are_found_whatever_the_case_and_others_are_left_alone() -> None:
    values = noise()
    values[1] = 0
    names = ("FZ", "CZ", "pz", "OZ", "c3", "C4", "own", "P4")
    windows = run(recorded(values, names=names), bad_channels="interpolate")
    assert windows.x[0, 1].std() > 1
    np.testing.assert_allclose(windows.x[0, 6], values[6, 100:200], atol=1e-4)


def test_channels_that_the_file_calls_bad_follow_the_policy() -> None:
    values = noise()
    raw = recorded(values, bads=["Cz", "P4"])
    kept = run(raw)
    assert told(kept) == [("noted", "marked")]
    assert kept.findings[0].found == "marked as bad by the file: Cz, P4"
    np.testing.assert_allclose(kept.x[0], values[:, 100:200], atol=1e-4)
    zeroed = run(raw, bad_channels="zero")
    assert told(zeroed) == [("repaired", "marked")]
    assert np.flatnonzero(~zeroed.x.any((0, 2))).tolist() == [1, 7]
    assert run(raw, bad_channels="interpolate").x[0, 7].tolist() != kept.x[0, 7].tolist()


@pytest.mark.parametrize("policy", ["refuse", "interpolate", "zero"])
def test_more_than_half_of_the_channels_bad(policy: str) -> None:
    values = noise()
    values[:5] = 0
    finding = refusal(recorded(values), bad_channels=policy)
    assert finding.found.startswith("5 of 8 channels are bad: Fz: flat")
    values[0] = values[7]
    if policy == "zero":
        assert not run(recorded(values), bad_channels=policy).x[:, 1:5].any()
    assert refusal(recorded(np.full((8, 1000), 9e4)), bad_channels=policy).found.startswith("8 of 8 channels are bad")


# ------------------------------------------------------------------------------------------------ filters
MIDDLE = slice(1000, 2000)
"""Of 30 s at 100 Hz: far from the ends, where filters have less to go by."""


def filtered(*parts: Values, **settings: Any) -> Values:
    """Return the middle ten seconds of a sum of signals, after processing."""
    raw = recorded(np.tile(sum(parts), (4, 1)), [(10.0, 0.0, "T1")])
    windows = run(raw, tmax=10.0, **settings)
    return windows.x[0, 0].astype(np.float64)


@pytest.mark.parametrize(
    ("settings", "kept", "gone"),
    [
        ({"low": 4.0}, [8.0, 40.0], [0.0, 0.5, 1.5]),
        ({"high": 30.0}, [0.0, 0.5, 8.0, 25.0], [40.0, 45.0]),
        ({"low": 4.0, "high": 30.0}, [8.0, 25.0], [0.0, 1.5, 40.0]),
        ({"notch": 20.0}, [0.0, 8.0, 25.0], [20.0, 40.0]),
        ({"notch": 20.0, "low": 1.0, "high": 45.0}, [8.0, 25.0], [0.0, 20.0, 40.0]),
    ],
)
def test_a_filter_keeps_and_removes_what_it_says(
    settings: dict[str, Any], kept: list[float], gone: list[float]
) -> None:
    def of(frequency: float) -> Values:
        return sine(frequency) if frequency else np.full(3000, 40.0)

    found = filtered(*map(of, kept + gone), **settings)
    np.testing.assert_allclose(found, sum(map(of, kept))[MIDDLE], atol=0.25)


def test_no_filter_changes_nothing() -> None:
    signal = sine(5.0) + 300.0
    np.testing.assert_allclose(filtered(signal), signal[MIDDLE], rtol=1e-6)


@pytest.mark.parametrize(("rate", "new"), [(100.0, 80.0), (160.0, 128.0), (128.0, 250.0), (256.0, 100.0)])
def test_resampling_keeps_amplitude_and_phase_and_lets_nothing_fold_back(rate: float, new: float) -> None:
    fast = 0.49 * rate if new < rate else 30.0
    raw = recorded(np.tile(sine(7.0, rate=rate) + sine(fast, rate=rate), (4, 1)), [(10.013, 0.0, "T1")], rate=rate)
    windows = run(raw, tmax=8.0, rate=new)
    assert windows.x.shape == (1, 4, round(8 * new))
    time = round(10.013 * new) / new + np.arange(round(8 * new)) / new
    assert windows.onset.tolist() == [time[0]]
    wanted = 20 * np.sin(2 * np.pi * 7 * time) + (0 if new < rate else 20 * np.sin(2 * np.pi * fast * time))
    np.testing.assert_allclose(windows.x[0, 0], wanted, atol=0.2)


@pytest.mark.parametrize(("rate", "new"), [(256.0, 100.0), (100.0, 128.0), (1000.0, 250.0)])
@pytest.mark.parametrize("length", [7, 1000, 2999])
def test_resampling_follows_a_drift_up_to_the_ends(rate: float, new: float, length: int) -> None:
    def drift(at: float) -> Values:
        time = np.arange(round(length * at / rate)) / at
        return np.stack([5 * np.sin(2 * np.pi * 2 * time) + 20_000 * time - 3e4, np.full(len(time), -7.0)])

    found = resampled(drift(rate), rate, new)
    assert found.shape == drift(new).shape
    np.testing.assert_allclose(found, drift(new), atol=0.5)
    np.testing.assert_allclose(found[:, 60:-60], drift(new)[:, 60:-60], atol=0.1)
    stacked = resampled(np.stack([drift(rate)] * 3, axis=1), rate, new)
    assert np.array_equal(stacked, np.stack([found] * 3, axis=1))


@pytest.mark.parametrize(("rate", "new"), [(255.99, 256.0), (256.0, 255.99), (300.3074951171875, 300.0)])
def test_resampling_between_rates_that_are_nearly_equal_drifts_by_less_than_half_a_sample(
    rate: float, new: float
) -> None:
    seconds = 600
    found = resampled(sine(7.0, seconds=seconds, rate=rate)[None], rate, new)[0]
    length = round(round(seconds * rate) * new / rate)
    time = np.arange(length) / new
    assert found.shape == time.shape
    slope = 20 * 2 * np.pi * 7 / new  # of the sine, a sample
    assert np.abs(found - 20 * np.sin(2 * np.pi * 7 * time)).max() < 0.5 * slope + 0.1
    raw = recorded(noise(4, 70, rate=rate), rate=rate)
    windows = run(raw, label="x", labels=(("x", "a"),), length=0.25, rate=new)
    assert len(windows.x) == 70 * 4


@pytest.mark.parametrize(
    ("settings", "found", "remedy"),
    [
        ({"high": 50.0}, "data.high = 50 Hz, sampled at 100 Hz and used at 100 Hz", "Set data: {high: 40} or null"),
        ({"high": 30.0, "rate": 60.0}, "data.high = 30 Hz, sampled at 100 Hz", "Set data: {high: 24} or null"),
        ({"low": 50.0}, "data.low = 50 Hz, sampled at 100 Hz and used at 100 Hz", "Set data: {low: null}, or lower"),
        ({"low": 30.0, "rate": 60.0}, "data.low = 30 Hz", "Set data: {low: null}"),
        ({"low": 1e-9}, "data.low = 1e-09 Hz needs a filter of 3.3e+09 s", "Set data: {low: 0.0033} or higher"),
        ({"notch": 0.5}, "data.notch = 0.5 Hz", "Set data: {notch: 50}"),
        ({"notch": 1e-9}, "data.notch = 1e-09 Hz", "Set data: {notch: 50}"),
        ({"rate": 1e12}, "data.resample = 1e+12 Hz, sampled at 100 Hz", "Set data: {resample: 100}"),
    ],
)
def test_a_filter_or_a_rate_that_cannot_be(settings: dict[str, Any], found: str, remedy: str) -> None:
    finding = refusal(recorded(noise()), **settings)
    assert finding.found.startswith(found), finding
    assert finding.remedy.startswith(remedy), finding


def test_what_mne_says_of_a_filter_is_told() -> None:
    finding = refusal(recorded(noise(4, rate=2000.0), rate=2000.0), notch=2.0)
    assert finding.found == "data.notch = 2 Hz: MNE says Stop bands are not sufficiently separated"


def counted(function: Callable[..., Any], calls: list[Any]) -> Callable[..., Any]:
    """Return `function` as it is, with a note of each call."""

    def call(*args: Any, **settings: Any) -> Any:
        calls.append(args)
        return function(*args, **settings)

    return call


def test_filters_take_channels_together_in_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    values = noise(64, 1200)
    settings = Preprocessing((), RATE, (), (), low=1.0, high=30.0, notch=20.0)
    expected = mne.filter.filter_data(
        mne.filter.notch_filter(values, RATE, [20.0, 40.0], verbose="ERROR"), RATE, 1.0, 30.0, verbose="ERROR"
    )
    calls = []
    monkeypatch.setattr(mne.filter, "create_filter", counted(mne.filter.create_filter, calls))
    tracemalloc.start()
    filter_in_place(values, RATE, [], Source(Path("a.edf"), "a.edf", "a"), settings)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    np.testing.assert_allclose(values, expected, atol=1e-9)
    assert peak < values.nbytes / 2
    assert len(calls) < 20  # a notch and a band-pass for each of a few blocks


def test_a_notch_beyond_the_rate_is_noted() -> None:
    windows = run(recorded(noise()), notch=50.0)
    assert told(windows) == [("noted", "filter")]
    np.testing.assert_allclose(windows.x, run(recorded(noise())).x)


def test_a_filter_longer_than_the_recording_is_noted() -> None:
    windows = run(recorded(noise()), low=0.1)
    assert told(windows) == [("noted", "filter")]
    assert "longer than the signal" in windows.findings[0].found


def test_filters_do_not_reach_across_a_break() -> None:
    """Each piece comes out as if it had been recorded by itself; the jump of 5 mV between them leaves no trace."""
    values = noise(seconds=20)
    values[:, 1000:] += 5000
    events: list[Event] = [(9.0, 0.0, "T1"), (10.0, 0.0, "T2")]
    whole = run(recorded(values, [*events, (10.0, 3.0, "boundary")]), low=1.0, high=30.0)
    one = run(recorded(values[:, :1000], events[:1]), low=1.0, high=30.0)
    two = run(recorded(values[:, 1000:], [(0.0, 0.0, "T2")]), low=1.0, high=30.0)
    np.testing.assert_allclose(whole.x, np.concatenate([one.x, two.x]), atol=1e-4)
    assert np.abs(whole.x).max() < 200
    values[:, 1000:1500] = 0
    skipped = run(recorded(values, [*events[:1], (10.0, 5.0, "BAD_ACQ_SKIP"), (15.0, 0.0, "T2")]), low=1.0, high=30.0)
    three = run(recorded(values[:, 1500:], [(0.0, 0.0, "T2")]), low=1.0, high=30.0)
    np.testing.assert_allclose(skipped.x, np.concatenate([one.x, three.x]), atol=1e-4)
    tiny = run(recorded(values, [*events, *((second / 100, 0.0, "EDGE") for second in (1, 2, 5))]), low=1.0, notch=30.0)
    assert np.isfinite(tiny.x).all()


def test_windows_above_the_limit_are_left_out() -> None:
    values = noise() / 4
    values[2, 380] += 250
    values[5, 120:150] += np.linspace(0, 150, 30)
    windows = run(recorded(values), reject=200.0)
    assert windows.onset.tolist() == [1.0, 6.0]
    assert windows.findings[0].found == (
        "1 of 3 windows are left out: 1 above data.reject = 200 microvolts peak to peak"
    )
    assert run(recorded(values), reject=200.0, moving=True).onset.tolist() == [1.0, 6.0]  # before standardisation
    assert refusal(recorded(values), reject=1.0).found.startswith("3 of 3 windows are left out: 3 above")


# ------------------------------------------------------------------------------------------------ moving
def standardised_slowly(signal: Values, factor: float, first: int, eps: float) -> Values:
    """Do what the definition says, sample by sample, with the weights written out."""
    means, deviations, result = [], [], []
    for t in range(len(signal)):
        weights = (1 - factor) ** np.arange(t, -1, -1.0)
        means.append(weights @ signal[: t + 1] / weights.sum())
        deviations.append((signal[t] - means[t]) ** 2)
        variance = weights @ np.array(deviations) / weights.sum()
        result.append((signal[t] - means[t]) / max(eps, variance**0.5))
    begin = signal[:first]
    result[:first] = ((begin - begin.mean()) / max(eps, begin.std())).tolist()
    return np.array(result)


@pytest.mark.parametrize(("length", "factor", "first"), [(300, 0.01, 50), (1200, 1e-3, 1000), (80, 1e-3, 1000)])
def test_moving_standardisation_is_that_of_the_definition(length: int, factor: float, first: int) -> None:
    values = 30 + noise(3, length / RATE)
    values[2] = 5.0
    expected = np.stack([standardised_slowly(channel, factor, first, 1e-4) for channel in values])
    found = values.copy()
    moving_standardise(found, factor, first)
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_moving_standardisation_is_that_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    values = noise(2, 60) + np.linspace(0, 500, 6000)
    frame = pandas.DataFrame(values.T)
    centred = frame - frame.ewm(alpha=1e-3).mean()
    expected = centred / np.maximum(1e-4, np.sqrt((centred * centred).ewm(alpha=1e-3).mean()))
    moving_standardise(values)
    np.testing.assert_allclose(values[:, 1000:], expected.to_numpy().T[:, 1000:], atol=1e-9)


def test_moving_standardisation_sees_the_whole_recording() -> None:
    values = 1000 + noise(seconds=30)
    expected = values.copy()
    moving_standardise(expected)
    windows = run(recorded(values, [(20.0, 0.0, "T1")]), moving=True)
    np.testing.assert_allclose(windows.x[0], expected[:, 2000:2100], atol=1e-5)


# ------------------------------------------------------------------------------------------------ real files
def of_file(name: str, **settings: Any) -> Windows:
    path = Path(DATA or "") / "eeg_files" / name
    source = Source(path, path.name, "s1")
    raw, header = open_recording(source)
    eeg = tuple(name for name, kind in zip(header.channels, header.types, strict=True) if kind == "eeg")
    wanted = {"channels": eeg, "rate": header.rate, "labels": (("T1", "left"), ("T2", "right")), "tmax": 2.0} | settings
    classes = tuple(dict.fromkeys(label for _, label in wanted["labels"]))
    return prepare(source, raw, header, Preprocessing(**wanted, classes=classes))


@needs_data
def test_a_good_recording() -> None:
    windows = of_file("ok/S001R03.edf", low=4.0, high=38.0, notch=60.0, reference="average", rate=128.0, moving=True)
    assert (windows.x.shape, windows.findings) == ((15, 64, 256), ())
    assert np.bincount(windows.y).tolist() == [8, 7]
    assert 0.5 < windows.x.std() < 2
    raw = mne.io.read_raw_edf(Path(DATA or "") / "eeg_files/ok/S001R03.edf")
    plain = of_file("ok/S001R03.edf")
    first = round(float(raw.annotations.onset[1]) * 160)  # T0 is the first one
    np.testing.assert_allclose(plain.x[0], raw.get_data()[:, first : first + 320] * 1e6, rtol=1e-6)


@needs_data
@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("no_unit.edf", "scale", "40,583,154 microvolts: most likely microvolts that the file calls volts"),
        ("unit_mV_wrong.edf", "scale", "40,583 microvolts: most likely microvolts that the file calls millivolts"),
        ("microvolts_as_volts_raw.fif", "scale", "microvolts that the file calls volts"),
        ("flat_and_nan_raw.fif", "nan", "FCz: flat, deviation 0 microvolts; FC4: 100 of 3200 values are NaN"),
        ("no_events_raw.fif", "events", "no trials: it has no events"),
        ("truncated_raw.fif", "truncated", "truncated: at least 3866 bytes are missing"),
    ],
)
def test_odd_files_are_refused(name: str, kind: str, words: str) -> None:
    with pytest.raises(FileError) as caught:
        of_file(f"odd/{name}")
    assert caught.value.finding.kind == kind
    assert words in caught.value.finding.found


@needs_data
def test_odd_files_that_can_be_put_right() -> None:
    base = of_file("odd/base_20s.edf")
    source = Source(Path(DATA or "") / "eeg_files/odd/base_20s.edf", "base", "s1")
    channels = open_recording(source)[1].channels
    for name in ("no_unit.edf", "microvolts_as_volts_raw.fif"):
        np.testing.assert_allclose(of_file(f"odd/{name}", scale=1e-6).x, base.x, atol=0.05)
    reordered = of_file("odd/reordered_raw.fif", channels=channels)
    assert told(reordered) == []
    np.testing.assert_allclose(reordered.x, base.x, atol=0.05)
    slower = of_file("odd/sfreq128_raw.fif", rate=160.0, high=20.0)  # a file that lags by half a sample
    assert np.corrcoef(slower.x.ravel(), of_file("odd/base_20s.edf", high=20.0).x.ravel())[0, 1] > 0.98
    mended = of_file("odd/flat_and_nan_raw.fif", bad_channels="interpolate", channels=channels)
    assert told(mended) == [("repaired", "nan")]
    good = [i for i, name in enumerate(channels) if name not in ("FCz", "FC4")]
    np.testing.assert_allclose(mended.x[:, good], base.x[:, good], atol=0.05)
    for name in ("FCz", "FC4"):
        one, other = (w.x[:, channels.index(name)].ravel() for w in (mended, base))
        assert np.corrcoef(one, other)[0, 1] > 0.9
