"""Lists of fields in docs/config.md, written from the table of metrics: `python .ci/metrics.py`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fne.watch.metrics import METRICS, SUMMARY, Metric

PAGE = Path(__file__).parents[1] / "docs" / "config.md"
HEAD = "| field | unit | better | what it is |\n|---|---|---|---|\n"


def rows(metrics: Sequence[Metric]) -> str:
    """Return a table in Markdown; metrics that differ in nothing but their names share a row."""
    shared: dict[tuple[str, ...], list[str]] = {}
    for metric in metrics:
        owners = ", ".join(f"`{name}`" for name in metric.strategies)
        meaning = f"{owners}: {metric.meaning}" if owners else metric.meaning
        shared.setdefault((metric.unit, metric.sense, meaning), []).append(f"`{metric.name}`")
    return HEAD + "".join(f"| {', '.join(names)} | {' | '.join(cells)} |\n" for cells, names in shared.items())


def page(text: str) -> str:
    """Return the page with both lists as the table of metrics has them."""
    for heading, metrics in (("### `history.jsonl`\n", METRICS), ("### `summary.json`\n", SUMMARY)):
        before, section = text.split(heading)
        start = section.index("| field |")
        end = section.index("\n\n", start) + 1
        text = before + heading + section[:start] + rows(metrics) + section[end:]
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
