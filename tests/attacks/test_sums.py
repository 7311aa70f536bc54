"""Attacks on secure sums by one of their nodes: it must neither end the sum, nor falsify it, nor have others blamed."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fne.config import registry
from fne.core.dataset import Samples
from fne.core.errors import RunError
from fne.core.messages import Header, Reply, Request, Round, Status, Tensors
from fne.engines.framed import WorkerEach
from fne.engines.local import LocalEngine
from fne.federation.node import Node, Secrets
from fne.federation.payloads import PayloadSpec, outvoted
from fne.federation.worker import Worker
from fne.secure import dealing, keys, protocol, shares
from fne.secure import engine as secure
from fne.secure.conflicts import settled
from fne.secure.engine import SecureEngine
from fne.secure.node_tasks import _identity, secure_only
from fne.secure.session import Session

LIAR = "n2"
Change = Callable[[Worker, Reply], Reply]
Lies = Mapping[str, Change]


# ------------------------------------------------------------------------------------------------ nodes, and a liar
class Lying(Worker):
    """A worker of which one node's replies are others than the toolkit would make."""

    lies: Lies = {}  # noqa: RUF012

    def run(self, request: Request) -> Iterator[Reply]:
        for reply in super().run(request):
            lie = self.lies.get(request.task) if reply.node == LIAR else None
            yield reply if lie is None else lie(self, reply)

    def apart(self) -> dict[str, Worker]:
        made: dict[str, Worker] = {}
        for name, node in self.nodes.items():
            own = made[name] = Lying({name: node})
            own.pinned, own.only, own.lies = self.pinned, self.only, self.lies
        return made


def measured(worker: Worker, nodes: Sequence[Node], request: Request) -> Iterator[Tensors]:
    for node in nodes:
        yield {"x": node.data.y * request.common["at"], "n": torch.tensor([1])}


@pytest.fixture(autouse=True)
def _task(monkeypatch: pytest.MonkeyPatch) -> None:
    load = registry.load
    monkeypatch.setattr(registry, "load", lambda kind, name: measured if name == "measured" else load(kind, name))


def value(name: str) -> float:
    return 2.0 ** int(name[1:])  # so a sum says whose values are in it


class Sums:
    """Secure sums of some nodes."""

    def __init__(self, lies: Lies, nodes: int = 7, engine: str = "local") -> None:
        held = {f"n{i}": Samples(torch.zeros(1, 1), torch.tensor([value(f"n{i}")])) for i in range(nodes)}
        worker = Lying({name: Node(name, data, Secrets.simulate(0, name)) for name, data in held.items()})
        worker.lies = lies
        secure_only(worker)
        self.names, self.worker = tuple(held), worker
        self.plain = LocalEngine(worker, "run", host=WorkerEach(worker) if engine == "framed" else None)
        self.engine = SecureEngine(self.plain, worker.pinned)

    def step(self, number: int = 0) -> Round:
        common = {"at": torch.tensor([1.0 + number])}
        return self.engine.send(Request(Header(0, number), "measured", self.names, common, reduce="sum"))


def added(round_: Round, number: int = 0) -> set[str]:
    """Return whose values are in a sum, and look whether they are right."""
    (total,) = round_.replies
    count, whole = int(total.payload["n"]), float(total.payload["x"]) / (1 + number)
    assert whole.is_integer()
    found = {f"n{i}" for i in range(16) if int(whole) >> i & 1}
    assert len(found) == count
    return found


def blamed(round_: Round) -> dict[str, str]:
    return {failure.node: failure.reason for failure in round_.failures}


# ------------------------------------------------------------------------------------------------ lies
def entries(**changes: Tensor | Callable[[Tensor], Tensor]) -> Change:
    """Return the lie that puts other tensors into a reply."""

    def lie(worker: Worker, reply: Reply) -> Reply:
        new = {n: c(reply.payload[n]) if callable(c) else c for n, c in changes.items()}
        return replace(reply, payload={**reply.payload, **new})

    return lie


def signed(public: bytes) -> Change:
    """Sign another public key than the node's as its own."""

    def lie(worker: Worker, reply: Reply) -> Reply:
        text = protocol.entry_text(reply.header.run, LIAR, public)
        signature = _identity(worker.nodes[LIAR]).sign(text)
        told = {"key": raw(public), "signature": raw(signature)}
        return replace(reply, payload=told)

    return lie


