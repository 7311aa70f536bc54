"""Helpers for loaders: find and download files, check arrays, split with each class in proportion, standardise.

Files are searched for in the folder that the user names, else in `$FNE_DATA`, else in the user's cache folder.
Only the cache folder is ever written to, and only on a requested download.
"""

from __future__ import annotations

import hashlib
import os
import urllib.request
import zlib
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path

import numpy as np
import platformdirs
import torch
from numpy.typing import NDArray
from torch import Tensor

from fne.core.dataset import Dataset
from fne.core.errors import DataError, SettingError
from fne.data.forms import check_finite, in_form

_CHUNK = 128
"""Number of samples that are converted to float64 at a time."""


# ------------------------------------------------------------------------------------------------ files
def cache_folder() -> Path:
    """Return the toolkit's folder in the user's cache, which need not exist."""
    return Path(platformdirs.user_cache_dir("fne", appauthor=False))


def locate(what: str, names: Sequence[str], path: str | None, remedies: Sequence[str]) -> Path:
    """Return the first file or folder that exists among `names`.

    Args:
        what: name of the data in the error.
        names: alternatives, each a path relative to the root of all data, such as `mnist/MNIST/raw/x.gz`.
        path: the only place to search if given: the file itself, its folder, or a folder above it.
        remedies: ways to get the data, each on a line of the error.

    Raises:
        DataError: no file exists; the error lists all places and the ways to get the data.
    """
    if path is not None:
        given = Path(path).expanduser().absolute()
        if given.is_file():
            return given
        # The user may name the folder itself or any folder above it.
        steps = [name.split("/") for name in names]
        names = ["/".join(parts[start:]) for parts in steps for start in reversed(range(len(parts)))]
        roots = [(given, "data.path")]
        looked = [] if given.exists() else [f"{given} (data.path: no such file or folder)"]
    else:
        folder = os.environ.get("FNE_DATA")
        roots = [(Path(folder).expanduser().absolute(), "$FNE_DATA")] if folder else []
        roots.append((cache_folder(), "cache folder"))
        looked = [] if folder else ["$FNE_DATA (not set)"]

    for root, origin in roots:
        for name in names:
            if (root / name).exists():
                return root / name
            if root.exists() or path is None:
                looked.append(f"{root / name} ({origin})")
    lines = [f"{what}: not found. Looked for", *(f"  {place}" for place in looked)]
    raise DataError(with_remedies("\n".join(lines), remedies))


def with_remedies(text: str, remedies: Sequence[str]) -> str:
    """Return the text of an error, followed by the ways to get the data, each on a line of its own."""
    return "\n".join([text, "Ways to get it:", *(f"  {n}. {remedy}" for n, remedy in enumerate(remedies, 1))])


def fetch(name: str, folder: str) -> None:
    """Let torchvision fetch its data set `name` into `folder` of the cache folder, checksums included.

    Raises:
        DataError: torchvision, the network or space is missing; the error says which.
    """
    root = cache_folder() / folder
    try:
        from torchvision import datasets

        root.mkdir(parents=True, exist_ok=True)
        getattr(datasets, name)(root, download=True)
    except (ImportError, OSError, RuntimeError, HTTPException) as error:
        raise DataError(
            f"{name}: the download into {root} failed ({error}); get the files some other way and set data.path"
        ) from error


def download(url: str, folder: Path, *, sha256: str | None = None, timeout: float = 60.0) -> Path:
    """Download `url` into `folder` under its own name, and return the file; a failure leaves no file behind.

    Args:
        url: address, http or https.
        folder: target folder, which is made if it does not exist.
        sha256: checksum of the file in hexadecimal; `None` if it is not known.
        timeout: longest silence of the server in seconds.

    Raises:
        DataError: there is no network or no space, the server reports an error, or the file is cut off or has another
            checksum.
    """
    target = folder / url.rsplit("/", 1)[-1]
    scratch = target.with_name(f".{target.name}.part")
    content, size = hashlib.sha256(), 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(url, timeout=timeout) as reply, scratch.open("wb") as file:
            promised = reply.headers.get("Content-Length")
            while piece := reply.read(1 << 20):
                file.write(piece)
                content.update(piece)
                size += len(piece)
        if promised is not None and size != int(promised):
            raise DataError(f"{url}: {size} of {promised} bytes arrived; try again")
        if sha256 is not None and content.hexdigest() != sha256:
            raise DataError(
                f"{url}: not the known file: its SHA-256 is {content.hexdigest()}, expected was {sha256}; "
                "try again, or get the file some other way and set data.path"
            )
        os.replace(scratch, target)
    except (OSError, HTTPException) as error:
        raise DataError(
            f"{url}: the download into {folder} failed ({error}); get the file some other way and set data.path"
        ) from error
    finally:
        scratch.unlink(missing_ok=True)
    return target


