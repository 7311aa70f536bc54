"""Registry of all named objects: strategies, models, data sets, problems, partitions, engines, node tasks.

A decorated class or function in a file of its own adds an object:

    @register("model", "cnn")
    class CNN(nn.Module):
        def __init__(self, shape, outputs, *, width: Annotated[int, Key("filters", ge=1)] = 16): ...

The keyword-only parameters are the object's settings, or groups of settings; their annotations and defaults are the
only declaration. The catalogue *reads* them from the source (`fne.config.declarations`), so that `fne list`, `fne show`
and a config error need not import torch (2 s); the object itself is imported when it is used.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.metadata
import importlib.util
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from fne.config.declarations import Scope, Setting, declared, packing
from fne.config.settings import Key, either, model_of
from fne.config.traits import check_traits
from fne.core.errors import ConfigError, FneError, did_you_mean

__all__ = ["KINDS", "Entry", "Key", "add_plugin", "catalogue", "declared", "entry", "load", "plugin_digests",
           "register", "settings_model", "traits"]  # fmt: skip

KINDS = ("strategy", "model", "data", "partition", "problem", "engine", "task")
TAKEN = {
    "name": KINDS, "nodes": ("data", "problem"), "partition": ("data",), "shift": ("data",),
    **dict.fromkeys(("noise", "infeasible", "known"), ("problem",)),
}  # fmt: skip
"""Keys of the config section itself, which settings of these kinds cannot use."""

T = TypeVar("T")

_FOLDERS = (
    "fne.strategies", "fne.engines", "fne.models", "fne.data", "fne.data.eeg", "fne.problems", "fne.learning",
    "fne.search", "fne.secure",
)  # fmt: skip
"""Packages whose files register the toolkit's own objects."""


@dataclass(frozen=True)
class Entry:
    """One registered object, as its source declares it."""

    kind: str
    name: str
    module: str
    attribute: str
    file: Path
    line: int
    doc: str
    settings: dict[str, Setting] = field(repr=False)
    """key -> (annotation, default), `...` where there is no default."""
    task: str = "LearningTask"
    """Kind of task of a strategy: the type of its first parameter, `LearningTask`, `SearchTask` or `FrontTask`."""
    traits: dict[str, str] = field(default_factory=dict, repr=False)
    """Declared traits as the source text has them; `True` becomes an empty text, and `False` is left out."""

    @property
    def summary(self) -> str:
        """First sentence of the docstring."""
        return self.doc.strip().split("\n\n")[0].replace("\n", " ").strip()

    @cached_property
    def model(self) -> type[BaseModel]:
        """Pydantic model of the settings, which takes milliseconds to make: unknown keys, NaN, infinity are refused."""
        return model_of(self.name, self.settings)


_registered: dict[tuple[str, str], Any] = {}
_traits: dict[tuple[str, str], dict[str, Any]] = {}
_plugin_entries: dict[tuple[str, str], Entry] = {}
_plugin_files: dict[str, tuple[Path, str]] = {}
"""Module -> file, and SHA-256 of the text that was read."""
_PLUGINS = threading.RLock()
"""Held while plugins are read, imported or looked up: several threads may train with the same plugin."""


def register(kind: str, name: str, **traits: Any) -> Callable[[T], T]:
    """Decorate a class or function to give it a name; two objects of one kind and name are an error.

    An object with groups of settings then takes their fields flat, or the groups themselves.

    Args:
        kind, name: kind and name of the object, as literal strings.
        traits: declarations about the object beside its settings, by the names in `fne.config.traits.TRAITS`.
    """
    if kind not in KINDS:
        raise FneError(f"cannot register {name!r} as {kind!r}: kinds are {', '.join(KINDS)}")

    def decorate(thing: T) -> T:
        check_traits(kind, name, thing.__module__, traits)
        there = _registered.get((kind, name))
        if there is not None and not _same_place(there, thing):
            raise FneError(
                f"{kind} {name!r} is registered twice: in {there.__module__} and in {thing.__module__}; "
                "rename one (a module imported under two names counts as two)"
            )
        thing = packing(thing)
        _registered[kind, name] = thing
        _traits[kind, name] = traits
        return thing

    return decorate


