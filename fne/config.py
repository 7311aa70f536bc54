"""From a YAML file and overrides to a checked, fully resolved `Config`; every mistake is told at once.

A mistake is one line, `FILE: key = value: what is allowed (did you mean 'x'?)`; that of an override names the
command line. Sections are checked against what the registry says of the named thing, so nothing is imported
that is not used: no config error costs the two seconds of torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict

from fne.errors import ConfigError, FneError, shown
from fne.registry import add_plugin, catalogue, settings_model
from fne.settings import Key, check, nearest
from fne.yamltext import BROKEN, dump, parse, plain

COMMAND_LINE = "command line"
_SIZE = "text such as '2GB' (unit B, kB, MB or GB) or a number of bytes"
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}


def parse_bytes(value: int | float | str) -> int:
    """Return a number of bytes from `"2GB"`, `"1.5 MB"` (powers of ten, unit B, kB, MB or GB) or a number."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?)\s*([kmg]?b|)", str(value).strip().lower())
    if match is None or isinstance(value, bool):
        raise FneError(f"size = {value!r}: must be {_SIZE}")
    return int(Decimal(match[1]) * _UNITS[match[2]])


# ------------------------------------------------------------------------------------------------ sections
class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class NamedSection(_Section):
    """A registered thing and all its settings."""

    name: str
    settings: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return the section as in YAML."""
        return {"name": self.name, **self.settings}


class _Nodes(_Section):
    nodes: Annotated[int | None, Key("nodes that share the data; null: the partition says", ge=1)] = None
    shift: Annotated[int, Key("most that a training input is moved, anew each time", unit="pixels, samples", ge=0)] = 0


class DataSection(_Nodes, NamedSection):
    """A data set, how many nodes share it and how; `settings` are the loader's."""

    partition: NamedSection

    def to_dict(self) -> dict[str, Any]:
        """Return the section as in YAML."""
        own = {"name": self.name, "nodes": self.nodes, "partition": self.partition.to_dict(), "shift": self.shift}
        return own | self.settings


class EvaluationSection(_Section):
    """How a population meets the data: results agree on every path, time and memory do not."""

    path: Annotated[
        Literal["table", "auto", "loop", "vmap", "stacked"],
        Key("table: known best of model and device; auto: a timed trial at step 0; others: that path"),
    ] = "table"
    tiles: Annotated[
        Literal["node", "joined"],
        Key("node: same bits on every engine; joined: one pass over all nodes of a worker, within 1e-6"),
    ] = "node"
    memory: Annotated[
        int,
        BeforeValidator(parse_bytes),
        Key("most memory that a pass may take", unit="bytes", allowed=f"{_SIZE}, at least 1MB", ge=10**6),
    ] = 2 * 10**9
    chunk: Annotated[int | None, Key("most in a pass; null: from memory", unit="individuals", ge=1)] = None
    tile: Annotated[int | None, Key("most in a pass; null: from memory", unit="samples", ge=1)] = None
    batch_norm: Annotated[
        Literal["identity", "batch", "server"],
        Key("statistics without gradients: mean 0 and variance 1, the node's samples', or the server's samples'"),
    ] = "identity"


class WatchSection(_Section):
    """What a run writes, and when it stops early."""

    every: Annotated[int, Key("write every n-th step to the history", unit="steps", ge=1)] = 1
    checkpoint_every: Annotated[int, Key("write a checkpoint every n-th step", unit="steps", ge=1)] = 50
    tensorboard: Annotated[bool, Key("write TensorBoard events")] = True
    target: Annotated[float | None, Key("stop at this validation accuracy; null: never", ge=0, le=1)] = None
    champions: Annotated[int, Key("keep the fittest of every n-th step; 0: none", unit="steps", ge=0)] = 0


_NAME = "text of at most 100 letters, digits, '.', '_' and '-' that begins with a letter or digit"
_SEED = "a whole number >= 0 and < 2**63"
_INSECURE = "false: secure sums are not in this version"


