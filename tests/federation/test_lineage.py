"""Candidates sent as their lineage: the same run as with whole models, late and wrong workers, and what it costs."""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fne.config.load import load_config
from fne.config.registry import catalogue
from fne.core.errors import CheckpointError, FneError, RunError, SettingError
from fne.core.messages import Reply, Request, Round, Status
from fne.federation import lineage, wire
from fne.federation.lineage import Replica, digest
from fne.federation.lineage_codec import LineageCodec
from fne.federation.rounds import gather
from fne.federation.worker import Worker
from fne.run.learning_run import LearningRun, build, new_lineage
from fne.run.train import train
from fne.watch.history import read_history

BYTES = ("bytes_", "payload_", "catch_up", "snapshots")
VARIANTS: dict[str, dict[str, Any]] = {
    "fne": {"population": 12, "parents": 4, "mutation": "mixed", "elites": 2},
    "fne, lognormal, tournament": {
        "name": "fne", "population": 12, "parents": 4, "mutation": "lognormal", "sign_flip": 0.1,
        "selection": "tournament", "crossover": "interleave",
    },
    "fne, paper": {"name": "fne", "population": 12, "parents": 4},
    "fne, offset, mean": {"name": "fne", "population": 12, "parents": 4, "mutation": "offset", "crossover": "mean"},
    "es": {"population": 12, "momentum": 0.5, "optimizer": "sgd"},
    "es, adam, raw": {"name": "es", "population": 12, "shape": "raw"},
    "es, sign": {"name": "es", "population": 12, "uplink": "sign"},
    "es, ranks": {"name": "es", "population": 12, "uplink": "ranks", "shape": "utilities"},
    "es, rank 1": {"name": "es", "population": 12, "rank": 1},
    "snes": {"population": 9},
    "sep_cma": {"population": 9},
    "de": {"population": 7},
    "fsi": {"population": 7, "w1": 0.2},
    "fsi, one loss a model": {"name": "fsi", "population": 7, "loss": "bce", "swarms": 2, "changes": "best"},
    "fsi_shared": {"population": 7, "penalty": 0.01},
}  # fmt: skip


def settings(variant: str, rounds: int = 12, **more: Any) -> dict[str, Any]:
    strategy = {"name": variant, "rounds": rounds, "loss": "cross_entropy", **VARIANTS[variant]}
    if not strategy["name"].startswith("fsi"):  # which asks all nodes
        strategy["subset_size"] = 2
    return {
        "name": "run", "data": {"name": "toy", "nodes": 6}, "model": {"name": "mlp", "hidden": [5]},
        "strategy": strategy, "engine": {"threads": 1}, "watch": {"tensorboard": False}, **more,
    }  # fmt: skip


def lines(folder: Path) -> list[dict[str, Any]]:
    """Return a run's history without what depends on how candidates are sent, or on the clock."""
    return [
        {key: value for key, value in line.items() if key != "seconds" and not key.startswith(BYTES)}
        for line in read_history(folder)
    ]


class Sites:
    """An engine of one worker for each node; requests and replies go through the bytes of their frames."""

    def __init__(self, made: LearningRun, spoil: Callable[[int, str, Request], Request] = lambda _, __, r: r) -> None:
        self.nodes = tuple(sorted(made.nodes))
        self._spoil = spoil
        make = made.worker.replica._make  # type: ignore[union-attr]
        self.workers = {
            name: Worker({name: made.worker.nodes[name]}, made.evaluator, replica=Replica(make)) for name in self.nodes
        }
        self.sent: list[Request] = []

    def send(self, request: Request) -> Round:
        request = replace(request, header=replace(request.header, run="sites"))
        self.sent.append(request)
        common, private = wire.request_frames(request)

        def replies() -> Iterator[Reply]:
            for node in request.nodes:
                own = {node: bytes(private[node])} if node in private else {}
                received = self._spoil(len(self.sent), node, wire.decode_request(bytes(common), own, (node,)))
                (reply,) = self.workers[node].run(received)
                yield wire.decode_reply(bytes(wire.reply_frame(reply)))

        return gather(request, replies(), quorum=1, common=common, private=private)

    def save(self, step: int) -> None: ...
    def load(self, step: int) -> None: ...
    def close(self) -> None: ...


def origin(made: LearningRun) -> dict[str, Any]:
    strategy = made.config.strategy
    return {"strategy": strategy.name, "seed": made.config.seed, "settings": strategy.settings}


