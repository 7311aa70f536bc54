"""What a node's owner lets it answer, whatever the server asks for, and the account that the node itself keeps.

A server says in each request what is to be done: by which task, how far updates are clipped, how much noise is added.
Whether that is what the method promises, only the node can see to. It has a `Policy`, which is fixed before the first
request and which no request changes, and a `Ledger` of what it has released, from which nothing is ever taken away.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from fne.errors import RefusedError, SettingError, shown
from fne.privacy.accountant import Accountant, Mechanism
from fne.types import Scalar

Tasks = Mapping[str, Mapping[str, Scalar]]
"""Node tasks by name, each with those options that never change."""

_SLACK = 1e-6
"""Relative: noise is sent as float32, and an epsilon is a sum."""
KEY_BYTES = 16
"""Of the key of a request."""


@dataclass(frozen=True)
class Release:
    """What an answer tells of a node's data, under Gaussian noise.

    Args:
        noise: standard deviation of the node's own noise on each coordinate, in units of the clip.
        clip: largest L2 norm of what it is added to.
        mechanism: what is accounted for it.
        count: of such releases.
    """

    noise: float
    clip: float
    mechanism: Mechanism
    count: int = 1


@dataclass(frozen=True)
class Policy:
    """What a node answers; by default everything, as in research code that makes its nodes itself.

    Args:
        tasks: node tasks that it does, each with the options that a request must have; `None`: all.
        noise: least standard deviation of the node's own noise on an answer, in units of the clip. Above 0, or with a
            budget, a task that adds no noise is refused.
        clip: largest L2 norm of what noise is added to.
        answers: most requests that are answered with noise; the same request again is no further one. `None`: any.
        epsilon: most that the node's account may come to, by RDP.
        delta: of that epsilon.
    """

    tasks: Tasks | None = None
    noise: float = 0.0
    clip: float = math.inf
    answers: int | None = None
    epsilon: float = math.inf
    delta: float = 1e-5

    def check_task(self, task: str, options: Mapping[str, Any]) -> None:
        """Raise `RefusedError` for a task that the method does not ask for, or with an option that it never has."""
        if self.tasks is None:
            return
        if task not in self.tasks:
            known = ", ".join(sorted(self.tasks)) or "none"
            raise RefusedError(f"this node's policy allows no task {task!r}; the run's method asks for: {known}")
        for key, value in self.tasks[task].items():
            if options.get(key) != value:
                raise RefusedError(
                    f"this node's policy allows task {task!r} with {key} = {shown(value)} only, not "
                    f"{shown(options.get(key))}"
                )

    def check_releases(self, task: str, releases: Sequence[Release]) -> None:
        """Raise `RefusedError` for an answer with less noise, or of a larger norm, than the policy allows."""
        if not releases and (self.noise or self.epsilon < math.inf):
            raise RefusedError(f"task {task!r} answers without noise, and this node's policy asks for noise")
        for release in releases:
            if release.noise < self.noise * (1 - _SLACK):
                raise RefusedError(
                    f"task {task!r} is to answer with noise of {release.noise:g} clips, and this node's policy asks "
                    f"for {self.noise:g} at least"
                )
            if release.noise and release.clip > self.clip * (1 + _SLACK):
                raise RefusedError(
                    f"task {task!r} is to clip at {release.clip:g}, and this node's policy allows {self.clip:g} at most"
                )


class Ledger:
    """What a node has released under noise, request by request: a request that was answered before costs nothing."""

    def __init__(self) -> None:
        self._answered: dict[bytes, tuple[tuple[Mechanism, int], ...]] = {}
        self._accountant = Accountant()

    def __len__(self) -> int:
        """Return the number of different requests that were answered."""
        return len(self._answered)

    def epsilon(self, delta: float) -> float:
        """Return what the node has spent at `delta`, by RDP."""
        return self._accountant.epsilon(delta, tight=False).rdp

    def add(self, key: bytes, releases: Sequence[Release], policy: Policy) -> None:
        """Take in an answer before it is made.

        Args:
            key: of the request, 16 bytes.
            releases: what its answer tells.
            policy: of the node.

        Raises:
            RefusedError: it would be beyond the policy's answers or epsilon; then nothing is taken in.
        """
        if key in self._answered:
            return
        if policy.answers is not None and len(self) >= policy.answers:
            raise RefusedError(
                f"this node has answered {len(self)} requests with noise, as many as its policy allows "
                f"(policy.answers = {policy.answers})"
            )
        entry = tuple((release.mechanism, release.count) for release in releases)
        after = Accountant()
        try:
            for mechanism, count in (*self._accountant.released.items(), *entry):
                after.add(mechanism, count)
        except SettingError as error:  # of two kinds, which do not add up
            raise RefusedError(f"this node cannot account for the answer: {error}") from None
        if policy.epsilon < math.inf:
            spent = after.epsilon(policy.delta, tight=False).rdp
            if spent > policy.epsilon * (1 + _SLACK):
                raise RefusedError(
                    f"with this answer the node would have spent epsilon {spent:.4g} at delta {policy.delta:g}, and "
                    f"its policy allows {policy.epsilon:g}"
                )
        self._answered[key], self._accountant = entry, after

    # ------------------------------------------------------------------------------------------------ state
    def state_dict(self) -> dict[str, Any]:
        """Return all entries: keys uint8 `[n, 16]`, and of each the number of what it released among `kinds`."""
        kinds = list(dict.fromkeys(self._answered.values()))
        number = {kind: place for place, kind in enumerate(kinds)}
        return {
            "keys": torch.tensor(list(b"".join(self._answered)), dtype=torch.uint8).view(-1, KEY_BYTES),
            "of": [number[entry] for entry in self._answered.values()],
            "kinds": [[[asdict(mechanism), count] for mechanism, count in kind] for kind in kinds],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Add the entries that `state_dict` returned; those that are there stay."""
        kinds = [tuple((Mechanism(**fields), int(count)) for fields, count in kind) for kind in state["kinds"]]
        for key, place in zip(state["keys"], state["of"], strict=True):
            name = bytes(key.tolist())
            if name not in self._answered:
                self._answered[name] = kinds[place]
                for mechanism, count in kinds[place]:
                    self._accountant.add(mechanism, count)
