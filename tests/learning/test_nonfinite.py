"""Outputs and losses that are not finite: a wrong answer wherever accuracy is counted, and never a best."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fne
from fne.core.contracts import Result, Strategy
from fne.core.dataset import Samples
from fne.core.messages import Header, Reply, Round, Traffic
from fne.evolution.evaluate import Evaluator, Plan
from fne.evolution.genome import Layout
from fne.evolution.losses import NO_ANSWER, answers, correct, sample_losses
from fne.evolution.population import Population, Variation
from fne.learning.task import LearningTask, Validation
from fne.search.release import released
from fne.search.value_search import Archive
from fne.watch.totals import Totals

NAN, INF = math.nan, math.inf
PLUGIN = Path(__file__).parents[1] / "plugins" / "broken_model.py"


# ------------------------------------------------------------------------------------------------ answers
@pytest.mark.parametrize(
    ("logits", "answer"),
    [
        ([1.0, 3.0, 2.0], 1),
        ([2.0, 1.0, 2.0], 0),  # of equal ones the first
        ([-1e30, -2e30, -3e30], 0),
        ([NAN, NAN, NAN], NO_ANSWER),
        ([NAN, 1.0, 2.0], NO_ANSWER),
        ([0.0, 5.0, NAN], NO_ANSWER),
        ([INF, 0.0, 0.0], NO_ANSWER),
        ([INF, INF, 0.0], NO_ANSWER),
        ([INF, -INF, NAN], NO_ANSWER),
        ([-INF, 0.0, 1.0], 2),  # a class that is ruled out
        ([-INF, -INF, 1.0], 2),
        ([-INF, -INF, -INF], NO_ANSWER),
    ],
)
def test_an_answer_is_a_finite_largest_output(logits: list[float], answer: int) -> None:
    told = torch.tensor(logits)
    assert int(answers(told)) == answer
    for label in range(3):
        assert correct(told.view(1, 1, 3), torch.tensor([label])).tolist() == [float(label == answer)]


def test_a_label_with_an_answer_has_a_finite_loss() -> None:
    """The rule agrees with the losses: where there is no answer, the cross-entropy of each label is no number."""
    for broken in ([NAN, 0.0], [INF, 0.0], [-INF, -INF]):
        for label in (0, 1):
            loss = sample_losses("cross_entropy", torch.tensor([[broken]]), torch.tensor([label]), "softmax")
            assert not bool(loss.isfinite().all())
    ruled_out = sample_losses("cross_entropy", torch.tensor([[[-INF, 0.0]]]), torch.tensor([1]), "softmax")
    assert ruled_out.tolist() == [[0.0]]


@pytest.mark.parametrize("path", ["loop", "vmap"])
def test_an_evaluator_counts_each_sample_by_itself(path: Any) -> None:
    """A model that divides by its input: two samples of four are 0 / 0, and only the other two are counted."""

    class Ratio(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor([1.0, 0.0]))

        def forward(self, x: Tensor) -> Tensor:
            return x / x * self.weight

    module = Ratio()
    evaluator = Evaluator(module, Plan(path, 4, 3), output="softmax")
    samples = Samples(torch.tensor([[1.0], [0.0], [2.0], [0.0]]), torch.zeros(4, dtype=torch.int64))
    figures = evaluator.evaluate(Layout(module).flatten(module).unsqueeze(0), samples, loss="cross_entropy")
    assert figures["accuracy"].tolist() == [0.5]
    assert bool(figures["loss"].isnan().all())


# ------------------------------------------------------------------------------------------------ runs
def go(folder: Path, value: str, strategy: str, **settings: Any) -> dict[str, Any]:
    return fne.train(
        {
            "name": "t",
            "plugins": [str(PLUGIN)],
            "data": {"name": "toy", "nodes": 3},
            "model": {"name": "broken", "value": value},
            "strategy": {"name": strategy, **settings},
            "watch": {"tensorboard": False, "target": 0.1},
        },
        out=folder,
    )


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_model_of_no_numbers_is_never_right_and_never_the_best(tmp_path: Path, value: str) -> None:
    """Class 0 is a third of the data: counted by argmax, the first step would have reached the target."""
    summary = go(tmp_path / "a", value, "fedavg", rounds=3, returns="best")
    assert (summary["steps"], summary["finished"]) == (3, True)
    assert (summary["accuracy_test"], summary["accuracy_last"], summary["accuracy_best"]) == (0.0, 0.0, None)
    assert summary["loss_test"] is None
    last = go(tmp_path / "b", value, "fedavg", rounds=3, returns="last")
    assert last["model_sha256"] != summary["model_sha256"], "the best is the model before all training"


def test_trade_offs_of_no_numbers_have_the_worst_error(tmp_path: Path) -> None:
    summary = go(tmp_path / "a", "nan", "nsga2", population=2, generations=1, rounds_per_evaluation=1)
    assert (summary["accuracy_last"], summary["accuracy_best"], summary["accuracy_test"]) == (0.0, None, 0.0)
    rows = (tmp_path / "a" / "front.csv").read_text().splitlines()
    errors = [row.split(",")[rows[0].split(",").index("error_test")] for row in rows[1:]]
    assert errors == ["1.0"] * len(errors)


def test_accuracies_by_subject_count_no_numbers_as_wrong(tmp_path: Path) -> None:
    summary = fne.train(
        {
            "name": "t",
            "plugins": [str(PLUGIN)],
            "data": {"name": "toy", "problem": "eeg", "nodes": 2},
            "model": "broken",
            "strategy": {"name": "fedavg", "rounds": 1},
            "watch": {"tensorboard": False},
        },
        out=tmp_path / "run",
    )
    assert set(summary["accuracy_test_by_subject"].values()) == {0.0}
    assert summary["accuracy_test_subjects"] == 0.0


# ------------------------------------------------------------------------------------------------ bests
def test_validation_never_keeps_a_model_with_another_loss() -> None:
    given = {"accuracy": 0.0, "loss": 0.0}

    def evaluate(population: Tensor, **_: Any) -> dict[str, Tensor]:
        return {name: torch.tensor([value], dtype=torch.float64) for name, value in given.items()}

    module = nn.Linear(1, 1)
    for classification in (True, False):
        task = LearningTask(Layout(module), lambda _: module, evaluate, classification)
        validation = Validation(task, "mse", torch.zeros(2))
        for step, (accuracy, loss) in enumerate(((0.9, NAN), (0.8, INF), (0.3, 1.0), (1.0, -INF), (0.2, 2.0)), 1):
            given.update(accuracy=accuracy, loss=loss)
            validation(torch.full((2,), float(step)), {}, step)
            assert validation.best_step == (3 if step >= 3 else 0)
        assert validation.best().parameters.tolist() == [3.0, 3.0]


class _Nobody:
    pooled = False


def told(totals: Totals, accuracy: float | None, **loss: float | None) -> None:
    strategy: Strategy = _Nobody()  # type: ignore[assignment]
    round_ = Round((), (), Traffic({}, {}, {}, {}))
    totals(strategy, round_, {"_nodes": 1, "round": 1, "accuracy_validation": accuracy, **loss})


def test_totals_take_no_figure_of_a_broken_model() -> None:
    totals = Totals()
    for accuracy, loss in ((NAN, 1.0), (0.9, NAN), (0.9, INF)):
        told(totals, accuracy, loss_validation=loss)
        assert not totals.has_reached(0.5)
        assert totals.summary(1)["accuracy_best"] is None
    told(totals, 0.6, loss_validation=1.0)
    assert totals.has_reached(0.5)
    told(totals, 0.7)  # a strategy that tells no loss
    assert totals.has_reached(0.7)
    assert totals.summary(1)["accuracy_best"] == 0.7
    told(totals, None, loss_validation=1.0)
    assert not totals.has_reached(0.0)


def test_a_search_never_takes_a_value_that_is_not_finite() -> None:
    known = Archive(1, 1)
    values = torch.tensor([[NAN, -INF, 2.0, INF]], dtype=torch.float64)
    known.add(torch.arange(4.0, dtype=torch.float64).view(1, 4, 1), values)
    assert known.least.tolist() == [2.0]
    assert known.best.parameters.tolist() == [[2.0]]
    replies = tuple(
        Reply(Header(0, 0), f"n{i}", payload={"point": torch.full((1, 1), float(i)), "value": values[:, i]})
        for i in range(4)
    )
    before = Result("point", torch.zeros(1, 1))
    assert released(Round(replies, (), Traffic({}, {}, {}, {})), before).parameters.tolist() == [[2.0]]


def test_elites_are_sound_even_where_few_are() -> None:
    module = nn.Linear(2, 1)
    genomes = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    genomes[[0, 2, 4]] = NAN
    population = Population(Layout(module), genomes, Variation(parents=2, elites=3), seed=0)
    fitness = torch.tensor([INF, 2.0, INF, 1.0, INF], dtype=torch.float64)
    population.advance(0, population.decide(0, fitness))
    assert torch.equal(population.genomes[:3], genomes[[3, 1, 3]])
    assert bool(population.genomes.isfinite().all())
