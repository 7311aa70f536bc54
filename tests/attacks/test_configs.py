"""Attacks by a config's text: what hangs the reader, ends in a traceback, or asks for more than the machine has."""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fne
from fne.config import registry
from fne.config.load import list_bundled, load_config
from fne.config.yaml_text import BROKEN, MOST_LEVELS, MOST_TEXT, MOST_VALUES, parse
from fne.core.allocation import bounded
from fne.core.errors import ConfigError, FneError, SettingError
from tests import processes
from tests.attacks.fuzzing import TIMES, luck


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
        (f"data.nodes={10**250}", "must be a whole number >= 1 and <= 1000000 or null"),
        (f"seed={2**63}", "must be a whole number >= 0 and < 2**63"),
    ],
)
def test_a_number_beyond_what_torch_counts_is_told(override: str, why: str) -> None:
    """It claims to end in an overflow within the run."""
    with pytest.raises(ConfigError) as told:
        load_config("fne_quick", [override])
    assert why in str(told.value)
    assert load_config("fne_quick", [f"seed={2**63 - 1}"]).seed == 2**63 - 1


# ------------------------------------------------------------------------------------------------ sizes
LEARNING: dict[str, Any] = {"data": {"name": "toy", "nodes": 4}, "model": "logistic", "strategy": "fne"}
SEARCHING: dict[str, Any] = {"problem": {"name": "ellipsoid", "nodes": 4}, "strategy": "fdd_ea"}
FRONT: dict[str, Any] = {"problem": {"name": "dtlz", "number": 2, "nodes": 4}, "strategy": "fdd_ea_mo"}
OF_TASK = {"LearningTask": LEARNING, "SearchTask": SEARCHING, "FrontTask": FRONT}
HUGE = 10**12


def absurd() -> Iterator[Any]:
    """Yield a config and the key of each count that becomes memory, of all that is registered."""
    for name, entry in registry.catalogue("strategy").items():
        for key in ("population", "initial", "parents", "swarms", "centres"):
            if key in entry.settings and entry.module.startswith("fne."):
                secure = {"secure": True} if name == "fdd_ea_dh" else {}
                more = {"surrogate": "network"} if key == "centres" and entry.task == "FrontTask" else {}
                config = {**OF_TASK[entry.task], **secure, "strategy": {"name": name, **more, key: HUGE}}
                yield pytest.param(config, f"strategy.{key}", id=f"{name}-{key}")
    for values in ({"name": "mlp", "hidden": [HUGE]}, {"name": "mlp", "hidden": [8, HUGE]}):
        yield pytest.param({**LEARNING, "model": values}, "model.hidden", id=f"mlp-{len(values['hidden'])}")
    for key in ("samples", "features", "nodes"):
        yield pytest.param({**LEARNING, "data": {"name": "toy", "nodes": 4, key: HUGE}}, f"data.{key}", id=f"toy-{key}")
    yield pytest.param({**SEARCHING, "problem": {"name": "ellipsoid", "dim": HUGE}}, "problem.dim", id="dim")
    yield pytest.param({**SEARCHING, "problem": {"name": "ellipsoid", "nodes": HUGE}}, "problem.nodes", id="nodes")
    for name in ("local", "framed"):
        yield pytest.param({**LEARNING, "engine": {"name": name, "threads": HUGE}}, "engine.threads", id=name)


@pytest.mark.parametrize(("config", "key"), list(absurd()))
def test_a_number_that_asks_for_more_than_the_memory_is_refused(
    config: dict[str, Any], key: str, tmp_path: Path
) -> None:
    """It claims to end the process: by the memory, by a thread that cannot be made, or by a loop of days."""
    with pytest.raises(FneError) as told:
        fne.train(config, out=tmp_path / "run", stop_after=1)
    assert key in str(told.value)
    assert str(HUGE) in str(told.value)
    assert not (tmp_path / "run").exists()


def test_the_guard_estimates_before_it_allocates() -> None:
    def room(device: torch.device) -> int:
        return 10**8

    tree = {"strategy": {"population": 20_000}, "seed": 10**9}
    with bounded(tree, room):
        assert torch.zeros(10**4, 10**3).sum() == 0  # 40 MB
    why = r"strategy.population = 20000: must be smaller: a tensor of 20000 x 2000 numbers takes 160 MB, and 100 MB are"
    for make in (
        lambda: torch.empty(20_000, 2000),
        lambda: torch.randn(20_000, 2000, generator=torch.Generator()),
        lambda: torch.zeros(2000).repeat(20_000, 1),
    ):
        with pytest.raises(SettingError, match=why), bounded(tree, room):
            make()
    with (
        pytest.raises(FneError, match=r"of which the largest are strategy.population = 20000, or take"),
        bounded(tree, room),
    ):
        torch.empty(3 * 10**7 + 1)


