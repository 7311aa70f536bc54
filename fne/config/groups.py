"""Settings groups: declarations that several strategies and node tasks share, each written once.

A group is a frozen dataclass whose fields are settings. A strategy or a node task takes it as one keyword-only
parameter, `training: LocalTraining`, and a config lists the fields flat, in the place of that parameter. A subclass may
redeclare a field where its default or meaning differs; the field keeps its place. `X = Annotated[...]` and
`X = Literal[...]` are aliases for a single shared setting or type.

This module must not import any module of the toolkit that imports torch: the catalogue is read without torch.
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
"""Readings of the text of FDD-EA, see `fne.strategies.fdd_ea`."""

# ------------------------------------------------------------------------------------------------ single settings
Rounds = Annotated[int, Key("communication rounds", unit="rounds", ge=1)]
Returns = Annotated[Literal["best", "last"], Key("model of the run: best on validation, or the last")]
Passes = Annotated[int, Key("passes over the node's samples", unit="epochs", ge=1)]
Batch = Annotated[int, Key("batch size; 0: all samples at once", unit="samples", ge=0)]
PrivateReturns = Annotated[Literal["best", "last"], Key("model of the run: best on validation, or of the last round")]
Generations = Annotated[int, Key("number of generations", unit="generations", ge=1)]
UsualPopulation = Annotated[
    int, Key("candidates per generation, at least 2; 0: the paper's 4 + floor(3 ln D)", unit="models", ge=0)
]
SgdMomentum = Annotated[float, Key("momentum of sgd", ge=0, lt=1)]
MomentumOfSgd = Annotated[float, Key("momentum of sgd", ge=0, lt=1)]
LocalRate = Annotated[float, Key("local learning rate", gt=0)]
TrainedLoss = Annotated[Loss, Key("loss that training minimises")]
Runs = Annotated[int, Key("number of runs side by side, with seeds seed, seed + 1, …", unit="runs", ge=1, le=1000)]
Deviations = Annotated[float, Key("standard deviations that the acquisition subtracts", ge=0)]
KmeansStarts = Annotated[int, Key("starts of k-means, of which the best is kept", ge=1, le=100)]
Finalists = Annotated[int, Key("most points that all nodes measure at the end", unit="points", ge=1, le=1000)]
Parties = Annotated[int, Key("number of nodes whose answers are added up", unit="nodes", ge=1)]
SecureTask = Annotated[str, Key("node task whose payloads are added")]
Output = Annotated[
    Literal["softmax", "sigmoid", "linear"],
    Key("how logits become predictions: one class of many, each class against the others, or unchanged values"),
]
SplitSeed = Annotated[int, Key("seed of the split; keep it the same in runs to compare", ge=0)]
ImageSplit = Annotated[Literal["trial"], Key("images are dealt to the parts one by one")]


# ------------------------------------------------------------------------------------------------ engines
@dataclass(frozen=True, kw_only=True)
class SimulatedNodes:
    """Engines that compute all nodes in one process."""

    device: Annotated[Literal["auto", "cpu", "cuda"], Key("where nodes compute")] = "auto"
    threads: Annotated[
        int, Key("threads of torch; 0: all cores, which is faster for large models on an idle machine", ge=0, le=1024)
    ] = 1
    quorum: Annotated[int, Key("least number of replies; with fewer a round fails", unit="nodes", ge=1)] = 1
    away: Annotated[float, Key("share of the time that a node is away; 0: all are always available", ge=0, lt=1)] = 0.0
    stretch: Annotated[int, Key("length of a node's periods of availability or absence", unit="steps", ge=1)] = 5
    timeout: Annotated[
        float | None, Key("time limit for a node's answer, after which it counts as gone; null: none", unit="s", gt=0)
    ] = None


# ------------------------------------------------------------------------------------------------ averaging
@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """Federated averaging: who takes part in a round, and how the nodes train."""

    fraction: Annotated[float, Key("share of the nodes in a round, at least one node", gt=0, le=1)] = 0.1
    local_epochs: Annotated[int, Key("passes over a node's samples per round", unit="epochs", ge=1)] = 1
    batch_size: Annotated[int, Key("size of local batches; 0: all samples at once", unit="samples", ge=0)] = 10
    optimizer: Annotated[Optimizer, Key("local optimizer, new each round")] = "sgd"
    lr: LocalRate = 0.1
    lr_decay: Annotated[float, Key("factor by which lr is multiplied after each round", gt=0, le=1)] = 1.0
    momentum: SgdMomentum = 0.0
    loss: Annotated[Loss, Key("loss that nodes minimise")] = "cross_entropy"
    returns: Returns = "last"


@dataclass(frozen=True, kw_only=True)
class FedAvgTraining(LocalTraining):
    """Federated averaging with the paper's letters in the texts."""

    fraction: Annotated[float, Key("share of the nodes in a round, at least one node; C", gt=0, le=1)] = 0.1
    local_epochs: Annotated[int, Key("passes over a node's samples per round; E", unit="epochs", ge=1)] = 1
    batch_size: Annotated[int, Key("size of local batches; 0: all samples at once; B", unit="samples", ge=0)] = 10


