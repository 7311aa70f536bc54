"""Attendance of the nodes: how often each was asked, failed or was away, with the lines that tell the user."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fne.core.messages import Round, Status

OFTEN = 0.1
"""Share of the steps that ask a node above which its failures are worth a warning."""
_MOST = 5
"""Nodes that a line names; the summary has them all."""

Failures = Mapping[str, Mapping[str, Any]]
"""Node -> `asked`, `failed`, `away` (steps) and `reason`, the last one."""


class Attendance:
    """How often each node was asked, failed or was away.

    Args:
        by_node: the counts so far, of a run that is resumed.
    """

    def __init__(self, by_node: Failures | None = None) -> None:
        self.by_node: dict[str, dict[str, Any]] = {node: dict(counts) for node, counts in (by_node or {}).items()}

    def add(self, round_: Round, found: Mapping[str, str] | None = None) -> None:
        """Count the nodes of a step, each once however many requests the step took; an owner who declines answers.

        Args:
            round_: of the step.
            found: node -> reason, of nodes whose answers only the strategy found to be of no use.
        """
        told = [failure for failure in round_.failures if failure.status is not Status.DECLINED]
        failures = {f.node: ("away" if f.status is Status.GONE else "failed", f.reason) for f in told}
        failures |= {node: ("failed", reason) for node, reason in (found or {}).items()}
        for node in {*round_.traffic.encoded_down, *failures}:
            self.by_node.setdefault(node, {"asked": 0, "failed": 0, "away": 0, "reason": ""})["asked"] += 1
        for node, (kind, reason) in failures.items():
            self.by_node[node][kind] += 1
            self.by_node[node]["reason"] = reason

    def failures(self) -> dict[str, dict[str, Any]]:
        """Return the counts of the nodes that failed or were away in a step, sorted by name."""
        return {node: dict(own) for node, own in sorted(self.by_node.items()) if own["failed"] or own["away"]}


def failure_lines(failures: Failures) -> list[str]:
    """Return a line for each node that failed, or was away, most often first, and one that counts the others."""
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
    """Return what to warn of: nodes that failed in more than a tenth of the steps that asked them; or nothing.

    Nodes that were away are no reason: their owners know that they come and go.
    """
    often = [node for node, own in failures.items() if own["failed"] > OFTEN * own["asked"]]
    if not often:
        return ""
    worst = max(often, key=lambda node: failures[node]["failed"] / failures[node]["asked"])
    own = failures[worst]
    return (
        f"{len(often)} of {nodes} nodes failed in more than a tenth of the steps that asked them, and the result is "
        f"that of the others: {worst} in {own['failed']} of {own['asked']} ({own['reason']}); mend the nodes, or raise "
        "engine.quorum so that a run without them ends"
    )
