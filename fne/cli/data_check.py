"""Checks of a config's data before anybody trains on them: files, partition, and what a window looks like."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

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
