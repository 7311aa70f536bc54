"""Perturbations of rank one: against NumPy and whole numbers, as nodes receive them, and as models share them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fne.core.dataset import Samples
from fne.core.messages import Header, Request, Status
from fne.core.randomness import generator, seeded_initialisation
from fne.evolution import rank_one
from fne.evolution.evaluate import Plan
from fne.evolution.genome import Layout
from fne.evolution.philox import UNIT, Perturbations
from fne.evolution.rank_one import RankOne

Build = Callable[..., SimpleNamespace]
Clouds = Callable[..., dict[str, Samples]]


class Leaves(nn.Module):
    """A leaf of each kind: a matrix, filters, transposed filters, vectors, a number."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.filters = nn.Conv2d(2, 3, (2, 5), bias=False)
        self.transposed = nn.ConvTranspose1d(2, 4, 3, bias=False)
        self.gain = nn.Parameter(torch.tensor(1.5))


# Of a pair: gain 1; linear 3 + 4, and 3; filters 3 + 20; transposed, [2, 4, 3] with its kernels along axis 1, 4 + 6.
COLUMNS = {"gain": (0, 1), "linear.weight": (1, 4, 8), "linear.bias": (8, 11), "filters.weight": (11, 14, 34),
           "transposed.weight": (34, 38, 44)}  # fmt: skip


def pairs_of(module: nn.Module, count: int, sigma: float = 0.4) -> tuple[Layout, RankOne]:
    layout = Layout(module)
    noise = Perturbations(3, count, rank_one.width(layout))(7)
    return layout, RankOne(layout.flatten(module), noise, rank_one.steps(layout, layout.deviations(), sigma))


def leaves() -> nn.Module:
    with seeded_initialisation("leaves"):
        return Leaves()


