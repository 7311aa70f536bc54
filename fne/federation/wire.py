"""Wire format: a message becomes a frame of a JSON head and raw tensors, with nothing executable.

    b"FNE" version:1 | head length:4, little endian | head (JSON: meta, tensors) | tensor bytes in the head's order

Engines measure traffic on frames really made; a frame is a list of buffers, so that counting copies no tensor.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import torch
from pydantic import BaseModel, Field, ValidationError
from torch import Tensor

from fne.config.settings import faults
from fne.core.errors import FneError
from fne.core.messages import PROTOCOL_VERSION, Header, Reply, Request, Scalar, Status, Tensors

_MAGIC = b"FNE" + bytes([PROTOCOL_VERSION])
_DTYPES = {
    "f8": torch.float64, "f4": torch.float32, "f2": torch.float16, "bf": torch.bfloat16, "i8": torch.int64,
    "i4": torch.int32, "i2": torch.int16, "i1": torch.int8, "u1": torch.uint8, "b1": torch.bool,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class WireError(FneError):
    """A frame that is damaged, has another protocol version, or holds values that may not be sent."""


@dataclass(frozen=True)
class Frame:
    """An encoded message: its buffers, their total bytes, and the bytes of the tensors among them."""

    buffers: tuple[bytes | memoryview, ...]
    encoded: int
    payload: int

    def __bytes__(self) -> bytes:
        return b"".join(self.buffers)


def sendable(value: Any) -> bool:
    """Return whether `encode` accepts the value as a tensor."""
    return isinstance(value, Tensor) and value.dtype in _NAMES


def raw_bytes(tensor: Tensor) -> memoryview:
    """Return a tensor's elements in order as bytes, copied only where memory has another order."""
    flat = tensor.detach().contiguous().cpu().reshape(-1)
    flat = flat.as_strided(flat.shape, (1,))  # one element is contiguous with any stride, but not for `view`
    return flat.view(torch.uint8).numpy().data


def encode(meta: Mapping[str, Any], tensors: Tensors) -> Frame:
    """Return the frame of small values `meta` (JSON) and named tensors; tensors on the CPU are not copied."""
    described: list[tuple[str, str, list[int]]] = []
    buffers: list[bytes | memoryview] = []
    payload = 0
    for name, tensor in tensors.items():
        kind = _NAMES.get(tensor.dtype)
        if kind is None:
            raise WireError(f"tensor {name!r} of type {tensor.dtype} cannot be sent; known: {', '.join(_DTYPES)}")
        described.append((name, kind, list(tensor.shape)))
        raw = raw_bytes(tensor)
        buffers.append(raw)
        payload += raw.nbytes
    head = json.dumps({"meta": meta, "tensors": described}, separators=(",", ":")).encode()
    start = _MAGIC + len(head).to_bytes(4, "little") + head
    return Frame((start, *buffers), len(start) + payload, payload)


