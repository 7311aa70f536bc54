"""The table of metrics: what runs write is in it, with the type and the strategies that it says, and docs agree."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import fne
from fne.config.registry import catalogue
from fne.watch.history import encode
from fne.watch.metrics import METRICS, SUMMARY, UNITS, Metric, order
from tests import golden

ROOT = Path(__file__).parents[2]
BY_NAME = {metric.name: metric for metric in METRICS}
FIELDS = {metric.name: metric for metric in SUMMARY}
KINDS: dict[str, tuple[type, ...]] = {
    "number": (int, float), "text": (str,), "flag": (bool,), "list": (list,), "mapping": (dict,),
}  # fmt: skip
RUNS = golden.runs()
LOGISTIC = {"model": {"name": "logistic"}}


def side_by_side(name: str) -> dict[str, Any]:
    return {**RUNS[name], "strategy": {**RUNS[name]["strategy"], "runs": 2}}


MORE = (
    RUNS["fedavg secure clip"], side_by_side("fdd_ea"), side_by_side("fdd_ea_mo"), side_by_side("fdd_ea_dh literal"),
    {**RUNS["fsi"], **LOGISTIC}, {**RUNS["fsi_shared"], **LOGISTIC},
)  # fmt: skip
"""Runs that write metrics of secure sums, and lists of one value for each run or model."""


def fits(value: Any, metric: Metric) -> bool:
    """Return whether a value is of the metric's kind; a flag is no number."""
    is_flag = isinstance(value, bool)
    return value is None or (isinstance(value, KINDS[metric.kind]) and is_flag == (metric.kind == "flag"))


def test_runs_of_all_strategies_write_the_metrics_of_the_table_and_no_others(tmp_path: Path) -> None:
    writers: dict[str, set[str]] = defaultdict(set)
    fields: set[str] = set()
    own = [RUNS[name] for name, entry in catalogue("strategy").items() if entry.module.startswith("fne.")]
    for number, config in enumerate((*own, *MORE)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about runs too short to be good
            fne.train(config, out=tmp_path / str(number))
        strategy = config["strategy"]["name"]
        for line in map(json.loads, (tmp_path / str(number) / "history.jsonl").read_text().splitlines()):
            for name, value in line.items():
                writers[name].add(strategy)
                assert fits(value, BY_NAME[name]), f"{strategy}: {name} = {value!r} is no {BY_NAME[name].kind}"
        summary = json.loads((tmp_path / str(number) / "summary.json").read_text())
        for name, value in summary.items():
            assert fits(value, FIELDS[name]), f"{strategy}: {name} = {value!r} is no {FIELDS[name].kind}"
        fields.update(summary)
    assert (set(writers), fields) == (set(BY_NAME), set(FIELDS))
    expected = {metric.name: set(metric.strategies) for metric in METRICS if metric.strategies}
    assert {name: writers[name] for name in expected} == expected


@pytest.mark.parametrize("metrics", [METRICS, SUMMARY], ids=["METRICS", "SUMMARY"])
def test_the_table_is_consistent(metrics: tuple[Metric, ...]) -> None:
    assert len({metric.name for metric in metrics}) == len(metrics)
    assert {metric.unit for metric in metrics} <= set(UNITS)
    assert not [m.name for m in metrics if m.kind == "number" and not m.unit], "a number without a unit"
    assert not [m.name for m in metrics if m.kind in ("text", "flag") and (m.unit or m.sense)]
    for titles in ([m.tag for m in metrics], [m.column for m in metrics], [m.bytes_column for m in metrics]):
        given = [title for title in titles if title]
        assert len(set(given)) == len(given)
    strategies = {name for metric in metrics for name in metric.strategies}
    assert strategies <= set(catalogue("strategy"))


def test_every_unit_is_used() -> None:
    assert {metric.unit for metric in (*METRICS, *SUMMARY)} == set(UNITS)


def test_tags_name_a_group_and_a_title() -> None:
    for metric in METRICS:
        assert not metric.tag or re.fullmatch(r"[a-z]+/[a-z_]+", metric.tag)
        assert metric.kind == "number" or metric.name == "failures" or not metric.tag, "TensorBoard shows numbers alone"
    text = (ROOT / "docs" / "config.md").read_text()
    named = re.search(r"TensorBoard shows .* in groups \((.*?)\)", text, re.DOTALL)
    assert named is not None
    assert set(re.findall(r"`(\w+)`", named[1])) == {metric.group for metric in METRICS if metric.group}


def test_the_order_of_the_table_is_the_order_of_a_line() -> None:
    names = [metric.name for metric in METRICS]
    assert sorted(names, key=order) == names
    line = encode(dict.fromkeys(["per_node", "zeta", "multiplier", "mine", "alpha", "seconds", "step"]))
    assert list(json.loads(line)) == ["step", "seconds", "alpha", "mine", "multiplier", "zeta", "per_node"]


def test_the_lists_of_fields_in_the_docs_are_those_of_the_table() -> None:
    text = (ROOT / "docs" / "config.md").read_text(encoding="utf-8")
    assert runpy.run_path(str(ROOT / ".ci" / "metrics.py"))["page"](text) == text, "run python .ci/metrics.py"


@pytest.mark.parametrize("page", ["baselines.md", "es.md", "fne.md", "fsi.md"])
def test_the_metrics_of_a_page_of_strategies_are_in_the_table(page: str) -> None:
    part = (ROOT / "docs" / page).read_text(encoding="utf-8").split("| metric | what it is |\n|---|---|\n")[1]
    rows = part.split("\n\n")[0].splitlines()
    names = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    strategies = set(catalogue("strategy"))
    assert names
    assert names - strategies <= set(BY_NAME)


def test_the_table_needs_no_torch() -> None:
    code = "import sys, fne.watch.metrics; assert not {'torch', 'numpy', 'rich'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