# ------------------------------------------------------------------------------------------------ privacy
@dataclass(frozen=True, kw_only=True)
class Clients:
    """Private averaging: who takes part in a round, and how long each trains."""

    fraction: Annotated[float, Key("share of the nodes in a round, at least one", gt=0, le=1)] = 0.1
    local_epochs: Annotated[int, Key("passes over a node's samples in a round", unit="epochs", ge=1)] = 1


@dataclass(frozen=True, kw_only=True)
class PrivateTraining:
    """Private averaging: how nodes train, how updates are clipped and noised, and the accounted delta."""

    batch_size: Annotated[int, Key("size of local batches; 0: all of a node's samples", unit="samples", ge=0)] = 10
    lr: LocalRate = 0.1
    loss: Annotated[Loss, Key("loss of training and validation")] = "cross_entropy"
    clip: Annotated[float, Key("largest L2 norm of an update; Z", gt=0)] = 1.0
    noise: Annotated[float, Key("standard deviation of all noise on a weight of the sum, in clips; sigma", ge=0)] = 1.0
    delta: Annotated[float, Key("delta of the accounted privacy", gt=0, lt=1)] = 1e-5


@dataclass(frozen=True, kw_only=True)
class RecordPrivateTraining(PrivateTraining):
    """Private averaging with clipping and noise of single records."""

    batch_size: Annotated[
        int, Key("divisor of a sum of gradients, the same at all nodes: an average batch size", unit="samples", ge=1)
    ] = 50
    clip: Annotated[float, Key("largest L2 norm of a record's gradient", gt=0)] = 1.0
    noise: Annotated[float, Key("standard deviation of the noise on a batch's sum, in clips", ge=0)] = 1.0


# ------------------------------------------------------------------------------------------------ training at a node
@dataclass(frozen=True, kw_only=True)
class NodeTraining:
    """Options of node tasks that train."""

    loss: TrainedLoss
    lr: Annotated[float, Key("learning rate", ge=0)]
    epochs: Passes


@dataclass(frozen=True, kw_only=True)
class BatchTraining(NodeTraining):
    """Options of node tasks that train by batches of a given size."""

    batch_size: Batch


@dataclass(frozen=True, kw_only=True)
class GradientTraining(BatchTraining):
    """Options of the node task `train`."""

    lr: Annotated[float, Key("learning rate; a long decay may reach 0", ge=0)]
    epochs: Passes = 1
    batch_size: Batch = 0
    optimizer: Annotated[Optimizer, Key("optimizer, new each time unless keep_optimizer is set")] = "sgd"
    momentum: MomentumOfSgd = 0.0
    mu: Annotated[float, Key("FedProx: weight of mu / 2 * ||w - w_global||^2 in the loss", ge=0)] = 0.0
    keep_optimizer: Annotated[bool, Key("keep the optimizer's state in the node's memory between steps")] = False


@dataclass(frozen=True, kw_only=True)
class RecordTraining(NodeTraining):
    """Options of the node task `train_dp_sgd`."""

    rate: Annotated[float, Key("probability that a record is drawn for a batch", gt=0, le=1)]
    batch_size: Annotated[int, Key("divisor of a sum of gradients", unit="samples", ge=1)]
    clip: Annotated[float, Key("largest L2 norm of a record's gradient", gt=0)]
    noise: Annotated[float, Key("standard deviation of the noise on a sum of gradients, in clips", ge=0)]


# ------------------------------------------------------------------------------------------------ evolution
@dataclass(frozen=True, kw_only=True)
class Evolution:
    """Methods without gradients: generations, and the nodes and samples that evaluate them."""

    rounds: Generations = 500
    loss: Annotated[Loss, Key("loss that is the fitness")] = "nmse"
    subset_size: Annotated[int, Key("nodes in a generation, drawn at random", unit="nodes", ge=1)] = 1
    samples_per_node: Annotated[
        int,
        Key("samples per node, redrawn each generation, the same for all candidates; 0: all", unit="samples", ge=0),
    ] = 0