def _same_place(a: Any, b: Any) -> bool:
    return bool(a.__module__ == b.__module__ and a.__qualname__ == b.__qualname__)


def catalogue(kind: str) -> dict[str, Entry]:
    """Return all entries registered under `kind` by name, sorted, without importing the objects."""
    with _PLUGINS:
        found = {**_own_entries(), **_plugin_entries}
    return dict(sorted((name, entry) for (k, name), entry in found.items() if k == kind))


def entry(kind: str, name: str) -> Entry:
    """Return one entry; the error for an unknown name suggests the nearest known name."""
    known = catalogue(kind)
    if name not in known:
        raise FneError(f"unknown {kind} {name!r}{did_you_mean(name, known)} (known: {', '.join(known)})")
    return known[name]


def load(kind: str, name: str) -> Any:
    """Import and return the registered object; it takes the fields of its groups flat."""
    found = entry(kind, name)
    with _PLUGINS:
        _import(found)
        return _registered[kind, name]


def traits(kind: str, name: str) -> Mapping[str, Any]:
    """Import a registered object and return the traits that it was registered with."""
    load(kind, name)
    return _traits.get((kind, name), {})


def settings_model(found: Entry) -> type[BaseModel]:
    """Return a pydantic model of the entry's settings, which refuses unknown keys, NaN and infinities."""
    return found.model


# ------------------------------------------------------------------------------------------------ plugins
def add_plugin(path: Path) -> None:
    """Read a user's file; its entries join the catalogue, the file is imported when one of them is used."""
    path = path.resolve()
    if not path.is_file():
        raise ConfigError([f"plugins: no file {path}; give a path to a Python file"])
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    module = f"fne_plugin_{path.stem}_{digest}"
    with _PLUGINS:
        others = {key: e for key, e in {**_own_entries(), **_plugin_entries}.items() if e.module != module}
        fresh = _gather([(module, path)], others)  # before anything changes: a broken file leaves no trace
        for key in [key for key, e in _plugin_entries.items() if e.module == module]:
            del _plugin_entries[key]  # entries of an earlier reading
        _plugin_entries.update(fresh)
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        if _plugin_files.get(module, (path, content))[1] != content:  # the file was edited after its import
            sys.modules.pop(module, None)
            for key in [key for key, thing in _registered.items() if thing.__module__ == module]:
                del _registered[key]
        _plugin_files[module] = (path, content)


def plugin_digests() -> dict[str, str]:
    """Return file name -> SHA-256 of every plugin in use, for a run's record."""
    with _PLUGINS:
        return {str(path): content for path, content in _plugin_files.values()}


def _import(found: Entry) -> None:
    try:
        if found.module in _plugin_files:
            _import_file(found)
        else:
            importlib.import_module(found.module)
    except Exception as error:
        if found.module.startswith("fne."):
            raise  # a fault of the toolkit
        raise FneError(
            f"plugin {found.file}: {type(error).__name__}: {error}{_line(error, found.file)}; mend the file or install "
            "what it needs"
        ) from error


