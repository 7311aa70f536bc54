"""Files that are old or new and never half; seeds that depend on every part; a loop that calls everybody."""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fne.core.files import torch_bytes, write_atomically
from fne.core.randomness import derive_seed, generator, seeded_initialisation
from fne.core.types import Samples
from fne.loop import run
from fne.strategies.fedavg import fedavg


# ------------------------------------------------------------------------------------------------ files
def test_a_file_is_replaced_and_no_scratch_is_left(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    for data in (b"first", b"", b"x" * 100_000):
        write_atomically(path, data)
        assert path.read_bytes() == data
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("failing", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_the_old_file_stays_where_writing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, error: BaseException
) -> None:
    path = tmp_path / "state.pt"
    write_atomically(path, b"good")

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(type(error)):
        write_atomically(path, b"half of it")
    assert path.read_bytes() == b"good"
    assert list(tmp_path.iterdir()) == [path]


def test_the_folder_is_flushed_after_the_renaming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[tuple[bool, bool]] = []
    path, fsync = tmp_path / "state.pt", os.fsync

    def watch(handle: int) -> None:
        flushed.append((stat.S_ISDIR(os.fstat(handle).st_mode), path.exists()))
        fsync(handle)
        if flushed[-1][0]:
            raise OSError(22, "this file system flushes no folder")

    monkeypatch.setattr(os, "fsync", watch)
    write_atomically(path, b"good")
    assert flushed == [(False, False), (True, True)]
    assert path.read_bytes() == b"good"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_an_os_error(tmp_path: Path) -> None:
    """A scratch file that is a link to the device that is always full: the write itself fails."""
    path = tmp_path / "state.pt"
    write_atomically(path, b"good")
    (tmp_path / ".state.pt.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, torch_bytes({"x": torch.ones(1000)}))
    assert path.read_bytes() == b"good"
    assert Path("/dev/full").exists()
    assert list(tmp_path.iterdir()) == [path]


def test_torch_bytes_are_read_back_without_pickle(tmp_path: Path) -> None:
    state = {"step": 3, "best": -float("inf"), "list": [1.5], "x": torch.arange(3), "h": torch.ones(1).half()}
    write_atomically(tmp_path / "s.pt", torch_bytes(state))
    got = torch.load(tmp_path / "s.pt", weights_only=True)
    assert (got["step"], got["best"], got["list"]) == (3, -float("inf"), [1.5])
    assert torch.equal(got["x"], state["x"])
    assert got["h"].dtype == torch.float16


# ------------------------------------------------------------------------------------------------ seeds
def test_seeds_depend_on_every_part_its_type_and_its_place() -> None:
    parts = [(), (0,), ("0",), (0, 0), ("00",), (1, 0), (0, 1), ("a", "b"), ("b", "a"), ("ab",), ("a", "", "b")]
    seeds = [derive_seed(*p) for p in parts]
    assert len(set(seeds)) == len(parts)
    assert all(0 <= s < 2**63 for s in seeds)
    grid = {derive_seed(seed, i) for seed, i in itertools.product(range(60), range(60))}
    assert len(grid) == 3600  # where seed * (i + 17) + i collides


def test_generators_are_repeatable_and_their_own() -> None:
    before = torch.get_rng_state()
    first, again, other = (torch.rand(5, generator=generator(*p)) for p in ((1, "x"), (1, "x"), (1, "y")))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_initialisation_is_seeded_inside_the_block_only() -> None:
    before = torch.get_rng_state()
    weights = []
    for seed in (1, 1, 2):
        with seeded_initialisation(seed):
            weights.append(nn.Linear(3, 3).weight)
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert torch.equal(torch.get_rng_state(), before)


# ------------------------------------------------------------------------------------------------ the loop
def test_all_callbacks_are_called_before_a_run_stops(
    laboratory: Callable[..., SimpleNamespace], clouds: Callable[..., dict[str, Samples]]
) -> None:
    lab = laboratory(lambda: nn.Linear(4, 3), clouds(3, 5))
    strategy = fedavg(lab.task, seed=0, rounds=5, fraction=1.0)
    calls: list[tuple[str, int]] = []

    def stop(_strategy: object, _round: object, metrics: dict[str, int]) -> bool:
        calls.append(("stop", metrics["step"]))
        return metrics["step"] == 2

    def watch(_strategy: object, _round: object, metrics: dict[str, int]) -> None:
        calls.append(("watch", metrics["step"]))

    result = run(strategy, lab.engine, callbacks=[stop, watch])
    assert calls == [("stop", 1), ("watch", 1), ("stop", 2), ("watch", 2)]
    assert torch.equal(result.parameters, strategy.result().parameters)
    run(strategy, lab.engine)
    assert strategy.step == 5
    assert torch.equal(run(strategy, lab.engine).parameters, strategy.result().parameters)  # done: nothing more
    assert strategy.step == 5
