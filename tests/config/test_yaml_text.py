"""YAML as configs use it: how it is read, and that what is written is read back, by older readers, too."""

from __future__ import annotations

import math
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fne.config.yaml_text import BROKEN, dump, parse

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
TRICKY = st.sampled_from(["1e-3", "no", "~", "null", "12:30", "2024-01-01", "0x1f", ".inf", "<<", "=", "1_0", "- a"])


def mappings(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.text(max_size=5) | TRICKY, values, max_size=3)


TREES = st.recursive(SCALARS | TRICKY, lambda b: st.lists(b, max_size=3) | mappings(b), max_leaves=8)


@given(tree=mappings(TREES))
@settings(deadline=None, max_examples=150)
def test_yaml_goes_round_and_older_readers_agree(tree: dict[str, Any]) -> None:
    assert parse(dump(tree)) == (tree, [])
    assert yaml.safe_load(dump(tree)) == tree


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001), ("1E3", 1000.0), ("-.5", -0.5), ("1.", 1.0), ("1_000", 1000), ("0x10", 16),
        ("no", "no"), ("off", "off"), ("12:30", "12:30"), ("2024-01-01", "2024-01-01"), ("007", "007"),
        ("1.2.3", "1.2.3"), ("e5", "e5"), ("true", True), ("null", None), ("~", None), ("", None),
        (".inf", math.inf), ("-7", -7),
        ("'1'", "1"), ("{a: &x 1, b: *x}", {"a": 1, "b": 1}), ("{1: a}", {"1": "a"}),
        ("{a: &x {b: 1}, c: {<<: *x, d: 2}}", {"a": {"b": 1}, "c": {"b": 1, "d": 2}}),
    ],
)  # fmt: skip
def test_how_yaml_is_read(text: str, value: Any) -> None:
    found, mistakes = parse(text)
    assert (found, type(found), mistakes) == (value, type(value), [])


@pytest.mark.parametrize(
    ("key", "read"),
    [("true", "true"), ("True", "true"), ("FALSE", "false"), ("null", "null"), ("~", "null"), ("0x10", "16"),
     ("1_000", "1000"), ("+1", "1"), ("1e3", "1000.0"), ("1.50", "1.5"), (".inf", "inf"), (".5", "0.5")],
)  # fmt: skip
def test_a_key_that_is_read_as_something_else_is_told(key: str, read: str) -> None:
    said = f'the key {key} is read as {read}, and keys are text: write "{key}" in quotes'
    assert parse(f"a: 1\nb: {{{key}: left}}\n")[1] == [(2, said)]
    assert parse(f'b: {{"{key}": left}}\n') == ({"b": {key: "left"}}, [])


@pytest.mark.parametrize("key", ["1", "0", "-7", "1.5", "yes", "no", "on", "y", "2024-01-01", "12:30", "007", "T1"])
def test_a_key_stays_as_it_is_written(key: str) -> None:
    assert parse(f"{{{key}: left}}") == ({key: "left"}, [])


def test_keys_written_twice() -> None:
    assert parse("a: 1\nb: {c: 1, c: 2}\na: 3\n")[1] == [
        (2, "c is written twice, first in line 2: keep one"),
        (3, "a is written twice, first in line 1: keep one"),
    ]
    assert parse("{a: 1, a: 2")[0] is BROKEN
