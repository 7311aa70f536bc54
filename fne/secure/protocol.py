"""The part of secure sums that both halves know: limits, tags, signs of masks, checks of keys, and messages as tensors.

Nothing here is secret, and whoever reads a message here trusts nobody's tensors.
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
"""Nodes in a sum: one of them together with the server learns a sum of three others, and no single value."""
VERSION = b"fne/secagg/v1"
SEALED_BYTES = 2 * shares.SHARE_BYTES + keys.TAG_BYTES
DEALT_BYTES = SEALED_BYTES + shares.SHARE_BYTES + dealing.DIGEST_BYTES
"""Of what a node is passed on of another one: what that one sealed for it, its point of the proof, the challenge."""
NONCE_BYTES = 12
CHECKS = 8
"""Words more of a vector whose sum a node opens: by them it knows that the server passes on what the others sent."""


def threshold(nodes: int) -> int:
    """Return how many of `nodes` members it takes to open a sum: more than two thirds.

    A server that tells some nodes that one dropped out, and others that it did not, wants t shares of both keys of that
    one. A member that follows the protocol tells one share, and one that colludes with the server two: both keys take
    2t - n colluding members (of 10: 4) at least, and without any the server opens one of both at most.
    """
    return 2 * nodes // 3 + 1


def enough(nodes: int) -> int:
    """Return how many of a sum's members must have sent their vectors."""
    return max(LEAST, threshold(nodes))


@dataclass(frozen=True)
class Tag:
    """What a sum is of; a node answers one of each (run, step, kind), and each attempt once."""

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
    """What a node gives the server before it sends its vector.

    Args:
        sealed: for every other member in order, its shares of b and r, which only that member can read.
        box: the mask keys of this sum, which r opens.
        commitment: digest of b, by which the server knows that shares fit together.
        digests: of the shares of each member, the node itself included, see `fne.secure.dealing`.
        proof: that the shares lie on polynomials, as many coefficients as it takes shares.
    """

    sealed: tuple[bytes, ...]
    box: bytes
    commitment: bytes
    digests: tuple[bytes, ...]
    proof: tuple[bytes, ...]


@dataclass(frozen=True)
class Errand:
    """What becomes of a sum that one of its nodes opens, and not the server.

    Args:
        receiver: that node, its place in the list.
        work: what it answers once it has the sum, which is not in there yet.
        form: of the vectors.
        nodes: with which the sum was begun.
        clip: whether numbers are clipped and counted.
    """

    receiver: int
    work: Request
    form: PayloadSpec
    nodes: int
    clip: bool = False


# ------------------------------------------------------------------------------------------------ masks, bindings
def signed(own: int, other: int, mask: Words) -> Words:
    """Return what of a pair's mask `own` adds: it, where the other one comes later, else its negative."""
    return mask if other > own else -mask


def pair_key(key: bytes, binding: bytes) -> bytes:
    """Return the key of the mask that two nodes share, of the one that the box holds.

    In a sum that one of its nodes opens, `binding` is the commitment to that one's b. If it gave its nodes different
    ones, checks made with them would show more than the sum; so then no masks cancel.
    """
    return keys.digest(key, binding) if binding else key


def pair_mask(own: int, other: int, key: bytes, nonce: bytes, words: int) -> Words:
    """Return what `own` adds of the mask that it shares with another node."""
    return signed(own, other, keystream(key, nonce, words))


def own_mask(key: bytes, nonce: bytes, words: int) -> Words:
    """Return the keystream of b: it stays on a vector that comes too late, whose other masks are known by then."""
    return keystream(key, nonce, words)


def boxed(members: Sequence[int], owner: int, receiver: int | None) -> list[int]:
    """Return whose masks with `owner` are in its box: of a receiver none, and of the others none with the receiver.

    So whatever keys are told, those masks stay on a sum until it is with the receiver.
    """
    return [] if owner == receiver else [member for member in members if member not in (owner, receiver)]


def checks(key: bytes, nonce: bytes, words: Words) -> Words:
    """Return sums of words times a keystream; those of some vectors add up to those of their total.

    A total that is changed by who does not have the key fits with a chance of 2^(-k CHECKS), where 2^(64 - k) is the
    largest power of 2 that divides the change: 2^-8 for floats that go up or down by 2^31, 2^-256 for 1.
    """
    factors = keystream(key, nonce, CHECKS * len(words)).reshape(CHECKS, -1)
    total: Words = (factors * words).sum(axis=1, dtype=np.uint64)
    return total


