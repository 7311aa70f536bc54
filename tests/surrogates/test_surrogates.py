"""k-means, networks, their average, acquisitions, their search: plain loops, SciPy, scikit-learn, numbers by hand."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.cluster.vq import kmeans2
from sklearn.cluster import KMeans, kmeans_plusplus
from torch import Tensor

from fne.core.randomness import generator
from fne.surrogates import acquisition
from fne.surrogates import minimise as rcga
from fne.surrogates.kmeans import kmeans
from fne.surrogates.rbfn import (
    Network,
    Reading,
    descend,
    fit,
    fit_outputs,
    ordered_outputs,
    predict,
    predict_outputs,
    sorted_average,
)

Array = npt.NDArray[np.float64]
NAN, INF = math.nan, math.inf
FIELDS = ("centres", "widths", "weights", "bias")


def drawn(*shape: int, seed: int | str = 0) -> Tensor:
    return torch.rand(shape, generator=generator("surrogates", seed), dtype=torch.float64)


def samples(sets: int, n: int, d: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return points, values that are not symmetric, and which count: all but up to a third at the end."""
    x = drawn(sets, n, d, seed=seed) * 2 - 1
    y = 10 * ((x - 0.3) ** 2).sum(dim=-1) + x[..., 0]
    count = n - (drawn(sets, 1, seed=seed + 1) * n / 3).long()
    return x, y, torch.arange(n) < count


def spoilt(values: Tensor, valid: Tensor) -> Tensor:
    """Return `values` with NaN in the rows that do not count."""
    return values.where(valid.view(*valid.shape, *[1] * (values.ndim - 2)), NAN)


def at(network: Network, i: int | slice | tuple[int, ...]) -> Network:
    return Network(*(getattr(network, name)[i] for name in FIELDS))


def assert_same(a: Network, b: Network, tolerance: float = 1e-9) -> None:
    for name in FIELDS:
        torch.testing.assert_close(getattr(a, name), getattr(b, name), atol=tolerance, rtol=tolerance, msg=name)


# ------------------------------------------------------------------------------------------------ k-means
def first_centres(x: Array, u: Array) -> Array:
    """Return the k-means++ start that the uniform numbers `u [m]` choose."""
    picks = [int(u[0] * len(x))]
    for number in u[1:]:
        squares = np.array([min(((p - x[j]) ** 2).sum() for j in picks) for p in x])
        picks.append(int(np.searchsorted(np.cumsum(squares), number * squares.sum(), side="right")))
    return np.asarray(x[picks])


def inertia(x: Array, centres: Array) -> float:
    return float(((x[:, None] - centres) ** 2).sum(-1).min(1).sum())


@pytest.mark.parametrize(("n", "d", "m", "starts"), [(55, 10, 21, 3), (12, 1, 3, 4), (40, 2, 5, 2)])
def test_kmeans_ends_where_scipys_does_from_the_best_of_the_same_starts(n: int, d: int, m: int, starts: int) -> None:
    x, _, valid = samples(4, n, d)
    u = drawn(4, starts, m, seed="u")
    centres = kmeans(spoilt(x, valid), valid, u)
    for i in range(4):
        points = x[i][valid[i]].numpy()
        ends = [
            kmeans2(points, first_centres(points, u[i, s].numpy()), iter=100, minit="matrix", missing="warn")[0]
            for s in range(starts)
        ]
        best = min(ends, key=lambda c: inertia(points, c))
        np.testing.assert_allclose(centres[i].numpy(), best, atol=1e-12)


def test_kmeans_is_as_good_as_scikit_learns() -> None:
    x = samples(10, 60, 10)[0]
    centres = kmeans(x, torch.ones(10, 60, dtype=torch.bool), drawn(10, 10, 21, seed="u"))

    def start(points: Array, m: int, random_state: np.random.RandomState) -> Array:  # by default it is a greedy one
        return np.asarray(kmeans_plusplus(points, m, random_state=random_state, n_local_trials=1)[0])

    ours = sum(inertia(x[i].numpy(), centres[i].numpy()) for i in range(10))
    theirs = sum(KMeans(21, init=start, n_init=10, random_state=0).fit(x[i].numpy()).inertia_ for i in range(10))
    assert ours == pytest.approx(theirs, rel=0.02)


