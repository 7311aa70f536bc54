"""The `fne` command. A user's mistake prints its text, exit status 2; `--help`, `list` and `show` import no torch."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import typer
from rich.markup import escape
from rich.table import Table

from fne import __version__
from fne.cli.arguments import as_override, check_folds, configs_and_overrides, each_run
from fne.cli.data import Words, console, data_app
from fne.config import registry
from fne.core.errors import FneError, FneWarning, did_you_mean
from fne.watch import terminal

app = typer.Typer(
    add_completion=False, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False,
    help="Federated neuroevolution: train models over data that stays with its owners, without gradients.",
)  # fmt: skip
app.add_typer(data_app, name="data")

QUICK = ("fne_quick", "fedavg_quick")
"""Configs that `fne compare` runs without arguments: the quick comparison of the README."""

Out = Annotated[Optional[Path], typer.Option("--out", help="Run folder (default runs/NAME-sSEED[-fFOLD]).")]  # noqa: UP045
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]
Seeds = Annotated[str, typer.Option("--seeds", help="Seeds to run, such as 0-4 or 0,3,7 (default: the config's).")]
Folds = Annotated[str, typer.Option("--folds", help="Folds to run, such as 0-4 (sets data.fold), each with each seed.")]
Bytes = Annotated[bool, typer.Option("--bytes/--no-bytes", help="Print a second table: bytes a node over the run.")]


_INTERRUPTED, _UNREAD = 130, 141


class _ToldError(Exception):
    """Ctrl-C has ended a run after its step, and the command has printed how to resume it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    streams = sys.stdout, sys.stderr
    with terminal.any_encoding():
        try:
            status = _main(arguments)
            sys.stdout.flush()  # here, where a full disk can still be reported
            return status
        except (BrokenPipeError, SystemExit):  # typer turns the first into the second
            sys.stdout, sys.stderr = streams  # typer replaces them
            terminal.silence()
            return _UNREAD
        except OSError as error:
            if not terminal.is_full(error):
                raise
            terminal.silence()
            print(f"fne: cannot write the output: {error.strerror}; make room or send it elsewhere", file=sys.stderr)
            return 2


def _main(arguments: Sequence[str] | None) -> int:
    try:
        with _warnings_in_a_line():
            status = int(app(args=list(arguments) if arguments is not None else None, standalone_mode=False) or 0)
        if status == _INTERRUPTED:  # typer's status after Ctrl-C
            raise KeyboardInterrupt
        return status
    except _ToldError:
        return _INTERRUPTED
    except FneError as error:
        print(f"fne: {error}", file=sys.stderr)
        return 2
    except typer.Exit as leave:
        return int(leave.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        print("fne: interrupted; the last checkpoint stays: fne train --resume FOLDER", file=sys.stderr)
        return _INTERRUPTED
    except Exception as error:
        show = getattr(error, "show", None)  # click's usage errors
        if show is None:
            raise
        show()
        return int(getattr(error, "exit_code", 2))


@contextlib.contextmanager
def _warnings_in_a_line() -> Iterator[None]:
    """Print each text of a `FneWarning` once, without the place in the source; other warnings stay as they are."""
    said: set[str] = set()
    others = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        text = " ".join(str(message).split())
        if not issubclass(category, FneWarning):
            others(message, category, *place, **more)
        elif text not in said:
            said.add(text)
            print(f"fne: warning: {text}", file=sys.stderr)

    with warnings.catch_warnings():  # restores `showwarning`
        warnings.simplefilter("always", FneWarning)  # not once per process, since a process may run several commands
        warnings.showwarning = show
        yield


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
    folds: Folds = "",
    bytes_: Bytes = True,
    quiet: Quiet = False,
    trust: Annotated[bool, typer.Option("--trust", help="Run the code that a resumed folder names.")] = False,
    new_history: Annotated[
        bool, typer.Option("--new-history", help="Resume beside a damaged history, which is kept aside.")
    ] = False,
) -> None:
    """Run a config: fne train CONFIG [strategy.population=64 ...]."""
    configs, overrides = configs_and_overrides(words or [])
    if len(configs) > 1:
        raise FneError(f"train takes one config, not {len(configs)}; fne compare runs several")
    each = each_run(seeds, folds, overrides)
    if (seeds or folds) and (resume or (out and len(each) > 1)):
        raise FneError("--seeds and --folds go with neither --resume nor --out (each run has a folder of its own)")
    if not (configs or resume):
        raise FneError("train: give a config (a file or a bundled name: fne list), or --resume FOLDER")
    from fne.config.load import load_config

    wanted = [load_config(configs[0], o) for o in each] if configs else []
    if folds:
        check_folds(wanted)
    from fne.run.train import train as run  # imports torch, so only after the config is checked

    if resume is not None:
        source = wanted[0] if wanted else None
        given = [] if wanted else overrides
        done = [
            run(
                source, given, resume=resume, stop_after=stop_after, quiet=quiet, trust=trust, new_history=new_history
            )
        ]  # fmt: skip
    else:
        done = []
        for config in wanted:
            done.append(run(config, out=out, stop_after=stop_after, quiet=quiet))
            if done[-1].get("interrupted"):  # Ctrl-C ends the command, not only one of its runs
                break
    _show(done, bytes_)


