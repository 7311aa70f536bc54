"""Tables of finished runs, of their bytes and privacy accounts, and of the data of nodes and files."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fne.core.dataset import FileReport
from fne.core.errors import FneError
from fne.core.files import CHANGED, damaged, verified
from fne.privacy.score import NOTE, SCORE
from fne.watch.history import FILE as HISTORY
from fne.watch.metrics import SUMMARY

FILE = "summary.json"
Summary = dict[str, Any]
Row = list[str]

NONE = "-"
_NAMES = ["run", "method", "data (split)", "seed"]
_DATA, _SEED = 2, 3
_FIELDS = {metric.name: metric for metric in SUMMARY}
_RESULTS = {"accuracy_test": "", "loss_test": " loss", "igd": " IGD", "front_size": " points", "best_value": ""}
"""Fields for the column `test`, with what follows the figure; a row shows the first one that its run has."""
_COLUMNS = [metric for metric in SUMMARY if metric.column and metric.name not in (*_RESULTS, "cpu_seconds")]
_BYTES = [metric for metric in SUMMARY if metric.bytes_column]
_SEARCHES = {
    "best_value": "best value: of the answer, after finals the mean of all nodes; smaller is better",
    "front_size": "front: distance of the published front to the true one (IGD), or how many points it has",
}
"""Field that names the column `test` in a table of searches alone, and the caption of that table."""
_CAPTION = (
    "test: the returned model on the test part, looked at once; best val.: maximum over all rounds on validation, "
    "the kind of figure that the FNE paper gives, optimistic"
)
_CHANCE = "; majority: chance, the accuracy on the test part of always answering its most frequent class"
_BYTES_TITLE = "bytes a node over the run"
_BYTES_CAPTION = (
    "payload: tensors alone; encoded: with the heads of messages; mean over all nodes, and the node with the most; "
    "runs that are not federated exchange nothing and are left out"
)


# ---------------------------------------------------------------------------------------------- summaries
def read_summary(run_folder: Path) -> Summary:
    """Return a finished run's `summary.json` with all fields of the table of metrics; missing fields are null.

    Raises:
        FneError: the summary is missing or broken, or the digest of another result file differs.
    """
    path = Path(run_folder) / FILE
    again = f"`fne train --resume {run_folder}` finishes the run and writes it"
    try:
        summary = json.loads(verified(path), parse_constant=lambda _: None)
    except FileNotFoundError:
        if not Path(run_folder).is_dir():
            raise FneError(f"no run folder {run_folder}; give the folder that `fne train` named") from None
        raise FneError(f"{run_folder} has no {FILE}: the run has not finished; {again}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise FneError(f"{path} cannot be read ({error}); {again}") from None
    for other in damaged(Path(run_folder)):
        raise FneError(
            f"{other} {CHANGED}; restore the run's own file, or let the last checkpoint write it again: "
            f"fne train --resume {run_folder}{' --new-history' if other.name == HISTORY else ''}"
        )
    if not isinstance(summary, dict) or not isinstance(summary.get("method"), str):
        raise FneError(f"{path} is not the summary of a run (it names no method); {again}")
    summary = {**dict.fromkeys(_FIELDS), "name": Path(run_folder).name, **summary}
    for metric in SUMMARY:
        value = summary[metric.name]
        if metric.kind == "number" and not isinstance(value, int | float | None):
            raise FneError(f"{path}: {metric.name} = {value!r} is not a number; {again}")
    return summary


def grouped(summaries: Sequence[Summary]) -> list[Summary]:
    """Merge runs that differ in seed and fold alone into one summary for each experiment and name, in the given order.

    Numbers become means. A merged summary also has `n`, `seeds`, `folds_there` (the folds that occur) and `std` (field
    -> sample standard deviation, for n > 1). A field is null where a run lacks it or texts differ. Where a pair of seed
    and fold occurs twice, the runs are not independent samples and stay apart.
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
    accounts = [run["privacy"] for run in runs if run.get("privacy")]
    mean = {**runs[0], "n": len(runs), "seeds": seeds, "folds_there": there, "std": {}, "accounts": accounts}
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
    """Return the split with the fold of a run (`subject, fold 0 of 5`) or the folds of a group (`subject, 5 folds`)."""
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

    Data set and seed stand in the title where all runs share them. Columns without any value are left out.
    """
    rows = [_row(summary) for summary in summaries]
    shared = [column for column in (_DATA, _SEED) if len({row[column] for row in rows}) == 1]
    cells = [rows[0][column] for column in shared if rows[0][column] != NONE]
    title = ", ".join(f"seed {cell}" if cell.isdigit() else cell for cell in cells)
    chance = any(summary.get("majority_test") is not None for summary in summaries)
    header, caption = _header(), _CAPTION + (_CHANCE if chance else "")
    searches = all(summary.get("accuracy_test") is summary.get("loss_test") is None for summary in summaries)
    for key, said in _SEARCHES.items():
        if searches and all(summary.get(key) is not None for summary in summaries):
            header, caption = _header(key), said
            header[_DATA] = "problem"
    return _table(*_without(shared, header, rows), 2 if _DATA in shared else 3, title, caption)


def markdown_table(summaries: Sequence[Summary], *, processor_time: bool = False) -> str:
    """Return `comparison_table` as Markdown, with processor time instead of wall time if `processor_time`."""
    seconds = "cpu_seconds" if processor_time else "wall_seconds"
    return _markdown(_header(seconds=seconds), [_row(summary, seconds) for summary in summaries], _DATA + 1)


def _header(result: str = "accuracy_test", seconds: str = "wall_seconds") -> Row:
    return [*_NAMES, *(_FIELDS[key].column for key in (result, *_columns(seconds)))]


def _columns(seconds: str) -> list[str]:
    """Return the fields of the table of runs after the result, with one of the two fields of time."""
    return [seconds if metric.name == "wall_seconds" else metric.name for metric in _COLUMNS]


def federated(summaries: Sequence[Summary]) -> list[Summary]:
    """Return the summaries of federated runs, which alone have bytes per node."""
    return [summary for summary in summaries if summary.get("bytes_down_per_node") is not None]


def bytes_table(summaries: Sequence[Summary]) -> Table:
    """Return a table of the bytes that a node received and sent over the run, one row per federated run or group."""
    header, rows = _without([], _bytes_header(), _bytes_rows(summaries))
    return _table(header, rows, 1, _BYTES_TITLE, _BYTES_CAPTION)


def markdown_bytes(summaries: Sequence[Summary]) -> str:
    """Return `bytes_table` as Markdown, including columns without any value."""
    return _markdown(_bytes_header(), _bytes_rows(summaries), 1)


def _bytes_header() -> Row:
    return ["run", *(metric.bytes_column for metric in _BYTES)]


def _bytes_rows(summaries: Sequence[Summary]) -> list[Row]:
    return [[_name(run), *(_cell(run, metric.name) for metric in _BYTES)] for run in federated(summaries)]


def _without(columns: Sequence[int], header: Row, rows: Sequence[Row]) -> tuple[Row, list[Row]]:
    """Return header and rows without these columns, and without the columns that are empty in all rows."""
    empty = [column for column, cells in enumerate(zip(*rows, strict=True)) if set(cells) == {NONE}]
    header, *left = (
        [cell for column, cell in enumerate(row) if column not in (*columns, *empty)] for row in (header, *rows)
    )
    return header, left


def _markdown(header: Row, rows: Sequence[Row], names: int) -> str:
    """Return a table in Markdown with the first `names` columns left-aligned."""
    titles = [title.replace("-\n", "").replace("\n/", "/").replace("\n", " ") for title in header]
    rule = ["---" if column < names else "---:" for column in range(len(header))]
    escaped = [[cell.replace("|", r"\|") for cell in row] for row in rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in (titles, rule, *escaped))


def _table(header: Row, rows: Sequence[Row], names: int, title: str = "", caption: str = "") -> Table:
    """Return a table with the first `names` columns left-aligned; a narrow terminal wraps cells and cuts none off."""
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
        table.add_row(*(Text(cell) for cell in row))  # names may have brackets, which rich would read as markup
    return table


def _name(summary: Summary) -> str:
    return str(summary.get("name") or NONE)


def _cell(summary: Summary, key: str) -> str:
    """Return a field as its unit is shown, with the deviation over seeds and folds where there are several runs."""
    value, std = summary.get(key), summary.get("std", {}).get(key)
    if value is None:
        return NONE
    show, unit = _SHOWN_AS.get(_FIELDS[key].unit, (_count, ""))
    return (f"{show(value)} ± {show(std)}" if std else show(value)) + unit


def _row(summary: Summary, seconds: str = "wall_seconds") -> Row:
    result = next((key for key in _RESULTS if summary.get(key) is not None), "best_value")
    test = _cell(summary, result)
    return [
        _name(summary),
        str(summary.get("method") or NONE),
        f"{summary.get('dataset') or NONE} ({split_of(summary)})",
        _seed_of(summary),
        test if test == NONE else test + _RESULTS[result],
        *(_cell(summary, key) for key in _columns(seconds)),
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


def _significant(value: float) -> str:
    return f"{value:.4g}"


_SHOWN_AS: dict[str, tuple[Callable[[float], str], str]] = {
    "fraction": (lambda value: f"{100 * value:.1f}", " %"), "bytes": (human_bytes, ""),
    **dict.fromkeys(("seconds", "processor seconds"), (lambda value: f"{value:.1f}", "")),
    **dict.fromkeys(("loss", "objective", "points"), (_significant, "")),
}  # fmt: skip
"""How cells show a figure of each unit, and what follows the figure; all others are shown as counts."""


def partition_table(counts: Sequence[Sequence[int]], node_names: Sequence[str], class_names: Sequence[str]) -> Table:
    """Return samples per node and class (`counts[K][C]`, C = 1 for regression) with totals.

    With more than 12 classes, a row has the number of classes of the node and its largest class.
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