def test_kmeans_of_fewer_points_than_centres_and_of_none() -> None:
    x = torch.tensor([[[0.5, 0.5], [0.5, 0.5], [-0.25, 0.0], [NAN, NAN]], [[NAN, 1.0]] * 4], dtype=torch.float64)
    valid = torch.tensor([[True, True, True, False], [False] * 4])
    centres = kmeans(x, valid, drawn(2, 3, 5, seed="u"))
    assert set(map(tuple, centres[0].tolist())) == {(0.5, 0.5), (-0.25, 0.0)}
    assert centres[1].eq(0).all()


def test_kmeans_of_one_iteration_keeps_its_start() -> None:
    x, _, valid = samples(1, 20, 2)
    u = drawn(1, 1, 4, seed="u")
    points = x[0][valid[0]].numpy()
    np.testing.assert_allclose(kmeans(x, valid, u, iterations=1)[0], first_centres(points, u[0, 0].numpy()), atol=1e-12)


def test_kmeans_alone_is_as_in_a_batch_of_many_parts() -> None:
    x, _, valid = samples(140, 64, 6)
    u = drawn(140, 5, 13, seed="u")
    together = kmeans(x, valid, u)
    for i in (0, 117, 139):
        alone = kmeans(x[i : i + 1, valid[i]], valid[i : i + 1, valid[i]], u[i : i + 1])
        torch.testing.assert_close(together[i], alone[0], atol=1e-9, rtol=0)


# ------------------------------------------------------------------------------------------------ training
def phi(network: Network, x: Tensor) -> Array:
    """Return the basis functions at `x [n, d]` and a one, `[n, m + 1]`, by a loop."""
    centres, widths = network.centres.numpy(), network.widths.numpy()
    rows = [[math.exp(-(((p - c) ** 2).sum()) / s**2) for c, s in zip(centres, widths, strict=True)] for p in x.numpy()]
    return np.concatenate([np.array(rows), np.ones((len(x), 1))], axis=1)


def trained(features: Array, y: Array, w: Array, epochs: int, lr: float) -> Array:
    for _ in range(epochs):
        for i in np.argsort(y, kind="stable"):
            w = w - lr * (features[i] @ w - y[i]) * features[i]
    return w


@pytest.mark.parametrize(("d", "epochs", "lr"), [(10, 20, 0.12), (3, 5, 0.06), (1, 1, 0.12)])
def test_workable_fit_is_plain_gradient_descent_sample_by_sample(d: int, epochs: int, lr: float) -> None:
    x, y, valid = samples(3, 5 * d + 4, d)
    m = 2 * d + 1
    weights, bias = drawn(3, m, seed="w"), drawn(3, seed="b")
    u = drawn(3, 2, m, seed="u")
    network = fit(spoilt(x, valid), spoilt(y, valid), valid, weights, bias, u, epochs=epochs, lr=lr)
    for i in range(3):
        here = at(network, i)
        squares = (here.centres**2).sum(dim=1)
        assert (squares.diff() >= 0).all()
        found = kmeans(x, valid, u)[i]
        torch.testing.assert_close(here.centres, found[(found**2).sum(dim=1).argsort()], atol=1e-12, rtol=0)
        apart = torch.stack([(here.centres - c).norm(dim=1) for c in here.centres]).fill_diagonal_(INF)
        torch.testing.assert_close(here.widths, apart.min(dim=1).values, atol=1e-12, rtol=0)
        counted = valid[i]
        start = np.append(weights[i].numpy(), bias[i])
        expected = trained(phi(here, x[i][counted]), y[i][counted].numpy(), start, epochs, lr)
        np.testing.assert_allclose(np.append(here.weights, here.bias), expected, rtol=1e-10, atol=1e-10)


def test_descent_is_exact_to_rounding_and_a_row_of_zeros_does_nothing() -> None:
    features, y, start = drawn(2, 9, 50), drawn(2, 50, seed=1).sort(dim=1).values, drawn(2, 9, seed=2)
    features[:, :, 40:], y[:, 40:] = 0, 0
    ended = descend(features, y, start, epochs=7, lr=0.05)
    for i in range(2):
        expected = trained(features[i, :, :40].T.numpy(), y[i, :40].numpy(), start[i].numpy(), 7, 0.05)
        np.testing.assert_allclose(ended[i], expected, rtol=1e-12)


