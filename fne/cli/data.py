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

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from fne.config.load import LearningConfig
from fne.core.dataset import Dataset, FileReport, FilesError, Finding, Samples
from fne.core.errors import DataError, DataWarning
from fne.core.quiet import ignored
from fne.data.partition import describe
from fne.run.learning_run import deal_nodes, load_dataset
from fne.watch.plots import data_picture

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


@dataclass(frozen=True)
class Checked:
    """Result of a check.

    Args:
        files: report on each file.
        findings: findings about all samples together.
        dataset: the loaded data set, `None` where loading failed.
        error: why loading failed; empty where it did not.
    """

    files: tuple[FileReport, ...]
    findings: tuple[Finding, ...]
    dataset: Dataset | None
    error: str = ""

    @property
    def problems(self) -> int:
        """Number of refused files, findings that are problems, and the error that ended the check, if any."""
        refused = sum(report.verdict == "refused" for report in self.files)
        return refused + sum(f.action == "problem" for f in self.findings) + bool(self.error)

    def lines(self) -> Iterator[str]:
        """Yield a line for each finding; a finding in several files has one line, with the first file and a number."""
        files: dict[Finding, list[str]] = {}
        for report in self.files:
            for finding in report.findings:
                files.setdefault(finding, []).append(report.file)
        for finding, names in files.items():
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            yield f"{names[0]}{more}: {finding.action}: {finding}"
        for finding in self.findings:
            yield f"all samples: {finding.action}: {finding}"
        if self.error:
            yield self.error

    def as_json(self) -> dict[str, Any]:
        """Return the result as plain values, with a verdict for each file."""
        return {
            "problems": self.problems,
            "files": [report.as_json() for report in self.files],
            "findings": [asdict(finding) for finding in self.findings],
            "error": self.error,
        }


def check(config: LearningConfig, picture: Path | None) -> Checked:
    """Load a config's data and deal them to its nodes.

    Args:
        config: config whose data to check.
        picture: file for a picture of the samples; `None`: no picture.

    Raises:
        DataError: loading failed without a report on any file, such as where no file exists.
    """
    if "bad_files" in config.data.settings:  # bad files are reported, and the others are read
        config = config.with_values({"data.bad_files": "skip"})
    with ignored(DataWarning):  # the findings repeat all warnings
        try:
            dataset = load_dataset(config)
            nodes = deal_nodes(config, dataset)
        except DataError as error:
            if not error.files:
                raise
            return Checked(error.files, error.findings, None, "" if isinstance(error, FilesError) else str(error))
    if picture is not None:
        _draw(dataset, nodes, picture)
    # A data set with file reports has already checked the split, before it changed any value.
    findings = dataset.findings if dataset.files else (*dataset.findings, *_of_split(dataset))
    return Checked(dataset.files, findings, dataset)


def _draw(dataset: Dataset, nodes: Mapping[str, Samples], picture: Path) -> None:
    """Draw the samples of each node and class, and for recordings the average of each class."""
    names, counts = describe(nodes, dataset.classes)
    classes = list(dataset.classes or ("samples",))
    times = [dataset.start + n / (dataset.rate or 1) for n in range(dataset.shape[-1])]
    unit = "seconds" if dataset.rate else "samples"
    data_picture(counts.tolist(), names, classes, _averages(dataset), (times, unit), picture)


def _averages(dataset: Dataset) -> dict[str, list[list[float]]]:
    """Return the mean training recording of each class, `[channels][times]`, where the data are recordings."""
    if dataset.classes is None or len(dataset.shape) != 2:
        return {}
    sums = {name: torch.zeros(dataset.shape, dtype=torch.float64) for name in dataset.classes}
    for x, y in zip(
        dataset.train.x, dataset.train.y.tolist(), strict=True
    ):  # one by one, since all at once may not fit in memory
        sums[dataset.classes[y]] += x
    counts = torch.bincount(dataset.train.y, minlength=len(sums)).tolist()
    return {name: (total / n).tolist() for (name, total), n in zip(sums.items(), counts, strict=True) if n}


def _of_split(dataset: Dataset) -> Iterator[Finding]:
    """Yield a finding for subjects and equal samples that the parts of a data set share."""
    parts = {"training": dataset.train, "validation": dataset.validation, "test": dataset.test}
    known = {name: _digests(part) for name, part in parts.items()}
    for a, b in (("training", "validation"), ("training", "test"), ("validation", "test")):
        shared = len(known[a] & known[b])
        if shared:
            yield Finding(
                "repeated",
                f"{shared} samples of the {b} part are byte for byte in the {a} part, too",
                "no sample in two parts",
                "Leave repeated files out",
                "problem",
            )
    if dataset.train.groups is not None and dataset.test.groups is not None:
        both = set(dataset.train.groups.tolist()) & set(dataset.test.groups.tolist())
        if both:
            yield Finding(
                "subjects on both sides",
                f"{len(both)} subjects are in training and test, such as {dataset.group_name(min(both))}",
                "other subjects in the test part, for a claim about new people",
                "Set data: {split: subject} where the data set has it",
                "noted",
            )


def _digests(part: Samples) -> set[bytes]:
    return {hashlib.blake2b(torch.as_tensor(x).numpy().tobytes(), digest_size=16).digest() for x in part.x}
