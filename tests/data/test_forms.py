"""What a data set may return: safe conversions give the same run bit for bit, everything else is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fne
from fne.core.dataset import Dataset, Samples
from fne.core.errors import DataError
from fne.data.sources import check_dataset

X = torch.tensor([[0.0, 3.0], [1.0, 2.0], [2.0, 255.0], [3.0, 0.0]])
Y = torch.tensor([0, 1, 1, 0])


def dataset(x: Any, y: Any, classes: Any = ("a", "b"), groups: Any = None, **parts: Samples) -> Dataset:
    """Return a data set whose training part is given and whose other parts have the plain form."""
    labels = Y if classes is not None else Y.float().unsqueeze(1)
    plain = Samples(X, labels)
    return Dataset("odd", Samples(x, y, groups), **{"validation": plain, "test": plain, **parts},
                   classes=classes, split="none", source="none")  # fmt: skip


def refusal(made: Any) -> str:
    with pytest.raises(DataError) as caught:
        check_dataset(made)
    return str(caught.value)


# ------------------------------------------------------------------------------------------------ conversions
LABELS: dict[str, Callable[[Tensor], Any]] = {
    **{str(dtype): lambda y, dtype=dtype: y.to(dtype) for dtype in (
        torch.int8, torch.int16, torch.int32, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool,
        torch.float16, torch.bfloat16, torch.float32, torch.float64,
    )},
    **{f"NumPy {kind}": lambda y, kind=kind: y.numpy().astype(kind) for kind in
       ("?", "i1", "<i2", ">i4", "<i8", "u1", ">u2", "<u4", "<u8", "<f2", ">f8", "longdouble")},
    "column": lambda y: y.unsqueeze(1),
    "NumPy column of floats": lambda y: y.double().unsqueeze(1).numpy(),
    "not contiguous": lambda y: torch.stack([y, y], dim=1)[:, 0],
    "reversed NumPy view": lambda y: y.flip(0).numpy()[::-1],
    "read-only": lambda y: np.frombuffer(y.numpy().tobytes(), dtype=np.int64),
}  # fmt: skip


@pytest.mark.parametrize("kind", LABELS)
def test_labels_become_int64(kind: str) -> None:
    made = check_dataset(dataset(X, LABELS[kind](Y)))
    assert (made.train.y.dtype, made.train.y.tolist()) == (torch.int64, [0, 1, 1, 0])
    assert made.train.y.is_contiguous()


@pytest.mark.parametrize("kind", LABELS)
def test_subjects_become_int64(kind: str) -> None:
    groups = check_dataset(dataset(X, Y, groups=LABELS[kind](Y))).train.groups
    assert groups is not None
    assert (groups.dtype, groups.tolist()) == (torch.int64, [0, 1, 1, 0])


INPUTS: dict[str, Callable[[Tensor], Any]] = {
    **{str(dtype): lambda x, dtype=dtype: x.to(dtype) for dtype in (
        torch.uint8, torch.int16, torch.int32, torch.int64, torch.uint32, torch.float16, torch.bfloat16, torch.float64,
    )},
    **{f"NumPy {kind}": lambda x, kind=kind: x.numpy().astype(kind) for kind in ("u1", ">i4", ">f4", "<f8")},
    "not contiguous": lambda x: x.T.contiguous().T,
    "requires a gradient": lambda x: x.clone().requires_grad_(),
}  # fmt: skip


@pytest.mark.parametrize("kind", INPUTS)
def test_inputs_become_float32_and_are_never_scaled(kind: str) -> None:
    x = check_dataset(dataset(INPUTS[kind](X), Y)).train.x
    assert (x.dtype, x.tolist()) == (torch.float32, X.tolist())
    assert x.is_contiguous()
    assert not x.requires_grad


@pytest.mark.parametrize("kind", INPUTS)
def test_targets_become_float32_columns(kind: str) -> None:
    many = check_dataset(dataset(X, INPUTS[kind](X), None, validation=Samples(X, X), test=Samples(X, X)))
    assert (many.train.y.dtype, many.train.y.tolist(), many.outputs) == (torch.float32, X.tolist(), 2)
    one = check_dataset(dataset(X, INPUTS[kind](X)[:, 1], None))
    assert (one.train.y.tolist(), one.outputs) == ([[3.0], [2.0], [255.0], [0.0]], 1)


def test_one_number_for_each_sample_is_one_feature() -> None:
    plain = Samples(X[:, 0], Y)
    assert check_dataset(dataset(X[:, 0], Y, validation=plain, test=plain)).shape == (1,)


def test_tensors_of_inference_mode_can_be_trained_on() -> None:
    with torch.inference_mode():
        x = X * 1
    weights = torch.ones(2, requires_grad=True)
    (check_dataset(dataset(x, Y)).train.x @ weights).sum().backward()
    assert weights.grad is not None
    assert weights.grad.tolist() == [6.0, 260.0]


def test_what_is_in_form_is_not_copied() -> None:
    made = dataset(X, Y, groups=Y)
    checked = check_dataset(made)
    for a, b in ((made.train.x, checked.train.x), (made.train.y, checked.train.y)):
        assert a.data_ptr() == b.data_ptr()


def test_an_empty_part_has_the_shapes_of_the_training_part() -> None:
    made = check_dataset(dataset(X, Y, validation=Samples(torch.zeros(0), torch.zeros(0))))
    assert (made.validation.x.shape, made.validation.y.dtype) == ((0, 2), torch.int64)


@pytest.mark.parametrize("classes", [["a", "b"], np.array(["a", "b"])])
def test_class_names_become_a_tuple(classes: Any) -> None:
    assert check_dataset(dataset(X, Y, classes)).classes == ("a", "b")


# ------------------------------------------------------------------------------------------------ refusals
@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.array(["b", "a", "a", "b"]), "labels have the type <U1 (the first is 'b'); number them, such as np.unique"),
        (np.array([b"x", None, 1, 2], dtype=object), "labels have the type object (the first is b'x'); number them"),
        (np.array([0, 0, 1, 1], dtype="M8[D]"), "labels have the type datetime64[D]"),
        (["b", "a", "a", "b"], "labels are a list; give a torch tensor or a NumPy array of numbers"),
        (torch.tensor([0, 0.5, 1, 1.5]), "2 labels are no whole numbers, the first is 0.5 at index 1; number them"),
        (torch.tensor([0, 1, 1, float("nan")]), "1 of the labels are NaN or infinite, the first at index [3]"),
        (torch.tensor([0, 1, 1, float("inf")]), "1 of the labels are NaN or infinite, the first at index [3]"),
        (torch.tensor([0, -1.0, 1, -1]), "2 labels are outside the classes 0 to 1, the first is -1 at index 1"),
        (torch.tensor([0, 1, 2, 1], dtype=torch.uint8), "1 labels are outside the classes 0 to 1, the first is 2"),
        (torch.tensor([0, 1, 1e300, 1], dtype=torch.float64), "1 labels are outside the classes 0 to 1"),
        (Y + 0j, "labels have the type complex64; give real numbers"),
        (torch.tensor(1), "labels are the single number 1; the first axis must count the samples"),
        (torch.eye(2)[Y], "labels have shape [4, 2]; give one class number for each sample [N], such as y.argmax(dim="),
        (torch.eye(2, dtype=torch.int64)[Y], "labels have shape [4, 2]; give one class number for each sample"),
        (Y[:3], "4 inputs and 3 targets; there must be as many of each"),
        (torch.eye(4).to_sparse(), "labels are a sparse or nested tensor; give a dense one"),
        (np.ma.masked_equal([0, 1, 1, 0], 1), "labels hold masked values; fill them in or drop these samples"),
    ],
)
def test_labels_that_are_refused(y: Any, message: str) -> None:
    assert refusal(dataset(X, y)).startswith(f"odd, training part: {message}")


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (X + 0j, "inputs have the type complex64; give real numbers, such as their magnitudes"),
        (X.double() * 1e300, "6 of the inputs are beyond the range of float32, the first is 3e+300 at index [0, 1]"),
        (X.double() * 1e-60, "6 of the inputs are too small for float32, in which all of them would be 0, the first is "
         "3e-60 at index [0, 1]; scale them"),
        (X.long() + 2**24, "6 of the inputs are integers beyond 16777216, which float32 does not hold exactly, "
         "the first is 16777219 at index [0, 1]; scale them"),
        (torch.tensor([[1.0], [2.0], [float("nan")], [0.0]]).double(), "1 of the inputs are NaN or infinite"),
        (torch.tensor([[1.0], [2.0], [float("-inf")], [0.0]]).half(), "1 of the inputs are NaN or infinite"),
        (X.tolist(), "inputs are a list"),
        (None, "inputs are a NoneType"),
        (np.array(["a", "b", "c", "d"]), "inputs have the type <U1 (the first is 'a')"),
        (torch.zeros(4, 0), "inputs of shape [0] hold no values; give each at least one"),
        (X[:3], "3 inputs and 4 targets"),
    ],
)  # fmt: skip
def test_inputs_that_are_refused(x: Any, message: str) -> None:
    assert refusal(dataset(x, Y)).startswith(f"odd, training part: {message}")


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (np.array(["s1", "s2", "s1", "s2"]), "groups have the type <U2 (the first is 's1'); number them"),
        (["s1", "s2", "s1", "s2"], "groups are a list"),
        (torch.tensor([0.5, 1, 1, 1]), "1 groups are no whole numbers, the first is 0.5 at index 0"),
        (torch.tensor([0, -2, 1, 1]), "groups hold -2 at index 1; number the groups from 0"),
        (Y[:2], "4 inputs and 4 targets and 2 groups; there must be as many of each"),
        (torch.zeros(4, 2), "groups have shape [4, 2]; give one number for each sample [N]"),
    ],
)
def test_groups_that_are_refused(groups: Any, message: str) -> None:
    assert refusal(dataset(X, Y, groups=groups)).startswith(f"odd, training part: {message}")


def test_other_things_that_are_refused() -> None:
    good = dataset(X, Y)
    assert refusal({"train": 1}).startswith(
        "data.name: the data set is a dict; its function must return fne.core.dataset"
    )
    assert refusal(replace(good, test=(X, Y))).startswith(
        "odd, test part: it is a tuple; it must be fne.core.dataset.Samples"
    )
    for classes, shown in ((2, "2"), ("ab", "'ab'"), ((), "()")):
        assert refusal(replace(good, classes=classes)).startswith(f"odd: classes = {shown}; give the classes' names")
    wide = replace(good, test=Samples(torch.ones(3, 5), Y[:3]))
    assert refusal(wide).startswith("odd, test part: inputs have shape [5], but those of the training part have [2]")
    many = dataset(X, X, None, validation=Samples(X, X))
    assert refusal(many).startswith("odd, test part: targets have shape [1], but those of the training part have [2]")
    assert refusal(dataset(X, torch.zeros(4, 2, 2), None)).startswith(
        "odd, training part: targets have shape [4, 2, 2]"
    )
    assert "validation part: 4 inputs and 1 targets" in refusal(replace(good, validation=Samples(X, Y[:1])))


# ------------------------------------------------------------------------------------------------ real runs
PLUGIN = Path(__file__).parents[1] / "plugins" / "odd_arrays.py"


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Return `go(data, kind, **strategy)`: the summary of a run on a plugin's data."""

    def go(data: str, kind: str, **strategy: Any) -> dict[str, Any]:
        labels = data == "kinds"
        config = {
            "name": "t",
            "plugins": [str(PLUGIN)],
            "data": {"name": data, "kind": kind, "nodes": 3},
            "model": {"name": "logistic", "output": "softmax" if labels else "linear"},
            "strategy": strategy,
            "watch": {"tensorboard": False, "target": 0.95 if labels else None},
        }
        return fne.train(config, out=tmp_path / f"{data}-{kind}")

    return go


def test_a_run_is_the_same_whatever_the_type_of_the_arrays(run: Callable[..., dict[str, Any]]) -> None:
    kinds = ("plain", "int32", "uint8", "float64", "inputs", "numpy")
    runs = [run("kinds", kind, name="fedavg", rounds=40, lr=0.05, returns="best") for kind in kinds]
    figures = [(r["model_sha256"], r["steps"], r["accuracy_test"], r["accuracy_best"]) for r in runs]
    assert figures == figures[:1] * len(runs)
    assert figures[0][1] < 40, "the target was never reached"
    flat, column = (run("line", kind, name="fedavg", rounds=3, loss="mse") for kind in ("flat", "column"))
    assert flat["model_sha256"] == column["model_sha256"]


def test_a_run_on_labels_of_text_is_refused_with_the_remedy(run: Callable[..., dict[str, Any]]) -> None:
    with pytest.raises(DataError, match=r"kinds, training part: labels have the type <U6 \(the first is 'left'\)"):
        run("kinds", "text", name="fedavg", rounds=1)
