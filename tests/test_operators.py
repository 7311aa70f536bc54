"""Selection, crossover, mutation and the population manager against hand-made vectors and counted frequencies."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fne.errors import SettingError
from fne.evolution import operators
from fne.evolution.genome import Layout
from fne.evolution.population import Population, Variation, cleaned
from fne.randomness import generator, seeded_initialisation

NETWORK = nn.Sequential(nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5), nn.ConvTranspose2d(5, 4, 2), nn.Linear(7, 3))
INF = math.inf


def vectors(genes: int) -> tuple[Layout, Tensor, Tensor]:
    """Return a layout of `genes` genes and parents a = 1, 2, ... and b = -1, -2, ..."""
    layout = Layout(nn.Linear(genes, 1, bias=False))
    a = torch.arange(1.0, genes + 1).unsqueeze(0)
    return layout, a, -a


# ------------------------------------------------------------------------------------------------ selection
def test_order_is_stable_and_puts_infinity_last() -> None:
    assert operators.order(torch.tensor([2.0, INF, 1.0, 2.0, 1.0])).tolist() == [2, 4, 0, 3, 1]


@given(st.integers(2, 12), st.data())
@settings(deadline=None, max_examples=50)
def test_the_papers_pool_is_the_fittest_and_one_of_the_rest(count: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(2, count))
    fitness = torch.randperm(count, generator=generator("fitness", count, size)).double()
    pool = operators.paper_pool(fitness, size, generator("pool", count, size))
    values = fitness[pool].tolist()
    assert values[:-1] == list(range(size - 1))
    assert values[-1] >= size - 1
    assert len(set(pool.tolist())) == size


def test_the_odd_parent_is_drawn_from_the_whole_rest() -> None:
    draw, fitness = generator("rest"), torch.arange(6.0)
    picked = [int(operators.paper_pool(fitness, 3, draw)[-1]) for _ in range(400)]
    assert set(picked) == {2, 3, 4, 5}
    assert min(picked.count(i) for i in (2, 3, 4, 5)) > 70  # 100 expected, sd 8.7


def test_pairs_are_two_different_parents_and_all_pairs_occur_alike() -> None:
    pool = torch.tensor([4, 7, 9])
    first, second = operators.pairs_from_pool(pool, 6000, generator("pairs"))
    pairs = list(zip(first.tolist(), second.tolist(), strict=True))
    counts = [pairs.count((a, b)) for a in (4, 7, 9) for b in (4, 7, 9) if a != b]
    assert sum(counts) == 6000  # never one with itself
    assert all(abs(c - 1000) < 120 for c in counts)  # sd 29


def test_a_pool_of_one_mates_with_itself() -> None:
    first, second = operators.pairs_from_pool(torch.tensor([3]), 2, generator("one"))
    assert first.tolist() == second.tolist() == [3, 3]


def test_tournaments_are_won_by_the_best_entrant() -> None:
    fitness = torch.tensor([3.0, 0.0, INF, 1.0, 2.0])
    winners = operators.tournament(fitness, 20000, 2, generator("tournament"))
    # place p of n wins with chance ((n - p)^2 - (n - p - 1)^2) / n^2
    wanted = {1: 9 / 25, 3: 7 / 25, 4: 5 / 25, 0: 3 / 25, 2: 1 / 25}
    for index, share in wanted.items():
        assert abs((winners == index).double().mean().item() - share) < 0.015
    assert set(operators.tournament(fitness, 50, 64, generator("large")).tolist()) == {1}


# ------------------------------------------------------------------------------------------------ crossover
@pytest.mark.parametrize(
    ("name", "genes", "wanted"),
    [
        ("halving", 6, [1, 2, 3, -4, -5, -6]),  # eq. (2): o_i = a_i for i <= n/2
        ("halving", 5, [1, 2, -3, -4, -5]),
        ("halving", 1, [-1]),
        ("interleave", 6, [-1, 2, -3, 4, -5, 6]),  # eq. (3): o_i = a_i for even i, counted from 1
        ("interleave", 5, [-1, 2, -3, 4, -5]),
        ("interleave", 1, [-1]),
        ("mean", 3, [0, 0, 0]),  # eq. (4)
    ],
)
def test_flat_crossovers_by_hand(name: str, genes: int, wanted: list[float]) -> None:
    layout, a, b = vectors(genes)
    child = operators.CROSSOVERS[name](layout, a, b, generator("unused"))
    assert child.tolist() == [wanted]


def test_mean_of_hand_made_parents() -> None:
    layout, a, _ = vectors(3)
    child = operators.mean(layout, a, torch.tensor([[3.0, -2.0, 10.0]]), generator("unused"))
    assert child.tolist() == [[2.0, 0.0, 6.5]]


def kernels(module: nn.Module, genes: Tensor) -> list[list[Tensor]]:
    """Return every kernel of NETWORK as its parts, cut by hand and without the layout's help."""
    found: list[list[Tensor]] = []
    at = 0
    for layer in module.children():
        weight = genes[at : at + layer.weight.numel()].view(layer.weight.shape)
        at += weight.numel()
        bias = genes[at : at + layer.bias.numel()]
        at += bias.numel()
        axis = 1 if isinstance(layer, nn.ConvTranspose2d) else 0
        found += [[weight.select(axis, k), bias[k]] for k in range(len(bias))]
    return found


