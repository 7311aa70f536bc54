"""Losses of many individuals at once against torch.nn.functional and NumPy, one individual at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fne.core.errors import SettingError
from fne.core.randomness import generator
from fne.evolution.losses import check_loss, correct, predictions, sample_losses

P, N, C = 3, 7, 4
LOGITS = 3 * torch.randn(P, N, C, generator=generator("logits"))
LABELS = torch.randint(C, (N,), generator=generator("labels"))
VALUES = torch.randn(N, C, generator=generator("values"))


def softmax(x: np.ndarray) -> np.ndarray:
    """Return the softmax over the last axis."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


ACTIVATIONS = {"softmax": softmax, "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "linear": lambda x: x}


@pytest.mark.parametrize("p", range(P))
def test_cross_entropy_is_torchs(p: int) -> None:
    ours = sample_losses("cross_entropy", LOGITS, LABELS, "softmax")
    assert ours.shape == (P, N)
    assert torch.allclose(ours[p], F.cross_entropy(LOGITS[p], LABELS, reduction="none"), atol=1e-6)


@pytest.mark.parametrize("p", range(P))
def test_cross_entropy_over_sigmoids_takes_them_in_proportion(p: int) -> None:
    """Of sigmoids s, -log(s_i / sum(s)), as Keras renormalises what need not sum to 1."""
    s = ACTIVATIONS["sigmoid"](LOGITS[p].double().numpy())
    wanted = -np.log(s[np.arange(N), LABELS.numpy()] / s.sum(axis=1))
    ours = sample_losses("cross_entropy", LOGITS, LABELS, "sigmoid")[p]
    np.testing.assert_allclose(ours.numpy(), wanted, rtol=1e-5, atol=1e-6)
    assert not np.allclose(ours.numpy(), -np.log(softmax(LOGITS[p].double().numpy()))[np.arange(N), LABELS.numpy()])


def test_cross_entropy_over_sigmoids_by_hand() -> None:
    """Equal sigmoids are a coin's toss; 1/2 against 3/4 is 2 : 3; what is certain of everything is of nothing."""
    logits = torch.tensor([[[0.0, 0.0], [0.0, np.log(3.0)], [100.0, 100.0], [-100.0, -100.0]]])
    losses = sample_losses("cross_entropy", logits, torch.tensor([0, 1, 0, 1]), "sigmoid")
    assert losses[0].tolist() == pytest.approx([np.log(2), np.log(5 / 3), np.log(2), np.log(2)], rel=1e-6)


@pytest.mark.parametrize("output", ["softmax", "sigmoid"])
def test_gradients_of_the_cross_entropy_are_finite_and_right(output: str) -> None:
    """At logits of +-100 in float32 as those of the same formula in float64, by central differences."""
    logits = torch.tensor([[[100.0, -100.0, 0.5], [-100.0, 100.0, 100.0], [-100.0, -100.0, -100.0]]])
    labels = torch.tensor([1, 0, 2])
    ours = logits.clone().requires_grad_()
    sample_losses("cross_entropy", ours, labels, output).sum().backward()
    assert ours.grad is not None
    assert bool(ours.grad.isfinite().all())

    def total(z: np.ndarray) -> float:
        log = -np.logaddexp(0, -z) if output == "sigmoid" else z
        return float((np.logaddexp.reduce(log, axis=1) - log[np.arange(3), labels.numpy()]).sum())

    z, step = logits[0].double().numpy(), 1e-4
    for at in np.ndindex(z.shape):
        shift = np.zeros_like(z)
        shift[at] = step
        slope = (total(z + shift) - total(z - shift)) / (2 * step)
        assert ours.grad[0][at].item() == pytest.approx(slope, abs=1e-6)


@pytest.mark.parametrize("p", range(P))
@pytest.mark.parametrize("targets", [LABELS, (VALUES > 0).float()])
def test_bce_is_torchs_mean_over_outputs(p: int, targets: Tensor) -> None:
    wanted = F.one_hot(targets, C).float() if targets.ndim == 1 else targets
    ours = sample_losses("bce", LOGITS, targets, "sigmoid")
    theirs = F.binary_cross_entropy_with_logits(LOGITS[p], wanted, reduction="none").mean(dim=1)
    assert torch.allclose(ours[p], theirs, atol=1e-6)


@pytest.mark.parametrize("p", range(P))
@pytest.mark.parametrize("output", ["softmax", "sigmoid", "linear"])
def test_squared_errors_of_labels_are_numpys_on_probabilities(p: int, output: str) -> None:
    squared = (ACTIVATIONS[output](LOGITS[p].double().numpy()) - np.eye(C)[LABELS.numpy()]) ** 2
    nmse = sample_losses("nmse", LOGITS, LABELS, output)[p]
    mse = sample_losses("mse", LOGITS, LABELS, output)[p]
    np.testing.assert_allclose(nmse.numpy(), squared.sum(axis=1), rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(mse.numpy(), squared.mean(axis=1), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("output", ["softmax", "sigmoid", "linear"])
def test_regression_compares_the_values_themselves(output: str) -> None:
    squared = (LOGITS.double().numpy() - VALUES.double().numpy()) ** 2
    np.testing.assert_allclose(sample_losses("nmse", LOGITS, VALUES, output).numpy(), squared.sum(-1), rtol=1e-5)
    np.testing.assert_allclose(sample_losses("mse", LOGITS, VALUES, output).numpy(), squared.mean(-1), rtol=1e-5)


def test_a_constant_half_on_two_one_hot_outputs() -> None:
    """By hand (FNE, Table 1 and eq. 5): 0.25 per output, 0.5 summed."""
    logits, labels = torch.full((1, 2, 2), 0.5), torch.tensor([0, 1])
    assert sample_losses("mse", logits, labels, "linear").tolist() == [[0.25, 0.25]]
    assert sample_losses("nmse", logits, labels, "linear").tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize("output", ["softmax", "sigmoid"])
@pytest.mark.parametrize("loss", ["bce", "cross_entropy", "mse", "nmse"])
def test_large_logits_do_not_overflow(loss: str, output: str) -> None:
    logits = torch.tensor([[[1e4, -1e4], [-1e4, 1e4]]])
    losses = sample_losses(loss, logits, torch.tensor([0, 0]), output)
    assert bool(losses.isfinite().all())
    assert losses[0, 0] == 0
    assert losses[0, 1] > 0.5


def test_one_broken_individual_breaks_only_itself() -> None:
    logits = LOGITS.clone()
    logits[1, 2, 0] = torch.nan
    for loss in ("nmse", "mse", "bce", "cross_entropy"):
        good = sample_losses(loss, LOGITS, LABELS, "softmax")
        bad = sample_losses(loss, logits, LABELS, "softmax")
        assert bool(bad[1, 2].isnan())
        assert torch.equal(bad[[0, 2]], good[[0, 2]])


def test_correct_counts_right_answers_in_float64() -> None:
    wanted = [(LOGITS[p].argmax(dim=1) == LABELS).sum().item() for p in range(P)]
    got = correct(LOGITS, LABELS)
    assert got.dtype == torch.float64
    assert got.tolist() == wanted


@pytest.mark.parametrize("output", ["softmax", "sigmoid", "linear"])
def test_predictions(output: str) -> None:
    np.testing.assert_allclose(
        predictions(LOGITS, output).numpy(), ACTIVATIONS[output](LOGITS.double().numpy()), rtol=1e-5
    )


@pytest.mark.parametrize("loss", ["bce", "cross_entropy"])
def test_losses_of_labels_are_refused_for_regression(loss: str) -> None:
    check_loss(loss, classification=True)
    check_loss("mse", classification=False)
    with pytest.raises(SettingError, match=rf"strategy\.loss = '{loss}': must be nmse or mse"):
        check_loss(loss, classification=False)
