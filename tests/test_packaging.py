"""What is installed: a wheel made from an sdist holds every package, config and marker, and nothing else."""

from __future__ import annotations

import importlib.util
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


def test_every_folder_is_listed() -> None:
    """setuptools is given the packages by name: a new folder that is not listed would be missing from the wheel."""
    found = set()
    for top in ("fne", *MAPPED):
        for init in (ROOT / top).rglob("__init__.py"):
            parts = init.parent.relative_to(ROOT).parts
            found.add(".".join((MAPPED.get(parts[0], parts[0]), *parts[1:])))
    tool = PROJECT["tool"]["setuptools"]
    assert sorted(tool["packages"]) == sorted(found)
    assert tool["package-dir"] == {"fne": "fne", **{name: folder for folder, name in MAPPED.items()}}


def test_the_command_and_the_version() -> None:
    import fne

    assert PROJECT["project"]["version"] == fne.__version__
    assert PROJECT["project"]["scripts"] == {"fne": "fne.cli:main"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[str], dict[str, str]]:
    """Return the names in an sdist, those in a wheel made from it, and the wheel's metadata files."""
    pytest.importorskip("setuptools", minversion="70.1", reason="setuptools >= 70.1 makes wheels by itself")
    copy, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    tracked = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("not a git clone: what belongs to the sources is not known")
    for name in tracked.stdout.splitlines():
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    make(f"build_sdist({str(out)!r})", copy)
    (archive,) = out.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        source = [name.partition("/")[2] for name in tar.getnames()]
        tar.extractall(out, filter="data")
    make(f"build_wheel({str(out)!r})", out / archive.name.removesuffix(".tar.gz"))
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        info = {Path(name).name: file.read(name).decode() for name in names if ".dist-info/" in name}
    return source, names, info


def make(call: str, folder: Path) -> None:
    """Call the build backend that pyproject.toml names, as pip does, without an environment of its own."""
    backend = PROJECT["build-system"]["build-backend"]
    code = f"import {backend} as backend; backend.{call}"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]


def test_wheel_holds_all_packages_and_configs(built: tuple[list[str], list[str], dict[str, str]]) -> None:
    _, names, _ = built
    expected = {"fne/py.typed"}
    for top in ("fne", *MAPPED):
        place = MAPPED.get(top, top).replace(".", "/")
        for path in (*(ROOT / top).rglob("*.py"), *(ROOT / top).rglob("*.yaml")):
            expected.add(f"{place}/{path.relative_to(ROOT / top).as_posix()}")
    files = {name for name in names if ".dist-info/" not in name}
    assert sorted(files) == sorted(expected)


def test_wheel_has_one_top_level_and_the_command(built: tuple[list[str], list[str], dict[str, str]]) -> None:
    _, names, info = built
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"fne"}
    assert info["top_level.txt"].split() == ["fne"]
    assert "fne = fne.cli:main" in info["entry_points.txt"]
    assert f"Version: {PROJECT['project']['version']}" in info["METADATA"]
    assert "Requires-Python: >=3.11" in info["METADATA"]


def test_sdist_holds_what_a_user_needs(built: tuple[list[str], list[str], dict[str, str]]) -> None:
    source, _, _ = built
    there = [name for name in ("train.py", "README.md", "CHANGELOG.md", "LICENSE") if (ROOT / name).exists()]
    assert [name for name in ("pyproject.toml", *there) if name not in source] == []
    assert {f"configs/{path.name}" for path in (ROOT / "configs").glob("*.yaml")} <= set(source)


def test_no_second_import_path() -> None:
    """The clone's `models` and `data` are packages under `fne` only; found at top level they would load twice."""
    code = "import importlib.util as u; print([n for n in ('models', 'configs') if u.find_spec(n)])"
    done = subprocess.run([sys.executable, "-c", code], cwd="/", capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
    for name in MAPPED.values():
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
