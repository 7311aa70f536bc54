"""What a curious server makes of a search for a front: with everything in place nothing, with a defence off all of it.

The server's best guess of one node's predictions is what that node has sent, read as numbers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr, spearmanr
from torch import Tensor

from fne.config.load import load_config
from fne.core.contracts import Engine
from fne.core.errors import DataWarning, RunError
from fne.core.messages import Request, Round
from fne.core.randomness import chosen_node
from fne.engines.local import LocalEngine
from fne.evolution import rvea
from fne.federation import wire
from fne.federation.node import Node
from fne.federation.rounds import Relaying, gather
from fne.federation.worker import Worker
from fne.run.search_run import build_search
from fne.secure import encoding
from fne.secure.engine import SecureEngine
from fne.secure.node_tasks import secure_only
from fne.surrogates.acquisition import lcb_of_sums
from fne.surrogates.cubic import Cubic

SETTINGS = {"rounds": 4, "initial": 30, "generations": 28, "population": 12, "points": 2, "release": False}
N = 12
"""Candidates of a generation, of two objectives each."""


class Server(LocalEngine):
    """Keeps what passes through it, node by node, and beside it what the node has really predicted."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self.guesses: list[Tensor] = []
        self.truths: list[Tensor] = []
        self.opened: list[tuple[Tensor, Tensor]] = []
        self.survivors: list[Tensor] = []

    def send(self, request: Request) -> Round:
        request = replace(request, header=replace(request.header, run=self._run))
        replies = list(self._worker.run(request))
        for reply in replies:
            if "front_predict" in (request.task, request.options.get("task")) and request.task != "secure_offer":
                truth = self.truth(reply.node)
                guess = read(dict(reply.payload), len(truth))
                if guess is not None:
                    self.guesses.append(guess)
                    self.truths.append(truth)
            if "survivors" in reply.payload:
                self.survivors.append(reply.payload["survivors"][0].long())
        common, private = wire.request_frames(request)
        return gather(request, replies, quorum=1, common=common, private=private)

    def truth(self, name: str) -> Tensor:
        node = self._worker.nodes[name]
        return model_of(node).predict(node.memory["front.candidates"])[0]


def read(payload: dict[str, Tensor], n: int) -> Tensor | None:
    """Return the predictions `[n, 2]` as the server reads them."""
    if "masked" in payload:
        return payload["masked"][0]
    if "first" in payload:
        return decoded(payload["first"][0])
    if "vector" in payload:  # entries by name: count [1], first [1, n, M], ..
        return decoded(payload["vector"][1 : 1 + 2 * n].view(n, 2))
    return None


def decoded(words: Tensor) -> Tensor:
    return torch.from_numpy(encoding.decode(words.numpy().reshape(-1).view(np.uint64))).view(words.shape)


