"""Groups of settings: flattened in their place, packed before the call, refused with file and line, declared once."""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from fne.config import groups, registry
from fne.config.declarations import flattened
from fne.config.groups import FedAvgTraining, GradientTraining, LocalTraining, Sampling
from fne.config.load import load_config
from fne.config.registry import add_plugin, declared, entry, load
from fne.config.settings import check
from fne.core.errors import ConfigError, FneError
from fne.core.messages import Header, Request
from fne.federation.node import task_of
from fne.run.learning_run import build

ROOT = Path(__file__).parents[2]
GROUPS = {name: thing for name, thing in vars(groups).items() if isinstance(thing, type) and is_dataclass(thing)}
PLUGIN = '''
from __future__ import annotations
from dataclasses import dataclass
from typing import Annotated, Literal
from fne.config.groups import LocalTraining, Loss, Runs
from fne.config.registry import Key, register

raise_on_import = {}[IMPORT]
Side = Annotated[Literal["left", "right"], Key("which")]


@dataclass(frozen=True)
class Walk:
    """How far."""

    steps: Annotated[int, Key("how many", ge=1)]
    side: Side = "left"

    @property
    def double(self):
        return 2 * self.steps


@dataclass(frozen=True, kw_only=True)
class LongWalk(Walk):
    """The same, but long."""

    rest: float = 0.5
    steps: Annotated[int, Key("how many", ge=1)] = 100


@dataclass(frozen=True, kw_only=True)
class Slow(LocalTraining):
    """A group of the toolkit with another default."""

    lr: Annotated[float, Key("slow", gt=0)] = 0.001


@register("model", "walker")
class Walker:
    """Walk."""

    def __init__(self, shape, *, before: int = 1, walk: LongWalk, after: Annotated[Loss, Key("it")] = "mse"):
        self.got = before, walk, after


@register("partition", "slow_walk")
def slow(samples, nodes, generator, *, walk: Walk, runs: Runs = 2, training: Slow):
    """Walk slowly."""
    return walk, runs, training
'''


@pytest.fixture(autouse=True)
def _no_plugins_after(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("_plugin_entries", "_plugin_files"):
        monkeypatch.setattr(registry, name, {})
    yield
    for module in [name for name in sys.modules if name.startswith("fne_plugin_")]:
        del sys.modules[module]
    for key in [k for k, thing in registry._registered.items() if thing.__module__.startswith("fne_plugin_")]:
        del registry._registered[key]


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(PLUGIN.replace("{}[IMPORT]", "None"))
    add_plugin(path)
    return path


# ------------------------------------------------------------------------------------------------ catalogue
def test_a_group_stands_flat_in_the_place_of_its_parameter() -> None:
    assert list(entry("strategy", "fedprox").settings) == [
        "rounds", "mu", "fraction", "local_epochs", "batch_size", "optimizer", "lr", "lr_decay", "momentum", "loss",
        "returns",
    ]  # fmt: skip
    assert list(entry("task", "ranking").settings) == ["loss", "answer", "samples", "statistics"]
    own, shared = entry("strategy", "fed_moeac").settings, entry("strategy", "nsga2").settings
    assert [key for key in own if key in shared] == list(shared)
    assert own.keys() - shared.keys() == {"clusters", "select", "scale", "fronts"}


def test_a_subclass_declares_a_field_anew_and_leaves_it_in_its_place() -> None:
    assert [field.name for field in fields(FedAvgTraining)] == [field.name for field in fields(LocalTraining)]
    lcb, ea = entry("strategy", "gp_lcb").settings, entry("strategy", "fdd_ea").settings
    assert (lcb["generations"][1], ea["generations"][1]) == (50, 100)
    assert repr(lcb["population"]) == repr(ea["population"])


@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)
def test_groups_of_the_toolkit_are_frozen_and_say_what_they_are(group: Any) -> None:
    assert group.__doc__
    assert not group.__doc__.startswith(f"{group.__name__}(")
    required = {key: 1 for key, (_, default) in flattened(group).items() if default is ...}
    with pytest.raises(FrozenInstanceError):
        group(**required).some = 1


