"""EEG files become nodes: windows as MNE cuts them, parts that share nobody, faults by name, `fne data check`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import warnings
import zlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import fne
from fne.cli.main import main
from fne.config.load import load_config
from fne.config.registry import load
from fne.core.dataset import Dataset, FilesError
from fne.core.errors import DataError, DataWarning, FneError, SettingError
from fne.data.eeg.recording import Header
from fne.data.eeg.survey import agree
from fne.data.partition import deal

DATA = os.environ.get("FNE_DATA")
needs_files = pytest.mark.skipif(
    not DATA or not (Path(DATA) / "eeg_files").is_dir(), reason="needs the files in $FNE_DATA/eeg_files"
)
RATE, CHANNELS = 100.0, ("C3", "Cz", "C4")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr("fne.data.sources.cache_folder", lambda: cache)


def record(
    path: Path,
    events: Sequence[tuple[float, str]] = ((0.5, "a"), (2.0, "b"), (3.5, "a"), (5.0, "b")),
    *,
    seed: int | None = None,
    channels: Sequence[str] = CHANNELS,
    rate: float = RATE,
    seconds: float = 7.0,
) -> NDArray[np.float64]:
    """Write a recording of noise, 20 microvolts strong, and return its values in microvolts `[channels, times]`."""
    import mne

    draw = np.random.default_rng(zlib.crc32(path.stem.encode()) if seed is None else seed)
    values = draw.normal(0, 20, (len(channels), round(seconds * rate)))
    raw = mne.io.RawArray(values * 1e-6, mne.create_info(list(channels), rate, "eeg"), verbose="error")
    raw.set_annotations(mne.Annotations([t for t, _ in events], 0.5, [name for _, name in events]))
    path.parent.mkdir(parents=True, exist_ok=True)
    raw.save(path, verbose="error")
    return values


def people(folder: Path, number: int, runs: int = 1) -> Path:
    for subject in range(number):
        for run in range(runs):
            record(folder / f"sub-{subject}_run-{run}_raw.fif", seed=100 * subject + run)
    return folder


def open_files(path: Path | str, **settings: Any) -> Dataset:
    given = {"labels": {"a": "left", "b": "right"}, "tmin": 0.1, "tmax": 0.6, "standardise": "none", **settings}
    declared = load_config(
        {"data": {"name": "eeg_files", "path": str(path), **given}, "model": "logistic",
         "strategy": {"name": "fne", "rounds": 1}}
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        return load("data", "eeg_files")(seed=0, **declared.data.settings)  # type: ignore[no-any-return]


def sorted_rows(*arrays: Any) -> NDArray[np.float32]:
    rows = np.concatenate([np.asarray(array).reshape(len(array), -1) for array in arrays])
    return rows[np.lexsort(rows.T[:8])]


# ------------------------------------------------------------------------------------------------ values
def test_windows_are_the_values_after_each_event_in_microvolts(tmp_path: Path) -> None:
    values = record(tmp_path / "s1_run-1_raw.fif")
    dataset = open_files(tmp_path, split="trial", validation=0.25, test=0.25)
    cut = [values[:, start : start + 50] for start in (60, 210, 360, 510)]  # (onset + 0.1) * 100 Hz
    parts = (dataset.train, dataset.validation, dataset.test)
    assert dataset.shape == (3, 50)
    assert dataset.rate == RATE
    assert dataset.classes == ("left", "right")
    np.testing.assert_allclose(sorted_rows(*(part.x for part in parts)), sorted_rows(cut), rtol=1e-5, atol=1e-4)
    for part in parts:
        for x, y in zip(part.x.numpy(), part.y.tolist(), strict=True):
            (which,) = [n for n, one in enumerate(cut) if np.allclose(one, x, rtol=1e-4, atol=1e-3)]
            assert y == which % 2  # a, b, a, b


@needs_files
def test_real_runs_are_cut_and_filtered_as_mne_does_it() -> None:
    import mne

    names = ["FC3", "C3", "Cz", "C4"]
    dataset = open_files(
        "eeg_files/ok", pattern="S001R0[347].edf", labels={"T1": "left", "T2": "right"}, tmin=0.5, tmax=2.0,
        channels=names, low=8, high=30, reference="average", split="run", groups="run", fold=0,
    )  # fmt: skip
    assert DATA
    raw = mne.io.read_raw(Path(DATA) / "eeg_files/ok/S001R03.edf", preload=True, verbose="error")
    raw.set_eeg_reference("average", verbose="error")  # of all channels, then some are taken
    raw.rename_channels(lambda name: name.strip(".")).pick(["Fc3", "C3", "Cz", "C4"]).filter(8, 30, verbose="error")
    events, _ = mne.events_from_annotations(raw, {"T1": 0, "T2": 1}, verbose="error")
    epochs = mne.Epochs(raw, events, tmin=0.5, tmax=2.0 - 1 / 160, baseline=None, preload=True, verbose="error")
    assert dataset.group_names == ("S001-R03", "S001-R04", "S001-R07")
    assert set(dataset.test.groups.tolist()) == {0}  # type: ignore[union-attr]
    assert dataset.test.y.tolist() == epochs.events[:, 2].tolist()
    np.testing.assert_allclose(dataset.test.x.numpy(), epochs.get_data() * 1e6, rtol=1e-4, atol=1e-3)


def test_windows_of_fixed_length_take_their_class_from_the_path(tmp_path: Path) -> None:
    for group in ("patients", "controls"):
        for number in range(3):
            record(tmp_path / group / f"{group}{number}_raw.fif", seconds=2.0, events=())
    dataset = open_files(
        tmp_path, labels={"patients": "ill", "controls": "well"}, length=0.5, step=0.25, folds=3, tmin=0.0,
        subject=r"(?P<label>\w+)/(?P<subject>\w+)_raw",
    )  # fmt: skip
    assert [len(part) for part in (dataset.train, dataset.validation, dataset.test)] == [14, 14, 14]
    assert dataset.classes == ("ill", "well")
    # each subject has one class: then that is what the class is of
    assert not {"one class", "class"} & {finding.kind for finding in dataset.findings}
    assert {report.events["ill"] for report in dataset.files} == {0, 7}


# ------------------------------------------------------------------------------------------------ parts
def names_of(dataset: Dataset) -> list[set[str]]:
    parts = (dataset.train, dataset.validation, dataset.test)
    return [{dataset.group_name(n) for n in part.groups.tolist()} for part in parts if part.groups is not None]


@pytest.mark.parametrize(("folds", "sizes"), [(5, (3, 1, 1)), (3, (1, 2, 2)), (None, (3, 1, 1))])
def test_whole_subjects_are_held_out_and_each_is_tested_once(
    tmp_path: Path, folds: int | None, sizes: tuple[int, ...]
) -> None:
    people(tmp_path, 5, runs=2)
    tested: list[str] = []
    for fold in range(folds or 5):
        dataset = open_files(tmp_path, folds=folds, fold=fold)
        train, held_out, test = names_of(dataset)
        assert not (train & held_out | train & test | held_out & test)
        assert len(train | held_out | test) == 5
        assert dataset.fold == (fold, folds or 5)
        assert dataset.findings == ()
        if fold == 0:
            assert (len(train), len(held_out), len(test)) == sizes
        tested += test
    assert sorted(tested) == [str(n) for n in range(5)]


@pytest.mark.parametrize("what", ["run", "session"])
def test_runs_are_held_out_by_their_order_within_each_subject(tmp_path: Path, what: str) -> None:
    for subject, offset in (("A", 0), ("B", 4)):
        for number in range(3):
            record(tmp_path / f"{subject}_{number + offset}_raw.fif")
    expression = rf"(?P<subject>[AB])_(?P<{what}>\d)"
    names = []
    for fold in range(3):
        dataset = open_files(tmp_path, split=what, groups=what, subject=expression, fold=fold)
        names.append(names_of(dataset)[2])
        assert [len(part) for part in (dataset.train, dataset.validation, dataset.test)] == [8, 8, 8]
        assert "subjects on both sides" in [finding.kind for finding in dataset.findings]
    assert names == [{f"A-{n}", f"B-{n + 4}"} for n in range(3)]


def test_a_fraction_of_the_training_windows_validates(tmp_path: Path) -> None:
    dataset = open_files(people(tmp_path, 4), folds=2, validation=0.25)
    train, held_out, test = names_of(dataset)
    assert held_out <= train
    assert not train & test
    assert [len(part) for part in (dataset.train, dataset.validation, dataset.test)] == [6, 2, 8]


def test_a_nodes_windows_are_a_view_of_the_training_part(tmp_path: Path) -> None:
    dataset = open_files(people(tmp_path, 6, runs=2), folds=3)
    nodes = deal(dataset, "subject", None, 0, {"subjects_per_node": 1, "mixed": False})
    whole = dataset.train.x.untyped_storage()
    assert sorted(nodes) == sorted(names_of(dataset)[0])
    assert all(node.x.untyped_storage().data_ptr() == whole.data_ptr() for node in nodes.values())
    assert all(len(set(node.groups.tolist())) == 1 for node in nodes.values())  # type: ignore[union-attr]


def test_standardising_by_node_uses_its_training_windows_only(tmp_path: Path) -> None:
    people(tmp_path, 4)
    plain, done = (open_files(tmp_path, folds=2, validation=0.25, standardise=how) for how in ("none", "node"))
    for group in range(4):
        own = [(p.x[p.groups == group], d.x[d.groups == group]) for p, d in (
            (plain.train, done.train), (plain.validation, done.validation), (plain.test, done.test)
        )]  # fmt: skip
        reference = own[0][0] if len(own[0][0]) else torch.cat([part for part, _ in own])
        mean = reference.double().mean((0, 2), keepdim=True)
        spread = reference.double().std((0, 2), correction=0, keepdim=True)
        for before, after in own:
            torch.testing.assert_close(after.double(), (before - mean) / spread, rtol=1e-4, atol=1e-4)


def test_standardising_by_trial_leaves_mean_0_and_deviation_1(tmp_path: Path) -> None:
    dataset = open_files(people(tmp_path, 3), standardise="trial")
    spread, mean = torch.std_mean(dataset.train.x, dim=2, correction=0)
    torch.testing.assert_close(mean, torch.zeros_like(mean), atol=1e-5, rtol=0)
    torch.testing.assert_close(spread, torch.ones_like(spread))


# ------------------------------------------------------------------------------------------------ what is wrong
def test_windows_that_occur_twice_are_left_out_and_told(tmp_path: Path) -> None:
    people(tmp_path, 4)
    shutil.copy(tmp_path / "sub-1_run-0_raw.fif", tmp_path / "sub-9_run-0_raw.fif")
    dataset = open_files(tmp_path, split="trial")
    (finding,) = [finding for finding in dataset.findings if finding.kind == "repeated"]
    assert finding.action == "problem"
    assert finding.found == (
        "4 windows of sub-9_run-0_raw.fif have the values of windows of sub-1_run-0_raw.fif, and are left out"
    )
    assert sum(map(len, (dataset.train, dataset.validation, dataset.test))) == 16


def test_a_subject_with_one_class_is_told(tmp_path: Path) -> None:
    people(tmp_path, 3)
    record(tmp_path / "sub-3_run-0_raw.fif", events=[(0.5, "a"), (2, "a")])
    found = {fold: open_files(tmp_path, fold=fold).findings for fold in range(4)}
    texts = [finding.found for findings in found.values() for finding in findings if finding.kind == "one class"]
    # in two folds it trains, in one it validates, in one it is tested
    assert texts == ["1 of 2 subjects have training windows of one class only: 3 (left)"] * 2
    (text,) = [finding.found for findings in found.values() for finding in findings if finding.kind == "class"]
    assert text.startswith("the validation part has no window of class right")
    assert {f.action for findings in found.values() for f in findings} == {"problem"}


def test_overlapping_windows_on_both_sides_are_told(tmp_path: Path) -> None:
    people(tmp_path, 3)
    apart, over = (open_files(tmp_path, split="trial", tmax=tmax) for tmax in (1.6, 1.7))
    assert "overlap" not in [finding.kind for finding in apart.findings]
    assert "overlap" in [finding.kind for finding in over.findings]
    assert "overlap" not in [finding.kind for finding in open_files(tmp_path, tmax=1.7).findings]
    both = open_files(tmp_path, tmax=1.7, validation=0.3)  # models are chosen on validation
    assert "overlap" in [finding.kind for finding in both.findings]


def test_bad_files_end_the_run_or_are_left_out(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    people(tmp_path, 3)
    (tmp_path / "sub-7_raw.fif").write_bytes(b"")
    record(tmp_path / "sub-8_raw.fif", events=[(1.0, "other")])
    with pytest.raises(FilesError) as caught:
        open_files(tmp_path)
    assert str(caught.value).startswith("eeg_files: 2 of 5 files cannot be used:\n  sub-7_raw.fif: it is empty")
    assert [report.verdict for report in caught.value.files] == ["ok", "ok", "ok", "refused", "refused"]
    recwarn.clear()
    for policy in ("warn", "skip"):
        settings = {"path": str(tmp_path), "labels": {"a": "left", "b": "right"}, "tmax": 0.5, "bad_files": policy}
        dataset = load("data", "eeg_files")(seed=0, **settings)
        assert len(dataset.group_names) == 3
        texts = [str(warning.message) for warning in recwarn.list if issubclass(warning.category, DataWarning)]
        assert len(texts) == (2 if policy == "warn" else 0)
        assert all("is left out" in text for text in texts)
        recwarn.clear()
    for name in ("sub-0", "sub-1", "sub-2"):
        (tmp_path / f"{name}_run-0_raw.fif").unlink()
    with pytest.raises(FilesError, match="2 of 2 files"):  # nothing is left
        open_files(tmp_path, bad_files="skip")


def header(channels: Sequence[str], rate: float = 160.0, types: Mapping[str, str] | None = None) -> Header:
    kinds = tuple((types or {}).get(name, "eeg") for name in channels)
    return Header(tuple(channels), kinds, rate, 10.0, {"a": 1})


@pytest.mark.parametrize(
    ("channels", "expected", "refused"),
    [
        ("all", ("A", "B", "C"), {"few"}),  # the order of the first file that has what most have
        ("common", ("B",), set()),
        (("C", "A"), ("C", "A"), {"few"}),
    ],
)
def test_files_agree_on_channels(channels: Any, expected: tuple[str, ...], refused: set[str]) -> None:
    headers = {
        "few": header("BD"), "one": header("ABC"), "two": header("CBA"), "more": header("ABCDE", types={"E": "eog"})
    }  # fmt: skip
    contract = agree(headers, channels, ("eeg",), None)
    assert contract.channels == expected
    found = {name for name, findings in contract.findings.items() if any(f.action == "refused" for f in findings)}
    assert found == refused
    if channels == "all":
        (finding,) = contract.findings["few"]
        assert finding.found == "2 of 3 channels are missing: A, C"
        assert contract.findings["more"][0].found == "1 channels are not used: D"


def test_files_agree_on_the_rate() -> None:
    headers = {"one": header("A"), "two": header("A"), "slow": header("A", 128.0)}
    told = agree(headers, "all", ("eeg",), None)
    assert told.rate == 160.0
    assert "data: {resample: 128}" in told.findings["slow"][0].remedy
    assert told.findings["slow"][0].action == "refused"
    made = agree(headers, "all", ("eeg",), 100.0)
    assert made.rate == 100.0
    assert [f.action for f in made.findings["slow"]] == ["repaired"]
    assert made.findings["one"] == ()


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"labels": {"a": "x", "b": "x"}}, SettingError, "data.labels = .* events of two classes at least"),
        ({"tmax": 0.1}, SettingError, r"data.tmax = 0.1: must be above data.tmin = 0.1"),
        ({"step": 0.5}, SettingError, "data.step = 0.5: must be null without data.length"),
        ({"low": 30, "high": 8}, SettingError, "data.low = 30.0: must be below data.high = 8"),
        ({"split": "trial", "fold": 1}, SettingError, "data.fold = 1: must be null with data.split=trial"),
        ({"split": "trial", "test": 0.6, "validation": 0.5}, SettingError, "data.validation = 0.5: must be below 0.4"),
        ({"test": 0.5}, SettingError, "data.test = 0.5: must be null with data.split=subject"),
        ({"folds": 3, "fold": 3}, SettingError, "data.fold = 3: must be below data.folds = 3"),
        ({"fold": 4}, SettingError, "data.fold = 4: must be below 4"),
        ({"folds": 9}, DataError, "data.folds = 9, but there are 4 subjects"),
        ({"split": "run"}, DataError, "no subject has more than 1 runs"),
        ({"split": "session"}, SettingError, "no path says the session of sub-0_run-0_raw.fif"),
        ({"groups": "site"}, SettingError, "data.groups = 'site': must be subject: no path says the site"),
        ({"channels": ["C3", "C5"]}, DataError, "data.channels: no file has a channel 'C5'; there are C3, C4, Cz"),
        ({"channels": ["FCC3"]}, DataError, "no file has a channel 'FCC3', did you mean 'C3'"),
        ({"types": ["ecg"]}, DataError, "no file has a channel of data.types = .ecg.; there are channels of type eeg"),
        ({"labels": {"a": "x", "c": "y"}}, DataError,
         "data.labels: no window of class 'y': no file has an event 'c'; there are 'a' .8., 'b' .8."),
        ({"channels": ["Cz", "CZ"]}, SettingError, "data.channels = .*: must be a list of different channels"),
        ({"channels": []}, SettingError, "data.channels = .*: must be a list of different channels, at least one"),
        ({"reference": []}, SettingError, "data.reference = .*: must be a list of different channels"),
        ({"length": 0.5, "tmin": 0.2}, SettingError, "data.tmin = 0.2: must be 0 with data.length"),
        ({"split": "trial", "validation": 0.01}, SettingError,
             "data.validation = 0.01: must be larger: it selects none of 16 windows"),
        ({"folds": 2, "validation": 0.01}, SettingError, "data.validation = 0.01: must be larger"),
        ({"path": "nowhere/at/all"}, DataError, r"eeg_files: nowhere/at/all \(from .*\): not found"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(
    tmp_path: Path, settings: dict[str, Any], error: type[FneError], text: str
) -> None:
    people(tmp_path, 4)
    with pytest.raises(error, match=text):
        open_files(**{"path": tmp_path, **settings})


# ------------------------------------------------------------------------------------------------ the second start
def test_the_second_start_reads_no_recording(tmp_path: Path) -> None:
    people(tmp_path / "files", 3)
    text = f"""
