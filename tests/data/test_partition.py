"""Partitions: every sample on exactly one node, by the seed alone; impossible demands refused in numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fne.config.registry import catalogue, load
from fne.core.dataset import Dataset, Samples
from fne.core.errors import DataError, SettingError
from fne.core.randomness import generator
from fne.data.partition import DRAWS, _log_dirichlet, _softmax, deal, describe, dirichlet, iid

PARTITIONS = sorted(catalogue("partition"))
BY_LABEL = ("one_class", "shards", "dirichlet")


def dataset(y: Tensor, groups: Tensor | None = None, names: tuple[str, ...] = ()) -> Dataset:
    """Make a data set whose inputs are the samples' own numbers, so that tests can see who went where."""
    x = torch.arange(len(y), dtype=torch.float32)[:, None]
    classes = None if y.is_floating_point() else tuple(str(c) for c in range(int(y.max()) + 1))
    samples = Samples(x, y, groups)
    return Dataset("made", samples, samples, samples, classes, "none", "test", names)


def numbers(part: Samples) -> list[int]:
    return part.x[:, 0].long().tolist()


def dealt(data: Dataset, partition: str, nodes: int | None, seed: int = 0, **keys: Any) -> dict[str, list[int]]:
    return {name: numbers(part) for name, part in deal(data, partition, nodes, seed, keys).items()}


# ------------------------------------------------------------------------------------------------ contract
@settings(max_examples=150, deadline=None)
@given(
    partition=st.sampled_from(PARTITIONS),
    labels=st.lists(st.sampled_from([-7, 0, 3, 1000]), min_size=1, max_size=80),
    nodes=st.integers(1, 12),
    seed=st.integers(0, 2**40),
)
def test_every_sample_is_on_exactly_one_node_by_the_seed(
    partition: str, labels: list[int], nodes: int, seed: int
) -> None:
    y = torch.tensor(labels)
    x = torch.arange(len(y), dtype=torch.float32)[:, None]
    part = Samples(x, y, y % 5)
    data = Dataset("made", part, part, part, ("any",), "", "", tuple("abcde"))
    wanted = None if partition == "subject" else nodes
    try:
        parts = dealt(data, partition, wanted, seed)
    except (DataError, SettingError) as error:
        refusal = str(error)
    else:
        refusal = ""
    if refusal:
        assert nodes > len(y) or partition in BY_LABEL
        assert str(nodes) in refusal
        return
    assert sorted(i for part in parts.values() for i in part) == list(range(len(y)))
    assert all(part and part == sorted(part) for part in parts.values())
    assert list(parts) == sorted(parts)
    assert len(parts) == (len({label % 5 for label in labels}) if partition == "subject" else nodes)
    assert dealt(data, partition, wanted, seed) == parts


@pytest.mark.parametrize("partition", [p for p in PARTITIONS if p != "subject"])
def test_another_seed_deals_otherwise(partition: str) -> None:
    data = dataset(torch.arange(200) % 4)
    assert dealt(data, partition, 8, 1) != dealt(data, partition, 8, 2)


@pytest.mark.parametrize("partition", [p for p in PARTITIONS if p != "subject"])
def test_labels_matter_by_their_order_only(partition: str) -> None:
    """Labels -5, 40, 41 are dealt just as 0, 1, 2."""
    y = torch.randint(3, (120,), generator=generator("labels"))
    plain, odd = (Samples(y[:, None].float(), labels) for labels in (y, torch.tensor([-5, 40, 41])[y]))
    function = load("partition", partition)
    a, b = (function(samples, 6, generator("deal")) for samples in (plain, odd))
    assert all(torch.equal(i, j) and i.dtype == torch.int64 for i, j in zip(a, b, strict=True))


def test_names_sort_as_numbers() -> None:
    assert list(dealt(dataset(torch.zeros(5).long()), "iid", 2)) == ["node-000", "node-001"]
    names = list(dealt(dataset(torch.zeros(1001).long()), "iid", 1001))
    assert names[0] == "node-0000"
    assert names[-1] == "node-1000"
    assert names == sorted(names)