def test_literal_fit_keeps_the_network_that_it_receives() -> None:
    x, y, valid = samples(2, 12, 2)
    weights, bias, u = drawn(2, 5, seed="w"), drawn(2, seed="b"), drawn(2, 3, 5, seed="u")
    fresh = fit(x, y, valid, weights, bias, u, epochs=1, lr=0.01, reading="literal")
    for i in range(2):
        here = at(fresh, i)
        largest = max((a - b).norm() for a in here.centres for b in here.centres)
        torch.testing.assert_close(here.widths, math.sqrt(2) * largest.expand(5))  # exp(-r^2 / (2 s^2)), eq. (6)
        counted = valid[i]
        expected = trained(phi(here, x[i][counted]), y[i][counted].numpy(), np.append(weights[i], bias[i]), 1, 0.01)
        np.testing.assert_allclose(np.append(here.weights, here.bias), expected, rtol=1e-10)
    again = fit(x, y, valid, fresh.weights, fresh.bias, u, epochs=1, lr=0.01, reading="literal", received=fresh)
    assert torch.equal(again.centres, fresh.centres)
    assert torch.equal(again.widths, fresh.widths)
    assert not torch.equal(again.weights, fresh.weights)


def test_literal_fit_diverges_at_the_papers_rate() -> None:
    x, y, valid = samples(1, 50, 10)
    x[:, 1:] *= 0.1  # as after some rounds: most near one point, hence within the one width of all centres
    network = fit(x, y, valid, drawn(1, 21), drawn(1), drawn(1, 1, 21), epochs=500, lr=0.12, reading="literal")
    assert not network.weights.isfinite().any()


@pytest.mark.parametrize("reading", ["workable", "literal"])
def test_fit_to_no_sample_one_sample_and_equal_samples(reading: Reading) -> None:
    x = torch.full((3, 4, 1), 0.5, dtype=torch.float64)
    y = torch.tensor([[NAN] * 4, [NAN, 2.0, NAN, NAN], [2.0, 2.0, 3.0, NAN]], dtype=torch.float64)
    start = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64).expand(3, 3)
    network = fit(
        x, y, y.isfinite(), start, torch.ones(3, dtype=torch.float64), drawn(3, 2, 3), epochs=3, lr=0.05,
        reading=reading,
    )  # fmt: skip
    assert all(getattr(network, name).isfinite().all() for name in FIELDS)
    assert network.weights[0].tolist() == [1, 2, 3]
    assert network.bias[0] == 1
    assert network.centres[1:].eq(0.5).all()
    assert network.widths.gt(0).all()


@pytest.mark.parametrize("n", [20, 64, 70])
def test_fit_alone_is_as_in_a_batch_of_other_padding(n: int) -> None:
    x, y, valid = samples(6, n, 4)
    weights, bias, u = drawn(6, 9, seed="w"), drawn(6, seed="b"), drawn(6, 3, 9, seed="u")
    together = fit(spoilt(x, valid), spoilt(y, valid), valid, weights, bias, u, epochs=20, lr=0.12)
    for i in range(6):
        one, inside = slice(i, i + 1), valid[i]
        alone = fit(
            x[one, inside], y[one, inside], valid[one, inside], weights[one], bias[one], u[one], epochs=20, lr=0.12
        )
        assert_same(at(alone, 0), at(together, i))


# ------------------------------------------------------------------------------------------------ prediction
def random_networks(*axes: int, m: int = 7, d: int = 3) -> Network:
    centres, widths = drawn(*axes, m, d, seed="c") * 2 - 1, drawn(*axes, m, seed="s") + 0.1
    return Network(centres, widths, drawn(*axes, m, seed="a") - 0.5, drawn(*axes, seed="b"))


def test_predictions_are_the_sum_written_out_with_axes_broadcast() -> None:
    network, x = random_networks(2, 4), drawn(2, 1, 11, 3, seed="x") * 2 - 1
    predictions = predict(network, x)
    assert predictions.shape == (2, 4, 11)
    for i in range(2):
        for k in range(4):
            here = at(network, (i, k))
            expected = phi(here, x[i, 0]) @ np.append(here.weights, here.bias)
            np.testing.assert_allclose(predictions[i, k], expected, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 1e-2)])
def test_predictions_of_narrow_functions_far_from_the_middle(dtype: torch.dtype, tolerance: float) -> None:
    width = 1e-5 if dtype == torch.float64 else 1e-2
    centre = torch.full((1, 2), 0.99, dtype=dtype)
    network = Network(
        centre, torch.tensor([width], dtype=dtype), torch.ones(1, dtype=dtype), torch.zeros((), dtype=dtype)
    )
    x = torch.stack([centre[0], centre[0] + torch.tensor([width, 0], dtype=dtype), -centre[0]])
    expected = torch.tensor([1, math.exp(-1), 0], dtype=dtype)
    torch.testing.assert_close(predict(network, x), expected, atol=tolerance, rtol=0)


