"""Everything that has a name: strategies, models, data sets, partitions, engines, node tasks.

Adding one is a decorated class or function in a file of its own:

    @register("model", "cnn")
    class CNN(nn.Module):
        def __init__(self, shape, outputs, *, width: Annotated[int, Key("filters", ge=1)] = 16): ...

Keyword-only parameters are its settings; their annotations and defaults are the only declaration. The
catalogue *reads* them from the source, so that `fne list`, `fne show` and a config error need not import
torch (2 s); the object itself is imported when it is used. Settings are therefore literals, in the words of
`_VOCABULARY`.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel

from fne.config.settings import Key, either, model_of
from fne.core.errors import ConfigError, FneError, did_you_mean

__all__ = ["KINDS", "Entry", "Key", "add_plugin", "catalogue", "declared", "entry", "load", "plugin_digests",
           "register", "settings_model", "traits"]  # fmt: skip

KINDS = ("strategy", "model", "data", "partition", "problem", "engine", "task")
RESERVED = {"seed"}
"""Keyword-only parameters that the toolkit passes itself."""
TAKEN = {
    "name": KINDS, "nodes": ("data", "problem"), "partition": ("data",), "shift": ("data",),
    **dict.fromkeys(("noise", "infeasible", "known"), ("problem",)),
}  # fmt: skip
"""Keys of the config section itself, which no setting of these kinds can have."""

TRAITS: dict[str, tuple[str, ...]] = {"task": ("payload", "charge", "protocol")}
"""Traits that each kind may declare. Of a node task `payload` is what it yields, see `fne.federation.payloads`;
`charge` what an answer tells under noise: a function of the request, the node's name and the number of nodes whose
noise is in what the server sees, which returns `fne.privacy.policy.Release`s; `protocol` whether it is a part of secure
sums, which carry other tasks."""

T = TypeVar("T")

_FOLDERS = (
    "fne.strategies", "fne.engines", "fne.models", "fne.data", "fne.data.eeg", "fne.problems", "fne.learning",
    "fne.search", "fne.secure",
)  # fmt: skip
"""Packages whose files register things of the toolkit."""

_VOCABULARY: dict[str, Any] = {
    "Annotated": Annotated, "Literal": Literal, "Key": Key,
    "int": int, "float": float, "str": str, "bool": bool, "list": list, "tuple": tuple, "dict": dict,
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One registered thing, as its source declares it."""

    kind: str
    name: str
    module: str
    attribute: str
    file: Path
    line: int
    doc: str
    settings: dict[str, tuple[Any, Any]] = field(repr=False)
    """key -> (annotation, default), `...` where there is no default."""
    task: str = "LearningTask"
    """What a strategy is for: the type of its first parameter, `LearningTask`, `SearchTask` or `FrontTask`."""

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
"""Module -> file and SHA-256 of what was read."""
_PLUGINS = threading.RLock()
"""Held while plugins are read, imported or looked up: several threads may train with the same one."""


def register(kind: str, name: str, **traits: Any) -> Callable[[T], T]:
    """Decorate a class or function to give it a name; two things of one kind and name are an error.

    Args:
        kind, name: what is registered, as literal strings.
        traits: what is declared of the thing beside its settings, by the names in `TRAITS`.
    """
    if kind not in KINDS:
        raise FneError(f"cannot register {name!r} as {kind!r}: kinds are {', '.join(KINDS)}")
    unknown = sorted(traits.keys() - set(TRAITS.get(kind, ())))
    if unknown:
        known = ", ".join(TRAITS.get(kind, ())) or "no traits"
        raise FneError(f"cannot register {kind} {name!r} with {unknown[0]!r}: a {kind} declares {known}")

    def decorate(thing: T) -> T:
        there = _registered.get((kind, name))
        if there is not None and not _same_place(there, thing):
            raise FneError(
                f"{kind} {name!r} is registered twice: in {there.__module__} and in {thing.__module__}; "
                "rename one (a module imported under two names counts as two)"
            )
        _registered[kind, name] = thing
        _traits[kind, name] = traits
        return thing

    return decorate


def _same_place(a: Any, b: Any) -> bool:
    return bool(a.__module__ == b.__module__ and a.__qualname__ == b.__qualname__)


def catalogue(kind: str) -> dict[str, Entry]:
    """Return everything registered under `kind` by name, sorted, without importing it."""
    with _PLUGINS:
        found = {**_own_entries(), **_plugin_entries}
    return dict(sorted((name, entry) for (k, name), entry in found.items() if k == kind))


def entry(kind: str, name: str) -> Entry:
    """Return one entry; an unknown name is an error that names the nearest."""
    known = catalogue(kind)
    if name not in known:
        raise FneError(f"unknown {kind} {name!r}{did_you_mean(name, known)} (known: {', '.join(known)})")
    return known[name]


