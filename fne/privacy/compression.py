"""Compressed updates of FedMOEAC: pruning, quantisation and noise of a node's update, and its encoding in bytes.

    bits u8 | checksum u32 | for each part: coding u8 | count u32 | positions | least f32 | largest f32 | levels

An update is a vector `[D]`; its parts are the tensors of the model, the leaves of its layout. Zeros are not sent. The
count is omitted where all or none of a part is sent; the range is omitted at 32 bits, where values follow as they are;
and levels are omitted where the range is one value. All is big-endian and packed without gaps; each stream begins on a
byte.

The ratio of eq. (6), size after over size before, is these bytes with all heads over the 4 D of plain float32: q / 32
for a dense update, and (H(p) + p q) / 32 with a share p of the values sent: at q = 8, 0.25 and with p = 0.1, 0.040.
Positions take up to 5% more than their entropy H(p) at random, and gain nothing where they cluster. They are gaps
between the values sent, or between those dropped, in Rice code: quotients gap >> k in unary, then remainders in k bits
each. The shortest of both forms over every k is taken; the unary of k = 0 is a bitmap.

Each part has its own levels, from the least to the largest value sent: layers differ in scale, biases even more, and
with one range for all parts small values would fall on one level. The ranges cost eight bytes for each part.

Deviations from the paper:
- Its eq. (3) rounds after division by the number of levels, which leaves only w_min and w_max. Here (2^q - 1) (w -
  w_min) / (w_max - w_min) is rounded, then divided; to the nearest level, since the floor lowers all weights by half a
  level on average (`rounding="floor"` takes it).
- Its eq. (4) clips weights, not their change by a node's data, and adds noise after quantisation, which makes floats of
  32 bits again (`order="literal"`). Here the update is clipped and noised, then compressed, which costs no privacy; so
  the threshold applies to updates.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fne.core.errors import FneError, SettingError
from fne.evolution.genome import Leaf
from fne.privacy.draws import Draws
from fne.privacy.noise import noised

Rounding = Literal["nearest", "floor"]
Prune = Literal["fc", "all"]
Order = Literal["proper", "literal"]
Pruning = Literal["threshold", "rate"]

FLOATS = 32
"""Number of bits at which values are sent as they are."""
_LEVELS = range(2, 17)
"""Allowed bits of levels: few enough that a range's end times a level is exact in float64."""
_HEAD = struct.Struct(">BI")
_RANGE = struct.Struct(">ff")

_Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Prepared:
    """A node's payload, and the update that the server gets from it, to add to the origin, float32 `[D]`."""

    update: Tensor
    payload: Tensor
    """uint8 `[n]`, see `encode`."""

    @property
    def size(self) -> int:
        """Number of bytes that are sent."""
        return self.payload.numel()


def prepare(
    delta: Tensor,
    parts: Sequence[Leaf],
    *,
    threshold: float,
    bits: int,
    clip: float | None,
    noise: float,
    prune: Prune = "fc",
    order: Order = "proper",
    rounding: Rounding = "nearest",
    pruning: Pruning = "threshold",
    draws: Callable[[Tensor], Draws] | None = None,
    origin: Tensor | None = None,
) -> Prepared:
    """Return an update clipped, noised and compressed: the payload, and the update that the server gets.

    Args:
        delta: the update, float32 `[D]`.
        parts: tensors of the update, one after the other.
        threshold: size below which values are pruned, see `pruning`.
        bits: bits of each value sent, see `encode`.
        clip: largest L2 norm; None: the update is not clipped.
        noise: standard deviation of the noise, in units of `clip`.
        prune: values that may be pruned: only weights of fully connected layers, or all.
        order: "proper" clips and noises the update, then prunes and quantises it; "literal" prunes and quantises the
            weights, then clips and noises them, and with noise sends all weights as floats.
        rounding: rounding of levels, see `encode`.
        pruning: meaning of `threshold`: a size, or the share of the prunable values that is pruned.
        draws: the node's private numbers for noise on a vector, see `fne.privacy.noise.noised`; unused without noise.
        origin: the weights that the update is added to, float32 `[D]`; needed for "literal".

    Raises what `encode` does, and `SettingError` for noise without `clip` and for other settings out of range.
    """
    vector = torch.from_numpy(_checked(delta, parts))
    pruned = prunable(parts, prune)
    if noise and clip is None:
        raise SettingError("clip", clip, f"a number above 0, which the noise ({noise:g}) is in units of")
    if order not in ("proper", "literal"):
        raise SettingError("order", order, "proper or literal")

    def at(values: Tensor) -> float:
        return threshold if pruning == "threshold" else threshold_of(values, threshold, pruned)

    if order == "proper":
        vector = noised(clipped(vector, clip), noise, clip or 0.0, draws)
        payload = encode(sparsified(vector, at(vector), pruned), parts, bits, rounding)
        return Prepared(decode(payload, parts), payload)
    if origin is None:
        raise ValueError("order='literal' compresses weights: give the origin that the update is added to")
    start = torch.from_numpy(_checked(origin, parts))
    weights = (start + vector).nan_to_num()  # a failure would reveal weights that have no noise yet
    weights = quantised(sparsified(weights, at(weights), pruned), parts, bits, rounding)
    weights = noised(clipped(weights, clip), noise, clip or 0.0, draws)
    payload = encode(weights, parts, FLOATS if noise else bits)
    return Prepared(decode(payload, parts) - start, payload)


