"""What the names of statistics say."""

import pytest

from monitorch.store.names import StatisticName, count_name, find_count, is_edge, parse


@pytest.mark.parametrize(
    ("statistic", "accompanies"),
    [
        ("Output Norm/-σ", True),
        ("Loss/train_loss +σ", True),
        ("Output Norm/max", True),
        ("Weight Norm Comparison/share", True),
        ("Weight Norm/nonfinite", True),
        ("Output Norm/mean", False),
        ("Output Activations/death_rate", False),
        ("Loss/argmax", False),
    ],
)
def test_which_statistics_accompany_others(statistic, accompanies):
    assert is_edge(statistic) is accompanies


@pytest.mark.parametrize(
    ("statistic", "parts", "count"),
    [
        ("Weight Norm/mean", ("Weight Norm", "", "mean"), "Weight Norm/nonfinite"),
        ("Weight Norm/+σ", ("Weight Norm", "", "+σ"), "Weight Norm/nonfinite"),
        ("Loss/train_loss mean", ("Loss", "train_loss", "mean"), "Loss/train_loss nonfinite"),
        ("Loss/train_loss -σ", ("Loss", "train_loss", "-σ"), "Loss/train_loss nonfinite"),
        ("Logged/learning rate median", ("Logged", "learning rate", "median"), "Logged/learning rate nonfinite"),
        ("Logged/lr/group 0 Q3", ("Logged/lr", "group 0", "Q3"), "Logged/lr/group 0 nonfinite"),
        ("Output Activations/death_rate", ("Output Activations", "", "death_rate"), "Output Activations/nonfinite"),
        ("Warning/worst death_rate", ("Warning", "", "worst death_rate"), "Warning/nonfinite"),
        ("mean", ("", "", "mean"), "nonfinite"),
        ("", ("", "", ""), "nonfinite"),
        ("a/", ("a", "", ""), "a/nonfinite"),
    ],
)
def test_name_says_tag_curve_and_line(statistic, parts, count):
    assert parse(statistic) == StatisticName(*parts)
    assert count_name(statistic) == count


@pytest.mark.parametrize(
    ("statistic", "known", "count"),
    [
        ("Norm/mean", ["Norm/mean", "Norm/nonfinite"], "Norm/nonfinite"),
        ("Norm/mean", ["Norm/mean"], None),
        ("Norm/nonfinite", ["Norm/nonfinite"], None),
        ("Loss/a mean", ["Loss/nonfinite", "Loss/b nonfinite", "Loss/a nonfinite"], "Loss/a nonfinite"),
        ("Loss/a mean", ["Loss/nonfinite"], "Loss/nonfinite"),  # as earlier versions counted
        ("Loss/a nonfinite", ["Loss/nonfinite", "Loss/a nonfinite"], None),
        ("mean", ["mean", "nonfinite"], "nonfinite"),
    ],
)
def test_count_of_a_statistic_is_found(statistic, known, count):
    assert find_count(statistic, known) == count