def of_status(status: Status) -> Change:
    return lambda worker, reply: replace(reply, status=status, payload={}, reason="")


def raw(text: bytes) -> Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).reshape(1, -1)


def noise(value: Tensor) -> Tensor:
    return torch.randint(0, 256, value.shape, dtype=torch.uint8)


def zeros(value: Tensor) -> Tensor:
    return torch.zeros_like(value)


def rows(*which: int) -> Callable[[Tensor], Tensor]:
    """Change some rows alone."""

    def change(value: Tensor) -> Tensor:
        changed = value.clone()
        changed[list(which)] ^= 1
        return changed

    return change


def text(said: Any) -> Tensor:
    return raw(said if isinstance(said, bytes) else json.dumps(said, separators=(",", ":")).encode())


OTHER_LIST = entries(echo=lambda value: raw(keys.Identity(bytes(32)).sign(protocol.echo_text(bytes(32)))))
SETUP: dict[str, tuple[str, Change, str]] = {
    "key of low order": ("secure_keys", signed(bytes(32)), "is a point of low order"),
    "key written in a second way": ("secure_keys", signed(b"\xff" * 32), "not in its one canonical form"),
    "key that is not signed": ("secure_keys", entries(key=noise), "the public key of n2 is not"),
    "bad signature": ("secure_keys", entries(signature=noise), "the public key of n2 is not signed by it"),
    "bad echo": ("secure_peers", entries(echo=noise), "n2 does not sign the list of keys that it was sent"),
    "echo of another list": ("secure_peers", OTHER_LIST, "n2 does not sign the list of keys that it was sent"),
    "no confirmation": ("secure_confirm", of_status(Status.FAILED), ""),
}
LEFT_OUT: dict[str, tuple[str, Change, str]] = {
    "sealed for nobody": ("secure_offer", entries(sealed=noise), "left out of the sum: n0 says that what n2 sealed"),
    "sealed for few": ("secure_offer", entries(sealed=rows(0, 1, 2)), "sealed for it is of no use; n1 says"),
    "sealed for four": ("secure_offer", entries(sealed=rows(1, 3, 4, 5)), "left out of the sum: n1 says"),
    "digests": ("secure_offer", entries(digests=noise), "left out of the sum: n0 says that what n2 sealed"),
    "proof": ("secure_offer", entries(proof=noise), "left out of the sum: n0 says that what n2 sealed"),
    "a number of the proof": ("secure_offer", entries(proof=rows(3)), "left out of the sum: n0 says that what n2"),
    "says no to all": ("secure_deal", entries(receipts=zeros), "left out of the sum: n2 says that what n0"),
    "form of brackets": ("secure_offer", entries(form=text(b"[" * 5000 + b"]" * 5000)), "cannot be read"),
    "form of 1e999": ("secure_offer", entries(form=text(b'[["n",false,[1e999]],["x",true,[1]]]')), "cannot be read"),
    "form of NaN": ("secure_offer", entries(form=text(b'[["n",false,[NaN]],["x",true,[1]]]')), "cannot be read"),
    "form below zero": ("secure_offer", entries(form=text([["n", False, [-1]], ["x", True, [1]]])), "a negative size"),
    "form too large": ("secure_offer", entries(form=text([["n", False, [2**62] * 2]])), "more than 10995"),
    "form in another order": ("secure_offer", entries(form=text([["x", 1, [1]], ["n", 0, [1]]])), "sorted by name"),
    "form with a name twice": ("secure_offer", entries(form=text([["n", False, [1]]] * 2)), "each once"),
    "form of fractions": ("secure_offer", entries(form=text([["n", 0, [1.5]], ["x", 1, [1]]])), "sorted by name"),
    "form of no list": ("secure_offer", entries(form=text({"n": 1})), "cannot be read"),
    "form not in UTF-8": ("secure_offer", entries(form=text(b"\xff\xfe")), "cannot be read"),
    "form of another vector": ("secure_offer", entries(form=text([["n", False, [2]]])), "answers 'n' as int"),
    "vector too long": ("secure_vector", entries(vector=lambda v: torch.cat([v, v])), "answers 'vector' as int [8]"),
    "vector of floats": ("secure_vector", entries(vector=lambda v: v.double()), "answers 'vector' as float"),
    "mark": ("secure_vector", entries(mark=torch.tensor([5])), "answers 'mark' = 5"),
}  # fmt: skip
ADDED: dict[str, tuple[str, Change, str]] = {
    "commitment": ("secure_offer", entries(commitment=noise), "deals shares of another mask than it commits itself to"),
    "shares": ("secure_shares", entries(shares=noise), "tells another share of "),
    "a share": ("secure_shares", entries(shares=rows(4)), "tells another share of n4 than it was dealt"),
    "zeros for shares": ("secure_shares", entries(shares=zeros), "tells another share of "),
    "beyond the prime": ("secure_shares", entries(shares=torch.full((7, 33), 255).byte()), "tells another share of "),
    "no shares": ("secure_shares", of_status(Status.FAILED), ""),
    "box": ("secure_offer", entries(box=noise), ""),
}


