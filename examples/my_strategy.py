"""A strategy of one's own: (1 + lambda) evolution, where the best of a parent and its children is the next parent."""

from typing import Annotated

import torch

from fne.extend import UNIT, CentreOutcome, Evolution, Evolving, Key, LearningTask, Perturbations, derive_seed, register


@register("strategy", "one_plus_lambda", lineage=True)
def one_plus_lambda(
    task: LearningTask, *, seed: int, evolution: Evolution,
    children: Annotated[int, Key("number of children in a generation, lambda", unit="models", ge=1)] = 20,
    spread: Annotated[float, Key("noise on a gene, in standard deviations of its initial value", gt=0)] = 0.3,
    outcome: CentreOutcome) -> Evolving:  # fmt: skip
    """(1 + lambda) evolution: nodes rate a parent and its children, the best of them is the next parent."""
    return Evolving(task, Family(task, seed, children, spread), seed=seed, evolution=evolution, outcome=outcome)


class Family:
    def __init__(self, task: LearningTask, seed: int, children: int, spread: float) -> None:
        self.genes = task.layout.flatten(task.new_model(derive_seed(seed, "parent")))  # [D]
        self.population, self.remedy = 1 + children, "strategy.spread"
        self._scale, self._noise = spread * task.layout.scales(), Perturbations(seed, children, len(self.genes))

    def candidates(self, step: int) -> dict:
        return {"population": torch.cat([self.genes[None], self.genes + self._scale * UNIT * self._noise(step)])}

    def decide(self, scores: torch.Tensor) -> dict:  # float64 [P], lower is better
        return {"winner": scores.argmin()[None]}

    def advance(self, step: int, decision: dict) -> dict:
        self.genes = self.candidates(step)["population"][int(decision["winner"])]
        return {"winner": int(decision["winner"])}  # metrics of this method

    def state_dict(self) -> dict:
        return {"genes": self.genes}

    def load_state_dict(self, state: dict) -> None:
        self.genes = state["genes"]
