"""Rank-one perturbations: a matrix is perturbed by a product of two short vectors, which is sent in its place.

B. Sarkar et al., "Evolution strategies at the hyperscale", arXiv:2511.16652, 2025 (EGGROLL), perturb matrices by
products of rank r; r = 1 here. A leaf with two or more dimensions is, kernel axis first, a matrix `[kernels, rest]`: it
is perturbed by `a b'`, where `a [kernels]` and `b [rest]` are `philox.noise`. Other leaves are perturbed by such noise
directly. A product's variance is `VARIANCE**2`, so its unit is `UNIT**2`. The factors of a pair, int8 `[R]`, are its
noise numbers, leaf after leaf, `a` before `b`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fne.core.errors import RunError
from fne.core.messages import Tensors
from fne.evolution import shaping
from fne.evolution.genome import Layout, Leaf
from fne.evolution.philox import UNIT

NAMES = ("centre", "factors", "sigma")
"""Names of the tensors that represent candidates in a message, in place of `population`."""


def width(layout: Layout) -> int:
    """Return the number of noise numbers that perturb a genome, `R`."""
    return sum(sum(_widths(leaf)) for leaf in layout.leaves)


def steps(layout: Layout, deviations: Tensor, sigma: float) -> Tensor:
    """Return the factor on the whole numbers in each leaf's perturbation, float32 `[leaves]`.

    Args:
        layout: the genome.
        deviations: the unit of `sigma` in each leaf, float32 `[leaves]`.
        sigma: standard deviation of a gene's perturbation.
    """
    factors = [UNIT ** len(_widths(leaf)) for leaf in layout.leaves]
    return torch.tensor([unit * factor * sigma for unit, factor in zip(deviations.tolist(), factors, strict=True)])


def weighted_sum(weights: Tensor, factors: Tensor, layout: Layout) -> Tensor:
    """Return the weighted sum of perturbations, float64 `[D]`; multiplied by `UNIT`, each perturbation has variance 1.

    Weights are rounded as in `shaping.weighted_sum`. A product of two factors takes 10 more bits, which leaves float64
    room for sums over 2**15 pairs: the bits are the same in any order of additions.

    Args:
        weights: float64 `[P/2]`.
        factors: int8 `[P/2, R]`.
        layout: the genome.
    """
    short = shaping.rounded(weights)
    result = torch.empty(1, layout.size, dtype=torch.float64)
    for leaf, pieces in _split(layout, factors.double()):
        first, *second = pieces
        summed = (short.unsqueeze(1) * first).T @ second[0] * UNIT if second else short @ first
        target = leaf.kernel_view(result)[0]
        target.copy_(summed.view(target.shape))
    return result[0]


@dataclass(frozen=True)
class RankOne:
    """Candidates in antithetic pairs: individual i is `centre + e_i`, individual i + P/2 is `centre - e_i`.

    Every gene is `centre + sigma * whole`; product and sum are each rounded to float32, so the bits are the same
    everywhere. The population `[P, D]` is made only on request.

    Args:
        centre: float32 `[D]`.
        factors: int8 `[P/2, R]`.
        sigma: float32 `[leaves]`, as returned by `steps`.
    """

    centre: Tensor
    factors: Tensor
    sigma: Tensor

    def __len__(self) -> int:
        return 2 * len(self.factors)

    def to(self, device: torch.device) -> RankOne:
        """Return the candidates on a device."""
        return replace(self, **{name: getattr(self, name).to(device) for name in NAMES})

    def parameters(self, layout: Layout, individuals: Tensor) -> Mapping[str, Tensor]:
        """Return the parameters of some individuals, int64 `[n]`: name -> `[n, *shape]`, each made on access."""
        return _Parameters(self, layout, individuals)

    def materialised(self, layout: Layout, rows: slice = slice(None)) -> Tensor:
        """Return the individuals in `rows` as an ordinary population, float32 `[n, D]`."""
        parameters = self.parameters(layout, torch.arange(len(self), device=self.centre.device)[rows])
        return torch.cat([value.reshape(len(value), -1) for value in parameters.values()], dim=1)

    def pairs(self, layout: Layout, rows: slice) -> tuple[Mapping[str, Tensor], dict[str, tuple[Tensor, ...]]]:
        """Return some pairs in the form that a model's `forward_rank_one` takes.

        Returns:
            the parameters of the pairs' `2 p` individuals, first the `p` with plus; and by name the centre of a leaf
            `[kernels, *rest]` (kernel axis first) with its perturbations `a [p, kernels]`, `b [p, *rest]`; for a leaf
            with fewer than two dimensions `[*shape]` and `e [p, *shape]`; all float32.
        """
        some = replace(self, factors=self.factors[rows])
        factors = {}
        for step, (leaf, pieces) in zip(self.sigma, _split(layout, some.factors.float()), strict=True):
            first, *second = pieces
            centre = leaf.kernel_view(self.centre.unsqueeze(0))[0]
            shapes = (centre.shape[:1], centre.shape[1:]) if second else (leaf.shape,)
            scaled = (step * first, *second)
            views = (value.reshape(-1, *shape) for value, shape in zip(scaled, shapes, strict=True))
            factors[leaf.name] = (centre if second else centre.view(leaf.shape), *views)
        return some.parameters(layout, torch.arange(len(some), device=self.centre.device)), factors


def individuals(tensors: Tensors) -> int | None:
    """Return the number of candidates in a message, `P`; `None` without any."""
    if "factors" in tensors:
        return 2 * len(tensors["factors"])
    return len(tensors["population"]) if "population" in tensors else None


def received(tensors: Tensors, layout: Layout) -> Tensor | RankOne:
    """Return the candidates in a message: `population`, or the three tensors in its place.

    Raises:
        RunError: the message holds neither, both, or tensors that do not fit the model.
    """
    given = [name for name in ("population", *NAMES) if name in tensors]
    if given == ["population"]:
        return tensors["population"]
    if given != list(NAMES):
        found = ", ".join(given) or "neither"
        raise RunError(f"candidates are sent as population, or as {', '.join(NAMES)}; this request holds {found}")
    kinds = {"centre": torch.float32, "factors": torch.int8, "sigma": torch.float32}
    pairs = len(tensors["factors"]) if tensors["factors"].dim() else 0
    shapes = {"centre": (layout.size,), "factors": (pairs, width(layout)), "sigma": (len(layout.leaves),)}
    for name in NAMES:
        value = tensors[name]
        if value.dtype != kinds[name] or value.shape != shapes[name]:
            raise RunError(
                f"{name} is {value.dtype} {list(value.shape)}; this node's model needs {kinds[name]} "
                f"{list(shapes[name])}"
            )
    return RankOne(**{name: tensors[name] for name in NAMES})


# ------------------------------------------------------------------------------------------------ leaf by leaf
class _Parameters(Mapping[str, Tensor]):
    """Name -> `[n, *shape]`; a parameter that nobody reads is never made."""

    def __init__(self, population: RankOne, layout: Layout, individuals: Tensor) -> None:
        count = len(population.factors)
        self._sign = torch.where(individuals < count, 1.0, -1.0).unsqueeze(1)
        self._centre = population.centre.unsqueeze(0)
        split = _split(layout, population.factors[individuals % max(1, count)])
        self._leaves = {
            leaf.name: (leaf, pieces, step) for (leaf, pieces), step in zip(split, population.sigma, strict=True)
        }

    def __getitem__(self, name: str) -> Tensor:
        leaf, pieces, step = self._leaves[name]
        first, *second = (piece.float() for piece in pieces)
        whole = first.unsqueeze(2) * second[0].unsqueeze(1) if second else first  # exact: at most 900
        offsets = whole.flatten(1).mul_(step).mul_(self._sign)
        centre = leaf.kernel_view(self._centre)
        values = centre + offsets.view(-1, *centre.shape[1:])
        return values.movedim(1, 1 + leaf.axis) if leaf.axis > 0 else values.view(-1, *leaf.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._leaves)

    def __len__(self) -> int:
        return len(self._leaves)


def _widths(leaf: Leaf) -> tuple[int, ...]:
    """Return the lengths of `a` and `b`, or of the noise on a leaf with fewer than two dimensions."""
    genes = leaf.stop - leaf.start
    return (leaf.kernels, genes // leaf.kernels) if len(leaf.shape) > 1 else (genes,)


def _split(layout: Layout, factors: Tensor) -> Iterator[tuple[Leaf, tuple[Tensor, ...]]]:
    """Yield each leaf with its columns of factors `[n, R]`: `a` and `b`, or one piece."""
    pieces = iter(torch.split(factors, [length for leaf in layout.leaves for length in _widths(leaf)], dim=1))
    for leaf in layout.leaves:
        yield leaf, tuple(next(pieces) for _ in _widths(leaf))
