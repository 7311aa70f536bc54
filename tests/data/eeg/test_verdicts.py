"""Real files of many kinds, good and spoilt: the verdict on each, and that remedies work and give the right values."""

from __future__ import annotations

import html
import os
import re
import runpy
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from fne.config.registry import load
from fne.core.dataset import FileReport, Finding
from fne.core.errors import DataError, DataWarning
from fne.data.eeg.find import find

ROOT = Path(__file__).parents[3]
DATA = os.environ.get("FNE_DATA")
FOLDER = Path(DATA or "") / "eeg_files"
pytestmark = pytest.mark.skipif(
    not DATA or not FOLDER.is_dir(), reason="FNE_DATA is not set, or has no eeg_files: no EEG files"
)
SCRIPT = runpy.run_path(str(ROOT / "benchmarks" / "eeg_verdicts.py"))
OK, ODD = SCRIPT["OK"], SCRIPT["ODD"]
reports: Callable[..., tuple[FileReport, ...]] = SCRIPT["reports"]
config_lines: Callable[[Finding], list[dict[str, Any]]] = SCRIPT["config_lines"]

GOOD = {
    "S001R03.edf": ({"left": 8, "right": 7}, []),
    "S001R04.edf": ({"left": 8, "right": 7}, []),
    "S001R07.edf": ({"left": 8, "right": 7}, []),
    "S001R08.edf": ({"left": 8, "right": 7}, []),
    "test.edf": ({"a": 3, "other": 2}, []),
    "test.bdf": (
        {"pulse": 39, "other": 0},
        [
            "leaves open how many records there are (-1); 60 are there",
            "changes that only switch bits off are no events: 255 to 254 (40)",
            "1 of 40 windows are left out: 1 beyond",
        ],
    ),
    "test_1ch.gdf": ({"a": 30, "other": 0}, ["ECG (ecg)"]),
    "test.vhdr": ({"a": 2, "b": 5}, []),
    "eeglab_data.set": ({"square": 80, "response": 74}, ["EOG1 (eog), EOG2 (eog)"]),
    "test_epochs_onefile.set": ({"a": 1, "b": 3}, ["multiple events"]),
    "ok-epo.fif": ({"rest": 3, "left": 1, "right": 1}, []),
    "sample_invalid_birthday_raw.fif": ({"a": 2, "other": 0}, []),
}
"""Good file -> windows by class, and words of each note."""
SPOILT = {
    "20ch_raw.fif": ("refused", "44 of 64 channels are missing: CP6, Fp1"),
    "bad_date.edf": ("ok", ""),
    "base_20s.edf": ("ok", ""),
    "bv_renamed/sub-01.vhdr": ("refused", "its header names test.eeg and test.vmrk, which are not there"),
    "empty.edf": ("refused", "it is empty"),
    "flat_and_nan_raw.fif": ("refused", "FCz: flat, deviation 0 microvolts; FC4: 100 of 3200 values are NaN"),
    "half_header.edf": ("refused", "1000 bytes are there, the header alone has 16896"),
    "microvolts_as_volts_raw.fif": ("refused", "most likely microvolts that the file calls volts"),
    "no_events_raw.fif": ("refused", "no trials"),
    "no_unit.edf": ("refused", "most likely microvolts that the file calls volts"),
    "reordered_raw.fif": ("repaired", "channels in another order, beginning Iz, O2, Oz"),
    "set_nofdt/test_raw.set": ("refused", "its values are in test_raw.fdt, which is missing"),
    "sfreq128_raw.fif": ("refused", "sampled at 128 Hz"),
    "text.edf": ("refused", "plain text that begins 'this is not an edf"),
    "truncated_raw.fif": ("refused", "truncated: at least 3866 bytes are missing"),
    "unit_mV_wrong.edf": ("refused", "most likely microvolts that the file calls millivolts"),
    "wrong_ext_is_edf.fif": ("refused", "its name says .fif, its content is EDF"),
}
"""Odd file -> verdict, and words of its reason."""
LINES = {
    "20ch_raw.fif": ({"channels": "common"}, "ok"),
    "flat_and_nan_raw.fif": ({"bad_channels": "interpolate"}, "repaired"),
    "microvolts_as_volts_raw.fif": ({"scale": {"microvolts_as_volts_raw.fif": 1e-6}}, "repaired"),
    "no_unit.edf": ({"scale": {"no_unit.edf": 1e-6}}, "repaired"),
    "sfreq128_raw.fif": ({"resample": 128}, "repaired"),
    "unit_mV_wrong.edf": ({"scale": {"unit_mV_wrong.edf": 1e-3}}, "repaired"),
}
"""Odd file -> the config line that its message must have, and the verdict with that."""
INTERPOLATED = ["FCz", "FC4"]
ALL_32 = {"types": ("eeg", "eog")}
"""One of two equal recordings names no EOG."""


@pytest.fixture(scope="module")
def odd() -> dict[str, FileReport]:
    return {report.file: report for report in reports(FOLDER / "odd", "**/*", ODD)}


def refusal(report: FileReport) -> Finding:
    """Return the one reason for which a file is refused."""
    (finding,) = [finding for finding in report.findings if finding.action == "refused"]
    return finding


