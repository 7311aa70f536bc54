"""FNE: a genetic algorithm on the server, with fitness from a few nodes per generation, without gradients.

G. Szegedi, P. Kiss, T. Horváth, "Evolutionary federated learning on EEG-data" (Federated Neuroevolution), ITAT 2019.

Deviations
- Eq. (5) prints 1 / MSE, while Table 1 holds values of the MSE itself: the maximised quantity is -MSE (the code
  minimises it without the sign). `loss=nmse` sums over the outputs as printed, `mse` averages over them as Table 1
  seems to do.
- The fitness of a generation is the mean over the samples that its nodes evaluate: nodes send sums and counts. The mean
  is eq. 1 over these nodes where they take all their samples. With `samples_per_node` nodes take equally many samples,
  so they have equal weights.
- The multiplier's step, bound and window, the number of parents and the mutation's chance and rate are not given:
  `growth` 1.1, `multiplier_max` 5, `stagnation_window` 5, `parents` 10, chance 0.1 and rate 20 % are ours.
- The moving window orders "the nodes" by name and wraps around.
- Elites, if any, are evaluated again on each generation's nodes: a value from other nodes is not comparable.
- The multiplier and `elites` interfere: an elite that wins twice repeats its accuracy exactly, which counts as a match;
  at the bound no child survives, so the elite wins again, for good. `at_max=restart` breaks the circle.
- In the method's text the whole genetic algorithm runs on the server. Here only the server selects, pairs and seeds;
  with `wire=lineage` nodes repeat crossover and mutation, which are a function of the parents and an address, with the
  same bits.
- A child's seed is its address (run seed, generation, child): it need not be sent, and no two children share a seed.
- Random numbers are made of integers: a mutation's factor or offset has 24 bits where all genes mutate (at a chance of
  0.1 there are 1.7 million different values); normal noise has the 61 values of `fne.evolution.philox`. A layer's
  initial standard deviation, the unit of `additive`, has 8 bits, since its last bits differ between processors.
- Batch normalisation has no running statistics without gradients: `evaluation.batch_norm` sets their source, the same
  for all individuals of a generation.
- Beyond the paper, off by default: `elites`, `at_max=restart`, `mutation=mixed|lognormal`,
  `selection=tournament|truncation`, `stagnation=no_improvement`, `deal`, `samples_per_node`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from fne.config.groups import Breeding, Generations, Loss, NodeSelection
from fne.config.registry import Key, register
from fne.core.contracts import Metrics, Result
from fne.core.errors import RunError, SettingError
from fne.core.messages import Header, Request, Round, Tensors
from fne.core.randomness import derive_seed, generator
from fne.evolution.losses import check_loss
from fne.evolution.operators import order
from fne.evolution.population import Population, Variation, cleaned
from fne.federation.participation import NodeChoice
from fne.learning.evolving import fitness_options, mean_losses, sent_buffers
from fne.learning.task import LearningTask, Validation
from fne.privacy.policy import Tasks


@dataclass(frozen=True, kw_only=True)
class Stagnation:
    """When the multiplier on mutation grows, and its factor and bound."""

    stagnation: Annotated[
        Literal["match_last_n", "no_improvement", "off"],
        Key("when the multiplier grows: if validation accuracy equals one of the last n, or has no new best"),
    ] = "match_last_n"
    stagnation_window: Annotated[int, Key("n of stagnation", unit="generations", ge=1)] = 5
    growth: Annotated[float, Key("factor on the multiplier at each stagnant generation", ge=1)] = 1.1
    multiplier_max: Annotated[float, Key("upper bound of the multiplier", ge=1)] = 5.0
    at_max: Annotated[
        Literal["hold", "restart"],
        Key("behaviour of the multiplier beyond its bound: stay there, or restart at 1"),
    ] = "hold"


@register("strategy", "fne", lineage=True)
class FNE:
    """Federated neuroevolution: the server selects, crosses and mutates models; nodes answer with their fitness."""

    decision: Tensors | None

    def __init__(
        self,
        task: LearningTask,
        *,
        seed: int,
        population: Annotated[int, Key("individuals per generation", unit="models", ge=2)] = 40,
        rounds: Generations = 500,
        loss: Annotated[
            Loss, Key("fitness: nmse sums the squared error over the outputs (eq. 5), mse averages it")
        ] = "nmse",
        nodes: NodeSelection,
        deal: Annotated[
            bool, Key("deal disjoint slices of the population to disjoint groups of nodes, so that no node idles")
        ] = False,
        deal_groups: Annotated[int, Key("number of node groups for deal", unit="groups", ge=2)] = 2,
        breeding: Breeding,
        stagnation: Stagnation,
        patience: Annotated[
            int, Key("generations without a new best on validation that end the run; 0: never", ge=0)
        ] = 0,
        returns: Annotated[
            Literal["best", "last"],
            Key("model of the run: the best on validation of all generations' fittest (early stopping), or the last"),
        ] = "best",
    ) -> None:
        check_loss(loss, classification=task.classification)
        if deal and (population % deal_groups or nodes.nodes != "random_subset"):
            raise SettingError(
                "strategy.deal", deal,
                "used with nodes=random_subset and a population that deal_groups divides "
                f"(population = {population}, deal_groups = {deal_groups}, nodes = {nodes.nodes})",
            )  # fmt: skip
        self.seed, self.horizon, self.step = seed, rounds, 0
        self._task = task
        self._options = fitness_options(task, loss)
        self._choice = NodeChoice(seed, nodes)
        self._deal, self._groups = deal, deal_groups
        variation = Variation(
            selection=breeding.selection, parents=breeding.parents, tournament_size=breeding.tournament_size,
            crossover=breeding.crossover, mutation=breeding.mutation, chance=breeding.mutation_chance,
            rate=breeding.mutation_rate / 100, rate_max=breeding.rate_max / 100, offset_rate=breeding.offset_rate,
            additive=breeding.additive, sign_flip=breeding.sign_flip, elites=breeding.elites,
        )  # fmt: skip
        modules = (task.new_model(derive_seed(seed, "individual", i)) for i in range(population))
        genomes = torch.stack([task.layout.flatten(module) for module in modules])
        self.lineage, self.decision = Population(task.layout, genomes, variation, seed=seed), None
        self._stagnation = _Stagnation(stagnation)
        self._patience, self._returns = patience, returns
        self._evaluations = 0
        self._fittest, self._buffers = genomes[0], task.buffers
        self._validation = Validation(task, loss, genomes[0])

    @property
    def done(self) -> bool:
        """Whether the run has reached its horizon, or patience has run out."""
        out_of_patience = self._patience and self.step - self._validation.best_step >= self._patience
        return self.step >= self.horizon or bool(out_of_patience)

    @property
    def tasks(self) -> Tasks:
        """Node tasks of the requests, see `fne.privacy.policy.Tasks`."""
        return {"fitness": self._options}

    def ask(self, nodes: Sequence[str]) -> Request:
        """Return the generation for the nodes chosen to evaluate it."""
        header, candidates = Header(self.seed, self.step), self.lineage.candidates(self.step)
        sent = sent_buffers(self._task, self._buffers)
        if self._deal:  # every node takes part
            slices = candidates["population"].chunk(self._groups)
            private = {node: {"population": slices[g]} for node, g in self._dealt(nodes).items()}
            options = {**self._options, "samples": self._choice.selection.samples_per_node}
            return Request(header, "fitness", tuple(private), common=sent, private=private, options=options)
        chosen, samples = self._choice(self.step, nodes)
        options = {**self._options, "samples": samples}
        return Request(header, "fitness", chosen, common={**candidates, **sent}, options=options, reduce="sum")

    def tell(self, round_: Round) -> Metrics:
        """Rank the generation, validate its fittest, adapt the multiplier and breed the next generation."""
        fitness, nonfinite = cleaned(self._collect(round_))
        if bool(torch.isinf(fitness).all()):
            raise RunError(
                f"generation {self.step}: all {len(fitness)} individuals have a non-finite fitness; lower "
                "strategy.mutation_rate or multiplier_max, or scale the data"
            )
        step, population = self.step, self.lineage
        self._fittest = population.genomes[order(fitness)[0]].clone()
        self._buffers = self._task.buffers_for(self._fittest)
        self.step += 1
        validated = self._validation(self._fittest, self._buffers, self.step)
        multiplier = self._stagnation(self._validation.score)
        finite = fitness[torch.isfinite(fitness)]
        metrics: Metrics = {
            "round": self.step,
            "evaluations": self._evaluations,
            "loss_best": float(finite.min()),
            "loss_mean": float(finite.mean()),
            "loss_worst": float(finite.max()),
            **validated,
            "nonfinite": nonfinite,
            "diversity": population.diversity(),
            "multiplier": multiplier,
            "_fitness": fitness,
        }
        self.decision = population.decide(step, fitness, multiplier=multiplier)
        return {**metrics, **population.advance(step, self.decision)}

    def _collect(self, round_: Round) -> Tensor:
        """Return the mean loss over samples, float64 `[P]`; an individual that no node evaluated gets +inf."""
        width = len(self.lineage) // self._groups

        def rows(node: str) -> slice:
            group = self._group_of[node]
            return slice(group * width, (group + 1) * width)

        fitness, samples = mean_losses(round_.replies, len(self.lineage), rows if self._deal else None)
        self._evaluations += int((samples > 0).sum())
        return fitness

    def _dealt(self, nodes: Sequence[str]) -> dict[str, int]:
        """Return node -> group, with every node in one group, reshuffled each generation."""
        if len(nodes) < self._groups and self.step == 0:  # later nodes may be away: a group without a node is lost
            raise SettingError("strategy.deal_groups", self._groups, f"at most the number of nodes, {len(nodes)}")
        shuffled = torch.randperm(len(nodes), generator=generator(self.seed, "deal", self.step)).tolist()
        self._group_of = {nodes[n]: place % self._groups for place, n in enumerate(shuffled)}
        return {node: self._group_of[node] for node in nodes}

    def champion(self) -> Result:
        """Return the fittest model after the last `tell`."""
        return Result("model", self._fittest, self._buffers)

    def result(self) -> Result:
        """Return the model of the run, as `returns` says."""
        return self._validation.best() if self._returns == "best" else self.champion()

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state: population, multiplier, best model, counters."""
        return {
            "step": self.step, "evaluations": self._evaluations, "lineage": self.lineage.state_dict(),
            "decision": self.decision, "stagnation": self._stagnation.state_dict(), "fittest": self._fittest,
            "buffers": dict(self._buffers), "validation": self._validation.state_dict(),
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self.step, self._evaluations = state["step"], state["evaluations"]
        self.lineage.load_state_dict(state["lineage"])
        self.decision = state["decision"]
        self._stagnation.load_state_dict(state["stagnation"])
        self._fittest, self._buffers = state["fittest"], state["buffers"]
        self._validation.load_state_dict(state["validation"])


class _Stagnation:
    """The multiplier on mutation's rate and chance (FNE, "Avoiding critical points"): starts at 1, bounded, reset."""

    def __init__(self, settings: Stagnation) -> None:
        self._settings = settings
        self._scores: list[float] = []
        self._best = -float("inf")
        self._stale = 0
        self.multiplier = 1.0

    def __call__(self, score: float) -> float:
        """Update by a generation's validation score, and return the multiplier for the next generation."""
        settings = self._settings
        if settings.stagnation == "match_last_n":
            stuck = score in self._scores
        else:
            self._stale = 0 if score > self._best else self._stale + 1
            self._best = max(self._best, score)
            stuck = settings.stagnation == "no_improvement" and self._stale >= settings.stagnation_window
        self._scores = [*self._scores, score][-settings.stagnation_window :]
        grown = self.multiplier * settings.growth
        beyond = settings.multiplier_max if settings.at_max == "hold" else 1.0
        self.multiplier = 1.0 if not stuck else grown if grown <= settings.multiplier_max else beyond
        return self.multiplier

    def state_dict(self) -> dict[str, Any]:
        return {
            "scores": list(self._scores), "best": self._best, "stale": self._stale,
            "multiplier": self.multiplier,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._scores, self._best = list(state["scores"]), state["best"]
        self._stale, self.multiplier = state["stale"], state["multiplier"]
