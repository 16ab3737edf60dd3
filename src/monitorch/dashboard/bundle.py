"""The page's own files, and how its modules find each other.

A module imports another by a name such as ``page/axis.js``, and an import map says where that is. On a server it is
the file beside the page. A report is a single file, and browsers load no modules from files next to it: there the map
holds the modules themselves, as ``data:`` URLs.
"""

import base64
import hashlib
import json
from functools import lru_cache
from pathlib import Path

STATIC = Path(__file__).parent / "static"

SERVED_MAP = '{ "imports": { "page/": "./" } }'
"""The exact import map in index.html: the server's content policy allows no other inline script."""


@lru_cache(maxsize=1)
def embedded_map() -> str:
    """An import map that holds every module."""
    modules = {f"page/{path.name}": _address(path) for path in sorted(STATIC.glob("*.js"))}
    return json.dumps({"imports": modules}, indent=0)


@lru_cache(maxsize=1)
def chart_library() -> str:
    """The script that draws charts."""
    return (STATIC / "vendor/uplot/uPlot.iife.min.js").read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def sheet() -> str:
    """All styles."""
    return "\n".join(
        (STATIC / name).read_text(encoding="utf-8") for name in ("vendor/uplot/uPlot.min.css", "style.css")
    )


def digest(text: str) -> str:
    """The hash by which a content policy allows this text."""
    return f"sha256-{_base64(hashlib.sha256(text.encode()).digest())}"


def _address(module: Path) -> str:
    return f"data:text/javascript;base64,{_base64(module.read_bytes())}"


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
