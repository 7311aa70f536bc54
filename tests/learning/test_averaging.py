"""FedAvg, FedProx and centralised training against loops written in plain torch and means taken in NumPy."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fne.core.errors import RunError, SettingError
from fne.core.randomness import derive_seed, generator
from fne.core.types import Request, Samples
from fne.learning.averaging import Averaging
from fne.loop import run
from fne.strategies.centralised import centralised
from fne.strategies.fedavg import fedavg
from fne.strategies.fedprox import fedprox

Build = Callable[..., SimpleNamespace]
Clouds = Callable[..., dict[str, Samples]]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5, bias=False), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=1.0, rho=0.95, eps=1e-7),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer": "sgd", "lr": 0.1}, "momentum": {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9},
    "adam": {"optimizer": "adam", "lr": 0.01}, "adadelta": {"optimizer": "adadelta", "lr": 1.0},
}  # fmt: skip


def train(
    module: nn.Module, data: Samples, optimizer: torch.optim.Optimizer, draw: torch.Generator, epochs: int, size: int
) -> None:
    """Train in place, as one would without this toolkit; batches in the order that `draw` gives."""
    module.train()
    for _ in range(epochs):
        permuted = torch.randperm(len(data), generator=draw)
        for at in range(0, len(data), size):
            batch = permuted[at : at + size]
            optimizer.zero_grad()
            F.cross_entropy(module(data.x[batch]), data.y[batch]).backward()
            optimizer.step()


def initial(make: Callable[[], nn.Module], lab: SimpleNamespace, seed: int) -> nn.Module:
    module: nn.Module = lab.task.new_model(derive_seed(seed, "global"))
    return module


def averaged(states: Sequence[dict[str, Tensor]], sizes: Sequence[int]) -> dict[str, Tensor]:
    """Return the mean of state dicts weighted by sizes, in NumPy; integers rounded and still integers."""
    weights = np.array(sizes) / sum(sizes)
    means: dict[str, Tensor] = {}
    for name, first in states[0].items():
        mean = sum(w * s[name].numpy().astype(np.float64) for w, s in zip(weights, states, strict=True))
        values = torch.as_tensor(mean)
        means[name] = (values if first.is_floating_point() else values.round()).to(first.dtype)
    return means


def same(a: dict[str, Tensor], b: dict[str, Tensor], **tolerance: float) -> bool:
    return all(a[n].dtype == b[n].dtype and torch.allclose(a[n].double(), b[n].double(), **tolerance) for n in b)


def state_of(strategy: Averaging, lab: SimpleNamespace) -> dict[str, Tensor]:
    """Return the strategy's model as a state dict."""
    result = strategy.result()
    return {
        **{name: v[0] for name, v in lab.task.layout.unflatten(result.parameters.unsqueeze(0)).items()},
        **result.buffers,
    }


# ------------------------------------------------------------------------------------------------ FedAvg
@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
@pytest.mark.parametrize("make", [network, normed])
def test_fedavg_is_the_weighted_mean_of_independently_trained_models(
    laboratory: Build, clouds: Clouds, make: Callable[[], nn.Module], optimizer: str
) -> None:
    nodes = clouds(6, 16, 36)  # batches of one or two would make BatchNorm stop or amplify the last bits
    lab = laboratory(make, nodes)
    strategy = fedavg(lab.task, seed=5, rounds=3, fraction=1.0, local_epochs=2, batch_size=10, **SETTINGS[optimizer])
    module = initial(make, lab, 5)
    for step in range(3):
        strategy.tell(lab.engine.send(strategy.ask(lab.engine.nodes)))
        states = []
        for name, data in nodes.items():
            local = copy.deepcopy(module)
            draw = generator(5, step, 0, name, "batches")
            train(local, data, OPTIMIZERS[optimizer](local.parameters()), draw, 2, 10)
            states.append(local.state_dict())
        module.load_state_dict(averaged(states, [6, 16, 36]))
        assert same(state_of(strategy, lab), module.state_dict(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("make", "batches"), [(normed, [10, 11]), (network, [10, 10, 1])])
@pytest.mark.parametrize("epochs", [1, 3])
def test_a_last_single_sample_joins_its_neighbour_for_batch_norm_only(
    laboratory: Build, clouds: Clouds, make: Callable[[], nn.Module], batches: list[int], epochs: int
) -> None:
    (data,) = clouds(21).values()
    lab = laboratory(make, {"n0": data})
    strategy = fedavg(lab.task, seed=5, rounds=1, local_epochs=epochs, batch_size=10, lr=0.1)
    round_ = lab.engine.send(strategy.ask(lab.engine.nodes))
    metrics = strategy.tell(round_)
    assert round_.failures == ()
    module = initial(make, lab, 5).train()
    optimizer, draw = torch.optim.SGD(module.parameters(), lr=0.1), generator(5, 0, 0, "n0", "batches")
    for _ in range(epochs):
        total = 0.0
        for batch in torch.randperm(21, generator=draw).split(batches):
            optimizer.zero_grad()
            loss = F.cross_entropy(module(data.x[batch]), data.y[batch])
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch)
    assert same(state_of(strategy, lab), module.state_dict(), atol=1e-6, rtol=1e-6)
    assert metrics["loss_mean"] == pytest.approx(total / 21, rel=1e-5)
    if make is normed:
        assert strategy.result().buffers["1.num_batches_tracked"].item() == 2 * epochs


