"""Filters, resampling and moving standardisation of EEG recordings that do what they say."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mne
import numpy as np
import pytest

from fne.data.eeg.filters import filter_in_place, moving_standardise, resampled
from fne.data.eeg.recording import Preprocessing, Source
from tests.data.eeg.signal_parts import RATE, Event, Values, noise, recorded, refusal, run, told


def sine(frequency: float, amplitude: float = 20, seconds: float = 30, rate: float = RATE) -> Values:
    return amplitude * np.sin(2 * np.pi * frequency * np.arange(round(seconds * rate)) / rate)


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
