"""What a finished run is compared by: tables of summaries, curves of histories, pictures of partitions."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fne.errors import FneError
from fne.watch.history import read_history, writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILE = "summary.json"
Summary = dict[str, Any]
Row = list[str]

NUMBERS = (
    "rounds", "steps", "evaluations", "accuracy_last", "accuracy_best", "accuracy_test", "loss_last",
    "loss_test", "best_value", "bytes_down_per_node", "bytes_up_per_node", "bytes_down_per_node_max",
    "bytes_up_per_node_max", "snapshots", "cpu_seconds", "cpu_seconds_total", "wall_seconds",
)  # fmt: skip
"""Fields of a summary that are numbers, or null where they have no meaning."""
FIELDS = ("name", "method", "dataset", "split", "seed", *NUMBERS, "best_point", "model_sha256")
NONE = "-"
_HEADER = [
    "run", "method", "data (split)", "seed", "test", "best\nval.", "last\nval.", "rounds", "evalu-\nations",
    "down\n/node", "up\n/node", "time\n(s)",
]  # fmt: skip
_DATA, _SEED = 2, 3


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
    """Return one summary for the seeds of a run name, method, data set and split, in the order given.

    Numbers become means; `n`, `seeds` and `std` (sample standard deviations by field, for n > 1) are added.
    A field that one seed lacks, or text that differs, is null. Where a seed occurs twice the runs are no
    independent samples: they stay apart.
    """
    groups: dict[tuple[Any, ...], list[Summary]] = {}
    for summary in summaries:
        key = tuple(summary.get(field) for field in ("name", "method", "dataset", "split"))
        groups.setdefault(key, []).append(summary)
    result: list[Summary] = []
    for runs in groups.values():
        seeds = [run.get("seed") for run in runs]
        if len(set(seeds)) == len(seeds):
            result.append(_mean(runs))
        else:
            result += [_mean([run]) for run in runs]
    return result


def _mean(runs: Sequence[Summary]) -> Summary:
    mean = {**runs[0], "n": len(runs), "seeds": [run.get("seed") for run in runs], "std": {}}
    if len(runs) == 1:
        return mean
    for key in [key for key in runs[0] if key != "seed"]:
        values = [run.get(key) for run in runs]
        numbers = [value for value in map(_number, values) if value is not None]
        if len(numbers) == len(values):
            mean[key], mean["std"][key] = statistics.mean(numbers), statistics.stdev(numbers)
        elif any(value != values[0] for value in values):
            mean[key] = None
    mean["seed"] = None
    return mean


# ---------------------------------------------------------------------------------------------- tables
def comparison_table(summaries: Sequence[Summary]) -> Table:
    """Return a table of runs (from `read_summary`) or of groups of seeds (from `grouped`).

    Data set and seed stand in the title where all runs share them.
    """
    rows = [_row(summary) for summary in summaries]
    shared = [column for column in (_DATA, _SEED) if len({row[column] for row in rows}) == 1]
    cells = [rows[0][column] for column in shared if rows[0][column] != NONE]
    title = ", ".join(f"seed {cell}" if cell.isdigit() else cell for cell in cells)

    def without(row: Row) -> Row:
        return [cell for column, cell in enumerate(row) if column not in shared]

    return _table(without(_HEADER), [without(row) for row in rows], 2 if _DATA in shared else 3, title)


def markdown_table(summaries: Sequence[Summary], *, processor_time: bool = False) -> str:
    """Return `comparison_table` as Markdown, with seconds of the processor instead of the clock if asked for."""
    rule = ["---" if column <= _DATA else "---:" for column in range(len(_HEADER))]
    rows = [[cell.replace("|", r"\|") for cell in _row(summary, processor_time)] for summary in summaries]
    header = [title.replace("-\n", "").replace("\n/", "/").replace("\n", " ") for title in _HEADER]
    header[-1] = "CPU (s)" if processor_time else header[-1]
    return "".join(f"| {' | '.join(row)} |\n" for row in (header, rule, *rows))


def _table(header: Row, rows: Sequence[Row], names: int, title: str = "") -> Table:
    """Return a table, its first `names` columns flush left; a narrow terminal folds cells, cuts none."""
    table = Table(
        title=Text(title) if title else None,
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
    n, seed = summary.get("n", 1), summary.get("seed")
    return [
        str(summary.get("name") or NONE),
        str(summary.get("method") or NONE),
        f"{summary.get('dataset') or NONE} ({summary.get('split') or NONE})",
        f"n = {n}" if n > 1 else NONE if seed is None else str(seed),
        test,
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


# ---------------------------------------------------------------------------------------------- pictures
def curves(
    run_folders: Sequence[Path],
    out_png: Path,
    y: str = "accuracy_validation",
    x: Literal["step", "bytes", "evaluations"] = "step",
) -> None:
    """Plot one field of the runs' histories; unfinished runs are marked as such.

    Runs of one name, such as seeds, share a colour. The horizontal axis is logarithmic where one run is more than
    ten times as long as another. Bytes are the running sum over all nodes, down and up; in a thinned history a kept
    step stands for the thinned ones before it.

    Raises:
        FneError: no history, or none of the runs has a number under `y` and `x`.
        RunError: the picture cannot be written.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, PercentFormatter

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    known: set[str] = set()
    colours: dict[str, str] = {}
    ends: list[float] = []
    for folder in run_folders:
        lines = read_history(folder)
        known.update(key for line in lines for key, value in line.items() if _number(value) is not None)
        xs = _running_bytes(lines) if x == "bytes" else [_number(line.get(x)) for line in lines]
        ys = [_number(line.get(y)) for line in lines]
        points = [(a, math.nan if b is None else b) for a, b in zip(xs, ys, strict=True) if a is not None]
        if any(not math.isnan(b) for _, b in points):
            marker = "." if len(points) <= 50 else None
            label = _label(folder)
            colour = colours.get(label, f"C{len(colours)}")
            # a label that begins with an underscore is left out of the legend
            shown = f"_{label}" if label in colours else label
            colours[label] = colour
            axes.plot(*zip(*points, strict=True), label=shown, color=colour, marker=marker, linewidth=1.2)
            ends.append(points[-1][0])
    if not axes.lines:
        raise FneError(f"no run has numbers for y = {y!r} over x = {x!r}; there are: {', '.join(sorted(known))}")
    axes.set_xlabel("bytes, down and up, all nodes" if x == "bytes" else x)
    axes.set_ylabel({"accuracy_validation": "validation accuracy"}.get(y, y.replace("_", " ")))
    if max(ends) > 10 * min(ends) > 0:
        axes.set_xscale("log")
    if x == "bytes":
        axes.xaxis.set_major_formatter(EngFormatter(unit="B"))
    if y.startswith("accuracy"):
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", fontsize="small", ncols=1 if len(colours) <= 8 else 2)
    _save(figure, out_png)


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _running_bytes(lines: Sequence[dict[str, Any]]) -> list[float | None]:
    total, before, sums = 0.0, 0, list[float | None]()
    for line in lines:
        total += (line["step"] - before) * ((line.get("bytes_down") or 0) + (line.get("bytes_up") or 0))
        before = line["step"]
        sums.append(total)
    return sums


