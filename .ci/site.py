"""A hook of mkdocs: benchmarks/RESULTS.md, which stands outside of docs/, becomes a page of the site."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files


def on_files(files: Files, config: Any) -> Files:
    """Add the page."""
    results = Path(config.config_file_path).parent / "benchmarks" / "RESULTS.md"
    files.append(File.generated(config, "results.md", content=results.read_text()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Let links to the file lead to the page."""
    return markdown.replace("](../benchmarks/RESULTS.md", "](results.md")
