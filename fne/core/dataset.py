"""Data sets in the toolkit's form: samples in three disjoint parts, and findings about the files of origin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from fne.core.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Samples:
    """Inputs `x` float32 `[N, *shape]`, targets `y` (int64 labels `[N]` or float32 `[N, outputs]`).

    `groups` int64 `[N]` is each sample's subject (or `None`), an index into `Dataset.group_names`. A loader may return
    other types: `fne.data.sources.check_dataset` brings them into this form or refuses them.
    """

    x: Tensor
    y: Tensor
    groups: Tensor | None = None

    def __len__(self) -> int:
        return int(self.x.shape[0])

    def take(self, index: Tensor) -> Samples:
        """Return the samples at `index` (int64): a view for consecutive indices, else a copy."""
        neighbours = len(index) > 0 and bool((index.diff() == 1).all())
        where = slice(int(index[0]), int(index[-1]) + 1) if neighbours else index
        return Samples(self.x[where], self.y[where], None if self.groups is None else self.groups[where])


@dataclass(frozen=True)
class Dataset:
    """Disjoint training (the nodes'), validation (the server's own) and test parts.

    Args:
        name: registered name.
        train, validation, test: the three parts; only the command looks at `test`, once, at the end.
        classes: class names, or `None` for regression.
        split: how the parts were made, printed beside every figure.
        source: where the data came from, with licence if known.
        group_names: names of the subjects that `Samples.groups` refers to.
        group_kind: what the groups are, if not subjects.
        fold: `(i, k)` where the split is fold `i` of `k` (from 0), so that reports can put the folds together.
        files: what is known about each file, where a data set inspects its files one by one.
        findings: findings about the samples together, such as a subject on both sides of the split.
        rate, start: sampling rate of recordings, in Hz, and their begin after the event, in seconds; 0 where unknown.
    """

    name: str
    train: Samples
    validation: Samples
    test: Samples
    classes: tuple[str, ...] | None
    split: str
    source: str
    group_names: tuple[str, ...] = ()
    group_kind: str = "subject"
    fold: tuple[int, int] | None = None
    files: tuple[FileReport, ...] = ()
    findings: tuple[Finding, ...] = ()
    rate: float = 0.0
    start: float = 0.0

    def group_name(self, number: int) -> str:
        """Return the name of subject `number`, or a name made of the number where the subject has none."""
        known = 0 <= number < len(self.group_names)
        return self.group_names[number] if known else f"subject-{number:03d}"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.train.x.shape[1:])

    @property
    def outputs(self) -> int:
        """Number of model outputs: classes, or target dimensions."""
        return len(self.classes) if self.classes is not None else int(self.train.y.shape[1])


Action = Literal["noted", "repaired", "problem", "refused"]

Verdict = Literal["ok", "repaired", "refused"]


@dataclass(frozen=True)
class Finding:
    """One thing about a file that its owner should know.

    Args:
        kind: a short name of the finding, such as `scale`, `flat`, `events`.
        found: what was found, with the channel or event and the value.
        expected: what is expected instead.
        remedy: what to do, where possible as a line of the config.
        action: what was done: the finding was only `noted`, the file was `repaired` or `refused`; for samples together
            also `problem`, which the user should solve.
    """

    kind: str
    found: str
    expected: str
    remedy: str
    action: Action

    def __str__(self) -> str:
        return f"{self.found}; expected: {self.expected}. {self.remedy}"


class FileError(Exception):
    """Raised where a file cannot be used; holds the finding with the reason."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


@dataclass(frozen=True)
class FileReport:
    """What is known about one file of a data set.

    Args:
        file: path of the file below the data set's folder.
        subject: the subject whose recording the file is.
        channels: number of channels of all types; 0 where the file could not be read.
        rate: sampling rate of the file, in Hz.
        seconds: length of the recording.
        events: number of windows of each class in the file.
        findings: the findings, in the order in which they were made.
    """

    file: str
    subject: str = ""
    channels: int = 0
    rate: float = 0.0
    seconds: float = 0.0
    events: Mapping[str, int] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """`refused` or `repaired` if any finding had that result, else `ok`."""
        actions = {finding.action for finding in self.findings}
        return "refused" if "refused" in actions else "repaired" if "repaired" in actions else "ok"

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain values, with the verdict, its reason and the remedy."""
        decisive = [finding for finding in self.findings if finding.action == self.verdict]
        reason, remedy = (decisive[0].found, decisive[0].remedy) if decisive else ("", "")
        return {**asdict(self), "verdict": self.verdict, "reason": reason, "remedy": remedy}


class FilesError(DataError):
    """All files that cannot be used, each with its reason and remedy.

    Args:
        name: name of the data set.
        files: the reports of all files, good ones included.
        advice: what the user can do about all of them.
    """

    def __init__(self, name: str, files: Sequence[FileReport], advice: str) -> None:
        refused = [(r, f) for r in files for f in r.findings if r.verdict == f.action == "refused"]
        lines = [f"  {report.file}: {finding}" for report, finding in refused]
        count = sum(report.verdict == "refused" for report in files)
        super().__init__("\n".join([f"{name}: {count} of {len(files)} files cannot be used:", *lines, advice]))
        self.files = tuple(files)
