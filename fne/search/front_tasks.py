"""Node tasks of searches for a Pareto front: fit surrogates, predict candidates, select among them, measure some.

The round's chosen node receives sums of all nodes' predictions (`fne.core.messages.Relay`). It selects, and answers
which candidates survive. The acquisition stays with the node, and in the last generation the selection does, too.

At a round's end the chosen node picks points of its population, spread over the front, and measures them (infill).

Shapes: `B` runs side by side, `r` of them in which a node takes part, `n` candidates, `V` places of the population (one
a reference vector), `M` objectives, `d` variables, `m` centres.

Beside its measurements (`fne.search.measurements`) a node's memory holds

    model.centres, ..          its surrogates, of each run
    front.candidates [B, n, d] the candidates that it predicted last, and `front.fed [B, n, M]`, what the global network
                               predicts for them
    front.points [B, V, d]     the population of the chosen node, its acquisition `front.values [B, V, M]`, which places
                               are taken `front.taken [B, V]`, and the reference vectors `front.vectors [B, V, M]`
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator, Sequence
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from fne.config.groups import Arithmetic, Parties, Surrogate
from fne.config.registry import Key, register
from fne.core import randomness
from fne.core.errors import DeclinedError, RunError
from fne.core.messages import GIVEN, Header, Request, Tensors
from fne.evolution import rvea
from fne.evolution.real_coded import take
from fne.federation.node import Node
from fne.federation.payloads import Entry, Kind, Payload
from fne.federation.worker import Worker
from fne.search.measurements import CUBE, as_words, held, measure_asked, measure_points, objective_of, runs_of
from fne.secure import encoding
from fne.surrogates import cubic, rbfn
from fne.surrogates.acquisition import lcb_of_masked, lcb_of_sums
from fne.surrogates.kmeans import kmeans
from fne.surrogates.rbfn import Network

SAMPLES, CANDIDATES, FED = "model.samples", "front.candidates", "front.fed"
POPULATION, BOUNDS, TAKEN, VECTORS = "front.points", "front.values", "front.taken", "front.vectors"
_MODEL = {"cubic": ("centres", "weights", "constant", "slopes"), "network": ("centres", "widths", "weights", "bias")}
_SCALE = "scale the objectives; unprotected, strategy.arithmetic = float has no limit"


# ------------------------------------------------------------------------------------------------ surrogates
def fit_payload(request: Request, node: str) -> Payload:
    """Return the payload of `front_fit`: samples, and the terms of the global network."""
    runs, _, variables = request.common["points"].shape
    entries = {"samples": Entry("int", (runs,), least=0)}
    if request.options["surrogate"] == "network":
        kind: Kind = "int" if request.options["arithmetic"] == "fixed" else "float"
        objectives, centres = request.common["weights"].shape[1:]
        sizes = {
            "centres": (runs, centres, variables), "widths": (runs, centres),
            "weights": (runs, objectives, centres), "bias": (runs, objectives),
        }  # fmt: skip
        entries |= {name: Entry(kind, size, finite="usual") for name, size in sizes.items()}
    return entries


@register("task", "front_fit", payload=fit_payload)
def fit_task(
    worker: Worker,
    nodes: Sequence[Node],
    request: Request,
    *,
    surrogate: Annotated[Surrogate, Key("kind of surrogate: interpolants, or networks")],
    arithmetic: Annotated[Arithmetic, Key("arithmetic of the sum")],
    parties: Parties,
    centres: Annotated[int, Key("number of centres of a network", ge=1)] = 1,
    epochs: Annotated[int, Key("epochs of a network's training", unit="epochs", ge=1)] = 1,
    lr: Annotated[float, Key("learning rate of a network's training", gt=0)] = 1.0,
    starts: Annotated[int, Key("starts of k-means", ge=1)] = 1,
) -> Iterator[Tensors]:
    """Measure points, and fit surrogates to all values that the node has measured; the surrogates stay at the node.

    Takes common `points [B, n, d]`, private `runs`, and for networks common `weights [B, M, m]` and `bias [B, M]`, from
    which they start. Yields `samples [B]`, with `cubic` 1 where there are any; and for the global network, times the
    samples, `centres [B, m, d]`, `widths [B, m]`, `weights [B, M, m]`, `bias [B, M]`, in order of the norm.
    """
    measure_asked(nodes, request)
    count = len(request.common["points"])
    for node in nodes:
        runs = runs_of(node, request)
        points, values = held([node], [runs])
        valid = values.isfinite().all(dim=2)
        if arithmetic == "fixed":
            _check_range(values, parties)
        samples = _spread(valid.sum(dim=1), runs, count)
        answer = {"samples": samples.sign() if surrogate == "cubic" else samples}
        if surrogate == "cubic":
            made = cubic.fit(points, values.nan_to_num(), valid)
            model = {name: getattr(made, name) for name in _MODEL["cubic"]}
        else:
            u = torch.stack([
                torch.rand(starts, centres, generator=_public(node, request.header, run), dtype=torch.float64)
                for run in runs.tolist()
            ])  # fmt: skip
            weights, bias = (request.common[name][runs].double() for name in ("weights", "bias"))
            net = rbfn.fit_outputs(points, values.nan_to_num(), valid, weights, bias, u, epochs=epochs, lr=lr)
            model = {name: getattr(net, name) for name in _MODEL["network"]}
            for name, value in model.items():
                weighted = samples[runs].view(-1, *[1] * (value.dim() - 1)) * value
                answer[name] = _added(_spread(weighted, runs, count), name, parties, arithmetic, "lower strategy.lr")
        node.memory.update({f"model.{name}": _spread(value, runs, count) for name, value in model.items()})
        node.memory[SAMPLES] = samples
        yield answer


def predict_payload(request: Request, node: str) -> Payload:
    """Return the payload of `front_predict`: predictions and their squares, and the runs that they belong to."""
    size = *request.common["candidates"].shape[:2], "objectives"
    if request.options["arithmetic"] == "masked":
        return {"masked": Entry("float", size, finite="usual")}
    kind: Kind = "int" if request.options["arithmetic"] == "fixed" else "float"
    sums = {name: Entry(kind, size, finite="usual") for name in ("first", "second")}
    return {**sums, "count": Entry("int", size[:1], least=0, most=1)}


@register("task", "front_predict", payload=predict_payload, withheld=True)
def predict_task(
    worker: Worker,
    nodes: Sequence[Node],
    request: Request,
    *,
    surrogate: Annotated[Surrogate, Key("kind of surrogate that the node has fitted")],
    arithmetic: Annotated[Arithmetic, Key("arithmetic of the sums")],
    parties: Parties,
    names: Annotated[str, Key("names of these nodes as a list in JSON, with arithmetic = masked")] = "[]",
    noise: Annotated[float, Key("standard deviation of a mask between two nodes, with arithmetic = masked", ge=0)] = 0,
) -> Iterator[Tensors]:
    """Predict candidates in a form of which only the sum over nodes is needed.

    Takes common `candidates [B, n, d]`, private `runs`, and with `network` the global network: common `centres`,
    `widths`, `weights`, `bias`. Yields `first` and `second [B, n, M]`, the predictions less those of the global
    network, and their squares, and `count [B]`: zeros for a run in which the node takes no part, or has measured
    nothing. With `masked` it yields `masked [B, n, M]` alone.
    """
    candidates = request.common["candidates"].double()
    count, masking = len(candidates), json.loads(names)
    fed = None
    if surrogate == "network":
        fed = rbfn.predict_outputs(Network(*(request.common[name] for name in _MODEL["network"])), candidates)
    for node in nodes:
        runs = _own_runs(node, request, count)
        predicted = _predicted(node, surrogate, candidates[runs], runs)
        node.memory[CANDIDATES] = candidates
        if fed is not None:
            node.memory[FED] = fed
        blind = node.memory[SAMPLES][runs] == 0
        if arithmetic == "masked":
            if blind.any():
                raise RunError("this node has no values to predict by; without one of them masks do not cancel")
            seeds, shape = (request.header.seed + runs).tolist(), predicted.shape[1:]
            masked = predicted + noise * torch.stack([_masks(node.name, masking, s, shape) for s in seeds])
            yield {"masked": _spread(masked, runs, count)}
            continue
        apart = predicted if fed is None else predicted - fed[runs]
        apart = apart.masked_fill(blind.view(-1, 1, 1), 0.0)  # without measurements there is no prediction
        present = _spread((~blind).long(), runs, count)
        first, second = _spread(apart, runs, count), _spread(apart.square(), runs, count)
        yield {
            "first": _added(first, "prediction", parties, arithmetic, _SCALE),
            "second": _added(second, "square of the prediction", parties, arithmetic, _SCALE),
            "count": present,
        }


def _predicted(node: Node, surrogate: Surrogate, candidates: Tensor, runs: Tensor) -> Tensor:
    """Return the predictions `[r, n, M]` of the node's surrogates at candidates `[r, n, d]`."""
    names = [f"model.{name}" for name in _MODEL[surrogate]]
    if names[0] not in node.memory:
        raise RunError("this node has fitted no surrogate yet")
    parts = [node.memory[name][runs] for name in names]
    return (
        cubic.Cubic(*parts).predict(candidates)
        if surrogate == "cubic"
        else rbfn.predict_outputs(Network(*parts), candidates)
    )