def load(kind: str, name: str) -> Any:
    """Import and return the registered object."""
    found = entry(kind, name)
    with _PLUGINS:
        _import(found)
        return _registered[kind, name]


def traits(kind: str, name: str) -> Mapping[str, Any]:
    """Import a registered object and return the traits that it was registered with."""
    load(kind, name)
    return _traits.get((kind, name), {})


def settings_model(found: Entry) -> type[BaseModel]:
    """Return a pydantic model of the entry's settings: unknown keys, NaN and infinities are refused."""
    return found.model


def declared(thing: Any) -> dict[str, tuple[Any, Any]]:
    """Return the settings of an imported object by inspection; a test holds the catalogue to them."""
    signature = inspect.signature(thing)
    return {
        name: (_annotation(p.annotation, name), ... if p.default is p.empty else p.default)
        for name, p in signature.parameters.items()
        if p.kind is p.KEYWORD_ONLY and name not in RESERVED
    }


def _annotation(annotation: Any, name: str) -> Any:
    """Return what an annotation means; it is text where its module postpones evaluation."""
    if not isinstance(annotation, str):
        return annotation
    return _evaluate(ast.parse(annotation, mode="eval").body, "", name)


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
            del _plugin_entries[key]  # of an earlier reading
        _plugin_entries.update(fresh)
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        if _plugin_files.get(module, (path, content))[1] != content:  # edited since it was imported
            sys.modules.pop(module, None)
            for key in [key for key, thing in _registered.items() if thing.__module__ == module]:
                del _registered[key]
        _plugin_files[module] = (path, content)


def plugin_digests() -> dict[str, str]:
    """Return file name -> SHA-256 of every plugin in use, for the record of a run."""
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
    """Return ` (line n)`, where in the file an error came up; a syntax error says so itself."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    return f" (line {lines[-1]})" if lines else ""


# ------------------------------------------------------------------------------------------------ reading
@cache
def _own_entries() -> dict[tuple[str, str], Entry]:
    """Entries of the toolkit and of installed packages with an entry point in the group `fne.plugins`."""
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
    """Read files; a name that is there already, in them or in `others`, is an error."""
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
    found = []
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
            settings = _settings(function, where) if function else {}
            for key in settings:
                if kind in TAKEN.get(key, ()) or key.startswith("_"):
                    raise ConfigError([f"{where}: setting {key!r}: a config cannot give it; rename it"])
            doc = ast.get_docstring(node) or ast.get_docstring(tree) or ""
            task = _task(function, node)
            found.append(Entry(kind, name, module, node.name, path, node.lineno, doc, settings, task))
    return found


def _constructor(node: ast.ClassDef | ast.FunctionDef) -> ast.FunctionDef | None:
    """Return what makes the thing: the function itself, or a class's `__init__` if it has one."""
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


def _settings(function: ast.FunctionDef, where: str) -> dict[str, tuple[Any, Any]]:
    settings: dict[str, tuple[Any, Any]] = {}
    for argument, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        if argument.arg in RESERVED:
            continue
        if argument.annotation is None:
            raise ConfigError([f"{where}: setting {argument.arg!r} has no annotation; give it its type"])
        value = ... if default is None else _evaluate(default, where, argument.arg, text=True)
        settings[argument.arg] = (_evaluate(argument.annotation, where, argument.arg), value)
    return settings


_LITERALS = (
    ast.Constant, ast.Name, ast.Subscript, ast.Tuple, ast.List, ast.Dict, ast.keyword, ast.Load,
    ast.UnaryOp, ast.USub, ast.UAdd, ast.Not, ast.BinOp, ast.BitOr, ast.Call,
)  # fmt: skip
"""What a declaration may consist of: to read a plugin must neither run its code nor take long."""


def _check_literal(node: ast.AST, text: bool) -> None:
    """Raise `ValueError` for what is no declaration; `text`: whether strings are values here, not names of types."""
    if not isinstance(node, _LITERALS):
        raise ValueError(f"{type(node).__name__} is not allowed")
    if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id == "Key"):
        raise ValueError("only Key may be called")
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and not text:
        raise ValueError("a type in quotes is not allowed")  # it would be evaluated as Python
    literal = isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Literal"
    for child in ast.iter_child_nodes(node):
        _check_literal(child, text or literal or isinstance(node, ast.Call))


def _evaluate(expression: ast.expr, where: str, key: str, *, text: bool = False) -> Any:
    try:
        _check_literal(expression, text)
        code = compile(ast.Expression(expression), where, "eval")
        return eval(code, {"__builtins__": {}}, _VOCABULARY)
    except Exception as error:
        raise ConfigError(
            [f"{where}: setting {key!r}: {ast.unparse(expression)} is not a literal declaration ({error}); "
             f"use {', '.join(_VOCABULARY)} and literal values"]
        ) from None  # fmt: skip