@pytest.mark.parametrize("output", ["softmax", "sigmoid"])
def test_the_metrics_hold_the_mean_training_loss_over_samples(laboratory: Build, clouds: Clouds, output: str) -> None:
    nodes = clouds(4, 20)
    lab = laboratory(network, nodes, output=output)
    strategy = fedavg(lab.task, seed=1, rounds=1, fraction=1.0, batch_size=0, lr=0.1)
    module = initial(network, lab, 1)
    joined = Samples(torch.cat([d.x for d in nodes.values()]), torch.cat([d.y for d in nodes.values()]))
    logits = module(joined.x)
    shares = logits.softmax(1) if output == "softmax" else F.normalize(logits.sigmoid(), p=1.0)
    wanted = F.nll_loss(shares.log(), joined.y).item()  # full batch, one epoch: before the only step
    metrics = strategy.tell(lab.engine.send(strategy.ask(lab.engine.nodes)))
    assert metrics["loss_mean"] == pytest.approx(wanted, rel=1e-6)
    validation = lab.task.evaluate(strategy.result().parameters.unsqueeze(0), loss="cross_entropy")
    assert metrics["loss_validation"] == validation["loss"].item()
    assert metrics["accuracy_validation"] == validation["accuracy"].item()


def test_fedavg_learns(laboratory: Build, clouds: Clouds) -> None:
    lab = laboratory(network, clouds(20, 40, 30), clouds(100, seed=1)["n0"])
    strategy = fedavg(lab.task, seed=0, rounds=15, fraction=0.7, lr=0.2)
    run(strategy, lab.engine)
    assert lab.task.evaluate(strategy.result().parameters.unsqueeze(0), loss="mse")["accuracy"].item() > 0.95


@pytest.mark.parametrize(("fraction", "count"), [(1.0, 10), (0.5, 5), (0.31, 3), (0.01, 1)])
def test_a_fraction_of_the_nodes_takes_part(laboratory: Build, clouds: Clouds, fraction: float, count: int) -> None:
    lab = laboratory(network, clouds(*[1] * 10))
    strategies = [fedavg(lab.task, seed=s, rounds=9, fraction=fraction, batch_size=0) for s in (0, 0, 1)]
    drawn: list[list[tuple[str, ...]]] = [[], [], []]
    for step in range(6):
        for strategy, found in zip(strategies, drawn, strict=True):
            strategy.step = step
            found.append(strategy.ask(lab.engine.nodes).nodes)
    assert all(len(nodes) == count and nodes == tuple(sorted(set(nodes))) for found in drawn for nodes in found)
    assert drawn[0] == drawn[1]
    assert count == 10 or (drawn[0] != drawn[2] and len(set(drawn[0])) > 1)


def test_the_learning_rate_decays_by_the_round(laboratory: Build, clouds: Clouds) -> None:
    lab = laboratory(network, clouds(3))
    strategy = fedavg(lab.task, seed=0, rounds=4, lr=0.5, lr_decay=0.5, batch_size=0)
    rates = []
    while not strategy.done:
        request = strategy.ask(lab.engine.nodes)
        rates.append(request.options["lr"])
        strategy.tell(lab.engine.send(request))
    assert rates == [0.5, 0.25, 0.125, 0.0625]


