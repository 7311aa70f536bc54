"""Selection, crossover, mutation and the population manager against hand-made vectors, counted frequencies, NumPy."""

from __future__ import annotations

import hashlib
import itertools
import math
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fne.core.errors import SettingError
from fne.core.messages import Tensors
from fne.core.randomness import generator, seeded_initialisation
from fne.evolution import operators
from fne.evolution import population as managers
from fne.evolution.genome import Layout
from fne.evolution.philox import Purpose, Stream
from fne.evolution.population import Mutation, Population, Variation, breed, cleaned

NETWORK = nn.Sequential(nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5), nn.ConvTranspose2d(5, 4, 2), nn.Linear(7, 3))
INF = math.inf
KINDS = list(itertools.product(sorted(operators.CROSSOVERS), get_args(Mutation)))


def vectors(genes: int) -> tuple[Layout, Tensor, Tensor]:
    """Return a layout of `genes` genes and parents a = 1, 2, ... and b = -1, -2, ..."""
    layout = Layout(nn.Linear(genes, 1, bias=False))
    a = torch.arange(1.0, genes + 1).unsqueeze(0)
    return layout, a, -a


def uniform(like: Tensor, seed: int = 0) -> Tensor:
    return Stream(seed, Purpose.MUTATION).uniform(0, range(len(like)), like.shape[1])


def noise(like: Tensor, seed: int = 0) -> Tensor:
    return Stream(seed, Purpose.MUTATION_NOISE).noise(0, range(len(like)), like.shape[1])


def crossed(name: str, layout: Layout, a: Tensor, b: Tensor) -> Tensor:
    child = a.clone()
    coins = Stream(0, Purpose.CROSSOVER).words(0, range(len(a)), layout.kernels) >= 2**31
    operators.CROSSOVERS[name](layout, child, b, coins)
    return child


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
    # place p of the n sound ones wins with chance ((n - p)^2 - (n - p - 1)^2) / n^2
    wanted = {1: 7 / 16, 3: 5 / 16, 4: 3 / 16, 0: 1 / 16, 2: 0.0}
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
    assert crossed(name, layout, a, b).tolist() == [wanted]


def test_mean_of_hand_made_parents() -> None:
    layout, a, _ = vectors(3)
    assert crossed("mean", layout, a, torch.tensor([[3.0, -2.0, 10.0]])).tolist() == [[2.0, 0.0, 6.5]]


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
    children = crossed("kernelwise", layout, a, b)
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
    children = crossed("kernelwise", layout, a, b)
    for child, left, right in zip(children, a, b, strict=True):
        for parts, mine, yours in zip(*(kernels(NETWORK, g) for g in (child, left, right)), strict=True):
            assert any(all(torch.equal(p, q) for p, q in zip(parts, other, strict=True)) for other in (mine, yours))


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("name", sorted(operators.CROSSOVERS))
def test_crossovers_of_one_gene_and_of_scalars(name: str, count: int) -> None:
    scalar = nn.Module()
    scalar.gain = nn.Parameter(torch.tensor(1.0))
    a, b = torch.zeros(count, 1), torch.ones(count, 1)
    child = crossed(name, Layout(scalar), a, b)
    assert child.shape == (count, 1)
    assert set(child.flatten().tolist()) <= ({0.5} if name == "mean" else {0.0, 1.0})


# ------------------------------------------------------------------------------------------------ mutation
@pytest.mark.parametrize(("rate", "chance"), [(0.2, 0.1), (0.5, 1.0), (1.0, 0.3), (2.0, 0.5), (0.1, 0.0), (0.0, 0.5)])
def test_multiplication_keeps_its_bounds_and_its_frequency(rate: float, chance: float) -> None:
    population = torch.ones(100, 2000)
    operators.multiply(population, uniform(population), chance, rate)
    assert population.min() >= 1 - rate - 2.0**-24
    assert population.max() <= 1 + rate
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
    operators.multiply(population, uniform(population, seed), chance, rate)
    assert torch.equal(population.sign(), signs)


