"""Sampling rates: equal ones that formats write with other last digits, and several in one file."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import edfio
import numpy as np
import pytest
from numpy.typing import NDArray

from fne.config.registry import load
from fne.core.dataset import Dataset, FilesError
from fne.core.errors import DataWarning
from fne.data.eeg.events import event_list
from fne.data.eeg.headers import signal_rates
from fne.data.eeg.open import open_recording
from fne.data.eeg.recording import Header, Source, same_rate
from fne.data.eeg.survey import agree

SECONDS = 12
EVENTS = [(1.0, "a"), (3.0, "b"), (5.0, "a"), (7.0, "b")]
SAMPLES = [140, 420, 700, 980]
"""Events at 1000/7 Hz."""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr("fne.data.sources.cache_folder", lambda: cache)


def dataset(folder: Path, **settings: Any) -> Dataset:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        given = {
            "path": str(folder), "labels": {"*a": "left", "*b": "right"}, "tmax": 1.0, "standardise": "none", **settings
        }  # fmt: skip
        return load("data", "eeg_files")(seed=0, **given)  # type: ignore[no-any-return]


def sums(rate: float, phase: float = 0.0) -> NDArray[np.float64]:
    """Return waves below 15 Hz in microvolts, sampled at this rate."""
    t = np.arange(round(SECONDS * rate)) / rate
    waves = ((3.1, 0.1), (7.3, 1.0), (11.7, 2.0))
    return sum((10 * np.sin(2 * np.pi * f * t + start + phase) for f, start in waves), np.zeros(len(t)))


# ------------------------------------------------------------------------------------------------ last digits
def test_formats_that_round_a_rate_in_other_ways_agree(tmp_path: Path) -> None:
    import mne

    rate, values = 1000 / 7, np.random.default_rng(0).normal(0, 20e-6, (4, 3, round(SECONDS * 1000 / 7)))
    folders = [tmp_path / f"p{number}" for number in range(4)]
    for number, folder in enumerate(folders):
        folder.mkdir()
        raw = mne.io.RawArray(values[number], mne.create_info(["C3", "Cz", "C4"], rate, "eeg"), verbose="error")
        raw.set_annotations(mne.Annotations([sample / rate for sample in SAMPLES], 0.5, ["a", "b", "a", "b"]))
        if number in (0, 3):
            raw.save(folder / "x_raw.fif", verbose="error")
        else:
            mne.export.export_raw(folder / ("x.vhdr", "x.set")[number - 1], raw, verbose="error")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rates = {open_recording(Source(path, path.name, "s"))[1].rate for path in sorted(tmp_path.glob("*/x*[fr]"))}
    assert len(rates) > 1, "formats do not differ in the last digits any more"
    made = dataset(tmp_path, split="trial", validation=0.25, test=0.25)
    assert [(report.verdict, report.findings) for report in made.files] == [("ok", ())] * 4
    assert made.rate == pytest.approx(rate, rel=1e-6)
    assert sum(len(part.x) for part in (made.train, made.validation, made.test)) == 16
    windows = np.concatenate([np.asarray(part.x) for part in (made.train, made.validation, made.test)])
    for number in range(4):
        for start in SAMPLES:
            expected = 1e6 * values[number, :, start : start + made.train.x.shape[2]]
            assert np.abs(windows - expected).max(axis=(1, 2)).min() < 0.1  # BrainVision has steps of 0.1 microvolts


@pytest.mark.parametrize(("rate", "same"), [(142.857147, True), (142.8571, True), (142.9, False), (142.88, False)])
def test_rates_that_differ_are_told_with_digits_that_show_it(rate: float, same: bool) -> None:
    headers = {name: Header(("A",), ("eeg",), 1000 / 7, 10.0, {}) for name in ("one", "two")}
    headers["odd"] = Header(("A",), ("eeg",), rate, 10.0, {})
    contract = agree(headers, "all", ("eeg",), None)
    assert contract.rate == 1000 / 7
    assert bool(contract.findings["odd"]) != same
    for finding in contract.findings["odd"]:
        assert finding.found == f"sampled at {rate:g} Hz"
        assert f"{rate:g}" not in finding.expected
        assert same_rate(float(finding.remedy.partition("resample: ")[2].partition("}")[0]), 1000 / 7)


def test_the_usual_rate_is_counted_whatever_its_last_digits() -> None:
    rates = [128.0, 142.857147, 1e6 / 7000, 1000 / 7, 128.0]  # three of five are 1000 / 7
    headers = {str(number): Header(("A",), ("eeg",), rate, 10.0, {}) for number, rate in enumerate(rates)}
    contract = agree(headers, "all", ("eeg",), None)
    assert contract.rate == 1000 / 7
    assert [bool(contract.findings[str(number)]) for number in range(5)] == [True, False, False, False, True]


# ------------------------------------------------------------------------------------------------ several in one file
SIGNALS = {"C3": 128, "C4": 128, "slow": 64, "ECG": 512}


def edf(path: Path, phase: float = 0.0, signals: Mapping[str, int] = SIGNALS) -> Path:
    """Write an EDF or BDF."""
    if path.suffix == ".bdf":
        signal, whole = edfio.BdfSignal, edfio.Bdf
    else:
        signal, whole = edfio.EdfSignal, edfio.Edf
    made = [
        signal(sums(rate, phase + number), rate, label=label, physical_dimension="uV", physical_range=(-328, 328))
        for number, (label, rate) in enumerate(signals.items())
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    whole(made, annotations=[edfio.EdfAnnotation(onset, 0.5, name) for onset, name in EVENTS]).write(path)
    return path


def people(folder: Path, name: str = "a.edf") -> Path:
    for number in range(3):
        edf(folder / f"p{number}" / name, 0.5 * number)
    return folder


@pytest.mark.parametrize("name", ["a.edf", "a.bdf"])
def test_a_file_has_the_rate_of_the_channels_that_are_used(tmp_path: Path, name: str) -> None:
    made = dataset(people(tmp_path, name), channels=("C3", "C4"))
    assert made.rate == 128.0
    assert [report.rate for report in made.files] == [128.0] * 3
    assert {finding.kind for report in made.files for finding in report.findings} == {"types"}  # of the ECG
    assert made.train.x.shape == (4, 2, 128)
    values = np.concatenate([np.asarray(part.x) for part in (made.train, made.validation, made.test)])
    for number in range(3):
        for onset, _ in EVENTS:
            window = [sums(128, 0.5 * number + channel)[round(128 * onset) :][:128] for channel in (0, 1)]
            assert np.abs(values - window).max(axis=(1, 2)).min() < 0.02  # steps of 0.01 microvolts
    assert dataset(tmp_path, channels=("ECG",)).rate == 512.0


def test_the_band_is_judged_by_the_slowest_channel_that_is_used(tmp_path: Path) -> None:
    people(tmp_path)
    words = r"data.high = 100 Hz, sampled at 128 Hz.*below half the lower rate, 64 Hz"
    with pytest.raises(FilesError, match=words):
        dataset(tmp_path, channels=("C3", "C4"), high=100.0)
    assert dataset(tmp_path, channels=("ECG",), high=100.0).rate == 512.0
    both = dataset(tmp_path, channels=("C3", "slow"), high=30.0)
    assert both.rate == 128.0
    found = ["channels sampled at less than the 128 Hz of the others: slow (64 Hz)"] * 3
    assert [finding.found for report in both.files for finding in report.findings if finding.kind == "rate"] == found
    with pytest.raises(FilesError, match=r"data\.high = 40 Hz, sampled at 64 Hz"):
        dataset(tmp_path, channels=("C3", "slow"), high=40.0)


def test_files_with_another_fast_channel_agree_by_the_channels_that_are_used(tmp_path: Path) -> None:
    people(tmp_path)
    edf(tmp_path / "p3/a.edf", 2.0, {"ECG": 1024, "C4": 128, "C3": 128})
    made = dataset(tmp_path, channels=("C3", "C4"))
    assert [report.rate for report in made.files] == [128.0] * 4
    with pytest.raises(FilesError, match="sampled at 1024 Hz; expected: 512 Hz"):
        dataset(tmp_path, channels=("ECG",))


@pytest.mark.skipif("FNE_DATA" not in os.environ, reason="needs the files in $FNE_DATA/eeg_files")
@pytest.mark.parametrize("name", ["test_1ch.gdf", "test.edf", "test.bdf", "S001R03.edf"])
def test_rates_of_real_files_are_those_of_mne(name: str) -> None:
    path = Path(os.environ["FNE_DATA"]) / "eeg_files/ok" / name
    opened, header = open_recording(Source(path, name, "s"))
    assert [rate for _, rate in signal_rates(path)] == [opened.info["sfreq"]] * len(opened.ch_names)
    assert header.rates == ()


@pytest.mark.parametrize("name", ["STI 014", "Status", "TRIG"])
def test_codes_of_a_slow_stim_channel_are_not_smoothed(tmp_path: Path, name: str) -> None:
    codes = np.zeros(SECONDS * 64)
    for number in range(5):
        codes[64 + 128 * number :][:8] = 3 + 2 * (number % 2)
    signals = [
        edfio.EdfSignal(sums(256), 256, label="C3", physical_dimension="uV"),
        edfio.EdfSignal(codes, 64, label=name, physical_range=(-32768, 32767)),
    ]
    edfio.Edf(signals).write(tmp_path / "a.edf")
    opened, header = open_recording(Source(tmp_path / "a.edf", "a.edf", "a"))
    assert (header.rate, header.rates) == (256.0, (256.0, 64.0))
    assert event_list(opened) == [(1.0 + 2 * number, 0.0, str(3 + 2 * (number % 2))) for number in range(5)]
