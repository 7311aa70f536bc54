"""Frames as a broken or lying peer could send them: real ones whose bytes, heads or tensors were changed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

NUMBERS = (-1, 0, 1, 1.5, 1e999, -1e999, 2**40, 2**63, 10**30, True)
VALUES: tuple[Any, ...] = (*NUMBERS, None, "", "x" * 2000, "\u0000", "é\ud800", [], {}, [[]], {"": {}}, "sum", "f4")
"""What stands in the place of a value of the head: JSON knows it, the protocol mostly does not."""


def parts(frame: bytes) -> tuple[bytes, bytes]:
    """Return head and tensors of a frame."""
    body = 8 + int.from_bytes(frame[4:8], "little")
    return frame[8:body], frame[body:]


def joined(head: bytes, tensors: bytes) -> bytes:
    """Return the frame of a head and tensors."""
    return b"FNE\x01" + len(head).to_bytes(4, "little") + head + tensors


def places(tree: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value of a JSON tree."""
    yield at
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield from places(value, (*at, key))


# ------------------------------------------------------------------------------------------------ changes
def flipped(frame: bytes, luck: random.Random) -> bytes:
    """Flip one to eight bits."""
    changed = bytearray(frame)
    for _ in range(luck.choice((1, 1, 2, 8))):
        changed[luck.randrange(len(changed))] ^= 1 << luck.randrange(8)
    return bytes(changed)


def cut(frame: bytes, luck: random.Random) -> bytes:
    """Leave out bytes in the middle or at the end."""
    start = luck.randrange(len(frame))
    return frame[:start] + (frame[luck.randrange(start, len(frame)) :] if luck.random() < 0.5 else b"")


def grown(frame: bytes, luck: random.Random) -> bytes:
    """Repeat a piece of the frame."""
    start = luck.randrange(len(frame))
    end = min(len(frame), start + luck.choice((1, 4, 100)))
    return frame[:end] + frame[start:]


def reworded(frame: bytes, luck: random.Random) -> bytes:
    """Put another value in the place of one in the head, leave one out, or add one."""
    head, tensors = parts(frame)
    tree = json.loads(head)
    *way, last = luck.choice([place for place in places(tree) if place])
    inner = tree
    for key in way:
        inner = inner[key]
    deed = luck.random()
    if deed < 0.8:
        inner[last] = luck.choice(VALUES)
    elif deed < 0.9:
        del inner[last]
    elif isinstance(inner, dict):
        inner[luck.choice(("private", "nodes", "__class__", "x"))] = luck.choice(VALUES)
    else:
        inner.insert(luck.randrange(len(inner) + 1), luck.choice(VALUES))
    return joined(json.dumps(tree).encode("utf-8", "surrogatepass"), tensors)


def nested(frame: bytes, luck: random.Random) -> bytes:
    """Put a head of many brackets, digits or names in its place."""
    _, tensors = parts(frame)
    many = luck.choice((10, 5000, 100_000))
    heads = (
        b"[" * many + b"]" * many,
        b"9" * many,
        b'{"meta":' * many,
        b'{"meta":{},"tensors":[' + b"1," * many + b"1]}",
    )
    return joined(luck.choice(heads), tensors)


CHANGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (flipped, cut, grown, reworded, reworded, nested)


def changed(frame: bytes, luck: random.Random) -> bytes:
    """Return a frame in another form; of a thousand a few are still good ones."""
    return luck.choice(CHANGES)(frame, luck)
