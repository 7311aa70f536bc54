"""Small recordings in the form of the UCI EEG data set, and what the tests ask of a loaded one."""

from __future__ import annotations

import contextlib
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fne.core.dataset import Dataset, Samples
from fne.core.errors import DataWarning
from fne.data.eeg.uci import eeg_uci
from fne.data.eeg.uci_files import CHANNELS

LENGTH = 8
SUBJECTS = [f"co2{letter}{number:07d}" for letter in "ac" for number in range(10)]
SUBJECT = SUBJECTS[0]
Values = NDArray[np.float64]


def text(
    values: Values, *, subject: str = SUBJECT, trial: int = 3, condition: str = "S1 obj ", order: Any = range(64)
) -> str:
    lines = [f"# {subject}.rd", "# 120 trials, 64 chans, 416 samples 368 post_stim samples", "# 3.906000 msecs uV"]
    lines.append(f"# {condition}, trial {trial}")
    for place, channel in enumerate(order):
        name = CHANNELS[channel]
        lines.append(f"# {name} chan {place}")
        lines += [f"{trial} {name} {sample} {value:.3f}" for sample, value in enumerate(values[channel])]
    return "\n".join(lines) + "\n"


def draw(seed: int, length: int = LENGTH) -> Values:
    return np.random.default_rng(seed).normal(0, 10, (64, length)).round(3)


def write(folder: Path, content: str, *, subject: str = SUBJECT, number: int = 3, packed: bool = False) -> Path:
    path = folder / subject / f"{subject}.rd.{number:03d}{'.gz' if packed else ''}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content.encode()) if packed else content.encode())
    return path


def fill(folder: Path, subjects: list[str], trials: int, first: int = 0) -> None:
    """Write `trials` trials a subject; the conditions take turns, every subject has a level and a strength."""
    for subject in subjects:
        place = SUBJECTS.index(subject)
        for number in range(first, first + trials):
            values = 3.0 * place + (1 + place) * draw(1000 * place + number)
            condition = ("S1 obj ", "S2 match ", "S2 nomatch")[number % 3]
            content = text(values, subject=subject, trial=number, condition=condition)
            write(folder, content, subject=subject, number=number)


def made(path: str, **settings: Any) -> Dataset:
    """Load, with the warning that all but subject-wise splits must give."""
    leaking = settings.get("split", "subject") != "subject"
    with pytest.warns(DataWarning, match=r"Take data\.split=subject") if leaking else contextlib.nullcontext():
        return eeg_uci(seed=0, path=path, **settings)


def parts(data: Dataset) -> tuple[Samples, Samples, Samples]:
    return data.train, data.validation, data.test


def names(data: Dataset, part: Samples) -> list[str]:
    assert part.groups is not None
    return [data.group_names[group] for group in part.groups.tolist()]


def rows(part: Samples) -> set[bytes]:
    return {x.numpy().tobytes() for x in part.x}


def assert_disjoint(data: Dataset, total: int) -> None:
    kept = [rows(part) for part in parts(data)]
    assert sum(map(len, kept)) == len(kept[0] | kept[1] | kept[2]) == total


GOOD = text(draw(0))
