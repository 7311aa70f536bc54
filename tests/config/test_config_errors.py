"""Every mistake in a config, word for word: all at once, each with its source."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fne.config import registry
from fne.config.load import list_bundled, load_config
from fne.config.yaml_text import parse
from fne.core.errors import ConfigError


@pytest.fixture(autouse=True)
def _folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder of one's own, which holds `mine.py` and `full.yaml`."""
    for name in ("_plugin_entries", "_plugin_files"):
        monkeypatch.setattr(registry, name, {})
    folder = shutil.copytree(Path(__file__).parents[1] / "plugins", tmp_path_factory.mktemp("config") / "plugins")
    monkeypatch.chdir(folder)


def problems(source: Any, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(source, overrides)
    return list(caught.value.problems)


def minimal(**more: Any) -> dict[str, Any]:
    strategy = {"name": "drift", "rounds": 2}
    return {"data": "dots", "model": "line", "strategy": strategy, "plugins": ["mine.py"], **more}


WORDS = {
    "size": "text such as '2GB' (unit B, kB, MB or GB) or a number of bytes, at least 1MB",
    "run": "text of at most 100 letters, digits, '.', '_' and '-' that begins with a letter or digit",
    "paths": "'table', 'auto', 'loop', 'vmap' or 'stacked'",
}
MISTAKES = r"""
seed=-1 | seed = -1: must be a whole number >= 0 and < 2**63
seed=9223372036854775808 | seed = 9223372036854775808: must be a whole number >= 0 and < 2**63
seed=true | seed = true: must be a whole number >= 0 and < 2**63
seed=1.5 | seed = 1.5: must be a whole number >= 0 and < 2**63
seed= | seed = null: must be a whole number >= 0 and < 2**63
secure=2 | secure = 2: must be false, true or 'clip'
wire=lineages | wire = 'lineages': must be 'tensors', 'lineage' or 'auto' (did you mean 'lineage'?)
plugins=mine.py | plugins = 'mine.py': must be a list, each text
rounds=5 | rounds = 5: unknown key of the config (did you mean 'strategy.rounds'?)
ruonds=5 | ruonds = 5: unknown key of the config (did you mean 'strategy.rounds'?)
every=5 | every = 5: unknown key of the config (did you mean 'watch.every'?)
alpha=5 | alpha = 5: unknown key of the config (did you mean 'data.partition.alpha'?)
width=5 | width = 5: unknown key of the config (did you mean 'model.width'?)
path=x | path = 'x': unknown key of the config (did you mean 'evaluation.path' or 'data.path'?)
partition=even | partition = 'even': unknown key of the config (did you mean 'data.partition'?)
quorum=2 | quorum = 2: unknown key of the config (did you mean 'engine.quorum'?)
strategy.width=3 | strategy.width = 3: unknown key of strategy 'drift' (did you mean 'model.width'?)
strategy.seed=3 | strategy.seed = 3: unknown key of strategy 'drift' (did you mean 'seed'?)
data.alpha=1 | data.alpha = 1: unknown key of data 'dots' (did you mean 'data.partition.alpha'?)
watch.rounds=1 | watch.rounds = 1: unknown key of watch (did you mean 'strategy.rounds'?)
strategy.rule=PLAIN | strategy.rule = 'PLAIN': must be 'plain' or 'greedy' (did you mean 'plain'?)
strategy.loud=ture | strategy.loud = 'ture': must be true or false (did you mean 'true'?)
model=LINE | model.name = 'LINE': must be one of <model> (did you mean 'line'?)
stratgy.rounds=3 | stratgy = {'rounds': 3}: unknown key of the config (did you mean 'strategy'?)
model=lime | model.name = 'lime': must be one of <model> (did you mean 'line'?)
model.name=[] | model.name = []: must be one of <model>
data=7 | data = 7: must be a name or a mapping with a name
data.name=zz | data.name = 'zz': must be one of <data>
data.nodes=0 | data.nodes = 0: must be a whole number >= 1 and <= 1000000 or null
data.node=3 | data.node = 3: unknown key of data 'dots' (did you mean 'nodes'?)
data.shift=-1 | data.shift = -1: must be a whole number >= 0
data.zz=3 | data.zz = 3: unknown key of data 'dots' (known: size, path, nodes, partition, shift)
data.partition=eve | data.partition.name = 'eve': must be one of <partition> (did you mean 'even'?)
data.partition.alpha=0 | data.partition.alpha = 0: must be a number > 0
data.partition.beta=0 | data.partition.beta = 0: unknown key of partition 'even' (known: alpha)
data.partition=[even] | data.partition = ['even']: must be a name or a mapping with a name
strategy.rats=1 | strategy.rats = 1: unknown key of strategy 'drift' (did you mean 'rate'?)
strategy.rate=2 | strategy.rate = 2: must be a number > 0 and <= 1
strategy.rate=.nan | strategy.rate = nan: must be a finite number > 0 and <= 1
strategy.rate=nan | strategy.rate = 'nan': must be a finite number > 0 and <= 1
strategy.rate=1e400 | strategy.rate = inf: must be a finite number > 0 and <= 1
strategy.rate=x | strategy.rate = 'x': must be a number > 0 and <= 1
strategy.rate=false | strategy.rate = false: must be a number > 0 and <= 1
strategy.rule=gredy | strategy.rule = 'gredy': must be 'plain' or 'greedy' (did you mean 'greedy'?)
strategy.window=1 | strategy.window = 1: must be a whole number >= 2 or null
strategy.take=0 | strategy.take = 0: must be 'all' or a whole number >= 1
strategy.take=al | strategy.take = 'al': must be 'all' or a whole number >= 1 (did you mean 'all'?)
strategy.widths=[1, 0] | strategy.widths = [1, 0]: must be a list, each a whole number >= 1
strategy.widths=[true] | strategy.widths = [True]: must be a list, each a whole number >= 1
strategy.widths=3 | strategy.widths = 3: must be a list, each a whole number >= 1
strategy.pair=[1] | strategy.pair = [1]: must be a list of 2: a number, a number
strategy.note=3 | strategy.note = 3: must be text
strategy.loud=3 | strategy.loud = 3: must be true or false
strategy.extra={a: [.inf]} | strategy.extra = {'a': [inf]}: must be a mapping of finite numbers
strategy.rounds.x=3 | strategy.rounds = {'x': 3}: must be a whole number >= 1
strategy.rounds=[1 | strategy.rounds = '[1': not YAML: expected ',' or ']', but got '<stream end>'
strategy.note=a: b: c | strategy.note = 'a: b: c': not YAML: mapping values are not allowed here
engine=locl | engine.name = 'locl': must be one of <engine> (did you mean 'local'?)
evaluation=table | evaluation = 'table': must be a mapping
evaluation.path=vmp | evaluation.path = 'vmp': must be <paths> (did you mean 'vmap'?)
evaluation.tiles=joint | evaluation.tiles = 'joint': must be 'node' or 'joined' (did you mean 'joined'?)
evaluation.chunk=0 | evaluation.chunk = 0: must be a whole number >= 1 or null
evaluation.memory=2XB | evaluation.memory = '2XB': must be <size>
evaluation.memory=999kB | evaluation.memory = '999kB': must be <size>
watch.every=0 | watch.every = 0: must be a whole number >= 1
watch.target=1.1 | watch.target = 1.1: must be a number >= 0 and <= 1 or null
watch.tensorbord=true | watch.tensorbord = true: unknown key of watch (did you mean 'tensorboard'?)
name=a/b | name = 'a/b': must be <run>
rounds | 'rounds': must be key=value, such as strategy.rounds=100
=3 | '=3': must be key=value, such as strategy.rounds=100
strategy..rate=3 | 'strategy..rate=3': must be key=value, such as strategy.rounds=100
"""


@pytest.mark.parametrize("case", MISTAKES.strip().splitlines())
def test_one_mistake(case: str) -> None:
    registry.add_plugin(Path("mine.py"))
    override, _, text = case.partition(" | ")
    known = {kind: ", ".join(registry.catalogue(kind)) for kind in registry.KINDS}
    for word, meaning in {**WORDS, **known}.items():
        text = text.replace(f"<{word}>", meaning)
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
        f"bad.yaml: plugins = 'none.py': must be Python files: there is none at {Path('none.py').resolve()}",
        "bad.yaml: sed = 1: unknown key of the config (did you mean 'seed'?)",
        "bad.yaml: plugins = ['mine.py', 'none.py', 4]: must be a list, each text",
        "bad.yaml: data.colour = 'red': unknown key of data 'dots' (known: size, path, nodes, partition, shift)",
        "bad.yaml: data.nodes = 0: must be a whole number >= 1 and <= 1000000 or null",
        f"bad.yaml: model.name is missing: must be one of {', '.join(registry.catalogue('model'))}",
        "bad.yaml: strategy.widht = [1]: unknown key of strategy 'drift' (did you mean 'widths'?)",
        "bad.yaml: strategy.rounds is missing: must be a whole number >= 1",
        "bad.yaml: strategy.rate = 5: must be a number > 0 and <= 1",
        "command line: strategy.rule = 'x': must be 'plain' or 'greedy'",
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


EMPTY = "is empty: must be a mapping with data, model and strategy, or problem and strategy"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", [f"x.yaml: {EMPTY}"]),
        (b"# nothing\n", [f"x.yaml: {EMPTY}"]),
        (b"- a\n", ["x.yaml: is ['a']: must be a mapping with data, model and strategy, or problem and strategy"]),
        (b"text", ["x.yaml: is 'text': must be a mapping with data, model and strategy, or problem and strategy"]),
        (b"a: 1\nb: c: d\n", ["x.yaml:2: not YAML: mapping values are not allowed here"]),
        (b"a: [1\nb: 2\n", ["x.yaml:2: not YAML: expected ',' or ']', but got ':'"]),
        (b"a:\n\t- 1\n", ["x.yaml:2: not YAML: found character '\\t' that cannot start any token"]),
        (b"a: 1\n---\nb: 1\n", ["x.yaml:2: not YAML: but found another document"]),
        (
            b"a: !!python/name:os.system\n",
            ["x.yaml:1: not YAML: could not determine a constructor for the tag "
             "'tag:yaml.org,2002:python/name:os.system'"],
        ),
        (b"a: &b [*b]\n", ["x.yaml:1: nested more than 100 levels deep, or inside itself: write it flatter"]),
        (
            b"a: \x00\n",
            ["x.yaml:1: not YAML: unacceptable character #x0000: special characters are not allowed"],
        ),
        (
            b"a: \xff\n",
            ["x.yaml: must be text in UTF-8 ('utf-8' codec can't decode byte 0xff in position 3: "
             "invalid start byte)"],
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
    assert found == [f"{name}x: {what}: there is no file {here / name}x; bundled: {bundled} (did you mean {name!r}?)"]


def test_a_plugin_that_cannot_be_read_is_told_with_its_line() -> None:
    Path("broken.py").write_text("@register('model', 'm')\ndef m(shape, *, width: int = WIDTH): ...\n")
    (problem,) = problems("full.yaml", "plugins=[mine.py, broken.py]")
    assert problem.startswith(f"{Path('broken.py').resolve()}:2: setting 'width': WIDTH is not a literal declaration")


def test_values_that_are_no_yaml() -> None:
    assert problems(minimal(strategy={"name": "drift", "rounds": 2, "extra": {"a": object}})) == [
        "config: strategy.extra = {'a': <class 'object'>}: must be a mapping of plain values"
    ]
    source = minimal(data={"name": "dots", "path": Path("a/b"), "size": 5})
    assert load_config(source).data.settings == {"size": 5, "path": "a/b"}
    assert source == minimal(data={"name": "dots", "path": Path("a/b"), "size": 5})  # untouched


def test_keys_that_are_no_text() -> None:
    extra = "strategy: {name: drift, rounds: 2, extra: {1: a, true: b}}"
    Path("keys.yaml").write_text(f"plugins: [mine.py]\ndata: dots\nmodel: line\n{extra}\n")
    said = 'the key true is read as true, and keys are text: write "true" in quotes'
    assert problems("keys.yaml") == [f"keys.yaml:4: {said}"]
    assert problems("full.yaml", "strategy.extra={null: x}") == [
        "command line: strategy.extra = '{null: x}': " + said.replace("true", "null")
    ]
    given = {"name": "drift", "rounds": 2, "extra": {1: "a", "deep": [{True: "b", None: 1, (1, 2): 2, b"x": 3}]}}
    assert problems(minimal(strategy=given)) == [
        f"config: strategy: extra: deep: the key {key} is a {kind}, and keys are text: write {text}"
        for key, kind, text in [
            ("True", "bool", "'True'"), ("None", "NoneType", "'None'"), ("(1, 2)", "tuple", "'(1, 2)'"),
            ("b'x'", "bytes", '"b\'x\'"'),
        ]
    ]  # fmt: skip
    assert load_config(minimal(strategy={**given, "extra": {1: "a", 1.5: "b"}})).strategy.settings["extra"] == {
        "1": "a", "1.5": "b",
    }  # fmt: skip


SECTIONS = ["data", "model", "strategy", "engine", "evaluation", "watch", "partition", "plugins", "wire", "x"]
INSIDE = [
    "name",
    "seed",
    "nodes",
    "rounds",
    "rate",
    "rule",
    "take",
    "widths",
    "pair",
    "note",
    "extra",
    "memory",
    "every",
]
KEYS = st.sampled_from(SECTIONS + INSIDE) | st.text()
NAMES = st.sampled_from(["drift", "dots", "line", "even", "local", "2GB"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | NAMES,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(KEYS, below, max_size=4),
    max_leaves=12,
)


@given(
    tree=st.dictionaries(KEYS, VALUES, max_size=6),
    overrides=st.lists(st.tuples(st.lists(KEYS, min_size=1, max_size=3), st.text()), max_size=3),
)
@settings(deadline=None, max_examples=200)
def test_nothing_but_a_list_of_mistakes_comes_of_nonsense(tree: dict[str, Any], overrides: list[Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(
            {**minimal(), **tree, "secure": "perhaps"}, [f"{'.'.join(key)}={value}" for key, value in overrides]
        )
    assert all(problem and problem == problem.strip() for problem in caught.value.problems)


@given(text=st.text() | st.text(alphabet="ab1:-{}[]&*!<>|#'\"%@` \n\t,?", max_size=30))
@settings(deadline=None, max_examples=300)
def test_any_text_is_read_or_refused(text: str) -> None:
    _, mistakes = parse(text)
    assert all(line >= 1 and why for line, why in mistakes)
