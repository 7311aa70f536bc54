"""A node's half of secure sums: keys once a run, and for each sum an offer, a masked vector, and shares to open it.

K. Bonawitz et al., "Practical secure aggregation for privacy-preserving machine learning", CCS 2017, with differences:

- Keys are agreed once a run. What a node shares for the case that it drops out is not its private key, by which every
  sum so far could be opened, but a key r that is drawn for this sum alone: it opens a box that holds the mask keys of
  this sum. Box and shares come with the offer, before anything is masked.
- A node takes part in an exchange only once its values are there, so one whose work fails drops out before, not after.

Of a sum, with m_ij of the keys that nodes i and j agreed on and b_i drawn by i:

    v_i = x_i + b_i + sum_{j > i} m_ij - sum_{j < i} m_ij   (mod 2^64, each b and m a keystream)

The server adds the v_i of those who sent theirs. Each of them then tells its share of b_j for every j that sent v_j,
and its share of r_j for every j that did not: one or the other, once. `fne.privacy.opening` is the server's half.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fne.privacy import keys, protocol, shares
from fne.privacy.hidden import Hidden, ProtocolError
from fne.privacy.keys import Agreement, Identity
from fne.privacy.protocol import LEAST, Offer, Tag, check_count, enough, threshold
from fne.privacy.ring import Words


class _Link(Hidden):
    """Keys of one sum that two nodes share: of the mask, and of what one seals for the other."""

    __slots__ = ("into", "mask", "out")

    def __init__(self, mask: bytes, out: bytes, into: bytes) -> None:
        self.mask, self.out, self.into = mask, out, into


class _Exchange(Hidden):
    """A sum under way."""

    __slots__ = ("bound", "links", "mask", "masked", "members", "participants", "shares", "tag", "words")

    def __init__(self, tag: Tag, members: Sequence[int], bound: bytes, links: Mapping[int, _Link], words: Words,
                 mask: bytes, shares: dict[int, tuple[bytes, bytes]]) -> None:  # fmt: skip
        self.tag, self.members, self.bound, self.links = tag, tuple(members), bound, links
        self.words, self.mask, self.shares = words, mask, shares
        self.participants: tuple[int, ...] = ()
        self.masked = False


class Session(Hidden):
    """What a node holds of a run's secure sums; a new one has new keys.

    Members are numbers: places in the run's list of nodes, which is sorted by name.

    Args:
        name: of the node.
        run: id of the run.
        identity: the node's signing key.
        pinned: public signing keys of all nodes that this one trusts to be who they are.
        answered: the last step that the node has sent a vector of, by run and kind; the node keeps it for all its
            sessions, of whatever runs.
    """

    __slots__ = (
        "_agreement", "_answered", "_begun", "_confirmed", "_exchange", "_identity", "_listed", "_names", "_pinned",
        "_secrets", "_transcript", "name", "run",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        run: str,
        identity: Identity,
        pinned: Mapping[str, bytes],
        answered: dict[tuple[str, str], int],
    ) -> None:
        self.name, self.run = name, run
        self._identity, self._pinned, self._agreement = identity, pinned, Agreement()
        self._listed: dict[str, bytes] = {}
        self._names: tuple[str, ...] = ()
        self._transcript = b""
        self._confirmed: frozenset[int] = frozenset()
        self._secrets: dict[int, bytes] = {}
        self._exchange: _Exchange | None = None
        self._begun = (-1, -1)
        self._answered = answered

    @property
    def number(self) -> int:
        """The node's place in the list; raises `ProtocolError` where it has taken in none yet."""
        if not self._names:
            raise ProtocolError("this node has taken in no list of keys yet")
        return self._names.index(self.name)

    # ------------------------------------------------------------------------------------------------ keys
    def entry(self) -> tuple[bytes, bytes]:
        """Return the node's public key, and its signature of it, the run and its name."""
        public = self._agreement.public
        return public, self._identity.sign(protocol.entry_text(self.run, self.name, public))

    def join(self, names: Sequence[str], publics: Sequence[bytes], signatures: Sequence[bytes]) -> bytes:
        """Take in the keys of all nodes, as the server relays them; returns a signed digest of that list.

        Once a session: what was confirmed and agreed on is of that list.

        Raises:
            ProtocolError: a second list; a key or signature that is wrong, twice there, or not of a node that is
                pinned.
        """
        if self._listed:
            raise ProtocolError("this node has taken in a list of keys in this session: another takes a new session")
        pinned = tuple(self._pinned.get(name, b"") for name in names)
        protocol.check_list(self.run, tuple(names), tuple(publics), tuple(signatures), pinned)
        listed = dict(zip(names, publics, strict=True))
        if listed.get(self.name) != self._agreement.public:
            raise ProtocolError(f"the list of keys has another one for {self.name} than it sent")
        self._listed, self._names = listed, tuple(names)
        self._transcript = protocol.transcript(self.run, names, publics)
        return self._identity.sign(protocol.echo_text(self._transcript))

    def confirm(self, members: Sequence[int], echoes: Sequence[bytes]) -> None:
        """Check that these nodes have the same list; only with them does this one add up.

        Raises:
            ProtocolError: one of them has another list, and is named; there is no list yet, or these are not places in
                it with an echo for each.
        """
        own, names = self.number, self._names
        protocol.check_places(members, range(len(names)), own, "members")
        if len(echoes) != len(members):
            raise ProtocolError(f"{len(echoes)} digests of {len(members)} members")
        signers = tuple((names[i], self._pinned[names[i]], e) for i, e in zip(members, echoes, strict=True))
        protocol.check_echoes(self._transcript, signers)
        self._confirmed = frozenset(members)

    # ------------------------------------------------------------------------------------------------ a sum
    def check(self, tag: Tag, members: Sequence[int]) -> None:
        """Raise `ProtocolError` for a sum that was answered or begun before, or members too few or not confirmed."""
        self._check_new(tag)
        protocol.check_places(members, self._confirmed, self.number, f"{tag}: members")
        check_count(len(members), LEAST, tag)

    def begin(self, tag: Tag, members: Sequence[int], words: Words, work: bytes = b"") -> Offer:
        """Begin a sum with the node's vector; what another one left behind is forgotten.

        Args:
            tag: of the sum.
            members: whom it is begun with.
            words: the vector.
            work: digest of what the node was asked; only nodes with the same can add up.

        Raises:
            ProtocolError: see `check`.
        """
        self.check(tag, members)
        own = self.number
        context = tag.context([self._names[i] for i in members])
        bound = protocol.bound(context, work)
        links = {other: self._link(other, bound) for other in members if other != own}
        mask, opener = keys.fresh(), keys.fresh()
        needed = threshold(len(members))
        pairs = list(zip(*(shares.split(key, needed, len(members)) for key in (mask, opener)), strict=True))
        of_member = dict(zip(members, pairs, strict=True))
        sealed = tuple(
            keys.seal(link.out, b"".join(of_member[other]), protocol.seal_text(bound, self.name, self._names[other]))
            for other, link in links.items()
        )
        box = keys.seal(opener, b"".join(link.mask for link in links.values()), context)
        self._begun = (tag.step, tag.attempt)
        self._exchange = _Exchange(tag, members, bound, links, words, mask, {own: of_member[own]})
        return Offer(sealed, box, protocol.commitment(context, mask))

    def masked(self, tag: Tag, participants: Sequence[int], sealed: Mapping[int, bytes]) -> Words:
        """Return the node's vector under its masks.

        Args:
            tag: of the sum that was begun.
            participants: members whose offers arrived.
            sealed: what each other one sealed for this node.

        Raises:
            ProtocolError: not the sum that was begun, or masked before; too few participants, or a sealed message that
                is not its sender's, which is named.
        """
        exchange, own = self._at(tag, masked=False), self.number
        protocol.check_places(participants, exchange.members, own, "participants")
        check_count(len(participants), enough(len(exchange.members)), tag)
        for other in participants:
            if other != own:
                sender = self._names[other]
                bound_to = protocol.seal_text(exchange.bound, sender, self.name)
                text = keys.unseal(exchange.links[other].into, sealed[other], bound_to, sender)
                exchange.shares[other] = (text[: shares.SHARE_BYTES], text[shares.SHARE_BYTES :])
        nonce, size = protocol.nonce_of(participants), len(exchange.words)
        total = exchange.words + protocol.own_mask(exchange.mask, nonce, size)
        for other in participants:
            if other != own:
                total += protocol.signed(own, other, keys.stream(exchange.links[other].mask, nonce, size))
        exchange.participants, exchange.masked = tuple(participants), True
        self._answered[tag.run, tag.kind] = tag.step
        return total

    def revealed(self, tag: Tag, survivors: Sequence[int]) -> list[bytes]:
        """Return of each participant one share: of b where it is a survivor, else of r. The sum is over for this node.

        Args:
            tag: of the sum that was masked.
            survivors: participants whose vectors arrived.

        Raises:
            ProtocolError: not that sum, or answered before; too few survivors.
        """
        exchange = self._at(tag, masked=True)
        protocol.check_places(survivors, exchange.participants, self.number, "survivors")
        check_count(len(survivors), enough(len(exchange.members)), tag)
        there = set(survivors)
        self._exchange = None
        return [exchange.shares[other][0 if other in there else 1] for other in exchange.participants]

    # ------------------------------------------------------------------------------------------------ checks
    def _check_new(self, tag: Tag) -> None:
        """Refuse a sum of a step that was answered, and an attempt that was begun."""
        if tag.run != self.run or not self._confirmed:
            raise ProtocolError(f"this node holds no keys for {tag} of run {tag.run!r}")
        last = self._answered.get((tag.run, tag.kind), -1)
        if tag.step <= last:
            raise ProtocolError(
                f"this node has answered {tag.kind} up to step {last}: a second answer to step "
                f"{tag.step}, with other nodes, would show the difference"
            )
        if (tag.step, tag.attempt) <= self._begun:
            raise ProtocolError(f"this node has begun {tag} or a later one before: keys are used once")

    def _at(self, tag: Tag, *, masked: bool) -> _Exchange:
        """Return the sum under way; each stage is passed once."""
        exchange = self._exchange
        if exchange is None or exchange.tag != tag:
            under_way = "none" if exchange is None else str(exchange.tag)
            raise ProtocolError(f"this node is asked for {tag}; under way is {under_way}")
        if exchange.masked != masked:
            raise ProtocolError(f"this node {'has' if exchange.masked else 'has not'} masked {tag} before")
        return exchange

    def _link(self, other: int, bound: bytes) -> _Link:
        name = self._names[other]
        if other not in self._secrets:
            theirs = self._listed[name]
            low, high = sorted((self._agreement.public, theirs))
            info = protocol.VERSION + self._transcript + low + high
            agreed = self._agreement.agree(theirs)
            self._secrets[other] = keys.derived(agreed, salt=self.run.encode(), info=info)
        mask, upward, downward = keys.expanded(self._secrets[other], bound, 3)
        return _Link(mask, upward, downward) if self.name < name else _Link(mask, downward, upward)
