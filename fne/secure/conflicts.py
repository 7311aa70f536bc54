"""Who stays in a sum where two nodes contradict each other about what one dealt and the other got.

A conflict `(holder, dealer)` says that the holder's receipt is not the one for what the dealer published: one of the
two lies, or what the server passed on was changed, and nobody can tell which. So a conflict puts nobody out by itself:
the holder's share of this dealer is taken for missing, and both go on. Who is in conflict with more than half of the
others is out: where most nodes are honest, it is not. And where several have no share of a dealer, so that its keys
could not be opened without its own help, one of those in conflict must go, the one that has most conflicts: a node
alone that lies to many is in all of their conflicts, and each of them in one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from fne.secure import dealing
from fne.secure.protocol import Offer, Tag, enough, threshold

Conflict = tuple[int, int]


def passed_on(
    tag: Tag, names: Sequence[str], members: Sequence[int], offers: Mapping[int, Offer]
) -> dict[int, dict[int, bytes]]:
    """Return what each participant is passed on of each other one: what was sealed for it, its point, the challenge.

    Args:
        tag: of the sum.
        names: of all nodes, sorted; members and participants are places in it.
        members: whom the sum was begun with.
        offers: of each participant.
    """
    context = tag.context([names[i] for i in members])
    found: dict[int, dict[int, bytes]] = {to: {} for to in offers}
    points = dealing.points([offer.proof for offer in offers.values()], len(members))
    for (by, offer), at in zip(offers.items(), points, strict=True):
        challenge = dealing.challenge(context, members.index(by) + 1, offer.digests)
        others = [(member, point) for member, point in zip(members, at, strict=True) if member != by]
        for (to, point), sealed in zip(others, offer.sealed, strict=True):
            if to in found:
                found[to][by] = sealed + point + challenge
    return found


def conflicts(
    members: Sequence[int], offers: Mapping[int, Offer], receipts: Mapping[int, Sequence[bytes]]
) -> set[Conflict]:
    """Return who holds of whom other shares than were published.

    Args:
        members, offers: see `passed_on`.
        receipts: of those who answered, for each other participant in order.
    """
    participants, found = sorted(offers), set()
    for holder, told in receipts.items():
        place = members.index(holder) * dealing.DIGESTS
        for dealer, receipt in zip((i for i in participants if i != holder), told, strict=True):
            three = offers[dealer].digests[place : place + dealing.DIGESTS]
            if dealing.receipt_of(three) != receipt:
                found.add((holder, dealer))
    return found


def partners_of(found: Collection[Conflict]) -> dict[int, set[int]]:
    """Return whom each node in a conflict contradicts, or is contradicted by."""
    partners: dict[int, set[int]] = {}
    for one, other in found:
        partners.setdefault(one, set()).add(other)
        partners.setdefault(other, set()).add(one)
    return partners


def settled(
    there: Collection[int],
    found: Collection[Conflict],
    members: int,
    receiver: int | None = None,
) -> list[int]:
    """Return who stays, in order.

    What a receiver deals, its key of the checks, every other node must hold: who does not is out. Where that is more
    than half of the others, or too few would be left, it is the receiver that is out.

    A dealer's own share may make up for one that is missing: so nobody is out for a single conflict, or where too few
    would be left.

    Args:
        there: who is in the sum so far.
        found: the conflicts.
        members: with how many the sum was begun.
        receiver: who opens the sum, if not the server.
    """
    staying = set(there)
    lost = {holder for holder, dealer in found if dealer == receiver} & staying
    if receiver in staying and lost and len(staying - lost) < max(enough(members), (len(staying) + 1) / 2):
        staying.discard(receiver)
    else:
        staying -= lost
    while True:
        left = [(a, b) for a, b in found if a in staying and b in staying]
        partners = partners_of(left)
        many = {node for node, others in partners.items() if 2 * len(others) > len(staying) - 1}
        missing = Counter(dealer for _, dealer in left)
        held = {dealer: len(staying) - 1 - count for dealer, count in missing.items()}
        needed = threshold(members)
        lacking = {d for d, count in missing.items() if held[d] + 1 < needed or (held[d] < needed and count > 1)}
        candidates = many | lacking | {holder for holder, dealer in left if dealer in lacking}
        if not candidates or len(staying) <= enough(members):
            return sorted(staying)
        staying.remove(max(candidates, key=lambda i: (len(partners[i]), i in lacking, -i)))


def open_conflicts(found: Collection[Conflict], staying: Collection[int]) -> dict[int, list[Conflict]]:
    """Return by node the conflicts that are told under its name: not those with one that is out for more of them."""
    partners = partners_of(found)
    told: dict[int, list[Conflict]] = {}
    for pair in sorted(found):
        for place, other in (pair, pair[::-1]):
            if place not in staying or other in staying or len(partners[other]) <= len(partners[place]):
                told.setdefault(place, []).append(pair)
    return dict(sorted(told.items()))