# ------------------------------------------------------------------------------------------------ privacy
def clipped(vectors: Tensor, most: float | None) -> Tensor:
    """Return vectors `[.., D]` scaled down to an L2 norm of at most `most`; None leaves them, and so does a norm below.

    Both the vectors and the result are float32.
    """
    if most is None:
        return vectors
    if not most > 0:
        raise SettingError("clip", most, "a number above 0")
    norms = torch.linalg.vector_norm(vectors.double(), dim=-1, keepdim=True)
    inward = 1 - 2.0**-23  # rounding to float32 lengthens no number by more than this factor shortens it
    return torch.where(norms > most, (vectors.double() * (most / norms * inward)).float(), vectors)


# ------------------------------------------------------------------------------------------------ pruning and levels
def is_fully_connected(part: Leaf) -> bool:
    """Tell whether a tensor is the weight matrix of a fully connected layer: it has two axes."""
    return len(part.shape) == 2


def prunable(parts: Sequence[Leaf], prune: Prune) -> Tensor:
    """Return which values may be pruned, bool `[D]`: "all", or "fc", the weights of fully connected layers."""
    if prune not in ("fc", "all"):
        raise SettingError("prune", prune, "fc or all")
    chosen = torch.tensor([prune == "all" or is_fully_connected(part) for part in parts], dtype=torch.bool)
    return chosen.repeat_interleave(torch.tensor([part.stop - part.start for part in parts], dtype=torch.int64))


def threshold_of(vector: Tensor, rate: float, where: Tensor) -> float:
    """Return the size below which the share `rate` of the values at `where` lies; 0 for a rate of 0."""
    sizes = vector[where].abs()
    count = min(int(rate * len(sizes)), len(sizes) - 1)
    return float(sizes.kthvalue(count + 1).values) if count > 0 else 0.0


def sparsified(vector: Tensor, threshold: float, where: Tensor) -> Tensor:
    """Return a vector `[D]` with 0 for values at `where`, bool `[D]`, of a size below `threshold` (eq. 2)."""
    return torch.where(where & (vector.abs() < threshold), 0.0, vector)


def quantised(vector: Tensor, parts: Sequence[Leaf], bits: int, rounding: Rounding = "nearest") -> Tensor:
    """Return a vector as it arrives: each part on 2^bits levels from its least to its largest non-zero value (eq. 3).

    Arguments and errors are those of `encode`. Zeros stay zeros; 32 bits change nothing.
    """
    return decode(encode(vector, parts, bits, rounding), parts)


