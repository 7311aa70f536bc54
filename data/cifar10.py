"""CIFAR-10: 32 x 32 colour images of ten classes (Krizhevsky 2009), from the original batches or an .npz file."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Annotated, Any

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

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SHAPE = (3, 32, 32)
_NAMES = ("cifar10/cifar-10-batches-py/data_batch_1", "cifar10/cifar10_subset.npz")
_REMEDIES = (
    "set data.download=true: torchvision fetches the batches into the cache folder (170 MB)",
    "unpack cifar-10-python.tar.gz of https://www.cs.toronto.edu/~kriz/cifar.html "
    "and set data.path to the folder that holds cifar-10-batches-py",
    "set data.path to an .npz file with x_train, y_train, x_test, y_test (images uint8 [n, 32, 32, 3])",
)
Images = NDArray[np.uint8]
Part = tuple[Images, Tensor]


@register("data", "cifar10")
def cifar10(
    *,
    seed: int,
    path: Annotated[
        str | None, Key("folder with the batches or cifar10_subset.npz, or an .npz file", path="file")
    ] = None,
    download: Annotated[bool, Key("fetch missing batches into the cache folder")] = False,
    split: ImageSplit = "trial",
    split_seed: SplitSeed = 0,
    validation: Annotated[
        int | None,
        Key("number of training images that become the server's own; null: a tenth", unit="samples", ge=1),
    ] = None,
    standardise: Annotated[
        bool, Key("mean 0, variance 1 per channel over the training part; else values 0 to 1")
    ] = True,
) -> Dataset:
    """Load CIFAR-10: `x` float32 `[N, 3, 32, 32]`.

    The validation part is drawn at random from the training images, each class in proportion; the test part
    is the official one (or the file's own).

    Raises:
        DataError: files are missing or damaged, or contain other objects than arrays.
        SettingError: the validation part is larger than the data, or `download` is given beside `path`.
    """
    if path is not None and download:
        raise SettingError("data.download", True, "false beside data.path: downloads go to the cache folder")
    try:
        found = locate("cifar10", _NAMES, path, _REMEDIES)
    except DataError:
        if not download:
            raise
        fetch("CIFAR10", "cifar10")
        found = locate("cifar10", _NAMES, path, _REMEDIES)
    (images, labels), official = _from_npz(found) if found.suffix == ".npz" else _from_batches(found.parent)

    validation = len(images) // 10 if validation is None else validation
    train = training_size(len(images), validation)
    index = stratified_split(labels, [train, validation], generator("cifar10", "split", split_seed))
    parts = [*((images[i.numpy()], labels[i]) for i in index), official]
    mean, deviation = _channel_statistics(parts[0][0]) if standardise else (torch.zeros(3), torch.ones(3))
    samples = []
    for pixels, y in parts:
        x = torch.from_numpy(pixels.astype(np.float32, order="C")).div_(255)
        samples.append(Samples(x.sub_(mean[:, None, None]).div_(deviation[:, None, None]), y))
    sizes = f"{train}/{validation}/{len(official[0])}"
    edition = "an .npz edition" if found.suffix == ".npz" else "original batches"
    return check_dataset(
        Dataset(
            "cifar10",
            samples[0],
            samples[1],
            samples[2],
            classes=CLASSES,
            split=f"{split} (validation random, stratified; test as supplied; {sizes})",
            source=f"CIFAR-10 (Krizhevsky 2009), {edition}",
        )
    )


def _channel_statistics(images: Images) -> tuple[Tensor, Tensor]:
    """Return exact mean and standard deviation `[3]` of the values 0 to 1, from the 256 counts of each channel."""
    values = np.arange(256) / 255
    moments = []
    for channel in range(3):
        share = np.bincount(images[:, channel].ravel(), minlength=256) / images[:, channel].size
        mean = share @ values
        moments.append((mean, np.sqrt(share @ (values - mean) ** 2) or 1.0))
    mean, deviation = torch.tensor(np.array(moments), dtype=torch.float32).T
    return mean, deviation


# ------------------------------------------------------------------------------------------------ files
def _from_npz(path: Path) -> tuple[Part, Part]:
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays = {key: file[key] for key in ("x_train", "y_train", "x_test", "y_test")}
    except Exception as error:  # a damaged zip may raise nearly anything
        raise DataError(
            f"{path}: cannot be read ({error}); it must be an .npz file with x_train, y_train, x_test, y_test"
        ) from None
    for key in ("x_train", "x_test"):
        if arrays[key].ndim == 4:
            arrays[key] = np.moveaxis(arrays[key], -1, 1)
    train = _checked(path, arrays["x_train"], arrays["y_train"])
    return train, _checked(path, arrays["x_test"], arrays["y_test"])


def _from_batches(folder: Path) -> tuple[Part, Part]:
    parts = [_batch(folder / f"data_batch_{number}") for number in range(1, 6)]
    images = np.concatenate([x for x, _ in parts])
    return (images, torch.cat([y for _, y in parts])), _batch(folder / "test_batch")


def _batch(path: Path) -> Part:
    try:
        content = _ArraysOnly(io.BytesIO(path.read_bytes()), encoding="latin1").load()
        pixels, labels = np.asarray(content["data"]), np.asarray(content["labels"])
    except Exception as error:  # a damaged pickle may raise nearly anything
        raise DataError(f"{path}: not a batch of CIFAR-10 ({error}); fetch the archive again") from None
    return _checked(path, pixels.reshape(-1, *SHAPE) if pixels.shape[1:] == (3072,) else pixels, labels)


class _ArraysOnly(pickle.Unpickler):
    """Unpickler of containers and arrays that refuses every other name, since a foreign pickle could run any code."""

    # What pickled arrays refer to; NumPy 1 wrote `numpy.core`, which NumPy 2 no longer likes to import.
    allowed = {  # noqa: RUF012
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy._core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    }

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self.allowed[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which no batch does") from None


def _checked(path: Path, images: NDArray[Any], labels: NDArray[Any]) -> Part:
    fits = images.dtype == np.uint8 and images.shape == (len(labels), *SHAPE) and labels.ndim == 1
    if not fits or labels.dtype.kind not in "iu":
        raise DataError(
            f"{path}: the images are {images.dtype} {list(images.shape)}, the labels {labels.dtype} "
            f"{list(labels.shape)}; they must be uint8 [N, 3, 32, 32] and integers [N]"
        )
    return images, torch.from_numpy(labels.astype(np.int64))
