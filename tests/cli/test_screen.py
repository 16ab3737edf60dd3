import io

import pytest
from rich.console import Console

from monitorch.cli import sparkline
from monitorch.cli.screen import blocks_of, status_words, table, words


def console(width, encoding="utf-8"):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")
    options = {"markup": False, "highlight": False, "emoji": False}
    return Console(width=width, file=file, force_terminal=False, color_system=None, **options)


def lines_of(target, renderable):
    with target.capture() as capture:
        target.print(renderable)
    return [line.rstrip() for line in capture.get().splitlines()]


ROWS = [("encoder.layers.11.attention.output", "Weight Gradient Norm", "1.234e-5"), ("fc", "Loss", "7")]


@pytest.mark.parametrize("width", [40, 50, 60, 70, 200])
def test_a_table_is_never_wider_than_the_screen_and_cuts_no_number(width):
    target = console(width)
    lines = lines_of(target, table(target, ("layer", "statistic", "now"), ROWS, numbers=("now",)))
    assert len(lines) == 4
    assert max(map(len, lines)) <= width
    assert lines[2].endswith("1.234e-5")
    assert lines[3].endswith("       7")


def test_the_end_of_a_long_name_of_a_layer_is_kept():
    target = console(40)
    lines = lines_of(target, table(target, ("layer", "statistic", "now"), ROWS, numbers=("now",)))
    name, statistic, _ = lines[2].split("  ")
    assert name.startswith("…")
    assert name.endswith("output")
    assert statistic.startswith("Weight")


@pytest.mark.parametrize("name", ["[red]fc[/red]", "[/]", ":smiley:", "\x1b]0;title\x07", "[link=x]y"])
def test_names_are_shown_and_not_obeyed(name):
    target = console(80)
    (line,) = lines_of(target, words(name))
    assert line == name.replace("\x1b", r"\x1b").replace("\x07", r"\x07")
    assert lines_of(target, table(target, ("layer",), [(name,)]))[2] == line
    assert lines_of(target, status_words(name)) == [line]


@pytest.mark.parametrize(("encoding", "blocks"), [("utf-8", sparkline.BLOCKS), ("latin-1", sparkline.ASCII)])
def test_blocks_suit_the_encoding(encoding, blocks):
    assert blocks_of(console(80, encoding)) == blocks
