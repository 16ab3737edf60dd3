"""The site is complete: every page and every public name is there, and the check finds what is broken."""

import re
from pathlib import Path

import pytest

from docs.check import broken
from docs.from_code import EXAMPLES, PLACES, commands, examples, lenses, tables
from docs.public_names import in_reference, missing, public
from monitorch.cli import build_parser
from monitorch.dashboard.serving import SHORTEST_TOKEN

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md"))
TOCTREE = re.compile(r"^```{toctree}\n(.*?)^```", re.DOTALL | re.MULTILINE)


def reached(page):
    """The pages that a page has in its contents."""
    for contents in TOCTREE.findall(page.read_text(encoding="utf-8")):
        for line in contents.split():
            if not line.startswith(":"):
                yield from page.parent.glob(f"{line}.md")


def test_every_page_is_reached_from_the_first_one():
    found, new = set(), {DOCS / "index.md"}
    while new:
        found |= new
        new = {page for known in new for page in reached(known)} - found
    assert sorted(found) == PAGES


def test_every_public_name_is_in_the_reference():
    assert missing(in_reference()) == []
    assert len(list(public())) > 150


def test_a_name_that_is_left_out_is_told():
    assert missing(in_reference() - {"monitorch.preflight"}) == [
        "monitorch.preflight",
        "monitorch.watching.preflight.preflight",
    ]


def test_pages_get_every_command_table_lens_and_example():
    for page, made in PLACES.items():
        text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
        assert [mark for mark in made if text.count(mark) != 1] == []
    choices = next(action for action in build_parser()._actions if action.dest == "command").choices
    assert re.findall("^## (.*)$", commands(), re.MULTILINE) == list(choices)
    assert r"| `--fail-on info\|warning\|error` | exit code 1" in commands()  # a bar alone would begin a cell
    assert (
        "monitorch ui [-h] [--host HOST] [--port N] [--token TEXT] [--browser | --no-browser]\n    [RUNS]" in commands()
    )
    assert "| `meta` | `key` text, `value` text |" in tables()
    used = dict(re.findall(r"^\| \[(\w+)\].* \| (\w+) \|$", lenses(), re.MULTILINE))
    assert (used["GradientNorm"], used["Routing"], used["SpectralNorm"]) == ("standard", "standard", "all")
    assert {name for name, by in used.items() if by == "named"} == {
        "Attribute",
        "ParameterCond",
        "ParameterGradientActivation",
    }
    assert examples().count("](../../examples/") == len(list(EXAMPLES.glob("*.py")))
    assert " |  |" not in examples()  # each says what it shows


GOOD = '<h1 id="top">A</h1><a href="b.html#place">b</a><a href="#top">top</a><a href="https://pytorch.org">out</a>'


@pytest.mark.parametrize(
    ("page", "wrong"),
    [
        (GOOD, []),
        ('<a href="c.html">c</a>', ["a.html: c.html leads to no file"]),
        ('<a href="b.html#nowhere">b</a>', ["a.html: b.html#nowhere leads to no such place"]),
        ('<a href="#nowhere">a</a>', ["a.html: #nowhere leads to no such place"]),
        ('<img src="none.svg">', ["a.html: none.svg leads to no file"]),
        ('<script src="https://x.org/y.js"></script>', ["a.html: https://x.org/y.js is fetched from a network"]),
        ("<p>See [b] there(../b.md).</p>", ["a.html: 'See [b] there(../b.md).' is no link and no code"]),
        ("<td>`--a x</td><td>y</td>", ["a.html: '`--a x' is no link and no code"]),
        ("<code>`a` in [b](b.md)</code><p>good</p>", []),
        ('<link href="//x.org/y.css">', ["a.html: //x.org/y.css is fetched from a network"]),
    ],
)
def test_broken_links_are_told(page, wrong, tmp_path):
    (tmp_path / "a.html").write_text(page)
    (tmp_path / "b.html").write_text('<p id="place">here</p>')
    assert list(broken(tmp_path)) == wrong


def test_style_sheets_that_fetch_from_a_network_are_told(tmp_path):
    (tmp_path / "good.css").write_text("p { background: url(icon.svg) } /* https://x.org */")
    (tmp_path / "bad.css").write_text("@import 'https://x.org/a.css'; p { src: url(//y.org/b.woff) }")
    assert list(broken(tmp_path)) == [
        "bad.css: https://x.org/a.css is fetched from a network",
        "bad.css: //y.org/b.woff is fetched from a network",
    ]


def test_tokens_in_the_pages_are_long_enough():
    tokens = [token for path in PAGES for token in re.findall(r"--token ([\w-]+)", path.read_text(encoding="utf-8"))]
    assert tokens
    assert min(map(len, tokens)) >= SHORTEST_TOKEN
