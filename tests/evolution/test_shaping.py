"""Ranks, signs, weights and exact sums, and the node task that answers with an order only."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fne.core.dataset import Samples
from fne.core.messages import Header, Reply, Request
from fne.evolution import shaping
from fne.evolution.evaluate import Plan

INF = math.inf
Build = Callable[..., SimpleNamespace]
Clouds = Callable[..., dict[str, Samples]]


def doubles(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# ------------------------------------------------------------------------------------------------ weights
@pytest.mark.parametrize(
    ("fitness", "wanted"),
    [
        ((3.0, 1.0, 2.0), (30, 10, 20)),
        ((1.0, 1.0, 0.0), (25, 25, 10)),
        ((INF, 5.0, INF), (25, 10, 25)),
        ((2.0, 2.0, 2.0), (20, 20, 20)),
        ((-INF, 0.0, INF), (10, 20, 30)),
    ],
)
def test_weights_go_by_rank_and_ties_share_theirs(fitness: tuple[float, ...], wanted: tuple[float, ...]) -> None:
    assert shaping.by_rank(torch.tensor([10, 20, 30]), doubles(*fitness)).tolist() == list(wanted)


def test_centred_ranks_run_from_a_half_to_minus_a_half() -> None:
    assert shaping.centred_ranks(doubles(0.3, -7, 12, 0.1, 5)).tolist() == [0, 0.5, -0.5, 0.25, -0.25]
    assert shaping.centred_ranks(doubles(1, 2)).tolist() == [0.5, -0.5]
    assert shaping.centred_ranks(doubles(4)).tolist() == [0.5]


@pytest.mark.parametrize("count", [2, 3, 8, 41])
def test_utilities_are_those_of_the_paper(count: int) -> None:
    raw = [max(0.0, math.log(count / 2 + 1) - math.log(k)) for k in range(1, count + 1)]
    wanted = [value / sum(raw) - 1 / count for value in raw]
    got = shaping.utilities(torch.arange(count).double())
    assert got.tolist() == pytest.approx(wanted, rel=1e-12, abs=1e-15)
    assert float(got.sum()) == pytest.approx(0, abs=1e-12)
    backwards = shaping.utilities(-torch.arange(count).double())
    assert torch.equal(backwards, got.flip(0))


# ------------------------------------------------------------------------------------------------ sums
@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("size", [1e-250, 1e-9, 1.0, 1e12])
def test_a_weighted_sum_is_exact_in_any_order(power: int, size: float, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(1)
    weights, noise = draw.normal(size=300) * size, draw.integers(-30, 31, size=(300, 50)).astype(np.int8)
    got = shaping.weighted_sum(torch.from_numpy(weights), torch.from_numpy(noise), power=power)
    powers = noise.astype(object) ** power  # Python's own integers
    assert np.allclose(got.numpy(), weights @ powers.astype(float), rtol=0, atol=300 * 30**power * size * 2.0**-26)
    scale = 2.0 ** min(26 - math.frexp(abs(weights).max())[1], 1000)
    whole = np.array([round(float(w) * scale) for w in weights], dtype=object)
    assert got.tolist() == [int(s) / scale for s in whole @ powers]

    order = draw.permutation(300)
    monkeypatch.setattr(shaping, "_COLUMNS", 7)
    again = shaping.weighted_sum(torch.from_numpy(weights[order]), torch.from_numpy(noise[order]), power=power)
    assert torch.equal(again, got)


def test_a_weighted_sum_of_next_to_nothing() -> None:
    noise = torch.ones(3, 4, dtype=torch.int8)
    for size in (0.0, 1e-310):
        assert shaping.weighted_sum(torch.full((3,), size, dtype=torch.float64), noise).abs().max() <= 3e-301


# ------------------------------------------------------------------------------------------------ ranks and signs
@pytest.mark.parametrize(
    ("fitness", "places"),
    [
        ((5, 1, 3, 1, INF, INF), (3, 0.5, 2, 0.5, 4.5, 4.5)),
        ((0.3, -7, 12, 0.1), (2, 0, 3, 1)),
        ((2, 2, 2), (1, 1, 1)),
        ((2, 2), (0.5, 0.5)),
        ((4,), (0,)),
    ],
)
def test_ranks_are_doubled_places_and_ties_share_theirs(fitness: tuple[float, ...], places: tuple[float, ...]) -> None:
    assert shaping.ranks(doubles(*fitness)).tolist() == [2 * place for place in places]


def test_signs_of_pairs_and_ties_as_told() -> None:
    first, second = (1, 2, 7, 7, 7, INF, INF), (2, 1, 7, 7, 7, INF, 3)
    for ties in ([True] * 7, [False] * 7, [False, True, True, False, True, False, True]):
        wanted = [True, False, *ties[2:6], False]
        assert shaping.pair_signs(doubles(*first, *second), torch.tensor(ties)).tolist() == wanted


@pytest.mark.parametrize("count", [1, 7, 8, 9, 100])
def test_bits_are_packed_as_numpy_packs_them(count: int) -> None:
    bits = torch.from_numpy(np.random.default_rng(count).random(count) < 0.5)
    packed = shaping.packed(bits)
    assert packed.dtype == torch.uint8
    assert packed.tolist() == np.packbits(bits.numpy(), bitorder="little").tolist()
    assert torch.equal(shaping.unpacked(packed, count), bits)


# ------------------------------------------------------------------------------------------------ the task
def asked(lab: SimpleNamespace, population: Tensor, nodes: tuple[str, ...], **options: Any) -> tuple[Reply, ...]:
    request = Request(
        Header(0, 3), options.pop("task", "ranking"), nodes, common={"population": population},
        options={"loss": "nmse", **options},
    )  # fmt: skip
    return lab.engine.send(request).replies  # type: ignore[no-any-return]


@pytest.mark.parametrize("samples", [0, 4])
@pytest.mark.parametrize("joined", [False, True])
def test_nodes_rank_what_the_task_fitness_measures(
    laboratory: Build, clouds: Clouds, samples: int, joined: bool
) -> None:
    lab = laboratory(lambda: nn.Linear(4, 3), clouds(9, 300, 5), joined=joined)
    population = torch.randn(22, 15, generator=torch.Generator().manual_seed(0))
    names = ("n0", "n1", "n2")
    losses = asked(lab, population, names, task="fitness", samples=samples)
    ranks = asked(lab, population, names, answer="ranks", samples=samples)
    signs = asked(lab, population, names, answer="sign", samples=samples)
    for loss, rank, sign in zip(losses, ranks, signs, strict=True):
        values = loss.payload["loss"][:, 0].numpy()
        assert rank.payload["ranks"].tolist() == (2 * np.argsort(np.argsort(values))).tolist()
        assert rank.payload["ranks"].dtype == torch.uint8
        assert sign.payload["signs"].tolist() == np.packbits(values[:11] < values[11:], bitorder="little").tolist()
        for reply in (rank, sign):
            assert int(reply.payload["samples"]) == int(loss.payload["samples"])
            assert int(reply.payload["nonfinite"]) == 0
            assert set(reply.payload) == {"ranks" if reply is rank else "signs", "samples", "nonfinite"}


@pytest.mark.parametrize(
    ("count", "samples", "kinds"),
    [
        (128, 256, (torch.uint8, torch.int16)),
        (129, 255, (torch.int16, torch.uint8)),
        (2**14, 1, (torch.int16, torch.uint8)),
        (2**14 + 1, 1, (torch.int32, torch.uint8)),
    ],
)
def test_integers_are_as_short_as_they_can_be(
    laboratory: Build, clouds: Clouds, count: int, samples: int, kinds: tuple[torch.dtype, ...]
) -> None:
    plan = Plan("vmap", 512, 64)
    lab = laboratory(lambda: nn.Linear(4, 3), {"n0": clouds(samples)["n0"]}, plan=plan)
    population = torch.randn(count, 15, generator=torch.Generator().manual_seed(0))
    (reply,) = asked(lab, population, ("n0",), answer="ranks")
    assert (reply.payload["ranks"].dtype, reply.payload["samples"].dtype) == kinds
    assert int(reply.payload["ranks"].sum()) == count * (count - 1), "no rank is cut off"
    assert int(reply.payload["samples"]) == samples


def test_what_is_not_finite_ranks_last_and_is_counted(laboratory: Build, clouds: Clouds) -> None:
    lab = laboratory(lambda: nn.Linear(4, 3), clouds(9))
    population = torch.randn(6, 15, generator=torch.Generator().manual_seed(0))
    population[1], population[4] = torch.nan, -torch.inf
    (reply,) = asked(lab, population, ("n0",), answer="ranks")
    assert reply.payload["ranks"][[1, 4]].tolist() == [9, 9]
    assert int(reply.payload["nonfinite"]) == 2
    (reply,) = asked(lab, population, ("n0",), answer="sign")
    signs = shaping.unpacked(reply.payload["signs"], 3).tolist()
    population[2] = torch.nan  # of the pair (2, 5)
    (reply,) = asked(lab, population, ("n0",), answer="sign")
    assert shaping.unpacked(reply.payload["signs"], 3).tolist() == [*signs[:2], False]
    assert int(reply.payload["nonfinite"]) == 3


def test_ties_are_broken_by_each_node_anew(laboratory: Build, clouds: Clouds) -> None:
    """Of equal individuals 100 nodes vote at random: a pair's mean vote has standard deviation 0.1, not 1."""
    lab = laboratory(lambda: nn.Linear(4, 3), clouds(*[2] * 100))
    population = torch.linspace(-1, 1, 15).expand(80, 15).contiguous()

    def votes(step: int) -> Tensor:
        request = Request(
            Header(0, step), "ranking", lab.engine.nodes, common={"population": population},
            options={"loss": "nmse", "answer": "sign"},
        )  # fmt: skip
        replies = lab.engine.send(request).replies
        return torch.stack([shaping.unpacked(reply.payload["signs"], 40) for reply in replies]).double() * 2 - 1

    first = votes(0)
    assert len(first.unique(dim=0)) == 100, "no two nodes draw the same"
    assert float(first.mean(dim=0).abs().max()) < 0.4
    assert float(first.mean(dim=0).std()) == pytest.approx(0.1, rel=0.4)
    assert float(first.mean(dim=1).abs().max()) < 0.65, "nor does any one lean"
    assert torch.equal(votes(0), first), "anybody can repeat them"
    assert not torch.equal(votes(1), first)