@pytest.mark.parametrize(("rate", "chance"), [(0.05, 0.1), (2.0, 0.7)])
def test_offset_keeps_its_bounds_and_its_frequency(rate: float, chance: float) -> None:
    population = torch.zeros(100, 2000)
    operators.offset(population, uniform(population), chance, rate)
    changed = population[population != 0]
    assert changed.abs().max() <= rate
    assert abs(len(changed) / population.numel() - chance) < 0.006
    assert abs(changed.mean().item()) < 0.02 * rate
    assert abs(changed.std().item() - rate / math.sqrt(3)) < 0.02 * rate


def test_mixed_revives_zeros_on_the_layers_scale() -> None:
    population = torch.zeros(200, 1000)
    deviations = torch.cat([torch.full((500,), 0.003), torch.full((500,), 3.0)])
    operators.mixed(population, uniform(population), noise(population), 0.1, 0.2, deviations)
    alive = population != 0
    drawn = 1 - 2736 / 2**16  # of four digits sum up to 30
    assert abs(alive.double().mean().item() - 0.1 * drawn) < 0.005
    for genes, deviation in ((slice(0, 500), 0.003), (slice(500, 1000), 3.0)):
        values = population[:, genes][alive[:, genes]]
        assert abs(values.std().item() / deviation * math.sqrt(drawn) - 1) < 0.03
        assert abs(values.mean().item() / deviation) < 0.05  # sd 0.01


def test_mixed_without_an_additive_part_is_multiplication() -> None:
    a = torch.randn(10, 30, generator=generator("a"))
    b = a.clone()
    operators.multiply(a, uniform(a), 0.5, 0.4)
    operators.mixed(b, uniform(b), noise(b), 0.5, 0.4, torch.zeros(30))
    assert torch.equal(a, b)


def test_lognormal_has_no_drift_and_the_uniform_factor_has() -> None:
    lognormal, multiplied = torch.ones(200, 2000), torch.ones(200, 2000)
    operators.lognormal(lognormal, uniform(lognormal), noise(lognormal), 1.0, 0.5, 0.0)
    operators.multiply(multiplied, uniform(multiplied), 1.0, 0.5)
    logs = lognormal.double().log()
    assert abs(logs.mean().item()) < 0.004  # sd 0.0008
    assert abs(logs.std().item() - 0.5) < 0.004
    assert abs(multiplied.double().log().mean().item() + 0.5**2 / 6) < 0.005


def test_lognormal_flips_only_mutated_genes_as_often_as_told() -> None:
    population, plain = torch.ones(200, 1000), torch.ones(200, 1000)
    operators.lognormal(population, uniform(population), noise(population), 0.5, 0.1, 0.2)
    operators.lognormal(plain, uniform(plain), noise(plain), 0.5, 0.1, 0.0)
    assert torch.equal(population.abs(), plain)
    still = 0.5 + 0.5 * 0.8 * 2736 / 2**16  # not mutated, or by a factor of 1 and not flipped
    assert abs((population == 1).double().mean().item() - still) < 0.006
    flipped = population < 0
    assert abs(flipped.double().mean().item() - 0.5 * 0.2) < 0.004
    assert abs((plain[flipped].log().mean() / 0.1).item()) < 0.04  # which genes flip has nothing to do with how far


def test_a_gene_that_does_not_mutate_keeps_its_bits() -> None:
    odd = torch.tensor([[-0.0, 0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 3e38]])
    for chance, kept in ((0.0, True), (1.0, False)):
        for mutate in (
            lambda x, u, n: operators.multiply(x, u, chance, 0.5),  # noqa: B023
            lambda x, u, n: operators.offset(x, u, chance, 0.5),  # noqa: B023
            lambda x, u, n: operators.mixed(x, u, n, chance, 0.5, torch.ones(8)),  # noqa: B023
            lambda x, u, n: operators.lognormal(x, u, n, chance, 0.5, 0.5),  # noqa: B023
        ):
            x = odd.clone()
            mutate(x, uniform(x), noise(x))
            assert torch.equal(bits(x), bits(odd)) == kept


def bits(x: Tensor) -> Tensor:
    return x.cpu().contiguous().view(torch.int32)


# ------------------------------------------------------------------------------------------------ population
def population(count: int = 6, seed: int = 1, **variation: object) -> Population:
    """Return `count` individuals; individual i has genes i + 1."""
    with seeded_initialisation("population"):
        layout = Layout(nn.Linear(4, 2))
    genomes = torch.arange(1.0, count + 1).unsqueeze(1).repeat(1, layout.size)
    return Population(layout, genomes, Variation(**{"parents": 2, "chance": 0.0, **variation}), seed=seed)  # type: ignore


