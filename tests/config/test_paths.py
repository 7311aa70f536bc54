"""Paths in configs: relative to the config file, else to the current folder, and the same files after a resume."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fne
from fne.cli.main import main
from fne.config import registry
from fne.config.load import load_config
from fne.core.errors import ConfigError, PathWarning
from fne.run.folder import experiment_of

PLUGIN = '''
"""A data set with a path setting, and one that searches for a path elsewhere."""
from pathlib import Path
from typing import Annotated

from fne.config.registry import Key, register


@register("data", "papers")
def papers(
    *,
    seed: int,
    folder: Annotated[str | None, Key("papers", path="file")] = None,
    others: Annotated[tuple[str, ...], Key("more of them", path="file")] = (),
    anywhere: Annotated[str, Key("looked for elsewhere, too", path="search")] = "default",
    note: Annotated[str, Key("no path")] = "",
):
    """Read papers."""
'''
FUNCTION = "def f(x):\n    return (x - 0.5) ** 2\n"


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    """Return a config's folder and the current folder, which differ; a plugin is in the former."""
    for name in ("_plugin_entries", "_plugin_files"):  # forgotten after the test
        monkeypatch.setattr(registry, name, {})
    beside, here = tmp_path / "beside", tmp_path / "here"
    for folder in (beside, here):
        folder.mkdir()
    (beside / "mine.py").write_text(PLUGIN)
    monkeypatch.chdir(here)
    yield beside, here
    for key in [k for k, thing in registry._registered.items() if thing.__module__.startswith("fne_plugin_")]:
        del registry._registered[key]


def written(beside: Path, **data: Any) -> Path:
    """Return the file of a config whose data set is the plugin's."""
    path = beside / "c.json"
    settings = {"plugins": ["mine.py"], "data": {"name": "papers", **data}, "model": "mlp", "strategy": "fedavg"}
    path.write_text(json.dumps(settings))
    return path


def search(beside: Path, name: str = "run.yaml", **problem: Any) -> Path:
    """Return the file of a config that searches a problem of the user's own."""
    path = beside / name
    settings = {
        "problem": {"name": "callable", "function": "own.py:f", "variables": {"x": [0, 1]}, "nodes": 2, **problem},
        "strategy": {"name": "fdd_ea", "initial": 4, "rounds": 2, "participation": 1, "generations": 2},
        "watch": {"tensorboard": False, "checkpoint_every": 1},
    }
    path.write_text(json.dumps(settings))
    return path


def test_a_path_is_relative_to_the_config_file(places: tuple[Path, Path]) -> None:
    beside, here = places
    for folder in places:  # it is taken where it is nearer
        (folder / "a").mkdir()
        (folder / "b").mkdir()
    settings = load_config(written(beside, folder="a", others=["b", "../here/b"], anywhere="a", note="a")).data.settings  # type: ignore[attr-defined]
    assert settings == {
        "folder": str(beside / "a"), "others": (str(beside / "b"), str(here / "b")), "anywhere": str(beside / "a"),
        "note": "a",
    }  # fmt: skip


def test_what_is_not_beside_the_config_is_taken_from_the_current_folder_and_told(places: tuple[Path, Path]) -> None:
    beside, here = places
    (here / "a").mkdir()
    with pytest.warns(PathWarning) as caught:
        config = load_config(written(beside, folder="a"))
    assert config.data.settings["folder"] == str(here / "a")  # type: ignore[attr-defined]
    assert [str(warning.message) for warning in caught] == [
        f"{beside / 'c.json'}: data.folder = 'a': there is no {beside / 'a'}; taken from the current folder is "
        f"{here / 'a'}. Write it relative to the config file"
    ]


