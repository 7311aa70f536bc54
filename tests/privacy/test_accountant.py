"""Epsilons against closed forms, integrals, exact sums and published ones; composition, resume, refusals, warnings."""

from __future__ import annotations

import dataclasses
import json
import math
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import logsumexp
from scipy.stats import norm

from fne.core.errors import SettingError
from fne.privacy import accountant
from fne.privacy.accountant import Accountant, Conduct, Mechanism, Spent, multiplier
from fne.privacy.score import score_eq7

DELTA = 1e-5
POISSON = {"sampling": "poisson", "rate": 0.4}
FIXED = {"sampling": "fixed", "size": 4, "population": 10, "adjacency": "replace_one"}
UPLOADS = {"adversary": "uploads"}


def mechanism(z: float, **rest: Any) -> Mechanism:
    return Mechanism(z, "update", 1.0, **rest)


def spent(*parts: tuple[Mechanism, int], delta: float = DELTA, tight: bool = False) -> Spent:
    whole = Accountant()
    for part, releases in parts:
        whole.add(part, releases)
    return whole.epsilon(delta, tight=tight)


def exact(mu: float, delta: float) -> float:
    """Return epsilon of a Gaussian whose means are mu deviations apart (Balle and Wang 2018, theorem 8)."""

    def excess(epsilon: float) -> float:
        return float(norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu)) - delta)

    return float(brentq(excess, 0, 1000))


# ------------------------------------------------------------------------------------------------ tables
ROUNDS = (1, 10, 12, 50, 100, 200)


@pytest.mark.parametrize(
    ("part", "rdp", "prv"),
    [
        (mechanism(multiplier(6, "zero_out"), **POISSON, **UPLOADS), (0.65, 2.30, 2.54, 5.72, 8.60, 13.13), None),
        (mechanism(multiplier(6, "replace_one"), **FIXED, **UPLOADS), (1.39, 5.02, 5.58, 13.13, 20.39, 32.35), None),
        (
            mechanism(multiplier(6, "zero_out", noises=4), **POISSON),
            (0.13, 0.41, 0.45, 0.97, 1.40, 2.05),
            (0.12, 0.38, 0.42, 0.89, 1.29, 1.89),
        ),
        (
            mechanism(multiplier(6, "zero_out"), **POISSON),
            (0.30, 0.90, 0.99, 2.10, 3.07, 4.51),
            (0.27, 0.83, 0.91, 1.94, 2.83, 4.18),
        ),
        (mechanism(multiplier(6, "replace_one"), **FIXED), (0.83, 3.53, None, 10.36, 15.92, 24.63), None),
    ],
    ids=["uploads, zero-out", "uploads, replace-one", "sum of 4", "central", "4 of 10"],
)
def test_six_sigmas_of_four_of_ten(
    part: Mechanism, rdp: tuple[float | None, ...], prv: tuple[float, ...] | None
) -> None:
    for i, rounds in enumerate(ROUNDS):
        found = spent((part, rounds), tight=prv is not None)
        if rdp[i] is not None:
            assert found.rdp == pytest.approx(rdp[i], abs=0.00501), rounds
        if prv:
            assert found.prv == pytest.approx(prv[i], abs=0.00501), rounds
            assert found.epsilon == found.prv


@pytest.mark.parametrize(
    ("z", "rate", "releases", "rdp", "prv"),
    [
        (1.0, 0.1, 10, 3.441, 2.865),  # what Opacus 1.6 gives with its own grid
        (1.0, 0.1, 100, 7.899, 7.057),
        (1.0, 0.1, 1000, 27.2, 25.2),
        (1.0, 0.01, 1000, 2.10, 1.84),
    ],
)
def test_published_epsilons(z: float, rate: float, releases: int, rdp: float, prv: float) -> None:
    found = spent((mechanism(z, sampling="poisson", rate=rate), releases), tight=True)
    assert (found.rdp, found.prv) == (pytest.approx(rdp, rel=3e-3), pytest.approx(prv, rel=3e-3))


def test_the_score_is_no_epsilon() -> None:
    scores = [score_eq7(rounds, DELTA, 0.4, 6) for rounds in ROUNDS]
    assert [round(score, 2) for score in scores] == [2.00, 6.32, 6.93, 14.14, 19.99, 28.28]
    assert score_eq7(1000, DELTA, 0.1, 1) == pytest.approx(1517, abs=0.5)
    assert score_eq7(100, DELTA, 1, 1) == pytest.approx(48.0, abs=0.05)
    assert exact(math.sqrt(100), DELTA) == pytest.approx(91.8, abs=0.05), "the score is below: no bound"
    assert score_eq7(1, DELTA, 0.4, 0.0) == math.inf


