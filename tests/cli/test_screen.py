import io

import pytest
from rich.console import Console

from monitorch.cli import sparkline
from monitorch.cli.screen import blocks_of, open_console, status_words, table, words


def console(width, encoding="utf-8"):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")
    options = {"markup": False, "highlight": False, "emoji": False}
    return Console(width=width, file=file, force_terminal=False, color_system=None, **options)


def lines_of(target, renderable):
    with target.capture() as capture:
        target.print(renderable)
    return [line.rstrip() for line in capture.get().splitlines()]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("one two three four", ["one two", "three four"]),
        ("  indented   \n\n   \nend  ", ["  indented", "", "", "end"]),
        ("é " * 5 + "  ", ["é é é é é"]),
    ],
)
def test_without_a_terminal_no_line_ends_with_spaces(capsys, monkeypatch, text, lines):
    monkeypatch.setenv("COLUMNS", "11")
    open_console().print(text.ljust(11))
    assert capsys.readouterr().out == "".join(f"{line}\n" for line in lines)


ROWS = [("encoder.layers.11.attention.output", "Weight Gradient Norm", "1.234e-5"), ("fc", "Loss", "7")]


@pytest.mark.parametrize("width", [40, 50, 60, 70, 200])
def test_a_table_is_never_wider_than_the_screen_and_cuts_no_number(width):
    target = console(width)
    lines = lines_of(target, table(target, ("layer", "statistic", "now"), ROWS, numbers=("now",)))
    assert len(lines) == 4
    assert max(map(len, lines)) <= width
    assert lines[2].endswith("1.234e-5")
    assert lines[3].endswith("       7")


def test_names_are_cut_in_the_middle():
    target = console(40)
    lines = lines_of(target, table(target, ("layer", "statistic", "now"), ROWS, numbers=("now",)))
    name, statistic, _ = lines[2].split("  ")
    assert (name[:3], name[-6:], statistic[:3], statistic[-4:]) == ("enc", "output", "Wei", "Norm")
    assert "…" in name
    assert "…" in statistic


BIASES = [(f"blocks.{block}.attn.{part}.bias", "Norm/mean", "1.0") for block in range(12) for part in ("qkv", "proj")]


@pytest.mark.parametrize("width", [40, 50, 60, 80])
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_rows_that_differ_look_different_at_any_width(width, encoding):
    target = console(width, encoding)
    lines = lines_of(target, table(target, ("layer", "statistic", "now"), BIASES, numbers=("now",)))
    assert len(set(lines[2:])) == len(BIASES)
    assert max(map(len, lines)) <= width


WIDE = [(f"blocks.{block}.attn.qkv.bias", "Weight Gradient Norm/mean", *["123456789"] * 4, "why") for block in range(9)]
MANY = ("layer", "statistic", "one", "two", "three", "four", "reason")


def test_where_nothing_would_be_left_of_names_a_row_takes_more_lines():
    target = console(60)
    sheet = table(target, MANY, WIDE, numbers=MANY[2:6], notes=["", "a note"] + [""] * 7)
    lines = lines_of(target, sheet)
    assert sheet.lines_per_row == 2
    assert len(lines) == 3 + 2 * len(WIDE) + 1
    assert max(map(len, lines)) <= 60
    assert lines[0].split() == ["layer", "statistic"]
    assert lines[1].split() == [*MANY[2:6], "reason"]
    assert lines[3].split("  ") == ["blocks.0.attn.qkv.bias", "Weight Gradient Norm/mean"]
    assert lines[4].split() == [*["123456789"] * 4, "why"]
    assert lines[7] == "    a note"


def test_text_on_a_second_line_loses_its_end_and_says_so():
    target = console(60)
    reasons = ["a reason that is longer than what is left of its line, by far", "short"]
    rows = [
        (f"blocks.{block}.attn.qkv.bias", "Weight Norm", "12345678901234567890", why)
        for block, why in enumerate(reasons)
    ]
    lines = lines_of(target, table(target, ("layer", "statistic", "now", "reason"), rows, numbers=("now",)))
    assert lines[4] == "    12345678901234567890  a reason that is longer than what…"
    assert lines[6].split() == ["12345678901234567890", "short"]


@pytest.mark.parametrize("width", [10, 20, 30])
def test_a_very_narrow_screen_cuts_no_number(width):
    target = console(width)
    lines = lines_of(target, table(target, MANY, WIDE, numbers=MANY[2:6]))
    assert sum("123456789"[: width - 4] in line for line in lines) >= len(WIDE)
    assert max(map(len, lines)) <= width


def test_a_table_without_rows_has_headings():
    target = console(60)
    assert lines_of(target, table(target, ("layer", "now"), [], numbers=("now",)))[0] == "layer  now"


@pytest.mark.parametrize("name", ["[red]fc[/red]", "[/]", ":smiley:", "\x1b]0;title\x07", "[link=x]y", "\u202egnp"])
def test_names_are_shown_and_not_obeyed(name):
    target = console(80)
    (line,) = lines_of(target, words(name))
    assert line == name.replace("\x1b", r"\x1b").replace("\x07", r"\x07").replace("\u202e", r"\u202e")
    assert lines_of(target, table(target, ("layer",), [(name,)]))[2] == line
    assert lines_of(target, status_words(name)) == [line]


@pytest.mark.parametrize(("encoding", "blocks"), [("utf-8", sparkline.BLOCKS), ("latin-1", sparkline.ASCII)])
def test_blocks_suit_the_encoding(encoding, blocks):
    assert blocks_of(console(80, encoding)) == blocks
