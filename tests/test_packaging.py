"""What is installed: a wheel made from an sdist holds every package, config and marker, and nothing else."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MAPPED = {"models": "fne.models", "data": "fne.data", "configs": "fne.configs"}


def places() -> dict[str, Path]:
    """Return each file of the packages by its name in a wheel."""
    found = {"fne/py.typed": ROOT / "fne" / "py.typed"}
    for top, package in {"fne": "fne", **MAPPED}.items():
        for path in (*(ROOT / top).rglob("*.py"), *(ROOT / top).rglob("*.yaml")):
            found[f"{package.replace('.', '/')}/{path.relative_to(ROOT / top).as_posix()}"] = path
    return found


def test_every_folder_is_listed() -> None:
    """setuptools is given the packages by name: a new folder that is not listed would be missing from the wheel."""
    found = {Path(name).parent.as_posix().replace("/", ".") for name in places() if name.endswith("/__init__.py")}
    assert sorted(PROJECT["tool"]["setuptools"]["packages"]) == sorted(found)


def test_links_lead_to_each_folder_once() -> None:
    links = [ROOT / "src" / "fne", *(ROOT / "fne" / top for top in MAPPED)]
    assert {path for path in (*ROOT.glob("*"), *ROOT.glob("fne/*")) if path.is_symlink()} == set(links[1:])
    assert [link.resolve() for link in links] == [ROOT / top for top in ("fne", *MAPPED)]
    assert [path.name for path in (ROOT / "src").iterdir() if path.suffix != ".egg-info"] == ["fne"]


def test_the_command_and_the_version() -> None:
    import fne

    assert PROJECT["project"]["version"] == fne.__version__
    assert PROJECT["project"]["scripts"] == {"fne": "fne.cli.main:main"}


def tracked() -> list[str]:
    """Return the files and links of the sources, as Git knows them; a new one counts before it is committed."""
    asked = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    if asked.returncode:
        pytest.skip("not a git clone: what belongs to the sources is not known")
    return [name for name in asked.stdout.splitlines() if os.path.lexists(ROOT / name)]


def checkout(folder: Path, *, links: bool) -> Path:
    """Copy the sources as Git checks them out, with links or, where Windows does not permit links, text files."""
    for name in tracked():
        path, copy = ROOT / name, folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_symlink():
            copy.write_bytes(path.read_bytes())
        elif links:
            copy.symlink_to(path.readlink())
        else:
            copy.write_text(path.readlink().as_posix())
    return folder


@pytest.fixture(scope="module", params=[True, False], ids=["links", "no_links"])
def built(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[str], list[str], dict[str, str]]:
    """Return the names in an sdist, those in a wheel made from it, and the wheel's metadata files."""
    copy = checkout(tmp_path_factory.mktemp("source"), links=request.param)
    out = tmp_path_factory.mktemp("built")
    make(f"build_sdist({str(out)!r})", copy)
    (archive,) = out.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        source = [member.name.partition("/")[2] for member in tar.getmembers() if not member.isdir()]
        assert not [member.name for member in tar.getmembers() if member.issym() or member.islnk()]
        tar.extractall(out, filter="data")
    make(f"build_wheel({str(out)!r})", out / archive.name.removesuffix(".tar.gz"))
    names, info = read_wheel(out)
    return source, names, info


def read_wheel(folder: Path) -> tuple[list[str], dict[str, str]]:
    """Return the names in a folder's wheel and the texts of its metadata files and `.pth` files."""
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        info = [name for name in names if ".dist-info/" in name or name.endswith(".pth")]
        return names, {Path(name).name: file.read(name).decode() for name in info}


def make(call: str, folder: Path) -> None:
    """Call the build backend that pyproject.toml names, as pip does, without an environment of its own."""
    pytest.importorskip("setuptools", minversion="77", reason="pyproject.toml asks for setuptools >= 77")
    backend = PROJECT["build-system"]["build-backend"]
    code = f"import {backend} as backend; backend.{call}"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]


def test_wheel_holds_all_packages_and_configs(built: tuple[list[str], list[str], dict[str, str]]) -> None:
    _, names, _ = built
    files = [name for name in names if ".dist-info/" not in name]
    assert sorted(files) == sorted(places())


def test_wheel_has_one_top_level_and_the_command(built: tuple[list[str], list[str], dict[str, str]]) -> None:
    _, names, info = built
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"fne"}
    assert info["top_level.txt"].split() == ["fne"]
    assert "fne = fne.cli.main:main" in info["entry_points.txt"]
    assert "Name: federated-neuroevolution\n" in info["METADATA"]
    assert "License-Expression: Apache-2.0\n" in info["METADATA"]
    assert f"Version: {PROJECT['project']['version']}" in info["METADATA"]
    assert "Requires-Python: >=3.11" in info["METADATA"]


def test_sdist_holds_what_a_user_needs(built: tuple[list[str], list[str], dict[str, str]]) -> None:
    source, _, _ = built
    for name in ("pyproject.toml", "setup.py", "train.py", "README.md", "CHANGELOG.md", "LICENSE"):
        assert name in source
    for name, path in places().items():  # below src/ where there are links, else where the clone has it
        assert sum(entry in (f"src/{name}", path.relative_to(ROOT).as_posix()) for entry in source) == 1, name


def test_an_editable_install_is_a_plain_path(tmp_path: Path) -> None:
    """Type checkers follow a path and run no import hook; and nothing but `fne` can be imported from it."""
    copy = checkout(tmp_path / "clone", links=True)
    make(f"build_editable({str(tmp_path)!r})", copy)
    names, info = read_wheel(tmp_path)
    (link,) = [name for name in names if ".dist-info/" not in name]
    assert info[link].strip() == str(copy / "src")
    assert [path.name for path in (copy / "src").iterdir() if path.suffix != ".egg-info"] == ["fne"]
    assert all((copy / "src" / name).is_file() for name in places())


ON_THE_INDEX = re.compile(r"""fne\\?\[\w|\bpip3?\s+install\b[^\n`#]*?[\s'"](?:fne|federated-neuroevolution)\b""")


def test_nobody_is_sent_to_the_package_index() -> None:
    """On the index `fne` is another project: whoever reads the sources is told to install from the clone."""
    for text in ("'fne[bids]'", r"'fne\[moo\]'", "pip install fne", "pip install -U 'fne>=1'", 'pip install "fne"'):
        assert ON_THE_INDEX.search(text)
    assert not ON_THE_INDEX.search("pip install -e '.[bids]'  # then fne data check")
    found = []
    for name in tracked():
        path = ROOT / name
        if path.is_file() and path.suffix != ".png" and path != Path(__file__):
            lines = path.read_text(encoding="utf-8").splitlines()
            found += [f"{name}:{line}: {text}" for line, text in enumerate(lines, 1) if ON_THE_INDEX.search(text)]
    assert found == []


def test_no_second_import_path() -> None:
    """The clone's `models` and `data` are packages under `fne` only; found at top level they would load twice."""
    code = "import importlib.util as u; print([n for n in ('models', 'configs') if u.find_spec(n)])"
    done = subprocess.run([sys.executable, "-c", code], cwd="/", capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
    for name in MAPPED.values():
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