def coded(variant: str, rounds: int = 12, **more: Any) -> tuple[LearningRun, Sites, LineageCodec]:
    made = build(load_config(settings(variant, rounds, wire="lineage")))
    sites = Sites(made, **more)
    return made, sites, LineageCodec(sites, made.strategy, origin(made))


def step(made: LearningRun, codec: LineageCodec, *nodes: str) -> Round:
    """Take a step with the nodes given, whoever the strategy would have asked."""
    request = made.strategy.ask(codec.nodes)
    round_ = codec.send(replace(request, nodes=nodes or request.nodes))
    made.strategy.tell(round_)
    return round_


def genes(made: LearningRun) -> Tensor:
    result: Tensor = made.strategy.champion().parameters  # type: ignore[attr-defined]
    return result


# ------------------------------------------------------------------------------------------------ the same run
def test_every_strategy_that_evolves_is_tried() -> None:
    tried = {values.get("name", variant) for variant, values in VARIANTS.items()}
    gradients = {"fedavg", "fedprox", "centralised", "dp_fedavg", "dp_sgd", "fed_moeac", "nsga2"}
    learning = {
        name for name, found in catalogue("strategy").items()
        if found.task == "LearningTask" and not found.module.startswith("fne_plugin_")
    }  # fmt: skip
    assert tried == learning - gradients


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_history_is_that_of_whole_models(variant: str, tmp_path: Path) -> None:
    summaries = {}
    for kind in ("tensors", "lineage"):
        summaries[kind] = train(settings(variant, wire=kind), out=tmp_path / kind)
    assert lines(tmp_path / "lineage") == lines(tmp_path / "tensors")
    tensors, short = summaries["tensors"], summaries["lineage"]
    assert short["model_sha256"] == tensors["model_sha256"]
    assert short["payload_up_per_node"] == tensors["payload_up_per_node"]
    assert short["snapshots"] == 0


@pytest.mark.parametrize("variant", VARIANTS)
def test_workers_far_from_each_other_do_as_one_that_is_sent_models(variant: str) -> None:
    made, _, codec = coded(variant)
    plain = build(load_config(settings(variant)))
    whole = Sites(plain)
    for _ in range(12):
        round_ = step(made, codec)
        plain.strategy.tell(whole.send(plain.strategy.ask(whole.nodes)))
        assert not round_.failures
        assert round_.traffic.snapshots == 0
    assert torch.equal(genes(made), genes(plain))


@pytest.mark.parametrize("more", [{"evaluation": {"tiles": "joined"}}, {"evaluation": {"batch_norm": "server"}}])
def test_with_other_ways_to_evaluate(more: dict[str, Any], tmp_path: Path) -> None:
    model = {"model": {"name": "mlp", "hidden": [5]}}
    if "batch_norm" in more["evaluation"]:
        Path(tmp_path / "normed.py").write_text(NORMED)
        model = {"model": {"name": "normed"}, "plugins": [str(tmp_path / "normed.py")]}
    for kind in ("tensors", "lineage"):
        train({**settings("fne"), **more, **model, "wire": kind}, out=tmp_path / kind)
    assert lines(tmp_path / "lineage") == lines(tmp_path / "tensors")


NORMED = """
from torch import nn
from fne.config.registry import register

@register("model", "normed")
class Normed(nn.Sequential):
    output = "softmax"

    def __init__(self, shape, outputs):
        size = 1
        for n in shape:
            size *= n
        super().__init__(nn.Flatten(), nn.Linear(size, 6), nn.BatchNorm1d(6), nn.Linear(6, outputs))
"""


# ------------------------------------------------------------------------------------------------ late workers
@pytest.mark.parametrize("variant", ["fne", "es", "snes", "sep_cma", "de"])
@pytest.mark.parametrize("missed", [1, 20, 400])
def test_a_worker_that_missed_steps_is_caught_up_by_the_smaller_way(variant: str, missed: int) -> None:
    made, sites, codec = coded(variant, 600)
    late, other = sites.nodes[:2]
    step(made, codec, late, other)
    for _ in range(missed):
        assert step(made, codec, other).traffic.catch_up == {}
    state = lineage.size(made.strategy.lineage.state_dict())  # type: ignore[attr-defined]
    one = lineage.size(made.strategy.decision)  # type: ignore[attr-defined]
    traffic = step(made, codec, late, other).traffic
    # the last decision goes to everybody, so one less is missed
    expected = min(missed * one, state)
    assert traffic.snapshots == (missed * one > state)
    assert traffic.payload_down[late] - traffic.payload_down[other] == expected
    assert traffic.catch_up == {late: traffic.encoded_down[late] - traffic.encoded_down[other]}
    assert step(made, codec, late, other).traffic.catch_up == {}
    assert made.strategy.step == missed + 3
    following = sites.workers[late].replica._lineage  # type: ignore[union-attr]
    following.advance(made.strategy.step - 1, made.strategy.decision)  # type: ignore[attr-defined, union-attr]
    held, wanted = following.state_dict(), made.strategy.lineage.state_dict()  # type: ignore[attr-defined, union-attr]
    assert all(torch.equal(held[name], wanted[name]) for name in wanted)


