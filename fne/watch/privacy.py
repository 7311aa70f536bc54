"""What a run has spent of its privacy, as lines below its tables: an accounted epsilon, beside it a paper's score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SCORE = "score of eq. (7), not an epsilon"


def privacy_lines(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return lines for those runs that have an account: what it is of, and what to know before believing it.

    Of several seeds that of the first is told; what they spend does not depend on the data.
    """
    lines = []
    for summary in summaries:
        account = summary.get("privacy")
        if not account:
            continue
        epsilon = "infinite" if account["epsilon"] is None else f"{account['epsilon']:.4g}"
        parts = account["mechanisms"]
        first = parts[0] if parts else {}
        what = (
            f"{first['unit']}s, {first['adjacency'].replace('_', ' ')}, against who sees {first['adversary']}"
            if first
            else "nothing yet"
        )
        releases = sum(part["releases"] for part in parts)
        lines.append(
            f"privacy of {summary['name']}: epsilon {epsilon} at delta {account['delta']:g} ({account['accountant']}; "
            f"{what}; {releases} releases)"
        )
        if account.get(SCORE) is not None:
            lines.append(f"  {SCORE}: {account[SCORE]:.4g}")
        lines += [f"  note: {text}" for text in account["warnings"]]
    return lines