def test_kernelwise_takes_each_kernel_whole_by_a_fair_coin() -> None:
    layout, count = Layout(NETWORK), 400
    a, b = torch.full((count, layout.size), 1.0), torch.full((count, layout.size), 2.0)
    children = operators.kernelwise(layout, a, b, generator("kernelwise"))
    assert bool((a == 1).all())
    assert bool((b == 2).all())  # parents are left alone
    coins = torch.empty(count, layout.kernels)
    for c, child in enumerate(children):
        for k, parts in enumerate(kernels(NETWORK, child)):
            values = {float(v) for part in parts for v in part.unique()}
            assert len(values) == 1  # weight slice and bias come whole from one parent
            coins[c, k] = values.pop() - 1
    assert layout.kernels == 5 + 5 + 4 + 3
    share = coins.mean(dim=0)
    assert bool(((share - 0.5).abs() < 0.1).all())  # sd 0.025
    correlation = torch.corrcoef(coins.T) - torch.eye(layout.kernels)
    assert correlation.abs().max() < 0.25  # kernels are tossed one by one: sd 0.05


def test_kernelwise_copies_the_parents_values() -> None:
    layout = Layout(NETWORK)
    a, b = torch.randn(2, 8, layout.size, generator=generator("parents"))
    children = operators.kernelwise(layout, a, b, generator("copy"))
    for child, left, right in zip(children, a, b, strict=True):
        for parts, mine, yours in zip(*(kernels(NETWORK, g) for g in (child, left, right)), strict=True):
            assert any(all(torch.equal(p, q) for p, q in zip(parts, other, strict=True)) for other in (mine, yours))


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("name", sorted(operators.CROSSOVERS))
def test_crossovers_of_one_gene_and_of_scalars(name: str, count: int) -> None:
    scalar = nn.Module()
    scalar.gain = nn.Parameter(torch.tensor(1.0))
    a, b = torch.zeros(count, 1), torch.ones(count, 1)
    child = operators.CROSSOVERS[name](Layout(scalar), a, b, generator("scalar"))
    assert child.shape == (count, 1)
    assert set(child.flatten().tolist()) <= ({0.5} if name == "mean" else {0.0, 1.0})


# ------------------------------------------------------------------------------------------------ mutation
@pytest.mark.parametrize(("rate", "chance"), [(0.2, 0.1), (0.5, 1.0), (1.0, 0.3), (0.1, 0.0), (0.0, 0.5)])
def test_multiplication_keeps_its_bounds_and_its_frequency(rate: float, chance: float) -> None:
    population = torch.ones(100, 2000)
    operators.multiply(population, rate, chance, generator("multiply", str(rate)))
    assert population.min() >= 1 - rate - 1e-6
    assert population.max() <= 1 + rate + 1e-6
    changed = population[population != 1]
    if rate and chance:
        assert abs(len(changed) / population.numel() - chance) < 0.005  # sd at most 0.0011
        assert abs(changed.mean().item() - 1) < 0.02 * rate + 1e-3
        assert abs(changed.std().item() - rate / math.sqrt(3)) < 0.02 * rate  # of U[-rate, rate]
    else:
        assert len(changed) == 0