# ------------------------------------------------------------------------------------------------ independent sums
@pytest.mark.parametrize(("z", "releases"), [(6.0, 1), (6.0, 200), (3.0, 50), (1.0, 100), (1.0, 1000), (45.0, 5000)])
def test_without_sampling(z: float, releases: int) -> None:
    """RDP is T a / (2 z^2) and the logarithms of the conversion, at best over all a; PRV is near the exact epsilon."""
    a = 1 + np.geomspace(1e-3, 1e3, 20001)
    best = (releases * a / (2 * z * z) + np.log1p(-1 / a) - (math.log(DELTA) + np.log(a)) / (a - 1)).min()
    found = spent((mechanism(z), releases), tight=True)
    assert best <= found.rdp <= 1.003 * best
    truth = exact(math.sqrt(releases) / z, DELTA)
    assert truth <= found.rdp
    if releases != 1000:
        assert found.prv is not None
        assert truth <= found.prv <= truth + 2.5 * accountant.EPSILON_ERROR


@pytest.mark.parametrize("rate", [1e-6, 1e-3, 0.1, 0.4, 0.99])
@pytest.mark.parametrize("z", [0.3, 1.0, 6.0, 100.0])
def test_poisson_sampling_is_the_integral(z: float, rate: float) -> None:
    curve = accountant._curve(z, rate, "poisson")
    for order in (1.05, 1.5, 2.1, 5.25, 11.0, 64.0, 512.0):
        at = int(np.argmin(abs(accountant.ORDERS - order)))
        x = np.linspace(-14 * z, order + 14 * z, 40001)
        ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * x - 1) / (2 * z * z))
        integral = logsumexp(order * ratio + norm.logpdf(x, scale=z)) + math.log(x[1] - x[0])
        assert curve[at] == pytest.approx(integral / (order - 1), rel=1e-4, abs=1e-9), order


@pytest.mark.parametrize(("z", "power"), [(0.2, 2), (0.2, 8), (3.0, 2), (3.0, 4), (3.0, 60), (12.0, 20), (100.0, 20)])
def test_moments_are_the_exact_sum(z: float, power: int) -> None:
    """The binomial sum cancels all digits of a float64, so it is added up with 400 of them."""
    with localcontext(prec=400):
        terms = [
            (-1) ** i * math.comb(power, i) * (i * (i - 1) / (2 * Decimal(z) ** 2)).exp() for i in range(power + 1)
        ]
        assert accountant._log_moment(z, power) == pytest.approx(float(sum(terms, Decimal(0)).ln()), abs=1e-8)


@pytest.mark.parametrize("z", [1.0, 3.0, 12.0])
def test_a_fixed_size_is_theorem_27_by_loops(z: float) -> None:
    def moment(power: int) -> float:
        def part(x: float) -> float:
            return abs(math.expm1((2 * x - 1) / (2 * z * z))) ** power * float(norm.pdf(x, scale=z))

        return quad(part, -14 * z, power + 14 * z, limit=500, points=[0.5, power])[0]

    even = {power: moment(power) for power in (2, 4, 6)}
    for order in (2, 3, 5):
        total = 1.0
        for j in range(2, order + 1):
            binary = math.sqrt(even[j - j % 2] * even[j + j % 2])
            total += 0.1**j * math.comb(order, j) * min(4 * binary, 2 * math.exp(j * (j - 1) / (2 * z * z)))
        at = int(np.argmin(abs(accountant.ORDERS - order)))
        assert accountant._curve(z, 0.1, "fixed")[at] == pytest.approx(math.log(total) / (order - 1), rel=1e-6)


# ------------------------------------------------------------------------------------------------ properties
DRAWS = st.sampled_from(["poisson", "fixed"])


def drawn(z: float, sampling: str, size: int) -> Mechanism:
    if sampling == "fixed":
        return mechanism(z, sampling="fixed", size=size, population=100, adjacency="replace_one")
    return mechanism(z, sampling="poisson", rate=size / 100)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    sampling=DRAWS, z=st.sampled_from([0.5, 2.0, 8.0]), size=st.sampled_from([1, 20, 90]), releases=st.integers(1, 99)
)
def test_more_releases_less_noise_higher_rates_cost_more(sampling: str, z: float, size: int, releases: int) -> None:
    own = spent((drawn(z, sampling, size), releases)).epsilon
    assert spent((drawn(z, sampling, size), releases + 1)).epsilon > own
    assert spent((drawn(z / 2, sampling, size), releases)).epsilon > own
    assert spent((drawn(z, sampling, size + 10), releases)).epsilon >= own
    assert own <= spent((drawn(z, sampling, 100), releases)).epsilon, "never more than without sampling"


