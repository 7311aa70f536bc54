"""Losses and accuracy of `P` models at once, per sample. Models return logits; all losses are minimised.

`nmse` is FNE's eq. (5) as it was meant: the paper maximises the negative of the squared error summed over the outputs
and averaged over the samples; here the error is minimised without the sign. `mse` averages over the outputs too (the
scale of the paper's Table 1). Sums over samples are taken in float64 and divided once: no mean of means. Categorical
cross-entropy over sigmoids divides the sigmoids by their sum, as Keras does (Keras also clips them at 1e-7; from logits
that is not needed).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fne.core.errors import FneError, SettingError

Loss = Literal["nmse", "mse", "bce", "cross_entropy"]
_FOR_LABELS = {"bce", "cross_entropy"}
DISPLAY_SIGN = {"nmse": -1}
"""Sign of a loss in output, where the sign differs from that of the minimised loss."""
NO_ANSWER = -1
"""Placeholder for the class where a model's outputs determine none; equal to no label."""


def check_loss(loss: str, *, classification: bool) -> None:
    """Raise `SettingError` if a loss needs labels and the targets are numbers."""
    if loss in _FOR_LABELS and not classification:
        raise SettingError("strategy.loss", loss, "nmse or mse for regression targets")


def output_of(module: object, *, classification: bool) -> str:
    """Return how a model's logits are read: as its `output` says (default `softmax`); `linear` for regression."""
    return str(getattr(module, "output", "softmax")) if classification else "linear"


def separable(loss: str, output: str) -> bool:
    """Return whether each output has a loss that depends on this output alone; `bce` sees logits one by one.

    Methods that treat outputs separately and nodes that answer with one loss per output need such a loss.
    """
    return loss == "bce" or (loss != "cross_entropy" and output != "softmax")


def predictions(logits: Tensor, output: str) -> Tensor:
    """Return probabilities (`softmax`, `sigmoid`) or the values themselves (`linear`), same shape as `logits`."""
    if output == "softmax":
        return logits.softmax(dim=-1)
    return logits.sigmoid() if output == "sigmoid" else logits


def sample_losses(loss: str, logits: Tensor, targets: Tensor, output: str, *, per_output: bool = False) -> Tensor:
    """Return the loss of each individual on each sample.

    Args:
        loss: `nmse` (sum over outputs), `mse` (mean over outputs), `bce` (from logits, mean over outputs),
            `cross_entropy` (from logits; of sigmoids `s` minus the logarithm of `s_i / sum_j s_j`).
        logits: `[P, N, C]`.
        targets: labels int64 `[N]` or values float `[N, C]`.
        output: what the model's logits mean: `softmax`, `sigmoid`, `linear`.
        per_output: return one loss per output instead of the sum or mean over outputs.

    Returns:
        float tensor `[P, N]`, or per output `[P, N, C]`.

    Raises:
        FneError: `per_output` where outputs have no separate losses (`cross_entropy`; softmax with any loss but `bce`).
    """
    if per_output and not separable(loss, output):
        raise FneError(
            f"loss {loss!r} with output {output!r} is not a sum over outputs: outputs have no separate losses"
        )
    labels = targets.dtype == torch.int64
    if loss == "cross_entropy":
        picked = targets.expand(logits.shape[0], -1).unsqueeze(-1)
        scores = F.logsigmoid(logits) if output == "sigmoid" else logits
        return scores.logsumexp(dim=-1) - scores.gather(-1, picked).squeeze(-1)
    wanted = F.one_hot(targets, logits.shape[-1]).to(logits.dtype) if labels else targets
    if loss == "bce":
        wanted = wanted.expand_as(logits)
        crossed = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
        return crossed if per_output else crossed.mean(dim=-1)
    squared = (predictions(logits, output if labels else "linear") - wanted).square()
    if per_output:
        return squared
    return squared.sum(dim=-1) if loss == "nmse" else squared.mean(dim=-1)


def answers(logits: Tensor) -> Tensor:
    """Return the predicted class of each sample, int64 `[...]`, from logits `[..., C]`; `NO_ANSWER` without any.

    The answer is the class of the largest logit; among equal logits, the first class. A sample has an answer only where
    its largest logit is a finite number: a NaN among the logits leaves the largest one undefined, and an infinite logit
    makes softmax and losses NaN. A logit of minus infinity is a class that the model rules out, and may stand beside
    finite logits.
    """
    largest = logits.amax(dim=-1)  # NaN where any logit is NaN
    return torch.where(largest.isfinite(), logits.argmax(dim=-1), NO_ANSWER)


def correct(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the number of correct answers `[P]`, float64, of logits `[P, N, C]` for labels `[N]`."""
    return (answers(logits) == targets).sum(dim=-1).double()
