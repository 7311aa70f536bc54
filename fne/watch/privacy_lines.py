"""What a run has spent of its privacy, as lines below its tables: an accounted epsilon, beside it a paper's score."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fne.privacy.score import NOTE, SCORE

Account = Mapping[str, Any]


def privacy_lines(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return lines for those runs that have an account: what it is of, and what to know before believing it.

    Of several seeds the account of that which spent most is told.
    """
    lines = []
    for summary in summaries:
        accounts = summary.get("accounts") or [summary.get("privacy")]
        accounts = sorted((account for account in accounts if account), key=_epsilon)
        if not accounts:
            continue
        account = accounts[-1]
        among = f", the most of {len(accounts)} runs (least: {_shown(_epsilon(accounts[0]))})" * (len(accounts) > 1)
        simulated = "simulated privacy" if account.get("simulated") else "privacy"
        lines.append(
            f"{simulated} of {summary['name']}: epsilon {_shown(_epsilon(account))} at delta {account['delta']:g}"
            f"{among} ({account['accountant']}; {_conduct(account['mechanisms'])})"
        )
        if account.get(SCORE) is not None:
            lines.append(f"  {SCORE}: {account[SCORE]:.4g}")
            if account.get(NOTE):
                lines.append(f"  {NOTE}: {account[NOTE]}")
        lines += [f"  note: {text}" for text in account["warnings"]]
    return lines


def _epsilon(account: Account) -> float:
    return math.inf if account["epsilon"] is None else float(account["epsilon"])


def _shown(epsilon: float) -> str:
    return "infinite" if epsilon == math.inf else f"{epsilon:.4g}"


def _conduct(parts: Sequence[Mapping[str, Any]]) -> str:
    """Return who is protected against whom, by which noise, and how often."""
    if not parts:
        return "nothing yet"
    first, releases = parts[0], sum(part["releases"] for part in parts)
    noises = sorted({part["multiplier"] for part in parts})
    noise = f"{noises[0]:.3g}" if len(noises) == 1 else f"{noises[0]:.3g} to {noises[-1]:.3g}"
    drawn = {"poisson": f"Poisson sampling at {first['rate']:g}", "none": "no sampling counted",
             "fixed": f"{first['size']} of {first['population']} drawn"}[first["sampling"]]  # fmt: skip
    return (
        f"{first['unit']}s, {first['adjacency'].replace('_', ' ')}, against who sees {first['adversary']}; "
        f"{first['clipped']} clipped to {first['clip']:g}, noise multiplier {noise}, {drawn}; {releases} releases"
    )