def decode(frame: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return `meta` and the tensors of a frame; raises `WireError` for anything that `encode` did not make."""
    if frame[:3] != _MAGIC[:3]:
        raise WireError("not a frame of this protocol: it does not start with b'FNE'")
    if frame[3:4] != _MAGIC[3:4]:
        raise WireError(
            f"frame of protocol version {frame[3] if len(frame) > 3 else '?'}, this is {PROTOCOL_VERSION}: "
            "install the same version of fne at both ends"
        )
    body = 8 + int.from_bytes(frame[4:8], "little")
    if body > len(frame):
        raise WireError(f"frame cut off in its head: {len(frame)} bytes, {body} announced")
    try:
        head = json.loads(frame[8:body])
        meta = head["meta"]
        described = [(_exact(str, n), _DTYPES[k], [_exact(int, s) for s in shape]) for n, k, shape in head["tensors"]]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise WireError(f"frame with a broken head: {error!r}") from None
    if len({name for name, _, _ in described}) < len(described):
        raise WireError("frame with two tensors of one name")
    tensors: dict[str, Tensor] = {}
    at = body
    for name, dtype, shape in described:
        size = math.prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0 or at + size > len(frame):
            raise WireError(f"frame cut off in tensor {name!r}: {len(frame)} bytes, {at + size} announced")
        raw = bytearray(frame[at : at + size])
        if dtype is torch.bool and raw.translate(None, b"\0\1"):
            raise WireError(f"frame with a byte other than 0 and 1 in tensor {name!r} of type bool")
        flat = torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)
        try:
            tensors[name] = flat.reshape(shape)
        except (RuntimeError, TypeError, OverflowError):  # an empty tensor with dimensions beyond int64
            raise WireError(f"frame with an impossible shape of tensor {name!r}: {shape}") from None
        at += size
    if at != len(frame):
        raise WireError(f"frame with {len(frame) - at} bytes after its last tensor")
    return meta, tensors


T = TypeVar("T")


def _exact(kind: type[T], value: Any) -> T:
    if type(value) is not kind:  # true is no number here
        raise TypeError(f"{value!r} is not of type {kind.__name__}")
    return value


# ------------------------------------------------------------------------------------------------ messages
class _Strict(BaseModel, strict=True, extra="forbid"):
    """The part of a message beside tensors; the fields are those of `fne.core.messages`."""


class _Header(_Strict):
    seed: int
    step: Annotated[int, Field(ge=0)]
    run: str
    attempt: Annotated[int, Field(ge=0)]
    protocol: int


class _RequestMeta(_Strict):
    header: _Header
    task: str
    options: dict[str, Scalar]
    reduce: Literal["none", "sum"]


class _PrivateMeta(_Strict):
    node: str


class _ReplyMeta(_Strict):
    header: _Header
    node: str
    status: Annotated[Status, Field(strict=False)]
    reason: Annotated[str, Field(max_length=1000)]


M = TypeVar("M", bound=BaseModel)


def _decode_as(model: type[M], what: str, frame: bytes) -> tuple[M, dict[str, Tensor]]:
    try:
        meta, tensors = decode(frame)
        return model.model_validate(meta), tensors
    except (ValidationError, WireError) as error:
        why = faults(error) if isinstance(error, ValidationError) else str(error)
        raise WireError(f"frame that is no {what}: {why[:300]}") from None


def request_frames(request: Request) -> tuple[Frame, dict[str, Frame]]:
    """Return the frame that goes to every addressee and the further frames of single ones."""
    meta = {
        "header": vars(request.header), "task": request.task, "options": dict(request.options),
        "reduce": request.reduce,
    }  # fmt: skip
    common = encode(meta, request.common)
    return common, {node: encode({"node": node}, tensors) for node, tensors in request.private.items()}


def decode_request(common: bytes, private: Mapping[str, bytes], nodes: Sequence[str]) -> Request:
    """Return the request as the given nodes' worker receives it; raises `WireError` for anything else."""
    meta, tensors = _decode_as(_RequestMeta, "request", common)
    own = {}
    for node, frame in private.items():
        addressee, own[node] = _decode_as(_PrivateMeta, "request", frame)
        if addressee.node != node:
            raise WireError(f"frame that is no request to {node!r}: it is addressed to {addressee.node!r}")
    header = Header(**meta.header.model_dump())
    return Request(header, meta.task, tuple(nodes), tensors, own, meta.options, meta.reduce)


def reply_frame(reply: Reply) -> Frame:
    """Return a reply's frame."""
    meta = {"header": vars(reply.header), "node": reply.node, "status": reply.status, "reason": reply.reason}
    return encode(meta, reply.payload)


def decode_reply(frame: bytes) -> Reply:
    """Return the reply of a frame; raises `WireError` for anything that `reply_frame` did not make."""
    meta, tensors = _decode_as(_ReplyMeta, "reply", frame)
    return Reply(Header(**meta.header.model_dump()), meta.node, meta.status, meta.reason, tensors)