@pytest.mark.parametrize("engine", ["local", "framed"])
@pytest.mark.parametrize("lie", [*SETUP, *LEFT_OUT, *ADDED])
def test_a_node_that_lies_is_named_and_the_others_add_up(lie: str, engine: str) -> None:
    """The attack claims to end the run, to change the sum, or to have another one left out."""
    task, change, said = {**SETUP, **LEFT_OUT, **ADDED}[lie]
    sums = Sums({task: change}, engine=engine)
    for number in range(2):
        round_ = sums.step(number)
        assert added(round_, number) == {*sums.names} - (set() if lie in ADDED else {LIAR})
        assert set(blamed(round_)) == (set() if lie == "box" else {LIAR})  # a box that nobody opens is no matter
        assert said in blamed(round_).get(LIAR, "")


SHUT: Lies = {"secure_offer": entries(box=noise), "secure_vector": of_status(Status.FAILED)}


@pytest.mark.parametrize("engine", ["local", "framed"])
@pytest.mark.parametrize("nodes", [5, 7, 10])
def test_a_box_that_does_not_open_is_made_up_for_by_the_others(nodes: int, engine: str) -> None:
    """The attack claims that its masks stay on the sum once it has dropped out."""
    sums = Sums(SHUT, nodes, engine)
    for number in range(2):
        round_ = sums.step(number)
        assert added(round_, number) == {*sums.names} - {LIAR}
        assert blamed(round_) == {LIAR: "drops out, and the key that it dealt does not open its box"}


def test_without_what_the_others_make_up_for_the_sum_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SecureEngine, "_masks", lambda *_: 0)
    with pytest.raises(AssertionError):
        added(Sums(SHUT).step())


def test_who_does_not_help_is_named_and_so_is_who_made_it_necessary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "rest", lambda self, tag, gone: np.zeros(3 if self.name == "n4" else 4, np.uint64))
    with pytest.raises(RunError, match=r"without the help of all.*n2: drops out.*n4: answers 'masks' as int \[3\]"):
        Sums(SHUT).step()


PROTOCOL = [name for name, entry in registry.catalogue("task").items() if "protocol" in entry.traits]


@pytest.mark.parametrize("status", [Status.NEEDS_SNAPSHOT, Status.DECLINED, Status.GONE, Status.REFUSED])
@pytest.mark.parametrize("task", [task for task in PROTOCOL if task not in ("secure_rest", "secure_receive")])
def test_a_status_at_a_wrong_time_costs_its_node_alone(task: str, status: Status) -> None:
    """The attack claims that there is no sum, or that the step begins anew and again."""
    sums = Sums({task: of_status(status)})
    round_ = sums.step()
    assert added(round_) == {*sums.names} - (set() if task == "secure_shares" else {LIAR})
    (failure,) = round_.failures
    assert failure.node == LIAR
    assert failure.status in {Status.FAILED, Status.REFUSED, Status.GONE}


