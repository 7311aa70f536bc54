"""What was read once is kept whole or not at all, for its owner only, and never mistaken for another."""

from __future__ import annotations

import json
import os
import stat
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from fne.core.dataset import FileError, Finding
from fne.core.errors import DataWarning
from fne.core.files import write_atomically
from fne.data.eeg import cache as cache_module
from fne.data.eeg.cache import Cache
from fne.data.eeg.recording import Header, Preprocessing, Source, Windows

FINDINGS = (Finding("flat", "Öz: flat", "channels that vary", "data: {bad_channels: zero}", "repaired"),)
HEADER = Header(
    ("Cz", "Öz"), ("eeg", "eog"), 160.0, 0.1 + 0.2, {"T2": 7, "T1": 8}, 3, -0.2, float(np.float64(1) / 3), FINDINGS,
    {"Öz": "no scale"},
)  # fmt: skip
PROCESSING = Preprocessing(("Cz", "Öz"), 160.0, (("T1", "left"), ("T2", "right")), ("left", "right"))
SOURCE = Source(Path("/data/s1/one.edf"), "s1/one.edf", "s1")


def windows(number: int = 5, seed: int = 0) -> Windows:
    draw = np.random.default_rng(seed)
    x = draw.normal(0, 20, (number, 2, 160)).astype(np.float32)
    return Windows(x, draw.integers(0, 2, number), draw.random(number), FINDINGS)


def assert_equal(one: Windows, other: Windows) -> None:
    for name in ("x", "y", "onset"):
        ours, theirs = getattr(one, name), getattr(other, name)
        assert ours.dtype == theirs.dtype
        assert np.array_equal(ours, theirs)
    assert one.findings == other.findings


def never() -> Windows:
    raise AssertionError("made, though it was kept")


