import math
from itertools import pairwise

import pytest

from monitorch.visualizer import MatplotlibVisualizer, TagType


@pytest.fixture
def drawn(attributes):
    """The axes of a big tag of shares, given as one dictionary per epoch."""

    def draw(*ticks, **changes):
        built = MatplotlibVisualizer()
        built.register_tags("T", attributes(TagType.RELATIONS, big_plot=True, annotate=False, **changes))
        for epoch, shares in enumerate(ticks):
            built.plot_relations(epoch, "T", {"T": shares})
        figure = built.show_fig()
        figure.canvas.draw()
        (axes,) = figure.axes
        return axes

    return draw


def height(area, epoch):
    values = [y for x, y in area.get_paths()[0].vertices if x == pytest.approx(epoch)]
    return max(values) - min(values)


def names(axes):
    return [text.get_text() for text in axes.texts]


def test_shares_are_stacked_up_to_one(drawn):
    axes = drawn({"a": 0.25, "b": 0.75}, {"a": 0.5, "b": 0.5})
    assert [area.get_label() for area in axes.collections] == ["a", "b"]
    assert [height(area, 0) for area in axes.collections] == [0.25, 0.75]
    assert axes.get_ylim() == (0, 1)


def test_neighbours_differ_in_colour(drawn):
    first, second, third = drawn({"a": 0.3, "b": 0.3, "c": 0.3}, {"a": 0.3, "b": 0.3, "c": 0.3}).collections
    assert first.get_facecolor().tolist() == third.get_facecolor().tolist() != second.get_facecolor().tolist()


def test_names_stand_in_the_middle_of_their_shares(drawn):
    axes = drawn({"a": 0.4, "b": 0.6}, {"a": 0.4, "b": 0.6})
    assert {text.get_text(): text.xy for text in axes.texts} == {"a": (0, 0.2), "b": (0, 0.7)}


def test_single_epoch_is_visible(drawn):
    first, second = drawn({"a": 0.4, "b": 0.6}).collections
    assert height(first, -0.4) == height(first, 0.4) == pytest.approx(0.4)
    assert height(second, 0.4) == pytest.approx(0.6)


def test_layer_that_is_missing_in_one_tick_has_no_share_there(drawn):
    axes = drawn({"a": 1.0}, {"a": 0.5, "b": 0.5}, {"b": 1.0})
    first, second = axes.collections
    assert [height(first, epoch) for epoch in range(3)] == [1, 0.5, 0]
    assert [height(second, epoch) for epoch in range(3)] == [0, 0.5, 1]
    assert {text.get_text(): text.xy[0] for text in axes.texts} == {"a": 0, "b": 1}


def test_nonfinite_shares_take_no_room_and_are_marked(drawn):
    axes = drawn({"a": 0.5, "b": 0.5}, {"a": math.nan, "b": 0.5})
    assert height(axes.collections[0], 1) == 0
    assert [list(line.get_xdata()) for line in axes.lines] == [[1]]
    assert " NaN " in names(axes)


def test_only_zero_shares(drawn):
    assert names(drawn({"a": 0.0}, {"a": 0.0})) == []


def test_names_of_many_layers_do_not_overlap(drawn):
    shares = {f"encoder.layers.{index}.linear": 1 / 60 for index in range(60)}
    axes = drawn(shares, shares)
    boxes = sorted((text.get_window_extent() for text in axes.texts), key=lambda box: box.y0)
    assert len(boxes) >= 8
    assert all(lower.y1 <= upper.y0 + 1 for lower, upper in pairwise(boxes))


def test_largest_shares_are_named_first(drawn):
    shares = {f"thin {index}": 0.01 for index in range(20)} | {"thick": 0.8}
    assert names(drawn(shares, shares))[0] == "thick"


def test_shares_have_no_logarithmic_axis(drawn):
    assert drawn({"a": 1.0}, {"a": 1.0}, logy=True).get_yscale() == "linear"
