"""Downloads of the UCI EEG archives: whole or nothing, and no archive of anything else."""

from __future__ import annotations

import gzip
import io
import shutil
import tarfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

from fne.core.errors import DataError
from fne.data.eeg.uci import eeg_uci
from fne.data.eeg.uci_files import FILE_LIMIT, SETS, SUBJECT_LIMIT, TRAIN_CONTENT, digest, fetch_set, find, parse_all
from fne.data.sources import download
from tests.data.eeg.uci_parts import GOOD, SUBJECT

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[tuple[str, Path]]:
    """Address of a server on this host, and the folder it serves; with a parameter, to so many clients at once."""
    folder = tmp_path / "served"
    both = threading.Barrier(request.param, timeout=60) if hasattr(request, "param") else None
    folder.mkdir()
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            if both is not None:
                both.wait()
            super().do_GET()

        def end_headers(self) -> None:
            if "cut" in self.path:  # promise more than there is
                self._headers_buffer = [  # type: ignore[attr-defined,has-type]
                    b"Content-Length: 999\r\n" if line.startswith(b"Content-Length") else line
                    for line in self._headers_buffer  # type: ignore[has-type]
                ]
            super().end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder))) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        monkeypatch.setattr("fne.data.eeg.uci_files.ARCHIVES", f"http://127.0.0.1:{http.server_port}")
        yield f"http://127.0.0.1:{http.server_port}", folder
        http.shutdown()
        thread.join(10)


@pytest.mark.network
def test_download_is_whole_or_nothing(server: tuple[str, Path], tmp_path: Path) -> None:
    url, folder = server
    (folder / "file").write_bytes(b"abc")
    (folder / "cut").write_bytes(b"abc")
    known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, of "abc"
    target = tmp_path / "new" / "target"
    for name, sha256, message in (
        ("nothing", None, "nothing: the download into .* failed .*404.*set data.path"),
        ("cut", None, "cut: 3 of 999 bytes arrived"),
        ("file", "0" * 64, f"file: not the known file: its SHA-256 is {known}, expected was {'0' * 64}"),
    ):
        with pytest.raises(DataError, match=message):
            download(f"{url}/{name}", target, sha256=sha256, timeout=10)
        assert list(target.iterdir()) == []
    assert download(f"{url}/file", target, sha256=known).read_bytes() == b"abc"
    assert [path.name for path in target.iterdir()] == ["file"]


@pytest.mark.network
def test_download_without_a_server(server: tuple[str, Path], tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as http:
        port = http.server_port  # free again, and nobody listens, after this block
    with pytest.raises(DataError, match=rf"http://127.0.0.1:{port}/x: the download .* failed"):
        download(f"http://127.0.0.1:{port}/x", tmp_path, timeout=10)


def pack(source: Path, target: Path, *, nested: bool) -> None:
    """Write an archive like UCI's, with members that must not be followed."""
    with tarfile.open(target, "w:gz") as archive:
        for folder in sorted(source.iterdir()):
            if not nested:
                archive.add(folder, f"{source.name}/{folder.name}")
                continue
            inner = io.BytesIO()
            with tarfile.open(fileobj=inner, mode="w:gz") as within:
                within.add(folder, folder.name)
            member = tarfile.TarInfo(f"{source.name}/{folder.name}.tar.gz")
            member.size = len(inner.getvalue())
            archive.addfile(member, io.BytesIO(inner.getvalue()))
        for name in ("README", "../outside.txt", "/outside.txt"):
            archive.addfile(tarfile.TarInfo(name))
        link = tarfile.TarInfo(f"{source.name}/{SUBJECT}/{SUBJECT}.rd.999")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        archive.addfile(link)


@pytest.mark.network
@pytest.mark.parametrize("nested", [False, True])
def test_missing_sets_are_fetched_into_the_cache(
    small: str, server: tuple[str, Path], cache: Path, monkeypatch: pytest.MonkeyPatch, nested: bool
) -> None:
    sets = ("SMNI_CMI_TEST", "SMNI_CMI_TRAIN")
    for name in sets:
        pack(Path(small) / name, server[1] / f"{name}.tar.gz", nested=nested)

    with pytest.raises(DataError, match="eeg_uci: not found"):
        eeg_uci(seed=0)
    train = Path(small) / "SMNI_CMI_TRAIN"
    right = digest(parse_all(train, find(train)))
    with pytest.raises(DataError, match=f"not the known SMNI_CMI_TRAIN: .* is {right}, .* {TRAIN_CONTENT}"):
        eeg_uci(seed=0, download=True)
    assert list((cache / "eeg_uci").iterdir()) == []

    monkeypatch.setattr("fne.data.eeg.uci_files.TRAIN_CONTENT", right)
    fetched, given = eeg_uci(seed=0, download=True), eeg_uci(seed=0, path=small)
    assert torch.equal(fetched.train.x, given.train.x)
    assert find(cache) == [cache / "eeg_uci" / path.relative_to(small) for path in find(Path(small))]
    assert {p.name for p in (cache / "eeg_uci").iterdir() if p.is_dir()} == set(sets)
    assert not list(cache.parent.rglob("outside.txt"))

    for name in sets:  # nothing is fetched that is there
        (server[1] / f"{name}.tar.gz").unlink()
    assert torch.equal(eeg_uci(seed=0, download=True).train.x, given.train.x)
    shutil.rmtree(cache / "eeg_uci" / "SMNI_CMI_TEST")
    with pytest.raises(DataError, match=r"SMNI_CMI_TEST.tar.gz: the download"):
        eeg_uci(seed=0, download=True)


@pytest.mark.network
@pytest.mark.parametrize("server", [2], indirect=True)
def test_two_downloads_at_once(small: str, server: tuple[str, Path], cache: Path) -> None:
    """Both are served at the same time and unpack; the slower one takes what the faster one has put there."""
    pack(Path(small) / SETS["test"], server[1] / f"{SETS['test']}.tar.gz", nested=False)
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(fetch_set, SETS["test"], cache / "eeg_uci") for _ in range(2)]:
            done.result(60)
    assert [path.name for path in (cache / "eeg_uci").iterdir()] == [SETS["test"]]
    assert len(find(cache)) == len(find(Path(small) / SETS["test"]))


