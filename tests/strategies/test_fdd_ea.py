"""FDD-EA against an independent computation; who sees what; what goes wrong and how it is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fne.cli.main import main
from fne.config.load import load_config
from fne.core.errors import FneError, RunError, SettingError
from fne.engines.local import LocalEngine
from fne.loop import run
from fne.optimizer import Optimizer
from fne.run.checkpoint import Checkpoint
from fne.run.search_run import SearchRun, build_search
from fne.run.train import train
from fne.search.release import ReleaseWarning
from fne.watch.history import read_history

Array = NDArray[np.float64]
ODD = Path(__file__).parents[1] / "plugins" / "odd_problem.py"


def config(problem: dict[str, Any] | None = None, **strategy: Any) -> dict[str, Any]:
    return {
        "problem": {"name": "ellipsoid", "dim": 3, "nodes": 20} | (problem or {}),
        "strategy": {"name": "fdd_ea", "rounds": 4, "participation": 0.2, "generations": 30, **strategy},
        "watch": {"tensorboard": False},
    }


def search(problem: dict[str, Any] | None = None, **strategy: Any) -> tuple[SearchRun, LocalEngine]:
    made = build_search(load_config(config(problem, **strategy)))  # type: ignore[arg-type]
    return made, LocalEngine(made.worker)


# ------------------------------------------------------------------------------------------------ independent
def value_of(network: dict[str, Array], x: Array) -> float:
    r = ((x - network["centres"]) ** 2).sum(axis=1) / network["widths"] ** 2
    return float(network["weights"] @ np.exp(-r) + network["bias"])


def bound(locals_: list[dict[str, Array]], shares: list[float], x: Array, mu: float) -> float:
    """F-LCB by the letter of (8) and (11) to (16)."""
    orders = [np.argsort((n["centres"] ** 2).sum(axis=1)) for n in locals_]
    keys = ("centres", "widths", "weights")
    fed = {k: sum(p * n[k][o] for p, n, o in zip(shares, locals_, orders, strict=True)) for k in keys}
    fed["bias"] = sum(p * n["bias"] for p, n in zip(shares, locals_, strict=True))
    f_local, f_fed = [value_of(n, x) for n in locals_], value_of(fed, x)  # type: ignore[arg-type]
    mean = (sum(p * f for p, f in zip(shares, f_local, strict=True)) + f_fed) / 2
    variance = (sum((f - mean) ** 2 for f in f_local) + (f_fed - mean) ** 2) / len(f_local)
    return mean - mu * float(np.sqrt(variance))


def descended(network: dict[str, Array], x: Array, y: Array, start: Array, epochs: int, lr: float) -> Array:
    """One sample a step, in ascending order of the values."""
    w = start.copy()
    for _ in range(epochs):
        for i in np.argsort(y, kind="stable"):
            r = ((x[i] - network["centres"]) ** 2).sum(axis=1) / network["widths"] ** 2
            phi = np.append(np.exp(-r), 1.0)
            w -= lr * (w @ phi - y[i]) * phi
    return w


def test_a_round_against_a_computation_by_hand() -> None:
    made, engine = search(epochs=3, population=200, generations=60)
    strategy = made.strategy
    for _ in range(2):  # the start, and a query of a set of its own
        request = strategy.ask(engine.nodes)
        round_ = engine.send(request)
        metrics = strategy.tell(round_)
    assert len(round_.replies) == len(request.nodes) == 4
    start = np.append(request.common["weights"][0].numpy(), request.common["bias"][0].numpy())
    locals_, counts = [], []
    for reply in round_.replies:
        network = {k: reply.payload[k][0].numpy().astype(np.float64) for k in ("centres", "widths", "weights", "bias")}
        memory = made.worker.nodes[reply.node].memory
        x, y = memory["points"][0].numpy(), memory["measured"][0, :, 0].numpy()
        assert len(y) == 16 == int(reply.payload["samples"][0])
        norms = (network["centres"] ** 2).sum(axis=1)
        assert (np.diff(norms) >= -1e-6).all()
        apart = np.sqrt(((network["centres"][:, None] - network["centres"][None]) ** 2).sum(axis=2))
        np.fill_diagonal(apart, np.inf)
        np.testing.assert_allclose(network["widths"], apart.min(axis=1), rtol=1e-5)
        trained = descended(network, x, y, start, 3, 0.12)
        np.testing.assert_allclose(np.append(network["weights"], network["bias"]), trained, rtol=1e-3, atol=1e-3)
        locals_.append(network)
        counts.append(len(y))
    shares = [count / sum(counts) for count in counts]
    point = strategy.ask(engine.nodes).common["points"][0, 0].numpy()
    assert metrics["acquisition"] == pytest.approx(bound(locals_, shares, point, 2.0), rel=1e-3, abs=1e-3)
    draw = np.random.default_rng(0)
    others = [bound(locals_, shares, draw.uniform(-1, 1, 3), 2.0) for _ in range(2000)]
    assert metrics["acquisition"] <= min(others) + 0.01 * np.std(others)


# ------------------------------------------------------------------------------------------------ who sees what
def test_only_participants_get_anything_and_no_value_leaves_a_node(tmp_path: Path) -> None:
    made, engine = search(finals="literal")
    sets = []
    while not made.strategy.done:
        step = made.strategy.step
        request = made.strategy.ask(engine.nodes)
        round_ = engine.send(request)
        sets.append(request.nodes)
        for reply in round_.replies if request.task == "surrogate" else ():
            values = made.worker.nodes[reply.node].memory["measured"]
            sent = torch.cat([v.double().flatten() for v in reply.payload.values()])
            assert not torch.isin(values.float().flatten(), sent.float()).any()
        made.strategy.tell(round_)
        asked = [int(node.memory["asked"][0]) for node in made.worker.nodes.values()]
        assert sum(asked) == 20 * 15 + 4 * min(step, 4)
    assert [len(nodes) for nodes in sets] == [20, 4, 4, 4, 4, 20]
    assert len(set(sets[1:5])) > 1


@pytest.mark.parametrize("name", ["fdd_ea", "fdd_ea_plus"])
def test_no_file_of_a_run_shows_what_a_node_has_measured(name: str, tmp_path: Path) -> None:
    """But the nodes' own, and of the best what is released."""
    train({**config({"dim": 2}), "strategy": {"name": name, "rounds": 4, "generations": 3}}, out=tmp_path / "run")
    assert all(set(own) <= {"samples"} for line in read_history(tmp_path / "run") for own in line["per_node"].values())