def test_a_first_contact_late_in_the_run_begins_at_the_origin_or_with_a_snapshot() -> None:
    made, sites, codec = coded("es", 600)
    first, second, third = sites.nodes[:3]
    for _ in range(10):
        step(made, codec, first)
    early = step(made, codec, first, second).traffic
    told = len(json.dumps(origin(made), separators=(",", ":")))
    one = lineage.size(made.strategy.decision)  # type: ignore[attr-defined]
    assert early.payload_down[second] - early.payload_down[first] == told + 9 * one
    assert early.snapshots == 0
    for _ in range(300):
        step(made, codec, first)
    state = lineage.size(made.strategy.lineage.state_dict())  # type: ignore[attr-defined]
    late = step(made, codec, first, third).traffic
    assert late.payload_down[third] - late.payload_down[first] == told + state
    assert late.snapshots == 1


def test_what_a_replay_cannot_undercut_is_forgotten() -> None:
    made, sites, codec = coded("es", 600)
    for _ in range(400):
        step(made, codec, sites.nodes[0])
    state = lineage.size(made.strategy.lineage.state_dict())  # type: ignore[attr-defined]
    one = lineage.size(made.strategy.decision)  # type: ignore[attr-defined]
    kept = len(codec.state_dict()["decisions"]["ranks"])
    assert state < (kept + 1) * one < state + 4 * one


@pytest.mark.parametrize(
    ("variant", "bytes_of_a_decision"),
    [
        ("fne, paper", 2 * 12 + 8), ("fne", 2 * 10 + 2 + 8), ("es", 12), ("es, rank 1", 12), ("es, adam, raw", 8 * 12),
        ("es, sign", 8 * 6), ("es, ranks", 12), ("snes", 9), ("sep_cma", 9), ("de", 1 + 4),
    ],
)  # fmt: skip
def test_a_decision_is_as_short_as_said(variant: str, bytes_of_a_decision: int) -> None:
    made, sites, codec = coded(variant)
    node = sites.nodes[0]
    step(made, codec, node)
    assert step(made, codec, node).traffic.payload_down == {node: bytes_of_a_decision + 8}, "and the digest"


# ------------------------------------------------------------------------------------------------ wrong workers
def flipped(name: str, at: int) -> Callable[[int, str, Request], Request]:
    """Return what flips a bit of one tensor on its way to the first node in the sending `at`."""

    def spoil(sending: int, node: str, request: Request) -> Request:
        if sending != at or not node.endswith("0") or name not in request.common:
            return request
        wrong = request.common[name].clone()
        wrong.view(torch.uint8).view(-1)[-1] ^= 64
        return replace(request, common={**request.common, name: wrong})

    return spoil


@pytest.mark.parametrize(
    ("variant", "name"),
    [("fne", "parents"), ("fne", "multiplier"), ("es", "ranks"), ("snes", "ranks"), ("de", "better")],
)
def test_one_flipped_bit_is_noticed_and_mended_by_a_snapshot(variant: str, name: str) -> None:
    made, sites, codec = coded(variant, spoil=flipped(lineage.DECISION + name, 4))
    clean, whole, straight = coded(variant)
    for n in range(8):
        traffic = step(made, codec, *sites.nodes).traffic
        step(clean, straight, *whole.nodes)
        assert traffic.snapshots == (n == 3)
    state = lineage.size(made.strategy.lineage.state_dict())  # type: ignore[attr-defined]
    assert torch.equal(genes(made), genes(clean))
    assert len(sites.sent) == 9, "the spoilt step was sent twice"
    again = sites.sent[4]
    assert list(again.private) == [sites.nodes[0]]
    assert lineage.size(lineage.under(lineage.STATE, again.private[sites.nodes[0]])) == state


