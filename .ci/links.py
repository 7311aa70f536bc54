"""Check a built site: every local picture, script, style sheet, link and anchor is there, and no page asks other hosts.

    python .ci/links.py SITE

Prints what is missing, a line each, and ends with exit status 1 if anything is. Needs the standard library only.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The `anchors` of a page, the addresses that it `links` to, and those that a browser `loads` with it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value}
        self.anchors |= {given["id"]} if "id" in given else set()
        self.loads += [given["src"]] if "src" in given else []
        if "href" in given:
            loaded = tag == "link" and bool({"stylesheet", "icon", "preload"} & set(given.get("rel", "").split()))
            (self.loads if loaded else self.links).append(given["href"])


def missing(site: Path) -> list[str]:
    """Return a line for each address in the pages of `site` that leads nowhere."""
    site = site.resolve()
    pages = {path: Page(path) for path in sorted(site.rglob("*.html"))}
    lines = [] if pages else [f"{site}: no pages"]
    for path, page in pages.items():
        for address in (*page.loads, *page.links):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                if address in page.loads and parts.scheme != "data":
                    lines.append(f"{path.relative_to(site)}: loads {address} from another host")
                continue
            start = site if parts.path.startswith("/") else path.parent
            target = (start / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_relative_to(site) or not target.is_file():
                lines.append(f"{path.relative_to(site)}: {address} is not there")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                lines.append(f"{path.relative_to(site)}: {address} names an anchor that {target.name} lacks")
    return lines


if __name__ == "__main__":
    found = missing(Path(sys.argv[1]))
    print("\n".join(found) or "every link of the site leads somewhere")
    sys.exit(bool(found))
