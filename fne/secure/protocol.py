"""Common part of both halves of secure sums: limits, tags, signs of masks, checks of keys, and messages as tensors.

This module holds no secrets, and its readers of messages trust no sender's tensors.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from fne.core.hidden import ProtocolError
from fne.core.messages import Relay, Request, Tensors
from fne.federation.payloads import PayloadSpec
from fne.federation.wire import raw_bytes
from fne.privacy.keystream import Words, keystream
from fne.secure import dealing, keys, shares

LEAST = 4
"""Least number of nodes in a sum: one of four and the server learn a sum of three others, and no single value."""
VERSION = b"fne/secagg/v1"
SEALED_BYTES = 2 * shares.SHARE_BYTES + keys.TAG_BYTES
DEALT_BYTES = SEALED_BYTES + shares.SHARE_BYTES + dealing.DIGEST_BYTES
"""Bytes of a message passed on about another node: sealed shares, point of the proof, challenge."""
NONCE_BYTES = 12
CHECKS = 8
"""Additional words of a vector whose sum a node opens: they show that the server passes on what the others sent."""


def threshold(nodes: int) -> int:
    """Return the number of members out of `nodes` that can open a sum: more than two thirds.

    A server that tells some nodes that a member dropped out, and others that the member did not, needs t shares of both
    of the member's keys. A member that follows the protocol reveals one share, and a member that colludes with the
    server two: both keys take at least 2t - n colluding members (of 10: 4), and without any the server opens at most
    one of the keys.
    """
    return 2 * nodes // 3 + 1


def enough(nodes: int) -> int:
    """Return the number of a sum's members that must have sent their vectors."""
    return max(LEAST, threshold(nodes))


@dataclass(frozen=True)
class Tag:
    """Identity of a sum; a node answers one sum for each (run, step, kind), and each attempt once."""

    run: str
    step: int
    attempt: int
    kind: str

    def __str__(self) -> str:
        return f"{self.kind} of step {self.step}, attempt {self.attempt}"

    def context(self, members: Sequence[str]) -> bytes:
        """Return the digest that every key of this sum is bound to, 32 bytes."""
        text = json.dumps([self.run, self.step, self.attempt, self.kind, list(members)])
        return keys.digest(VERSION, b"/sum", text.encode())


@dataclass(frozen=True)
class Offer:
    """A node's message to the server before its vector.

    Args:
        sealed: for every other member in order, its shares of b and r, which only that member can read.
        box: the mask keys of this sum, which r opens.
        commitment: digest of b, by which the server checks that shares fit together.
        digests: digests of the shares of each member, including the node itself, see `fne.secure.dealing`.
        proof: proof that the shares lie on polynomials, as many coefficients as the threshold.
    """

    sealed: tuple[bytes, ...]
    box: bytes
    commitment: bytes
    digests: tuple[bytes, ...]
    proof: tuple[bytes, ...]


@dataclass(frozen=True)
class Errand:
    """Use of a sum that one of its nodes opens in place of the server.

    Args:
        receiver: place of that node in the list.
        work: request that the receiver answers once it has the sum; the sum is not yet part of it.
        form: form of the vectors.
        nodes: number of nodes with which the sum was begun.
        clip: whether numbers are clipped and counted.
    """

    receiver: int
    work: Request
    form: PayloadSpec
    nodes: int
    clip: bool = False


# ------------------------------------------------------------------------------------------------ masks, bindings
def signed(own: int, other: int, mask: Words) -> Words:
    """Return the part of a pair's mask that `own` adds: the mask if the other node comes later, else its negative."""
    return mask if other > own else -mask


def pair_key(key: bytes, binding: bytes) -> bytes:
    """Return the key of the mask that two nodes share, derived from the key in the box.

    In a sum that one of its nodes opens, `binding` is the commitment to the receiver's b. If the receiver gave nodes
    different b, checks made with these would reveal more than the sum; so then no masks cancel.
    """
    return keys.digest(key, binding) if binding else key


def pair_mask(own: int, other: int, key: bytes, nonce: bytes, words: int) -> Words:
    """Return the part of the mask shared with another node that `own` adds."""
    return signed(own, other, keystream(key, nonce, words))


def own_mask(key: bytes, nonce: bytes, words: int) -> Words:
    """Return the keystream of b, which stays on a vector that arrives late, when its other masks are already known."""
    return keystream(key, nonce, words)


def boxed(members: Sequence[int], owner: int, receiver: int | None) -> list[int]:
    """Return the nodes whose masks with `owner` are in its box: none in a receiver's, and none with the receiver.

    So whatever keys are revealed, those masks stay on a sum until the receiver has it.
    """
    return [] if owner == receiver else [member for member in members if member not in (owner, receiver)]


