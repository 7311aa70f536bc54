"""History, TensorBoard, progress and reports: what is written is read back by somebody else."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import random
import re
import resource
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from fne.core.errors import CheckpointError, FneError, RunError, SettingError, WriteError
from fne.core.files import read_torch, torch_bytes
from fne.core.messages import Round, Traffic
from fne.loop import run
from fne.watch.history import History, encode, kept, read_history
from fne.watch.plots import curves, partition_picture
from fne.watch.progress import Progress
from fne.watch.tables import (
    bytes_table,
    comparison_table,
    grouped,
    human_bytes,
    markdown_bytes,
    markdown_table,
    partition_table,
    read_summary,
)
from fne.watch.tensorboard import TensorBoard
from fne.watch.totals import Totals

ROUND = Round((), (), Traffic({}, {}, {}, {}))


def metrics(step: int, **more: Any) -> dict[str, Any]:
    """Return what a strategy and the loop give for one step."""
    return {
        "seconds": 0.5, "round": step, "evaluations": 10 * step, "loss_best": 1 / step, "loss_mean": 2 / step,
        "loss_worst": math.inf, "accuracy_validation": 1 - 1 / (step + 1), "nonfinite": 1, "multiplier": 1.5,
        "step": step, "failures": {}, "bytes_down": 100, "bytes_up": 20, "bytes_down_max": 60,
        "bytes_up_max": 12, "bytes_down_per_node": 50.0 * step,
        "bytes_up_per_node": 10.0 * step, "per_node": {"b": {"n": 3.0}, "a": {"n": 4.0}},
        "_fitness": torch.tensor([1 / step, 2 / step, math.inf]), **more,
    }  # fmt: skip


def feed(watcher: Any, steps: range, horizon: int) -> None:
    """Call a watcher as the loop does."""
    for step in steps:
        watcher(SimpleNamespace(step=step, done=step == horizon, horizon=horizon), ROUND, metrics(step))


@contextlib.contextmanager
def file_limit(size: int) -> Iterator[None]:
    """Refuse to let any file grow beyond `size` bytes, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# ---------------------------------------------------------------------------------------------- history
def test_a_line_is_compact_json_in_fixed_order_without_underscores() -> None:
    line = encode(metrics(3, zeta=np.float32(0.5), alpha=torch.tensor([1.0, math.nan]), empty=None, flag=True))
    assert line == (
        '{"step":3,"round":3,"evaluations":30,"loss_best":0.3333333333333333,"loss_mean":0.6666666666666666,'
        '"loss_worst":null,"accuracy_validation":0.75,"nonfinite":1,"failures":{},"bytes_down":100,'
        '"bytes_up":20,"bytes_down_max":60,"bytes_up_max":12,"bytes_down_per_node":150.0,"bytes_up_per_node":30.0,'
        '"seconds":0.5,"alpha":[1.0,null],"empty":null,'
        '"flag":true,"multiplier":1.5,"zeta":0.5,"per_node":{"a":{"n":4.0},"b":{"n":3.0}}}'
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float64("nan"), torch.tensor(math.nan)])
def test_what_is_not_finite_is_null(value: Any) -> None:
    assert encode({"x": value, "y": {"z": [value]}}) == '{"x":null,"y":{"z":[null]}}'


def test_floats_survive_the_file(tmp_path: Path) -> None:
    values = [random.Random(0).uniform(-1, 1) * 10.0**e for e in range(-300, 300, 7)]
    with History(tmp_path, 1) as history:
        for step, value in enumerate(values, 1):
            history(SimpleNamespace(done=False), ROUND, metrics(step, loss_best=value))
    assert [line["loss_best"] for line in read_history(tmp_path)] == values


def test_a_metric_that_json_cannot_hold_is_named() -> None:
    with pytest.raises(FneError, match=r"metric 'per_node\.a' is a object and cannot go into history\.jsonl"):
        encode({"per_node": {"a": object()}})


@pytest.mark.parametrize(
    ("every", "last", "steps"),
    [(1, 4, [1, 2, 3, 4]), (3, 8, [1, 3, 6, 8]), (3, 6, [1, 3, 6]), (100, 5, [1, 5]), (5, 1, [1])],
)
@pytest.mark.parametrize("own_end", [True, False])
def test_thinning_keeps_first_and_last(tmp_path: Path, every: int, last: int, steps: list[int], own_end: bool) -> None:
    with History(tmp_path, every) as history:
        feed(history, range(1, last + 1), last if own_end else 99)
        assert not (own_end and history.state()["pending"]), (
            "a run's own end is written at once, a checkpoint may follow"
        )
    assert [line["step"] for line in read_history(tmp_path)] == steps
    assert [s for s in range(1, last) if kept(s, every)] == [s for s in steps if s != last]