@app.command()
def compare(
    words: Words = None,
    out: Annotated[Optional[Path], typer.Option("--out", help="Folder for the run folders (default runs).")] = None,  # noqa: UP045
    seeds: Seeds = "",
    folds: Folds = "",
    bytes_: Bytes = True,
    quiet: Quiet = False,
) -> None:
    """Run several configs on one partition and print one table; without arguments, the quick comparison."""
    configs, overrides = configs_and_overrides(words or [])
    from fne.config.load import difference, load_config

    names = configs or list(QUICK)
    rounds = [[load_config(name, o) for name in names] for o in each_run(seeds, folds, overrides)]
    shared = ("data.", "problem.", "seed:")
    apart = [d for other in rounds[0][1:] for d in difference(rounds[0][0], other) if d.startswith(shared)]
    if apart:
        raise FneError(
            f"compare: the configs do not share one partition ({'; '.join(apart)}); "
            f"set it for all of them, such as: fne compare {' '.join(names)} {as_override(apart[0])}"
        )
    wanted = [config for together in rounds for config in together]
    if folds:
        check_folds(wanted)
    from fne.run.folder import folder_name
    from fne.run.train import train as run

    done = []
    for config in wanted:
        done.append(run(config, out=out / folder_name(config) if out is not None else None, quiet=quiet))
        if not done[-1]["finished"]:
            break
    _show(done, bytes_)


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders.")],
    curves: Annotated[Optional[Path], typer.Option(help="Write the runs' curves to this PNG.")] = None,  # noqa: UP045
    x: Annotated[Literal["step", "bytes", "evaluations"], typer.Option(help="The curves' horizontal axis.")] = "step",
    bytes_: Bytes = True,
    markdown: Annotated[bool, typer.Option(help="Print as Markdown.")] = False,
) -> None:
    """Print one table of finished runs; seeds and folds of one config become mean and standard deviation."""
    from fne.watch import plots as pictures
    from fne.watch import tables as reports
    from fne.watch.tables import privacy_lines

    summaries = reports.grouped([reports.read_summary(folder) for folder in folders])
    if markdown:
        print(reports.markdown_table(summaries))
        if bytes_ and reports.federated(summaries):
            print(reports.markdown_bytes(summaries))
        for line in privacy_lines(summaries):
            text = line.lstrip()
            print(f"{line[: len(line) - len(text)]}- {text}")
    else:
        _tables(summaries, bytes_)
    if curves is not None:
        pictures.curves(folders, curves, x=x)


@app.command("list")
def list_() -> None:
    """List the bundled configs and everything registered."""
    from fne.config.load import list_bundled

    screen = console()
    screen.print("[bold]configs[/bold] (fne train NAME)\n  " + ", ".join(list_bundled()))
    for kind in registry.KINDS:
        entries = registry.catalogue(kind)
        table = Table(box=None, show_header=False, padding=(0, 2), title=kind, title_justify="left")
        for name, entry in entries.items():
            table.add_row(f"  {name}", escape(entry.summary))
        screen.print(table)


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
        from fne.config.load import load_config

        print(load_config(name).to_yaml(), end="")
        return
    from fne.config.settings import allowed
    from fne.config.traits import TRAITS

    if kind not in registry.KINDS:
        kinds = (*registry.KINDS, "config")
        raise FneError(f"show: no kind {kind!r}{did_you_mean(kind, kinds)}; kinds are {', '.join(kinds)}")
    entry = registry.entry(kind, name)
    screen = console()
    screen.print(f"[bold]{kind} {name}[/bold]  ({entry.module})\n\n{escape(entry.doc.strip())}\n")
    if entry.traits:
        traits = Table(box=None, padding=(0, 2, 0, 0))
        for column in ("trait", "value", "what it means"):
            traits.add_column(column, overflow="fold")
        for key, value in entry.traits.items():
            declared = TRAITS.get(kind, {}).get(key)
            traits.add_row(key, escape(value), declared.meaning if declared else "")
        screen.print(traits)
        screen.print()
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("setting", "default", "unit", "allowed", "what it is"):
        table.add_column(column, overflow="fold")
    for key, (annotation, default) in entry.settings.items():
        note = next(iter(getattr(annotation, "__metadata__", ())), None)  # a plugin may leave out Key(...)
        unit = (getattr(note, "json_schema_extra", None) or {}).get("unit", "")
        shown = "required" if default is ... else str(default)
        what = getattr(note, "description", None) or ""
        table.add_row(key, escape(shown), escape(unit), escape(allowed(annotation)), escape(what))
    screen.print(table if entry.settings else "no settings")


# ------------------------------------------------------------------------------------------------ helpers
def _tables(summaries: Sequence[dict[str, Any]], bytes_: bool) -> None:
    """Print the table of runs or groups, and below it, if wanted, the table of the federated runs' bytes."""
    from fne.watch import tables as reports
    from fne.watch.tables import privacy_lines

    screen = console()
    screen.print(reports.comparison_table(summaries))
    if bytes_ and reports.federated(summaries):
        screen.print()
        screen.print(reports.bytes_table(summaries))
    for line in privacy_lines(summaries):
        print(line)


def _show(done: Sequence[dict[str, Any]], bytes_: bool) -> None:
    """Print the tables of finished runs, their folders, and how to resume unfinished ones."""
    from fne.watch.attendance import failure_lines
    from fne.watch.tables import grouped

    finished = [summary for summary in done if summary["finished"]]
    if finished:
        _tables(grouped(finished), bytes_)
    for summary in finished:
        for line in failure_lines(summary.get("failures") or {}):
            print(f"{summary['folder']}: {line}")
    for summary in done:
        state = "" if summary["finished"] else f"  stopped after step {summary['steps']}"
        print(f"run folder: {summary['folder']}{state}")
    for summary in done:
        if not summary["finished"]:
            print(f"go on with: fne train --resume {summary['folder']}")
    parents = sorted({str(Path(summary["folder"]).parent) for summary in done})
    print(f"curves:     tensorboard --logdir {parents[0]}")
    if any(summary.get("interrupted") for summary in done):
        raise _ToldError


if __name__ == "__main__":
    sys.exit(main())
