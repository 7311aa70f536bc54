"""Attacks on noise by those who see uploads: what it hides must not come out by how it was made."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from fne.config.load import load_config
from fne.core.messages import Header, Request
from fne.engines.local import LocalEngine
from fne.federation.node import Node
from fne.privacy.draws import Draws
from fne.problems.objective import Objective
from fne.run.learning_run import LearningRun, build
from fne.search import measurements as archive
from fne.strategies import dp_fedavg, dp_sgd

NOISE = 1.0


def private(strategy: str = "dp_fedavg", **settings: Any) -> tuple[LearningRun, Request]:
    """Return a run, and its first request, which is to one node."""
    given: dict[str, Any] = {
        "data": {"name": "toy", "nodes": 4, "samples": 200, "test": 10, "validation": 10},
        "model": {"name": "mlp", "hidden": [300]},
        "strategy": {"name": strategy, "fraction": 0.25, "noise": NOISE, **settings},
    }
    made = build(load_config(given))
    return made, made.strategy.ask(tuple(sorted(made.worker.nodes)))


def upload(made: LearningRun, request: Request) -> Tensor:
    (reply,) = LocalEngine(made.worker).send(replace(request, reduce="none")).replies
    return reply.payload["delta"]


def floating(vector: Tensor, multiplier: float, most: float, draws: Callable[[Tensor], Draws]) -> Tensor:
    """Add noise as it was made before: normal numbers of a twister, in floating point."""
    return vector + multiplier * most * torch.randn(vector.shape, generator=draws(vector).generator())


# ------------------------------------------------------------------------------------------------ the generator
WORDS = 32
KNOWN = 0x00FFFFC0
"""Bits of a twister's output that a normal number tells: torch makes its uniforms of the lower 24, the last 6 blur."""


def tempered(x: int) -> int:
    x ^= x >> 11
    x ^= x << 7 & 0x9D2C5680
    x ^= x << 15 & 0xEFC60000
    return (x ^ x >> 18) & 0xFFFFFFFF


def relations() -> list[tuple[int, int]]:
    """Return what always holds of outputs of a twister: pairs `a, b` of masks within the bits that are known.

    The parity of y[k + 624] ^ y[k + 397] at `a` is that of y[k + 1] at `b`, for every k. That is linear algebra over
    GF(2): the state's words follow each other by a linear rule, and an output is a linear map of its word.
    """
    temper = [tempered(1 << bit) for bit in range(WORDS)]
    rows = [(temper[bit], 1 << bit) for bit in range(WORDS)]  # (output, input), to be brought into the form (1 << n, x)
    for bit in range(WORDS):
        pivot = next(i for i in range(bit, WORDS) if rows[i][0] >> bit & 1)
        rows[bit], rows[pivot] = rows[pivot], rows[bit]
        for i in range(WORDS):
            if i != bit and rows[i][0] >> bit & 1:
                rows[i] = (rows[i][0] ^ rows[bit][0], rows[i][1] ^ rows[bit][1])
    untemper = [x for _, x in rows]  # of output bit n, the word

    def of_word(word: int, upper: bool) -> int:
        """Return what a word adds to the output 624 later: its upper bit, or its lower ones."""
        mixed = word & 0x80000000 if upper else word & 0x7FFFFFFF
        return tempered(mixed >> 1 ^ (0x9908B0DF if mixed & 1 else 0))

    own = [of_word(word, upper=True) for word in untemper]
    following = [of_word(word, upper=False) for word in untemper]

    def functional(images: list[int], mask: int) -> int:
        return sum((images[bit] & mask).bit_count() % 2 << bit for bit in range(WORDS))

    vectors = []  # a mask, with what must vanish for it to be of use: y[k], and the unknown bits of y[k + 1]
    for bit in (bit for bit in range(WORDS) if KNOWN >> bit & 1):
        mask = 1 << bit
        vectors.append((functional(own, mask) << WORDS | functional(following, mask) & ~KNOWN & 0xFFFFFFFF, mask))
    basis: list[tuple[int, int]] = []
    found = []
    for odd, mask in vectors:
        for other, its in basis:
            if odd >> (other.bit_length() - 1) & 1:
                odd, mask = odd ^ other, mask ^ its
        if odd:
            basis.append((odd, mask))
            basis.sort(reverse=True)
        else:
            found.append((mask, functional(following, mask)))
    return found


