"""Messages, contracts and the shape legend; imports the toolkit's errors at most, and torch for types only.

Shapes: `P` individuals, `D` genes, `K` nodes, `N` samples, `M` objectives. A population is `[P, D]`, its fitness
`[P, M]` (M = 1 included), minimised everywhere inside; only display flips a sign.

Data flow one way: `strategy.ask -> engine.send -> strategy.tell`. Frozen `Request`s go out, `Reply`s come back,
nothing else crosses the wire, so bytes are counted, masked, logged and audited at one place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

    from fne.core.findings import FileReport, Finding
    from fne.evolution.genome import Layout
    from fne.federation.payloads import Payload

PROTOCOL_VERSION = 1
AGGREGATE = "*"
"""Name of the one reply that stands for all nodes when a request says `reduce="sum"`."""
GIVEN = "given."
"""Prefix of what a relay's task is given."""

Scalar = int | float | str | bool
Tensors = Mapping[str, "Tensor"]


# ------------------------------------------------------------------------------------------------ messages
class Status(StrEnum):
    """How a node answered; closed, so that every engine and strategy knows all cases."""

    OK = "ok"
    REFUSED = "refused"
    DECLINED = "declined"
    """The node's owner does not agree: an answer like another, and no failure."""
    FAILED = "failed"
    NEEDS_SNAPSHOT = "needs_snapshot"
    GONE = "gone"
    """The engine's word for a node that gave none: it may not even have got the request."""


@dataclass(frozen=True)
class Header:
    """What every message carries. `run` is stamped by the engine, as is `attempt` where a step is tried again.

    A node's public generator is seeded from (seed, step, attempt, node, purpose).
    """

    seed: int
    step: int
    run: str = ""
    attempt: int = 0
    protocol: int = PROTOCOL_VERSION


@dataclass(frozen=True)
class Relay:
    """Who is given what a request yields, in the server's place: these nodes do a task with it, and answer.

    Args:
        nodes: addressees of the task.
        task: gets each entry of the sum in its common tensors, named `given.NAME`; of single answers (`reduce="none"`)
            it gets them all, stacked in the order of the request's nodes.
        private: further tensors for single addressees.
        options: of the task.
    """

    nodes: tuple[str, ...]
    task: str
    private: Mapping[str, Tensors] = field(default_factory=dict)
    options: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    """What to compute, and where.

    Args:
        header: run, seed, step, attempt.
        task: registered name of the node task, such as `fitness`.
        nodes: addressees, in the order in which replies are folded. Frames do not name them, and a node task sees
            none: whatever a task needs to know of the others is among its options or tensors.
        common: tensors for every addressee.
        private: further tensors for single addressees.
        options: small validated values that the task takes, such as the name of a loss.
        reduce: `sum` lets the engine answer with one aggregate reply (payloads added in the order of `nodes`).
        relay: nodes that are given what came of it; the round then holds their answers.
        sizes: of the answers, by the names in the declaration of the task, as far as the strategy knows them and the
            frames do not imply them; the server's alone, they are not sent.
        expected: addressee -> the payload that its reply must have; the server's alone, it is not sent. Engines fill it
            in from the declaration of the task, see `fne.federation.payloads.expecting`.
    """

    header: Header
    task: str
    nodes: tuple[str, ...]
    common: Tensors = field(default_factory=dict)
    private: Mapping[str, Tensors] = field(default_factory=dict)
    options: Mapping[str, Scalar] = field(default_factory=dict)
    reduce: Literal["none", "sum"] = "none"
    relay: Relay | None = None
    sizes: Mapping[str, int] = field(default_factory=dict, repr=False, compare=False)
    expected: Callable[[str], Payload] | None = field(default=None, repr=False, compare=False)

    def addressed(self, node: str) -> Tensors:
        """Return what the request says to a node: the common tensors and the private ones of this node."""
        private = self.private.get(node)
        return {**self.common, **private} if private else self.common