class _Own(_Section):
    name: Annotated[str, Key("name of the run", allowed=_NAME, pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
    seed: Annotated[int, Key("seed of everything public", allowed=_SEED, ge=0, lt=2**63)] = 0
    secure: Annotated[Literal[False], Key("secure sums", allowed=_INSECURE)] = False
    wire: Annotated[
        Literal["tensors", "lineage", "auto"],
        Key("of candidates whole models are sent, or decisions from which nodes make them; auto: these if it can be"),
    ] = "tensors"
    plugins: Annotated[tuple[str, ...], Key("Python files that register things of one's own")] = ()


class Config(_Own):
    """Everything that a run depends on, all defaults filled in; made by `load_config`."""

    data: DataSection
    model: NamedSection
    strategy: NamedSection
    engine: NamedSection
    evaluation: EvaluationSection
    watch: WatchSection

    def to_dict(self) -> dict[str, Any]:
        """Return the YAML shape in plain lists and dicts; `load_config` of it gives an equal config."""
        named = {key: getattr(self, key).to_dict() for key in ("data", "model", "strategy", "engine")}
        fixed = {key: dict(getattr(self, key)) for key in ("evaluation", "watch")}
        rest = {"secure": self.secure, "wire": self.wire, "plugins": self.plugins}
        tree: dict[str, Any] = plain({"name": self.name, "seed": self.seed, **named, **fixed, **rest})
        return tree

    def to_yaml(self) -> str:
        """Return the resolved config as the text of a file."""
        return dump(self.to_dict())

    def with_overrides(self, overrides: Sequence[str]) -> Config:
        """Return a copy with settings changed (`["strategy.rounds=5"]`), checked anew."""
        return load_config(self.to_dict(), overrides)

    def with_values(self, values: Mapping[str, Any]) -> Config:
        """Return a copy with settings changed (`{"strategy.rounds": 5}`), checked anew."""
        tree = self.to_dict()
        for key, value in values.items():
            _assign(tree, key, plain(value))
        return load_config(tree)


_SECTIONS = ("data", "model", "strategy", "engine", "evaluation", "watch")


# ------------------------------------------------------------------------------------------------ loading
def load_config(source: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Config:
    """Return the config in a YAML file, of a bundled name (`fne_mnist`) or a mapping, with overrides applied.

    Args:
        source: path of a file, name of a bundled config, or the settings themselves.
        overrides: `key=value` with a dotted key and a value in YAML, such as `strategy.rounds=5`; a later one
            wins. `strategy=fedavg` replaces the whole section by that method's defaults.

    Raises:
        ConfigError: with a line for each mistake.
    """
    if isinstance(source, Mapping):
        return _Reader("config", Path.cwd()).read(plain(source), overrides)
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
    return _Reader(str(source), path.parent, path.stem, problems).read(tree, overrides)


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

    def __init__(self, source: str, folder: Path, name: str = "", problems: Sequence[str] = ()) -> None:
        self.source, self.folder, self.name = source, folder, name
        self.problems = list(problems)
        self.overridden: list[str] = []
        self.shapeless: set[str] = set()

    def read(self, tree: Any, overrides: Sequence[str]) -> Config:
        if not isinstance(tree, dict):
            what = "is empty" if tree is None else f"is {shown(tree)}"
            self.problems.append(f"{self.source}: {what}: must be a mapping with data, model and strategy")
            raise ConfigError(self.problems)
        for text in overrides:
            self.override(tree, text)
        self.load_plugins(tree.get("plugins"))
        part = {key: self.section(tree.pop(key, None), key) for key in _SECTIONS}
        engine = {"name": "local", **part["engine"]}
        partition = {"name": "iid", **self.section(part["data"].pop("partition", None), "data.partition")}
        nodes = {key: part["data"].pop(key) for key in _Nodes.model_fields if key in part["data"]}
        name = self.name or f"{part['strategy'].get('name')}_{part['data'].get('name')}"
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip("._-")[:100] or "run"
        own = self.check(_Own, {"name": name, **tree}, "", "the config", _SECTIONS)
        found = {
            "data": self.named("data", part["data"], "data", ("nodes", "partition", "shift"))
            | self.check(_Nodes, nodes, "data", "")
            | {"partition": self.named("partition", partition, "data.partition")},
            "model": self.named("model", part["model"], "model"),
            "strategy": self.named("strategy", part["strategy"], "strategy"),
            "engine": self.named("engine", engine, "engine"),
            "evaluation": self.check(EvaluationSection, part["evaluation"], "evaluation", "evaluation"),
            "watch": self.check(WatchSection, part["watch"], "watch", "watch"),
        }
        if self.problems:
            raise ConfigError(self.problems)
        own["plugins"] = tuple(str(self.plugin(text)) for text in own["plugins"])
        return Config.model_validate({**own, **found})

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
        named = key not in ("evaluation", "watch")
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
        made, mistakes = check(model, values, what, more)
        for mistake in mistakes:
            key = f"{section}.{mistake.key}".lstrip(".")
            if mistake.key in values:
                self.wrong(key, mistake.text, values[mistake.key])
            else:
                self.missing(key, mistake.text)
        return made

    def plugin(self, text: str) -> Path:
        folder = Path.cwd() if self.origin("plugins") == COMMAND_LINE else self.folder
        return (folder / Path(text).expanduser()).resolve()

    def load_plugins(self, given: Any) -> None:
        for text in given if isinstance(given, list) else ():
            if not isinstance(text, str):
                continue  # `check` tells
            path = self.plugin(text)
            if path.suffix != ".py" or not path.is_file():
                self.wrong("plugins", f"must be Python files: there is none at {path}", text)
                continue
            try:
                add_plugin(path)
            except ConfigError as error:
                self.problems += error.problems


def _assign(tree: dict[str, Any], key: str, value: Any) -> None:
    *above, last = key.split(".")
    for part in above:
        below = tree.get(part)
        tree[part] = {"name": below} if isinstance(below, str) else below if isinstance(below, dict) else {}
        tree = tree[part]
    tree[last] = value