def uniforms(noise: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the 24-bit numbers that torch makes normal ones of, by Box and Muller in blocks of 16; which are sure."""
    blocks = noise[: len(noise) // 16 * 16].reshape(-1, 2, 8)
    radius = 1 - np.exp(-np.square(blocks).sum(axis=1) / 2)
    angle = np.arctan2(blocks[:, 1], blocks[:, 0]) % (2 * math.pi) / (2 * math.pi)
    values = np.stack([radius, angle], axis=1).reshape(-1) * 2**24
    return values.astype(np.int64), np.floor((values - 12) / 64) == np.floor((values + 12) / 64)


def held(noise: Tensor) -> tuple[int, int]:
    """Return how many of a twister's relations hold of normal numbers, and how many are known well enough to tell."""
    values, sure = uniforms(noise.double().numpy())
    k = np.arange(len(values) - 624)
    k = k[sure[k + 1] & sure[k + 397] & sure[k + 624]]
    later, own = values[k + 624] ^ values[k + 397], values[k + 1]
    parities = [(np.bitwise_count(later & a) + np.bitwise_count(own & b)) % 2 for a, b in relations()]
    return sum(int((parity == 0).sum()) for parity in parities), len(k) * len(parities)


def of_an_upload() -> tuple[int, int]:
    """Return that of weights which carry noise alone, as those of an image's black corners do."""
    made, request = private(lr=1e-30)
    return held(upload(made, request) / NOISE)


def test_noise_keeps_no_relation_of_a_twister() -> None:
    """It claims to know the noise of all weights by that of some: of a twister each number follows from others."""
    right, told = of_an_upload()
    assert told > 1000
    assert abs(right - told / 2) < 4 * math.sqrt(told)


def test_of_a_twister_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dp_fedavg, "noised", floating)
    right, told = of_an_upload()
    assert right > 0.99 * told > 1000


# ------------------------------------------------------------------------------------------------ the last bits
def off_the_grid(strategy: str) -> float:
    """Return the share of weights whose last bits tell what the noise was added to: they lie on no common grid."""
    made, request = private(strategy, clip=1.0, **OF_ONE_STEP[strategy])
    step = 2.0 ** (math.ceil(math.log2(1 + 13 * NOISE)) - 24)
    start = (request.common["parameters"] / step).round() * step
    steps = upload(made, replace(request, common={"parameters": start})).double() / step
    return float((steps != steps.round()).double().mean())


OF_ONE_STEP: dict[str, dict[str, Any]] = {"dp_fedavg": {}, "dp_sgd": {"rate": 1.0, "lr": 1.0, "batch_size": 1}}


@pytest.mark.parametrize("strategy", OF_ONE_STEP)
def test_the_last_bits_of_an_upload_are_those_of_a_grid(strategy: str) -> None:
    """It claims to tell what was there before the noise by bits that only some sums of floats have."""
    assert off_the_grid(strategy) == 0


@pytest.mark.parametrize("strategy", OF_ONE_STEP)
def test_of_floats_they_are_not(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dp_fedavg, "noised", floating)
    monkeypatch.setattr(dp_sgd, "whole", lambda found, clip, step: found.double() / step)
    assert off_the_grid(strategy) > 0.1


# ------------------------------------------------------------------------------------------------ asking again
def answer_apart(strategy: str, **changed: Any) -> float:
    """Return the deviation of the difference of two answers, over the noise, to requests of two headers."""
    made, request = private(strategy, clip=1e-3, **OF_ONE_STEP[strategy])
    start = {"parameters": torch.zeros(made.task.layout.size)}
    first, second = (
        upload(made, replace(request, common=start, header=replace(request.header, **given))) for given in ({}, changed)
    )
    return float((first - second).std()) / (NOISE * 1e-3)


