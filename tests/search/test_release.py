"""What owners publish at the end of a search."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fne.core.contracts import Result
from fne.core.dataset import Samples
from fne.core.errors import RefusedError, RunError
from fne.core.messages import Header, Request, Round, Status, Traffic
from fne.federation.node import Node, Secrets
from fne.federation.worker import Worker
from fne.problems.objective import Objective
from fne.search.release import ReleaseWarning, check_release, release_front_task, release_request, released_fronts

NAN = math.nan
HEADER = Header(1, 2)


def node(name: str, *, declines: bool = False, values: Tensor | None = None) -> Node:
    none = Samples(torch.zeros(0), torch.zeros(0))
    made = Node(name, none, Secrets.simulate(0, name), objective=Objective(None, objectives=2, declines=declines))  # type: ignore[arg-type]
    if values is not None:
        points = torch.arange(values.shape[1]).double().view(1, -1, 1).expand(len(values), -1, 1)
        made.memory = {"points": points, "measured": values, "own": torch.ones(points.shape[:2], dtype=torch.bool)}
    return made


def doubles(*rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def told(*nodes: Node) -> Round:
    request = release_request(
        1, 2, [n.name for n in nodes], "release_front", sizes={"runs": 1, "variables": 2, "objectives": 2}
    )
    replies = tuple(Worker({n.name: n for n in nodes}).run(request))
    there = tuple(reply for reply in replies if reply.status is Status.OK)
    return Round(there, tuple(r for r in replies if r.status is not Status.OK), Traffic({}, {}, {}, {}))


def test_who_may_release() -> None:
    with pytest.raises(RefusedError, match="its owner declines to release what it found"):
        check_release(node("a", declines=True, values=doubles([[1, 2]])))
    with pytest.raises(RunError, match="nothing was ever asked of this node"):
        check_release(node("a"))
    check_release(node("a", values=doubles([[1, 2]])))


def test_a_node_tells_its_front_alone() -> None:
    values = doubles([[1, 2], [2, 3], [0, 9], [NAN, NAN]], [[5, 5], [4, 4], [4, 4], [NAN, NAN]])
    (payload,) = release_front_task(Worker({}), [node("a", values=values)], Request(HEADER, "release_front", ("a",)))
    assert payload["points"][..., 0].tolist() == [[0, 2], [1, 2]]
    assert payload["values"].tolist() == [[[1, 2], [0, 9]], [[4, 4], [4, 4]]]


def test_published_fronts_become_one() -> None:
    first = node("a", values=doubles([[1, 5], [3, 3]], [[2, 2], [NAN, NAN]]))
    second = node("b", values=doubles([[2, 4], [3, 2], [9, 9]], [[1, 9], [3, 3], [9, 1]]))
    result = released_fronts(told(first, second), Result("front", torch.zeros(2, 0, 1)))
    assert result.kind == "front"
    assert result.values is not None
    there = [sorted(values[values.isfinite().all(dim=1)].tolist()) for values in result.values]
    assert there == [[[1, 5], [2, 4], [3, 2]], [[1, 9], [2, 2], [9, 1]]]
    assert result.parameters.shape == (2, 3, 1)


def test_owners_that_decline_are_left_out_and_if_all_do_it_is_said() -> None:
    open_, closed = node("a", values=doubles([[1, 5]])), node("b", declines=True, values=doubles([[0, 0]]))
    round_ = told(open_, closed)
    assert [failure.reason for failure in round_.failures] == ["its owner declines to release what it found"]
    before = Result("front", torch.zeros(1, 0, 1), values=torch.zeros(1, 0, 2))
    result = released_fronts(round_, before)
    assert result.values is not None
    assert result.values.tolist() == [[[1, 5]]]
    with pytest.warns(ReleaseWarning, match=r"no node released what it found \(b: its owner declines"):
        assert released_fronts(told(closed), before) is before


def test_a_node_without_a_single_value_publishes_nothing() -> None:
    result = released_fronts(told(node("a", values=doubles([[NAN, NAN]]))), Result("front", torch.zeros(1, 0, 1)))
    assert result.values is not None
    assert result.values.shape == (1, 0, 2)