def attacked(strategy: str, **settings: Any) -> Server:
    secure = strategy == "fdd_ea_dh" and settings.get("mode") != "literal"
    given = {
        "problem": {"name": "dtlz", "number": 2, "objectives": 2, "dim": 6, "nodes": 4},
        "strategy": {"name": strategy, "infill": "aggregator", **SETTINGS, **settings}, "secure": secure,
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        search = build_search(load_config(given))
    server = Server(search.worker)
    engine: Engine = Relaying(server)
    if secure:
        secure_only(search.worker)
        engine = SecureEngine(server, search.worker.pinned)
    while not search.strategy.done:
        search.strategy.tell(engine.send(search.strategy.ask(engine.nodes)))
    return server


def likeness(server: Server, measure: Callable[..., Any]) -> float:
    """Return the mean correlation of guess and truth over all that single nodes have sent, and both objectives."""
    found = [
        measure(guess[:, i].numpy(), truth[:, i].numpy()).statistic
        for guess, truth in zip(server.guesses, server.truths, strict=True)
        for i in range(2) if guess.shape == truth.shape
    ]  # fmt: skip
    assert len(found) >= 600  # of more than 100 sums
    return float(np.mean(found))


def test_of_secure_sums_the_server_reads_nothing() -> None:
    server = attacked("fdd_ea_dh")
    assert abs(likeness(server, pearsonr)) < 0.05
    assert abs(likeness(server, spearmanr)) < 0.05


def test_without_masks_it_reads_all_and_can_repeat_the_selection() -> None:
    server = attacked("fdd_ea_mo")
    assert likeness(server, pearsonr) > 0.999999
    # of the first generation: three others and the chosen one itself have sent what it selects by
    guesses = server.guesses[:4]
    first, second = (torch.stack(guesses).pow(power).sum(dim=0) for power in (1, 2))
    bounds = lcb_of_sums(first, second, torch.tensor(4.0), None, 2.0)
    even = rvea.reference_vectors(2, 12)
    repeated = rvea.select(bounds[None], torch.ones(1, N, dtype=torch.bool), even[None], 0.0)[0]
    assert torch.equal(repeated, server.survivors[0])


@pytest.mark.parametrize(("noise", "least"), [(0.01, 0.6), (0.1, 0.2)])
def test_small_masks_of_the_text_show_the_ranks(noise: float, least: float) -> None:
    """Where they are small enough for the deviation to mean anything."""
    server = attacked("fdd_ea_dh", mode="literal", noise_scale=noise, schedule="constant", rounds=8)
    assert likeness(server, spearmanr) > least


def test_large_masks_of_the_text_cancel_between_generations() -> None:
    """One salt a run: differences of two answers are differences of predictions, to the last digits of a float."""
    server = attacked("fdd_ea_dh", mode="literal", noise_scale=100.0, schedule="constant", rounds=1)
    single = [(g, t) for g, t in zip(server.guesses, server.truths, strict=True) if len(g) == 2 * N]
    assert len(single) >= 50
    masked = np.array([float(spearmanr(g[:, 0], t[:, 0]).statistic) for g, t in single])
    assert abs(masked.mean()) < 0.5
    for (g1, t1), (g2, t2) in zip(single[:-4:4], single[4::4], strict=True):  # the same node, one generation later
        torch.testing.assert_close(g1 - g2, t1 - t2, rtol=0, atol=1e-9)


def test_with_fresh_masks_differences_say_nothing_either() -> None:
    server = attacked("fdd_ea_dh", rounds=2)
    pairs = list(zip(server.guesses, server.truths, strict=True))
    found = [
        pearsonr((g1 - g2)[:, i].numpy(), (t1 - t2)[:, i].numpy()).statistic
        for (g1, t1), (g2, t2) in zip(pairs[:-3], pairs[3:], strict=True) for i in range(2)
        if t1.shape == t2.shape
    ]  # fmt: skip
    assert len(found) > 200
    assert abs(np.mean(found)) < 0.08


def test_a_node_that_is_chosen_again_can_subtract_sums_and_the_documentation_says_so() -> None:
    """What exact sums imply, whatever masks they came under: between two of its turns only one node has changed.

    In the first round the others' sum is an interpolant with centres that everybody knows, so it is known everywhere.
    """
    names = [f"node-{i:03d}" for i in range(4)]
    seed = next(
        s for s in range(1000)
        if chosen_node(s, 1, names) == chosen_node(s, 3, names) != chosen_node(s, 2, names)
    )  # fmt: skip
    own, other = chosen_node(seed, 1, names), chosen_node(seed, 2, names)
    given = {
        "seed": seed, "problem": {"name": "dtlz", "number": 2, "objectives": 2, "dim": 4, "nodes": 4},
        "strategy": {"name": "fdd_ea_dh", **SETTINGS, "rounds": 3}, "secure": True,
    }  # fmt: skip
    search = build_search(load_config(given))
    secure_only(search.worker)
    engine, strategy = SecureEngine(LocalEngine(search.worker), search.worker.pinned), search.strategy
    nodes = search.worker.nodes
    view: dict[int, list[tuple[Tensor, Tensor]]] = {0: [], 2: []}
    models: list[Cubic] = []
    while not strategy.done:
        round_, place = divmod(strategy.step, 30)
        request = strategy.ask(engine.nodes)
        strategy.tell(engine.send(request))
        if place == 1 and round_ in (1, 2):
            models.append(model_of(nodes[other]))
        if place and round_ in view:  # the sum that the node was given, less its own part
            x = nodes[own].memory["front.candidates"]
            total = sum(model_of(node).predict(x)[0] for node in nodes.values())
            assert isinstance(total, Tensor)
            view[round_].append((x[0], total - model_of(nodes[own]).predict(x)[0]))
    start = nodes[own].memory["points"][0, :30]

    def features(x: Tensor) -> Tensor:
        return torch.cat([torch.cdist(x, start).pow(3), x, torch.ones(len(x), 1)], dim=1)

    before, after = ([torch.cat(part) for part in zip(*view[r], strict=True)] for r in (0, 2))
    known = torch.linalg.lstsq(features(before[0]), before[1], driver="gelsd").solution
    found = after[1] - features(after[0]) @ known
    truth = (models[1].predict(after[0][None]) - models[0].predict(after[0][None]))[0]
    assert float(np.corrcoef(found.flatten(), truth.flatten())[0, 1]) > 0.999
    page = (Path(__file__).parents[2] / "docs" / "fdd_ea_dh.md").read_text()
    assert "chosen again can subtract" in page


def model_of(node: Node) -> Cubic:
    names = ("centres", "weights", "constant", "slopes")
    return Cubic(*(node.memory[f"model.{part}"].clone() for part in names))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"relay": None}, "'front_predict' is added up for a node to open, and not for the server"),
        ({"task": "select", "relay": None}, "'select' is no work whose results can be added"),
        (
            {"common": {"given.first": torch.zeros(1, 12, 2)}},
            "the server sends given.first: what is given comes of a sum",
        ),
        ({"publish": True}, "this node's policy allows task 'select' with publish = false only, not true"),
        ({"to": "release_front"}, "'release_front' is not known to keep to itself what it is given"),
    ],
)
def test_a_server_that_asks_for_something_else_gets_nothing(changes: dict[str, Any], said: str) -> None:
    given = {
        "problem": {"name": "dtlz", "number": 2, "objectives": 2, "dim": 6, "nodes": 4},
        "strategy": {"name": "fdd_ea_dh", **SETTINGS}, "secure": True,
    }  # fmt: skip
    search = build_search(load_config(given))
    secure_only(search.worker)
    engine = SecureEngine(LocalEngine(search.worker), search.worker.pinned)
    search.strategy.tell(engine.send(search.strategy.ask(engine.nodes)))
    request = search.strategy.ask(engine.nodes)
    assert request.relay is not None
    changes = dict(changes)
    publish, to = changes.pop("publish", False), changes.pop("to", "select")
    if publish:
        request = replace(request, relay=replace(request.relay, options={**request.relay.options, "publish": True}))
    elif to != "select":
        request = replace(request, relay=replace(request.relay, task=to))
    request = replace(request, **{**changes, "common": {**request.common, **changes.get("common", {})}})
    try:
        answer = "; ".join(failure.reason for failure in engine.send(request).failures)
    except RunError as error:
        answer = str(error)
    assert said in answer
