"""Windows that occur twice: only equal signals are repeats, whatever offset, unit or artefact they have."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fne.config.registry import load
from fne.core.dataset import Dataset
from fne.core.errors import DataWarning
from fne.data.eeg.repeats import equal, sketch, unrepeated

Windows = NDArray[np.float64]
"""`[n, channels, times]` in microvolts."""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr("fne.data.sources.cache_folder", lambda: cache)


def noise(number: int = 40, channels: int = 8, times: int = 200, seed: int = 0) -> Windows:
    """Return unlike windows, smooth as EEG is: each value holds three quarters of the one before."""
    x = np.random.default_rng(seed).normal(0, 13, (number, channels, times))
    for t in range(1, times):
        x[..., t] += 0.75 * x[..., t - 1]
    return x


def left(x: Windows, y: Any = None, file: Any = None) -> tuple[list[int], list[str]]:
    """Return which windows are left, and what is said of the others."""
    values = x.astype(np.float32)
    y = np.arange(len(x)) % 2 if y is None else np.array(y)
    file = np.zeros(len(x), int) if file is None else np.array(file)
    names = [f"file{number}" for number in range(file.max() + 1)]
    kept, findings = unrepeated(
        names, names, torch.tensor(file), sketch(values), torch.tensor(y), lambda n: values[n]
    )  # fmt: skip
    return kept.tolist(), [finding.found for finding in findings]


T = np.linspace(0, 1, 200)
DISTURBANCES: dict[str, Callable[[Windows], Windows]] = {
    "nothing": lambda x: x,
    "offsets of 20 mV": lambda x: x + 20_000 * np.linspace(-1, 1, 8)[:, None],
    "a channel in nanovolts": lambda x: x * np.where(np.arange(8) == 3, 1000.0, 1.0)[:, None],
    "a channel that saturates": lambda x: np.where((np.arange(8) == 3)[:, None], 1e5 * np.sign(T - 0.5), x),
    "flat channels": lambda x: np.where((np.arange(8) < 3)[:, None], 7.0, x),
    "drift": lambda x: x + 5000 * T,
    "curved drift": lambda x: x + 5000 * T**2,
    "artefact of the stimulus": lambda x: x + 1e5 * (np.abs(T - 0.1) < 0.01),
    "step": lambda x: x + 1e5 * (T > 0.4),
    "mains hum": lambda x: x + hum(x, 0.0),
    "mains hum of any phase": lambda x: x + hum(x, np.random.default_rng(7).uniform(0, 2 * np.pi, (len(x), 1, 1))),
    "mains hum and a harmonic": lambda x: x + hum(x, 0.0) + hum(x, 1.0, 100.0),
}


def hum(x: Windows, phase: Any, hertz: float = 50.0) -> Windows:
    """Return 2 mV of mains in all channels, of windows of 0.8 seconds at 250 Hz."""
    return np.broadcast_to(2000 * np.sin(2 * np.pi * hertz * np.arange(x.shape[-1]) / 250 + phase), x.shape)


@pytest.mark.parametrize("name", DISTURBANCES)
def test_unlike_windows_stay_whatever_disturbs_all_of_them(name: str) -> None:
    x = DISTURBANCES[name](noise())
    assert left(x) == (list(range(40)), [])


COPIES: dict[str, Callable[[Windows], Windows]] = {
    "as it is": lambda x: x,
    "in volts": lambda x: x * 1e-6,
    "with other offsets and units by channel": lambda x: x * np.geomspace(1e-3, 1e6, 8)[:, None] + 1e4,
    "rounded to 0.1 microvolts": lambda x: np.round(x, 1),
    "rounded to whole microvolts": lambda x: np.round(x),
    "with a channel that lost its offset": lambda x: x - x[:, :1, :1] * (np.arange(8) == 0)[:, None],
}


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("disturbance", ["nothing", "offsets of 20 mV", "flat channels", "drift", "mains hum"])
def test_repeats_are_found_in_another_unit_or_rounded(name: str, disturbance: str) -> None:
    x = DISTURBANCES[disturbance](noise())
    both = np.concatenate([x, COPIES[name](x[10:20])])
    kept, found = left(both, file=[0] * 40 + [1] * 10, y=[*np.arange(40) % 2, *np.arange(10) % 2])
    assert kept == list(range(40))
    assert found == ["10 windows of file1 have the values of windows of file0, and are left out"]


@pytest.mark.parametrize("band", [(1, 40), (0.5, 70)])
def test_repeats_are_found_through_filters(band: tuple[float, float]) -> None:
    """The recording was filtered once, and its other export once more."""
    from scipy.signal import butter, sosfiltfilt

    def through(x: Windows, *passed: float) -> Windows:
        signal = sosfiltfilt(butter(2, passed, "bandpass", fs=250, output="sos"), np.hstack(list(x)))
        return np.stack(np.hsplit(signal, len(x)))

    x = through(noise(), *band)
    again = through(x, 0.05, 115)[10:20]
    kept, _ = left(np.concatenate([x, again]), file=[0] * 40 + [1] * 10, y=[0] * 50)
    assert kept == list(range(40))


def test_a_copy_with_a_channel_of_its_own_is_not_equal() -> None:
    one = noise(1)[0]
    other = one.copy()
    other[2] = noise(1, seed=1)[0, 2]
    assert equal(one.astype(np.float32), (3 * one + 5).astype(np.float32))
    assert not equal(one.astype(np.float32), other.astype(np.float32))


def test_every_window_that_occurs_with_two_classes_is_counted() -> None:
    x = noise(6)
    both = np.concatenate([x, x[:2], x[:1], x[4:5]])  # the first three times, the second and the fifth twice
    kept, found = left(both, y=[0, 0, 0, 0, 0, 0, 1, 1, 0, 0], file=[0] * 6 + [1] * 4)
    assert kept == [2, 3, 4, 5]
    assert found == [
        "1 windows of file1 have the values of windows of file0, and are left out",
        "2 windows of file0 occur with two classes, and are left out",
        "3 windows of file1 occur with two classes, and are left out",
    ]


@pytest.mark.parametrize("shape", [(4, 3, 1), (4, 3, 2), (4, 1, 7)])
def test_windows_that_are_too_short_to_tell_stay(shape: tuple[int, int, int]) -> None:
    assert left(np.random.default_rng(0).normal(size=shape))[0] == list(range(4))
    assert left(np.ones((4, 3, 50)))[0] == list(range(4))  # nothing varies


# ------------------------------------------------------------------------------------------------ files
def save(path: Path, values: NDArray[np.float64]) -> None:
    """Write 8 channels in microvolts at 128 Hz with events of two classes every 2 seconds."""
    import mne

    info = mne.create_info(["Fp1", "Fp2", "C3", "C4", "P3", "P4", "O1", "O2"], 128.0, "eeg")
    raw = mne.io.RawArray(1e-6 * values, info, verbose="error")
    raw.set_annotations(mne.Annotations(np.arange(1, 37, 2.0), 0.0, ["T1", "T2"] * 9))
    path.parent.mkdir(parents=True)
    raw.save(path, verbose="error")


def dataset(folder: Path) -> Dataset:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        return load("data", "eeg_files")(seed=0, path=str(folder), labels={"T1": "left", "T2": "right"})  # type: ignore[no-any-return]


@pytest.mark.parametrize("spoilt", ["offsets", "one channel"])
def test_recordings_with_offsets_or_one_loud_channel_keep_all_windows(tmp_path: Path, spoilt: str) -> None:
    for subject in range(4):
        draw = np.random.default_rng(subject)
        values = 20 * draw.standard_normal((8, 128 * 40))
        if spoilt == "offsets":
            values += draw.uniform(-20_000, 20_000, (8, 1))
        else:
            values[5] = 2_000 * np.sign(np.sin(2 * np.pi * np.arange(128 * 40) / 128))  # loud, alike in all windows
        save(tmp_path / f"p{subject}/a_raw.fif", values)
    made = dataset(tmp_path)
    assert [len(part) for part in (made.train, made.validation, made.test)] == [36, 18, 18]
    assert made.findings == ()
