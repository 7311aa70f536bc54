"""Settings: the declaration with `Key`, the pydantic model that checks values, and the texts of errors about them."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from fne.core.errors import did_you_mean, shown
from fne.core.quiet import ignored


def Key(description: str, *, unit: str = "", allowed: str = "", path: PathForm = "", **bounds: Any) -> Any:  # noqa: N802
    """Describe a setting: a phrase, the unit, and the bounds (`ge`, `gt`, `le`, `lt`, `min_length`).

    `allowed` replaces the words made from type and bounds, as the end of "must be ...". `path` says in which form a
    text, or each text of a list, is a path, which a config then takes as relative to its own file: `file` (the whole
    text), `search` (the same, but where there is no such file the text stays as it is), `call` (`FILE.py:NAME`) or
    `program` (the first of a list, if it has a slash).
    """
    extra: dict[str, Any] = {"unit": unit, "allowed": allowed, "path": path}
    return Field(description=description, json_schema_extra=extra, **bounds)


LARGEST = 2**53
"""Upper bound on whole numbers without a bound of their own: a float represents all of them exactly."""
_HUGE = 2**1023
"""Whole numbers from here on count as infinite: Python cannot convert one that is twice as large to a float."""

PathForm = Literal["", "file", "search", "call", "program"]


def over_paths(
    model: type[BaseModel], values: Mapping[str, Any], change: Callable[[str, str, str], str]
) -> dict[str, Any]:
    """Return values in which each path is replaced.

    Args:
        model: model whose fields the values are, with `Key(path=...)` for paths.
        values: values by key; they need not be complete.
        change: gets the key, the form (`file` or `search`) and the bare path, and returns the new path.
    """

    def changed(key: str, form: str, value: Any) -> Any:
        if isinstance(value, list | tuple):
            some = 1 if form == "program" else len(value)
            return type(value)([*(changed(key, form, part) for part in value[:some]), *value[some:]])
        if not isinstance(value, str):
            return value
        if form == "call":
            file, colon, name = value.rpartition(":")
            return f"{change(key, 'file', file)}{colon}{name}" if file.endswith(".py") else value
        if form == "program":
            return change(key, "file", value) if "/" in value else value
        return change(key, form, value)

    forms = {key: (field.json_schema_extra or {}) for key, field in model.model_fields.items()}
    marked = {key: str(extra.get("path", "")) for key, extra in forms.items() if isinstance(extra, dict)}
    return {key: changed(key, marked[key], value) if marked.get(key) else value for key, value in values.items()}


def model_of(name: str, settings: Mapping[str, tuple[Any, Any]]) -> type[BaseModel]:
    """Return a pydantic model of `key -> (annotation, default)`; the model refuses unknown keys, NaN and infinity."""
    fields: dict[str, Any] = {key: (_bounded(a), default) for key, (a, default) in settings.items()}
    config = ConfigDict(extra="forbid", allow_inf_nan=False, validate_default=True, protected_namespaces=())
    with ignored(message="Field name .* shadows an attribute"):  # such as `copy`: no code calls pydantic's method
        return create_model(name, __config__=config, **fields)


def _bounded(annotation: Any) -> Any:
    # Bounds belong to a union's numbers: pydantic would apply them to the text of `Literal["all"] | int`, too.
    inner, notes = _parts(annotation)
    bounds = _bounds(notes)
    if get_origin(inner) not in (Union, types.UnionType) or not bounds:
        return annotation
    parts = tuple(Annotated[(p, *bounds)] if p in (int, float) else p for p in get_args(inner))
    return Annotated[Union[parts], Field(description=notes[0].description)]  # noqa: UP007


# ------------------------------------------------------------------------------------------------ checking
@dataclass(frozen=True)
class Mistake:
    """A key that is unknown, missing or has a wrong value, with the text of what is allowed."""

    key: str
    text: str


def check(
    model: type[BaseModel],
    values: Mapping[str, Any],
    what: str,
    more: Sequence[str] = (),
    elsewhere: Sequence[str] = (),
) -> tuple[dict[str, Any], list[Mistake]]:
    """Return the values that a model makes of plain `values`, with all defaults, or no values and every mistake.

    Args:
        model: model with one field for each key.
        values: plain dicts, lists and scalars by key.
        what: owner of the keys, such as `strategy 'fne'`.
        more: further keys of the same section, which other code checks, for suggestions.
        elsewhere: dotted keys of other sections, for suggestions.
    """
    fields = {key: Annotated[(field.annotation, field)] for key, field in model.model_fields.items()}
    known = [*fields, *more]
    every = f" (known: {', '.join(known) or 'none'})"
    mistakes = [
        Mistake(key, f"unknown key of {what}{nearest(key, known, elsewhere) or every}")
        for key in values
        if key not in fields
    ]
    given = {key: value for key, value in values.items() if key in fields}
    wrong = {key: why for key, value in given.items() if (why := _oddity(value, fields[key]))}
    below: dict[str, str] = {}
    try:
        made = model.model_validate(given)
    except ValidationError as error:
        details = error.errors(include_url=False)
        wrong = {str(detail["loc"][0]): detail["type"] for detail in details} | wrong
        below = {str(key): str(rest[0]) for key, *rest in (detail["loc"] for detail in details) if rest}
    for key in (key for key in fields if key in wrong):
        most = f" and at most {LARGEST}" if wrong[key] == "too_large" else ""
        text = f"must be {allowed(fields[key])}{most}"
        for short, clear in _CLEARER.get(wrong[key], {}).items():
            text = text.replace(short, clear)
        if isinstance(value := given.get(key), dict) and below.get(key) in value:  # the index of the wrong item
            text += f"; {below[key]} = {shown(value[below[key]])} is not"
        mistakes.append(Mistake(key, text + _nearest_choice(given.get(key), _leaves(fields[key]))))
    return {} if mistakes else {key: getattr(made, key) for key in fields}, mistakes


def _nearest_choice(value: Any, leaves: Sequence[Any]) -> str:
    """Return a suggestion for the first text in a value that is not among the choices in `leaves`."""
    choices = [leaf for leaf in leaves if isinstance(leaf, str)]
    if any(leaf is bool or isinstance(leaf, bool) for leaf in leaves):
        choices += ["true", "false"]
    wrong = (part for part in _scalars(value) if isinstance(part, str) and part not in choices)
    return nearest(next(wrong, ""), choices)


_CLEARER = {
    "finite_number": {"a number": "a finite number", "a mapping": "a mapping of finite numbers"},
    "no_scalar": {"a mapping": "a mapping of plain values"},
}


def _oddity(value: Any, annotation: Any) -> str:
    # Pydantic is too lenient: true is no number, and the values of a free mapping must be plain and finite.
    scalars, leaves = list(_scalars(value)), _leaves(annotation)
    bounded = any(hasattr(bound, "le") or hasattr(bound, "lt") for bound in _bounds(_parts(annotation)[1]))
    counts = int in leaves and not bounded
    if counts and any(isinstance(scalar, int) and abs(scalar) > LARGEST for scalar in scalars):
        return "too_large"
    if any(isinstance(scalar, float) and not math.isfinite(scalar) for scalar in scalars):
        return "finite_number"
    if any(isinstance(scalar, int) and abs(scalar) >= _HUGE for scalar in scalars):
        return "finite_number"
    if not all(scalar is None or isinstance(scalar, bool | int | float | str) for scalar in scalars):
        return "no_scalar"
    bools = any(leaf in (bool, list, dict, tuple) or isinstance(leaf, bool) for leaf in leaves)
    return "" if bools or not any(isinstance(scalar, bool) for scalar in scalars) else "bool"


def _scalars(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        for below in value.values() if isinstance(value, dict) else value:
            yield from _scalars(below)
    else:
        yield value


def _leaves(annotation: Any) -> list[Any]:
    """Return the types and literal values that an annotation is made of."""
    inner, _ = _parts(annotation)
    if get_origin(inner) is Literal:
        return list(get_args(inner))
    return [leaf for part in get_args(inner) for leaf in _leaves(part)] or [inner]


# ------------------------------------------------------------------------------------------------ words
_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false", dict: "a mapping",
          list: "a list", tuple: "a list", type(None): "null"}  # fmt: skip
_SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "multiple_of": "a multiple of",
          "min_length": "of length >=", "max_length": "of length <="}  # fmt: skip


def allowed(annotation: Any) -> str:
    """Return the allowed values of a setting as the end of "must be ...": `a whole number >= 1 or null`."""
    inner, notes = _parts(annotation)
    for note in notes:
        extra = getattr(note, "json_schema_extra", None) or {}
        if extra.get("allowed"):
            return str(extra["allowed"])
    origin, parts = get_origin(inner), get_args(inner)
    if origin is Literal:
        return either(map(shown, parts))
    if origin in (Union, types.UnionType):
        return either(allowed(Annotated[(p, *notes)] if notes and p in (int, float) else p) for p in parts)
    limits = [f"{_SIGNS[k]} {getattr(b, k)}" for b in _bounds(notes) for k in _SIGNS if hasattr(b, k)]
    text = " ".join(filter(None, [_WORDS.get(origin or inner, "a value"), " and ".join(limits)]))
    if parts and (origin is list or parts[1:] == (...,)):
        text += f", each {allowed(parts[0])}"
    elif parts and origin is tuple:
        text += f" of {len(parts)}: {', '.join(map(allowed, parts))}"
    return text


def either(words: Iterable[str]) -> str:
    """Join words as `a, b or c`."""
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def faults(error: ValidationError) -> str:
    """Return pydantic's errors in one line, without the values, which may be long."""
    details = error.errors(include_url=False, include_input=False)
    return "; ".join(": ".join(filter(None, [".".join(map(str, d["loc"])), d["msg"]])) for d in details)


def nearest(word: Any, known: Iterable[str], elsewhere: Iterable[str] = ()) -> str:
    """Return ` (did you mean 'x'?)`, or an empty string; arguments are those of `did_you_mean`."""
    near = did_you_mean(str(word), known, elsewhere).removeprefix(", ")
    return f" ({near})" if near else ""


def _parts(annotation: Any) -> tuple[Any, list[Any]]:
    if get_origin(annotation) is not Annotated:
        return annotation, []
    inner, *notes = get_args(annotation)
    return inner, notes


def _bounds(notes: Sequence[Any]) -> list[Any]:
    return [bound for note in notes for bound in getattr(note, "metadata", [note])]