@dataclass(frozen=True, kw_only=True)
class CentreOutcome:
    """Methods without gradients that move the centre of a distribution: validation, and the model of the run."""

    validate_every: Annotated[
        int, Key("generations between validations; the last generation is always validated", unit="generations", ge=1)
    ] = 1
    returns: Annotated[Literal["last", "best"], Key("model of the run: the last centre, or the best on validation")] = (
        "last"
    )


@dataclass(frozen=True, kw_only=True)
class FittestOutcome(CentreOutcome):
    """Methods without gradients that keep a population: validation, and the model of the run."""

    returns: Annotated[
        Literal["last", "best"], Key("model of the run: the last fittest, or the best on validation")
    ] = "last"


@dataclass(frozen=True, kw_only=True)
class NodeSelection:
    """Which nodes evaluate a generation, see `fne.federation.participation.NodeChoice`."""

    nodes: Annotated[
        Literal["random_subset", "single_sample", "moving_window", "all"],
        Key("nodes that evaluate a generation: the paper's three choices, or all nodes"),
    ] = "random_subset"
    subset_size: Annotated[int, Key("nodes in a random subset", unit="nodes", ge=1)] = 1
    subset_every: Annotated[int, Key("generations for which a subset is kept", unit="generations", ge=1)] = 1
    full_every: Annotated[
        int, Key("generations between evaluations on all nodes; 0: never", unit="generations", ge=0)
    ] = 0
    samples_per_node: Annotated[
        int,
        Key("samples per node, redrawn each generation, the same for all individuals; 0: all", unit="samples", ge=0),
    ] = 0
    window_size: Annotated[int, Key("nodes in the moving window", unit="nodes", ge=1)] = 1
    window_every: Annotated[
        int, Key("generations after which the window moves by one node", unit="generations", ge=1)
    ] = 1


