import pytest

from monitorch.visualizer.matplotlib.palette import band_colour, line_styles


@pytest.mark.parametrize(
    ("name", "colour"),
    [
        ("mean", "steelblue"),
        ("median", "blue"),
        ("activation_rate", "blue"),
        ("worst death_rate", "orange"),
        ("train_loss", "blue"),
        ("val_loss mean", "orange"),
        ("train_accuracy mean", "steelblue"),
        ("val_accuracy median", "red"),
    ],
)
def test_named_lines(name, colour):
    assert line_styles([name])[name].colour == colour


@pytest.mark.parametrize(
    ("edges", "colour"),
    [
        (("min", "max"), "grey"),
        (("Q1", "Q3"), "blue"),
        (("-σ", "+σ"), "steelblue"),
        (("train_loss Q1", "train_loss Q3"), "blue"),
        (("val_loss min", "val_loss max"), "bisque"),
        (("val_loss Q1", "val_loss Q3"), "orange"),
        (("val_loss -σ", "val_loss +σ"), "sandybrown"),
        (("this", "that"), "grey"),
    ],
)
def test_named_bands(edges, colour):
    assert band_colour(edges, {}) == colour


def test_aggregations_of_one_quantity_share_its_colour_and_differ_in_dashes():
    mean, median = line_styles(["train_loss mean", "train_loss median"]).values()
    assert mean.colour == median.colour
    assert mean.dashes != median.dashes


def test_unnamed_lines_all_look_different():
    names = [f"metric{index} {aggregation}" for index in range(20) for aggregation in ("mean", "max")]
    assert len(set(line_styles(names).values())) == 40


def test_unnamed_band_has_the_colour_of_its_line():
    styles = line_styles(["f1 mean", "accuracy mean"])
    assert band_colour(("accuracy -σ", "accuracy +σ"), styles) == styles["accuracy mean"].colour
