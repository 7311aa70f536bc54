"""Configs with one absurd whole number, tried one after the other in a process that can be killed.

`python -m tests.attacks.sizes` reads cases from its standard input and writes a line before and after each.
"""

from __future__ import annotations

import copy
import faulthandler
import functools
import json
import re
import resource
import signal
import sys
import tempfile
import time
import typing
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fne.config import registry
from fne.config.sections import DataNodes, EvaluationSection, ProblemNodes, RunSection, WatchSection
from fne.config.settings import LARGEST
from fne.core.errors import FneError

ROOM = 2 * 10**9
"""Bytes that the process may take beyond what it has once everything is imported."""
SECONDS = 60
"""After so many seconds within one case the process ends itself: a hang, or a loop of days."""
PATIENCE = 0.2
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
OWN: dict[str, dict[str, Any]] = {
    "callable": {"function": "calendar:leapdays", "variables": {"y1": [0, 9], "y2": [0, 9]}},
    "command": {"command": ["echo", "1"], "variables": {"x": [0, 1]}},
    "dtlz": {"number": 2, "dim": 4}, "wfg": {"number": 2, "dim": 8},
    "eeg_files": {"path": "eeg_files/ok", "pattern": "**/S001R0[3478].edf", "labels": {"T1": "left", "T2": "right"},
                  "channels": ["C3", "C4"], "split": "run", "groups": "run"},
    "mnist": {"edition": "small"}, "eeg_uci": {"recordings": "test"},
}  # fmt: skip
"""Settings that a thing cannot do without."""


def own(kind: str) -> dict[str, registry.Entry]:
    """Return what the toolkit itself registers; other tests of this process may have read plugins."""
    return {name: entry for name, entry in registry.catalogue(kind).items() if entry.module.startswith("fne.")}


def bases() -> Iterator[tuple[str, dict[str, Any], tuple[str, ...], Mapping[str, tuple[Any, Any]]]]:
    """Yield of each registered thing, and of the config's own sections, a title, a config, where, and the settings."""
    for name, entry in own("strategy").items():
        config = {**OF_TASK[entry.task], **({"secure": True} if name == "fdd_ea_dh" else {})}
        yield f"strategy {name}", {**config, "strategy": {"name": name}}, ("strategy",), entry.settings
    for name, entry in own("model").items():
        config = {**LEARNING, "model": {"name": name}}
        if name in ("cnn", "vgg"):  # of images
            config |= {"data": {"name": "small_images", "nodes": 4}, "plugins": [IMAGES]}
        elif name in ("eegnet", "shallow_convnet"):
            config |= {"data": {**LEARNING["data"], **EEG, "times": 256}}
        yield f"model {name}", config, ("model",), entry.settings
    for name, entry in own("data").items():
        small = LEARNING["data"] if name == "toy" else {"nodes": 4}
        config = {**LEARNING, "data": {**small, "name": name, **OWN.get(name, {})}}
        if name == "housing":
            config |= {"model": {"name": "logistic", "output": "linear"}, "strategy": {"name": "fedavg", "loss": "mse"}}
        yield f"data {name}", config, ("data",), entry.settings
        if name == "toy":
            yield "data toy (eeg)", {**config, "data": {**config["data"], **EEG}}, ("data",), entry.settings
    for name, entry in own("partition").items():
        data = {**LEARNING["data"], **EEG, "partition": {"name": name}, "nodes": None if name == "subject" else 4}
        yield f"partition {name}", {**LEARNING, "data": data}, ("data", "partition"), entry.settings
    for name, entry in own("problem").items():
        strategy = "fdd_ea_mo" if name in ("dtlz", "wfg") else "rcga"
        config = {**SEARCHING, "problem": {"nodes": 4, **OWN.get(name, {}), "name": name}, "strategy": strategy}
        yield f"problem {name}", config, ("problem",), entry.settings
    for name, entry in own("engine").items():
        yield f"engine {name}", {**LEARNING, "engine": {"name": name}}, ("engine",), entry.settings
    images = {**LEARNING, "data": {"name": "small_images", "nodes": 4}, "plugins": [IMAGES]}
    for config, above, section in (
        (images, ("data",), DataNodes), (LEARNING, ("evaluation",), EvaluationSection), (LEARNING, (), RunSection),
        (LEARNING, ("watch",), WatchSection), (SEARCHING, ("problem",), ProblemNodes),
    ):  # fmt: skip
        fields = {key: (typing.Annotated[f.annotation, f], f.default) for key, f in section.model_fields.items()}
        yield f"section {'.'.join(above) or 'of the run'}", config, above, fields


