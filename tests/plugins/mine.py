# ruff: noqa: B006
"""A plugin for the tests of configs, which read it and never import it."""

from __future__ import annotations

from typing import Annotated, Literal

from fne.config.registry import Key, register

raise RuntimeError("a config must not import what it names")


@register("data", "dots")
def dots(
    *,
    seed: int,
    size: Annotated[int, Key("samples", ge=1)] = 100,
    path: Annotated[str | None, Key("file")] = None,
):
    """Make dots."""


@register("model", "line")
class Line:
    """Draw a line."""

    def __init__(self, shape, outputs, *, width: Annotated[int, Key("width", ge=1)] = 4): ...


@register("partition", "even")
def even(samples, nodes, generator, *, alpha: Annotated[float, Key("evenness", gt=0)] = 1): ...


@register("strategy", "drift")
class Drift:
    """Walk at random."""

    def __init__(
        self,
        task,
        *,
        seed: int,
        rounds: Annotated[int, Key("planned rounds", ge=1)],
        rate: Annotated[float, Key("size of a step", gt=0, le=1)] = 0.5,
        rule: Annotated[Literal["plain", "greedy"], Key("which")] = "plain",
        window: Annotated[int | None, Key("steps looked back", ge=2)] = None,
        take: Annotated[Literal["all"] | int, Key("individuals", ge=1)] = "all",
        widths: Annotated[list[Annotated[int, Key("width", ge=1)]], Key("widths")] = [1, 2],
        pair: Annotated[tuple[float, float], Key("bounds")] = (0, 1),
        note: Annotated[str, Key("anything")] = "",
        loud: Annotated[bool, Key("say more")] = False,
        extra: Annotated[dict, Key("anything by name")] = {},
    ): ...