@given(st.floats(0, 0.99), st.floats(0, 1), st.integers(0, 2**31))
@settings(deadline=None, max_examples=50)
def test_below_rate_one_no_sign_changes_and_zero_stays_zero(rate: float, chance: float, seed: int) -> None:
    population = torch.tensor([[-1.5, -1e-3, 0.0, 1e-3, 1.5]]).repeat(40, 1)
    signs = population.sign()
    operators.multiply(population, rate, chance, generator(seed))
    assert torch.equal(population.sign(), signs)


@pytest.mark.parametrize(("rate", "chance"), [(0.05, 0.1), (2.0, 0.7)])
def test_offset_keeps_its_bounds_and_its_frequency(rate: float, chance: float) -> None:
    population = torch.zeros(100, 2000)
    operators.offset(population, rate, chance, generator("offset"))
    changed = population[population != 0]
    assert changed.abs().max() <= rate * (1 + 1e-6)
    assert abs(len(changed) / population.numel() - chance) < 0.006
    assert abs(changed.mean().item()) < 0.02 * rate
    assert abs(changed.std().item() - rate / math.sqrt(3)) < 0.02 * rate


def test_mixed_revives_zeros_on_the_layers_scale() -> None:
    population = torch.zeros(200, 1000)
    scales = torch.cat([torch.full((500,), 0.01), torch.full((500,), 10.0)])
    operators.mixed(population, 0.2, 0.1, generator("mixed"), additive=0.3, scales=scales)
    alive = population != 0
    assert abs(alive.double().mean().item() - 0.1) < 0.005
    for genes, scale in ((slice(0, 500), 0.01), (slice(500, 1000), 10.0)):
        values = population[:, genes][alive[:, genes]]
        assert abs(values.std().item() / (0.3 * scale) - 1) < 0.03


def test_mixed_without_an_additive_part_is_multiplication() -> None:
    a = torch.randn(10, 30, generator=generator("a"))
    b = a.clone()
    operators.multiply(a, 0.4, 0.5, generator("same"))
    operators.mixed(b, 0.4, 0.5, generator("same"), additive=0.0, scales=torch.ones(30))
    assert torch.equal(a, b)


def test_lognormal_has_no_drift_and_the_uniform_factor_has() -> None:
    lognormal, uniform = torch.ones(200, 2000), torch.ones(200, 2000)
    operators.lognormal(lognormal, 0.5, 1.0, generator("lognormal"), sign_flip=0.0)
    operators.multiply(uniform, 0.5, 1.0, generator("uniform"))
    logs = lognormal.double().log()
    assert abs(logs.mean().item()) < 0.004  # sd 0.0008
    assert abs(logs.std().item() - 0.5) < 0.004
    assert abs(uniform.double().log().mean().item() + 0.5**2 / 6) < 0.005


def test_lognormal_flips_only_mutated_genes_as_often_as_told() -> None:
    population = torch.ones(200, 1000)
    operators.lognormal(population, 0.1, 0.5, generator("flip"), sign_flip=0.2)
    assert abs((population != 1).double().mean().item() - 0.5) < 0.006
    assert abs((population < 0).double().mean().item() - 0.5 * 0.2) < 0.004


# ------------------------------------------------------------------------------------------------ population
def population(count: int = 6, **variation: object) -> Population:
    """Return `count` individuals; individual i has genes i + 1."""
    with seeded_initialisation("population"):
        layout = Layout(nn.Linear(4, 2))
    genomes = torch.arange(1.0, count + 1).unsqueeze(1).repeat(1, layout.size)
    return Population(layout, genomes, Variation(**{"parents": 2, "chance": 0.0, **variation}), seed=1)