def test_mechanisms_add_up() -> None:
    """Gaussians of z and z' are together one of (z^-2 + z'^-2)^-1/2; parts of one are the whole, as PRV has it too."""
    both = spent((mechanism(3.0), 7), (mechanism(4.0), 5), tight=True)
    one = spent((mechanism((7 / 9 + 5 / 16) ** -0.5), 1), tight=True)
    assert both.rdp == pytest.approx(one.rdp, rel=1e-12)
    assert both.prv == pytest.approx(one.prv, abs=0.01)
    parts = [(mechanism(2.0, **POISSON), 3), (mechanism(5.0, **POISSON), 2), (mechanism(2.0, **POISSON), 4)]
    merged = [(mechanism(2.0, **POISSON), 7), (mechanism(5.0, **POISSON), 2)]
    assert spent(*parts, tight=True) == spent(*merged, tight=True)
    assert spent().epsilon == 0


@pytest.mark.parametrize("rate", [1e-6, 1e-9, 1e-12])
def test_tiny_rates_cost_next_to_nothing(rate: float) -> None:
    found = spent((mechanism(1.0, sampling="poisson", rate=rate), 1000), tight=True)
    assert 0 <= found.epsilon < 0.02
    assert found.rdp < 0.5


def test_a_run_goes_on_as_if_it_had_not_stopped() -> None:
    through, halted = Accountant(), Accountant()
    for i in range(4):
        for whole in (through, halted):
            whole.add(mechanism(2.0 + i / 3, **POISSON), 10 + i)
    resumed = Accountant()
    resumed.load_state_dict(json.loads(json.dumps(halted.state_dict())))
    for whole in (through, resumed):
        whole.add(mechanism(2.0, **POISSON), 5)
    assert resumed.epsilon(DELTA) == through.epsilon(DELTA)
    assert resumed.released == through.released


# ------------------------------------------------------------------------------------------------ who sees what
def test_against_uploads_the_draw_does_not_count() -> None:
    plain = spent((mechanism(6.0), 10))
    assert spent((mechanism(6.0, **POISSON, **UPLOADS), 10)) == plain
    assert spent((mechanism(6.0, **FIXED, **UPLOADS), 10)) == plain
    assert spent((mechanism(6.0, **POISSON), 10)).epsilon < plain.epsilon / 2
    records = mechanism(6.0, **POISSON, **UPLOADS, unit="record", drawn="records")
    assert spent((records, 10)) == spent((mechanism(6.0, **POISSON), 10)), "the client alone knows which records"
    clients = mechanism(6.0, **POISSON, **UPLOADS, unit="record")
    assert spent((clients, 10)) == plain


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (
            {"sampling": "poisson", "rate": 0.4, "adjacency": "replace_one"},
            "adjacency = 'replace_one': must be add_remove or",
        ),
        ({**FIXED, "adjacency": "zero_out"}, "adjacency = 'zero_out': must be replace_one with sampling = fixed"),
        ({**FIXED, "adjacency": "add_remove"}, "must be replace_one"),
        ({**UPLOADS, "adjacency": "add_remove"}, "who sees uploads sees which clients there are"),
        ({"sampling": "poisson", "rate": 0.0}, "privacy.rate = 0.0: must be more than 0, at most 1"),
        ({"sampling": "poisson", "rate": math.nan}, "privacy.rate"),
        ({"rate": 0.4}, "must be 1 unless sampling = poisson"),
        ({**FIXED, "size": 11}, "privacy.size = 11"),
        ({"size": 4}, "privacy.size = 4"),
        ({"drawn": "records"}, "must be clients where unit = client"),
        ({"sampling": "shuffled"}, "must be one of poisson, fixed, none"),
        ({"clip": math.inf}, "privacy.clip"),
        ({"multiplier": math.nan}, "privacy.multiplier"),
        ({"multiplier": -1.0}, "privacy.multiplier"),
    ],
)
def test_what_does_not_fit_is_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingError) as caught:
        Mechanism(**{"multiplier": 1.0, "clipped": "update", "clip": 1.0, **wrong})
    assert says in str(caught.value)


@pytest.mark.parametrize("other", [{"adjacency": "add_remove"}, {"unit": "record"}, {**UPLOADS}])
def test_different_promises_do_not_add_up(other: dict[str, Any]) -> None:
    whole = Accountant()
    whole.add(mechanism(1.0))
    with pytest.raises(SettingError, match="do not add up"):
        whole.add(mechanism(1.0, **other))
    assert whole.released == {mechanism(1.0): 1}


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_delta_is_a_probability(delta: float) -> None:
    with pytest.raises(SettingError, match="between 0 and 1"):
        Accountant().epsilon(delta)


