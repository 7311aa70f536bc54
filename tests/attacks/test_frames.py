"""Five thousand frames that a broken or lying peer could send: each is refused in words, or does what its words say."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from fne.config.load import load_config
from fne.core.errors import DataWarning, RunError
from fne.core.messages import Reply, Request, Round, Status
from fne.engines import local
from fne.federation import wire
from fne.federation.payloads import expecting
from fne.federation.rounds import gather
from fne.federation.worker import Worker
from fne.run.learning_run import build
from fne.run.search_run import build_search
from fne.run.train import train
from tests.attacks.frames import changed
from tests.attacks.fuzzing import TIMES, luck
from tests.test_conformance import smallest

pytestmark = pytest.mark.fuzz
RUNS: tuple[tuple[str, bool], ...] = (
    ("fne", False), ("es", False), ("fedavg", True), ("fed_moeac", False), ("fdd_ea", False), ("fdd_ea_dh", True),
)  # fmt: skip
"""Strategies between them with all kinds of messages: lineage, models, updates, surrogates, secure sums."""
EACH = 2500 * TIMES
"""Requests, and as many replies."""


class Sent(NamedTuple):
    """A request, the frames it went out in, the replies that came, and what hosts its nodes."""

    request: Request
    common: bytes
    private: dict[str, bytes]
    replies: list[Reply]
    around: dict[str, Any]
    worker: Worker


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> list[Sent]:
    """Return all that went to and fro in small runs."""
    found: list[Sent] = []
    heard: list[tuple[Request, list[Reply], dict[str, Any]]] = []

    def listen(request: Request, replies: Iterable[Reply], **around: Any) -> Round:
        told = list(replies)
        heard.append((request, told, around))
        return gather(request, told, **around)

    patch = pytest.MonkeyPatch()
    patch.setattr(local, "gather", listen)
    for name, secure in RUNS:
        heard.clear()
        given = {**smallest(name), "secure": secure, "engine": {"threads": 1}}
        if secure and name == "fedavg":
            given["strategy"]["fraction"] = 1.0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)
            train(given, out=tmp_path_factory.mktemp(name))
            config = load_config(given)
            worker = (build_search if "problem" in given else build)(config).worker
        for request, replies, around in heard:
            common, private = wire.request_frames(request)
            frames = {node: bytes(frame) for node, frame in private.items()}
            found.append(Sent(expecting(request), bytes(common), frames, replies, around, worker))
    patch.undo()
    return found


def test_requests_of_a_broken_server(sent: list[Sent]) -> None:
    """The attack claims a traceback, or no answer of a node that is asked."""
    draw = luck("requests")
    refused = answered = 0
    for _ in range(EACH):
        one = draw.choice(sent)
        try:
            request = wire.decode_request(changed(one.common, draw), one.private, one.request.nodes)
        except wire.WireError:
            refused += 1
            continue
        if dict(request.options) != dict(one.request.options):
            continue  # a server may ask for a million epochs: what a node agrees to is its policy's
        replies = list(one.worker.run(request))
        assert [reply.node for reply in replies] == [n for n in one.request.nodes if n in one.worker.nodes]
        answered += all(reply.status is Status.OK for reply in replies)
        for reply in replies:
            assert reply.status is Status.OK or reply.reason
            assert "Traceback" not in reply.reason
    assert refused > EACH / 2
    assert answered > 0, "the attack reaches the nodes"


def test_replies_of_a_broken_node(sent: list[Sent]) -> None:
    """The attack claims a traceback, to end the round for others, or to have another node blamed."""
    draw = luck("replies")
    refused = blamed = 0
    for _ in range(EACH):
        one = draw.choice([s for s in sent if s.replies])
        at = draw.randrange(len(one.replies))
        honest = one.replies[at]
        try:
            reply = wire.decode_reply(changed(bytes(wire.reply_frame(honest)), draw))
        except wire.WireError:
            refused += 1
            continue
        replies = [*one.replies[:at], replace(reply, node=honest.node), *one.replies[at + 1 :]]
        try:
            round_ = gather(one.request, replies, **{**one.around, "quorum": 0})
        except RunError:
            continue
        before = gather(one.request, one.replies, **{**one.around, "quorum": 0})
        more = {failure.node for failure in round_.failures} - {failure.node for failure in before.failures}
        assert more <= {honest.node}
        blamed += len(more)
    assert refused > EACH / 2
    assert blamed > 0, "the attack reaches the server"
