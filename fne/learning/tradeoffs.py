"""Server half of the multi-objective methods: trade-offs of error, communication and privacy in federated learning.

An individual is a way to send updates, (threshold, bits, noise). Its genes are a point of the cube [-1, 1]^3: the
threshold, the place among the bits, and the logarithm of the noise between the limits that follow from the bounds of
the score. An individual is evaluated by training a model in its way for some rounds of federated averaging. All models
of a generation are trained side by side, by the same nodes.

Shapes: `N` individuals, `D` weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from fne.config.groups import Sending, TradeoffSearch, TradeoffStart, TradeoffTraining
from fne.core.contracts import Metrics, Result
from fne.core.errors import FneError, RunError, SettingError
from fne.core.messages import Header, Request, Round, Scalar
from fne.core.randomness import derive_seed, draw_nodes, generator
from fne.evolution.genome import refuse_buffers
from fne.evolution.indicators import hypervolume, non_dominated, require_moocore
from fne.evolution.losses import check_loss
from fne.learning.task import LearningTask
from fne.learning.tradeoff_tasks import UPDATE, share_of
from fne.privacy.accountant import WEIGHTS, Accountant, Conduct, Mechanism, multiplier, report
from fne.privacy.compression import decode
from fne.privacy.policy import Tasks, Terms
from fne.privacy.score import NOTE, score_eq7, score_note

_WORST = 1e30
"""Replacement of an infinite score: an individual without noise still has an error and bytes."""
OBJECTIVES = ("error", "communication", "score")


class Selection(Protocol):
    """How a method mates and selects; `values [n, 3]` are minimised, and 1 is the worst acceptable value."""

    def children(
        self, genes: Tensor, values: Tensor, count: int, draw: torch.Generator, decode: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return genes of `count` children `[count, 3]`, and the first parent of each, int64 `[count]`."""
        ...

    def survivors(self, values: Tensor, count: int) -> Tensor:
        """Return the places of the survivors, int64 `[count]`."""
        ...


@dataclass
class Group:
    """Individuals: genes `[n, 3]`, weights `[n, D]`, objectives `[n, 3]`, bytes sent per byte of floats `[n]`."""

    genes: Tensor
    weights: Tensor
    values: Tensor = field(default_factory=lambda: torch.zeros(0, 3, dtype=torch.float64))
    sent: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))

    def take(self, index: Tensor) -> Group:
        """Return the individuals at `index`."""
        return Group(self.genes[index], self.weights[index], self.values[index], self.sent[index])

    def joined(self, other: Group) -> Group:
        """Return these individuals followed by the others."""
        return Group(
            *(torch.cat([getattr(self, n), getattr(other, n)]) for n in ("genes", "weights", "values", "sent"))
        )


