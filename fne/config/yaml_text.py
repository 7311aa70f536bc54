"""YAML of config files: numbers as in YAML 1.2, no key twice, plain values only.

PyYAML follows YAML 1.1, in which `1e-3` is text, `no` is false, `12:30` is 750, and a key that is written twice
silently counts once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from numbers import Real
from typing import Any

import yaml

from fne.core.errors import shown

BROKEN = object()
"""Value that `parse` returns for a text that is no YAML."""
MOST_VALUES, MOST_LEVELS, MOST_TEXT, MOST_DIGITS = 100_000, 100, 500_000, 300
"""Bounds on a config: values once aliases are written out, depth, characters, digits of a number."""
_DEEP = f"nested more than {MOST_LEVELS} levels deep, or inside itself: write it flatter"


def parse(text: str) -> tuple[Any, list[tuple[int, str]]]:
    """Return the plain value of a text, and each mistake with its line: bad syntax, a repeated key, a key of no text.

    A key may be text, or a whole number in its plain form, which becomes text. A text beyond the bounds above is
    refused before its aliases are written out: 500 bytes of nested aliases stand for billions of values.
    """
    if len(text) > MOST_TEXT:
        return BROKEN, [(1, f"{len(text)} characters are too long for a config, which has at most {MOST_TEXT}")]
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if why := excess(node, _below):
            return BROKEN, [(1, why)]
        value = None if node is None else plain(loader.construct_document(node))
    except RecursionError:
        return BROKEN, [(1, _DEEP)]
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        why = getattr(error, "problem", None) or str(error).splitlines()[0]
        return BROKEN, [(mark.line + 1 if mark else 1, f"not YAML: {why}")]
    return value, loader.mistakes


def dump(tree: Mapping[str, Any]) -> str:
    """Return a text that `parse` and every YAML 1.1 reader read alike."""
    text: str = yaml.dump(plain(tree), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    return text


def plain(value: Any) -> Any:
    """Copy to dicts with text keys, lists and Python's own scalars; anything else is left as it is."""
    if isinstance(value, Mapping):
        return {str(key): plain(below) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [plain(below) for below in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    for kind in (bool, int, float, str):  # enums, NumPy's float64
        if isinstance(value, kind):
            return kind(value) if kind is not str else str.__str__(value)
    return value


def children(value: Any) -> Iterable[Any]:
    """Return the children of a plain value: the values of a mapping, the items of a list."""
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def _below(node: Any) -> Iterable[Any]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else ()


def excess(value: Any, below: Callable[[Any], Iterable[Any]] = children) -> str:
    """Return why a value is too large or too deep for a config, or an empty string.

    An object that occurs in several places is visited once and counted in each place, so the time depends on the
    value in memory and not on the value written out.

    Args:
        value: the value to measure; it may contain itself.
        below: returns the children of a value.
    """
    counted: dict[int, tuple[int, int]] = {}

    def count(value: Any) -> tuple[int, int]:
        if id(value) not in counted:
            counts = [count(part) for part in below(value)]
            counted[id(value)] = (1 + sum(n for n, _ in counts), 1 + max((deep for _, deep in counts), default=0))
        return counted[id(value)]

    try:
        values, levels = count(value)
    except RecursionError:
        return _DEEP
    if levels > MOST_LEVELS:
        return _DEEP
    if values > MOST_VALUES:
        return f"{values} values, aliases written out, are too many for a config, which has at most {MOST_VALUES}"
    return ""


def odd_keys(value: Any, place: str = "") -> Iterator[str]:
    """Yield a fault for each key of a value's mappings that is neither text nor a number."""
    if isinstance(value, Mapping):
        for key, below in value.items():
            if isinstance(key, bool) or not isinstance(key, str | Real):
                yield f"{place}the key {key!r} is a {type(key).__name__}, and keys are text: write {str(key)!r}"
            yield from odd_keys(below, f"{place}{key}: ")
    elif isinstance(value, list | tuple):
        for below in value:
            yield from odd_keys(below, place)


_FLOAT = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.[0-9]*(?:[eE][-+]?[0-9]+)?|\.[0-9]+(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+"
    r"|\.(?:inf|Inf|INF))$|\.(?:nan|NaN|NAN)$"
)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {}  # noqa: RUF012  (those below, none of YAML 1.1)

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.mistakes: list[tuple[int, str]] = []

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        node: yaml.ScalarNode = super().compose_scalar_node(anchor)
        kind = node.tag.rpartition(":")[2]
        fitting = [_PLAIN[name] for name in (kind, *(["int"] if kind == "float" else ())) if name in _PLAIN]
        why = ""
        if fitting and not any(pattern.match(node.value) for pattern in fitting):  # the tag was written, then
            why = f"{shown(node.value)} is no {kind}: leave out the tag, or write another value"
        elif kind == "int" and len(node.value) > MOST_DIGITS:
            why = f"a number of {len(node.value)} digits, and at most {MOST_DIGITS} are read: write it shorter"
        if why:
            raise yaml.composer.ComposerError(None, None, why, node.start_mark)
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        first: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                line, name = key.start_mark.line + 1, key.value
                if name in first:
                    self.mistakes.append((line, f"{name} is written twice, first in line {first[name]}: keep one"))
                self._check_key(key, line)
                first.setdefault(name, line)
        return node

    def _check_key(self, key: yaml.ScalarNode, line: int) -> None:
        """Note a key that YAML reads as another value than its written text."""
        kind = key.tag.rpartition(":")[2]
        if kind in ("str", "merge"):
            return
        read = self.construct_object(key)
        if kind in ("int", "float") and str(read) == key.value:
            return
        self.mistakes.append(
            (line, f'the key {key.value} is read as {shown(read)}, and keys are text: write "{key.value}" in quotes')
        )


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # two equal lists are no anchor
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        # only double quotes bring back characters that count as line breaks (U+0085, U+2028)
        style = None if text.isprintable() else '"'
        return self.represent_scalar(f"{_TAG}str", text, style)


_TAG = "tag:yaml.org,2002:"
_PLAIN: dict[str, re.Pattern[str]] = {}
"""Pattern of a value of each kind: a value written with the tag of the kind must match it."""
for _tag, _pattern, _first in (
    ("null", re.compile(r"(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
    ("bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")),
    ("int", re.compile(r"[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F]+)$"), list("-+0123456789")),
    ("float", _FLOAT, list("-+.0123456789")),
    ("merge", re.compile(r"<<$"), ["<"]),
):
    _PLAIN[_tag] = _pattern
    _Loader.add_implicit_resolver(f"{_TAG}{_tag}", _pattern, _first)
_PLAIN_TAGS = {f"{_TAG}{kind}" for kind in ("null", "bool", "int", "float", "str", "seq", "map")}
_Loader.yaml_constructors = {
    tag: make for tag, make in yaml.SafeLoader.yaml_constructors.items() if tag is None or tag in _PLAIN_TAGS
}  # no dates, sets and bytes: the constructor of None refuses all other tags
_Dumper.add_representer(str, _Dumper.represent_text)
_Dumper.add_implicit_resolver(f"{_TAG}float", _FLOAT, list("-+.0123456789"))
