import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from monitorch.errors import OptionError
from monitorch.numerical import RunningMeanVar, extract_point, extract_range, parse_range_name
from monitorch.numerical.extraction import (
    INPLACE_POINTS,
    INPLACE_RANGES,
    POINTS,
    RANGES,
    count_nonfinite,
    count_nonfinites,
    extract_points,
    extract_ranges,
    have_samples,
)
from monitorch.numerical.series import Series, SeriesColumn, sample_list

ORACLE = {
    "mean": np.mean,
    "std": np.std,
    "min": np.min,
    "max": np.max,
    "median": np.median,
    "Q1": lambda x: np.percentile(x, 25),
    "Q2": lambda x: np.percentile(x, 50),
    "Q3": lambda x: np.percentile(x, 75),
    "IQR": lambda x: np.subtract(*np.percentile(x, [75, 25])),
}
samples = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20)


def moments(values):
    accumulator = RunningMeanVar()
    for value in values:
        accumulator.update(value)
    return accumulator


def test_the_choices_are_those_of_the_oracle():
    assert set(POINTS) == set(ORACLE)
    assert set(INPLACE_POINTS) == {"mean", "std", "min", "max"}
    assert set(RANGES) == {"std", "Q1-Q3", "min-max"}
    assert set(INPLACE_RANGES) == {"std", "min-max"}


@settings(deadline=None, max_examples=50)
@given(samples)
def test_points_and_ranges_are_those_of_numpy(values):
    accumulators = {"list": (values, ORACLE), "in place": (moments(values), INPLACE_POINTS)}
    for accumulator, methods in accumulators.values():
        points = {method: extract_point(accumulator, method) for method in methods}
        for method, point in points.items():
            assert type(point) is float
            assert point == pytest.approx(ORACLE[method](values), rel=1e-9, abs=1e-9 * max(map(abs, values)))
        low, high = extract_range(accumulator, "std")
        assert low == pytest.approx(points["mean"] - points["std"])
        assert high == pytest.approx(points["mean"] + points["std"])
        assert extract_range(accumulator, "min-max") == (min(values), max(values))
    assert extract_range(values, "Q1-Q3") == pytest.approx(tuple(np.percentile(values, [25, 75])))


FIVE = [1.0, 2.0, 3.0, 4.0, 10.0]


@pytest.mark.parametrize(
    ("values", "method", "expected"),
    [
        (FIVE, "min", 1.0),
        (FIVE, "max", 10.0),
        (FIVE, "Q1", 2.0),
        (FIVE, "Q3", 4.0),
        (FIVE, "IQR", 2.0),
        ([1.0, 2.0, 3.0, 4.0, 5.0], "median", 3.0),
        ([*range(1, 10)], "median", 5.0),
        ([1.0, 2.0], "median", 1.5),
    ],
)
def test_order_statistics_of_known_samples(values, method, expected):
    assert extract_point(values, method) == expected
    assert extract_point(sample_list(values), method) == expected


def test_quartile_range_of_known_samples():
    assert extract_range(FIVE, "Q1-Q3") == (2.0, 4.0)


@pytest.mark.parametrize("method", POINTS)
def test_nonfinite_samples_are_left_out(method):
    poisoned = [math.nan, 3.0, math.inf, 1.0, -math.inf, 7.0]
    expected = pytest.approx(ORACLE[method]([3.0, 1.0, 7.0]))
    assert extract_point(poisoned, method) == expected
    if method in INPLACE_POINTS:
        assert extract_point(moments(poisoned), method) == expected


@pytest.mark.parametrize("empty", [[], sample_list(), [math.nan], RunningMeanVar(), moments([math.inf])])
def test_no_finite_sample_gives_nan(empty):
    inplace = isinstance(empty, RunningMeanVar)
    for method in INPLACE_POINTS if inplace else POINTS:
        assert math.isnan(extract_point(empty, method))
    for method in INPLACE_RANGES if inplace else RANGES:
        assert all(map(math.isnan, extract_range(empty, method)))


def test_tensors_that_wait_are_read():
    waiting = sample_list()
    for value in FIVE:
        waiting.append(torch.tensor(value, dtype=torch.bfloat16))
    assert extract_point(waiting, "median") == 3.0
    assert extract_range(waiting, "min-max") == (1.0, 10.0)


