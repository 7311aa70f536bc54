"""Keys of secure sums: agreement as X25519 has it, and lists of keys that were changed on their way."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fne.core.hidden import ProtocolError
from fne.secure import keys, protocol
from fne.secure.keys import Agreement, Identity
from fne.secure.protocol import Tag
from fne.secure.session import Session
from tests.secure.parts import agree, unlisted, words


def test_agreement_is_x25519() -> None:
    """RFC 7748, section 5.2, the first vector."""
    scalar = bytes.fromhex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4")
    point = bytes.fromhex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c")
    agreed = bytes.fromhex("c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552")
    assert Agreement(scalar).agree(point) == agreed
    keys.check_public(point, "n0")


PRIME = 2**255 - 19
EIGHT = 325606250916557431795983626356110631294008115727848805560023387167927233504
OTHER_EIGHT = 39382357235489614581723060781553021112529911719440698176882885853963445705823


def little(number: int) -> bytes:
    return number.to_bytes(32, "little")


@pytest.mark.parametrize("point", [0, 1, PRIME - 1, EIGHT, OTHER_EIGHT])
def test_points_of_low_order_are_refused_twice(point: int) -> None:
    with pytest.raises(ProtocolError, match="n5 is a point of low order"):
        keys.check_public(little(point), "n5")
    with pytest.raises(ProtocolError, match="agree on zero"):
        Agreement().agree(little(point))


@pytest.mark.parametrize("point", [PRIME, PRIME + 1, 2**255, 2**255 + 9, 2**256 - 1])
def test_keys_written_in_a_second_way_are_refused(point: int) -> None:
    with pytest.raises(ProtocolError, match="n5 is not in its one canonical form"):
        keys.check_public(little(point), "n5")


@pytest.mark.parametrize("key", [b"", b"\x09" * 31, b"\x09" * 33])
def test_keys_of_a_wrong_length_are_refused(key: bytes) -> None:
    with pytest.raises(ProtocolError, match="must be 32"):
        keys.check_public(key, "n5")


def relayed(change: Callable[[list[str], list[bytes], list[bytes]], None]) -> None:
    """Let the first of four nodes take in a list of keys that the server has changed."""
    names = [f"n{i}" for i in range(4)]
    identities = [Identity(bytes([i]) * 32) for i in range(4)]
    pinned = {name: identity.public for name, identity in zip(names, identities, strict=True)}
    sessions = [Session(n, "run", i, pinned, {}) for n, i in zip(names, identities, strict=True)]
    publics, signatures = map(list, zip(*(session.entry() for session in sessions), strict=True))
    change(names, publics, signatures)
    sessions[0].join(names, publics, signatures)


def swapped(names: list[str], publics: list[bytes], signatures: list[bytes]) -> None:
    publics[1], publics[2] = publics[2], publics[1]
    signatures[1], signatures[2] = signatures[2], signatures[1]


def replaced(place: int, key: Callable[[list[bytes]], bytes]) -> Callable[..., None]:
    def change(names: list[str], publics: list[bytes], signatures: list[bytes]) -> None:
        publics[place] = key(publics)

    return change


def copied(place: int, owner: int) -> Callable[..., None]:
    """Let a node sign another one's key as its own."""

    def change(names: list[str], publics: list[bytes], signatures: list[bytes]) -> None:
        publics[place] = publics[owner]
        text = protocol.entry_text("run", names[place], publics[place])
        signatures[place] = Identity(bytes([place]) * 32).sign(text)

    return change


def unsorted(names: list[str], publics: list[bytes], signatures: list[bytes]) -> None:
    for values in (names, publics, signatures):
        values[1], values[2] = values[2], values[1]  # type: ignore[index]


def stranger(names: list[str], publics: list[bytes], signatures: list[bytes]) -> None:
    names[3] = "n9"


def shorter(names: list[str], publics: list[bytes], signatures: list[bytes]) -> None:
    signatures.pop()