@pytest.mark.parametrize("stop", range(1, 13))
@pytest.mark.parametrize("how", ["clean", "killed", "killed in a line"])
def test_a_resumed_history_has_the_same_bytes(tmp_path: Path, stop: int, how: str) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    with History(whole, 4) as history:
        feed(history, range(1, 13), 12)
    history = History(parts, 4)
    feed(history, range(1, stop + 1), 12)
    history.sync()
    state = history.state()  # what the checkpoint records
    if how != "clean":
        feed(history, range(stop + 1, 11), 12)
    history.finish()
    if how == "killed in a line":
        with history.path.open("ab") as file:
            file.write(b'{"step":12,"rou')
    with History(parts, 4, state) as history:
        assert history.state() == state
        feed(history, range(stop + 1, 13), 12)
    assert history.path.read_bytes() == (whole / "history.jsonl").read_bytes()


def test_resuming_without_a_further_step_keeps_the_last_one(tmp_path: Path) -> None:
    with History(tmp_path, 10) as history:
        feed(history, range(1, 6), 99)
        state = history.state()
    before = history.path.read_bytes()
    assert len(before) > state["position"]
    History(tmp_path, 10, state).finish()
    assert history.path.read_bytes() == before


def test_position_is_the_length_after_each_line(tmp_path: Path) -> None:
    with History(tmp_path, 2) as history:
        for step in range(1, 6):
            feed(history, range(step, step + 1), 99)
            assert history.position == history.path.stat().st_size
            assert history.path.read_bytes().endswith(b"\n")
    history.finish()  # a second time


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{}\n", "has 3 bytes, the checkpoint knows 6 of it"),
        (b"{}\n[}\n", "its first 6 bytes are not those that the checkpoint knows, of which line 2 is no JSON"),
        (b"{}\n[]\n{}\n", "was changed or damaged: its first 6 bytes are not those that the checkpoint knows: put"),
        (None, "is missing, the checkpoint knows 6 bytes of it"),
    ],
)
def test_a_history_of_another_run_is_refused_and_kept_aside_at_the_users_word(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path, aside = tmp_path / "history.jsonl", tmp_path / "history.damaged.jsonl"
    state = {"position": 6, "digest": hashlib.sha256(b"{}\n{}\n").hexdigest(), "pending": ""}
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CheckpointError, match=re.escape(message)) as told:
        History(tmp_path, 1, state)
    assert "(--new-history), which keeps this one aside as history.damaged.jsonl" in str(told.value)
    assert content is None or path.read_bytes() == content, "nothing is cut off then"
    with History(tmp_path, 1, state, new=True) as history:
        feed(history, range(5, 7), 99)
    assert [line["step"] for line in read_history(tmp_path)] == [5, 6]
    assert (aside.read_bytes() if content else None) == content
    History(tmp_path, 1, history.state(), new=True).finish()  # nothing is wrong with this one
    assert [line["step"] for line in read_history(tmp_path)] == [5, 6]


def test_an_existing_history_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "history.jsonl").write_bytes(b"{}\n")
    with pytest.raises(RunError, match=r"is there already: resume that run \(--resume .*--out"):
        History(tmp_path, 1)
    empty = {"position": 0, "digest": hashlib.sha256().hexdigest(), "pending": ""}
    History(tmp_path, 1, empty).finish()  # killed after its first checkpoint, before any step was in it
    assert read_history(tmp_path) == []


def test_settings_and_folders_that_cannot_work(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"watch\.every = 0: must be at least 1"):
        History(tmp_path, 0)
    with pytest.raises(RunError, match=r"cannot write .*nowhere/history\.jsonl: No such file"):
        History(tmp_path / "nowhere", 1)


def test_a_full_disk_leaves_whole_lines_and_says_what_to_do(tmp_path: Path) -> None:
    history = History(tmp_path, 1)
    feed(history, range(1, 3), 99)
    before = history.path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 50, hard))  # room for part of a line
    try:
        with pytest.raises(RunError, match=r"cannot write .*history\.jsonl: File too large; make room .*--resume"):
            feed(history, range(3, 4), 99)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    history.finish()
    assert history.path.read_bytes() == before
    assert history.position == len(before)


@pytest.mark.parametrize("tail", [b"", b'{"step":3,"lo', b"\x00\x00\x00", b'"\xff', b"17"])
def test_a_half_written_last_line_is_passed_over(tmp_path: Path, tail: bytes) -> None:
    (tmp_path / "history.jsonl").write_bytes(b'{"step":1}\n{"step":2,"loss_best":null}\n' + tail)
    assert read_history(tmp_path) == [{"step": 1}, {"step": 2, "loss_best": None}]


