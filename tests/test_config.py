"""Configs: what is filled in, what goes round unchanged, and every mistake word for word."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fne import registry
from fne.config import Config, difference, list_bundled, load_config, parse_bytes
from fne.errors import ConfigError, FneError
from fne.yamltext import BROKEN, dump, parse

PLUGIN = '''
raise RuntimeError("a config must not import what it names")

@register("data", "dots")
def dots(*, seed: int, size: Annotated[int, Key("samples", ge=1)] = 100, path: Annotated[str | None, Key("file")] = None):
    """Make dots."""

@register("model", "line")
class Line:
    """Draw a line."""
    def __init__(self, shape, outputs, *, width: Annotated[int, Key("width", ge=1)] = 4): ...

@register("partition", "even")
def even(samples, nodes, generator, *, alpha: Annotated[float, Key("evenness", gt=0)] = 1): ...

@register("strategy", "drift")
class Drift:
    """Walk at random."""
    def __init__(
        self, task, *, seed: int,
        rounds: Annotated[int, Key("planned rounds", ge=1)],
        rate: Annotated[float, Key("size of a step", gt=0, le=1)] = 0.5,
        rule: Annotated[Literal["plain", "greedy"], Key("which")] = "plain",
        window: Annotated[int | None, Key("steps looked back", ge=2)] = None,
        take: Annotated[Literal["all"] | int, Key("individuals", ge=1)] = "all",
        widths: Annotated[list[Annotated[int, Key("width", ge=1)]], Key("widths")] = [1, 2],
        pair: Annotated[tuple[float, float], Key("bounds")] = (0, 1),
        note: Annotated[str, Key("anything")] = "",
        loud: Annotated[bool, Key("say more")] = False,
        extra: Annotated[dict, Key("anything by name")] = {},
    ): ...
'''
FULL = """
name: full
seed: 3
data: {name: dots, nodes: 4, partition: {name: even, alpha: 0.3}, size: 50}
model: {name: line}
strategy: {name: drift, rounds: 7, rate: 1e-3}
evaluation: {memory: 500MB}
plugins: [mine.py]
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work in a folder of one's own, which holds `mine.py` and `full.yaml`."""
    for name in ("_plugin_entries", "_plugin_files"):
        monkeypatch.setattr(registry, name, {})
    folder = tmp_path_factory.mktemp("configs")
    (folder / "mine.py").write_text(PLUGIN)
    (folder / "full.yaml").write_text(FULL)
    monkeypatch.chdir(folder)
    yield


