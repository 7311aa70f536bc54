"""The commands of `fne data`: fetch data, show them, and check a config's data before training.

`--help` imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer
from rich.markup import escape

from fne.cli.arguments import configs_and_overrides, loader_settings
from fne.config import registry
from fne.core.errors import FneError
from fne.watch.terminal import Screen

if TYPE_CHECKING:
    from fne.config.load import LearningConfig
    from fne.core.dataset import Dataset

data_app = typer.Typer(no_args_is_help=True, help="Fetch data, and look at them before training.")

Words = Annotated[Optional[list[str]], typer.Argument(help="CONFIG (a file or a bundled name) and KEY=VALUE ...")]  # noqa: UP045

Picture = Annotated[Optional[Path], typer.Option("--out", help="Draw the samples to this PNG.")]  # noqa: UP045


@data_app.command("show")
def data_show(
    words: Words = None,
    out: Picture = None,
) -> None:
    """Print the samples of each node and class: fne data show CONFIG [data.nodes=20 ...]."""
    config = _config("show", words)
    from fne.data.partition import describe
    from fne.run.learning_run import deal_nodes, load_dataset
    from fne.watch.plots import partition_picture
    from fne.watch.tables import partition_table

    dataset = load_dataset(config)
    parts = deal_nodes(config, dataset)
    names, counts = describe(parts, dataset.classes)
    classes = list(dataset.classes or ("samples",))
    screen = console()
    screen.print(escape(_described(dataset)))
    screen.print(partition_table(counts.tolist(), names, classes))
    if out is not None:
        partition_picture(counts.tolist(), names, classes, out)
        print(f"picture: {out}")


@data_app.command("fetch")
def data_fetch(
    name: Annotated[str, typer.Argument(help="A data set that has files: fne list.")],
    words: Annotated[Optional[list[str]], typer.Argument(help="KEY=VALUE ..., settings of the data set")] = None,  # noqa: UP045
    plugin: Annotated[Optional[list[Path]], typer.Option(help="A plugin to read first.")] = None,  # noqa: UP045
) -> None:
    """Fetch a data set's missing files into the cache folder: fne data fetch mnist edition=full."""
    for path in plugin or []:
        registry.add_plugin(path)
    if "download" not in registry.entry("data", name).settings:
        able = [other for other, entry in registry.catalogue("data").items() if "download" in entry.settings]
        raise FneError(f"data fetch: {name} has no setting 'download'; these data sets have: {', '.join(able)}")
    settings = loader_settings(name, ["download=true", *(words or [])])
    from fne.data.sources import cache_folder, check_dataset

    def files() -> set[Path]:
        return {path for path in cache_folder().rglob("*") if path.is_file() and not path.name.startswith("parsed-")}

    before = files()
    dataset = check_dataset(registry.load("data", name)(seed=0, **settings))
    print(_described(dataset))
    print(f"fetched into {cache_folder()}" if files() - before else "nothing fetched: the files were there already")


@data_app.command("check")
def data_check(
    words: Words = None,
    out: Picture = None,
    json_: Annotated[bool, typer.Option("--json", help="Print a verdict of each file as JSON, nothing else.")] = False,
) -> None:
    """Read everything and print what is wrong, file by file: fne data check CONFIG; exit status 1 with problems."""
    config = _config("check", words)
    pass
    from fne.cli.data_check import check
    from fne.watch.tables import files_table

    checked = check(config, out)
    if json_:
        print(json.dumps(checked.as_json(), indent=1))
    else:
        screen = console()
        if checked.files:
            screen.print(files_table(checked.files))
        for line in checked.lines():
            screen.print(escape(line), soft_wrap=True)
        if checked.dataset is not None:
            screen.print(escape(_described(checked.dataset)))
        if out is not None:
            print(f"picture: {out}" if checked.dataset is not None else "no picture: there are no samples")
        print(f"problems: {checked.problems}" if checked.problems else "no problems")
    if checked.problems:
        raise typer.Exit(1)


# ------------------------------------------------------------------------------------------------ helpers
def _config(command: str, words: Sequence[str] | None) -> LearningConfig:
    configs, overrides = configs_and_overrides(words or [])
    if len(configs) != 1:
        raise FneError(f"data {command}: give one config (a file or a bundled name: fne list)")
    from fne.config.load import LearningConfig, load_config

    config = load_config(configs[0], overrides)
    if not isinstance(config, LearningConfig):
        raise FneError(f"data {command}: {configs[0]} searches a problem: it has no data; give a config with data")
    return config


def console() -> Screen:
    """Return the terminal, or a screen of 180 columns where the output is no terminal."""
    found = Screen()
    return found if found.is_terminal else Screen(width=180)


def _described(dataset: Dataset) -> str:
    """Return a data set's split, source and sizes, in samples and in subjects."""
    from fne.watch.tables import split_of

    fold, folds = dataset.fold or (None, None)
    parts = {"training": dataset.train, "validation (the server's)": dataset.validation, "test": dataset.test}
    lines = [
        f"{dataset.name}: {split_of({'split': dataset.split, 'fold': fold, 'folds': folds})}",
        dataset.source,
        f"input shape {dataset.shape}, {dataset.outputs} outputs; "
        + ", ".join(f"{title} {len(part)}" for title, part in parts.items()),
    ]
    if dataset.train.groups is not None:
        counts = {t: len(set(part.groups.tolist())) for t, part in parts.items() if part.groups is not None}
        lines.append(f"{dataset.group_kind}s: " + ", ".join(f"{title} {count}" for title, count in counts.items()))
    return "\n".join(lines)