def test_noise_is_the_nodes_own_and_the_history_shows_what_is_behind_it(tmp_path: Path) -> None:
    made, engine = search({"noise": 0.5})
    made.strategy.tell(engine.send(made.strategy.ask(engine.nodes)))
    errors = torch.stack([n.memory["measured"][0] - n.memory["exact"][0] for n in made.worker.nodes.values()])
    assert errors.std() == pytest.approx(0.5, rel=0.15)
    assert errors.mean() == pytest.approx(0.0, abs=0.1)
    exact = torch.stack([n.memory["exact"][0] for n in made.worker.nodes.values()])
    assert torch.equal(exact, exact[:1].expand_as(exact))
    summary = train(config({"noise": 0.5}), out=tmp_path / "run")
    last = read_history(tmp_path / "run")[-1]
    assert last["best_value"] == summary["best_values_exact"][0] >= 0
    assert summary["best_value"] != last["best_value"]  # what a node says it has measured


def test_nodes_do_not_measure_where_they_cannot() -> None:
    made, engine = search({"infeasible": 5})
    for _ in range(5):
        made.strategy.tell(engine.send(made.strategy.ask(engine.nodes)))
    for number, node in enumerate(made.worker.nodes.values()):
        first, values = node.memory["points"][0, :, 0], node.memory["measured"][0, :, 0]
        low, high = -1 + number / 10, min(-1 + (number + 5) / 10, 1)  # eq. (18), (19): 20 slots of [-1, 1]
        assert torch.equal(values.isnan(), (first >= low) & (first <= high))
    assert any(node.memory["measured"].isnan().any() for node in made.worker.nodes.values())


def test_distinct_queries_are_different_points_and_each_is_an_evaluation() -> None:
    made, engine = search(queries="distinct", rounds=2)
    for step in range(3):
        request = made.strategy.ask(engine.nodes)
        metrics = made.strategy.tell(engine.send(request))
        assert metrics["evaluations"] == 15 + 4 * step
    points = torch.cat([own["points"][0] for own in request.private.values()])
    assert len(points) == 4
    assert torch.pdist(points).min() > 1e-6
    for dim, rounds in ((3, 4), (1, 1), (7, 10)):  # four evaluations each; never more than 6 d but for the first
        given = config({"dim": dim}, queries="distinct", rounds=None)
        assert build_search(load_config(given)).strategy.horizon == 4 + rounds  # type: ignore[arg-type]


