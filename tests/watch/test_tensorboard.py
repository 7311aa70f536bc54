"""TensorBoard events: what is written is read back by TensorBoard."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fne.core.errors import WriteError
from fne.watch.tensorboard import TensorBoard
from tests.watch.parts import ROUND, events, feed, file_limit, metrics


def test_tensorboard_reads_back_what_was_written(tmp_path: Path) -> None:
    with TensorBoard(tmp_path, "name: x\nseed: 0\n", 2, display_sign=-1, loss="nmse") as board:
        feed(board, range(1, 6), 5)
    board.close()  # a second time
    read = events(tmp_path)
    assert set(read.Tags()["scalars"]) == {
        "fitness/best", "fitness/mean", "validation/accuracy", "population/nonfinite",
        "population/multiplier", "traffic/bytes_down", "traffic/bytes_up",
        "traffic/bytes_down_per_node", "traffic/bytes_up_per_node",
        "time/seconds", "time/round", "time/evaluations", "nodes/failures",
    }  # fmt: skip
    best = read.Scalars("fitness/best")
    assert [event.step for event in best] == [1, 2, 4, 5]
    assert [event.value for event in best] == pytest.approx([-1, -1 / 2, -1 / 4, -1 / 5])
    assert [event.value for event in read.Scalars("traffic/bytes_down")] == [100] * 4
    text = {tag: read.Tensors(f"{tag}/text_summary")[0] for tag in ("config", "fitness")}
    assert text["config"].tensor_proto.string_val == [b"```yaml\nname: x\nseed: 0\n```"]
    assert text["fitness"].tensor_proto.string_val == [b"nmse, higher is better"]
    assert text["config"].step == 0
    shape = read.Histograms("fitness/population")[1].histogram_value
    assert (shape.num, shape.min, shape.max) == (2, -1.0, -0.5)
    assert sum(shape.bucket) == 2


@pytest.mark.parametrize(
    ("fitness", "inside"),
    [
        ([0.5, 0.5, 0.5], 3),
        ([0.1, 0.1 + 1e-17], 2),
        ([0.0], 1),
        ([1e300, -1e300, 1e-300], 3),
        ([1e30, 1.0, math.nan, math.inf], 2),
        ([math.nan, -math.inf], 0),
        ([], 0),
    ],
)
def test_histogram_of_any_fitness(tmp_path: Path, fitness: list[float], inside: int) -> None:
    with TensorBoard(tmp_path, "", 1) as board:
        values = torch.tensor(fitness, dtype=torch.float64)
        board(SimpleNamespace(done=False), ROUND, metrics(1, _fitness=values, loss_best=math.nan))
    read = events(tmp_path)
    assert "fitness/best" not in read.Tags()["scalars"]
    shapes = read.Histograms("fitness/population") if inside else []
    assert [sum(shape.histogram_value.bucket) for shape in shapes] == ([inside] if inside else [])


def test_other_numbers_and_failures_are_shown(tmp_path: Path) -> None:
    with TensorBoard(tmp_path, "", 1) as board:
        more = {
            "alpha": 0.25,
            "kind": "x",
            "ok": True,
            "_hidden": 1.0,
            "failures": {"a": "lost", "b": "lost"},
        }
        board(SimpleNamespace(done=False), ROUND, metrics(1, **more))
    read = events(tmp_path)
    assert [tag for tag in read.Tags()["scalars"] if tag.startswith("method/")] == ["method/alpha"]
    assert read.Scalars("nodes/failures")[0].value == 2


def test_a_resumed_run_hides_the_steps_it_takes_again(tmp_path: Path) -> None:
    with TensorBoard(tmp_path, "name: x", 1) as board:
        feed(board, range(1, 9), 99)
    with TensorBoard(tmp_path, "name: x", 1, purge_step=6) as board:
        board(SimpleNamespace(done=False), ROUND, metrics(6, loss_best=0.75))
    read = events(tmp_path)
    assert [e.step for e in read.Scalars("fitness/best")] == [1, 2, 3, 4, 5, 6]
    assert read.Scalars("fitness/best")[-1].value == 0.75
    assert len(read.Tensors("config/text_summary")) == 1


def test_a_full_disk_ends_a_run_in_words_and_leaves_whole_events(tmp_path: Path) -> None:
    others = threading.active_count()
    board = TensorBoard(tmp_path, "x", 1)
    assert threading.active_count() == others, "a thread of its own would print a traceback of its own"
    message = r"cannot write .*events.out.tfevents.*: File too large; make room .*--resume"
    with file_limit(4096), pytest.raises(WriteError, match=message):
        feed(board, range(1, 10_000), 10_000)
    board.close()
    steps = [event.step for event in events(tmp_path).Scalars("fitness/best")]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) > 1


def test_events_are_there_as_soon_as_a_step_is_over(tmp_path: Path) -> None:
    with TensorBoard(tmp_path, "x", 1) as board:
        feed(board, range(1, 4), 99)
        assert [event.step for event in events(tmp_path).Scalars("fitness/best")] == [1, 2, 3]
