"""Node tasks of secure sums: three for the key agreement once a run, four for each sum, and two more for some sums.

| task | a node receives | a node answers |
|---|---|---|
| `secure_keys` | | its public key, signed |
| `secure_peers` | everybody's keys | the signed digest of that list |
| `secure_confirm` | everybody's digests | nothing |
| `secure_offer` | the work to do, and with whom | shares sealed for the others, a box, the form of its vector |
| `secure_deal` | what the others sealed for it | receipts |
| `secure_vector` | who takes part | its vector under masks |
| `secure_shares` | whose vectors arrived | a share for each participant |
| `secure_rest` | who dropped out with a box that does not open | its masks with these, under masks |
| `secure_receive` | the others' sum, under its masks | what the task answers that it was to do with the sum |

`fne.secure.session` does their work; a node's session is among its secrets, not in its memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import torch

from fne.config import registry
from fne.config.groups import SecureTask
from fne.config.registry import Key, register
from fne.core.errors import FneError, RefusedError, RunError
from fne.core.hidden import ProtocolError
from fne.core.messages import GIVEN, Relay, Request, Tensors
from fne.federation.node import Node, task_of
from fne.federation.payloads import Entry, Payload, PayloadSpec
from fne.federation.worker import Worker
from fne.privacy.keystream import KEY_BYTES
from fne.secure.dealing import DIGEST_BYTES, DIGESTS
from fne.secure.encoding import OutOfRangeError, flatten, unflatten
from fne.secure.keys import SIGNATURE_BYTES, Identity
from fne.secure.protocol import (
    CLIPPED,
    DEALT,
    DEALT_BYTES,
    ECHOES,
    KEYS,
    MEMBERS,
    PARTICIPANTS,
    PREFIX,
    SEALED_BYTES,
    SIGNATURES,
    TOTAL,
    Errand,
    Tag,
    digest_of,
    enough,
    mark,
    places,
    read,
    relay_of,
    rows,
    texts,
    threshold,
    turn_of,
    words_of,
    words_tensor,
)
from fne.secure.session import Session
from fne.secure.shares import SHARE_BYTES

OWN = (GIVEN, PREFIX)
"""Prefixes of the names of values that a node determines by itself, and accepts from no server."""


def public_identity(node: Node) -> bytes:
    """Return the public key by which others verify a node's signatures."""
    return _identity(node).public


def secure_only(worker: Worker) -> None:
    """Let a simulation's worker answer only secure sums and releases; its nodes know each other's signing keys."""
    worker.pinned = {name: public_identity(node) for name, node in worker.nodes.items()}
    worker.only = is_answered


def is_answered(task: str) -> bool:
    """Return whether a node of a secure run answers a task to the server: parts of the protocol, and releases."""
    return _has(task, "protocol") or _has(task, "declines")


def _has(task: str, trait: str) -> bool:
    """Return whether a task declares a trait; an unknown name declares none."""
    try:
        return bool(registry.traits("task", task).get(trait))
    except FneError:
        return False


def _identity(node: Node) -> Identity:
    return Identity(node.secrets.derived("identity"))


# ------------------------------------------------------------------------------------------------ keys
def keys_payload(request: Request, node: str) -> Payload:
    """Return the payload of `secure_keys`: a public key and its signature."""
    return {"key": Entry("bytes", (1, KEY_BYTES)), "signature": Entry("bytes", (1, SIGNATURE_BYTES))}


@register("task", "secure_keys", payload=keys_payload, protocol=True)
def keys_task(worker: Worker, nodes: Sequence[Node], request: Request) -> Iterator[Tensors]:
    """Begin a session with new keys. Yields `key`, uint8 `[1, 32]`, and `signature`, uint8 `[1, 64]`."""
    for node in nodes:
        secrets = node.secrets
        secrets.session = Session(
            node.name, request.header.run, _identity(node), worker.pinned, secrets.answered, secrets.tried
        )
        key, signature = secrets.session.entry()
        yield {"key": rows([key]), "signature": rows([signature])}


def peers_payload(request: Request, node: str) -> Payload:
    """Return the payload of `secure_peers`: a signed digest of the list of keys."""
    return {"echo": Entry("bytes", (1, SIGNATURE_BYTES))}