def nonce_of(participants: Sequence[int]) -> bytes:
    """Return the nonce of a sum's keystreams: with other participants it is another one."""
    return keys.digest(VERSION, b"/participants", json.dumps(list(participants)).encode())[:NONCE_BYTES]


def nonce_of_rest(participants: Sequence[int], survivors: Sequence[int], gone: Sequence[int]) -> bytes:
    """Return the nonce under which survivors tell what masks they share with those who are gone: for nothing else."""
    text = json.dumps([list(participants), list(survivors), list(gone)])
    return keys.digest(VERSION, b"/gone", text.encode())[:NONCE_BYTES]


def commitment(context: bytes, mask: bytes) -> bytes:
    """Return the digest by which b is known again."""
    return keys.digest(VERSION, b"/mask", context, mask)


def bound(context: bytes, work: bytes) -> bytes:
    """Return the digest of a sum and of what its nodes were asked: of pairs' keys, which the server need not know."""
    return keys.digest(VERSION, b"/work", context, work)


def seal_text(context: bytes, sender: str, receiver: str) -> bytes:
    """Return what a sealed message is bound to: the sum, and who seals it for whom."""
    return context + json.dumps([sender, receiver]).encode()


# ------------------------------------------------------------------------------------------------ checks
def check_receiver(receiver: int | None, places: Collection[int], tag: Tag, what: str) -> None:
    """Raise `ProtocolError` where the node that is to open a sum is not among these: others would open it."""
    if receiver is not None and receiver not in places:
        raise ProtocolError(f"{tag}: the node that is to open it is not among the {what}")


def check_count(found: int, least: int, tag: Tag) -> None:
    """Raise `ProtocolError` for fewer nodes than a sum must have."""
    if found < least:
        raise ProtocolError(f"{tag}: {found} nodes, and at least {least} must be in a secure sum")


def check_places(places: Sequence[int], of: Collection[int], own: int, what: str) -> None:
    """Raise `ProtocolError` unless `places` are some of those before, each once, in order, `own` among them.

    A place that Python would take from the end, or twice, makes one node two: threshold and least number then count it
    twice, and the masks of the two cancel.
    """
    if list(places) != sorted(set(places)) or not set(places) <= set(of) or own not in places:
        raise ProtocolError(f"{what} must be some of those before, each once, in order, and this node among them")


def transcript(run: str, names: Sequence[str], publics: Sequence[bytes]) -> bytes:
    """Return the digest of the list of keys."""
    return keys.digest(VERSION, b"/list", json.dumps([run, list(names)]).encode(), *publics)


def entry_text(run: str, name: str, public: bytes) -> bytes:
    """Return what a node signs of its public key."""
    return VERSION + b"/key" + public + json.dumps([run, name]).encode()


def echo_text(listed: bytes) -> bytes:
    """Return what a node signs of the list of keys."""
    return VERSION + b"/echo" + listed


@functools.lru_cache(maxsize=4)  # a worker's nodes check the same list: the answer depends on it alone
def check_list(
    run: str,
    names: tuple[str, ...],
    publics: tuple[bytes, ...],
    signatures: tuple[bytes, ...],
    pinned: tuple[bytes, ...],
) -> None:
    """Raise `ProtocolError` where a list of keys is not sorted, or has a key that is wrong, twice there or unsigned."""
    if list(names) != sorted(set(names)) or not len(names) == len(publics) == len(signatures):
        raise ProtocolError("the list of keys is not sorted by name, with one key and signature for each node")
    for fault in entry_faults(run, names, publics, signatures, pinned).values():
        raise ProtocolError(fault)


def entry_faults(
    run: str, names: Sequence[str], publics: Sequence[bytes], signatures: Sequence[bytes], pinned: Sequence[bytes]
) -> dict[str, str]:
    """Return by name what is wrong with entries of a list of keys: the server leaves these out, nodes refuse the list.

    Of two that have the same key, signed, one is a copy; which of them it is nobody can tell, so both are wrong. Nodes
    that answer at one time cannot copy from each other.
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
            faults[name] = f"no signing key of {name} is pinned here: whose key it is cannot be told"
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
    """Return by name what is wrong with what nodes sign of a list of keys: the server leaves these out."""
    return {
        name: f"{name} does not sign the list of keys that it was sent"
        for name, public, echo in signers
        if not keys.verified(public, echo, echo_text(listed))
    }


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
