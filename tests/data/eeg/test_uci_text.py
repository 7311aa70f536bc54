"""UCI EEG files and folders: read exactly or refused in words, and kept until one changes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fne.core.dataset import Dataset
from fne.core.errors import DataError, DataWarning
from fne.data.eeg.uci import eeg_uci
from fne.data.eeg.uci_files import SETS, find, parse, read_all
from tests.data.eeg.uci_parts import (
    GOOD,
    LENGTH,
    SUBJECT,
    SUBJECTS,
    assert_disjoint,
    draw,
    fill,
    made,
    parts,
    rows,
    text,
    write,
)

pytestmark = pytest.mark.usefixtures("own_cache")


# ------------------------------------------------------------------------------------------------ one file
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("written", "meant"), [("S1 obj ", "S1 obj"), ("S2 nomatch", "S2 nomatch"), ("S2 match ", "S2 match")]
)
def test_a_file_is_read_exactly_whatever_its_header_says(
    tmp_path: Path, packed: bool, written: str, meant: str
) -> None:
    values = draw(0)
    trial = parse(write(tmp_path, text(values, trial=17, condition=written), packed=packed))
    assert trial is not None
    assert (trial.number, trial.condition) == (17, meant)
    assert np.array_equal(trial.values, values.astype(np.float32))


def test_channels_are_ordered_by_name(tmp_path: Path) -> None:
    values = draw(0)
    order = np.random.default_rng(1).permutation(64)
    trial = parse(write(tmp_path, text(values, order=order)))
    assert trial is not None
    assert np.array_equal(trial.values, values.astype(np.float32))


VALUE = GOOD.splitlines()[5].split()[-1]
DAMAGES: dict[str, tuple[Callable[[str], str], str]] = {
    "word": (lambda s: s.replace(f"3 FP1 0 {VALUE}", "3 FP1 0 x7"), "line 6, channel 'FP1': '3 FP1 0 x7' must be "),
    "nan": (lambda s: s.replace(f"3 FP1 0 {VALUE}", "3 FP1 0 nan"), "line 6, channel 'FP1': '3 FP1 0 nan'"),
    "infinite": (lambda s: s.replace(f"3 FP1 0 {VALUE}", "3 FP1 0 -inf"), "line 6, channel 'FP1'"),
    "too large": (lambda s: s.replace(f"3 FP1 0 {VALUE}", "3 FP1 0 1e39"), "line 6, channel 'FP1'"),
    "no value": (lambda s: s.replace(f"3 FP1 0 {VALUE}", "3 FP1 0"), "line 6, channel 'FP1'"),
    "sample number": (
        lambda s: s.replace("3 FP2 5 ", "3 FP2 6 "),
        "line 20, channel 'FP2': .* must be '3 FP2 5 VALUE'",
    ),
    "channel name": (lambda s: s.replace("3 FP2 5 ", "3 FP1 5 "), "line 20, channel 'FP2'"),
    "other trial": (lambda s: s.replace("3 FP2 5 ", "4 FP2 5 "), "line 20, channel 'FP2'"),
    "header's trial": (lambda s: s.replace("trial 3", "trial 4"), "line 6, channel 'FP1': .* must be '4 FP1 0 VALUE'"),
    "channel line": (lambda s: s.replace("# FP2 chan 1", "# FP2 kanal 1"), "line 14: '# FP2 kanal 1' must be such as"),
    "no samples": (lambda s: s.replace("# FP2 chan", "# nix chan 1\n# FP2 chan"), "channel 'nix' has no values"),
    "unknown channel": (lambda s: s.replace("FP2 ", "QQ2 "), "channel 'QQ2' is unknown"),
    "twice": (lambda s: s.replace("FP2 ", "FP1 "), "channel 'FP1' is there twice"),
    "missing": (lambda s: s[: s.index("# nd")], "2 channels are missing, the first is 'nd'"),
    "shorter channel": (lambda s: s[: s.index("3 Y 7")], "channel 'Y' has 7 samples, FP1 has 8"),
    "cut line": (lambda s: s[:-2], "ends in the middle of line 580"),
    "condition": (lambda s: s.replace("S1 obj", "S3 obj"), "line 4 has condition 'S3 obj'; known are S1 obj, S2 match"),
    "header": (lambda s: s.replace(", trial 3", ""), "line 4 must be such as '# S1 obj , trial 0'"),
    "something else": (lambda _: "<html>not found</html>", "line 4 must be such as"),
    "not ASCII": (lambda s: s + "é", "cannot be read"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused_by_name_and_place(tmp_path: Path, damage: str) -> None:
    change, message = DAMAGES[damage]
    assert change(GOOD) != GOOD
    path = write(tmp_path, change(GOOD))
    with pytest.raises(DataError, match=message) as caught:
        parse(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("cut", [5, 300, -4])
def test_a_packed_file_that_is_cut_off(tmp_path: Path, cut: int) -> None:
    path = write(tmp_path, GOOD, packed=True)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match=r"rd\.003\.gz: cannot be read .* again"):
        parse(path)


@pytest.mark.parametrize(
    ("folder", "named", "first_line", "where"),
    [
        (SUBJECTS[10], SUBJECT, SUBJECT, "its name"),
        (SUBJECTS[10], SUBJECT, SUBJECTS[10], "its name"),
        (SUBJECT, SUBJECT, SUBJECTS[10], "its first line"),
    ],
)
@pytest.mark.parametrize("content", [GOOD, GOOD.replace("S1 obj ", "S1 obj err"), GOOD[: GOOD.index("# FP1")]])
def test_a_file_of_another_subject_is_refused(
    tmp_path: Path, cache: Path, content: str, folder: str, named: str, first_line: str, where: str
) -> None:
    """Whether it has values, is marked err or is empty: a label would come from the wrong folder."""
    fill(tmp_path, SUBJECTS, 1)
    path = tmp_path / folder / f"{named}.rd.007"
    path.write_text(content.replace(SUBJECT, first_line))
    other = named if where == "its name" else first_line
    with pytest.raises(DataError) as caught:
        eeg_uci(seed=0, path=str(tmp_path))
    message = f"{path}: in the folder of {folder}, but by {where} a recording of {other}; move it to its own folder"
    assert str(caught.value).startswith(message)


# ------------------------------------------------------------------------------------------------ folders
def test_links_are_followed_and_may_go_in_circles(tmp_path: Path) -> None:
    fill(tmp_path / "elsewhere", SUBJECTS[:2], 2)
    there = tmp_path / "here" / "set"
    there.mkdir(parents=True)
    for subject in SUBJECTS[:2]:
        (there / subject).symlink_to(tmp_path / "elsewhere" / subject, target_is_directory=True)
    wanted = [there / subject / f"{subject}.rd.{number:03d}" for subject in SUBJECTS[:2] for number in range(2)]
    for number in range(30):  # without a memory, the number of paths would be without a bound
        (there / f"circle-{number}").symlink_to(tmp_path / "here", target_is_directory=True)
        (tmp_path / "elsewhere" / SUBJECT / f"circle-{number}").symlink_to(there, target_is_directory=True)
    assert find(tmp_path / "here") == wanted


def test_a_link_to_a_file_that_is_not_there(tmp_path: Path, cache: Path) -> None:
    fill(tmp_path, SUBJECTS, 1)
    path = tmp_path / SUBJECT / f"{SUBJECT}.rd.001.gz"
    path.symlink_to(tmp_path / ".git" / "annex" / "objects" / "x")
    with pytest.raises(DataError) as caught:
        eeg_uci(seed=0, path=str(tmp_path))
    assert str(caught.value) == (
        f"{path}: a link to a file that does not exist; with git-annex or DataLad get the content first (datalad get), "
        "else fetch or unpack it again"
    )


def test_only_files_named_as_recordings_in_folders_named_as_subjects_count(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    wanted = [write(deep, GOOD, number=number, packed=number > 0) for number in range(2)]
    for name in ("README", f"{SUBJECT}/README_ingber", f"{SUBJECT}/{SUBJECT}.rd.01", f"other/{SUBJECT}.rd.000"):
        (deep / name).parent.mkdir(exist_ok=True)
        (deep / name).write_text("no recording")
    write(deep / ".unfinished", GOOD)
    assert find(tmp_path) == wanted
    assert find(deep / SUBJECT) == wanted


def test_failed_trials_and_empty_files_are_left_out_with_one_warning(tmp_path: Path, cache: Path) -> None:
    fill(tmp_path / "set", SUBJECTS, 1)
    subject = SUBJECTS[4]
    for number in (5, 6):
        content = text(draw(number), subject=subject, condition="S2 match err")
        write(tmp_path / "set", content, subject=subject, number=number)
    write(tmp_path / "set", "", subject=subject, number=7, packed=True)
    write(tmp_path / "set", GOOD[: GOOD.index("# FP1")].replace(SUBJECT, subject), subject=subject, number=8)
    for _ in ("parsed", "from the cache"):
        with pytest.warns(DataWarning) as caught:
            data = eeg_uci(seed=0, path=str(tmp_path / "set"))
        assert [str(one.message) for one in caught] == [
            f"eeg_uci: 2 trials marked err were left out, the first is {subject}/{subject}.rd.005; "
            f"2 empty files were left out, the first is {subject}/{subject}.rd.007.gz"
        ]
        assert caught[0].filename == __file__
        assert sum(map(len, parts(data))) == 20


def test_trials_of_another_length_are_refused(tmp_path: Path, cache: Path) -> None:
    write(tmp_path, GOOD)
    odd = write(tmp_path, text(draw(0, length=LENGTH + 1)), number=4)
    with pytest.raises(DataError, match=rf"{odd}: 9 samples a channel, {SUBJECT}/{SUBJECT}.rd.003 has 8"):
        eeg_uci(seed=0, path=str(tmp_path))


@pytest.mark.parametrize("there", ["train", "test"])
def test_one_set_alone_warns_once_unless_asked_for(tmp_path: Path, cache: Path, there: Any) -> None:
    fill(tmp_path / SETS[there], SUBJECTS, 1)
    (other,) = {"train", "test"} - {there}
    with pytest.warns(DataWarning) as caught:
        eeg_uci(seed=0, path=str(tmp_path))
    assert [str(one.message) for one in caught] == [
        f"eeg_uci: only {SETS[there]} is there, no recording of {SETS[other]} was found; "
        f"data.recordings={there} says that this is meant"
    ]
    eeg_uci(seed=0, path=str(tmp_path), recordings=there)


def test_equal_trials_are_kept_once_the_one_of_train(tmp_path: Path, cache: Path) -> None:
    for folder, trials in (("SMNI_CMI_TRAIN", 2), ("SMNI_CMI_TEST", 3)):
        fill(tmp_path / folder, SUBJECTS, trials)
    with pytest.warns(DataWarning) as caught:
        data = eeg_uci(seed=0, path=str(tmp_path), split="uci", standardise="none", validation=0.5)
    assert str(caught[0].message) == "eeg_uci: 40 trials that repeat another one byte for byte were left out"
    assert_disjoint(data, 60)
    assert [len(part) for part in parts(data)] == [20, 20, 20]
    assert eeg_uci(seed=0, path=str(tmp_path), recordings="test").source.endswith("60 trials of 20 subjects")


def test_trials_are_sorted_by_set_subject_and_number(small: str) -> None:
    found = read_all(Path(small), find(Path(small)))
    keys = list(zip(found.origin.tolist(), found.subject.tolist(), found.trial.tolist(), strict=True))
    assert keys == sorted(keys, key=lambda key: (key[0] == "test", *key))
    assert Counter(found.origin.tolist()) == {"train": 120, "test": 48}
    number = keys.index(("test", SUBJECTS[11], 7))
    assert np.array_equal(found.values[number], (33 + 12 * draw(11007)).round(3).astype(np.float32))


def test_a_folder_without_recordings_says_how_to_get_them(tmp_path: Path, cache: Path) -> None:
    for path, message in (
        (str(tmp_path / "nowhere"), "no such file or folder"),
        (str(tmp_path), "no recordings such as co2a0000364"),
        (None, r"\$FNE_DATA \(not set\)"),
    ):
        with pytest.raises(DataError, match=message) as caught:
            eeg_uci(seed=0, path=path)
        assert "data.download=true" in str(caught.value)
        assert "10.24432/C5TS3D" in str(caught.value)


# ------------------------------------------------------------------------------------------------ cache
def test_parsed_files_are_kept_until_one_changes(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path / "set", SUBJECTS[:3] + SUBJECTS[10:13], 1)

    def read() -> tuple[Dataset, bool]:
        data = made(str(tmp_path / "set"), folds=3, standardise="none")
        captured = capsys.readouterr()
        assert not captured.out
        assert captured.err in ("", f"eeg_uci: reading 6 files once, then kept in {cache / 'eeg_uci'}\n")
        return data, bool(captured.err)

    first, parsed = read()
    assert parsed
    again, parsed = read()
    assert not parsed
    assert all(torch.equal(a.x, b.x) and torch.equal(a.y, b.y) for a, b in zip(parts(first), parts(again), strict=True))

    (kept,) = (cache / "eeg_uci").iterdir()
    whole = kept.read_bytes()
    bit = whole.index(first.train.x[0].numpy().tobytes())
    for broken in (whole[:1000], b"", whole[:bit] + bytes([whole[bit] ^ 1]) + whole[bit + 1 :]):
        kept.write_bytes(broken)
        again, parsed = read()
        assert parsed
        assert torch.equal(first.train.x, again.train.x)
        assert kept.read_bytes() == whole

    values = draw(77)
    path = write(tmp_path / "set", text(values, subject=SUBJECTS[11], trial=0), subject=SUBJECTS[11], number=0)
    os.utime(path, ns=(1, 1))  # changed within the clock's resolution, perhaps
    again, parsed = read()
    assert parsed
    assert values.astype(np.float32).tobytes() in set.union(*map(rows, parts(again)))
    assert len(list((cache / "eeg_uci").iterdir())) == 1


def test_a_cache_that_cannot_be_written_only_warns(small: str, tmp_path: Path, cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.warns(DataWarning, match="parsed files cannot be kept .* each start parses them again") as caught:
        data = eeg_uci(seed=0, path=small)
    assert caught[0].filename == __file__
    assert sum(map(len, parts(data))) == 168
