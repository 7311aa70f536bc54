"""A node's half of secure sums: keys once a run; for each sum an offer, receipts, a masked vector, and shares.

K. Bonawitz et al., "Practical secure aggregation for privacy-preserving machine learning", CCS 2017, with differences:

- Keys are agreed once a run. For the case that it drops out, a node shares not its private key, which would open every
  sum so far, but a key r that is drawn for this sum alone: r opens a box that holds the mask keys of this sum. Box and
  shares come with the offer, and receipts for the shares come before anything is masked: so a node whose shares do not
  fit is found while the sum can still do without the node (`fne.secure.dealing`, `fne.secure.conflicts`).
- A node takes part in an exchange only once its values exist, so a node whose work fails drops out before, not after.

For a sum, with m_ij from the keys that nodes i and j agreed on, and b_i drawn by node i:

    v_i = x_i + b_i + sum_{j > i} m_ij - sum_{j < i} m_ij   (mod 2^64, each b and m a keystream)

The server adds the v_i of the nodes that sent theirs. Each of these nodes then reveals its share of b_j for every j
that sent v_j, and its share of r_j for every j that did not: one or the other, once. `fne.secure.unmask` is the
server's half.

A sum may be for one of its nodes c in the server's place. Then c sends no vector, and no box holds m_ic, so the server
gets the sum of the others' v_i under the masks m_ic alone, which c removes. Because c sends no vector, b_c is no mask:
all other nodes get b_c whole and add checks made with b_c, by which c verifies what they sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fne.core.hidden import Hidden, ProtocolError
from fne.core.randomness import chosen_node
from fne.privacy.keystream import Words
from fne.secure import dealing, keys, protocol, shares
from fne.secure.keys import Agreement, Identity
from fne.secure.protocol import (
    CHECKS,
    LEAST,
    SEALED_BYTES,
    Errand,
    Offer,
    Tag,
    check_count,
    check_receiver,
    enough,
    threshold,
)

MOST_WORK = 4
"""Most different works that a node begins for one step: more than one after others needed snapshots or dropped out."""


class Session(Hidden):
    """A node's state of a run's secure sums; a new session has new keys.

    Members are numbers: places in the run's list of nodes, which is sorted by name.

    Args:
        name: name of the node.
        run: id of the run.
        identity: the node's signing key.
        pinned: public signing keys of all nodes, by which this node identifies them.
        answered: the last step for which the node has sent a vector, by run and kind; all sessions of the node share
            it.
        tried: by run and kind, the last step whose work the node has begun, and digests of the requests there; shared
            like `answered`.
    """

    __slots__ = (
        "_agreement", "_answered", "_begun", "_confirmed", "_exchange", "_identity", "_listed", "_names", "_pinned",
        "_secrets", "_transcript", "_tried", "_turn", "name", "run",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        run: str,
        identity: Identity,
        pinned: Mapping[str, bytes],
        answered: dict[tuple[str, str], int],
        tried: dict[tuple[str, str], tuple[int, set[bytes]]] | None = None,
    ) -> None:
        self.name, self.run = name, run
        self._identity, self._pinned, self._agreement = identity, pinned, Agreement()
        self._listed: dict[str, bytes] = {}
        self._names: tuple[str, ...] = ()
        self._transcript = b""
        self._confirmed: frozenset[int] = frozenset()
        self._secrets: dict[int, bytes] = {}
        self._exchange: Exchange | None = None
        self._begun = (-1, -1)
        self._turn: tuple[int, int] | None = None
        self._answered = answered
        self._tried = {} if tried is None else tried

    @property
    def count(self) -> int:
        """Number of nodes in the list."""
        return len(self._names)

    @property
    def number(self) -> int:
        """The node's place in the list; raises `ProtocolError` before the node has accepted a list."""
        if not self._names:
            raise ProtocolError("this node has taken in no list of keys yet")
        return self._names.index(self.name)

    # ------------------------------------------------------------------------------------------------ keys
    def entry(self) -> tuple[bytes, bytes]:
        """Return the node's public key, and its signature of the key, the run and its name."""
        public = self._agreement.public
        return public, self._identity.sign(protocol.entry_text(self.run, self.name, public))

    def join(self, names: Sequence[str], publics: Sequence[bytes], signatures: Sequence[bytes]) -> bytes:
        """Accept the keys of all nodes, as the server relays them; returns a signed digest of that list.

        A session accepts one list: confirmations and agreements are based on it.

        Raises:
            ProtocolError: a second list; a key or signature that is wrong, repeated, or not from a pinned node.
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
        """Check that these nodes have the same list; this node adds up only with them.

        Raises:
            ProtocolError: a member has another list, and is named; there is no list yet; or `members` are not places in
                the list with an echo for each.
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
        """Raise `ProtocolError` for a sum that was answered or begun before, or for too few or unconfirmed members."""
        self._check_new(tag)
        protocol.check_places(members, self._confirmed, self.number, f"{tag}: members")
        check_count(len(members), LEAST, tag)

    def work(self, tag: Tag, asked: bytes) -> None:
        """Record that work is begun for a sum, whether or not the sum is completed.

        The server learns of failed work without a sum and its masks. So the number of works is limited: otherwise the
        server could read a node's values by requesting ever different work and seeing when it fails.

        Raises:
            ProtocolError: too much other work was begun for the step, or the step is an earlier one.
        """
        step, begun = self._tried.get((tag.run, tag.kind), (-1, set()))
        if tag.step < step:
            raise ProtocolError(f"this node has begun work for step {step} of {tag.kind}: {tag} is over")
        begun = begun if tag.step == step else set()
        if asked not in begun and len(begun) == MOST_WORK:
            raise ProtocolError(f"this node has begun {MOST_WORK} different works for {tag}, and begins no further one")
        self._tried[tag.run, tag.kind] = tag.step, begun | {asked}

    def receiver(self, seed: int, turn: int, name: str, members: Sequence[int]) -> int:
        """Return the place of the node that is to open a sum, which all members draw alike.

        Raises:
            ProtocolError: this turn draws another node, or comes before an earlier turn.
        """
        before = self._turn or (seed, 0)
        if seed != before[0] or turn < before[1]:
            raise ProtocolError(
                f"turn {turn} of seed {seed} does not follow on turn {before[1]} of seed {before[0]}: those who open "
                "sums are drawn by one seed, in turns that do not go back"
            )
        names = [self._names[i] for i in members]
        drawn = chosen_node(seed, turn, names)
        if name != drawn:
            raise ProtocolError(f"turn {turn} draws {drawn} to open sums of {len(names)} nodes, and not {name}")
        self._turn = seed, turn
        return self._names.index(name)

    def begin(
        self, tag: Tag, members: Sequence[int], words: Words, work: bytes = b"", errand: Errand | None = None
    ) -> Offer:
        """Begin a sum with the node's vector; the state of an earlier sum is forgotten.

        Args:
            tag: of the sum.
            members: nodes with which the sum is begun.
            words: the vector.
            work: digest of the request; only nodes with the same digest can add up.
            errand: use of the sum by one of the nodes, if the sum is not for the server.

        Raises:
            ProtocolError: see `check`.
        """
        self.check(tag, members)
        own, receiver = self.number, None if errand is None else errand.receiver
        check_receiver(receiver, members, tag, "members")
        context = tag.context([self._names[i] for i in members])
        bound = protocol.bound(context, work)
        links = {other: self._link(other, bound) for other in members if other != own}
        mask, opener = keys.fresh(), keys.fresh()
        needed = 1 if own == receiver else threshold(len(members))
        number = members.index(own) + 1
        pairs, digests, proof = dealing.deal(context, number, (mask, opener), needed, len(members))
        of_member = dict(zip(members, pairs, strict=True))
        sealed = tuple(
            keys.seal(link.out, b"".join(of_member[other]), protocol.seal_text(bound, self.name, self._names[other]))
            for other, link in links.items()
        )
        masks = [links[other].mask for other in protocol.boxed(members, own, receiver)]
        box = keys.seal(opener, b"".join(masks), context)
        self._begun = (tag.step, tag.attempt)
        self._exchange = Exchange(tag, members, context, bound, links, words, mask, {own: of_member[own]}, errand)
        return Offer(sealed, box, protocol.commitment(context, mask), digests, proof)

    def dealt(self, tag: Tag, participants: Sequence[int], messages: Mapping[int, bytes]) -> list[bytes]:
        """Accept the shares that the others dealt; returns the receipts for the shares of each other node, in order.

        Zeros stand for the receipt of a message that is not its sender's: the server knows whose shares are missing.

        Args:
            tag: tag of the sum that was begun.
            participants: members whose offers arrived.
            messages: message passed on about each other node, see `fne.secure.conflicts.passed_on`.

        Raises:
            ProtocolError: not the sum that was begun; shares accepted before; or too few participants.
        """
        exchange, own = self._at(tag, BEGUN), self.number
        protocol.check_places(participants, exchange.members, own, "participants")
        check_count(len(participants), enough(len(exchange.members)), tag)
        check_receiver(exchange.receiver, participants, tag, "participants")
        exchange.participants, exchange.stage = tuple(participants), DEALT
        number = exchange.members.index(own) + 1
        receipts = []
        for other in participants:
            if other == own:
                continue
            text, sender = messages[other], self._names[other]
            bound_to = protocol.seal_text(exchange.bound, sender, self.name)
            try:
                plain = keys.unseal(exchange.links[other].into, text[:SEALED_BYTES], bound_to, sender)
            except ProtocolError:
                receipts.append(bytes(dealing.DIGEST_BYTES))
                continue
            pair = exchange.shares[other] = (plain[: shares.SHARE_BYTES], plain[shares.SHARE_BYTES :])
            point, challenge = text[SEALED_BYTES : -dealing.DIGEST_BYTES], text[-dealing.DIGEST_BYTES :]
            dealer = exchange.members.index(other) + 1
            receipts.append(dealing.receipt(exchange.context, dealer, number, pair, point, challenge))
        return receipts

    def masked(self, tag: Tag, participants: Sequence[int]) -> Words:
        """Return the node's vector under its masks.

        Args:
            tag: tag of the sum whose shares were accepted.
            participants: participants that stay in the sum.

        Raises:
            ProtocolError: not that sum; masked before; too few participants; or this node opens the sum, or has no key
                of the checks.
        """
        exchange = self._goes_on(tag, participants, opens=False)
        words = exchange.words
        if exchange.receiver is not None:
            words = np.concatenate([words, protocol.checks(exchange.check_key, exchange.nonce, words)])
        exchange.size = len(words)
        own_mask = protocol.own_mask(exchange.mask, exchange.nonce, len(words))
        return exchange.pairs(self.number, participants, words + own_mask)

    def kept(self, tag: Tag, participants: Sequence[int]) -> None:
        """Take part in a sum that this node opens: its vector stays here. See `masked` for arguments and errors."""
        self._goes_on(tag, participants, opens=True)

    def _goes_on(self, tag: Tag, participants: Sequence[int], *, opens: bool) -> Exchange:
        exchange, own = self._at(tag, DEALT), self.number
        protocol.check_places(participants, exchange.participants, own, "participants")
        check_count(len(participants), enough(len(exchange.members)), tag)
        check_receiver(exchange.receiver, participants, tag, "participants")
        if opens != (exchange.receiver == own):
            raise ProtocolError(f"{tag}: this node {'does not open' if opens else 'opens'} it")
        exchange.participants, exchange.stage = tuple(participants), MASKED
        self._answered[tag.run, tag.kind] = tag.step
        return exchange

    def revealed(self, tag: Tag, survivors: Sequence[int]) -> list[bytes]:
        """Return one share of each participant except a receiver: of b for a survivor, else of r.

        Zeros stand for a share that is missing because the sealed message could not be read. A node that does not open
        the sum forgets all of it except the keys of its masks.

        Args:
            tag: tag of the sum that was masked.
            survivors: participants whose vectors arrived, and a receiver.

        Raises:
            ProtocolError: not that sum; answered before; too few survivors; or the receiver is not among them.
        """
        exchange = self._at(tag, MASKED)
        protocol.check_places(survivors, exchange.participants, self.number, "survivors")
        check_count(len(survivors), enough(len(exchange.members)), tag)
        check_receiver(exchange.receiver, survivors, tag, "survivors")
        surviving = set(survivors)
        exchange.survivors, exchange.stage = tuple(survivors), TOLD
        others = [other for other in exchange.participants if other != exchange.receiver]
        nothing = (bytes(shares.SHARE_BYTES),) * 2
        answer = [exchange.shares.get(other, nothing)[0 if other in surviving else 1] for other in others]
        if exchange.receiver != self.number:
            exchange.forget()
        return answer

    def rest(self, tag: Tag, gone: Sequence[int]) -> Words:
        """Return the masks that this node shares with nodes that dropped out, under masks with the other survivors.

        By adding them up the server learns only what the keys in the boxes of those nodes would have revealed. The sum
        is over for this node then.

        Args:
            tag: tag of the sum whose shares this node has revealed.
            gone: participants that were no survivors then, in order.

        Raises:
            ProtocolError: not that sum; masks sent before; other nodes than those; or this node opens the sum.
        """
        exchange, own = self._at(tag, TOLD), self.number
        if exchange.receiver == own:
            raise ProtocolError(f"{tag}: this node opens it")
        dropped = set(exchange.participants) - set(exchange.survivors)
        if not gone or list(gone) != sorted(set(gone)) or not set(gone) <= dropped:
            raise ProtocolError(f"{tag}: nodes that are gone must be some of those that were said to be, in order")
        self._exchange = None
        masks = exchange.pairs(own, gone, np.zeros(exchange.size, dtype=np.uint64))
        others = [node for node in exchange.survivors if node != exchange.receiver]
        return exchange.pairs(
            own, others, masks, protocol.nonce_of_rest(exchange.participants, exchange.survivors, gone)
        )

    def received(self, tag: Tag, total: Words) -> tuple[Words, Errand]:
        """Return the sum of the survivors' vectors, and the use of the sum that the offer named.

        Args:
            tag: tag of the sum, whose shares this node has revealed.
            total: the server's still masked sum of the others, see `fne.secure.unmask.opened`.

        Raises:
            ProtocolError: not that sum; opened before; or the total is not the sum of what the others sent.
        """
        exchange = self._at(tag, TOLD)
        errand = exchange.errand
        if errand is None or errand.receiver != self.number:
            raise ProtocolError(f"{tag}: this node does not open it")
        self._exchange = None
        size = len(exchange.words) + CHECKS
        if len(total) != size:
            raise ProtocolError(f"{tag}: the server passes on {len(total)} words, must be {size}")
        total = exchange.pairs(self.number, exchange.survivors, total)
        words = total[:-CHECKS]
        if not exchange.is_intact(words, total[-CHECKS:]):
            raise ProtocolError(f"{tag}: the sum that the server passes on is not that of what the other nodes sent")
        return words + exchange.words, errand

    # ------------------------------------------------------------------------------------------------ checks
    def _check_new(self, tag: Tag) -> None:
        """Refuse a sum of an answered step, and an attempt that was begun before."""
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

    def _at(self, tag: Tag, stage: str) -> Exchange:
        """Return the sum under way; each stage is passed once."""
        exchange = self._exchange
        if exchange is None or exchange.tag != tag:
            under_way = "none" if exchange is None else str(exchange.tag)
            raise ProtocolError(f"this node is asked for {tag}; under way is {under_way}")
        if exchange.stage != stage:
            raise ProtocolError(f"this node has {exchange.stage} {tag}, and what it is asked for comes at another time")
        return exchange

    def _link(self, other: int, bound: bytes) -> Link:
        name = self._names[other]
        if other not in self._secrets:
            theirs = self._listed[name]
            low, high = sorted((self._agreement.public, theirs))
            info = protocol.VERSION + self._transcript + low + high
            agreed = self._agreement.agree(theirs)
            self._secrets[other] = keys.derived(agreed, salt=self.run.encode(), info=info)
        mask, upward, downward = keys.expanded(self._secrets[other], bound, 3)
        return Link(mask, upward, downward) if self.name < name else Link(mask, downward, upward)


