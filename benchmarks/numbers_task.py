"""A plugin whose node task answers with what the node holds: the numbers of a generation without the work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from fne.config.registry import register
from fne.core.messages import Request, Tensors
from fne.federation.node import Node
from fne.federation.worker import Worker


@register("task", "numbers")
def numbers(worker: Worker, nodes: Sequence[Node], request: Request) -> Iterator[Tensors]:
    """Yield what every node holds, and a count."""
    for node in nodes:
        yield {"loss": node.data.x, "samples": torch.tensor([len(node.data)])}