def test_the_most_training_samples_are_the_best() -> None:
    made, engine = search(max_training_samples=8)
    request = made.strategy.ask(engine.nodes)
    replies = engine.send(request).replies
    trained = [reply for reply in replies if len(reply.payload["samples"])]
    assert {int(reply.payload["samples"][0]) for reply in trained} == {8}
    memory = made.worker.nodes[trained[0].node].memory
    best = memory["points"][0][memory["measured"][0, :, 0].argsort()[:8]]
    centres = trained[0].payload["centres"][0].double()
    assert (centres >= best.amin(dim=0) - 1e-6).all()
    assert (centres <= best.amax(dim=0) + 1e-6).all()


def test_points_known_from_the_start_are_trained_on_and_may_be_the_best(tmp_path: Path) -> None:
    rows = [f"0.01,0.02,{0.01 * i},{0.001 + i}" for i in (0, 0, 0, 1)]  # three times the same point
    (tmp_path / "known.csv").write_text("x1,x2,x3,value\n" + "\n".join(rows) + "\n")
    given = config({"known": str(tmp_path / "known.csv")}, initial=4)
    found = train(given, out=tmp_path / "all")
    assert found["best_value"] == pytest.approx(0.01**2 + 2 * 0.02**2)  # as all nodes measure it, not as one knows it
    assert found["best_point"] == pytest.approx({"x1": 0.01, "x2": 0.02, "x3": 0.0})
    given["strategy"]["finals"] = "literal"
    summary = train(given, out=tmp_path / "run")
    assert summary["best_value"] == 0.001
    assert summary["best_point"] == pytest.approx({"x1": 0.01, "x2": 0.02, "x3": 0.0})
    assert summary["evaluations"] == 4 + 4


# ------------------------------------------------------------------------------------------------ release
def test_an_owner_may_decline_to_release_and_the_others_tell_the_best(tmp_path: Path) -> None:
    """Also where those that are left are fewer than the quorum: a refusal is an answer."""
    known = "x1,x2,x3,value\n0,0,0,0.001\n"  # the best, which only the one that declines knows
    for number in range(5):
        (tmp_path / f"node-{number:03d}.csv").write_text(known if number == 2 else "x1,x2,x3,value\n1,1,1,90\n")
    given = config({"nodes": 5, "known": f"{tmp_path}/{{node}}.csv", "declines": ["node-002", "node-004"]})
    given["strategy"] |= {"participation": 0.8, "finals": "literal"}
    given["engine"] = {"quorum": 4}
    summary = train(given, out=tmp_path / "run")
    assert 0.001 < summary["best_value"] < 90
    *before, last = read_history(tmp_path / "run")
    assert all(line["failures"] == {} for line in before)
    assert last["failures"] == dict.fromkeys(["node-002", "node-004"], "its owner declines to release what it found")
    given["problem"]["declines"] = []
    assert train(given, out=tmp_path / "all")["best_value"] == 0.001


def test_where_all_owners_decline_the_result_is_what_the_server_knew_and_that_is_said(tmp_path: Path) -> None:
    given = config({"nodes": 2, "declines": ["node-000", "node-001"]}, participation=1)
    with pytest.warns(
        ReleaseWarning, match=r"no node released what it found \(node-000: its owner declines to release"
    ):
        summary = train(given, out=tmp_path / "run")
    unreleased = train(config({"nodes": 2}, participation=1, release=False), out=tmp_path / "other")
    assert summary["best_value"] is unreleased["best_value"] is None
    assert summary["best_point"] == unreleased["best_point"]


# ------------------------------------------------------------------------------------------------ what goes wrong
def test_the_literal_reading_ends_with_an_error_that_says_why(tmp_path: Path, capsys: Any) -> None:
    words = ["problem.dim=10", "strategy.reading=literal", "--out", str(tmp_path / "run"), "-q"]
    assert main(["train", "fdd_ea_ellipsoid", *words]) == 2
    error = capsys.readouterr().err
    assert "diverged with strategy.lr = 0.12" in error
    assert "take reading = workable, or lower strategy.lr" in error
    summary = train(config(reading="literal", lr=0.001, epochs=2), out=tmp_path / "low")
    assert summary["finished"]


