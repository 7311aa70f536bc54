"""Draw the way of a request, docs/images/request.svg, from the names in the code.

    python .ci/picture.py            # write the picture
    python .ci/picture.py --check    # exit status 1 where the stored picture is another one

A box names a class or function by its dotted name, which must exist: what is renamed in the code fails here.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from html import escape
from pathlib import Path

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "request.svg"

OUT = (
    ("fne.core.contracts.Strategy.ask", "what to compute, and where"),
    ("fne.federation.lineage_codec.LineageCodec.send", "decisions in place of models"),
    ("fne.secure.engine.SecureEngine.send", "tasks of secure sums around the work"),
    ("fne.core.contracts.Engine.send", "to the nodes, wherever they are"),
    ("fne.federation.wire.request_frames", "a JSON head and raw tensors"),
    ("fne.federation.worker.Worker.run", "one worker hosts one node or many"),
    ("fne.federation.lineage.Replica.follow", "candidates made from decisions"),
    ("fne.federation.node.Node.allow", "the node's policy and its account"),
)
"""The way out, from the server to the node."""
BACK = (
    ("fne.learning.fitness_tasks.fitness_task", "a node task, such as this one"),
    ("fne.federation.wire.reply_frame", "bytes are counted here"),
    ("fne.federation.wire.decode_reply", "nothing executable is read"),
    ("fne.federation.payloads.fault", "held to the form that is implied"),
    ("fne.federation.rounds.gather", "folded in the request's order"),
    ("fne.secure.unmask.opened", "masks off the total alone"),
    ("fne.core.messages.Round", "replies, failures, measured bytes"),
    ("fne.core.contracts.Strategy.tell", "the method moves, metrics come out"),
)
"""The way back, from the node to the server."""

WIDTH, HEIGHT, GAP, TOP = 176, 62, 20, 46


def found(dotted: str) -> str:
    """Return how a box is labelled; raises `AttributeError` or `ImportError` where the code has no such name."""
    parts = dotted.split(".")
    for cut in range(len(parts) - 1, 1, -1):
        try:
            thing = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for name in parts[cut:]:
            thing = getattr(thing, name)
        return ".".join(parts[cut:])
    raise ImportError(dotted)


def box(x: int, y: int, dotted: str, text: str) -> str:
    """Return a box with the name, its module and what happens there."""
    label, module = found(dotted), dotted.removesuffix(f".{found(dotted)}").removeprefix("fne.")
    lines = ((19, "name", label), (36, "module", module), (53, "text", text))
    return f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>' + "".join(
        f'<text class="{kind}" x="{x + WIDTH // 2}" y="{y + down}">{escape(line)}</text>' for down, kind, line in lines
    )


def picture() -> str:
    """Return the picture as SVG."""
    columns = 4
    rows = (OUT[:columns], OUT[columns:], BACK[:columns], BACK[columns:])
    drawn, step = [], WIDTH + GAP
    places = {}
    for number, row in enumerate(rows):
        y = TOP + number * (HEIGHT + 2 * GAP)
        for place, (dotted, text) in enumerate(row):
            column = place if number in (0, 2) else columns - 1 - place
            x = GAP + column * step
            places[dotted] = (x, y)
            drawn.append(box(x, y, dotted, text))
    way = (*OUT, *BACK)
    for (a, _), (b, _) in itertools.pairwise(way):
        (x, y), (u, v) = places[a], places[b]
        if y == v:
            start, end = (x + WIDTH, u) if u > x else (x, u + WIDTH)
            drawn.append(f'<path d="M{start} {y + HEIGHT // 2}H{end}" marker-end="url(#tip)"/>')
        else:
            drawn.append(f'<path d="M{x + WIDTH // 2} {y + HEIGHT}V{v}" marker-end="url(#tip)"/>')
    width, height = GAP + columns * step, TOP + 4 * (HEIGHT + 2 * GAP)
    titles = ("server, on the way out", "wire and node", "node to server", "server, on the way back")
    heads = "".join(
        f'<text class="head" x="{GAP}" y="{TOP + row * (HEIGHT + 2 * GAP) - 8}">{title}</text>'
        for row, title in enumerate(titles)
    )
    style = (
        "text{font:12px sans-serif;text-anchor:middle;fill:#222}.name{font-weight:bold}"
        ".module{fill:#555;font-size:10px}.text{font-size:10px}.head{text-anchor:start;fill:#777}rect{fill:#fff;stroke:#456}path{stroke:#456;fill:none}"
    )
    tip = (
        '<marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0L8 4L0 8z" style="fill:#456"/></marker>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
        f"<title>The way of a request from the strategy to a node and back</title><style>{style}</style>"
        f'<defs>{tip}</defs><rect x="0" y="0" width="{width}" height="{height}" style="stroke:none;fill:#f6f8fa"/>'
        + heads + "".join(drawn) + "</svg>\n"
    )  # fmt: skip


def main() -> int:
    """Write or check the picture."""
    made = picture()
    if "--check" in sys.argv[1:]:
        same = PICTURE.is_file() and PICTURE.read_text() == made
        print("as stored" if same else f"{PICTURE} is another picture: run python .ci/picture.py")
        return 0 if same else 1
    PICTURE.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