@register("task", "secure_peers", payload=peers_payload, protocol=True)
def peers_task(
    worker: Worker,
    nodes: Sequence[Node],
    request: Request,
    *,
    names: Annotated[str, Key("names of the nodes whose keys are listed, as a list in JSON")],
) -> Iterator[Tensors]:
    """Check the keys of all nodes. Takes `keys [K, 32]` and `signatures [K, 64]`, yields `echo`, uint8 `[1, 64]`."""
    with _refusing():
        publics = texts(request.common, KEYS, KEY_BYTES)
        signatures = texts(request.common, SIGNATURES, SIGNATURE_BYTES)
        listed = [str(name) for name in read(names, list, "names of nodes")]
    for node in nodes:
        with _refusing():
            echo = _session(node).join(listed, publics, signatures)
        yield {"echo": rows([echo])}


@register("task", "secure_confirm", payload=lambda request, node: {}, protocol=True)
def confirm_task(worker: Worker, nodes: Sequence[Node], request: Request) -> Iterator[Tensors]:
    """Check that all have the same list. Takes `members [m]` and their `echoes [m, 64]`, yields nothing."""
    with _refusing():
        echoes, members = texts(request.common, ECHOES, SIGNATURE_BYTES), places(request.common, MEMBERS)
    for node in nodes:
        with _refusing():
            _session(node).confirm(members, echoes)
        yield {}


# ------------------------------------------------------------------------------------------------ a sum
def offer_payload(request: Request, node: str) -> Payload:
    """Return the payload of `secure_offer`: messages to the other members, and the form of the later vector."""
    members, relay = len(request.common[MEMBERS]), relay_of(str(request.options.get("relay", "")))
    needed = 1 if relay is not None and relay.nodes == (node,) else threshold(members)
    return {
        "sealed": Entry("bytes", (members - 1, SEALED_BYTES)), "box": Entry("bytes", (1, None)),
        "commitment": Entry("bytes", (1, KEY_BYTES)), "form": Entry("bytes", (1, None)),
        "digests": Entry("bytes", (DIGESTS * members, DIGEST_BYTES)), "proof": Entry("bytes", (needed, SHARE_BYTES)),
    }  # fmt: skip


@register("task", "secure_offer", payload=offer_payload, protocol=True)
def offer_task(
    worker: Worker,
    nodes: Sequence[Node],
    request: Request,
    *,
    task: Annotated[str, Key("task whose payloads are added")],
    options: Annotated[str, Key("options of that task, as a mapping in JSON")],
    attempt: Annotated[int, Key("attempt of the work itself, for the nodes' generators", ge=0)] = 0,
    clip: Annotated[bool, Key("clip numbers that are out of range, and count them")] = False,
    relay: Annotated[str, Key("node that opens the sum, with task and options, as a list in JSON")] = "",
) -> Iterator[Tensors]:
    """Do the work of a task and keep the result, for a sum of the members' results.

    The node checks whether it may take part before it works. All members must receive the same request, relay included:
    their keys are bound to the request, and tensors for a single node are refused.

    Takes the tensors of that task, and `members [n]`. Yields `sealed`, uint8 `[n - 1, 82]`, `digests [3 n, 16]`, `proof
    [t, 33]`, `box`, `commitment` and `form`, uint8 all: see `fne.secure.protocol.Offer` and
    `fne.federation.payloads.PayloadSpec`.
    """
    tag, header = _tag(request, task), replace(request.header, attempt=attempt)
    common = {name: value for name, value in request.common.items() if not name.startswith(PREFIX)}
    with _refusing():
        members, wanted = places(request.common, MEMBERS), read(options, dict, "options")
        to = relay_of(relay)
        receiver: int | None = None
        made_up = [name for name in common if name.startswith(GIVEN)]
        if made_up:
            raise ProtocolError(f"the server sends {made_up[0]}: what is given comes of a sum")
        for node in nodes:
            check_asked(task, request.private.get(node.name, {}), to)
            session = _session(node)
            session.check(tag, members)
            if to is not None:
                receiver = session.receiver(header.seed, turn_of(to), to.nodes[0], members)
    work = replace(request, header=header, task=task, options=wanted, common=common, relay=to)
    asked = digest_of(work, clip=clip)
    then = None if to is None else Request(header, to.task, to.nodes, options=to.options)
    for node in nodes:  # faults show before any work is done
        with _refusing():
            _check_parties(wanted, len(members), _session(node).count)
            _session(node).work(tag, asked)
        node.allow(work, enough(len(members)))
        if then is not None:
            node.allow(then)
    for node, payload in zip(nodes, _done(worker, nodes, work), strict=True):
        form, errand = PayloadSpec.of(payload), None
        if then is not None and receiver is not None:
            errand = Errand(receiver, then, form, len(members), clip)
        with _refusing():
            try:
                words = flatten(payload, len(members), clip=clip)
            except OutOfRangeError as error:
                remedy = registry.traits("task", task).get("remedy", "scale the data, or take secure = clip")
                raise ProtocolError(f"{error}; {remedy}") from None
            offer = _session(node).begin(tag, members, words, asked, errand)
        entries = {
            "digests": offer.digests, "proof": offer.proof, "box": [offer.box], "commitment": [offer.commitment],
            "form": [form.to_bytes()],
        }  # fmt: skip
        yield {"sealed": rows(offer.sealed)} | {name: rows(texts) for name, texts in entries.items()}


