"""Attacks by the form of a reply: every entry of every task's reply, as every strategy asks for it, in other forms.

Each is held to what its task declares, without a word about it here: a new task is attacked by being registered.
"""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fne.config.registry import catalogue, entry
from fne.core.errors import DataWarning, SettingError
from fne.core.messages import Reply, Request, Round, Status
from fne.engines import local
from fne.federation import rounds
from fne.federation.payloads import expecting
from fne.federation.rounds import gather
from fne.run.train import train
from tests.test_conformance import smallest

Heard = list[tuple[Request, list[Reply], dict[str, Any]]]
EACH = 8
"""So many requests of a task are enough: strategies and options differ among them."""

CHANGES: dict[str, Callable[[Tensor], Tensor | None]] = {
    "missing": lambda value: None,
    "one number, which broadcasts": lambda value: value.reshape(-1)[:1],
    "a row too many": lambda value: torch.cat([value, value[:1]]) if value.dim() else value.repeat(2),
    "twice as long": lambda value: torch.cat([value, value], -1) if value.dim() else value.repeat(2),
    "too short": lambda value: value[..., :-1],
    "a dimension too many": lambda value: value.unsqueeze(0),
    "of another kind": lambda value: value.long() if value.is_floating_point() else value.double(),
    "of NaN": lambda value: torch.full_like(value, math.nan) if value.is_floating_point() else value,
}
ELSEWHERE = {
    ("secure_offer", "form"), ("secure_offer", "box"), ("secure_offer", "sealed"),  # tests/secure/test_engine.py
    ("secure_shares", "shares"), ("secure_receive", "survivors"),  # tests/secure/test_relay_engine.py
    *(("train_candidates", f"update.{i}") for i in range(3)),  # tests/learning/test_tradeoffs.py
}  # fmt: skip
"""Entries whose size hangs on what the node says: who reads them holds them to it."""
SELDOM = {"secure_rest"}
"""Tasks that strategies ask for where nodes lie alone: tests/attacks/test_sums.py."""
MORE: list[tuple[str, dict[str, Any]]] = [
    *(("es", {"uplink": uplink}) for uplink in ("levels", "ranks", "sign")),
    ("fdd_ea_dh", {"mode": "literal"}),
]
"""Settings by which strategies ask for other answers than by default."""
NONE_THERE = {("release", "point"), ("release_front", "points")}
"""Entries in which NaN stands for a point that is not there."""


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Heard]:
    """Return what the nodes answered in runs of every strategy, with and without secure sums, by task."""
    found: dict[str, Heard] = defaultdict(list)

    def listen(request: Request, replies: Iterable[Reply], **around: Any) -> Round:
        told = list(replies)
        if len(found[request.task]) < EACH and all(reply.status is Status.OK for reply in told):
            found[request.task].append((expecting(request), told, around))
        return gather(request, told, **around)

    patch = pytest.MonkeyPatch()
    patch.setattr(local, "gather", listen)
    ours = [name for name, about in catalogue("strategy").items() if about.module.startswith("fne.")]
    runs = [(name, secure, {}) for name in ours for secure in (False, True)]
    for name, secure, settings in runs + [(name, False, settings) for name, settings in MORE]:
        given = {**smallest(name), "secure": secure, "engine": {"threads": 1}}
        given["strategy"] |= settings
        if "subset_size" in entry("strategy", name).settings:
            given["strategy"]["subset_size"] = 5
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)
            try:
                train(given, out=tmp_path_factory.mktemp(name))
            except SettingError as error:
                assert "secure" in str(error), "which strategies can be secure is held elsewhere"  # noqa: PT017
    patch.undo()
    return found


def attacked(request: Request, replies: list[Reply], around: dict[str, Any], name: str, change: str) -> Round | None:
    """Return the round in which the first node changes an entry of its reply; nothing where that changes nothing."""
    honest = replies[0].payload
    lie = CHANGES[change](honest[name])
    same = lie is not None and lie.dtype == honest[name].dtype and lie.shape == honest[name].shape
    if same and torch.equal(lie, honest[name]):
        return None
    payload = {key: value for key, value in {**honest, name: lie}.items() if value is not None}
    return gather(request, [replace(replies[0], payload=payload), *replies[1:]], **{**around, "quorum": 0})


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    "task", [n for n, e in catalogue("task").items() if e.module.startswith("fne.") and n not in SELDOM]
)
def test_no_entry_of_another_form_is_accepted(heard: dict[str, Heard], task: str, change: str) -> None:
    """The attack claims to be added to the others, to broadcast, or to end the run for all."""
    assert task in heard, "no strategy asks for it: add settings by which one does to MORE"
    for request, replies, around in heard[task]:
        for name in replies[0].payload:
            if (task, name) in ELSEWHERE or (change == "of NaN" and (task, name) in NONE_THERE):
                continue
            alone = len(replies) == 1 and change == "of NaN"  # nobody is left who has a finite value
            round_ = attacked(request, replies, around, name, change)
            if round_ is None or (alone and not round_.failures):
                continue
            assert [failure.node for failure in round_.failures] == [replies[0].node], (name, change)
            assert name in round_.failures[0].reason


def test_without_the_defence_the_attack_succeeds(heard: dict[str, Heard], monkeypatch: pytest.MonkeyPatch) -> None:
    """A row too many then comes to the strategy, which takes it for another run's point."""
    monkeypatch.setattr(rounds, "fault", lambda payload, expected: "")
    request, replies, around = heard["release"][0]
    round_ = attacked(request, replies, around, "point", "a row too many")
    assert round_ is not None
    assert not round_.failures
