"""Names are safe to print, and short without becoming the same."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from monitorch.visualizer.names import cells, padded, printable, shortened

LAYERS = [
    f"transformer.blocks.{block}.attn.{part}.{kind}"
    for block in range(12)
    for part in ("qkv", "proj")
    for kind in ("weight", "bias")
]

_RUN = "baseline_learning_rate_0.001_batch_size_64_hidden_%s_seed_0_dropout_0.1_warmup_1000"


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("model.größe [red]", "model.größe [red]"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("a\nb\tc\r\x00\x07", r"a\nb\tc\r\x00\x07"),
        ("\x9b2J", r"\x9b2J"),
        ("evil\u202egnp", r"evil\u202egnp"),
        ("\u2066isolate\u2069 \u200bzero \u00adsoft \u2028line", r"\u2066isolate\u2069 \u200bzero \xadsoft \u2028line"),
        ("lone \udcff", r"lone \udcff"),
        (3, "3"),
    ],
)
def test_nothing_in_a_name_is_obeyed(text, safe):
    assert printable(text) == safe


@pytest.mark.parametrize("width", [12, 14, 16, 20, 24, 30, 40, 100])
def test_names_of_a_model_fit_and_stay_different(width):
    found = shortened(LAYERS, width)
    assert len(set(found)) == len(LAYERS)
    assert max(map(len, found)) <= width
    for name, cut in zip(LAYERS, found, strict=True):
        assert name == cut or "…" in cut
        assert cut[-3:] == name[-3:]  # the end tells weight from bias


@pytest.mark.parametrize(
    ("names", "width", "shown"),
    [
        (["encoder.attention.output"], 12, ["enc…n.output"]),
        (["encoder.attention.output", "head"], 12, ["enc…n.output", "head"]),
        (["net.0.fc.weight", "net.1.fc.weight"], 14, ["…0.fc.weight", "…1.fc.weight"]),
        (["attention_projection.weight", "attention_projection.bias"], 16, ["atten…ion.weight", "atten…ction.bias"]),
        (
            ["net.attention_projection.weight", "net.attention_projection.bias"],
            16,
            ["…atte…ion.weight", "…atte…ction.bias"],
        ),
        (["Parameter Norm/mean", "Parameter Norm/max"], 12, ["…Norm/mean", "…Norm/max"]),
        (["same.name.twice", "same.name.twice"], 10, ["sam….twice", "sam….twice"]),
        (["layers.1.weight.of.it", "layers.11.weight.of.it"], 12, ["…1.…ht.of.it", "…11…ht.of.it"]),
        ([_RUN % "A", _RUN % "B"], 26, ["…A_seed_…t_0.1_warmup_1000", "…B_seed_…t_0.1_warmup_1000"]),
        (
            [_RUN % "A", _RUN % "B", "another." * 5],
            26,
            ["…A_seed_…t_0.1_warmup_1000", "…B_seed_…t_0.1_warmup_1000", "another.….another.another."],
        ),
        (["x" * 30, "x" * 31, "x" * 32], 10, None),
        (["", "a"], 5, ["", "a"]),
        ([], 5, []),
    ],
)
def test_how_names_are_cut(names, width, shown):
    found = shortened(names, width)
    assert shown is None or found == shown
    assert len(set(found)) == len(set(names))
    assert all(len(name) <= width for name in found)


@pytest.mark.parametrize(
    "name", ["transformer.h.{}.attention.c_proj.weight", "transformer.attention.h.{}.c_proj.weight"]
)
def test_layer_eleven_does_not_look_like_layer_one(name):
    for width in range(8, 30):
        for number in (1, 11, 111):
            (cut,) = shortened([name.format(number)], width)
            assert [part for part in cut.replace("…", ".").split(".") if part.isdigit()] in ([], [str(number)])


@settings(deadline=None, max_examples=200)
@given(st.lists(st.text("ab1.层é", max_size=30), max_size=25), st.integers(6, 30), st.sampled_from(["…", ".."]))
def test_any_names_fit_and_stay_different(names, width, mark):
    found = shortened(names, width, mark)
    assert len(found) == len(names)
    assert len(set(found)) == len(set(names))
    assert all(cells(name) <= width for name in found)
    assert [cut for name, cut in zip(names, found, strict=True) if cells(name) <= width] == [
        name for name in names if cells(name) <= width
    ]


@settings(deadline=None)
@given(st.text("abc层é한 ", max_size=12), st.integers(0, 30), st.booleans())
def test_widths_are_those_of_a_terminal(text, width, right):
    assert cells(text) == cell_len(text)
    filled = padded(text, width, right=right)
    assert cells(filled) == max(width, cells(text))
    assert filled.strip() == text.strip()