def test_cleaned_makes_every_non_finite_value_the_worst_and_counts_them() -> None:
    fitness, count = cleaned(torch.tensor([1.0, math.nan, INF, -INF, 0.0]))
    assert fitness.tolist() == [1.0, INF, INF, INF, 0.0]
    assert count == 3
    assert operators.order(fitness)[:2].tolist() == [4, 0]


@pytest.mark.parametrize("selection", ["paper", "truncation", "tournament"])
@pytest.mark.parametrize("crossover", sorted(operators.CROSSOVERS))
def test_children_descend_from_selected_parents(selection: str, crossover: str) -> None:
    p = population(7, selection=selection, crossover=crossover, parents=3, tournament_size=20)
    p.advance(torch.arange(7.0))
    assert p.genomes.shape == (7, 10)
    if selection == "truncation":
        assert p.genomes.max() <= 3
    if selection == "tournament":  # 20 entrants of 7: the fittest practically always
        assert (p.genomes <= 2).double().mean() > 0.95


def test_elites_come_first_and_unchanged() -> None:
    p = population(5, elites=2, chance=1.0, rate=0.5)
    before = p.genomes.clone()
    p.advance(torch.tensor([3.0, 1.0, INF, 0.0, 2.0]))
    assert torch.equal(p.genomes[:2], before[[3, 1]])
    assert len(p) == 5
    assert not torch.equal(p.genomes[2], before[3])


def test_the_multiplier_stops_at_chance_one_and_at_rate_max() -> None:
    p = population(50, mutation="multiply", chance=0.5, rate=0.4, rate_max=0.6, parents=50, crossover="mean")
    p.genomes = torch.ones_like(p.genomes)
    p.advance(torch.zeros(50), multiplier=5.0)
    assert p.genomes.min() >= 0.4 - 1e-6
    assert p.genomes.max() <= 1.6 + 1e-6
    assert p.genomes.max() > 1.45  # 2.0 would be the rate without its bound, 0.4 without the multiplier
    assert (p.genomes != 1).double().mean() > 0.99


@pytest.mark.parametrize("mutation", ["multiply", "offset", "mixed", "lognormal"])
def test_a_restored_population_goes_on_bit_for_bit(mutation: str) -> None:
    first, second = (population(6, mutation=mutation, chance=0.5) for _ in range(2))
    first.advance(torch.arange(6.0))
    second.load_state_dict(first.state_dict())
    for p in (first, second):
        p.advance(torch.arange(6.0), multiplier=1.3)
        p.advance(torch.arange(6.0))
    assert torch.equal(first.genomes, second.genomes)


def test_too_many_parents_or_elites_are_refused() -> None:
    with pytest.raises(SettingError, match=r"strategy\.parents = 9: .*strategy\.population = 6"):
        population(6, parents=9)
    with pytest.raises(SettingError, match=r"strategy\.elites = 6: .*below strategy\.population = 6"):
        population(6, elites=6)


def test_diversity_is_the_spread_in_units_of_the_initial_one() -> None:
    layout = Layout(nn.Linear(4, 2))
    wanted = torch.randn(9, layout.size, generator=generator("spread"), dtype=torch.float64)
    p = Population(layout, (wanted * layout.scales()).float(), Variation(parents=2), seed=0)
    assert p.diversity() == pytest.approx(wanted.std(dim=0).mean().item(), rel=1e-5)
    single = Population(layout, torch.zeros(1, layout.size), Variation(parents=1), seed=0)
    assert single.diversity() == 0.0


@pytest.mark.parametrize("selection", ["paper", "truncation"])
@pytest.mark.parametrize("finite", [1, 2, 5])
def test_a_broken_individual_has_no_children(selection: str, finite: int) -> None:
    """Its NaNs would be in every child; where fewer are finite than there are parents, the pool is smaller."""
    for seed in range(20):
        p = population(6, selection=selection, parents=3)
        p.genomes[finite:] = math.nan
        fitness, _ = cleaned(torch.arange(6.0).masked_fill(p.genomes[:, 0].isnan(), math.nan))
        p._generator.manual_seed(seed)
        p.advance(fitness)
        assert bool(p.genomes.isfinite().all())
