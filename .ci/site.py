"""A hook of mkdocs: benchmarks/RESULTS.md, which stands outside of docs/, becomes the page results.md of the site."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files


def on_files(files: Files, config: Any) -> Files:
    """Add the page. Its links and pictures start from benchmarks/ in the clone and from docs/ on the site."""
    results = Path(config.config_file_path).parent / "benchmarks" / "RESULTS.md"
    content = results.read_text(encoding="utf-8").replace("](../docs/", "](")
    files.append(File.generated(config, "results.md", content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Let links to the file lead to the page."""
    return markdown.replace("](../benchmarks/RESULTS.md", "](results.md")
