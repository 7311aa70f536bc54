"""Partitions of the training samples among nodes: each sample is on exactly one node, and no node is empty.

A partition is a function `(samples, nodes, generator, *, settings) -> list[Tensor]` that returns the int64 indices of
each node's samples; `deal` checks the result. Shapes: `N` samples, `K` nodes, `C` classes that occur.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fne.config.registry import Key, load, register
from fne.core.dataset import Dataset, Samples
from fne.core.errors import DataError, SettingError
from fne.core.randomness import generator
from fne.data.sources import renumbered

DRAWS = 1000
"""Number of draws after which `dirichlet` gives up."""

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


# ------------------------------------------------------------------------------------------------ dealing
def deal(
    dataset: Dataset, partition: str, nodes: int | None, seed: int, settings: Mapping[str, Any]
) -> dict[str, Samples]:
    """Return node name -> its training samples, sorted by name.

    Nodes are called `node-000` and so on; with the partition `subject` they have the names of their subjects.

    Args:
        dataset: data set whose training part is dealt.
        partition: registered name of the partition.
        nodes: number of nodes; `None` (with `subject` only): as many as the subjects, or groups of subjects.
        seed: seed of the run, which alone decides the draw.
        settings: settings of the partition.

    Raises:
        SettingError: these data do not permit this number of nodes, or this partition.
        DataError: a node is empty, or a sample is left out or dealt twice; the error has names and numbers.
    """
    total = len(dataset.train)
    if nodes is None and partition != "subject":
        raise SettingError("data.nodes", nodes, f"a number with data.partition={partition}")
    if nodes is not None and not 1 <= nodes <= total:
        raise SettingError("data.nodes", nodes, f"from 1 to {total}, the number of training samples")

    parts = load("partition", partition)(dataset.train, nodes, generator("partition", seed), **settings)
    subjects = partition == "subject"
    names = [_subject_name(dataset, part) for part in parts] if subjects else list(node_names(len(parts)))
    if nodes is not None and len(parts) != nodes:
        raise DataError(f"partition {partition!r}: made {len(parts)} nodes instead of {nodes}")
    _check(partition, names, parts, total)
    return {name: dataset.train.take(part) for name, part in sorted(zip(names, parts, strict=True))}


def node_names(count: int) -> tuple[str, ...]:
    """Return `node-000` and so on."""
    width = max(3, len(str(count - 1)))
    return tuple(f"node-{number:0{width}d}" for number in range(count))


def _check(partition: str, names: Sequence[str], parts: Sequence[Tensor], total: int) -> None:
    if len(set(names)) < len(names):
        twice = next(name for name in names if list(names).count(name) > 1)
        raise DataError(f"partition {partition!r}: two nodes are called {twice!r}; give the subjects different names")
    for name, part in zip(names, parts, strict=True):
        if len(part) == 0:
            raise DataError(
                f"partition {partition!r}: {name} has no samples ({total} samples, {len(parts)} nodes); "
                "take fewer nodes, or another partition"
            )
    times = torch.bincount(torch.cat(list(parts)), minlength=total)
    wrong = (times != 1).nonzero()
    if len(times) > total or len(wrong):
        first = int(wrong[0])
        raise DataError(
            f"partition {partition!r}: sample {first} of {total} was dealt {int(times[first])} times; "
            "every sample belongs on exactly one node"
        )


def describe(parts: Mapping[str, Samples], classes: Sequence[str] | None) -> tuple[list[str], Tensor]:
    """Return the nodes' names and their samples by class, int64 `[K, C]`; `[K, 1]` for regression."""
    rows = [
        torch.tensor([len(part)]) if classes is None else torch.bincount(part.y, minlength=len(classes))
        for part in parts.values()
    ]
    return list(parts), torch.stack(rows)


# ------------------------------------------------------------------------------------------------ partitions
@register("partition", "iid")
def iid(samples: Samples, nodes: int, generator: torch.Generator) -> list[Tensor]:
    """Deal at random; sizes differ by at most one."""
    return _hand_out(torch.zeros(len(samples), dtype=torch.int64), _even(len(samples), nodes)[:, None], generator)


Minimum = Annotated[int, Key("smallest node", unit="samples", ge=1)]


