"""UCI's archives of the EEG Database: fetch one, unpack it, check what is known of it; whole or not at all."""

from __future__ import annotations

import io
import re
import sys
import tarfile
import tempfile
import zlib
from pathlib import Path
from typing import BinaryIO, NoReturn

from fne.core.errors import DataError
from fne.data.eeg.uci_text import FILE_NAME, SETS, SUBJECT, digest, find, parse_all
from fne.data.sources import download

ARCHIVES = "https://archive.ics.uci.edu/ml/machine-learning-databases/eeg-mld"
"""Where `SMNI_CMI_TRAIN.tar.gz` and `SMNI_CMI_TEST.tar.gz` are."""
TRAIN_CONTENT = "1f7543518963559ac7b366a774866ea923e21ce48bf8411fa1083669e16cc40d"
"""`rd_format.digest` of the 600 trials of UCI's TRAIN folder. No such figure is known for TEST."""
FILE_LIMIT, SUBJECT_LIMIT = 16 << 20, 256 << 20
"""Bytes of a file (one has about 0.3 MB) and of a subject's archive that are read into memory at most."""


def fetch_set(name: str, folder: Path) -> None:
    """Fetch UCI's archive of a set to `folder/name`, whole and read once, or not at all.

    Raises:
        DataError: no network or no room, a damaged archive, or not the one that is known.
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
                    f"{url}: not the {name} that is known: the digest of its trials is {content}, expected was "
                    f"{TRAIN_CONTENT}; nothing was kept. Get the files some other way and set data.path"
                )
            _move(fresh, folder / name)
    # A chain of long names makes tarfile call itself.
    except (OSError, EOFError, RecursionError, tarfile.TarError, zlib.error) as error:
        raise DataError(f"{url}: cannot be unpacked into {folder} ({error}); try again") from error


def _move(fresh: Path, place: Path) -> None:
    try:
        fresh.rename(place)
    except OSError:
        if not place.is_dir():  # else another process was faster, and its files are as good
            raise


def unpack(archive: BinaryIO, folder: Path, what: str, *, within: bool = False) -> None:
    """Write the recordings in a .tar.gz, or in subjects' archives within, to `folder/SUBJECT/FILE`; ignore all else.

    Args:
        archive: open for reading in binary.
        folder: made if it is not there.
        what: the archive, as errors name it.
        within: whether it is a subject's archive itself, which may hold no other.

    Raises:
        DataError: a member is too large, or archives are nested deeper.
        tarfile.TarError, OSError, EOFError, RecursionError, zlib.error: it is damaged, or cannot be written.
    """
    with tarfile.open(fileobj=archive, mode="r:gz") as members:
        for member in members:
            name = member.name.rsplit("/", 1)[-1]  # never a path from inside the archive
            match = FILE_NAME.fullmatch(name)
            if not member.isfile() or not (match or re.fullmatch(rf"{SUBJECT}\.tar\.gz", name)):
                continue
            limit = FILE_LIMIT if match else SUBJECT_LIMIT
            if member.size > limit:
                _refuse(what, f"{name} has {member.size} bytes, at most {limit} are read")
            if within and not match:
                _refuse(what, f"{name} is an archive in an archive in an archive")
            content = members.extractfile(member)
            assert content is not None
            if match:
                (folder / match[1]).mkdir(parents=True, exist_ok=True)
                (folder / match[1] / name).write_bytes(content.read())
            else:
                unpack(io.BytesIO(content.read()), folder, f"{what}, {name} in it", within=True)


def _refuse(what: str, why: str) -> NoReturn:
    raise DataError(f"{what}: {why}; nothing was kept. Get the files some other way and set data.path")
