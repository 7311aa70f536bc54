"""Attendance of the nodes over a run: requests, failures and absences of each node, with warnings for the user."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fne.core.messages import Round, Status

OFTEN = 0.1
"""A node that fails in a larger share of the steps that ask the node causes a warning."""
_MOST = 5
"""Number of nodes that the lines name; the summary has all of them."""

Failures = Mapping[str, Mapping[str, Any]]
"""Node -> `asked`, `failed`, `away` (steps) and `reason`, the last one."""


class Attendance:
    """Count how often each node was asked, failed or was away.

    Args:
        by_node: counts so far of a resumed run.
    """

    def __init__(self, by_node: Failures | None = None) -> None:
        self.by_node: dict[str, dict[str, Any]] = {node: dict(counts) for node, counts in (by_node or {}).items()}

    def add(self, round_: Round, unusable: Mapping[str, str] | None = None) -> None:
        """Count each node of a step once, however many requests the step made; to decline is no failure.

        Args:
            round_: replies and failures of the step.
            unusable: node -> reason, for nodes whose answers the strategy could not use.
        """
        counted = [failure for failure in round_.failures if failure.status is not Status.DECLINED]
        failures = {f.node: ("away" if f.status is Status.GONE else "failed", f.reason) for f in counted}
        failures |= {node: ("failed", reason) for node, reason in (unusable or {}).items()}
        for node in {*round_.traffic.encoded_down, *failures}:
            self.by_node.setdefault(node, {"asked": 0, "failed": 0, "away": 0, "reason": ""})["asked"] += 1
        for node, (kind, reason) in failures.items():
            self.by_node[node][kind] += 1
            self.by_node[node]["reason"] = reason

    def failures(self) -> dict[str, dict[str, Any]]:
        """Return the counts of the nodes that failed or were away at least once, sorted by name."""
        return {node: dict(own) for node, own in sorted(self.by_node.items()) if own["failed"] or own["away"]}


def failure_lines(failures: Failures) -> list[str]:
    """Return a line for each of the nodes that failed or were away most often, and one that counts the other nodes."""
    ranked = sorted(failures.items(), key=lambda item: (-item[1]["failed"] - item[1]["away"], item[0]))
    lines = []
    for node, own in ranked[:_MOST]:
        parts = [f"{word} in {own[key]}" for word, key in (("failed", "failed"), ("was away", "away")) if own[key]]
        lines.append(
            f"{node} {' and '.join(parts)} of {own['asked']} steps that asked it; last reason: {own['reason']}"
        )
    if len(ranked) > _MOST:
        lines.append(f"{len(ranked) - _MOST} more nodes failed or were away; summary.json counts them by node")
    return lines


def warning_of(failures: Failures, nodes: int) -> str:
    """Return a warning about nodes that failed in more than a tenth of the steps that asked them, or an empty text.

    Absences cause no warning, because the owners of the nodes intend them.
    """
    often = [node for node, own in failures.items() if own["failed"] > OFTEN * own["asked"]]
    if not often:
        return ""
    worst = max(often, key=lambda node: failures[node]["failed"] / failures[node]["asked"])
    own = failures[worst]
    return (
        f"{len(often)} of {nodes} nodes failed in more than a tenth of the steps that asked them, and the result is "
        f"that of the other nodes: {worst} in {own['failed']} of {own['asked']} ({own['reason']}); repair the nodes, "
        "or raise engine.quorum so that a run without them ends"
    )
