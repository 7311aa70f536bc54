"""Node tasks of secure sums: three that agree on keys once a run, and three of each sum.

| task | a node is told | it answers |
|---|---|---|
| `secure_keys` | | its public key, signed |
| `secure_peers` | everybody's keys | the signed digest of that list |
| `secure_confirm` | everybody's digests | nothing |
| `secure_offer` | the work to do, and with whom | shares sealed for the others, a box, the form of its vector |
| `secure_vector` | who takes part, and what they sealed for it | its vector under masks |
| `secure_shares` | whose vectors arrived | a share for each participant |

What they do is in `fne.privacy.session`; the session of a node is among its secrets, not in its memory.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, TypeVar

import numpy as np
import torch
from torch import Tensor

from fne.errors import RunError
from fne.node import Node, RefusedError, Worker, task_of
from fne.privacy import keys
from fne.privacy.hidden import ProtocolError
from fne.privacy.keys import KEY_BYTES, SIGNATURE_BYTES, Identity
from fne.privacy.protocol import SEALED_BYTES, Tag
from fne.privacy.ring import OutOfRangeError, Words
from fne.privacy.session import Session
from fne.privacy.vectors import Form, flatten
from fne.registry import Key, register
from fne.types import Request, Tensors
from fne.wire import raw_bytes

TASKS = ("secure_keys", "secure_peers", "secure_confirm", "secure_offer", "secure_vector", "secure_shares")
"""What a node of a secure run answers, by name: a plugin may begin a name in the same way."""
PREFIX = "secure."
KEYS, SIGNATURES, ECHOES, MEMBERS, SEALED = (
    PREFIX + name for name in ("keys", "signatures", "echoes", "members", "sealed")
)


_REMEDY = {"train": "lower strategy.lr, or scale the data"}
"""What to do about a float that is out of range, by task: weights that are clipped are others."""

T = TypeVar("T")


def public_identity(node: Node) -> bytes:
    """Return the public key by which others know what a node has signed."""
    return _identity(node).public


def secure_only(worker: Worker) -> None:
    """Let a simulation's worker answer secure sums and nothing else; its nodes know each other's signing keys."""
    worker.pinned = {name: public_identity(node) for name, node in worker.nodes.items()}
    worker.only = TASKS


def _identity(node: Node) -> Identity:
    return Identity(node.secrets.derived("identity"))


# ------------------------------------------------------------------------------------------------ keys
@register("task", "secure_keys")
def keys_task(worker: Worker, nodes: Sequence[Node], request: Request) -> Iterator[Tensors]:
    """Begin a session with new keys. Yields `key`, uint8 `[1, 32]`, and `signature`, uint8 `[1, 64]`."""
    for node in nodes:
        secrets = node.secrets
        secrets.session = Session(node.name, request.header.run, _identity(node), worker.pinned, secrets.answered)
        key, signature = secrets.session.entry()
        yield {"key": rows([key]), "signature": rows([signature])}


@register("task", "secure_peers")
def peers_task(
    worker: Worker,
    nodes: Sequence[Node],
    request: Request,
    *,
    names: Annotated[str, Key("of the nodes whose keys these are, as a list in JSON")],
) -> Iterator[Tensors]:
    """Check everybody's keys. Takes `keys [K, 32]` and `signatures [K, 64]`, yields `echo`, uint8 `[1, 64]`."""
    with _refusing():
        publics = _texts(request.common, KEYS, KEY_BYTES)
        signatures = _texts(request.common, SIGNATURES, SIGNATURE_BYTES)
        listed = [str(name) for name in _read(names, list, "names of nodes")]
    for node in nodes:
        with _refusing():
            echo = _session(node).join(listed, publics, signatures)
        yield {"echo": rows([echo])}


@register("task", "secure_confirm")
def confirm_task(worker: Worker, nodes: Sequence[Node], request: Request) -> Iterator[Tensors]:
    """Check that all have the same list. Takes `members [m]` and their `echoes [m, 64]`, yields nothing."""
    with _refusing():
        echoes, members = _texts(request.common, ECHOES, SIGNATURE_BYTES), _members(request)
    for node in nodes:
        with _refusing():
            _session(node).confirm(members, echoes)
        yield {}


# ------------------------------------------------------------------------------------------------ a sum
@register("task", "secure_offer")
def offer_task(
    worker: Worker,
    nodes: Sequence[Node],
    request: Request,
    *,
    task: Annotated[str, Key("whose payloads are to be added")],
    options: Annotated[str, Key("of that task, as a mapping in JSON")],
    attempt: Annotated[int, Key("of the work itself, for the nodes' generators", ge=0)] = 0,
    clip: Annotated[bool, Key("clip numbers that are out of range, and count them")] = False,
) -> Iterator[Tensors]:
    """Do the work of a task and keep what comes of it, for a sum of the members' results.

    Whether the node may take part is looked at before it works. All must have been asked for the same: their keys are
    bound to it, and tensors of a node's own are refused.

    Takes what that task takes, and `members [n]`. Yields `sealed`, uint8 `[n - 1, 82]`, `box`, `commitment` and `form`,
    uint8 all: see `fne.privacy.session.Offer` and `fne.privacy.vectors.Form`.
    """
    tag, header = _tag(request, task), replace(request.header, attempt=attempt)
    common = {name: value for name, value in request.common.items() if not name.startswith(PREFIX)}
    with _refusing():
        members, wanted = _members(request), _read(options, dict, "options")
        for node in nodes:
            check_asked(task, request.private.get(node.name, {}))
            _session(node).check(tag, members)
    work = replace(request, header=header, task=task, options=wanted, common=common)
    asked = digest_of(work, clip=clip)
    payloads = iter(task_of(work)(worker, nodes, work))
    for node in nodes:
        payload = next(payloads, None)
        if payload is None:
            raise RunError(f"task {task!r} yields fewer payloads than it has nodes")
        with _refusing():
            try:
                words = flatten(payload, len(members), clip=clip)
            except OutOfRangeError as error:
                raise ProtocolError(f"{error}; {_REMEDY.get(task, 'scale the data, or take secure = clip')}") from None
            offer = _session(node).begin(tag, members, words, asked)
        told = {"box": [offer.box], "commitment": [offer.commitment], "form": [Form.of(payload).to_bytes()]}
        yield {"sealed": rows(offer.sealed)} | {name: rows(texts) for name, texts in told.items()}
    if next(payloads, None) is not None:
        raise RunError(f"task {task!r} yields more payloads than it has nodes")