# ------------------------------------------------------------------------------------------------ averaging
def test_sorted_average_by_hand() -> None:
    network = Network(
        centres=torch.tensor([[[0.5], [-0.1]], [[-0.3], [0.9]]]),  # norms .25, .01 | .09, .81
        widths=torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
        weights=torch.tensor([[10.0, 20.0], [30.0, 40.0]]),
        bias=torch.tensor([1.0, 5.0]),
    )
    averaged = sorted_average(network, torch.tensor([0.25, 0.75]))
    # sorted: -.1 with -.3, .5 with .9; the widths and weights go with them
    torch.testing.assert_close(averaged.centres, torch.tensor([[-0.25], [0.8]]))
    torch.testing.assert_close(averaged.widths, torch.tensor([2.75, 3.25]))
    torch.testing.assert_close(averaged.weights, torch.tensor([27.5, 32.5]))
    torch.testing.assert_close(averaged.bias, torch.tensor(4.0))


def test_averaged_centres_are_sorted_again() -> None:
    network = Network(
        centres=torch.tensor([[[0.1], [0.2]], [[0.3], [-0.4]]]),  # means .2 and -.1
        widths=torch.tensor([[1.0, 2.0], [1.0, 2.0]]),
        weights=torch.tensor([[10.0, 20.0], [10.0, 20.0]]),
        bias=torch.zeros(2),
    )
    averaged = sorted_average(network, torch.tensor([0.5, 0.5]))
    torch.testing.assert_close(averaged.centres, torch.tensor([[-0.1], [0.2]]))
    assert averaged.widths.tolist() == [2, 1]
    assert averaged.weights.tolist() == [20, 10]


def test_sorted_average_never_reads_who_has_no_share() -> None:
    network = random_networks(2, 3)
    shares = torch.tensor([[0.4, 0.0, 0.6], [0.0, 0.0, 1.0]], dtype=torch.float64)
    broken = Network(*(torch.where((shares > 0).view(2, 3, *[1] * (v.ndim - 2)), v, NAN)
                       for v in (getattr(network, name) for name in FIELDS)))  # fmt: skip
    averaged = sorted_average(broken, shares)
    two = sorted_average(at(network, (0, [0, 2])), torch.tensor([0.4, 0.6], dtype=torch.float64))  # type: ignore[arg-type]
    assert_same(at(averaged, 0), two, 1e-14)
    x = drawn(5, 3, seed="x")
    torch.testing.assert_close(predict(at(averaged, 1), x), predict(at(network, (1, 2)), x))


def test_outputs_of_a_network_are_networks_with_centres_in_common() -> None:
    x, y, valid = samples(3, 40, 4)
    y = torch.stack([y, 3 - y, (5 * x[..., 1]).sin()], dim=-1)
    weights, bias, u = drawn(3, 3, 7, seed="w"), drawn(3, 3, seed="b"), drawn(3, 2, 7, seed="u")
    made = fit_outputs(x, spoilt(y, valid), valid, weights, bias, u, epochs=5, lr=0.05)
    ordered, new = ordered_outputs(made), drawn(3, 9, 4, seed="new")
    assert made.centres.shape == (3, 7, 4)
    for output in range(3):
        single = fit(x, y[..., output], valid, weights[:, output], bias[:, output], u, epochs=5, lr=0.05)
        own = Network(made.centres, made.widths, made.weights[:, output], made.bias[:, output])
        assert_same(own, single, 1e-12)
        torch.testing.assert_close(predict_outputs(made, new)[..., output], predict(single, new))
    torch.testing.assert_close(predict_outputs(ordered, new), predict_outputs(made, new))


def test_networks_of_several_outputs_are_put_in_order_of_their_centres() -> None:
    centres = torch.tensor([[[3.0], [-1.0], [2.0]]])
    weights = torch.tensor([[[30.0, 10.0, 20.0], [3.0, 1.0, 2.0]]])
    ordered = ordered_outputs(Network(centres, torch.tensor([[0.3, 0.1, 0.2]]), weights, torch.tensor([[7.0, 8.0]])))
    assert ordered.centres.flatten().tolist() == [-1, 2, 3]
    assert ordered.widths[0].tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert ordered.weights[0].tolist() == [[10, 20, 30], [1, 2, 3]]
    assert ordered.bias[0].tolist() == [7, 8]