@pytest.mark.parametrize("size", [1e154, 1e200, 1e300])
@pytest.mark.parametrize("count", [2, 40])
def test_the_spread_of_huge_numbers_is_right(size, count):
    values = [size, -size] * (count // 2)
    tensors = [torch.tensor(value, dtype=torch.float64) for value in values]
    for accumulator in (values, moments(values), moments(tensors), pickle.loads(pickle.dumps(moments(values)))):
        assert extract_point(accumulator, "std") == pytest.approx(size, rel=1e-12)
        assert extract_range(accumulator, "std") == pytest.approx((-size, size), rel=1e-9)


@pytest.mark.parametrize("accumulator", [[1.0], RunningMeanVar(1, 1.0)])
@pytest.mark.parametrize("name", ["Q4", "average", "", "Mean"])
def test_unknown_point_lists_the_choices(accumulator, name):
    with pytest.raises(AttributeError, match="'mean', 'std', 'min', 'max', 'median', 'Q1', 'Q2', 'Q3', 'IQR'"):
        extract_point(accumulator, name)


@pytest.mark.parametrize("function", [lambda name: extract_range([1.0], name), parse_range_name])
@pytest.mark.parametrize("name", ["max-min", "IQR", ""])
def test_unknown_range_lists_the_choices(function, name):
    with pytest.raises(AttributeError, match="'std', 'Q1-Q3', 'min-max'"):
        function(name)


@pytest.mark.parametrize("method", ["median", "Q1", "Q2", "Q3", "IQR"])
def test_quantiles_of_moments_are_refused_with_the_cure(method):
    with pytest.raises(AttributeError, match=rf"'{method}' needs every sample.*inplace=False"):
        extract_point(moments(FIVE), method)


def test_quartile_range_of_moments_is_refused_with_the_cure():
    with pytest.raises(AttributeError, match="inplace=False"):
        extract_range(moments(FIVE), "Q1-Q3")


@pytest.mark.parametrize("container", [(1.0, 2.0), np.ones(3), {1.0}, None])
def test_other_containers_are_refused(container):
    with pytest.raises(AttributeError, match=f"not {type(container).__name__}"):
        extract_point(container, "mean")


@pytest.mark.parametrize(
    ("name", "ends"), [("std", ("-σ", "+σ")), ("Q1-Q3", ("Q1", "Q3")), ("min-max", ("min", "max"))]
)
def test_names_of_the_ends(name, ends):
    assert parse_range_name(name) == ends


def test_counting_nonfinite_samples():
    poisoned = [1.0, math.nan, math.inf]
    assert (
        count_nonfinite(poisoned) == count_nonfinite(sample_list(poisoned)) == count_nonfinite(moments(poisoned)) == 2
    )
    assert count_nonfinite([]) == 0


MANY = {
    "usual": [1.0, 2.0, 4.0],
    "one": [3.0],
    "empty": [],
    "broken": [math.nan, math.inf],
    "mixed": [math.nan, 5.0, 7.0],
    "huge": [1e300, -1e300],
}


def apart(make):
    return {name: make(values) for name, values in MANY.items()}


def column(inplace):
    """The same numbers as the second ones of the samples of a series, which also has a layer that is not asked for."""
    series = Series(inplace, width=2)
    for name, values in {"other": [8.0], **MANY}.items():
        series.place(name)
        for value in values:
            series.add(name, 9.0, value)
    return SeriesColumn(series, {name: name for name in MANY}, 1)


@pytest.mark.parametrize(
    ("series", "points", "bands"),
    [
        (apart(moments), INPLACE_POINTS, INPLACE_RANGES),
        (apart(sample_list), POINTS, RANGES),
        (column(inplace=True), INPLACE_POINTS, INPLACE_RANGES),
        (column(inplace=False), POINTS, RANGES),
    ],
    ids=["moments", "samples", "columns of moments", "columns of samples"],
)
def test_many_accumulators_are_read_in_their_order(series, points, bands):
    finite = {name: [value for value in values if math.isfinite(value)] for name, values in MANY.items()}
    for method in points:
        found = dict(zip(MANY, extract_points(series, method).tolist(), strict=True))
        for name, values in finite.items():
            unit = 1e300 if name == "huge" else 1.0
            wanted = ORACLE[method](np.array(values) / unit) * unit if values else math.nan
            assert found[name] == pytest.approx(wanted, nan_ok=True)
    for band in bands:
        low, high = extract_ranges(series, band)
        wanted = [extract_range(acc, band) for acc in series.values()]
        assert np.array_equal(np.stack([low, high], axis=1), wanted, equal_nan=True)
    assert count_nonfinites(series).tolist() == [0, 0, 0, 2, 1, 0]
    assert have_samples(series).tolist() == [True, True, False, True, True, True]


def test_no_accumulators_give_no_numbers():
    assert [len(found) for found in (extract_points({}, "mean"), *extract_ranges({}, "std"))] == [0, 0, 0]
    assert (len(count_nonfinites({})), len(have_samples({}))) == (0, 0)


def test_what_needs_every_sample_is_refused_for_columns_of_moments():
    with pytest.raises(OptionError, match="'median' needs every sample, but only moments were kept"):
        extract_points(column(inplace=True), "median")


@pytest.mark.parametrize(("read", "method"), [(extract_points, "mode"), (extract_ranges, "Q1")])
def test_unknown_method_for_many_is_refused(read, method):
    with pytest.raises(OptionError, match=f"{method}.* is unknown; choose from"):
        read({"a": [1.0]}, method)
