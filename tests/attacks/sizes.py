"""Configs with one absurd whole number, tried one after the other in a process that can be killed.

`python -m tests.attacks.sizes` reads cases from its standard input and writes a line before and after each.
"""

from __future__ import annotations

import copy
import faulthandler
import json
import os
import re
import resource
import signal
import sys
import tempfile
import typing
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fne import registry
from fne.sections import DataNodes, EvaluationSection, ProblemNodes, RunSection, WatchSection

ROOM = 2 * 10**9
"""Bytes that the process may take beyond what it has once everything is imported."""
SECONDS = 60
"""After so many seconds within one case the process ends itself: a hang, or a loop of days."""
PATIENCE = 0.5
"""Seconds of a run that is well begun."""
SIZES = (10**9, 10**12, 10**18)

LEARNING: dict[str, Any] = {
    "name": "sizes", "data": {"name": "toy", "nodes": 4, "samples": 60, "features": 4, "validation": 12, "test": 12},
    "model": {"name": "logistic"}, "strategy": {"name": "fedavg"}, "engine": {"name": "local"},
    "watch": {"tensorboard": False},
}  # fmt: skip
SEARCHING: dict[str, Any] = {
    "name": "sizes", "problem": {"name": "ellipsoid", "nodes": 4, "dim": 2}, "strategy": {"name": "rcga"},
    "engine": {"name": "local"}, "watch": {"tensorboard": False},
}  # fmt: skip
FRONT = {**SEARCHING, "problem": {"name": "dtlz", "number": 2, "dim": 4, "nodes": 4}}
OF_TASK = {"LearningTask": LEARNING, "SearchTask": SEARCHING, "FrontTask": FRONT}
EEG = {"problem": "eeg", "samples": 80, "channels": 4, "times": 64, "subjects": 4}
IMAGES = str(Path(__file__).parents[1] / "plugins" / "small_images.py")
FILES = os.environ.get("FNE_DATA", "")
OWN: dict[str, dict[str, Any]] = {
    "callable": {"function": "math:hypot", "variables": {"x": [0, 1]}},
    "command": {"command": ["true"], "variables": {"x": [0, 1]}},
    "dtlz": {"number": 2, "dim": 4}, "wfg": {"number": 2, "dim": 4},
    "eeg_files": {"path": FILES, "labels": {"a": "b", "c": "d"}},
    "mnist": {"edition": "small"},
}  # fmt: skip
"""Settings that a thing cannot do without."""


def bases() -> Iterator[tuple[str, dict[str, Any], tuple[str, ...], Mapping[str, tuple[Any, Any]]]]:
    """Yield of each registered thing, and of the config's own sections, a title, a config, where, and the settings."""
    for name, entry in registry.catalogue("strategy").items():
        config = {**OF_TASK[entry.task], **({"secure": True} if name == "fdd_ea_dh" else {})}
        yield f"strategy {name}", {**config, "strategy": {"name": name}}, ("strategy",), entry.settings
    for name, entry in registry.catalogue("model").items():
        config = {**LEARNING, "model": {"name": name}}
        if name in ("cnn", "vgg"):
            config |= {"data": {"name": "small_images", "nodes": 4}, "plugins": [IMAGES]}
        elif name in ("eegnet", "shallow_convnet"):
            config |= {"data": {**LEARNING["data"], **EEG, "times": 256}}
        yield f"model {name}", config, ("model",), entry.settings
    for name, entry in registry.catalogue("data").items():
        small = LEARNING["data"] if name == "toy" else {"nodes": 4}
        config = {**LEARNING, "data": {**small, "name": name, **OWN.get(name, {})}}
        yield f"data {name}", config, ("data",), entry.settings
        if name == "toy":
            yield "data toy (eeg)", {**config, "data": {**config["data"], **EEG}}, ("data",), entry.settings
    for name, entry in registry.catalogue("partition").items():
        data = {**LEARNING["data"], **EEG, "partition": {"name": name}, "nodes": None if name == "subject" else 4}
        yield f"partition {name}", {**LEARNING, "data": data}, ("data", "partition"), entry.settings
    for name, entry in registry.catalogue("problem").items():
        strategy = "fdd_ea_mo" if name in ("dtlz", "wfg") else "rcga"
        config = {**SEARCHING, "problem": {"nodes": 4, **OWN.get(name, {}), "name": name}, "strategy": strategy}
        yield f"problem {name}", config, ("problem",), entry.settings
    for name, entry in registry.catalogue("engine").items():
        yield f"engine {name}", {**LEARNING, "engine": {"name": name}}, ("engine",), entry.settings
    images = {**LEARNING, "data": {"name": "small_images", "nodes": 4}, "plugins": [IMAGES]}
    for config, above, section in (
        (images, ("data",), DataNodes), (LEARNING, ("evaluation",), EvaluationSection), (LEARNING, (), RunSection),
        (LEARNING, ("watch",), WatchSection), (SEARCHING, ("problem",), ProblemNodes),
    ):  # fmt: skip
        fields = {key: (typing.Annotated[f.annotation, f], f.default) for key, f in section.model_fields.items()}
        yield f"section {'.'.join(above) or 'of the run'}", config, above, fields