def test_a_plugins_own_groups_are_read_without_importing_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(PLUGIN)  # whose import fails
    add_plugin(path)
    walker, slow = entry("model", "walker"), entry("partition", "slow_walk")
    assert {key: default for key, (_, default) in walker.settings.items()} == {
        "before": 1, "steps": 100, "side": "left", "rest": 0.5, "after": "mse",
    }  # fmt: skip
    assert list(walker.settings) == ["before", "steps", "side", "rest", "after"]
    assert list(slow.settings) == ["steps", "side", "runs", *flattened(LocalTraining)]
    assert (slow.settings["lr"][1], slow.settings["runs"][1], slow.settings["steps"][1]) == (0.001, 2, ...)
    model = registry.settings_model(slow)
    _, mistakes = check(model, {"side": "up", "lr": 0}, "it")
    assert [(m.key, m.text) for m in mistakes] == [
        ("steps", "must be a whole number >= 1"), ("side", "must be 'left' or 'right'"), ("lr", "must be a number > 0"),
    ]  # fmt: skip
    assert walker.module not in sys.modules
    with pytest.raises(FneError, match=r"NameError: name 'IMPORT' is not defined \(line 8\)"):
        load("model", "walker")


def test_reading_equals_importing(plugin: Path) -> None:
    for kind, name in (("model", "walker"), ("partition", "slow_walk")):
        inspected = declared(load(kind, name))
        assert {key: (repr(a), d) for key, (a, d) in inspected.items()} == {
            key: (repr(a), d) for key, (a, d) in entry(kind, name).settings.items()
        }
        assert list(inspected) == list(entry(kind, name).settings)


# ------------------------------------------------------------------------------------------------ packing
def test_flat_settings_come_as_groups(plugin: Path) -> None:
    walk, runs, training = load("partition", "slow_walk")(None, 3, None, steps=4, lr=0.5, runs=7)
    assert (walk.steps, walk.side, walk.double, runs) == (4, "left", 8, 7)
    assert (training.lr, training.momentum, type(training).__name__) == (0.5, 0.0, "Slow")
    before, walk, after = load("model", "walker")((), rest=2.0, after="bce").got
    assert (before, walk.steps, walk.rest, after) == (1, 100, 2.0, "bce")


def test_a_group_may_be_given_as_it_is(plugin: Path) -> None:
    walker = load("model", "walker")
    module = sys.modules[walker.__module__]
    walk = module.LongWalk(steps=3)
    assert walker((), walk=walk).got == (1, walk, "mse")
    with pytest.raises(TypeError, match="unexpected keyword argument 'steps'"):
        walker((), walk=walk, steps=4)
    with pytest.raises(TypeError, match="unexpected keyword argument 'stps'"):
        walker((), stps=4)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'steps'"):
        module.slow(None, 3, None)


