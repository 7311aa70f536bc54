"""A run that was stopped, killed or starved of disk goes on to the same bits; what cannot go on says why."""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fne.cli.main import main
from fne.core.errors import CheckpointError, FneError
from fne.core.files import read_torch
from fne.run.checkpoint import read_checkpoint
from fne.run.train import train
from fne.watch.history import read_history
from tests import processes

TOY = {"name": "toy", "nodes": 6}
DIGITS = {"name": "mnist", "edition": "small", "nodes": 10}
FNE = {
    "name": "fne", "population": 12, "parents": 4, "subset_size": 2, "mutation": "mixed", "elites": 1,
    "stagnation_window": 3, "rounds": 17,
}  # fmt: skip
METHODS: dict[str, dict[str, Any]] = {
    "fne": {"data": TOY, "model": "logistic", "strategy": FNE},
    "fne on digits": {"data": DIGITS, "model": "logistic", "strategy": {**FNE, "population": 8, "rounds": 11}},
    "fne, dealt, one by one": {
        "data": TOY, "model": {"name": "mlp", "hidden": [5]},
        "strategy": {**FNE, "deal": True, "returns": "last", "mutation": "multiply"}, "evaluation": {"path": "loop"},
    },
    "fne, as lineage": {"data": TOY, "model": "logistic", "strategy": FNE, "wire": "lineage"},
    "es, as lineage": {
        "data": TOY, "model": "logistic", "wire": "lineage",
        "strategy": {"name": "es", "rounds": 17, "population": 10, "subset_size": 2},
    },
    "fedavg": {
        "data": {**TOY, "partition": "shards"}, "model": {"name": "mlp", "hidden": [8]},
        "strategy": {"name": "fedavg", "rounds": 17, "fraction": 0.4, "momentum": 0.5, "lr_decay": 0.99},
    },
    "fedavg on digits": {
        "data": DIGITS, "model": "logistic", "strategy": {"name": "fedavg", "rounds": 11, "returns": "best"},
    },
    "centralised, adadelta": {
        "data": TOY, "model": {"name": "mlp", "hidden": [8]}, "strategy": {"name": "centralised", "rounds": 17},
    },
}  # fmt: skip
NOT_COMPARED = {"folder", "seconds", "wall_seconds", "cpu_seconds", "cpu_seconds_total"}


def config(method: str, **watch: Any) -> dict[str, Any]:
    """Return the settings of a run: thinned history, checkpoints that do not divide the horizon."""
    seen = {"every": 3, "checkpoint_every": 4, "tensorboard": False, **watch}
    return {"name": "run", "seed": 3, "engine": {"threads": 1}, **METHODS[method], "watch": seen}


def long(method: str, rounds: int = 110) -> dict[str, Any]:
    """Return settings of a run that lasts long enough to be hit."""
    changed = config(method, every=1, checkpoint_every=3)
    return {**changed, "strategy": {**changed["strategy"], "rounds": rounds}}


