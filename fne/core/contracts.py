"""Contracts of strategies and engines, the result of a run, and the shape legend of the whole toolkit.

Shapes: `P` individuals, `D` genes, `K` nodes, `N` samples, `M` objectives. A population is `[P, D]`, its fitness
`[P, M]` (M = 1 included). Everything inside is minimised; only display flips a sign.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from fne.core.messages import Request, Round, Scalar, Tensors

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Result:
    """The result of a run: a model's genes `[D]` and buffers, or the points of B runs of a search.

    A search for a value yields points `[B, d]` and values `[B]`; a search for fronts yields points `[B, n, d]` and
    values `[B, n, M]`, padded with NaN.
    """

    kind: Literal["model", "point", "front"]
    parameters: Tensor
    buffers: Tensors = field(default_factory=dict)
    values: Tensor | None = None


Metrics = dict[str, Any]
"""Metrics of one step: floats by name, `round` among them. Names without a leading underscore go to the history."""


@runtime_checkable
class Strategy(Protocol):
    """A method: a plain class without a base. Hyper-parameters are keyword-only with the paper's values as defaults.

    A strategy may have further members that the toolkit uses; `fne.config.members.MEMBERS` is the table of them.
    """

    seed: int

    @property
    def tasks(self) -> Mapping[str, Mapping[str, Scalar | tuple[float, float]]]:
        """Node tasks that the strategy requests, including those of its relays, see `fne.privacy.policy.Tasks`.

        Nodes do no other task, so no other task can reveal what a method hides.
        """
        ...

    @property
    def step(self) -> int:
        """Number of requests that have been answered."""
        ...

    @property
    def horizon(self) -> int:
        """Planned number of steps; every schedule reads this, never 'rounds left'."""
        ...

    @property
    def done(self) -> bool:
        """Whether the strategy has ended the run by itself."""
        ...

    def ask(self, nodes: Sequence[str]) -> Request:
        """Return the next request; `nodes` are all available nodes, sorted.

        A second call before `tell` returns the same request and changes nothing.
        """
        ...

    def tell(self, round_: Round) -> Metrics:
        """Process the round's replies and return the step's metrics."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resumed run needs (tensors, numbers, text, lists, dicts)."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        ...

    def result(self) -> Result:
        """Return the result of the run so far."""
        ...


class Engine(Protocol):
    """The transport to the nodes. The same request gives the same bits on every engine."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes, sorted."""
        ...

    def send(self, request: Request) -> Round:
        """Broadcast, compute and gather a request. Raises `RunError` below the quorum, with both numbers."""
        ...

    def save(self, step: int) -> None:
        """Save the nodes' memory of `step`."""
        ...

    def load(self, step: int) -> None:
        """Take the nodes back to `step`; raises `CheckpointError` where that step is not stored."""
        ...

    def close(self) -> None:
        """Release what the engine holds."""
        ...


Callback = Callable[[Strategy, Round, Metrics], bool | None]
"""Called after each step; a true value ends the run after this step."""