@pytest.mark.parametrize(
    ("answer", "count", "broken", "reason"),
    [
        ("ranks", 5, True, "all 5 individuals have a non-finite loss on this node; lower what perturbs them "
         "(strategy.sigma, strategy.lr, strategy.mutation_rate), or scale the data"),
        ("sign", 6, True, "all 6 individuals have a non-finite loss on this node; lower what perturbs them "
         "(strategy.sigma, strategy.lr, strategy.mutation_rate), or scale the data"),
        ("sign", 5, False, "answer = sign needs pairs (i, i + P/2), P is 5; send an even number of individuals"),
    ],
)  # fmt: skip
def test_what_cannot_be_ranked_is_said(
    laboratory: Build, clouds: Clouds, answer: str, count: int, broken: bool, reason: str
) -> None:
    lab = laboratory(lambda: nn.Linear(4, 3), clouds(9))
    population = torch.full((count, 15), torch.nan if broken else 1.0)
    options = {"loss": "nmse", "answer": answer}
    (reply,) = lab.worker.run(Request(Header(0, 0), "ranking", ("n0",), {"population": population}, options=options))
    assert (reply.status, reply.reason) == ("failed", reason)


# ------------------------------------------------------------------------------------------------ a byte each
def test_levels_by_hand() -> None:
    losses = torch.tensor([2.0, INF, 3.27, 4.54, float("nan"), 2.0049, 2.0051], dtype=torch.float64)
    told, ends = shaping.levels(losses)
    assert told.tolist() == [0, 255, 127, 254, 255, 0, 1]
    assert ends.tolist() == pytest.approx([2.0, 4.54])
    assert shaping.losses_of(told, ends)[[0, 1, 2, 3]].tolist() == pytest.approx([2.0, INF, 3.27, 4.54])


@pytest.mark.parametrize("count", [1, 2, 7, 300])
def test_levels_are_half_a_level_off_at_most_and_keep_the_order(count: int) -> None:
    losses = 5 + torch.randn(count, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    told, ends = shaping.levels(losses)
    step = float(losses.max() - losses.min()) / 254
    assert float((shaping.losses_of(told, ends) - losses).abs().max()) <= step / 2 + 1e-6
    ranked = told[losses.argsort()].int()
    assert bool((ranked.diff() >= 0).all())


def test_equal_losses_are_one_level() -> None:
    told, ends = shaping.levels(torch.full((4,), 0.25))
    assert told.tolist() == [0, 0, 0, 0]
    assert shaping.losses_of(told, ends).tolist() == [0.25] * 4
