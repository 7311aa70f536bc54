"""What nodes measure and keep, with several objectives: hand-made numbers, noise, gaps, several runs side by side."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from fne.core.dataset import Samples
from fne.core.errors import RunError
from fne.core.messages import Header, Request
from fne.federation.node import Node, Secrets
from fne.problems.objective import Objective, measured
from fne.search.measurements import held, measure_asked, measure_points

NAN = float("nan")
HEADER = Header(3, 5, "run")


class Pair:
    """Measures (x, 10 x + the run's seed); the second cannot be had above 0.5. Counts its calls."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def __call__(self, points: Tensor, seeds: Tensor, nodes: Sequence[str]) -> Tensor:
        self.calls.append(list(nodes))
        x = points[..., 0]
        second = torch.where(x > 0.5, torch.nan, 10 * x + seeds.unsqueeze(1))
        return torch.stack([x, second], dim=-1)


def node(name: str, objective: Objective) -> Node:
    none = Samples(torch.zeros(0), torch.zeros(0))
    return Node(name, none, Secrets.simulate(3, name), objective=objective)


def column(*rows: Sequence[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64).unsqueeze(-1)


def same(found: Tensor, wanted: object) -> bool:
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-12, equal_nan=True)
    return True


def test_values_of_two_objectives_with_noise_and_where_a_node_cannot_measure() -> None:
    pair = Pair()
    objectives = [
        Objective(pair, 0.5, objectives=2),
        Objective(pair, 2.0, infeasible=(-0.1, 0.1), objectives=2),
        Objective(pair, objectives=2),
    ]
    noise = torch.tensor([1.0, -2.0]).double().expand(3, 3, 2)
    points = column([0.0, 0.2, 0.6], [0.0, 0.2, 0.6], [0.4, 0.2, 0.0])
    values, exact = measured(objectives, points, torch.tensor([1, 1, 2]), ["a", "b", "c"], noise)
    gap = [NAN, NAN]
    assert same(exact, [[[0, 1], [0.2, 3], gap], [gap, [0.2, 3], gap], [[0.4, 6], [0.2, 4], [0, 2]]])
    assert same(values, [[[0.5, 0], [0.7, 2], gap], [gap, [2.2, -1], gap], [[0.4, 6], [0.2, 4], [0, 2]]])
    assert sorted(pair.calls) == [["a", "c"], ["b"]]


def test_a_measure_of_another_shape_is_told() -> None:
    objective = Objective(lambda points, seeds, nodes: points.sum(dim=-1))
    with pytest.raises(RunError, match=r"returned values \[1, 2\], must be \[1, 2, 1\]: rows, points, objectives"):
        measured([objective], column([0, 1]), torch.tensor([0]), ["a"], torch.zeros(1, 2, 1))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_noise_is_private_and_of_one_objective_what_it_always_was(count: int) -> None:
    def nothing(points: Tensor, seeds: Tensor, nodes: Sequence[str]) -> Tensor:
        return torch.zeros(*points.shape[:2], count, dtype=torch.float64)

    one = node("a", Objective(nothing, 2.0, objectives=count))
    points = torch.zeros(2, 500, 4)
    measure_points([one], [torch.tensor([0, 1])], [points], HEADER, count=2)
    found = one.memory["measured"]
    assert found.shape == (2, 500, count)
    for run in range(2):
        wanted = 2 * one.draws(HEADER, f"noise {run}", points[run].double()).normal(500 * count)
        assert torch.equal(found[run].flatten(), wanted)
    between = torch.corrcoef(found.permute(0, 2, 1).flatten(0, 1))
    assert float((between - torch.eye(2 * count)).abs().max()) < 0.15


def test_what_is_kept_of_several_runs_with_known_points() -> None:
    pair = Pair()
    first = node("a", Objective(pair, known=(column([0.3])[0], column([7.0, 8.0]).mT[0]), objectives=2))
    second = node("b", Objective(pair, objectives=2))
    common = {"points": column([0.1, 0.2], [-0.1, -0.2], [0.5, 0.6])}
    private = {"b": {"runs": torch.tensor([2, 0])}}
    measure_asked([first, second], Request(HEADER, "measure", ("a", "b"), common, private))
    assert pair.calls == [["a", "a", "a", "b", "b"]]
    assert first.memory["asked"].tolist() == [3, 3, 3]
    assert second.memory["asked"].tolist() == [2, 0, 2]
    gap = [NAN, NAN]
    assert same(first.memory["measured"], [
        [[7, 8], [0.1, 4], [0.2, 5]], [[7, 8], [-0.1, 3], [-0.2, 2]], [[7, 8], [0.5, 10], gap]])  # fmt: skip
    assert same(second.memory["measured"], [[[0.1, 4], [0.2, 5]], [gap, gap], [[0.5, 10], gap]])

    # points that a node chose by itself, of one run
    measure_points([second], [torch.tensor([1])], [column([0.0])], Header(3, 6), count=3)
    assert second.memory["asked"].tolist() == [2, 1, 2]
    assert same(second.memory["exact"], [[[0.1, 4], [0.2, 5]], [[0, 4], gap], [[0.5, 10], gap]])

    points, values = held([second, first], [torch.tensor([1, 0]), torch.tensor([2])])
    assert same(points[..., 0], [[0, 0, 0], [0.1, 0.2, 0], [0.3, 0.5, 0.6]])
    assert same(values, [[[0, 4], gap, gap], [[0.1, 4], [0.2, 5], gap], [[7, 8], [0.5, 10], gap]])
