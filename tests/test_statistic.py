"""What a statistic is, and what its name says where there is nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitorch.numerical.extraction import POINTS, RANGES, parse_range_name
from monitorch.statistic import AGGREGATIONS, BANDS, Statistic, band_of

WORDS = st.text(alphabet="a/ σ", max_size=5)
LINES = st.sampled_from([*AGGREGATIONS, "-σ", "share", "nonfinite", "death_rate", ""])


@pytest.mark.parametrize(
    ("name", "parts", "count"),
    [
        ("Weight Norm/mean", ("Weight Norm", "", "mean", "line", "", ""), "Weight Norm/nonfinite"),
        ("Weight Norm/+σ", ("Weight Norm", "", "+σ", "edge", "std", "high"), "Weight Norm/nonfinite"),
        ("Loss/train_loss mean", ("Loss", "train_loss", "mean", "line", "", ""), "Loss/train_loss nonfinite"),
        ("Loss/train_loss min", ("Loss", "train_loss", "min", "edge", "min-max", "low"), "Loss/train_loss nonfinite"),
        (
            "Logged/lr/group 0 Q3",
            ("Logged/lr", "group 0", "Q3", "edge", "Q1-Q3", "high"),
            "Logged/lr/group 0 nonfinite",
        ),
        ("Norm Comparison/share", ("Norm Comparison", "", "share", "share", "", ""), "Norm Comparison/nonfinite"),
        ("Weight Norm/nonfinite", ("Weight Norm", "", "nonfinite", "count", "", ""), "Weight Norm/nonfinite"),
        ("Rates/death_rate", ("Rates", "", "death_rate", "line", "", ""), "Rates/nonfinite"),
        ("Warning/worst death_rate", ("Warning", "", "worst death_rate", "line", "", ""), "Warning/nonfinite"),
        ("Loss/argmax", ("Loss", "", "argmax", "line", "", ""), "Loss/nonfinite"),
        ("mean", ("", "", "mean", "line", "", ""), "nonfinite"),
        ("", ("", "", "", "line", "", ""), "nonfinite"),
        ("a/", ("a", "", "", "line", "", ""), "a/nonfinite"),
    ],
)
def test_name_says_what_a_statistic_is(name, parts, count):
    assert Statistic(name).parts == parts
    assert Statistic(name).nonfinite().name == count
    assert Statistic(name).nonfinite().role == "count"


@given(WORDS, WORDS, LINES)
def test_parts_of_any_name_are_the_name_again(tag, curve, line):
    name = f"{tag}/{curve} {line}"
    known = Statistic(name)
    assert Statistic.of(known.tag, known.line, known.curve).name == name == known.name


@given(WORDS, WORDS, LINES)
def test_given_parts_are_kept_whatever_the_name_looks_like(tag, curve, line):
    known = Statistic.of(tag, line, curve, role="line")
    assert (known.tag, known.curve, known.line, known.role) == (tag, curve, line, "line")
    assert Statistic(*known) == known == known._replace()


@pytest.mark.parametrize(
    ("name", "label", "title"),
    [
        ("Weight Norm/mean", "", "Weight Norm"),
        ("Weight Norm/median", "median", "Weight Norm/median"),
        ("Loss/train_loss mean", "train_loss", "Loss/train_loss"),
        ("Loss/train_loss -σ", "train_loss -σ", "Loss/train_loss -σ"),
        ("Norm Comparison/share", "", "Norm Comparison"),
        ("Rates/death_rate", "death_rate", "Rates/death_rate"),
        ("mean", "", "mean"),
    ],
)
def test_label_and_title_leave_out_what_goes_without_saying(name, label, title):
    assert (Statistic(name).label, Statistic(name).title) == (label, title)


@pytest.mark.parametrize(
    ("name", "known", "count"),
    [
        ("Norm/mean", ["Norm/mean", "Norm/nonfinite"], "Norm/nonfinite"),
        ("Norm/mean", ["Norm/mean", "Other/nonfinite"], None),
        ("Norm/nonfinite", ["Norm/nonfinite"], None),
        ("Loss/a mean", ["Loss/nonfinite", "Loss/b nonfinite", "Loss/a nonfinite"], "Loss/a nonfinite"),
        ("Loss/a mean", ["Loss/nonfinite"], "Loss/nonfinite"),  # as earlier versions counted
        ("Loss/a mean", ["Loss/b nonfinite"], None),
        ("Loss/a nonfinite", ["Loss/nonfinite", "Loss/a nonfinite"], None),
        ("mean", ["mean", "nonfinite"], "nonfinite"),
    ],
)
def test_count_of_a_statistic_is_found_among_others(name, known, count):
    found = Statistic(name).nonfinite_among(map(Statistic, known))
    assert (None if found is None else found.name) == count


def test_names_of_aggregations_and_bands_are_those_of_the_arithmetic():
    assert (AGGREGATIONS, tuple(BANDS)) == (POINTS, RANGES)
    for band in RANGES:
        assert BANDS[band] == parse_range_name(band)
        assert band_of(*parse_range_name(band)) == band


@pytest.mark.parametrize(
    ("error", "limits", "text"),
    [
        (None, None, ""),
        (None, (-1.0, 1.0), ""),
        (0.011, None, "± 1.1 %"),
        (0.00123, None, "± 0.12 %"),
        (0.25, None, "± 25 %"),
        (0.022, (-1.0, 1.0), "± 0.022"),
        (0.022, (0.0, 0.0), "± 0.022"),
        (0.0, None, "± 0 %"),
    ],
)
def test_an_error_is_absolute_where_there_are_limits_and_else_a_share(error, limits, text):
    assert Statistic.of("Tag", "mean", limits=limits, error=error).error_text == text