def test_one_node_and_one_variable(tmp_path: Path) -> None:
    for kind in "flg":
        summary = train(config({"nodes": 1, "dim": 1}, acquisition=kind, rounds=6), out=tmp_path / kind)
        assert summary["best_value"] < 5.12**2 / 20


def test_a_problem_that_nobody_can_measure_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="could measure any point"):
        train(config({"nodes": 1, "infeasible": 1}), out=tmp_path / "run")


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"problem": {"name": "ellipsoid", "dim": 0}}, "problem.dim = 0: must be a whole number >= 1"),
        (
            {"problem": {"name": "ellipsoid", "nodes": 0}},
            "problem.nodes = 0: must be a whole number >= 1 and <= 1000000",
        ),
        ({"problem": {"name": "elipsoid"}}, "did you mean 'ellipsoid'?"),
        ({"problem": {"name": "ellipsoid", "colour": 1}}, "problem.colour = 1: unknown key"),
        ({"strategy": {"name": "fne"}}, "strategy.name = 'fne': needs data and model; for problem take"),
        ({"strategy": {"name": "fdd_ea", "acquisition": "ei"}}, "strategy.acquisition = 'ei': must be 'f', 'l' or 'g'"),
        ({"strategy": {"name": "fdd_ea", "participation": 0}}, "strategy.participation = 0: must be a number > 0"),
        ({"data": {"name": "toy"}}, "problem and data: a run either searches a problem or trains a model"),
        ({"watch": {"target": 0.9}}, "watch.target = 0.9: must be null with a problem"),
        ({"watch": {"champions": 1}}, "watch.champions = 1: must be 0 with a problem"),
        ({"wire": "lineage"}, "wire = 'lineage': must be tensors or auto with a problem"),
        ({"problem": {"name": "ellipsoid", "known": "no.csv"}}, "no.csv: cannot be read"),
        ({"problem": {"name": "ellipsoid", "known": "a\0b"}}, "must be a path"),
        (
            {
                "strategy": {"name": "fdd_ea", "participation": 1},
                "problem": {"name": "ellipsoid", "nodes": 2, "declines": ["node-001", "site-1"]},
            },
            "problem.declines = 'site-1': must be names of nodes: node-000, node-001",
        ),
        (
            {"strategy": {"name": "dycors"}, "problem": {"name": "ellipsoid", "declines": ["node-000"]}},
            "must be left out with strategy.name = 'dycors', which ends without a release",
        ),
        (
            {"strategy": {"name": "fdd_ea_plus"}, "problem": {"name": "ellipsoid", "declines": ["node-000"]}},
            "must be left out with strategy.name = 'fdd_ea_plus', which ends without a release",
        ),
        (
            {"problem": {"name": "command", "command": ["cat"], "variables": {"x": [0, 1]}, "objectives": ["a", "b"]}},
            "strategy.name = 'fdd_ea': must be a strategy for several objectives, such as fdd_ea_mo (problem.name = "
            "'command' has 2: a, b)",
        ),
        ({"engine": {"quorum": 5}}, "engine.quorum = 5: must be at most the number of nodes in a step, 4"),
        (
            {"strategy": {"name": "fdd_ea_plus"}, "problem": {"name": "ellipsoid", "known": "no.csv"}},
            "null with strategy.name = 'fdd_ea_plus', which sees only points that it asked for",
        ),
    ],
)
def test_mistakes_are_told_by_key(changed: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(FneError) as caught:
        train({**config(), **changed}, out=tmp_path / "run")
    assert text in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_strategy_for_several_objectives_needs_them() -> None:
    with pytest.raises(SettingError) as caught:
        build_search(load_config({**config(), "strategy": "fdd_ea_mo"}))
    assert str(caught.value) == (
        "strategy.name = 'fdd_ea_mo': must be a strategy for one objective, such as fdd_ea (problem.name = 'ellipsoid' "
        "has 1: value)"
    )
    with pytest.raises(FneError, match="searches for several objectives at once; Optimizer takes one for a point"):
        Optimizer([(0, 1)], strategy="fdd_ea_mo")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "its first line must name the columns x1, x2, x3, value, not nothing"),
        ("x1,x2,value\n1,2,3\n", "not x1, x2, value"),
        ("x1,x2,x3,value\n", "no point below the header"),
        ("x1,x2,x3,value\n1,2,3\n", "line 2: must be 4 numbers, not"),
        ("x1,x2,x3,value\n1,2,3,many\n", "line 2: must be 4 numbers, not"),
        ("x1,x2,x3,value\n0,0,0,1\n9,2,3,4\n", "line 3: x1 = 9: must be between -5.12 and 5.12"),
        ("x1,x2,x3,value\n1,2,3,nan\n", "line 2: value must be finite"),
        ("x1,x2,x3,value\nnan,2,3,1\n", "line 2: x1 = nan: must be between"),
    ],
)
def test_known_points_that_are_none(text: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "known.csv").write_text(text)
    with pytest.raises(FneError) as caught:
        train(config({"known": str(tmp_path / "known.csv")}), out=tmp_path / "run")
    assert expected in str(caught.value)


