"""What the commands print: tables of runs, comparisons, reports, data."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fne.watch.tables import markdown_bytes, markdown_table, read_summary
from tests.cli.parts import QUIET, SHORT, read_summary_file


def test_train_prints_table_folder_and_tensorboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prints: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    text = prints("train", *SHORT, "--seeds", "0-1", "wire=tensors")
    assert re.search(r"bytes a node over the run *\n(.*\n)+?fne_toy .* kB .* 0 B +0 .* B", text)
    assert re.search(r"fne_toy +fne +\d+\.\d ± \d+\.\d %", text), "two seeds are one row"
    assert "run folder: runs/fne_toy-s0\nrun folder: runs/fne_toy-s1\n" in text
    assert "tensorboard --logdir runs\n" in text
    seeds = [read_summary_file(Path("runs") / f"fne_toy-s{seed}")["seed"] for seed in (0, 1)]
    assert seeds == [0, 1]
    text = prints("train", *SHORT, "--no-bytes")
    assert "bytes a node" not in text
    assert "run folder: runs/fne_toy-s0-2\n" in text, "a taken name gets a number"
    text = prints("train", "fne_toy", *QUIET, "--stop-after", "2", "--out", "[b]")
    assert "run folder: [b]  stopped after step 2\ngo on with: fne train --resume [b]\n" in text
    assert "82.0 %" not in text
    assert "30" in prints("train", "--resume", "[b]", "-q")


def test_compare_prints_one_table(tmp_path: Path, prints: Any, fails: Any) -> None:
    (tmp_path / "avg.yaml").write_text(
        "data: {name: toy, nodes: 6}\nmodel: logistic\nstrategy: {name: fedavg, rounds: 2}\n"
    )
    both = ("fne_toy", str(tmp_path / "avg.yaml"))
    text = prints("compare", *both, "strategy.rounds=2", *QUIET, "--out", str(tmp_path / "runs"), "--seeds", "0-1")
    assert text.count("evalu-") == text.count("looked at once") == text.count("bytes a node") == 1
    assert len(re.findall(r"^fne_toy .*\n^avg ", text, re.MULTILINE)) == 2, "in each table"
    runs = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert runs == ["avg-s0", "avg-s1", "fne_toy-s0", "fne_toy-s1"]
    for key, value in (("seed", 1), ("data", "{name: toy, nodes: 5}")):
        mine = tmp_path / "other.yaml"
        mine.write_text(
            (tmp_path / "avg.yaml").read_text() + f"seed: {value}\n"
            if key == "seed"
            else f"data: {value}\nmodel: logistic\nstrategy: {{name: fedavg, rounds: 2}}\n"
        )
        error = fails("compare", "fne_toy", str(mine), *QUIET, "--out", str(tmp_path / "refused"))
        assert "do not share one partition" in error
        assert ("seed: 0 -> 1" if key == "seed" else "data.nodes: 6 -> 5") in error
        assert not (tmp_path / "refused").exists()
    assert prints("compare", "fne_toy", str(mine), "data.nodes=6", *QUIET, "--out", str(tmp_path / "mended"))


def test_report(tmp_path: Path, prints: Any, fails: Any) -> None:
    folders = [str(tmp_path / f"run{seed}") for seed in (0, 1)]
    for seed, folder in enumerate(folders):
        prints("train", *SHORT, f"seed={seed}", "--out", folder)
    picture = tmp_path / "curves.png"
    text = prints("report", *folders, "--curves", str(picture), "--x", "bytes")
    assert "n = 2" in text or "±" in text
    with Image.open(picture) as image:
        assert image.format == "PNG"
        assert min(image.size) > 300
    first, second = (table([read_summary(Path(folders[0]))]) for table in (markdown_table, markdown_bytes))
    assert prints("report", folders[0], "--markdown") == f"{first}\n{second}\n"
    assert prints("report", folders[0], "--markdown", "--no-bytes") == f"{first}\n"
    pooled = str(tmp_path / "pooled")
    assert "bytes a node" not in prints("train", *SHORT, "strategy=centralised", "strategy.rounds=1", "--out", pooled)
    assert prints("report", pooled, "--markdown") == f"{markdown_table([read_summary(Path(pooled))])}\n"
    prints("train", *SHORT, "--out", str(tmp_path / "part"), "--stop-after", "1")
    assert "has not finished" in fails("report", str(tmp_path / "part"))


def test_data_show(tmp_path: Path, prints: Any, plugin: Any) -> None:
    picture = tmp_path / "[bold]data.png"
    text = prints("data", "show", "fne_toy", "data.nodes=4", "data.partition=shards", "--out", str(picture))
    rows = re.findall(r"^(node-\d+|all) +(\d+) +(\d+) +(\d+) +(\d+)$", text, re.MULTILINE)
    counts = np.array([[int(cell) for cell in row[1:]] for row in rows])
    assert [row[0] for row in rows] == ["node-000", "node-001", "node-002", "node-003", "all"]
    assert (counts[:-1].sum(0) == counts[-1]).all()
    assert (counts[:, :3].sum(1) == counts[:, 3]).all()
    assert counts[-1, 3] == 400
    assert f"picture: {picture}" in text
    with Image.open(picture) as image:
        assert np.asarray(image.convert("L")).std() > 1, "there is something on it"
    text = prints("data", "show", plugin(), "--out", str(tmp_path / "mine.png"))
    assert "mine: made up" in text