def of_another_run(names: list[str], publics: list[bytes], signatures: list[bytes]) -> None:
    signatures[1] = Identity(bytes([1]) * 32).sign(protocol.entry_text("other", "n1", publics[1]))


RELAYS = [
    (swapped, "the public key of n1 is not signed by it"),
    (of_another_run, "the public key of n1 is not signed by it"),
    (replaced(2, lambda p: Agreement().public), "the public key of n2 is not signed by it"),
    (replaced(2, lambda p: p[0]), "the public key of n2 is not signed by it"),
    (copied(2, 0), "n0 and n2 have the same public key"),
    (copied(2, 1), "n1 and n2 have the same public key"),
    (replaced(0, lambda p: Agreement().public), "n0 is not signed by it"),
    (replaced(3, lambda p: bytes(32)), "n3 is a point of low order"),
    (replaced(3, lambda p: p[3][:31]), "the public key of n3 has 31 bytes"),
    (replaced(3, lambda p: little(2**255 | int.from_bytes(p[0], "little"))), "n3 is not in its one canonical form"),
    (stranger, "no signing key of n9 is pinned here"),
    (unsorted, "not sorted by name"),
    (shorter, "with one key and signature for each node"),
]


@pytest.mark.parametrize(("change", "said"), RELAYS)
def test_a_list_of_keys_that_the_relay_has_changed_is_refused(change: Callable[..., None], said: str) -> None:
    relayed(lambda *_: None)
    with pytest.raises(ProtocolError, match=said):
        relayed(change)


def test_an_old_key_of_ones_own_is_refused() -> None:
    """Signed by the node, for this run, but not the one that it holds now."""
    earlier = agree(4)
    session = Session("n00", "run", earlier[0]._identity, earlier[0]._pinned, {})
    publics, signatures = zip(*(other.entry() for other in earlier), strict=True)
    with pytest.raises(ProtocolError, match="has another one for n00 than it sent"):
        session.join([other.name for other in earlier], publics, signatures)


def test_a_server_that_tells_nodes_different_lists_is_noticed() -> None:
    sessions = unlisted(5)
    names = [session.name for session in sessions]
    publics, signatures = zip(*(session.entry() for session in sessions), strict=True)
    echoes = [session.join(names, publics, signatures) for session in sessions[:4]]
    echoes.append(sessions[4].join(names[1:], publics[1:], signatures[1:]))
    with pytest.raises(ProtocolError, match="n04 has another list of keys than this node"):
        sessions[0].confirm(range(5), echoes)
    sessions[0].confirm(range(4), echoes[:4])
    with pytest.raises(ProtocolError, match="attempt 0: members must be some of those before"):
        sessions[0].begin(Tag("run", 0, 0, "fitness"), range(5), words(1))


def test_a_session_takes_in_one_list_and_confirms_places_in_it_each_once() -> None:
    with pytest.raises(ProtocolError, match="has taken in no list of keys yet"):
        unlisted(5)[0].confirm([0], [b""])
    sessions = agree(5)
    names = [session.name for session in sessions]
    publics, signatures = zip(*(session.entry() for session in sessions), strict=True)
    with pytest.raises(ProtocolError, match="has taken in a list of keys in this session"):
        sessions[0].join(names, publics, signatures)
    for places in ([-3, -2, 0, 1, 2], [0, 1, 1, 2], [0, 1, 2, 5], [1, 0, 2, 3], [1, 2, 3, 4], []):
        with pytest.raises(ProtocolError, match="members must be some of those before, each once, in order, and this"):
            sessions[0].confirm(places, [b""] * len(places))
    with pytest.raises(ProtocolError, match="4 digests of 5 members"):
        sessions[0].confirm(range(5), [b""] * 4)


def test_identities_do_not_accept_nonsense() -> None:
    signature = Identity(bytes(32)).sign(b"x")
    assert keys.verified(Identity(bytes(32)).public, signature, b"x")
    assert not keys.verified(Identity(bytes(32)).public, signature, b"y")
    assert not keys.verified(b"short", signature, b"x")
    assert not keys.verified(Identity(bytes(32)).public, b"short", b"x")