def test_the_command_tells_it_in_a_line(places: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    beside, here = places
    (here / "own.py").write_text(FUNCTION)
    assert main(["train", "-q", str(search(beside))]) == 0
    assert capsys.readouterr().err == (
        f"fne: warning: {beside / 'run.yaml'}: problem.function = 'own.py': there is no {beside / 'own.py'}; taken "
        f"from the current folder is {here / 'own.py'}. Write it relative to the config file\n"
    )


def test_what_is_nowhere(places: tuple[Path, Path]) -> None:
    beside, _ = places
    settings = load_config(written(beside, folder="a", anywhere="eeg/b")).data.settings  # type: ignore[attr-defined]
    assert settings["folder"] == str(beside / "a"), "an error names the place where it belongs"
    assert settings["anywhere"] == "eeg/b", "its loader looks on"
    assert load_config(written(beside)).data.settings["anywhere"] == "default"  # type: ignore[attr-defined]


def test_overrides_and_mappings_are_relative_to_the_current_folder(places: tuple[Path, Path]) -> None:
    beside, here = places
    (beside / "a").mkdir()
    config = load_config(written(beside, folder="x"), ["data.folder=a"])
    assert config.data.settings["folder"] == str(here / "a")  # type: ignore[attr-defined]
    shutil.copy(beside / "mine.py", here)
    mapping = {"plugins": ["mine.py"], "data": {"name": "papers", "folder": "a"}, "model": "mlp", "strategy": "fedavg"}
    registry._plugin_entries.clear()
    assert load_config(mapping).data.settings["folder"] == str(here / "a")  # type: ignore[attr-defined]
    assert load_config(mapping).plugins == (str(here / "mine.py"),)


@pytest.mark.parametrize("key", ["folder", "anywhere"])
def test_a_path_that_cannot_be(key: str, places: tuple[Path, Path]) -> None:
    beside, _ = places
    with pytest.raises(ConfigError, match=rf"c.json: data.{key} = 'a\\x00b': must be a path"):
        load_config(written(beside, **{key: "a\0b"}))
    assert load_config(written(beside, folder="a" * 5000)).data.settings["folder"].endswith("a")  # type: ignore[attr-defined]
    odd = load_config(written(beside, folder="~nobody_of_this_name/x"))
    assert odd.data.settings["folder"] == str(beside / "~nobody_of_this_name" / "x")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({"function": "own.py:f"}, {"function": "{beside}/own.py:f"}),
        ({"function": "./own.py:f"}, {"function": "{beside}/own.py:f"}),
        ({"function": "os.path:join"}, {"function": "os.path:join"}),
        ({"known": "old.csv"}, {"known": "{beside}/old.csv"}),
        ({"known": "old-{node}.csv"}, {"known": "{beside}/old-{node}.csv"}),
        ({"name": "command", "command": ["./go", "own.py"]}, {"command": ("{beside}/go", "own.py")}),
        ({"name": "command", "command": ["cat", "own.py"]}, {"command": ("cat", "own.py")}),
    ],
)
def test_paths_of_a_problem(given: dict[str, Any], taken: dict[str, Any], places: tuple[Path, Path]) -> None:
    beside, _ = places
    for name in ("own.py", "old.csv", "old-node-000.csv", "go"):
        (beside / name).touch()
    path = search(beside)
    settings = json.loads(path.read_text())
    if "command" in given:
        del settings["problem"]["function"]
    settings["problem"] |= given
    path.write_text(json.dumps(settings))
    problem = load_config(path).to_dict()["problem"]

    def filled(value: Any) -> Any:
        return [filled(v) for v in value] if isinstance(value, tuple) else value.replace("{beside}", str(beside))

    assert {key: problem[key] for key in taken} == {key: filled(value) for key, value in taken.items()}


def test_known_points_of_each_node_are_found_from_the_current_folder_too(places: tuple[Path, Path]) -> None:
    beside, here = places
    (here / "old-node-000.csv").touch()
    with pytest.warns(PathWarning, match="problem.known = 'old-{node}.csv'"):
        config = load_config(search(beside, known="old-{node}.csv"))
    assert config.problem.known == str(here / "old-{node}.csv")  # type: ignore[attr-defined]


def test_a_run_is_resumed_from_any_folder(
    places: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside, _ = places
    (beside / "own.py").write_text(FUNCTION)
    (beside / "old.csv").write_text("x,value\n0.25,0.0625\n")
    config = search(beside, known="old.csv")
    whole = fne.train(config, out=tmp_path / "whole")
    fne.train(Path("../beside/run.yaml"), out=tmp_path / "parts", stop_after=1)
    other = tmp_path / "other"
    other.mkdir()
    (other / "own.py").write_text("def f(x):\n    return 7\n")  # of the same name, and not the run's
    monkeypatch.chdir(other)
    assert main(["train", "-q", "--resume", "../parts"]) == 0
    parts = json.loads((tmp_path / "parts" / "summary.json").read_text())
    assert parts["best_value"] == whole["best_value"]
    assert parts["best_point"] == whole["best_point"]
    assert parts["experiment"] == whole["experiment"]


def test_a_recorded_config_is_taken_as_it_is(places: tuple[Path, Path]) -> None:
    """Also one of an older version, in which a path may be relative to the folder that the run was started in."""
    beside, here = places
    for folder in places:
        (folder / "own.py").write_text(FUNCTION)
    config = load_config(search(beside), recorded=True)
    assert config.problem.settings["function"] == "own.py:f"  # type: ignore[attr-defined]
    again = config.with_values({"seed": 4}).with_overrides(["problem.nodes=3"])
    assert again.problem.settings["function"] == "own.py:f"  # type: ignore[attr-defined]
    moved = again.with_overrides(["problem.function=own.py:f"])
    assert moved.problem.settings["function"] == f"{here / 'own.py'}:f"  # type: ignore[attr-defined]


def test_an_experiment_is_the_same_wherever_its_files_lie(places: tuple[Path, Path]) -> None:
    beside, _ = places
    for folder in places:
        (folder / "own.py").write_text(FUNCTION)
        (folder / "old.csv").touch()
    experiments = {experiment_of(load_config(search(folder, known="old.csv"))) for folder in places}
    assert len(experiments) == 1
    assert experiment_of(load_config(search(beside, known="old.csv", noise=0.5))) not in experiments
