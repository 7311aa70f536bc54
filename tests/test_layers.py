"""Imports run downward only: read from the source, so that function-level imports count, too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {"fne": ROOT / "fne", "fne.models": ROOT / "models", "fne.data": ROOT / "data"}

LAYERS = {
    "fne.errors": 0, "fne.types": 0, "fne.randomness": 0, "fne.settings": 0, "fne.registry": 0,
    "fne.yamltext": 0, "fne.sections": 0, "fne.config": 0, "fne.files": 0, "fne.space": 0,
    "fne.calling": 0, "fne.members": 0, "fne.stopping": 0, "fne.terminal": 0,
    "fne.findings": 0,
    "fne.evolution": 1, "fne.surrogates": 1, "fne.objective": 1, "fne.privacy": 1,
    "fne.drawing": 0, "fne.quiet": 0, "fne.allocation": 0, "fne.trust": 0,
    "fne.augment": 1, "fne.payloads": 1, "fne.wire": 1, "fne.device": 1,
    "fne.validation": 1, "fne.measuring": 1, "fne.own_problems": 1,
    "fne.node": 2, "fne.tasks": 2, "fne.gather": 2, "fne.averaging": 2, "fne.asking": 2, "fne.evolving": 2,
    "fne.private_averaging": 2, "fne.secure": 2, "fne.secure_tasks": 2, "fne.secure_checks": 2,
    "fne.archive": 2, "fne.descent": 2, "fne.finals": 2, "fne.front_tasks": 2,
    "fne.front_choice": 2, "fne.front_search": 2, "fne.front_settings": 2,
    "fne.tradeoffs": 2, "fne.tradeoff_genes": 2, "fne.tradeoff_tasks": 2, "fne.relaying": 2, "fne.releasing": 2,
    "fne.codec": 2, "fne.swarming": 2, "fne.queries": 2, "fne.searching": 2, "fne.value_search": 2,
    "fne.strategies": 3, "fne.engines": 3,
    "fne.loop": 4, "fne.watch": 4,
    "fne.experiment": 5, "fne.search": 5, "fne.optimizer": 5, "fne.finishing": 5, "fne.runfolder": 5,
    "fne.training": 5, "fne.arguments": 5, "fne.cli": 5, "fne.cli_data": 5,
    "fne.checking": 5, "fne.models": 5, "fne.data": 5, "fne": 5,
}  # fmt: skip
"""Of a module or package, the longest name that fits; a module imports its own layer and those below."""

ONLY = {
    "fne.models": ("fne.registry", "fne.types", "fne.errors", "fne.randomness", "fne.models"),
    "fne.data": (
        "fne.registry",
        "fne.types",
        "fne.errors",
        "fne.files",
        "fne.randomness",
        "fne.findings",
        "fne.quiet",
        "fne.data",
    ),
}
"""Leaves of the tree: all that they may import of the toolkit."""

NEVER = {
    "fne.strategies": ("fne.strategies", "fne.engines", "fne.models", "fne.data"),
    "fne.engines": ("fne.strategies", "fne.models", "fne.data"),
}
"""What a layer alone would permit."""


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def layer(module: str) -> int | None:
    fitting = [name for name in LAYERS if within(module, name) and (name != "fne" or module == "fne")]
    return LAYERS[max(fitting, key=len)] if fitting else None


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
    for package, allowed in ONLY.items():
        if within(module, package) and not any(within(target, name) for name in allowed):
            return f"{package} imports only {', '.join(allowed)}"
    for package, refused in NEVER.items():
        hit = next((name for name in refused if within(target, name)), None)
        if within(module, package) and hit and module != target:
            return f"{package} never imports {hit}"
    own, other = layer(module), layer(target)
    assert own is not None
    if other is None:
        return "it is in no layer; give it one in tests/test_layers.py"
    return f"layer {own} never imports layer {other}" if other > own else ""


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


def test_no_module_imports_itself_in_a_ring() -> None:
    """Within a layer imports are free, but never round in a ring."""
    edges = {
        module: {name for _, name in imports(path.read_text(), module, path.stem == "__init__", set(MODULES))}
        for module, path in MODULES.items()
    }
    done: set[str] = set()

    def visit(module: str, above: tuple[str, ...]) -> None:
        assert module not in above, f"imports in a ring: {' -> '.join([*above, module])}"
        if module not in done:
            for name in sorted(edges.get(module, set()) - {module}):
                visit(name, (*above, module))
            done.add(module)

    for module in sorted(edges):
        visit(module, ())


@pytest.mark.parametrize(
    ("module", "source", "expected"),
    [
        ("fne.types", "from fne.evolution.genome import Layout", "layer 0 never imports layer 1"),
        ("fne.types", "def f():\n    import fne.loop", "layer 0 never imports layer 4"),
        ("fne.types", "if TYPE_CHECKING:\n    from fne.evolution.genome import Layout", ""),
        (
            "fne.types",
            "if TYPE_CHECKING:\n    pass\nelse:\n    import fne.loop",
            "layer 0 never imports layer 4",
        ),
        ("fne.strategies.a", "from fne.strategies import b", "fne.strategies never imports fne.strategies"),
        ("fne.strategies.a", "from . import b", "fne.strategies never imports fne.strategies"),
        ("fne.strategies.a", "from fne.engines.local import X", "fne.strategies never imports fne.engines"),
        ("fne.strategies.a", "from fne import evolution, node, tasks", ""),
        ("fne.node", "from fne import loop", "layer 2 never imports layer 4"),
        ("fne.models.a", "from fne.models import layers", ""),
        (
            "fne.models.a",
            "from fne.evolution import fitness",
            "fne.models imports only fne.registry, fne.types, fne.errors, fne.randomness, fne.models",
        ),
        ("fne.watch.a", "import fne.experiment", "layer 4 never imports layer 5"),
        ("fne.watch.a", "from ..engines import local", ""),
        ("fne.watch.a", "import torch", ""),
        ("fne.cli", "import fne.data.mnist, fne.models.cnn", ""),
        ("fne.loop", "import fne.new", "it is in no layer; give it one in tests/test_layers.py"),
    ],
)
def test_the_rules_themselves(module: str, source: str, expected: str) -> None:
    known = {*LAYERS, "fne.strategies.b", "fne.engines.local", "fne.models.layers", "fne.evolution.fitness"}
    found = {complaint(module, target) for _, target in imports(source, module, False, known)} - {""}
    assert found == ({expected} if expected else set())
