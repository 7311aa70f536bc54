"""What a node holds of one sum while it is under way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fne.core.hidden import Hidden, ProtocolError
from fne.privacy.keystream import Words
from fne.secure import protocol, shares
from fne.secure.protocol import Errand, Tag

BEGUN, DEALT, MASKED, TOLD = "begun", "taken in the shares of", "masked", "told its shares of"
"""How far a node is with a sum."""


class Link(Hidden):
    """Keys of one sum that two nodes share: of the mask, and of what one seals for the other."""

    __slots__ = ("into", "mask", "out")

    def __init__(self, mask: bytes, out: bytes, into: bytes) -> None:
        self.mask, self.out, self.into = mask, out, into


class Exchange(Hidden):
    """A sum under way; `mask` is the node's own b, `shares` are those that it holds of b and r of participants.

    There are none of one whose message could not be read.
    """

    __slots__ = (
        "bound", "context", "errand", "links", "mask", "members", "participants", "shares", "size", "stage",
        "survivors", "tag", "words",
    )  # fmt: skip

    def __init__(
        self, tag: Tag, members: Sequence[int], context: bytes, bound: bytes, links: Mapping[int, Link], words: Words,
        mask: bytes, shares: dict[int, tuple[bytes, bytes]], errand: Errand | None,
    ) -> None:  # fmt: skip
        self.tag, self.members, self.context, self.bound, self.links = tag, tuple(members), context, bound, links
        self.words, self.mask, self.shares, self.errand = words, mask, shares, errand
        self.participants: tuple[int, ...] = ()
        self.survivors: tuple[int, ...] = ()
        self.size = 0
        self.stage = BEGUN

    @property
    def receiver(self) -> int | None:
        """Who opens the sum, if not the server."""
        return None if self.errand is None else self.errand.receiver

    @property
    def nonce(self) -> bytes:
        """Of all keystreams."""
        return protocol.nonce_of(self.participants)

    @property
    def check_key(self) -> bytes:
        """The receiver's b, any share of which is the whole; raises `ProtocolError` where the node has none."""
        assert self.receiver is not None
        if self.receiver not in self.shares:
            raise ProtocolError(f"{self.tag}: this node could not read what the one that opens it sealed for it")
        return shares.joined({1: self.shares[self.receiver][0]})

    def is_intact(self, words: Words, checks: Words) -> bool:
        """Return whether checks are those of a total of words."""
        return np.array_equal(protocol.checks(self.check_key, self.nonce, words), checks)

    def forget(self) -> None:
        """Keep of what was held for this sum no more than what masks are made of."""
        self.words, self.mask = self.words[:0], b""
        self.shares = {node: pair for node, pair in self.shares.items() if node == self.receiver}

    def pairs(self, own: int, others: Sequence[int], total: Words, nonce: bytes = b"") -> Words:
        """Return a total with what `own` adds of the masks that it shares with others; itself is passed over.

        The masks are those of the vectors, or of another nonce.
        """
        binding = b"" if self.receiver is None else protocol.commitment(self.context, self.check_key)
        nonce, total = nonce or self.nonce, total.copy()
        for other in others:
            if other != own:
                key = protocol.pair_key(self.links[other].mask, binding)
                total += protocol.pair_mask(own, other, key, nonce, len(total))
        return total
