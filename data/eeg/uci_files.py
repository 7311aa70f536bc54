"""Text files of the UCI EEG Database: download and unpack them, find and parse them, and cache the result.

One file is one trial, such as `co2a0000364/co2a0000364.rd.000.gz`, packed or not:

    # co2a0000364.rd
    # 120 trials, 64 chans, 416 samples 368 post_stim samples
    # 3.906000 msecs uV
    # S1 obj , trial 0
    # FP1 chan 0
    0 FP1 0 -8.921          trial, channel, sample, value in microvolts

The second line is wrong about the samples (there are 256), so samples are counted instead.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import math
import os
import re
import sys
import tarfile
import tempfile
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
from numpy.typing import NDArray

from fne.core.errors import DataError, DataWarning
from fne.core.files import write_atomically
from fne.data import sources
from fne.data.sources import download

_ORDER = (
    "FP1 FP2 F7 F8 AF1 AF2 FZ F4 F3 FC6 FC5 FC2 FC1 T8 T7 CZ C3 C4 CP5 CP6 CP1 CP2 P3 P4 PZ P8 P7 PO2 PO1 O2 O1 X "
    "AF7 AF8 F5 F6 FT7 FT8 FPZ FC4 FC3 C6 C5 F2 F1 TP8 TP7 AFZ CP3 CP4 P5 P6 C1 C2 PO7 PO8 FCZ POZ OZ P2 P1 CPZ nd Y"
)
CHANNELS = tuple(_ORDER.split())
"""All 64 channels in the order of the files: 61 on the scalp, X and Y beside the eyes, and the reference `nd`."""
CONDITIONS = ("S1 obj", "S2 match", "S2 nomatch")
SETS = {"train": "SMNI_CMI_TRAIN", "test": "SMNI_CMI_TEST"}
"""UCI's two folders of the 20-subject set; both hold the same subjects."""

SUBJECT = r"co\d[ac]\d{7}"
FILE_NAME = re.compile(rf"({SUBJECT})\.rd\.\d{{3}}(\.gz)?")
_FIRST_LINE = re.compile(rf"#\s*({SUBJECT})\.rd\b")
_TRIAL = re.compile(r"(.*?)\s*,\s*trial\s+(\d+)\s*")
_HEADER_LINES = 4
_VERSION = 2
"""Version of what `_keep` writes; raise it when the same files would be parsed differently."""
_AGAIN = "fetch or unpack it again"
_LIMIT = 1e6
"""One volt in microvolts, which no electrode gives."""
_COUNT = [str(number) for number in range(1024)]
ARCHIVES = "https://archive.ics.uci.edu/ml/machine-learning-databases/eeg-mld"
"""Address of the folder with `SMNI_CMI_TRAIN.tar.gz` and `SMNI_CMI_TEST.tar.gz`."""
TRAIN_CONTENT = "1f7543518963559ac7b366a774866ea923e21ce48bf8411fa1083669e16cc40d"
"""`digest` of the 600 trials of UCI's TRAIN folder; that of TEST is not known."""
FILE_LIMIT, SUBJECT_LIMIT = 16 << 20, 256 << 20
"""Largest size in bytes of a file (0.3 MB are usual) and of a subject's archive that is read into memory."""
Values = NDArray[np.float32]


@dataclass(frozen=True)
class Recordings:
    """N trials sorted by set, subject and trial number, in microvolts at 256 Hz.

    Args:
        values: float32 `[N, 64, T]`, channels in the order of `CHANNELS`.
        subject: names such as `co2a0000364` `[N]`.
        trial: trial numbers int64 `[N]`.
        condition: conditions, from `CONDITIONS` `[N]`.
        origin: `train` or `test` (UCI's folders), or an empty text `[N]`.
        content: digest of each trial's values `[N]`, equal for equal bits.
        failed: files that were left out because their trials are marked `err`.
        empty: files that were left out because they have no values.
    """

    values: Values
    subject: NDArray[np.str_]
    trial: NDArray[np.int64]
    condition: NDArray[np.str_]
    origin: NDArray[np.str_]
    content: NDArray[np.str_]
    failed: NDArray[np.str_]
    empty: NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.values)

    def take(self, index: NDArray[np.int64]) -> Recordings:
        """Return the trials at `index`, copied."""
        names = ("values", "subject", "trial", "condition", "origin", "content")
        return replace(self, **{name: getattr(self, name)[index] for name in names})


