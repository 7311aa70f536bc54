"""Synthetic data for tests and first steps: a nearly linear problem, and a small EEG."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from torch import Tensor

from fne.config.registry import Key, register
from fne.core.dataset import Dataset, Samples
from fne.core.errors import SettingError
from fne.core.randomness import generator
from fne.data.sources import check_dataset, stratified_split, training_size

RATE = 128.0
"""Sampling rate of the synthetic EEG in Hz."""
RHYTHM = 10.0
"""Frequency of the EEG's oscillation in Hz."""
AMPLITUDE = 10.0
"""Amplitude of the oscillation in microvolts, before the subject's factor."""
WEAKENED = 0.3
"""Factor of the oscillation on the side that the class names."""


@register("data", "toy")
def toy(
    *,
    seed: int,
    problem: Annotated[
        Literal["linear", "eeg"], Key("linear: Gaussian classes; eeg: oscillations on channels")
    ] = "linear",
    samples: Annotated[int, Key("number of samples in all parts together", unit="samples", ge=3)] = 600,
    noise: Annotated[float, Key("standard deviation of the noise, relative to the signal", ge=0)] = 0.4,
    features: Annotated[int, Key("linear: number of features", ge=1)] = 20,
    classes: Annotated[int, Key("linear: number of classes, at most as many as features; eeg has two", ge=2)] = 3,
    channels: Annotated[int, Key("eeg: number of channels", ge=2)] = 8,
    times: Annotated[int, Key("eeg: number of time samples at 128 Hz", ge=16)] = 128,
    subjects: Annotated[int, Key("eeg: number of subjects", ge=1)] = 10,
    split: Annotated[Literal["trial"], Key("samples are dealt to the parts one by one")] = "trial",
    split_seed: Annotated[int, Key("seed of the data and of the split, the same for all runs", ge=0)] = 0,
    validation: Annotated[int, Key("number of the server's own samples", unit="samples", ge=1)] = 100,
    test: Annotated[int, Key("number of test samples", unit="samples", ge=1)] = 100,
) -> Dataset:
    """Make a small data set, which depends on `split_seed` alone, so that all runs share it.

    `linear`: `x` float32 `[N, features]`, Gaussian clouds around orthonormal centres.
    `eeg`: `x` float32 `[N, channels, times]` in microvolts at 128 Hz, as the EEG loaders return it. A 10 Hz rhythm of
    random phase is weak on the first half of the channels in class `left` and on the second half in class `right`, and
    stronger in some subjects than in others. `groups` are the subjects, each of which is in every part.

    Raises:
        SettingError: there are more classes than features, a subject has only one sample, or the parts are larger than
            the data.
    """
    train = training_size(samples, validation, test)
    draw = generator("toy", problem, split_seed)
    groups, group_names = None, ()  # type: Tensor | None, tuple[str, ...]
    if problem == "linear":
        if classes > features:
            raise SettingError("data.classes", classes, f"at most data.features = {features}")
        names: tuple[str, ...] = tuple(str(label) for label in range(classes))
        y = torch.arange(samples) % classes
        x, strata = _linear(y, features, classes, noise, draw), y
    else:
        if 2 * subjects > samples:
            raise SettingError("data.subjects", subjects, f"at most half of data.samples = {samples}")
        names = ("left", "right")
        y = torch.arange(samples) // subjects % 2
        groups = torch.arange(samples) % subjects
        x, strata = _eeg(y, groups, subjects, channels, times, noise, draw), 2 * groups + y
        width = max(2, len(str(subjects - 1)))
        group_names = tuple(f"subject-{number:0{width}d}" for number in range(subjects))
    everything = Samples(x, y, groups)
    parts = [everything.take(i) for i in stratified_split(strata, [train, validation, test], draw)]
    return check_dataset(
        Dataset(
            f"toy-{problem}",
            parts[0],
            parts[1],
            parts[2],
            classes=names,
            split=f"{split} (random, stratified; {train}/{validation}/{test})",
            source="synthetic",
            group_names=group_names,
        )
    )


def _linear(y: Tensor, features: int, classes: int, noise: float, draw: torch.Generator) -> Tensor:
    centres: Tensor = torch.linalg.qr(torch.randn(features, classes, generator=draw)).Q.T
    return centres[y] + noise * torch.randn(len(y), features, generator=draw)


def _eeg(
    y: Tensor, groups: Tensor, subjects: int, channels: int, times: int, noise: float, draw: torch.Generator
) -> Tensor:
    phase = 2 * math.pi * torch.rand(len(y), 1, 1, generator=draw)
    rhythm = torch.sin(2 * math.pi * RHYTHM / RATE * torch.arange(times) + phase)
    first_half = torch.arange(channels) < channels // 2
    weakened = first_half == (y == 0)[:, None]
    strength = torch.where(weakened, WEAKENED, 1.0)[:, :, None]
    loudness = (0.4 * torch.randn(subjects, generator=draw)).exp()[groups, None, None]
    background = noise * torch.randn(len(y), channels, times, generator=draw)
    return AMPLITUDE * loudness * (strength * rhythm + background)