def test_a_field_may_have_the_name_of_a_groups_parameter(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(HEAD + "    walk: int = 3\n    step: int = 4\n\n\n" + THING.format("walk: Walk, step_: int = 5"))
    add_plugin(path)
    assert list(entry("partition", "odd").settings) == ["walk", "step", "step_"]
    given = load("partition", "odd")(walk=1)
    assert (given["walk"].walk, given["walk"].step, given["step_"]) == (1, 4, 5)


def test_options_of_a_node_task_are_flat_in_a_request_and_packed_for_the_task(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(TASK)
    add_plugin(path)

    def asked(**options: Any) -> Request:
        return Request(Header(0, 0), "packed", ("a",), options=options)

    training, sampling = task_of(asked(loss="mse", lr=0.5, samples=3))(None, [], None)
    assert training == GradientTraining(loss="mse", lr=0.5)
    assert sampling == Sampling(samples=3)
    with pytest.raises(FneError, match=r"task 'packed': lr: must be a number >= 0"):
        task_of(asked(loss="mse", lr=-1.0))
    with pytest.raises(FneError, match=r"task 'packed': momentun: unknown key .*did you mean 'momentum'"):
        task_of(asked(loss="mse", lr=1.0, momentun=0.5))
    with pytest.raises(FneError, match="task 'packed': loss: must be 'nmse', 'mse', 'bce' or 'cross_entropy'"):
        task_of(asked(lr=1.0))


TASK = """
from __future__ import annotations
from fne.config.groups import GradientTraining, Sampling
from fne.config.registry import register


@register("task", "packed")
def packed(worker, nodes, request, *, training: GradientTraining, sampling: Sampling):
    "Return what came."
    return training, sampling
"""


def test_the_example_of_the_docs(tmp_path: Path) -> None:
    section = (ROOT / "docs" / "extending.md").read_text().split("## Settings")[1].split("## A model")[0]
    path = tmp_path / "careful.py"
    path.write_text(section.split("```python\n")[1].split("```")[0])
    add_plugin(path)
    settings, plain = entry("strategy", "careful").settings, entry("strategy", "fedprox").settings
    assert [*settings] == [key for key in plain if key != "mu"]
    assert (settings["lr"][1], plain["lr"][1], settings["rounds"][1]) == (0.01, 0.1, 20)
    given = {
        "data": {"name": "toy", "nodes": 3},
        "model": "logistic",
        "plugins": [str(path)],
        "watch": {"tensorboard": False},
    }
    config = load_config({**given, "strategy": {"name": "careful", "local_epochs": 2}})
    strategy = build(config).strategy  # type: ignore[arg-type]
    options = strategy.tasks["train"]
    assert (options["lr"], options["epochs"], strategy.horizon) == (0.01, 2, 20)


# ------------------------------------------------------------------------------------------------ refusals
HEAD = """from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated
from fne.config.groups import LocalTraining, NodeTraining
from fne.config.registry import Key, register

@dataclass(frozen=True)
class Walk:
"""
THING = """@register("partition", "odd")
def odd(*, {}):
    "Be odd."
    return locals()
"""
BODY = "    steps: int = 1\n"


@pytest.mark.parametrize(
    ("body", "parameters", "line", "said"),
    [
        (BODY, "steps: int = 2, walk: Walk", 13,
         "setting 'steps' is declared twice, by 'steps' and by 'walk'; rename one, or leave it out of the group"),
        (BODY, "walk: Walk, steps: int = 2", 13,
         "setting 'steps' is declared twice, by 'walk' and by 'steps'; rename one, or leave it out of the group"),
        ("    lr: float = 1.0\n", "walk: Walk, training: LocalTraining", 13,
         "setting 'lr' is declared twice, by 'walk' and by 'training'; rename one, or leave it out of the group"),
        (BODY, "walk: Walk = Walk()", 13, "group 'walk' can have no default; leave it out: the defaults are those of "
         "the fields, which a subclass of the group may declare anew"),
        (BODY, "place: Path", 13, "setting 'place': Path is imported from pathlib; a group must be one of "
         "fne.config.groups, or a frozen dataclass of the same file"),
        ("    seed: int = 1\n", "walk: Walk", 13,
         "group 'Walk': the toolkit passes 'seed'; make it a parameter beside the group"),
        ("    name: int = 1\n", "walk: Walk", 13, "setting 'name': a config cannot give it; rename it"),
        ("    steps: int = 1\n    side: int\n", "walk: Walk", 8, "group 'Walk': non-default argument 'side' follows "
         "default argument; write @dataclass(frozen=True, kw_only=True)"),
        ("    steps: list = []\n", "walk: Walk", 8, "group 'Walk': mutable default <class 'list'> for field steps is "
         "not allowed: use default_factory; give the field a tuple"),
        ("    steps: int = field(default=1)\n", "walk: Walk", 9, "setting 'steps': field(default=1) is not a literal "
         "declaration (only Key may be called); use Annotated, Literal, Key, int, float, str, bool, list, tuple, dict "
         "and literal values"),
        ("    steps: 'int' = 1\n", "walk: Walk", 9, "setting 'steps': 'int' is not a literal declaration (a type in "
         "quotes is not allowed); use Annotated, Literal, Key, int, float, str, bool, list, tuple, dict and literal "
         "values"),
        (BODY, "walk: Walk | None = None", 13, "setting 'walk': Walk | None is not a literal declaration (name 'Walk' "
         "is not defined); use Annotated, Literal, Key, int, float, str, bool, list, tuple, dict and literal values"),
    ],
)  # fmt: skip
def test_a_group_that_cannot_be_is_refused_by_file_and_line(
    tmp_path: Path, body: str, parameters: str, line: int, said: str
) -> None:
    path = tmp_path / "bad.py"
    text = HEAD + body
    text += "\n" * (11 - text.count("\n"))
    path.write_text(text + THING.format(parameters))
    with pytest.raises(ConfigError) as caught:
        add_plugin(path)
    (problem,) = caught.value.problems
    assert (
        problem.replace("default argument 'steps'", "default argument") == f"{path}:{line}: {said}"
    )  # from Python 3.12


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ("@dataclass\nclass Walk:", "group 'Walk' is no frozen dataclass; write @dataclass(frozen=True) above it"),
        ("@dataclass(kw_only=True)\nclass Walk:",
         "group 'Walk' is no frozen dataclass; write @dataclass(frozen=True) above it"),
        ("class Walk:", "group 'Walk' is no frozen dataclass; write @dataclass(frozen=True) above it"),
        ("@dataclass(frozen=True)\nclass Walk(dict):", "group 'Walk': base: dict is not known; a group must be one of "
         "fne.config.groups, or a frozen dataclass of the same file"),
        ("@dataclass(frozen=True)\nclass Walk(Path):", "group 'Walk': base: Path is imported from pathlib; a group "
         "must be one of fne.config.groups, or a frozen dataclass of the same file"),
        ("@dataclass(frozen=True)\nclass Walk(Walk):", "group 'Walk': base: Walk is not known; a group must be one of "
         "fne.config.groups, or a frozen dataclass of the same file"),
        ("@dataclass(frozen=True)\nclass Walk(LocalTraining):", ""),
    ],
)  # fmt: skip
def test_a_class_that_is_no_group_is_refused_by_its_own_line(tmp_path: Path, head: str, said: str) -> None:
    path = tmp_path / "bad.py"
    text = HEAD.replace("@dataclass(frozen=True)\nclass Walk:", head) + BODY + "\n\n"
    path.write_text(text + THING.format("walk: Walk"))
    if not said:
        add_plugin(path)
        assert list(entry("partition", "odd").settings)[-1] == "steps"
        return
    with pytest.raises(ConfigError) as caught:
        add_plugin(path)
    line = text.splitlines().index(head.splitlines()[-1]) + 1
    assert caught.value.problems == (f"{path}:{line}: {said}",)


