"""Tables over runs: summaries, seeds and folds, bytes, accounts."""

from __future__ import annotations

import json
import math
import re
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fne.core.errors import FneError
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
from tests.watch.parts import SO_FAR, SUMMARY, folded, run_folder, shown


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
