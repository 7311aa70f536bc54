"""Declarations of settings: literal annotations with defaults, alone or as the fields of a group.

A group is a frozen dataclass whose fields are settings. A registered object takes the group as one keyword-only
parameter, the catalogue shows the group's fields in the place of that parameter, and `packing` makes the instance from
flat settings. Declarations are read from the source without running the source, or from the imported object; both ways
give the same settings.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_origin, get_type_hints

from fne.config import groups
from fne.config.settings import Key
from fne.core.errors import ConfigError, FneError

T = TypeVar("T")

Setting = tuple[Any, Any]
"""Annotation and default of a setting, `...` where there is no default."""

RESERVED = {"seed"}
"""Keyword-only parameters that the toolkit passes itself."""

VOCABULARY: dict[str, Any] = {
    "Annotated": Annotated, "Literal": Literal, "Key": Key,
    "int": int, "float": float, "str": str, "bool": bool, "list": list, "tuple": tuple, "dict": dict,
}  # fmt: skip

_PLACE = f"one of {groups.__name__}, or a frozen dataclass of the same file"


def flattened(group: type) -> dict[str, Setting]:
    """Return the settings of a group by name, in the order of the dataclass: fields of its bases come first.

    Raises:
        FneError: the group is no frozen dataclass, or a field cannot be a setting; the text says what to do.
    """
    name = group.__name__
    if not (is_dataclass(group) and group.__dataclass_params__.frozen):  # type: ignore[attr-defined]
        raise FneError(f"group {name!r} is no frozen dataclass; write @dataclass(frozen=True) above it")
    hints = get_type_hints(group, include_extras=True)
    settings: dict[str, Setting] = {}
    for field in fields(group):
        if field.name in RESERVED:
            raise FneError(f"group {name!r}: the toolkit passes {field.name!r}; make it a parameter beside the group")
        if field.default_factory is not MISSING or not field.init:
            raise FneError(f"group {name!r}: {field.name!r} needs a literal default, or none; leave field(...) out")
        settings[field.name] = (hints[field.name], ... if field.default is MISSING else field.default)
    return settings


# ------------------------------------------------------------------------------------------------ imported things
def declared(thing: Any) -> dict[str, Setting]:
    """Return the settings of an imported object by inspection; a test compares the catalogue with these settings."""
    made, names = _groups(thing), _globals(thing)
    settings: dict[str, Setting] = {}
    for name, p in inspect.signature(thing).parameters.items():
        if name in made:
            settings |= flattened(made[name])
        elif p.kind is p.KEYWORD_ONLY and name not in RESERVED:
            settings[name] = (_meaning(p.annotation, name, names), ... if p.default is p.empty else p.default)
    return settings


def packing(thing: T) -> T:
    """Return an object that also accepts the fields of its groups as flat settings, and makes the groups of them.

    An object without groups is returned as it is; for a class the constructor is replaced.

    Raises:
        FneError: the dataclass in a parameter's annotation cannot be a group.
    """
    made = _groups(thing)
    keys = {name: tuple(flattened(group)) for name, group in made.items()}

    def packed(settings: dict[str, Any]) -> dict[str, Any]:
        groups = {name: settings[name] for name, group in made.items() if isinstance(settings.get(name), group)}
        flat = {key: value for key, value in settings.items() if key not in groups}
        for name in made.keys() - groups:
            groups[name] = made[name](**{key: flat.pop(key) for key in keys[name] if key in flat})
        return flat | groups

    def wrapped(call: Callable[..., Any]) -> Any:
        return functools.wraps(call)(lambda *given, **settings: call(*given, **packed(settings)))

    if isinstance(thing, type):
        if made and "__init__" in vars(thing):
            thing.__init__ = wrapped(thing.__init__)  # type: ignore[misc]
        return thing
    return wrapped(thing) if made and callable(thing) else thing


def _groups(thing: Any) -> dict[str, type]:
    """Return the groups that an object takes, by parameter."""
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):  # compiled code may not expose its parameters
        return {}
    names = _globals(thing)
    meant = {p.name: names.get(p.annotation, p.annotation) if isinstance(p.annotation, str) else p.annotation
             for p in parameters if p.kind is p.KEYWORD_ONLY}  # fmt: skip
    return {name: group for name, group in meant.items() if isinstance(group, type) and is_dataclass(group)}


def _globals(thing: Any) -> Mapping[str, Any]:
    """Return the names for evaluating the annotations of a function or of a class's constructor."""
    function = getattr(thing, "__init__", None) if isinstance(thing, type) else thing
    names: Mapping[str, Any] = getattr(inspect.unwrap(function) if function else None, "__globals__", {})
    return names


