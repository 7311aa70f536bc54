"""Curves of runs and pictures of partitions: the right numbers on the axes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fne.core.errors import FneError, RunError, WriteError
from fne.watch.plots import curves, partition_picture
from fne.watch.tables import (
    comparison_table,
)
from tests.watch.parts import SUMMARY, file_limit, folded, run_folder, shown


def picture(path: Path) -> np.ndarray:
    from PIL import Image

    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def has_colour(pixels: np.ndarray, colour: str) -> bool:
    rgb = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return bool((np.abs(pixels.astype(int) - rgb).max(axis=2) <= 2).sum() > 100)


@pytest.mark.parametrize("x", ["step", "bytes", "evaluations"])
def test_curves_of_finished_and_unfinished_runs(tmp_path: Path, x: Any) -> None:
    folders = [run_folder(tmp_path, "a$b$", name="_a$b$"), run_folder(tmp_path, "b", steps=200, every=7)]
    (folders[1] / "summary.json").unlink()
    out = tmp_path / "curves.png"
    curves(folders, out, x=x)
    pixels = picture(out)
    assert pixels.shape == (750, 1200, 3)
    assert has_colour(pixels, "#1f77b4")
    assert has_colour(pixels, "#ff7f0e")


def test_curves_put_the_right_numbers_on_the_axes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr("fne.watch.plots._save", lambda figure, path: drawn.append(figure))
    folder = run_folder(tmp_path, "a", steps=8, every=3)
    for x in ("step", "evaluations", "bytes"):
        curves([folder], tmp_path / "x.png", x=x, y="loss_best")
    data = [figure.axes[0].lines[0].get_xdata().tolist() for figure in drawn]
    assert data == [[1, 3, 6, 8], [10, 30, 60, 80], [60, 180, 360, 480]]
    assert drawn[2].axes[0].get_xlabel() == "bytes a node, down and up"
    assert drawn[0].axes[0].lines[0].get_ydata().tolist() == [1, 1 / 3, 1 / 6, 1 / 8]
    assert drawn[0].legends[0].get_texts()[0].get_text() == "fne_mnist (fne; mnist, 4000/500/500)"
    folds = [run_folder(tmp_path, f"s{s}f{f}", **folded(s, f)) for s in (0, 1) for f in (0, 1)]
    curves(folds, tmp_path / "x.png")
    texts = [text.get_text() for text in drawn[-1].legends[0].get_texts()]
    assert texts == [f"fne_mnist (fne; eeg, subject, fold {f} of 5)" for f in (0, 1)], "seeds share one"


def every_third(step: int) -> dict[str, Any]:
    """Return what a method reports that validates one step in three."""
    return {} if step % 3 == 0 else {"accuracy_validation": None}


def test_curves_pass_over_what_was_not_validated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run_folder(tmp_path, "a", steps=300, changed=every_third)
    curves([folder], tmp_path / "curves.png")
    assert has_colour(picture(tmp_path / "curves.png"), "#1f77b4"), "no marker on a hundred points: there is a line"
    drawn: list[Any] = []
    monkeypatch.setattr("fne.watch.plots._save", lambda figure, path: drawn.append(figure))
    curves([folder], tmp_path / "x.png", x="bytes")
    (line,) = drawn[0].axes[0].lines
    assert line.get_xdata().tolist() == [60 * step for step in range(3, 301, 3)]
    assert line.get_ydata().tolist() == [1 - 1 / (step + 1) for step in range(3, 301, 3)]


def test_curves_over_bytes_leave_out_what_is_not_federated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pooled = dict.fromkeys(("bytes_down_per_node", "bytes_up_per_node"))
    folders = [run_folder(tmp_path, "a"), run_folder(tmp_path, "b", changed=lambda step: pooled, name="pooled")]
    drawn: list[Any] = []
    monkeypatch.setattr("fne.watch.plots._save", lambda figure, path: drawn.append(figure))
    curves(folders, tmp_path / "x.png", x="bytes")
    assert [text.get_text()[:9] for text in drawn[0].legends[0].get_texts()] == ["fne_mnist"]
    with pytest.raises(FneError, match=r"over x = 'bytes' \(which only federated runs have\); choose among"):
        curves(folders[1:], tmp_path / "x.png", x="bytes")


def test_two_methods_at_equal_rounds_and_bytes(tmp_path: Path) -> None:
    def dear(step: int) -> dict[str, Any]:  # 100 bytes a step
        accuracy = [0.5, 0.9, 0.6, 0.7, 0.6, 0.65][step - 1]
        return {"bytes_down_per_node": 75 * step, "bytes_up_per_node": 25 * step, "accuracy_validation": accuracy}

    run_folder(tmp_path, "a-s3", steps=9, changed=every_third)  # 60 bytes a step; validated: 75 %, 6/7, 90 %
    run_folder(tmp_path, "b-s3", steps=6, changed=dear)
    run_folder(tmp_path, "c-s3", changed=lambda step: {"bytes_down_per_node": None})
    command = [sys.executable, str(Path(__file__).parents[2] / "benchmarks" / "equal.py"), "--seeds", "3"]
    done = subprocess.run([*command, "a", "b"], cwd=tmp_path, check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == [
        "| equal | run | rounds | bytes a node | validation | best so far |",
        "|---|---|---:|---:|---:|---:|",
        "| rounds | a | 6 | 360 B | 85.7 % | 85.7 % |",
        "| rounds | b | 6 | 600 B | 65.0 % | 90.0 % |",
        "| bytes | a | 9 | 540 B | 90.0 % | 90.0 % |",
        "| bytes | b | 5 | 500 B | 60.0 % | 90.0 % |",
    ]
    done = subprocess.run([*command, "a", "c"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "c-s3: no bytes a node" in done.stderr


def test_curves_without_numbers_say_what_there_is(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, "a")
    with pytest.raises(
        FneError, match=r"no run has numbers for y = 'loss_worst' over x = 'step'; choose among: accuracy"
    ):
        curves([folder], tmp_path / "x.png", y="loss_worst")
    with pytest.raises(RunError, match=r"cannot write .*x\.png: No such file.*give another path"):
        curves([folder], tmp_path / "nowhere" / "x.png")


def test_a_picture_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    picture = tmp_path / "data.png"
    partition_picture([[3, 4], [5, 6]], ["a", "b"], ["x", "y"], picture)
    before = picture.read_bytes()
    message = rf"cannot write {picture}: File too large; make room, or give another path"
    with file_limit(1000), pytest.raises(WriteError, match=message):
        partition_picture([[1, 2], [5, 6]], ["a", "b"], ["x", "y"], picture)
    assert picture.read_bytes() == before
    assert list(tmp_path.iterdir()) == [picture]


@pytest.mark.parametrize(("K", "C"), [(3, 2), (100, 10), (1000, 62), (4, 1)])
def test_partition_picture(tmp_path: Path, K: int, C: int) -> None:
    counts = np.random.default_rng(0).integers(0, 50, (K, C)).tolist()
    out = tmp_path / "parts.png"
    partition_picture(counts, [f"node{k:03}" for k in range(K)], [f"class {c}" for c in range(C)], out)
    pixels = picture(out)
    assert pixels.shape[0] == 750
    assert pixels.shape[1] >= (16 * 100 if K == 100 else 1000)
    assert len(np.unique(pixels.reshape(-1, 3)[::7], axis=0)) > min(C, 5)
    assert K == 1000 or has_colour(pixels, "#1f77b4")


def test_partition_picture_stacks_each_class_on_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr("fne.watch.plots._save", lambda figure, path: drawn.append(figure))
    partition_picture([[1, 2], [0, 4]], ["a", "b"], ["x", "y"], tmp_path / "x.png")
    boxes = [
        [path.get_extents().extents.round(2).tolist() for path in collection.get_paths()]
        for collection in drawn[0].axes[0].collections
    ]
    assert boxes == [
        [[-0.42, 0, 0.42, 1], [0.58, 0, 1.42, 0]],
        [[-0.42, 1, 0.42, 3], [0.58, 0, 1.42, 4]],
    ]


def test_fronts_and_trade_offs_have_their_own_titles() -> None:
    searched = {"name": "a", "method": "fdd_ea_dh", "dataset": "dtlz", "front_size": 40.0, "igd": 0.125}
    text = shown(comparison_table([searched]))
    assert "0.125 IGD" in text
    assert "front: distance of the" in text
    own = shown(comparison_table([{**searched, "igd": None}]))
    assert "40 points" in own
    trained = shown(comparison_table([{**SUMMARY, "front_size": 3}]))
    assert "IGD" not in trained
    assert "test: the returned model" in trained
