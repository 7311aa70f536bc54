"""Random shifts of inputs: by whole places, each by its own draw, the same for all candidates."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import fne
from fne.config.load import load_config
from fne.core.errors import SettingError
from fne.core.messages import Header, Request
from fne.learning.local_training import random_shift
from fne.privacy.policy import Policy
from fne.run.learning_run import build


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_recording_is_moved_in_time_with_all_its_channels() -> None:
    x = torch.tensor([[[1.0, 2, 3, 4], [5, 6, 7, 8]]]).repeat(200, 1, 1)
    seen = {tuple(one[0].tolist()) for one in random_shift(x, 1, draw())}
    assert seen == {(1, 2, 3, 4), (2, 3, 4, 0), (0, 1, 2, 3)}
    for one in random_shift(x, 1, draw()):
        inside = one[0] != 0
        assert torch.equal(one[1][inside], one[0][inside] + 4)


def test_images_are_moved_as_torch_rolls_them_and_each_by_its_own_draw() -> None:
    x = torch.randn(300, 2, 5, 4, generator=draw())
    wide = torch.nn.functional.pad(x, (2, 2, 2, 2))
    rolled = {(i, j): torch.roll(wide, (i, j), (2, 3))[:, :, 2:-2, 2:-2] for i in range(-2, 3) for j in range(-2, 3)}
    made = random_shift(x, 2, draw())
    found = [[way for way, other in rolled.items() if torch.equal(other[n], made[n])] for n in range(len(x))]
    assert all(len(ways) == 1 for ways in found)
    assert {ways[0] for ways in found} == set(rolled)  # all 25 of them, in 300 draws


def test_the_same_generator_moves_the_same() -> None:
    x = torch.randn(6, 3, 9)
    assert torch.equal(random_shift(x, 3, draw(4)), random_shift(x, 3, draw(4)))
    assert not torch.equal(random_shift(x, 3, draw(4)), random_shift(x, 3, draw(5)))


TOY = {
    "data": {"name": "toy", "problem": "eeg", "nodes": None, "partition": "subject", "shift": 2},
    "model": {"name": "logistic"},
    "strategy": {"name": "fne", "population": 6, "rounds": 3, "parents": 4},
}


def losses(header: Header, **options: int) -> Tensor:
    experiment = build(load_config(TOY))
    for node in experiment.worker.nodes.values():  # which else does only what its method asks for
        node.policy = Policy()
    names = tuple(experiment.nodes)[:1]
    genes = experiment.evaluator.layout.flatten(experiment.worker.module).repeat(2, 1)
    request = Request(header, "fitness", names, {"population": genes}, options={"loss": "cross_entropy", **options})
    (reply,) = experiment.worker.run(request)
    return reply.payload["loss"][:, 0]


@pytest.mark.parametrize("samples", [0, 4])
def test_candidates_see_the_same_inputs_moved_anew_each_step(samples: int) -> None:
    first = Header(seed=0, step=1, run="r")
    one, same, other = (losses(h, samples=samples) for h in (first, first, replace(first, step=2)))
    assert one[0] == one[1]
    assert torch.equal(one, same)
    assert one[0] != other[0]


@pytest.mark.parametrize("method", ["fne", "fedavg", "centralised"])
def test_training_with_moved_inputs_is_repeatable_and_another(method: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    settings = {"fne": TOY["strategy"], "fedavg": {"name": "fedavg", "rounds": 2}}
    config = {**TOY, "strategy": settings.get(method, {"name": method, "rounds": 2})}
    digests = [
        fne.train(config, [f"data.shift={shift}"], out=tmp_path / f"{n}", quiet=True)["model_sha256"]
        for n, shift in enumerate((2, 2, 0))
    ]
    assert digests[0] == digests[1] != digests[2]


def test_inputs_without_a_place_to_move_along_are_refused() -> None:
    config = {**TOY, "data": {"name": "toy", "nodes": 2, "shift": 1}}
    with pytest.raises(SettingError, match=r"data\.shift = 1: must be 0"):
        build(load_config(config))
