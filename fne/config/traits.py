"""Traits of node tasks and strategies: capabilities that the decorator declares and checks at registration.

A trait is a keyword of the decorator, such as `register("task", "select", keeps=True)`. The toolkit knows no task or
method by name: it asks for traits. The catalogue reads them from the source, and `fne show` prints them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fne.core.errors import FneError


@dataclass(frozen=True)
class Trait:
    """A capability that an object may declare about itself.

    Args:
        kind: kind of the value: `function`, `true or false` or `text`.
        meaning: use that the toolkit makes of the trait, as a phrase that follows the trait's name.
    """

    kind: str
    meaning: str


TRAITS: Mapping[str, Mapping[str, Trait]] = {
    "task": {
        "payload": Trait("function", "declares the entries that the request implies for an answer"),
        "charge": Trait("function", "says what an answer costs in privacy, for the node's own account"),
        "keeps": Trait("true or false", "may be given a sum that no server sees, since its answer tells no more of the "
                       "sum than the method means to"),
        "withheld": Trait("true or false", "is added up for a node to open, and never for the server"),
        "declines": Trait("true or false", "publishes what an owner agrees to publish: nodes answer one by one, with "
                          "secure sums too, and an owner may decline"),
        "remedy": Trait("text", "what to do about a number that is too large for a secure sum"),
        "protocol": Trait("true or false", "is a part of secure sums, which carry other tasks"),
    },
    "strategy": {
        "pooled": Trait("true or false", "is not federated: all data go to one node"),
        "takes_known": Trait("true or false", "begins with points that nodes have measured before (problem.known)"),
        "lineage": Trait("true or false", "lets nodes make its candidates from decisions (wire = lineage)"),
        "population": Trait("true or false", "yields trade-offs (front.csv)"),
        "privacy": Trait("true or false", "accounts for differential privacy (summary.json)"),
    },
}  # fmt: skip
"""Kind -> trait name -> trait. A strategy's traits are members of the same name, see `fne.config.members`."""

_TYPES: Mapping[str, type | tuple[type, ...]] = {"function": Callable, "true or false": bool, "text": str}  # type: ignore[dict-item]


def check_traits(kind: str, name: str, module: str, traits: Mapping[str, Any]) -> None:
    """Check the declared traits of an object.

    Args:
        kind, name: kind and name of the object.
        module: module that defines the object.
        traits: the declared traits.

    Raises:
        FneError: a trait is unknown, of a wrong kind, or excludes another trait; the text names it and says what to do.
    """
    known = TRAITS.get(kind, {})
    for trait, value in traits.items():
        if trait not in known:
            raise FneError(f"cannot register {kind} {name!r} with {trait!r}: a {kind} declares "
                           f"{', '.join(known) or 'no traits'}")  # fmt: skip
        if not isinstance(value, _TYPES[known[trait].kind]):
            raise FneError(f"cannot register {kind} {name!r} with {trait} = {value!r:.60}: it must be "
                           f"{known[trait].kind}: it {known[trait].meaning}")  # fmt: skip
    wanted = [trait for trait in ("protocol", "withheld", "keeps", "declines") if traits.get(trait)]
    if len(wanted) > 1:
        raise FneError(f"cannot register {kind} {name!r} as {wanted[0]} and {wanted[1]}: a task is one of them; "
                       "make two tasks of it")  # fmt: skip
    if traits.get("protocol") and not module.startswith("fne.secure."):
        raise FneError(f"cannot register {kind} {name!r} with protocol: nodes answer the parts of secure sums whatever "
                       "their policy is, so only the toolkit's own are that; leave it out")  # fmt: skip
