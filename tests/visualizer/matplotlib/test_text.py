import pytest

from monitorch.visualizer.matplotlib.text import SMALL_TEXT, bold_size, fit, shorten


@pytest.mark.parametrize(
    ("name", "at_most", "short"),
    [("abc", 3, "abc"), ("abcdef", 5, "ab…ef"), ("abcdef", 4, "ab…f"), ("abcdef", 0, "a…f"), ("", 5, "")],
)
def test_the_middle_is_cut_out(name, at_most, short):
    assert shorten(name, at_most) == short


def test_fit_leaves_short_names_alone():
    assert fit("encoder.0", width=3, size=8) == "encoder.0"
    assert len(fit("x" * 500, width=3, size=8)) == 45


def test_bold_letters_shrink_but_stay_readable():
    assert bold_size("Loss", width=3, largest=10) == 10
    assert SMALL_TEXT < bold_size("x" * 36, width=3, largest=10) < 10
    assert bold_size("x" * 500, width=3, largest=10) == SMALL_TEXT