def problems(source: Any, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(source, overrides)
    return list(caught.value.problems)


def minimal(**more: Any) -> dict[str, Any]:
    return {
        "data": "dots",
        "model": "line",
        "strategy": {"name": "drift", "rounds": 2},
        "plugins": ["mine.py"],
        **more,
    }


# ------------------------------------------------------------------------------------------------ what comes out
def test_everything_is_filled_in() -> None:
    config = load_config("full.yaml")
    assert config.to_dict() == {
        "name": "full",
        "seed": 3,
        "data": {"name": "dots", "nodes": 4, "partition": {"name": "even", "alpha": 0.3}, "size": 50, "path": None},
        "model": {"name": "line", "width": 4},
        "strategy": {
            "name": "drift", "rounds": 7, "rate": 0.001, "rule": "plain", "window": None, "take": "all",
            "widths": [1, 2], "pair": [0.0, 1.0], "note": "", "loud": False, "extra": {},
        },
        "engine": {"name": "local", **dict(load_config("full.yaml").engine.settings)},
        "evaluation": {"path": "table", "tiles": "node", "memory": 500_000_000, "chunk": None, "tile": None},
        "watch": {"every": 1, "checkpoint_every": 50, "tensorboard": True, "target": None, "champions": 0},
        "secure": False,
        "wire": "tensors",
        "plugins": [str(Path("mine.py").resolve())],
    }  # fmt: skip
    assert (config.data.nodes, config.data.partition.name, config.data.settings) == (
        4, "even", {"size": 50, "path": None},
    )  # fmt: skip
    assert config.strategy.settings["pair"] == (0.0, 1.0)
    assert config.plugins == (str(Path("mine.py").resolve()),)


def test_defaults_of_a_short_config() -> None:
    config = load_config(minimal())
    assert config.name == "drift_dots"
    assert (config.seed, config.data.nodes, config.data.partition.name) == (0, None, "iid")
    assert (config.engine.name, config.evaluation.memory) == ("local", 2_000_000_000)


@pytest.mark.parametrize(
    ("file", "name"),
    [("a b.yaml", "a-b"), ("..x.yaml", "x"), ("é.yaml", "run"), ("v1.2_c-3.yaml", "v1.2_c-3")],
)
def test_the_file_gives_the_name(file: str, name: str) -> None:
    Path(file).write_text(FULL.replace("name: full\n", ""))
    assert load_config(file).name == name


def test_a_config_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_config("full.yaml").seed = 4  # type: ignore[misc]


@pytest.mark.parametrize("name", list_bundled())
def test_bundled_configs(name: str) -> None:
    config = load_config(name)
    assert config == load_config(f"{name}.yaml") == load_config(config.to_dict())
    assert config.name == name


def test_plugins_are_found_beside_their_config_or_from_the_command_line_here() -> None:
    below = Path("below")
    below.mkdir()
    (below / "mine.py").write_text(PLUGIN)
    (below / "config.yaml").write_text(FULL)
    assert load_config(below / "config.yaml").plugins == (str((below / "mine.py").resolve()),)
    registry._plugin_entries.clear()
    assert load_config("below/config.yaml", ["plugins=[mine.py]"]).plugins == (
        str(Path("mine.py").resolve()),
    )


# ------------------------------------------------------------------------------------------------ overrides
@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("strategy.rate=1e-2", "strategy.rate", 0.01),
        ("strategy.rounds=1e3", "strategy.rounds", 1000),
        ("strategy.rounds = 12", "strategy.rounds", 12),
        ("strategy.widths=[3, 4]", "strategy.widths", [3, 4]),
        ("strategy.take=5", "strategy.take", 5),
        ("strategy.window=null", "strategy.window", None),
        ("strategy.note=no", "strategy.note", "no"),
        ("strategy.note='a=b: c'", "strategy.note", "a=b: c"),
        ("strategy.note=2024-01-01", "strategy.note", "2024-01-01"),
        ("strategy.loud=yes", "strategy.loud", True),
        ("strategy.extra.deep.er=[true]", "strategy.extra", {"deep": {"er": [True]}}),
        ("data.partition=even", "data.partition", {"name": "even", "alpha": 1.0}),
        ("data.partition.alpha=2", "data.partition", {"name": "even", "alpha": 2.0}),
        ("model=line", "model", {"name": "line", "width": 4}),
        ("evaluation.memory=1.5 GB", "evaluation.memory", 1_500_000_000),
        ("seed=9", "seed", 9),
    ],
)
def test_overrides(override: str, key: str, value: Any) -> None:
    config = load_config("full.yaml", [override])
    found: Any = config.to_dict()
    for part in key.split("."):
        found = found[part]
    assert found == value
    assert load_config("full.yaml").with_overrides([override]) == config


def test_a_short_partition_takes_an_override_below_it() -> None:
    config = load_config(minimal(data={"name": "dots", "partition": "even"}), ["data.partition.alpha=3"])
    assert config.data.partition.settings == {"alpha": 3.0}


def test_the_last_override_wins_and_values_go_in_as_they_are() -> None:
    config = load_config("full.yaml", ["seed=1", "seed=2"])
    assert config.seed == 2
    changed = config.with_values({"seed": 5, "strategy.note": "1e-3", "engine.name": "local"})
    assert (changed.seed, changed.strategy.settings["note"]) == (5, "1e-3")
    assert difference(config, changed) == ["seed: 2 -> 5", "strategy.note: '' -> '1e-3'"]
    with pytest.raises(ConfigError, match="config: seed = -1: must be a whole number >= 0 and < "):
        config.with_values({"seed": -1})


