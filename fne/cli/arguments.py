"""Arguments of the commands: configs and overrides, seeds and folds, settings of a data set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fne.config import registry
from fne.config.load import COMMAND_LINE, Config, LearningConfig
from fne.config.settings import check
from fne.config.yaml_text import parse
from fne.core.errors import ConfigError, FneError, SettingError, shown


def configs_and_overrides(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words without an equals sign, and the words with one."""
    return [w for w in words if "=" not in w], [w for w in words if "=" in w]


def as_override(difference: str) -> str:
    """Return `key=old` for a line `key: old -> new` of `fne.config.load.difference`."""
    key, _, values = difference.partition(": ")
    return f"{key}={values.partition(' -> ')[0]}"


def each_run(seeds: str, folds: str, overrides: Sequence[str]) -> list[list[str]]:
    """Return the overrides of each run: each of `--seeds` with each of `--folds`, where these are given.

    Args:
        seeds: value of `--seeds`, such as `0-4` or `0,3,7`; empty: not given.
        folds: value of `--folds`, in the same form.
        overrides: overrides of all runs.
    """
    by_seed = [[f"seed={seed}"] for seed in _numbers("--seeds", seeds)] if seeds else [[]]
    by_fold = [[f"data.fold={fold}"] for fold in _numbers("--folds", folds)] if folds else [[]]
    return [[*overrides, *seed, *fold] for seed in by_seed for fold in by_fold]


def _numbers(option: str, text: str) -> list[int]:
    try:
        numbers: list[int] = []
        for part in text.split(","):
            first, _, last = part.partition("-")
            numbers += range(int(first), int(last or first) + 1)
    except ValueError:
        raise FneError(f"{option} {text!r}: write numbers such as 0-4 or 0,3,7") from None
    if not numbers:
        raise FneError(f"{option} {text!r}: no number in it; write the smaller one first, such as 0-4")
    if len(set(numbers)) < len(numbers):
        raise FneError(f"{option} {text!r}: a number is there twice; name each run once")
    return numbers


def check_folds(configs: Sequence[Config]) -> None:
    """Raise `SettingError` where a fold of `--folds` does not exist: before the first run, not after some runs."""
    for settings in (config.data.settings for config in configs if isinstance(config, LearningConfig)):
        fold, folds = settings["fold"], settings.get("folds")
        if isinstance(folds, int) and fold >= folds:
            raise SettingError("data.fold", fold, f"below data.folds = {folds}")


def loader_settings(name: str, words: Sequence[str]) -> dict[str, Any]:
    """Return the settings of data set `name`, all defaults filled in; the words are `key=value` or `data.key=value`.

    Raises:
        ConfigError: a setting is wrong; has a line for each mistake, as for the data section of a config.
    """
    given, problems = dict[str, Any](), list[str]()
    for word in words:
        key, equals, text = word.partition("=")
        key = key.removeprefix("data.")
        if not equals:
            problems.append(f"{COMMAND_LINE}: {word!r}: must be key=value, such as download=true")
            continue
        given[key], mistakes = parse(text)
        problems += [f"{COMMAND_LINE}: data.{key} = {shown(text)}: {why}" for _, why in mistakes]
    if problems:
        raise ConfigError(problems)
    made, wrong = check(registry.settings_model(registry.entry("data", name)), given, f"data {name!r}")
    for mistake in wrong:
        value = f" = {shown(given[mistake.key])}" if mistake.key in given else " is missing"
        problems.append(f"{COMMAND_LINE}: data.{mistake.key}{value}: {mistake.text}")
    if problems:
        raise ConfigError(problems)
    return made