def _masks(own: str, names: Sequence[str], seed: int, shape: tuple[int, ...]) -> Tensor:
    """Return the sum of a node's masks, eq. (3) with signs by which the masks of a pair cancel.

    They simulate masks of keys that the pair has agreed on: whoever knows the seed knows them, so they protect nothing.
    As printed, both sums of eq. (3) run over j < i of symmetric keys: the mask is 0.
    """
    total = torch.zeros(shape, dtype=torch.float64)
    for other in names:
        if other != own:
            low, high = sorted((own, other))
            draw = randomness.generator(seed, "literal mask", low, high)  # one salt for the run, as printed
            mask = torch.randn(shape, generator=draw, dtype=torch.float64)
            total += mask if own == low else -mask
    return total


# ------------------------------------------------------------------------------------------------ selection
def select_payload(request: Request, node: str) -> Payload:
    """Return the payload of `select`: places of the survivors; in the last generation the chosen points or nothing."""
    given = request.addressed(node)
    predictions = given[GIVEN + "masked"][0] if request.options["arithmetic"] == "masked" else given[GIVEN + "first"]
    runs, candidates, objectives = predictions.shape
    runs = len(given["runs"]) if "runs" in given else runs
    if request.options["points"]:
        size = (runs, int(request.options["points"]), "variables")
        chosen = Entry("float", size, *CUBE, nan=True)
        return {"points": chosen} if request.options["publish"] else {}
    places = len(_even_vectors(objectives, int(request.options["population"])))
    known = candidates if request.options["fresh"] else places + candidates
    return {"survivors": Entry("int", (runs, places), least=-1, most=known - 1)}


