"""What messages of secure sums hold: made into tensors, and read again by those who trust nobody's tensors."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from fne.core.hidden import ProtocolError
from fne.core.messages import Relay, Request, Tensors
from fne.federation.wire import raw_bytes
from fne.privacy.keystream import Words
from fne.secure import keys
from fne.secure.protocol import Tag

PREFIX = "secure."
KEYS, SIGNATURES, ECHOES, MEMBERS, PARTICIPANTS, DEALT, TOTAL, CLIPPED = (
    PREFIX + name for name in ("keys", "signatures", "echoes", "members", "participants", "dealt", "total", "clipped")
)
"""Entries of messages; of tensors that are part of the work, none has such a name."""

T = TypeVar("T")


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


def texts(tensors: Tensors, name: str, length: int) -> list[bytes]:
    """Return the rows of an entry, uint8 `[n, length]`; raises `ProtocolError` for anything else."""
    value = tensors.get(name)
    if value is None or value.dtype != torch.uint8 or value.dim() != 2 or value.shape[1] != length:
        raise ProtocolError(f"the server sends {_found(value)} as {name}, must be uint8 [n, {length}]")
    return texts_of(value)


def places(tensors: Tensors, name: str) -> list[int]:
    """Return an entry of places in the list of nodes, int32 `[n]`; raises `ProtocolError` for anything else."""
    value = tensors.get(name)
    if value is None or value.dtype != torch.int32 or value.dim() != 1:
        raise ProtocolError(f"the server sends {_found(value)} as {name}, must be int32 [n]")
    return [int(number) for number in value.tolist()]


def words_of(tensors: Tensors, name: str) -> Words:
    """Return an entry of words, int64 `[n]`; raises `ProtocolError` for anything else."""
    value = tensors.get(name)
    if value is None or value.dtype != torch.int64 or value.dim() != 1:
        raise ProtocolError(f"the server sends {_found(value)} as {name}, must be int64 [n]")
    words: Words = value.cpu().numpy().view(np.uint64)
    return words


def _found(value: Tensor | None) -> str:
    return "nothing" if value is None else f"{value.dtype} {list(value.shape)}"


def read(text: str, kind: type[T], what: str) -> T:
    """Return what JSON of the server holds; raises `ProtocolError` where that is not of this kind."""
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(text)
        if isinstance(value, kind):
            return value
    raise ProtocolError(f"the server sends {what} that cannot be read")


def relay_of(text: str) -> Relay | None:
    """Return who opens a sum and does what with it, if not the server; raises `ProtocolError` for other JSON."""
    match read(text, list, "who opens a sum") if text else []:
        case []:
            return None
        case [str(node), str(task), dict(options)]:
            return Relay((node,), task, options=options)
    raise ProtocolError("the server sends who opens a sum that cannot be read")


def turn_of(relay: Relay) -> int:
    """Return the turn in which the receiver is drawn; raises `ProtocolError` where there is none."""
    turn = relay.options.get("turn")
    if type(turn) is not int or turn < 0:
        raise ProtocolError(f"{relay.task!r} is given a sum in turn {turn!r}, must be a number from 0")
    return turn


def digest_of(work: Request, *, clip: bool) -> bytes:
    """Return the digest of what nodes are asked: seed, attempt, options, common tensors, and who opens the sum.

    With others they cannot add up. Else the server would ask all but one for something of which it knows the answer.
    """
    head: list[object] = [work.header.seed, work.header.attempt, clip, sorted(work.options.items())]
    if work.relay is not None:
        head += [work.relay.nodes, work.relay.task, sorted(work.relay.options.items())]
    parts = [json.dumps(head).encode()]
    for name, value in sorted(work.common.items()):
        parts += [json.dumps([name, str(value.dtype), list(value.shape)]).encode(), bytes(raw_bytes(value))]
    return keys.digest(*(keys.digest(part) for part in parts))
