"""Settings groups: declarations that several strategies and node tasks share, each written once.

A group is a frozen dataclass whose fields are settings. A strategy or a node task takes it as one keyword-only
parameter, `training: LocalTraining`, and a config has the fields flat, in the place of that parameter. A subclass may
declare a field anew where its default or meaning differs; the field keeps its place. `X = Annotated[...]` and
`X = Literal[...]` are aliases, for a setting or a type that is shared alone.

No module of the toolkit that imports torch may be imported here: the catalogue is read without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from fne.config.settings import Key

# ------------------------------------------------------------------------------------------------ types
Loss = Literal["nmse", "mse", "bce", "cross_entropy"]
"""Losses of `fne.evolution.losses`."""
Optimizer = Literal["sgd", "adam", "adadelta"]
"""Optimizers of `fne.learning.local_training.make_optimizer`."""
Ring = Literal["fixed", "float"]
"""Arithmetic of a sum: words of the ring Z_2^64, or floats."""
Arithmetic = Literal["fixed", "float", "masked"]
"""`Ring`, or single predictions under the masks of the FDD-EA-DH paper's text."""
Surrogate = Literal["cubic", "network"]
"""Interpolants with cubic basis functions, or the radial-basis-function networks of FDD-EA."""
Reading = Literal["workable", "literal"]
"""How the text of FDD-EA is read, see `fne.strategies.fdd_ea`."""

# ------------------------------------------------------------------------------------------------ single settings
Rounds = Annotated[int, Key("communication rounds", unit="rounds", ge=1)]
Returns = Annotated[Literal["best", "last"], Key("model of the run: best on validation, or the last")]
SgdMomentum = Annotated[float, Key("momentum of sgd", ge=0, lt=1)]
MomentumOfSgd = Annotated[float, Key("of sgd", ge=0, lt=1)]
LocalRate = Annotated[float, Key("local learning rate", gt=0)]
TrainedLoss = Annotated[Loss, Key("what is minimised")]
Runs = Annotated[int, Key("side by side, of seeds seed, seed + 1, …", unit="runs", ge=1, le=1000)]
Deviations = Annotated[float, Key("standard deviations that the acquisition subtracts", ge=0)]
KmeansStarts = Annotated[int, Key("of k-means, of which the best is kept", ge=1, le=100)]
Finalists = Annotated[int, Key("most points that all nodes measure at the end", unit="points", ge=1, le=1000)]
Parties = Annotated[int, Key("number of nodes whose answers are added up", unit="nodes", ge=1)]
SecureTask = Annotated[str, Key("whose payloads are added")]


# ------------------------------------------------------------------------------------------------ averaging
@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """Federated averaging: who takes part in a round, and how the nodes train."""

    fraction: Annotated[float, Key("share of the nodes in a round, at least one node", gt=0, le=1)] = 0.1
    local_epochs: Annotated[int, Key("passes over a node's samples a round", unit="epochs", ge=1)] = 1
    batch_size: Annotated[int, Key("local batch; 0: all samples at once", unit="samples", ge=0)] = 10
    optimizer: Annotated[Optimizer, Key("local optimizer, new each round")] = "sgd"
    lr: LocalRate = 0.1
    lr_decay: Annotated[float, Key("factor on lr after each round", gt=0, le=1)] = 1.0
    momentum: SgdMomentum = 0.0
    loss: Annotated[Loss, Key("what nodes minimise")] = "cross_entropy"
    returns: Returns = "last"


@dataclass(frozen=True, kw_only=True)
class FedAvgTraining(LocalTraining):
    """The same with the letters of the paper."""

    fraction: Annotated[float, Key("share of the nodes in a round, at least one node; C", gt=0, le=1)] = 0.1
    local_epochs: Annotated[int, Key("passes over a node's samples a round; E", unit="epochs", ge=1)] = 1
    batch_size: Annotated[int, Key("local batch; 0: all samples at once; B", unit="samples", ge=0)] = 10


# ------------------------------------------------------------------------------------------------ trade-offs
@dataclass(frozen=True, kw_only=True)
class TradeoffSearch:
    """Searches for trade-offs: how many individuals there are, and how long each is trained."""

    population: Annotated[int, Key("individuals; N", ge=1)] = 10
    generations: Annotated[int, Key("of children", ge=0)] = 12
    rounds_per_evaluation: Annotated[int, Key("of federated averaging for each; T", unit="rounds", ge=1)] = 10


@dataclass(frozen=True, kw_only=True)
class TradeoffTraining:
    """Searches for trade-offs: how an individual is trained."""

    loss: Annotated[Loss, Key("of training")] = "cross_entropy"
    participation: Annotated[float, Key("share of the nodes that take part in a round; v", gt=0, le=1)] = 0.4
    epochs: Annotated[int, Key("passes over a node's samples in a round; E", unit="epochs", ge=1)] = 2
    batch_size: Annotated[int, Key("0: all samples at once; B", unit="samples", ge=0)] = 64
    lr: Annotated[float, Key("learning rate of SGD", gt=0)] = 0.1


@dataclass(frozen=True, kw_only=True)
class Sending:
    """Searches for trade-offs: how updates are clipped, noised, compressed; see `fne.privacy.compression.prepare`."""

    bits: Annotated[tuple[int, ...], Key("choices for a value that is sent", unit="bits", min_length=1)] = (32, 16, 8)
    clip: Annotated[float, Key("largest L2 norm of an update; 0: none, and no noise; Z", ge=0)] = 1.0
    noise: Annotated[
        Literal["total", "coordinate"], Key("sigma Z is the size of all noise together, or its deviation a weight")
    ] = "total"
    score_bounds: Annotated[tuple[float, float], Key("least and largest score of eq. (7), which bound the noise")] = (
        0.1,
        10.0,
    )
    delta: Annotated[float, Key("of the accounted privacy, and of eq. (7)", gt=0, lt=1)] = 1e-5
    pruning: Annotated[Literal["rate", "threshold"], Key("of the first gene: a share that is pruned, or a size")] = (
        "rate"
    )
    prune: Annotated[Literal["fc", "all"], Key("weights of fully connected layers, or all")] = "fc"
    order: Annotated[
        Literal["proper", "literal"], Key("clip, noise, compress the update; or compress, clip, noise weights")
    ] = "proper"


@dataclass(frozen=True, kw_only=True)
class TradeoffStart:
    """Searches for trade-offs: from which weights individuals begin, who is there first, when there is validation."""

    inherit: Annotated[Literal["initial", "first_parent"], Key("weights that a child begins with")] = "initial"
    shared_global: Annotated[bool, Key("all begin with one global model, the mean of those before")] = False
    start: Annotated[
        tuple[tuple[float, float, float], ...], Key("first individuals, [threshold, bits, noise]; others are drawn")
    ] = ()
    validate_every: Annotated[
        int, Key("those in training are validated; 0: at the end of their evaluation", unit="rounds", ge=0)
    ] = 0
