"""Server half of gradient-free methods that need only their candidates' fitness.

A method in strategies/ is a `Proposer`: it proposes candidates and learns from the nodes' answers. This module handles
everything between method and nodes: choice of nodes, requests, non-finite answers, validation, the run's result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from fne.config.groups import CentreOutcome, Evolution, NodeSelection
from fne.core.contracts import Metrics, Result
from fne.core.errors import RunError, SettingError
from fne.core.messages import Header, Reply, Request, Round, Scalar, Tensors
from fne.evolution import shaping
from fne.evolution.losses import check_loss
from fne.evolution.population import cleaned
from fne.federation.lineage import Lineage
from fne.federation.participation import NodeChoice
from fne.learning.task import BUFFER, LearningTask, Validation
from fne.privacy.policy import Tasks


def usual_population(population: int, genes: int) -> int:
    """Return `population`, or for 0 the usual size for a distribution over D genes, `4 + floor(3 ln D)`.

    Raises:
        SettingError: `population` is 1, which leaves nothing to compare.
    """
    if population == 1:
        raise SettingError("strategy.population", population, "at least 2, or 0")
    return population or 4 + math.floor(3 * math.log(genes))


def scheduled(step: int, horizon: int, values: tuple[float, float]) -> float:
    """Return a setting at `step`, with exponential decay; `values` are its start and the share of it in the last step.

    Args:
        step: step of the run, from 0.
        horizon: number of steps.
        values: value at the start, and the share of it in the last step.
    """
    start, share = values
    return float(start * share ** (step / max(1, horizon - 1)))


class Proposer(Lineage, Protocol):
    """A method without its exchange with the nodes: its decisions, and how they change its state."""

    @property
    def genes(self) -> Tensor:
        """Model to validate and to return, float32 `[D]`: the centre of a distribution, or the fittest individual."""
        ...

    @property
    def population(self) -> int:
        """Number of candidates per generation, `P`."""
        ...

    @property
    def remedy(self) -> str:
        """Setting to lower where no candidate has a finite loss, such as `strategy.sigma`."""
        ...

    def decide(self, scores: Tensor) -> Tensors:
        """Return the tensors that `advance` needs from the candidates' scores, as small as possible.

        Args:
            scores: float64 `[P]`, lower is better, +inf for a non-finite loss.
        """
        ...


class Evolving:
    """A strategy in which a random subset of the nodes evaluates the candidates of a method.

    Args:
        task: model and validation.
        proposer: the method.
        seed: seed of the run.
        evolution: generations, the loss of fitness and validation, the nodes of a generation and their samples.
        outcome: when models are validated, and which model is returned.
        uplink: answer of a node: `fitness` (sums of losses, which the engine adds), `levels` (the same in a byte each),
            `ranks` or `sign` (which the server weights by samples; scores are the mean ranks from 0, or for a pair
            (i, i + P/2) minus and plus its vote in [-1, 1]). A node on which no candidate has a finite loss fails by
            name, and the others go on; with `fitness`, however, its NaNs enter every sum, which ends the run.
        node_task: task by which nodes answer with `fitness`; its payload is that of the task `fitness`.
        options: options of `node_task` beside those of the task `fitness`.
    """

    decision: Tensors | None

    def __init__(
        self,
        task: LearningTask,
        proposer: Proposer,
        *,
        seed: int,
        evolution: Evolution,
        outcome: CentreOutcome,
        uplink: str = "fitness",
        node_task: str = "fitness",
        options: Mapping[str, Scalar] | None = None,
    ) -> None:
        check_loss(evolution.loss, classification=task.classification)
        self.seed, self.horizon, self.step = seed, evolution.rounds, 0
        self.lineage, self.decision = proposer, None
        self._task, self._outcome, self._uplink, self._node_task = task, outcome, uplink, node_task
        self._options = {**fitness_options(task, evolution.loss), **(options or {})}
        self._choice = NodeChoice(
            seed, NodeSelection(subset_size=evolution.subset_size, samples_per_node=evolution.samples_per_node)
        )
        self._evaluations = 0
        self._buffers = task.buffers_for(proposer.genes)
        self._validation = Validation(task, evolution.loss, proposer.genes)

    @property
    def done(self) -> bool:
        """Whether the run has reached its horizon."""
        return self.step >= self.horizon

    @property
    def tasks(self) -> Tasks:
        """Node tasks of the requests, see `fne.privacy.policy.Tasks`."""
        options = {**self._options, "samples": self._choice.selection.samples_per_node}
        if self._uplink == "fitness":
            return {self._node_task: options}
        return {"ranking": {**options, "answer": self._uplink}}

    def ask(self, nodes: Sequence[str]) -> Request:
        """Return the candidates for the nodes chosen to evaluate them."""
        chosen, samples = self._choice(self.step, nodes)
        common = {**self.lineage.candidates(self.step), **sent_buffers(self._task, self._buffers)}
        header, options = Header(self.seed, self.step), {**self._options, "samples": samples}
        if self._uplink == "fitness":
            return Request(header, self._node_task, chosen, common=common, options=options, reduce="sum")
        return Request(header, "ranking", chosen, common=common, options={**options, "answer": self._uplink})

    def tell(self, round_: Round) -> Metrics:
        """Let the method learn from the answers, and validate its model."""
        figures: Metrics = {"loss_best": None, "loss_mean": None, "loss_worst": None}
        if self._uplink == "fitness":
            losses, _ = mean_losses(round_.replies, self.lineage.population)
            scores, figures = self._losses(losses)
        elif self._uplink == "levels":
            scores, figures = self._losses(_mean_of_levels(round_.replies))
        else:
            scores = _mean_votes(round_.replies, self.lineage.population)
            figures["nonfinite"] = sum(int(reply.payload["nonfinite"][0]) for reply in round_.replies)
        self.decision = self.lineage.decide(scores)
        own = self.lineage.advance(self.step, self.decision)
        self.step += 1
        self._evaluations += len(scores)
        genes = self.lineage.genes
        self._buffers = self._task.buffers_for(genes)
        figures |= {"accuracy_validation": None, "loss_validation": None}
        if self.done or self.step % self._outcome.validate_every == 0:
            figures |= self._validation(genes, self._buffers, self.step)
        return {"round": self.step, "evaluations": self._evaluations, **figures, **own}

    def _losses(self, losses: Tensor) -> tuple[Tensor, Metrics]:
        fitness, nonfinite = cleaned(losses)
        finite = fitness[torch.isfinite(fitness)]
        if not len(finite):
            raise RunError(
                f"generation {self.step}: all {nonfinite} candidates have a non-finite loss; lower "
                f"{self.lineage.remedy}, or scale the data"
            )
        return fitness, {
            "loss_best": float(finite.min()),
            "loss_mean": float(finite.mean()),
            "loss_worst": float(finite.max()),
            "nonfinite": nonfinite,
            "_fitness": fitness,
        }

    def champion(self) -> Result:
        """Return the model after the last `tell`: a distribution's centre, or the fittest individual."""
        return Result("model", self.lineage.genes, self._buffers)

    def result(self) -> Result:
        """Return the model of the run, as `returns` says."""
        return self._validation.best() if self._outcome.returns == "best" else self.champion()

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state: the method's state, best model, counters."""
        return {
            "step": self.step, "evaluations": self._evaluations, "buffers": dict(self._buffers),
            "lineage": self.lineage.state_dict(), "decision": self.decision,
            "validation": self._validation.state_dict(),
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self.step, self._evaluations, self._buffers = state["step"], state["evaluations"], state["buffers"]
        self.lineage.load_state_dict(state["lineage"])
        self.decision = state["decision"]
        self._validation.load_state_dict(state["validation"])


def _mean_of_levels(replies: Sequence[Reply]) -> Tensor:
    """Return the mean loss over samples, float64 `[P]`."""
    sums = [shaping.losses_of(reply.payload["levels"], reply.payload["ends"]) for reply in replies]
    return torch.stack(sums).sum(dim=0) / sum(int(reply.payload["samples"][0]) for reply in replies)


def _mean_votes(replies: Sequence[Reply], count: int) -> Tensor:
    """Return scores of `count` candidates: the mean over nodes of their ranks or signs, weighted by samples."""
    total, samples = torch.zeros(count, dtype=torch.float64), 0.0
    for reply in replies:
        weight = float(reply.payload["samples"][0])
        total += weight * _votes(reply, count)
        samples += weight
    return total / samples


def _votes(reply: Reply, count: int) -> Tensor:
    if "ranks" in reply.payload:
        return (
            reply.payload["ranks"].double() / 2
        )  # ranks are sent doubled, since tied candidates share the mean of their places
    first_wins = shaping.unpacked(reply.payload["signs"], count // 2)
    second = torch.where(first_wins, 1.0, -1.0).double()  # a lower score is better
    return torch.cat([-second, second])


def fitness_options(task: LearningTask, loss: str) -> dict[str, Scalar]:
    """Return the options of node tasks that evaluate populations, except `samples`."""
    return {"loss": loss, "statistics": "batch"} if task.batch_norm == "batch" else {"loss": loss}


def sent_buffers(task: LearningTask, buffers: Tensors) -> dict[str, Tensor]:
    """Return the buffers that nodes need beside the population: batch statistics, where the server provides them."""
    return {BUFFER + name: b for name, b in buffers.items()} if task.batch_norm == "server" else {}


def mean_losses(
    replies: Iterable[Reply], count: int, rows: Callable[[str], slice] | None = None
) -> tuple[Tensor, Tensor]:
    """Return each individual's mean loss over samples and its number of samples, both float64 `[P]`.

    An individual that no node evaluated gets +inf.

    Args:
        replies: replies of the node task `fitness`, or their sum.
        count: number of individuals, `P`.
        rows: node -> the individuals that the node evaluated; `None`: all individuals.
    """
    total = torch.zeros(count, dtype=torch.float64)
    samples = torch.zeros(count, dtype=torch.float64)
    for reply in replies:
        own = slice(0, count) if rows is None else rows(reply.node)
        total[own] += reply.payload["loss"][:, 0].double()
        samples[own] += float(reply.payload["samples"][0])
    return torch.where(samples > 0, total / samples, torch.inf), samples