def test_no_nodes_are_an_error(laboratory: Build, clouds: Clouds) -> None:
    with pytest.raises(SettingError, match=r"data\.nodes = 0"):
        fedavg(laboratory(network, clouds(3)).task, seed=0).ask(())


def test_losses_of_labels_need_labels(laboratory: Build) -> None:
    lab = laboratory(lambda: nn.Linear(2, 1), {"n0": Samples(torch.ones(3, 2), torch.ones(3, 1))}, output="linear")
    with pytest.raises(SettingError, match=r"strategy\.loss = 'cross_entropy'"):
        fedavg(lab.task, seed=0)


@pytest.mark.parametrize(("returns", "rounds"), [("best", 1), ("last", 3)])
def test_what_is_returned(laboratory: Build, clouds: Clouds, returns: Any, rounds: int) -> None:
    """Validation labels that training contradicts: the first round is the best."""
    nodes = clouds(12)
    wrong = Samples(nodes["n0"].x, (nodes["n0"].y + 1) % 3)
    lab = laboratory(network, nodes, wrong)
    strategy = fedavg(lab.task, seed=3, rounds=3, lr=1.0, local_epochs=5, returns=returns)
    after, accuracies = {}, []
    while not strategy.done:
        metrics = strategy.tell(lab.engine.send(strategy.ask(lab.engine.nodes)))
        after[strategy.step] = strategy.champion().parameters
        accuracies.append(metrics["accuracy_validation"])
    assert accuracies[0] >= max(accuracies[1:])
    assert torch.equal(strategy.result().parameters, after[rounds])


# ------------------------------------------------------------------------------------------------ FedProx
def test_fedprox_without_mu_is_fedavg_bit_for_bit(laboratory: Build, clouds: Clouds) -> None:
    ends = []
    for method, more in ((fedavg, {}), (fedprox, {"mu": 0.0})):
        lab = laboratory(normed, clouds(6, 12, 33))
        strategy = method(lab.task, seed=2, rounds=3, fraction=0.7, momentum=0.5, **more)
        run(strategy, lab.engine)
        ends.append(state_of(strategy, lab))
    assert all(torch.equal(ends[0][name], value) for name, value in ends[1].items())


@pytest.mark.parametrize("mu", [0.01, 1.0])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_fedprox_descends_the_explicit_objective(laboratory: Build, clouds: Clouds, mu: float, optimizer: str) -> None:
    nodes = clouds(14)
    lab = laboratory(network, nodes)
    strategy = fedprox(lab.task, seed=4, rounds=1, mu=mu, local_epochs=8, batch_size=0, **SETTINGS[optimizer])
    module = initial(network, lab, 4)
    start = [p.detach().clone() for p in module.parameters()]
    steps = OPTIMIZERS[optimizer](module.parameters())
    for _ in range(8):
        steps.zero_grad()
        far = sum(((p - s) ** 2).sum() for p, s in zip(module.parameters(), start, strict=True))
        (F.cross_entropy(module(nodes["n0"].x), nodes["n0"].y) + mu / 2 * far).backward()
        steps.step()
    run(strategy, lab.engine)
    assert same(state_of(strategy, lab), module.state_dict(), atol=2e-6, rtol=1e-5)