def test_a_broken_line_elsewhere_and_a_missing_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(FneError, match=r"cannot read .*history\.jsonl: No such file.*give the folder of a run"):
        read_history(tmp_path)
    (tmp_path / "history.jsonl").write_bytes(b'{"step":1}\n{"step"\n{"step":3}\n')
    with pytest.raises(FneError, match=r"history\.jsonl, line 2: .*delete the line"):
        read_history(tmp_path)


# ---------------------------------------------------------------------------------------------- bytes
SENT = (
    Traffic(
        payload_down={"a": 100, "b": 60}, payload_up={"a": 8, "b": 8},
        encoded_down={"a": 130, "b": 90}, encoded_up={"a": 200, "b": 201},
    ),
    Traffic(
        payload_down={"b": 60, "c": 500}, payload_up={"b": 8, "c": 8},
        encoded_down={"b": 90, "c": 560}, encoded_up={"b": 201, "c": 203}, catch_up={"c": 450}, snapshots=1,
    ),
    Traffic(
        payload_down={"c": 40, "b": 63}, payload_up={"c": 8, "b": 9},
        encoded_down={"c": 70, "b": 96}, encoded_up={"c": 203, "b": 202}, catch_up={"b": 3, "c": 7}, snapshots=2,
    ),
)  # fmt: skip
"""Of three steps over four nodes, of which `d` is never asked."""
STEPS = {
    "bytes_down": [220, 650, 166], "bytes_down_max": [130, 560, 96],
    "bytes_up": [401, 404, 405], "bytes_up_max": [201, 203, 203],
    "payload_down": [160, 560, 103], "payload_down_max": [100, 500, 63],
    "payload_up": [16, 16, 17], "payload_up_max": [8, 8, 9],
    "catch_up": [0, 450, 10], "snapshots": [0, 1, 2],
}  # fmt: skip
SO_FAR = {
    "bytes_down_per_node": [55, 217.5, 259], "bytes_down_per_node_max": [130, 560, 630],
    "bytes_up_per_node": [100.25, 201.25, 302.5], "bytes_up_per_node_max": [201, 402, 604],
    "payload_down_per_node": [40, 180, 205.75], "payload_down_per_node_max": [100, 500, 540],
    "payload_up_per_node": [4, 8, 12.25], "payload_up_per_node_max": [8, 16, 25],
    "catch_up_per_node": [0, 112.5, 115], "catch_up_per_node_max": [0, 450, 457],
}  # fmt: skip
"""Means over four and maxima, added up by hand."""
SNAPSHOTS = [0, 1, 3]


class Sends:
    """Strategy and engine at once: sends what is written in `SENT` and learns nothing."""

    nodes, horizon = ("a", "b", "c", "d"), len(SENT)

    def __init__(self, step: int = 0, pooled: bool = False) -> None:
        self.step, self.pooled = step, pooled

    @property
    def done(self) -> bool:
        return self.step == self.horizon

    def ask(self, nodes: tuple[str, ...]) -> int:
        return self.step

    def send(self, step: int) -> Round:
        return Round((), (), SENT[step])

    def tell(self, round_: Round) -> dict[str, Any]:
        self.step += 1
        return {"round": self.step}

    def result(self) -> None:
        return None


def sent(*callbacks: Any, **start: Any) -> None:
    """Run the steps that are left of `SENT`."""
    both: Any = Sends(**start)
    run(both, both, callbacks=callbacks)


def test_bytes_of_a_node_over_the_run_are_those_of_the_summary(tmp_path: Path) -> None:
    totals = Totals()
    with History(tmp_path, 1) as history, TensorBoard(tmp_path, "", 1) as board:
        sent(totals, history, board)
    lines, read = read_history(tmp_path), events(tmp_path)
    expected = {**STEPS, **SO_FAR, "snapshots_total": SNAPSHOTS}
    for name, values in expected.items():
        assert [line[name] for line in lines] == values, name
    assert list(lines[0])[-3 - len(SO_FAR) :] == [*SO_FAR, "snapshots_total", "seconds", "per_node"]
    summary = totals.summary(4)
    assert {name: lines[-1][name] for name in SO_FAR} == {name: summary[name] for name in SO_FAR}
    assert summary["snapshots"] == 3
    steps = ("bytes_down", "bytes_up", "payload_down", "payload_up")
    shown = {f"traffic/{name}" for name in (*SO_FAR, "snapshots_total", *steps)}
    assert {tag for tag in read.Tags()["scalars"] if tag.startswith(("traffic/", "method/"))} == shown
    for tag in shown:
        values = expected[tag.removeprefix("traffic/")]
        assert [(event.step, event.value) for event in read.Scalars(tag)] == list(enumerate(values, 1)), tag


