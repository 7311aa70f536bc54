"""A node task of one's own: fitness in which no single sample counts for much, and a strategy that asks for it."""

from typing import Annotated

import torch

from fne.extend import CentreOutcome, Evolution, Evolving, Key, Loss, fitness_payload, load, payload_of, register


@register("task", "robust_fitness", payload=fitness_payload)
def robust_fitness(
    worker, nodes, request, *, loss: Annotated[Loss, Key("loss of a sample")],
    most: Annotated[float, Key("most that the loss of a sample counts", gt=0)],
    samples: Annotated[int, Key("number of samples; 0: all", ge=0, le=0)] = 0):  # fmt: skip
    """Answer like `fitness`: `population [P, D]` -> `loss [P, 1]`, a sum over the samples, and `samples [1]`."""
    for node in nodes:
        population = payload_of(request, node)["population"]
        losses = worker.evaluator.sample_losses(population, node.data, loss)  # [P, N]
        total = losses.clamp(max=most).sum(dim=1, dtype=torch.float64).float()
        yield {"loss": total[:, None].cpu(), "samples": torch.tensor([len(node.data)])}


@register("strategy", "robust_snes", lineage=True)
def robust_snes(
    task, *, seed: int, evolution: Evolution,
    most: Annotated[float, Key("most that the loss of a sample counts", gt=0)] = 2.0,
    outcome: CentreOutcome) -> Evolving:  # fmt: skip
    """SNES on the losses of `robust_fitness`."""
    proposer = load("strategy", "snes")(task, seed=seed, rounds=evolution.rounds).lineage
    return Evolving(
        task, proposer, seed=seed, evolution=evolution, outcome=outcome, node_task="robust_fitness",
        options={"most": most})  # fmt: skip
