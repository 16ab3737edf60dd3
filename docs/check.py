"""Checks the built site: ``python -m docs.check build/docs``. It must be complete, and need no network."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from .public_names import missing

LOADED = {("link", "href"), ("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src")}
"""What a browser fetches by itself to show a page."""
OUTSIDE = re.compile(r"""(?:url\(|@import )\s*['"]?((?:https?:)?//[^'")\s]+)""")
"""What a style sheet fetches from elsewhere."""
AS_IT_IS = ("pre", "code", "script", "style", "title")
"""Tags whose text is not ours, or is meant as it is."""
UNREAD = re.compile(r"\]\(|\.md[)#]|`")
"""Marks of a link or of code that were not understood as such."""


@dataclass
class Page(HTMLParser):
    """The links of a page, what they can lead to, and marks that stand in its text."""

    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)
    unread: list[str] = field(default_factory=list)
    within: int = 0

    def __post_init__(self) -> None:
        super().__init__()

    @classmethod
    def read(cls, path: Path) -> Page:
        """The page in a file."""
        page = cls()
        page.feed(path.read_text(encoding="utf-8"))
        return page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called for each tag."""
        self.within += tag in AS_IT_IS
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                is_loaded = (tag, name) in LOADED and ("rel", "canonical") not in attrs
                (self.loaded if is_loaded else self.links).append(value)

    def handle_endtag(self, tag: str) -> None:
        """Called where a tag ends."""
        self.within -= tag in AS_IT_IS

    def handle_data(self, data: str) -> None:
        """Called for each text."""
        if not self.within and UNREAD.search(data):
            self.unread.append(" ".join(data.split()))


def broken(site: Path) -> Iterator[str]:
    """Links that lead nowhere, marks that nobody understood, and what would be fetched from a network."""
    for path in sorted(site.rglob("*.css")):
        fetched = OUTSIDE.findall(path.read_text(encoding="utf-8"))
        yield from (f"{path.relative_to(site)}: {link} is fetched from a network" for link in fetched)
    pages = {path.resolve(): Page.read(path) for path in site.rglob("*.html")}
    for path, page in sorted(pages.items()):
        where = path.relative_to(site.resolve())
        yield from (f"{where}: {link} is fetched from a network" for link in page.loaded if urlsplit(link).netloc)
        yield from (f"{where}: {text!r} is no link and no code" for text in page.unread)
        for link in dict.fromkeys([*page.links, *page.loaded]):
            target = urlsplit(link)
            if target.scheme or target.netloc:
                continue
            to = (path.parent / unquote(target.path)).resolve() if target.path else path
            if not to.exists():
                yield f"{where}: {link} leads to no file"
            elif target.fragment and to in pages and unquote(target.fragment) not in pages[to].anchors:
                yield f"{where}: {link} leads to no such place"


def undocumented(site: Path) -> Iterator[str]:
    """Public names that are not in the reference."""
    from sphinx.util.inventory import InventoryFile  # links are checked, and tested, without it

    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    documented = {name for kind, names in inventory.data.items() if kind.startswith("py:") for name in names}
    yield from (f"{name} is not in the reference" for name in missing(documented))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what is wrong; the exit code says whether anything is."""
    parser = argparse.ArgumentParser(prog="python -m docs.check", description=__doc__)
    parser.add_argument("site", type=Path, help="folder of the built site")
    site = parser.parse_args(arguments).site
    wrong = [*broken(site), *undocumented(site)]
    print("\n".join(wrong) if wrong else f"{len(list(site.rglob('*.html')))} pages: all links lead somewhere")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
