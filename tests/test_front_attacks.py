"""What a curious server makes of a search for a front: with everything in place nothing, with a defence off all of it.

The server's best guess of one node's predictions is what that node has sent, read as numbers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr, spearmanr
from torch import Tensor

from fne import wire
from fne.config import load_config
from fne.engines.local import LocalEngine
from fne.errors import DataWarning
from fne.evolution import rvea
from fne.gather import gather
from fne.node import Worker
from fne.privacy import ring
from fne.relaying import Relaying
from fne.search import build_search
from fne.secure import SecureEngine
from fne.secure_tasks import secure_only
from fne.surrogates.acquisition import lcb_of_sums
from fne.surrogates.cubic import Cubic
from fne.types import Engine, Request, Round

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
        memory = self._worker.nodes[name].memory
        model = Cubic(*(memory[f"model.{part}"] for part in ("centres", "weights", "constant", "slopes")))
        return model.predict(memory["front.candidates"])[0]


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
    return torch.from_numpy(ring.decode(words.numpy().reshape(-1).view(np.uint64))).view(words.shape)


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
        engine = SecureEngine(server)
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


@pytest.mark.parametrize(("noise", "least"), [(0.01, 0.8), (0.1, 0.45)])
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
