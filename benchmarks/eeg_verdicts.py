"""What the data set `eeg_files` says about each file of a folder, as Markdown.

    python benchmarks/eeg_verdicts.py [FOLDER]      # without one: $FNE_DATA/eeg_files

In `FOLDER/ok` are good recordings of many kinds, each read with labels and settings that fit it. In `FOLDER/odd` is one
recording, spoilt in another way in each file: all read together by one config, then again with the config lines that
the messages advise. No cache is used.
"""

from __future__ import annotations

import argparse
import html
import os
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fne.config import yaml_text as yamltext
from fne.config.registry import load
from fne.core.dataset import FileReport, Finding
from fne.core.errors import DataError, DataWarning

HANDS = {"T0": "rest", "T1": "left", "T2": "right"}
OK: dict[str, dict[str, Any]] = {
    "S001R0*.edf": {"labels": {"T1": "left", "T2": "right"}, "tmin": 0.5, "tmax": 3.5},
    "test.edf": {"labels": {"type A": "a", "*": "other"}, "tmax": 0.5},
    "test.bdf": {"labels": {"255": "pulse", "*": "other"}, "tmax": 0.5},
    "test_1ch.gdf": {
        "labels": {"test": "a", "*": "other"}, "length": 1.0, "subject": "(?P<subject>(?P<label>test))",
        "types": ("ecg",),
    },
    "test.vhdr": {"labels": {"Stimulus/S253": "a", "Stimulus/S255": "b"}, "tmax": 0.5},
    "eeglab_data.set": {"labels": {"square": "square", "rt": "response"}, "tmax": 0.5},
    "test_epochs_onefile.set": {"labels": {"S  8": "a", "S255/*": "b"}, "tmin": -0.06, "tmax": 0.1},
    "ok-epo.fif": {"labels": HANDS, "tmax": 1.0},
    "sample_invalid_birthday_raw.fif": {
        "labels": {"sample": "a", "*": "other"}, "length": 0.05, "subject": "(?P<subject>(?P<label>sample))",
    },
}  # fmt: skip
"""Pattern of the good files -> the settings that fit them."""
ODD: dict[str, Any] = {"labels": HANDS}
"""Settings of the odd files."""
_LINE = re.compile(r"data: (\{(?:[^{}]|\{[^{}]*\})*\})")


def main() -> None:
    """Print a table of the good files, one of the odd ones, and the lines that were applied."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    data = os.environ.get("FNE_DATA")
    parser.add_argument("folder", nargs="?", type=Path, default=Path(data) / "eeg_files" if data else None)
    folder = parser.parse_args().folder
    if folder is None or not all((folder / name).is_dir() for name in ("ok", "odd")):
        parser.error(f"no folders ok and odd in {folder}: name the folder above them, or set FNE_DATA")
    good = [report for pattern, settings in OK.items() for report in reports(folder / "ok", pattern, settings)]
    odd = reports(folder / "odd", "**/*", ODD)
    applied = advice(odd)
    then = reports(folder / "odd", "**/*", ODD | applied)
    rows = [(_code(r.file), r.verdict, _windows(r), _said(r)) for r in good]
    print(_table(("file", "verdict", "windows by class", "what is said"), rows))
    rows = [(_code(r.file), r.verdict, _said(r), t.verdict) for r, t in zip(odd, then, strict=True)]
    print(_table(("file", "verdict", "what is said", "with the lines below"), rows))
    print(f"```text\n{yamltext.dump({'data': applied})}```")


def reports(folder: Path, pattern: str | Sequence[str], settings: Mapping[str, Any]) -> tuple[FileReport, ...]:
    """Return what the loader says about each file, whether or not the files make a data set."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # of the split, which does not matter here
        try:
            found = load("data", "eeg_files")(
                seed=0, path=str(folder), pattern=pattern, split="trial", bad_files="skip", cache=False, **settings
            ).files
        except DataError as error:
            if not error.files:
                raise
            found = error.files
    return tuple(found)


def advice(files: Iterable[FileReport]) -> dict[str, Any]:
    """Return the settings that the messages about refused files advise, all in one."""
    settings: dict[str, Any] = {}
    for finding in (finding for report in files for finding in report.findings if finding.action == "refused"):
        # Where the events are only the owner of the data knows.
        for key, value in (config_lines(finding) or [{}])[-1].items() if finding.kind != "events" else ():
            settings[key] = settings.get(key, {}) | value if isinstance(value, dict) else value
    return settings


def config_lines(finding: Finding) -> list[dict[str, Any]]:
    """Return the lines `data: {...}` of a remedy, the last of which is that for the file alone."""
    return [yamltext.parse(line)[0] for line in _LINE.findall(finding.remedy)]


def _windows(report: FileReport) -> str:
    return ", ".join(f"{name} {count}" for name, count in report.events.items() if count)


def _said(report: FileReport) -> str:
    texts = [f"{'' if f.action == report.verdict else f'({f.action}) '}{f.found}. {f.remedy}." for f in report.findings]
    return html.escape(" ".join(texts), quote=False) or "nothing"


def _code(text: str) -> str:
    return f"`{text}`"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |\n" for row in (header, *rows)]
    return "".join([lines[0], f"|{'---|' * len(header)}\n", *lines[1:]])


if __name__ == "__main__":
    main()
