"""The lineage codec: an engine wrapper that sends decisions in place of the strategy's models.

The strategy's request and the resulting round are the same as without the codec, and so is the run's history except for
the bytes. The codec knows which step each node's worker holds, and brings late workers up by the decisions that they
missed or by a snapshot, whichever is smaller; the engine counts these bytes like all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fne.config.members import member
from fne.core.contracts import Engine, Strategy
from fne.core.errors import RunError
from fne.core.messages import Request, Round, Status, Tensors, Traffic
from fne.federation import lineage, wire
from fne.federation.payloads import expecting

_UNKNOWN = {Status.REFUSED, Status.NEEDS_SNAPSHOT, Status.GONE}
"""Statuses that leave open which step a worker holds; where a task failed, its worker had followed."""


class LineageCodec:
    """An engine that sends a strategy's candidates as their lineage.

    Args:
        engine: the engine that does the work; bytes are those of one worker for each node, as between sites.
        strategy: a strategy with `lineage` and `decision`.
        origin: `strategy`, `seed` and `settings`, from which a worker makes the lineage at step 0.
    """

    def __init__(self, engine: Engine, strategy: Strategy, origin: Mapping[str, Any]) -> None:
        self._engine, self._strategy = engine, strategy
        self._origin = lineage.origin_tensor(origin)
        self._names: frozenset[str] = frozenset()
        self._held: dict[str, int] = {}
        self._first = 0
        self._decisions: list[Tensors] = []
        """Decisions of the steps from `_first` on, as far back as a replay can be smaller than a snapshot."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes, sorted."""
        return self._engine.nodes

    def send(self, request: Request) -> Round:
        """Send the request with its candidates as lineage; nodes that need a snapshot get it in a second transmission.

        The second transmission goes to all addressees, which compute again, so that sums are folded in the usual order.
        Both are counted, the second as catching up.

        Raises:
            RunError: the engine raises it, or no node could follow even with a snapshot.
        """
        request = expecting(request)  # before the candidates, which imply the form of an answer, are taken out
        step, source = request.header.step, member(self._strategy, "lineage")
        state = source.state_dict()
        self._record(step, lineage.size(state))
        if not self._names:
            self._names = frozenset(source.candidates(step))
        common = {name: value for name, value in request.common.items() if name not in self._names}
        common[lineage.DIGEST] = lineage.digest(self._origin, state)
        if step:
            common.update(lineage.named(lineage.DECISION, self._decisions[-1]))
        encoded = replace(request, common=common)
        missed = {node: self._missed(node, step, state) for node in request.nodes}
        round_ = self._sent(encoded, missed)
        late = _behind(round_)
        if late:
            snapshot = {lineage.ORIGIN: self._origin, **lineage.named(lineage.STATE, state)}
            others = {failure.node: missed[failure.node] for failure in round_.failures}
            again = self._sent(encoded, {**others, **dict.fromkeys(late, snapshot)})
            if len(_behind(again)) == len(request.nodes):
                reason = again.failures[0].reason
                raise RunError(f"step {step}: no node can make the candidates, not from a snapshot either: {reason}")
            repeated = replace(again.traffic, catch_up=again.traffic.encoded_down)
            round_ = replace(again, traffic=_together(round_.traffic, repeated))
        unknown = {failure.node for failure in round_.failures if failure.status in _UNKNOWN}
        self._held.update({node: step for node in request.nodes if node not in unknown})
        return round_

    def _record(self, step: int, snapshot: int) -> None:
        """Keep the decision that led to `step`, and earlier ones while their replay beats `snapshot` bytes."""
        if self._first + len(self._decisions) == step - 1:
            decision = member(self._strategy, "decision")
            self._decisions.append(decision)
            most = snapshot // max(1, lineage.size(decision)) + 2
            while len(self._decisions) > most:
                self._decisions.pop(0)
                self._first += 1
        assert self._first + len(self._decisions) == step, "the codec was not resumed with its strategy"

    def _missed(self, node: str, step: int, state: Tensors) -> dict[str, Tensor]:
        """Return the tensors that bring a node's worker to `step`, alone or with the last decision."""
        held = self._held.get(node)
        start = {} if held is not None else {lineage.ORIGIN: self._origin}
        held = held or 0
        if held >= step - 1:
            return dict(start)
        missed = self._decisions[held - self._first : -1] if held >= self._first else []
        if missed and sum(map(lineage.size, missed)) <= lineage.size(state):
            stacked = {name: torch.stack([decision[name] for decision in missed]) for name in missed[0]}
            return {**start, **lineage.named(lineage.MISSED, stacked)}
        return {**start, **lineage.named(lineage.STATE, state)}

    def _sent(self, request: Request, more: Mapping[str, Tensors]) -> Round:
        """Send a request with additional private tensors; the traffic says which part was for catching up."""
        private = {node: {**request.private.get(node, {}), **more.get(node, {})} for node in request.nodes}
        round_ = self._engine.send(replace(request, private={node: own for node, own in private.items() if own}))
        catch_up = {node: wire.encode({"node": node}, own).encoded for node, own in more.items() if own}
        snapshots = sum(any(name.startswith(lineage.STATE) for name in own) for own in more.values())
        return replace(round_, traffic=replace(round_.traffic, catch_up=catch_up, snapshots=snapshots))

    # -------------------------------------------------------------------------------------------- memory
    def save(self, step: int) -> None:
        """Let the engine save the nodes' memory and the workers' lineage."""
        self._engine.save(step)

    def load(self, step: int) -> None:
        """Let the engine take the nodes back to `step`."""
        self._engine.load(step)

    def close(self) -> None:
        """Close the engine."""
        self._engine.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the step that each node holds, and the kept decisions."""
        names = self._decisions[0] if self._decisions else ()
        stacked = {name: torch.stack([decision[name] for decision in self._decisions]) for name in names}
        return {"held": dict(self._held), "first": self._first, "decisions": stacked}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._held, self._first = dict(state["held"]), state["first"]
        names, columns = state["decisions"].keys(), state["decisions"].values()
        self._decisions = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _behind(round_: Round) -> list[str]:
    return [failure.node for failure in round_.failures if failure.status is Status.NEEDS_SNAPSHOT]


def _together(first: Traffic, second: Traffic) -> Traffic:
    """Return the traffic of two transmissions of one step."""
    sums = {
        name: _added(getattr(first, name), getattr(second, name))
        for name in ("payload_down", "payload_up", "encoded_down", "encoded_up", "catch_up")
    }
    return Traffic(**sums, snapshots=first.snapshots + second.snapshots)


def _added(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    return {node: first.get(node, 0) + second.get(node, 0) for node in {**first, **second}}
