"""Reference vectors and the selection by them, against pymoo's lattices and a plain loop."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from fne.core.randomness import generator
from fne.evolution import rvea


def uniform(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=generator("rvea", seed), dtype=torch.float64)


# ------------------------------------------------------------------------------------------------ lattices
@pytest.mark.parametrize(
    ("objectives", "most", "count"),
    [
        (2, 100, 100),
        (3, 105, 105),
        (3, 104, 91),
        (5, 126, 126),
        (10, 230, 230),
        (20, 420, 420),
        (10, 275, 275),
        (4, 1, 4),
    ],
)
def test_lattices_have_as_many_vectors_as_the_papers_say(objectives: int, most: int, count: int) -> None:
    vectors = rvea.reference_vectors(objectives, most)
    assert vectors.shape == (count, objectives)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(count, dtype=torch.float64))
    assert len(torch.unique(vectors, dim=0)) == count


@pytest.mark.parametrize(("objectives", "divisions"), [(2, 7), (3, 13), (5, 5)])
def test_a_lattice_is_that_of_pymoo(objectives: int, divisions: int) -> None:
    from pymoo.util.ref_dirs import get_reference_directions

    theirs = get_reference_directions("das-dennis", objectives, n_partitions=divisions)
    ours = rvea.reference_vectors(objectives, len(theirs))
    theirs = theirs / np.linalg.norm(theirs, axis=1, keepdims=True)
    np.testing.assert_allclose(np.sort(ours.numpy(), axis=0), np.sort(theirs, axis=0), atol=1e-12)


# ------------------------------------------------------------------------------------------------ selection
def by_loop(values: np.ndarray, valid: np.ndarray, vectors: np.ndarray, progress: float, alpha: float) -> list[int]:
    """Do what algorithm 2 of Cheng et al. says, one individual after another."""
    there = [i for i in range(len(values)) if valid[i]]
    ideal = np.min(values[there], axis=0)
    best: list[tuple[float, int]] = [(math.inf, -1)] * len(vectors)
    for i in there:
        moved = values[i] - ideal
        length = np.sqrt((moved**2).sum())
        angles = [math.acos(min(1.0, float(moved @ v) / max(length, 1e-12))) for v in vectors]
        j = int(np.argmin(angles))
        gamma = min(math.acos(min(1.0, float(vectors[j] @ v))) for k, v in enumerate(vectors) if k != j)
        distance = (1 + values.shape[1] * progress**alpha * angles[j] / gamma) * length
        if distance < best[j][0]:
            best[j] = distance, i
    return [i for _, i in best]


@pytest.mark.parametrize("objectives", [2, 3, 5])
@pytest.mark.parametrize("progress", [0.0, 0.4, 1.0])
def test_selection_is_the_papers_for_each_run(objectives: int, progress: float) -> None:
    values = 10 * uniform(4, 60, objectives, seed=objectives) - 3
    valid = uniform(4, 60, seed=9) < 0.8
    even = rvea.reference_vectors(objectives, 40)
    vectors = rvea.adapted(even, values, valid)
    got = rvea.select(values.where(valid.unsqueeze(2), math.nan), valid, vectors, progress)
    for run in range(4):
        wanted = by_loop(values[run].numpy(), valid[run].numpy(), vectors[run].numpy(), progress, 2.0)
        assert got[run].tolist() == wanted
        alone = rvea.select(values[run : run + 1], valid[run : run + 1], vectors[run : run + 1], progress)
        assert alone[0].tolist() == wanted


def test_a_point_on_its_vector_beats_one_that_is_farther_out() -> None:
    """Where arccos is taken of more than 1, NaN wins: of pymoo 0.6.2 the farther point survived in 15 of 91 niches."""
    vectors = rvea.reference_vectors(3, 91)
    cosines = (vectors * vectors).sum(dim=1) / vectors.norm(dim=1).square()
    assert (cosines > 1).any()
    values = torch.cat([torch.zeros(1, 3, dtype=torch.float64), 2.1 * vectors, 0.7 * vectors])[None]
    survivors = rvea.select(values, torch.ones(1, 183, dtype=torch.bool), vectors[None], 1.0)[0]
    assert sorted(survivors.tolist())[1:] == sorted({*range(92, 183)} - {91 + int((survivors == 0).nonzero()) + 1})


def test_of_equals_the_first_survives_and_an_empty_niche_says_so() -> None:
    values = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [1.2, 0.1], [0.0, 1.0]]], dtype=torch.float64)
    vectors = rvea.reference_vectors(2, 3)[None]
    survivors = rvea.select(values, torch.ones(1, 4, dtype=torch.bool), vectors, 0.5)[0].tolist()
    assert sorted(survivors) == [-1, 0, 3]
    nobody = rvea.select(values, torch.zeros(1, 4, dtype=torch.bool), vectors, 0.5)
    assert (nobody == -1).all()


def test_vectors_are_stretched_to_the_ranges() -> None:
    even = rvea.reference_vectors(2, 3)
    values = torch.tensor([[[0.0, 5.0], [3.0, 1.0], [99.0, 99.0]]], dtype=torch.float64)
    valid = torch.tensor([[True, True, False]])
    middle = rvea.adapted(even, values, valid)[0, 1]
    torch.testing.assert_close(middle, torch.tensor([3.0, 4.0], dtype=torch.float64) / 5)
    without = rvea.adapted(even, values, torch.zeros(1, 3, dtype=torch.bool))
    torch.testing.assert_close(without[0], even)


# ------------------------------------------------------------------------------------------------ variation
def test_children_come_from_survivors_alone() -> None:
    places, d = 7, 3
    points = torch.full((2, places, d), 0.9, dtype=torch.float64)
    taken = torch.zeros(2, places, dtype=torch.bool)
    points[0, 4], points[1, 2] = -0.5, 0.25
    taken[0, 4], taken[1, 2] = True, True
    u = uniform(2, 400, 1 + 2 * d)
    u[..., 1 + d :] = 0.999  # no mutation
    made = rvea.children(points, taken, u)
    assert (made[0] == -0.5).all()
    assert (made[1] == 0.25).all()
    mutated = rvea.children(points, taken, uniform(2, 400, 1 + 2 * d))
    assert 0.55 < (mutated[0] == -0.5).double().mean() < 0.78  # a third of the variables change
    assert mutated.abs().max() <= 1


def test_filled_places_are_copies_that_survive_once() -> None:
    points = uniform(1, 5, 2)
    taken = torch.tensor([[False, True, False, True, False]])
    whole = rvea.filled(points, taken)
    assert (whole[0, [0, 2, 4]] == points[0, 1]).all()
    assert (whole[0, [1, 3]] == points[0, [1, 3]]).all()
    vectors = rvea.reference_vectors(2, 50)[None]
    survivors = rvea.select(whole, torch.ones(1, 5, dtype=torch.bool), vectors, 0.0)[0]
    assert sorted(survivors[survivors >= 0].tolist()) == [0, 3]
