"""Replies are held to the payload that their request implies: a node that lies is named and left out, nobody else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fne.config import registry
from fne.config.registry import catalogue, traits
from fne.core.dataset import Samples
from fne.core.errors import FneError, RunError
from fne.core.messages import Header, Reply, Request, Round, Status, Tensors
from fne.engines.local import LocalEngine
from fne.federation.lineage_codec import LineageCodec
from fne.federation.payloads import COUNT, Entry, PayloadSpec, expecting, fault, outvoted
from fne.federation.rounds import RunningSum
from fne.federation.worker import Worker
from fne.loop import run

HEADER = Header(0, 0)


# ------------------------------------------------------------------------------------------------ declarations
@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ({"loss": torch.ones(3, 1), "samples": torch.tensor([4])}, ""),
        ({"loss": torch.ones(3, 1).double(), "samples": torch.tensor([4]).to(torch.uint8)}, ""),
        ({"loss": torch.tensor([[1.0], [torch.nan], [torch.inf]]), "samples": torch.tensor([1])}, ""),
        ({"loss": torch.ones(1), "samples": torch.tensor([4])}, "answers 'loss' as float [1], must be float [3, n]"),
        ({"loss": torch.ones(1, 1), "samples": torch.tensor([4])}, "answers 'loss' as float [1, 1], must be float [3"),
        ({"loss": torch.ones(3, 1).long(), "samples": torch.tensor([4])}, "answers 'loss' as int [3, 1], must be flo"),
        ({"loss": torch.ones(3, 1), "samples": torch.tensor([-4])}, "answers 'samples' = -4, must be at least 1"),
        ({"loss": torch.ones(3, 1), "samples": torch.tensor(4)}, "answers 'samples' as int [], must be int [1]"),
        ({"loss": torch.ones(3, 1), "samples": torch.tensor([4.0])}, "answers 'samples' as float [1], must be int [1"),
        ({"samples": torch.tensor([4])}, "answers no 'loss', must be float [3, n]"),
        (
            {"loss": torch.ones(3, 1), "samples": torch.tensor([4]), "x": torch.ones(1)},
            "answers 'x', which was not asked for",
        ),
    ],
)
def test_a_payload_is_held_to_its_declaration(payload: Tensors, said: str) -> None:
    found = fault(payload, {"loss": Entry("float", (3, None)), "samples": COUNT})
    assert found.startswith(said) if said else found == ""


def test_bounds_bytes_and_optional_entries() -> None:
    share = {"share": Entry("float", (2,), least=0, most=1), "mask": Entry("bytes", (None,), optional=True)}
    assert fault({"share": torch.tensor([0.0, 1.0])}, share) == ""
    assert fault({"share": torch.tensor([0.0, torch.nan])}, share) == "answers 'share' = nan, must be at least 0"
    assert fault({"share": torch.tensor([0.0, 1.5])}, share) == "answers 'share' = 1.5, must be at most 1"
    odd = {"share": torch.zeros(2), "mask": torch.zeros(1, dtype=torch.int64)}
    assert fault(odd, share) == "answers 'mask' as torch.int64, must be uint8 [n]"


@pytest.mark.parametrize("name", [name for name, e in catalogue("task").items() if e.module.startswith("fne.")])
def test_every_task_declares_what_it_yields(name: str) -> None:
    """`secure_receive` alone yields what a task inside of it does, and is held to that by who relays."""
    assert ("payload" in traits("task", name)) == (name != "secure_receive")


def test_an_unknown_trait_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(FneError, match="cannot register task 'x' with 'form': a task declares payload"):
        registry.register("task", "x", form=dict)(dict)
    with pytest.raises(FneError, match="cannot register model 'x' with 'payload': a model declares no traits"):
        registry.register("model", "x", payload=dict)(dict)


def test_the_declaration_is_evaluated_on_the_request_as_it_was_before_a_codec() -> None:
    request = Request(HEADER, "fitness", ("a", "b"), {"population": torch.zeros(7, 3)}, options={"loss": "mse"})
    stripped = replace(expecting(request), common={})
    assert expecting(stripped) is stripped
    assert stripped.expected is not None
    assert stripped.expected("a")["loss"] == Entry("float", (7, 1), finite="some")
    own = expecting(replace(request, common={}, private={"a": {"population": torch.zeros(2, 3)}}))
    assert own.expected is not None
    assert own.expected("a")["loss"].shape == (2, 1)  # candidates of its own
    assert expecting(replace(request, task="nobody's")).expected is None


# ------------------------------------------------------------------------------------------------ forms
@pytest.mark.parametrize("raw", [b"", b"[[1]]", b'[["a",true,[-1]]]', b'[["a",true,"x"]]', b"\xff", b"[" * 5000])
def test_a_form_that_cannot_be_read_is_an_error(raw: bytes) -> None:
    form = PayloadSpec.of({"b": torch.ones(2, 3), "a": torch.tensor(3)})
    assert PayloadSpec.from_bytes(form.to_bytes()) == form
    with pytest.raises(ValueError, match="its vector"):
        PayloadSpec.from_bytes(raw)


def answer(node: str, **payload: Tensor) -> Reply:
    return Reply(HEADER, node, payload=payload)


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ({"loss": torch.ones(2)}, "answers 'samples' as nothing, 2 of 3 nodes as int [1]"),
        ({"loss": torch.ones(3), "samples": torch.tensor([1])}, "answers 'loss' as float [3], 2 of 3 nodes as float"),
        ({"loss": torch.ones(2), "samples": torch.tensor([1.0])}, "answers 'samples' as float [1], 2 of 3 nodes as"),
        (
            {"loss": torch.ones(2), "samples": torch.tensor([1]), "more": torch.ones(1)},
            "answers 'more' as float [1], 2 of 3 nodes as nothing",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_sum_is_that_of_the_most_common_form(odd: dict[str, Tensor], said: str, place: int) -> None:
    """Wherever the odd node stands, also first: its numbers are in no sum."""
    usual = [{"loss": torch.tensor([1.5, 2.0 * i]), "samples": torch.tensor([i])} for i in (1, 2)]
    total = RunningSum(HEADER)
    for number, payload in enumerate([*usual[:place], odd, *usual[place:]]):
        total.add(answer(f"n{number}", **payload))
    (failure,) = total.outvoted()
    assert (failure.node, failure.status) == (f"n{place}", Status.FAILED)
    assert failure.reason.startswith(said)
    assert total.reply().payload["loss"].tolist() == [3.0, 6.0]
    assert total.reply().payload["samples"].tolist() == [3]


def test_of_equally_common_forms_the_first_one_counts() -> None:
    forms = {name: PayloadSpec.of({"x": torch.ones(size)}) for name, size in (("a", 2), ("b", 3), ("c", 3), ("d", 2))}
    assert list(outvoted(forms)) == ["b", "c"]
    assert outvoted({"a": forms["a"], "d": forms["d"]}) == {}


# ------------------------------------------------------------------------------------------------ liars
class Lying(Worker):
    """A worker whose node `n1` says something else than it should, or fails outright."""

    lie: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None
    who: tuple[str, ...] = ("n1",)

    def run(self, request: Request) -> Iterator[Reply]:
        for reply in super().run(request):
            if reply.node not in self.who:
                yield reply
            elif self.lie is None:
                yield Reply(reply.header, reply.node, Status.FAILED, "no answer today")
            else:
                yield replace(reply, payload=self.lie(dict(reply.payload)))


LIES: dict[str, Callable[[dict[str, Tensor]], dict[str, Tensor]]] = {
    "a loss that would broadcast": lambda p: {
        **p,
        next(n for n in ("delta", "levels", "loss") if n in p): torch.ones(1),
    },
    "a negative count": lambda p: {**p, "samples": -p["samples"].long()},
    "no count": lambda p: {name: value for name, value in p.items() if name != "samples"},
    "more": lambda p: {**p, "more": torch.ones(2)},
    "nothing": lambda p: {},
    "text of bytes": lambda p: {name: value.to(torch.uint8) for name, value in p.items()},
}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "fne": ("fne", {"population": 6, "parents": 3, "nodes": "all"}),
    "fne, dealt": ("fne", {"population": 6, "parents": 3, "deal": True}),
    "es, levels": ("es", {"population": 6, "uplink": "levels", "subset_size": 3}),
    "fedavg": ("fedavg", {"fraction": 1.0}),
}


@pytest.fixture
def lying(laboratory: Callable[..., SimpleNamespace], clouds: Callable[..., dict[str, Samples]]) -> Any:
    def build(
        lie: Any, wire: str = "tensors", who: tuple[str, ...] = ("n1",)
    ) -> Callable[[str], tuple[Any, list[Round]]]:
        def go(method: str) -> tuple[Any, list[Round]]:
            nodes = clouds(9, 12, 15)
            lab = laboratory(lambda: nn.Linear(4, 3), nodes, clouds(20, seed=5)["n0"])
            worker = Lying(lab.worker.nodes, lab.evaluator)
            worker.lie, worker.who = lie, who
            name, given = METHODS[method]
            strategy = registry.load("strategy", name)(lab.task, seed=0, rounds=3, **given)
            rounds: list[Round] = []
            run(strategy, LocalEngine(worker, "test"), callbacks=[lambda s, r, m: rounds.append(r)])
            return strategy, rounds

        return go

    return build


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("method", METHODS)
def test_a_liar_is_named_and_counts_for_nothing(lying: Any, method: str, lie: str) -> None:
    """The run is bit for bit the one in which the liar gives no answer."""
    honest, rounds = lying(LIES[lie])(method)
    silent, _ = lying(None)(method)
    assert len(rounds) == 3
    for round_ in rounds:
        assert [(f.node, f.status) for f in round_.failures] == [("n1", Status.FAILED)]
        assert round_.failures[0].reason.startswith("answers ")
    assert torch.equal(honest.result().parameters, silent.result().parameters)


def test_where_all_tell_the_same_lie_the_run_says_so(lying: Any) -> None:
    everybody = ("n0", "n1", "n2")
    for method in ("fne", "fne, dealt"):
        with pytest.raises(
            RunError, match=r"step 0: 0 of 3 nodes answered.*answers 'loss' as float \[1\], must be flo"
        ):
            lying(LIES["a loss that would broadcast"], who=everybody)(method)


def test_a_liar_is_found_behind_the_lineage_codec(
    laboratory: Callable[..., SimpleNamespace], clouds: Callable[..., dict[str, Samples]]
) -> None:
    """The frames hold no candidates then, and the answers are held to the number of them all the same."""
    from fne.federation.lineage import Replica
    from fne.run.learning_run import new_lineage

    lab = laboratory(lambda: nn.Linear(4, 3), clouds(9, 12, 15))
    given = {"rounds": 3, "population": 6, "parents": 3, "nodes": "all"}
    strategy = registry.load("strategy", "fne")(lab.task, seed=0, **given)
    worker = Lying(lab.worker.nodes, lab.evaluator, replica=Replica(lambda origin: new_lineage(lab.task, origin)))
    worker.lie = lambda p: {**p, "loss": p["loss"][:1]}
    engine = LineageCodec(LocalEngine(worker, "test"), strategy, {"strategy": "fne", "seed": 0, "settings": given})
    reasons: list[str] = []
    run(strategy, engine, callbacks=[lambda s, r, m: reasons.extend(f.reason for f in r.failures)])
    assert reasons == ["answers 'loss' as float [1, 1], must be float [6, 1]"] * 3
