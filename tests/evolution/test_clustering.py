"""Groups by direction, against plain loops and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from fne.core.randomness import generator
from fne.evolution.pareto import direction_groups, merged, scaled


def uniform(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=generator("clustering", seed), dtype=torch.float64)


def test_scaled_values_are_parts_of_the_range() -> None:
    values = torch.tensor([[1.0, 5.0, 2.0], [3.0, 5.0, math.inf], [2.0, 5.0, 4.0]], dtype=torch.float64)
    expected = torch.tensor([[0, 0, 0], [1, 0, 1], [0.5, 0, 1]], dtype=torch.float64) + 1e-6
    torch.testing.assert_close(scaled(values, ranges=True), expected)
    assert scaled(torch.full((2, 2), math.inf), ranges=True).isfinite().all()


def test_scaled_values_are_taken_as_they_come_where_they_are_shares() -> None:
    values = torch.tensor([[0.1, 0.5, 0.2], [0.3, 1.2, math.inf], [math.nan, 0.5, 4.0]], dtype=torch.float64)
    expected = torch.tensor([[0.1, 0.5, 0.2], [0.3, 1.2, 4.0], [1.0, 0.5, 4.0]], dtype=torch.float64) + 1e-6
    torch.testing.assert_close(scaled(values, ranges=False), expected)
    outlier = torch.tensor([[0.1, 0.2], [0.2, 0.1], [1.0, 0.15]], dtype=torch.float64)
    near, far = (scaled(outlier, ranges=ranges)[:2] for ranges in (False, True))
    cosine = [float(v[0] @ v[1] / v[0].norm() / v[1].norm()) for v in (near, far)]
    assert cosine[0] == pytest.approx(0.8, abs=1e-4)  # of (1, 2) and (2, 1)
    assert cosine[1] < 0.01  # their own ranges pull them apart


def by_loop(values: np.ndarray, count: int) -> list[set[int]]:
    clusters = [{i} for i in range(len(values))]
    while len(clusters) > count:
        best, pair = -2.0, (0, 1)
        for i in range(len(clusters)):
            for j in range(i + 1, len(clusters)):
                a, b = (values[sorted(clusters[k])].mean(axis=0) for k in (i, j))
                cosine = float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
                if cosine > best + 1e-15:
                    best, pair = cosine, (i, j)
        clusters[pair[0]] |= clusters.pop(pair[1])
    return clusters


@pytest.mark.parametrize("count", [1, 4, 10, 20, 25])
def test_merging_is_the_papers(count: int) -> None:
    values = scaled(uniform(20, 3, seed=count), ranges=True)
    got = merged(values, count)
    assert sorted(i for cluster in got for i in cluster) == list(range(20))
    assert {frozenset(c) for c in got} == {frozenset(c) for c in by_loop(values.numpy(), count)}


def test_solutions_of_one_direction_are_merged_first() -> None:
    values = torch.tensor([[1.0, 0.1], [0.1, 1.0], [0.5, 0.05], [1.0, 1.0]], dtype=torch.float64)
    assert merged(values, 3) == [[0, 2], [1], [3]]


def test_groups_are_of_like_directions() -> None:
    rays = torch.tensor([[1.0, 0.02, 0.02], [0.02, 1.0, 0.02], [0.02, 0.02, 1.0]], dtype=torch.float64)
    which = torch.tensor([0, 1, 2] * 7)
    values = rays[which] * (0.1 + uniform(21, 1)) + 0.01 * uniform(21, 3, seed=1)
    for seed in range(5):
        labels = direction_groups(values, 3, uniform(3, seed=seed))
        assert len({(int(a), int(b)) for a, b in zip(labels, which, strict=True)}) == 3
    assert direction_groups(values, 1, uniform(1)).tolist() == [0] * 21
    assert len(set(direction_groups(values[:2], 5, uniform(5)).tolist())) <= 2
