"""Secure runs: as plain ones up to the fixed point, nothing secret left behind, settings that fit."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fne.cli.main import main
from fne.config.load import load_config
from fne.core.errors import SettingError
from fne.core.messages import Tensors
from fne.engines.local import LocalEngine
from fne.federation.lineage_codec import LineageCodec
from fne.federation.worker import Worker
from fne.loop import run
from fne.privacy.keystream import Words
from fne.run.learning_run import build
from fne.run.train import train
from fne.secure import encoding, keys, protocol
from fne.secure import node_tasks as secure_tasks
from fne.secure.engine import SecureEngine
from fne.secure.node_tasks import secure_only
from fne.secure.protocol import Offer, Tag
from fne.secure.session import Session
from fne.watch.history import read_history
from tests.secure.parts import A_SUM, KEYS_OF_A_RUN, Tap, fitness


# ------------------------------------------------------------------------------------------------ runs
def config(strategy: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "name": "run", "data": {"name": "toy", "nodes": 6}, "model": "logistic", "strategy": strategy,
        "engine": {"threads": 1}, "watch": {"tensorboard": False}, **more,
    }  # fmt: skip


FNE = {"name": "fne", "population": 12, "parents": 4, "subset_size": 5, "rounds": 9, "mutation": "mixed", "elites": 1}
METHODS: dict[str, dict[str, Any]] = {
    "fne": FNE,
    "fne, some samples": {**FNE, "samples_per_node": 3, "nodes": "moving_window", "window_size": 4},
    "es": {"name": "es", "population": 10, "subset_size": 4, "rounds": 9, "loss": "cross_entropy"},
    "fne, all nodes": {**FNE, "nodes": "all"},
    "snes": {"name": "snes", "population": 10, "subset_size": 4, "rounds": 9},
    "sep_cma": {"name": "sep_cma", "population": 8, "subset_size": 4, "rounds": 9},
    "de": {"name": "de", "population": 6, "subset_size": 4, "rounds": 9},
    "fsi": {"name": "fsi", "population": 6, "rounds": 9},
    "fsi_shared": {"name": "fsi_shared", "population": 6, "rounds": 9},
    "fedavg": {"name": "fedavg", "fraction": 0.7, "rounds": 5},
}
SAME = ("loss_best", "loss_mean", "loss_worst", "accuracy_validation", "loss_validation", "nonfinite", "evaluations")


@pytest.mark.parametrize("method", METHODS)
def test_a_secure_run_is_the_plain_one_up_to_the_fixed_point(method: str, tmp_path: Path) -> None:
    summaries, histories = [], []
    for secured in (False, True):
        folder = tmp_path / str(secured)
        summaries.append(train(config(METHODS[method], secure=secured, wire="auto"), out=folder))
        histories.append(read_history(folder))
    for a, b in zip(*histories, strict=True):
        for name in SAME:
            assert b.get(name) == (pytest.approx(a[name], rel=1e-9) if a.get(name) is not None else None), name
        assert (b["per_node"], b["failures"]) == ({}, {})
        assert (b["participants"], b["samples"]) == (
            len(a["per_node"]),
            sum(n["samples"] for n in a["per_node"].values()),
        )
        assert b["bytes_up"] > a["bytes_up"]
    if method != "fedavg":  # equal selections all along
        assert summaries[0]["model_sha256"] == summaries[1]["model_sha256"]
    assert [s["snapshots"] for s in summaries] == [0, 0]


def test_a_secure_run_goes_on_with_new_keys_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = train(config(FNE, secure=True, wire="lineage"), out=tmp_path / "whole")
    drawn: list[bytes] = []
    fresh = keys.fresh
    monkeypatch.setattr(keys, "fresh", lambda: drawn.append(fresh()) or drawn[-1])
    train(config(FNE, secure=True, wire="lineage"), out=tmp_path / "parts", stop_after=4)
    parts = train(None, resume=tmp_path / "parts")
    assert whole["model_sha256"] == parts["model_sha256"]
    assert len(set(drawn)) == len(drawn) == 2 * 6 + 3 * 5 * 9  # agreements twice; b, r and g of five nodes in nine sums


def test_a_worker_that_needs_a_snapshot_says_so_before_anything_is_masked() -> None:
    """Else the sum of those that could follow, and then that of all, would show the value of one that could not."""
    made = {}
    for secured in (False, True):
        experiment = build(load_config(config(FNE, wire="lineage")))
        if secured:
            secure_only(experiment.worker)
        tap = Tap(LocalEngine(experiment.worker, "run"))
        origin = {"strategy": "fne", "seed": 0, "settings": experiment.config.strategy.settings}
        codec = LineageCodec(
            SecureEngine(tap, experiment.worker.pinned) if secured else tap, experiment.strategy, origin
        )

        def forget(strategy: Any, *_: Any, worker: Worker = experiment.worker) -> None:
            if strategy.step == 3 and worker.replica is not None:
                worker.replica._forget()

        counted: list[int] = []
        run(experiment.strategy, codec, callbacks=[forget, lambda s, r, m, c=counted: c.append(r.traffic.snapshots)])
        made[secured] = (experiment.strategy.result().parameters, counted, tap.tasks)
    assert torch.equal(made[True][0], made[False][0])
    assert made[True][1] == made[False][1]
    assert sum(made[True][1]) == 5
    assert made[True][2] == [*KEYS_OF_A_RUN, *A_SUM * 3, "offer", *A_SUM * 6]


def forms_of(payload: Tensors) -> set[bytes]:
    """Return how a file may hold a node's losses, or its means: floats of 4 and 8 bytes, pickled, and as text."""
    losses, samples = payload["loss"].double().reshape(-1), float(payload["samples"])
    found: set[bytes] = set()
    for number in (*losses.tolist(), *(losses / samples).tolist()):
        if not (number * 2**10).is_integer():  # 0.5 is in many a file
            found |= {struct.pack(form, number) for form in ("<f", "<d", ">d")}
            texts = {repr(number), repr(float(np.float32(number))), str(np.float32(number))}
            found |= {text.encode() for text in texts if len(text) > 7}
    return found


