"""Boston housing: median value of homes by 13 features of the district (Harrison and Rubinfeld 1978).

The data set is for comparison with a published table only: its feature `b` is a function of the share of black
residents.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fne.config.registry import Key, register
from fne.core.dataset import Dataset, Samples
from fne.core.errors import DataError, SettingError
from fne.core.randomness import generator
from fne.data.sources import check_dataset, locate, training_size

_ROWS, _TRAIN = 506, 404
_TARGET = "medv"
_REMEDIES = (
    "set data.path to a CSV file with a header and the target medv in its last column, or to its folder",
    "set data.path=null: an installed package carries the data",
)
Table = NDArray[np.float64]


@register("data", "housing")
def housing(
    *,
    seed: int,
    path: Annotated[
        str | None, Key("CSV file such as BostonHousing.csv, or its folder; null: offline copy", path="file")
    ] = None,
    split: Annotated[
        Literal["paper", "random"],
        Key("paper: the fixed 404 and 102 rows of FSI's table; random: drawn by split_seed"),
    ] = "paper",
    split_seed: Annotated[int, Key("seed of the random split", ge=0)] = 0,
    validation: Annotated[
        int, Key("number of the server's own rows, the last ones of training", unit="samples", ge=0)
    ] = 50,
    test: Annotated[int | None, Key("number of test rows of the random split; null: 102", unit="samples", ge=1)] = None,
    standardise: Annotated[bool, Key("mean 0, variance 1 per feature over the training part")] = True,
) -> Dataset:
    """Load Boston housing, a regression: `x` float32 `[N, 13]`, `y` float32 `[N, 1]` in thousands of dollars.

    Least squares on the paper's 404 rows has a test MSE of 23.1956, with which FSI is compared.

    Raises:
        DataError: the file is missing, or a cell is not a number.
        SettingError: the parts are larger than the data, or differ from the paper's with `split=paper`.
    """
    table = _offline() if path is None else _read(locate("housing", ["BostonHousing.csv"], path, _REMEDIES))
    total = len(table)
    held_out = _ROWS - _TRAIN if test is None else test
    if split == "paper":
        if total != _ROWS:
            raise SettingError("data.split", split, f"random: the paper's is one of {_ROWS} rows, here are {total}")
        if held_out != _ROWS - _TRAIN:
            raise SettingError("data.test", test, f"null or {_ROWS - _TRAIN} with data.split=paper")
        index = np.arange(_ROWS)
        np.random.RandomState(113).shuffle(index)
        order = torch.from_numpy(index)
    else:
        order = torch.randperm(total, generator=generator("housing", "split", split_seed))
    train = training_size(total, validation, held_out)

    rows = torch.from_numpy(table)[order]
    x, y = rows[:, :-1], rows[:, -1:].float()
    if standardise:
        x = _standardise(x, x[:train])
    cuts = [train, validation, held_out]
    parts = [Samples(a, b) for a, b in zip(torch.split(x.float(), cuts), torch.split(y, cuts), strict=True)]
    return check_dataset(
        Dataset(
            "housing",
            parts[0],
            parts[1],
            parts[2],
            classes=None,
            split=f"{split} ({train}/{validation}/{held_out})",
            source="Boston housing (Harrison and Rubinfeld 1978), "
            + ("as shipped with mlxtend" if path is None else "a CSV file"),
        )
    )


def _standardise(x: Tensor, reference: Tensor) -> Tensor:
    deviation = reference.std(0, correction=0)
    return (x - reference.mean(0)) / torch.where(deviation > 0, deviation, 1.0)


def _offline() -> Table:
    from mlxtend.data import boston_housing_data

    x, y = boston_housing_data()
    return np.column_stack([x, y])


def _read(path: Path) -> Table:
    """Return the rows with the target last; check the header. Cells may be quoted."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            header, *rows = [row for row in csv.reader(file) if row] or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as CSV ({error})") from None
    if len(header) < 2 or header[-1].strip().lower() != _TARGET:
        raise DataError(
            f"{path}: the header is {','.join(header)[:80]!r}; its last column must be {_TARGET}, after the features"
        )
    table = np.empty((len(rows), len(header)))
    for number, row in enumerate(rows):
        if len(row) != len(header):
            raise DataError(f"{path}: row {number + 1} has {len(row)} cells, the header has {len(header)}")
        for column, cell in enumerate(row):
            try:
                table[number, column] = float(cell)
            except ValueError:
                raise DataError(
                    f"{path}: row {number + 1}, column {header[column]!r}: {cell!r} is not a number"
                ) from None
    return table
