"""Server half of the particle swarms: requests, remembered losses, comparisons, validation.

A step is one broadcast. The first step measures the particles at their first positions; from then on the server
remembers their losses, and a step sends only trials. All nodes answer with the losses of all their samples. Losses of
different sets of nodes are not comparable: where a node fails or comes back, the step moves no particle, and the next
step measures again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fne.config.groups import Broadcasts, SwarmEvaluation
from fne.core.contracts import Metrics, Result
from fne.core.errors import RunError, SettingError
from fne.core.messages import Header, Request, Round, Tensors
from fne.evolution.losses import check_loss, output_of, separable
from fne.evolution.population import cleaned
from fne.evolution.reduction import LOSSES, MOST_GENES
from fne.evolution.swarm import Swarm, gains, owners
from fne.learning.evolving import fitness_options
from fne.learning.task import LearningTask, Validation
from fne.privacy.policy import Tasks


def owners_for(task: LearningTask, loss: str, *, apart: bool) -> Tensor:
    """Return the model that each gene belongs to, int64 `[D]`, see `fne.evolution.swarm.owners`.

    Args:
        task: source of layout and output.
        loss: name of the loss.
        apart: whether outputs are separate models where the loss allows it, see `fne.evolution.losses.separable`.
    """
    output = output_of(task.new_model(0), classification=task.classification)
    return owners(task.layout, apart=apart and separable(loss, output))


class Swarming:
    """A strategy in which all nodes evaluate the trial positions of a swarm's particles.

    Args:
        task: model and validation.
        swarm: particles and the rule by which they move.
        seed: seed of the run.
        broadcasts: number of steps, the first of which measures the first positions, and the loss of particles and
            validation.
        evaluation: whether nodes reduce their samples once, and when models are validated.
        penalty: factor on half the sum of a model's squared genes, which the server adds to the model's loss.
        lower: setting to lower where no particle has a finite loss at the start; empty: no setting would help.
    """

    decision: Tensors | None

    def __init__(
        self,
        task: LearningTask,
        swarm: Swarm,
        *,
        seed: int,
        broadcasts: Broadcasts,
        evaluation: SwarmEvaluation,
        lower: str,
        penalty: float = 0.0,
    ) -> None:
        loss = broadcasts.loss
        check_loss(loss, classification=task.classification)
        if task.batch_norm == "server":
            allowed = "identity or batch: remembered losses need statistics that do not change"
            raise SettingError("evaluation.batch_norm", task.batch_norm, allowed)
        linear = task.layout.groups == 1 and task.layout.size <= MOST_GENES
        if evaluation.exact_reduction and (task.classification or loss not in LOSSES or not linear):
            allowed = (
                f"false, except for mse or nmse of a linear model of at most {MOST_GENES} genes with numeric targets"
            )
            raise SettingError("strategy.exact_reduction", True, allowed)
        self.seed, self.horizon, self.step = seed, broadcasts.rounds, 0
        self.lineage, self.decision = swarm, None
        self.validates = evaluation.validate_every > 0
        self._task, self._penalty, self._lower = task, penalty, lower
        self._options = fitness_options(task, loss) | {
            "per_output": swarm.models > 1,
            "reduced": evaluation.exact_reduction,
        }
        self._validate_every, self._evaluations = evaluation.validate_every, 0
        self._standing = torch.full(swarm.shape, torch.inf, dtype=torch.float64)
        self._absent: list[str] = []
        self._validation = Validation(task, loss, swarm.genes)

    @property
    def done(self) -> bool:
        """Whether the run has reached its horizon."""
        return self.step >= self.horizon

    @property
    def tasks(self) -> Tasks:
        """Node tasks of the requests, see `fne.privacy.policy.Tasks`."""
        return {"fitness": self._options}

    def ask(self, nodes: Sequence[str]) -> Request:
        """Return the particles' trials for all nodes, or the particles themselves where their losses are unknown."""
        header, common = Header(self.seed, self.step), self.lineage.candidates(self.step)
        return Request(header, "fitness", tuple(nodes), common=common, options=self._options, reduce="sum")

    def tell(self, round_: Round) -> Metrics:
        """Move the particles whose loss fell."""
        (total,) = round_.replies
        means = total.payload["loss"].double() / float(total.payload["samples"][0])
        figures = self.learn(means, sorted(failure.node for failure in round_.failures))
        figures |= {"accuracy_validation": None, "loss_validation": None}
        if self.validates and (self.done or self.step % self._validate_every == 0):
            figures |= self._validation(self.lineage.genes, self._task.buffers, self.step)
        return figures

    def learn(self, means: Tensor, absent: list[str]) -> Metrics:
        """Compare the candidates by their mean losses `[C * S, M]` over all nodes except the `absent` ones.

        Raises:
            RunError: no particle of a swarm has a finite loss.
        """
        losses = means.view(self.lineage.shape)
        if self._penalty:
            losses = losses + self._penalty / 2 * self.lineage.squares(self.step)
        losses, nonfinite = cleaned(losses)
        measured, standing = self.lineage.measuring, self._standing
        comparable = measured or absent == self._absent
        better = losses < standing if comparable and not measured else torch.zeros_like(losses, dtype=torch.bool)
        if measured:
            self._standing, self._absent = losses, absent
        else:
            self._standing = torch.where(better, losses, standing)
        lowest, best = self._standing.min(dim=1)
        if not torch.isfinite(lowest).all():
            first = f"lower {self._lower}, or " if self._lower and not self.step else ""
            raise RunError(f"step {self.step}: no particle of a swarm has a finite loss; {first}scale the data")
        each = lowest.mean(dim=1)
        winner = int(each.argmin())
        gained = gains(losses, standing)
        self.decision = self.lineage.decision(better, gained, best, winner, measure=not comparable)
        own = self.lineage.advance(self.step, self.decision)
        self.step += 1
        self._evaluations += len(means)
        of_all = self._standing[winner].mean(dim=1)
        finite = of_all[torch.isfinite(of_all)]
        figures: Metrics = {
            "round": self.step,
            "evaluations": self._evaluations,
            "loss_best": float(each[winner]),
            "loss_mean": float(finite.mean()) if len(finite) else None,
            "loss_worst": float(finite.max()) if len(finite) else None,
            "nonfinite": nonfinite,
            **own,
        }
        if lowest.numel() > 1:
            figures["losses"] = lowest.flatten().tolist()
        return figures

    def champion(self) -> Result:
        """Return the best particle so far in the swarm with the lowest training loss."""
        return Result("model", self.lineage.genes, self._task.buffers)

    result = champion

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state: the swarm, its losses, the nodes missing from them, counters."""
        return {
            "step": self.step, "evaluations": self._evaluations, "standing": self._standing, "absent": self._absent,
            "lineage": self.lineage.state_dict(), "decision": self.decision,
            "validation": self._validation.state_dict(),
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self.step, self._evaluations = state["step"], state["evaluations"]
        self._standing, self._absent = state["standing"], list(state["absent"])
        self.lineage.load_state_dict(state["lineage"])
        self.decision = state["decision"]
        self._validation.load_state_dict(state["validation"])