def test_a_positional_group_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text(
        HEAD + BODY + '\n\n@register("partition", "odd")\ndef odd(samples, walk: Walk, *, n: int = 1): ...\n'
    )
    with pytest.raises(ConfigError, match=r"bad.py:13: group 'walk' must be keyword-only; put it behind the \*$"):
        add_plugin(path)


def test_reading_a_group_runs_nothing_of_it(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    body = f"    open({str(tmp_path / 'mark')!r}, 'w')\n    def __init_subclass__(cls): 1 / 0\n    steps: int = 1\n\n\n"
    path.write_text(HEAD + body + "@dataclass(frozen=True)\nclass Far(Walk):\n    far: int = 2\n\n\n"
                    + THING.format("far: Far"))  # fmt: skip
    add_plugin(path)
    assert list(entry("partition", "odd").settings) == ["steps", "far"]
    assert list(tmp_path.iterdir()) == [path]


def test_a_registered_thing_with_a_dataclass_that_is_no_group() -> None:
    @dataclass
    class Loose:
        some: int = 1

    def thing(*, loose: Any) -> None: ...

    thing.__annotations__["loose"] = Loose  # as where a module does not postpone evaluation
    with pytest.raises(FneError, match=r"group 'Loose' is no frozen dataclass; write @dataclass\(frozen=True\) above"):
        registry.register("task", "loose")(thing)


# ------------------------------------------------------------------------------------------------ declared once
TWICE: dict[str, str] = {}
"""Settings that are written out twice in the same words, and why."""


def declarations(tree: ast.AST) -> Iterator[tuple[str, str, str]]:
    """Yield name, annotation and default, as written, of all settings that a module declares in full."""
    for node in ast.walk(tree):
        found: list[tuple[str, ast.expr | None, ast.expr | None]] = []
        if isinstance(node, ast.arguments):
            pairs = zip(node.kwonlyargs, node.kw_defaults, strict=True)
            found = [(argument.arg, argument.annotation, default) for argument, default in pairs]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found = [(node.target.id, node.annotation, node.value)]
        for name, annotation, default in found:
            if annotation is not None and "Key(" in ast.unparse(annotation):
                yield name, ast.unparse(annotation), "..." if default is None else ast.unparse(default)


def test_no_setting_is_declared_twice() -> None:
    files = {found.file for kind in registry.KINDS for found in registry.catalogue(kind).values()}
    files = {path for path in files if path.is_relative_to(ROOT)} | {Path(groups.__file__)}
    assert len(files) > 40
    places = defaultdict(list)
    for path in sorted(files):
        for declaration in declarations(ast.parse(path.read_text())):
            places[declaration].append(path.name)
    twice = {key[0]: (key, found) for key, found in places.items() if len(found) > 1}
    assert twice.keys() == TWICE.keys(), "\n".join(
        f"{key}: {' and '.join(found)}: take a group or an alias of fne.config.groups" for key, found in twice.values()
    )


def test_all_groups_are_in_use() -> None:
    texts = [path.read_text() for folder in ("fne", "models", "data") for path in (ROOT / folder).rglob("*.py")
             if path != Path(groups.__file__).resolve()]  # fmt: skip
    aliases = [name for name, value in vars(groups).items() if not name.startswith("_") and name[0].isupper()]
    own = Path(groups.__file__).read_text()
    unused = [name for name in aliases if own.count(name) == 1 and not any(name in text for text in texts)]
    assert not unused
    assert issubclass(registry.settings_model(entry("strategy", "fedavg")), BaseModel)
