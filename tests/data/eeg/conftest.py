"""Fixtures that several files about EEG share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.data.eeg.uci_parts import SUBJECTS, fill


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep all parsed files of this module in one folder of its own."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fne.data.sources.cache_folder", lambda: cache)
        yield cache


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own."""
    monkeypatch.setattr("fne.data.sources.cache_folder", lambda: tmp_path / "cache")
    monkeypatch.delenv("FNE_DATA", raising=False)
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Recordings of UCI: 20 subjects, 6 trials each in TRAIN; all but four of them have 3 more in TEST."""
    folder = tmp_path_factory.mktemp("data") / "set"
    fill(folder / "SMNI_CMI_TRAIN", SUBJECTS, 6)
    fill(folder / "SMNI_CMI_TEST", SUBJECTS[:8] + SUBJECTS[10:18], 3, first=6)
    return str(folder)