def test_difference() -> None:
    one = load_config("full.yaml")
    assert difference(one, one) == []
    two = one.with_overrides(
        ["strategy.rounds=8", "data.partition=iid", "strategy.loud=true", "data.nodes=null"]
    )
    assert difference(one, two) == [
        "data.nodes: 4 -> null",
        "data.partition.name: 'even' -> 'iid'",
        "data.partition.alpha: 0.3 -> absent",
        "strategy.rounds: 7 -> 8",
        "strategy.loud: false -> true",
    ]


# ------------------------------------------------------------------------------------------------ mistakes
@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("seed=-1", "seed = -1: must be a whole number >= 0 and < 2**63"),
        (f"seed={2**63}", f"seed = {2**63}: must be a whole number >= 0 and < 2**63"),
        ("seed=true", "seed = true: must be a whole number >= 0 and < 2**63"),
        ("seed=1.5", "seed = 1.5: must be a whole number >= 0 and < 2**63"),
        ("seed=", "seed = null: must be a whole number >= 0 and < 2**63"),
        ("secure=true", "secure = true: must be false: secure sums are not in this version"),
        ("wire=lineage", "wire = 'lineage': must be 'tensors'"),
        ("plugins=mine.py", "plugins = 'mine.py': must be a list, each text"),
        ("stratgy.rounds=3", "stratgy = {'rounds': 3}: unknown key of the config (did you mean 'strategy'?)"),
        ("model=lime", "model.name = 'lime': must be one of <model> (did you mean 'line'?)"),
        ("model.name=[]", "model.name = []: must be one of <model>"),
        ("data=7", "data = 7: must be a mapping"),
        ("data.name=zz", "data.name = 'zz': must be one of <data>"),
        ("data.nodes=0", "data.nodes = 0: must be a whole number >= 1 or null"),
        ("data.node=3", "data.node = 3: unknown key of data 'dots' (did you mean 'nodes'?)"),
        ("data.zz=3", "data.zz = 3: unknown key of data 'dots' (known: size, path, nodes, partition)"),
        ("data.partition=eve", "data.partition.name = 'eve': must be one of <partition> (did you mean 'even'?)"),
        ("data.partition.alpha=0", "data.partition.alpha = 0: must be a number > 0"),
        ("data.partition.beta=0", "data.partition.beta = 0: unknown key of partition 'even' (known: alpha)"),
        ("data.partition=[even]", "data.partition = ['even']: must be a mapping"),
        ("strategy.rats=1", "strategy.rats = 1: unknown key of strategy 'drift' (did you mean 'rate'?)"),
        ("strategy.rate=2", "strategy.rate = 2: must be a number > 0 and <= 1"),
        ("strategy.rate=.nan", "strategy.rate = nan: must be a finite number > 0 and <= 1"),
        ("strategy.rate=nan", "strategy.rate = 'nan': must be a finite number > 0 and <= 1"),
        ("strategy.rate=1e400", "strategy.rate = inf: must be a finite number > 0 and <= 1"),
        ("strategy.rate=x", "strategy.rate = 'x': must be a number > 0 and <= 1"),
        ("strategy.rate=false", "strategy.rate = false: must be a number > 0 and <= 1"),
        ("strategy.rule=gredy", "strategy.rule = 'gredy': must be 'plain' or 'greedy' (did you mean 'greedy'?)"),
        ("strategy.window=1", "strategy.window = 1: must be a whole number >= 2 or null"),
        ("strategy.take=0", "strategy.take = 0: must be 'all' or a whole number >= 1"),
        ("strategy.take=al", "strategy.take = 'al': must be 'all' or a whole number >= 1 (did you mean 'all'?)"),
        ("strategy.widths=[1, 0]", "strategy.widths = [1, 0]: must be a list, each a whole number >= 1"),
        ("strategy.widths=[true]", "strategy.widths = [True]: must be a list, each a whole number >= 1"),
        ("strategy.widths=3", "strategy.widths = 3: must be a list, each a whole number >= 1"),
        ("strategy.pair=[1]", "strategy.pair = [1]: must be a list of 2: a number, a number"),
        ("strategy.note=3", "strategy.note = 3: must be text"),
        ("strategy.loud=3", "strategy.loud = 3: must be true or false"),
        ("strategy.extra={a: [.inf]}", "strategy.extra = {'a': [inf]}: must be a mapping"),
        ("strategy.rounds.x=3", "strategy.rounds = {'x': 3}: must be a whole number >= 1"),
        ("strategy.rounds=[1", "strategy.rounds = '[1': not YAML: expected ',' or ']', but got '<stream end>'"),
        ("strategy.note=a: b: c", "strategy.note = 'a: b: c': not YAML: mapping values are not allowed here"),
        ("engine=locl", "engine.name = 'locl': must be one of <engine> (did you mean 'local'?)"),
        ("evaluation=table", "evaluation = 'table': must be a mapping"),
        ("evaluation.path=vmp", "evaluation.path = 'vmp': must be 'table', 'auto', 'loop', 'vmap' or 'stacked' "
         "(did you mean 'vmap'?)"),
        ("evaluation.tiles=joint", "evaluation.tiles = 'joint': must be 'node' or 'joined' (did you mean 'joined'?)"),
        ("evaluation.chunk=0", "evaluation.chunk = 0: must be a whole number >= 1 or null"),
        ("evaluation.memory=2XB", "evaluation.memory = '2XB': must be text such as '2GB' (unit B, kB, MB or GB) or a "
         "number of bytes, at least 1MB"),
        ("evaluation.memory=999kB", "evaluation.memory = '999kB': must be text such as '2GB' (unit B, kB, MB or GB) "
         "or a number of bytes, at least 1MB"),
        ("watch.every=0", "watch.every = 0: must be a whole number >= 1"),
        ("watch.target=1.1", "watch.target = 1.1: must be a number >= 0 and <= 1 or null"),
        ("watch.tensorbord=true", "watch.tensorbord = true: unknown key of watch (did you mean 'tensorboard'?)"),
        ("name=a/b", "name = 'a/b': must be text of at most 100 letters, digits, '.', '_' and '-' that begins with a "
         "letter or digit"),
        ("rounds", "'rounds': must be key=value, such as strategy.rounds=100"),
        ("=3", "'=3': must be key=value, such as strategy.rounds=100"),
        ("strategy..rate=3", "'strategy..rate=3': must be key=value, such as strategy.rounds=100"),
    ],
)  # fmt: skip
def test_one_mistake(override: str, text: str) -> None:
    registry.add_plugin(Path("mine.py"))
    for kind in registry.KINDS:
        text = text.replace(f"<{kind}>", ", ".join(registry.catalogue(kind)))
    assert problems("full.yaml", override) == [f"command line: {text}"]


