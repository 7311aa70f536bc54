"""Loading of configs: from a YAML file and overrides to a checked, fully resolved `Config`; all mistakes are reported.

A mistake is one line, `FILE: key = value: what is allowed (did you mean 'x'?)`; the line of an override names the
command line instead. Sections are checked against the registry's declarations, without importing the named objects: no
config error costs the two seconds of torch.
"""

from __future__ import annotations

import glob
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path, PurePath
from typing import Any, Self

from pydantic import BaseModel

from fne.config.registry import add_plugin, catalogue, settings_model
from fne.config.sections import (
    DataNodes,
    DataSection,
    EvaluationSection,
    NamedSection,
    PolicySection,
    ProblemNodes,
    ProblemSection,
    RunSection,
    WatchSection,
)  # fmt: skip
from fne.config.settings import check, nearest, over_paths
from fne.config.yaml_text import BROKEN, dump, excess, odd_keys, parse, plain
from fne.core.errors import ConfigError, PathWarning, shown

COMMAND_LINE = "command line"


class Config(RunSection):
    """Everything that a run depends on, with all defaults; `load_config` makes one of the two kinds below."""

    strategy: NamedSection
    engine: NamedSection
    watch: WatchSection

    def to_dict(self) -> dict[str, Any]:
        """Return the config as in YAML, in plain lists and dicts; `load_config` of the result gives an equal config."""
        first = {"name": self.name, "seed": self.seed}
        sections = ((key, getattr(self, key)) for key in SECTIONS if hasattr(self, key))
        middle = {key: part.to_dict() if isinstance(part, NamedSection) else dict(part) for key, part in sections}
        tree: dict[str, Any] = plain({**first, **middle, **{key: getattr(self, key) for key in _LAST}})
        return tree

    def to_yaml(self) -> str:
        """Return the resolved config as the text of a file."""
        return dump(self.to_dict())

    def with_overrides(self, overrides: Sequence[str]) -> Config:
        """Return a copy with settings changed (`["strategy.rounds=5"]`), checked anew."""
        return load_config(self.to_dict(), overrides, recorded=True)

    def with_values(self, values: Mapping[str, Any]) -> Self:
        """Return a copy with settings changed (`{"strategy.rounds": 5}`), checked anew; of the same kind."""
        tree = self.to_dict()
        for key, value in values.items():
            _assign(tree, key, plain(value))
        changed = load_config(tree, recorded=True)
        assert isinstance(changed, type(self))
        return changed


class LearningConfig(Config):
    """A model is trained on data."""

    data: DataSection
    model: NamedSection
    evaluation: EvaluationSection
    policy: PolicySection


class SearchConfig(Config):
    """Points of a problem are measured by nodes."""

    problem: ProblemSection


SECTIONS = ("data", "model", "problem", "strategy", "engine", "evaluation", "policy", "watch")
"""Sections in the order in which a config is written."""
LEARNING = ("data", "model", "evaluation", "policy")
"""Sections that a search does not have."""
_LAST = ("secure", "wire", "plugins")