def _label(run_folder: Path) -> str:
    if not (Path(run_folder) / FILE).exists():
        return _plain(f"{Path(run_folder).name} (unfinished)")
    summary = read_summary(run_folder)
    return _plain("{name} ({method}; {dataset}, {split})".format(**summary))


def _plain(text: str) -> str:
    return text.replace("$", r"\$")  # matplotlib would read mathematics between two of them


def partition_picture(
    counts: Sequence[Sequence[int]], node_names: Sequence[str], class_names: Sequence[str], out_png: Path
) -> None:
    """Draw stacked bars of samples per node and class, `counts[K][C]`, a hundred nodes' names legible.

    Raises:
        RunError: the picture cannot be written.
    """
    from matplotlib import colormaps
    from matplotlib.collections import PolyCollection
    from matplotlib.figure import Figure

    K, C = len(node_names), len(class_names)
    figure = Figure(figsize=(min(max(6.4, 0.17 * K), 24) + 1.5, 5), layout="constrained")
    axes = figure.add_subplot()
    palette = colormaps["tab10" if C <= 10 else "tab20" if C <= 20 else "turbo"]
    below = [0] * K
    for c, (name, column) in enumerate(zip(class_names, zip(*counts, strict=True), strict=True)):
        above = [b + n for b, n in zip(below, column, strict=True)]
        # One collection a class: `bar` makes a patch of each, which takes minutes where K * C is large.
        bars = [
            [(k - 0.42, b), (k + 0.42, b), (k + 0.42, t), (k - 0.42, t)]
            for k, (b, t) in enumerate(zip(below, above, strict=True))
        ]
        colour = palette(c) if C <= 20 else palette(c / (C - 1))
        axes.add_collection(PolyCollection(bars, facecolor=colour, label=_plain(name)), autolim=False)
        below = above
    every = math.ceil(K / 130)
    ticks = range(0, K, every)
    axes.set_xticks(
        ticks,
        [_plain(node_names[k]) for k in ticks],
        rotation=90 if K > 12 else 0,
        fontsize=7 if K > 12 else 9,
    )
    axes.set_xlim(-0.7, K - 0.3)
    axes.set_ylim(0, 1.03 * max(max(below), 1))
    axes.set_ylabel("samples")
    if C > 1:
        figure.legend(loc="outside right upper", fontsize="small", ncols=math.ceil(C / 20), reverse=True)
    _save(figure, out_png)


def _save(figure: Figure, path: Path) -> None:
    with writing(path, "make room, or give another path"):
        figure.savefig(path, format="png", dpi=150)
