"""Config sections: their keys with types, bounds and defaults."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict

from fne.config.settings import Key
from fne.core.errors import FneError

_SIZE = "text such as '2GB' (unit B, kB, MB or GB) or a number of bytes"
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}


def parse_bytes(value: int | float | str) -> int:
    """Return a number of bytes from `"2GB"`, `"1.5 MB"` (powers of ten, unit B, kB, MB or GB) or a number."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?)\s*([kmg]?b|)", str(value).strip().lower())
    if match is None or isinstance(value, bool):
        raise FneError(f"size = {value!r}: must be {_SIZE}")
    return int(Decimal(match[1]) * _UNITS[match[2]])


class Section(BaseModel):
    """Base of all sections: immutable, without unknown keys, with finite numbers only."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class NamedSection(Section):
    """A registered object and all its settings."""

    name: str
    settings: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return the section as in YAML."""
        return {"name": self.name, **self.settings}


class DataNodes(Section):
    """Keys of the data section that are the same for every data set."""

    nodes: Annotated[int | None, Key("nodes that share the data; null: the partition decides", ge=1, le=10**6)] = None
    shift: Annotated[
        int, Key("largest shift of a training input, drawn anew each time", unit="pixels, samples", ge=0)
    ] = 0


class DataSection(DataNodes, NamedSection):
    """A data set, the number of its nodes, and the partition; `settings` are the loader's."""

    partition: NamedSection

    def to_dict(self) -> dict[str, Any]:
        """Return the section as in YAML."""
        own = {"name": self.name, "nodes": self.nodes, "partition": self.partition.to_dict(), "shift": self.shift}
        return own | self.settings


class ProblemNodes(Section):
    """Keys of the problem section that are the same for every problem."""

    nodes: Annotated[int, Key("owners that can measure points", ge=1, le=10**6)] = 10
    noise: Annotated[float, Key("standard deviation of the noise on each measurement; alpha", ge=0)] = 0.0
    infeasible: Annotated[
        int,
        Key("tau: node k (from 1) cannot measure slots k to k + tau - 1 of the first variable; nodes are slots", ge=0),
    ] = 0
    known: Annotated[
        str | None,
        Key(
            "CSV of known points, with variables and objectives as columns; {node} stands for the node's name",
            path="file",
        ),
    ] = None
    declines: Annotated[tuple[str, ...], Key("nodes that decline to release their results")] = ()


class ProblemSection(ProblemNodes, NamedSection):
    """A problem, its nodes, and how they measure; `settings` are the problem's own."""

    def to_dict(self) -> dict[str, Any]:
        """Return the section as in YAML."""
        own = {key: getattr(self, key) for key in ProblemNodes.model_fields}
        return {"name": self.name, **own, **self.settings}


class PolicySection(Section):
    """Limits on a simulated node's answers, whatever the server requests: fixed before the first request.

    Null stands for the limit that the method declares.
    """

    noise: Annotated[
        float | None, Key("least standard deviation of a node's own noise on an answer, in clips", ge=0)
    ] = None
    clip: Annotated[float | None, Key("largest L2 norm of the values that noise is added to", gt=0)] = None
    answers: Annotated[
        int | None, Key("most requests that a node answers with noise; null: one in each round", unit="requests", ge=1)
    ] = None
    epsilon: Annotated[
        float | None, Key("largest epsilon of a node's own account, by RDP; null: the method's plan", gt=0)
    ] = None
    delta: Annotated[float | None, Key("delta of the node's account; null: the strategy's, or 1e-05", gt=0, lt=1)] = (
        None
    )


class EvaluationSection(Section):
    """How a population is evaluated on the data: results agree on every path, time and memory differ."""

    path: Annotated[
        Literal["table", "auto", "loop", "vmap", "stacked"],
        Key("table: best known path for model and device; auto: a timed trial at step 0; others: the named path"),
    ] = "table"
    tiles: Annotated[
        Literal["node", "joined"],
        Key("node: same bits on every engine; joined: one pass over all nodes of a worker, within 1e-6"),
    ] = "node"
    memory: Annotated[
        int,
        BeforeValidator(parse_bytes),
        Key("most memory that a pass may use", unit="bytes", allowed=f"{_SIZE}, at least 1MB", ge=10**6),
    ] = 2 * 10**9
    chunk: Annotated[
        int | None, Key("most individuals in a pass; null: as memory allows", unit="individuals", ge=1)
    ] = None
    tile: Annotated[int | None, Key("most samples in a pass; null: as memory allows", unit="samples", ge=1)] = None
    together: Annotated[
        int,
        Key(
            "models that a node trains side by side; 0: one on a CPU, on a GPU as many as memory holds",
            unit="models",
            ge=0,
        ),
    ] = 0
    batch_norm: Annotated[
        Literal["identity", "batch", "server"],
        Key("statistics without gradients: mean 0 and variance 1, the node's samples', or the server's samples'"),
    ] = "identity"


class WatchSection(Section):
    """Output of a run, and its early stopping."""

    every: Annotated[int, Key("write every n-th step to the history", unit="steps", ge=1)] = 1
    checkpoint_every: Annotated[int, Key("write a checkpoint every n-th step", unit="steps", ge=1)] = 50
    tensorboard: Annotated[bool, Key("write TensorBoard events")] = True
    target: Annotated[float | None, Key("validation accuracy at which the run stops; null: never", ge=0, le=1)] = None
    champions: Annotated[int, Key("keep the fittest individual of every n-th step; 0: none", unit="steps", ge=0)] = 0


_NAME = "text of at most 100 letters, digits, '.', '_' and '-' that begins with a letter or digit"
_SEED = "a whole number >= 0 and < 2**63"


class RunSection(Section):
    """Top-level keys of a config."""

    name: Annotated[str, Key("name of the run", allowed=_NAME, pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
    seed: Annotated[int, Key("seed of everything public", allowed=_SEED, ge=0, lt=2**63)] = 0
    secure: Annotated[
        Literal[False, True, "clip"],
        Key("let the server see sums over nodes only; clip: numbers too large for a sum are clipped, not an error"),
    ] = False
    wire: Annotated[
        Literal["tensors", "lineage", "auto"],
        Key("send candidates as whole models, or as decisions from which nodes make them; auto: decisions if possible"),
    ] = "tensors"
    plugins: Annotated[
        tuple[str, ...], Key("Python files that register your own strategies, models, data sets and so on", path="file")
    ] = ()
