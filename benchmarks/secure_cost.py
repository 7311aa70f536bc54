"""What secure sums cost a step: milliseconds and bytes beside the same sum in clear, all nodes in one process.

    python benchmarks/secure_cost.py

One thread; plain and secure steps take turns, the best of `--repeats` counts. The work itself is nothing: each node
answers with so many numbers and a count, as in a generation of so many individuals. `node` is what one node computes,
`server` all that the server does; `keys` comes once a run. Bytes are those of a node.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch

from fne.config import registry
from fne.core.dataset import Samples
from fne.core.messages import Header, Request, Round
from fne.engines.local import LocalEngine
from fne.federation.node import Node, Secrets
from fne.federation.worker import Worker
from fne.secure.engine import SecureEngine
from fne.secure.node_tasks import public_identity

HEAD = (
    "nodes", "values", "plain (ms)", "secure (ms)", "ratio", "node (ms)", "server (ms)", "keys (ms)",
    "down, plain (B)", "down, secure (B)", "up, plain (B)", "up, secure (B)", "keys, down and up (B)",
)  # fmt: skip


class Clock(LocalEngine):
    """The local engine, with the milliseconds that it has taken: all that nodes compute."""

    spent = 0.0

    def send(self, request: Request) -> Round:
        """Send, and add up the time."""
        round_, taken = timed(lambda: super(Clock, self).send(request))
        self.spent += taken
        return round_


def timed(call: Callable[[], Round]) -> tuple[Round, float]:
    """Return what a call returns, and its milliseconds."""
    start = time.perf_counter()
    round_ = call()
    return round_, (time.perf_counter() - start) * 1e3


def row(count: int, values: int, repeats: int) -> list[str]:
    """Return the cells of a line of the table."""
    data = {f"node-{i:03d}": Samples(torch.rand(values, 1), torch.zeros(values)) for i in range(count)}
    worker = Worker({name: Node(name, held, Secrets.simulate(0, name)) for name, held in data.items()})
    worker.pinned = {name: public_identity(node) for name, node in worker.nodes.items()}
    clock = Clock(worker)
    plain, secure = LocalEngine(worker), SecureEngine(clock, worker.pinned)

    def step(number: int) -> Request:
        return Request(Header(0, number), "numbers", clock.nodes, reduce="sum")

    first, with_keys = timed(lambda: secure.send(step(0)))
    clears, masks = [], []
    for number in range(1, repeats + 1):
        clear, taken = timed(lambda n=number: plain.send(step(n)))  # type: ignore[misc]
        clears.append(taken)
        clock.spent = 0.0
        masked, taken = timed(lambda n=number: secure.send(step(n)))  # type: ignore[misc]
        masks.append((taken, clock.spent))
        error = (masked.replies[0].payload["loss"] - clear.replies[0].payload["loss"]).abs().max()
        assert float(error) <= count * 2.0**-33
    best, (whole, nodes) = min(clears), min(masks)
    of_node = [
        sum(getattr(round_.traffic, way).values()) / count
        for way in ("encoded_down", "encoded_up") for round_ in (clear, masked, first)
    ]  # fmt: skip
    down, secure_down, first_down, up, secure_up, first_up = of_node
    keys = first_down - secure_down + first_up - secure_up
    figures = [best, whole, whole / best, nodes / count, whole - nodes, with_keys - whole]
    sizes = [down, secure_down, up, secure_up, keys]
    return [str(count), str(values), *(f"{x:.3g}" for x in figures), *(f"{x:,.0f}" for x in sizes)]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    registry.add_plugin(Path(__file__).with_name("numbers_task.py"))
    row(4, 64, 1)  # what is loaded on first use
    print(f"| {' | '.join(HEAD)} |\n|{'---:|' * len(HEAD)}")
    for count in (4, 10, 100):
        for values in (64, 300):
            print(f"| {' | '.join(row(count, values, arguments.repeats))} |", flush=True)


if __name__ == "__main__":
    main()