def outer(factors: np.ndarray[Any, Any], name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return the whole numbers that perturb a leaf, int64 `[P/2, *shape]`, from its columns."""
    first, *others = (factors[:, i:j].astype(np.int64) for i, j in zip(COLUMNS[name], COLUMNS[name][1:], strict=False))
    if not others:
        return first.reshape(-1, *shape)
    product = np.einsum("pk,pr->pkr", first, others[0])
    if name == "transposed.weight":  # kernels first, [4, 2, 3], in memory [2, 4, 3]
        return product.reshape(-1, 4, 2, 3).swapaxes(1, 2)
    return product.reshape(-1, *shape)


# ------------------------------------------------------------------------------------------------ what they are
def test_individuals_by_numpy_bit_for_bit() -> None:
    """Float32, a rounding an operation: centre plus and minus sigma times the whole number, leaf by leaf."""
    layout, candidates = pairs_of(leaves(), 5)
    assert rank_one.width(layout) == 44
    assert len(candidates) == 10
    population = candidates.materialised(layout)
    centre, factors = candidates.centre.numpy(), candidates.factors.numpy()
    parameters = candidates.parameters(layout, torch.arange(10))
    assert list(parameters) == [leaf.name for leaf in layout.leaves] == list(COLUMNS)
    for leaf, step in zip(layout.leaves, candidates.sigma.numpy(), strict=True):
        unit = UNIT if len(leaf.shape) < 2 else 1 / 85
        assert step == pytest.approx(0.4 * leaf.scale * unit, rel=1e-6)
        offsets = (outer(factors, leaf.name, leaf.shape).astype(np.float32) * step).reshape(5, -1)
        middle = centre[leaf.start : leaf.stop]
        wanted = np.concatenate([middle + offsets, middle - offsets])
        assert wanted.dtype == np.float32
        np.testing.assert_array_equal(population[:, leaf.start : leaf.stop].numpy(), wanted)
        np.testing.assert_array_equal(parameters[leaf.name].numpy(), wanted.reshape(10, *leaf.shape))
    for rows in (slice(0, 1), slice(3, 7), slice(9, 10)):
        assert torch.equal(candidates.materialised(layout, rows), population[rows])


def test_factors_make_the_individuals() -> None:
    layout, candidates = pairs_of(leaves(), 5)
    parameters, factors = candidates.pairs(layout, slice(1, 4))
    whole = candidates.parameters(layout, torch.tensor([1, 2, 3, 6, 7, 8]))
    for leaf in layout.leaves:
        centre, first, *second = factors[leaf.name]
        offsets = torch.einsum("pk,p...->pk...", first, second[0]) if second else first
        both = torch.cat([centre + offsets, centre - offsets])
        wanted = whole[leaf.name].movedim(1 + leaf.axis, 1) if second else whole[leaf.name]
        torch.testing.assert_close(both, wanted, rtol=1e-6, atol=1e-7)
        assert torch.equal(parameters[leaf.name], whole[leaf.name])


def test_a_product_has_variance_one_and_rank_one() -> None:
    """As has a full perturbation's entry; different entries are uncorrelated, which ES needs."""
    layout, candidates = pairs_of(nn.Linear(40, 30, bias=False), 2000, sigma=1.0)
    offsets = (candidates.materialised(layout)[:2000] - candidates.centre).view(2000, 30, 40) / layout.leaves[0].scale
    assert offsets.mean().abs() < 2e-3
    assert offsets.square().mean() == pytest.approx(1, abs=0.02)
    assert offsets.square().mean(0).std() < 0.1  # each entry's
    cross = offsets.flatten(1)[:, :200].T @ offsets.flatten(1)[:, :200] / 2000
    assert cross.fill_diagonal_(0).abs().max() < 0.15
    assert torch.linalg.svdvals(offsets[0].double())[1] < 1e-5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_cuda_makes_the_same_individuals() -> None:
    layout, candidates = pairs_of(leaves(), 5)
    there = candidates.to(torch.device("cuda")).materialised(layout)
    assert there.is_cuda
    assert torch.equal(there.cpu(), candidates.materialised(layout))


# ------------------------------------------------------------------------------------------------ weighted sums
@pytest.mark.parametrize("count", [1, 4, 257])
def test_weighted_sum_in_whole_numbers(count: int) -> None:
    """Weights to 26 bits, then exact: Python's integers, and the same bits in any order of the pairs."""
    layout, candidates = pairs_of(leaves(), count)
    weights = torch.randn(count, generator=generator("weights"), dtype=torch.float64)
    summed = rank_one.weighted_sum(weights, candidates.factors, layout)
    scale = 2.0 ** (26 - np.frexp(weights.abs().max().item())[1])
    whole = np.rint(weights.numpy() * scale).astype(np.int64)
    for leaf in layout.leaves:
        products = outer(candidates.factors.numpy(), leaf.name, leaf.shape).reshape(count, -1)
        exact = (whole[:, None] * products).sum(0) / scale
        wanted = exact * UNIT if len(leaf.shape) > 1 else exact
        np.testing.assert_array_equal(summed[leaf.start : leaf.stop].numpy(), wanted)
    order = torch.randperm(count, generator=generator("order"))
    assert torch.equal(rank_one.weighted_sum(weights[order], candidates.factors[order], layout), summed)


def test_the_largest_sums_are_exact() -> None:
    """2**15 pairs of the largest factors and weights: 2**15 * 900 * (2**26 - 1) is below 2**53."""
    layout = Layout(nn.Linear(2, 2, bias=False))
    factors = torch.full((2**15, 4), 30, dtype=torch.int8)
    weights = torch.full((2**15,), 1 - 2.0**-26, dtype=torch.float64)
    weights[0] = 2.0**-26
    exact = 900 * ((2**15 - 1) * (2**26 - 1) + 1)
    assert exact < 2**53
    assert rank_one.weighted_sum(weights, factors, layout).tolist() == [exact / 2**26 * UNIT] * 4


def test_the_sum_is_that_of_the_individuals() -> None:
    layout, candidates = pairs_of(leaves(), 6, sigma=1.0)
    weights = torch.randn(6, generator=generator("weights"), dtype=torch.float64)
    offsets = (candidates.materialised(layout).double()[:6] - candidates.centre.double()) / layout.scales()
    summed = rank_one.weighted_sum(weights, candidates.factors, layout) * UNIT
    torch.testing.assert_close(summed, weights @ offsets, rtol=1e-5, atol=1e-5)


# ------------------------------------------------------------------------------------------------ on nodes
def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))


