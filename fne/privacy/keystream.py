"""The ChaCha20 keystream: numbers that only those who hold the key can compute, for masks and for private draws."""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

KEY_BYTES = 32

Words = NDArray[np.uint64]

_PIECE = 2**16
_ZEROS = memoryview(bytes(_PIECE))


def keystream(key: bytes, nonce: bytes, words: int) -> Words:
    """Return the ChaCha20 keystream as little-endian words; a key and a nonce (12 bytes) are used for one vector."""
    cipher = Cipher(algorithms.ChaCha20(key, bytes(4) + nonce), mode=None).encryptor()
    made = bytearray(8 * words)
    for start in range(0, len(made), _PIECE):  # pieces that stay in the cache; a single piece takes three times as long
        piece = memoryview(made)[start : start + _PIECE]
        cipher.update_into(_ZEROS[: len(piece)], piece)
    return np.frombuffer(made, dtype="<u8").astype(np.uint64, copy=False)
