"""Keys of secure sums: agreement (X25519), identity (Ed25519), derivation (HKDF-SHA256), sealed messages.

All primitives come from the package `cryptography`; keys come from the operating system, never from a generator of
NumPy or torch, whose seeds can be tried out one by one.
"""

from __future__ import annotations

import hashlib
import os

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from fne.core.hidden import Hidden, ProtocolError
from fne.privacy.keystream import KEY_BYTES, Words

SIGNATURE_BYTES = 64
TAG_BYTES = 16
"""Number of bytes by which sealing lengthens a message."""

_PRIME = 2**255 - 19
_LOW_ORDER = {
    0, 1, _PRIME - 1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
}  # fmt: skip
"""Points of order 1, 2, 4 and 8, on the curve or its twist: every agreement with them gives zero."""


def fresh() -> bytes:
    """Return a new key from the operating system."""
    return os.urandom(KEY_BYTES)


def drawn(words: int) -> Words:
    """Return secret random words from the operating system."""
    return np.frombuffer(os.urandom(8 * words), dtype=np.uint64)


def digest(*parts: bytes) -> bytes:
    """Return the SHA-256 of the parts; every part except the last has a known length or is JSON."""
    return hashlib.sha256(b"".join(parts)).digest()


# ------------------------------------------------------------------------------------------------ agreement
class Agreement(Hidden):
    """A key pair by which two nodes agree on a secret over an untrusted relay; by default a new pair."""

    __slots__ = ("_private", "public")

    def __init__(self, private: bytes | None = None) -> None:
        self._private = X25519PrivateKey.from_private_bytes(fresh() if private is None else private)
        self.public = self._private.public_key().public_bytes_raw()

    def agree(self, other: bytes) -> bytes:
        """Return the secret shared with the owner of another public key; raises `ProtocolError` if it is zero."""
        try:
            return self._private.exchange(X25519PublicKey.from_public_bytes(other))
        except ValueError:
            raise ProtocolError("a public key with which everybody would agree on zero") from None


def check_public(key: bytes, whose: str) -> None:
    """Raise `ProtocolError` for a public key of wrong length, not in canonical form, or of low order."""
    if len(key) != KEY_BYTES:
        raise ProtocolError(f"the public key of {whose} has {len(key)} bytes, must be {KEY_BYTES}")
    point = int.from_bytes(key, "little")
    if point >= _PRIME:
        raise ProtocolError(f"the public key of {whose} is not in its one canonical form")
    if point in _LOW_ORDER:
        raise ProtocolError(f"the public key of {whose} is a point of low order: everybody would agree on zero with it")


# ------------------------------------------------------------------------------------------------ identity
class Identity(Hidden):
    """A node's long-term signing key, made from 32 secret bytes."""

    __slots__ = ("_private", "public")

    def __init__(self, secret: bytes) -> None:
        self._private = Ed25519PrivateKey.from_private_bytes(secret)
        self.public = self._private.public_key().public_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        """Return the signature, 64 bytes."""
        return self._private.sign(message)


def verified(public: bytes, signature: bytes, message: bytes) -> bool:
    """Return whether the key's owner has signed this message."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


# ------------------------------------------------------------------------------------------------ derivation
def derived(secret: bytes, *, salt: bytes, info: bytes) -> bytes:
    """Return a key derived from an agreed secret (HKDF-SHA256)."""
    return HKDF(SHA256(), KEY_BYTES, salt, info).derive(secret)


def expanded(key: bytes, info: bytes, count: int) -> list[bytes]:
    """Return `count` keys derived from a key and their purpose (HKDF-Expand)."""
    raw = HKDFExpand(SHA256(), count * KEY_BYTES, info).derive(key)
    return [raw[i : i + KEY_BYTES] for i in range(0, len(raw), KEY_BYTES)]


def seal(key: bytes, plain: bytes, context: bytes) -> bytes:
    """Return a message encrypted and authenticated (ChaCha20-Poly1305); the key must seal no other message."""
    return ChaCha20Poly1305(key).encrypt(bytes(12), plain, context)


def unseal(key: bytes, sealed: bytes, context: bytes, whose: str) -> bytes:
    """Return the sealed message; raises `ProtocolError`, with the sender `whose`, if a bit or the context differs."""
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), sealed, context)
    except InvalidTag:
        raise ProtocolError(f"what {whose} sealed is not what arrived: changed, or of another step") from None