def _meaning(annotation: Any, key: str, names: Mapping[str, Any]) -> Any:
    """Return an annotation's value; the annotation is text where its module postpones evaluation."""
    if not isinstance(annotation, str):
        return annotation
    expression = ast.parse(annotation, mode="eval").body
    used = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}
    return _evaluate(expression, "", key, {name: names[name] for name in used if name in names})


# ------------------------------------------------------------------------------------------------ source
_GROUPED = (groups.__name__, "fne.extend")
"""Modules from which a file can import groups: that of the groups, and that of plugins, which hands them on."""


class Scope:
    """Names that the declarations of one source file may use beside the vocabulary, read without running the file.

    These are aliases and groups that the file imports from `fne.config.groups` or `fne.extend`, its own `NAME =
    Annotated[...]` and `NAME = Literal[...]`, and its own frozen dataclasses.
    """

    def __init__(self, tree: ast.Module, path: Path) -> None:
        self._path = path
        self._words: dict[str, Any] = {}
        self._groups: dict[str, type] = {}
        self._classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        self._elsewhere: dict[str, str] = {}
        for node in tree.body:
            if isinstance(node, ast.Assign):
                self._add_alias(node)
            if not isinstance(node, ast.ImportFrom):
                continue
            for alias in node.names:
                value = vars(groups).get(alias.name) if node.module in _GROUPED and not node.level else None
                name = alias.asname or alias.name
                if isinstance(value, type) and is_dataclass(value):
                    self._groups[name] = value
                elif get_origin(value) is not None:
                    self._words[name] = value
                else:
                    self._elsewhere[name] = "." * node.level + (node.module or "")

    def _add_alias(self, node: ast.Assign) -> None:
        value, target = node.value, node.targets[0]
        if not (isinstance(value, ast.Subscript) and isinstance(target, ast.Name)):
            return
        if ast.unparse(value.value) in ("Annotated", "Literal"):
            with contextlib.suppress(ConfigError):  # the alias matters only where a declaration names it
                self._words[target.id] = _evaluate(value, "", target.id, self._words)

    def settings(self, function: ast.FunctionDef, where: str) -> dict[str, Setting]:
        """Return the settings that a function's keyword-only parameters declare, with groups flattened in their place.

        Args:
            function: the function or constructor that makes the object.
            where: file and line of the object, for errors.

        Raises:
            ConfigError: a declaration or a group cannot be read, or a setting is declared twice.
        """
        for argument in (*function.args.posonlyargs, *function.args.args):
            if self._is_group(argument.annotation):
                raise ConfigError([f"{where}: group {argument.arg!r} must be keyword-only; put it behind the *"])
        settings: dict[str, Setting] = {}
        declared_by: dict[str, str] = {}
        for argument, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
            if argument.arg not in RESERVED:
                for key, setting in self._declared(argument, default, where).items():
                    if key in settings:
                        raise ConfigError(
                            [f"{where}: setting {key!r} is declared twice, by {declared_by[key]!r} and by "
                             f"{argument.arg!r}; rename one, or leave it out of the group"]
                        )  # fmt: skip
                    settings[key], declared_by[key] = setting, argument.arg
        return settings

    def _declared(self, argument: ast.arg, default: ast.expr | None, where: str) -> dict[str, Setting]:
        """Return the settings that one parameter declares: a single setting, or the settings of its group."""
        key, annotation = argument.arg, argument.annotation
        if annotation is None:
            raise ConfigError([f"{where}: setting {key!r} has no annotation; give it its type"])
        if not self._is_name(annotation):
            return {key: self._setting(key, annotation, default, where)}
        group = self._group(annotation, f"{where}: setting {key!r}")
        if default is not None:
            raise ConfigError(
                [f"{where}: group {key!r} can have no default; leave it out: the defaults are those of the fields, "
                 "which a subclass of the group may declare anew"]
            )  # fmt: skip
        try:
            return flattened(group)
        except FneError as error:
            raise ConfigError([f"{where}: {error}"]) from None

    def _setting(self, key: str, annotation: ast.expr, default: ast.expr | None, where: str) -> Setting:
        value = ... if default is None else _evaluate(default, where, key, {}, text=True)
        return _evaluate(annotation, where, key, self._words), value

    def _is_group(self, annotation: ast.expr | None) -> bool:
        """Return whether an annotation is the name of a group, or of a dataclass that was meant as a group."""
        name = annotation.id if isinstance(annotation, ast.Name) else ""
        return name in self._groups or (name in self._classes and bool(_dataclass_options(self._classes[name])))

    def _is_name(self, annotation: ast.expr) -> bool:
        """Return whether an annotation is a name that the file defines or imports, and no alias of a type."""
        name = annotation.id if isinstance(annotation, ast.Name) else ""
        known = name in self._groups or name in self._classes or name in self._elsewhere
        return known and name not in VOCABULARY

    def _group(self, expression: ast.expr, where: str) -> type:
        """Return the group of a name; for a group of the file itself, a stand-in with the same fields."""
        name = ast.unparse(expression)
        if name not in self._groups:
            if name not in self._classes:
                known = f"is imported from {self._elsewhere[name]}" if name in self._elsewhere else "is not known"
                raise ConfigError([f"{where}: {name} {known}; a group must be {_PLACE}"])
            self._groups[name] = self._stand_in(self._classes.pop(name))
        return self._groups[name]

    def _stand_in(self, node: ast.ClassDef) -> type:
        """Return a dataclass made from the declarations of a class of the file; none of the class's code runs."""
        where = f"{self._path}:{node.lineno}"
        group = f"group {node.name!r}"
        options = _dataclass_options(node)
        if not options.get("frozen"):
            raise ConfigError([f"{where}: {group} is no frozen dataclass; write @dataclass(frozen=True) above it"])
        bases = tuple(self._group(base, f"{where}: {group}: base") for base in node.bases)
        made: list[Any] = []
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                key = item.target.id
                annotation, default = self._setting(key, item.annotation, item.value, f"{self._path}:{item.lineno}")
                made.append((key, annotation) if default is ... else (key, annotation, default))
        try:
            return make_dataclass(node.name, made, bases=bases, frozen=True, kw_only=options.get("kw_only") is True)
        except ValueError as error:
            raise ConfigError([f"{where}: {group}: {error}; give the field a tuple"]) from None
        except TypeError as error:
            raise ConfigError([f"{where}: {group}: {error}; write @dataclass(frozen=True, kw_only=True)"]) from None