@register("task", "select", payload=select_payload, keeps=True)
def select_task(
    worker: Worker,
    nodes: Sequence[Node],
    request: Request,
    *,
    turn: Annotated[int, Key("number of the draw by which the node was chosen", ge=0)],
    arithmetic: Annotated[Arithmetic, Key("arithmetic of the sums that the node receives")],
    population: Annotated[int, Key("largest number of reference vectors", ge=1)],
    progress: Annotated[float, Key("share of the generations that is over", ge=0, le=1)],
    fresh: Annotated[bool, Key("select from the candidates alone; no earlier population is kept")],
    adapt: Annotated[bool, Key("fit the reference vectors to the survivors' ranges")],
    weight: Annotated[float, Key("standard deviations that the acquisition subtracts", ge=0)],
    points: Annotated[int, Key("points to choose in the last generation; 0: this is not the last", ge=0)] = 0,
    publish: Annotated[bool, Key("publish the chosen points instead of measuring them at this node alone")] = False,
    normalise: Annotated[bool, Key("scale mean and deviation, with arithmetic = masked")] = True,
) -> Iterator[Tensors]:
    """Select by the acquisition of the received sums, and answer which survive; in the last generation measure some.

    Takes private `runs`, and `given.first`, `given.second [B, n, M]`, `given.count [B]`; `given.masked [K, B, n, M]`.
    Yields `survivors [r, V]`, int16: places in the population followed by the candidates; -1 for none. In the last
    generation it yields nothing, or with `publish` the chosen `points [r, q, d]` of the cube.
    """
    for node in nodes:
        memory = node.memory
        if CANDIDATES not in memory:
            raise RunError("this node was sent no candidates: it cannot select")
        count = len(memory[CANDIDATES])
        runs = _own_runs(node, request, count)
        bounds = _bounds(node, request, runs, arithmetic, weight, normalise)
        candidates, taken = memory[CANDIDATES][runs], torch.ones(bounds.shape[:2], dtype=torch.bool)
        if publish and not objective_of(node).publishes:
            raise DeclinedError("its owner does not let all be told which points it chose")
        if arithmetic == "masked":  # copies have other masks, so other bounds: keep one of them
            taken = torch.stack([_first_of_equals(of_run) for of_run in candidates])
        even = _even_vectors(bounds.shape[2], population)
        vectors = even.expand(len(runs), -1, -1)
        if not fresh:
            if POPULATION not in memory:
                raise RunError("this node was not the chosen one before: it needs the whole population")
            vectors = memory[VECTORS][runs]
            candidates = torch.cat([memory[POPULATION][runs], candidates], dim=1)
            bounds = torch.cat([memory[BOUNDS][runs], bounds], dim=1)
            taken = torch.cat([memory[TAKEN][runs], taken], dim=1)
        survivors = rvea.select(bounds, taken, vectors, progress)
        kept = survivors.clamp(min=0)
        candidates, bounds, taken = take(candidates, kept), take(bounds, kept), survivors >= 0
        if points:
            chosen = chosen_points(node, request.header, runs, candidates, bounds, taken, points)
            if publish:
                yield {"points": padded(chosen, points)}
                continue
            measure_chosen(node, request.header, runs, chosen, count)
            yield {}
            continue
        if adapt:
            vectors = rvea.adapted(even, bounds, taken)
        for name, rows in ((POPULATION, candidates), (BOUNDS, bounds), (TAKEN, taken), (VECTORS, vectors)):
            kept_rows = memory.get(name, rows.new_zeros(count, *rows.shape[1:])).clone()
            kept_rows[runs] = rows
            memory[name] = kept_rows
        yield {"survivors": survivors.short()}