# ------------------------------------------------------------------------------------------------ bytes
def encode(vector: Tensor, parts: Sequence[Leaf], bits: int, rounding: Rounding = "nearest") -> Tensor:
    """Return the payload of a vector, uint8 `[n]`.

    Args:
        vector: float32 `[D]`.
        parts: parts of the vector, one after the other.
        bits: bits of a value: 2 to 16 for levels, or 32 for floats as they are, including -0.0.
        rounding: to the nearest level (half to even), or down to the next one ("floor").

    Raises:
        SettingError: the number of bits or the rounding is not allowed.
        FneError: a value is not finite; the text names the part.
    """
    if bits not in _LEVELS and bits != FLOATS:
        raise SettingError("bits", bits, "2 to 16, or 32 for floats as they are")
    if rounding not in ("nearest", "floor"):
        raise SettingError("rounding", rounding, "nearest or floor")
    values = _checked(vector, parts)
    body = b"".join(_encode_part(values[part.start : part.stop], bits, rounding) for part in parts)
    return torch.frombuffer(bytearray(_HEAD.pack(bits, _checksum(bits, body, parts)) + body), dtype=torch.uint8)


def decode(payload: Tensor, parts: Sequence[Leaf]) -> Tensor:
    """Return the vector of a payload, float32 `[D]`; raises `FneError` for a damaged payload or other parts."""
    raw = payload.detach().cpu().contiguous().numpy().tobytes()
    source = Reader(raw)
    bits, checksum = _HEAD.unpack(source.take(_HEAD.size))
    if (bits != FLOATS and bits not in _LEVELS) or checksum != _checksum(bits, raw[_HEAD.size :], parts):
        raise damaged("its checksum does not fit")
    vector = np.zeros(parts[-1].stop if parts else 0, np.float32)
    for part in parts:
        _decode_part(source, bits, vector[part.start : part.stop])
    if source.at != len(raw):
        raise damaged(f"{len(raw) - source.at} bytes are left over")
    if not np.isfinite(vector).all():
        raise damaged("it has values that are not finite")
    return torch.from_numpy(vector)


def _encode_part(values: _Floats, bits: int, rounding: Rounding) -> bytes:
    kept = values.view(np.uint32) != 0 if bits == FLOATS else values != 0
    sent = values[kept]
    if bits == FLOATS or not len(sent):
        return positions_of(kept) + np.asarray(sent, ">f4").tobytes()
    low, high = float(sent.min()), float(sent.max())
    if low == high:
        return positions_of(kept) + _RANGE.pack(low, high)
    scaled = (sent.astype(np.float64) - low) / (high - low) * (2**bits - 1)
    levels = (np.rint(scaled) if rounding == "nearest" else np.floor(scaled)).astype(np.uint32)
    return positions_of(kept) + _RANGE.pack(low, high) + packed(levels, bits)


def _decode_part(source: Reader, bits: int, values: _Floats) -> None:
    """Read one part into `values`, which are zeros before."""
    kept = read_positions(source, len(values))
    count = int(kept.sum())
    if bits == FLOATS or not count:
        values[kept] = np.frombuffer(source.take(4 * count), ">f4")
        return
    low, high = _RANGE.unpack(source.take(_RANGE.size))
    if not -math.inf < low <= high < math.inf:
        raise damaged(f"its values run from {low} to {high}")
    top = 2**bits - 1
    level = unpacked(source, count, bits if low < high else 0).astype(np.float64)
    # both products are exact, so sum, quotient and cast round the same way everywhere, and both ends are exact
    values[kept] = (low * (top - level) + high * level) / top
    values += np.float32(0)  # makes 0.0 of -0.0


def _checksum(bits: int, body: bytes, parts: Sequence[Leaf]) -> int:
    """Return a checksum of the body and of the sizes of the parts, so that parts of another model do not fit."""
    return zlib.crc32(body, zlib.crc32(repr([bits, *(part.stop - part.start for part in parts)]).encode()))


def _checked(vector: Tensor, parts: Sequence[Leaf]) -> _Floats:
    """Return a vector as an array; raises `FneError` that names the part with a value that is not finite."""
    size = parts[-1].stop if parts else 0
    if vector.shape != (size,) or vector.dtype != torch.float32:
        raise ValueError(f"a vector of these parts is float32 [{size}], not {vector.dtype} {list(vector.shape)}")
    values: _Floats = np.ascontiguousarray(vector.detach().cpu().numpy())
    finite = np.isfinite(values)
    if not finite.all():
        at = int(np.argmin(finite))
        part = next(part for part in parts if at < part.stop)
        wrong = int((~finite[part.start : part.stop]).sum())
        what = f"{part.name}: {wrong} of its {part.stop - part.start} values are not finite, such as {values[at]}"
        raise FneError(f"{what}; the training diverged: take a smaller learning rate")
    return values