@register("partition", "one_class")
def one_class(samples: Samples, nodes: int, generator: torch.Generator) -> list[Tensor]:
    """Give every node one class only, and each class equally many nodes; the largest classes get one more if necessary.

    This is the worst case of the FSI paper: ten nodes with one digit each.
    """
    labels, sizes = _labels(samples, "one_class")
    classes = len(sizes)
    if nodes < classes:
        raise SettingError("data.nodes", nodes, f"at least {classes} with one_class, one for each class")
    largest = np.sort(np.argsort(-sizes, kind="stable")[: nodes % classes])
    owner = np.concatenate([np.tile(np.arange(classes), nodes // classes), largest])
    counts = np.zeros((nodes, classes), np.int64)
    for label, size in enumerate(sizes):
        mine = np.flatnonzero(owner == label)
        if size < len(mine):
            raise DataError(
                f"partition 'one_class': {len(mine)} of the {nodes} nodes are to share one class, "
                f"which has {size} samples; take fewer nodes"
            )
        counts[mine, label] = _even(size, len(mine))
    return _hand_out(labels, counts, generator)


@register("partition", "shards")
def shards(
    samples: Samples,
    nodes: int,
    generator: torch.Generator,
    *,
    shards_per_node: Annotated[int, Key("number of slices of the label-sorted samples that each node gets", ge=1)] = 2,
) -> list[Tensor]:
    """Sort by label, cut into equal shards and deal these at random (McMahan et al. 2017).

    A node may get two shards of the same class.
    """
    labels, _ = _labels(samples, "shards")
    number = nodes * shards_per_node
    if number > len(samples):
        raise DataError(
            f"partition 'shards': {nodes} nodes x {shards_per_node} shards = {number} shards, "
            f"but there are only {len(samples)} samples; lower data.nodes or data.partition.shards_per_node"
        )
    order = torch.randperm(len(samples), generator=generator)
    pieces = order[labels[order].argsort(stable=True)].tensor_split(number)
    hands = torch.randperm(number, generator=generator).view(nodes, shards_per_node)
    return [torch.cat([pieces[shard] for shard in hand]).sort().values for hand in hands.tolist()]


@register("partition", "dirichlet")
def dirichlet(
    samples: Samples,
    nodes: int,
    generator: torch.Generator,
    *,
    alpha: Annotated[float, Key("concentration: small = each class on few nodes, large = near iid", ge=1e-9)] = 0.5,
    minimum: Minimum = 1,
    draw: Annotated[
        Literal["class", "node"],
        Key("class: each class is shared out, sizes differ; node: equal nodes draw their own mix of classes"),
    ] = "class",
) -> list[Tensor]:
    """Skew the labels by draws from Dirichlet(alpha).

    `class`: each class is divided by a draw over the nodes; all classes are drawn anew, at most 1000 times, until the
    smallest node has `minimum` samples (Yurochkin et al. 2019, Li et al. 2022).
    `node`: nodes have equal sizes, and each draws its own mix of classes; an exhausted class is left out of the draws
    of later nodes (Hsu et al. 2019).

    Raises:
        DataError: the minimum was not reached; the error names alpha, K, the minimum and the best result.
    """
    labels, sizes = _labels(samples, "dirichlet")
    random = np.random.default_rng(int(torch.randint(2**63 - 1, (), generator=generator)))
    # One draw suffices: equal sizes never change, and too few samples are never enough.
    draws = DRAWS if draw == "class" and nodes * minimum <= len(samples) else 1
    best = 0
    for _ in range(draws):
        counts = (_cut_classes if draw == "class" else _fill_nodes)(random, alpha, nodes, sizes)
        best = max(best, int(counts.sum(1).min()))
        if best >= minimum:
            return _hand_out(labels, counts, generator)
    raise DataError(
        f"partition 'dirichlet': with alpha = {alpha:g} and {nodes} nodes the smallest node got {best} of "
        f"{len(samples)} samples in the best of {draws} draw{'s' if draws > 1 else ''}, but minimum = {minimum}; "
        f"take fewer nodes or a lower minimum{', raise alpha, or set draw=node' if draws > 1 else ''}"
    )


@register("partition", "quantity")
def quantity(
    samples: Samples,
    nodes: int,
    generator: torch.Generator,
    *,
    law: Annotated[Literal["lognormal", "power"], Key("how the sizes fall off")] = "lognormal",
    skew: Annotated[float, Key("sigma of the log-normal law, exponent of the power law; 0 = equal", ge=0)] = 1.0,
    minimum: Minimum = 1,
) -> list[Tensor]:
    """Deal samples at random to nodes of unequal sizes, each `minimum` plus its share of the rest."""
    rest = len(samples) - nodes * minimum
    if rest < 0:
        raise DataError(
            f"partition 'quantity': {nodes} nodes x {minimum} samples need {nodes * minimum}, "
            f"but there are only {len(samples)}; take fewer nodes or a lower minimum"
        )
    if law == "lognormal":
        logits = skew * torch.randn(nodes, generator=generator, dtype=torch.float64)
    else:
        logits = -skew * (torch.randperm(nodes, generator=generator) + 1).double().log()
    share = rest * logits.softmax(0).numpy()
    sizes = np.floor(share).astype(np.int64)
    sizes[np.argsort(sizes - share, kind="stable")[: rest - sizes.sum()]] += 1
    return _hand_out(torch.zeros(len(samples), dtype=torch.int64), (sizes + minimum)[:, None], generator)


@register("partition", "subject")
def subject(
    samples: Samples,
    nodes: int | None,
    generator: torch.Generator,
    *,
    subjects_per_node: Annotated[
        int, Key("number of subjects on a node; the last node may have fewer, mixed nodes differ by at most one", ge=1)
    ] = 1,
    mixed: Annotated[
        bool, Key("whether subjects of different labels share a node, as patients and controls of a hospital do")
    ] = False,
) -> list[Tensor]:
    """Give every node the samples of its own subjects, as recordings at different sites are.

    `mixed` deals the subjects of each label in turn to the nodes, which then differ by at most one subject: with ten
    subjects and four per node, nodes have 4, 3 and 3. The label of a subject is the most frequent one of its samples.
    """
    if samples.groups is None:
        raise SettingError("data.partition", "subject", "another one: these data name no subjects")
    group, sizes = renumbered(samples.groups)
    there = len(sizes)
    needed = -(-there // subjects_per_node)
    if nodes not in (None, needed):
        raise SettingError(
            "data.nodes",
            nodes,
            f"null or {needed}: there are {there} subjects, {subjects_per_node} a node",
        )
    # One subject per node needs no draw; several subjects are combined at random.
    order = torch.randperm(there, generator=generator) if subjects_per_node > 1 else torch.arange(there)
    if mixed:
        if samples.y.is_floating_point():
            raise SettingError("data.partition.mixed", mixed, "false: the data have no classes")
        most = torch.stack([samples.y[group == subject].mode().values for subject in order])
        order = order[most.argsort(stable=True)]
        return [torch.isin(group, order[node::needed]).nonzero().flatten() for node in range(needed)]
    return [torch.isin(group, few).nonzero().flatten() for few in torch.split(order, subjects_per_node)]


# ------------------------------------------------------------------------------------------------ pieces
def _labels(samples: Samples, partition: str) -> tuple[Tensor, Counts]:
    """Return labels renumbered 0 to C-1 `[N]`, and the number of samples of each class `[C]`."""
    if samples.y.is_floating_point():
        raise SettingError("data.partition", partition, "iid, quantity or subject: the data have no classes")
    return renumbered(samples.y)


def _hand_out(labels: Tensor, counts: Counts, generator: torch.Generator) -> list[Tensor]:
    """Draw `counts [K, C]` samples of each class for each node; return sorted indices."""
    order = torch.randperm(len(labels), generator=generator)
    node = torch.empty(len(labels), dtype=torch.int64)
    for label, column in enumerate(torch.from_numpy(counts).T):
        node[order[labels[order] == label]] = torch.arange(len(counts)).repeat_interleave(column)
    return [*torch.split(node.argsort(stable=True), counts.sum(1).tolist())]


def _even(total: int, parts: int) -> Counts:
    return np.diff(np.arange(parts + 1) * total // parts)


def _log_dirichlet(random: np.random.Generator, alpha: float, size: tuple[int, int]) -> Floats:
    """Draw unnormalised log-proportions, one Dirichlet variate per row.

    With a small alpha the gamma variates underflow to zero, and a row would become 0/0. Their logarithms do not
    underflow: log Gamma(alpha) = log Gamma(alpha + 1) + log(U) / alpha in distribution.
    """
    return np.log(random.standard_gamma(alpha + 1, size)) + np.log1p(-random.random(size)) / alpha


def _softmax(logits: Floats) -> Floats:
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def _cut_classes(random: np.random.Generator, alpha: float, nodes: int, sizes: Counts) -> Counts:
    shares = _softmax(_log_dirichlet(random, alpha, (len(sizes), nodes)))
    ends = np.rint(shares.cumsum(1) * sizes[:, None]).astype(np.int64)
    ends[:, -1] = sizes
    return np.diff(ends, axis=1, prepend=0).T


def _fill_nodes(random: np.random.Generator, alpha: float, nodes: int, sizes: Counts) -> Counts:
    mixes = _log_dirichlet(random, alpha, (nodes, len(sizes)))
    left = sizes.copy()
    counts = np.zeros((nodes, len(sizes)), np.int64)
    for node, size in enumerate(_even(int(sizes.sum()), nodes)):
        while lacking := size - counts[node].sum():  # terminates: each pass completes the node or exhausts a class
            mix = _softmax(np.where(left > 0, mixes[node], -np.inf))
            taken = np.minimum(random.multinomial(lacking, mix), left)
            counts[node] += taken
            left -= taken
    return counts


def _subject_name(dataset: Dataset, part: Tensor) -> str:
    assert dataset.train.groups is not None
    return "+".join(map(dataset.group_name, np.unique(dataset.train.groups[part].numpy()).tolist()))