# ------------------------------------------------------------------------------------------------ folders
def find(folder: Path) -> list[Path]:
    """Return all recordings below `folder`, sorted: files named as recordings in folders named as subjects.

    Links to folders are followed, but each folder is searched once, since links may form a cycle.
    """
    found, seen = [], set[str]()
    for place, below, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        hidden = [name for name in below if name.startswith(".")]  # a download in progress
        below[:] = [] if real in seen else sorted(set(below).difference(hidden))
        seen.add(real)
        if re.fullmatch(SUBJECT, Path(place).name):
            found += [Path(place) / name for name in names if FILE_NAME.fullmatch(name)]
    return sorted(found)


def read_all(folder: Path, files: Sequence[Path]) -> Recordings:
    """Return the recordings of `files` below `folder`, from the cache if no file has changed since it was written.

    Raises:
        DataError: a file is damaged, missing, in another subject's folder, or of another length than the others.
    """
    stats = [(str(file.relative_to(folder)), _stat(file)) for file in files]
    stamp = json.dumps([_VERSION, [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]])
    place = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    kept = sources.cache_folder() / "eeg_uci" / f"parsed-{place}.npz"  # one a folder, so that old ones do not pile up
    recordings = _kept(kept, stamp)
    if recordings is None:
        print(f"eeg_uci: reading {len(files)} files once, then kept in {kept.parent}", file=sys.stderr)
        recordings = parse_all(folder, files)
        _keep(kept, stamp, recordings)
    return recordings


def _stat(file: Path) -> os.stat_result:
    try:
        return file.stat()
    except OSError as error:
        what = "a link to a file that does not exist" if file.is_symlink() else f"cannot be read ({error})"
        _refuse(file, f"{what}; with git-annex or DataLad get the content first (datalad get), else {_AGAIN}")


def _kept(path: Path, stamp: str) -> Recordings | None:
    try:
        with (
            path.open("rb") as stream,
            np.load(stream, allow_pickle=False) as file,
        ):  # a zip file: its checksums reveal damage
            if str(file["stamp"]) != stamp:
                return None
            return Recordings(**{field.name: file[field.name] for field in fields(Recordings)})
    except Exception:  # missing or damaged, which may raise nearly anything: parse again
        return None


def _keep(path: Path, stamp: str, recordings: Recordings) -> None:
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {field.name: getattr(recordings, field.name) for field in fields(Recordings)}
    np.savez(buffer, stamp=np.array(stamp), **arrays)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, buffer.getvalue(), private=True)  # several runs may write it at once
    except OSError as error:
        if _kept(path, stamp) is not None:
            return  # another process was faster
        text = f"eeg_uci: the parsed files cannot be kept ({error}), so each start parses them again"
        warnings.warn(text, DataWarning, stacklevel=5)  # at the call of the loader


def parse_all(folder: Path, files: Sequence[Path]) -> Recordings:
    """Parse `files` below `folder`; all trials must have as many samples as the first trial."""
    rows: list[tuple[str, str, int, str, str]] = []
    values: list[Values] = []
    failed, empty = [], []
    for file in files:
        trial = parse(file)
        name = str(file.relative_to(folder))
        if trial is None:
            empty.append(name)
        elif trial.condition.endswith(" err"):
            failed.append(name)
        else:
            if values and trial.values.shape != values[0].shape:
                raise DataError(
                    f"{file}: {trial.values.shape[1]} samples a channel, {rows[0][-1]} has {values[0].shape[1]}; "
                    "all trials must be of one length: cut them or leave the file out"
                )
            values.append(trial.values)
            rows.append((_origin(file), file.parent.name, trial.number, trial.condition, name))
    if not rows:
        raise DataError(f"{folder}: {len(files)} recordings, all of them empty or marked err")
    order = sorted(range(len(rows)), key=lambda i: (rows[i][0] == "test", *rows[i]))
    origin, subject, number, condition, _ = zip(*(rows[i] for i in order), strict=True)
    return Recordings(
        np.stack([values[i] for i in order]),
        np.array(subject),
        np.array(number, np.int64),
        np.array(condition),
        np.array(origin),
        np.array([hashlib.blake2b(values[i].tobytes(), digest_size=16).hexdigest() for i in order]),
        np.array(failed, np.str_),
        np.array(empty, np.str_),
    )


