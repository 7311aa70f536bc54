"""Checks of EEG values: units, broken channels and what becomes of them, in made and in real files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mne
import numpy as np
import pytest

from fne.core.dataset import FileError
from fne.data.eeg.open import open_recording
from fne.data.eeg.recording import Header, Preprocessing, Source, Windows
from fne.data.eeg.windows import prepare
from tests.data.eeg.signal_parts import NAMES, RATE, Values, noise, recorded, refusal, run, told

DATA = os.environ.get("FNE_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="FNE_DATA is not set: no EEG files")


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
