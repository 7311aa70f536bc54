"""Node policies: limits on a node's answers, whatever the server requests, and the account that the node itself keeps.

A request names a node's task, its clip and its noise. Only the node can make sure that these are what the method
promises. Its `Policy` is fixed before the first request, and no request changes it. The node's `Ledger` records all
releases, and no record is ever removed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fne.core.errors import RefusedError, shown
from fne.core.messages import Scalar
from fne.privacy.accountant import ORDERS, Accountant, Mechanism, converted, curve_of

Kind = tuple[str, str, str]
Entry = tuple[tuple[Mechanism, int], ...]
"""Releases of an answer: mechanism and count."""

Tasks = Mapping[str, Mapping[str, Scalar | tuple[float, float]]]
"""Node tasks by name, each with the options that never change, or the least and largest value of an option that does;
and under `STEP` the first and last step in which the method requests the task."""
STEP = "step"

_SLACK = 1e-6
"""Relative tolerance: noise is sent as float32, and an epsilon is a sum."""
KEY_BYTES = 32
"""Length of a request's key."""


@dataclass(frozen=True)
class Terms:
    """The most that a method requests of nodes: least noise, in clips, largest clip, and all releases of a node."""

    noise: float
    clip: float
    plan: Accountant


@dataclass(frozen=True)
class Release:
    """A release of a node's data in an answer, under Gaussian noise.

    Args:
        noise: standard deviation of the node's own noise on each coordinate, in units of the clip.
        clip: largest L2 norm of the vector that noise is added to.
        mechanism: the mechanism to account for.
        count: number of such releases.
    """

    noise: float
    clip: float
    mechanism: Mechanism
    count: int = 1