import sys
from pathlib import Path
import fne.data.sources
fne.data.sources.cache_folder = lambda: Path({str(tmp_path / "cache")!r})
from fne.config.registry import load
data = load("data", "eeg_files")(seed=0, path={str(tmp_path / "files")!r}, labels=dict(a="x", b="y"), tmax=0.5)
print("mne" in sys.modules, float(data.train.x.sum()))
"""
    done = [
        subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout.split()
        for _ in range(2)
    ]
    assert [line[0] for line in done] == ["True", "False"]
    assert done[0][1] == done[1][1]


def test_with_and_without_cache_the_same_model_is_trained(tmp_path: Path) -> None:
    people(tmp_path / "files", 4)
    config = {
        "data": {"name": "eeg_files", "path": str(tmp_path / "files"), "labels": {"a": "x", "b": "y"}, "tmax": 0.5,
                 "nodes": None, "partition": "subject"},
        "model": {"name": "logistic"}, "strategy": {"name": "fne", "rounds": 3, "population": 10, "parents": 4},
    }  # fmt: skip
    digests = {
        fne.train(config, [f"data.cache={cache}"], out=tmp_path / f"run{n}", quiet=True)["model_sha256"]
        for n, cache in enumerate(("false", "true", "true"))
    }
    assert len(digests) == 1


# ------------------------------------------------------------------------------------------------ fne data check
@pytest.fixture
def checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*words: str, **data: Any) -> tuple[int, str]:
        settings = {"labels": {"a": "left", "b": "right"}, "tmax": 0.5, **data}
        tree = {"data": {"name": "eeg_files", "path": str(tmp_path / "files"), "nodes": None, "partition": "subject",
                         **settings}, "model": "logistic", "strategy": {"name": "fne", "rounds": 1}}  # fmt: skip
        path = tmp_path / "config.yaml"
        path.write_text(json.dumps(tree))
        status = main(["data", "check", str(path), "--out", str(tmp_path / "check.png"), *words])
        return status, capsys.readouterr().out

    return run


def test_check_prints_the_files_and_draws(tmp_path: Path, checked: Any) -> None:
    people(tmp_path / "files", 3)
    status, text = checked()
    assert status == 0
    assert "no problems" in text
    assert text.count("left 2, right 2") == 3
    assert "input shape (3, 50), 2 outputs; training 4, validation (the server's) 4, test 4" in text
    assert (tmp_path / "check.png").read_bytes().startswith(b"\x89PNG")


def test_check_ends_with_1_where_there_are_problems(tmp_path: Path, checked: Any) -> None:
    people(tmp_path / "files", 3)
    record(tmp_path / "files" / "sub-5_raw.fif", channels=("C3", "Cz"))
    for policy, parts in (("raise", 1), ("skip", 1)):  # it goes on without, whatever the policy
        status, text = checked(bad_files=policy)
        assert status == 1
        assert "sub-5_raw.fif: refused: 1 of 3 channels are missing: C4" in text
        assert "problems: 1" in text
        assert text.count("input shape") == parts
    status, text = checked("--json", bad_files="skip")
    verdict = json.loads(text)
    assert (status, verdict["problems"], verdict["error"]) == (1, 1, "")
    assert [one["verdict"] for one in verdict["files"]] == ["ok", "ok", "ok", "refused"]
    assert verdict["files"][3]["reason"] == "1 of 3 channels are missing: C4"
    assert "data: {channels: common}" in verdict["files"][3]["remedy"]


def test_check_tells_of_a_split_that_cannot_be_with_the_files(tmp_path: Path, checked: Any) -> None:
    people(tmp_path / "files", 2)
    status, text = checked()
    assert status == 1
    assert text.count("left 2, right 2") == 2
    assert "there are 2 subjects" in text


def test_check_without_any_file_is_a_mistake(tmp_path: Path, checked: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "files").mkdir()
    assert checked()[0] == 2


@pytest.mark.parametrize(("split", "shared"), [("none", 0), ("both", 1)])
def test_check_looks_at_other_data_sets_too(
    tmp_path: Path, split: str, shared: int, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = tmp_path / f"twice{shared}.py"
    plugin.write_text(
        "import torch\n"
        "from fne.config.registry import register\n"
        "from fne.core.dataset import Dataset, Samples\n"
        f'@register("data", "twice{shared}")\n'
        "def twice(*, seed: int, again: bool = False) -> Dataset:\n"
        '    """Have a sample in two parts."""\n'
        "    x = torch.randn(12, 2, 5, generator=torch.Generator().manual_seed(0))\n"
        "    x[8] = x[0] if again else x[8]\n"
        "    y = torch.arange(12) % 2\n"
        "    parts = [Samples(x[a:b], y[a:b]) for a, b in ((0, 6), (6, 9), (9, 12))]\n"
        '    return Dataset("twice", *parts, ("p", "q"), "split", "source")\n'
    )
    tree = {"data": {"name": f"twice{shared}", "again": bool(shared), "nodes": 2}, "model": "logistic",
            "strategy": {"name": "fne", "rounds": 1}, "plugins": [str(plugin)]}  # fmt: skip
    (tmp_path / "c.yaml").write_text(json.dumps(tree))
    status = main(["data", "check", str(tmp_path / "c.yaml"), "--out", str(tmp_path / "c.png")])
    text = capsys.readouterr().out
    assert status == shared
    assert ("1 samples of the validation part are byte for byte in the training part" in text) == bool(shared)
    assert (tmp_path / "c.png").is_file()


@needs_files
@pytest.mark.filterwarnings("ignore::fne.core.errors.DataWarning")
@pytest.mark.parametrize("method", ["fne", "es", "fedavg", "centralised"])
def test_methods_train_on_the_real_runs(tmp_path: Path, method: str) -> None:
    overrides = ["strategy.rounds=2", "watch.tensorboard=false"]
    if method != "fne":
        overrides = [f"strategy={method}", "strategy.rounds=3", "wire=auto", *overrides[1:]]
    summary = fne.train("eeg_hands", overrides, out=tmp_path / "run", quiet=True)
    alone = "a run without training windows standardised by itself"
    assert summary["split"] == f"run-wise (whole runs of the same subjects), {alone}"
    assert 0 <= summary["accuracy_test"] <= 1
    assert set(summary["accuracy_test_by_subject"]) == {"S001-R03"}


@needs_files
@pytest.mark.filterwarnings("ignore::fne.core.errors.DataWarning")
def test_the_first_run_with_eeg_files_ends_well_above_chance(tmp_path: Path) -> None:
    """Of 60 windows a guesser has more than 62 % right once in 40 times; the config has 73 % of them right."""
    summaries = [
        fne.train("eeg_runs", [f"data.fold={fold}", "watch.tensorboard=false"], out=tmp_path / str(fold), quiet=True)
        for fold in (0, 1)
    ]
    assert [summary["majority_test"] for summary in summaries] == [0.5, 0.5]
    assert sum(summary["accuracy_test"] for summary in summaries) / 2 > 0.62


def test_a_recording_in_another_format_or_cut_is_known_again(tmp_path: Path) -> None:
    import mne

    for subject in range(3):
        record(tmp_path / f"sub-{subject}_raw.fif", [(t, "ab"[t % 2]) for t in (4, 5, 6, 7)], seconds=13.0)
    raw = mne.io.read_raw(tmp_path / "sub-1_raw.fif", preload=True, verbose="error")
    raw.copy().crop(0, 10.5).save(tmp_path / "sub-7_raw.fif", verbose="error")
    coarse = raw.copy().apply_function(lambda x: np.round(x * 1e7) / 1e7)  # as steps of 0.1 microvolts
    coarse.save(tmp_path / "sub-8_raw.fif", verbose="error")
    for settings in ({}, {"low": 2.0, "high": 30.0}, {"resample": 80.0}):
        dataset = open_files(tmp_path, split="trial", **settings)
        repeated = [finding.found for finding in dataset.findings if finding.kind == "repeated"]
        assert [text.split(" have")[0] for text in repeated] == [
            "4 windows of sub-7_raw.fif", "4 windows of sub-8_raw.fif"
        ]  # fmt: skip
        assert sum(map(len, (dataset.train, dataset.validation, dataset.test))) == 12


def test_a_window_of_two_classes_is_left_out_and_told(tmp_path: Path) -> None:
    people(tmp_path, 3)
    record(tmp_path / "sub-3_raw.fif", events=[(0.5, "a"), (0.5, "b"), (2.0, "a"), (3.5, "b")])
    dataset = open_files(tmp_path, split="trial")
    (finding,) = [finding for finding in dataset.findings if finding.kind == "two classes"]
    assert finding.found == "2 windows of sub-3_raw.fif occur with two classes, and are left out"
    assert finding.action == "problem"
    assert sum(map(len, (dataset.train, dataset.validation, dataset.test))) == 14


def test_what_settings_name_and_no_file_has_is_told(tmp_path: Path) -> None:
    people(tmp_path, 3)
    labels = {"a": "left", "b": "right", "bb": "right"}
    dataset = open_files(tmp_path, labels=labels, scale={"sub-1*": 1.0, "nobody*": 2.0})
    assert [(f.kind, f.action) for f in dataset.findings] == [("labels", "problem"), ("scale", "problem")]
    assert "'bb'" in dataset.findings[0].found
    assert "'nobody*'" in dataset.findings[1].found


def test_files_that_are_subjects_by_their_name_alone_are_told(tmp_path: Path) -> None:
    for name in ("anna_1", "anna_2", "ben_1"):
        record(tmp_path / f"{name}.fif")
    (finding,) = [finding for finding in open_files(tmp_path).findings if finding.kind == "subjects"]
    assert "anna_1, anna_2, ben_1" in finding.found
    settings = {"subject": "(?P<subject>[a-z]+)_", "folds": 2, "validation": 0.25}
    assert [f.kind for f in open_files(tmp_path, **settings).findings] == []


def test_runs_count_within_sessions_and_ten_comes_after_two(tmp_path: Path) -> None:
    for session, run in ((1, 2), (1, 10), (2, 2)):
        record(tmp_path / f"A_{session}_{run}_raw.fif")
    settings = {"subject": r"(?P<subject>A)_(?P<session>\d)_(?P<run>\d+)", "split": "run", "groups": "run"}
    tested = [names_of(open_files(tmp_path, fold=fold, **settings))[2] for fold in range(3)]
    assert tested == [{"A-1-2"}, {"A-1-10"}, {"A-2-2"}]


@pytest.mark.parametrize("own", [True, False])
def test_shuffled_labels_say_nothing_and_keep_their_numbers(tmp_path: Path, own: bool) -> None:
    names = "ab" if own else "a"
    for subject in range(8):
        events = [(0.5 + k * 0.7, (names if own else "ab"[subject % 2])[k % len(names)]) for k in range(8)]
        record(tmp_path / f"sub-{subject}_raw.fif", events=events, seconds=8.0)
    true, given = (open_files(tmp_path, folds=4, shuffle_labels=flag) for flag in (False, True))
    assert torch.equal(true.train.x, given.train.x) or not own
    assert given.split.endswith("labels shuffled")
    counts = [np.bincount(torch.cat([p.y for p in (d.train, d.validation, d.test)])).tolist() for d in (true, given)]
    assert counts[0] == counts[1]
    if own:
        assert all(int(given.train.y[given.train.groups == n].sum()) == 4 for n in given.train.groups.tolist())  # type: ignore[union-attr]
        assert 0.2 < float((true.train.y == given.train.y).float().mean()) < 0.8
    else:
        assert all(len(given.train.y[given.train.groups == n].unique()) == 1 for n in given.train.groups.tolist())  # type: ignore[union-attr]


def test_folds_are_pairwise_disjoint_over_runs_of_unequal_number(tmp_path: Path) -> None:
    people(tmp_path, 2, runs=3)
    record(tmp_path / "sub-0_run-3_raw.fif")
    tested = [open_files(tmp_path, split="run", groups="run", folds=3, fold=fold) for fold in range(3)]
    sets = [names_of(dataset)[2] for dataset in tested]
    assert all(not one & other for one, other in pairwise(sets))
    assert set.union(*sets) == {"0-0", "0-1", "0-2", "0-3", "1-0", "1-1", "1-2"}