def fingerprint(folder: Path) -> dict[str, Any]:
    """Return everything of a finished run that must not depend on how often it was stopped."""
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["model_sha256"] == hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    return {
        "summary": {key: value for key, value in summary.items() if key not in NOT_COMPARED},
        "history": [{k: v for k, v in line.items() if k not in NOT_COMPARED} for line in read_history(folder)],
    }


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return `undisturbed(settings) -> fingerprint`, each run once."""
    known: dict[str, dict[str, Any]] = {}

    def undisturbed(settings: dict[str, Any]) -> dict[str, Any]:
        key = json.dumps(settings, sort_keys=True)
        if key not in known:
            folder = tmp_path_factory.mktemp("reference") / "run"
            train(settings, out=folder)
            known[key] = fingerprint(folder)
        return known[key]

    return undisturbed


# ------------------------------------------------------------------------------------------------ clean stops
@pytest.mark.parametrize("method", METHODS)
def test_clean_stops_leave_no_trace(method: str, tmp_path: Path, reference: Any) -> None:
    settings, folder = config(method), tmp_path / "run"
    whole = reference(settings)
    horizon = settings["strategy"]["rounds"]
    assert [line["step"] for line in whole["history"]] == [
        step for step in range(1, horizon + 1) if step == 1 or step % 3 == 0 or step == horizon
    ]
    stopped = train(settings, out=folder, stop_after=1)
    assert stopped == {
        "name": "run", "seed": 3, "steps": 1, "folder": str(folder), "finished": False, "interrupted": False,
    }  # fmt: skip
    for stop in (5, 5, 4, 8, horizon - 1):  # twice the same, one that is past, one with a checkpoint of its own
        steps = train(None, resume=folder, stop_after=stop)["steps"]
        assert steps == max(stop, 5)
        assert read_checkpoint(folder / "checkpoint.pt")["step"] == steps
        assert read_history(folder)[-1]["step"] == steps, "the last step is written, thinned or not"
    finished = train(None, resume=folder)
    assert fingerprint(folder) == whole
    assert len(list((folder / "nodes").glob("step-*"))) <= 2
    assert train(None, resume=folder) == finished, "a finished run is told, not repeated"


@pytest.mark.parametrize("method", ["fne", "fedavg", "centralised, adadelta"])
def test_a_stop_at_any_step_gives_the_same(method: str, tmp_path: Path, reference: Any) -> None:
    settings = config(method)
    for stop in random.Random(method).sample(range(2, 17), 4):
        train(settings, out=tmp_path / str(stop), stop_after=stop)
        train(settings, resume=tmp_path / str(stop))  # with its config, which has threads and paths unresolved
        assert fingerprint(tmp_path / str(stop)) == reference(settings)


def test_nodes_keep_their_optimizer_over_a_stop(tmp_path: Path) -> None:
    settings, folder = config("centralised, adadelta"), tmp_path / "run"
    train(settings, out=folder, stop_after=6)
    memory = read_torch(folder / "nodes" / "step-000000006.pt")
    steps = [value for name, value in memory["nodes"]["all"].items() if name.endswith(".step")]
    assert steps, "AdaDelta counts its steps"
    assert all(int(value) == 6 * 7 for value in steps), "6 epochs of ceil(400 / 64) batches"
    train(None, resume=folder)


def test_what_is_watched_may_change(tmp_path: Path, reference: Any) -> None:
    settings, folder = config("centralised, adadelta"), tmp_path / "run"
    train(settings, out=folder, stop_after=6)
    train(None, ["watch.checkpoint_every=1", "watch.champions=5"], resume=folder)
    assert fingerprint(folder) == reference(settings)
    assert sorted(path.name for path in (folder / "champions").iterdir()) == [
        f"step-{step:09d}.safetensors" for step in (10, 15)
    ]


def test_a_target_reached_before_a_kill_still_ends_the_run(tmp_path: Path, reference: Any) -> None:
    settings, folder = config("fne", target=0.6, checkpoint_every=1), tmp_path / "run"
    whole = reference(settings)
    assert 1 < whole["summary"]["steps"] < 17
    train(settings, out=folder)
    for name in ("summary.json", "model.safetensors"):  # a kill after the last checkpoint
        (folder / name).unlink()
    train(None, resume=folder)
    assert fingerprint(folder) == whole


def test_a_run_that_ended_at_a_target_goes_on_to_a_higher_one(tmp_path: Path, reference: Any) -> None:
    low, high, never = (config("fne", target=target) for target in (0.4, 0.6, 1.0))
    folder = tmp_path / "run"
    ended = train(low, out=folder)
    assert train(None, resume=folder) == train(None, ["watch.target=0.3"], resume=folder) == ended
    steps = [reference(settings)["summary"]["steps"] for settings in (low, high, never)]
    assert ended["steps"] == steps[0] < steps[1] < steps[2] == 17
    part = train(None, ["watch.target=0.6"], resume=folder, stop_after=ended["steps"])
    assert not part["finished"], "neither is the folder, for a process that is killed now"
    assert not [name for name in ("summary.json", "model.safetensors") if (folder / name).exists()]
    train(None, resume=folder)
    assert fingerprint(folder) == reference(high)
    train(None, ["watch.target=1.0"], resume=folder)
    assert fingerprint(folder) == reference(never)
    last = (folder / "summary.json").read_bytes()
    train(None, ["watch.target=null"], resume=folder)
    assert (folder / "summary.json").read_bytes() == last, "it came to its own end"


def test_a_resume_that_is_refused_leaves_the_results(tmp_path: Path) -> None:
    settings, folder = config("fne", target=0.4, checkpoint_every=1), tmp_path / "run"
    train(settings, out=folder)
    kept = {name: (folder / name).read_bytes() for name in ("summary.json", "model.safetensors", "config.yaml")}
    (folder / "history.jsonl").rename(tmp_path / "history.jsonl")
    with pytest.raises(CheckpointError, match=r"history\.jsonl is missing"):
        train(None, ["watch.target=0.9"], resume=folder)
    assert {name: (folder / name).read_bytes() for name in kept} == kept


def test_a_broken_summary_is_made_again(tmp_path: Path) -> None:
    settings, folder = config("fne"), tmp_path / "run"
    before = train(settings, out=folder)
    (folder / "summary.json").write_text("{")
    assert train(None, resume=folder)["model_sha256"] == before["model_sha256"]
    assert fingerprint(folder)


# ------------------------------------------------------------------------------------------------ processes
CALL = "import sys, fne.cli.main; sys.exit(fne.cli.main.main(arguments))"


BEFORE = (
    "torch._dynamo",  # which optimizers import
    "fne.cli.main", "fne.run.train", "fne.run.learning_run", "fne.watch.tables", "fne.watch.tensorboard",
    "fne.data.toy", "fne.data.mnist", "fne.engines.local", "fne.models.logistic", "fne.models.mlp",
    "fne.strategies.centralised", "fne.strategies.fedavg", "fne.strategies.fne",
    "tensorboard.summary.writer.record_writer",
)  # fmt: skip


@pytest.fixture(scope="module")
def start() -> Iterator[Callable[..., Any]]:
    """Return `start(code, **names) -> process`: forked from a server that has imported torch already."""
    context = multiprocessing.get_context("forkserver")
    for name in BEFORE:
        importlib.import_module(name)  # the server passes over what is not there, and each process imports it then
    context.set_forkserver_preload([*BEFORE])
    started = []

    def run(code: str, **names: Any) -> Any:
        process = context.Process(target=exec, args=(code, names))
        started.append(process)
        process.start()
        return process

    yield run
    for process in started:
        process.kill()
        process.join()


def lines(folder: Path) -> int:
    try:
        return (folder / "history.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def kill_when(process: Any, ready: Callable[[], bool], number: int = signal.SIGKILL, pause: float = 0.001) -> None:
    """Send the signal as soon as `ready` holds, or let the process end; at most a minute."""
    end = time.monotonic() + 60
    while not ready() and process.is_alive() and time.monotonic() < end:
        time.sleep(pause)
    if process.is_alive():
        os.kill(process.pid, number)
    process.join(60)
    assert process.exitcode is not None


@pytest.mark.parametrize("method", ["fne", "fne on digits", "fedavg", "centralised, adadelta"])
def test_kill_at_random_steps(method: str, tmp_path: Path, start: Any, reference: Any) -> None:
    settings, folder = long(method), tmp_path / "run"
    killed = 0
    for line in sorted(random.Random(f"kill {method}").sample(range(1, 90), 2)):
        wanted = {"config": None, "resume": folder} if lines(folder) else {"config": settings, "out": folder}
        process = start("import fne; fne.train(**wanted)", wanted=wanted)
        kill_when(process, lambda line=line: lines(folder) >= line)
        killed += process.exitcode == -signal.SIGKILL
    assert killed >= 1
    train(None, resume=folder)
    assert fingerprint(folder) == reference(settings)


CRASH = """
import os, pathlib, signal
import fne