@pytest.mark.parametrize("z", [0.0, 1e-200])
@pytest.mark.parametrize("rest", [{}, POISSON, FIXED])
def test_without_noise_epsilon_is_infinite(z: float, rest: dict[str, Any]) -> None:
    found = spent((mechanism(z, **rest), 1), (mechanism(5.0, **rest), 1), tight=True)
    assert (found.epsilon, found.prv, found.order) == (math.inf, None, None)
    assert "infinite" in found.why


def test_prv_says_why_it_is_not_there() -> None:
    for part, releases, says in (
        (mechanism(3.0, **FIXED), 1, "fixed size"),
        (mechanism(0.01), 1, "too large"),
        (mechanism(1.0, **POISSON), 10**7, "too large"),
    ):
        found = spent((part, releases), tight=True)
        assert found.prv is None
        assert says in found.why
        assert found.epsilon == found.rdp < math.inf
    assert "Floating point" in spent((mechanism(3.0), 1), delta=1e-30, tight=True).why


# ------------------------------------------------------------------------------------------------ report
CLEAN = Conduct(units=1000, sampler="poisson")


@pytest.mark.parametrize(
    ("part", "conduct", "delta", "says"),
    [
        (mechanism(3.0, **POISSON), {}, DELTA, []),
        (mechanism(0.0, **POISSON), {}, DELTA, ["infinite"]),
        (mechanism(3.0, **POISSON), {}, 1e-3, ["delta = 0.001 is not below 1/N, N = 1000"]),
        (mechanism(1e4, **POISSON), {}, DELTA, ["order 512 ends the grid"]),
        (mechanism(3.0, **POISSON), {"sampler": "fixed"}, DELTA, ["poisson sampling, but this run's is fixed"]),
        (mechanism(3.0), {"sampler": "fixed"}, DELTA, []),
        (mechanism(3.0, **POISSON, **UPLOADS), {}, DELTA, ["sees uploads"]),
        (mechanism(3.0), {"unnoised": ("loss", "sample counts", "buffers")}, DELTA, ["loss, sample counts, buffers"]),
        (mechanism(3.0), {"bounded_weights": False}, DELTA, ["unbounded"]),
        (mechanism(3.0), {"divides_by_replies": True}, DELTA, ["replies that came"]),
        (mechanism(3.0), {"trainings": 120}, DELTA, ["120 times", "all 10 releases"]),
        (dataclasses.replace(mechanism(3.0), clipped=accountant.WEIGHTS), {}, DELTA, ["not updates"]),
    ],
)
def test_warnings(part: Mechanism, conduct: dict[str, Any], delta: float, says: list[str]) -> None:
    whole = Accountant()
    whole.add(part, 10)
    given = accountant.warnings(whole, whole.epsilon(delta, tight=False), dataclasses.replace(CLEAN, **conduct))
    assert len(given) == min(len(says), 1)
    assert all(word in given[0] for word in says)


def test_a_report_has_all_that_an_epsilon_hangs_on() -> None:
    whole = Accountant()
    whole.add(mechanism(6.0, **POISSON), 12)
    whole.add(mechanism(3.0, **POISSON), 12)
    said = accountant.report(whole, DELTA, CLEAN, score_eq7(12, DELTA, 0.4, 6))
    assert json.loads(json.dumps(said)) == said
    assert said["epsilon"] == said["epsilon_prv"] < said["epsilon_rdp"]
    assert (said["accountant"], said["delta"], said["units"]) == ("PRV, upper bound", DELTA, 1000)
    assert said["score of eq. (7), not an epsilon"] == pytest.approx(6.93, abs=0.005)
    assert said["mechanisms"][1] == {
        "mechanism": "Gaussian", "multiplier": 3.0, "clipped": "update", "clip": 1.0, "sampling": "poisson",
        "rate": 0.4, "size": 0, "population": 0, "adjacency": "zero_out", "unit": "client", "adversary": "aggregate",
        "drawn": "clients", "counted_rate": 0.4, "releases": 12,
    }  # fmt: skip
    assert said["warnings"] == []
    fixed = Accountant()
    fixed.add(mechanism(3.0, **FIXED), 10)
    said = accountant.report(fixed, DELTA, dataclasses.replace(CLEAN, sampler="fixed"))
    assert (said["accountant"], said["epsilon_prv"]) == ("RDP, upper bound", None)
    assert "fixed size" in said["no_prv"]
