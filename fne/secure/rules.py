"""Settings that secure sums exclude: one table of mistakes, reported before the run folder is made."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fne.config.members import member
from fne.core.contracts import Strategy
from fne.core.errors import SettingError
from fne.core.messages import Request
from fne.secure.protocol import LEAST

if TYPE_CHECKING:
    from fne.config.load import Config


@dataclass(frozen=True)
class _Asked:
    """A run as its first request shows it."""

    settings: Mapping[str, Any]
    request: Request
    nodes: int
    pooled: bool
    fewest: int

    @property
    def single(self) -> bool:
        """Whether the strategy, or a node that gets a relay, needs each node's own answer."""
        return self.request.reduce != "sum"

    @property
    def few(self) -> bool:
        """Whether a step has too few nodes."""
        return min(len(self.request.nodes), self.fewest) < LEAST

    def picks(self, kind: str, key: str) -> bool:
        """Return whether `key` sets the number of chosen nodes, and this number is too small."""
        return self.few and key in self.settings and self.settings.get("nodes", kind) == kind


_NUMBER = f"at least {LEAST} with secure sums"
_SHARE = f"so large that at least {LEAST} nodes take part in a step, with secure sums"
TABLE: tuple[tuple[str, Callable[[_Asked], bool], str], ...] = (
    ("secure", lambda run: run.pooled, "false with a method that is not federated: all data are in one place"),
    ("strategy.deal", lambda run: run.single and bool(run.settings.get("deal")),
     "false with secure sums: each group of nodes has candidates of its own"),
    ("strategy.uplink", lambda run: run.single and "uplink" in run.settings,
     "fitness with secure sums: levels, ranks and signs of single nodes cannot be added up"),
    ("secure", lambda run: run.single, "false with a strategy that needs each node's own answer, and not their sum"),
    ("data.nodes", lambda run: run.nodes < LEAST, _NUMBER),
    ("strategy.nodes", lambda run: run.few and run.settings.get("nodes") == "single_sample",
     "random_subset, moving_window or all with secure sums: the loss on one sample would be known"),
    ("strategy.window_size", lambda run: run.picks("moving_window", "window_size"), _NUMBER),
    ("strategy.subset_size", lambda run: run.picks("random_subset", "subset_size"), _NUMBER),
    ("strategy.fraction", lambda run: run.few and "fraction" in run.settings, _SHARE),
    ("strategy.participation", lambda run: run.few and "participation" in run.settings, _SHARE),
    ("secure", lambda run: run.few, f"false with a strategy that asks fewer than {LEAST} nodes in a step"),
)  # fmt: skip
"""Key, test whether its value is wrong, and the allowed value; the first mistake is reported."""


def check_secure(config: Config, strategy: Strategy, nodes: Collection[str]) -> None:
    """Raise `SettingError` where `secure` does not fit the strategy, for the first row of the table that applies."""
    wanted, name = member(strategy, "secure"), config.strategy.name
    if wanted and not config.secure:
        raise SettingError("secure", config.secure, f"true with strategy.name = {name!r}, which is nothing without")
    if not config.secure:
        return
    if wanted and config.secure == "clip":
        raise SettingError("secure", config.secure, f"true with strategy.name = {name!r}: its numbers are not clipped")
    if wanted is False:
        raise SettingError("secure", config.secure, f"false with strategy.name = {name!r} as it is set: it is the "
                           "unprotected form; fdd_ea_dh with mode = secure is the other one")  # fmt: skip
    request, pooled = strategy.ask(sorted(nodes)), member(strategy, "pooled")
    fewest = member(strategy, "fewest") or len(request.nodes)
    asked = _Asked(config.strategy.settings, request, len(nodes), pooled, fewest)
    for key, wrong, allowed in TABLE:
        if wrong(asked):
            section, _, setting = key.rpartition(".")
            if section == "data":
                subject = "data" if hasattr(config, "data") else "problem"
                key, value = f"{subject}.nodes", getattr(config, subject).nodes
            else:
                value = asked.settings[setting] if section else config.secure
            raise SettingError(key, value, allowed)
