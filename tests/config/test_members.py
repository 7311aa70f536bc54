"""Members of strategies: what is optional is in one table, and a strategy with one of another kind is refused."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fne
from fne.cli.main import main
from fne.config import registry
from fne.config.members import KINDS, MEMBERS, METHODS, VALUES
from fne.core.contracts import Strategy
from fne.core.errors import FneError, StrategyWarning
from fne.optimizer import Optimizer

ROOT = Path(__file__).parents[2]
PLUGIN = '''
"""A strategy with an attribute that the test names."""
from typing import Annotated

import torch

from fne.config.registry import Key, register
from fne.strategies.fne import FNE


def broken():
    raise ZeroDivisionError("nothing to divide by")


VALUES = {
    "tensor": torch.zeros(3), "zero": 0, "needs": lambda x: x, "text": "yes", "broken": broken, "none": None,
    "half": lambda: {"epsilon": 1.0}, "odd": lambda: {"epsilon": torch.ones(2)}, "two": lambda: (torch.zeros(2, 3), 7),
}


@register("strategy", "odd", lineage=True, population=True, privacy=True)
class Odd(FNE):
    """FNE with another attribute."""

    def __init__(
        self,
        task,
        *,
        seed: int,
        name_: Annotated[str, Key("of the attribute")],
        value: Annotated[str, Key("which")],
        later: Annotated[bool, Key("set after the first step")] = False,
    ):
        super().__init__(task, seed=seed, rounds=2, population=6, parents=3, loss="cross_entropy")
        self._own = (name_, VALUES[value])
        if not later:
            setattr(self, *self._own)

    def tell(self, round_):
        metrics = super().tell(round_)
        setattr(self, *self._own)
        return metrics


@register("strategy", "property", lineage=True, privacy=True)
class WithProperty(FNE):
    """FNE with a property that raises, and without a property where there must be one."""

    def __init__(self, task, *, seed: int):
        super().__init__(task, seed=seed, rounds=2, population=6, parents=3, loss="cross_entropy")

    @property
    def privacy(self):
        raise RuntimeError("not trained yet")


@register("strategy", "no_property", lineage=True)
class WithoutProperty(FNE):
    """FNE whose `done` has lost its decorator."""

    def __init__(self, task, *, seed: int):
        super().__init__(task, seed=seed, rounds=2, population=6, parents=3, loss="cross_entropy")

    def done(self):
        return self.step >= 2


@register("strategy", "no_strategy")
class Nothing:
    """No strategy at all."""

    def __init__(self, task, *, seed: int):
        self.seed = self.step = self.horizon = 0
        self.tasks = {"fitness": {}}
        self.done = False
'''


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Return a config that uses the plugin, its strategy to be filled in."""
    for name in ("_plugin_entries", "_plugin_files"):  # forgotten after the test
        monkeypatch.setattr(registry, name, {})
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(PLUGIN)
    yield {
        "plugins": ["mine.py"], "data": {"name": "toy", "nodes": 3}, "model": {"name": "mlp", "hidden": [4]},
        "watch": {"tensorboard": False},
    }  # fmt: skip
    for key in [k for k, thing in registry._registered.items() if thing.__module__.startswith("fne_plugin_")]:
        del registry._registered[key]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (
            "population",
            "tensor",
            "population is of type Tensor: of a strategy it must be a method without required arg",
        ),
        ("privacy", "tensor", "another name, such as _privacy"),
        ("champion", "needs", "champion is of type function"),
        ("champion", "zero", "champion is of type int"),
        ("pooled", "zero", "pooled is of type int: of a strategy it must be true or false"),
        ("validates", "text", "validates is of type str"),
        ("fewest", "zero", "fewest is of type int: of a strategy it must be a whole number >= 1"),
        ("lineage", "tensor", "lineage is of type Tensor: of a strategy it must be a fne.federation.lineage.Lineage"),
        ("decision", "tensor", "decision is of type Tensor: of a strategy it must be a mapping of tensors by name"),
        ("secure", "text", "secure is of type str"),
        ("result", "tensor", "result must be a method"),
    ],
)
def test_a_member_of_another_kind_is_refused_before_there_is_a_folder(
    name: str, value: str, said: str, odd: dict[str, Any], tmp_path: Path
) -> None:
    config = {**odd, "strategy": {"name": "odd", "name_": name, "value": value}}
    with pytest.raises(FneError) as caught:
        fne.train(config, out=tmp_path / "run")
    text = str(caught.value)
    assert text.startswith(f"strategy.name = 'odd' ({tmp_path / 'mine.py'}): Odd.")
    assert said in text
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        ("property", "WithProperty.privacy raises RuntimeError: not trained yet"),
        ("no_property", "WithoutProperty.done must be a value or a property, and no method"),
        ("no_strategy", "Nothing has no ask, which every strategy has, as a method"),
    ],
)
def test_a_member_that_cannot_be_used_is_refused(strategy: str, said: str, odd: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(FneError, match=re.escape(said)):
        fne.train({**odd, "strategy": strategy}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_command_says_it_in_a_line(odd: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    Path("c.yaml").write_text(json.dumps({**odd, "strategy": {"name": "odd", "name_": "privacy", "value": "tensor"}}))
    assert main(["train", "c.yaml"]) == 2
    text = capsys.readouterr().err
    assert text.startswith("fne: strategy.name = 'odd' (")
    assert "Traceback" not in text
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("name", "value", "later", "field", "said"),
    [
        (
            "privacy",
            "broken",
            False,
            "privacy",
            r"step 2: ZeroDivisionError: nothing to divide by \(mine.py, line 12\)",
        ),
        ("privacy", "half", False, "privacy", "KeyError: 'delta'"),
        ("privacy", "odd", False, "privacy", "TypeError: .*not JSON serializable"),
        ("privacy", "tensor", True, "privacy", "FneError: Odd.privacy is of type Tensor"),
        ("population", "broken", False, "front_size", "nothing to divide by"),
        ("population", "two", False, "front_size", "Odd.population, step 2: "),
    ],
)
def test_a_method_that_fails_at_the_end_loses_neither_model_nor_summary(
    name: str, value: str, later: bool, field: str, said: str, odd: dict[str, Any], tmp_path: Path
) -> None:
    strategy = {"name": "odd", "name_": name, "value": value, "later": later}
    with pytest.warns(StrategyWarning, match=said):
        summary = fne.train({**odd, "strategy": strategy}, out=tmp_path / "run")
    assert summary[field] is None
    assert summary["finished"]
    assert summary == json.loads((tmp_path / "run" / "summary.json").read_text())
    parameters = torch.nn.utils.parameters_to_vector(fne.load_model(tmp_path / "run").parameters())
    assert bool(parameters.isfinite().all())


def test_a_champion_that_fails_is_left_out_and_the_run_goes_on(odd: dict[str, Any], tmp_path: Path) -> None:
    config = {**odd, "watch": {"tensorboard": False, "champions": 1}}
    with pytest.warns(StrategyWarning, match=r"Odd.champion, step [12]: ZeroDivisionError"):
        summary = fne.train({**config, "strategy": {"name": "odd", "name_": "champion", "value": "broken"}}, out="run")
    assert (summary["steps"], summary["finished"]) == (2, True)
    assert list(Path("run/champions").iterdir()) == []


def test_none_means_that_there_is_no_such_member(odd: dict[str, Any]) -> None:
    for name in ("population", "privacy", "champion", "pooled", "secure"):
        summary = fne.train({**odd, "strategy": {"name": "odd", "name_": name, "value": "none"}}, out=f"run-{name}")
        assert not {"front_size", "privacy"} & set(summary)


def test_an_optimizer_refuses_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from fne.strategies.fdd_ea import FddEa

    monkeypatch.setattr(FddEa, "takes_known", 1)
    with pytest.raises(FneError, match=r"FddEa.takes_known is of type int: of a strategy it must be true or false"):
        Optimizer([(0, 1)], strategy="fdd_ea")


# ------------------------------------------------------------------------------------------------ one table
def test_the_docs_have_the_table() -> None:
    text = (ROOT / "docs" / "extending.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| (\w+) \|", text, re.MULTILINE)
    assert {name: (kind, default) for name, kind, default in rows} == {
        name: (member.kind, str(member.default)) for name, member in MEMBERS.items()
    }
    assert {member.kind for member in MEMBERS.values()} == set(KINDS)
    first = text.split("## A strategy of another kind")[1].split("| optional member |")[0]
    cells = "".join(re.findall(r"^\|[^|]*\|", first, re.MULTILINE))
    assert set(re.findall(r"`(\w+)(?:\([a-z_]*\))?`", cells)) == {*VALUES, *METHODS}


def is_strategy(node: ast.AST) -> bool:
    """Whether an expression is a strategy by its name: `strategy`, `self._strategy`, `experiment.strategy`."""
    if isinstance(node, ast.Attribute):
        owner = ast.unparse(node.value)
        return node.attr in ("strategy", "_strategy") and not owner.endswith(("config", "wanted", "stored"))
    return isinstance(node, ast.Name) and node.id == "strategy"


def probes(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the member wherever a strategy is asked for one, but for `fne.config.members`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_strategy(node.value):
            yield node.lineno, node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr", "setattr"):
            if is_strategy(node.args[0]):
                yield node.lineno, ast.unparse(node)
        elif (
            isinstance(node, ast.Call) and ast.unparse(node.func) in ("member", "attempt") and is_strategy(node.args[0])
        ):
            named = node.args[1]
            name = named.value if isinstance(named, ast.Constant) else ""
            if name not in MEMBERS and not isinstance(named, ast.Name):
                yield node.lineno, ast.unparse(node)


def test_nothing_else_is_asked_of_a_strategy() -> None:
    required = {name for name in vars(Strategy) if not name.startswith("_")} | {"seed"}
    assert required == {*VALUES, *METHODS}
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted((ROOT / "fne").rglob("*.py"))
        if path.name != "members.py"
        for line, name in probes(ast.parse(path.read_text()))
        if name not in required
    ]
    assert found == [], "ask by fne.config.members.member, and put the member into its table"


@pytest.mark.parametrize(
    ("source", "caught"),
    [
        ("getattr(strategy, 'pooled', False)", 1), ("hasattr(self._strategy, 'x')", 1), ("strategy.population()", 1),
        ("experiment.strategy.privacy", 1), ("strategy.step", 0), ("config.strategy.settings", 0),
        ("member(strategy, 'pooled')", 0), ("member(strategy, 'poled')", 1),
    ],
)  # fmt: skip
def test_the_rule_itself(source: str, caught: int) -> None:
    required = {*VALUES, *METHODS}
    assert len([name for _, name in probes(ast.parse(source)) if name not in required]) == caught
