"""One import for authors of plugins: what a strategy, a model, a data set, a problem or a node task needs.

    from fne.extend import Key, register

Nothing in the toolkit imports this module. What stands here keeps its name when modules move; `docs/extending.md` has
an example of each.
"""

from fne.config.groups import CentreOutcome, Evolution, LocalTraining, Loss
from fne.config.registry import Key, load, register
from fne.core.contracts import Metrics, Result
from fne.core.dataset import Dataset, Samples
from fne.core.errors import DataError, DataWarning, FneError, RefusedError, RunError, SettingError
from fne.core.messages import GIVEN, Header, Relay, Reply, Request, Round, Tensors
from fne.core.randomness import chosen_node, derive_seed, generator
from fne.data.sources import check_dataset
from fne.evolution.losses import check_loss
from fne.evolution.operators import order
from fne.evolution.philox import UNIT, Perturbations
from fne.evolution.population import cleaned
from fne.federation.node import Node, payload_of
from fne.federation.payloads import COUNT, Entry, Payload
from fne.federation.worker import Worker
from fne.learning.averaging import Averaging
from fne.learning.evolving import Evolving, Proposer
from fne.learning.fitness_tasks import fitness_payload
from fne.learning.task import LearningTask, Validation
from fne.privacy.noise import noised
from fne.privacy.policy import Release, Terms
from fne.problems.space import FrontTask, Problem, SearchTask, Space, Variable, space_of
from fne.search.value_search import ValueSearch

__all__ = [
    "COUNT", "GIVEN", "UNIT", "Averaging", "CentreOutcome", "DataError", "DataWarning", "Dataset", "Entry",
    "Evolution", "Evolving", "FneError", "FrontTask", "Header", "Key", "LearningTask", "LocalTraining", "Loss",
    "Metrics", "Node", "Payload", "Perturbations", "Problem", "Proposer", "RefusedError", "Relay", "Release", "Reply",
    "Request", "Result", "Round", "RunError", "Samples", "SearchTask", "SettingError", "Space", "Tensors", "Terms",
    "Validation", "ValueSearch", "Variable", "Worker", "check_dataset", "check_loss", "chosen_node", "cleaned",
    "derive_seed", "fitness_payload", "generator", "load", "noised", "order", "payload_of", "register", "space_of",
]  # fmt: skip