BEGUN, DEALT, MASKED, TOLD = "begun", "taken in the shares of", "masked", "told its shares of"
"""Stages of a node in a sum."""


class Link(Hidden):
    """Keys of one sum that two nodes share: for the mask, and for their sealed messages."""

    __slots__ = ("into", "mask", "out")

    def __init__(self, mask: bytes, out: bytes, into: bytes) -> None:
        self.mask, self.out, self.into = mask, out, into


class Exchange(Hidden):
    """A sum under way; `mask` is the node's own b, `shares` are the shares that it holds of participants' b and r.

    There are no shares of a participant whose message could not be read.
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
        """Place of the node that opens the sum, if not the server."""
        return None if self.errand is None else self.errand.receiver

    @property
    def nonce(self) -> bytes:
        """Nonce of all keystreams."""
        return protocol.nonce_of(self.participants)

    @property
    def check_key(self) -> bytes:
        """The receiver's b, of which every share is the whole; raises `ProtocolError` where the node has none."""
        assert self.receiver is not None
        if self.receiver not in self.shares:
            raise ProtocolError(f"{self.tag}: this node could not read what the one that opens it sealed for it")
        return shares.joined({1: self.shares[self.receiver][0]})

    def is_intact(self, words: Words, checks: Words) -> bool:
        """Return whether `checks` fit a total of words."""
        return np.array_equal(protocol.checks(self.check_key, self.nonce, words), checks)

    def forget(self) -> None:
        """Forget everything about this sum except the keys of its masks."""
        self.words, self.mask = self.words[:0], b""
        self.shares = {node: pair for node, pair in self.shares.items() if node == self.receiver}

    def pairs(self, own: int, others: Sequence[int], total: Words, nonce: bytes = b"") -> Words:
        """Return a total plus the masks that `own` shares with others, signed for `own`; `own` itself is skipped.

        The masks are those of the vectors, or of another nonce.
        """
        binding = b"" if self.receiver is None else protocol.commitment(self.context, self.check_key)
        nonce, total = nonce or self.nonce, total.copy()
        for other in others:
            if other != own:
                key = protocol.pair_key(self.links[other].mask, binding)
                total += protocol.pair_mask(own, other, key, nonce, len(total))
        return total