def _dataclass_options(node: ast.ClassDef) -> dict[str, Any]:
    """Return the options of a class's `@dataclass(...)`, empty for a class without the decorator."""
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) in ("dataclass", "dataclasses.dataclass"):
            given = {word.arg: word.value for word in decorator.keywords if word.arg}
            return {name: value.value for name, value in given.items() if isinstance(value, ast.Constant)}
    return {}


_LITERALS = (
    ast.Constant, ast.Name, ast.Subscript, ast.Tuple, ast.List, ast.Dict, ast.keyword, ast.Load,
    ast.UnaryOp, ast.USub, ast.UAdd, ast.Not, ast.BinOp, ast.BitOr, ast.Call,
)  # fmt: skip
"""Syntax that a declaration may consist of: reading a plugin must neither run its code nor take long."""


def _check_literal(node: ast.AST, text: bool) -> None:
    """Raise `ValueError` for syntax that is no declaration; `text`: whether strings are values, not names of types."""
    if not isinstance(node, _LITERALS):
        raise ValueError(f"{type(node).__name__} is not allowed")
    if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id == "Key"):
        raise ValueError("only Key may be called")
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and not text:
        raise ValueError("a type in quotes is not allowed")  # it would be evaluated as Python
    literal = isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Literal"
    for child in ast.iter_child_nodes(node):
        _check_literal(child, text or literal or isinstance(node, ast.Call))


def _evaluate(expression: ast.expr, where: str, key: str, words: Mapping[str, Any], *, text: bool = False) -> Any:
    """Return the value of a literal declaration, which may name `words` beside the vocabulary."""
    try:
        _check_literal(expression, text)
        code = compile(ast.Expression(expression), where, "eval")
        return eval(code, {"__builtins__": {}}, {**words, **VOCABULARY})
    except Exception as error:
        raise ConfigError(
            [f"{where}: setting {key!r}: {ast.unparse(expression)} is not a literal declaration ({error}); "
             f"use {', '.join(VOCABULARY)} and literal values"]
        ) from None  # fmt: skip