def ask(lab: SimpleNamespace, common: dict[str, Tensor], task: str = "fitness", **more: Any) -> list[Any]:
    options = {"loss": "nmse", **more.pop("options", {})}
    request = Request(Header(0, 0), task, tuple(lab.worker.nodes), common=common, options=options, **more)
    return list(lab.worker.run(request))


@pytest.mark.parametrize("chunk", [1, 2, 3, 64])
@pytest.mark.parametrize("path", ["loop", "vmap"])
@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("fitness", {}), ("fitness", {"samples": 4}), ("fitness", {"statistics": "batch"}),
        ("ranking", {"answer": "ranks"}), ("ranking", {"answer": "sign"}),
    ],
)  # fmt: skip
def test_nodes_answer_as_to_the_population(
    laboratory: Build, clouds: Clouds, task: str, options: dict[str, Any], joined: bool, path: Any, chunk: int
) -> None:
    """Bit for bit, where a model has no form for pairs."""
    lab = laboratory(linear, clouds(9, 5, 14), joined=joined, plan=Plan(path, chunk, 6))
    layout, candidates = pairs_of(lab.worker.module, 3)
    sent = {name: getattr(candidates, name) for name in rank_one.NAMES}
    told = ask(lab, sent, task, options=options)
    wanted = ask(lab, {"population": candidates.materialised(layout)}, task, options=options)
    for reply, other in zip(told, wanted, strict=True):
        assert reply.status is Status.OK, reply.reason
        assert list(reply.payload) == list(other.payload)
        assert all(torch.equal(reply.payload[name], other.payload[name]) for name in other.payload)


def test_nodes_may_have_pairs_of_their_own(laboratory: Build, clouds: Clouds) -> None:
    lab = laboratory(linear, clouds(9, 5), joined=True)
    layout, candidates = pairs_of(lab.worker.module, 4)
    shared = {"centre": candidates.centre, "sigma": candidates.sigma}
    private = {f"n{i}": {"factors": candidates.factors[2 * i : 2 * i + 2]} for i in range(2)}
    whole = ask(lab, {"population": candidates.materialised(layout)})
    for i, reply in enumerate(ask(lab, shared, private=private)):
        own = [2 * i, 2 * i + 1, 4 + 2 * i, 5 + 2 * i]
        torch.testing.assert_close(reply.payload["loss"], whole[i].payload["loss"][own])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"centre": None}, "candidates are sent as population, or as centre, factors, sigma; this request holds "
         "factors, sigma"),
        ({"centre": None, "factors": None, "sigma": None}, "this request holds neither"),
        ({"population": torch.zeros(2, 53)}, "this request holds population, centre, factors, sigma"),
        ({"centre": torch.zeros(52)}, "centre is torch.float32 [52]; this node's model needs torch.float32 [53]"),
        ({"factors": torch.zeros(3, 9, dtype=torch.int8)}, "needs torch.int8 [3, 35]"),
        ({"factors": torch.zeros(3, 35)}, "factors is torch.float32 [3, 35]; this node's model needs torch.int8"),
        ({"factors": torch.tensor(1, dtype=torch.int8)}, "factors is torch.int8 []"),
        ({"sigma": torch.zeros(1)}, "sigma is torch.float32 [1]; this node's model needs torch.float32 [6]"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("task", ["fitness", "ranking"])
def test_what_does_not_fit_is_said(
    laboratory: Build, clouds: Clouds, task: str, change: dict[str, Any], reason: str
) -> None:
    lab = laboratory(linear, clouds(9))
    _, candidates = pairs_of(lab.worker.module, 3)
    sent = {name: getattr(candidates, name) for name in rank_one.NAMES} | change
    options = {"answer": "sign"} if task == "ranking" else {}
    (reply,) = ask(lab, {k: v for k, v in sent.items() if v is not None}, task, options=options)
    assert reply.status is Status.FAILED
    assert reason in reply.reason
