"""Attacks by one number of a config that asks for more than there is, tried in every setting that counts something."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import processes
from tests.attacks.fuzzing import TIMES, luck
from tests.attacks.sizes import Case, cases, own

ROOT = Path(__file__).parents[2]


def found(tried: Sequence[Case], folder: Path) -> list[str]:
    """Return what is wrong, in words, with each of the cases with which something is."""
    wrong, left = [], list(tried)
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache"), "PYTHONPATH": str(ROOT)}
    if "FNE_DATA" in os.environ:
        environment["FNE_DATA"] = str(few_of(Path(os.environ["FNE_DATA"]), folder / "data"))
    while left:
        lines = "".join(json.dumps(dataclasses.asdict(case)) + "\n" for case in left)
        done = processes.run(["-m", "tests.attacks.sizes"], text=lines, cwd=folder, env=environment, timeout=1800)
        told = [json.loads(line) for line in done.stdout.splitlines()]
        assert told, done.stderr
        verdicts = told[1::2]
        if len(verdicts) < len(left):  # the process has ended within the next one
            verdicts.append(f"the process ended with status {done.returncode}: {done.stderr[-2000:]}")
        wrong += [f"{case.title}: {case.key} = {case.value} {case.more or ''}: {why}"
                  for case, why in zip(left, verdicts, strict=False) if why]  # fmt: skip
        left = left[len(verdicts) :]
    return wrong


def few_of(data: Path, folder: Path) -> Path:
    """Return a folder of links to data sets, of `eeg_uci` to three trials of each subject: to read all takes long."""
    folder.mkdir()
    for there in data.iterdir():
        if there.name != "eeg_uci":
            (folder / there.name).symlink_to(there)
    for subject in data.glob("eeg_uci/SMNI_CMI_TEST/*/"):
        few = folder / subject.relative_to(data)
        few.mkdir(parents=True)
        for trial in sorted(subject.iterdir())[:3]:
            (few / trial.name).symlink_to(trial)
    return folder


def some(tried: Sequence[Case]) -> list[Case]:
    """Return one case of each setting, drawn; all of them where `benchmarks/fuzz.py` asks for more."""
    settings: dict[tuple[str, str], list[Case]] = {}
    for case in tried:
        settings.setdefault((case.title, case.key), []).append(case)
    draw = luck("settings")
    return [case for own in settings.values() for case in (own if TIMES > 1 else [draw.choice(own)])]


@pytest.mark.fuzz
@pytest.mark.parametrize("of_strategies", [True, False], ids=["strategies", "others"])
def test_an_absurd_number_is_told_by_key_and_value_or_costs_nothing(of_strategies: bool, tmp_path: Path) -> None:
    """Claims to end the process by the memory, by an abort, by a traceback or by a loop before the first step.

    Before, 23 of 684 numbers did, or were told as another key's: shifts, paddings and strides beyond what torch counts,
    swarms, and tensors of gigabytes for which a limit of the process leaves no room.
    """
    tried = some([case for case in cases() if case.title.startswith("strategy ") == of_strategies])
    assert len(tried) > 75
    assert not found(tried, tmp_path)


def test_nothing_that_has_a_name_is_left_out() -> None:
    """Claims to find a thing that has a name, of which nothing is tried."""
    titles = {case.title for case in cases()}
    for kind in ("strategy", "model", "data", "partition", "problem", "engine"):
        assert {f"{kind} {name}" for name in own(kind) if name not in NO_COUNTS} <= titles


NO_COUNTS = {"iid", "one_class"}
"""Partitions without a setting."""


@pytest.mark.fuzz
def test_an_absurd_number_beside_another_choice_is_told_or_costs_nothing(tmp_path: Path) -> None:
    """Claims to find a choice, such as another surrogate or crossover, that makes a number cost what it does not."""
    tried = [case for case in cases(choosing=True) if not case.title.startswith("data eeg_")]
    assert not found(luck("sizes").sample(tried, min(len(tried), 25 * TIMES)), tmp_path)


def test_without_the_guard_the_attack_succeeds(tmp_path: Path) -> None:
    tried = [case for case in cases() if case.title == "data toy" and case.key in ("samples", "features")]
    wrong = found([dataclasses.replace(case, unguarded=True) for case in tried if case.size == 10**12], tmp_path)
    assert len(wrong) == 2
    assert all("told by the allocator alone" in why for why in wrong)
