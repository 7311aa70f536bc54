"""The registry: what the source declares is what an import finds; mistakes name the place; no torch."""

from __future__ import annotations

import hashlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest

from fne.config import registry
from fne.config.registry import KINDS, Entry, Key, add_plugin, catalogue, declared, entry, load, register
from fne.config.settings import allowed, check, model_of
from fne.core.errors import ConfigError, FneError

ENTRIES = [found for kind in KINDS for found in catalogue(kind).values()]
PLUGIN = '''
from __future__ import annotations
from typing import Annotated, Literal
from fne.config.registry import Key, register


@register("model", "tiny_{name}")
class Tiny:
    """Do little.

    More about it.
    """

    def __init__(self, shape, outputs, *, seed: int, width: Annotated[int, Key("units", ge=1)] = 3):
        self.width = width
'''


@pytest.fixture(autouse=True)
def _no_plugins_after(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("_plugin_entries", "_plugin_files"):
        monkeypatch.setattr(registry, name, {})
    yield
    for module in [name for name in sys.modules if name.startswith("fne_plugin_")]:
        del sys.modules[module]
    for key in [k for k, thing in registry._registered.items() if not thing.__module__.startswith("fne.")]:
        del registry._registered[key]


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def choices(annotation: Any) -> list[Any]:
    """Return the literal values in an annotation."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [choice for part in get_args(annotation) for choice in choices(part)]


def settings_of(found: Entry) -> list[Any]:
    return [pytest.param(found, key, id=f"{found.kind}-{found.name}-{key}") for key in found.settings]


# ------------------------------------------------------------------------------------------------ catalogue
def test_every_kind_has_entries() -> None:
    assert {found.kind for found in ENTRIES} == set(KINDS)


@pytest.mark.parametrize("found", ENTRIES, ids=lambda found: f"{found.kind}-{found.name}")
def test_reading_equals_importing(found: Entry) -> None:
    thing = load(found.kind, found.name)
    assert (thing.__module__, thing.__qualname__) == (found.module, found.attribute)
    inspected = {
        key: (repr(annotation), ... if default is inspect.Parameter.empty else default)
        for key, (annotation, default) in declared(thing).items()
    }
    assert inspected == {key: (repr(a), default) for key, (a, default) in found.settings.items()}
    assert found.summary


@pytest.mark.parametrize(("found", "key"), [case for found in ENTRIES for case in settings_of(found)])
def test_every_setting_is_described_and_holds_its_default_and_its_choices(found: Entry, key: str) -> None:
    annotation, default = found.settings[key]
    model = model_of("one", {key: (annotation, default)})
    assert model.model_fields[key].description, f"{found.file}:{found.line}: {key} has no description"
    assert "a value" not in allowed(annotation), f"{found.file}:{found.line}: no words for {annotation}"
    if default is not ...:
        assert check(model, {}, "it") == ({key: default}, [])
    for choice in choices(annotation):
        several = get_origin(get_args(annotation)[0]) is tuple
        given, made = ([choice], (choice,)) if several else (choice, choice)
        assert check(model, {key: given}, "it") == ({key: made}, [])


def test_catalogue_and_config_errors_need_no_torch(tmp_path: Path) -> None:
    code = """
import sys
from fne.config import registry
from fne.config.load import ConfigError, load_config
found = sum(len(registry.catalogue(kind)) for kind in registry.KINDS)
try:
    load_config({"data": "mnist", "model": "cnnn", "strategy": {"name": "fne", "rounds": 0}})
except ConfigError as error:
    problems = error.problems
heavy = {"torch", "numpy", "scipy", "sklearn", "mne", "pandas"} & set(sys.modules)
print(found > 0, len(problems), sorted(heavy))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert run.stdout.strip() == "True 2 []"


# ------------------------------------------------------------------------------------------------ mistakes
def test_unknown_names_are_told_with_the_nearest() -> None:
    known = ", ".join(catalogue("model"))
    with pytest.raises(FneError) as caught:
        entry("model", "cnnn")
    assert str(caught.value) == f"unknown model 'cnnn', did you mean 'cnn'? (known: {known})"
    with pytest.raises(FneError) as caught:
        load("model", "xyz")
    assert str(caught.value) == f"unknown model 'xyz' (known: {known})"
    with pytest.raises(FneError, match="cannot register 'x' as 'modell': kinds are strategy, model"):
        register("modell", "x")


def test_registering_twice_names_both_modules() -> None:
    def thing() -> None: ...

    def other() -> None: ...

    other.__module__ = "elsewhere"
    register("task", "twice")(thing)
    assert register("task", "twice")(thing) is thing  # a module that is reloaded
    with pytest.raises(FneError) as caught:
        register("task", "twice")(other)
    assert str(caught.value) == (
        f"task 'twice' is registered twice: in {__name__} and in elsewhere; "
        "rename one (a module imported under two names counts as two)"
    )


USE = "use Annotated, Literal, Key, int, float, str, bool, list, tuple, dict and literal values"
NO_NAME = "is not a literal declaration (name {0!r} is not defined); " + USE


@pytest.mark.parametrize(
    ("head", "text"),
    [
        ("width: int = WIDTH", f"setting 'width': WIDTH {NO_NAME.format('WIDTH')}"),
        ("width: Path = 1", f"setting 'width': Path {NO_NAME.format('Path')}"),
        ("width=1", "setting 'width' has no annotation; give it its type"),
        ("name: str = ''", "setting 'name': a config cannot give it; rename it"),
        ("_hidden: int = 1", "setting '_hidden': a config cannot give it; rename it"),
    ],
)
def test_a_declaration_that_cannot_be_read(tmp_path: Path, head: str, text: str) -> None:
    path = write(tmp_path / "bad.py", f"\n@register('model', 'bad')\ndef bad(shape, *, {head}): ...\n")
    with pytest.raises(ConfigError) as caught:
        add_plugin(path)
    assert caught.value.problems == (f"{path}:3: {text}",)
    assert "bad" not in catalogue("model")


@pytest.mark.parametrize(
    ("head", "why"),
    [
        ("width: int = ().__class__.__base__", "Attribute is not allowed"),
        ("width: Annotated[int, Key('x', ge=(lambda: 1)())] = 1", "only Key may be called"),
        ("width: [int for _ in (1,)][0] = 1", "ListComp is not allowed"),
        ("width: int = 9**9**9", "Pow is not allowed"),
        ("width: str = 'x' * 10**10", "Mult is not allowed"),
        ("width: str = f'{1}'", "JoinedStr is not allowed"),
        ("width: int = int('1')", "only Key may be called"),
        ("width: int = (x := 1)", "NamedExpr is not allowed"),
        ("width: 'open(MARK, chr(119))' = 1", "a type in quotes is not allowed"),
        ("width: list['open(MARK, chr(119))'] = 1", "a type in quotes is not allowed"),
        ("width: Annotated['open(MARK, chr(119))', Key('x')] = 1", "a type in quotes is not allowed"),
    ],
)
def test_reading_a_plugin_runs_nothing_of_it(tmp_path: Path, head: str, why: str) -> None:
    head = head.replace("MARK", f'"{tmp_path}/mark"')
    path = write(tmp_path / "bad.py", f"@register('model', 'bad')\ndef bad(*, {head}): ...\n")
    with pytest.raises(ConfigError, match=rf"is not a literal declaration \({why}\); use "):
        read_all(path)
    assert list(tmp_path.iterdir()) == [path]


def read_all(path: Path) -> None:
    """Do all that a config error or `fne show` does with a plugin."""
    add_plugin(path)
    registry.settings_model(entry("model", "bad"))  # pydantic evaluates types in quotes


def test_what_a_declaration_may_be_made_of(tmp_path: Path) -> None:
    head = (
        "a: Annotated[Literal['x', -1] | int | None, Key('it', ge=-1, allowed='so')] = +1, "
        "b: tuple[int, ...] = (1, -2), c: dict[str, list[float]] = {'k': [1.5]}, d: bool = not True, "
        "e: None | str = 'it'"
    )
    add_plugin(write(tmp_path / "good.py", f"@register('model', 'good')\ndef good(*, {head}): ...\n"))
    found = entry("model", "good")
    assert check(registry.settings_model(found), {}, "it") == (
        {"a": 1, "b": (1, -2), "c": {"k": [1.5]}, "d": False, "e": "it"}, [],
    )  # fmt: skip
    assert allowed(found.settings["a"][0]) == "so"


KINDS_ARE = "strategy, model, data, partition, problem, engine or task"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "@register('modle', 'x')\ndef x(): ...",
            f":2: kind 'modle' must be {KINDS_ARE}, did you mean 'model'?",
        ),
        (
            "@register('model', X)\ndef x(): ...",
            ':2: write @register("kind", "name") with two literal strings',
        ),
        ("register(\ndef", ": not Python that can be read: '(' was never closed (<unknown>, line 1)"),
    ],
)
def test_a_plugin_that_cannot_be_read(tmp_path: Path, text: str, problem: str) -> None:
    path = write(tmp_path / "bad.py", text)
    with pytest.raises(ConfigError) as caught:
        add_plugin(path)
    assert caught.value.problems == (f"{path}{problem}",)


