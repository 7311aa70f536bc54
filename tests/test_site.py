"""Links of the documentation: of a built site, as `.ci/run` checks them, and of the pages in the clone."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")


def site(folder: Path) -> Path:
    """Write a site of two pages whose links all lead somewhere."""
    (folder / "es").mkdir()
    (folder / "a picture.png").touch()
    (folder / "style.css").touch()
    (folder / "index.html").write_text(
        '<link rel="stylesheet" href="style.css"><link rel="canonical" href="https://example.org/">'
        '<h1 id="top">x</h1><img src="a%20picture.png"><a href="es/#snes">s</a><a href="#top">t</a>'
        '<a href="https://example.org/elsewhere">e</a><a href="mailto:a@example.org">m</a>'
    )
    (folder / "es" / "index.html").write_text('<h2 id="snes">y</h2><a href="..">u</a><a href="/es/?q=1#snes">a</a>')
    return folder


@pytest.mark.parametrize(
    ("added", "line"),
    [
        ("", ""),
        ('<img src="../docs/images/eeg.png">', "es/index.html: ../docs/images/eeg.png is not there"),
        ('<a href="../docs/fdd_ea.md">x</a>', "es/index.html: ../docs/fdd_ea.md is not there"),
        ('<a href="../../outside.html">x</a>', "es/index.html: ../../outside.html is not there"),
        ('<a href="../#snes">x</a>', "es/index.html: ../#snes names an anchor that index.html lacks"),
        ('<a href="#es">x</a>', "es/index.html: #es names an anchor that index.html lacks"),
        ('<script src="//example.org/x.js"></script>', "es/index.html: loads //example.org/x.js from another host"),
        (
            '<link rel="icon" href="https://example.org/x.ico">',
            "es/index.html: loads https://example.org/x.ico from another host",
        ),
    ],
)
def test_what_leads_nowhere_is_named(added: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "outside.html").touch()
    (tmp_path / "site").mkdir()
    page = site(tmp_path / "site") / "es" / "index.html"
    page.write_text(page.read_text() + added)
    assert runpy.run_path(str(ROOT / ".ci" / "links.py"))["missing"](tmp_path / "site") == ([line] if line else [])


def test_a_site_without_pages_is_no_site(tmp_path: Path) -> None:
    assert runpy.run_path(str(ROOT / ".ci" / "links.py"))["missing"](tmp_path) == [f"{tmp_path}: no pages"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_lead_somewhere_in_the_clone(page: Path) -> None:
    """As a reader of the repository follows them; the site's anchors are checked when it is built."""
    links = [link.partition("#")[0] for link in LINK.findall(page.read_text()) if not re.match(r"[a-z]+:", link)]
    assert [link for link in links if not (page.parent / link).exists()] == []