def test_what_was_kept_comes_back_equal(tmp_path: Path) -> None:
    place = tmp_path / "a" / "eeg_files"
    made = windows()
    first = Cache(place).windows("d", SOURCE, PROCESSING, lambda: made)
    again = Cache(place).windows("d", SOURCE, PROCESSING, never)
    for one in (first, again):
        assert_equal(one, made)
        assert isinstance(one.x, np.memmap)
        one.x[0] = 0  # in memory only
    assert_equal(Cache(place).windows("d", SOURCE, PROCESSING, never), made)
    assert Cache(place).header("d", SOURCE, "auto", lambda: HEADER) == HEADER
    kept = Cache(place).header("d", SOURCE, "auto", never)  # type: ignore[arg-type]
    assert kept == HEADER
    assert list(kept.events) == ["T2", "T1"]
    assert [type(getattr(kept, field.name)) for field in fields(Header)] == [
        type(getattr(HEADER, field.name)) for field in fields(Header)
    ]


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    place = tmp_path / "eeg_files"
    Cache(place).windows("d", SOURCE, PROCESSING, windows)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    files = sorted(place.iterdir())
    assert [file.suffix for file in files] == [".json", ".npy"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_nothing_is_kept_without_a_place(tmp_path: Path) -> None:
    path = tmp_path / "one.edf"
    path.write_bytes(b"x")
    cache = Cache(None)
    assert cache.hash_of([path]) == cache.hash_of([path])
    for seed in (0, 1):
        assert_equal(cache.windows("d", SOURCE, PROCESSING, lambda: windows(seed=seed)), windows(seed=seed))  # noqa: B023
    assert cache.header("d", SOURCE, "auto", lambda: HEADER) is HEADER
    assert list(tmp_path.iterdir()) == [path]


def test_it_lies_in_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fne.data.sources.cache_folder", lambda: tmp_path)
    assert cache_module.folder() == tmp_path / "eeg_files"


OTHERS: dict[str, object] = {
    "channels": ("Öz", "Cz"), "rate": 128.0, "labels": (("T2", "right"), ("T1", "left")), "classes": ("right", "left"),
    "events": "stim", "tmin": -0.5, "tmax": 2.0, "length": 1.0, "step": 0.5, "low": 4.0, "high": 38.0, "notch": 50.0,
    "reference": ("Cz",), "scale": 1e-6, "bad_channels": "zero", "moving": True, "reject": 100.0,
}  # fmt: skip


def test_every_setting_makes_other_windows(tmp_path: Path) -> None:
    assert set(OTHERS) == {field.name for field in fields(Preprocessing)}
    cache = Cache(tmp_path)
    cache.windows("d", SOURCE, PROCESSING, windows)
    cases = [("d", SOURCE, replace(PROCESSING, **{name: value})) for name, value in OTHERS.items()]  # type: ignore[arg-type]
    cases += [
        ("e", SOURCE, PROCESSING),
        ("d", replace(SOURCE, label="patient"), PROCESSING),
        ("d", replace(SOURCE, name="s2/one.edf"), PROCESSING),
        ("d", replace(SOURCE, root=Path("/data")), PROCESSING),
    ]
    for number, (digest, source, processing) in enumerate(cases):
        with pytest.raises(ZeroDivisionError):
            cache.windows(digest, source, processing, lambda: 1 // 0)  # type: ignore[arg-type, return-value]
        cache.windows(digest, source, processing, lambda: windows(seed=number))  # noqa: B023
    for number, case in enumerate(cases):
        assert_equal(cache.windows(*case, never), windows(seed=number))


def test_another_version_of_mne_or_of_the_format_makes_them_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Cache(tmp_path).windows("d", SOURCE, PROCESSING, windows)
    for name, value in (("_mne", lambda: "0.1"), ("_VERSION", -1)):
        with monkeypatch.context() as patch:
            patch.setattr(cache_module, name, value)
            made = Cache(tmp_path).windows("d", SOURCE, PROCESSING, lambda: windows(seed=1))
            assert_equal(made, windows(seed=1))


def test_what_cannot_be_made_is_not_kept(tmp_path: Path) -> None:
    def refuse() -> Windows:
        raise FileError(FINDINGS[0])

    with pytest.raises(FileError):
        Cache(tmp_path / "x").windows("d", SOURCE, PROCESSING, refuse)
    assert not (tmp_path / "x").exists()


# ------------------------------------------------------------------------------------------------ damage
def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "value": (".npy", lambda path: flip(path, -2000)),
    "shape": (".npy", lambda path: path.write_bytes(path.read_bytes().replace(b"(5, 2, 160)", b"(5, 160, 2)"))),
    "cut": (".npy", lambda path: path.write_bytes(path.read_bytes()[:-4])),
    "empty": (".npy", lambda path: path.write_bytes(b"")),
    "gone": (".npy", lambda path: path.unlink()),
    "label": (".json", lambda path: path.write_bytes(path.read_bytes().replace(b'"y":[0,', b'"y":[1,'))),
    "facts cut": (".json", lambda path: path.write_bytes(path.read_bytes()[:-9])),
    "facts empty": (".json", lambda path: path.write_bytes(b"{}")),
    "facts gone": (".json", lambda path: path.unlink()),
    "a folder": (".json", lambda path: (path.unlink(), path.mkdir())),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_made_anew(tmp_path: Path, damage: str) -> None:
    Cache(tmp_path).windows("d", SOURCE, PROCESSING, windows)
    assert windows().y[0] == 0
    ending, spoil = DAMAGES[damage]
    path = next(tmp_path.glob(f"*{ending}"))
    before = path.read_bytes()
    spoil(path)
    assert path.is_dir() or not path.exists() or path.read_bytes() != before
    if damage == "a folder":
        with pytest.warns(DataWarning, match="cannot be kept"):
            assert_equal(Cache(tmp_path).windows("d", SOURCE, PROCESSING, windows), windows())
        return
    assert_equal(Cache(tmp_path).windows("d", SOURCE, PROCESSING, windows), windows())
    assert_equal(Cache(tmp_path).windows("d", SOURCE, PROCESSING, never), windows())
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("kind", ["no folder", "full"])
def test_where_nothing_can_be_kept_one_warning_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path = tmp_path / "one.edf"
    path.write_bytes(b"content")
    place = tmp_path / "cache"
    if kind == "no folder":
        place.write_bytes(b"a file where the folder should be")
    else:
        place.mkdir()

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "replace", full)
    cache = Cache(place)
    with pytest.warns(DataWarning, match=r"eeg_files: what was read cannot be kept \(.*\), so each start reads"):
        digest = cache.hash_of([path])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.hash_of([path]) == digest
        assert_equal(cache.windows(digest, SOURCE, PROCESSING, windows), windows())
        assert cache.header(digest, SOURCE, "auto", lambda: HEADER) == HEADER
    assert place.is_file() or not list(place.iterdir())


@pytest.mark.skipif(os.name == "nt" or os.getuid() == 0, reason="the superuser may write everywhere")
def test_a_folder_that_may_only_be_read(tmp_path: Path) -> None:
    Cache(tmp_path).windows("d", SOURCE, PROCESSING, windows)
    tmp_path.chmod(0o500)
    cache = Cache(tmp_path)
    assert_equal(cache.windows("d", SOURCE, PROCESSING, never), windows())
    with pytest.warns(DataWarning, match="cannot be kept"):
        cache.windows("e", SOURCE, PROCESSING, windows)
    tmp_path.chmod(0o700)


def test_two_at_once_do_no_harm(tmp_path: Path) -> None:
    """Each removes what the other has just kept, so that both write all the time."""
    made = windows(200)

    def keep(_: int) -> None:
        for _ in range(40):
            for entry in tmp_path.glob("*.json"):
                entry.unlink(missing_ok=True)
            assert_equal(Cache(tmp_path).windows("d", SOURCE, PROCESSING, lambda: made), made)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(keep, range(2)))
    assert_equal(Cache(tmp_path).windows("d", SOURCE, PROCESSING, never), made)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".npy"]