@dataclass(frozen=True)
class Policy:
    """Limits on a node's answers; by default none, as in research code that makes its nodes itself.

    Args:
        tasks: node tasks that the node does, each with the options that a request must have; `None`: all tasks.
        steps: number of steps of the run, to which requests must belong.
        noise: least standard deviation of the node's own noise on an answer, in units of the clip. Above 0, or with a
            budget, a task that adds no noise is refused.
        clip: largest L2 norm of the vector that noise is added to.
        answers: most requests that are answered with noise; a repeated request does not count again. `None`: no limit.
        epsilon: largest epsilon of the node's account, by RDP.
        delta: delta of that epsilon.
    """

    tasks: Tasks | None = None
    steps: int | None = None
    noise: float = 0.0
    clip: float = math.inf
    answers: int | None = None
    epsilon: float = math.inf
    delta: float = 1e-5

    def check_task(self, task: str, options: Mapping[str, Any], step: int) -> None:
        """Raise `RefusedError` for a task, step or option that the method does not request."""
        if self.steps is not None and not 0 <= step < self.steps:
            raise RefusedError(f"this node's policy allows steps 0 to {self.steps - 1}, not {step}")
        if self.tasks is None:
            return
        if task not in self.tasks:
            known = ", ".join(sorted(self.tasks)) or "none"
            raise RefusedError(f"this node's policy allows no task {task!r}; the run's method asks for: {known}")
        for key, wanted in self.tasks[task].items():
            value = step if key == STEP else options.get(key)
            bounds = wanted if isinstance(wanted, tuple) else None
            if value != wanted if bounds is None else not (value is not None and bounds[0] <= value <= bounds[1]):
                allowed = shown(wanted) if bounds is None else f"{shown(bounds[0])} to {shown(bounds[1])}"
                raise RefusedError(
                    f"this node's policy allows task {task!r} with {key} = {allowed} only, not {shown(value)}"
                )

    def first_step(self, task: str) -> int:
        """Return the first step in which the method requests a task; after the task a node answers no earlier one."""
        bounds = (self.tasks or {}).get(task, {}).get(STEP, (0, 0))
        return int(bounds[0]) if isinstance(bounds, tuple) else 0

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
    """A node's releases under noise, request by request: a request that was answered before costs nothing.

    That holds as long as the answer is the same. Where a repeated training ends with other bits, as may happen on a
    GPU, the noise differs, too, and the answer is charged as a further one (`hides`).
    """

    def __init__(self) -> None:
        self._answered: dict[bytes, Entry] = {}
        self._kind: Kind | None = None
        self._curve: NDArray[np.float64] = np.zeros(len(ORDERS))
        self._hidden: dict[bytes, dict[str, bytes]] = {}
        """Key -> purpose -> digest of the values that noise was added to, for answers of this process."""

    def __len__(self) -> int:
        """Return the number of different requests that were answered."""
        return len(self._answered)

    def epsilon(self, delta: float) -> float:
        """Return the epsilon that the node has spent at `delta`, by RDP."""
        return _epsilon(self._curve, delta) if self._answered else 0.0

    def add(self, key: bytes, releases: Sequence[Release], policy: Policy) -> None:
        """Charge an answer before it is made.

        The same request in a sum with fewer others, which has less noise, replaces the earlier charge.

        Args:
            key: key of the request.
            releases: releases of the answer.
            policy: policy of the node.

        Raises:
            RefusedError: the answer would exceed the policy's answers or epsilon, or its kind does not add up with
                earlier answers; then nothing is charged.
        """
        entry = tuple((release.mechanism, release.count) for release in releases)
        before = self._answered.get(key)
        if before is None and policy.answers is not None and len(self) >= policy.answers:
            raise RefusedError(
                f"this node has answered {len(self)} requests with noise, as many as its policy allows "
                f"(policy.answers = {policy.answers})"
            )
        if before is not None and not _worse(entry, before):
            return
        kinds = {_kind(mechanism) for mechanism, _ in entry} | ({self._kind} if self._kind else set())
        if len(kinds) > 1:
            raise RefusedError(f"this node cannot add up answers of {len(kinds)} kinds of privacy")
        curve = self._curve + _summed(entry) if before is None else self._curve + _summed(entry) - _summed(before)
        if policy.epsilon < math.inf and (spent := _epsilon(curve, policy.delta)) > policy.epsilon * (1 + _SLACK):
            raise RefusedError(
                f"with this answer the node would have spent epsilon {spent:.4g} at delta {policy.delta:g}, and "
                f"its policy allows {policy.epsilon:.4g}"
            )
        self._answered[key], self._curve, (self._kind,) = entry, curve, kinds
        if before is None:
            self._hidden[key] = {}

    def hides(self, key: bytes, purpose: str, digest: bytes, policy: Policy) -> None:
        """Record the values that an answer's noise is added to; where they differ from before, charge a further answer.

        Raises:
            RefusedError: see `add`.
        """
        if key not in self._answered:
            return
        if self._hidden.get(key, {}).setdefault(purpose, digest) == digest and key in self._hidden:
            return
        again = hashlib.blake2b(key + digest, digest_size=KEY_BYTES, person=b"fne/again").digest()
        self.add(again, [Release(0, 0, mechanism, count) for mechanism, count in self._answered[key]], policy)

    # ------------------------------------------------------------------------------------------------ state
    def state_dict(self) -> dict[str, Any]:
        """Return all entries: keys uint8 `[n, 16]`, and for each key the index of its releases in `kinds`."""
        kinds = list(dict.fromkeys(self._answered.values()))
        number = {kind: place for place, kind in enumerate(kinds)}
        return {
            "keys": torch.tensor(list(b"".join(self._answered)), dtype=torch.uint8).view(-1, KEY_BYTES),
            "of": [number[entry] for entry in self._answered.values()],
            "kinds": [[[asdict(mechanism), count] for mechanism, count in kind] for kind in kinds],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Add the entries that `state_dict` returned; existing entries stay."""
        kinds = [tuple((Mechanism(**fields), int(count)) for fields, count in kind) for kind in state["kinds"]]
        for key, place in zip(state["keys"], state["of"], strict=True):
            name = bytes(key.tolist())
            if name not in self._answered:
                self._answered[name] = kinds[place]
                self._kind = _kind(kinds[place][0][0])
                self._curve = self._curve + _summed(kinds[place])


def _kind(mechanism: Mechanism) -> Kind:
    """Return the properties that all added mechanisms must share."""
    return mechanism.adjacency, mechanism.unit, mechanism.adversary


def _worse(entry: Entry, before: Entry) -> bool:
    """Return whether a release has less noise than before."""
    pairs = zip(entry, before, strict=False)
    return len(entry) != len(before) or any(new.multiplier < old.multiplier for (new, _), (old, _) in pairs)


def _summed(entry: Entry) -> NDArray[np.float64]:
    total = np.zeros(len(ORDERS))
    for mechanism, count in entry:
        total += count * curve_of(mechanism)
    return total


def _epsilon(curve: NDArray[np.float64], delta: float) -> float:
    return math.inf if np.isinf(curve).all() else converted(curve, delta)[0]