def test_all_mistakes_at_once_each_with_its_source() -> None:
    Path("bad.yaml").write_text("""
name: bad
sed: 1
data: {name: dots, nodes: 0, colour: red}
model: {width: 2}
strategy:
  name: drift
  rate: 3
  rate: 5
  widht: [1]
watch: {every: 0}
plugins: [mine.py, none.py, 4]
""")
    registry.add_plugin(Path("mine.py"))
    assert problems("bad.yaml", "strategy.rule=x", "oops", "watch.champions=-1") == [
        "bad.yaml:9: rate is written twice, first in line 8: keep one",
        "command line: 'oops': must be key=value, such as strategy.rounds=100",
        f"bad.yaml: plugins = 'none.py': must be Python files: {Path('none.py').resolve()} is none",
        "bad.yaml: sed = 1: unknown key of the config (did you mean 'seed'?)",
        "bad.yaml: plugins = ['mine.py', 'none.py', 4]: must be a list, each text",
        "bad.yaml: data.colour = 'red': unknown key of data 'dots' (known: size, path, nodes, partition)",
        "bad.yaml: data.nodes = 0: must be a whole number >= 1 or null",
        f"bad.yaml: model.name is missing: must be one of {', '.join(registry.catalogue('model'))}",
        "bad.yaml: strategy.widht = [1]: unknown key of strategy 'drift' (did you mean 'widths'?)",
        "bad.yaml: strategy.rate = 5: must be a number > 0 and <= 1",
        "command line: strategy.rule = 'x': must be 'plain' or 'greedy'",
        "bad.yaml: strategy.rounds is missing: must be a whole number >= 1",
        "bad.yaml: watch.every = 0: must be a whole number >= 1",
        "command line: watch.champions = -1: must be a whole number >= 0",
    ]


