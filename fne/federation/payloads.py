"""Payload declarations: the entries that a request implies for a node's answer.

A node task is registered with a declaration of its payload, a function of the request and the addressee's name:

    def vote_payload(request: Request, node: str) -> Payload:
        return {"votes": Entry("int", (len(request.common["candidates"]),), least=0)}

    @register("task", "vote", payload=vote_payload)
    def vote_task(worker, nodes, request): ...

The engine checks every reply against the declaration before a strategy sees the reply: a node whose answer has another
form is named and left out, and the round goes on with the other nodes. The declaration is evaluated on the request as
the strategy made it, so codecs call `expecting` before they take tensors out of the request.
"""

from __future__ import annotations

import functools
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch

from fne.config import registry
from fne.core.errors import FneError
from fne.core.messages import Request, Tensors

Kind = Literal["float", "int", "bytes"]
"""Numbers that may be fractions, whole numbers of any width (booleans included), or uint8 alone."""


@dataclass(frozen=True)
class Entry:
    """One tensor of a payload.

    Args:
        kind: kind of the elements; their width is the node's choice.
        shape: sizes; `None` where the request does not imply the size. A name stands for a size that the strategy knows
            (`Request.sizes`), or at least for the same size wherever it occurs in the payload.
        least, most: bounds of every element, both included; NaN is within no bounds. A name as `most` stands for a
            number as in `shape`, and for no bound where the number is unknown.
        nan: whether NaN is allowed despite bounds, for a missing number.
        optional: whether the entry may be left out.
        finite: which elements must be finite: every element (`all`); every element if those of any other node are
            finite (`usual`), as for networks that may all diverge; or at least one if any other node has a finite one
            (`some`), as for losses of many individuals.
    """

    kind: Kind
    shape: tuple[int | str | None, ...]
    least: float | None = None
    most: float | str | None = None
    optional: bool = False
    nan: bool = False
    finite: Literal["", "some", "usual", "all"] = ""

    def bound(self, sizes: Mapping[str, int]) -> Entry:
        """Return the entry with numbers in place of the names that `sizes` knows."""
        most = sizes.get(self.most, self.most) if isinstance(self.most, str) else self.most
        return replace(self, shape=tuple(sizes.get(s, s) if isinstance(s, str) else s for s in self.shape), most=most)

    def __str__(self) -> str:
        sizes = ", ".join("n" if size is None else str(size) for size in self.shape)
        return f"{'uint8' if self.kind == 'bytes' else self.kind} [{sizes}]"


Payload = Mapping[str, Entry]
MOST = 2**40
"""Most numbers in a payload: a form with more is a lie, and nothing is computed from it."""
HELD = "held"
"""Name of the size that stands for the number of a node's samples, which an engine knows."""
COUNT = Entry("int", (1,), least=1, most=HELD)
"""A count of samples, at most as many as the node holds."""


def expecting(request: Request) -> Request:
    """Return the request with the payloads that its task declares; an unknown task and a plugin may declare none."""
    if request.expected is not None:
        return request
    try:
        declared = registry.traits("task", request.task).get("payload")
    except FneError:  # the nodes refuse the task by name
        return request
    return request if declared is None else replace(request, expected=functools.partial(_sized, declared, request))


def _sized(declared: Callable[[Request, str], Payload], request: Request, node: str) -> Payload:
    """Return a task's declaration of a node's reply, with the sizes that the strategy knows."""
    return {name: entry.bound(request.sizes) for name, entry in declared(request, node).items()}


def fault(payload: Tensors, expected: Payload) -> str:
    """Return the fault of a payload, or an empty text."""
    wrong = PayloadSpec.of(payload).fault(expected)
    if wrong:
        return wrong
    for name, value in payload.items():
        entry = expected[name]
        if entry.kind == "bytes" and value.dtype != torch.uint8:
            return f"answers {name!r} as {value.dtype}, must be {entry}"
        if entry.finite == "all" and not bool(value.isfinite().all()):
            return f"answers {name!r} with {int((~value.isfinite()).sum())} values that are not finite"
        for bound, beyond, word in ((entry.least, value.lt, "at least"), (entry.most, value.gt, "at most")):
            if bound is None or isinstance(bound, str):
                continue
            outside = beyond(bound) | (value.isnan() & (not entry.nan))
            if bool(outside.any()):
                return f"answers {name!r} = {value[outside][0].item():g}, must be {word} {bound:g}"
    return ""