def test_describe_counts_samples_by_class() -> None:
    names, counts = describe(deal(dataset(torch.tensor([0, 0, 2, 2, 2])), "one_class", 2, 0, {}), ("a", "b", "c"))
    assert names == ["node-000", "node-001"]
    assert counts.tolist() == [[2, 0, 0], [0, 0, 3]]
    _, sizes = describe(deal(dataset(torch.zeros(5, 1)), "iid", 2, 0, {}), None)
    assert sizes.tolist() == [[2], [3]]


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (8, "data.nodes = 8: must be from 1 to 7, the number of training samples"),
        (0, "data.nodes = 0: must be from 1 to 7, the number of training samples"),
        (None, "data.nodes = null: must be a number with data.partition=iid"),
    ],
)
def test_impossible_numbers_of_nodes(nodes: int | None, message: str) -> None:
    with pytest.raises(SettingError) as caught:
        deal(dataset(torch.arange(7)), "iid", nodes, 0, {})
    assert str(caught.value) == message


@pytest.mark.parametrize("partition", BY_LABEL)
def test_regression_has_no_labels_to_deal_by(partition: str) -> None:
    with pytest.raises(SettingError, match=r"data.partition = .*iid, quantity or subject.*no classes"):
        deal(dataset(torch.rand(9, 1)), partition, 3, 0, {})