def test_a_decorator_that_is_only_called_register_is_let_alone(tmp_path: Path) -> None:
    add_plugin(write(tmp_path / "other.py", "@dispatch.register(list)\ndef of_list(x): ...\n"))
    assert registry.plugin_digests().keys() == {str(tmp_path / "other.py")}


# ------------------------------------------------------------------------------------------------ plugins
def test_a_plugin_is_read_first_and_imported_when_used(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.py", PLUGIN.format(name="one"))
    add_plugin(path)
    add_plugin(tmp_path / "." / "mine.py")  # again
    found = entry("model", "tiny_one")
    assert (found.file, found.line, found.summary) == (path, 8, "Do little.")
    assert found.settings == {"width": (found.settings["width"][0], 3)}  # `seed` is the toolkit's
    assert found.module not in sys.modules
    assert load("model", "tiny_one")((), 1, seed=0, width=4).width == 4
    assert sys.modules[found.module].__file__ == str(path)
    assert registry.plugin_digests() == {str(path): hashlib.sha256(path.read_bytes()).hexdigest()}


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise OSError('no licence')", "OSError: no licence (line 18)"),
        ("import nosuch", "ModuleNotFoundError: No module named 'nosuch' (line 18)"),
        ("return 3", "SyntaxError: 'return' outside function (mine.py, line 18)"),
    ],
)
def test_a_plugin_that_fails_on_import_is_named_and_leaves_no_module(tmp_path: Path, code: str, said: str) -> None:
    path = write(tmp_path / "mine.py", f"{PLUGIN.format(name='two')}\n\n{code}\n")
    add_plugin(path)
    for _ in range(2):
        with pytest.raises(FneError) as caught:
            load("model", "tiny_two")
        assert str(caught.value) == f"plugin {path}: {said}; mend the file or install what it needs"
        assert entry("model", "tiny_two").module not in sys.modules