def deal_payload(request: Request, node: str) -> Payload:
    """Return the payload of `secure_deal`: a receipt for the shares of each other participant."""
    return {"receipts": Entry("bytes", (len(request.common[MEMBERS]) - 1, DIGEST_BYTES))}


@register("task", "secure_deal", payload=deal_payload, protocol=True)
def deal_task(
    worker: Worker,
    nodes: Sequence[Node],
    request: Request,
    *,
    task: SecureTask,
) -> Iterator[Tensors]:
    """Take in the shares that the others dealt.

    Takes `members [p]`, the nodes whose offers arrived, and private `dealt [p - 1, 131]`, the messages passed on from
    the others. Yields `receipts`, uint8 `[p - 1, 16]`: zeros for a node whose message could not be read.
    """
    for node in nodes:
        with _refusing():
            session, members = _session(node), places(request.common, MEMBERS)
            messages = _dealt(session, request.private.get(node.name, {}), members)
            receipts = session.dealt(_tag(request, task), members, messages)
        yield {"receipts": rows(receipts)}


def vector_payload(request: Request, node: str) -> Payload:
    """Return the payload of `secure_vector`: a masked vector, and the mark of the vector's sum."""
    number = mark(_tag(request, str(request.options["task"])))
    return {"vector": Entry("int", ("words",)), "mark": Entry("int", (1,), least=number, most=number)}


@register("task", "secure_vector", payload=vector_payload, protocol=True)
def vector_task(
    worker: Worker,
    nodes: Sequence[Node],
    request: Request,
    *,
    task: SecureTask,
) -> Iterator[Tensors]:
    """Send the vector under its masks.

    Takes `members [p]`, the nodes that are left. Yields `vector`, int64 `[words]`, and `mark`, int64 `[1]`, by which
    the server identifies the vector's sum.
    """
    for node in nodes:
        with _refusing():
            tag = _tag(request, task)
            words = _session(node).masked(tag, places(request.common, MEMBERS))
        yield {"vector": words_tensor(words), "mark": torch.tensor([mark(tag)])}


def shares_payload(request: Request, node: str) -> Payload:
    """Return the payload of `secure_shares`: a share for each participant."""
    return {"shares": Entry("bytes", (None, SHARE_BYTES))}


@register("task", "secure_shares", payload=shares_payload, protocol=True)
def shares_task(
    worker: Worker,
    nodes: Sequence[Node],
    request: Request,
    *,
    task: SecureTask,
) -> Iterator[Tensors]:
    """Help to open the sum.

    Takes `members [s]`, the nodes whose vectors arrived; a node that opens the sum, which sends no vector, takes
    private `participants [p]`, as others do for `secure_vector`. Yields `shares`, uint8 `[p, 33]`, and one fewer in a
    sum that a node opens.
    """
    for node in nodes:
        with _refusing():
            session, tag, own = _session(node), _tag(request, task), request.private.get(node.name, {})
            if own:
                session.kept(tag, places(own, PARTICIPANTS))
            shares = session.revealed(tag, places(request.common, MEMBERS))
        yield {"shares": rows(shares)}