@dataclass(frozen=True)
class Reply:
    """What a node answered; the sample count is an ordinary payload entry."""

    header: Header
    node: str
    status: Status = Status.OK
    reason: str = ""
    payload: Tensors = field(default_factory=dict)


@dataclass(frozen=True)
class Traffic:
    """Bytes of one step by node: of the tensors alone (payload) and of the encoded frames.

    `catch_up` is the part of `encoded_down` that brought late nodes up to the step; `snapshots` counts the whole states
    among it.
    """

    payload_down: Mapping[str, int]
    payload_up: Mapping[str, int]
    encoded_down: Mapping[str, int]
    encoded_up: Mapping[str, int]
    catch_up: Mapping[str, int] = field(default_factory=dict)
    snapshots: int = 0


@dataclass(frozen=True)
class Round:
    """What came back: valid replies (or their sum), failures by name, measured traffic.

    `per_node` holds each participant's scalars for the history (empty where an engine hides them); strategies
    do not read it.
    """

    replies: tuple[Reply, ...]
    failures: tuple[Reply, ...]
    traffic: Traffic
    per_node: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


# ------------------------------------------------------------------------------------------------ data
@dataclass(frozen=True)
class Samples:
    """Inputs `x` float32 `[N, *shape]`, targets `y` (int64 labels `[N]` or float32 `[N, outputs]`).

    `groups` int64 `[N]` is each sample's subject (or `None`), an index into `Dataset.group_names`. A loader may return
    other types: `fne.data.sources.check_dataset` brings them into this form or refuses them.
    """

    x: Tensor
    y: Tensor
    groups: Tensor | None = None

    def __len__(self) -> int:
        return int(self.x.shape[0])

    def take(self, index: Tensor) -> Samples:
        """Return the samples at `index` (int64): copied, but for neighbours in order, which are a view."""
        neighbours = len(index) > 0 and bool((index.diff() == 1).all())
        where = slice(int(index[0]), int(index[-1]) + 1) if neighbours else index
        return Samples(self.x[where], self.y[where], None if self.groups is None else self.groups[where])


@dataclass(frozen=True)
class Dataset:
    """Disjoint training (the nodes'), validation (the server's own) and test parts.

    Args:
        name: registered name.
        train, validation, test: the three parts; only the command looks at `test`, once, at the end.
        classes: class names, or `None` for regression.
        split: how the parts were made, printed beside every figure.
        source: where the data came from, with licence if known.
        group_names: names of the subjects that `Samples.groups` refers to.
        group_kind: what they are, if no subjects.
        fold: `(i, k)` where the split is fold `i` of `k` (from 0), so that reports can put the folds together.
        files: what is known about each file, where a data set looks at them one by one.
        findings: about the samples together, such as a subject on both sides of the split.
        rate, start: of recordings, in Hz, and when after their event they begin, in seconds; 0 where that is not known.
    """

    name: str
    train: Samples
    validation: Samples
    test: Samples
    classes: tuple[str, ...] | None
    split: str
    source: str
    group_names: tuple[str, ...] = ()
    group_kind: str = "subject"
    fold: tuple[int, int] | None = None
    files: tuple[FileReport, ...] = ()
    findings: tuple[Finding, ...] = ()
    rate: float = 0.0
    start: float = 0.0

    def group_name(self, number: int) -> str:
        """Return the name of subject `number`, or one made of the number where it has none."""
        known = 0 <= number < len(self.group_names)
        return self.group_names[number] if known else f"subject-{number:03d}"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.train.x.shape[1:])

    @property
    def outputs(self) -> int:
        """Number of model outputs: classes, or target dimensions."""
        return len(self.classes) if self.classes is not None else int(self.train.y.shape[1])


# ------------------------------------------------------------------------------------------------ contracts
class Evaluate(Protocol):
    """`evaluate(population [P, D], loss=..., buffers=..., split="validation")` -> `loss`, `accuracy`, both `[P]`."""

    def __call__(
        self, population: Tensor, *, loss: str, buffers: Tensors | None = None, split: str = "validation"
    ) -> dict[str, Tensor]: ...