def test_the_guard_names_the_greater_factor_of_a_side() -> None:
    """It claims to have a small number blamed, or one that is another side's by chance."""
    tree = {"filters": 8, "depth": 10**9, "classes": 4, "padding": 10**7}
    with pytest.raises(SettingError, match=f"depth = {10**9}: must be smaller"), bounded(tree, lambda device: 10**8):
        torch.empty(8 * 10**9, 1, 4, 1)
    why = f"the largest are depth = {10**9}, padding = {10**7}"
    with pytest.raises(FneError, match=why), bounded(tree, lambda device: 10**8):
        torch.empty((2 * 10**7 + 28) ** 2, 4)


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is read as on Linux")
def test_a_limit_of_the_process_counts_as_its_memory() -> None:
    """It claims to be allowed what the machine has, and the process has not: before, the allocator had to refuse."""
    code = """
import resource
from pathlib import Path
import torch
from fne.core.allocation import left
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + 10**8, taken + 10**8))
assert 0 < left(torch.device("cpu")) <= 10**8
"""
    processes.run(["-c", code], check=True)


def test_a_size_beyond_what_torch_counts_is_told() -> None:
    """It claims a traceback of another type than that of memory that is not there."""
    why = r"the memory is too small: .*padding = 1000000000000000, or take"
    with pytest.raises(FneError, match=why), bounded({"padding": 10**15}):
        torch.empty(10**15 * 10**15)


def test_tensors_that_say_how_large_a_result_is_are_no_numbers() -> None:
    with bounded({}, lambda device: 0):
        repeated = torch.arange(3).repeat_interleave(torch.tensor([1, 0, 2]))
        assert repeated.tolist() == [0, 2, 2]
        assert torch.repeat_interleave(torch.tensor([1, 2])).tolist() == [0, 1, 1]
    with pytest.raises(SettingError, match="swarms = 70000"), bounded({"swarms": 70000}, lambda device: 0):
        torch.zeros(1000).repeat_interleave(70000)


def test_what_another_allocator_refuses_is_told() -> None:
    with (
        pytest.raises(FneError, match=r"the memory is too small: Unable to allocate .*a = 7, or take"),
        bounded({"a": 7}),
    ):
        np.zeros((2**20, 2**30))
    with pytest.raises(RuntimeError, match="ordinary"), bounded({}):
        raise RuntimeError("ordinary")


# ------------------------------------------------------------------------------------------------ fuzz
PIECES = ("&a", "*a", "!!int", "!!bool x", "{", "}", "[", "]", ":", "- ", "\n", "  ", "\t", "\0", "é", "1e999", ".nan",
          "9" * 400, "null", "true", "~", "<<: ", '"', "'", "#", "|", "%", "0x1F", "1_000",
          "..", "-1", "1e9")  # fmt: skip
"""What is put into a config's text, or in the place of a value."""


def mutated(text: str, draw: random.Random) -> str:
    """Return a config's text with one to four changes: characters, lines, values or keys."""
    for _ in range(draw.choice((1, 1, 2, 4))):
        lines = text.split("\n")
        at, place = draw.randrange(len(text) + 1), draw.randrange(len(lines))
        match draw.randrange(5):
            case 0:
                text = text[:at] + draw.choice(PIECES) + text[at:]
            case 1:
                text = text[:at] + text[at + draw.choice((1, 1, 5, 40)) :]
            case 2:
                lines[place] = lines[place].partition(":")[0] + ": " + draw.choice(PIECES)
                text = "\n".join(lines)
            case 3:
                lines.insert(place, draw.choice(lines))
                text = "\n".join(lines)
            case 4:
                text = text[:at] + chr(draw.choice((0, 9, 32, 92, 127, 133, 8232, 65279, 55296))) + text[at + 1 :]
    return text


@pytest.mark.fuzz
def test_a_thousand_broken_configs_are_read_or_refused_in_words(tmp_path: Path) -> None:
    """It claims a traceback or a hang: of 8,000 mutations some were both."""
    configs = [Path(fne.__file__).parent / "configs" / f"{name}.yaml" for name in list_bundled()]
    texts = [path.read_text(encoding="utf-8") for path in configs]
    draw, refused = luck("configs"), 0
    for _ in range(1000 * TIMES):
        text = mutated(draw.choice(texts), draw)
        path = tmp_path / "config.yaml"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                load_config(path)
        except FneError:
            refused += 1
    assert refused > 300
