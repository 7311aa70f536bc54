"""Configs: what is filled in, what an override changes, what goes round unchanged."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fne.config import registry
from fne.config.load import Config, difference, list_bundled, load_config
from fne.config.sections import parse_bytes
from fne.config.yaml_text import parse
from fne.core.errors import ConfigError, FneError


@pytest.fixture(autouse=True)
def _folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder of one's own, which holds `mine.py` and `full.yaml`."""
    for name in ("_plugin_entries", "_plugin_files"):
        monkeypatch.setattr(registry, name, {})
    folder = shutil.copytree(Path(__file__).parents[1] / "plugins", tmp_path_factory.mktemp("config") / "plugins")
    monkeypatch.chdir(folder)


def minimal(**more: Any) -> dict[str, Any]:
    strategy = {"name": "drift", "rounds": 2}
    return {"data": "dots", "model": "line", "strategy": strategy, "plugins": ["mine.py"], **more}


# ------------------------------------------------------------------------------------------------ results
def test_everything_is_filled_in() -> None:
    config = load_config("full.yaml")
    assert config.to_dict() == {
        "name": "full",
        "seed": 3,
        "data": {
            "name": "dots", "nodes": 4, "partition": {"name": "even", "alpha": 0.3}, "shift": 0,
            "size": 50, "path": None,
        },
        "model": {"name": "line", "width": 4},
        "strategy": {
            "name": "drift", "rounds": 7, "rate": 0.001, "rule": "plain", "window": None, "take": "all",
            "widths": [1, 2], "pair": [0.0, 1.0], "note": "", "loud": False, "extra": {},
        },
        "engine": {"name": "local", **dict(load_config("full.yaml").engine.settings)},
        "evaluation": {
            "path": "table", "tiles": "node", "memory": 500_000_000, "chunk": None, "tile": None,
            "together": 0, "batch_norm": "identity",
        },
        "policy": dict.fromkeys(["noise", "clip", "answers", "epsilon", "delta"]),
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
    Path(file).write_text(Path("full.yaml").read_text().replace("name: full\n", ""))
    assert load_config(file).name == name


def test_a_config_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_config("full.yaml").seed = 4


@pytest.mark.parametrize("name", list_bundled())
def test_bundled_configs(name: str) -> None:
    config = load_config(name)
    assert config == load_config(f"{name}.yaml") == load_config(config.to_dict())
    assert config.name == name


def test_plugins_are_found_beside_their_config_or_from_the_command_line_here() -> None:
    below = Path("below")
    below.mkdir()
    shutil.copy("mine.py", below)
    shutil.copy("full.yaml", below / "config.yaml")
    assert load_config(below / "config.yaml").plugins == (str((below / "mine.py").resolve()),)
    registry._plugin_entries.clear()
    assert load_config("below/config.yaml", ["plugins=[mine.py]"]).plugins == (str(Path("mine.py").resolve()),)


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
    two = one.with_overrides(["strategy.rounds=8", "data.partition=iid", "strategy.loud=true", "data.nodes=null"])
    assert difference(one, two) == [
        "data.nodes: 4 -> null",
        "data.partition.name: 'even' -> 'iid'",
        "data.partition.alpha: 0.3 -> absent",
        "strategy.rounds: 7 -> 8",
        "strategy.loud: false -> true",
    ]


# ------------------------------------------------------------------------------------------------ bytes
@pytest.mark.parametrize(
    ("text", "expected"),
    [("2GB", 2 * 10**9), ("1.5 MB", 1_500_000), ("3kB", 3000), ("7B", 7), (" 7 gb ", 7 * 10**9), (12, 12),
     ("12", 12), (2e9, 2 * 10**9), ("0.1GB", 10**8)],
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
@given(
    rate=st.floats(min_value=0, max_value=1, exclude_min=True),
    widths=st.lists(st.integers(1, 10**9), max_size=4),
    window=st.none() | st.integers(2, 99),
    take=st.just("all") | st.integers(1, 99),
    pair=st.tuples(*[st.floats(allow_nan=False, allow_infinity=False)] * 2),
    note=st.text() | st.sampled_from(["1e-3", "no", "~"]),
    extra=st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.lists(st.text())),
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