@dataclass(frozen=True)
class LearningTask:
    """What a strategy that trains models is given: so it imports neither models nor data.

    Args:
        layout: the genome: how `[P, D]` maps to the model's parameters and kernels.
        new_model: seed -> freshly initialised module.
        evaluate: a population on the server's own data; `accuracy` is NaN for regression.
        classification: whether targets are labels.
        buffers: the model's buffers as nodes and server hold them when a run begins.
        batch_norm: where batch normalisation gets its statistics in methods without gradients: the initial ones
            (`identity`), those of the samples that are evaluated (`batch`), or of the server's data (`server`).
        statistics: genes `[D]` -> buffers with statistics of the server's data; `None` with `identity`.
    """

    layout: Layout
    new_model: Callable[[int], Module]
    evaluate: Evaluate
    classification: bool = True
    buffers: Tensors = field(default_factory=dict)
    batch_norm: Literal["identity", "batch", "server"] = "identity"
    statistics: Callable[[Tensor], Tensors] | None = None

    def buffers_for(self, genes: Tensor) -> Tensors:
        """Return the buffers with which a model found without gradients is validated and kept."""
        return self.buffers if self.statistics is None else self.statistics(genes)


@dataclass(frozen=True)
class Result:
    """What a run yields: a model's genes `[D]` and buffers, or what B runs of a search have found.

    That is points `[B, d]` and values `[B]`, or fronts, points `[B, n, d]` and values `[B, n, M]`, padded with NaN.
    """

    kind: Literal["model", "point", "front"]
    parameters: Tensor
    buffers: Tensors = field(default_factory=dict)
    values: Tensor | None = None


Metrics = dict[str, Any]
"""Of one step; floats by name, `round` always there. Names without a leading underscore go to the history."""


@runtime_checkable
class Strategy(Protocol):
    """A method: a plain class, no base. Hyper-parameters are keyword-only with the paper's values as defaults.

    A strategy may have further members that the toolkit uses; `fne.config.members.MEMBERS` is the table of them.
    """

    seed: int

    @property
    def tasks(self) -> Mapping[str, Mapping[str, Scalar | tuple[float, float]]]:
        """Node tasks that it asks for, those of its relays among them, see `fne.privacy.policy.Tasks`.

        Nodes do these alone: what a method hides, no other task tells.
        """
        ...

    @property
    def step(self) -> int:
        """Number of asks that were answered."""
        ...

    @property
    def horizon(self) -> int:
        """Planned number of steps; every schedule reads this, never 'rounds left'."""
        ...

    @property
    def done(self) -> bool:
        """Whether the run has come to its own end."""
        ...

    def ask(self, nodes: Sequence[str]) -> Request:
        """Return the next request; `nodes` are all nodes there are, sorted.

        Asked again before `tell`, it returns the same request and changes nothing.
        """
        ...

    def tell(self, round_: Round) -> Metrics:
        """Take in what came back and return the step's metrics."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resumed run needs (tensors, numbers, text, lists, dicts)."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        ...

    def result(self) -> Result:
        """Return what the run yields so far."""
        ...


class Engine(Protocol):
    """Where the nodes are. The same request gives the same bits on every engine."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes, sorted."""
        ...

    def send(self, request: Request) -> Round:
        """Broadcast, compute, gather. Raises `RunError` below the quorum, with both numbers."""
        ...

    def save(self, step: int) -> None:
        """Keep the nodes' memory as of `step`."""
        ...

    def load(self, step: int) -> None:
        """Take the nodes back to `step`; raises `CheckpointError` where that is not held."""
        ...

    def close(self) -> None:
        """Release what the engine holds."""
        ...


Callback = Callable[[Strategy, Round, Metrics], bool | None]
"""Called after each step; a true value ends the run after this step."""
