"""Conflicts in secure sums: which nodes stay where two contradict each other about a share that one dealt to the other.

A conflict `(holder, dealer)` says that the holder's receipt does not fit the dealer's published digests: one of the two
lies, or the server changed the message that it passed on, and nobody can tell which. So a conflict alone excludes no
node: the holder's share of this dealer counts as missing, and both nodes go on. A node in conflict with more than half
of the others is out: where most nodes are honest, it is not honest. And where several nodes have no share of a dealer,
so that its keys could not be opened without its own help, one of the nodes in conflict must go, the one with most
conflicts: a single node that lies to many is in all of these conflicts, and each of the others in one.
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
    """Return the message to each participant about each other one: sealed shares, point of the proof, challenge.

    Args:
        tag: tag of the sum.
        names: names of all nodes, sorted; members and participants are places in this list.
        members: nodes with which the sum was begun.
        offers: offer of each participant.
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
    """Return the conflicts: holders, with the dealers whose published shares differ from the received ones.

    Args:
        members, offers: see `passed_on`.
        receipts: by node that answered, its receipts for each other participant in order.
    """
    participants, found = sorted(offers), set()
    for holder, own_receipts in receipts.items():
        place = members.index(holder) * dealing.DIGESTS
        for dealer, receipt in zip((i for i in participants if i != holder), own_receipts, strict=True):
            three = offers[dealer].digests[place : place + dealing.DIGESTS]
            if dealing.receipt_of(three) != receipt:
                found.add((holder, dealer))
    return found


def partners_of(found: Collection[Conflict]) -> dict[int, set[int]]:
    """Return the nodes that each node in a conflict contradicts or is contradicted by."""
    partners: dict[int, set[int]] = {}
    for one, other in found:
        partners.setdefault(one, set()).add(other)
        partners.setdefault(other, set()).add(one)
    return partners


def settled(
    present: Collection[int],
    found: Collection[Conflict],
    members: int,
    receiver: int | None = None,
) -> list[int]:
    """Return the nodes that stay, in order.

    Every other node must hold the receiver's dealt key of the checks: a node without the key is out. Where more than
    half of the others lack the key, or too few nodes would be left, the receiver is out instead.

    A dealer's own share may make up for a missing one: so no node is out for a single conflict, or where too few would
    be left.

    Args:
        present: nodes that are in the sum so far.
        found: the conflicts.
        members: number of nodes with which the sum was begun.
        receiver: node that opens the sum, if not the server.
    """
    staying = set(present)
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
    """Return by node the conflicts to report under its name: not those with a node that is out for more conflicts."""
    partners = partners_of(found)
    by_node: dict[int, list[Conflict]] = {}
    for pair in sorted(found):
        for place, other in (pair, pair[::-1]):
            if place not in staying or other in staying or len(partners[other]) <= len(partners[place]):
                by_node.setdefault(place, []).append(pair)
    return dict(sorted(by_node.items()))
