"""What the command prints to terminals that cannot show all characters, to a closed pipe, to a full disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fne.cli.main import main
from fne.run.train import train

COMMANDS = [
    ["train", "fne_toy", "-q", "strategy.rounds=2", "--seeds", "0-1"],
    ["compare", "-q", "fne_toy", "fne_toy", "strategy.rounds=2", "name=é", "--seeds", "0-1", "--out", "both"],
    ["report", "runs/fne_toy-s0", "runs/fne_toy-s1"],
    ["report", "runs/fne_toy-s0", "runs/fne_toy-s1", "--markdown"],
    ["list"], ["show", "strategy", "fne"], ["show", "config", "fne_toy"],
    ["data", "show", "fne_toy"], ["data", "check", "fne_toy"], ["--help"], ["report", "--help"],
]  # fmt: skip
CODE = """
import json, sys
from fne.cli.main import main
from fne.run.train import train
for arguments in json.loads(sys.argv[1]):
    print("####", flush=True)
    status = main(arguments)
    assert status == (2 if arguments[0] == "compare" else 0), (arguments[0], status)
"""


@pytest.mark.parametrize(
    "environment",
    [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}],
    ids=["ascii", "C"],
)
def test_every_command_prints_to_every_terminal(environment: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(COMMANDS)], env={**os.environ, **environment}, cwd=tmp_path,
        capture_output=True, timeout=300, check=False,
    )  # fmt: skip
    text, errors = done.stdout.decode("ascii"), done.stderr.decode("ascii")
    assert done.returncode == 0, errors
    assert "Traceback" not in errors
    assert "command line: name = " in errors
    outputs = text.split("####\n")[1:]
    assert len(outputs) == len(COMMANDS)
    header = ["run", "method", "test", "major-", "best", "last", "rounds", "evalu-", "down", "up", "time"]
    for output in (outputs[0], outputs[2]):
        words = output.split("bytes a node")[0].replace("|", " ").split()
        assert [word for word in header if word not in words] == [], "no column is lost"
        assert "+-" in output
    rows = [line for line in outputs[3].splitlines() if line.startswith("| fne_toy |")]
    assert [row.count("|") for row in rows] == [14, 12]
    assert all(" +- " in row for row in rows)


def test_a_reader_that_has_gone_is_no_fault(tmp_path: Path) -> None:
    for words in (["list"], ["show", "config", "fne_toy"], ["--help"]):
        process = subprocess.Popen(
            [sys.executable, "-m", "fne.cli.main", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path
        )
        assert process.stdout is not None
        process.stdout.close()
        _, errors = process.communicate(timeout=120)
        assert (process.returncode, errors) == (141, b"")


def test_a_run_goes_on_where_nobody_reads_of_it(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "fne.cli.main", "train", "fne_toy", "strategy.rounds=3", "--out", "run"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=tmp_path,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=120) == 141
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 3


def test_output_that_has_no_room_is_told_without_a_traceback(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fne.cli.main", "list"], stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path
        )
    assert done.returncode == 2
    assert done.stderr == ("fne: cannot write the output: No space left on device; make room or send it elsewhere\n")


def test_streams_are_as_before_once_the_command_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout.errors, sys.stderr.errors
    assert main(["show", "config", "fne_toy"]) == 0
    assert (sys.stdout.errors, sys.stderr.errors) == before
    assert "fne_toy" in capsys.readouterr().out


# ------------------------------------------------------------------------------------------------ no files unasked
@pytest.mark.parametrize(
    "words",
    [
        ["--help"], ["list"], ["show", "model", "cnn"], ["show", "config", "fne_toy"], ["data", "show", "fne_toy"],
        ["data", "check", "fne_toy"], ["data", "check", "fne_toy", "--json"], ["report", "{run}"],
        ["report", "{run}", "--markdown"], ["train", "fne_toy", "strategy.rounds=0"],
        ["train", "fne_toy", "data.nodes=401"],
        ["train", "--resume", "{run}"], ["data", "show", "fne_nowhere"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_nothing_is_written_into_the_current_folder_unasked(
    words: list[str], finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    main([word.format(run=finished) for word in words])
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished run."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    train("fne_toy", ["strategy.rounds=1", "watch.tensorboard=false"], out=folder)
    return folder


@pytest.mark.parametrize("command", ["show", "check"])
def test_a_picture_is_drawn_where_it_is_asked_for(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["data", command, "fne_toy", "--out", "mine.png"]) == 0
    assert "picture: mine.png\n" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["mine.png"]
    assert Path("mine.png").read_bytes().startswith(b"\x89PNG")