def windows(path: Path, pattern: str, **settings: Any) -> tuple[Tensor, Tensor]:
    """Return a file's windows in microvolts `[n, channels, times]` and their classes, of all parts together."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        dataset = load("data", "eeg_files")(
            seed=0, path=str(path), pattern=pattern, split="trial", standardise="none", cache=False, **settings
        )
    parts = (dataset.train, dataset.validation, dataset.test)
    return torch.cat([part.x for part in parts]).double(), torch.cat([part.y for part in parts])


def base(rate: float = 160.0) -> tuple[list[str], Tensor, Tensor]:
    """Return channels, windows and classes of the recording that all others were made from, by MNE alone."""
    import mne

    raw = mne.io.read_raw_edf(FOLDER / "odd" / "base_20s.edf", preload=True, verbose="error")
    mne.datasets.eegbci.standardize(raw)
    if rate != raw.info["sfreq"]:
        raw.resample(rate, verbose="error")
    values: NDArray[np.float64] = raw.get_data() * 1e6
    starts = [round(onset * rate) for onset in raw.annotations.onset]
    x = np.stack([values[:, start : start + round(2 * rate)] for start in starts])
    return raw.ch_names, torch.from_numpy(x), torch.tensor([int(name[1]) for name in raw.annotations.description])


def agree(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor], atol: float = 1e-4) -> None:
    """Assert that windows are the same up to rounding, in whatever order; `atol` in microvolts."""
    (x, y), (wanted, classes) = found, expected
    assert x.shape == wanted.shape
    distance = torch.stack([(wanted - one).abs().amax(dim=(1, 2)) for one in x])
    nearest = distance.argmin(1)
    assert sorted(nearest.tolist()) == list(range(len(wanted)))
    assert distance.amin(1).max() < atol
    assert torch.equal(y, classes[nearest])


# ------------------------------------------------------------------------------------------------ verdicts
@pytest.mark.parametrize("pattern", OK)
def test_a_good_file_gives_its_windows(pattern: str) -> None:
    found = reports(FOLDER / "ok", pattern, OK[pattern])
    for report in found:
        events, notes = GOOD[report.file]
        assert (report.verdict, dict(report.events)) == ("ok", events)
        assert len(report.findings) == len(notes)
        assert all(words in finding.found for words, finding in zip(notes, report.findings, strict=True))
    if all(found[0].events.values()):
        x, y = windows(FOLDER / "ok", pattern, **OK[pattern])
        assert len(x) == len(y) == sum(sum(report.events.values()) for report in found)
    else:  # of one class: windows, but no data set
        with pytest.raises(DataError, match="class"):
            windows(FOLDER / "ok", pattern, **OK[pattern])


def test_no_file_is_left_out(odd: Mapping[str, FileReport]) -> None:
    assert sorted(GOOD) == [source.name for source in find(FOLDER / "ok")]
    assert sorted(SPOILT) == [source.name for source in find(FOLDER / "odd")] == list(odd)


def test_an_odd_file_is_refused_or_repaired_for_the_right_reason(odd: Mapping[str, FileReport]) -> None:
    for name, (verdict, words) in SPOILT.items():
        assert (name, odd[name].verdict) == (name, verdict)
        decisive = [finding for finding in odd[name].findings if finding.action == verdict]
        assert [words in finding.found for finding in decisive] == [True] * bool(words)


def test_the_documentation_gives_these_verdicts(odd: Mapping[str, FileReport]) -> None:
    page = (ROOT / "docs" / "eeg_files.md").read_text()
    rows = re.findall(r"^\| `(\S+)` \| (ok|repaired|refused) \| .*\| ([^|]*) \|$", page, re.MULTILINE)
    shown = {name: (verdict, last) for name, verdict, last in rows}
    then = {r.file: r.verdict for r in reports(FOLDER / "odd", "**/*", ODD | SCRIPT["advice"](odd.values()))}
    assert {name: verdict for name, (verdict, _) in shown.items() if name in GOOD} == dict.fromkeys(GOOD, "ok")
    assert {name: shown[name] for name in odd} == {name: (odd[name].verdict, then[name]) for name in odd}
    assert len(rows) == len(GOOD) + len(odd)
    page = html.unescape(page)
    for name in odd:
        assert all(
            finding.found in page and finding.remedy in page
            for finding in odd[name].findings
            if "MNE" not in finding.found
        )


# ------------------------------------------------------------------------------------------------ remedies
@pytest.mark.parametrize("name", LINES)
def test_the_config_line_of_a_message_makes_the_file_usable(name: str, odd: Mapping[str, FileReport]) -> None:
    line, verdict = LINES[name]
    assert config_lines(refusal(odd[name]))[-1] == line
    after = {report.file: report for report in reports(FOLDER / "odd", "**/*", ODD | line)}
    assert after[name].verdict == verdict
    assert after[name].events == after["base_20s.edf"].events
    others = {other for other in odd if other != name and after[other].verdict != odd[other].verdict}
    assert others == set()


@pytest.mark.parametrize("name", [*LINES, "bad_date.edf", "reordered_raw.fif"])
def test_a_file_that_is_used_has_the_values_of_what_it_was_made_from(name: str) -> None:
    line = LINES[name][0] if name in LINES else {}
    channels, x, y = base(line.get("resample", 160.0))
    if name == "20ch_raw.fif":
        channels, x = channels[:20], x[:, :20]
    found, classes = windows(FOLDER / "odd", name, **{**ODD, "channels": tuple(channels), **line})
    if name == "flat_and_nan_raw.fif":
        places = [channels.index(channel) for channel in INTERPOLATED]
        rest = [place for place in range(len(channels)) if place not in places]
        order = [int((x[:, rest] - one[rest]).abs().amax(dim=(1, 2)).argmin()) for one in found]
        for place in places:  # splines through the neighbours: near to what was there, and no other channel changes
            assert np.corrcoef(found[:, place].flatten(), x[order][:, place].flatten())[0, 1] > 0.9
        found, x = found[:, rest], x[:, rest]
    agree((found, classes), (x, y))


def test_a_file_that_says_nothing_of_events_gives_windows_by_a_label(odd: Mapping[str, FileReport]) -> None:
    finding = refusal(odd["no_events_raw.fif"])
    assert "data.length" in finding.remedy
    for settings, verdict, events in (
        ({"events": "stim"}, "refused", {}),  # there is no such channel
        ({"length": 2.0, "subject": "(?P<subject>(?P<label>no_events))", "labels": {"no_events": "a", "*": "b"}},
         "ok", {"a": 10, "b": 0}),
    ):  # fmt: skip
        (report,) = reports(FOLDER / "odd", "no_events_raw.fif", ODD | settings)
        assert (report.verdict, dict(report.events)) == (verdict, events)


@pytest.mark.parametrize(
    ("name", "new", "same", "settings"),
    [
        ("wrong_ext_is_edf.fif", "wrong_ext_is_edf.edf", "odd/base_20s.edf", ODD),
        ("bv_renamed/sub-01.vhdr", "sub-01.vhdr", "ok/test.vhdr", OK["test.vhdr"]),
        ("set_nofdt/test_raw.set", "test_raw.set", "ok/eeglab_data.set", OK["eeglab_data.set"] | ALL_32),
    ],
)
def test_what_a_message_says_to_do_by_hand_makes_the_file_usable(
    name: str, new: str, same: str, settings: Mapping[str, Any], odd: Mapping[str, FileReport], tmp_path: Path
) -> None:
    for file in (FOLDER / "odd" / name).parent.glob(f"{Path(name).stem}.*"):
        shutil.copyfile(file, tmp_path / file.name)
    do_as_told(refusal(odd[name]).remedy, tmp_path)
    (report,) = reports(tmp_path, "**/*", settings)
    assert (report.file, report.verdict) == (new, "ok")
    found, expected = windows(tmp_path, new, **settings), windows((FOLDER / same).parent, Path(same).name, **settings)
    agree(found, expected)


def do_as_told(remedy: str, folder: Path) -> None:
    """Rename a file, change lines of a file, or copy the one that is missing; by the words of a remedy."""
    for new in re.findall(r"Rename it to (\S+?)[;.]? ", remedy):
        (old,) = folder.iterdir()
        old.rename(folder / new)
    for number, name, line in re.findall(r"[Cc]hange line (\d+) of (\S+) to ([^\s,]+)", remedy):
        lines = (folder / name).read_text("latin-1").split("\n")
        lines[int(number) - 1] = line
        (folder / name).write_text("\n".join(lines), "latin-1")
    for name in re.findall(r"Copy (\S+\.fdt) beside", remedy):  # the recording is the same as that of a good file
        shutil.copyfile(FOLDER / "ok" / "eeglab_data.fdt", folder / name)


@pytest.mark.parametrize("name", ["empty.edf", "half_header.edf", "text.edf", "truncated_raw.fif"])
def test_a_file_that_is_lost_is_said_to_be_fetched_again_or_left_out(name: str, odd: Mapping[str, FileReport]) -> None:
    remedy = refusal(odd[name]).remedy
    assert re.match("Copy or download it again|Export it again", remedy)
    assert "data.pattern" in remedy


def test_with_all_remedies_every_window_is_one_of_the_recording_that_was_spoilt(odd: Mapping[str, FileReport]) -> None:
    lines = SCRIPT["advice"](odd.values())
    assert {key for line, _ in LINES.values() for key in line} == set(lines)
    rest = {**lines, "resample": None}  # MNE, which made the file of 128 Hz, displaces by half a sample
    x, y = windows(FOLDER / "odd", "**/*", bad_files="skip", **ODD, **rest)
    channels, wanted, classes = base()
    own = [channels.index(c) for c in channels[:20] if c not in INTERPOLATED]
    x, wanted = x[:, [place for place in range(20) if channels[place] not in INTERPOLATED]], wanted[:, own]
    distance = torch.stack([(wanted - one).abs().amax(dim=(1, 2)) for one in x])
    assert distance.amin(1).max() < 1e-4
    assert torch.equal(y, classes[distance.argmin(1)])