@pytest.mark.parametrize("stop", [1, 2])
@pytest.mark.parametrize("every", [1, 2, 3])
def test_bytes_over_the_run_outlive_a_stop_and_thinning(stop: int, every: int, tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    before, after = Totals(), Totals()
    history = History(tmp_path / "parts", every)
    sent(before, history, lambda strategy, *_: strategy.step == stop)
    state, recorded = tmp_path / "state", history.state()
    history.finish()
    state.write_bytes(torch_bytes(before.state_dict()))
    after.load_state_dict(read_torch(state))
    with History(tmp_path / "parts", every, recorded) as history:
        sent(after, history, step=stop)
    kept_steps = [step for step in (1, 2, 3) if step in (1, 3) or step % every == 0]
    lines = read_history(tmp_path / "parts")
    assert [line["step"] for line in lines] == kept_steps
    for name, values in {**SO_FAR, "snapshots_total": SNAPSHOTS}.items():
        assert [line[name] for line in lines] == [values[step - 1] for step in kept_steps], name
        assert after.summary(4)[name.removesuffix("_total")] == values[-1]


def test_bytes_over_the_run_are_null_where_the_method_is_not_federated(tmp_path: Path) -> None:
    totals = Totals()
    with History(tmp_path, 1) as history, TensorBoard(tmp_path, "", 1) as board:
        sent(totals, history, board, pooled=True)
    summary = totals.summary(4, federated=False)
    for line in read_history(tmp_path):
        assert {line[name] for name in SO_FAR} == {summary[name] for name in SO_FAR} == {None}
        assert line["bytes_down"] == STEPS["bytes_down"][line["step"] - 1]
    assert not [tag for tag in events(tmp_path).Tags()["scalars"] if "per_node" in tag]


# ---------------------------------------------------------------------------------------------- TensorBoard
def events(folder: Path) -> Any:
    """Read a folder's event files as TensorBoard does."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0, "tensors": 0})
    return accumulator.Reload()


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


# ---------------------------------------------------------------------------------------------- progress
def plain(stream: io.StringIO) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())


def test_without_a_terminal_there_is_a_line_at_each_end() -> None:
    stream = io.StringIO()
    with Progress("run [x]", 300, display_sign=-1, loss="nmse", console=Console(file=stream)) as progress:
        feed(progress, range(1, 121), 300)
    progress.close()
    feed(progress, range(121, 122), 300)
    first, last = stream.getvalue().splitlines()
    assert first == "run [x]: step 0/300"
    figures = r"nmse -0\.008333  validation 99\.2 %  multiplier 1\.5  \S+ rounds/s"
    assert re.fullmatch(rf"run \[x\]: step 120/300 in 0:00:0\d  {figures}", last)


def test_a_terminal_of_80_columns_shows_it_all() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80, legacy_windows=False, _environ={"TERM": "x"})
    with Progress("run [x]", 20, loss="cross_entropy", console=console) as progress:
        feed(progress, range(1, 21), 20)
    progress.close()
    *_, bar, figures = plain(stream).split("\n")[:-1]
    assert re.search(r"run \[x\] ━+ 20/20 in 0:00:0\d", bar)
    assert re.fullmatch(r"\s*cross_entropy 0\.05  validation 95\.2 %  multiplier 1\.5  \S+ rounds/s\s*", figures)


def test_pace_and_time_left_count_from_where_the_run_was_resumed() -> None:
    progress = Progress("run", 100, start=40, console=Console(file=io.StringIO()))
    progress._begun = 1000.0
    progress(SimpleNamespace(), ROUND, {"step": 60, "round": 30})  # two steps a round
    assert progress.pace(1010.0) == "60/100  0:00:20 left"
    assert progress.figures(1010.0) == "1 rounds/s"


def test_the_last_validation_stays_on_show() -> None:
    progress = Progress("run", 10, console=Console(file=io.StringIO()))
    shown = []
    for step, accuracy in enumerate((None, 0.5, None, None, 0.75, math.nan, None), 1):
        progress(SimpleNamespace(), ROUND, {"step": step, "accuracy_validation": accuracy})
        shown.append(progress.figures(progress._begun))
    assert shown == ["", *["validation 50.0 %"] * 3, *["validation 75.0 %"] * 3]


def test_updates_are_throttled(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(float(second) for second in range(1000))
    monkeypatch.setattr("fne.watch.progress.time.monotonic", lambda: next(clock))
    stream = io.StringIO()
    with Progress("run", 100, console=Console(file=stream)) as progress:  # second 0
        feed(progress, range(1, 91), 100)
    steps = [int(s) for s in re.findall(r"step (\d+)/", stream.getvalue())]
    assert steps == [0, 30, 60, 90, 90]


def test_quiet_says_nothing_and_default_is_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    for quiet in (True, False):
        with Progress("run", 3, quiet=quiet) as progress:
            feed(progress, range(1, 4), 3)
        captured = capsys.readouterr()
        assert captured.out == ""
        assert bool(captured.err) is not quiet


# ---------------------------------------------------------------------------------------------- reports
SUMMARY = {
    "name": "fne_mnist", "method": "fne", "dataset": "mnist", "split": "4000/500/500", "seed": 0,
    "rounds": 300, "steps": 300, "evaluations": 15000, "accuracy_last": 0.81, "accuracy_best": 0.825,
    "accuracy_test": 0.8, "majority_test": 0.5, "loss_last": 0.5, "loss_test": 0.4, "bytes_down_per_node": 1234567.5,
    "bytes_up_per_node": 4321, "payload_up_per_node": 4000, "wall_seconds": 61.25, "model_sha256": "ab",
}  # fmt: skip


def run_folder(
    parent: Path, folder: str, steps: int = 5, every: int = 1, changed: Any = lambda step: {}, **fields: Any
) -> Path:
    """Write a finished run; `changed(step)` are metrics of its own."""
    path = parent / folder
    path.mkdir()
    with History(path, every) as history:
        for step in range(1, steps + 1):
            history(SimpleNamespace(done=step == steps), ROUND, metrics(step, **changed(step)))
    (path / "summary.json").write_text(json.dumps({**SUMMARY, **fields}))
    return path


def shown(table: Any) -> str:
    stream = io.StringIO()
    Console(file=stream, width=200).print(table)
    return stream.getvalue()


def row(text: str, start: str) -> list[str]:
    """Return the cells of the line whose first cell is `start`."""
    lines = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]
    return next(line for line in lines if line[0] == start)


def test_a_summary_has_every_field(tmp_path: Path) -> None:
    summary = read_summary(run_folder(tmp_path, "a", accuracy_last=math.nan))
    assert summary["accuracy_test"] == 0.8
    assert summary["best_value"] is None
    assert summary["accuracy_last"] is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"has no summary\.json: the run has not finished; `fne train --resume .*a`"),
        ('{"method": "fn', r"summary\.json cannot be read \(.*`fne train --resume .*a` finishes"),
        ("[]", r"is not the summary of a run \(it names no method\)"),
        ('{"method": "fne", "rounds": "many"}', r"rounds = 'many' is not a number"),
    ],
)
def test_a_broken_summary_is_named_with_its_remedy(tmp_path: Path, content: str | None, message: str) -> None:
    folder = tmp_path / "a"
    with pytest.raises(FneError, match=r"no run folder .*a; give the folder"):
        read_summary(folder)
    folder.mkdir()
    if content is not None:
        (folder / "summary.json").write_text(content)
    with pytest.raises(FneError, match=message):
        read_summary(folder)


def test_comparison_of_runs_on_one_data_set() -> None:
    regression = {
        "name": "[b]",
        "method": "fedavg",
        "accuracy_test": None,
        "majority_test": None,
        "accuracy_best": None,
        "loss_test": 12.3456,
    }
    text = shown(comparison_table([SUMMARY, {**SUMMARY, **regression, "accuracy_last": None}]))
    assert text.splitlines()[0].strip() == "mnist (4000/500/500), seed 0"
    assert text.splitlines()[1].split() == ["major-", "best", "last", "evalu-", "down", "up", "time"]
    header = ["run", "method", "test", "ity", "val.", "val.", "rounds", "ations", "/node", "/node", "(s)"]
    assert row(text, "run") == header
    costs = ["300", "15000", "1.23 MB", "4.32 kB", "61.2"]
    assert row(text, "fne_mnist") == ["fne_mnist", "fne", "80.0 %", "50.0 %", "82.5 %", "81.0 %", *costs]
    assert row(text, "[b]") == ["[b]", "fedavg", "12.35 loss", "-", "-", "-", *costs]


def test_a_column_that_is_empty_for_all_is_left_out_of_the_table_alone() -> None:
    old = {key: value for key, value in SUMMARY.items() if key not in ("majority_test", "accuracy_last")}
    header = ["run", "method", "test", "val.", "rounds", "ations", "/node", "/node", "(s)"]
    assert row(shown(comparison_table([old, {**old, "name": "b"}])), "run") == header
    assert "| 80.0 % | - | 82.5 % | - | 300 |" in markdown_table([old])


def test_a_caption_says_what_the_figures_are() -> None:
    table = comparison_table([SUMMARY])
    assert str(table.caption) == (
        "test: the returned model on the test part, looked at once; best val.: maximum over all rounds on validation, "
        "the kind of figure that the FNE paper gives, optimistic; majority: chance, the accuracy on the test part of "
        "always answering its most frequent class"
    )
    assert " ".join(shown(table).split()).endswith(str(table.caption))
    assert "majority" not in str(comparison_table([{**SUMMARY, "majority_test": None}]).caption)
    assert "looked at once" not in markdown_table([SUMMARY])


def test_comparison_across_data_sets_and_in_markdown() -> None:
    summaries = [SUMMARY, {**SUMMARY, "name": "a|b", "split": "trial"}]
    assert row(shown(comparison_table(summaries)), "fne_mnist")[2] == "mnist (4000/500/500)"
    lines = markdown_table(summaries).splitlines()
    assert lines[0] == (
        "| run | method | data (split) | seed | test | majority | best val. | last val. | rounds | evaluations "
        "| down/node | up/node | time (s) |"
    )
    assert lines[1].startswith("| --- | --- | --- | ---: |")
    assert lines[2].startswith("| fne_mnist | fne | mnist (4000/500/500) | 0 | 80.0 % | 50.0 % | 82.5 % |")
    assert lines[3].startswith(r"| a\|b | fne | mnist (trial) |")
    assert shown(comparison_table([])).strip()


def test_seeds_become_mean_and_sample_deviation() -> None:
    tests, ups, bests = [0.80, 0.82, 0.87], [4000, 4001, 4003], [0.9, None, 0.9]
    runs = [
        {
            **SUMMARY,
            "seed": s,
            "accuracy_test": t,
            "payload_up_per_node": u,
            "accuracy_best": b,
            "model_sha256": str(s),
        }
        for s, (t, u, b) in enumerate(zip(tests, ups, bests, strict=True))
    ]
    other = {**SUMMARY, "method": "fedavg"}
    mean, single = grouped([runs[0], other, *runs[1:]])
    assert (mean["n"], mean["seeds"], mean["seed"]) == (3, [0, 1, 2], None)
    assert mean["accuracy_test"] == pytest.approx(np.mean(tests))
    assert mean["std"]["accuracy_test"] == pytest.approx(np.std(tests, ddof=1))
    assert mean["payload_up_per_node"] == statistics.mean(ups)
    assert mean["std"]["rounds"] == 0
    assert (mean["accuracy_best"], mean["model_sha256"], mean["split"]) == (None, None, SUMMARY["split"])
    assert single == {**other, "n": 1, "seeds": [0], "folds_there": [], "std": {}, "accounts": []}
    text = shown(comparison_table([mean]))
    assert text.splitlines()[0].strip() == "mnist (4000/500/500), n = 3"
    assert row(text, "fne_mnist")[2:6] == ["83.0 ± 3.6 %", "50.0 %", "81.0 %", "300"]
    assert row(shown(comparison_table([mean, single])), "fne_mnist")[2] == "n = 3"
    json.dumps([mean, single], allow_nan=False)


def test_a_seed_that_occurs_twice_is_no_second_sample() -> None:
    groups = grouped([SUMMARY, {**SUMMARY, "accuracy_test": 0.9}, {**SUMMARY, "seed": 1}])
    assert [(g["n"], g["accuracy_test"]) for g in groups] == [(1, 0.8), (1, 0.9), (1, 0.8)]


def folded(seed: int, fold: int, **fields: Any) -> dict[str, Any]:
    return {**SUMMARY, "dataset": "eeg", "split": "subject", "seed": seed, "fold": fold, "folds": 5, **fields}


def test_folds_become_mean_and_sample_deviation() -> None:
    tests, majorities = [0.50, 0.60, 0.70, 0.80, 0.90], [0.5, 0.5, 0.6, 0.5, 0.5]
    runs = [folded(0, f, accuracy_test=tests[f], majority_test=majorities[f]) for f in range(5)]
    (mean,) = grouped(runs[::-1])
    assert (mean["n"], mean["seeds"], mean["folds_there"]) == (5, [0], [4, 3, 2, 1, 0])
    assert (mean["seed"], mean["fold"], mean["folds"]) == (0, None, 5)
    assert not {"seed", "fold", "folds"} & mean["std"].keys(), "they name the run, they measure nothing"
    assert mean["accuracy_test"] == pytest.approx(0.7)
    assert mean["std"]["accuracy_test"] == pytest.approx(math.sqrt(0.025))  # (0.04 + 0.01 + 0 + 0.01 + 0.04) / 4
    assert mean["majority_test"] == pytest.approx(0.52)
    assert mean["std"]["majority_test"] == pytest.approx(math.sqrt(0.002))
    text = shown(comparison_table([mean]))
    assert text.splitlines()[0].strip() == "eeg (subject, 5 folds), n = 5"
    assert row(text, "fne_mnist")[2:4] == ["70.0 ± 15.8 %", "52.0 ± 4.5 %"]


@pytest.mark.parametrize(
    ("pairs", "split", "seed"),
    [
        ([(3, 0)], "subject, fold 0 of 5", "3"),
        ([(0, f) for f in (0, 1, 4)], "subject, 3 of 5 folds", "n = 3"),
        ([(s, 2) for s in range(3)], "subject, fold 2 of 5", "n = 3"),
        ([(s, f) for s in range(3) for f in range(5)], "subject, 5 folds", "n = 15 (3 seeds x 5 folds)"),
        ([(s, f) for s in range(2) for f in range(2)], "subject, 2 of 5 folds", "n = 4 (2 seeds x 2 folds)"),
        ([(0, 0), (0, 1), (1, 0)], "subject, 2 of 5 folds", "n = 3 (2 seeds and 2 folds)"),
    ],
)
def test_the_table_names_folds_and_seeds(pairs: list[tuple[int, int]], split: str, seed: str) -> None:
    line = markdown_table(grouped([folded(*pair) for pair in pairs])).splitlines()[2]
    assert line.startswith(f"| fne_mnist | fne | eeg ({split}) | {seed} | 80.0 % | 50.0 % |")


def test_what_is_no_fold_of_the_same_stays_apart() -> None:
    runs = [folded(0, 0), folded(0, 1), folded(0, 1, folds=10), folded(0, 2, split="subject, labels shuffled")]
    assert [(g["n"], g.get("folds"), g["split"]) for g in grouped([*runs, {**SUMMARY, "split": "subject"}])] == [
        (2, 5, "subject"), (1, 10, "subject"), (1, 5, "subject, labels shuffled"), (1, None, "subject"),
    ]  # fmt: skip
    twice = grouped([folded(0, 0), folded(0, 0), folded(0, 1)])
    assert [(g["n"], g["fold"]) for g in twice] == [(1, 0), (1, 0), (1, 1)]
    text = shown(comparison_table(twice))
    assert [text.count(f"eeg (subject, fold {fold} of 5)") for fold in (0, 1)] == [2, 1]
    assert text.splitlines()[0].strip() == "seed 0"


LEDGER = {
    **SUMMARY, "payload_down_per_node": 1.2e6, "payload_down_per_node_max": 2e6, "bytes_down_per_node": 1234567.5,
    "bytes_down_per_node_max": 2.5e6, "catch_up_per_node": 345, "catch_up_per_node_max": 999, "snapshots": 3,
    "payload_up_per_node": 4000, "payload_up_per_node_max": 5000, "bytes_up_per_node": 4321,
    "bytes_up_per_node_max": 6001,
}  # fmt: skip


def test_a_second_table_has_the_bytes_of_federated_runs() -> None:
    more = {"name": "a|b", "catch_up_per_node": None, "snapshots": None}
    pooled = {**SUMMARY, "name": "c", **dict.fromkeys(SO_FAR), "snapshots": 0}
    down, up = ["1.2 MB", "2 MB", "1.23 MB", "2.5 MB"], ["4 kB", "5 kB", "4.32 kB", "6 kB"]
    text = shown(bytes_table([LEDGER, {**LEDGER, **more}, pooled]))
    assert text.splitlines()[0].strip() == "bytes a node over the run"
    assert [line.split() for line in text.splitlines()[1:4]] == [
        ["down", "down", "down", "down", "of", "it", "up", "up", "up", "up"],
        ["payload", "payload", "encoded", "encoded", "catch-up", "snap-", "payload", "payload", "encoded", "encoded"],
        ["run", "mean", "max", "mean", "max", "mean", "shots", "mean", "max", "mean", "max"],
    ]
    assert row(text, "fne_mnist") == ["fne_mnist", *down, "345 B", "3", *up]
    assert row(text, "a|b") == ["a|b", *down, "-", "-", *up]
    assert not re.search(r"^c ", text, re.MULTILINE)
    assert "catch-up" not in shown(bytes_table([{**LEDGER, **more}])), "empty for all"
    lines = markdown_bytes([LEDGER, {**LEDGER, **more}, pooled]).splitlines()
    assert lines == [
        "| run | down payload mean | down payload max | down encoded mean | down encoded max | of it catch-up mean "
        "| snapshots | up payload mean | up payload max | up encoded mean | up encoded max |",
        f"| --- |{' ---: |' * 10}",
        f"| fne_mnist | {' | '.join([*down, '345 B', '3', *up])} |",
        rf"| a\|b | {' | '.join([*down, '-', '-', *up])} |",
    ]


def test_the_table_of_bytes_has_means_and_deviations_over_seeds() -> None:
    runs = [{**LEDGER, "seed": n, "bytes_up_per_node": 4000 + 100 * n, "snapshots": n} for n in range(3)]
    cells = row(shown(bytes_table(grouped(runs))), "fne_mnist")
    assert cells[3] == "1.23 MB"
    assert cells[6] == "1 ± 1"
    assert cells[9] == "4.1 kB ± 100 B"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (12.5, "12.5 B"), (999, "999 B"), (999.6, "1 kB"), (1234, "1.23 kB"), (99999, "100 kB"),
     (123456789, "123 MB"), (4.5e9, "4.5 GB"), (12345e12, "12345 TB")],
)  # fmt: skip
def test_bytes_for_people(value: float, text: str) -> None:
    assert human_bytes(value) == text


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
    with pytest.raises(FneError, match=r"over x = 'bytes' \(only federated runs have\); there are"):
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
    with pytest.raises(FneError, match=r"no run has numbers for y = 'loss_worst' over x = 'step'; there are: accuracy"):
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


def test_partition_tables() -> None:
    text = shown(partition_table([[1, 2], [0, 4]], ["a", "b"], ["x", "y"]))
    assert [row(text, name) for name in ("node", "a", "b", "all")] == [
        ["node", "x", "y", "samples"], ["a", "1", "2", "3"], ["b", "0", "4", "4"], ["all", "1", "6", "7"],
    ]  # fmt: skip
    assert row(shown(partition_table([[3], [4]], ["a", "b"], ["value"])), "all") == ["all", "7"]
    many = partition_table([[0] * 20 + [5, 2], [1] * 22], ["a", "b"], [f"c{i}" for i in range(22)])
    assert row(shown(many), "a") == ["a", "2", "c20: 5", "7"]


def test_reports_need_no_torch() -> None:
    code = (
        "import sys, fne.watch.plots, fne.watch.tables, fne.watch.progress, fne.watch.tensorboard\n"
        "assert not {'torch', 'matplotlib', 'numpy'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


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


def test_the_account_of_a_run_stands_below_its_table() -> None:
    from fne.privacy.accountant import Accountant, Conduct, Mechanism, report
    from fne.watch.tables import privacy_lines

    accountant = Accountant()
    accountant.add(Mechanism(3.0, "update", 1.0, adjacency="replace_one", adversary="uploads"), 10)
    account = report(accountant, 1e-5, Conduct(units=10, sampler="fixed"), score=2.5)
    lines = privacy_lines([{"name": "mine", "privacy": account}, {"name": "other"}])
    assert lines[0].startswith("privacy of mine: epsilon 4.6")
    assert "at delta 1e-05" in lines[0]
    assert (
        "clients, replace one, against who sees uploads; update clipped to 1, noise multiplier 3, no sampling"
        in lines[0]
    )
    assert lines[0].endswith("counted; 10 releases)")
    assert lines[1] == "  score of eq. (7), not an epsilon: 2.5"
    assert not any("floating point" in line for line in lines)
    (first, *_) = privacy_lines([{"name": "mine", "privacy": {**account, "epsilon": None}}])
    assert first.startswith("privacy of mine: epsilon infinite at delta 1e-05")


def test_of_several_seeds_the_account_that_spent_most_is_told() -> None:
    from fne.watch.tables import privacy_lines

    parts = [
        {"unit": "record", "adjacency": "add_remove", "adversary": "uploads", "clipped": "gradient", "clip": 0.5,
         "multiplier": z, "sampling": "poisson", "rate": 0.25, "size": 0, "population": 0, "releases": 7}
        for z in (1.0, 2.5)
    ]  # fmt: skip
    account = {"delta": 1e-5, "accountant": "RDP, upper bound", "mechanisms": parts, "warnings": [], "simulated": True}
    runs = [
        {**SUMMARY, "name": "a", "seed": seed, "privacy": {**account, "epsilon": epsilon}}
        for seed, epsilon in enumerate((3.0, 9.5, 1.25))
    ]
    (group,) = grouped(runs)
    (line,) = privacy_lines([group])
    assert line == (
        "simulated privacy of a: epsilon 9.5 at delta 1e-05, the most of 3 runs (least: 1.25) (RDP, upper bound; "
        "records, add remove, against who sees uploads; gradient clipped to 0.5, noise multiplier 1 to 2.5, Poisson "
        "sampling at 0.25; 14 releases)"
    )
    runs[1]["privacy"]["epsilon"] = None  # infinite
    assert "epsilon infinite" in privacy_lines(grouped(runs))[0]