class Tradeoffs:
    """A strategy that searches for trade-offs; a `fne.core.contracts.Strategy`.

    Args:
        task: model and validation.
        seed: seed of the run.
        selection: the method.
        search, training: how many individuals there are, and how they are trained.
        sending: how updates are sent.
        beginning: initial weights of individuals, the first individuals, and when models in training are validated.
    """

    def __init__(
        self,
        task: LearningTask,
        *,
        seed: int,
        selection: Selection,
        search: TradeoffSearch,
        training: TradeoffTraining,
        sending: Sending,
        beginning: TradeoffStart,
    ) -> None:
        check_loss(training.loss, classification=task.classification)
        refuse_buffers(task.buffers)
        if beginning.inherit == "first_parent" and beginning.shared_global:
            allowed = "initial with shared_global: all individuals begin with one model"
            raise SettingError("strategy.inherit", beginning.inherit, allowed)
        require_moocore()
        if search.population < 2 and search.generations:
            raise SettingError("strategy.population", search.population, "at least 2, or 1 with generations = 0")
        self.seed, self.step = seed, 0
        self._task, self._selection, self._sending = task, selection, sending
        self._search, self._training, self._beginning = search, training, beginning
        self._rounds = search.rounds_per_evaluation
        self._options: dict[str, Scalar] = {
            "loss": training.loss, "lr": training.lr, "epochs": training.epochs, "batch_size": training.batch_size,
            "clip": sending.clip, "noise": sending.noise, "pruning": sending.pruning, "prune": sending.prune,
            "order": sending.order,
        }  # fmt: skip
        self._genes = Genes(sending, self._rounds, training.participation)
        self._note = score_note(sending.noise if sending.clip else "", task.layout.size)
        self._initial = task.layout.flatten(task.new_model(derive_seed(seed, "global")))
        self._global = self._initial
        self._unit = torch.tensor([self._worst_error(), 1.0, sending.score_bounds[1]], dtype=torch.float64)
        self._parents: Group | None = None
        self._trained = self._begin(self._genes.start(search.population, beginning.start, seed))
        self._accountant = Accountant()
        self._trainings = 0
        self._seen = torch.zeros(0, 3, dtype=torch.float64)
        self._names: set[str] = set()
        self._lost = torch.zeros(search.population, dtype=torch.bool)
        """Which individuals' training has diverged at a node."""

    # ------------------------------------------------------------------------------------------------ individuals
    def decoded(self, genes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return thresholds, bits (int64) and noises `[n]` of genes `[n, 3]`."""
        return self._genes.decoded(genes)

    def _begin(self, genes: Tensor, first: Tensor | None = None) -> Group:
        """Return individuals to be trained, with their initial weights."""
        if self._beginning.inherit == "first_parent" and first is not None and self._parents is not None:
            return Group(genes, self._parents.weights[first])
        weights = self._global if self._beginning.shared_global else self._initial
        return Group(genes, weights.expand(len(genes), -1).clone())

    # ------------------------------------------------------------------------------------------------ steps
    @property
    def horizon(self) -> int:
        """Number of rounds of all evaluations."""
        return (1 + self._search.generations) * self._rounds

    @property
    def done(self) -> bool:
        """Whether the run has reached its horizon."""
        return self.step >= self.horizon

    @property
    def tasks(self) -> Tasks:
        """Node tasks of the requests, see `fne.privacy.policy.Tasks`."""
        return {"train_candidates": self._options}

    def ask(self, nodes: Sequence[str]) -> Request:
        """Return the weights of all individuals in evaluation, for this round's nodes."""
        self._names.update(nodes)
        count = max(1, round(self._training.participation * len(nodes)))
        chosen = draw_nodes(nodes, count, self.seed, "nodes", self.step)
        thresholds, bits, noises = self.decoded(self._trained.genes)
        common = {
            "parameters": self._trained.weights, "thresholds": thresholds, "bits": bits, "noises": noises,
        }  # fmt: skip
        header = Header(self.seed, self.step)
        return Request(header, "train_candidates", chosen, common, options=self._options)

    def tell(self, round_: Round) -> Metrics:
        """Average each individual's updates; at the end of an evaluation compute objectives and select survivors."""
        if not round_.replies:
            raise RunError(f"step {self.step}: no participating node has answered")
        first_round = self.step % self._rounds == 0
        sent, damaged = self._average(round_)
        told = [reply.payload["diverged"] for reply in round_.replies if reply.node not in damaged]
        lost = torch.stack(told).bool().any(dim=0)
        self._lost = lost if first_round else self._lost | lost
        self._trained.sent = sent if first_round else self._trained.sent + sent
        self.step += 1
        for sigma in self.decoded(self._trained.genes)[2].tolist():
            self._accountant.add(self._mechanism(sigma))
        figures: Metrics = {"loss_best": None, "loss_mean": None, "accuracy_validation": None, "_failed": damaged}
        if self.step % self._rounds == 0:
            figures |= self._weigh()
        elif self._beginning.validate_every and self.step % self._beginning.validate_every == 0:
            figures |= self._validated(self._task.evaluate(self._trained.weights, loss=self._training.loss))
        if self.step == 1 and self._note:
            figures["_texts"] = {NOTE: self._note}
        figures["epsilon"] = self._accountant.epsilon(self._sending.delta, tight=False).rdp
        generation = math.ceil(self.step / self._rounds)
        trainings = self._trainings + (0 if self.step % self._rounds == 0 else len(self._trained.genes))
        return {"round": generation, "evaluations": trainings, "nonfinite": int(lost.sum()), **figures}

    def _average(self, round_: Round) -> tuple[Tensor, dict[str, str]]:
        """Move each individual's weights by the mean of its updates.

        Returns:
            the bytes of this round as a share of plain floats' bytes over an evaluation, `[n]`, and by node the reason
            why its updates cannot be used.

        Raises:
            RunError: no node's updates can be used.
        """
        parts, size = self._task.layout.leaves, self._initial.numel()
        totals = torch.zeros(len(self._trained.genes), size, dtype=torch.float64)
        sizes: list[Tensor] = []
        samples = 0
        damaged: dict[str, str] = {}
        for reply in round_.replies:
            payloads = [reply.payload[f"{UPDATE}{i}"] for i in range(len(totals))]
            try:
                updates = [decode(payload, parts) for payload in payloads]
            except FneError as error:
                damaged[reply.node] = str(error)
                continue
            count = int(reply.payload["samples"])
            samples += count
            for total, update in zip(totals, updates, strict=True):
                total += (update * count).double()
            sizes.append(torch.tensor([payload.numel() for payload in payloads], dtype=torch.float64))
        if not samples:
            why = "; ".join(f"{node}: {reason}" for node, reason in list(damaged.items())[:3])
            raise RunError(f"step {self.step}: no node has sent usable updates; {why}")
        self._trained.weights = (self._trained.weights.double() + totals / samples).float()
        return sum((s / (4 * size * len(sizes) * self._rounds) for s in sizes), torch.zeros(len(totals))), damaged

    def _worst_error(self) -> float:
        """Return 1 for error rates; for a loss, that of the untrained model."""
        if self._task.classification:
            return 1.0
        loss = float(self._task.evaluate(self._initial.unsqueeze(0), loss=self._training.loss)["loss"])
        return loss if 0 < loss < math.inf else 1.0

    def _validated(self, figures: Mapping[str, Tensor]) -> Metrics:
        """Return the best accuracy and the least loss on validation."""
        sound = figures["loss"].isfinite()  # a model with a non-finite loss is never the best
        accuracy = float(figures["accuracy"].where(sound, 0.0).max()) if self._task.classification else None
        loss = float(figures["loss"].where(sound, math.inf).min())
        return {"accuracy_validation": accuracy, "loss_validation": loss}

    def _weigh(self) -> Metrics:
        """Evaluate the trained individuals, select survivors, and make children."""
        trained, sending = self._trained, self._sending
        figures = self._task.evaluate(trained.weights, loss=self._training.loss)
        error = (1 - figures["accuracy"] if self._task.classification else figures["loss"]).double().cpu()
        sound = figures["loss"].cpu().isfinite() & ~self._lost
        error = error.where(sound, 1.0 if self._task.classification else math.inf)
        _, _, noises = self.decoded(trained.genes)
        scores = torch.tensor([
            score_eq7(self._rounds, sending.delta, self._training.participation, sigma)
            for sigma in noises.tolist()
        ], dtype=torch.float64)  # fmt: skip
        trained.values = torch.stack([error, trained.sent, scores], dim=1)
        self._trainings += len(trained.genes)
        self._seen = torch.cat([self._seen, trained.values])
        if self._beginning.shared_global:
            self._global = trained.weights.double().mean(dim=0).float()
        union = trained if self._parents is None else self._parents.joined(trained)
        kept = torch.arange(len(union.genes))
        if self._parents is not None:
            kept = self._selection.survivors(union.values / self._unit, self._search.population)
        self._parents = union.take(kept)
        if self.step < self.horizon:
            draw = generator(self.seed, "children", self.step)
            parents, unit = self._parents.genes, self._parents.values / self._unit
            genes, first = self._selection.children(parents, unit, self._search.population, draw, self._genes.meaning)
            self._trained = self._begin(genes, first)
        best = self._parents.values.amin(dim=0)
        return {
            **self._validated(figures),
            "accuracy_validation": 1 - float(best[0]) if self._task.classification else None,
            **{f"{name}_best": float(value) for name, value in zip(OBJECTIVES, best, strict=True)},
            "hypervolume": self.hypervolume(self._parents.values),
            "hypervolume_seen": self.hypervolume(self._seen),
        }  # fmt: skip

    def hypervolume(self, values: Tensor) -> float:
        """Return the hypervolume up to (1, 1, 1) of the objectives, each divided by its worst acceptable value."""
        return hypervolume(
            (values / self._unit).nan_to_num(nan=1.0, posinf=1.0).clamp(max=1.0), torch.ones(3, dtype=torch.float64)
        ).value

    # ------------------------------------------------------------------------------------------------ privacy
    def terms(self) -> Terms:
        """Return the least possible noise on a weight, the clip, and the account of all trainings at that noise."""
        least = self._genes.least_noise * share_of(self._sending.noise, self._initial.numel())
        return Terms(least, self._sending.clip or math.inf, self._planned())

    def _planned(self) -> Accountant:
        planned = Accountant()
        planned.add(self._mechanism(self._genes.least_noise), self.horizon * self._search.population)
        return planned

    def _mechanism(self, sigma: float) -> Mechanism:
        """Return the release of one individual's round: each node's noised update, seen by the server."""
        sending = self._sending
        z = multiplier(sigma * share_of(sending.noise, self._initial.numel()), "replace_one")
        clipped = "update" if sending.order == "proper" else WEIGHTS
        return Mechanism(z, clipped, sending.clip or 1.0, adjacency="replace_one", adversary="uploads")

    def privacy(self) -> dict[str, Any]:
        """Return the accounted privacy of the whole search, together with the score of the result."""
        beforehand = self._planned() if self._search.generations else None
        conduct = Conduct(
            len(self._names), "fixed", ("sample counts",), trainings=self._trainings, beforehand=beforehand,
            given=bool(self._beginning.start),
        )  # fmt: skip
        best = self._best()
        score = None if self._parents is None else float(self._parents.values[best, 2])
        return report(self._accountant, self._sending.delta, conduct, score, self._note)

    # ------------------------------------------------------------------------------------------------ result
    def _best(self) -> int:
        """Return the place of the individual with the least error; ties go to the least bytes, then the least score."""
        if self._parents is None:
            return 0
        rows = self._parents.values.nan_to_num(nan=math.inf).tolist()
        return min(range(len(rows)), key=rows.__getitem__)

    def result(self) -> Result:
        """Return the model with the least error on validation."""
        weights = self._trained.weights[0] if self._parents is None else self._parents.weights[self._best()]
        return Result("model", weights)

    def population(self) -> tuple[Tensor, list[dict[str, float | bool]]]:
        """Return the weights `[n, D]` of the final population, and each individual's settings and objectives."""
        if self._parents is None:
            return self._trained.weights[:0], []
        group = self._parents
        columns = [values.tolist() for values in self.decoded(group.genes)]
        front = non_dominated(group.values.nan_to_num(nan=_WORST, posinf=_WORST)).tolist()
        accounted = []
        inherits = self._beginning.inherit == "first_parent" or self._beginning.shared_global
        for sigma in columns[2]:
            if inherits:  # its weights come from earlier releases, too
                accounted.append(self._accountant.epsilon(self._sending.delta, tight=False).rdp)
                continue
            accountant = Accountant()
            accountant.add(self._mechanism(sigma), self._rounds)
            accounted.append(accountant.epsilon(self._sending.delta, tight=False).rdp)
        rows: list[dict[str, float | bool]] = []
        for i, values in enumerate(group.values.tolist()):
            own = {name: column[i] for name, column in zip(("threshold", "bits", "noise"), columns, strict=True)}
            rows.append({**own, **dict(zip(OBJECTIVES, values, strict=True)), "epsilon": accounted[i],
                         "on_front": front[i]})  # fmt: skip
        return group.weights, rows

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state."""
        groups = {"trained": self._trained, "parents": self._parents}
        return {
            "step": self.step, "global": self._global, "trainings": self._trainings,
            "accountant": self._accountant.state_dict(), "names": sorted(self._names), "lost": self._lost,
            "seen": self._seen,
            "groups": {name: vars(group) for name, group in groups.items() if group is not None},
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self.step, self._global, self._trainings = state["step"], state["global"], state["trainings"]
        self._accountant.load_state_dict(state["accountant"])
        self._names, self._lost, self._seen = set(state["names"]), state["lost"], state["seen"]
        self._trained = Group(**state["groups"]["trained"])
        self._parents = Group(**state["groups"]["parents"]) if "parents" in state["groups"] else None


MOST_PRUNED = 0.95
"""Largest threshold: a rate of 1 would send nothing."""


class Genes:
    """Decoding of genes.

    Args:
        sending: choices of bits, and bounds of the score.
        rounds, participation: rounds of an evaluation and share of nodes in a round, T and v of eq. (7).

    Raises:
        SettingError: invalid bounds or bits.
    """

    def __init__(self, sending: Sending, rounds: int, participation: float) -> None:
        low, high = sending.score_bounds
        if not 0 < low < high:
            allowed = f"[low, high], {'low below high' if low > 0 else 'above 0'}"
            raise SettingError("strategy.score_bounds", [low, high], allowed)
        for bits in sending.bits:
            if bits not in (*range(2, 17), 32):
                raise SettingError("strategy.bits", bits, "2 to 16, or 32 for floats as they are")
        one = score_eq7(rounds, sending.delta, participation, 1.0)
        self._bits, self._noised = sending.bits, sending.clip > 0
        self._low, self._high = one / high, one / low
        self._why = f"which strategy.score_bounds = [{low:g}, {high:g}] allow at {rounds} rounds"

    def decoded(self, genes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return thresholds, bits (int64) and noises `[n]` of genes `[n, 3]`; without clipping there is no noise."""
        places = (genes + 1) / 2
        choices = torch.tensor(self._bits)
        index = (places[:, 1] * len(choices)).long().clamp(max=len(choices) - 1)
        low, high = math.log(self._low), math.log(self._high)
        noises = (low + places[:, 2] * (high - low)).exp() if self._noised else torch.zeros_like(places[:, 2])
        return places[:, 0] * MOST_PRUNED, choices[index], noises

    @property
    def least_noise(self) -> float:
        """Least noise that an individual can have."""
        return self._low if self._noised else 0.0

    def meaning(self, genes: Tensor) -> Tensor:
        """Return the columns of `decoded` as one tensor, float64 `[n, 3]`."""
        return torch.stack([column.double() for column in self.decoded(genes)], dim=1)

    def start(self, count: int, given: Sequence[tuple[float, float, float]], seed: int) -> Tensor:
        """Return genes `[count, 3]` of the first individuals: the given ones, and drawn ones for the remaining places.

        Drawn individuals prune about 0.3 and have noise about 6 within its bounds, as in the paper.

        Args:
            count: number of individuals.
            given: (threshold, bits, noise) of the given individuals.
            seed: seed of the run.

        Raises:
            SettingError: a given individual is invalid; the error names it.
        """
        if len(given) > count:
            raise SettingError("strategy.start", len(given), f"at most strategy.population = {count} individuals")
        draw = generator(seed, "start")
        normal = torch.randn(count, 2, generator=draw, dtype=torch.float64)
        bits = torch.rand(count, generator=draw, dtype=torch.float64)
        low, high = self._low, self._high
        noise = (6 + 2.5 * normal[:, 1]).clamp(low, high).log()
        threshold = (0.3 + 0.1 * normal[:, 0]).clamp(0, MOST_PRUNED) / MOST_PRUNED
        place = (noise - math.log(low)) / (math.log(high) - math.log(low))
        places = torch.stack([threshold, bits, place], dim=1)
        for i, individual in enumerate(given):
            places[i] = torch.tensor(self._places(i, individual), dtype=torch.float64)
        return places * 2 - 1

    def _places(self, i: int, individual: tuple[float, float, float]) -> list[float]:
        threshold, bits, noise = individual
        if not 0 <= threshold <= MOST_PRUNED:
            raise SettingError(f"strategy.start.{i}", threshold, f"a threshold of 0 to {MOST_PRUNED:g}")
        if bits not in self._bits:
            raise SettingError(f"strategy.start.{i}", bits, f"bits of strategy.bits = {list(self._bits)}")
        if not self._noised and noise:
            raise SettingError(f"strategy.start.{i}", noise, "a noise of 0 with strategy.clip = 0")
        if not self._noised:
            return [threshold / MOST_PRUNED, (self._bits.index(int(bits)) + 0.5) / len(self._bits), 0.0]
        slack = 1e-9  # values read from front.csv may lie on a bound
        if not self._low * (1 - slack) <= noise <= self._high * (1 + slack):
            allowed = f"a noise of {self._low:.4g} to {self._high:.4g}, {self._why}"
            raise SettingError(f"strategy.start.{i}", noise, allowed)
        low, high = math.log(self._low), math.log(self._high)
        place = min(max((math.log(noise) - low) / (high - low), 0.0), 1.0)
        return [threshold / MOST_PRUNED, (self._bits.index(int(bits)) + 0.5) / len(self._bits), place]