def crashing(call):
    def counted(*arguments, **named):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments, **named)
    return counted

for name in ("fsync", "replace", "unlink"):
    setattr(os, name, crashing(getattr(os, name)))
fne.train(**wanted)
"""


def test_kill_at_every_point_of_a_checkpoint(tmp_path: Path, start: Any, reference: Any) -> None:
    """Cut the run at the 0th, 1st, 2nd ... call that changes the disk; each time it must go on to the same end."""
    settings = config("centralised, adadelta", checkpoint_every=1)
    settings = {**settings, "strategy": {**settings["strategy"], "rounds": 3}}
    whole = reference(settings)
    left, states = 0, set()
    while True:
        folder = tmp_path / str(left)
        process = start(CRASH, left=left, wanted={"config": settings, "out": folder})
        process.join(60)
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        states.add(tuple(sorted(path.name for path in folder.rglob("*") if path.name.endswith(".tmp"))))
        if (folder / "config.yaml").exists():
            train(None, resume=folder)
            assert fingerprint(folder) == whole, left
            assert not list(folder.glob(".checkpoint*"))
        left += 1
    assert left > 15
    assert (".checkpoint.pt.tmp",) in states, "one was inside a checkpoint's write"
    assert (".step-000000002.pt.tmp",) in states, "one was inside the nodes' part of it"


def test_kill_inside_a_large_write(tmp_path: Path, start: Any, reference: Any) -> None:
    settings = {
        **config("fne", checkpoint_every=1), "model": {"name": "mlp", "hidden": [200, 200]},
        "strategy": {**FNE, "population": 100, "rounds": 8},
    }  # fmt: skip
    folder, scratch = tmp_path / "run", tmp_path / "run" / ".checkpoint.pt.tmp"
    for _ in range(6):
        wanted = {"config": None, "resume": folder} if lines(folder) else {"config": settings, "out": folder}
        process = start("import fne; fne.train(**wanted)", wanted=wanted)
        started = lines(folder)
        kill_when(process, lambda seen=started: lines(folder) > seen and scratch.exists(), pause=0)
        if scratch.exists() or process.exitcode == 0:
            break
    assert scratch.exists(), "no kill fell into a write of 18 MB"
    train(None, resume=folder)
    assert not scratch.exists()
    assert fingerprint(folder) == reference(settings)


def test_processes_at_once_give_the_same(tmp_path: Path, start: Any, reference: Any) -> None:
    settings = config("fne on digits")
    processes = [
        start("import fne; fne.train(**wanted)", wanted={"config": settings, "out": tmp_path / name}) for name in "abc"
    ]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert [fingerprint(tmp_path / name) for name in "abc"] == [reference(settings)] * 3


FULL = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
sys.stdout = sys.stderr = open(log, "w", buffering=1)
"""