def _bounds(
    node: Node, request: Request, runs: Tensor, arithmetic: Arithmetic, weight: float, normalise: bool
) -> Tensor:
    """Return the acquisition of all candidates, `[r, n, M]`."""
    fed = node.memory[FED][runs] if FED in node.memory else None
    wanted = ("masked",) if arithmetic == "masked" else ("first", "second", "count")
    missing = [name for name in wanted if GIVEN + name not in request.common]
    if missing:
        raise RunError(f"this node is given no {missing[0]!r} to select by")
    if arithmetic == "masked":
        return lcb_of_masked(request.common[GIVEN + "masked"][:, runs], fed, weight, normalise=normalise)
    first, second = (request.common[GIVEN + name][runs] for name in ("first", "second"))
    if arithmetic == "fixed":
        first, second = (torch.from_numpy(encoding.decode(words.numpy().view(np.uint64))) for words in (first, second))
    present = request.common[GIVEN + "count"][runs].double().view(-1, 1, 1)
    return lcb_of_sums(first, second, present, fed, weight)


def _first_of_equals(points: Tensor) -> Tensor:
    """Return which rows of `[n, d]` are no copy of an earlier row, bool `[n]`."""
    inverse: Tensor = points.unique(dim=0, return_inverse=True)[1]  # type: ignore[no-untyped-call]
    places = torch.arange(len(points))
    first = torch.full_like(places, len(points)).scatter_reduce_(0, inverse, places, "amin")
    return first[inverse] == places


@functools.lru_cache(maxsize=8)
def _even_vectors(objectives: int, most: int) -> Tensor:
    return rvea.reference_vectors(objectives, most)