def told(p: Population, fitness: Tensor, step: int = 0, multiplier: float = 1.0) -> Tensors:
    """Let the population decide and advance; returns the decision."""
    decision = p.decide(step, fitness, multiplier=multiplier)
    assert p.advance(step, decision) == {}
    return decision


def test_cleaned_makes_every_non_finite_value_the_worst_and_counts_them() -> None:
    fitness, count = cleaned(torch.tensor([1.0, math.nan, INF, -INF, 0.0]))
    assert fitness.tolist() == [1.0, INF, INF, INF, 0.0]
    assert count == 3
    assert operators.order(fitness)[:2].tolist() == [4, 0]
    assert operators.sound(fitness).tolist() == [4, 0]


@pytest.mark.parametrize("selection", ["paper", "truncation", "tournament"])
@pytest.mark.parametrize("crossover", sorted(operators.CROSSOVERS))
def test_children_descend_from_selected_parents(selection: str, crossover: str) -> None:
    p = population(7, selection=selection, crossover=crossover, parents=3, tournament_size=20)
    told(p, torch.arange(7.0))
    assert p.genomes.shape == (7, 10)
    if selection == "truncation":
        assert p.genomes.max() <= 3
    if selection == "tournament":  # 20 entrants of 7: the fittest practically always
        assert (p.genomes <= 2).double().mean() > 0.95


def test_elites_come_first_and_unchanged() -> None:
    p = population(5, elites=2, chance=1.0, rate=0.5)
    before = p.genomes.clone()
    told(p, torch.tensor([3.0, 1.0, INF, 0.0, 2.0]))
    assert torch.equal(p.genomes[:2], before[[3, 1]])
    assert len(p) == 5
    assert not torch.equal(p.genomes[2], before[3])


def test_the_multiplier_stops_at_chance_one_and_at_rate_max() -> None:
    p = population(50, mutation="multiply", chance=0.5, rate=0.4, rate_max=0.6, parents=50, crossover="mean")
    p.genomes = torch.ones_like(p.genomes)
    told(p, torch.zeros(50), multiplier=5.0)
    assert p.genomes.min() >= 0.4 - 1e-6
    assert p.genomes.max() <= 1.6 + 1e-6
    assert p.genomes.max() > 1.45  # 2.0 would be the rate without its bound, 0.4 without the multiplier
    assert (p.genomes != 1).double().mean() > 0.99


@pytest.mark.parametrize(
    ("count", "settings", "kind"),
    [
        (6, {}, torch.uint8),
        (256, {"elites": 3}, torch.uint8),
        (257, {"selection": "tournament"}, torch.int16),
        (6, {"selection": "truncation", "elites": 1}, torch.uint8),
    ],
)
def test_a_decision_is_small_of_one_shape_and_a_function_of_its_step(
    count: int, settings: dict[str, Any], kind: torch.dtype
) -> None:
    p, again = population(count, **settings), population(count, **settings)
    elites, seen = settings.get("elites", 0), set()
    for step in range(5):
        fitness = torch.rand(count, generator=generator("fitness", step)).masked_fill_(torch.arange(count) < step, INF)
        decision = p.decide(step, fitness, multiplier=1.5)
        shapes = {name: (tuple(value.shape), value.dtype) for name, value in decision.items()}
        wanted = {"parents": ((count - elites, 2), kind), "multiplier": ((1,), torch.float64)}
        assert shapes == ({**wanted, "elites": ((elites,), kind)} if elites else wanted)
        assert decision["multiplier"].item() == 1.5
        if elites:
            assert decision["elites"].tolist() == fitness.argsort()[:elites].tolist()
        assert all(
            torch.equal(value, again.decide(step, fitness, multiplier=1.5)[name]) for name, value in decision.items()
        )
        seen.add(str(decision["parents"].tolist()))
    assert len(seen) == 5
    assert torch.equal(p.genomes, population(count).genomes)  # deciding changes nothing
    assert p.candidates(0)["population"] is p.genomes


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


