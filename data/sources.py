"""What every loader needs: find its files, check its arrays, split without favouring a class.

Files are looked for in the folder that the user names, else in `$FNE_DATA`, else in the user's cache folder.
Only the cache folder is ever written to, and only when a download was asked for.
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

from fne.core.errors import DataError, SettingError
from fne.core.types import Dataset
from fne.data.forms import check_finite, in_form

_CHUNK = 128
"""Samples that are converted to float64 at a time."""


# ------------------------------------------------------------------------------------------------ files
def cache_folder() -> Path:
    """Return the user's cache folder of the toolkit; it need not exist."""
    return Path(platformdirs.user_cache_dir("fne", appauthor=False))


def locate(what: str, names: Sequence[str], path: str | None, remedies: Sequence[str]) -> Path:
    """Return the first file or folder that exists among `names`.

    Args:
        what: what is looked for, as the error names it.
        names: alternatives, each a path relative to the root of all data, such as `mnist/MNIST/raw/x.gz`.
        path: the user's own place, and then the only one: the file itself, its folder, or a folder above it.
        remedies: ways to get the data, each a line of the error.

    Raises:
        DataError: nothing is there; says what, every place where it looked, and the ways to get it.
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
    """Return the text of an error, then the ways to get the data, each on a line of its own."""
    return "\n".join([text, "Ways to get it:", *(f"  {n}. {remedy}" for n, remedy in enumerate(remedies, 1))])


def fetch(name: str, folder: str) -> None:
    """Let torchvision fetch its data set `name` into `folder` of the cache folder, checksums included.

    Raises:
        DataError: there is no torchvision, no network, or no room; says which.
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
    """Fetch `url` into `folder` under its own name, whole or not at all, and return the file.

    Args:
        url: http or https.
        folder: made if it is not there.
        sha256: of the right file in hexadecimal; `None` where it is not known.
        timeout: for how long the other side may be silent, in seconds.

    Raises:
        DataError: no network, an error of the server, a file cut off or with another checksum, or no room.
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
                f"{url}: not the file that is known: its SHA-256 is {content.hexdigest()}, expected was {sha256}; "
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
    """Refuse arrays that would spoil a run without a sound.

    Args:
        name: what the arrays are, as the error names it.
        x: inputs `[N, *shape]`.
        y: labels `[N]` (integers), or targets `[N, outputs]` where `classes` is `None`.
        classes: class names, or `None` for regression.
        least_classes: how many classes must occur.

    Raises:
        DataError: no samples; unequal lengths; NaN or infinite values; labels outside the classes; fewer than
            `least_classes` classes.
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
            f"the first is {int(y[index])} at index {index}; mend the labels, or set data.name to another data set"
        )
    there = np.unique(y.numpy()).tolist()
    if len(there) < least_classes:
        raise DataError(
            f"{name}: all {len(y)} labels are of class {classes[there[0]]!r}; "
            f"at least {least_classes} classes are needed"
        )


def check_dataset(dataset: Dataset) -> Dataset:
    """Return `dataset` in the form that the toolkit relies on, with parts that pass `check_arrays`.

    Every data set goes through this function before it is used, so that no consumer meets another form. All parts but
    training may be empty, or of one class.

    Args:
        dataset: as a loader returned it; see `fne.data.forms.in_form` for what is converted.

    Raises:
        DataError: as `in_form` and `check_arrays`, with the data set's reports of its files.
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
    """Return 24 hexadecimal digits that differ, by accident hardly ever not, where any sample or its part does."""
    sums = []
    for part in (dataset.train, dataset.validation, dataset.test):
        total = zlib.crc32(str(list(part.x.shape)).encode())
        for array in (part.x, part.y):
            total = zlib.crc32(array.contiguous().numpy().ravel().view(np.uint8).data, total)
        sums.append(f"{total:08x}")
    return "".join(sums)


# ------------------------------------------------------------------------------------------------ splits
def training_size(total: int, validation: int, test: int = 0) -> int:
    """Return how many of `total` samples are left to train on.

    Raises:
        SettingError: none is left; names the setting that takes too many.
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
    """Return one index tensor per size: disjoint, covering, shuffled; classes within one of their share.

    For a split that keeps further proportions (the subjects', say) pass one label per combination.

    Args:
        y: labels `[N]`, any integers.
        sizes: samples per part, N in all.
        generator: decides who goes where.
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
    """Return a fold for each unit `[U]`, dealt out in turn at random, sorted by stratum `[U]`.

    So folds differ by one unit at most, all in all and in each stratum.
    """
    order = torch.randperm(len(strata), generator=generator)
    order = order[strata[order].argsort(stable=True)]
    fold = torch.empty_like(order)
    fold[order] = torch.arange(len(order)) % folds
    return fold


# ------------------------------------------------------------------------------------------------ standardisation
def standardise(parts: Sequence[Tensor], groups: Sequence[Tensor] | None = None) -> None:
    """Change recordings in place, by mean and deviation per channel of training samples.

    Args:
        parts: training, validation and test, each float32 `[N, channels, times]`.
        groups: each sample's subject by part, int64 `[N]`: statistics are of a subject's own training samples, and
            of one that has none of all its samples, never of a label. `None`: of all training samples.

    A channel that does not vary is only centred.
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
    """Change recordings `[N, channels, times]` in place, each by its own mean and deviation per channel."""
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
    # A channel that does not vary comes out as rounding error, and must not be divided by it.
    return torch.where(deviation > 1e-6 * mean.abs(), deviation, 1.0)


def _apply(parts: Sequence[Tensor], members: Sequence[Tensor], statistics: tuple[Tensor, Tensor]) -> None:
    mean, divisor = statistics
    for part, index in zip(parts, members, strict=True):
        for some in torch.split(index, _CHUNK):
            part[some] = (part[some] - mean) / divisor