# ------------------------------------------------------------------------------------------------ checks
def check_arrays(name: str, x: Tensor, y: Tensor, classes: Sequence[str] | None, *, least_classes: int = 2) -> None:
    """Refuse arrays that would spoil a run silently.

    Args:
        name: name of the arrays in the error.
        x: inputs `[N, *shape]`.
        y: labels `[N]` (integers), or targets `[N, outputs]` where `classes` is `None`.
        classes: class names, or `None` for regression.
        least_classes: least number of classes that must occur.

    Raises:
        DataError: there are no samples, lengths differ, values are NaN or infinite, labels are outside the classes, or
            fewer than `least_classes` classes occur.
    """
    if len(x) == 0 or len(x) != len(y):
        raise DataError(f"{name}: {len(x)} inputs and {len(y)} targets; there must be as many of both, at least one")
    check_finite(name, x, "inputs")
    check_finite(name, y, "targets")
    if classes is None:
        return
    outside = ((y < 0) | (y >= len(classes))).nonzero()
    if len(outside):
        index = int(outside[0])
        raise DataError(
            f"{name}: {len(outside)} labels are outside the classes 0 to {len(classes) - 1}, "
            f"the first is {int(y[index])} at index {index}; correct the labels, or set data.name to another data set"
        )
    there = np.unique(y.numpy()).tolist()
    if len(there) < least_classes:
        raise DataError(
            f"{name}: all {len(y)} labels are of class {classes[there[0]]!r}; "
            f"at least {least_classes} classes are needed"
        )


def check_dataset(dataset: Dataset) -> Dataset:
    """Return `dataset` in the form that the toolkit relies on, with parts that pass `check_arrays`.

    Every data set passes through this function before use, so that no consumer meets another form. Validation and test
    part may be empty, or have a single class.

    Args:
        dataset: as a loader returned it; see `fne.data.forms.in_form` for what is converted.

    Raises:
        DataError: `in_form` or `check_arrays` refuses the data; the error carries the data set's reports on its files.
    """
    try:
        dataset = in_form(dataset)
        for part, title, least in (
            (dataset.train, "training", 2),
            (dataset.validation, "validation", 1),
            (dataset.test, "test", 1),
        ):
            if part is dataset.train or len(part):
                check_arrays(f"{dataset.name}, {title} part", part.x, part.y, dataset.classes, least_classes=least)
    except DataError as error:
        error.files, error.findings = getattr(dataset, "files", ()), getattr(dataset, "findings", ())
        raise
    return dataset


def checksum(dataset: Dataset) -> str:
    """Return 24 hexadecimal digits that almost certainly change if any sample or its part changes."""
    sums = []
    for part in (dataset.train, dataset.validation, dataset.test):
        total = zlib.crc32(str(list(part.x.shape)).encode())
        for array in (part.x, part.y):
            total = zlib.crc32(array.contiguous().numpy().ravel().view(np.uint8).data, total)
        sums.append(f"{total:08x}")
    return "".join(sums)


# ------------------------------------------------------------------------------------------------ splits
def training_size(total: int, validation: int, test: int = 0) -> int:
    """Return how many of `total` samples remain for training.

    Raises:
        SettingError: no sample remains; the error names the setting that takes too many.
    """
    if test >= total:
        raise SettingError("data.test", test, f"below {total}, the number of samples there are")
    if validation + test >= total:
        raise SettingError(
            "data.validation", validation, f"below {total - test}, the number of samples beside the test part"
        )
    return total - validation - test


def renumbered(y: Tensor) -> tuple[Tensor, NDArray[np.int64]]:
    """Return labels numbered 0 to C-1 in the order of their values `[N]`, and how often each occurs `[C]`."""
    _, inverse, counts = np.unique(y.numpy(), return_inverse=True, return_counts=True)
    return torch.from_numpy(inverse), counts