def _origin(file: Path) -> str:
    return next((key for key, name in SETS.items() if name in file.parts), "")


def digest(recordings: Recordings) -> str:
    """Return the SHA-256 of the contents of all trials, which does not depend on the form of the files."""
    columns = (recordings.subject, recordings.trial, recordings.condition, recordings.content)
    rows = sorted(zip(*(column.tolist() for column in columns), strict=True))
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


# ------------------------------------------------------------------------------------------------ one file
@dataclass(frozen=True)
class Trial:
    """Contents of a file: trial number, condition, and values in microvolts, float32 `[64, T]`.

    A condition that ends in ` err` has no values.
    """

    number: int
    condition: str
    values: Values


def parse(path: Path) -> Trial | None:
    """Parse one file; return `None` if it has no values at all.

    Raises:
        DataError: the file is damaged, cut off, not of this format, or of another subject than its folder; the error
            names file, line or channel.
    """
    text = _text(path)
    _check_subject(path, text)
    _, *parts = text.split("#")
    blocks = parts[_HEADER_LINES:]
    if not text.strip() or (parts and not blocks and _begins_well(parts)):
        return None
    match = _TRIAL.fullmatch(parts[_HEADER_LINES - 1].strip()) if blocks else None
    if match is None:
        _refuse(path, "line 4 must be such as '# S1 obj , trial 0'; not a recording of this data set")
    condition, number = match[1], match[2]
    if condition.removesuffix(" err") not in CONDITIONS:
        _refuse(path, f"line 4 has condition {condition!r}; known are {', '.join(CONDITIONS)}, each also with err")
    if condition.endswith(" err"):
        return Trial(int(number), condition, np.empty((0, 0), np.float32))
    if not text.endswith("\n"):
        _refuse(path, f"ends in the middle of line {text.count(chr(10)) + 1}: cut off; {_AGAIN}")

    found: dict[str, list[float]] = {}
    for block in blocks:
        name, *rest = block.split(None, 3)
        column = _column(rest[2].split() if len(rest) > 2 else [], number, name)
        if column is None or rest[0] != "chan":
            _find_fault(path, text, number)
        if name not in CHANNELS or name in found:
            _refuse(path, f"channel {name!r} is {'there twice' if name in found else 'unknown'}; {_AGAIN}")
        found[name] = column
    missing = [name for name in CHANNELS if name not in found]
    if missing:
        _refuse(path, f"{len(missing)} channels are missing, the first is {missing[0]!r}: cut off? {_AGAIN}")
    length = len(found[CHANNELS[0]])
    for name, column in found.items():
        if len(column) != length:
            what = f"channel {name!r} has {len(column)} samples, {CHANNELS[0]} has {length}"
            _refuse(path, f"{what}: cut off? {_AGAIN}")
    return Trial(int(number), condition, np.array([found[name] for name in CHANNELS], np.float32))


def _check_subject(path: Path, text: str) -> None:
    """Refuse a file that belongs to another subject, since the folder's name decides the label."""
    owner = path.parent.name
    for match, where in ((FILE_NAME.match(path.name), "its name"), (_FIRST_LINE.match(text), "its first line")):
        if match and match[1] != owner:
            what = f"in the folder of {owner}, but by {where} a recording of {match[1]}"
            _refuse(path, f"{what}; move it to its own folder, or {_AGAIN}")


def _text(path: Path) -> str:
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        return content.decode("ascii")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        _refuse(path, f"cannot be read ({error}); {_AGAIN}")


def _begins_well(parts: Sequence[str]) -> bool:
    """Return whether a file without channels is a header and nothing else."""
    return len(parts) == _HEADER_LINES and _TRIAL.fullmatch(parts[-1].strip()) is not None


def _column(tokens: list[str], number: str, name: str) -> list[float] | None:
    """Return the values of a channel from the words of its lines, or `None` if any line is wrong."""
    length = len(tokens) // 4
    expected = _COUNT[:length] if length <= len(_COUNT) else [str(sample) for sample in range(length)]
    if len(tokens) % 4 or not length or tokens[2::4] != expected:
        return None
    if tokens[0::4].count(number) != length or tokens[1::4].count(name) != length:
        return None
    try:
        values = list(map(float, tokens[3::4]))
    except ValueError:
        return None
    return values if min(values) > -_LIMIT and max(values) < _LIMIT and not math.isnan(sum(values)) else None


