"""Lineages of candidates: a worker that holds the last generation makes the next one from the server's decision.

A decision takes a few bytes for each candidate (FNE: two parents, with the child's address as its seed; an evolution
strategy: a rank, whose perturbation follows from the generator); the candidates are whole models. Each request carries
a digest of the state and origin that candidates are made from, so a worker whose arithmetic differs in one bit is
noticed and gets a snapshot.

Besides its other tensors a request holds:

    common    lineage.digest, lineage.decision.NAME: of the last step
    private   lineage.origin (first contact), and for a worker that missed steps either lineage.missed.NAME, the
              decisions before the last one along a new first axis, or lineage.state.NAME, a snapshot
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from fne.core.contracts import Metrics
from fne.core.messages import Request, Tensors
from fne.federation.wire import raw_bytes

PREFIX = "lineage."
DIGEST, ORIGIN = PREFIX + "digest", PREFIX + "origin"
DECISION, MISSED, STATE = (PREFIX + part for part in ("decision.", "missed.", "state."))
DIGEST_BYTES = 8


class BehindError(Exception):
    """Raised where a worker cannot make a step's candidates from its state and the request."""


class Lineage(Protocol):
    """The candidates as both ends can make them: the server decides, and server and workers advance alike.

    The state changes in `advance` alone, and depends on nothing else: the same decisions give the same bits everywhere.
    """

    def candidates(self, step: int) -> Tensors:
        """Return the tensors of the candidates to evaluate; further calls return the same tensors.

        `population [P, D]` float32, or the tensors from which `fne.evolution.rank_one` makes the population: `centre`,
        `factors`, `sigma`.
        """
        ...

    def advance(self, step: int, decision: Tensors) -> Metrics:
        """Advance from `step` to the next step by a decision; returns figures for the history.

        Args:
            step: step whose candidates were evaluated.
            decision: the server's decision from the answers: small tensors of the same names and shapes at each step.
        """
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything that `candidates` and `advance` depend on besides their arguments."""
        ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        ...


def digest(origin: Tensor, state: Tensors) -> Tensor:
    """Return the first 8 bytes of the SHA-256 of origin and state (tensors, names, types, shapes): uint8 `[8]`."""
    total = hashlib.sha256()
    for name, value in (("", origin), *sorted(state.items())):
        total.update(f"{name}:{value.dtype}:{list(value.shape)};".encode())
        total.update(raw_bytes(value))
    return torch.frombuffer(bytearray(total.digest()[:DIGEST_BYTES]), dtype=torch.uint8)


def size(tensors: Tensors) -> int:
    """Return the bytes of some tensors."""
    return sum(value.nbytes for value in tensors.values())


def named(prefix: str, tensors: Tensors) -> dict[str, Tensor]:
    """Return tensors under a prefix."""
    return {prefix + name: value for name, value in tensors.items()}


def under(prefix: str, tensors: Tensors) -> dict[str, Tensor]:
    """Return the tensors under a prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def origin_tensor(origin: Mapping[str, Any]) -> Tensor:
    """Return what a lineage is made of (strategy, seed, settings) as the bytes of its JSON, uint8 `[n]`."""
    return torch.frombuffer(bytearray(json.dumps(origin, separators=(",", ":")).encode()), dtype=torch.uint8)


class Replica:
    """A worker's copy of a run's lineage; it belongs to the worker, whose nodes share it.

    Args:
        make: origin (`strategy`, `seed`, `settings`) -> the lineage at step 0. Raises an `FneError` where this worker
            cannot make it.
    """

    def __init__(self, make: Callable[[Mapping[str, Any]], Lineage]) -> None:
        self._make = make
        self._forget()

    def anew(self) -> Replica:
        """Return the copy of another worker, which holds nothing yet."""
        return Replica(self._make)

    def _forget(self) -> None:
        self._run, self._step = "", -1
        self._origin = torch.empty(0, dtype=torch.uint8)
        self._lineage: Lineage | None = None

    def follow(self, request: Request) -> Request:
        """Return the request with the step's candidates in place of their lineage; one without a lineage as it is.

        Steps that were taken already are passed over, whoever of the worker's nodes missed them.

        Raises:
            BehindError: a snapshot is needed: after a start anew, a gap, or where the digest is another.
            FneError: the strategy or its settings are not known here.
        """
        if DIGEST not in request.common:
            return request
        step = request.header.step
        if self._run != request.header.run:
            self._forget()
            self._run = request.header.run
        try:
            for tensors in request.private.values():
                self._catch_up(step, tensors)
            if self._lineage is not None and self._step == step - 1:
                self._advance(under(DECISION, request.common))
            if self._lineage is None or self._step != step:
                raise BehindError(f"this worker holds {self._held()}, step {step} is asked for")
            if not torch.equal(digest(self._origin, self._lineage.state_dict()), request.common[DIGEST]):
                raise BehindError(f"this worker's state at step {step} differs from the server's")
        except BaseException:  # between two steps, or wrong: of no use
            self._forget()
            raise
        common = {**_others(request.common), **self._lineage.candidates(step)}
        private = {node: rest for node, tensors in request.private.items() if (rest := _others(tensors))}
        return replace(request, common=common, private=private)

    def _held(self) -> str:
        return "nothing of this run" if self._lineage is None else f"step {self._step}"

    def _catch_up(self, step: int, tensors: Tensors) -> None:
        """Take in what one node was sent, as far as it leads on: origin, snapshot or missed decisions."""
        if self._lineage is None and ORIGIN in tensors:
            self._begin(tensors[ORIGIN])
        if self._lineage is None:
            return
        state, missed = under(STATE, tensors), under(MISSED, tensors)
        if state:
            self._lineage.load_state_dict({name: value.clone() for name, value in state.items()})  # of one's own
            self._step = step
        elif missed:
            first = step - 1 - min(map(len, missed.values()))
            while first <= self._step < step - 1:
                self._advance({name: value[self._step - first] for name, value in missed.items()})

    def _begin(self, origin: Tensor) -> None:
        self._lineage = self._make(json.loads(bytes(origin.tolist())))
        self._origin, self._step = origin, 0

    def _advance(self, decision: Tensors) -> None:
        assert self._lineage is not None
        try:
            self._lineage.advance(self._step, decision)
        except Exception as error:  # whatever is in a message that was not the server's
            raise BehindError(f"the decision of step {self._step} does not fit here ({error!r:.100})") from error
        self._step += 1

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resumed worker needs; empty where it holds nothing."""
        if self._lineage is None:
            return {}
        state = self._lineage.state_dict()
        return {"run": self._run, "step": self._step, "origin": self._origin, "state": state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._forget()
        if state:
            self._begin(state["origin"])
            assert self._lineage is not None
            self._lineage.load_state_dict(state["state"])
            self._run, self._step = state["run"], state["step"]


def _others(tensors: Tensors) -> dict[str, Tensor]:
    return {name: value for name, value in tensors.items() if not name.startswith(PREFIX)}