def test_an_override_that_takes_away_is_told_of_the_command_line() -> None:
    assert problems("full.yaml", "strategy=drift") == [
        "command line: strategy.rounds is missing: must be a whole number >= 1"
    ]


def test_nothing_given() -> None:
    assert problems({}) == [
        f"config: {kind}.name is missing: must be one of {', '.join(registry.catalogue(kind))}"
        for kind in ("data", "model", "strategy")
    ]


EMPTY = "is empty: must be a mapping with data, model and strategy"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", [f"x.yaml: {EMPTY}"]),
        (b"# nothing\n", [f"x.yaml: {EMPTY}"]),
        (b"- a\n", ["x.yaml: is ['a']: must be a mapping with data, model and strategy"]),
        (b"text", ["x.yaml: is 'text': must be a mapping with data, model and strategy"]),
        (b"a: 1\nb: c: d\n", ["x.yaml:2: not YAML: mapping values are not allowed here"]),
        (b"a: [1\nb: 2\n", ["x.yaml:2: not YAML: expected ',' or ']', but got ':'"]),
        (b"a:\n\t- 1\n", ["x.yaml:2: not YAML: found character '\\t' that cannot start any token"]),
        (b"a: 1\n---\nb: 1\n", ["x.yaml:2: not YAML: but found another document"]),
        (
            b"a: !!python/name:os.system\n",
            ["x.yaml:1: not YAML: could not determine a constructor for the tag "
             "'tag:yaml.org,2002:python/name:os.system'"],
        ),
        (b"a: &b [*b]\n", ["x.yaml:1: not YAML: maximum recursion depth exceeded"]),
        (b"a: \x00\n", ["x.yaml:1: not YAML: unacceptable character #x0000: special characters are not allowed"]),
        (
            b"a: \xff\n",
            ["x.yaml: must be text in UTF-8 ('utf-8' codec can't decode byte 0xff in position 3: invalid start byte)"],
        ),
    ],
)  # fmt: skip
def test_files_that_are_no_config(text: bytes, expected: list[str]) -> None:
    Path("x.yaml").write_bytes(text)
    assert problems("x.yaml") == expected


def test_a_file_that_is_not_there() -> None:
    bundled = ", ".join(list_bundled())
    here = Path.cwd()
    what = "must be a YAML file or a bundled config"
    assert problems("x.yaml") == [f"x.yaml: {what}: there is no file {here / 'x.yaml'}; bundled: {bundled}"]
    assert problems(here) == [f"{here}: {what}: {here} is a folder; bundled: {bundled}"]
    name = list_bundled()[0]
    found = problems(f"{name}x")
    assert found == [
        f"{name}x: {what}: there is no file {here / name}x; bundled: {bundled} (did you mean {name!r}?)"
    ]


def test_a_plugin_that_cannot_be_read_is_told_with_its_line() -> None:
    Path("broken.py").write_text("@register('model', 'm')\ndef m(shape, *, width: int = WIDTH): ...\n")
    (problem,) = problems("full.yaml", "plugins=[mine.py, broken.py]")
    assert problem.startswith(
        f"{Path('broken.py').resolve()}:2: setting 'width': WIDTH is not a literal declaration"
    )


def test_values_that_are_no_yaml() -> None:
    assert problems(minimal(strategy={"name": "drift", "rounds": 2, "extra": {"a": object}})) == [
        "config: strategy.extra = {'a': <class 'object'>}: must be a mapping"
    ]
    source = minimal(data={"name": "dots", "path": Path("a/b"), "size": 5})
    assert load_config(source).data.settings == {"size": 5, "path": "a/b"}
    assert source == minimal(data={"name": "dots", "path": Path("a/b"), "size": 5})  # untouched


