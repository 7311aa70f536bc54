"""Atomic file writes and digests: a file is replaced as a whole, or grows by whole pieces."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import secrets
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO

from fne.core.errors import CheckpointError, WriteError

DIGEST = "digest"
"""Key, in a line of JSON, of the digest of all other values of the line."""
DIGESTS = "results.sha256"
"""File in a run folder with the digests of the run's results."""
CHANGED = f"was changed or damaged: it is not the file that {DIGESTS} knows"
_REMEDY = "make room or mend the folder, then go on from the last checkpoint (--resume)"


@contextlib.contextmanager
def writing(path: Path, remedy: str = _REMEDY) -> Iterator[None]:
    """Turn an `OSError`, such as a full disk, into a `WriteError` that names the file and says what to do."""
    try:
        yield
    except OSError as error:
        raise WriteError(f"cannot write {path}: {error.strerror or error}; {remedy}") from error


def append(file: IO[bytes], data: bytes) -> None:
    """Append all of `data` to an unbuffered file; on any error the file keeps its former length."""
    start, left = file.tell(), memoryview(data)
    try:
        while left:
            left = left[file.write(left) or 0 :]
    except BaseException:
        with contextlib.suppress(OSError):  # a reader passes over half a piece otherwise
            file.truncate(start)
            file.seek(start)
        raise


def write_atomically(
    path: Path, data: bytes | Callable[[BinaryIO], object], *, private: bool = False, flush: bool = True
) -> None:
    """Replace `path` by `data`; on any error, a full disk included, the old file stays and no scratch file remains.

    An `OSError` names `path`.

    Args:
        path: path of the file, in a folder that exists.
        data: the content, or a function that writes the content to an open file.
        private: the file is for its owner only (mode 0600), and several processes may write it at once.
        flush: the file is flushed to disk, so that it outlasts a power cut; not needed where readers detect incomplete
            files.
    """
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp" if private else f".{path.name}.tmp")
    try:
        with open(scratch, "wb", opener=_private if private else None) as file:
            if isinstance(data, bytes):
                file.write(data)
            else:
                data(file)
            if flush:
                file.flush()
                os.fsync(file.fileno())
        os.replace(scratch, path)
    except BaseException as error:
        if isinstance(error, OSError):
            error.filename = str(path)  # the one that the user knows
        scratch.unlink(missing_ok=True)
        raise
    if not flush:
        return
    with contextlib.suppress(OSError):  # Windows opens no folder, some file systems flush none
        _flush_folder(path.parent)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _flush_folder(folder: Path) -> None:
    """Flush a folder, so that a renaming in it outlasts a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def torch_bytes(state: Any) -> bytes:
    """Return `state` as `torch.save` writes it; read it back with `weights_only=True`."""
    import torch

    buffer = io.BytesIO()  # into memory first: torch reports a full disk as an internal error, the file system does not
    torch.save(state, buffer)
    return buffer.getvalue()


def read_torch(path: Path) -> Any:
    """Return what `torch_bytes` made, on the CPU.

    Raises:
        CheckpointError: the file is damaged, even if only one bit of a tensor differs.
    """
    import torch

    try:
        with zipfile.ZipFile(path) as archive:  # torch writes checksums, and does not verify them
            bad = archive.testzip()
        if bad is not None:
            raise zipfile.BadZipFile(f"the checksum of {bad} does not match")
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(
            f"{path}: not a checkpoint that can be read ({type(error).__name__}: {str(error)[:200]}); "
            "restore the file or start a new run"
        ) from None


def with_digest(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain values of a line of JSON with their digest, by which a reader detects changes."""
    return {**tree, DIGEST: _digest_of(tree)}


def without_digest(tree: Any) -> dict[str, Any]:
    """Return the values without their digest; raises `ValueError` for anything that `with_digest` did not make."""
    if not isinstance(tree, dict):
        raise ValueError("it is no mapping")
    plain = {key: value for key, value in tree.items() if key != DIGEST}
    if tree.get(DIGEST) != _digest_of(plain):
        raise ValueError("its digest does not fit")
    return plain


def _digest_of(tree: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:16]


def digests(files: Mapping[str, bytes]) -> bytes:
    """Return the text of `DIGESTS` for files by name, in the format of `sha256sum -c`."""
    return "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in sorted(files.items())).encode()


def damaged(folder: Path) -> list[Path]:
    """Return the files of a run folder whose digests differ from the recorded ones; missing files are left out."""
    with contextlib.suppress(FileNotFoundError):
        known = (folder / DIGESTS).read_text(encoding="utf-8", errors="replace").splitlines()
        names = {line.partition("  ")[2] for line in known}
        return [path for path in sorted(folder.iterdir()) if path.name in names and not _intact(path)]
    return []


def _intact(path: Path) -> bool:
    try:
        verified(path)
    except ValueError:
        return False
    return True


def verified(path: Path) -> bytes:
    """Return the content of a run's result file.

    Raises:
        ValueError: the recorded digest of the file is a different one.
        OSError: the file cannot be read.
    """
    data = path.read_bytes()
    try:
        lines = path.with_name(DIGESTS).read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:  # only the file was copied
        return data
    if f"{hashlib.sha256(data).hexdigest()}  {path.name}" not in lines:
        raise ValueError(f"it {CHANGED}")
    return data