def test_both_sendings_of_a_step_are_billed() -> None:
    made, sites, codec = coded("es", spoil=flipped(lineage.DECISION + "ranks", 4))
    for _ in range(3):
        usual = step(made, codec, *sites.nodes).traffic
    twice = step(made, codec, *sites.nodes).traffic
    spoilt, other = sites.nodes[:2]
    assert twice.payload_down[other] == 2 * usual.payload_down[other]
    assert twice.payload_up[other] == 2 * usual.payload_up[other]
    assert twice.payload_up[spoilt] == usual.payload_up[spoilt], "a node that needs a snapshot says only that"
    assert twice.catch_up[other] == usual.encoded_down[other], "the second time is for catching up"
    assert twice.catch_up[spoilt] > lineage.size(made.strategy.lineage.state_dict())  # type: ignore[attr-defined]


def test_a_worker_that_was_started_anew_is_sent_a_snapshot() -> None:
    made, sites, codec = coded("fne")
    for n in range(6):
        if n == 3:
            for worker in sites.workers.values():
                worker.replica = Replica(made.worker.replica._make)  # type: ignore[union-attr]
        round_ = step(made, codec, *sites.nodes)
        assert not round_.failures
        assert round_.traffic.snapshots == (6 if n == 3 else 0)


def test_a_digest_that_never_fits_fails_the_node_by_name() -> None:
    def spoil(_: int, node: str, request: Request) -> Request:
        if not node.endswith("0"):
            return request
        return replace(request, common={**request.common, lineage.DIGEST: torch.zeros(8, dtype=torch.uint8)})

    made, sites, codec = coded("es", spoil=spoil)
    round_ = step(made, codec, *sites.nodes)
    (failure,) = round_.failures
    assert (failure.node, failure.status) == (sites.nodes[0], Status.NEEDS_SNAPSHOT)
    assert "differs from the server's" in failure.reason


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"strategy": "nothing"}, Status.REFUSED, "nothing"),
        ({"strategy": "fedavg", "settings": {}}, Status.REFUSED, "has no lineage"),
        ({"settings": {"sigma": -1}}, Status.REFUSED, "sigma: must be"),
        ({"settings": {"sigma_": 1}}, Status.REFUSED, "unknown key of strategy 'es'"),
        ({"seed": "x"}, Status.FAILED, "ValueError"),
    ],
)
def test_what_a_worker_cannot_make_is_said(change: dict[str, Any], status: Status, said: str) -> None:
    made, sites, _ = coded("es")
    codec = LineageCodec(sites, made.strategy, {**origin(made), **change})
    request = made.strategy.ask(sites.nodes)
    with pytest.raises(RunError, match=said):
        codec.send(request)
    (reply,) = sites.workers[request.nodes[0]].run(replace(sites.sent[0], nodes=request.nodes[:1]))
    assert reply.status is status


def test_a_node_whose_task_failed_is_not_told_again_what_it_followed() -> None:
    made, sites, codec = coded("es")
    broken, other = sites.nodes[:2]
    sites.workers[broken].nodes[broken].data = replace(sites.workers[broken].nodes[broken].data, y=torch.empty(0))
    for n in range(4):
        round_ = step(made, codec, broken, other)
        assert [failure.status for failure in round_.failures] == [Status.FAILED]
        assert set(round_.traffic.catch_up) == (set() if n else {broken, other})


def test_who_refuses_beside_one_that_is_late_says_why() -> None:
    def spoil(sending: int, node: str, request: Request) -> Request:
        if node.endswith("1") and lineage.ORIGIN in request.private.get(node, {}):
            wrong = lineage.origin_tensor({"strategy": "unheard of", "seed": 0, "settings": {}})
            return replace(request, private={node: {**request.private[node], lineage.ORIGIN: wrong}})
        return flipped(lineage.DIGEST, 1)(sending, node, request)

    made, sites, codec = coded("es", spoil=spoil)
    (failure,) = step(made, codec, *sites.nodes).failures
    assert (failure.node, failure.status) == (sites.nodes[1], Status.REFUSED)
    assert "unheard of" in failure.reason


@pytest.mark.parametrize("variant", ["es", "es, rank 1", "snes", "sep_cma", "fne"])
def test_a_worker_whose_layers_have_other_deviations_takes_the_servers(variant: str) -> None:
    made, sites, codec = coded(variant)
    clean, whole, straight = coded(variant)
    layout = made.task.layout
    leaves = tuple(replace(leaf, scale=leaf.scale * (1 + 2**-20)) for leaf in layout.leaves)
    other = copy.copy(layout)
    other.leaves = leaves
    make = functools.partial(new_lineage, replace(made.task, layout=other))
    sites.workers[sites.nodes[0]].replica = Replica(make)
    for n in range(5):
        round_ = step(made, codec, *sites.nodes)
        step(clean, straight, *whole.nodes)
        assert round_.traffic.snapshots == (n == 0 and variant != "fne"), "once; fne rounds them"
    assert torch.equal(genes(made), genes(clean))