def test_a_search_config_keeps_what_it_was_given_and_resumes_only_with_it(tmp_path: Path) -> None:
    first = load_config(config())
    assert load_config(first.to_dict()) == first
    train(config(), out=tmp_path / "run", stop_after=2)
    with pytest.raises(FneError, match=r"cannot resume .* problem\.nodes: 20 -> 21"):
        train(config({"nodes": 21}), resume=tmp_path / "run")
    assert main(["data", "show", "fdd_ea_ellipsoid"]) == 2


def test_a_run_goes_on_only_with_the_code_that_measured(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def square(x):\n    return (x - 1) ** 2\n")
    own = {"name": "callable", "function": f"{file}:square", "variables": {"x": [-3, 3]}}
    given = {**config(rounds=3, participation=0.6), "problem": {**own, "nodes": 5}}
    train(given, out=tmp_path / "run", stop_after=2)
    file.write_text("def square(x):\n    return (x - 2) ** 2\n")
    with pytest.raises(FneError, match=r"mine\.py changed since the run was begun"):
        train(None, resume=tmp_path / "run")
    with pytest.raises(FneError, match="code: "):
        train(None, resume=tmp_path / "run", trust=True)
    file.write_text("def square(x):\n    return (x - 1) ** 2\n")
    assert train(None, resume=tmp_path / "run")["best_value"] < 0.5


def test_a_checkpoint_follows_a_step_that_ends_a_minute_after_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for minute, held in ((60.0, []), (0.0, [2, 3])):  # what was dear to measure is not lost with a kill
        monkeypatch.setattr("fne.run.checkpoint.MINUTE", minute)
        folder = tmp_path / str(minute)
        made, engine = search()
        engine._folder = folder
        folder.mkdir()
        checkpoint = Checkpoint(folder, 50, engine, {}, dict)
        run(made.strategy, engine, callbacks=[checkpoint, lambda strategy, *_: strategy.step == 3])
        assert [int(path.stem[-3:]) for path in sorted(folder.glob("nodes/*.pt"))] == held


def test_curves_of_searches_are_of_the_best_value(tmp_path: Path) -> None:
    train(config(), out=tmp_path / "run")
    assert main(["report", str(tmp_path / "run"), "--curves", str(tmp_path / "x.png"), "--x", "evaluations"]) == 0
    assert (tmp_path / "x.png").stat().st_size > 10_000


def test_compare_puts_searches_of_one_problem_in_a_table(tmp_path: Path, capsys: Any) -> None:
    words = ["problem.dim=2", "problem.nodes=5", "strategy.generations=2", "--out", str(tmp_path), "-q", "--no-bytes"]
    assert main(["compare", "fdd_ea_ellipsoid", "fdd_ea_small_steps", "--seeds", "0-1", *words]) == 0
    shown = capsys.readouterr().out
    assert "problem" not in shown  # it is in the title
    assert "ellipsoid (dim 2)" in shown
    assert shown.count("n = 2") >= 1
    assert main(["compare", "fdd_ea_ellipsoid", "fdd_ea_plus_shifted"]) == 2
    assert "do not share one partition (problem.name" in capsys.readouterr().err


@pytest.mark.gpu
def test_surrogates_on_cuda_find_what_those_on_the_cpu_find(tmp_path: Path) -> None:
    given = config({"dim": 6}, runs=4, rounds=8, participation=0.5)
    values = {}
    for device in ("cpu", "cuda"):
        summary = train({**given, "engine": {"device": device}}, out=tmp_path / device)
        assert summary["device"] == device
        values[device] = summary["best_values"]
    first = {d: read_history(tmp_path / d)[0]["acquisition"] for d in values}
    assert first["cuda"] == pytest.approx(first["cpu"], rel=0.05)  # float32, and a search that compares
    assert np.mean(values["cuda"]) == pytest.approx(np.mean(values["cpu"]), rel=0.5)