_DROPPED, _DENSE, _EMPTY = 32, 64, 65
"""Codings: Rice parameter k for the values sent; `_DROPPED` + k for those dropped; all are sent; none is sent."""


class Reader:
    """Reader of bytes from the front."""

    def __init__(self, raw: bytes) -> None:
        self.raw, self.at = raw, 0

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        if len(self.raw) - self.at < count:
            raise damaged("it ends too early")
        self.at += count
        return self.raw[self.at - count : self.at]


def positions_of(kept: NDArray[np.bool_]) -> bytes:
    """Return coding, count and streams for the positions of the values that a part sends."""
    if kept.all() or not kept.any():
        return bytes([_DENSE if kept.any() else _EMPTY])
    choices: list[tuple[int, int, NDArray[np.int64]]] = []
    for flag, marked in ((0, kept), (_DROPPED, ~kept)):
        gaps = np.diff(np.flatnonzero(marked), prepend=-1) - 1
        for k in range(int(gaps.max()).bit_length() + 1):
            choices.append((int((gaps >> k).sum()) + len(gaps) * (1 + k), flag + k, gaps))
    _, coding, gaps = min(choices, key=lambda choice: choice[:2])
    k = coding % _DROPPED
    ends = np.cumsum((gaps >> k) + 1)
    unary = np.zeros(ends[-1], np.uint8)
    unary[ends - 1] = 1
    remainders = (gaps & (1 << k) - 1).astype(np.uint32)
    return bytes([coding]) + len(gaps).to_bytes(4, "big") + np.packbits(unary).tobytes() + packed(remainders, k)


def read_positions(source: Reader, size: int) -> NDArray[np.bool_]:
    """Return which of `size` values are sent, from the bytes of `positions_of`."""
    coding = source.take(1)[0]
    if coding in (_DENSE, _EMPTY):
        return np.full(size, coding == _DENSE)
    count = int.from_bytes(source.take(4), "big")
    if coding > _EMPTY or not 0 < count < size:
        raise damaged(f"it has {count} positions of {size}, in coding {coding}")
    k = coding % _DROPPED
    longest = count + ((size - count) >> k)  # quotients add up to at most the shifted sum of all gaps
    unary = np.frombuffer(source.raw[source.at : source.at + whole_bytes(longest)], np.uint8)
    ends = np.flatnonzero(np.unpackbits(unary))[:count]
    if len(ends) < count:
        raise damaged("its positions end too early")
    source.take(whole_bytes(int(ends[-1]) + 1))
    gaps = (np.diff(ends, prepend=-1) - 1 << k) + unpacked(source, count, k)
    positions = np.cumsum(gaps + 1) - 1
    if positions[-1] >= size:
        raise damaged(f"it has a position beyond the {size} of its part")
    kept = np.full(size, coding >= _DROPPED)
    kept[positions] ^= True
    return kept


def packed(numbers: NDArray[np.uint32], width: int) -> bytes:
    """Return the lowest `width` bits of each number without gaps, the highest bit first."""
    used = whole_bytes(width)
    octets = numbers.astype(">u4").view(np.uint8).reshape(-1, 4)[:, 4 - used :]
    return np.packbits(np.unpackbits(octets, axis=1)[:, 8 * used - width :]).tobytes()


def unpacked(source: Reader, count: int, width: int) -> NDArray[np.uint32]:
    """Return `count` numbers from the bytes of `packed`."""
    used = whole_bytes(width)
    raw = np.frombuffer(source.take(whole_bytes(count * width)), np.uint8)
    bits = np.zeros((count, 8 * used), np.uint8)
    bits[:, 8 * used - width :] = np.unpackbits(raw, count=count * width).reshape(count, width)
    octets = np.zeros((count, 4), np.uint8)
    octets[:, 4 - used :] = np.packbits(bits).reshape(count, used)
    return octets.view(">u4")[:, 0].astype(np.uint32)


def whole_bytes(bits: int) -> int:
    return -(-bits // 8)


def damaged(how: str) -> FneError:
    return FneError(f"compressed update: {how}; it is damaged, or of another model: let the node send it again")
