"""Events in stim channels: pulses, codes that are held, low-active codes, and the words for what is skipped."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fne.config.registry import load
from fne.core.dataset import Dataset, FilesError
from fne.core.errors import DataWarning
from fne.data.eeg.events import code_events, event_list
from fne.data.eeg.open import open_recording
from fne.data.eeg.recording import Source

RATE, TRIALS = 128.0, 18
Span = tuple[int, int, int]
"""First sample, sample after the last, code."""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr("fne.data.sources.cache_folder", lambda: cache)


def pulses(length: int, codes: Sequence[int] = (1, 2)) -> list[Span]:
    """Return trials every 256 samples from sample 128 on, with the codes in turn, each this many samples long."""
    begins = range(128, 128 + 256 * TRIALS, 256)
    return [(begin, begin + length, codes[number % len(codes)]) for number, begin in enumerate(begins)]


def save(path: Path, spans: Sequence[Span], notes: Sequence[tuple[float, str]] = (), seed: int = 0) -> Path:
    import mne

    values = np.random.default_rng(seed).normal(0, 20e-6, (3, round(40 * RATE)))
    codes = np.zeros((1, values.shape[1]))
    for begin, end, code in spans:
        codes[0, begin:end] = code
    info = mne.create_info(["C3", "Cz", "C4", "STI 014"], RATE, ["eeg"] * 3 + ["stim"])
    raw = mne.io.RawArray(np.vstack([values, codes]), info, verbose="error")
    raw.set_annotations(mne.Annotations([onset for onset, _ in notes], 1.0, [name for _, name in notes]))
    path.parent.mkdir(parents=True, exist_ok=True)
    raw.save(path, verbose="error")
    return path


@pytest.mark.parametrize(
    ("codes", "events", "words"),
    [
        ([0, 1, 1, 0, 2, 0, 0, 1, 0], [(1, 1), (4, 2), (7, 1)], ()),
        ([0, 1, 1, 2, 2, 1, 1, 2, 2, 0], [(1, 1), (3, 2), (5, 1), (7, 2)], ("held until the next",)),
        ([0, 1, 1, 3, 3, 1, 1, 2, 2], [(1, 1), (3, 3), (5, 1), (7, 2)], ("held until the next",)),
        ([1, 1, 2, 2, 1, 1, 2, 2], [(2, 2), (4, 1), (6, 2)], ("first code, 1, is no event", "held")),
        # Two pulses overlap; one follows another at once.
        ([0, 0, 1, 3, 1, 0, 0, 0, 0, 0, 1, 0], [(2, 1), (3, 3), (10, 1)], ("no events: 3 to 1 (1)",)),
        ([0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 1, 0], [(3, 2), (4, 1), (10, 1)], ()),
        # Low-active: 255 is the rest.
        ([255, 255, 254, 255, 253, 255, 255], [(2, 254), (3, 255), (4, 253), (5, 255)], ("first code, 255", "held")),
        # Bits that are always on: pulses of the others.
        ([8, 8, 9, 8, 8, 10, 8, 9, 8], [(2, 9), (5, 10), (7, 9)], ("9 to 8 (2), 10 to 8 (1)",)),
        # Held codes that have a bit in common: it is no rest.
        ([1, 1, 3, 3, 1, 1, 3, 3, 0], [(2, 3), (4, 1), (6, 3)], ("first code, 1, is no event", "each change is")),
        ([1, 1, 3, 3, 1, 1, 3, 3], [(2, 3), (4, 1), (6, 3)], ("first code, 1, is no event", "each change is")),
        ([2, 2, 3, 3, 6, 6, 7, 7, 2, 2], [(2, 3), (4, 6), (6, 7), (8, 2)], ("first code, 2", "each change is an")),
        # Held only from the first code to the last; the channel rests with a bit before and after.
        ([8] * 9 + [9, 9, 10, 10, 9, 9] + [8] * 9, [(9, 9), (11, 10), (13, 9)], ("another code than 8 is an event",)),
        # One single change.
        ([0, 0, 1, 1], [(2, 1)], ()),
        ([1, 1, 0, 0], [], ("first code, 1",)),
        ([5, 5, 5], [], ()),
        ([0, 0, 0], [], ()),
        ([], [], ()),
    ],
)  # fmt: skip
def test_each_code_that_begins_is_an_event(codes: list[int], events: list[tuple[int, int]], words: Any) -> None:
    found, findings = code_events(np.array(codes, np.int64), "STI 014")
    assert found == events
    assert len(findings) == bool(words)
    for finding in findings:
        assert finding.found.startswith("stim channel STI 014: ")
        assert all(word in finding.found for word in words)
        assert finding.found.count(";") == len(words) - 1


ALTERNATING = [(1 + 2 * k, str(1 + k % 2)) for k in range(TRIALS)]


@pytest.mark.parametrize(
    ("spans", "expected", "words"),
    [
        (pulses(12), ALTERNATING, ""),
        (pulses(1), ALTERNATING, ""),
        (pulses(256), ALTERNATING, "codes are held until the next"),
        (pulses(256, (3, 1)), [(t, {"1": "3", "2": "1"}[code]) for t, code in ALTERNATING], "codes are held"),
        ([(0, 10, 1), *pulses(12)], ALTERNATING, "its first code, 1, is no event"),
        (pulses(12, (-1, -2)), [(t, str(65536 - int(code))) for t, code in ALTERNATING], ""),
    ],
)
def test_stim_channels_of_files(tmp_path: Path, spans: list[Span], expected: list[Any], words: str) -> None:
    opened, header = open_recording(Source(save(tmp_path / "a_raw.fif", spans), "a_raw.fif", "a"))
    assert [(onset, name) for onset, _, name in event_list(opened)] == expected
    found = [finding.found for finding in header.findings if finding.kind == "codes"]
    assert len(found) == bool(words)
    assert all(words in text for text in found)


def test_changes_of_held_codes_are_those_of_mne(tmp_path: Path) -> None:
    """MNE gives the same changes of held codes, if it is asked for changes that need not rise."""
    import mne

    draw = np.random.default_rng(5)
    codes, begin, spans = [1, 4, 3, 2, 6, 7], 100, list[Span]()
    for number in range(40):
        length = int(draw.integers(20, 120))
        spans.append((begin, begin + length, codes[(number * 5) % 6]))
        begin += length
    opened, _ = open_recording(Source(save(tmp_path / "a_raw.fif", spans), "a_raw.fif", "a"))
    events = mne.find_events(opened, consecutive=True, shortest_event=1, verbose="error")
    assert event_list(opened) == [(sample / RATE, 0.0, str(code)) for sample, _, code in events.tolist()]
    assert len(events) == 40


def dataset(folder: Path, labels: dict[str, str], **settings: Any) -> Dataset:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        given = {"path": str(folder), "labels": labels, "tmax": 1.0, "standardise": "none", **settings}
        return load("data", "eeg_files")(seed=0, **given)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("spans", "resample"), [(pulses(256), None), (pulses(1), 64.0)])
def test_windows_follow_the_codes(tmp_path: Path, spans: list[Span], resample: float | None) -> None:
    for subject in range(3):
        save(tmp_path / f"p{subject}" / "a_raw.fif", spans, seed=subject)
    made = dataset(tmp_path, {"1": "left", "2": "right"}, resample=resample)
    assert [report.events for report in made.files] == [{"left": 9, "right": 9}] * 3
    assert made.train.x.shape == (18, 3, resample or RATE)


def test_annotations_of_bad_parts_leave_the_codes_and_others_stand_for_them(tmp_path: Path) -> None:
    labels = {"1": "left", "2": "right"}
    for subject in range(3):
        save(tmp_path / f"bad/p{subject}/a_raw.fif", pulses(12), [(5.1, "BAD_eye")], seed=subject)
        save(tmp_path / f"other/p{subject}/a_raw.fif", pulses(12), [(5.1, "lights off")], seed=subject)
    made = dataset(tmp_path / "bad", labels)
    assert [report.events for report in made.files] == [{"left": 8, "right": 9}] * 3  # the window from 5 to 6 s
    assert all("1 over a part marked BAD" in report.findings[0].found for report in made.files)
    with pytest.raises(FilesError, match=r"its events are lights off \(1\).*data: {events: stim}"):
        dataset(tmp_path / "other", labels)
    made = dataset(tmp_path / "other", labels, events="stim")
    assert [report.events for report in made.files] == [{"left": 9, "right": 9}] * 3