@pytest.mark.parametrize("nodes", [5, 6, 7, 9])
@pytest.mark.parametrize("others", [1, 2, 3, 4])
@pytest.mark.parametrize("task", ["secure_offer", "secure_deal"])
def test_who_contradicts_many_is_the_one_that_is_left_out(task: str, others: int, nodes: int) -> None:
    """Whether it seals nonsense or says that others do, and however many of them: nobody else is left out."""
    lied = rows(*range(others))
    sums = Sums({task: entries(sealed=lied) if task == "secure_offer" else entries(receipts=lied)}, nodes)
    pairs = {LIAR, *[name for name in sums.names if name != LIAR][:others]}
    for number in range(2):
        round_ = sums.step(number)
        left_out = {*sums.names} - added(round_, number)
        assert left_out <= {LIAR}
        assert not left_out if others == 1 else left_out or task == "secure_deal" or nodes == 9
        # where nobody is, nobody can tell who lies: what one says of the other stands under the names of both
        assert set(blamed(round_)) == (left_out or pairs)
        assert all("says that what" in reason for reason in blamed(round_).values())


@pytest.mark.parametrize("nodes", [5, 6])
def test_of_five_or_six_one_that_says_no_and_then_does_not_help_is_done_without(nodes: int) -> None:
    """A sum of so many can do without one node: who says no to another one must not count twice."""
    for last in ({"secure_vector": of_status(Status.FAILED)}, {"secure_shares": entries(shares=noise)}):
        sums = Sums({"secure_deal": entries(receipts=rows(0)), **last}, nodes)
        round_ = sums.step()
        assert added(round_) >= {*sums.names} - {LIAR}
        assert set(blamed(round_)) == {"n0", LIAR}


@pytest.mark.parametrize(
    "lies",
    [
        {"secure_deal": entries(receipts=rows(0))},
        {"secure_deal": entries(receipts=zeros)},
        {"secure_offer": entries(sealed=rows(1))},
    ],
)
def test_of_four_nodes_that_contradict_each_other_none_is_put_out(lies: Lies) -> None:
    """Three could not add up; the share that a dealer has of its own key makes up for the one that is missing."""
    sums = Sums(lies, 4)
    for number in range(2):
        round_ = sums.step(number)
        assert added(round_, number) == {*sums.names}
        assert LIAR in blamed(round_)


def crooked(monkeypatch: pytest.MonkeyPatch, *which: int) -> None:
    """Let the liar deal shares on no polynomial to some; everything that it says of them is as of any others."""
    honest, number = dealing.deal, int(LIAR[1:]) + 1

    def deal(context: bytes, dealer: int, secrets: Any, threshold: int, count: int) -> Any:
        if dealer != number:
            return honest(context, dealer, secrets, threshold, count)
        polynomials = [shares.polynomial(secret, threshold) for secret in (*secrets, keys.fresh())]
        dealt = shares.values(polynomials, count)
        for kind, place in itertools.product((0, 1), which):
            dealt[kind][place] = keys.fresh() + b"\0"
        held = list(zip(*dealt, strict=True))
        digests = tuple(
            dealing.digest(context, dealer, at, kind, share)
            for at, three in enumerate(held, 1) for kind, share in enumerate(three)
        )  # fmt: skip
        c = int.from_bytes(dealing.challenge(context, dealer, digests), "little")
        proof = tuple(shares.written(z + c * x + c * c * y) for x, y, z in zip(*polynomials, strict=True))
        return [three[:2] for three in held], digests, proof

    monkeypatch.setattr(dealing, "deal", deal)


@pytest.mark.parametrize("which", [(0,), (0, 1), (0, 1, 3, 4, 5, 6), (2,)])
def test_shares_that_lie_on_no_polynomial_are_found_before_anything_is_masked(
    monkeypatch: pytest.MonkeyPatch, which: tuple[int, ...]
) -> None:
    """Their digests are right, and every node holds what it was dealt; the last are its share for itself."""
    crooked(monkeypatch, *which)
    sums = Sums({})
    round_ = sums.step()
    if which == (2,):  # the others' are enough
        assert (added(round_), blamed(round_)) == ({*sums.names}, {})
    elif which == (0,):
        said = "n0 says that what n2 sealed for it is of no use"
        assert (added(round_), blamed(round_)) == ({*sums.names}, {"n0": said, LIAR: said})
    else:
        assert (added(round_), set(blamed(round_))) == ({*sums.names} - {LIAR}, {LIAR})