def test_a_plugin_read_again_after_a_change(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.py", PLUGIN.format(name="old"))
    add_plugin(path)
    assert load("model", "tiny_old")((), 1, seed=0).width == 3
    write(path, PLUGIN.format(name="new"))
    add_plugin(path)
    assert load("model", "tiny_new")((), 1, seed=0).width == 3
    assert "tiny_old" not in catalogue("model")
    write(path, PLUGIN.format(name="new").replace("class Tiny", "class Renamed"))  # the same name, another class
    add_plugin(path)
    assert type(load("model", "tiny_new")((), 1, seed=0)).__name__ == "Renamed"


def test_a_plugin_that_takes_a_name_is_refused(tmp_path: Path) -> None:
    a, b = (write(tmp_path / f"{stem}.py", PLUGIN.format(name="same")) for stem in "ab")
    add_plugin(a)
    with pytest.raises(ConfigError) as caught:
        add_plugin(b)
    first = entry("model", "tiny_same").module
    second = registry_name(b)
    assert caught.value.problems == (
        f"{b}:8: model 'tiny_same' is registered twice: in {second} and in {first} ({a}:8); rename one",
    )
    own = entry("model", "cnn")
    c = write(tmp_path / "c.py", PLUGIN.format(name="x").replace("tiny_x", "cnn"))
    with pytest.raises(ConfigError, match=rf"'cnn' is registered twice: in {registry_name(c)} and in {own.module} "):
        add_plugin(c)
    d = write(tmp_path / "d.py", PLUGIN.format(name="twin") * 2)
    with pytest.raises(ConfigError, match=r"'tiny_twin' is registered twice: in .* \(.*/d.py:8\); rename one"):
        add_plugin(d)


def registry_name(path: Path) -> str:
    """Return the module name of a plugin, which tells two files of one name apart."""
    return f"fne_plugin_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"


def test_a_plugin_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"plugins: no file .*/none\.py; give a path to a Python file$"):
        add_plugin(tmp_path / "none.py")


# ------------------------------------------------------------------------------------------------ words
@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (int, "a whole number"),
        (Annotated[int, Key("x", ge=1)], "a whole number >= 1"),
        (Annotated[float, Key("x", gt=0, le=1)], "a number > 0 and <= 1"),
        (Annotated[int | None, Key("x", ge=1)], "a whole number >= 1 or null"),
        (Annotated[Literal["all"] | int, Key("x", ge=1)], "'all' or a whole number >= 1"),
        (Literal["a", "b", "c"], "'a', 'b' or 'c'"),
        (Literal[False], "false"),
        (Annotated[str, Key("x", min_length=1)], "text of length >= 1"),
        (list[Annotated[int, Key("x", ge=1)]], "a list, each a whole number >= 1"),
        (Annotated[list[float], Key("x", min_length=2)], "a list of length >= 2, each a number"),
        (tuple[int, ...], "a list, each a whole number"),
        (tuple[int, str], "a list of 2: a whole number, text"),
        (dict[str, int], "a mapping"),
        (bool, "true or false"),
        (Annotated[int, Key("x", allowed="an even number", multiple_of=2)], "an even number"),
    ],
)
def test_words_for_what_is_allowed(annotation: Any, words: str) -> None:
    assert allowed(annotation) == words


def test_bounds_of_a_union_hold_its_numbers_only() -> None:
    model = model_of("x", {"take": (Annotated[Literal["all"] | int, Key("how many", ge=1)], "all")})
    assert [check(model, {"take": value}, "x")[0] for value in ("all", 1, 0, "some", True)] == [
        {"take": "all"}, {"take": 1}, {}, {}, {},
    ]  # fmt: skip
    assert model.model_fields["take"].description == "how many"


def test_a_setting_may_have_the_name_of_a_method_of_pydantic() -> None:
    model = model_of("x", {"copy": (bool, False), "model_size": (int, 1), "schema": (str, "")})
    assert check(model, {"copy": True, "model_size": 4}, "x") == (
        {"copy": True, "model_size": 4, "schema": ""},
        [],
    )
