"""The `fne` command. A user's mistake gives its text and exit status 2; `--help`, `list`, `show` import no torch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fne import __version__, registry
from fne.errors import FneError

app = typer.Typer(
    add_completion=False, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False,
    help="Federated neuroevolution: train models over data that stays with its owners, without gradients.",
)  # fmt: skip
data_app = typer.Typer(no_args_is_help=True, help="Look at data before training on it.")
app.add_typer(data_app, name="data")

QUICK = ("fne_quick", "fedavg_quick")
"""What `fne compare` runs without arguments: the main job of the README."""

Out = Annotated[Optional[Path], typer.Option("--out", help="Run folder (default runs/NAME-sSEED).")]  # noqa: UP045
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]
Seeds = Annotated[str, typer.Option("--seeds", help="Seeds to run, such as 0-4 or 0,3,7 (default: the config's).")]
Words = Annotated[Optional[list[str]], typer.Argument(help="CONFIG (a file or a bundled name) and KEY=VALUE ...")]  # noqa: UP045


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    try:
        status = app(args=list(arguments) if arguments is not None else None, standalone_mode=False)
        return int(status or 0)
    except FneError as error:
        print(f"fne: {error}", file=sys.stderr)
        return 2
    except typer.Exit as leave:
        return int(leave.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        print("fne: interrupted; the last checkpoint stays: fne train --resume FOLDER", file=sys.stderr)
        return 130
    except Exception as error:
        show = getattr(error, "show", None)  # click's usage errors
        if show is None:
            raise
        show()
        return int(getattr(error, "exit_code", 2))


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Show the version and leave.")] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit


@app.command()
def train(
    words: Words = None,
    out: Out = None,
    resume: Annotated[Optional[Path], typer.Option(help="Go on with the run in this folder.")] = None,  # noqa: UP045
    stop_after: Annotated[
        Optional[int], typer.Option(min=1, help="End after this step; the horizon stays.")  # noqa: UP045
    ] = None,
    seeds: Seeds = "",
    quiet: Quiet = False,
) -> None:
    """Run a config: fne train CONFIG [strategy.population=64 ...]."""
    configs, overrides = _configs_and_overrides(words or [])
    if len(configs) > 1:
        raise FneError(f"train takes one config, not {len(configs)}; fne compare runs several")
    if seeds and (resume or (out and len(_seeds(seeds)) > 1)):
        raise FneError("--seeds goes with neither --resume nor --out (each seed has a folder of its own)")
    if not (configs or resume):
        raise FneError("train: give a config (a file or a bundled name: fne list), or --resume FOLDER")
    from fne.config import load_config

    wanted = [load_config(configs[0], o) for o in _for_seeds(seeds, overrides)] if configs else []
    from fne.training import train as run  # torch: after all that a config can get wrong

    if resume is not None:
        source = wanted[0] if wanted else None
        done = [run(source, [] if wanted else overrides, resume=resume, stop_after=stop_after, quiet=quiet)]
    else:
        done = []
        for config in wanted:
            done.append(run(config, out=out, stop_after=stop_after, quiet=quiet))
            if done[-1].get("interrupted"):  # Ctrl-C ends the command, not one of its runs
                break
    _show(done)


@app.command()
def compare(
    words: Words = None,
    out: Annotated[Optional[Path], typer.Option("--out", help="Folder for the run folders (default runs).")] = None,  # noqa: UP045
    seeds: Seeds = "",
    quiet: Quiet = False,
) -> None:
    """Run several configs on one partition and print one table; without arguments, the quick comparison."""
    configs, overrides = _configs_and_overrides(words or [])
    from fne.config import difference, load_config

    names = configs or list(QUICK)
    rounds = [[load_config(name, o) for name in names] for o in _for_seeds(seeds, overrides)]
    apart = [d for other in rounds[0][1:] for d in difference(rounds[0][0], other) if d.startswith(("data.", "seed:"))]
    if apart:
        raise FneError(
            f"compare: the configs do not share one partition ({'; '.join(apart)}); "
            f"set it for all of them, such as: fne compare {' '.join(names)} {_as_override(apart[0])}"
        )
    from fne.training import train as run

    done = []
    for config in [config for together in rounds for config in together]:
        folder = out / f"{config.name}-s{config.seed}" if out is not None else None
        done.append(run(config, out=folder, quiet=quiet))
        if not done[-1]["finished"]:
            break
    _show(done)


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders.")],
    curves: Annotated[Optional[Path], typer.Option(help="Write the runs' curves to this PNG.")] = None,  # noqa: UP045
    x: Annotated[Literal["step", "bytes", "evaluations"], typer.Option(help="The curves' horizontal axis.")] = "step",
    markdown: Annotated[bool, typer.Option(help="Print the table as Markdown.")] = False,
) -> None:
    """Print one table of finished runs; several seeds of one config become mean ± standard deviation."""
    from fne.watch import report as reports

    summaries = reports.grouped([reports.read_summary(folder) for folder in folders])
    if markdown:
        print(reports.markdown_table(summaries))
    else:
        _console().print(reports.comparison_table(summaries))
    if curves is not None:
        reports.curves(folders, curves, x=x)


@app.command("list")
def list_() -> None:
    """List the bundled configs and everything registered."""
    from fne.config import list_bundled

    console = _console()
    console.print("[bold]configs[/bold] (fne train NAME)\n  " + ", ".join(list_bundled()))
    for kind in registry.KINDS:
        entries = registry.catalogue(kind)
        table = Table(box=None, show_header=False, padding=(0, 2), title=kind, title_justify="left")
        for name, entry in entries.items():
            table.add_row(f"  {name}", escape(entry.summary))
        console.print(table)


@app.command()
def show(
    kind: Annotated[str, typer.Argument(help=", ".join((*registry.KINDS, "config")))],
    name: Annotated[str, typer.Argument(help="A name from `fne list`.")],
    plugin: Annotated[Optional[list[Path]], typer.Option(help="A plugin to read first.")] = None,  # noqa: UP045
) -> None:
    """Describe one thing: its settings with defaults, units and ranges, and where it comes from."""
    for path in plugin or []:
        registry.add_plugin(path)
    if kind == "config":
        from fne.config import load_config

        print(load_config(name).to_yaml(), end="")
        return
    from fne.settings import allowed

    if kind not in registry.KINDS:
        raise FneError(f"show: no kind {kind!r}; kinds are {', '.join((*registry.KINDS, 'config'))}")
    entry = registry.entry(kind, name)
    console = _console()
    console.print(f"[bold]{kind} {name}[/bold]  ({entry.module})\n\n{escape(entry.doc.strip())}\n")
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("setting", "default", "unit", "allowed", "what it is"):
        table.add_column(column, overflow="fold")
    for key, (annotation, default) in entry.settings.items():
        note = next(iter(getattr(annotation, "__metadata__", ())), None)  # a plugin may leave out Key(...)
        unit = (getattr(note, "json_schema_extra", None) or {}).get("unit", "")
        shown = "required" if default is ... else str(default)
        what = getattr(note, "description", None) or ""
        table.add_row(key, escape(shown), escape(unit), escape(allowed(annotation)), escape(what))
    console.print(table if entry.settings else "no settings")


@data_app.command("show")
def data_show(
    words: Words = None,
    out: Annotated[Path, typer.Option("--out", help="Where the picture goes.")] = Path("data.png"),
) -> None:
    """Print and plot the samples of each node and class: fne data show CONFIG [data.nodes=20 ...]."""
    configs, overrides = _configs_and_overrides(words or [])
    if len(configs) != 1:
        raise FneError("data show: give one config (a file or a bundled name: fne list)")
    from fne.config import load_config

    config = load_config(configs[0], overrides)
    from fne.data.partition import describe
    from fne.experiment import deal_nodes, load_dataset
    from fne.watch.report import partition_picture, partition_table

    dataset = load_dataset(config)
    parts = deal_nodes(config, dataset)
    names, counts = describe(parts, dataset.classes)
    classes = list(dataset.classes or ("samples",))
    console = _console()
    console.print(
        f"{escape(dataset.name)}: {escape(dataset.split)}\n{escape(dataset.source)}\n"
        f"input shape {dataset.shape}, {dataset.outputs} outputs; training {len(dataset.train)}, "
        f"validation (the server's) {len(dataset.validation)}, test {len(dataset.test)}"
    )
    console.print(partition_table(counts.tolist(), names, classes))
    partition_picture(counts.tolist(), names, classes, out)
    print(f"picture: {out}")


# ------------------------------------------------------------------------------------------------ helpers
def _configs_and_overrides(words: Sequence[str]) -> tuple[list[str], list[str]]:
    return [w for w in words if "=" not in w], [w for w in words if "=" in w]


def _seeds(text: str) -> list[int]:
    try:
        seeds: list[int] = []
        for part in text.split(","):
            first, _, last = part.partition("-")
            seeds += range(int(first), int(last or first) + 1)
    except ValueError:
        raise FneError(f"--seeds {text!r}: write numbers such as 0-4 or 0,3,7") from None
    if not seeds:
        raise FneError(f"--seeds {text!r}: no seed in it; write the smaller one first, such as 0-4")
    return seeds


def _for_seeds(text: str, overrides: list[str]) -> list[list[str]]:
    return [[*overrides, f"seed={seed}"] for seed in _seeds(text)] if text else [overrides]


def _as_override(difference: str) -> str:
    key, _, values = difference.partition(": ")
    return f"{key}={values.partition(' -> ')[0]}"


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=180)


def _show(done: Sequence[dict[str, Any]]) -> None:
    """Print the table of finished runs, their folders, and how to go on."""
    from fne.watch import report as reports

    finished = [summary for summary in done if summary["finished"]]
    if finished:
        _console().print(reports.comparison_table(reports.grouped(finished)))
    for summary in done:
        state = "" if summary["finished"] else f"  stopped after step {summary['steps']}"
        print(f"run folder: {summary['folder']}{state}")
    for summary in done:
        if not summary["finished"]:
            print(f"go on with: fne train --resume {summary['folder']}")
    parents = sorted({str(Path(summary["folder"]).parent) for summary in done})
    print(f"curves:     tensorboard --logdir {parents[0]}")
    if any(summary.get("interrupted") for summary in done):
        raise typer.Exit(130)


if __name__ == "__main__":
    sys.exit(main())