@dataclass(frozen=True, kw_only=True)
class Breeding:
    """How one generation of `fne` breeds the next, see `fne.evolution.population.Variation`."""

    selection: Annotated[
        Literal["paper", "truncation", "tournament"],
        Key("parents: the paper's n-1 fittest and one of the rest, the n fittest, or tournaments"),
    ] = "paper"
    parents: Annotated[int, Key("size of the pool of parents, n", unit="models", ge=2)] = 10
    tournament_size: Annotated[int, Key("entrants of a tournament", unit="models", ge=1)] = 3
    crossover: Annotated[
        Literal["kernelwise", "halving", "interleave", "mean"], Key("how two parents make a child")
    ] = "kernelwise"
    mutation: Annotated[
        Literal["multiply", "offset", "mixed", "lognormal"],
        Key("how genes mutate: the paper's two ways, both at once, or by a lognormal factor"),
    ] = "multiply"
    mutation_chance: Annotated[float, Key("probability that a gene mutates", ge=0, le=1)] = 0.1
    mutation_rate: Annotated[
        float, Key("rate of the factor U[1 - rate/100, 1 + rate/100]", unit="percent", ge=0, le=100)
    ] = 20.0
    rate_max: Annotated[
        float, Key("bound on rate times multiplier; below 100 no sign flips", unit="percent", gt=0, le=200)
    ] = 100.0
    offset_rate: Annotated[float, Key("rate of the offset U[-rate, rate]", unit="gene", ge=0)] = 0.05
    additive: Annotated[
        float,
        Key("mixed: size of the additive part", unit="standard deviations of the layer's initial values", ge=0),
    ] = 0.3
    sign_flip: Annotated[float, Key("lognormal: probability of a sign flip", ge=0, le=1)] = 0.0
    elites: Annotated[int, Key("number of the fittest that survive unchanged", unit="models", ge=0)] = 0


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Options of node tasks that evaluate a population: samples, and statistics of batch normalisation."""

    samples: Annotated[
        int, Key("samples per node, redrawn each step from its public generator; 0: all", unit="samples", ge=0)
    ] = 0
    statistics: Annotated[
        Literal["given", "batch"],
        Key("batch normalisation: the model's or request's statistics, or each individual's on the node's samples"),
    ] = "given"


# ------------------------------------------------------------------------------------------------ swarms
@dataclass(frozen=True, kw_only=True)
class Broadcasts:
    """Swarms: how often particles are sent, and the loss that compares them."""

    rounds: Annotated[
        int,
        Key("broadcasts: the first measures the first positions, each further one is an epoch", unit="steps", ge=1),
    ] = 1501
    loss: Annotated[Loss, Key("loss that compares particles, over all samples")] = "bce"


@dataclass(frozen=True, kw_only=True)
class SwarmEvaluation:
    """Swarms: separate outputs, reduced samples, and validation."""

    one_vs_all: Annotated[
        bool, Key("treat outputs with separate genes and losses as models with their own best particle and moves")
    ] = True
    exact_reduction: Annotated[
        bool, Key("let nodes reduce their samples once: exact for the squared error of a linear model")
    ] = False
    validate_every: Annotated[
        int, Key("steps between validations; the last step is always validated; 0: never", unit="steps", ge=0)
    ] = 1


# ------------------------------------------------------------------------------------------------ trade-offs
@dataclass(frozen=True, kw_only=True)
class TradeoffSearch:
    """Searches for trade-offs: number of individuals and generations, and rounds of an evaluation."""

    population: Annotated[int, Key("number of individuals; N", ge=1)] = 10
    generations: Annotated[int, Key("number of generations of children", ge=0)] = 12
    rounds_per_evaluation: Annotated[
        int, Key("rounds of federated averaging for each individual; T", unit="rounds", ge=1)
    ] = 10


@dataclass(frozen=True, kw_only=True)
class TradeoffTraining:
    """Searches for trade-offs: how an individual is trained."""

    loss: Annotated[Loss, Key("loss that local training minimises")] = "cross_entropy"
    participation: Annotated[float, Key("share of the nodes that take part in a round; v", gt=0, le=1)] = 0.4
    epochs: Annotated[int, Key("passes over a node's samples in a round; E", unit="epochs", ge=1)] = 2
    batch_size: Annotated[int, Key("size of local batches; 0: all samples at once; B", unit="samples", ge=0)] = 64
    lr: Annotated[float, Key("learning rate of SGD", gt=0)] = 0.1


@dataclass(frozen=True, kw_only=True)
class Sending:
    """Searches for trade-offs: how updates are clipped, noised, compressed; see `fne.privacy.compression.prepare`."""

    bits: Annotated[tuple[int, ...], Key("choices of bits per sent value", unit="bits", min_length=1)] = (32, 16, 8)
    clip: Annotated[float, Key("largest L2 norm of an update; 0: none, and no noise; Z", ge=0)] = 1.0
    noise: Annotated[
        Literal["total", "coordinate"], Key("meaning of sigma Z: size of all noise together, or deviation per weight")
    ] = "total"
    score_bounds: Annotated[tuple[float, float], Key("least and largest score of eq. (7), which bound the noise")] = (
        0.1,
        10.0,
    )
    delta: Annotated[float, Key("delta of the accounted privacy and of eq. (7)", gt=0, lt=1)] = 1e-5
    pruning: Annotated[Literal["rate", "threshold"], Key("meaning of the first gene: a pruned share, or a size")] = (
        "rate"
    )
    prune: Annotated[Literal["fc", "all"], Key("weights to prune: of fully connected layers, or all")] = "fc"
    order: Annotated[
        Literal["proper", "literal"], Key("order: clip, noise, compress the update; or compress, clip, noise weights")
    ] = "proper"


@dataclass(frozen=True, kw_only=True)
class TradeoffStart:
    """Searches for trade-offs: initial weights, first individuals, and validation during training."""

    inherit: Annotated[Literal["initial", "first_parent"], Key("initial weights of a child")] = "initial"
    shared_global: Annotated[
        bool, Key("start all individuals from one global model, the mean of the previous generation's models")
    ] = False
    start: Annotated[
        tuple[tuple[float, float, float], ...],
        Key("first individuals, [threshold, bits, noise]; the remaining ones are drawn"),
    ] = ()
    validate_every: Annotated[
        int, Key("rounds between validations in training; 0: only at the end of an evaluation", unit="rounds", ge=0)
    ] = 0


# ------------------------------------------------------------------------------------------------ searches for a value
@dataclass(frozen=True, kw_only=True)
class PooledSearch:
    """Searches on pooled data: evaluations before and during the search."""

    initial: Annotated[int | None, Key("points of the Latin hypercube; null: 5 d", unit="points", ge=1)] = None
    evaluations: Annotated[int | None, Key("evaluations after the Latin hypercube; null: 6 d", unit="points", ge=0)] = (
        None
    )

    def points(self, variables: int) -> tuple[int, int]:
        """Return both numbers for a problem with the given number of variables."""
        initial = 5 * variables if self.initial is None else self.initial
        return initial, 6 * variables if self.evaluations is None else self.evaluations


@dataclass(frozen=True, kw_only=True)
class SurrogateStart:
    """FDD-EA: points measured before the first surrogate, and participation in a round."""

    initial: Annotated[
        int | None, Key("points of the Latin hypercube that all nodes measure; null: 5 d", unit="points", ge=1)
    ] = None
    participation: Annotated[
        float | None,
        Key("share of the nodes that take part in a round; lambda; null: 0.1, and at least 3 nodes", gt=0, le=1),
    ] = None


@dataclass(frozen=True, kw_only=True)
class NetworkDescent:
    """FDD-EA: how networks are trained."""

    epochs: Annotated[int, Key("passes over a node's samples; E", unit="epochs", ge=1)] = 20
    lr: Annotated[float, Key("learning rate of the networks; eta", gt=0)] = 0.12


@dataclass(frozen=True, kw_only=True)
class AcquisitionSearch:
    """How the server minimises an acquisition."""

    population: Annotated[
        int, Key("population of the genetic algorithm on the acquisition", unit="points", ge=2, multiple_of=2)
    ] = 100
    generations: Annotated[int, Key("generations of that algorithm; g", ge=1)] = 100


@dataclass(frozen=True, kw_only=True)
class GaussianSearch(AcquisitionSearch):
    """How the server minimises the acquisition of a Gaussian process, which takes longer to evaluate."""

    generations: Annotated[int, Key("generations of that algorithm", ge=1)] = 50


@dataclass(frozen=True, kw_only=True)
class SurrogateTraining:
    """Options of the node task `surrogate`."""

    centres: Annotated[int, Key("number of a network's centres", ge=1)]
    epochs: Annotated[int, Key("passes over the samples; E", unit="epochs", ge=1)]
    lr: Annotated[float, Key("learning rate of the networks; eta", gt=0)]
    reading: Annotated[Reading, Key("reading of width and synchronisation, see fdd_ea")] = "workable"
    starts: Annotated[int, Key("starts of k-means, of which the best is kept", ge=1)] = 3
    most: Annotated[int, Key("number of best samples to train on; 0: all", unit="samples", ge=0)] = 0


# ------------------------------------------------------------------------------------------------ searches for a front
@dataclass(frozen=True, kw_only=True)
class FrontRounds:
    """Searches for a Pareto front: rounds, surrogates, acquisition, and the search in a round."""

    rounds: Annotated[int, Key("rounds of surrogates and queries", ge=1)] = 24
    initial: Annotated[
        int | None, Key("points of the Latin hypercube that all nodes measure; null: 11 d - 1", unit="points", ge=1)
    ] = None
    points: Annotated[int, Key("infill points per round; mu", ge=1)] = 5
    infill: Annotated[
        Literal["aggregator", "all"], Key("nodes that learn and measure the infill points: the chosen node, or all")
    ] = "aggregator"
    participation: Annotated[float, Key("share of the nodes that take part in a round", gt=0, le=1)] = 1.0
    surrogate: Annotated[Surrogate, Key("cubic interpolants, or the networks of FDD-EA and their average")] = "cubic"
    centres: Annotated[int | None, Key("number of a network's centres; null: the root of M + d, and 3", ge=1)] = None
    epochs: Annotated[int, Key("epochs of a network's training; E", unit="epochs", ge=1)] = 20
    lr: Annotated[float, Key("learning rate of the networks; eta", gt=0)] = 0.06
    kmeans_starts: KmeansStarts = 3
    weight: Annotated[float, Key("standard deviations that the acquisition subtracts; t", ge=0)] = 2.0
    population: Annotated[
        int | None, Key("most reference vectors of RVEA; null: by the number of objectives", ge=2, le=5000)
    ] = None
    generations: Annotated[int, Key("generations of RVEA in a round", ge=1)] = 50


@dataclass(frozen=True, kw_only=True)
class Masking:
    """Masks of the FDD-EA-DH paper's text: their size, its schedule over the generations, and eq. (4)."""

    noise_scale: Annotated[float, Key("mode = literal: standard deviation of a mask, in units of objectives", ge=0)] = (
        1.0
    )
    schedule: Annotated[
        Literal["constant", "linear"], Key("mode = literal: size of masks over generations: constant, or falling to 0")
    ] = "linear"
    normalise: Annotated[bool, Key("mode = literal: scale mean and deviation to [0, 1], eq. (4)")] = True


@dataclass(frozen=True, kw_only=True)
class FrontEnd:
    """Searches for a Pareto front: how a run ends."""

    release: Annotated[bool, Key("end with the fronts that owners publish; otherwise without a front")] = True
    finals: Annotated[
        Literal["mean", "literal"],
        Key("values of the front: means over all nodes, which measure the published points, or the owners' own values"),
    ] = "mean"
    finalists: Finalists = 50