def _import_file(found: Entry) -> None:
    if found.module in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(found.module, found.file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[found.module] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[found.module]
        raise


def _line(error: Exception, file: Path) -> str:
    """Return ` (line n)`, the line of the file that raised an error; a syntax error names its line itself."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    return f" (line {lines[-1]})" if lines else ""


# ------------------------------------------------------------------------------------------------ reading
@cache
def _own_entries() -> dict[tuple[str, str], Entry]:
    """Return the entries of the toolkit and of installed packages with an entry point in the group `fne.plugins`."""
    sources: list[tuple[str, Path]] = []
    for package in _FOLDERS:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        for folder in spec.submodule_search_locations or ():
            sources += [(f"{package}.{p.stem}", p) for p in sorted(Path(folder).glob("[!_]*.py"))]
    for point in importlib.metadata.entry_points(group="fne.plugins"):
        try:
            spec = importlib.util.find_spec(point.module)
        except ModuleNotFoundError:  # not even the package that holds it
            spec = None
        if spec is None or spec.origin is None:
            raise FneError(f"entry point {point.name!r} of group fne.plugins: no module {point.module!r}")
        sources.append((point.module, Path(spec.origin)))
    return _gather(sources, {})


def _gather(
    sources: Sequence[tuple[str, Path]], others: Mapping[tuple[str, str], Entry]
) -> dict[tuple[str, str], Entry]:
    """Read files; a name that occurs twice, in the files or in `others`, is an error."""
    found: dict[tuple[str, str], Entry] = {}
    for module, path in sources:
        for item in _read(path, module):
            key = (item.kind, item.name)
            other = found.get(key) or others.get(key)
            if other is not None:
                raise ConfigError(
                    [f"{path}:{item.line}: {item.kind} {item.name!r} is registered twice: in {module} and in "
                     f"{other.module} ({other.file}:{other.line}); rename one"]
                )  # fmt: skip
            found[key] = item
    return found


_DECORATORS = {"register", "registry.register", "fne.register", "fne.config.registry.register"}


def _read(path: Path, module: str) -> list[Entry]:
    try:
        text = path.read_text(encoding="utf-8")
        if "register(" not in text:
            return []
        tree = ast.parse(text)
    except (SyntaxError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: not Python that can be read: {error}"]) from None
    found, scope = [], Scope(tree, path)
    for node in tree.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef):
            continue
        for decorator in node.decorator_list:
            if not (isinstance(decorator, ast.Call) and ast.unparse(decorator.func) in _DECORATORS):
                continue
            where = f"{path}:{node.lineno}"
            words = [ast.literal_eval(a) for a in decorator.args if isinstance(a, ast.Constant)]
            if len(words) != 2 or not all(isinstance(w, str) for w in words):
                raise ConfigError([f'{where}: write @register("kind", "name") with two literal strings'])
            kind, name = words
            if kind not in KINDS:
                raise ConfigError([f"{where}: kind {kind!r} must be {either(KINDS)}{did_you_mean(kind, KINDS)}"])
            function = _constructor(node)
            settings = scope.settings(function, where) if function else {}
            for key in settings:
                if kind in TAKEN.get(key, ()) or key.startswith("_"):
                    raise ConfigError([f"{where}: setting {key!r}: a config cannot give it; rename it"])
            doc = ast.get_docstring(node) or ast.get_docstring(tree) or ""
            task, traits = _task(function, node), _declared_traits(decorator)
            found.append(Entry(kind, name, module, node.name, path, node.lineno, doc, settings, task, traits))
    return found


def _declared_traits(decorator: ast.Call) -> dict[str, str]:
    """Return the keywords of a decorator as `Entry.traits` has them."""
    written = {keyword.arg: keyword.value for keyword in decorator.keywords if keyword.arg}
    shown = {
        name: str(value.value) if isinstance(value, ast.Constant) else ast.unparse(value)
        for name, value in written.items()
    }
    return {name: "" if text == "True" else text for name, text in shown.items() if text != "False"}


def _constructor(node: ast.ClassDef | ast.FunctionDef) -> ast.FunctionDef | None:
    """Return the function that makes the object: the function itself, or a class's `__init__` if there is one."""
    if isinstance(node, ast.FunctionDef):
        return node
    made = [item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"]
    return made[-1] if made else None


def _task(function: ast.FunctionDef | None, node: ast.ClassDef | ast.FunctionDef) -> str:
    """Return `SearchTask` or `FrontTask` where that is the type of the first parameter, else `LearningTask`."""
    arguments = [*function.args.posonlyargs, *function.args.args] if function else []
    first = arguments[isinstance(node, ast.ClassDef) :][:1]
    written = ast.unparse(first[0].annotation).strip("'\"") if first and first[0].annotation else ""
    name = written.rpartition(".")[2]
    return name if name in ("SearchTask", "FrontTask") else "LearningTask"