def stratified_split(y: Tensor, sizes: Sequence[int], generator: torch.Generator) -> list[Tensor]:
    """Divide samples at random, each class in proportion.

    For a split that keeps further proportions, such as those of subjects, pass one label for each combination.

    Args:
        y: labels `[N]`, any integers.
        sizes: number of samples of each part, N in all.
        generator: random generator of the split.

    Returns:
        Shuffled indices of each part. The parts are disjoint and cover all samples, and each class is within one sample
        of its share.
    """
    labels, counts = renumbered(y)
    wanted = np.array(sizes)
    total = len(y)
    assert int(wanted.sum()) == total, (sizes, total)
    quota = wanted[:, None] * counts[None, :] // total
    # Round both margins at once: each class deals its left-over samples, one a part, to the parts that lack
    # most. This always comes out even (Gale-Ryser): the exact shares are themselves a fractional solution.
    lacking = wanted - quota.sum(1)
    for label, left in enumerate((counts - quota.sum(0)).tolist()):
        receivers = np.argsort(-lacking, kind="stable")[:left]
        quota[receivers, label] += 1
        lacking[receivers] -= 1

    order = torch.randperm(total, generator=generator)
    part = torch.empty(total, dtype=torch.int64)
    for label in range(len(counts)):
        part[labels[order] == label] = torch.arange(len(sizes)).repeat_interleave(torch.from_numpy(quota[:, label]))
    return [order[part == number] for number in range(len(sizes))]


def dealt(strata: Tensor, folds: int, generator: torch.Generator) -> Tensor:
    """Return a random fold for each unit `[U]`; units are dealt out in turn, sorted by their strata `[U]`.

    So folds differ by at most one unit, both in total and in each stratum.
    """
    order = torch.randperm(len(strata), generator=generator)
    order = order[strata[order].argsort(stable=True)]
    fold = torch.empty_like(order)
    fold[order] = torch.arange(len(order)) % folds
    return fold


# ------------------------------------------------------------------------------------------------ standardisation
def standardise(parts: Sequence[Tensor], groups: Sequence[Tensor] | None = None) -> None:
    """Standardise recordings in place, by mean and deviation of each channel over training samples.

    A channel that does not vary is only centred.

    Args:
        parts: training, validation and test part, each float32 `[N, channels, times]`.
        groups: subjects of the samples of each part, int64 `[N]`. Statistics are then over the training samples of each
            subject, or over all samples of a subject without training samples; labels have no influence. `None`:
            statistics are over all training samples.
    """
    if groups is None:
        everything = [torch.arange(len(part)) for part in parts]
        _apply(parts, everything, _statistics(parts[:1], everything[:1]))
        return
    for group in sorted({number for of in groups for number in of.tolist()}):
        own = [(of == group).nonzero()[:, 0] for of in groups]
        reference = 1 if len(own[0]) else len(parts)
        _apply(parts, own, _statistics(parts[:reference], own[:reference]))


def standardise_each(x: Tensor) -> None:
    """Standardise recordings `[N, channels, times]` in place, each by its own mean and deviation per channel."""
    for start in range(0, len(x), _CHUNK):
        values = x[start : start + _CHUNK].double()
        deviation, mean = torch.std_mean(values, dim=2, correction=0, keepdim=True)
        x[start : start + _CHUNK] = (values - mean) / _divisor(deviation, mean)


def _statistics(parts: Sequence[Tensor], members: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return mean and divisor per channel, float32 `[channels, 1]`, of the named samples of each part."""
    total = torch.zeros(2, parts[0].shape[1], dtype=torch.float64)
    for part, index in zip(parts, members, strict=True):
        for some in torch.split(index, _CHUNK):
            values = part[some].double()
            total += torch.stack([values.sum((0, 2)), values.square().sum((0, 2))])
    mean, square = total / (sum(map(len, members)) * parts[0].shape[2])
    deviation = (square - mean.square()).clamp(min=0).sqrt()
    return mean.float()[:, None], _divisor(deviation, mean).float()[:, None]


def _divisor(deviation: Tensor, mean: Tensor) -> Tensor:
    # The deviation of a constant channel is a rounding error, by which nothing must be divided.
    return torch.where(deviation > 1e-6 * mean.abs(), deviation, 1.0)


def _apply(parts: Sequence[Tensor], members: Sequence[Tensor], statistics: tuple[Tensor, Tensor]) -> None:
    mean, divisor = statistics
    for part, index in zip(parts, members, strict=True):
        for some in torch.split(index, _CHUNK):
            part[some] = (part[some] - mean) / divisor
