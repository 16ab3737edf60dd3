import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitorch.visualizer.layer_order import merge_order
from monitorch.visualizer.names import cells
from monitorch.visualizer.table import TableColumn, headline_text, number_text, percent_text, table_text


@pytest.mark.parametrize(
    ("value", "nonfinite", "text"),
    [
        (0.0, 0, "0"),
        (-0.0, 0, "0"),
        (1.0, 0, "1.000"),
        (0.5, 0, "0.5000"),
        (-0.021744, 0, "-0.02174"),
        (0.0012344, 0, "0.001234"),
        (0.00099994, 0, "9.999e-4"),
        (0.00099996, 0, "0.001000"),
        (9999.4, 0, "9999"),
        (9999.6, 0, "1.000e4"),
        (-1e300, 0, "-1.000e300"),
        (5e-324, 0, "4.941e-324"),
        (math.nan, 0, "NaN"),
        (math.inf, 0, "Inf"),
        (-math.inf, 2, "-Inf !2"),
        (0.123, 3, "0.1230 !3"),
        (0.0, 1, "0 !1"),
    ],
)
def test_number_text(value, nonfinite, text):
    assert number_text(value, nonfinite) == text


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_number_text_keeps_four_digits(value):
    assert float(number_text(value)) == float(f"{value:.3e}")


@pytest.mark.parametrize(
    ("share", "nonfinite", "text"),
    [(0.2884, 0, "28.8%"), (0.0, 0, "0.0%"), (1.0, 2, "100.0% !2"), (math.nan, 1, "NaN !1")],
)
def test_percent_text(share, nonfinite, text):
    assert percent_text(share, nonfinite) == text


def test_table_is_aligned_and_grouped():
    columns = {
        TableColumn("output", "norm"): {"conv": "1.113 !3", "relu": "6.392e-6", "fc": "NaN !12"},
        TableColumn("weight", "norm"): {"conv": "2.000", "fc": "0"},
        TableColumn("output", "active"): {"relu": "0.3000"},
    }
    assert table_text(["conv", "relu", "fc"], columns, 80).splitlines() == [
        "      | output               | weight",
        "layer |         norm  active |   norm",
        "------+----------------------+-------",
        "conv  |    1.113 !3          |  2.000",
        "relu  | 6.392e-6      0.3000 |",
        "fc    |      NaN !12         |      0",
    ]


def test_wide_table_continues_below_without_empty_rows():
    columns = {
        TableColumn("output", "norm"): {"conv": "1.113", "relu": "2.000"},
        TableColumn("weight", "norm"): {"conv": "3.000"},
    }
    assert table_text(["conv", "relu"], columns, 20).split("\n\n") == [
        "      | output\nlayer |   norm\n------+-------\nconv  |  1.113\nrelu  |  2.000",
        "      | weight\nlayer |   norm\n------+-------\nconv  |  3.000",
    ]


def test_group_wider_than_the_terminal_is_split_under_the_same_title():
    columns = {TableColumn("output", name): {"fc": "1.000"} for name in ("one", "two", "three", "four")}
    blocks = table_text(["fc"], columns, 22).split("\n\n")
    assert [block.splitlines()[0] for block in blocks] == ["      | output"] * 2
    assert [block.splitlines()[1] for block in blocks] == ["layer |   one    two", "layer | three   four"]


@pytest.mark.parametrize(
    ("label", "shown"),
    [
        ("transformer.h.10.attn.c_proj", "transf...attn.c_proj"),
        ("a_name_without_any_dot_at_all", "a_name..ny_dot_at_all"),
        ("two\nlines\x1b[31m", r"two\nlines\x1b[31m"),
        ("\u202eright", r"\u202eright"),
        ("größe", "größe"),
        ("слой", "слой"),
    ],
)
def test_row_names_are_short_and_printable(label, shown):
    text = table_text([label], {TableColumn("", "norm"): {label: "1.000"}}, 63)
    assert text.splitlines()[-1].split(" | ")[0].strip() == shown


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 12), st.integers(1, 120))
def test_every_cell_is_shown_once_within_any_width(row_count, column_count, width):
    labels = [f"layer{row}" for row in range(row_count)]
    columns = {
        TableColumn(f"group{column % 3}", f"name{column}"): {label: f"{label[-1]}.{column:03}" for label in labels}
        for column in range(column_count)
    }
    text = table_text(labels, columns, width)
    cells = [cell for column in columns.values() for cell in column.values()]
    assert sorted(word for word in text.split() if word[0].isdigit()) == sorted(cells)
    narrowest = len("layer0 | group0")
    assert max(map(len, text.splitlines())) <= max(width, narrowest)