@pytest.mark.parametrize(("victim", "spare"), [("checkpoint.pt", -100), ("history.jsonl", 100)])
def test_full_disk(victim: str, spare: int, tmp_path: Path, start: Any, reference: Any) -> None:
    """A file may not grow beyond the limit, which is what a full disk looks like to the run."""
    settings = config("fne", every=1)
    settings = {**settings, "strategy": {**FNE, "rounds": 40, "population": 4 if victim == "history.jsonl" else 12}}
    folder, log = tmp_path / "run", tmp_path / "log"
    train(settings, out=folder, stop_after=14)
    good = (folder / "checkpoint.pt").read_bytes()
    limit = (folder / victim).stat().st_size + spare
    if victim == "history.jsonl":
        limit = max(limit, len(good) + 100)
    process = start(FULL + CALL, limit=limit, log=str(log), arguments=["train", "--resume", str(folder)])
    process.join(60)
    text = log.read_text()
    assert process.exitcode == 2, text
    assert [line for line in text.splitlines() if not line.startswith("run seed 3: step")] == [
        line for line in text.splitlines() if line.startswith("fne: cannot write ")
    ], "one message, of no thread another"
    assert text.count("File too large") == 1
    assert "--resume" in text
    assert read_checkpoint(folder / "checkpoint.pt")["step"] >= 14
    assert victim == "history.jsonl" or (folder / "checkpoint.pt").read_bytes() == good
    assert not list(folder.rglob("*.tmp"))
    train(None, resume=folder)
    assert fingerprint(folder) == reference(settings)


