"""Frames: what goes in comes out, bit for bit; anything else is a `WireError`."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fne.core.messages import Header, Reply, Request, Status
from fne.federation.wire import (
    Frame,
    WireError,
    decode,
    decode_reply,
    decode_request,
    encode,
    raw_bytes,
    reply_frame,
    request_frames,
)

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
]  # fmt: skip


def bits(tensor: Tensor) -> bytes:
    """Return a tensor's raw bytes: NaNs compare by their bits."""
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Draw a tensor of any type and of 0 to 3 dimensions, empty ones and arbitrary bit patterns included."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    count = int(torch.Size(shape).numel())
    if dtype is torch.bool:
        values = draw(st.lists(st.booleans(), min_size=count, max_size=count))
        return torch.tensor(values, dtype=dtype).reshape(shape)
    raw = draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize))
    if not raw:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape)


@given(st.dictionaries(st.text(max_size=5), tensors(), max_size=4))
@settings(deadline=None, max_examples=150)
def test_round_trip(payload: dict[str, Tensor]) -> None:
    meta = {"step": 3, "text": "é\x00", "share": 0.1, "deep": [1, {"a": None}]}
    frame = encode(meta, payload)
    raw = bytes(frame)
    assert frame.encoded == len(raw)
    assert frame.payload == sum(t.numel() * t.element_size() for t in payload.values())
    got_meta, got = decode(raw)
    assert got_meta == meta
    assert list(got) == list(payload)  # the order too
    for name, tensor in payload.items():
        assert (got[name].dtype, got[name].shape) == (tensor.dtype, tensor.shape)
        assert bits(got[name]) == bits(tensor)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (2, 3)])
def test_every_type_in_every_shape(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.ones(shape, dtype=dtype)
    (got,) = decode(bytes(encode({}, {"t": tensor})))[1].values()
    assert got.dtype == dtype
    assert got.shape == shape
    assert torch.equal(got, tensor)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64, torch.uint8, torch.bool])
def test_a_single_element_of_any_stride_is_sent(dtype: torch.dtype) -> None:
    column = torch.ones(1, 22).to(dtype)[:, -1]
    assert column.stride() == (22,)
    assert torch.equal(decode(bytes(encode({}, {"s": column})))[1]["s"], column)
    assert bytes(raw_bytes(column)) == column.numpy().tobytes()


def test_strided_and_trainable_tensors_are_sent_by_value() -> None:
    strided = torch.arange(12.0).view(3, 4).t()[1:]
    trainable = torch.nn.Parameter(torch.ones(2))
    got = decode(bytes(encode({}, {"s": strided, "p": trainable})))[1]
    assert torch.equal(got["s"], strided)
    assert torch.equal(got["p"], torch.ones(2))
    got["p"].add_(1)  # what was decoded is the receiver's own and may be written


def test_types_that_have_no_name_on_the_wire_are_refused() -> None:
    with pytest.raises(WireError, match=r"'t' of type torch\.complex64 cannot be sent"):
        encode({}, {"t": torch.ones(2, dtype=torch.complex64)})


def test_a_frame_cut_off_anywhere_is_an_error() -> None:
    frame = bytes(encode({"a": 1}, {"x": torch.ones(2, 3), "e": torch.empty(0), "n": torch.tensor(5)}))
    for length in range(len(frame)):
        with pytest.raises(WireError):
            decode(frame[:length])
    with pytest.raises(WireError, match="1 bytes after its last tensor"):
        decode(frame + b"\0")


def test_another_version_is_named() -> None:
    frame = bytearray(bytes(encode({}, {})))
    frame[3] = 9
    with pytest.raises(WireError, match="frame of protocol version 9, this is 1: install the same version"):
        decode(bytes(frame))
    with pytest.raises(WireError, match="does not start with b'FNE'"):
        decode(b"GET / HTTP/1.1\r\n\r\n")


def framed(head: bytes, rest: bytes = b"") -> bytes:
    return b"FNE\x01" + len(head).to_bytes(4, "little") + head + rest


def described(*tensors: Any) -> bytes:
    return json.dumps({"meta": {}, "tensors": tensors}).encode()


