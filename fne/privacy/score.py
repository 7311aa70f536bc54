"""The privacy score of FedMOEAC, eq. (7): its formula, its label, and the note to print wherever the score is shown."""

from __future__ import annotations

import math

SCORE = "score of eq. (7), not an epsilon"
"""Label of the score in an account and wherever it is printed."""
NOTE = "note on the score"
"""Label of `score_note` in an account, and of the text in TensorBoard."""


def score_eq7(rounds: int, delta: float, rate: float, sigma: float) -> float:
    """Return sqrt(2 T ln(1/delta)) / (v sigma), equation (7) of FedMOEAC: a score, not an epsilon.

    The sampling rate v is on the wrong side (fewer clients a round protect better, but score worse), and the term
    T / (2 sigma^2) of concentrated differential privacy is missing, so even at v = 1 it is no upper bound: sigma 1,
    T 100 and delta 1e-5 score 48.0, their epsilon is 91.8. It ranks the noise of runs with the same T, v and delta.
    """
    return math.sqrt(2 * rounds * math.log(1 / delta)) / (rate * sigma) if sigma > 0 else math.inf


def score_note(noise: str, weights: int) -> str:
    """Return what the score leaves out, as a sentence for each place that shows the score; empty if nothing.

    Args:
        noise: the setting `strategy.noise`, `total` or `coordinate`.
        weights: number of weights that share the noise.
    """
    if noise != "total":
        return ""
    root = f"{math.sqrt(weights):,.0f}"
    return (
        f"with strategy.noise = total each of the {weights:,} weights gets noise of sigma Z / {root} (the root of "
        "their number), while eq. (7) counts sigma Z for each weight: a small score says nothing about protection "
        "here; the accounted epsilon counts the noise that there is"
    )
