"""Plots: curves of histories, and samples of nodes by class."""

from __future__ import annotations

import io
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fne.core.errors import FneError
from fne.core.files import write_atomically, writing
from fne.watch.history import bytes_so_far, read_history
from fne.watch.tables import FILE, number, read_summary, split_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def curves(
    run_folders: Sequence[Path],
    out_png: Path,
    y: str | None = None,
    x: Literal["step", "bytes", "evaluations"] = "step",
) -> None:
    """Plot one field of the histories of several runs.

    Runs with the same name and split, such as seeds, share a colour; each fold has its own. The label marks unfinished
    runs. The horizontal axis is logarithmic where one run is more than ten times as long as another. Steps without a
    number, such as steps without validation, are skipped.

    Args:
        run_folders: folders of the runs.
        out_png: path of the picture.
        y: field to plot; `None`: the best value or IGD where all runs are searches, otherwise validation accuracy.
        x: horizontal axis; `bytes` are those of a node since the start of the run, both directions, mean over all
            nodes, and leave out runs that are not federated.

    Raises:
        FneError: a history is missing, or no run has numbers in the fields `y` and `x`.
        RunError: the picture cannot be written.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, PercentFormatter

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    known: set[str] = set()
    colours: dict[str, str] = {}
    ends: list[float] = []
    histories = [read_history(folder) for folder in run_folders]
    if y is None:
        figures = [
            key for key in ("best_value", "igd") if all(any(key in line for line in of_run) for of_run in histories)
        ]
        y = figures[0] if figures else "accuracy_validation"
    for folder, lines in zip(run_folders, histories, strict=True):
        known.update(key for line in lines for key, value in line.items() if number(value) is not None)
        pairs = [(bytes_so_far(line) if x == "bytes" else number(line.get(x)), number(line.get(y))) for line in lines]
        points = [(a, b) for a, b in pairs if a is not None and b is not None]
        if points:
            marker = "." if len(points) <= 50 else None
            label = _label(folder)
            colour = colours.get(label, f"C{len(colours)}")
            # matplotlib leaves labels that begin with an underscore out of the legend
            shown = f"_{label}" if label in colours else label
            colours[label] = colour
            axes.plot(*zip(*points, strict=True), label=shown, color=colour, marker=marker, linewidth=1.2)
            ends.append(points[-1][0])
    if not axes.lines:
        over = f"{x!r}{' (which only federated runs have)' if x == 'bytes' else ''}"
        raise FneError(f"no run has numbers for y = {y!r} over x = {over}; choose among: {', '.join(sorted(known))}")
    axes.set_xlabel("bytes a node, down and up" if x == "bytes" else x)
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


def _label(run_folder: Path) -> str:
    if not (Path(run_folder) / FILE).exists():
        return _plain(f"{Path(run_folder).name} (unfinished)")
    summary = read_summary(run_folder)
    return _plain(f"{summary['name']} ({summary['method']}; {summary['dataset']}, {split_of(summary)})")


def _plain(text: str) -> str:
    return text.replace("$", r"\$")  # matplotlib reads text between two dollar signs as mathematics


def partition_picture(
    counts: Sequence[Sequence[int]], node_names: Sequence[str], class_names: Sequence[str], out_png: Path
) -> None:
    """Draw stacked bars of samples per node and class.

    Args:
        counts: samples `[K][C]`.
        node_names: names of the K nodes; a hundred names are legible.
        class_names: names of the C classes.
        out_png: path of the picture.

    Raises:
        RunError: the picture cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_width(node_names), 5), layout="constrained")
    _bars(figure.add_subplot(), counts, node_names, class_names)
    if len(class_names) > 1:
        figure.legend(loc="outside right upper", fontsize="small", ncols=math.ceil(len(class_names) / 20), reverse=True)
    _save(figure, out_png)


def data_picture(
    counts: Sequence[Sequence[int]],
    node_names: Sequence[str],
    class_names: Sequence[str],
    averages: Mapping[str, Sequence[Sequence[float]]],
    times: tuple[Sequence[float], str],
    out_png: Path,
) -> None:
    """Draw the bars of `partition_picture`, and below them the average recording of each class, one line per channel.

    Args:
        counts: samples `[K][C]`.
        node_names: names of the K nodes.
        class_names: names of the C classes.
        averages: class -> average recording `[channels][times]`; empty: bars alone.
        times: times `[times]`, and their unit.
        out_png: path of the picture.

    Raises:
        RunError: the picture cannot be written.
    """
    from matplotlib.figure import Figure

    if not averages:
        partition_picture(counts, node_names, class_names, out_png)
        return
    figure = Figure(figsize=(max(_width(node_names), 3.2 * min(len(averages), 6)), 8), layout="constrained")
    upper, lower = figure.subfigures(2, 1, squeeze=False)[:, 0]
    _bars(upper.add_subplot(), counts, node_names, class_names)
    upper.legend(loc="outside right upper", fontsize="small", ncols=math.ceil(len(class_names) / 20), reverse=True)
    axes = lower.subplots(math.ceil(len(averages) / 6), min(len(averages), 6), sharex=True, sharey=True, squeeze=False)
    for plot, (name, channels) in zip(axes.flat, averages.items(), strict=False):
        moments = list(zip(*channels, strict=True))
        plot.plot(times[0], moments, linewidth=0.5, alpha=0.35)
        plot.plot(times[0], list(map(statistics.pstdev, moments)), color="black", linewidth=1.5)
        plot.set_title(_plain(name), fontsize=9)
        plot.set_xlabel(times[1])
        plot.grid(alpha=0.3)
    for plot in axes.flat[len(averages) :]:
        plot.set_axis_off()
    lower.suptitle("average of a class, a line a channel; black: spread over the channels", fontsize=10)
    lower.supylabel("value, as models are given it", fontsize=9)
    _save(figure, out_png)


def _width(node_names: Sequence[str]) -> float:
    return min(max(6.4, 0.17 * len(node_names)), 24) + 1.5


def _bars(axes: Axes, counts: Sequence[Sequence[int]], node_names: Sequence[str], class_names: Sequence[str]) -> None:
    """Draw stacked bars of samples per node and class."""
    from matplotlib import colormaps
    from matplotlib.collections import PolyCollection

    K, C = len(node_names), len(class_names)
    palette = colormaps["tab10" if C <= 10 else "tab20" if C <= 20 else "turbo"]
    below = [0] * K
    for c, (name, column) in enumerate(zip(class_names, zip(*counts, strict=True), strict=True)):
        above = [b + n for b, n in zip(below, column, strict=True)]
        # One collection per class: `bar` makes a patch per bar, which takes minutes where K * C is large.
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


def _save(figure: Figure, path: Path) -> None:
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=150)
    with writing(path, "make room, or give another path"):
        write_atomically(path, picture.getvalue())