@pytest.mark.parametrize("selection", ["paper", "truncation", "tournament"])
@pytest.mark.parametrize("finite", [1, 2, 5])
def test_a_broken_individual_has_no_children(selection: str, finite: int) -> None:
    """Its NaNs would be in every child; where fewer are finite than there are parents, the pool is smaller."""
    for step in range(20):
        p = population(6, selection=selection, parents=3, tournament_size=1)
        p.genomes[finite:] = math.nan
        fitness, _ = cleaned(torch.arange(6.0).masked_fill(p.genomes[:, 0].isnan(), math.nan))
        told(p, fitness, step)
        assert bool(p.genomes.isfinite().all())


# ------------------------------------------------------------------------------------------------ replaying
def network(count: int, crossover: str, mutation: str, **more: Any) -> Population:
    """Return `count` individuals of `NETWORK` whose genes are the same on every machine, as are its scales."""
    module = nn.Sequential(nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5), nn.ConvTranspose2d(5, 4, 2), nn.Linear(7, 3))
    for k, parameter in enumerate(module.parameters()):
        parameter.data = torch.linspace(-1, 1, parameter.numel()).view(parameter.shape) / (k + 1)
    layout = Layout(module)
    genomes = Stream(9, Purpose.PERTURBATION).noise(0, range(count), layout.size).float() / 64
    settings = {"parents": 4, "chance": 0.3, "sign_flip": 0.1, "elites": 2, **more}
    return Population(layout, genomes, Variation(crossover=crossover, mutation=mutation, **settings), seed=5)  # type: ignore


def scores(p: Population, step: int) -> Tensor:
    return torch.rand(len(p), generator=generator("scores", step), dtype=torch.float64)


Array = npt.NDArray[Any]