@dataclass(frozen=True)
class Case:
    """A config of which one key has an absurd value; `more` are choices beside it that may switch its use on."""

    title: str
    config: dict[str, Any]
    above: tuple[str, ...]
    key: str
    value: Any
    size: int
    more: dict[str, Any]
    unguarded: bool = False

    @property
    def plain(self) -> dict[str, Any]:
        """The config without the value."""
        config = copy.deepcopy(self.config)
        self.section(config).update(self.more)
        return config

    @property
    def absurd(self) -> dict[str, Any]:
        """The config with the value."""
        config = self.plain
        self.section(config)[self.key] = self.value
        return config

    def section(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return the section of a config that the key is in."""
        return functools.reduce(lambda part, name: part.setdefault(name, {}), self.above, config)


def cases(*, choosing: bool = False) -> Iterator[Case]:
    """Yield cases of every whole number of everything that has a name, and of the config's own sections.

    Args:
        choosing: instead of the defaults beside it, one other choice each time.
    """
    for title, config, above, settings in bases():
        for key, (annotation, default) in settings.items():
            if int not in leaves(annotation):
                continue
            beside = [{other: choice} for other, (kind, usual) in settings.items() for choice in choices(kind)
                      if choice != usual and other != key]  # fmt: skip
            sizes = [size for size in SIZES if size <= LARGEST or "le=" in str(annotation) or "lt=" in str(annotation)]
            for size, more in [(SIZES[1], more) for more in beside] if choosing else [(size, {}) for size in sizes]:
                for value in forms(default, size):
                    yield Case(title, config, above, key, value, size, more)


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


def forms(default: Any, size: int) -> Iterator[Any]:
    """Yield a value with a size in it: itself, or a list with it in the place of each number."""
    if not isinstance(default, tuple | list):
        yield size
        return
    for place, part in enumerate(default):
        for inner in forms(part, size):
            yield [*default[:place], inner, *default[place + 1 :]]


# ------------------------------------------------------------------------------------------------ the process
class Enough(BaseException):
    """A run goes on, as long as its config says."""


def wrong(case: Case) -> str:
    """Return what is wrong with what a case comes to, or nothing."""
    refused = refusal(json.dumps(case.plain))
    if refused:  # a choice needs something else, too, or files are not there
        there = not (case.more or refused.startswith("DataError"))
        return f"refused without the number, so the case says nothing: {refused}" if there else ""
    key = ".".join((*case.above, case.key))
    try:
        first_step(case.absurd)
    except FneError as error:
        text = str(error)
        if ALLOCATOR.search(text):
            return f"told by the allocator alone: {text}"
        named = re.search(rf"\b({re.escape(key)}|{case.key})\b", text) and str(case.size) in text
        return "" if named else f"not told by key and value: {text}"
    except Enough:
        return ""
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return ""


ALLOCATOR = re.compile("can't allocate|cannot allocate|unable to allocate|python has no memory", re.IGNORECASE)
"""What is said where nothing was estimated, and another machine would have begun to take the memory."""


@functools.cache
def refusal(config: str) -> str:
    """Return why a config makes no first step, or nothing."""
    try:
        first_step(json.loads(config))
    except FneError as error:
        return f"{type(error).__name__}: {error}"
    except Enough:
        pass
    return ""


def first_step(config: dict[str, Any]) -> None:
    """Begin a run; raises `Enough` where it goes on for longer than the test has time."""
    import torch

    from fne.run.train import train

    def ring(number: int, frame: Any) -> None:
        while frame is not None:
            if "importlib" in frame.f_code.co_filename or frame.f_code.co_name in ("__enter__", "__exit__"):
                # half a module, or a mode of torch that is never left, would change what the next cases come to
                signal.setitimer(signal.ITIMER_REAL, PATIENCE)
                return
            frame = frame.f_back
        raise Enough

    signal.signal(signal.SIGALRM, ring)
    with tempfile.TemporaryDirectory() as folder:
        files = config.get("data", LEARNING["data"])["name"] not in ("toy", "small_images")  # to be read before
        signal.setitimer(signal.ITIMER_REAL, SECONDS / 2 if files else PATIENCE)
        try:
            with torch.inference_mode(False), torch.enable_grad():  # whatever the run before was interrupted within
                train(config, out=Path(folder) / "run", stop_after=1)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


def main() -> None:
    """Try the cases that are written to the standard input, and write a line before and after each."""
    import torch

    from fne.core import allocation
    from fne.run.train import train

    warnings.simplefilter("ignore")
    torch.randn(2, device="meta")  # what is imported late, is imported before the limits
    with tempfile.TemporaryDirectory() as folder:
        train({**LEARNING, "strategy": {"name": "fedavg", "rounds": 1}}, out=Path(folder) / "run")
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    left = allocation.left
    for line in sys.stdin:
        case = Case(**json.loads(line))
        allocation.left = (lambda device: 2**63) if case.unguarded else left
        print(json.dumps("begun"), flush=True)
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        begun = time.perf_counter()
        told = wrong(case)
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps(told), time.perf_counter() - begun, file=sys.stderr)
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
