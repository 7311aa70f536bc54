"""Canonical form of a data set: safe conversions into that form, and refusal of everything else.

Models, losses and partitions only see float32 inputs, int64 labels and float32 targets. A conversion changes the type
or adds an axis of length one. No conversion scales, renumbers or drops values; the only rounding is from float64 to the
nearest float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fne.core.dataset import Dataset, Samples
from fne.core.errors import DataError, shown

_EXACT = 2**24
"""Largest magnitude up to which float32 holds every integer."""
_ALWAYS_EXACT = (torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16)
"""Integer types whose values never exceed `_EXACT`."""


def in_form(dataset: Dataset) -> Dataset:
    """Return `dataset` in the canonical form; arrays that are in this form already are not copied.

    Args:
        dataset: result of a loader. Arrays are dense torch tensors or NumPy arrays of any real number type.

    Returns:
        The data set whose parts have contiguous tensors on the CPU: inputs float32 `[N, *shape]`, labels int64 `[N]`
        where there are classes and targets float32 `[N, outputs]` elsewhere, groups int64 `[N]`. An empty part has
        the shapes of the training part. Class names are a tuple of text.

    Raises:
        DataError: no safe conversion leads to this form; the error names the part, the value and a remedy.
    """
    if not isinstance(dataset, Dataset):
        raise DataError(
            f"data.name: the data set is a {type(dataset).__name__}; its function must return fne.core.dataset.Dataset"
        )
    classes = _class_names(dataset.name, dataset.classes)
    parts: dict[str, Samples] = {}
    for key, title in (("train", "training"), ("validation", "validation"), ("test", "test")):
        name, given = f"{dataset.name}, {title} part", getattr(dataset, key)
        if not isinstance(given, Samples):
            raise DataError(
                f"{name}: it is a {type(given).__name__}; it must be fne.core.dataset.Samples(inputs, targets)"
            )
        part = _samples(name, given, labels=classes is not None)
        train = parts.get("train", part)
        if not len(part):
            part = replace(part, x=train.x[:0], y=train.y[:0])
        for ours, trained, what in ((part.x, train.x, "inputs"), (part.y, train.y, "targets")):
            if ours.shape[1:] != trained.shape[1:]:
                raise DataError(
                    f"{name}: {what} have shape {list(ours.shape[1:])}, but those of the training part have "
                    f"{list(trained.shape[1:])}; give all parts one shape"
                )
        parts[key] = part
    return replace(dataset, train=parts["train"], validation=parts["validation"], test=parts["test"], classes=classes)


def check_finite(name: str, array: Tensor, what: str) -> None:
    """Raise `DataError` if an array holds a NaN or an infinity.

    Args:
        name: name of the array's part in the error.
        array: array of any shape, of a floating-point or an integer type.
        what: name of the values, such as `inputs`.
    """
    if torch.isfinite(array.sum()):  # takes little time and no memory; NaN and infinity persist in a sum
        return
    bad = ~torch.isfinite(array)
    if bad.any():
        first = bad.nonzero()[0].tolist()
        raise DataError(
            f"{name}: {int(bad.sum())} of the {what} are NaN or infinite, the first at index {first}; "
            "repair or drop these samples"
        )


# ------------------------------------------------------------------------------------------------ parts
def _samples(name: str, given: Samples, *, labels: bool) -> Samples:
    """Return one part in form; `labels` says whether targets are class numbers."""
    what = "labels" if labels else "targets"
    x, y = _tensor(name, given.x, "inputs"), _tensor(name, given.y, what)
    groups = None if given.groups is None else _tensor(name, given.groups, "groups")
    if len(x) != len(y) or (groups is not None and len(groups) != len(x)):
        beside = "" if groups is None else f" and {len(groups)} groups"
        raise DataError(f"{name}: {len(x)} inputs and {len(y)} targets{beside}; there must be as many of each")
    if len(x) and not x.numel():
        raise DataError(f"{name}: inputs of shape {list(x.shape[1:])} hold no values; give each at least one")
    inputs = _floats(name, x.unsqueeze(1) if x.ndim == 1 else x, "inputs")
    if labels:
        remedy = "give one class number for each sample [N]"
        remedy += ", such as y.argmax(dim=1), or set Dataset.classes to None for a regression" if y.ndim == 2 else ""
        targets = _numbers(name, y, what, remedy)
    elif y.ndim > 2:
        raise DataError(f"{name}: targets have shape {list(y.shape)}; give [N, outputs], such as y.flatten(1)")
    else:
        targets = _floats(name, y.unsqueeze(1) if y.ndim == 1 else y, what)
    if groups is not None:
        groups = _numbers(name, groups, "groups", "give one number for each sample [N], an index of group_names")
        if len(groups) and int(groups.min()) < 0:
            index = int(groups.argmin())
            raise DataError(
                f"{name}: groups hold {int(groups[index])} at index {index}; number the groups from 0 in the order of "
                "Dataset.group_names"
            )
    return Samples(inputs, targets, groups)


def _floats(name: str, array: Tensor, what: str) -> Tensor:
    """Return values as contiguous float32, unscaled."""
    if array.dtype == torch.float32:
        return array.contiguous()
    if array.is_floating_point():
        check_finite(name, array if array.dtype == torch.float64 else array.float(), what)
        result = array.to(torch.float32)
        beyond = ~torch.isfinite(result)
        why = "beyond the range of float32"
        if array.numel() and not result.any() and array.any():  # such as volts squared; no model learns from zeros
            beyond, why = array != 0, "too small for float32, in which all of them would be 0"
    else:
        result = array.to(torch.float32)
        safe = array.dtype in _ALWAYS_EXACT
        beyond = torch.zeros_like(result, dtype=torch.bool) if safe else array.double().abs() > _EXACT
        why = f"integers beyond {_EXACT}, which float32 does not hold exactly"
    if beyond.any():
        first = beyond.nonzero()[0].tolist()
        value = array[tuple(first)].item()
        raise DataError(
            f"{name}: {int(beyond.sum())} of the {what} are {why}, the first is {value:.10g} at index {first}; "
            "scale them, or convert them to float32 yourself"
        )
    return result.contiguous()


def _numbers(name: str, array: Tensor, what: str, remedy: str) -> Tensor:
    """Return whole numbers of any type `[N]` or `[N, 1]` as contiguous int64 `[N]`."""
    if array.ndim == 2 and array.shape[1] == 1:
        array = array.squeeze(1)
    if array.ndim != 1:
        raise DataError(f"{name}: {what} have shape {list(array.shape)}; {remedy}")
    if array.is_floating_point():
        array = array.double()  # holds all values of the narrower types
        check_finite(name, array, what)
        fractional = (array != array.round()).nonzero()
        if len(fractional):
            index = int(fractional[0])
            raise DataError(
                f"{name}: {len(fractional)} {what} are no whole numbers, the first is {array[index].item():g} at index "
                f"{index}; number them from 0" + (", or set classes to None for a regression" * (what == "labels"))
            )
        array = array.clamp(-(2.0**62), 2.0**62)  # so that no huge value wraps around
    return array.to(torch.int64).contiguous()


# ------------------------------------------------------------------------------------------------ arrays
def _tensor(name: str, array: Any, what: str) -> Tensor:
    """Return a tensor or a NumPy array as a dense tensor of real numbers on the CPU, with at least one axis."""
    if isinstance(array, np.ndarray):
        array = _from_numpy(name, array, what)
    if not isinstance(array, Tensor):
        raise DataError(
            f"{name}: {what} are a {type(array).__name__}; give a torch tensor or a NumPy array of numbers, such as "
            "torch.tensor(...)"
        )
    if array.is_nested or array.layout is not torch.strided:
        raise DataError(f"{name}: {what} are a sparse or nested tensor; give a dense one, such as {what}.to_dense()")
    if array.is_complex() or array.is_quantized:
        raise DataError(
            f"{name}: {what} have the type {_type(array.dtype)}; give real numbers, such as their magnitudes, or the "
            "real and the imaginary parts stacked"
        )
    if array.ndim == 0:
        raise DataError(f"{name}: {what} are the single number {array.item()}; the first axis must count the samples")
    dense: Tensor = array.detach().cpu()
    return dense.clone() if dense.is_inference() else dense  # training cannot use an inference tensor


def _from_numpy(name: str, array: np.ndarray[Any, Any], what: str) -> Tensor:
    """Return a NumPy array of numbers as a tensor that shares its memory where torch can."""
    if np.ma.is_masked(array):
        raise DataError(f"{name}: {what} hold masked values; fill them in or drop these samples")
    if array.dtype.kind not in "biufc":
        first = "" if not array.size else f" (the first is {shown(array.reshape(-1)[:1].tolist()[0], 40)})"
        remedy = "give numbers"
        if array.dtype.kind in "USO":
            remedy = "number them, such as np.unique(values, return_inverse=True)[1], in the order of the names"
        raise DataError(f"{name}: {what} have the type {array.dtype}{first}; {remedy}")
    wide = array.dtype.kind == "f" and array.dtype.itemsize > 8
    plain = np.asarray(array, dtype=np.float64 if wide else array.dtype.newbyteorder("="), order="C")
    return torch.from_numpy(plain if plain.flags.writeable else plain.copy())


def _type(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _class_names(name: str, classes: Any) -> tuple[str, ...] | None:
    """Return class names as a tuple of text, `None` for a regression."""
    if classes is None:
        return None
    if isinstance(classes, np.ndarray):
        classes = classes.tolist()
    if isinstance(classes, str) or not isinstance(classes, Sequence) or not classes:
        raise DataError(
            f"{name}: classes = {shown(classes)}; give the classes' names in the order of their numbers, such as "
            "('left', 'right'), or None for a regression"
        )
    return tuple(str(each) for each in classes)
