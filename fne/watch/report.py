"""What finished runs are compared by: tables of summaries; and a table of who holds what."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fne.errors import FneError

FILE = "summary.json"
Summary = dict[str, Any]
Row = list[str]

NUMBERS = (
    "fold", "folds", "rounds", "steps", "evaluations", "accuracy_last", "accuracy_best", "accuracy_test",
    "majority_test", "accuracy_test_subjects", "loss_last", "loss_test", "best_value", "bytes_down_per_node",
    "bytes_up_per_node", "bytes_down_per_node_max", "bytes_up_per_node_max", "snapshots", "cpu_seconds",
    "cpu_seconds_total", "wall_seconds",
)  # fmt: skip
"""Fields of a summary that are numbers, or null where they have no meaning."""
FIELDS = ("name", "method", "dataset", "split", "seed", *NUMBERS, "best_point", "model_sha256")
NONE = "-"
_HEADER = [
    "run", "method", "data (split)", "seed", "test", "major-\nity", "best\nval.", "last\nval.", "rounds",
    "evalu-\nations", "down\n/node", "up\n/node", "time\n(s)",
]  # fmt: skip
_DATA, _SEED = 2, 3
_CAPTION = (
    "test: the returned model on the test part, looked at once; best val.: maximum over all rounds on validation, "
    "the kind of figure that the FNE paper gives, optimistic"
)


# ---------------------------------------------------------------------------------------------- summaries
def read_summary(run_folder: Path) -> Summary:
    """Return a finished run's `summary.json`, every one of `FIELDS` in it.

    Raises:
        FneError: there is none, or it is broken.
    """
    path = Path(run_folder) / FILE
    again = f"`fne train --resume {run_folder}` finishes the run and writes it"
    try:
        summary = json.loads(path.read_bytes(), parse_constant=lambda _: None)
    except FileNotFoundError:
        if not Path(run_folder).is_dir():
            raise FneError(f"no run folder {run_folder}; give the folder that `fne train` named") from None
        raise FneError(f"{run_folder} has no {FILE}: the run has not finished; {again}") from None
    except (OSError, ValueError) as error:
        raise FneError(f"{path} cannot be read ({error}); {again}") from None
    if not isinstance(summary, dict) or not isinstance(summary.get("method"), str):
        raise FneError(f"{path} is not the summary of a run (it names no method); {again}")
    summary = {**dict.fromkeys(FIELDS), "name": Path(run_folder).name, **summary}
    for key in NUMBERS:
        if not isinstance(summary[key], int | float | None):
            raise FneError(f"{path}: {key} = {summary[key]!r} is not a number; {again}")
    return summary


def grouped(summaries: Sequence[Summary]) -> list[Summary]:
    """Return one summary for the seeds and folds of one experiment under one name, in the order given.

    Numbers become means; `n`, `seeds` and `folds_there` (those that occur), and `std` (sample standard deviations by
    field, for n > 1) are added. A field that one run lacks, or text that differs, is null. Where a pair of seed and
    fold occurs twice the runs are no independent samples: they stay apart.
    """
    groups: dict[tuple[Any, ...], list[Summary]] = {}
    for summary in summaries:
        key = tuple(summary.get(field) for field in ("name", "method", "dataset", "split", "folds", "experiment"))
        groups.setdefault(key, []).append(summary)
    result: list[Summary] = []
    for runs in groups.values():
        pairs = {(run.get("seed"), run.get("fold")) for run in runs}
        if len(pairs) == len(runs):
            result.append(_mean(runs))
        else:
            result += [_mean([run]) for run in runs]
    return result


def _mean(runs: Sequence[Summary]) -> Summary:
    seeds, folds = (list(dict.fromkeys(run.get(key) for run in runs)) for key in ("seed", "fold"))
    there = [fold for fold in folds if fold is not None]
    mean = {**runs[0], "n": len(runs), "seeds": seeds, "folds_there": there, "std": {}}
    if len(runs) == 1:
        return mean
    for key in [key for key in runs[0] if key not in ("seed", "fold", "folds")]:
        values = [run.get(key) for run in runs]
        numbers = [value for value in map(number, values) if value is not None]
        if len(numbers) == len(values):
            mean[key], mean["std"][key] = statistics.mean(numbers), statistics.stdev(numbers)
        elif any(value != values[0] for value in values):
            mean[key] = None
    mean["seed"] = seeds[0] if len(seeds) == 1 else None
    mean["fold"] = folds[0] if len(folds) == 1 else None
    return mean


def split_of(summary: Summary) -> str:
    """Return a summary's split with its folds: `subject, fold 0 of 5`; of a group `subject, 5 folds`."""
    split, fold, folds = str(summary.get("split") or NONE), summary.get("fold"), summary.get("folds")
    there = len(summary.get("folds_there", ()))
    if folds is None:
        return split
    if fold is not None:
        return f"{split}, fold {fold} of {folds}"
    return f"{split}, {there} folds" if there == folds else f"{split}, {there} of {folds} folds"