def test_where_no_node_can_follow_the_run_ends_with_the_reason() -> None:
    def spoil(_: int, __: str, request: Request) -> Request:
        return replace(request, common={**request.common, lineage.DIGEST: torch.zeros(8, dtype=torch.uint8)})

    made, sites, codec = coded("es", spoil=spoil)
    with pytest.raises(RunError, match=r"step 0: no node can make the candidates.*differs from the server's"):
        step(made, codec, *sites.nodes)


def test_a_worker_ahead_of_its_server_begins_again() -> None:
    made, sites, codec = coded("es")
    kept: dict[str, Any] = {}
    for n in range(5):
        if n == 3:
            kept = copy.deepcopy({"strategy": made.strategy.state_dict(), "codec": codec.state_dict()})
        step(made, codec, *sites.nodes)
    ahead = genes(made).clone()
    made.strategy.load_state_dict(kept["strategy"])
    codec.load_state_dict(kept["codec"])
    assert step(made, codec, *sites.nodes).traffic.snapshots == 6
    step(made, codec, *sites.nodes)
    assert torch.equal(genes(made), ahead)


def test_requests_without_a_lineage_pass() -> None:
    made, sites, _ = coded("es")
    request = made.strategy.ask(sites.nodes)
    assert Replica(lambda _: made.strategy.lineage).follow(request) is request  # type: ignore[attr-defined]


# ------------------------------------------------------------------------------------------------ pieces
def test_the_digest_depends_on_every_bit_name_type_and_shape() -> None:
    origin, state = torch.tensor([7], dtype=torch.uint8), {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor(3)}
    others: Sequence[dict[str, Tensor]] = (
        {"a": torch.tensor([1.0, 2.0000002]), "b": torch.tensor(3)},
        {"a": torch.tensor([[1.0, 2.0]]), "b": torch.tensor(3)},
        {"a": torch.tensor([1.0, 2.0]).double(), "b": torch.tensor(3)},
        {"c": torch.tensor([1.0, 2.0]), "b": torch.tensor(3)},
        {"a": torch.tensor([1.0, 2.0])},
    )
    digests = {bytes(digest(origin, other).tolist()) for other in (state, *others)}
    digests.add(bytes(digest(origin + 1, state).tolist()))
    assert len(digests) == 7
    assert torch.equal(digest(origin, state), digest(origin, {"b": torch.tensor(3), "a": torch.tensor([1.0, 2.0])}))
    by_hand = hashlib.sha256(b":torch.uint8:[1];\x07a:torch.float32:[1];" + struct.pack("<f", 1.0)).digest()[:8]
    assert bytes(digest(origin, {"a": torch.tensor([1.0])}).tolist()) == by_hand


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        ({"name": "fedavg"}, r"wire = 'lineage': must be tensors or auto with strategy.name = 'fedavg': nodes cannot"),
        ({"name": "centralised"}, r"wire = 'lineage': must be tensors or auto with strategy.name = 'centralised'"),
        (
            {"name": "fne", "population": 12, "parents": 4, "deal": True},
            r"wire = 'lineage': must be tensors or auto with candidates of each node's own \(strategy.deal\)",
        ),
    ],
)
def test_what_has_no_lineage(strategy: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        build(load_config({**settings("fne"), "strategy": strategy, "wire": "lineage"}))
    assert build(load_config({**settings("fne"), "strategy": strategy, "wire": "auto"})).config.wire == "tensors"


def test_auto_is_lineage_where_that_can_be(tmp_path: Path) -> None:
    wanted = settings("fne", wire="auto")
    assert build(load_config(wanted)).config.wire == "lineage"
    assert load_config(settings("fne")).wire == "tensors"
    train(wanted, out=tmp_path, stop_after=3)
    assert load_config(tmp_path / "config.yaml").wire == "lineage"
    with pytest.raises(CheckpointError, match="wire: 'lineage' -> 'tensors'"):
        train({**wanted, "wire": "tensors"}, resume=tmp_path)
    assert train(wanted, resume=tmp_path)["finished"]


def test_nodes_of_another_version_are_not_read(tmp_path: Path) -> None:
    torch.save({"n0": {}}, tmp_path / "x.pt")
    train(settings("es", wire="lineage"), out=tmp_path / "run", stop_after=3)
    (tmp_path / "x.pt").replace(tmp_path / "run" / "nodes" / "step-000000003.pt")
    with pytest.raises(FneError, match="not what this version keeps of the nodes"):
        train(None, resume=tmp_path / "run")