@register("task", "secure_vector")
def vector_task(
    worker: Worker,
    nodes: Sequence[Node],
    request: Request,
    *,
    task: Annotated[str, Key("whose payloads are added")],
) -> Iterator[Tensors]:
    """Send the vector under its masks.

    Takes `members [p]`, those whose offers arrived, and private `sealed [p - 1, 82]`, what the others of them sealed.
    Yields `vector`, int64 `[words]`, and `mark`, int64 `[1]`, by which the server knows which sum it is of.
    """
    for node in nodes:
        with _refusing():
            session, tag, members = _session(node), _tag(request, task), _members(request)
            sealed, own = _texts(request.private.get(node.name, {}), SEALED, SEALED_BYTES), session.number
            others = [number for number in members if number != own]
            if len(others) != len(sealed):
                raise ProtocolError(f"{len(sealed)} sealed messages from {len(others)} others")
            words = session.masked(tag, members, dict(zip(others, sealed, strict=True)))
        yield {"vector": words_tensor(words), "mark": torch.tensor([mark(tag)])}


@register("task", "secure_shares")
def shares_task(
    worker: Worker,
    nodes: Sequence[Node],
    request: Request,
    *,
    task: Annotated[str, Key("whose payloads are added")],
) -> Iterator[Tensors]:
    """Help to open the sum. Takes `members [s]`, those whose vectors arrived; yields `shares`, uint8 `[p, 33]`."""
    for node in nodes:
        with _refusing():
            shares = _session(node).revealed(_tag(request, task), _members(request))
        yield {"shares": rows(shares)}


# ------------------------------------------------------------------------------------------------ tensors
def rows(texts: Sequence[bytes]) -> Tensor:
    """Return texts of one length as uint8 `[n, length]`."""
    length = len(texts[0]) if texts else 0
    return torch.frombuffer(bytearray(b"".join(texts)), dtype=torch.uint8).reshape(-1, length)


def texts_of(tensor: Tensor) -> list[bytes]:
    """Return the rows of a uint8 tensor `[n, length]`."""
    return [row.tobytes() for row in tensor.numpy()]


def words_tensor(words: Words) -> Tensor:
    """Return words as int64, whose addition wraps like theirs."""
    return torch.from_numpy(words.view(np.int64))


def mark(tag: Tag) -> int:
    """Return a number that stands for a sum; the marks of its vectors add up to a multiple of it."""
    return int.from_bytes(tag.context(())[:6], "little")


def _texts(tensors: Mapping[str, Tensor], name: str, length: int) -> list[bytes]:
    value = tensors.get(name)
    if value is None or value.dtype != torch.uint8 or value.dim() != 2 or value.shape[1] != length:
        found = "nothing" if value is None else f"{value.dtype} {list(value.shape)}"
        raise ProtocolError(f"the server sends {found} as {name}, must be uint8 [n, {length}]")
    return texts_of(value)


def _members(request: Request) -> list[int]:
    value = request.common.get(MEMBERS)
    if value is None or value.dtype != torch.int32 or value.dim() != 1:
        found = "nothing" if value is None else f"{value.dtype} {list(value.shape)}"
        raise ProtocolError(f"the server sends {found} as {MEMBERS}, must be int32 [n]")
    return [int(number) for number in value.tolist()]


def _read(text: str, kind: type[T], what: str) -> T:
    with contextlib.suppress(ValueError):
        value = json.loads(text)
        if isinstance(value, kind):
            return value
    raise ProtocolError(f"the server sends {what} that cannot be read")


def check_asked(task: str, own: Tensors) -> None:
    """Raise `ProtocolError` for work that is a part of the protocol, or for tensors of a node's own."""
    if task in TASKS:
        raise ProtocolError(f"{task!r} is no work whose results can be added")
    if own:
        raise ProtocolError(f"with secure sums all nodes are asked for the same: {min(own)!r} is for this one alone")


def digest_of(work: Request, *, clip: bool) -> bytes:
    """Return the digest of what nodes are asked: seed, attempt, options, common tensors; with others none can add up.

    Else the server would ask all but one for something of which it knows the answer.
    """
    head = [work.header.seed, work.header.attempt, clip, sorted(work.options.items())]
    parts = [json.dumps(head).encode()]
    for name, value in sorted(work.common.items()):
        parts += [json.dumps([name, str(value.dtype), list(value.shape)]).encode(), bytes(raw_bytes(value))]
    return keys.digest(*(keys.digest(part) for part in parts))


def _tag(request: Request, task: str) -> Tag:
    header = request.header
    return Tag(header.run, header.step, header.attempt, task)


def _session(node: Node) -> Session:
    if node.secrets.session is None:
        raise ProtocolError("this node has agreed on no keys in this process")
    return node.secrets.session


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Turn what the protocol forbids into a refusal, which is told as it stands."""
    try:
        yield
    except ProtocolError as error:
        raise RefusedError(str(error)) from None
