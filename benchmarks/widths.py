"""Evaluations that snes and sep_cma take to a target, beside the same methods with normal numbers in float64.

    python benchmarks/widths.py [--seeds 0-99]

The strategies draw `philox.noise`, whose squares have variance 1.698; `uncorrected` is what they do where their updates
assume the 2 of a normal number. The references are plain NumPy. All runs start at the same point of the sphere and of
the ellipsoid (curvatures of the axes from 1 to 10^4), at 1 or -1 in units of the first width, with 20 variables and the
papers' populations, and stop at a millionth of the first value. Each figure is a geometric mean over seeds, and `ratio`
that of the method to its reference with its standard error.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from run import numbers
from torch import nn

from fne.config.registry import load
from fne.evolution.genome import Layout
from fne.learning.task import LearningTask
from fne.strategies import sep_cma, snes

VARIABLES, TARGET, MOST = 20, 1e-6, 20_000
POPULATION = 4 + math.floor(3 * math.log(VARIABLES))
Array = NDArray[np.float64]
Score = Callable[[Array], Array]
FUNCTIONS: dict[str, Score] = {
    "sphere": lambda x: np.square(x).sum(axis=-1),
    "ellipsoid": lambda x: (10.0 ** (4 * np.arange(VARIABLES) / (VARIABLES - 1)) * np.square(x)).sum(axis=-1),
}


class Point(nn.Module):
    """A model whose genes are a point, half of it at 1 and half at -1."""

    def __init__(self) -> None:
        super().__init__()
        self.point = nn.Parameter(1 - 2.0 * (torch.arange(VARIABLES) % 2))


def ours(name: str, score: Score, seed: int) -> int:
    """Return the evaluations of a strategy of the toolkit."""
    task = LearningTask(Layout(Point()), lambda _: Point(), lambda *_, **__: {})
    proposer = load("strategy", name)(task, seed=seed, rounds=MOST, sigma=1.0).lineage
    scales = task.layout.scales().double().numpy()
    target = TARGET * score(proposer.genes.double().numpy() / scales)
    for step in range(MOST):
        points = proposer.candidates(step)["population"].double().numpy() / scales
        scores = score(points)
        if scores.min() <= target:
            return (step + 1) * POPULATION
        proposer.advance(step, proposer.decide(torch.from_numpy(scores)))
    raise SystemExit(f"{name} does not reach the target within {MOST} generations")


def start() -> Array:
    """Return where all begin."""
    layout = Layout(Point())
    return (layout.flatten(Point()) / layout.scales()).double().numpy()  # type: ignore[no-any-return]


def reference_snes(score: Score, seed: int) -> int:
    """Return the evaluations of SNES (Schaul et al. 2011, algorithm 2) with normal numbers."""
    draw, centre, widths = np.random.default_rng(seed), start(), np.ones(VARIABLES)
    target, rate = TARGET * score(centre), (3 + math.log(VARIABLES)) / (5 * math.sqrt(VARIABLES))
    raw = np.maximum(0, math.log(POPULATION / 2 + 1) - np.log(np.arange(1, POPULATION + 1)))
    utilities = raw / raw.sum() - 1 / POPULATION
    for step in range(MOST):
        s = draw.standard_normal((POPULATION, VARIABLES))
        scores = score(centre + widths * s)
        if scores.min() <= target:
            return (step + 1) * POPULATION
        s = s[scores.argsort()]
        centre = centre + widths * (utilities @ s)
        widths = widths * np.exp(rate / 2 * (utilities @ (s**2 - 1)))
    raise SystemExit("the reference does not reach the target")


def reference_sep_cma(score: Score, seed: int) -> int:
    """Return the evaluations of sep-CMA-ES (Ros and Hansen 2008) with normal numbers."""
    n, draw, centre = VARIABLES, np.random.default_rng(seed), start()
    target, half = TARGET * score(centre), POPULATION // 2
    w = math.log(half + 1) - np.log(np.arange(1, half + 1))
    w = w / w.sum()
    mu = 1 / np.square(w).sum()
    c_s, c_c = (mu + 2) / (n + mu + 3), 4 / (n + 4)
    d_s = 1 + 2 * max(0, math.sqrt((mu - 1) / (n + 1)) - 1) + c_s
    c_cov = (1 / mu) * 2 / (n + math.sqrt(2)) ** 2 + (1 - 1 / mu) * min(1, (2 * mu - 1) / ((n + 2) ** 2 + mu))
    c_cov *= (n + 2) / 3
    chi = math.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n**2))
    sigma, c, p_s, p_c = 1.0, np.ones(n), np.zeros(n), np.zeros(n)
    for step in range(MOST):
        z = draw.standard_normal((POPULATION, n))
        scores = score(centre + sigma * np.sqrt(c) * z)
        if scores.min() <= target:
            return (step + 1) * POPULATION
        best = z[scores.argsort()[:half]]
        mean = w @ best
        centre = centre + sigma * np.sqrt(c) * mean
        p_s = (1 - c_s) * p_s + math.sqrt(c_s * (2 - c_s) * mu) * mean
        length = float(np.linalg.norm(p_s))
        moving = length / math.sqrt(1 - (1 - c_s) ** (2 * (step + 1))) < (1.4 + 2 / (n + 1)) * chi
        p_c = (1 - c_c) * p_c + moving * math.sqrt(c_c * (2 - c_c) * mu) * np.sqrt(c) * mean
        c = (1 - c_cov) * c + c_cov / mu * p_c**2 + c_cov * (1 - 1 / mu) * c * (w @ best**2)
        sigma *= math.exp(c_s / d_s * (length / chi - 1))
    raise SystemExit("the reference does not reach the target")


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0-99", help="first-last")
    seeds = numbers(parser.parse_args().seeds)
    torch.set_num_threads(1)
    print("| function | method | evaluations | reference | ratio |\n|---|---|---:|---:|---:|")
    for title, score in FUNCTIONS.items():
        for name, module, reference in (("snes", snes, reference_snes), ("sep_cma", sep_cma, reference_sep_cma)):
            wanted = np.log([reference(score, seed) for seed in seeds])
            known = module.SQUARE_VARIANCE
            for label, variance in ((f"{name}, uncorrected", 2.0), (name, known)):
                module.SQUARE_VARIANCE = variance
                found = np.log([ours(name, score, seed) for seed in seeds])
                error = math.sqrt((found.var(ddof=1) + wanted.var(ddof=1)) / len(seeds))
                ratio = math.exp(found.mean() - wanted.mean())
                print(f"| {title} | {label} | {math.exp(found.mean()):,.0f} | {math.exp(wanted.mean()):,.0f} | "
                      f"{ratio:.3f} ± {ratio * error:.3f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
