import math

import numpy as np
import pytest
from matplotlib.collections import LineCollection, PolyCollection

from monitorch.visualizer import TagType

NAN, INF = math.nan, math.inf
BAND = ("-σ", "+σ")


@pytest.fixture
def drawn(visualizer, axes_of):
    """The axes of the one layer ``a``."""

    def draw(numbers, **options):
        figure = visualizer({"a": {"mean": numbers}}, **options).show_fig()
        figure.canvas.draw()
        return axes_of(figure)["a"]

    return draw


def marks(axes):
    """Colour and epochs of the ticks at the bottom."""
    return [(line.get_color(), list(line.get_xdata())) for line in axes.lines if line.get_marker() == "|"]


def texts(axes):
    return [text.get_text().strip() for text in axes.texts]


def test_lines_hold_the_numbers(drawn):
    (line,) = drawn([1.0, 3.0, 2.0], first_epoch=4).lines
    assert list(line.get_xdata()) == [4, 5, 6]
    assert list(line.get_ydata()) == [1, 3, 2]
    assert line.get_label() == "mean"
    assert line.get_marker() == ""


@pytest.mark.parametrize("kind", [TagType.NUMERICAL, TagType.PROBABILITY])
def test_single_epoch_is_visible(drawn, kind):
    axes = drawn([0.5], kind=kind, bands={"a": (BAND, [0.4], [0.6])})
    assert axes.lines[0].get_marker() == "o"
    assert list(axes.lines[0].get_markevery()) == [True]
    assert any(isinstance(shape, LineCollection) for shape in axes.collections)


def test_point_between_gaps_is_visible(drawn):
    axes = drawn([1.0, 1.0, NAN, 2.0, NAN])
    assert list(axes.lines[0].get_markevery()) == [False, False, False, True, False]


def test_bands_are_pale_areas_with_a_label(drawn):
    axes = drawn([1.0, 2.0], bands={"a": (BAND, [0.0, 1.0], [2.0, 3.0])})
    (band,) = axes.collections
    assert isinstance(band, PolyCollection)
    assert band.get_label() == "-σ -- +σ"
    assert band.get_alpha() == 0.2
    assert {tuple(point) for point in band.get_paths()[0].vertices} == {(0, 0), (0, 2), (1, 1), (1, 3)}


def test_nonfinite_numbers_are_gaps_with_red_marks(drawn):
    axes = drawn([1.0, NAN, INF, 2.0, -INF])
    assert np.isnan(axes.lines[0].get_ydata()).tolist() == [False, True, True, False, True]
    assert marks(axes) == [("red", [1, 2, 4])]
    assert texts(axes) == ["NaN, Inf"]
    assert axes.get_ylim()[1] < 3


def test_nonfinite_edges_are_marked(drawn):
    axes = drawn([1.0, 1.0], bands={"a": (BAND, [0.0, NAN], [INF, 2.0])})
    assert marks(axes) == [("red", [0, 1])]


def test_only_nonfinite_numbers(drawn):
    assert texts(drawn([NAN, NAN])) == ["NaN", "no finite values"]


def test_logarithmic_axis_takes_what_is_not_positive(drawn):
    axes = drawn([0.0, -1.0, 10.0, 100.0], logy=True)
    assert axes.get_yscale() == "log"
    assert marks(axes) == [("dimgrey", [0, 1])]
    assert texts(axes) == ["≤ 0"]
    assert axes.get_ylim()[0] > 1


@pytest.mark.parametrize("numbers", [[0.0, 0.0], [-1.0], [NAN, 0.0]])
@pytest.mark.parametrize("kind", [TagType.NUMERICAL, TagType.PROBABILITY])
def test_logarithmic_axis_without_any_positive_number(drawn, numbers, kind):
    axes = drawn(numbers, logy=True, kind=kind, bands={"a": (BAND, [-2.0] * 2, [0.0] * 2)})
    assert np.isnan(axes.lines[0].get_ydata()).all()


@pytest.mark.parametrize("epochs", [1, 3])
def test_band_that_reaches_below_zero_ends_at_the_lowest_positive_number(drawn, epochs):
    axes = drawn([1.0] * epochs, logy=True, bands={"a": (BAND, [-5.0] * epochs, [7.0] * epochs)})
    assert 0.5 < axes.get_ylim()[0] < 1


@pytest.mark.parametrize("logy", [False, True])
def test_numbers_that_differ_only_by_rounding_can_be_drawn(drawn, logy):
    number = 0.004997585554951694
    axes = drawn([number], logy=logy, bands={"a": (BAND, [number], [0.0049975855549517015])})
    axes.figure.canvas.draw()
    low, high = axes.get_ylim()
    assert low < number < high


@pytest.mark.parametrize(("ends", "expected"), [((100, 0.1), (0.1, 100)), ((0, 100), (0.1, 100)), ((0, 1e-3), None)])
def test_ends_of_a_logarithmic_axis(drawn, ends, expected):
    low, high = drawn([0.1, 10.0], logy=True, ylim=ends).get_ylim()
    assert 0 < low < high == max(ends)
    if expected:
        assert low == pytest.approx(expected[0], rel=0.5)


@pytest.mark.parametrize("ends", [(0, 0), (-1, -2)])
def test_logarithmic_axis_ignores_ends_below_zero(drawn, ends):
    low, high = drawn([0.1, 10.0], logy=True, ylim=ends).get_ylim()
    assert low < 0.1 < 10 < high


def test_probabilities_are_filled_down_to_zero_between_zero_and_one(drawn):
    axes = drawn([0.2, 0.4], kind=TagType.PROBABILITY)
    assert axes.get_ylim() == (0, 1)
    assert {tuple(point) for point in axes.collections[0].get_paths()[0].vertices} == {
        (0, 0),
        (0, 0.2),
        (1, 0),
        (1, 0.4),
    }


def test_probabilities_take_other_ends(drawn):
    assert drawn([0.2, 0.4], kind=TagType.PROBABILITY, ylim=(0.5, 0)).get_ylim() == (0, 0.5)


def test_lines_of_long_runs_are_thin(drawn):
    assert drawn([1.0] * 600).lines[0].get_linewidth() < drawn([1.0] * 5).lines[0].get_linewidth()