def test_interrupt_finishes_the_step_and_ends_the_command(tmp_path: Path, reference: Any) -> None:
    settings = long("fne", rounds=100_000)
    (tmp_path / "mine.yaml").write_text(json.dumps(settings))
    folder = tmp_path / "runs" / "run-s0"
    with processes.Process(["-m", "fne.cli.main", "train", "mine.yaml", "--seeds", "0-1"], cwd=tmp_path) as process:
        end = time.monotonic() + 60
        while lines(folder) < 8 and process.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
        out, error = process.out(), process.err()
    assert process.returncode == 130, error
    assert "Traceback" not in error
    steps = read_checkpoint(folder / "checkpoint.pt")["step"]
    assert read_history(folder)[-1]["step"] == steps
    assert f"stopped after step {steps}" in out
    assert "fne train --resume runs/run-s0" in out
    assert not (tmp_path / "runs" / "run-s1").exists(), "Ctrl-C ends the command, not one of its runs"
    train(None, resume=folder, stop_after=steps + 5)
    assert [line["step"] for line in read_history(folder)] == list(range(1, steps + 6))


def test_a_full_disk_at_the_events_is_told_once(tmp_path: Path) -> None:
    command = f"ulimit -f 13; exec {sys.executable} -m fne.cli.main train fne_toy -q --out run"  # blocks of 1024 bytes
    full = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert full.returncode == 2
    assert full.stderr.startswith("fne: cannot write run/events.out.tfevents."), full.stderr
    assert full.stderr.endswith(": File too large; make room or mend the folder, then go on from the last checkpoint "
                                "(--resume)\n")  # fmt: skip
    assert full.stderr.count("\n") == 1, "of no thread another"
    assert main(["train", "-q", "--resume", str(tmp_path / "run")]) == 0