def checks(key: bytes, nonce: bytes, words: Words) -> Words:
    """Return sums of words times a keystream; the checks of vectors add up to the checks of their total.

    A total that is changed without the key fits with a chance of 2^(-k CHECKS), where 2^(64 - k) is the
    largest power of 2 that divides the change: 2^-8 for floats that go up or down by 2^31, 2^-256 for 1.
    """
    factors = keystream(key, nonce, CHECKS * len(words)).reshape(CHECKS, -1)
    total: Words = (factors * words).sum(axis=1, dtype=np.uint64)
    return total


def nonce_of(participants: Sequence[int]) -> bytes:
    """Return the nonce of a sum's keystreams, which differs for other participants."""
    return keys.digest(VERSION, b"/participants", json.dumps(list(participants)).encode())[:NONCE_BYTES]


def nonce_of_rest(participants: Sequence[int], survivors: Sequence[int], gone: Sequence[int]) -> bytes:
    """Return the nonce, used for nothing else, under which survivors send the masks that they share with gone nodes."""
    text = json.dumps([list(participants), list(survivors), list(gone)])
    return keys.digest(VERSION, b"/gone", text.encode())[:NONCE_BYTES]


def commitment(context: bytes, mask: bytes) -> bytes:
    """Return the digest that identifies b."""
    return keys.digest(VERSION, b"/mask", context, mask)


def bound(context: bytes, work: bytes) -> bytes:
    """Return the digest of a sum and its request, which binds the keys of pairs; the server need not know it."""
    return keys.digest(VERSION, b"/work", context, work)


def seal_text(context: bytes, sender: str, receiver: str) -> bytes:
    """Return the context of a sealed message: the sum, the sender and the receiver."""
    return context + json.dumps([sender, receiver]).encode()


# ------------------------------------------------------------------------------------------------ checks
def check_receiver(receiver: int | None, places: Collection[int], tag: Tag, what: str) -> None:
    """Raise `ProtocolError` where the node that is to open a sum is not among `places`: others would open the sum."""
    if receiver is not None and receiver not in places:
        raise ProtocolError(f"{tag}: the node that is to open it is not among the {what}")


def check_count(found: int, least: int, tag: Tag) -> None:
    """Raise `ProtocolError` for fewer nodes than a sum needs."""
    if found < least:
        raise ProtocolError(f"{tag}: {found} nodes, and at least {least} must be in a secure sum")


def check_places(places: Sequence[int], of: Collection[int], own: int, what: str) -> None:
    """Raise `ProtocolError` unless `places` are a sorted subset of `of` without repetition that includes `own`.

    A negative or repeated place would make two nodes of one: threshold and least number would count the node twice,
    and the masks of the two would cancel.
    """
    if list(places) != sorted(set(places)) or not set(places) <= set(of) or own not in places:
        raise ProtocolError(f"{what} must be some of those before, each once, in order, and this node among them")


def transcript(run: str, names: Sequence[str], publics: Sequence[bytes]) -> bytes:
    """Return the digest of the list of keys."""
    return keys.digest(VERSION, b"/list", json.dumps([run, list(names)]).encode(), *publics)


def entry_text(run: str, name: str, public: bytes) -> bytes:
    """Return the text that a node signs for its public key."""
    return VERSION + b"/key" + public + json.dumps([run, name]).encode()


def echo_text(listed: bytes) -> bytes:
    """Return the text that a node signs for the list of keys."""
    return VERSION + b"/echo" + listed


@functools.lru_cache(maxsize=4)  # a worker's nodes check the same list: the answer depends on it alone
def check_list(
    run: str,
    names: tuple[str, ...],
    publics: tuple[bytes, ...],
    signatures: tuple[bytes, ...],
    pinned: tuple[bytes, ...],
) -> None:
    """Raise `ProtocolError` where a list of keys is not sorted, or has a wrong, repeated or unsigned key."""
    if list(names) != sorted(set(names)) or not len(names) == len(publics) == len(signatures):
        raise ProtocolError("the list of keys is not sorted by name, with one key and signature for each node")
    for fault in entry_faults(run, names, publics, signatures, pinned).values():
        raise ProtocolError(fault)


