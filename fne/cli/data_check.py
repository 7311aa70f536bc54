"""A config's data, read and looked at before anybody trains on them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
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
    """What a check found.

    Args:
        files: what is known of each file.
        findings: about all samples together.
        dataset: what was loaded, `None` where that failed.
        error: why, or nothing.
    """

    files: tuple[FileReport, ...]
    findings: tuple[Finding, ...]
    dataset: Dataset | None
    error: str = ""

    @property
    def problems(self) -> int:
        """Files that are refused, findings that are problems, and the error that ends it all."""
        refused = sum(report.verdict == "refused" for report in self.files)
        return refused + sum(f.action == "problem" for f in self.findings) + bool(self.error)

    def lines(self) -> Iterator[str]:
        """Yield what was found, a line each; what was found in several files once, with the first and their number."""
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
        """Return everything as plain values, a verdict a file."""
        return {
            "problems": self.problems,
            "files": [report.as_json() for report in self.files],
            "findings": [asdict(finding) for finding in self.findings],
            "error": self.error,
        }


def check(config: LearningConfig, picture: Path | None) -> Checked:
    """Load a config's data and deal them to its nodes.

    Args:
        config: whose data they are.
        picture: where to draw what came out; `None`: nowhere.

    Raises:
        DataError: nothing is known of any file, such as when there are none.
    """
    if "bad_files" in config.data.settings:  # bad ones are told, the others are looked at
        config = config.with_values({"data.bad_files": "skip"})
    with ignored(DataWarning):  # all that they say is among the findings
        try:
            dataset = load_dataset(config)
            nodes = deal_nodes(config, dataset)
        except DataError as error:
            if not error.files:
                raise
            return Checked(error.files, error.findings, None, "" if isinstance(error, FilesError) else str(error))
    if picture is not None:
        _draw(dataset, nodes, picture)
    # A data set that looks at its files has looked at the split, too, before it changed any value.
    findings = dataset.findings if dataset.files else (*dataset.findings, *_of_split(dataset))
    return Checked(dataset.files, findings, dataset)


def _draw(dataset: Dataset, nodes: Mapping[str, Samples], picture: Path) -> None:
    """Draw the samples of each node and class, and of recordings the average of each class."""
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
    for x, y in zip(dataset.train.x, dataset.train.y.tolist(), strict=True):  # one by one: there may be a lot of them
        sums[dataset.classes[y]] += x
    counts = torch.bincount(dataset.train.y, minlength=len(sums)).tolist()
    return {name: (total / n).tolist() for (name, total), n in zip(sums.items(), counts, strict=True) if n}


def _of_split(dataset: Dataset) -> Iterator[Finding]:
    """Yield what training and test share, in whatever data set: subjects, and samples that are equal."""
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
