"""Files of known points: what is read, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fne.core.errors import DataError, FneError
from fne.problems.objective import read_known
from fne.problems.space import space_of

pytestmark = pytest.mark.usefixtures("own_folder")


def known(text: str | bytes, *objectives: str) -> tuple[list[dict[str, float]], list[list[float]]]:
    space = space_of({"lr": (1e-3, 1), "epochs": (1, 9)}, ["epochs"], ["lr"])
    Path("known.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    points, values = read_known(Path("known.csv"), space, objectives or ("value",))
    assert points.dtype == values.dtype == torch.float64
    assert torch.equal(points, space.snap(points))
    return [space.named(point) for point in points], values.tolist()


@pytest.mark.parametrize(
    "text",
    [
        "lr,epochs,value\n0.1,3,7\n1,9,-2.5\n",
        "value,epochs,lr\r\n7,3,0.1\r\n-2.5,9,1\r\n",
        "\ufeff lr , epochs , value \n\n 0.1 , 3.0 , 7 \n1,9,-2.5",
        '"lr","epochs","value"\n"1e-1","3","7e0"\n,,\n1,9,-2.5\n',
    ],
)
def test_known_points(text: str) -> None:
    points, values = known(text)
    assert points == [{"lr": pytest.approx(0.1), "epochs": 3}, {"lr": 1, "epochs": 9}]
    assert values == [[7], [-2.5]]


def test_known_points_of_two_objectives_have_their_names_as_columns() -> None:
    points, values = known("time,lr,epochs,cost\n7,0.1,3,8\n-2.5,1,9,0\n", "cost", "time")
    assert points == [{"lr": pytest.approx(0.1), "epochs": 3}, {"lr": 1, "epochs": 9}]
    assert values == [[8, 7], [0, -2.5]]
    for text, message in (
        ("lr,epochs,value\n", ": its first line must name the columns lr, epochs, cost, time, not lr, epochs, value"),
        ("lr,epochs,cost,time\n1,1,1,inf\n", ", line 2: time must be finite; leave failed points out"),
        ("lr,epochs,cost,time\n1,1,1\n", ", line 2: must be 4 numbers, not '1,1,1'"),
    ):
        with pytest.raises(DataError) as caught:
            known(text, "cost", "time")
        assert str(caught.value).startswith(f"problem.known = known.csv{message}")
    with pytest.raises(DataError, match="a variable is called 'lr', like the column of values: rename it"):
        known("lr,epochs\n", "cost", "lr")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ": its first line must name the columns lr, epochs, value, not nothing"),
        ("lr,value\n1,2\n", ": its first line must name the columns lr, epochs, value, not lr, value"),
        ("lr,epochs,value,value\n", ": its first line must name the columns"),
        ("lr;epochs;value\n", ": its first line must name the columns lr, epochs, value, not lr;epochs;value"),
        ("lr,epochs,value\n", ": no point below the header; give some, or null"),
        ("lr,epochs,value\n0.1,3,7\n0.1,3\n", ", line 3: must be 3 numbers, not '0.1,3'"),
        ("lr,epochs,value\n0.1,3,seven\n", ", line 2: must be 3 numbers, not '0.1,3,seven'"),
        ("lr,epochs,value\n0.1,,7\n", ", line 2: must be 3 numbers, not '0.1,,7'"),
        ("lr,epochs,value\n2,3,7\n", ", line 2: lr = 2: must be between 0.001 and 1"),
        ("lr,epochs,value\nnan,3,7\n", ", line 2: lr = nan: must be between 0.001 and 1"),
        ("lr,epochs,value\n0.1,2.5,7\n", ", line 2: epochs = 2.5: must be a whole number"),
        ("lr,epochs,value\n0.1,3,inf\n", ", line 2: value must be finite; leave failed points out"),
        (b"\xff\xfe\x00", ": cannot be read: 'utf-8' codec"),
    ],
)
def test_known_points_that_are_wrong(text: str | bytes, message: str) -> None:
    with pytest.raises(DataError) as caught:
        known(text)
    assert str(caught.value).startswith(f"problem.known = known.csv{message}")


def test_no_file_of_known_points(tmp_path: Path) -> None:
    for path in (Path("none.csv"), tmp_path):
        with pytest.raises(FneError, match=r"problem.known = .*: cannot be read: .*; give a CSV in UTF-8, or null"):
            read_known(path, space_of({"x": (0, 1)}))