@pytest.mark.parametrize(
    "frame",
    [
        framed(b"{"),
        framed(b"\xff\xfe"),
        framed(b"[]"),
        framed(b"null"),
        framed(b'{"meta": {}}'),
        framed(b'{"meta": {}, "tensors": 3}'),
        framed(b"[" * 100_000),
        framed(described(["x", "f4"])),
        framed(described(["x", "q9", [1]]), b"1234"),
        framed(described(["x", ["f4"], [1]]), b"1234"),
        framed(described(["x", "f4", [-1]])),
        framed(described(["x", "f4", [-1, -1]]), b"1234"),
        framed(described(["x", "f4", ["two"]])),
        framed(described(["x", "f4", [float("inf")]])),
        framed(described(["x", "f4", [2**62, 2**62, 0]])),
        framed(described(["x", "f4", [2**70, 0]])),
        framed(described(["x", "f4", [2**40]]), b"1234"),
        framed(described(["x", "f4", [1.0]]), b"1234"),
        framed(described(["x", "f4", [True]]), b"1234"),
        framed(described(["x", "f4", "1"]), b"1234"),
        framed(described([7, "f4", [1]]), b"1234"),
        framed(described(["x", "u1", [1]], ["x", "u1", [1]]), b"12"),
        framed(described(["x", "b1", [2]]), b"\x01\x02"),
    ],
)
def test_heads_that_encode_did_not_make(frame: bytes) -> None:
    with pytest.raises(WireError):
        decode(frame)


@given(st.binary(max_size=60), st.integers(0, 200), st.integers(0, 255))
@settings(deadline=None, max_examples=200)
def test_noise_raises_nothing_else(noise: bytes, at: int, value: int) -> None:
    frame = bytearray(bytes(encode({"a": [1, 2]}, {"x": torch.ones(3), "n": torch.tensor(5)})))
    frame[at % len(frame)] = value
    for candidate in (bytes(frame), framed(noise), noise):
        try:
            decode(candidate)
        except WireError:
            continue


# ------------------------------------------------------------------------------------------------ messages
HEADER = Header(seed=2**62, step=5, run="r", attempt=2)


def test_requests_come_apart_into_what_all_get_and_what_one_gets() -> None:
    request = Request(
        HEADER, "fitness", ("b", "a"), {"population": torch.ones(2, 3)}, {"a": {"mine": torch.tensor(True)}},
        {"loss": "mse", "mu": 0.5, "n": 3, "flag": True}, "sum",
    )  # fmt: skip
    common, private = request_frames(request)
    assert set(private) == {"a"}
    assert b"mine" not in bytes(common)
    got = decode_request(bytes(common), {"a": bytes(private["a"])}, ["b", "a"])
    assert (got.header, got.task, got.nodes, got.reduce) == (HEADER, "fitness", ("b", "a"), "sum")
    assert got.options == request.options
    assert torch.equal(got.common["population"], torch.ones(2, 3))
    assert got.private["a"]["mine"].item() is True


@pytest.mark.parametrize("status", list(Status))
def test_replies_come_back(status: Status) -> None:
    reply = Reply(HEADER, "n0", status, "why; „so“", {"loss": torch.tensor([[0.5]]), "n": torch.tensor([3])})
    frame = reply_frame(reply)
    assert isinstance(frame, Frame)
    got = decode_reply(bytes(frame))
    assert (got.header, got.node, got.status, got.reason) == (HEADER, "n0", status, "why; „so“")
    assert isinstance(got.status, Status)
    assert {n: t.tolist() for n, t in got.payload.items()} == {"loss": [[0.5]], "n": [3]}


HEAD = {"seed": 1, "step": 2, "run": "r", "attempt": 0, "protocol": 1}
REQUEST = {"header": HEAD, "task": "fitness", "options": {}, "reduce": "sum"}
REPLY = {"header": HEAD, "node": "n0", "status": "ok", "reason": ""}


def without(meta: dict[str, Any], key: str) -> dict[str, Any]:
    return {k: v for k, v in meta.items() if k != key}


FOREIGN_HEADERS = [{**HEAD, "colour": "red"}, without(HEAD, "step"), None, 3, "seed", ["seed", "step"]]