# ------------------------------------------------------------------------------------------------ acquisition
def test_bounds_from_sums_are_those_of_all_predictions() -> None:
    local, fed = 100 * drawn(5, 30, 3, seed="l") - 40, 100 * drawn(30, 3, seed="g") - 40
    apart = local - fed
    got = acquisition.lcb_of_sums(apart.sum(dim=0), apart.square().sum(dim=0), torch.tensor(5.0), fed, 2.0)
    shares = torch.full((5,), 0.2, dtype=torch.float64)
    for objective in range(3):
        wanted = acquisition.lcb("f", local[..., objective], fed[..., objective], shares, 2.0)
        torch.testing.assert_close(got[..., objective], wanted, rtol=1e-12, atol=1e-11)
    # without a global network its prediction is the nodes' mean, eq. (1)
    alone = acquisition.lcb_of_sums(local.sum(dim=0), local.square().sum(dim=0), torch.tensor(5.0), None, 2.0)
    mean = local.mean(dim=0)
    for objective in range(3):
        wanted = acquisition.lcb("f", local[..., objective], mean[..., objective], shares, 2.0)
        torch.testing.assert_close(alone[..., objective], wanted, rtol=1e-9, atol=1e-9)


def test_rounding_below_zero_is_no_deviation() -> None:
    one = torch.ones(1, 1, dtype=torch.float64)
    assert acquisition.lcb_of_sums(4 * one, (4 - 1e-12) * one, torch.tensor(4.0), None, 2.0).item() == 1.0
    assert acquisition.lcb_of_sums(0 * one, -1e-12 * one, torch.tensor(4.0), 3 * one, 2.0).item() == 3.0


def test_masks_that_cancel_in_the_mean_are_in_the_deviation() -> None:
    local, masks = drawn(4, 50, 2, seed="l"), 10 * drawn(4, 50, 2, seed="m")
    masks -= masks.mean(dim=0)
    masked = local + masks
    exact = acquisition.lcb_of_masked(masked, None, 0.0, normalise=False)
    torch.testing.assert_close(exact, local.mean(dim=0), rtol=1e-12, atol=1e-12)
    mean, deviation = masked.mean(dim=0), masked.std(dim=0, correction=0)
    got = acquisition.lcb_of_masked(masked, None, 2.0, normalise=True)  # eq. (4)
    scaled = [(v - v.amin(dim=0)) / (v.amax(dim=0) - v.amin(dim=0)) for v in (mean, deviation)]
    torch.testing.assert_close(got, scaled[0] - 2 * scaled[1])
    fed = drawn(50, 2, seed="g")  # eq. (1)
    both = (mean + fed) / 2
    variance = ((masked - both).square().sum(dim=0) + (fed - both).square()) / 4
    torch.testing.assert_close(
        acquisition.lcb_of_masked(masked, fed, 1.5, normalise=False), both - 1.5 * variance.sqrt()
    )


@pytest.mark.parametrize(
    ("kind", "mean", "variance"),
    [
        ("f", (2.5 + 4) / 2, ((1 - 3.25) ** 2 + (3 - 3.25) ** 2 + (4 - 3.25) ** 2) / 2),  # (13), (16)
        ("l", 2.5, ((1 - 2.5) ** 2 + (3 - 2.5) ** 2) / 1),  # (14), (20)
        ("g", 4, ((1 - 4) ** 2 + (3 - 4) ** 2) / 1),  # (15), (20)
    ],
)
def test_lower_confidence_bounds_by_hand(kind: Literal["f", "l", "g"], mean: float, variance: float) -> None:
    local = torch.tensor([[1.0], [NAN], [3.0]])  # a share of 1/4 and 3/4; one node is out
    bound = acquisition.lcb(kind, local, torch.tensor([4.0]), torch.tensor([0.25, 0, 0.75]), 2.0)
    assert bound.tolist() == pytest.approx([mean - 2 * math.sqrt(variance)])


@pytest.mark.parametrize(("kind", "expected"), [("f", 2 - 3 * math.sqrt(2)), ("l", 1 - 0.0), ("g", 3 - 3 * 2)])
def test_lower_confidence_bounds_of_one_node(kind: Literal["f", "l", "g"], expected: float) -> None:
    shares = torch.tensor([[1.0], [1.0]])
    bound = acquisition.lcb(kind, torch.tensor([[[1.0]], [[NAN]]]), torch.tensor([[3.0], [0.0]]), shares, 3.0)
    assert bound[0].tolist() == pytest.approx([expected])
    assert bound[1].isnan().all() or kind == "g"  # a network that diverged is not hidden