@register("task", "secure_rest", payload=lambda request, node: {"masks": Entry("int", ("words",))}, protocol=True)
def rest_task(
    worker: Worker,
    nodes: Sequence[Node],
    request: Request,
    *,
    task: SecureTask,
) -> Iterator[Tensors]:
    """Help to remove masks that no box gives. Takes `members [g]`, the gone nodes; yields `masks`, int64 `[words]`."""
    for node in nodes:
        with _refusing():
            words = _session(node).rest(_tag(request, task), places(request.common, MEMBERS))
        yield {"masks": words_tensor(words)}


@register("task", "secure_receive", protocol=True)
def receive_task(
    worker: Worker,
    nodes: Sequence[Node],
    request: Request,
    *,
    task: SecureTask,
) -> Iterator[Tensors]:
    """Open the sum and do the task with it that the offer named.

    Takes `total`, int64 `[words]`, and private tensors for that task. Yields its payload, and `clipped`, int64 `[1]`,
    where numbers are clipped.
    """
    for node in nodes:
        own = request.private.get(node.name, {})
        with _refusing():
            odd = [name for name in own if name.startswith(OWN)]
            if odd:
                raise ProtocolError(f"the server sends {odd[0]}, which this node finds out by itself")
            words, errand = _session(node).received(_tag(request, task), words_of(request.common, TOTAL))
        total, clipped = unflatten(words, errand.form, errand.nodes)
        given = {GIVEN + name: value for name, value in total.items()}
        work = replace(errand.work, common=given, private={node.name: own})
        for payload in _done(worker, [node], work):
            yield {**payload, CLIPPED: torch.tensor([clipped])} if errand.clip else payload


def _dealt(session: Session, own: Tensors, participants: Sequence[int]) -> dict[int, bytes]:
    """Return the messages passed on to a node from each other participant."""
    dealt = texts(own, DEALT, DEALT_BYTES)
    others = [number for number in participants if number != session.number]
    if len(others) != len(dealt):
        raise ProtocolError(f"{len(dealt)} sealed messages from {len(others)} others")
    return dict(zip(others, dealt, strict=True))


def _done(worker: Worker, nodes: Sequence[Node], work: Request) -> Iterator[Tensors]:
    """Yield the payloads of a task, one for each node; raises `RunError` for fewer or more payloads."""
    payloads = iter(task_of(work)(worker, nodes, work))
    for _ in nodes:
        payload = next(payloads, None)
        if payload is None:
            raise RunError(f"task {work.task!r} yields fewer payloads than it has nodes")
        yield payload
    if next(payloads, None) is not None:
        raise RunError(f"task {work.task!r} yields more payloads than it has nodes")


def check_asked(task: str, own: Tensors, relay: Relay | None) -> None:
    """Raise `ProtocolError` for work whose sum its addressee must not have, or for tensors for a single node."""
    if is_answered(task) or _has(task, "keeps"):
        raise ProtocolError(f"{task!r} is no work whose results can be added")
    if _has(task, "withheld") and relay is None:
        raise ProtocolError(f"{task!r} is added up for a node to open, and not for the server")
    if relay is not None and not _has(relay.task, "keeps"):
        raise ProtocolError(f"{relay.task!r} is not known to keep to itself what it is given (its trait keeps)")
    if own:
        raise ProtocolError(f"with secure sums all nodes are asked for the same: {min(own)!r} is for this one alone")


def _check_parties(options: Mapping[str, Any], members: int, known: int) -> None:
    """Raise `ProtocolError` where work is for a sum of another number of nodes, which decides the range of numbers.

    The number may be that of all requested nodes, of which some were left out.
    """
    parties = options.get("parties", members)
    if not members <= parties <= known:
        raise ProtocolError(f"work for a sum of {parties} nodes cannot be added up by {members} of {known}")


def _tag(request: Request, task: str) -> Tag:
    header = request.header
    return Tag(header.run, header.step, header.attempt, task)


def _session(node: Node) -> Session:
    if node.secrets.session is None:
        raise ProtocolError("this node has agreed on no keys in this process")
    return node.secrets.session


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Turn a protocol error into a refusal, whose text is sent unchanged."""
    try:
        yield
    except ProtocolError as error:
        raise RefusedError(str(error)) from None