def test_a_private_file_is_written_by_a_function(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_atomically(path, b"old")
    path.chmod(0o644)
    write_atomically(path, lambda file: file.write(b"new"), private=True)
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", 0o600)
    with pytest.raises(ZeroDivisionError):
        write_atomically(path, lambda _: 1 // 0, private=True)
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (b"new", [path])


# ------------------------------------------------------------------------------------------------ contents
@pytest.fixture
def fast_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Take 20 ms for what files may change in unseen, and return how to wait for longer than that."""
    monkeypatch.setattr(cache_module, "_GRANULARITY", 20_000_000)
    return lambda: time.sleep(0.05)


def tamper(place: Path) -> None:
    """Change the digest that is remembered: so it shows whether a file was read or remembered."""
    (path,) = place.glob("*.json")
    entry = json.loads(path.read_text())
    entry["facts"]["digest"] = "remembered"
    entry["check"] = cache_module._check(cache_module._canonical([entry["facts"], entry["array"]]))
    path.write_text(json.dumps(entry))


def test_a_file_that_did_not_change_is_only_looked_at(tmp_path: Path, fast_clock: Callable[[], None]) -> None:
    path, place = tmp_path / "one.edf", tmp_path / "cache"
    path.write_bytes(b"content")
    fast_clock()
    true = Cache(place).hash_of([path])
    tamper(place)
    remembered = Cache(place).hash_of([path])
    assert remembered != true
    for change in (lambda: path.write_bytes(b"CONTENT"), lambda: path.write_bytes(b"contents"), lambda: os.utime(path)):
        fast_clock()
        change()
        assert Cache(place).hash_of([path]) != remembered
    path.write_bytes(b"content")
    assert Cache(place).hash_of([path]) == true


def test_a_file_that_changed_just_before_it_was_read_is_read_again(tmp_path: Path) -> None:
    """Git's rule: the next change may come within the same tick, and leave the same times and size."""
    path, place = tmp_path / "one.edf", tmp_path / "cache"
    path.write_bytes(b"content")
    true = Cache(place).hash_of([path])
    tamper(place)
    assert Cache(place).hash_of([path]) == true
    os.utime(path, ns=(0, time.time_ns() + 10**15))  # of a clock that is wrong
    assert Cache(place).hash_of([path]) == true
    tamper(place)
    assert Cache(place).hash_of([path]) == true


def test_old_times_do_not_hide_new_content(tmp_path: Path, fast_clock: Callable[[], None]) -> None:
    """As after a copy that keeps times: nobody can set the time of the last change of attributes."""
    path = tmp_path / "one.edf"
    path.write_bytes(b"content")
    os.utime(path, ns=(10**18, 10**18))
    fast_clock()
    cache = Cache(tmp_path / "cache")
    before = cache.hash_of([path])
    path.write_bytes(b"CONTENT")
    os.utime(path, ns=(10**18, 10**18))
    assert cache.hash_of([path]) != before


def test_the_hash_is_of_all_files_their_names_and_their_order(tmp_path: Path) -> None:
    for name, content in (("a", b"1"), ("b", b"2"), ("c", b"1"), ("d", b"12")):
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder").mkdir()
    cache = Cache(None)
    lists = ["a", "b", "c", "d", "ab", "ba", "cb", "", ["folder"], ["folder", "a"]]
    digests = [cache.hash_of([tmp_path / name for name in names]) for names in lists]
    assert len(set(digests)) == len(lists)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a").write_bytes(b"1")
    assert cache.hash_of([tmp_path / "other" / "a"]) == digests[0]
    with pytest.raises(FileNotFoundError):
        cache.hash_of([tmp_path / "nowhere"])