def lifeless(payload: Tensors, expected: Payload) -> str:
    """Return a fault of a payload that does not count if all nodes have it, or an empty text."""
    for name, entry in expected.items():
        if entry.finite not in ("some", "usual") or name not in payload:
            continue
        finite = payload[name].isfinite()
        if entry.finite == "some" and finite.numel() and not bool(finite.any()):
            return f"answers no finite value as {name!r}, and other nodes do"
        if entry.finite == "usual" and not bool(finite.all()):
            return f"answers {name!r} with {int((~finite).sum())} values that are not finite, and other nodes do not"
    return ""


# ------------------------------------------------------------------------------------------------ forms
@dataclass(frozen=True)
class PayloadSpec:
    """The form of an additive payload: `(name, whether floats, shape)` of each entry, sorted by name."""

    entries: tuple[tuple[str, bool, tuple[int, ...]], ...]

    @classmethod
    def of(cls, payload: Tensors) -> PayloadSpec:
        """Return the form of a payload."""
        return cls(tuple((n, v.is_floating_point(), tuple(v.shape)) for n, v in sorted(payload.items())))

    def to_bytes(self) -> bytes:
        """Return the form as JSON."""
        return json.dumps(self.entries, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, raw: bytes) -> PayloadSpec:
        """Return the form that `to_bytes` wrote; raises `ValueError` for other bytes."""
        try:
            form = cls(tuple((str(n), bool(f), tuple(int(size) for size in shape)) for n, f, shape in json.loads(raw)))
        except (ValueError, TypeError, OverflowError, RecursionError):
            raise ValueError("what it says of its vector cannot be read") from None
        if any(size < 0 for _, _, shape in form.entries for size in shape):
            raise ValueError("its vector has a negative size")
        if sum(math.prod(shape) for _, _, shape in form.entries) > MOST:
            raise ValueError(f"its vector has more than {MOST} numbers")
        names = [name for name, _, _ in form.entries]
        if names != sorted(set(names)) or form.to_bytes() != raw:  # in another order it would be another form
            raise ValueError("what it says of its vector is not written as forms are: sorted by name, each once")
        return form

    def fault(self, expected: Payload) -> str:
        """Return the form's mismatch with a declared payload, or an empty text."""
        found = {name: (is_float, shape) for name, is_float, shape in self.entries}
        sizes: dict[str, int] = {}
        for name, entry in expected.items():
            if name not in found:
                if not entry.optional:
                    return f"answers no {name!r}, must be {entry}"
                continue
            is_float, shape = found[name]
            wanted = entry.bound(sizes)
            fits = len(shape) == len(wanted.shape) and all(
                isinstance(w, str | None) or w == f for f, w in zip(shape, wanted.shape, strict=True)
            )
            if is_float != (entry.kind == "float") or not fits:
                return f"answers {name!r} as {_described(self, name)}, must be {wanted}"
            sizes |= {w: f for f, w in zip(shape, wanted.shape, strict=True) if isinstance(w, str)}
        extra = sorted(found.keys() - expected.keys())
        return f"answers {extra[0]!r}, which was not asked for" if extra else ""


def outvoted(forms: Mapping[str, PayloadSpec]) -> dict[str, str]:
    """Return the nodes whose form differs from the most common one (of equally common forms, the first), and why.

    Args:
        forms: form of each node's payload, in the order of the request.
    """
    counts = Counter(forms.values())
    if len(counts) < 2:
        return {}
    usual, voters = counts.most_common(1)[0]  # of equally common forms the first one
    reasons = {}
    for node, form in forms.items():
        if form != usual:
            name = sorted({*form.entries} ^ {*usual.entries})[0][0]
            reasons[node] = (
                f"answers {name!r} as {_described(form, name)}, {voters} of {len(forms)} nodes as "
                f"{_described(usual, name)}: a sum needs the same entries and shapes of all nodes"
            )
    return reasons


def _described(form: PayloadSpec, name: str) -> str:
    for entry, is_float, shape in form.entries:
        if entry == name:
            return f"{'float' if is_float else 'int'} {list(shape)}"
    return "nothing"