# ------------------------------------------------------------------------------------------------ bytes
@pytest.mark.parametrize(
    ("text", "expected"),
    [("2GB", 2 * 10**9), ("1.5 MB", 1_500_000), ("3kB", 3000), ("7B", 7), (" 7 gb ", 7 * 10**9), (12, 12), ("12", 12),
     (2e9, 2 * 10**9), ("0.1GB", 10**8)],
)  # fmt: skip
def test_parse_bytes(text: str | int | float, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "GB", "2TB", "2GiB", "-1GB", "1,5GB", -3, math.nan, math.inf, True])
def test_parse_bytes_refuses(text: Any) -> None:
    with pytest.raises(FneError) as caught:
        parse_bytes(text)
    assert str(caught.value) == (
        f"size = {text!r}: must be text such as '2GB' (unit B, kB, MB or GB) or a number of bytes"
    )


# ------------------------------------------------------------------------------------------------ round trips
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
TRICKY = st.sampled_from(
    ["1e-3", "no", "~", "null", "12:30", "2024-01-01", "0x1f", ".inf", "<<", "=", "1_0", "- a"]
)
TREES = st.recursive(
    SCALARS | TRICKY, lambda below: st.lists(below, max_size=3) | mappings(below), max_leaves=8
)


def mappings(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.text(max_size=5) | TRICKY, values, max_size=3)


@given(tree=mappings(TREES))
@settings(deadline=None, max_examples=150)
def test_yaml_goes_round_and_older_readers_agree(tree: dict[str, Any]) -> None:
    assert parse(dump(tree)) == (tree, [])
    assert yaml.safe_load(dump(tree)) == tree


@given(
    rate=st.floats(min_value=0, max_value=1, exclude_min=True),
    widths=st.lists(st.integers(1, 10**9), max_size=4),
    window=st.none() | st.integers(2, 99),
    take=st.just("all") | st.integers(1, 99),
    pair=st.tuples(*[st.floats(allow_nan=False, allow_infinity=False)] * 2),
    note=st.text() | TRICKY,
    extra=mappings(TREES),
    seed=st.integers(0, 2**63 - 1),
)
@settings(deadline=None, max_examples=60)
def test_a_config_goes_round(seed: int, **given_settings: Any) -> None:
    strategy = {"name": "drift", "rounds": 1, **given_settings}
    config = load_config(minimal(strategy=strategy, seed=seed))
    assert config.strategy.settings | given_settings == config.strategy.settings
    assert load_config(config.to_dict()) == config
    tree, mistakes = parse(config.to_yaml())
    assert (load_config(tree), mistakes) == (config, [])
    assert isinstance(load_config(tree), Config)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001), ("1E3", 1000.0), ("-.5", -0.5), ("1.", 1.0), ("1_000", 1000), ("0x10", 16), ("-7", -7),
        ("no", "no"), ("off", "off"), ("12:30", "12:30"), ("2024-01-01", "2024-01-01"), ("007", "007"),
        ("1.2.3", "1.2.3"), ("e5", "e5"), ("true", True), ("null", None), ("~", None), ("", None), (".inf", math.inf),
        ("'1'", "1"), ("{a: &x 1, b: *x}", {"a": 1, "b": 1}), ("{1: a}", {"1": "a"}),
        ("{a: &x {b: 1}, c: {<<: *x, d: 2}}", {"a": {"b": 1}, "c": {"b": 1, "d": 2}}),
    ],
)  # fmt: skip
def test_how_yaml_is_read(text: str, value: Any) -> None:
    found, mistakes = parse(text)
    assert (found, type(found), mistakes) == (value, type(value), [])


def test_keys_written_twice() -> None:
    assert parse("a: 1\nb: {c: 1, c: 2}\na: 3\n")[1] == [
        (2, "c is written twice, first in line 2: keep one"),
        (3, "a is written twice, first in line 1: keep one"),
    ]
    assert parse("{a: 1, a: 2")[0] is BROKEN
