"""The server's half of secure sums: what remains of the added vectors once the masks are taken off."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from fne.core.hidden import ProtocolError
from fne.privacy.keystream import KEY_BYTES, Words
from fne.secure import dealing, keys, protocol, shares
from fne.secure.conflicts import Conflict
from fne.secure.protocol import Offer, Tag, threshold


def opened(
    tag: Tag,
    names: Sequence[str],
    offers: Mapping[int, Offer],
    members: Sequence[int],
    total: Words,
    survivors: Sequence[int],
    answers: Mapping[int, Sequence[bytes]],
    receiver: int | None = None,
    conflicts: Collection[Conflict] = (),
) -> tuple[Words, dict[int, str], list[int]]:
    """Return the sum of the survivors' vectors; where one of them opens it, that of the others under its masks.

    With it comes what is wrong with a node's answers or offer, by place; and those that dropped out and have boxes that
    their keys do not open, in order: what survivors share with these is still on the sum, see `Session.rest`.

    Args:
        tag: of the sum.
        names: of all nodes, sorted; members, participants and survivors are places in it.
        offers: of each participant.
        members: whom the sum was begun with.
        total: of the survivors' masked vectors, in the ring.
        survivors: participants whose vectors are in it.
        answers: what those who answered tell of each participant, see `Session.revealed`.
        receiver: who opens the sum in the server's place, a survivor whose vector is not in the total.
        conflicts: who holds no share of whom that could be known again.

    Raises:
        ProtocolError: fewer answers than it takes, or shares of a node that are the ones it dealt, with both numbers.
    """
    needed = threshold(len(members))
    if len(answers) < needed:
        raise ProtocolError(f"{tag}: {len(answers)} nodes help to open the sum of {len(survivors)}, it takes {needed}")
    participants = sorted(offers)
    nonce, context = protocol.nonce_of(participants), tag.context([names[i] for i in members])
    number = {node: members.index(node) + 1 for node in participants}
    binding = b"" if receiver is None else offers[receiver].commitment
    there = set(survivors)
    total, faults, shut = total.copy(), dict[int, str](), list[int]()
    for place, participant in enumerate(p for p in participants if p != receiver):
        offer, name = offers[participant], names[participant]
        kind = dealing.MASK if participant in there else dealing.OPENER
        good: dict[int, bytes] = {}
        for node in sorted(answers):
            share = answers[node][place]
            known = offer.digests[dealing.DIGESTS * members.index(node) + kind]
            if (node, participant) in conflicts:
                continue
            if dealing.digest(context, number[participant], number[node], kind, share) == known:
                good[number[node]] = share
            else:
                faults[node] = f"tells another share of {name} than it was dealt"
        if len(good) < needed:
            raise ProtocolError(
                f"{tag}: {len(good)} nodes tell the shares that {name} dealt to them, it takes {needed}"
                f"{''.join(f'; {names[node]} {fault}' for node, fault in list(faults.items())[:3])}"
            )
        if participant in there:
            key, fits = _joined(good, needed, number[participant], partial(_is_mask, context, offer))
            if not fits and len(good.keys() - {number[participant]}) < needed:
                raise ProtocolError(f"{tag}: the share of its mask that {name} tells does not fit those of others")
            if not fits:
                faults[participant] = "deals shares of another mask than it commits itself to"
            total -= protocol.own_mask(key, nonce, len(total))
            continue
        key, fits = _joined(good, needed, number[participant], partial(_opens, context, offer))
        if not fits:
            faults[participant] = "drops out, and the key that it dealt does not open its box"
            shut.append(participant)
            continue
        box = keys.unseal(key, offer.box, context, name)
        for number_, other in enumerate(protocol.boxed(members, participant, receiver)):
            if other in there:
                mask = protocol.pair_key(box[number_ * KEY_BYTES : (number_ + 1) * KEY_BYTES], binding)
                total -= protocol.pair_mask(other, participant, mask, nonce, len(total))
    return total, faults, shut


def _joined(good: Mapping[int, bytes], needed: int, dealer: int, fits: Callable[[bytes], bool]) -> tuple[bytes, bool]:
    """Return the key of which these are shares, and whether it fits what its dealer has published besides.

    The dealer's own share is the only one for which nobody else gave a receipt. So where the key does not fit it is
    made anew without that one, if others are enough; that they lie on one polynomial is proven.
    """
    key = shares.joined(dict(list(good.items())[:needed]))
    others = [(number, share) for number, share in good.items() if number != dealer]
    if not fits(key) and len(others) >= needed:
        key = shares.joined(dict(others[:needed]))
    return key, fits(key)


def _is_mask(context: bytes, offer: Offer, mask: bytes) -> bool:
    return protocol.commitment(context, mask) == offer.commitment


def _opens(context: bytes, offer: Offer, opener: bytes) -> bool:
    try:
        keys.unseal(opener, offer.box, context, "")
    except ProtocolError:
        return False
    return True