@pytest.mark.parametrize("partition", ["iid", "quantity"])
def test_regression_is_dealt(partition: str) -> None:
    parts = dealt(dataset(torch.rand(9, 1)), partition, 3)
    assert sorted(i for part in parts.values() for i in part) == list(range(9))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([[0, 1], [2], []], r"node-002 has no samples \(4 samples, 3 nodes\)"),
        ([[0, 1], [1], [2, 3]], "sample 1 of 4 was dealt 2 times"),
        ([[0], [1], [2]], "sample 3 of 4 was dealt 0 times"),
        ([[0, 1], [2, 3]], "made 2 nodes instead of 3"),
    ],
)
def test_a_partition_that_breaks_the_contract_is_refused(
    parts: list[list[int]], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(samples: Samples, nodes: int, generator: torch.Generator) -> list[Tensor]:
        return [torch.tensor(part, dtype=torch.int64) for part in parts]

    monkeypatch.setattr("fne.data.partition.load", lambda kind, name: broken)
    with pytest.raises(DataError, match=message):
        deal(dataset(torch.arange(4)), "mine", 3, 0, {})


# ------------------------------------------------------------------------------------------------ one by one
def test_iid_sizes_differ_by_at_most_one() -> None:
    sizes = [len(part) for part in iid(dataset(torch.zeros(107).long()).train, 10, generator(0))]
    assert sorted(sizes) == [10] * 3 + [11] * 7


@settings(max_examples=50, deadline=None)
@given(sizes=st.lists(st.integers(26, 60), min_size=1, max_size=5), extra=st.integers(0, 25))
def test_one_class_a_node_and_classes_evenly(sizes: list[int], extra: int) -> None:
    y = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    nodes = len(sizes) + extra
    parts = deal(dataset(y), "one_class", nodes, 3, {}).values()
    owned = [set(part.y.tolist()) for part in parts]
    assert all(len(one) == 1 for one in owned)
    nodes_of = np.bincount([one.pop() for one in owned], minlength=len(sizes))
    assert nodes_of.max() - nodes_of.min() <= 1
    for label in range(len(sizes)):
        held = [len(part) for part in parts if part.y[0] == label]
        assert max(held) - min(held) <= 1


def test_one_class_refusals() -> None:
    with pytest.raises(SettingError, match=r"data.nodes = 3: must be at least 4 with one_class"):
        deal(dataset(torch.arange(8) % 4), "one_class", 3, 0, {})
    with pytest.raises(DataError, match="3 of the 6 nodes are to share one class, which has 2 samples"):
        deal(dataset(torch.tensor([0, 0, *[1] * 30])), "one_class", 6, 0, {})


def test_shards_hold_few_classes() -> None:
    y = (torch.arange(6000) % 10)[torch.randperm(6000, generator=generator(1))]
    parts = deal(dataset(y), "shards", 100, 0, {}).values()
    assert {len(part) for part in parts} == {60}
    kinds = [len(set(part.y.tolist())) for part in parts]
    assert max(kinds) == 2  # 30 divides the 600 of each class: no shard spans two classes
    assert 1 <= kinds.count(1) <= 30  # two shards of one class come together, about 9 times in 100


def test_more_shards_than_samples() -> None:
    data = dataset(torch.arange(10) % 2)
    assert len(dealt(data, "shards", 5)) == 5
    with pytest.raises(DataError, match="5 nodes x 3 shards = 15 shards, but there are only 10 samples"):
        deal(data, "shards", 5, 0, {"shards_per_node": 3})


def test_dirichlet_large_alpha_is_near_iid_and_small_alpha_near_one_node_a_class() -> None:
    data = dataset(torch.arange(9000) % 3)
    _, even = describe(deal(data, "dirichlet", 10, 0, {"alpha": 1e6}), data.classes)
    assert (even - 300).abs().max() <= 3
    parts = dirichlet(data.train, 3, generator(0), alpha=0.02)
    largest = torch.stack([torch.bincount(data.train.y[part], minlength=3) for part in parts]).amax(0)
    assert (largest > 2500).all()


def test_dirichlet_proportions_have_the_right_moments() -> None:
    """E p = 1/K, Var p = (K - 1) / (K^2 (K alpha + 1)), from underflow to the Gaussian end."""
    nodes = 4
    for alpha in (1e-9, 1e-3, 0.3, 50.0):
        p = _softmax(_log_dirichlet(np.random.default_rng(0), alpha, (40_000, nodes)))
        assert np.isfinite(p).all()
        np.testing.assert_allclose(p.sum(1), 1)
        np.testing.assert_allclose(p.mean(0), 1 / nodes, atol=0.01)
        np.testing.assert_allclose(p.var(0), (nodes - 1) / (nodes**2 * (nodes * alpha + 1)), rtol=0.03)


def test_dirichlet_minimum_is_kept() -> None:
    data = dataset(torch.arange(1000) % 10)
    for seed in range(20):
        assert min(map(len, dealt(data, "dirichlet", 10, seed, alpha=0.5, minimum=25).values())) >= 25


def test_dirichlet_with_tiny_alpha_gives_up_in_words_or_fills_the_nodes() -> None:
    """alpha = 1e-3, 100 nodes, 3 classes: at most three nodes can get anything by `draw=class`."""
    data = dataset(torch.arange(3000) % 3)
    with pytest.raises(DataError) as caught:
        deal(data, "dirichlet", 100, 0, {"alpha": 1e-3})
    assert str(caught.value) == (
        "partition 'dirichlet': with alpha = 0.001 and 100 nodes the smallest node got 0 of 3000 samples in "
        f"the best of {DRAWS} draws, but minimum = 1; "
        "take fewer nodes or a lower minimum, raise alpha, or set draw=node"
    )
    parts = deal(data, "dirichlet", 100, 0, {"alpha": 1e-3, "draw": "node"})
    names, counts = describe(parts, data.classes)
    assert len(names) == 100
    assert (counts.sum(1) == 30).all()
    assert counts.sum(0).tolist() == [1000] * 3  # classes ran out on the way, and no NaN came of it
    assert ((counts > 0).sum(1) == 1).sum() >= 90


def test_dirichlet_minimum_that_cannot_be_met() -> None:
    data = dataset(torch.arange(30) % 3)
    for draw in ("class", "node"):
        with pytest.raises(DataError, match=r"10 nodes the smallest node got . of 30 .* minimum = 4"):
            deal(data, "dirichlet", 10, 0, {"minimum": 4, "draw": draw})


@pytest.mark.parametrize("law", ["lognormal", "power"])
def test_quantity_skew(law: str) -> None:
    data = dataset(torch.arange(1000) % 10)
    sizes = sorted(len(part) for part in dealt(data, "quantity", 10, law=law, minimum=20).values())
    assert sizes[0] >= 20
    assert sizes[-1] > 2 * sizes[4]
    equal = [len(part) for part in dealt(data, "quantity", 8, law=law, skew=0.0, minimum=20).values()]
    assert set(equal) == {125}


def test_power_law_sizes() -> None:
    """Beside one sample each, 23 are shared as 1 : 1/2 : 1/3 = 12.55, 6.27, 4.18; the first rounds up."""
    sizes = [len(part) for part in dealt(dataset(torch.arange(26)), "quantity", 3, law="power").values()]
    assert sorted(sizes) == [1 + 4, 1 + 6, 1 + 13]


def test_quantity_minimum_that_cannot_be_met() -> None:
    with pytest.raises(DataError, match="5 nodes x 3 samples need 15, but there are only 14"):
        deal(dataset(torch.arange(14)), "quantity", 5, 0, {"minimum": 3})


def test_subjects_keep_their_names() -> None:
    groups = torch.tensor([2, 0, 2, 0, 1, 1, 2])
    data = dataset(torch.arange(7) % 2, groups, ("co2a0000364", "co2c0000337", "bob"))
    assert dealt(data, "subject", None) == {"bob": [0, 2, 6], "co2a0000364": [1, 3], "co2c0000337": [4, 5]}
    assert dealt(data, "subject", 3) == dealt(data, "subject", None)
    pairs = dealt(data, "subject", None, seed=5, subjects_per_node=2)
    assert len(pairs) == 2
    assert sorted("+".join(pairs).split("+")) == sorted(data.group_names)
    assert list(dealt(dataset(torch.arange(7) % 2, groups), "subject", None)) == [
        f"subject-{number:03d}" for number in range(3)
    ]


@settings(max_examples=60, deadline=None)
@given(
    labels=st.lists(st.sampled_from([-3, 0, 8]), min_size=1, max_size=20),
    share=st.integers(1, 5),
    seed=st.integers(0, 2**40),
)
def test_mixed_subjects_of_each_label_go_to_as_many_nodes_as_there_can_be(
    labels: list[int], share: int, seed: int
) -> None:
    """Subject s has s % 3 + 1 samples, all of its own label; groups are not numbered from 0."""
    counts = torch.arange(len(labels)) % 3 + 1
    groups = torch.arange(len(labels)).repeat_interleave(counts)
    y = torch.tensor(labels)[groups]
    samples = Samples(y[:, None].float(), y, 2 * groups + 5)
    parts = load("partition", "subject")(samples, None, generator(seed), subjects_per_node=share, mixed=True)
    nodes = -(-len(labels) // share)
    assert len(parts) == nodes
    assert sorted(torch.cat(parts).tolist()) == list(range(len(y)))
    held = [sorted(set(groups[part].tolist())) for part in parts]
    assert sum(map(len, held)) == len(labels)  # nobody is torn apart
    sizes = [len(subjects) for subjects in held]
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) <= share
    for label in set(labels):
        alike = [sum(labels[s] == label for s in subjects) for subjects in held]
        assert max(alike) - min(alike) <= 1


def test_mixed_hospitals() -> None:
    """Ten patients and ten controls, four a node: two of each everywhere, others by another seed, same by the same."""
    groups = torch.arange(20).repeat_interleave(30)
    data = dataset(groups // 10, groups, tuple(f"co2{'ca'[s // 10]}{s:02d}" for s in range(20)))
    nodes = deal(data, "subject", 5, 1, {"subjects_per_node": 4, "mixed": True})
    assert [len(part) for part in nodes.values()] == [120] * 5
    assert all(name.count("co2a") == name.count("co2c") == 2 for name in nodes)
    assert sorted("+".join(nodes).split("+")) == sorted(data.group_names)
    again, other, plain = (
        list(dealt(data, "subject", None, seed, subjects_per_node=4, mixed=mixed))
        for seed, mixed in ((1, True), (2, True), (1, False))
    )
    assert again == list(nodes)
    assert other != again != plain
    ten = data.train.take(torch.arange(300))
    function = load("partition", "subject")
    for mixed, sizes in ((True, [120, 90, 90]), (False, [120, 120, 60])):
        hands = function(ten, None, generator(0), subjects_per_node=4, mixed=mixed)
        assert [len(part) for part in hands] == sizes
    one_each = dealt(data, "subject", None, subjects_per_node=1, mixed=True)
    assert one_each == dealt(data, "subject", None)


def test_mixed_takes_the_label_that_a_subject_has_most_often() -> None:
    """Subjects 0 and 1 are mostly 1, subjects 2 and 3 mostly 0: never 0 with 1, never 2 with 3."""
    y = torch.tensor([1, 1, 0, 1, 0, 1, 0, 0, 1, 0, 0])
    groups = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3])
    for seed in range(10):
        names = dealt(dataset(y, groups, tuple("abcd")), "subject", None, seed, subjects_per_node=2, mixed=True)
        assert set(names) in ({"a+c", "b+d"}, {"a+d", "b+c"})


def test_subject_refusals() -> None:
    y, groups = torch.arange(6) % 2, torch.arange(6) % 3
    with pytest.raises(SettingError, match=r"data.nodes = 2: must be null or 3: there are 3 subjects, 1 a node"):
        deal(dataset(y, groups), "subject", 2, 0, {})
    with pytest.raises(SettingError, match="these data name no subjects"):
        deal(dataset(y), "subject", None, 0, {})
    with pytest.raises(SettingError) as caught:
        deal(dataset(torch.rand(6, 1), groups), "subject", None, 0, {"mixed": True})
    assert str(caught.value) == "data.partition.mixed = true: must be false: the data have no classes"
    with pytest.raises(DataError, match="two nodes are called 'x'"):
        deal(dataset(y, groups, ("x", "x", "y")), "subject", None, 0, {})
