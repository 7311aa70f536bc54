"""Steps and rounds: what a step of each kind of method is, as docs/concepts.md has it."""

from __future__ import annotations

from pathlib import Path

import pytest

import fne

FRONT = "problem.dim=4 strategy.initial=12 strategy.points=2 strategy.rounds=3 strategy.generations=2"
TRADEOFFS = "strategy.population=2 strategy.generations=3 strategy.rounds_per_evaluation=4"


@pytest.mark.parametrize(
    ("config", "settings", "rounds", "steps"),
    [
        ("fne_toy", "strategy.rounds=3", 3, 3),
        ("fne_toy", "strategy=fsi model=mlp strategy.rounds=3", 3, 3),
        ("fdd_ea_ellipsoid", "problem.dim=2 strategy.rounds=3", 3, 1 + 3 + 1),
        ("fdd_ea_ellipsoid", "problem.dim=2 strategy.rounds=3 strategy.release=false", 3, 1 + 3),
        ("fdd_ea_ellipsoid", "problem.dim=2 strategy.rounds=3 strategy.finals=mean", 3, 1 + 3 + 3),
        ("fdd_ea_plus_shifted", "problem.dim=2 strategy.rounds=3", 3, 1 + 3 + 1 + 1),
        ("fdd_ea_plus_shifted", "problem.dim=2 strategy.rounds=3 strategy.finals=literal", 3, 1 + 3 + 1),
        ("fdd_ea_ellipsoid", "problem.dim=2 strategy=rcga strategy.evaluations=60", 3, 1 + 3),
        ("fdd_ea_dh_dtlz2", FRONT, 3, 3 * (2 + 2) + 1),
        ("fdd_ea_dh_dtlz2", f"strategy=fdd_ea_mo secure=false {FRONT}", 3, 3 * (2 + 2) + 3),
        (
            "fdd_ea_dh_dtlz2",
            f"strategy=fdd_ea_mo secure=false strategy.infill=all strategy.surrogate=network {FRONT}",
            3,
            3 * (2 + 2) + 1 + 3,
        ),
        ("fne_toy", f"strategy=fed_moeac {TRADEOFFS}", 1 + 3, (1 + 3) * 4),
    ],
)
def test_a_round_takes_so_many_steps(config: str, settings: str, rounds: int, steps: int, tmp_path: Path) -> None:
    summary = fne.train(config, settings.split(), out=tmp_path / "run", quiet=True)
    assert (summary["rounds"], summary["steps"]) == (rounds, steps)