def test_rows_are_told_apart_at_sixty_columns():
    labels = [f"blocks.{block}.attn.{part}.bias" for block in range(12) for part in ("qkv", "proj")]
    text = table_text(labels, {TableColumn("gradient", "norm"): dict.fromkeys(labels, "1.000")}, 60)
    rows = [line.split(" | ")[0] for line in text.splitlines()[3:]]
    assert len(set(rows)) == len(labels)
    assert max(map(len, text.splitlines())) <= 60


def test_wide_characters_keep_columns_aligned():
    columns = {
        TableColumn("组", "norm"): {"层": "1.000", "fc": "2.000"},
        TableColumn("b", "x"): {"层": "3.000", "fc": "4.000"},
    }
    lines = table_text(["层", "fc"], columns, 60).splitlines()
    assert len({cells(line[: line.index("|")]) for line in (lines[0], *lines[3:])}) == 1
    assert len({cells(line) for line in lines[2:]}) == 1


def test_nothing_in_headings_is_obeyed():
    hostile = "\x1b[2J\u202e"
    text = table_text(["fc"], {TableColumn(hostile, hostile): {"fc": "1.000"}}, 80)
    text += headline_text("epoch 1", {hostile: [f"{hostile} 1.000"]}, 80)
    assert text.count(r"\x1b[2J\u202e") == 4
    assert text.replace("\n", "").isprintable()


def test_headline_breaks_between_lists_and_never_inside_an_item():
    segments = {"Loss": ["train_loss 0.8444", "val_loss 0.7580"], "Metrics": ["acc 0.9100"]}
    assert headline_text("epoch 3", {}, 80) == "epoch 3"
    assert headline_text("epoch 3", segments, 80) == (
        "epoch 3 | Loss: train_loss 0.8444, val_loss 0.7580 | Metrics: acc 0.9100"
    )
    assert headline_text("epoch 3", segments, 60).splitlines() == [
        "epoch 3 | Loss: train_loss 0.8444, val_loss 0.7580",
        "        | Metrics: acc 0.9100",
    ]
    assert headline_text("epoch 3", segments, 35).splitlines() == [
        "epoch 3 | Loss: train_loss 0.8444",
        "        | Loss: val_loss 0.7580",
        "        | Metrics: acc 0.9100",
    ]


@pytest.mark.parametrize(
    ("known", "arriving", "merged"),
    [
        ([], ["a", "b"], ["a", "b"]),
        (["a", "b"], ["b", "a"], ["a", "b"]),
        (["relu1", "relu2"], ["lin1", "relu1", "lin2", "relu2"], ["lin1", "relu1", "lin2", "relu2"]),
        (["relu1", "relu2"], ["lin1", "lin2"], ["relu1", "relu2", "lin1", "lin2"]),
        (["a", "c"], ["b", "c", "d"], ["a", "b", "c", "d"]),
    ],
)
def test_merge_order(known, arriving, merged):
    assert merge_order(known, arriving) == merged


@settings(deadline=None)
@given(st.lists(st.integers(0, 9).map(str), unique=True), st.lists(st.integers(0, 9).map(str), unique=True))
def test_merging_keeps_the_known_order_and_loses_no_name(known, arriving):
    merged = merge_order(known, arriving)
    assert [name for name in merged if name in known] == known
    assert sorted(merged) == sorted({*known, *arriving})


def test_a_model_that_is_a_single_layer_has_a_name():
    assert table_text([""], {TableColumn("", "norm"): {"": "1.000"}}, 40).splitlines()[-1] == "the model | 1.000"