def test_bounds_of_runs_with_unlike_numbers_of_nodes() -> None:
    local, fed = drawn(3, 4, 6, seed="l"), drawn(3, 6, seed="g")
    shares = torch.tensor([[0.25] * 4, [0.5, 0.5, 0, 0], [0, 0, 0, 1]], dtype=torch.float64)
    for kind in ("f", "l", "g"):
        together = acquisition.lcb(kind, local, fed, shares, 2.0)
        for i in range(3):
            there = shares[i] > 0
            alone = acquisition.lcb(kind, local[i, there], fed[i], shares[i, there], 2.0)
            torch.testing.assert_close(together[i], alone)


# ------------------------------------------------------------------------------------------------ search
def bowls(targets: Tensor) -> rcga.Score:
    return lambda points: ((points - targets.to(points.dtype).unsqueeze(1)) ** 2).sum(dim=-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_search_finds_each_runs_own_minimum_also_in_corners(dtype: torch.dtype) -> None:
    targets = torch.tensor([[0.3, -0.7, 0.1], [1.0, -1.0, 1.0], [0.0, 0.0, 0.0]])
    draws = [generator("search", run) for run in range(3)]
    points, values = rcga.minimise(bowls(targets), 3, draws, dtype=dtype)
    assert points.dtype == dtype
    torch.testing.assert_close(points, targets.to(dtype), atol=0.03, rtol=0)
    torch.testing.assert_close(values, bowls(targets)(points.unsqueeze(1)).squeeze(1))


def test_search_alone_is_as_in_a_batch() -> None:
    targets = drawn(4, 5) * 2 - 1
    settings: dict[str, Any] = {"population": 20, "generations": 23, "crossover_eta": 2.0, "crossover_gene": 0.9}
    together = rcga.minimise(
        bowls(targets), 5, [generator("s", run) for run in range(4)], mutation_eta=20.0, mutation_gene=0.1, **settings
    )
    for run in (3, 1):
        alone = rcga.minimise(
            bowls(targets[run : run + 1]), 5, [generator("s", run)], mutation_eta=20.0, mutation_gene=0.1, **settings
        )
        torch.testing.assert_close(alone[0][0], together[0][run], atol=1e-9, rtol=0)


def test_search_asks_for_the_population_once_a_generation_and_stays_in_the_cube() -> None:
    asked: list[Tensor] = []

    def score(points: Tensor) -> Tensor:
        asked.append(points)
        return points.sum(dim=-1)

    _, values = rcga.minimise(score, 2, [generator("cube", run) for run in range(2)], population=10, generations=11)
    assert [tuple(points.shape) for points in asked] == [(2, 10, 2)] * 12
    assert torch.stack(asked).abs().max() <= 1
    torch.testing.assert_close(values, torch.stack([score(points) for points in asked[:12]]).amin(dim=(0, 2)))
    strata = ((asked[0] + 1) * 5).long().sort(dim=1).values
    assert torch.equal(strata, torch.arange(10).view(1, 10, 1).expand(2, 10, 2))


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_scores_that_are_not_finite_never_win(bad: float) -> None:
    def score(points: Tensor) -> Tensor:
        return torch.where(points[..., 0] < 0.2, bad, points[..., 0])

    points, values = rcga.minimise(score, 1, [generator("bad", 0)], population=10, generations=30)
    assert 0.2 <= points.item() < 0.25
    assert values.isfinite().all()


def test_search_where_no_score_is_finite_says_so_by_its_value() -> None:
    _, values = rcga.minimise(
        lambda points: points.sum(-1) * NAN, 2, [generator("none", 0)], population=4, generations=2
    )
    assert values.tolist() == [INF]


@pytest.mark.gpu
def test_networks_and_search_on_a_gpu_are_those_on_the_cpu() -> None:
    x, y, valid = samples(4, 30, 3)
    given = (x, y, valid, drawn(4, 7, seed="w"), drawn(4, seed="b"), drawn(4, 2, 7, seed="u"))
    here = fit(*given, epochs=20, lr=0.12)
    there = fit(*(t.cuda() for t in given), epochs=20, lr=0.12)
    assert_same(here, Network(*(getattr(there, name).cpu() for name in FIELDS)), 1e-8)
    draws = [generator("gpu", run) for run in range(4)]
    points, _ = rcga.minimise(lambda p: predict(there, p), 3, draws, generations=30, device="cuda")
    assert points.is_cuda
    assert points.abs().max() <= 1