# ------------------------------------------------------------------------------------------------ sums
def _own_runs(node: Node, request: Request, count: int) -> Tensor:
    runs = request.private.get(node.name, {}).get("runs")
    return torch.arange(count) if runs is None else runs


def _spread(rows: Tensor, runs: Tensor, count: int) -> Tensor:
    """Return `[B, ...]` with the rows of a node's runs, zeros elsewhere."""
    if len(runs) == count:
        return rows
    whole = rows.new_zeros(count, *rows.shape[1:])
    whole[runs] = rows
    return whole


def _added(values: Tensor, what: str, parties: int, arithmetic: Arithmetic, remedy: str) -> Tensor:
    """Return values in the form in which `parties` nodes add them up with this arithmetic."""
    return as_words(values, what, parties, remedy) if arithmetic == "fixed" else values


def _check_range(values: Tensor, nodes: int) -> None:
    """Raise `RunError` for values whose squares could not be added up, before anything is predicted from them."""
    most = math.sqrt(encoding.largest(nodes))
    largest = values.nan_to_num().abs().amax(dim=(0, 1))
    if bool((largest > most).any()):
        number = int((largest > most).int().argmax())
        size = f"objective {number + 1} has values beyond {most:.3g} in size"
        raise RunError(f"{size}, whose squares {nodes} nodes cannot add up; {_SCALE}")


def _public(node: Node, header: Header, run: int) -> torch.Generator:
    return randomness.generator(header.seed + run, header.step, header.attempt, node.name, "centres")


_APART = 1e-6
"""Points of the cube nearer to each other than this, in any measure, count as the same point."""


def chosen_points(
    node: Node, header: Header, runs: Tensor, points: Tensor, bounds: Tensor, taken: Tensor, most: int
) -> list[Tensor]:
    """Return the points `[q, d]` of each run's population that the node shall measure: spread over the front.

    The population is put into `most` clusters, in the space of the objectives scaled to their ranges, and from each
    cluster the point nearest to its middle is taken. Points that the node has measured before are left out, so there
    may be fewer.
    """
    known, values = held([node], [runs])
    near = torch.cdist(points, known).where(values.isfinite().all(dim=2).unsqueeze(1), torch.inf).amin(dim=2)
    new = taken & (near > _APART)
    low = bounds.where(new.unsqueeze(2), torch.inf).amin(dim=1, keepdim=True)
    high = bounds.where(new.unsqueeze(2), -torch.inf).amax(dim=1, keepdim=True)
    scaled = ((bounds - low) / (high - low).clamp(min=_APART)).where(new.unsqueeze(2), 0.0)
    u = torch.stack([
        node.draws(header, f"points {run}", points[row]).uniform(3, most)
        for row, run in enumerate(runs.tolist())
    ])  # fmt: skip
    away = torch.cdist(scaled, kmeans(scaled, new, u))
    nearest = away.argmin(dim=2)
    picked = []
    for run in range(len(runs)):
        places = []
        for cluster in sorted(set(nearest[run, new[run]].tolist())):
            inside = new[run] & (nearest[run] == cluster)
            places.append(int(away[run, :, cluster].where(inside, torch.inf).argmin()))
        picked.append(points[run, places])
    return picked


def padded(chosen: Sequence[Tensor], most: int) -> Tensor:
    """Return points of several runs as `[r, most, d]`, padded with NaN, which nobody measures."""
    padded = torch.full((len(chosen), most, chosen[0].shape[1]), torch.nan, dtype=torch.float64)
    for row, points in zip(padded, chosen, strict=True):
        row[: len(points)] = points
    return padded


def measure_chosen(node: Node, header: Header, runs: Tensor, chosen: Sequence[Tensor], count: int) -> None:
    """Let the node measure the chosen points of each run; runs with the same number of points go together."""
    for size in sorted({len(points) for points in chosen}):
        rows = [i for i, points in enumerate(chosen) if len(points) == size]
        measure_points([node], [runs[rows]], [torch.stack([chosen[i] for i in rows])], header, count=count, own=True)