@pytest.mark.parametrize(
    "victim",
    ["config.yaml", "nodes/step-000000004.pt", "checkpoint.pt", "champions/step-000000006.safetensors",
     "model.safetensors", "summary.json"],
)  # fmt: skip
def test_a_disk_that_is_full_at_one_file(
    victim: str, tmp_path: Path, reference: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The device `/dev/full` answers each write as a full disk does; the run writes beside its files first."""
    settings, folder = config("fne", champions=6), tmp_path / "run"
    scratch = (folder / victim).with_name(f".{Path(victim).name}.tmp")
    scratch.parent.mkdir(parents=True)
    scratch.symlink_to("/dev/full")
    (tmp_path / "run.json").write_text(json.dumps(settings))
    words = ["train", str(tmp_path / "run.json"), "--quiet", "--out", str(folder)]
    assert main(words) == 2
    assert capsys.readouterr().err == (
        f"fne: cannot write {folder / victim}: No space left on device; make room or mend the folder, then go on from "
        f"the last checkpoint: fne train --resume {folder}\n"
    )
    assert not list(folder.rglob("*.tmp"))
    assert main(words if victim == "config.yaml" else ["train", "--quiet", "--resume", str(folder)]) == 0
    assert fingerprint(folder) == reference(settings)


# ------------------------------------------------------------------------------------------------ refusals
def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that was stopped after step 6."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    train(config("centralised, adadelta"), out=folder, stop_after=6)
    return folder


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("strategy.rounds=18", "strategy.rounds: 17 -> 18"),
        ("model=logistic", "model.name: 'mlp' -> 'logistic'"),
        ("model.hidden=[9]", "model.hidden: [8] -> [9]"),
        ("strategy.lr=0.5", "strategy.lr: 1.0 -> 0.5"),
        ("strategy=fedavg", "strategy.name: 'centralised' -> 'fedavg'"),
        ("seed=4", "seed: 3 -> 4"),
        ("data.noise=0.1", "data.noise: 0.4 -> 0.1"),
        ("engine.threads=2", "engine.threads: 1 -> 2"),
    ],
)
def test_resume_with_other_settings_is_refused(
    override: str, said: str, stopped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(stopped)
    assert main(["train", override, "--resume", str(stopped), "-q"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "start a new run" in error
    assert "Traceback" not in error
    assert contents(stopped) == before


def refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the error of a resume that must not go on, nor change what is there."""
    before = contents(folder)
    assert main(["train", "--resume", str(folder), "-q"]) == 2
    assert contents(folder) == before
    error = capsys.readouterr().err
    assert error.startswith("fne: ")
    return error


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"strategy": {"name": "centralised", "rounds": 18}}, "horizon: 18 in the checkpoint, 17 in this run"),
        ({"model": "logistic"}, "model: "),
        ({"seed": 4}, "seed: 4 in the checkpoint, "),
    ],
)
def test_checkpoint_of_another_run(
    changed: dict[str, Any], said: str, stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other, folder = tmp_path / "other", tmp_path / "run"
    train({**config("centralised, adadelta"), **changed}, out=other, stop_after=6)
    shutil.copytree(stopped, folder)
    shutil.copy(other / "checkpoint.pt", folder / "checkpoint.pt")
    error = refused(folder, capsys)
    assert "belongs to another run" in error
    assert said in error


def flipped(data: bytes) -> bytes:
    """Return the file with one bit changed in its largest tensor, where a pickle would not notice."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        largest = max(file.infolist(), key=lambda entry: entry.file_size)
    head = largest.header_offset
    name, extra = (int.from_bytes(data[head + place : head + place + 2], "little") for place in (26, 28))
    at = head + 30 + name + extra + largest.file_size // 2
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[: len(data) // 3],
    "end missing": lambda data: data[:-1],
    "empty": lambda data: b"",
    "text": lambda data: b"not a checkpoint\n" * 100,
    "one bit": flipped,
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("part", ["checkpoint.pt", "nodes/step-000000006.pt"])
def test_damaged_checkpoint(
    part: str, damage: str, stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(stopped, folder)
    (folder / part).write_bytes(DAMAGE[damage]((folder / part).read_bytes()))
    assert str(folder / part) in refused(folder, capsys)


def test_missing_parts(stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, said in {
        "nodes/step-000000006.pt": "nodes' memory of step 6 is missing", "history.jsonl": "history.jsonl is missing",
        "config.yaml": "no run to resume there",
    }.items():  # fmt: skip
        folder = tmp_path / Path(name).stem
        shutil.copytree(stopped, folder)
        (folder / name).unlink()
        assert said in refused(folder, capsys)


def test_a_checkpoint_holds_data_only(stopped: Path, tmp_path: Path) -> None:
    torch.load(stopped / "checkpoint.pt", weights_only=True)
    torch.save({"format": 99}, tmp_path / "later.pt")
    with pytest.raises(CheckpointError, match="format 99"):
        read_checkpoint(tmp_path / "later.pt")
    with pytest.raises(FneError, match="give a config"):
        train(None)


def test_a_run_does_not_go_on_with_other_data(tmp_path: Path) -> None:
    plugin = tmp_path / "noise.py"
    text = (
        "import torch\n"
        "from fne.config.registry import register\n"
        "from fne.core.dataset import Dataset, Samples\n"
        '@register("data", "noise")\n'
        "def noise(*, seed: int) -> Dataset:\n"
        '    """Be random."""\n'
        "    x, y = torch.arange(48.0).reshape(12, 4), torch.arange(12) % 2\n"
        "    x[7, 2] = VALUE\n"
        "    parts = [Samples(x[a:b], y[a:b]) for a, b in ((0, 6), (6, 9), (9, 12))]\n"
        '    return Dataset("noise", *parts, ("p", "q"), "split", "source")\n'
    )
    read = "    x[7, 2] = float(__import__('pathlib').Path(__file__).with_suffix('.txt').read_text())\n"
    plugin.write_text(text.replace("    x[7, 2] = VALUE\n", read))
    value = plugin.with_suffix(".txt")
    value.write_text("1.5")
    config = {"data": {"name": "noise", "nodes": 2}, "model": "logistic", "plugins": [str(plugin)],
              "strategy": {"name": "fne", "rounds": 4, "population": 8, "parents": 4}}  # fmt: skip
    train(config, out=tmp_path / "run", stop_after=2, quiet=True)
    value.write_text("1.25")
    with pytest.raises(CheckpointError, match=r"data: '.*' in the checkpoint, '.*' in this run"):
        train(None, resume=tmp_path / "run", quiet=True)
    value.write_text("1.5")
    assert train(None, resume=tmp_path / "run", quiet=True)["finished"]
