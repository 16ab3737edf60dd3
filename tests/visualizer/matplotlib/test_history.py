import math

import pytest

from monitorch.visualizer.matplotlib.history import EpochSeries, History


def series(*points):
    built = EpochSeries()
    for epoch, value in points:
        built.add(epoch, value)
    return [part.tolist() for part in built.points()]


@pytest.mark.parametrize(
    ("points", "epochs", "values"),
    [
        ([], [], []),
        ([(1, 5.0), (2, 6.0)], [1, 2], [5, 6]),
        ([(1, 5.0), (1, 7.0)], [1], [7]),
        ([(1, 5.0), (2, 6.0), (1, 8.0), (3, 9.0)], [1, 2, 3], [8, 6, 9]),
        ([(3, 1.0), (1, 2.0)], [1, 3], [2, 1]),
    ],
)
def test_latest_number_of_an_epoch_counts(points, epochs, values):
    assert series(*points) == [epochs, values]


def test_points_can_be_read_between_additions():
    built = EpochSeries()
    built.add(0, 1.0)
    epochs, _ = built.points()
    built.add(1, 2.0)
    assert len(epochs) == 1
    assert len(built.points()[0]) == 2


def test_two_calls_in_one_epoch_add_up():
    history = History()
    history.add(0, "T", {"T": {"train_loss mean": 1.0}}, {"T": {("train_loss -σ", "train_loss +σ"): (0.0, 2.0)}})
    history.add(0, "T", {"T": {"acc mean": 0.5}}, None)
    assert history.line_names("T") == ["train_loss mean", "acc mean"]
    assert history.band_names("T") == [("train_loss -σ", "train_loss +σ")]


def test_layers_keep_the_order_in_which_they_came_and_empty_ones_are_left_out():
    history = History()
    history.add(0, "T", {"b": {"mean": 1.0}, "empty": {}})
    history.add(1, "T", {"a": {"mean": 1.0}, "b": {"mean": 1.0}})
    assert list(history.layers("T")) == ["b", "a"]
    assert history.layers("unknown") == {}
    assert history.epochs == (0, 1)


def test_band_without_line_makes_a_layer():
    history = History()
    history.add(0, "T", {}, {"a": {("min", "max"): (0.0, math.nan)}})
    assert list(history.layers("T")) == ["a"]


@pytest.mark.parametrize("value", [None, "many"])
def test_what_is_no_number_is_refused(value):
    with pytest.raises((TypeError, ValueError)):
        History().add(0, "T", {"a": {"mean": value}})