def cases() -> Iterator[dict[str, Any]]:
    """Yield a config, the key, its value and the setting of several, for each whole number of everything."""
    for title, config, above, settings in bases():
        counts = [key for key, (annotation, _) in settings.items() if int in leaves(annotation)]
        for key in counts:
            tried = [(size, {}) for size in SIZES]
            # what a choice switches on may be what costs memory
            tried += [(SIZES[1], {other: choice}) for other, (annotation, default) in settings.items()
                      for choice in choices(annotation) if choice != default and other != key]  # fmt: skip
            for size, more in tried:
                for value in forms(settings[key][1], leaves(settings[key][0]), size):
                    yield {"title": title, "config": config, "above": above, "key": key, "value": value,
                           "size": size, "more": more}  # fmt: skip


def leaves(annotation: Any) -> list[Any]:
    """Return the types that an annotation is made of."""
    if typing.get_origin(annotation) is typing.Literal:
        return []
    parts = [part for part in typing.get_args(annotation) if not hasattr(part, "metadata")]
    return [leaf for part in parts for leaf in leaves(part)] or [annotation]


def choices(annotation: Any) -> list[Any]:
    """Return the words, or true and false, among which an annotation lets choose."""
    if annotation is bool:
        return [True, False]
    if typing.get_origin(annotation) is typing.Literal:
        return list(typing.get_args(annotation))
    return [choice for part in typing.get_args(annotation) for choice in choices(part)]


def forms(default: Any, kinds: Sequence[Any], size: int) -> Iterator[Any]:
    """Yield a value with a size in it: itself, or in the place of each number of a list."""
    if not isinstance(default, tuple | list):
        yield size
        return
    for place, part in enumerate(default):
        for inner in forms(part, kinds, size):
            yield [*default[:place], inner, *default[place + 1 :]]


# ------------------------------------------------------------------------------------------------ the process
class Enough(BaseException):
    """A run goes on, as long as its config says."""


def verdict(case: Mapping[str, Any]) -> str:
    """Return what is wrong with what a case comes to, or nothing."""
    from fne.config import load_config
    from fne.errors import FneError

    config = copy.deepcopy(case["config"])
    section = config
    for name in case["above"]:
        section = section.setdefault(name, {})
    key = ".".join((*case["above"], case["key"]))
    section.update(case["more"])
    if case["more"] and not begins(config):
        return ""  # the choice needs something else, too
    section[case["key"]] = case["value"]
    try:
        load_config(config)
        run(config)
    except FneError as error:
        text = str(error)
        if re.search("can't allocate|cannot allocate|Unable to allocate|Python has no memory|too big", text, re.I):
            return f"told by the allocator alone: {text}"
        number = str(case["size"])
        known = re.search(rf"(?<![\w.]){re.escape(key)}\b|\b{case['key']}\b", text) and number in text
        return "" if known else f"not told by key and value: {text}"
    except Enough:
        return ""
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return ""


def begins(config: Mapping[str, Any]) -> bool:
    from fne.config import load_config
    from fne.errors import FneError

    try:
        load_config(config)
        run(config)
    except FneError:
        return False
    except Enough:
        return True
    return True


def run(config: Mapping[str, Any]) -> None:
    """Make a first step, if it ends soon."""
    from fne.training import train

    def ring(*_: Any) -> None:
        raise Enough

    signal.signal(signal.SIGALRM, ring)
    with tempfile.TemporaryDirectory() as folder:
        signal.setitimer(signal.ITIMER_REAL, PATIENCE)
        try:
            train(config, out=Path(folder) / "run", stop_after=1)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


def main() -> None:
    """Try the cases that are written to the standard input."""
    import torch

    from fne.training import train

    warnings.simplefilter("ignore")
    torch.randn(2, device="meta")  # what is imported late, is imported before the limits
    with tempfile.TemporaryDirectory() as folder:
        train({**LEARNING, "strategy": {"name": "fedavg", "rounds": 1}}, out=Path(folder) / "run")
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for line in sys.stdin:
        case = json.loads(line)
        print(json.dumps("begun"), flush=True)
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        print(json.dumps(verdict(case)), flush=True)
        faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