def member(name: str, content: bytes) -> tuple[tarfile.TarInfo, io.BytesIO]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    return info, io.BytesIO(content)


def archive(*members: tuple[tarfile.TarInfo, io.BytesIO]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as file:
        for info, content in members:
            file.addfile(info, content)
    return buffer.getvalue()


def header_alone(name: str, size: int) -> bytes:
    """Return an archive that promises `size` bytes and ends."""
    info = tarfile.TarInfo(name)
    info.size = size
    return gzip.compress(info.tobuf())


def long_names(number: int) -> bytes:
    """Return an archive of nothing but announcements of a long name."""
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 1
    return gzip.compress((info.tobuf(tarfile.GNU_FORMAT) + b"x".ljust(512, b"\0")) * number)


NESTED = f"{SUBJECT}.tar.gz"
FILE = f"{SUBJECT}.rd.000"


@pytest.mark.network
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<html>sorry</html>", "cannot be unpacked into"),
        (header_alone(FILE, FILE_LIMIT + 1), f"gz: {FILE} has 16777217 bytes, at most 16777216 are read; nothing was"),
        (header_alone(FILE, FILE_LIMIT), "cannot be unpacked into"),
        (
            header_alone(NESTED, SUBJECT_LIMIT + 1),
            f"gz: {NESTED} has 268435457 bytes, at most 268435456 are read; nothing",
        ),
        (
            archive(member(NESTED, header_alone(FILE, FILE_LIMIT + 1))),
            f"gz, {NESTED} in it: {FILE} has 16777217 bytes",
        ),
        (
            archive(member(NESTED, archive(member(NESTED, archive(member(FILE, GOOD.encode())))))),
            f"gz, {NESTED} in it: {NESTED} is an archive in an archive in an archive; nothing was kept",
        ),
        (long_names(3000), "cannot be unpacked into"),
    ],
    ids=[
        "a page",
        "a long file",
        "nothing of a file",
        "a long subject",
        "a long file within",
        "too deep",
        "long names",
    ],
)
def test_a_download_that_is_no_archive_of_recordings(
    server: tuple[str, Path], cache: Path, content: bytes, message: str
) -> None:
    (server[1] / "SMNI_CMI_TRAIN.tar.gz").write_bytes(content)
    with pytest.raises(DataError, match=rf"SMNI_CMI_TRAIN.tar.{message if message[:2] == 'gz' else 'gz: ' + message}"):
        eeg_uci(seed=0, download=True)
    assert list((cache / "eeg_uci").iterdir()) == []