@pytest.mark.parametrize(
    "meta",
    [
        *({**REQUEST, "header": header} for header in FOREIGN_HEADERS),
        *(without(REQUEST, key) for key in REQUEST),
        {}, [], None, 7, "request", REPLY,
    ],
)  # fmt: skip
def test_frames_that_are_no_request(meta: Any) -> None:
    assert decode_request(bytes(encode(REQUEST, {})), {}, ["n0"]).header == Header(**HEAD)
    with pytest.raises(WireError, match="frame that is no request"):
        decode_request(bytes(encode(meta, {})), {}, ["n0"])


NONSENSE_HEADERS = [
    {**HEAD, key: value}
    for key, values in {
        "seed": ("x", None, 1.0, True), "step": ([1], -1, "2"), "run": (3, None), "attempt": (-1, {}),
        "protocol": ("1",),
    }.items()
    for value in values
]  # fmt: skip


@pytest.mark.parametrize(
    "meta",
    [
        *({**REQUEST, "header": header} for header in NONSENSE_HEADERS),
        *({**REQUEST, "task": task} for task in (1, None, ["fitness"])),
        *({**REQUEST, "options": options} for options in ([], None, {"loss": None}, {"loss": ["mse"]})),
        *({**REQUEST, "reduce": reduce} for reduce in ("bogus", None, 0, True)),
        {**REQUEST, "colour": "red"},
    ],
)  # fmt: skip
def test_requests_of_nonsense(meta: Any) -> None:
    with pytest.raises(WireError, match="frame that is no request"):
        decode_request(bytes(encode(meta, {})), {}, ["n0"])


@pytest.mark.parametrize(
    "meta",
    [
        *({**REPLY, "header": header} for header in NONSENSE_HEADERS),
        *({**REPLY, "node": node} for node in (1, None, {"a": 1})),
        *({**REPLY, "reason": reason} for reason in (1, None, "x" * 1001)),
        {**REPLY, "colour": "red"},
    ],
)  # fmt: skip
def test_replies_of_nonsense(meta: Any) -> None:
    assert decode_reply(bytes(encode({**REPLY, "reason": "x" * 1000}, {}))).reason == "x" * 1000
    with pytest.raises(WireError, match="frame that is no reply") as caught:
        decode_reply(bytes(encode(meta, {})))
    assert len(str(caught.value)) < 400


def test_options_keep_their_types() -> None:
    options = {"loss": "mse", "epochs": 1, "lr": 1.0, "keep": True}
    got = decode_request(bytes(encode({**REQUEST, "options": options}, {})), {}, ["n0"]).options
    assert [(value, type(value)) for value in got.values()] == [(value, type(value)) for value in options.values()]


def test_a_private_frame_for_another_node() -> None:
    private = bytes(encode({"node": "a"}, {"x": torch.ones(2)}))
    with pytest.raises(WireError, match="no request to 'b': it is addressed to 'a'"):
        decode_request(bytes(encode(REQUEST, {})), {"b": private}, ["a", "b"])


@pytest.mark.parametrize("broken", [b"", b"GET /", framed(b"{"), bytes(encode({}, {"x": torch.ones(2)}))[:-1]])
def test_a_request_with_a_broken_private_frame(broken: bytes) -> None:
    good = bytes(encode({"node": "a"}, {"x": torch.ones(2)}))
    with pytest.raises(WireError, match="frame that is no request"):
        decode_request(bytes(encode(REQUEST, {})), {"a": good, "b": broken}, ["a", "b"])


@pytest.mark.parametrize(
    "meta",
    [
        *({**REPLY, "header": header} for header in FOREIGN_HEADERS),
        *({**REPLY, "status": status} for status in ("perhaps", "OK", "", None, 0, ["ok"])),
        *(without(REPLY, key) for key in REPLY),
        {}, [], None, 7, "reply", REQUEST,
    ],
)  # fmt: skip
def test_frames_that_are_no_reply(meta: Any) -> None:
    assert decode_reply(bytes(encode(REPLY, {}))).status is Status.OK
    with pytest.raises(WireError, match="frame that is no reply"):
        decode_reply(bytes(encode(meta, {})))
