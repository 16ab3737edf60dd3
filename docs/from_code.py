"""What pages of the site take from the code, and from each other, when it is built: it cannot be out of date."""

from __future__ import annotations

import argparse
import ast
import re
import sqlite3
import textwrap
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from monitorch.cli import build_parser
from monitorch.store.schema import MIGRATIONS
from monitorch.watching.lens_sets import SETS

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).parent
EXAMPLES = DOCS.parent / "examples"


def commands() -> str:
    """Every command with its arguments, as Markdown."""
    (subparsers,) = (action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction))
    return "\n".join(_command(name, parser) for name, parser in subparsers.choices.items())


def _command(name: str, parser: argparse.ArgumentParser) -> str:
    rows = [f"| {_cell(_name(one))} | {_cell(_words(parser, one))} |" for one in parser._actions if one.dest != "help"]
    table = ["| argument | what it does |", "| --- | --- |", *rows]
    return "\n".join(
        [f"## {name}", "", parser.description or "", "", f"```text\n{_usage(parser)}\n```", "", *table, ""]
    )


def _usage(parser: argparse.ArgumentParser) -> str:
    """In lines of one width, however wide the terminal is; an option and its value stay together."""
    words = " ".join(parser.format_usage().removeprefix("usage: ").split())
    together = re.sub(r"\[[^]]*\]", lambda option: option[0].replace(" ", "\0"), words)
    lines = textwrap.fill(together, 88, subsequent_indent="    ", break_on_hyphens=False)
    return lines.replace("\0", " ")


def _cell(text: str) -> str:
    """What stands in a table, where a bar would begin the next cell."""
    return text.replace("|", "\\|")


def _name(action: argparse.Action) -> str:
    value = action.metavar or ("" if action.choices is None else "{" + ",".join(map(str, action.choices)) + "}")
    if not action.option_strings:
        return f"`{value or action.dest}`"
    takes = f" {value or action.dest.upper()}" if action.nargs != 0 and not _is_switch(action) else ""
    return ", ".join(f"`{option}{takes}`" for option in action.option_strings)


def _is_switch(action: argparse.Action) -> bool:
    return isinstance(action, argparse.BooleanOptionalAction)


def _words(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    formatter = parser._get_formatter()
    return formatter._expand_help(action) if action.help else ""


def tables() -> str:
    """The tables of a run's file, as Markdown."""
    connection = sqlite3.connect(":memory:")
    for migrate in MIGRATIONS:
        migrate(connection)
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    rows = (f"| `{name}` | {', '.join(_columns(connection, name))} |" for name in sorted(names))
    return "\n".join(["| table | columns |", "| --- | --- |", *rows])


def _columns(connection: sqlite3.Connection, table: str) -> Iterable[str]:
    for _, name, kind, *_ in connection.execute(f"PRAGMA table_info({table})"):
        yield f"`{name}` {kind.lower()}"


def lenses() -> str:
    """Every page of a lens with its first sentence, and who uses it, as Markdown."""
    rows = (_lens(page) for page in sorted((DOCS / "gallery" / "lenses").glob("*.md")))
    return "\n".join(["| lens | shows | used |", "| --- | --- | --- |", *rows])


def _lens(page: Path) -> str:
    title, sentence, *_ = page.read_text(encoding="utf-8").split("\n\n")
    name = title.removeprefix("# ")
    used = next((one for one, names in _sets().items() if name in names), "named")
    return f"| [{name}](lenses/{page.name}) | {' '.join(sentence.split())} | {used} |"


@cache
def _sets() -> dict[str, set[str]]:
    """Of each set of lenses the names, for a model that has everything."""

    class Router(nn.Linear):
        """Found by its name."""

    model = nn.Sequential(nn.BatchNorm1d(2), nn.ReLU(), nn.MultiheadAttention(2, 1), Router(2, 2))
    given = model, [torch.optim.Adam(model.parameters())], nn.MSELoss()
    return {name: {type(lens).__name__ for lens in make(*given)} for name, make in SETS.items()}


def examples() -> str:
    """Every example with what it says of itself, as Markdown."""
    rows = []
    for path in sorted(EXAMPLES.glob("*.py")):
        said = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n\n")[0]
        rows.append(f"| [{path.name}](../../examples/{path.name}) | {' '.join(said.split())} |")
    return "\n".join(["| program | what it shows |", "| --- | --- |", *rows])


PLACES = {
    "gallery/index": {"<!-- examples -->": examples},
    "gallery/lenses": {"<!-- lenses -->": lenses},
    "reference/command_line": {"<!-- commands -->": commands},
    "reference/store": {"<!-- tables -->": tables},
}
"""What is put where."""


def put(app: Sphinx, page: str, source: list[str]) -> None:
    """Put what the code says into a page."""
    for mark, made in PLACES.get(page, {}).items():
        assert source[0].count(mark) == 1, f"{page} has no {mark}"
        source[0] = source[0].replace(mark, made())


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("source-read", put)
    return {"parallel_read_safe": True}
