"""Attacks by a config's text: what hangs the reader, ends in a traceback, or asks for more than the machine has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fne.config import load_config
from fne.errors import ConfigError
from fne.yamltext import BROKEN, MOST_LEVELS, MOST_TEXT, MOST_VALUES, parse


def refusal(text: str) -> str:
    """Return what is told of a text that must be refused."""
    value, mistakes = parse(text)
    assert value is BROKEN
    assert len(mistakes) == 1
    return mistakes[0][1]


def bomb(levels: int, line: str) -> str:
    first = "x0: &x0 {a: 1}\n"
    return first + "".join(line.format(n=n, below=", ".join([f"*x{n - 1}"] * 9)) for n in range(1, levels))


@pytest.mark.parametrize("line", ["x{n}: &x{n} [{below}]\n", "x{n}: &x{n} {{<<: [{below}]}}\n"])
def test_an_alias_bomb_is_refused_before_it_is_written_out(tmp_path: Path, line: str) -> None:
    """It claims to hang every command: 700 bytes of aliases of aliases, or of merged mappings, are 10^10 values."""
    text = bomb(11, line)
    assert len(text) < 800
    assert refusal(text).endswith(f"aliases written out, are too many for a config, which has at most {MOST_VALUES}")
    (tmp_path / "bomb.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"bomb\.yaml:1: \d+ values, aliases written out, are too many"):
        load_config(tmp_path / "bomb.yaml")
    with pytest.raises(ConfigError, match=r"command line: name = .*aliases written out, are too many"):
        load_config("fne_quick", [f"name={{{text.strip().replace(chr(10), ', ')}}}"])


def test_a_mapping_that_is_a_bomb_or_holds_itself_is_refused() -> None:
    """It claims to do in Python what the alias bomb does in a file."""
    value: list[Any] = [1]
    for _ in range(40):
        value = [value, value]
    with pytest.raises(ConfigError, match=r"config: .* values, aliases written out, are too many"):
        load_config({"data": value})
    round_: dict[str, Any] = {}
    round_["data"] = round_
    with pytest.raises(ConfigError, match="config: nested more than 100 levels deep, or inside itself"):
        load_config(round_)


def test_aliases_of_an_ordinary_size_are_read() -> None:
    assert parse("a: &a {b: 1}\nc: [*a, *a]\nd: {<<: *a}") == (
        {"a": {"b": 1}, "c": [{"b": 1}, {"b": 1}], "d": {"b": 1}}, [],
    )  # fmt: skip


@pytest.mark.parametrize(
    "text", ["[" * 5000, "[" * 150 + "]" * 150, "{a: " * 150 + "1" + "}" * 150, "- " * 5000, "a: &a [*a]"]
)
def test_a_text_that_is_nested_deeply_is_refused(text: str) -> None:
    """It claims to exhaust the stack."""
    assert refusal(text) == f"nested more than {MOST_LEVELS} levels deep, or inside itself: write it flatter"


def test_a_key_of_many_levels_on_the_command_line_is_refused() -> None:
    """It claims to exhaust the stack by `a.a.a.. = 1`."""
    with pytest.raises(ConfigError, match="command line: nested more than 100 levels deep"):
        load_config("fne_quick", [".".join(["data"] * 5000) + "=1"])


def test_a_text_that_is_too_long_is_refused() -> None:
    assert "are too long for a config" in refusal("#" * (MOST_TEXT + 1))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("!!bool maybe", "'maybe' is no bool: leave out the tag, or write another value"),
        ("!!bool yes", "'yes' is no bool: leave out the tag, or write another value"),
        ("!!int ''", "'' is no int: leave out the tag, or write another value"),
        ("!!int 12:30", "'12:30' is no int: leave out the tag, or write another value"),
        ("!!float x", "'x' is no float: leave out the tag, or write another value"),
        ("!!null x", "'x' is no null: leave out the tag, or write another value"),
        *((f"!!{tag} {value}", f"could not determine a constructor for the tag 'tag:yaml.org,2002:{tag}'")
          for tag, value in (("timestamp", "x"), ("binary", "x"), ("set", "{a}"), ("omap", "[a: 1]"),
                             ("merge", "<<"), ("python/object/apply:os.system", "[ls]"))),
        ("9" * 5000, "a number of 5000 digits, and at most 300 are read: write it shorter"),
        ("-" + "9" * 5000, "a number of 5001 digits, and at most 300 are read: write it shorter"),
        ("0x" + "f" * 5000, "a number of 5002 digits, and at most 300 are read: write it shorter"),
        ("{" + "9" * 5000 + ": 1}", "a number of 5000 digits, and at most 300 are read: write it shorter"),
    ],
)  # fmt: skip
def test_tags_and_numbers_that_python_refuses_are_told_in_words(text: str, why: str) -> None:
    """They claim to end in a traceback of PyYAML, or of Python's own limit on digits."""
    assert why in refusal(text)
    with pytest.raises(ConfigError, match=r"command line: strategy\.population = "):
        load_config("fne_quick", [f"strategy.population={text}"])


def test_tags_that_say_what_a_value_is_are_read() -> None:
    assert parse("[!!str 5, !!int '5', !!float 5, !!bool true, !!null ~]") == (["5", 5, 5.0, True, None], [])


@pytest.mark.parametrize("key", ["strategy.population", "name", "data.nodes", "strategy"])
def test_a_number_of_python_that_it_does_not_write_is_told(key: str) -> None:
    """It claims to end in a traceback where the value is put into the message."""
    with pytest.raises(ConfigError, match=f"{key} = a int too long to be written"):
        load_config("fne_quick").with_values({key: 10**5000})


@pytest.mark.parametrize(
    ("override", "why"),
    [
        (f"strategy.population={2**53 + 1}", "must be a whole number >= 2 and at most 9007199254740992"),
        (f"data.nodes={10**250}", "must be a whole number >= 1 or null and at most 9007199254740992"),
        (f"seed={2**63}", "must be a whole number >= 0 and < 2**63"),
    ],
)
def test_a_number_beyond_what_torch_counts_is_told(override: str, why: str) -> None:
    """It claims to end in an overflow within the run."""
    with pytest.raises(ConfigError) as told:
        load_config("fne_quick", [override])
    assert why in str(told.value)
    assert load_config("fne_quick", [f"seed={2**63 - 1}"]).seed == 2**63 - 1
