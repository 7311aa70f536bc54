"""Examples run; what the documentation shows, names and states is what the code has."""

from __future__ import annotations

import ast
import json
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import typer.main
import yaml
from pydantic import BaseModel

import fne
from fne.cli.main import app
from fne.config import registry
from fne.config.load import load_config
from fne.config.sections import EvaluationSection, PolicySection, ProblemNodes, WatchSection
from tests import processes

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
TEXTS = [*PAGES, *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md") if (ROOT / name).is_file())]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
CONFIGS = sorted((ROOT / "examples").glob("*.yaml"))
FIXED: dict[str, type[BaseModel]] = {
    "evaluation": EvaluationSection, "policy": PolicySection, "watch": WatchSection,
}  # fmt: skip
PAGE_OF = {
    "fne": "fne.md", "fedavg": "baselines.md", "fedprox": "baselines.md", "centralised": "baselines.md",
    "dp_fedavg": "baselines.md", "dp_sgd": "baselines.md",
    "es": "es.md", "snes": "es.md", "sep_cma": "es.md", "de": "es.md",
    "fsi": "fsi.md", "fsi_shared": "fsi.md",
    **dict.fromkeys(("fdd_ea", "fdd_ea_plus", "dycors", "gp_lcb", "rcga", "latin_hypercube"), "fdd_ea.md"),
    "fdd_ea_dh": "fdd_ea_dh.md", "fdd_ea_mo": "fdd_ea_dh.md",
    "fed_moeac": "fed_moeac.md", "nsga2": "fed_moeac.md",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_plugins_after(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_plugin_entries", "_plugin_files"):
        monkeypatch.setattr(registry, name, {})


def run(arguments: list[str], folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def commands(page: Path, program: str) -> list[list[str]]:
    """Return the words of each command line of `program` in the page's bash blocks."""
    lines = [line for block in blocks(page, "bash") for line in block.splitlines()]
    return [words for line in lines if (words := shlex.split(line, comments=True)) and words[0] == program]


COMMANDS = [(page, words) for page in TEXTS for words in commands(page, "fne")]
TABLE_ROW = re.compile(r"^\| `(\w+)` \| ([^|]*) \|", re.MULTILINE)


# ------------------------------------------------------------------------------------------------ examples
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_an_example_config_runs_and_resumes_to_the_same_model(path: Path, tmp_path: Path) -> None:
    train = ["-m", "fne.cli.main", "train", "--quiet"]
    run([*train, str(path), "--out", "whole"], tmp_path)
    processes.run([*train, str(path), "--out", "parts", "--stop-after", "17"], cwd=tmp_path, check=True)
    processes.run([*train, "--resume", "parts"], cwd=tmp_path, check=True)
    whole, parts = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("whole", "parts"))
    if "best_value" in whole and whole["best_value"] is not None:
        assert whole["best_point"] == parts["best_point"]
        assert whole["best_value"] < 0.05  # in the middle of the bounds it is 0.10
    else:
        assert whole["model_sha256"] == parts["model_sha256"]
        assert whole["accuracy_test"] > 0.85  # chance is 1/2 and 1/3


SHORT = sorted((ROOT / "examples").glob("my_*.py"))


def test_the_examples_of_plugins_are_short() -> None:
    assert {path.stem for path in SHORT} == {"my_data", "my_model", "my_problem", "my_strategy", "my_task"}
    assert [path.name for path in SHORT if len(path.read_text().splitlines()) > 40] == []


@pytest.mark.parametrize("path", SHORT, ids=lambda path: path.stem)
def test_an_example_of_a_plugin_needs_one_import_of_the_toolkit(path: Path) -> None:
    modules = {node.module for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)}
    assert {module for module in modules if module and module.startswith("fne")} == {"fne.extend"}


def test_nodes_can_make_the_candidates_of_the_example_by_themselves(tmp_path: Path) -> None:
    path = ROOT / "examples" / "my_plugins.yaml"
    few = ["strategy.rounds=5", "watch.tensorboard=false"]
    made = {wire: fne.train(path, [*few, f"wire={wire}"], out=tmp_path / wire) for wire in ("tensors", "lineage")}
    assert made["tensors"]["model_sha256"] == made["lineage"]["model_sha256"]
    assert made["lineage"]["bytes_down_per_node"] < made["tensors"]["bytes_down_per_node"]


def test_everything_of_the_one_import_is_there() -> None:
    from fne import extend

    assert extend.__all__ == sorted(extend.__all__, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    assert all(hasattr(extend, name) for name in extend.__all__)


def test_every_example_is_run() -> None:
    used = {path.parent / plugin for path in CONFIGS for plugin in yaml.safe_load(path.read_text())["plugins"]}
    used.add(ROOT / "examples" / "eeg_site.py")  # of tune_fedavg.py --eeg, which needs the recordings
    scripts = {path for path in EXAMPLES if '__name__ == "__main__"' in path.read_text()}
    assert used | scripts == set(EXAMPLES)
    assert not used & scripts


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_blocks_run_or_are_an_example(page: Path, tmp_path: Path) -> None:
    shown = {path.read_text() for path in EXAMPLES}
    for block in blocks(page, "python"):
        if block not in shown:
            run(["-c", block], tmp_path)


@pytest.mark.parametrize("path", [p for p in EXAMPLES if "__main__" in p.read_text()], ids=lambda path: path.stem)
def test_an_example_script_runs(path: Path, tmp_path: Path) -> None:
    assert "test accuracy" in run([str(path)], tmp_path)


@pytest.mark.parametrize("path", [*EXAMPLES, *CONFIGS], ids=lambda path: path.name)
def test_a_page_names_every_example(path: Path) -> None:
    assert any(f"`examples/{path.name}`" in page.read_text() for page in PAGES)


@pytest.mark.parametrize("path", [p for p in [*EXAMPLES, *CONFIGS] if p.name.startswith(("my_", "python_"))], ids=str)
def test_extending_shows_its_examples_verbatim(path: Path) -> None:
    page = ROOT / "docs" / "extending.md"
    assert f"`examples/{path.name}`" in page.read_text()
    assert path.read_text() in blocks(page, "python") + blocks(page, "yaml")


# ------------------------------------------------------------------------------------------------ commands
@pytest.mark.parametrize(
    ("page", "words"), COMMANDS, ids=lambda value: value.stem if isinstance(value, Path) else " ".join(value)
)
def test_a_command_in_the_docs_exists_and_its_settings_are_right(page: Path, words: list[str]) -> None:
    group: Any = typer.main.get_command(app)
    rest = words[1:]
    while hasattr(group, "commands"):
        group, rest = group.commands[rest[0]], rest[1:]
    named = [(flag, option) for option in group.params for flag in (*option.opts, *option.secondary_opts)]
    flags = {flag: option.is_flag for flag, option in named if flag.startswith("-")}
    plain, options = [], {}
    while rest:
        word, *rest = rest
        if word.startswith("-"):
            assert word in flags, f"{page.name}: no option {word}"
            options[word] = None if flags[word] else rest.pop(0)
        else:
            plain.append(word)
    if group.name == "show" and words[1] == "show":
        if "--plugin" in options:
            registry.add_plugin(ROOT / str(options["--plugin"]))
        kind, name = plain
        assert load_config(name) if kind == "config" else registry.entry(kind, name)
    elif group.name in ("train", "compare", "show"):
        overrides = [word for word in plain if "=" in word]
        for name in [word for word in plain if "=" not in word]:
            load_config(ROOT / name if name.startswith("examples/") else name, overrides)


def test_the_docs_name_commands() -> None:
    assert {words[1] for _, words in COMMANDS} >= {"train", "compare", "report", "list", "show", "data"}


def test_a_benchmark_in_the_docs_exists_and_its_cells_are_configs() -> None:
    groups = runpy.run_path(str(ROOT / "benchmarks" / "run.py"))["GROUPS"]
    named = {words[2] for page in TEXTS for words in commands(page, "python") if words[1:2] == ["benchmarks/run.py"]}
    assert named <= set(groups)
    for cell in (cell for group in groups.values() for cell in group.values()):
        config, *overrides = cell.split()
        load_config(config, overrides)


@pytest.mark.parametrize("name", ["evaluate", "operators"])
def test_a_benchmark_finds_its_timing_from_anywhere(name: str, tmp_path: Path) -> None:
    assert "--repeats" in run([str(ROOT / "benchmarks" / f"{name}.py"), "--help"], tmp_path)


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.stem)
def test_yaml_blocks_are_configs(page: Path, tmp_path: Path) -> None:
    for block in blocks(page, "yaml"):
        if "plugins: [my_" not in block:  # those are compared with the examples
            path = tmp_path / "block.yaml"
            path.write_text(block)
            load_config(path)


# ------------------------------------------------------------------------------------------------ settings
def settings_of(kind: str) -> set[str]:
    return {key for entry in registry.catalogue(kind).values() for key in entry.settings}


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.stem)
def test_dotted_settings_in_the_docs_exist(page: Path) -> None:
    kinds = ("strategy", "model", "data", "problem", "engine")
    known = {f"{kind}.{key}" for kind in kinds for key in settings_of(kind)}
    known |= {f"problem.{key}" for key in ProblemNodes.model_fields}
    known |= {f"{section}.{key}" for section, model in FIXED.items() for key in model.model_fields}
    known |= {f"data.partition.{key}" for key in settings_of("partition")}
    known |= {"data.nodes", "data.partition", "data.shift"}
    known |= {f"{kind}.name" for kind in kinds}
    registry.add_plugin(ROOT / "examples" / "my_strategy.py")
    known |= {f"strategy.{key}" for key in settings_of("strategy")}
    sections = "strategy|model|data|problem|engine|evaluation|watch"
    found = re.findall(rf"(?<![\w./])(?:{sections})\.[a-z_.]*[a-z_](?![\w(/])", prose(page))
    files = (".md", ".png", ".py", ".safetensors")
    assert {word for word in found if not word.endswith(files)} - known == set()


def prose(page: Path) -> str:
    """Return the page without code of other languages, where `data.py` and `worker.evaluator` stand."""
    return re.sub(r"^```(?:python|text|toml)\n.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def section(page: Path, heading: str) -> str:
    return re.split(r"^## ", page.read_text().split(f"## {heading}\n", 1)[1], flags=re.MULTILINE)[0]


@pytest.mark.parametrize("name", registry.catalogue("strategy"))
def test_a_strategy_has_a_page_with_all_its_settings_and_their_defaults(name: str) -> None:
    page = ROOT / "docs" / PAGE_OF[name]
    part = section(page, "Settings" if name == "fne" else name)
    if name == "fedprox":  # its page says: the settings of fedavg and one more
        part += section(page, "fedavg")
    rows = {key: default.strip() for key, default in TABLE_ROW.findall(part)}
    settings = registry.entry("strategy", name).settings
    assert rows == {key: str(default) for key, (_, default) in settings.items()}


@pytest.mark.parametrize("section_name", FIXED)
def test_config_page_states_the_defaults(section_name: str) -> None:
    part = (ROOT / "docs" / "config.md").read_text().split(f"### `{section_name}`\n")[1].split("\n##")[0]
    shown = {"null": None, "true": True, "false": False, "2 GB": 2 * 10**9}
    rows = {key: shown.get(default, default) for key, default in TABLE_ROW.findall(part)}
    fields = FIXED[section_name].model_fields
    assert {key: str(value) for key, value in rows.items()} == {key: str(f.default) for key, f in fields.items()}


def test_engine_table_states_the_defaults() -> None:
    part = (ROOT / "docs" / "config.md").read_text().split("### `engine`\n")[1].split("\n##")[0]
    for engine in registry.catalogue("engine").values():
        if not engine.module.startswith("fne_plugin_"):
            written = {None: "null"}
            expected = {key: str(written.get(default, default)) for key, (_, default) in engine.settings.items()}
            assert dict(TABLE_ROW.findall(part)) == expected


def test_top_level_keys_are_listed() -> None:
    part = section(ROOT / "docs" / "config.md", "Top level").split("###")[0]
    both = {*load_config("fne_toy").to_dict(), *load_config("fdd_ea_ellipsoid").to_dict()}
    assert {key for key, _ in TABLE_ROW.findall(part)} == both


def test_keys_of_every_problem_are_listed() -> None:
    rows = dict(TABLE_ROW.findall(section(ROOT / "docs" / "fdd_ea.md", "Problems")))
    shown = {key: {"null": "None"}.get(default, default) for key, default in rows.items()}
    assert shown == {key: str(field.default) for key, field in ProblemNodes.model_fields.items()}


@pytest.mark.parametrize("kind", ["data", "partition", "problem", "strategy", "model"])
def test_everything_registered_is_named(kind: str) -> None:
    text = "\n".join(page.read_text() for page in [*PAGES, ROOT / "CHANGELOG.md"])
    assert [name for name in registry.catalogue(kind) if f"`{name}`" not in text] == []


@pytest.mark.parametrize("name", PAGE_OF)
def test_choices_of_a_strategy_are_named(name: str) -> None:
    page = PAGE_OF[name]
    text = (ROOT / "docs" / page).read_text() + (ROOT / "docs" / "concepts.md").read_text()
    for annotation, _ in registry.entry("strategy", name).settings.values():
        inner = get_args(annotation)[0]
        for choice in get_args(inner) if get_origin(inner) is Literal else ():
            assert f"`{choice}`" in text, f"{page} does not name {choice!r}"


def test_fields_of_a_run_are_documented(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "config.md").read_text()
    history, summary = text.split("### `history.jsonl`")[1].split("### `summary.json`")
    documented = [
        set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\|([^|]*)\|", t, re.M)))) for t in (history, summary)
    ]
    overrides = ["strategy.rounds=2", "engine.threads=1", "watch.champions=1"]
    fields: tuple[set[str], set[str]] = (set(), set())
    searches = [
        "strategy.runs=2",
        "strategy.rounds=1",
        "strategy.generations=1",
        "problem.nodes=3",
        "strategy.participation=1",
    ]
    runs = [("fne_toy", overrides), ("fne_toy", ["strategy=fedavg", *overrides]), ("fdd_ea_ellipsoid", searches)]
    fronts = ["strategy=fdd_ea_mo", "secure=false", "strategy.generations=1", "watch.every=1"]
    tradeoffs = ["strategy.population=2", "strategy.generations=0", "strategy.rounds_per_evaluation=1"]
    runs += [("fdd_ea_dh_dtlz2", [*fronts, *searches]), ("fed_moeac_quick", ["model=logistic", *tradeoffs]),
             ("fne_toy", ["strategy=dp_fedavg", *overrides])]  # fmt: skip
    for number, (name, words) in enumerate(runs):
        folder = tmp_path / str(number)
        fne.train(name, words, out=folder)
        fields[0].update(*map(json.loads, (folder / "history.jsonl").read_text().splitlines()))
        fields[1].update(json.loads((folder / "summary.json").read_text()))
        for path in folder.rglob("*"):
            shown = re.sub(r"(tfevents\.|step-).*?(\.pt|\.safetensors|$)", r"\1*\2", str(path.relative_to(folder)))
            assert path.is_dir() or f"`{shown}`" in text, f"config.md does not name {shown}"
    assert fields[0] <= documented[0]  # that every one of these is written, tests/watch/test_metrics.py asserts
    assert fields[1] == documented[1]


TWENTY = ("strategy.population=20", "strategy.subset_size=2")


@pytest.mark.parametrize(
    ("strategy", "down", "up"),
    [
        (["strategy.subset_size=2"], 4 * 20 * 63, 4 * 20 + 8),
        (["strategy.subset_size=2", "strategy.deal=true"], 4 * 20 * 63 / 2 * 3, (4 * 20 / 2 + 8) * 3),
        (["strategy=fedavg", "strategy.fraction=0.34"], 4 * 63, 4 * 63 + 16),
        (["strategy=es", *TWENTY], 4 * 20 * 63, 4 * 20 + 8),
        (["strategy=es", "strategy.uplink=ranks", *TWENTY], 4 * 20 * 63, 20 + 2),
        (["strategy=es", "strategy.uplink=sign", *TWENTY], 4 * 20 * 63, 2 + 2),
        (["strategy=de", *TWENTY], 8 * 20 * 63, 8 * 20 + 8),
    ],
)
def test_bytes_are_as_the_formulas_in_the_docs(strategy: list[str], down: float, up: float, tmp_path: Path) -> None:
    # P = 20, D = 63; two of six nodes take part, with deal all six: three times as many
    summary = fne.train("fne_toy", [*strategy, "strategy.rounds=3", "wire=tensors"], out=tmp_path / "run")
    assert summary["payload_down_per_node"] == pytest.approx(down * 3 * 2 / 6)
    assert summary["payload_up_per_node"] == pytest.approx(up * 3 * 2 / 6)


def test_bytes_of_decisions_are_at_most_as_the_docs_say(tmp_path: Path) -> None:
    rounds, decision = 40, 2 * 20 + 8  # P = 20; two of six nodes take part
    words = ["strategy.subset_size=2", f"strategy.rounds={rounds}"]
    summary = fne.train("fne_toy", [*words, "wire=lineage"], out=tmp_path / "run")
    settings = load_config("fne_toy", words).strategy.settings
    origin = json.dumps({"strategy": "fne", "seed": 0, "settings": settings}, separators=(",", ":"))
    most = (rounds - 1) * decision + rounds * 8 * 2 / 6 + len(origin)
    assert 0.8 * most < summary["payload_down_per_node"] <= most
    assert summary["snapshots"] == 0


# ------------------------------------------------------------------------------------------------ links
@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path) if path else page
        assert there.exists(), f"{page.name}: {target}"
        headings = re.findall(r"^#+ (.*)$", there.read_text(), re.MULTILINE) if anchor else []
        slugs = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings]
        assert not anchor or anchor in slugs, f"{page.name}: {target}"


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    index = (ROOT / "docs" / "index.md").read_text()
    for page in PAGES:
        assert f": {page.name}\n" in text
        assert page.name == "index.md" or f"({page.name})" in index