def by_hand(p: Population, decision: Tensors, step: int) -> Array:
    """Return the next generation as NumPy makes it of Philox's words, child by child."""
    v, f32 = p.variation, np.float32
    genomes, genes = p.genomes.numpy(), p.layout.size
    parents = decision["parents"].numpy().astype(int)
    multiplier = decision["multiplier"].item()
    chance, rate = min(v.chance * multiplier, 1), min(v.rate * multiplier, v.rate_max)
    kernel = np.empty(genes, int)
    for k, parts in enumerate(kernels(NETWORK, torch.arange(genes))):
        for part in parts:
            kernel[part.numpy()] = k

    def words(purpose: Purpose, child: int, count: int) -> Array:
        return Stream(5, purpose).words(step, range(child, child + 1), count)[0].numpy()

    rows = [genomes[i] for i in decision["elites"].numpy().astype(int)]
    for c, (one, two) in enumerate(parents):
        a, b = genomes[one], genomes[two]
        row = {
            "kernelwise": np.where(words(Purpose.CROSSOVER, c, kernel.max() + 1)[kernel] >> 31 == 1, b, a),
            "halving": np.where(np.arange(genes) < genes // 2, a, b),
            "interleave": np.where(np.arange(genes) % 2 == 1, a, b),
            "mean": (a + b) * f32(0.5),
        }[v.crossover]
        whole = words(Purpose.MUTATION, c, genes) >> 8
        pairs = words(Purpose.MUTATION_NOISE, c, genes)[: genes // 2 + 1]
        halves = np.stack([pairs & 0xFFFF, pairs >> 16], axis=1).flatten()[:genes]
        digits = sum(halves >> shift & 15 for shift in (0, 4, 8, 12)) - 30
        threshold = round(chance * 2**24)
        for g in np.flatnonzero(whole < threshold):
            if v.mutation == "offset":
                number = math.floor(int(whole[g]) * (2**24 / threshold)) - 2**23
                row[g] = row[g] + f32(number) * f32(v.offset_rate * multiplier / 2**23)
            elif v.mutation == "lognormal":
                flips = whole[g] < round(chance * v.sign_flip * 2**24)
                row[g] = row[g] * f32((-1 if flips else 1) * math.exp(rate * digits[g] * 85**-0.5))
            else:
                r = round(rate * 2**23)
                numerator = 2**23 - r + math.floor(int(whole[g]) * (2 * r / threshold))
                row[g] = row[g] * f32(numerator * 2.0**-23)
                if v.mutation == "mixed":
                    scale = f32(p.layout.scales()[g])
                    upper = int(scale.view(np.uint32))
                    upper += 0x7FFF + (upper >> 16 & 1)  # to nearest even in the upper 16 bits, a bfloat16
                    scale = np.uint32(upper & 0xFFFF0000).view(f32)
                    row[g] = row[g] + f32(digits[g]) * (scale * f32(v.additive * multiplier) * f32(85**-0.5))
        rows.append(row)
    return np.stack(rows)


@pytest.mark.parametrize(("crossover", "mutation"), KINDS)
def test_children_by_numpy(crossover: str, mutation: str) -> None:
    p = network(6, crossover, mutation)
    for step, multiplier in ((0, 1.0), (7, 1.9), (8, 5.0)):
        before = p.genomes.clone()
        decision = p.decide(step, scores(p, step), multiplier=multiplier)
        wanted = by_hand(p, decision, step)
        p.advance(step, decision)
        assert p.genomes.numpy().tobytes() == wanted.tobytes()
        assert not torch.equal(before, p.genomes)


@pytest.mark.parametrize(("crossover", "mutation"), KINDS)
def test_who_replays_the_decisions_has_the_same_bits(crossover: str, mutation: str) -> None:
    server, worker = (network(9, crossover, mutation) for _ in range(2))
    late = network(9, crossover, mutation)
    for step in range(20):
        decision = told(server, scores(server, step), step, multiplier=1.1 ** (step % 5))
        worker.advance(step, decision)
        assert torch.equal(bits(worker.genomes), bits(server.genomes))
        if step == 10:
            late.load_state_dict(worker.state_dict())
        elif step > 10:
            late.advance(step, decision)
    assert torch.equal(bits(late.genomes), bits(server.genomes))
    assert late.state_dict().keys() == {"genomes"}


@pytest.mark.parametrize("mutation", get_args(Mutation))
def test_a_childs_numbers_are_its_addresss_whatever_is_bred_in_one_pass(
    mutation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = network(9, "kernelwise", mutation)
    decision = p.decide(3, scores(p, 3))

    def bred(decision: Tensors, step: int = 3, seed: int = 5) -> Tensor:
        return breed(p.layout, p.genomes, decision, p.variation, seed=seed, step=step)

    whole = bred(decision)
    for genes in (1, 2 * p.layout.size, 4 * p.layout.size + 7):
        monkeypatch.setitem(managers._PASS, "cpu", genes)
        assert torch.equal(bits(bred(decision)), bits(whole))
    assert torch.equal(bred({**decision, "parents": decision["parents"][:3]}), whole[: 2 + 3])
    alike = bred({**decision, "parents": decision["parents"][:1].expand(7, 2)})[2:]
    assert torch.equal(alike[0], whole[2])
    assert len({tuple(child.tolist()) for child in alike}) == 7  # seven children of one pair
    for other in (bred(decision, step=4), bred(decision, seed=6)):
        assert not torch.equal(other[2:], whole[2:])
        assert torch.equal(other[:2], whole[:2])


@pytest.mark.parametrize(
    ("mutation", "digest"),
    [
        ("multiply", "5842d67c4d1a22fc"),
        ("offset", "6d77089e8ff0f5f4"),
        ("mixed", "ba780e8cf5ed21d2"),
        ("lognormal", "0e29218cfe345ab3"),
    ],
)
def test_children_are_the_same_on_every_machine(mutation: str, digest: str) -> None:
    p = network(9, "kernelwise", mutation)
    parents = torch.tensor([[0, 1], [1, 8], [3, 2], [7, 0], [4, 4], [5, 6], [2, 8]], dtype=torch.uint8)
    elites, multiplier = torch.tensor([8, 3], dtype=torch.uint8), torch.tensor([1.25], dtype=torch.float64)
    p.advance(2, {"parents": parents, "elites": elites, "multiplier": multiplier})
    assert hashlib.sha256(p.genomes.numpy().tobytes()).hexdigest()[:16] == digest


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize(("crossover", "mutation"), KINDS)
def test_cuda_breeds_the_same_bits(crossover: str, mutation: str) -> None:
    here, there = (network(40, crossover, mutation) for _ in range(2))
    there.load_state_dict({"genomes": there.genomes.cuda()})
    for step in range(20):
        there.advance(step, told(here, scores(here, step), step, multiplier=1.1 ** (step % 5)))
    assert there.genomes.is_cuda
    assert torch.equal(bits(there.genomes), bits(here.genomes))