# ------------------------------------------------------------------------------------------------ buffers
class Counting(nn.Module):
    """Counts the samples it is trained on, in int64; other buffers of other types stay as they are."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("seen", torch.tensor(0))
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("small", torch.tensor([3, 200], dtype=torch.uint8))
        self.register_buffer("coarse", torch.tensor([0.1, 0.7], dtype=torch.float16))
        self.register_buffer("waves", torch.sin(torch.arange(500.0)))
        self.register_buffer("fine", torch.tensor([0.1], dtype=torch.float64))
        self.register_buffer("causal", torch.tensor([0.0, -torch.inf]))
        self.register_buffer("unknown", torch.tensor([0.5, torch.nan]))
        self.register_buffer("huge", torch.tensor([2**60 + 1, -(2**62)]))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += len(x)
        y: Tensor = self.layer(x)
        return y


def test_integer_buffers_keep_their_type_and_constant_ones_their_bits(laboratory: Build, clouds: Clouds) -> None:
    lab = laboratory(Counting, clouds(7, 10))
    strategy = fedavg(lab.task, seed=0, rounds=30, fraction=1.0, batch_size=0)
    strategy.tell(lab.engine.send(strategy.ask(lab.engine.nodes)))
    seen = strategy.result().buffers["seen"]
    assert seen.dtype == torch.int64
    assert seen.item() == round((7 * 7 + 10 * 10) / 17) == 9
    run(strategy, lab.engine)
    given, got = Counting(), strategy.result().buffers
    for name in ("mask", "small", "coarse", "waves", "fine", "causal", "unknown", "huge"):
        assert got[name].dtype == getattr(given, name).dtype
        assert np.array_equal(got[name].numpy(), getattr(given, name).numpy(), equal_nan=name == "unknown"), name


@pytest.mark.parametrize("policy", ["batch", "server"])
def test_a_policy_for_statistics_without_gradients_is_none_of_these_methods_business(
    laboratory: Build, clouds: Clouds, policy: Any
) -> None:
    def unasked(genes: Tensor) -> dict[str, Tensor]:
        raise AssertionError

    ends = []
    for changes in ({}, {"batch_norm": policy, "statistics": unasked}):
        lab = laboratory(normed, clouds(6, 12))
        strategy = fedavg(dataclasses.replace(lab.task, **changes), seed=1, rounds=2, fraction=1.0)
        requests = [strategy.ask(lab.engine.nodes)]
        run(strategy, lab.engine)
        assert "statistics" not in requests[0].options
        ends.append(state_of(strategy, lab))
    assert all(torch.equal(ends[0][name], value) for name, value in ends[1].items())


def test_nodes_do_not_see_each_others_statistics(laboratory: Build, clouds: Clouds) -> None:
    """Means of 0 and 100 are averaged by samples; a leak from node to node would count two batches."""
    quiet, loud = (
        Samples(torch.zeros(6, 4), torch.zeros(6).long()),
        Samples(torch.full((3, 4), 1e3), torch.ones(3).long()),
    )
    lab = laboratory(lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)), {"n0": quiet, "n1": loud})
    strategy = fedavg(lab.task, seed=0, rounds=1, fraction=1.0, batch_size=0)
    run(strategy, lab.engine)
    buffers = strategy.result().buffers
    assert buffers["0.num_batches_tracked"].item() == 1
    assert torch.allclose(buffers["0.running_mean"], torch.full((4,), 0.1 * 1e3 * 3 / 9))  # momentum 0.1


# ------------------------------------------------------------------------------------------------ divergence
@pytest.mark.parametrize("broken", [1e30, float("nan"), float("inf")])
def test_a_node_that_diverges_is_left_out_and_named(laboratory: Build, clouds: Clouds, broken: float) -> None:
    nodes = clouds(6, 12, 33)
    nodes["n1"] = Samples(torch.full_like(nodes["n1"].x, broken), nodes["n1"].y)
    ends = []
    for chosen in (nodes, {name: nodes[name] for name in ("n0", "n2")}):
        lab = laboratory(network, chosen)
        strategy = fedavg(lab.task, seed=5, rounds=2, fraction=1.0, loss="mse" if broken == 1e30 else "cross_entropy")
        rounds: list[Any] = []
        if broken == 1e30:  # a linear layer without saturation, or nothing would blow up
            lab = laboratory(lambda: nn.Linear(4, 3), chosen, output="linear")
            strategy = fedavg(lab.task, seed=5, rounds=2, fraction=1.0, loss="mse")
        run(strategy, lab.engine, callbacks=[lambda s, r, m, seen=rounds: seen.append((r, m)) and None])
        ends.append(strategy.result().parameters)
        if chosen is nodes:
            for round_, metrics in rounds:
                assert [f.node for f in round_.failures] == ["n1"]
                assert "training diverged: non-finite values in" in metrics["failures"]["n1"]
                assert "lower strategy.lr = 0.1" in metrics["failures"]["n1"]
    assert bool(ends[0].isfinite().all())
    assert torch.equal(ends[0], ends[1])


def test_statistics_that_overflow_do_not_poison_the_others(laboratory: Build, clouds: Clouds) -> None:
    """A variance of infinity divides everything to zero: the weights stay finite, the buffer does not."""
    nodes = clouds(6, 12)
    nodes["n1"] = Samples(nodes["n1"].x * 1e25, nodes["n1"].y)
    lab = laboratory(lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)), nodes)
    strategy = fedavg(lab.task, seed=0, rounds=1, fraction=1.0, batch_size=0)
    round_ = lab.engine.send(strategy.ask(lab.engine.nodes))
    strategy.tell(round_)
    assert all(bool(b.double().isfinite().all()) for b in strategy.result().buffers.values())
    assert [f.node for f in round_.failures] == ["n1"]
    assert "non-finite values in '0.running_var'" in round_.failures[0].reason


def test_a_change_that_overflows_once_weighted_does_not_poison_the_others(laboratory: Build) -> None:
    """A change of 1e38 is a float32, ten times that is not."""
    still, wild = Samples(torch.zeros(2, 1), torch.zeros(2, 1)), Samples(torch.ones(10, 1), torch.full((10, 1), 1e8))
    lab = laboratory(lambda: nn.Linear(1, 1, bias=False), {"n0": still, "n1": wild}, output="linear")
    strategy = fedavg(lab.task, seed=0, rounds=1, fraction=1.0, batch_size=0, loss="mse", lr=5e29)
    round_ = lab.engine.send(strategy.ask(lab.engine.nodes))
    strategy.tell(round_)
    assert [f.node for f in round_.failures] == ["n1"]
    assert bool(strategy.result().parameters.isfinite().all())


def test_where_all_diverge_the_run_ends_with_the_reason(laboratory: Build, clouds: Clouds) -> None:
    nodes = {name: Samples(d.x * torch.nan, d.y) for name, d in clouds(3, 4).items()}
    lab = laboratory(network, nodes)
    strategy = fedavg(lab.task, seed=0, fraction=1.0)
    with pytest.raises(RunError, match=r"0 of 2 nodes answered, .*; n0 and 1 more: training diverged"):
        run(strategy, lab.engine)


# ------------------------------------------------------------------------------------------------ what trains
def test_frozen_parameters_stay_and_tied_ones_are_trained_once(laboratory: Build, clouds: Clouds) -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
            self.b.weight = self.a.weight
            self.head = nn.Linear(4, 3).requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.head(self.b(torch.tanh(self.a(x))))
            return y

    nodes = clouds(9)
    lab = laboratory(Shared, nodes)
    strategy = fedavg(lab.task, seed=6, rounds=1, local_epochs=3, batch_size=4)
    assert strategy.result().parameters.shape == (20,)
    head = lab.worker.module.head.weight.clone()
    module = initial(Shared, lab, 6)
    module.head.load_state_dict(lab.worker.module.head.state_dict())
    train(module, nodes["n0"], torch.optim.SGD(module.parameters(), lr=0.1), generator(6, 0, 0, "n0", "batches"), 3, 4)
    run(strategy, lab.engine)
    wanted = torch.cat([module.a.weight.flatten(), module.a.bias])
    assert torch.allclose(strategy.result().parameters, wanted, atol=1e-6)
    assert torch.equal(lab.worker.module.head.weight, head)


@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_a_parameter_that_the_forward_does_not_use_stays(laboratory: Build, clouds: Clouds, mu: float) -> None:
    class Spare(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 3)
            self.spare = nn.Parameter(torch.ones(2))

    lab = laboratory(Spare, clouds(9))
    strategy = fedprox(lab.task, seed=0, rounds=2, mu=mu)
    run(strategy, lab.engine)
    assert torch.equal(state_of(strategy, lab)["spare"], torch.ones(2))


def test_dropout_draws_from_the_runs_seed_and_not_from_the_global_generator(laboratory: Build, clouds: Clouds) -> None:
    ends = []
    for surroundings in (1, 2):
        torch.manual_seed(surroundings)
        lab = laboratory(lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)), clouds(6, 12))
        strategy = fedavg(lab.task, seed=5, rounds=2, fraction=1.0)
        before = torch.get_rng_state()
        run(strategy, lab.engine)
        assert torch.equal(torch.get_rng_state(), before)
        ends.append(strategy.result().parameters)
    assert torch.equal(*ends)


# ------------------------------------------------------------------------------------------------ centralised
@pytest.mark.parametrize("optimizer", ["adadelta", "adam", "momentum", "sgd"])
@pytest.mark.parametrize("make", [network, normed])
def test_centralised_is_one_uninterrupted_training_loop(
    laboratory: Build, clouds: Clouds, make: Callable[[], nn.Module], optimizer: str
) -> None:
    (data,) = clouds(50).values()
    lab = laboratory(make, {"all": data})
    strategy = centralised(lab.task, seed=8, rounds=6, batch_size=16, **SETTINGS[optimizer])
    assert strategy.pooled
    assert strategy.ask(lab.engine.nodes).nodes == ("all",)
    run(strategy, lab.engine)
    ends = []
    for kept in (True, False):
        module = initial(make, lab, 8)
        steps = OPTIMIZERS[optimizer](module.parameters())
        for step in range(6):
            if not kept:
                steps = OPTIMIZERS[optimizer](module.parameters())
            train(module, data, steps, generator(8, step, 0, "all", "batches"), 1, 16)
        ends.append(module.state_dict())
    assert same(state_of(strategy, lab), ends[0], atol=2e-5, rtol=1e-4)
    if optimizer != "sgd":  # which keeps nothing
        assert not same(state_of(strategy, lab), ends[1], atol=1e-3, rtol=1e-2)


def test_a_node_that_diverges_keeps_its_optimizer_as_it_was(laboratory: Build, clouds: Clouds) -> None:
    (data,) = clouds(20).values()
    lab = laboratory(network, {"all": data})
    strategy = centralised(lab.task, seed=0, rounds=3)
    strategy.tell(lab.engine.send(strategy.ask(lab.engine.nodes)))
    node = lab.worker.nodes["all"]
    before = {name: value.clone() for name, value in node.memory.items()}
    assert before
    node.data = Samples(data.x * torch.nan, data.y)
    with pytest.raises(RunError, match="training diverged"):
        lab.engine.send(strategy.ask(lab.engine.nodes))
    assert set(node.memory) == set(before)
    assert all(torch.equal(node.memory[name], value) for name, value in before.items())


# ------------------------------------------------------------------------------------------------ going on
@pytest.mark.parametrize("method", [fedavg, fedprox, centralised])
@pytest.mark.parametrize("stop", [0, 1, 3])
def test_a_resumed_run_ends_with_the_same_bits(
    laboratory: Build, clouds: Clouds, method: Callable[..., Averaging], stop: int, tmp_path: Path
) -> None:
    nodes = clouds(30) if method is centralised else clouds(6, 12, 33)

    def fresh() -> tuple[SimpleNamespace, Averaging]:
        lab = laboratory(normed, nodes, folder=tmp_path)
        return lab, method(lab.task, seed=9, rounds=5)

    lab, whole = fresh()
    run(whole, lab.engine)
    lab, first = fresh()
    if stop:
        run(first, lab.engine, callbacks=[lambda strategy, round_, metrics: strategy.step == stop])
    lab.engine.save(stop)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    lab, second = fresh()
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    lab.engine.load(stop)
    assert second.step == stop
    run(second, lab.engine)
    for name, value in state_of(whole, lab).items():
        assert torch.equal(state_of(second, lab)[name], value), name


def test_requests_and_sums_are_all_that_crosses(laboratory: Build, clouds: Clouds) -> None:
    lab = laboratory(normed, clouds(6, 12))
    request = fedavg(lab.task, seed=0, fraction=1.0).ask(lab.engine.nodes)
    assert isinstance(request, Request)
    assert request.reduce == "sum"
    assert set(request.common) == {
        "parameters", "buffer.1.running_mean", "buffer.1.running_var", "buffer.1.num_batches_tracked"
    }  # fmt: skip
    (reply,) = lab.engine.send(request).replies
    assert reply.payload["samples"].item() == 18
    assert reply.payload["buffer.1.num_batches_tracked"].dtype == torch.int64


def test_a_learning_rate_that_decays_to_nothing_trains_no_more(laboratory: Build, clouds: Clouds) -> None:
    lab = laboratory(network, clouds(4))
    strategy = fedavg(lab.task, seed=0, rounds=400, lr_decay=0.1, fraction=1.0)
    strategy.step = 399  # 0.1 * 0.1 ** 399 is 0 in float64
    before = strategy.result().parameters
    run(strategy, lab.engine)
    assert torch.equal(strategy.result().parameters, before)