def test_of_two_nodes_with_one_key_neither_takes_part() -> None:
    """The attack claims that masks with the two cancel: one signs the other's key, with the help of the server."""
    owner: list[bytes] = []

    def keep(worker: Worker, reply: Reply) -> Reply:
        assert worker.nodes["n0"].secrets.session is not None
        owner.append(worker.nodes["n0"].secrets.session._agreement.public)
        return signed(owner[0])(worker, reply)

    sums = Sums({"secure_keys": keep})
    round_ = sums.step()
    assert added(round_) == {*sums.names} - {LIAR, "n0"}
    assert set(blamed(round_).values()) == {"n0 and n2 have the same public key: one of them is not its own"}


# ------------------------------------------------------------------------------------------------ what is drawn once
class Ledger(LocalEngine):
    """An engine that counts how often nodes use a keystream, and seal under a key."""

    streams: Counter[tuple[bytes, bytes]] = Counter()  # noqa: RUF012
    seals: Counter[bytes] = Counter()  # noqa: RUF012

    def send(self, request: Request) -> Round:
        stream, seal = protocol.keystream, keys.seal

        def counted(key: bytes, nonce: bytes, size: int) -> Any:
            self.streams[key, nonce] += 1
            return stream(key, nonce, size)

        def sealed(key: bytes, plain: bytes, context: bytes) -> bytes:
            self.seals[key] += 1
            return seal(key, plain, context)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(protocol, "keystream", counted)
            patch.setattr(keys, "seal", sealed)
            return super().send(request)


@pytest.fixture
def _counting() -> None:
    Ledger.streams.clear()
    Ledger.seals.clear()


def repeated(tmp_path: Path) -> None:
    """Ask for the same step in all ways in which a server can: each has keys of its own, or no answer."""

    def asking(sums: Sums, run: str = "run") -> SecureEngine:
        return SecureEngine(Ledger(sums.worker, run, tmp_path), sums.worker.pinned)

    def ask(engine: SecureEngine, number: int, at: float, nodes: Sequence[str]) -> bool:
        request = Request(Header(0, number), "measured", tuple(nodes), {"at": torch.tensor([at])}, reduce="sum")
        try:
            return bool(engine.send(request).replies)
        except RunError:
            return False

    sums = Sums({})
    one = asking(sums)
    one.save(0)
    assert ask(one, 0, 1.0, sums.names)
    assert not ask(one, 0, 2.0, sums.names)  # another attempt
    assert not ask(one, 0, 1.0, sums.names[:-1])  # and without one of them
    one.load(0)
    assert not ask(one, 0, 2.0, sums.names)  # a resumed server, whose nodes have lived on
    assert ask(one, 1, 1.0, sums.names)
    assert not ask(asking(sums), 1, 1.0, sums.names)  # another server
    assert ask(asking(sums, "other"), 1, 1.0, sums.names)  # another run id
    sums.worker.lies = {"secure_vector": of_status(Status.FAILED)}
    two = asking(sums)
    assert ask(two, 2, 1.0, sums.names)
    sums.worker.lies = {}
    assert not ask(two, 2, 1.0, sums.names)
    anew = asking(Sums({}))
    anew.load(0)
    assert ask(anew, 0, 1.0, sums.names)  # nodes that were started again with the same seed, and have forgotten all


@pytest.mark.usefixtures("_counting")
def test_no_keystream_and_no_key_of_a_message_is_used_for_another_sum(tmp_path: Path) -> None:
    repeated(tmp_path)
    assert len(Ledger.streams) > 5 * 7
    assert set(Ledger.streams.values()) == {1, 2}  # by its node alone, or by the two that share it
    assert set(Ledger.seals.values()) == {1}


@pytest.mark.usefixtures("_counting")
def test_keys_from_a_seed_would_be_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = itertools.count()
    start = keys.Agreement.__init__

    def begin(self: keys.Agreement, private: bytes | None = None) -> None:
        start(self, keys.digest(b"seed", str(next(made) % 7).encode()))

    monkeypatch.setattr(keys.Agreement, "__init__", begin)
    repeated(tmp_path)
    assert max(Ledger.streams.values()) > 2


# ------------------------------------------------------------------------------------------------ power
def nothing_wrong(*_: Any) -> dict[str, str]:
    return {}


def as_it_stands(said: bytes) -> PayloadSpec:
    return PayloadSpec(tuple((name, bool(is_float), tuple(shape)) for name, is_float, shape in json.loads(said)))