# ------------------------------------------------------------------------------------------------ loading
def load_config(
    source: str | Path | Mapping[str, Any], overrides: Sequence[str] = (), *, recorded: bool = False
) -> Config:
    """Return the config in a YAML file, of a bundled name (`fne_mnist`) or a mapping, with overrides applied.

    Args:
        source: path of a file, name of a bundled config, or the settings themselves.
        overrides: `key=value` with a dotted key and a value in YAML, such as `strategy.rounds=5`; a later override
            wins. `strategy=fedavg` replaces the whole section by that method's defaults.
        recorded: whether the source is an already resolved config, whose paths are taken as they are.

    Paths in a file are relative to the file; a path that does not exist there is looked for in the current folder, with
    a `PathWarning`. Paths of a bundled config, of a mapping and of overrides are relative to the current folder. The
    returned config has absolute paths.

    Raises:
        ConfigError: the config has mistakes; the text has a line for each mistake.
    """
    if isinstance(source, Mapping):
        if why := excess(source):
            raise ConfigError([f"config: {why}"])
        problems = [f"config: {text}" for text in odd_keys(source)]
        return _Reader("config", Path.cwd(), problems=problems, recorded=recorded).read(plain(source), overrides)
    path = _find(source)
    try:
        tree, mistakes = parse(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError([f"{source}: must be text in UTF-8 ({error})"]) from None
    except OSError as error:
        raise ConfigError([f"{source}: cannot be read: {error.strerror}"]) from None
    problems = [f"{source}:{line}: {text}" for line, text in mistakes]
    if tree is BROKEN:
        raise ConfigError(problems)
    folder = Path.cwd() if path.parent == _bundled() else path.parent
    return _Reader(str(source), folder, path.stem, problems, recorded=recorded).read(tree, overrides)


def list_bundled() -> list[str]:
    """Return the names of the configs that come with the toolkit, sorted."""
    return sorted(path.stem for path in _bundled().glob("*.yaml"))


def difference(a: Config, b: Config) -> list[str]:
    """Return `key: old -> new` for every resolved value in which two configs differ."""
    old, new = (dict(_flat(config.to_dict())) for config in (a, b))
    before, after = ({key: shown(value, 10**6) for key, value in side.items()} for side in (old, new))
    return [
        f"{key}: {before.get(key, 'absent')} -> {after.get(key, 'absent')}"
        for key in {**old, **new}
        if key not in old or key not in new or old[key] != new[key]
    ]


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _bundled() -> Path:
    return Path(str(resources.files("fne.configs")))


def _find(source: str | Path) -> Path:
    path = Path(source).expanduser()
    bundled = _bundled() / f"{str(source).removesuffix('.yaml')}.yaml"
    if path.is_file():
        return path
    if bundled.parent == _bundled() and bundled.is_file():
        return bundled
    names = list_bundled()
    where = f"{path.absolute()} is a folder" if path.is_dir() else f"there is no file {path.absolute()}"
    known = f"bundled: {', '.join(names) or 'none'}{nearest(path.stem, names)}"
    raise ConfigError([f"{source}: must be a YAML file or a bundled config: {where}; {known}"])


# ------------------------------------------------------------------------------------------------ checking
class _Reader:
    """Check one config, gathering the mistakes."""

    def __init__(
        self, source: str, folder: Path, name: str = "", problems: Sequence[str] = (), *, recorded: bool
    ) -> None:
        self.source, self.folder, self.name, self.recorded = source, folder, name, recorded
        self.told: set[str] = set()
        self.problems = list(problems)
        self.overridden: list[str] = []
        self.keys: list[str] = []
        self.shapeless: set[str] = set()

    def read(self, tree: Any, overrides: Sequence[str]) -> Config:
        if not isinstance(tree, dict):
            what = "is empty" if tree is None else f"is {shown(tree)}"
            must = "must be a mapping with data, model and strategy, or problem and strategy"
            self.problems.append(f"{self.source}: {what}: {must}")
            raise ConfigError(self.problems)
        for text in overrides:
            self.override(tree, text)
        if why := excess(tree):  # keys of overrides have levels, too
            raise ConfigError([*self.problems, f"{COMMAND_LINE}: {why}"])
        self.load_plugins(tree.get("plugins"))
        searches = "problem" in tree
        self.keys = [*_keys(tree, searches=searches)]
        also = [key for key in LEARNING if searches and key in tree]
        if also:
            self.problems.append(
                f"{self.source}: problem and {' and '.join(also)}: a run either searches a problem or trains a model "
                "on data; leave one out"
            )
        part = {key: self.section(tree.pop(key, None), key) for key in SECTIONS}
        engine = {"name": "local", **part["engine"]}
        subject = part["problem" if searches else "data"]
        name = self.name or f"{part['strategy'].get('name')}_{subject.get('name')}"
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip("._-")[:100] or "run"
        sections = [key for key in self.keys if key in SECTIONS]
        own = self.check(RunSection, {"name": name, **tree}, "", "the config", sections)
        found = self.problem(subject) if searches else self.learning(part)
        found |= {
            "strategy": self.strategy(part["strategy"], searches=searches),
            "engine": self.named("engine", engine, "engine"),
            "watch": self.check(WatchSection, part["watch"], "watch", "watch"),
        }
        for key, none in (("target", None), ("champions", 0)) if searches else ():
            if found["watch"].get(key, none) != none:
                self.wrong(f"watch.{key}", f"must be {shown(none)} with a problem: no model is trained",
                           found["watch"][key])  # fmt: skip
        if self.problems:
            raise ConfigError(self.problems)
        own["plugins"] = tuple(str(Path(text).resolve()) for text in own["plugins"])
        return (SearchConfig if searches else LearningConfig).model_validate({**own, **found})

    def problem(self, values: dict[str, Any]) -> dict[str, Any]:
        shared = {key: values.pop(key) for key in ProblemNodes.model_fields if key in values}
        made = self.named("problem", values, "problem", tuple(ProblemNodes.model_fields))
        made |= self.check(ProblemNodes, shared, "problem", "")
        return {"problem": made}

    def learning(self, part: dict[str, dict[str, Any]]) -> dict[str, Any]:
        partition = {"name": "iid", **self.section(part["data"].pop("partition", None), "data.partition")}
        shared = {key: part["data"].pop(key) for key in DataNodes.model_fields if key in part["data"]}
        data = self.named("data", part["data"], "data", ("nodes", "partition", "shift"))
        data |= self.check(DataNodes, shared, "data", "")
        return {
            "data": data | {"partition": self.named("partition", partition, "data.partition")},
            "model": self.named("model", part["model"], "model"),
            "evaluation": self.check(EvaluationSection, part["evaluation"], "evaluation", "evaluation"),
            "policy": self.check(PolicySection, part["policy"], "policy", "policy"),
        }

    def strategy(self, values: dict[str, Any], *, searches: bool) -> dict[str, Any]:
        known = catalogue("strategy")
        given = values.get("name")
        learns = {name: entry.task == "LearningTask" for name, entry in known.items()}
        if given in list(known) and learns[given] == searches:
            has, needs = ("problem", "data and model") if searches else ("data and model", "problem")
            fitting = [name for name, trains in learns.items() if trains != searches]
            self.wrong("strategy.name", f"needs {needs}; for {has} take "
                       f"{', '.join(fitting) or 'a strategy of your own'}", given)  # fmt: skip
            return {}
        return self.named("strategy", values, "strategy")

    def override(self, tree: dict[str, Any], text: str) -> None:
        key, equals, written = text.partition("=")
        key = key.strip()
        if not equals or not all(key.split(".")):
            self.problems.append(f"{COMMAND_LINE}: {text!r}: must be key=value, such as strategy.rounds=100")
            return
        self.overridden.append(key)
        value, mistakes = parse(written)
        for _, why in mistakes:
            self.wrong(key, why, written)
        if value is not BROKEN:
            _assign(tree, key, value)

    def origin(self, key: str) -> str:
        dotted = f"{key}."
        given = any(dotted.startswith(f"{o}.") or o.startswith(dotted) for o in self.overridden)
        return COMMAND_LINE if given else self.source

    def wrong(self, key: str, text: str, value: Any) -> None:
        self.problems.append(f"{self.origin(key)}: {key} = {shown(value)}: {text}")

    def missing(self, key: str, text: str) -> None:
        self.problems.append(f"{self.origin(key)}: {key} is missing: {text}")

    def section(self, value: Any, key: str) -> dict[str, Any]:
        named = key not in ("evaluation", "policy", "watch")
        if value is None:
            return {}
        if isinstance(value, dict):
            return value
        if isinstance(value, str) and named:  # `partition: iid` is short for it
            return {"name": value}
        self.wrong(key, f"must be {'a name or a mapping with a name' if named else 'a mapping'}", value)
        self.shapeless.add(key)
        return {}

    def named(self, kind: str, values: dict[str, Any], key: str, more: Sequence[str] = ()) -> dict[str, Any]:
        known = catalogue(kind)
        name = values.pop("name", None)
        choice = f"must be one of {', '.join(known)}"
        if name is None:
            if key not in self.shapeless:
                self.missing(f"{key}.name", choice)
        elif name not in list(known):
            self.wrong(f"{key}.name", choice + nearest(name, known), name)
        else:
            settings = self.check(settings_model(known[name]), values, key, f"{kind} {name!r}", more)
            return {"name": name, "settings": settings}
        return {}

    def check(
        self, model: type[BaseModel], values: dict[str, Any], section: str, what: str, more: Sequence[str] = ()
    ) -> dict[str, Any]:
        elsewhere = [key for key in self.keys if key.rpartition(".")[0] != section]
        made, mistakes = check(model, values, what, more, elsewhere)
        for mistake in mistakes:
            key = f"{section}.{mistake.key}".lstrip(".")
            if mistake.key in values:
                self.wrong(key, mistake.text, values[mistake.key])
            else:
                self.missing(key, mistake.text)

        def located(key: str, form: str, text: str) -> str:
            return self.located(f"{section}.{key}".lstrip("."), text, search=form == "search")

        given = {key: value for key, value in made.items() if key in values}  # a default is not relative to anything
        return made | over_paths(model, given, located)

    def located(self, key: str, text: str, *, search: bool = False) -> str:
        """Return a key's path as absolute, see `load_config`; with `search`, the text of a missing file is kept."""
        if "\0" in text:
            self.wrong(key, "must be a path", text)
            return text
        given, here = os.path.expanduser(text), self.origin(key) == COMMAND_LINE
        if os.path.isabs(given) or (self.recorded and not here):
            return given
        folders = [Path.cwd()] if here else [self.folder, Path.cwd()]
        places = list(dict.fromkeys(os.path.abspath(folder / given) for folder in folders))
        found = next((place for place in places if _exists(place)), None)
        if found is None:
            return text if search else places[0]
        if found != places[0] and key not in self.told:
            self.told.add(key)
            warnings.warn(
                f"{self.source}: {key} = {shown(text)}: there is no {places[0]}; taken from the current folder is "
                f"{found}. Write it relative to the config file",
                PathWarning,
                stacklevel=2,
            )
        return found

    def load_plugins(self, given: Any) -> None:
        for text in given if isinstance(given, list) else ():
            if not isinstance(text, str) or "\0" in text:
                continue  # `check` tells
            path = Path(self.located("plugins", text)).resolve()
            if path.suffix != ".py" or not path.is_file():
                self.wrong("plugins", f"must be Python files: there is none at {path}", text)
                continue
            try:
                add_plugin(path)
            except ConfigError as error:
                self.problems += error.problems


def _exists(path: str) -> bool:
    """Return whether a file or folder exists; where `{node}` stands for names, whether the file of any node exists."""
    return os.path.exists(path) or ("{node}" in path and bool(glob.glob(glob.escape(path).replace("{node}", "*"))))


def without_folders(config: Config) -> dict[str, Any]:
    """Return a config's plain values with only the last part of each path, independent of the files' folders."""
    tree = config.to_dict()

    def last(key: str, form: str, text: str) -> str:
        return PurePath(text).name

    for kind in ("data", "model", "problem", "strategy", "engine"):
        if kind in tree:
            tree[kind] = over_paths(settings_model(catalogue(kind)[tree[kind]["name"]]), tree[kind], last)
    if "problem" in tree:
        tree["problem"] = over_paths(ProblemNodes, tree["problem"], last)
    return tree


def _keys(tree: Mapping[str, Any], *, searches: bool) -> Iterator[str]:
    """Yield the dotted names of all keys that a config with these named objects can have."""

    def settings(kind: str, section: str, value: Any, usual: str = "") -> Iterator[str]:
        name = value.get("name", usual) if isinstance(value, dict) else value or usual
        entry = catalogue(kind).get(name) if isinstance(name, str) else None
        yield from (f"{section}.{key}" for key in (entry.settings if entry else ()))

    left_out = LEARNING if searches else ("problem",)
    models: dict[str, type[BaseModel]] = {
        "": RunSection, "data": DataNodes, "problem": ProblemNodes, "evaluation": EvaluationSection,
        "policy": PolicySection, "watch": WatchSection,
    }  # fmt: skip
    sections = [section for section in SECTIONS if section not in left_out]
    yield from sections
    for section, model in models.items():
        if section not in left_out:
            yield from (f"{section}.{key}".lstrip(".") for key in model.model_fields)
    for section in sections:
        if section not in models or section in ("data", "problem"):
            yield from settings(section, section, tree.get(section), "local" if section == "engine" else "")
    data = tree.get("data")
    if not searches:
        yield "data.partition"
        given = data.get("partition") if isinstance(data, dict) else None
        yield from settings("partition", "data.partition", given, "iid")


def _assign(tree: dict[str, Any], key: str, value: Any) -> None:
    *above, last = key.split(".")
    for part in above:
        below = tree.get(part)
        tree[part] = {"name": below} if isinstance(below, str) else below if isinstance(below, dict) else {}
        tree = tree[part]
    tree[last] = value
