"""The server's half of secure sums: it removes the masks from the sum of the vectors."""

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
    """Return the sum of the survivors' vectors; where a survivor opens the sum, that of the others under its masks.

    The function also returns the faults of nodes' answers or offers, by place; and the nodes that dropped out and whose
    keys do not open their boxes, in order: the masks that survivors share with these are still on the sum, see
    `Session.rest`.

    Args:
        tag: tag of the sum.
        names: names of all nodes, sorted; members, participants and survivors are places in this list.
        offers: offer of each participant.
        members: nodes with which the sum was begun.
        total: sum of the survivors' masked vectors, in the ring.
        survivors: participants whose vectors are in the total.
        answers: by node that answered, its shares of each participant, see `Session.revealed`.
        receiver: node that opens the sum in the server's place, a survivor whose vector is not in the total.
        conflicts: holders, with the dealers of which they hold no identifiable share.

    Raises:
        ProtocolError: too few answers, or too few shares of a node that are the dealt ones; with both numbers.
    """
    needed = threshold(len(members))
    if len(answers) < needed:
        raise ProtocolError(f"{tag}: {len(answers)} nodes help to open the sum of {len(survivors)}, it takes {needed}")
    participants = sorted(offers)
    nonce, context = protocol.nonce_of(participants), tag.context([names[i] for i in members])
    number = {node: members.index(node) + 1 for node in participants}
    binding = b"" if receiver is None else offers[receiver].commitment
    surviving = set(survivors)
    total, faults, shut = total.copy(), dict[int, str](), list[int]()
    for place, participant in enumerate(p for p in participants if p != receiver):
        offer, name = offers[participant], names[participant]
        kind = dealing.MASK if participant in surviving else dealing.OPENER
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
        if participant in surviving:
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
            if other in surviving:
                mask = protocol.pair_key(box[number_ * KEY_BYTES : (number_ + 1) * KEY_BYTES], binding)
                total -= protocol.pair_mask(other, participant, mask, nonce, len(total))
    return total, faults, shut


def _joined(good: Mapping[int, bytes], needed: int, dealer: int, fits: Callable[[bytes], bool]) -> tuple[bytes, bool]:
    """Return the key of these shares, and whether the key fits what its dealer has published.

    The dealer's own share is the only one without a receipt from another node. So where the key does not fit, it is
    computed again without that share, if the others are enough; they are proven to lie on one polynomial.
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
