"""Acquisitions that need a spread over participants: defaults leave one, and a warning names settings that do not."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from fne.cli.main import main
from fne.config.load import load_config
from fne.config.registry import catalogue
from fne.core.errors import SettingWarning
from fne.engines.local import LocalEngine
from fne.federation.rounds import Relaying
from fne.optimizer import Optimizer
from fne.run.search_run import SearchRun, build_search
from fne.search.surrogate_rounds import Participation

WEIGHTS = {"mu": "SearchTask", "weight": "FrontTask"}
"""Settings that weigh a standard deviation over participants, and the task of the strategies that have them."""
SPREAD = [
    (name, key)
    for key in WEIGHTS
    for name, entry in catalogue("strategy").items()
    if key in entry.settings and "participation" in entry.settings
]


def config(name: str, *, problem: dict[str, Any] | None = None, **strategy: Any) -> dict[str, Any]:
    front = catalogue("strategy")[name].task == "FrontTask"
    own = {"name": "dtlz", "number": 2, "objectives": 2, "dim": 4} if front else {"name": "rastrigin", "dim": 2}
    small = {"generations": 4, "population": 10, "rounds": 3}
    return {
        "name": "spread", "problem": {"nodes": 10, **own, **(problem or {})}, "secure": name == "fdd_ea_dh",
        "strategy": {"name": name, **small, **strategy}, "watch": {"tensorboard": False},
    }  # fmt: skip


def built(given: dict[str, Any]) -> SearchRun:
    return build_search(load_config(given))  # type: ignore[arg-type]


def test_there_are_strategies_with_a_spread() -> None:
    assert {name for name, _ in SPREAD} == {"fdd_ea", "fdd_ea_plus", "fdd_ea_mo", "fdd_ea_dh"}


@pytest.mark.parametrize("nodes", [3, 4, 5, 10, 24, 25, 40, 100])
@pytest.mark.parametrize(("name", "key"), SPREAD)
def test_defaults_leave_at_least_three_participants(name: str, key: str, nodes: int) -> None:
    if nodes == 3 and name == "fdd_ea_dh":
        pytest.skip("secure sums need four nodes")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        strategy: Any = built(config(name, problem={"nodes": nodes})).strategy
    assert strategy.fewest >= 3
    if key == "mu" and nodes == 100:
        assert strategy.fewest == 10  # the paper's lambda of 0.1


def test_how_many_take_part() -> None:
    assert [Participation(0, 1, None).count(n) for n in (1, 2, 3, 10, 34, 35, 36, 100)] == [1, 2, 3, 3, 3, 4, 4, 10]
    assert [Participation(0, 1, 0.1).count(n) for n in (1, 10, 20, 100)] == [1, 1, 2, 10]


def acquisition(mu: float, **strategy: Any) -> float:
    search = built(config("fdd_ea", mu=mu, **strategy))
    engine = LocalEngine(search.worker)
    return float(search.strategy.tell(engine.send(search.strategy.ask(engine.nodes)))["acquisition"])


@pytest.mark.parametrize("kind", ["f", "l", "g"])
def test_of_ten_nodes_the_acquisition_subtracts_a_deviation_unless_one_takes_part(kind: str) -> None:
    assert acquisition(2.0, acquisition=kind) < acquisition(0.0, acquisition=kind) - 0.1
    with pytest.warns(
        SettingWarning,
        match=r"strategy\.participation = 0\.1: one of 10 nodes .* strategy\.mu = 2 has no effect; take 0\.3 or more",
    ):
        dead = acquisition(2.0, acquisition=kind, participation=0.1)
    assert dead == pytest.approx(acquisition(0.0, acquisition=kind, participation=0.1), abs=1e-3)
    assert acquisition(2.0, acquisition=kind, participation=0.3) == acquisition(2.0, acquisition=kind)


@pytest.mark.parametrize("name", ["fdd_ea_plus", "fdd_ea_mo"])
def test_one_participant_of_several_is_told_by_key(name: str) -> None:
    key = "mu" if name == "fdd_ea_plus" else "weight"
    with pytest.warns(SettingWarning, match=rf"strategy\.participation = 0\.1: .* strategy\.{key} = 2 has no effect"):
        built(config(name, participation=0.1))


def test_an_optimizer_of_two_nodes_has_both_take_part() -> None:
    optimizer = Optimizer([(-1.0, 1.0)] * 2, strategy="fdd_ea", nodes=2)
    assert optimizer._strategy.fewest == 2  # type: ignore[attr-defined]


# ------------------------------------------------------------------------------------------------ interpolants
def models_of(search: SearchRun) -> list[bytes]:
    """Let all nodes fit twice, the second time to what was published; return the weights that each has fitted."""
    engine = Relaying(LocalEngine(search.worker))
    for _ in range(7):  # a round of surrogates, a first population and four generations, and surrogates again
        search.strategy.tell(engine.send(search.strategy.ask(engine.nodes)))
    assert search.worker.nodes["node-000"].memory["asked"].tolist() == [12 + 2]
    return [node.memory["model.weights"].numpy().tobytes() for node in search.worker.nodes.values()]


def test_infill_all_with_interpolants_fits_one_model_at_all_nodes_and_is_told() -> None:
    given = {"infill": "all", "initial": 12, "points": 2}
    text = (
        r"strategy\.infill = all with strategy\.surrogate = cubic: .* strategy\.weight = 2 has no effect; take "
        r"infill = aggregator, or surrogate = network"
    )
    with pytest.warns(SettingWarning, match=text):
        search = built(config("fdd_ea_mo", **given))
    assert len(set(models_of(search))) == 1
    assert len(set(models_of(built(config("fdd_ea_mo", **given, surrogate="network"))))) > 5
    built(config("fdd_ea_mo", **given, weight=0.0))


@pytest.mark.parametrize("unlike", [{"noise": 0.1}, {"infeasible": 1}])
def test_where_nodes_measure_unlike_values_interpolants_differ_and_nothing_is_said(unlike: dict[str, Any]) -> None:
    search = built(config("fdd_ea_mo", infill="all", initial=12, points=2, problem=unlike))
    assert len(set(models_of(search))) > 1


def test_the_command_says_it_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["problem.nodes=10", "strategy.rounds=1", "strategy.generations=2", "strategy.population=4"]
    assert main(["train", "fdd_ea_ellipsoid", *words, "--out", str(tmp_path / "run"), "-q"]) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert line.startswith("fne: warning: strategy.participation = 0.1: one of 10 nodes takes part in a round")
