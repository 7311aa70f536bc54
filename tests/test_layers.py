"""Imports run downward only: read from the source, so that function-level imports count, too."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {"fne": ROOT / "fne", "fne.models": ROOT / "models", "fne.data": ROOT / "data"}

LAYERS = (
    ("fne.core",),
    ("fne.config",),
    ("fne.evolution", "fne.surrogates", "fne.problems", "fne.privacy", "fne.models", "fne.data"),
    ("fne.federation",),
    ("fne.secure",),
    ("fne.learning", "fne.search"),
    ("fne.strategies", "fne.engines"),
    ("fne.watch", "fne.loop"),
    ("fne.run",),
    ("fne.cli", "fne.optimizer", "fne.extend", "fne"),
)
"""The folders from the ground up. A module imports modules of its own folder, and of folders on its layer and below."""

NEVER = {
    "fne.strategies": ("fne.strategies", "fne.engines", "fne.models", "fne.data"),
    "fne.engines": ("fne.strategies", "fne.models", "fne.data"),
    "fne.models": ("fne.data", "fne.evolution", "fne.surrogates", "fne.problems", "fne.privacy"),
    "fne.data": ("fne.models", "fne.evolution", "fne.surrogates", "fne.problems", "fne.privacy"),
}
"""What the layers alone would permit. Strategies do not import each other either."""


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def folder(module: str) -> str | None:
    """Return the folder of the table that a module belongs to; `fne` itself holds no other module."""
    names = [name for layer in LAYERS for name in layer if name != "fne"]
    return next((name for name in names if within(module, name)), "fne" if module == "fne" else None)


def layer(module: str) -> int | None:
    return next((number for number, names in enumerate(LAYERS) if folder(module) in names), None)


def modules() -> dict[str, Path]:
    found = {}
    for package, folder in FOLDERS.items():
        for path in sorted(folder.rglob("*.py")):
            parts = (*package.split("."), *path.relative_to(folder).with_suffix("").parts)
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def statements(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if is_type_checking(node) and child not in node.orelse:  # type: ignore[attr-defined]
            continue
        yield child
        yield from statements(child)


def imports(source: str, module: str, is_package: bool, known: set[str]) -> Iterator[tuple[int, str]]:
    """Yield the line and the module of each import of the toolkit."""
    for node in statements(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")[: len(module.split(".")) - node.level + is_package] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{origin}.{a.name}" if f"{origin}.{a.name}" in known else origin for a in node.names]
        for name in names:
            if within(name, "fne") and name != "fne":
                yield node.lineno, name  # type: ignore[attr-defined]


def complaint(module: str, target: str) -> str:
    """Say why `module` must not import `target`, or nothing."""
    own, other = folder(module), folder(target)
    assert own is not None
    if other is None:
        return "it is in no layer; give its folder one in tests/test_layers.py"
    if any(within(target, name) for name in NEVER.get(own, ())) and module != target:
        return f"{own} never imports {other}"
    above = next(names for names in LAYERS if other in names)
    return f"{own} never imports {other}, which is above it" if LAYERS.index(above) > layer(module) else ""  # type: ignore[operator]


MODULES = modules()


@pytest.mark.parametrize("module", MODULES)
def test_no_module_is_long(module: str) -> None:
    assert len(MODULES[module].read_text().splitlines()) <= 500, (
        "a module is one idea: look again whether this one is two"
    )


@pytest.mark.parametrize("module", MODULES)
def test_imports_run_downward(module: str) -> None:
    path = MODULES[module]
    assert layer(module) is not None, f"{module} is in no layer; give it one in tests/test_layers.py"
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {module} imports {target}: {why}"
        for line, target in imports(path.read_text(), module, path.stem == "__init__", set(MODULES))
        if (why := complaint(module, target))
    ]
    assert not wrong, "\n".join(wrong)


def edges() -> dict[str, set[str]]:
    """Return the modules that each module imports."""
    return {
        module: {name for _, name in imports(path.read_text(), module, path.stem == "__init__", set(MODULES))}
        for module, path in MODULES.items()
    }


@pytest.mark.parametrize("of_folders", [False, True], ids=["modules", "folders"])
def test_nothing_imports_itself_in_a_ring(of_folders: bool) -> None:
    """Within a layer imports are free, but they never run round in a ring, of modules or of folders."""
    arrows: dict[str, set[str]] = {}
    for module, names in edges().items():
        own = folder(module) if of_folders else module
        assert own is not None
        others = {folder(name) or name for name in names} if of_folders else names
        arrows.setdefault(own, set()).update(others - {own})
    done: set[str] = set()

    def visit(one: str, above: tuple[str, ...]) -> None:
        assert one not in above, f"imports in a ring: {' -> '.join([*above, one])}"
        if one not in done:
            for name in sorted(arrows.get(one, ())):
                visit(name, (*above, one))
            done.add(one)

    for one in sorted(arrows):
        visit(one, ())


@pytest.mark.parametrize(
    ("module", "source", "expected"),
    [
        ("fne.core.files", "from fne.evolution.genome import Layout",
         "fne.core never imports fne.evolution, which is above it"),
        ("fne.core.files", "def f():\n    import fne.loop", "fne.core never imports fne.loop, which is above it"),
        ("fne.core.files", "if TYPE_CHECKING:\n    from fne.evolution.genome import Layout", ""),
        ("fne.core.files", "if TYPE_CHECKING:\n    pass\nelse:\n    import fne.loop",
         "fne.core never imports fne.loop, which is above it"),
        ("fne.strategies.a", "from fne.strategies import b", "fne.strategies never imports fne.strategies"),
        ("fne.strategies.a", "from . import b", "fne.strategies never imports fne.strategies"),
        ("fne.strategies.a", "from fne.engines.local import X", "fne.strategies never imports fne.engines"),
        ("fne.strategies.a", "from fne import core, evolution, learning", ""),
        ("fne.federation.node", "from fne import loop", "fne.federation never imports fne.loop, which is above it"),
        ("fne.models.a", "from fne.models import image_layers", ""),
        ("fne.models.a", "from fne.evolution import losses", "fne.models never imports fne.evolution"),
        ("fne.watch.a", "import fne.run.learning_run", "fne.watch never imports fne.run, which is above it"),
        ("fne.watch.a", "from ..engines import local", ""),
        ("fne.watch.a", "import torch", ""),
        ("fne.cli.main", "import fne.data.mnist, fne.models.cnn", ""),
        ("fne.loop", "import fne.new", "it is in no layer; give its folder one in tests/test_layers.py"),
    ],
)  # fmt: skip
def test_the_rules_themselves(module: str, source: str, expected: str) -> None:
    known = {name for layer in LAYERS for name in layer} | {
        "fne.strategies.b", "fne.engines.local", "fne.models.image_layers", "fne.evolution.losses",
    }  # fmt: skip
    found = {complaint(module, target) for _, target in imports(source, module, False, known)} - {""}
    assert found == ({expected} if expected else set())


def test_every_folder_says_what_belongs_there() -> None:
    for module, path in MODULES.items():
        if path.stem == "__init__" and module != "fne":
            title, _, rest = ast.get_docstring(ast.parse(path.read_text())).partition("\n\n")  # type: ignore[arg-type]
            assert title.endswith("."), path
            assert rest.endswith("."), f"{path}: say in a second sentence what does not belong there"


def test_the_page_on_the_architecture_has_the_table() -> None:
    rows = re.findall(
        r"^\| (\d+) \| `([\w/]+)/` \| (.+) \|$", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE
    )
    expected = []
    for number, names in enumerate(LAYERS, 1):
        for name in names:
            place = name.removeprefix("fne.") if name in FOLDERS else name.replace(".", "/")
            path = ROOT / place / "__init__.py"
            if name != "fne" and path.is_file():
                title = ast.get_docstring(ast.parse(path.read_text())).partition("\n\n")[0]  # type: ignore[union-attr]
                expected.append((str(number), place, " ".join(title.split())))
    assert rows == expected


def test_the_picture_of_a_request_is_drawn_from_the_code() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "picture.py"), "--check"], capture_output=True, text=True, check=False,
        cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
