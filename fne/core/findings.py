"""What was found in a data file: each finding says what, what was expected, and the remedy as a line of the config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from fne.core.errors import DataError

Action = Literal["noted", "repaired", "problem", "refused"]
Verdict = Literal["ok", "repaired", "refused"]


@dataclass(frozen=True)
class Finding:
    """One thing about a file that its owner should know.

    Args:
        kind: a short name of it, such as `scale`, `flat`, `events`.
        found: what was found, with the channel or event and the value.
        expected: what is expected instead.
        remedy: what to do, where possible as a line of the config.
        action: what was done about it: `noted` only, `repaired`, or the file `refused`; of samples together also
            `problem`, which the user should solve.
    """

    kind: str
    found: str
    expected: str
    remedy: str
    action: Action

    def __str__(self) -> str:
        return f"{self.found}; expected: {self.expected}. {self.remedy}"


class FileError(Exception):
    """Raised where a file cannot be used; holds the finding that says why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


@dataclass(frozen=True)
class FileReport:
    """What is known about one file of a data set.

    Args:
        file: its path below the data set's folder.
        subject: whose it is.
        channels: that it has, of all types; 0 where it could not be read.
        rate: sampling rate of the file, in Hz.
        seconds: its length.
        events: windows of each class that it gives.
        findings: in the order in which they were made.
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
        """`refused` or `repaired` if any finding led to that, else `ok`."""
        actions = {finding.action for finding in self.findings}
        return "refused" if "refused" in actions else "repaired" if "repaired" in actions else "ok"

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain values, with the verdict, its reason and the remedy."""
        decisive = [finding for finding in self.findings if finding.action == self.verdict]
        reason, remedy = (decisive[0].found, decisive[0].remedy) if decisive else ("", "")
        return {**asdict(self), "verdict": self.verdict, "reason": reason, "remedy": remedy}


class FilesError(DataError):
    """Files that cannot be used: all of them at once, each with its reason and remedy.

    Args:
        name: the data set's.
        files: the reports of all files, good ones included.
        advice: what the user can do about all of them.
    """

    def __init__(self, name: str, files: Sequence[FileReport], advice: str) -> None:
        refused = [(r, f) for r in files for f in r.findings if r.verdict == f.action == "refused"]
        lines = [f"  {report.file}: {finding}" for report, finding in refused]
        count = sum(report.verdict == "refused" for report in files)
        super().__init__("\n".join([f"{name}: {count} of {len(files)} files cannot be used:", *lines, advice]))
        self.files = tuple(files)