def plant(folder: Path, payload: Tensors) -> Iterator[str]:
    """Write files that leak, in each of the ways in which a run writes numbers; yield their names."""
    loss = payload["loss"]
    means = loss.double() / payload["samples"]
    contents: dict[str, Any] = {"checkpoint": {"loss": loss}, "memory": {"mean": means}, "number": float(means[0])}
    for name, content in contents.items():
        torch.save(content, folder / name)
        yield name
    for name, numbers in {"losses.jsonl": loss, "means.jsonl": means, "short.jsonl": means.float()}.items():
        (folder / name).write_text(json.dumps({"loss": numbers.tolist()}))
        yield name
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(folder / "events") as writer:
        writer.add_scalar("fitness/node", float(means[0]), 0)
    yield next((folder / "events").iterdir()).relative_to(folder).as_posix()


def test_no_secret_and_no_value_of_a_node_is_in_anything_that_a_run_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    secret: list[bytes] = []
    shown: set[str] = set()
    payloads: list[Tensors] = []
    fresh, begin, stream, flatten = keys.fresh, Session.begin, protocol.keystream, encoding.flatten

    def begun(self: Session, tag: Tag, members: Sequence[int], words: Words, *rest: Any) -> Offer:
        secret.extend(word.tobytes() for word in words[(words > 2**20) & (words < 2**63)])
        secret.append(self._agreement._private.private_bytes_raw())
        secret.append(self._identity._private.private_bytes_raw())
        secret.extend(self._secrets.values())
        shown.add(repr(self))
        return begin(self, tag, members, words, *rest)

    def flattened(payload: Tensors, nodes: int, *, clip: bool) -> Words:
        payloads.append(dict(payload))
        return flatten(payload, nodes, clip=clip)

    monkeypatch.setattr(keys, "fresh", lambda: secret.append(fresh()) or secret[-1])
    monkeypatch.setattr(protocol, "keystream", lambda key, *rest: secret.append(key) or stream(key, *rest))
    monkeypatch.setattr(Session, "begin", begun)
    monkeypatch.setattr(secure_tasks, "flatten", flattened)
    watch = {"tensorboard": True, "checkpoint_every": 1, "champions": 2}
    strategy = {**FNE, "rounds": 4, "subset_size": 6}
    summary = train(config(strategy, secure=True, watch=watch, wire="lineage"), out=tmp_path / "run", quiet=False)
    left = {path.name: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert {"checkpoint.pt", "history.jsonl", "summary.json", "config.yaml"} < set(left)
    left["output"] = "".join(capfd.readouterr()).encode()
    everything = b"\0".join(left.values())
    assert summary["model_sha256"].encode() in everything
    assert len(secret) > 6 * 4 * 20
    assert len(payloads) == 6 * 4
    told = set[bytes]().union(*map(forms_of, payloads))
    assert len(told) > 6 * 4 * 12 * 8
    for form in told:
        assert form not in everything
    for name in plant(tmp_path, payloads[5]):  # else the search itself would be blind
        assert any(form in (tmp_path / name).read_bytes() for form in forms_of(payloads[5])), name
    for value in set(secret):
        assert value not in everything
        assert value.hex().encode() not in everything
    assert shown == {"Session(hidden)"}


def test_neither_nodes_nor_errors_show_secrets(lab: SimpleNamespace) -> None:
    lab.secured.send(fitness())
    node = lab.worker.nodes["n0"]
    session = node.secrets.session
    assert "hidden" in repr(node)
    for text in (repr(node), repr(lab.secured), repr(session)):
        assert session._agreement._private.private_bytes_raw().hex() not in text
    with pytest.raises(TypeError, match="stay with the node"):
        torch.save({"node": node}, "/dev/null")


# ------------------------------------------------------------------------------------------------ settings
@pytest.mark.parametrize(
    ("strategy", "nodes", "said"),
    [
        ({"name": "es", "uplink": "ranks", "subset_size": 4}, 6,
         "strategy.uplink = 'ranks': must be fitness with secure sums: levels, ranks and signs of single nodes cannot"),
        ({"name": "es", "uplink": "sign", "subset_size": 4}, 6, "strategy.uplink = 'sign': must be fitness"),
        ({"name": "es", "uplink": "levels", "subset_size": 4}, 6, "strategy.uplink = 'levels': must be fitness"),
        ({"name": "fne", "deal": True}, 6, "strategy.deal = true: must be false with secure sums: each group of nodes"),
        ({"name": "fne"}, 6, "strategy.subset_size = 1: must be at least 4 with secure sums"),
        ({"name": "es", "subset_size": 3}, 6, "strategy.subset_size = 3: must be at least 4 with secure sums"),
        ({"name": "fne", "nodes": "moving_window", "window_size": 3}, 6, "strategy.window_size = 3: must be at least"),
        ({"name": "fne", "nodes": "single_sample"}, 6, "strategy.nodes = 'single_sample': must be random_subset,"),
        ({"name": "fedavg", "fraction": 0.5}, 6, "strategy.fraction = 0.5: must be so large that at least 4 nodes"),
        ({"name": "fsi"}, 3, "data.nodes = 3: must be at least 4 with secure sums"),
        ({"name": "fne", "nodes": "all"}, 1, "data.nodes = 1: must be at least 4 with secure sums"),
        ({"name": "centralised"}, 6, "secure = true: must be false with a method that is not federated"),
    ],
)  # fmt: skip
def test_what_cannot_go_together_is_told_by_its_key(
    strategy: dict[str, Any], nodes: int, said: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingError) as caught:
        train(config(strategy, data={"name": "toy", "nodes": nodes}, secure=True), out=tmp_path / "run")
    assert str(caught.value).startswith(said)
    assert not (tmp_path / "run").exists()


def test_a_search_that_needs_single_answers_is_told(tmp_path: Path) -> None:
    words = ["problem=ellipsoid", "problem.nodes=6", "strategy=fdd_ea", "secure=true"]
    with pytest.raises(SettingError, match="secure = true: must be false with a strategy that needs each node's own"):
        train({}, words, out=tmp_path / "run")


def test_the_command_ends_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "fne_toy", "secure=true", "--quiet"]) == 2
    assert "strategy.subset_size = 2: must be at least 4 with secure sums" in capsys.readouterr().err


@pytest.mark.parametrize(("value", "wanted"), [("true", True), ("false", False), ("clip", "clip")])
def test_secure_is_one_of_three(value: str, wanted: object) -> None:
    made = load_config("fne_toy", [f"secure={value}"])
    assert made.secure is wanted or made.secure == wanted == "clip"
    assert load_config(made.to_dict()) == made


@pytest.mark.parametrize("value", ["2", "yes", "null", "[true]"])
def test_secure_is_nothing_else(value: str) -> None:
    with pytest.raises(ValueError, match="must be false, true or 'clip'"):
        load_config("fne_toy", [f"secure={value}"])