OFF: list[tuple[str, Any, str, Any]] = [
    ("bad signature", secure, "entry_faults", nothing_wrong),
    ("key of low order", secure, "entry_faults", nothing_wrong),
    ("bad echo", secure, "echo_faults", nothing_wrong),
    ("sealed for four", secure, "settled", lambda there, *_: sorted(there)),
    ("says no to all", secure, "settled", lambda there, *_: sorted(there)),
    ("digests", secure, "settled", lambda there, *_: sorted(there)),
    ("a share", dealing, "digest", lambda *_: bytes(dealing.DIGEST_BYTES)),
    ("form in another order", PayloadSpec, "from_bytes", as_it_stands),
]  # fmt: skip


@pytest.mark.parametrize(("lie", "module", "name", "off"), OFF, ids=[f"{o[0]}, {o[2]}" for o in OFF])
def test_without_the_defence_one_node_ends_the_run_or_has_others_blamed(
    monkeypatch: pytest.MonkeyPatch, lie: str, module: Any, name: str, off: Any
) -> None:
    task, change, _ = {**SETUP, **LEFT_OUT, **ADDED}[lie]
    protocol.check_list.cache_clear()
    monkeypatch.setattr(module, name, off)
    sums = Sums({task: change})
    honest = {*sums.names} - {LIAR}
    try:
        round_ = sums.step()
    except (RunError, IndexError):
        return
    assert set(blamed(round_)) & honest


def test_without_the_proof_one_dealer_falsifies_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Receipts then say no more than digests, which are right: shares give another mask than the vector has."""
    crooked(monkeypatch, 0, 1, 3, 4, 5, 6)
    monkeypatch.setattr(dealing, "receipt", lambda *_: bytes(16))
    monkeypatch.setattr(dealing, "receipt_of", lambda *_: bytes(16))
    round_ = Sums({}).step()
    with pytest.raises(AssertionError):
        added(round_)


def test_without_the_rule_of_statuses_one_node_leaves_a_step_without_a_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secure.lineage, "DIGEST", "at")  # as if there were candidates that a snapshot would bring
    assert Sums({"secure_offer": of_status(Status.NEEDS_SNAPSHOT)}).step().replies == ()


def test_who_stays_in_a_sum() -> None:
    seven = range(7)
    assert settled(seven, [], 7) == [*seven]
    assert settled(seven, {(0, 3)}, 7) == [*seven]  # five others have shares of 3
    assert settled(seven, {(0, 3), (1, 3)}, 7) == [0, 1, 2, 4, 5, 6]
    assert settled(seven, {(3, 0), (3, 1), (3, 2)}, 7) == [*seven]  # each is without one share
    assert settled(seven, {(3, 0), (3, 1), (3, 2), (3, 4)}, 7) == [0, 1, 2, 4, 5, 6]
    assert settled(range(6), {(3, i) for i in range(6) if i != 3}, 6) == [0, 1, 2, 4, 5]
    assert settled(range(6), {(0, 3)}, 6) == [*range(6)]
    assert settled(range(6), {(0, 3), (1, 3)}, 6) == [0, 1, 2, 4, 5]
    assert settled(range(5), {(3, 0), (3, 1)}, 6) == [*range(5)]  # of six one has dropped out
    assert settled(range(4), {(3, 0), (3, 1), (3, 2)}, 4) == [*range(4)]
    assert settled(seven, {(0, 3)}, 7, receiver=3) == [1, 2, 3, 4, 5, 6]
    assert settled(seven, {(i, 3) for i in (0, 1, 2)}, 7, receiver=3) == [0, 1, 2, 4, 5, 6]
    assert settled(seven, {(i, 3) for i in (0, 1, 2, 4)}, 7, receiver=3) == [0, 1, 2, 4, 5, 6]


def test_forms_in_another_order_are_told_apart_and_not_by_a_traceback() -> None:
    for said in ([["x", True, [1]], ["n", False, [1]]], [["n", False, [1]]] * 2):
        with pytest.raises(ValueError, match="sorted by name, each once"):
            PayloadSpec.from_bytes(json.dumps(said, separators=(",", ":")).encode())
    a, b = PayloadSpec((("n", False, (1,)), ("x", True, (1,)))), PayloadSpec((("n", False, (1,)), ("x", True, (2,))))
    assert set(outvoted({"n0": a, "n1": a, "n2": b})) == {"n2"}
    assert PayloadSpec.from_bytes(a.to_bytes()) == a