def _seed_of(summary: Summary) -> str:
    n, seed, seeds, folds = (summary.get(key) for key in ("n", "seed", "seeds", "folds_there"))
    if not n or n == 1:
        return NONE if seed is None else str(seed)
    s, f = len(seeds or ()), len(folds or ())
    if s == 1 or f <= 1:
        return f"n = {n}"
    return f"n = {n} ({s} seeds {'x' if s * f == n else 'and'} {f} folds)"


# ---------------------------------------------------------------------------------------------- tables
def comparison_table(summaries: Sequence[Summary]) -> Table:
    """Return a table of runs (from `read_summary`) or of groups of seeds and folds (from `grouped`).

    Data set and seed stand in the title where all runs share them. Columns that are empty for all are left out.
    """
    rows = [_row(summary) for summary in summaries]
    shared = [column for column in (_DATA, _SEED) if len({row[column] for row in rows}) == 1]
    empty = [column for column, cells in enumerate(zip(*rows, strict=True)) if set(cells) == {NONE}]
    cells = [rows[0][column] for column in shared if rows[0][column] != NONE]
    title = ", ".join(f"seed {cell}" if cell.isdigit() else cell for cell in cells)

    def without(row: Row) -> Row:
        return [cell for column, cell in enumerate(row) if column not in (*shared, *empty)]

    return _table(without(_HEADER), [without(row) for row in rows], 2 if _DATA in shared else 3, title, _CAPTION)


def markdown_table(summaries: Sequence[Summary], *, processor_time: bool = False) -> str:
    """Return `comparison_table` as Markdown, with seconds of the processor instead of the clock if asked for."""
    rule = ["---" if column <= _DATA else "---:" for column in range(len(_HEADER))]
    rows = [[cell.replace("|", r"\|") for cell in _row(summary, processor_time)] for summary in summaries]
    header = [title.replace("-\n", "").replace("\n/", "/").replace("\n", " ") for title in _HEADER]
    header[-1] = "CPU (s)" if processor_time else header[-1]
    return "".join(f"| {' | '.join(row)} |\n" for row in (header, rule, *rows))


def _table(header: Row, rows: Sequence[Row], names: int, title: str = "", caption: str = "") -> Table:
    """Return a table, its first `names` columns flush left; a narrow terminal folds cells, cuts none."""
    table = Table(
        title=Text(title) if title else None,
        caption=Text(caption) if caption else None,
        caption_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
    )
    for column, name in enumerate(header):
        table.add_column(Text(name), justify="left" if column < names else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # names may hold brackets, which rich takes for markup
    return table


def _row(summary: Summary, processor_time: bool = False) -> Row:
    def cell(key: str, show: Callable[[float], str], unit: str = "") -> str:
        value, std = summary.get(key), summary.get("std", {}).get(key)
        if value is None:
            return NONE
        return (f"{show(value)} ± {show(std)}" if std else show(value)) + unit

    def percent(key: str) -> str:
        return cell(key, lambda x: f"{100 * x:.1f}", " %")

    def significant(key: str, unit: str = "") -> str:
        return cell(key, lambda x: f"{x:.4g}", unit)

    if summary.get("accuracy_test") is not None:
        test = percent("accuracy_test")
    elif summary.get("loss_test") is not None:
        test = significant("loss_test", " loss")
    else:
        test = significant("best_value")
    return [
        str(summary.get("name") or NONE),
        str(summary.get("method") or NONE),
        f"{summary.get('dataset') or NONE} ({split_of(summary)})",
        _seed_of(summary),
        test,
        percent("majority_test"),
        percent("accuracy_best"),
        percent("accuracy_last"),
        cell("rounds", _count),
        cell("evaluations", _count),
        cell("bytes_down_per_node", human_bytes),
        cell("bytes_up_per_node", human_bytes),
        cell("cpu_seconds" if processor_time else "wall_seconds", lambda x: f"{x:.1f}"),
    ]


def _count(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else f"{value:.1f}"


def human_bytes(value: float) -> str:
    """Return bytes to three digits in decimal units: `999 B`, `1.23 MB`."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5 or unit == "TB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def partition_table(counts: Sequence[Sequence[int]], node_names: Sequence[str], class_names: Sequence[str]) -> Table:
    """Return samples per node and class (`counts[K][C]`, C = 1 for regression) with totals.

    Above 12 classes each node is summed up: how many classes it holds, and its largest.
    """
    sums = [sum(column) for column in zip(*counts, strict=True)]
    names, lines = [*node_names, "all"], [*counts, sums]
    if len(class_names) == 1:
        header, rows = ["node"], [[name] for name in names]
    elif len(class_names) <= 12:
        header = ["node", *class_names]
        rows = [[name, *map(str, line)] for name, line in zip(names, lines, strict=True)]
    else:
        header, rows = ["node", "classes", "largest class"], []
        for name, line in zip(names, lines, strict=True):
            most = max(range(len(line)), key=line.__getitem__)
            rows.append([name, str(sum(c > 0 for c in line)), f"{class_names[most]}: {line[most]}"])
    return _table([*header, "samples"], [[*r, str(sum(c))] for r, c in zip(rows, lines, strict=True)], names=1)


def number(value: Any) -> float | None:
    """Return a number, or `None` for anything else."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
