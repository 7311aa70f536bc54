"""Bytes of nodes over a run: the sums of its steps, through stops and thinning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fne.core.files import read_torch, torch_bytes
from fne.core.messages import Round, Traffic
from fne.loop import run
from fne.watch.history import History, read_history
from fne.watch.tensorboard import TensorBoard
from fne.watch.totals import Totals
from tests.watch.parts import SO_FAR, events

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
