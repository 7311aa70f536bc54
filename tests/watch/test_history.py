"""The history of a run: what is written is read back, whole lines after any end, the same bytes after a resume."""

from __future__ import annotations

import hashlib
import math
import random
import re
import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fne.core.errors import CheckpointError, FneError, RunError, SettingError
from fne.watch.history import History, encode, kept, read_history
from tests.watch.parts import ROUND, feed, metrics


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
    with pytest.raises(FneError, match=r"metric 'per_node\.a' has the type object, which history\.jsonl cannot hold"):
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
        (b"{}\n", "has 3 bytes, but the checkpoint recorded 6"),
        (b"{}\n[}\n", "its first 6 bytes differ from the checkpoint's record, and line 2 is not JSON"),
        (b"{}\n[]\n{}\n", "was changed or damaged: its first 6 bytes differ from the checkpoint's record: restore"),
        (None, "is missing, but the checkpoint recorded 6 bytes"),
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
    assert "(--new-history), which renames this file to history.damaged.jsonl" in str(told.value)
    assert content is None or path.read_bytes() == content, "nothing is cut off then"
    with History(tmp_path, 1, state, new=True) as history:
        feed(history, range(5, 7), 99)
    assert [line["step"] for line in read_history(tmp_path)] == [5, 6]
    assert (aside.read_bytes() if content else None) == content
    History(tmp_path, 1, history.state(), new=True).finish()  # nothing is wrong with this one
    assert [line["step"] for line in read_history(tmp_path)] == [5, 6]


def test_an_existing_history_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "history.jsonl").write_bytes(b"{}\n")
    with pytest.raises(RunError, match=r"already exists: resume that run \(--resume .*--out"):
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