def entry_faults(
    run: str, names: Sequence[str], publics: Sequence[bytes], signatures: Sequence[bytes], pinned: Sequence[bytes]
) -> dict[str, str]:
    """Return by name the faults of entries of a list of keys: the server leaves these out, nodes refuse the list.

    Of two entries with the same signed key one is a copy; nobody can tell which, so both are wrong. Nodes that answer
    at the same time cannot copy from each other.
    """
    faults: dict[str, str] = {}
    owners: dict[bytes, str] = {}
    for name, public, signature, identity in zip(names, publics, signatures, pinned, strict=True):
        try:
            keys.check_public(public, name)
        except ProtocolError as error:
            faults[name] = str(error)
            continue
        if not identity:
            faults[name] = f"no signing key of {name} is pinned here: its owner cannot be verified"
        elif not keys.verified(identity, signature, entry_text(run, name, public)):
            faults[name] = f"the public key of {name} is not signed by it, for this run and name"
        elif public in owners:
            twice = f"{owners[public]} and {name} have the same public key: one of them is not its own"
            faults |= {owners[public]: twice, name: twice}
        else:
            owners[public] = name
    return faults


@functools.lru_cache(maxsize=4)
def check_echoes(listed: bytes, signers: tuple[tuple[str, bytes, bytes], ...]) -> None:
    """Raise `ProtocolError` for a node `(name, public signing key, echo)` that has not signed this list."""
    for name in echo_faults(listed, signers):
        raise ProtocolError(f"{name} has another list of keys than this node: the server does not tell all the same")


def echo_faults(listed: bytes, signers: Sequence[tuple[str, bytes, bytes]]) -> dict[str, str]:
    """Return by name the faults of signatures of a list of keys: the server leaves these nodes out."""
    return {
        name: f"{name} does not sign the list of keys that it was sent"
        for name, public, echo in signers
        if not keys.verified(public, echo, echo_text(listed))
    }


PREFIX = "secure."

KEYS, SIGNATURES, ECHOES, MEMBERS, PARTICIPANTS, DEALT, TOTAL, CLIPPED = (
    PREFIX + name for name in ("keys", "signatures", "echoes", "members", "participants", "dealt", "total", "clipped")
)
"""Names of the entries of messages; no tensor of the work may use such a name."""

T = TypeVar("T")


def rows(texts: Sequence[bytes]) -> Tensor:
    """Return texts of one length as uint8 `[n, length]`."""
    length = len(texts[0]) if texts else 0
    return torch.frombuffer(bytearray(b"".join(texts)), dtype=torch.uint8).reshape(-1, length)


def texts_of(tensor: Tensor) -> list[bytes]:
    """Return the rows of a uint8 tensor `[n, length]`."""
    return [row.tobytes() for row in tensor.numpy()]


def words_tensor(words: Words) -> Tensor:
    """Return words as int64, whose addition wraps in the same way."""
    return torch.from_numpy(words.view(np.int64))


def mark(tag: Tag) -> int:
    """Return a number that identifies a sum; the marks of its vectors add up to a multiple of the number."""
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
    """Return the value of JSON from the server; raises `ProtocolError` for a value of another kind."""
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(text)
        if isinstance(value, kind):
            return value
    raise ProtocolError(f"the server sends {what} that cannot be read")


def relay_of(text: str) -> Relay | None:
    """Return the node that opens a sum, and its task, if not the server; raises `ProtocolError` for other JSON."""
    match read(text, list, "an opener of the sum") if text else []:
        case []:
            return None
        case [str(node), str(task), dict(options)]:
            return Relay((node,), task, options=options)
    raise ProtocolError("the server sends an opener of the sum that cannot be read")


def turn_of(relay: Relay) -> int:
    """Return the turn in which the receiver is drawn; raises `ProtocolError` where there is none."""
    turn = relay.options.get("turn")
    if type(turn) is not int or turn < 0:
        raise ProtocolError(f"{relay.task!r} is given a sum in turn {turn!r}, must be a number from 0")
    return turn


def digest_of(work: Request, *, clip: bool) -> bytes:
    """Return the digest of a request to nodes: seed, attempt, options, common tensors, and the node that opens the sum.

    Only nodes with the same digest can add up. Otherwise the server could ask all nodes except one for something to
    which it knows the answer.
    """
    head: list[object] = [work.header.seed, work.header.attempt, clip, sorted(work.options.items())]
    if work.relay is not None:
        head += [work.relay.nodes, work.relay.task, sorted(work.relay.options.items())]
    parts = [json.dumps(head).encode()]
    for name, value in sorted(work.common.items()):
        parts += [json.dumps([name, str(value.dtype), list(value.shape)]).encode(), bytes(raw_bytes(value))]
    return keys.digest(*(keys.digest(part) for part in parts))
