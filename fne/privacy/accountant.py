"""Differential privacy accountant of a whole run: the releases with their noise, and the epsilon that they add up to.

Every mechanism is Gaussian; its noise is discrete, to which bounds of continuous noise apply (`fne.privacy.draws`), to
PRV's within the error that it adds. The privacy loss of a mechanism is bounded as Rényi differential privacy (RDP) at
`ORDERS`: with Poisson sampling as in Opacus (Mironov, Talwar and Zhang 2019), with sampling of a fixed size without
replacement by theorem 27 of Wang, Balle and Kasiviswanathan 2019, at whole orders; never more than without sampling.
RDP adds up over all releases, and becomes an epsilon by theorem 21 of Balle et al. 2020. A second upper bound comes
from Opacus' PRV accountant (Gopi et al. 2021); it is tighter, and is available with Poisson sampling and without
sampling. Both are upper bounds, so the smaller one holds.

A search chooses its noise by earlier results. Then a sum of RDP is a proven bound if the sum was fixed beforehand (a
filter: Feldman and Zrnic 2021), but not if it is read off afterwards; `Conduct.beforehand` has the bound.

Against an adversary who sees uploads a draw of clients hides nobody and does not count: the accountant computes the
Gaussian without sampling, once for each release. `releases` is then the number of rounds of the client that takes part
most often; with random draws nobody knows this number beforehand, and it counts every round.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fne.core.errors import SettingError
from fne.core.quiet import ignored
from fne.privacy.score import NOTE, SCORE

ORDERS: NDArray[np.float64] = np.concatenate([
    1 + np.arange(1, 20) / 100, np.arange(24, 40) / 20, np.arange(20, 50) / 10, np.arange(20, 44) / 4,
    np.arange(11, 64), (64, 72, 80, 96, 112, 128, 160, 192, 256, 384, 512),
])  # fmt: skip
"""Orders of RDP; a coarser grid gives bounds some per cent larger."""

WEIGHTS = "weights"  # value of `Mechanism.clipped`: whole weights, not their change in training
EPSILON_ERROR = 0.01  # error that PRV adds (Opacus' own)
MOST_POINTS = 2**24  # points of all of PRV's grids, beyond which PRV is not tried: about ten seconds
_WORDS = {
    "sampling": ("poisson", "fixed", "none"), "adjacency": ("add_remove", "zero_out", "replace_one"),
    "unit": ("client", "record"), "adversary": ("aggregate", "uploads"), "drawn": ("clients", "records"),
}  # fmt: skip
_FITTING = {"poisson": ("add_remove", "zero_out"), "fixed": ("replace_one",), "none": _WORDS["adjacency"]}


@dataclass(frozen=True)
class Mechanism:
    """A Gaussian mechanism; raises `SettingError` for values that are out of range or do not fit together."""

    multiplier: float  # z, standard deviation of the noise over the sensitivity (see `multiplier`); 0 means no noise
    clipped: str  # the clipped quantity, such as "update" or `WEIGHTS`
    clip: float  # Z, largest L2 norm of the clipped quantity
    sampling: str = "none"  # or `poisson`, each independently at `rate`; or `fixed`, `size` out of `population`
    rate: float = 1.0
    size: int = 0
    population: int = 0
    adjacency: str = "zero_out"  # a unit gives zero; or is absent, `add_remove`; or is replaced, `replace_one`
    unit: str = "client"  # protected unit; or `record`
    adversary: str = "aggregate"  # who sees only a round's sum, as with secure sums; or each upload, `uploads`
    drawn: str = "clients"  # sampled units; or `records`, by their own client, which nobody else sees

    def __post_init__(self) -> None:
        for key, words in _WORDS.items():
            _check(key, getattr(self, key), getattr(self, key) in words, f"one of {', '.join(words)}")
        fixed, fitting = self.sampling == "fixed", _FITTING[self.sampling]
        sizes = 1 <= self.size <= self.population if fixed else self.size == self.population == 0
        hopeless = (self.adversary, self.unit, self.adjacency) == ("uploads", "client", "add_remove")
        for key, holds, allowed in (
            ("multiplier", 0 <= self.multiplier <= 1e100, "0 or more, at most 1e100"),
            ("clip", 0 < self.clip < math.inf, "more than 0, and finite"),
            ("rate", 0 < self.rate <= 1, "more than 0, at most 1"),
            ("rate", self.rate == 1 or self.sampling == "poisson", "1 unless sampling = poisson"),
            ("size", sizes, "1 to population with sampling = fixed; else both are 0"),
            ("adjacency", self.adjacency in fitting, f"{' or '.join(fitting)} with sampling = {self.sampling}"),
            ("adjacency", not hopeless, "zero_out or replace_one: who sees uploads sees which clients there are"),
            ("drawn", self.drawn == "clients" or self.unit == "record", "clients where unit = client"),
        ):
            _check(key, getattr(self, key), holds, allowed)

    @property
    def share(self) -> float:
        """Return the probability that a unit is in a release."""
        return self.size / self.population if self.sampling == "fixed" else self.rate

    @property
    def counted(self) -> float:
        """Return the rate that counts: 1 where the adversary sees the draw."""
        return 1.0 if self.adversary == "uploads" and self.drawn == "clients" else self.share


def multiplier(sigma: float, adjacency: str, noises: int = 1) -> float:
    """Return z of a sum in which at least `noises` parts carry noise of sigma Z each; a unit moves it by Z, or 2 Z."""
    return sigma * math.sqrt(noises) / (2 if adjacency == "replace_one" else 1)


# ------------------------------------------------------------------------------------------------ accountant
@dataclass(frozen=True)
class Spent:
    """Upper bounds on epsilon at `delta`: by RDP at `order`, if any, and by PRV, or `why` PRV gives none."""

    delta: float
    rdp: float
    order: float | None
    prv: float | None
    why: str = ""

    @property
    def epsilon(self) -> float:
        """Return the smaller bound; infinite where anything was released without noise."""
        return self.rdp if self.prv is None else min(self.rdp, self.prv)


class Accountant:
    """Accountant that adds up all releases of a run, also of different mechanisms, as a search makes them."""

    def __init__(self) -> None:
        self.released: dict[Mechanism, int] = {}

    def add(self, mechanism: Mechanism, releases: int = 1) -> None:
        """Add releases; raises `SettingError` where adjacency, unit or adversary differ from earlier ones."""
        _check("releases", releases, releases >= 0, "0 or more")
        for key in ("adjacency", "unit", "adversary"):
            alike = all(getattr(known, key) == getattr(mechanism, key) for known in self.released)
            _check(key, getattr(mechanism, key), alike, "that of the releases before, or they do not add up")
        if releases:
            self.released[mechanism] = self.released.get(mechanism, 0) + releases

    def epsilon(self, delta: float, *, tight: bool = True) -> Spent:
        """Return the spent epsilon at 0 < `delta` < 1, if `tight` also by PRV, which may take some seconds."""
        _check("delta", delta, 0 < delta < 1, "between 0 and 1")
        if not self.released:
            return Spent(delta, 0.0, None, 0.0)
        curve = np.sum([n * curve_of(m) for m, n in self.released.items()], axis=0)
        if np.isinf(curve).all():
            return Spent(delta, math.inf, None, None, "there is no noise: epsilon is infinite")
        rdp, order = converted(curve, delta)
        if not tight:
            return Spent(delta, rdp, order, None, "not asked for")
        try:
            return Spent(delta, rdp, order, self._prv(delta, converted(curve, delta / 4000)[0]))
        except (ArithmeticError, ValueError, RuntimeError, IndexError, MemoryError) as error:  # opacus#601, #604
            return Spent(delta, rdp, order, None, f"no bound by PRV: {error}")

    def _prv(self, delta: float, reach: float) -> float:
        """Return PRV's bound; raises `ValueError` where PRV is not tried, and all errors of Opacus."""
        alike: dict[tuple[float, float], int] = {}
        for m, n in self.released.items():
            if m.sampling == "fixed" and m.counted < 1:
                raise ValueError("it knows Poisson sampling and none, not draws of a fixed size")
            alike[m.multiplier, m.counted] = alike.get((m.multiplier, m.counted), 0) + n
        step = EPSILON_ERROR / math.sqrt(sum(alike.values()) * math.log(12_000 / delta) / 2)
        if reach > 600 or 2 * (reach + 3) / step * len(alike) > MOST_POINTS:  # exp overflows beyond 709
            raise ValueError("not tried, epsilon or the number of releases is too large")
        return _prv_bound(tuple((z, rate, n) for (z, rate), n in alike.items()), delta)

    def state_dict(self) -> dict[str, Any]:
        """Return all releases, as plain numbers and words."""
        return {"released": [[asdict(mechanism), releases] for mechanism, releases in self.released.items()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.released = {Mechanism(**fields): int(releases) for fields, releases in state["released"]}


@lru_cache(maxsize=256)
def _prv_bound(history: tuple[tuple[float, float, int], ...], delta: float) -> float:
    """Return PRV's bound of multipliers, rates and numbers of releases; kept, as equal runs of a process share it."""
    from opacus.accountants import PRVAccountant

    prv = PRVAccountant()
    prv.history = list(history)
    errors = np.errstate(divide="ignore", over="raise", invalid="raise")  # log(0) at rate 1 does no harm
    with ignored(), errors:
        bound = float(prv.get_epsilon(delta, eps_error=EPSILON_ERROR))
    if not math.isfinite(bound):
        raise ValueError(f"it returned {bound}")
    return max(bound, 0.0)


def _check(key: str, value: object, holds: bool, allowed: str) -> None:
    if not holds:
        raise SettingError(f"privacy.{key}", value, allowed)


def curve_of(mechanism: Mechanism) -> NDArray[np.float64]:
    """Return RDP of one release at `ORDERS`."""
    return _curve(mechanism.multiplier, mechanism.counted, mechanism.sampling)


def converted(curve: NDArray[np.float64], delta: float) -> tuple[float, float]:
    """Return epsilon of an RDP curve, and the order that gives it."""
    from opacus.accountants.analysis.rdp import get_privacy_spent

    with ignored():  # warning about an order at either end of the grid: see `WARNINGS`
        epsilon, order = get_privacy_spent(orders=ORDERS, rdp=curve, delta=delta)
    return max(float(epsilon), 0.0), float(order)


@lru_cache(maxsize=1024)
def _curve(z: float, rate: float, sampling: str) -> NDArray[np.float64]:
    """Return RDP of one release at `ORDERS`."""
    with np.errstate(divide="ignore", over="ignore"):
        unsampled: NDArray[np.float64] = ORDERS / (2 * z * z)
    if rate == 1 or np.isinf(unsampled).any():
        return unsampled
    sampled = _without_replacement(z, rate) if sampling == "fixed" else _poisson(z, rate)
    return np.maximum(np.fmin(sampled, unsampled), 0.0)  # by joint quasi-convexity; rounding may go below 0


def _poisson(z: float, rate: float) -> NDArray[np.float64]:
    from opacus.accountants.analysis.rdp import compute_rdp

    bounds = np.full(len(ORDERS), np.inf)
    for i, order in enumerate(ORDERS.tolist()):
        with suppress(ArithmeticError, ValueError):  # opacus#49
            bounds[i] = compute_rdp(q=rate, noise_multiplier=z, steps=1, orders=order)
    return bounds


def _without_replacement(z: float, rate: float) -> NDArray[np.float64]:
    """Return theorem 27's bound: a sum over powers of the rate; infinite at broken orders."""
    from scipy.special import gammaln, logsumexp

    j = np.arange(2, int(ORDERS[-1]) + 1)
    even = np.array([_log_moment(z, power) for power in range(2, len(j) + 4, 2)])
    moments = (even[j // 2 - 1] + even[(j + 1) // 2 - 1]) / 2  # odd ones by Cauchy and Schwarz
    logs = j * math.log(rate) + np.minimum(math.log(4) + moments, math.log(2) + j * (j - 1) / (2 * z * z))
    orders = ORDERS[:, None]
    logs = logs + gammaln(orders + 1) - gammaln(j + 1) - gammaln(orders - j + 1)  # -inf beyond an order
    total = logsumexp(np.pad(logs, ((0, 0), (1, 0))), axis=1)  # with a term of 1, whose logarithm is the 0
    return np.where(ORDERS % 1 == 0, total / (ORDERS - 1), np.inf)


def _log_moment(z: float, power: int) -> float:
    """Return log E(p/q - 1)^power over q = N(0, z^2), with p = N(1, z^2): by trapezia, where sums would cancel."""
    from scipy.special import logsumexp

    far = 12 * z  # the mass lies around 0 and around `power`
    pieces = []
    for start, end in [(-far, power + far)] if power < 2 * far else [(-far, far), (power - far, power + far)]:
        x = np.linspace(start, end, 1 + math.ceil((end - start) / z * 40))
        ratio = (x - 0.5) / (z * z)
        with np.errstate(divide="ignore"):
            apart = np.maximum(ratio, 0.0) + np.log(-np.expm1(-np.abs(ratio)))
        density = -x * x / (2 * z * z) - math.log(z * math.sqrt(2 * math.pi))
        pieces.append(logsumexp(power * apart + density) + math.log(x[1] - x[0]))
    return float(logsumexp(pieces))


# ------------------------------------------------------------------------------------------------ report
@dataclass(frozen=True)
class Conduct:
    """Conduct of a run beside its mechanisms, as far as the privacy promise depends on it."""

    units: int | None  # N clients; None: records, which only a node can count
    sampler: str  # actual sampling of the units, as `Mechanism.sampling`, or a word such as "shuffled"
    unnoised: tuple[str, ...] = ()  # values released without noise, such as "loss", "sample counts", "buffers"
    bounded_weights: bool = True  # largest weight of each client in a sum
    divides_by_replies: bool = False  # noise is divided by the number of replies, though some clients drop out
    trainings: int = 1  # trainings that a search makes with the same data
    beforehand: Accountant | None = None  # all possible releases, where noise is chosen by earlier releases
    given: bool = False  # some trained individuals come from another run


WARNINGS: tuple[tuple[Callable[[dict[Mechanism, int], Spent, Conduct], bool], str], ...] = (  # condition, warning
    (lambda r, s, c: math.isinf(s.epsilon), "something was released without noise: epsilon is infinite"),
    (lambda r, s, c: s.delta * (c.units or 0) >= 1,
     "delta = {s.delta:g} is not below 1/N, N = {c.units}: a unit may leak"),
    (lambda r, s, c: c.units is None,
     "delta = {s.delta:g} must be below 1/N of a node's N records, which the node alone knows"),
    (lambda r, s, c: s.order in (ORDERS[0], ORDERS[-1]), "RDP is not tight: its order {s.order:g} ends the grid"),
    (lambda r, s, c: any(m.counted < 1 and m.sampling != c.sampler for m in r),
     "amplification counts for {sampling} sampling, but this run's is {c.sampler}: epsilon does not hold"),
    (lambda r, s, c: any(m.share < m.counted for m in r),
     "the adversary sees uploads, so the draw of clients does not count as amplification"),
    (lambda r, s, c: bool(c.unnoised), "without noise leave: {unnoised}; epsilon does not cover them"),
    (lambda r, s, c: not c.bounded_weights, "clients' weights are unbounded, so the sensitivity is: bound them"),
    (lambda r, s, c: c.divides_by_replies, "noise is divided by the replies that came: with fewer its size is another"),
    (lambda r, s, c: c.trainings > 1,
     "the search trains {c.trainings} times with the same data: epsilon is of all {releases} releases together"),
    (lambda r, s, c: c.beforehand is not None,
     "noise is chosen by what was released before: proven is a bound that was fixed beforehand, epsilon {beforehand}"),
    (lambda r, s, c: c.given, "individuals were given: what a run that found them has spent is not in this figure"),
    (lambda r, s, c: any(m.clipped == WEIGHTS for m in r), "weights are clipped, not updates: noise drowns learning"),
)  # fmt: skip


def warnings(accountant: Accountant, spent: Spent, conduct: Conduct) -> list[str]:
    """Return the warnings that the user should know before believing the epsilon."""
    released = accountant.released
    words = {
        "s": spent, "c": conduct, "unnoised": ", ".join(conduct.unnoised), "releases": sum(released.values()),
        "sampling": " and ".join(sorted({m.sampling for m in released if m.counted < 1})),
        "beforehand": f"{_beforehand(conduct, spent.delta):.4g}",
    }  # fmt: skip
    return [text.format(**words) for applies, text in WARNINGS if applies(released, spent, conduct)]


def _beforehand(conduct: Conduct, delta: float) -> float:
    return conduct.beforehand.epsilon(delta, tight=False).rdp if conduct.beforehand else math.inf


def report(
    accountant: Accountant, delta: float, conduct: Conduct, score: float | None = None, note: str = ""
) -> dict[str, Any]:
    """Return the full account by label: epsilon, and everything that gives it a meaning.

    Args:
        accountant: the releases of the run.
        delta: delta of the epsilon.
        conduct: conduct of the run.
        score: score of `fne.privacy.score.score_eq7`, to be shown beside the epsilon.
        note: note on what the score leaves out, by `fne.privacy.score.score_note`.
    """
    spent = accountant.epsilon(delta)
    tight = spent.prv is not None and spent.prv <= spent.rdp
    return {
        "epsilon": spent.epsilon, "delta": delta, "units": conduct.units,
        "epsilon_beforehand": None if conduct.beforehand is None else _beforehand(conduct, delta),
        "accountant": "PRV, upper bound" if tight else "RDP, upper bound",
        "epsilon_rdp": spent.rdp, "order": spent.order, "epsilon_prv": spent.prv, "no_prv": spent.why,
        SCORE: score, NOTE: note or None,
        "mechanisms": [{"mechanism": "Gaussian", **asdict(m), "counted_rate": m.counted, "releases": n}
                       for m, n in accountant.released.items()],
        "warnings": warnings(accountant, spent, conduct),
    }  # fmt: skip