def by_step_alone(node: Node, header: Header, purpose: str, *values: Tensor) -> Draws:
    """Draw as it was done before: by run, step and attempt."""
    return node.secrets.draws(repr((header.run, header.step, header.attempt, node.name, purpose)).encode())


@pytest.mark.parametrize("strategy", OF_ONE_STEP)
@pytest.mark.parametrize("changed", [{"seed": 5}, {"step": 5}, {"attempt": 1}])
def test_the_noise_is_not_taken_off_by_asking_again(strategy: str, changed: dict[str, int]) -> None:
    """It claims to get the same noise with other batches, so that the difference of two answers has none."""
    assert answer_apart(strategy, **changed) == pytest.approx(math.sqrt(2), rel=0.05)
    assert answer_apart(strategy) == 0  # and to the same request the same answer, of which no mean can be taken


@pytest.mark.parametrize("strategy", OF_ONE_STEP)
def test_addressed_by_the_step_alone_it_is(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Node, "draws", by_step_alone)
    assert answer_apart(strategy, seed=5) < 0.1


def test_other_records_under_the_same_request_have_other_noise() -> None:
    """It claims to see what a node added to its data between two answers to the same request, as after a resume."""
    made, request = private(clip=1e-3)
    first = upload(made, request)
    for node in made.worker.nodes.values():
        node.data.x[0] += 1
    assert float((upload(made, request) - first).std()) == pytest.approx(math.sqrt(2) * 1e-3, rel=0.05)


def values_apart() -> Tensor:
    """Return what two points' values differ by, as measured by a node under one header; in truth by 3."""
    objective = Objective(lambda points, seeds, nodes: 3 * points, noise=1.0)
    made, _ = private()
    (node, *_) = made.worker.nodes.values()
    node.objective = objective
    for value in (0.0, 1.0):
        archive.measure_points([node], [torch.tensor([0])], [torch.full((1, 1, 1), value)], Header(0, 3), count=1)
    first, second = node.memory["measured"][0, :, 0]
    return second - first


def test_the_noise_of_a_measurement_is_that_of_its_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """It claims to know exactly what noisy values differ by, from two requests under one header."""
    assert abs(float(values_apart()) - 3) > 1e-3
    monkeypatch.setattr(Node, "draws", by_step_alone)
    assert float(values_apart()) == pytest.approx(3, abs=1e-12)


# ------------------------------------------------------------------------------------------------ dp_sgd
def test_a_record_that_breaks_a_training_is_told_to_nobody() -> None:
    """It claims to see by a failure that one record is there whose gradient is not finite."""
    made, request = private("dp_sgd", noise=0.0, rate=1.0, clip=1.0)
    (node,) = (made.worker.nodes[name] for name in request.nodes)
    node.data.x[0] = math.inf
    with_it = upload(made, request)
    node.data = node.data.take(torch.arange(1, len(node.data)))
    torch.testing.assert_close(with_it, upload(made, request), rtol=1e-4, atol=1e-7)


def test_dropout_of_a_private_training_is_the_nodes_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """It claims to know each record's mask, and so what one record more does to all behind it."""
    made, request = private("dp_sgd", noise=0.0, rate=1.0)
    first: Any = made.worker.module.layers[0]  # type: ignore[index]
    first.register_forward_hook(lambda module, inputs, output: torch.nn.functional.dropout(output, 0.5))
    found = []
    for key in (1, 1, 2):
        for node in made.worker.nodes.values():
            node.secrets = type(node.secrets)(bytes([key] * 32), simulated=True)
        found.append(upload(made, request))
    assert torch.equal(found[0], found[1])
    assert float((found[0] - found[2]).norm()) > 0.01 * float(found[0].norm())