def files_table(files: Sequence[FileReport]) -> Table:
    """Return a table of recordings: file, subject, recording parameters, windows by class, verdict and problems."""
    header = ["file", "subject", "channels", "rate (Hz)", "windows by class", "seconds", "verdict", "problems"]
    rows = [
        [
            report.file,
            report.subject,
            str(report.channels or "-"),
            f"{report.rate:g}" if report.rate else "-",
            ", ".join(f"{name} {count}" for name, count in report.events.items()) or "-",
            f"{report.seconds:.1f}" if report.seconds else "-",
            report.verdict,
            ", ".join(dict.fromkeys(f.kind for f in report.findings if f.action != "noted")) or "-",
        ]
        for report in files
    ]
    return _table(header, rows, names=2)


def number(value: Any) -> float | None:
    """Return a number, or `None` for anything else."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


Account = Mapping[str, Any]


def privacy_lines(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return lines on the privacy account of each run that has one: epsilon, mechanisms, and warnings.

    A group of seeds shows the account with the largest epsilon.
    """
    lines = []
    for summary in summaries:
        accounts = summary.get("accounts") or [summary.get("privacy")]
        accounts = sorted((account for account in accounts if account), key=_epsilon)
        if not accounts:
            continue
        account = accounts[-1]
        among = f", the most of {len(accounts)} runs (least: {_shown(_epsilon(accounts[0]))})" * (len(accounts) > 1)
        simulated = "simulated privacy" if account.get("simulated") else "privacy"
        lines.append(
            f"{simulated} of {summary['name']}: epsilon {_shown(_epsilon(account))} at delta {account['delta']:g}"
            f"{among} ({account['accountant']}; {_conduct(account['mechanisms'])})"
        )
        if account.get(SCORE) is not None:
            lines.append(f"  {SCORE}: {account[SCORE]:.4g}")
            if account.get(NOTE):
                lines.append(f"  {NOTE}: {account[NOTE]}")
        lines += [f"  note: {text}" for text in account["warnings"]]
    return lines


def _epsilon(account: Account) -> float:
    return math.inf if account["epsilon"] is None else float(account["epsilon"])


def _shown(epsilon: float) -> str:
    return "infinite" if epsilon == math.inf else f"{epsilon:.4g}"


def _conduct(parts: Sequence[Mapping[str, Any]]) -> str:
    """Return the protected unit, the adversary, the noise, the sampling and the number of releases."""
    if not parts:
        return "nothing yet"
    first, releases = parts[0], sum(part["releases"] for part in parts)
    noises = sorted({part["multiplier"] for part in parts})
    noise = f"{noises[0]:.3g}" if len(noises) == 1 else f"{noises[0]:.3g} to {noises[-1]:.3g}"
    drawn = {"poisson": f"Poisson sampling at {first['rate']:g}", "none": "no sampling counted",
             "fixed": f"{first['size']} of {first['population']} drawn"}[first["sampling"]]  # fmt: skip
    return (
        f"{first['unit']}s, {first['adjacency'].replace('_', ' ')}, against who sees {first['adversary']}; "
        f"{first['clipped']} clipped to {first['clip']:g}, noise multiplier {noise}, {drawn}; {releases} releases"
    )
