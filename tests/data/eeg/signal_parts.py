"""EEG recordings made of given values, and how the tests prepare them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mne
import numpy as np
import pytest
from numpy.typing import NDArray

from fne.core.dataset import FileError, Finding
from fne.data.eeg.events import event_list
from fne.data.eeg.recording import Header, Preprocessing, Source, Windows
from fne.data.eeg.windows import prepare

RATE = 100.0
NAMES = ("Fz", "Cz", "Pz", "Oz", "C3", "C4", "P3", "P4")
Values = NDArray[np.float64]
Event = tuple[float, float, str]
EVENTS: list[Event] = [(1.0, 1.0, "T1"), (3.5, 2.0, "T2"), (6.0, 1.0, "T1"), (8.0, 0.0, "T0")]


def noise(channels: int = len(NAMES), seconds: float = 10, seed: int = 0, rate: float = RATE) -> Values:
    """Draw white noise of 20 microvolts `[channels, times]`."""
    return np.random.default_rng(seed).normal(0, 20, (channels, round(seconds * rate)))


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


RAMP = np.arange(1000.0) + 1000 * np.arange(8.0)[:, None]
"""Sample t of channel c is 1000 c + t microvolts, so that each value tells where it is from."""