def _find_fault(path: Path, text: str, number: str) -> NoReturn:
    """Raise `DataError` for the line that `_column` rejected."""
    name, sample = "", 0
    for line, content in enumerate(text.splitlines(), 1):
        words = content.split()
        if content.startswith("#"):
            if line > _HEADER_LINES:
                if len(words) != 4 or words[2] != "chan":
                    _refuse(path, f"line {line}: {content[:40]!r} must be such as '# FP1 chan 0'; {_AGAIN}")
                if name and not sample:
                    break
                name, sample = words[1], 0
        elif words:
            wanted = f"'{number} {name} {sample} VALUE', a number in microvolts"
            if words[:3] != [number, name, str(sample)] or len(words) != 4 or not _is_value(words[3]):
                _refuse(path, f"line {line}, channel {name!r}: {content[:40]!r} must be {wanted}; {_AGAIN}")
            sample += 1
    _refuse(path, f"channel {name!r} has no values; {_AGAIN}")


def _is_value(word: str) -> bool:
    try:
        return abs(float(word)) < _LIMIT
    except ValueError:
        return False


def _refuse(path: Path, why: str) -> NoReturn:
    raise DataError(f"{path}: {why}")


# ------------------------------------------------------------------------------------------------ archives
def fetch_set(name: str, folder: Path) -> None:
    """Download UCI's archive of a set and unpack it to `folder/name`; a failure leaves nothing behind.

    Raises:
        DataError: there is no network or no space, or the archive is damaged or not the known one.
    """
    url = f"{ARCHIVES}/{name}.tar.gz"
    print(f"eeg_uci: fetching {url}", file=sys.stderr)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".") as scratch:
            fresh = Path(scratch) / name
            with download(url, Path(scratch)).open("rb") as archive:
                unpack(archive, fresh, url)
            content = digest(parse_all(fresh, find(fresh)))
            if name == SETS["train"] and content != TRAIN_CONTENT:
                raise DataError(
                    f"{url}: not the known {name}: the digest of its trials is {content}, expected was "
                    f"{TRAIN_CONTENT}; nothing was kept. Get the files some other way and set data.path"
                )
            _move(fresh, folder / name)
    # A chain of long names makes tarfile recurse.
    except (OSError, EOFError, RecursionError, tarfile.TarError, zlib.error) as error:
        raise DataError(f"{url}: cannot be unpacked into {folder} ({error}); try again") from error


def _move(fresh: Path, place: Path) -> None:
    try:
        fresh.rename(place)
    except OSError:
        if not place.is_dir():  # another process was faster, and its files are equal
            raise


def unpack(archive: BinaryIO, folder: Path, what: str, *, within: bool = False) -> None:
    """Write the recordings of a .tar.gz, or of subjects' archives in it, to `folder/SUBJECT/FILE`; ignore the rest.

    Args:
        archive: archive, open for binary reading.
        folder: target folder, which is made if it does not exist.
        what: name of the archive in errors.
        within: whether this is a subject's archive, which must not contain another archive.

    Raises:
        DataError: a member is too large, or archives are nested too deeply.
        tarfile.TarError, OSError, EOFError, RecursionError, zlib.error: the archive is damaged, or a file cannot be
            written.
    """
    with tarfile.open(fileobj=archive, mode="r:gz") as members:
        for member in members:
            name = member.name.rsplit("/", 1)[-1]  # never a path from the archive
            match = FILE_NAME.fullmatch(name)
            if not member.isfile() or not (match or re.fullmatch(rf"{SUBJECT}\.tar\.gz", name)):
                continue
            limit = FILE_LIMIT if match else SUBJECT_LIMIT
            if member.size > limit:
                _refuse_archive(what, f"{name} has {member.size} bytes, at most {limit} are read")
            if within and not match:
                _refuse_archive(what, f"{name} is an archive in an archive in an archive")
            content = members.extractfile(member)
            assert content is not None
            if match:
                (folder / match[1]).mkdir(parents=True, exist_ok=True)
                (folder / match[1] / name).write_bytes(content.read())
            else:
                unpack(io.BytesIO(content.read()), folder, f"{what}, {name} in it", within=True)


def _refuse_archive(what: str, why: str) -> NoReturn:
    raise DataError(f"{what}: {why}; nothing was kept. Get the files some other way and set data.path")
