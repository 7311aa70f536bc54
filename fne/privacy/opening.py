"""The server's half of secure sums: what remains of the added vectors once the masks are taken off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fne.privacy import keys, protocol, shares
from fne.privacy.hidden import ProtocolError
from fne.privacy.protocol import Offer, Tag, threshold
from fne.privacy.ring import Words


def opened(
    tag: Tag,
    names: Sequence[str],
    offers: Mapping[int, Offer],
    members: Sequence[int],
    total: Words,
    survivors: Sequence[int],
    answers: Mapping[int, Sequence[bytes]],
    receiver: int | None = None,
) -> Words:
    """Return the sum of the survivors' vectors; where one of them opens it, that of the others under its masks.

    Args:
        tag: of the sum.
        names: of all nodes, sorted; members, participants and survivors are places in it.
        offers: of each participant.
        members: whom the sum was begun with.
        total: of the survivors' masked vectors, in the ring.
        survivors: participants whose vectors are in it.
        answers: what those who answered tell of each participant, see `Session.revealed`.
        receiver: who opens the sum in the server's place, a survivor whose vector is not in the total.

    Raises:
        ProtocolError: fewer answers than it takes, with both numbers; or shares that do not fit together.
    """
    needed = threshold(len(members))
    if len(answers) < needed:
        raise ProtocolError(f"{tag}: {len(answers)} nodes help to open the sum of {len(survivors)}, it takes {needed}")
    participants = sorted(offers)
    nonce, context = protocol.nonce_of(participants), tag.context([names[i] for i in members])
    used = {node: members.index(node) + 1 for node in sorted(answers)[:needed]}
    binding = b"" if receiver is None else offers[receiver].commitment
    there = set(survivors)
    total = total.copy()
    for place, participant in enumerate(p for p in participants if p != receiver):
        key = shares.joined({number: answers[node][place] for node, number in used.items()})
        offer, name = offers[participant], names[participant]
        if participant in there:
            if protocol.commitment(context, key) != offer.commitment:
                raise ProtocolError(f"{tag}: the shares of the mask of {name} do not fit together")
            total -= protocol.own_mask(key, nonce, len(total))
            continue
        box = keys.unseal(key, offer.box, context, name)
        for number, other in enumerate(protocol.boxed(members, participant, receiver)):
            if other in there:
                mask = protocol.pair_key(box[number * keys.KEY_BYTES : (number + 1) * keys.KEY_BYTES], binding)
                total -= protocol.pair_mask(other, participant, mask, nonce, len(total))
    return total
