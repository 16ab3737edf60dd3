import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitorch.numerical import RunningMeanVar
from monitorch.numerical.moments import Moments, Row, group_starts

samples = st.floats(-1e300, 1e300) | st.sampled_from([math.nan, math.inf, -math.inf, 5e-324])
bounded = settings(deadline=None, max_examples=100)


def as_accumulator(moments, place):
    return RunningMeanVar.of_row(*moments.row(place))


@bounded
@given(st.lists(st.lists(samples, max_size=30), min_size=1, max_size=6), st.integers(1, 4))
def test_streams_side_by_side_do_not_disturb_each_other(assert_moments, streams, parts):
    moments = Moments()
    for part in range(parts):
        own = [stream[part::parts] for stream in streams]
        places = np.repeat(np.arange(len(own)), [len(stream) for stream in own])
        moments.fold(places, np.array([sample for stream in own for sample in stream]))
    moments.grow(len(streams))
    for place, stream in enumerate(streams):
        assert_moments(as_accumulator(moments, place), stream)


@bounded
@given(st.lists(st.lists(samples, min_size=1, max_size=10), min_size=1, max_size=5), st.randoms())
def test_merging_in_parts_and_in_any_order(assert_moments, parts, random):
    rows = []
    for part in parts:
        moments = Moments()
        moments.fold(np.zeros(len(part), int), np.array(part))
        rows.append(moments.row(0))
    random.shuffle(rows)
    whole = Moments()
    for row in rows:
        whole.merge(3, row)
    assert_moments(as_accumulator(whole, 3), [value for part in parts for value in part])
    assert whole.row(0) == pytest.approx(Row(), nan_ok=True)


def test_one_sample_and_one_that_is_not_finite():
    moments = Moments()
    moments.fold(np.array([0, 1]), np.array([2.0, math.nan]))
    assert moments.row(0) == Row(1, 2.0, 0.0, 2.0, 2.0, 0, 0.0, 2.0)
    assert moments.row(1) == pytest.approx(Row(nonfinite=1), nan_ok=True)


def test_what_was_set_is_what_is_read():
    moments, row = Moments(2), Row(3, 1.5, 2.0, -1.0, 4.0, 2, 4.0, 0.5)
    moments.set(5, row)
    assert moments.row(5) == row
    assert moments.std[5] == 2.0


@pytest.mark.parametrize(
    ("keys", "starts"), [([], []), ([4], [0]), ([1, 1, 2, 2, 1], [0, 2, 4]), ([[1, 2], [1, 2], [1, 3]], [0, 2])]
)
def test_starts_of_groups(keys, starts):
    assert group_starts(np.array(keys)).tolist() == starts
