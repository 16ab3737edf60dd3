"""The page as one script and one sheet, for a file that has nothing beside it.

Browsers refuse modules in files that are opened from the disk, so each module becomes a function that is called once.
"""

import re
from functools import lru_cache
from pathlib import Path

STATIC = Path(__file__).parent / "static"
_IMPORT = re.compile(r'^import \{\s*([\w,\s]+?),?\s*\} from "\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?function|class|const) (\w+)", re.MULTILINE)


@lru_cache(maxsize=1)
def script() -> str:
    """Everything that runs, in the order in which it is needed."""
    chart_library = (STATIC / "vendor/uplot/uPlot.iife.min.js").read_text(encoding="utf-8")
    pieces: dict[str, str] = {}
    _add("main", pieces, ())
    return "\n".join([chart_library, '"use strict";', *pieces.values()])


@lru_cache(maxsize=1)
def sheet() -> str:
    """All styles."""
    return "\n".join(
        (STATIC / name).read_text(encoding="utf-8") for name in ("vendor/uplot/uPlot.min.css", "style.css")
    )


def _add(name: str, pieces: dict[str, str], importing: tuple[str, ...]) -> None:
    """Put a module behind those that it imports."""
    if name in importing:
        raise ValueError(f"modules import each other: {' -> '.join((*importing, name))}")
    if name in pieces:
        return
    text = (STATIC / f"{name}.js").read_text(encoding="utf-8")
    for _, needed in _IMPORT.findall(text):
        _add(needed, pieces, (*importing, name))
    exports = ", ".join(exported for _, exported in _EXPORT.findall(text))
    body = _EXPORT.sub(r"\1 \2", _IMPORT.sub(r"const { \1 } = module_\2;\n", text))
    pieces[name] = f"const module_{name} = (() => {{\n{body}return {{ {exports} }};\n}})();"
